"""From a run to an experiment: defaults, and what is picked by the data."""

import numpy as np
import pytest

from experiments.running import setup
from tests.data import tff_file
from tests.experiments import harness


def _experiment(*arguments):
  return harness.experiment('--dataset=digits', *arguments)


class TestFromFlags:
  def test_defaults(self):
    experiment = _experiment()
    assert experiment.federation.num_clients == experiment.plan.config.num_clients == 100
    assert len(experiment.cohorts.cohort(1)) == 30
    assert experiment.model == 'digits_cnn'
    assert (
      experiment.run.schedule.rounds == experiment.run.last_round == experiment.plan.config.budget.num_rounds == 200
    )
    assert experiment.plan.config.noise.seed is None

  @pytest.mark.slow
  @pytest.mark.parametrize('clients, cohort', [(1, 1), (2, 1), (10, 3), (50, 15), (1000, 30)])
  def test_default_cohort_size(self, clients, cohort):
    assert len(_experiment(f'--num_clients={clients}').cohorts.cohort(1)) == cohort

  def test_the_budget_is_that_of_the_planned_rounds(self):
    experiment = _experiment('--rounds=50', '--stop_after=5', '--epsilon=2')
    assert (experiment.run.schedule.rounds, experiment.run.last_round) == (50, 5)
    assert experiment.plan.config.budget.epsilon_base == 2 / 50

  @pytest.mark.slow
  def test_the_seed_decides_data_cohorts_and_weights(self):
    runs = [_experiment(f'--seed={seed}', '--num_clients=9') for seed in (1, 1, 2)]
    sizes = [[len(client) for client in run.federation.clients] for run in runs]
    cohorts = [[run.cohorts.cohort(t).tolist() for t in range(1, 5)] for run in runs]
    for found in (sizes, cohorts):
      assert found[0] == found[1] != found[2]

  @pytest.mark.slow
  def test_no_certificate_where_clients_own_examples_are_the_test_set(self, tmp_path):
    tff_file.emnist(tmp_path / 'emnist_all.sqlite')
    flags = ('--algorithm=certified', '--model=linear_features', '--cohort_size=2', '--rounds=10', '--warmup_rounds=0')
    arguments = [f'--data_dir={tmp_path}', *flags]
    with pytest.raises(ValueError, match='tested on examples of the clients themselves'):
      _experiment('--dataset=femnist', *arguments)
    assert _experiment('--dataset=femnist:test_writers=0.4', *arguments).plan.protection.covers == 'released model'
    rehearsal = _experiment('--dataset=femnist', *arguments, '--algorithm=certified:certificate=false')
    assert rehearsal.plan.protection.covers != 'released model'

  def test_progress_is_reported_for_every_client(self):
    seen = []
    run = harness.run('--dataset=digits', '--num_clients=4')
    setup.from_run(run, lambda *progress: seen.append(progress))
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]

  @pytest.mark.slow
  @pytest.mark.parametrize('clip', ['quantile_ema:timing=previous,initial_clip=1', 'fixed', 'private_quantile'])
  def test_workers_take_rules_of_one_aggregation(self, clip):
    assert _experiment('--runtime=workers', f'--clip={clip}').runtime.kind == 'workers'


def test_a_dataset_of_one_s_own(tmp_path):
  path = tmp_path / 'mine.npz'
  np.savez(path, x=np.ones((40, 3)), y=np.arange(40) % 2, client=np.repeat(np.arange(10), 4))
  experiment = harness.experiment(f'--dataset=npz:path={path}', '--cohort_size=4')
  # Shapes that no other dataset has get a model that takes any.
  assert (experiment.model, experiment.federation.num_clients) == ('mlp', 8)
  assert experiment.resolved['partition'] == 'natural' and not experiment.resolved['test_is_of_clients']
  # A certificate states the identity, and is handed out: it names the file, and not its place.
  assert experiment.run.identity()['dataset'].startswith('npz:path=mine.npz,')
  assert experiment.run.recorded()['dataset'] == f'npz:path={path}'
