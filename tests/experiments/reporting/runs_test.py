"""Run folders: whole, unfinished and damaged; and one form for every way to write a flag."""

import json
import os

import numpy as np
import pytest

from experiments.reporting import naming
from experiments.reporting import runs as runs_lib
from tests.experiments.reporting import factory


def _reasons(found):
  return {os.path.basename(item.path): item.reason for item in found}


def test_a_whole_run(tmp_path):
  factory.write_run(tmp_path / 'run', accuracy=0.8, seed=7, algorithm='layerwise')
  run, left_out = runs_lib.load_run(str(tmp_path / 'run'))
  assert not left_out
  assert (run.row()['seed'], run.algorithm, run.rounds, run.ended) == (7, 'layerwise', 10, True)
  assert run.test_accuracy == 0.8
  assert len(run.counts) == 10 and run.counts.sum() == 40
  assert run.nominal_epsilon.sum() == pytest.approx(40 * 0.6)


def test_runs_are_found_at_any_depth_and_once(tmp_path):
  for name in ('a', 'b/c', 'b/d'):
    factory.write_run(tmp_path / name)
  found = runs_lib.find([str(tmp_path), str(tmp_path / 'b')])
  assert [os.path.relpath(path, tmp_path) for path in found] == ['a', 'b/c', 'b/d']


@pytest.mark.parametrize('algorithm', ['fedavg', 'fixed_dp', 'certified', 'tff_dp_fedavg'])
def test_flags_that_the_method_does_not_read_need_not_be_there(tmp_path, algorithm):
  folder = factory.write_run(tmp_path / 'run', algorithm=algorithm, certified_epsilon=3.0)
  identity = json.loads((folder / 'run.json').read_text())['identity']
  assert 'critical_layers' not in identity
  run, left_out = runs_lib.load_run(str(folder))
  assert run is not None and not left_out


@pytest.mark.parametrize(
  'text',
  [
    '{',
    '[]',
    '{"flags": {}}',
    '{"identity": {"dataset": "mnist"}}',
    '{"identity": {"dataset": "mnist", "participation": "full", "partition": "iid", "rounds": 5, "seed": 1, '
    '"epsilon": "six"}}',
  ],
)
def test_a_run_without_its_flags_is_left_out(tmp_path, text):
  folder = factory.write_run(tmp_path / 'run')
  (folder / 'run.json').write_text(text)
  run, left_out = runs_lib.load_run(str(folder))
  assert run is None
  assert 'cannot be read' in _reasons(left_out)['run.json']


def test_an_unfinished_run_has_its_last_test(tmp_path):
  folder = factory.write_run(tmp_path / 'run', curve=[0.1, 0.6], rounds_run=2)
  for name in ('summary.json', 'clients.csv', 'ledger.npz'):
    (folder / name).unlink()
  run, left_out = runs_lib.load_run(str(folder))
  assert (run.test_accuracy, run.rounds, run.ended) == (0.6, 2, False)
  assert [item.reason.split(';')[0] for item in left_out] == ['unfinished: 2 of 10 planned rounds']


def test_an_interrupted_run_is_unfinished(tmp_path):
  folder = factory.write_run(tmp_path / 'run', rounds_run=4)
  factory.change_json(folder / 'summary.json', interrupted=True)
  assert not runs_lib.load_run(str(folder))[0].ended


@pytest.mark.parametrize(
  'name, content',
  [
    ('metrics.csv', b'round,test_accuracy\n1,0.5\n1,0.6\n'),
    ('metrics.csv', b'round,test_accuracy\n1,half\n'),
    ('metrics.csv', b'test_accuracy\n0.5\n'),
    ('metrics.csv', b'\xff\xfe\x00'),
    ('clients.csv', b'client\nx\n'),
    ('clients.csv', b'client,examples\n0,5\n'),
    ('ledger.npz', b'torn'),
    ('summary.json', b'{"rounds"'),
    ('certificate.json', b'[' * 100_000),
  ],
)
def test_a_damaged_file_is_named_and_the_rest_is_kept(tmp_path, name, content):
  certified_epsilon = 2.0 if name == 'certificate.json' else None
  folder = factory.write_run(tmp_path / 'run', accuracy=0.8, certified_epsilon=certified_epsilon)
  (folder / ('certificate' if certified_epsilon else '') / name).write_bytes(content)
  run, left_out = runs_lib.load_run(str(folder))
  assert run.test_accuracy == 0.8
  assert _reasons(left_out)[name].startswith('cannot be read (')


@pytest.mark.parametrize('name', ['metrics.csv', 'clients.csv', 'ledger.npz'])
def test_a_missing_file_is_named(tmp_path, name):
  folder = factory.write_run(tmp_path / 'run')
  (folder / name).unlink()
  run, left_out = runs_lib.load_run(str(folder))
  assert run is not None
  assert _reasons(left_out)[name].startswith('is missing')


def test_secret_cohorts_are_no_missing_file_and_the_number_of_clients_is_known(tmp_path):
  folder = factory.write_run(tmp_path / 'run', cohort_seed='secret')
  for name in ('ledger.npz', 'clients.csv'):
    (folder / name).unlink()
  identity = json.loads((folder / 'run.json').read_text())['identity']
  factory.change_json(folder / 'run.json', identity={**identity, 'num_clients': None})  # The dataset decides.
  run, left_out = runs_lib.load_run(str(folder))
  assert not left_out and run.counts is None and run.num_clients == 10


@pytest.mark.parametrize(
  'parameters, missing', [('weights=uniform', {'certificate.json'}), ('certificate=false', set())]
)
def test_a_certified_run_without_its_certificate_is_named_unless_it_is_a_rehearsal(tmp_path, parameters, missing):
  folder = factory.write_run(tmp_path / 'run', algorithm=f'certified:{parameters}')
  assert _reasons(runs_lib.load_run(str(folder))[1]).keys() == missing


def test_a_run_without_an_accuracy_is_left_out(tmp_path):
  folder = factory.write_run(tmp_path / 'run')
  (folder / 'summary.json').unlink()
  (folder / 'metrics.csv').write_text('round,seconds\n1,2\n')
  run, left_out = runs_lib.load_run(str(folder))
  assert run is None
  assert 'no test accuracy' in left_out[-1].reason


def test_without_a_ledger_the_clients_file_serves(tmp_path):
  folder = factory.write_run(tmp_path / 'run', algorithm='fixed_dp')
  (folder / 'ledger.npz').unlink()
  run, _ = runs_lib.load_run(str(folder))
  assert run.counts.sum() == 40
  assert run.nominal_epsilon.sum() == pytest.approx(40 * 0.6)


@pytest.mark.parametrize(
  'run',
  [{'calibration': 'exact'}, {'algorithm': 'certified:weights=uniform'}, {'algorithm': 'fedavg', 'noise_norm': 0}],
)
def test_with_other_noise_or_none_there_is_no_nominal_epsilon(tmp_path, run):
  factory.write_run(tmp_path / 'run', **run)
  assert runs_lib.load_run(str(tmp_path / 'run'))[0].nominal_epsilon is None


def test_what_those_who_came_most_and_least_have_spent(tmp_path):
  factory.write_run(tmp_path / 'run', num_clients=100, cohort_size=30, algorithm='fixed_dp')
  run, _ = runs_lib.load_run(str(tmp_path / 'run'))
  counts = np.sort(run.counts)
  row = run.row()
  assert row['nominal_most'] == pytest.approx(0.6 * counts[-20:].mean())
  assert row['nominal_least'] == pytest.approx(0.6 * counts[:20].mean())


def test_a_row_has_what_was_measured(tmp_path):
  folder = factory.write_run(tmp_path / 'run', curve=[0.5, 0.95, 0.9], rounds_run=3, seconds=1.5, up_bytes=4000)
  row = runs_lib.load_run(str(folder))[0].row()
  assert (row['rounds_to_90'], row['seconds'], row['minutes'], row['up_kilobytes']) == (2.0, 1.5, 4.5 / 60, 4.0)
  assert (row['noise_norm'], row['root_dimension'], row['covers']) == (2.0, pytest.approx(20), None)


def test_a_row_does_without_columns_that_are_missing(tmp_path):
  folder = factory.write_run(tmp_path / 'run')
  (folder / 'metrics.csv').write_text('round,sigma\n1,0.5\n')
  row = runs_lib.load_run(str(folder))[0].row()
  assert (row['sigma'], row['noise_norm'], row['root_dimension'], row['seconds']) == (0.5, None, None, None)


def test_rounds_to_an_accuracy_that_was_not_reached_are_infinite(tmp_path):
  folder = factory.write_run(tmp_path / 'run', curve=[0.5, 0.89], rounds_run=2)
  assert runs_lib.load_run(str(folder))[0].row()['rounds_to_90'] == np.inf


class TestJain:
  @pytest.mark.parametrize('values, expected', [([1, 1, 1, 1], 1), ([4, 0, 0, 0], 0.25), ([1, 3], 16 / 20)])
  def test_index(self, values, expected):
    assert runs_lib.jain(np.array(values, float)) == pytest.approx(expected)

  def test_of_nothing(self):
    assert runs_lib.jain(None) is None
    assert runs_lib.jain(np.zeros(3)) is None


@pytest.mark.parametrize(
  'flag, value, expected',
  [
    ('participation', 'beta', 'beta:a=2,b=5'),
    ('participation', 'beta:b=5.0', 'beta:a=2,b=5'),
    ('participation', 'uniform', 'uniform'),
    ('partition', 'dirichlet:alpha=0.50', 'dirichlet:alpha=0.5'),
    ('algorithm', 'fixed_dp:clip=1.0', 'fixed_dp'),
    ('algorithm', 'fixed_dp:clip=0.50', 'fixed_dp:clip=0.5'),
    ('algorithm', 'retired:clip=2.0', 'retired:clip=2.0'),
    ('epsilon', 6.0, 6),
    ('epsilon', 0.5, 0.5),
    ('critical_layers', 'dense,dense_1', 'dense,dense_1'),
    ('cohort_size', None, 'default'),
  ],
)
def test_canonical(flag, value, expected):
  assert naming.canonical(flag, value) == expected


@pytest.mark.parametrize(
  'spec, is_secret, expected',
  [
    ('certified:weights=uniform,clip=0.5', False, 'certified:clip=0.5,noise=ar1,weights=uniform'),
    ('certified', False, 'certified:noise=ar1,weights=online'),
    ('certified:clip=0.5', True, 'certified:clip=0.5,noise=independent'),
  ],
)
def test_what_suits_a_method_is_written_out(spec, is_secret, expected):
  assert naming.canonical_algorithm(spec, is_secret) == expected
  assert naming.canonical_algorithm(expected, is_secret) == expected
