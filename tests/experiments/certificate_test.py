"""The certificate of a run of `experiments.train`: where it lies, what it states, and that the run's flags give it.

Folders that were forged are in tests/quap_tff/certificates.
"""

import datetime

import numpy as np
import pytest

from experiments.command import run as run_lib
from experiments.folders import directory as run_directory
from experiments.folders import folder as run_folder
from experiments.running import certifying
from quap_tff import certificates
from quap_tff import verify
from quap_tff.certificates.folders import folder as folders
from quap_tff.certificates.folders import shapes
from tests.experiments import harness
from tests.experiments import library as runs
from tests.quap_tff.certificates import made

pytestmark = pytest.mark.slow

# Runs of the library: of 6 rounds; stopped, with own bounds; without a trusted server, and clients who drop out.
_PLAIN, _STOPPED, _HELD = 'certified', 'certified_stopped', 'held'


@pytest.mark.parametrize('name', [_PLAIN, _STOPPED, _HELD, pytest.param('features', marks=pytest.mark.thorough)])
def test_the_flags_give_the_mechanism_and_the_schedule(name, library):
  """Nobody compares the two when a certificate is verified. So this holds that they agree."""
  path = library.run(name).path
  run_json, kept = made.read(path, run_folder.RUN), folders.read(str(path / folders.SUBFOLDER))
  run, resolved, summary = run_lib.Run.from_json(run_json, str(path)), run_json['resolved'], harness.summary(path)
  plan = run.plan(resolved['num_clients'], shapes.model_shape(resolved), resolved['test_is_of_clients'])
  about = certifying.about(
    run,
    plan,
    resolved,
    tests=sum(bool(row['test_accuracy']) for row in harness.rows(path)),
    test_accuracy=summary['test_accuracy'],
    date=datetime.date.fromisoformat(summary['date']),
    stretches=run_folder.stated_stretches(run_json, summary['rounds']),
  )
  written = (path / folders.SUBFOLDER / folders.MECHANISM).read_text(encoding='utf-8')
  assert folders.mechanism_text(plan, kept.leaving, about, kept.code) == written
  assert len(plan.schedule) == len(kept.plan.schedule) > 0
  assert all(map(np.array_equal, plan.schedule, kept.plan.schedule))
  assert all(map(np.array_equal, plan.attendance, kept.plan.attendance))
  assert (resolved['data_commitment'], summary['rounds']) == (about.data_commitment, kept.ledger.num_rounds)


@pytest.mark.parametrize('name', [_PLAIN, _HELD])
def test_the_run_and_its_certificate_alone_are_valid(name, library, capsys):
  path = library.run(name).path
  assert verify.main([str(path)]) == 0
  of_run = capsys.readouterr()
  assert verify.main([str(path / 'certificate')]) == 0
  alone = capsys.readouterr()
  assert not of_run.err and not alone.err and of_run.out.splitlines()[:2] == alone.out.splitlines()[:2]
  assert 'for each of the 8 clients with ε = 4 and δ = 1e-05' in alone.out
  assert of_run.out.splitlines()[2].startswith('Only certificate/ was checked. There is no audit alongside it')
  assert alone.out.splitlines()[2].startswith('No audit was looked for.')


def test_it_is_a_folder_of_its_own_and_the_model_is_kept_once(library):
  for name in (_PLAIN, _STOPPED, _HELD):
    trained = library.run(name)
    certificate = {'mechanism.json', 'schedule.npz', 'ledger.npz', 'clients.csv', 'final_model.npz'}
    certificate |= {'certificate.json', 'certificate.html'}
    assert {one.name for one in (trained.path / 'certificate').iterdir()} == certificate
    alongside = {'certificate', 'run.json', 'metrics.csv', 'plot.png', 'summary.json', '.lock'}
    alongside |= {'checkpoints'} if name == _STOPPED else set()
    assert {one.name for one in trained.path.iterdir()} == alongside
    assert f'Certified: {trained.path / "certificate"}. python -m quap_tff.verify {trained.path} ' in trained.err


def test_whatever_lies_alongside_it_is_not_compared(library, tmp_path):
  path = library.copy(_PLAIN, tmp_path / 'run')
  before = certificates.verify(str(path))
  for name in ('run.json', 'metrics.csv', 'summary.json', 'losses.csv'):
    (path / name).write_text('client,loss')
  assert certificates.verify(str(path)) == before and before.statement


def test_a_run_that_was_stopped_says_how_far_it_came(library):
  statement = certificates.verify(str(library.run(_STOPPED).path)).statement
  assert 'in total over all 8 planned rounds' in statement and 'has spent ε' not in statement
  assert 'The run ended after 5 of 8 planned rounds' in statement and 'ε = 2 for 4, ε = 4 for 4' in statement
  assert 'A reading of the account at that moment gives ε = ' in statement


def test_a_run_that_goes_on_has_none_until_it_ends(library, tmp_path, monkeypatch):
  """It would not cover what is released from then on."""
  path, there = library.copy(_STOPPED, tmp_path / 'run'), []
  made.put(path, folders.AUDIT)
  log = run_directory.RunDirectory.log
  monkeypatch.setattr(
    run_directory.RunDirectory,
    'log',
    lambda self, *row: there.extend(name for name in ('certificate', 'audit.json') if (path / name).exists())
    or log(self, *row),
  )
  flags = [*harness.TINY, *runs.RUNS[_STOPPED], '--stop_after=6', f'--output_dir={path}']
  assert harness.main(*flags) == 0
  assert not there and not (path / folders.AUDIT).exists()
  verdict = certificates.verify(str(path))
  assert not verdict.problems and 'The run ended after 6 of 8 planned rounds' in verdict.statement


def test_what_left_clients_was_read_off_the_computation(library):
  leaves = []
  for name in (_PLAIN, _HELD):
    leaves.append(made.read(library.run(name).path / 'certificate', folders.MECHANISM)['leaves_clients'])
  assert leaves[0] == [
    ['federated_sum', 'client_id', 'int32[9]'],
    ['federated_sum', '', 'int32[64,10]'],
    ['federated_sum', '', 'int32[10]'],
  ]
  assert [by for by, *_ in leaves[1]] == ['federated_sum'] * 4 + ['federated_secure_modular_sum'] * 3
