"""Tests of `experiments.export`: a preset becomes a bundle and a file of data, from which a run is simulated."""

import json
import os
import stat

import numpy as np
import pytest

from experiments import export
import quap_tff
from quap_tff.bundle import __main__ as program
from quap_tff.bundle import bundle_engine
from quap_tff.bundle import simulation
from tests.quap_tff.flower import own_training

pytestmark = pytest.mark.slow

_FLAGS = ['--dataset=digits', '--num_clients=8', '--rounds=3', '--model=linear_features', '--num_threads=2']


def _export(folder, *flags):
  return export.main(['export', *_FLAGS, f'--output={folder}', *flags])


@pytest.mark.thorough
def test_a_run_is_exported_and_simulated(tmp_path, capsys):
  clients = tmp_path / 'clients.npz'
  flags = ['--algorithm=certified', '--dropout=bernoulli:rate=0.6', '--cohort_size=3', f'--clients={clients}']
  assert _export(tmp_path / 'bundle', *flags) == 0
  bundle = quap_tff.Bundle(tmp_path / 'bundle')
  assert [len(cohort) for cohort in bundle.rounds.cohorts] == [3, 3, 3] and sum(map(len, bundle.rounds.absent))
  assert (bundle.about.dataset, bundle.about.model) == ('digits', 'linear_features')
  with np.load(clients) as kept:
    assert stat.S_IMODE(clients.stat().st_mode) == 0o600
    assert set(kept.files) == {'x', 'y', 'client', 'x_test', 'y_test'} and set(kept['client']) == set(range(8))
  assert program.main(['run', f'{tmp_path}/bundle', f'--clients={clients}', f'--output={tmp_path}/run']) == 0
  assert not quap_tff.certificates.verify(str(tmp_path / 'run')).problems
  # With as much noise, a model may be right about no image.
  assert 0 <= json.loads(capsys.readouterr().out.splitlines()[-1])['test_accuracy'] <= 1


@pytest.mark.thorough
def test_secret_cohorts_are_not_written(tmp_path):
  flags = ['--algorithm=tff_dp_fedavg', '--participation=bernoulli', '--cohort_seed=secret']
  assert _export(tmp_path / 'bundle', *flags) == 0
  bundle = quap_tff.Bundle(tmp_path / 'bundle')
  assert not bundle.rounds.cohorts and bundle.plan.draw.secret


@pytest.mark.parametrize(
  'flags, error',
  [
    (['--algorithm=certified', '--output_dir=x'], '--output_dir: nothing is trained here'),
    (['--gaussian_calibration=analytic'], 'clients wait for others in mid-round.*timing=previous'),
    pytest.param(
      ['--algorithm=scaffold'],
      'TFF does not compile this process to one message.*federated_select',
      marks=pytest.mark.thorough,
    ),
    pytest.param(
      ['--algorithm=tff_dp_ftrl'], 'all runs of one bundle would have the same noise', marks=pytest.mark.thorough
    ),
  ],
)
def test_says_why_a_run_is_not_exported(flags, error, tmp_path):
  with pytest.raises(ValueError, match=error):
    _export(tmp_path / 'bundle', *flags)
  assert not os.path.exists(tmp_path / 'bundle')


def test_refuses_a_folder_that_exists(tmp_path):
  with pytest.raises(ValueError, match='--output must be a new folder'):
    _export(tmp_path, '--algorithm=certified')


class TestWeights:
  """With --weights, clients bring updates of a program of one's own."""

  _OWN = ('--algorithm=certified:clip=0.5', '--num_clients=8', '--rounds=3', '--num_threads=2')

  @pytest.fixture(name='weights')
  def _weights(self, tmp_path):
    path = tmp_path / 'weights.npz'
    arrays = {'fc.weight': np.full([10, 64], 0.5, np.float32), 'fc.bias': np.zeros(10, np.float32)}
    np.savez(path, **arrays)
    return str(path)

  def _export(self, folder, *flags):
    return export.main(['export', *self._OWN, f'--output={folder}', *flags])

  def test_a_run_of_digits_in_numpy(self, weights, tmp_path):
    clients = tmp_path / 'clients.npz'
    assert self._export(tmp_path / 'bundle', f'--weights={weights}', f'--clients={clients}') == 0
    bundle = quap_tff.Bundle(tmp_path / 'bundle')
    assert (bundle.about.dataset, bundle.about.model) == ('digits', 'a model of its own')
    found = [tuple(weight.shape) for weight in bundle.sent_weights(bundle.prepare(bundle.initialize()))]
    assert found == [(10, 64), (10,)] and [layer.name for layer in bundle.plan.shape.layers] == ['fc']
    examples, _ = simulation.read_clients(str(clients))
    with quap_tff.Server.of(bundle_engine.BundleEngine(bundle), tmp_path / 'run') as run:
      for cohort in bundle.rounds.cohorts:
        message = bundle.prepare(run.state)
        sent = bundle.sent_weights(message)
        new = {client: own_training.trained(sent, **examples[client]) for client in cohort.tolist()}
        run.play({client: bundle.update_of(message, new[client]) for client in new})
      folder = run.certify(dataset='digits', cohorts='By a public seed.', tuning='None.')
    verdict = quap_tff.certificates.verify(folder)
    assert not verdict.problems and "came from a program of the issuer's own" in verdict.statement
    # The public rule chose no training.
    assert 'learning rate' not in bundle.about.tuning

  def test_data_are_read_only_for_the_clients_file(self, weights, tmp_path, monkeypatch):
    monkeypatch.setattr(export.setup.data, 'load', lambda *args, **options: pytest.fail('data were read'))
    assert self._export(tmp_path / 'bundle', f'--weights={weights}') == 0
    bundle = quap_tff.Bundle(tmp_path / 'bundle')
    assert (bundle.about.dataset, bundle.about.features, bundle.plan.num_clients) == ('not stated', 'none', 8)
    assert [len(cohort) for cohort in bundle.rounds.cohorts] == [2, 2, 2]

  @pytest.mark.parametrize(
    'flags, said',
    [
      (['--weights=nowhere.npz'], '--weights: nowhere.npz must be an .npz file of float32 arrays'),
      (['--weights={weights}', '--local_epochs=3'], '--local_epochs: with --weights, clients train by a program of'),
      (['--weights={weights}', '--model=mlp'], '--model: with --weights'),
      (['--weights={weights}', '--algorithm=scaffold'], 'Scaffold changes local training'),
    ],
  )
  def test_says_what_is_wrong(self, flags, said, weights, tmp_path):
    with pytest.raises(ValueError, match=said):
      self._export(tmp_path / 'bundle', *(flag.format(weights=weights) for flag in flags))
    assert not (tmp_path / 'bundle').exists()
