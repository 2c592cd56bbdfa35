"""From flags to an experiment: defaults and what is picked by the data."""

import json

import numpy as np
import pytest

from experiments.command import flags as experiment_flags
from experiments.command import parts
from experiments.command import run as run_lib
from experiments.running import setup
from quap_tff.mechanisms.certified import weight_rules
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

  @pytest.mark.parametrize('clients, cohort', [(1, 1), (2, 1), (10, 3), (50, 15), (1000, 30)])
  def test_default_cohort_size(self, clients, cohort):
    assert len(_experiment(f'--num_clients={clients}').cohorts.cohort(1)) == cohort

  def test_the_budget_is_that_of_the_planned_rounds(self):
    experiment = _experiment('--rounds=50', '--stop_after=5', '--epsilon=2')
    assert (experiment.run.schedule.rounds, experiment.run.last_round) == (50, 5)
    assert experiment.plan.config.budget.epsilon_base == 2 / 50

  def test_the_seed_decides_data_cohorts_and_weights(self):
    runs = [_experiment(f'--seed={seed}', '--num_clients=9') for seed in (1, 1, 2)]
    sizes = [[len(client) for client in run.federation.clients] for run in runs]
    cohorts = [[run.cohorts.cohort(t).tolist() for t in range(1, 5)] for run in runs]
    for found in (sizes, cohorts):
      assert found[0] == found[1] != found[2]

  def test_no_certificate_where_clients_own_examples_are_the_test_set(self, tmp_path):
    tff_file.emnist(tmp_path / 'emnist_all.sqlite')
    arguments = [f'--data_dir={tmp_path}', '--algorithm=certified', '--model=linear_features', '--cohort_size=2']
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

  @pytest.mark.parametrize('clip', ['quantile_ema:timing=previous,initial_clip=1', 'fixed', 'private_quantile'])
  def test_workers_take_rules_of_one_aggregation(self, clip):
    assert _experiment('--runtime=workers', f'--clip={clip}').runtime.kind == 'workers'


class TestIdentity:
  def _identity(self, *arguments):
    return harness.run(*arguments).identity()

  @pytest.mark.parametrize(
    'argument',
    [
      '--output_dir=x',
      '--data_dir=x',
      '--stop_after=3',
      '--stop_at_accuracy=0.5',
      '--checkpoint_every=2',
      '--eval_every=3',
      '--num_threads=1',
      '--progress=none',
    ],
  )
  def test_how_a_run_is_watched_is_no_part_of_it(self, argument):
    assert self._identity(argument) == self._identity()

  @pytest.mark.parametrize(
    'argument',
    [
      '--dataset=mnist',
      '--num_clients=3',
      '--epsilon=1',
      '--seed=1',
      '--noise_seed=1',
      '--clip=fixed',
      '--rounds=3',
      '--model=mnist_cnn',
      '--runtime=native',
      '--num_workers=3',
      '--worker_addresses=a:1,b:2,c:3',
      '--batch_size=1',
    ],
  )
  def test_what_is_computed_is(self, argument):
    assert self._identity(argument) != self._identity()

  def test_other_addresses_of_as_many_workers_are_the_same_run(self):
    assert self._identity('--worker_addresses=a:1,b:2') == self._identity('--num_workers=2')


class TestRun:
  def test_every_flag_has_one_group_and_a_help(self):
    grouped = [name for names in experiment_flags.GROUPS.values() for name in names]
    assert sorted(grouped) == sorted(experiment_flags.all_values()) == sorted(parts.FLAGS)
    assert all(experiment_flags.VALUES[name].help for name in grouped)

  @pytest.mark.parametrize(
    'arguments',
    [
      [],
      ['--algorithm=certified:weights=online:prior_a=2,noise=ar1', '--local_epochs=1..3', '--averaging=tail:start=2'],
      ['--algorithm=scaffold:base=fixed_dp:clip=0.5,option=1', '--runtime=workers', '--worker_addresses=a:1,b:2'],
    ],
  )
  def test_flags_to_json_and_back(self, arguments):
    run = harness.run(*arguments)
    kept = json.loads(json.dumps({'flags': run.recorded(), 'identity': run.identity()}))
    again = run_lib.Run.from_json(kept)
    assert again.identity() == run.identity() and again.method == run.method and again.local == run.local
    assert again.schedule == run.schedule and again.cohorts == run.cohorts and again.data == run.data

  def test_an_older_version_had_fewer_flags_and_a_later_one_has_more(self):
    older = {'flags': {'rounds': 3}, 'identity': {'algorithm': 'fixed_dp:clip=0.5'}}
    run = run_lib.Run.from_json(older)
    assert (run.schedule.rounds, run.method.clip, run.data.num_clients) == (3, 0.5, None)
    with pytest.raises(ValueError, match='unknown flags .*brand_new'):
      run_lib.Run.from_json({'flags': {}, 'identity': {'brand_new': 1}})

  def test_a_certified_folder_does_not_say_where_its_operator_keeps_things(self):
    paths = ['--data_dir=/home/a', '--output_dir=/home/b', '--signing_key=/home/c']
    for algorithm, said in (('certified', False), ('quap', True)):
      assert ('/home' in str(harness.run(*paths, f'--algorithm={algorithm}').recorded())) == said

  def test_a_spec_is_a_value_after_it_is_read(self):
    method = harness.run('--algorithm=fednova:base=certified:weights=uniform,clip=0.5', '--epsilon=2').method
    assert method.base.weights == weight_rules.Uniform() and (method.base.clip, method.base.epsilon) == (0.5, 2.0)


def test_a_dataset_of_one_s_own(tmp_path):
  path = tmp_path / 'mine.npz'
  np.savez(path, x=np.ones((40, 3)), y=np.arange(40) % 2, client=np.repeat(np.arange(10), 4))
  experiment = harness.experiment(f'--dataset=npz:path={path}', '--cohort_size=4')
  # Shapes that no other dataset has get a model that takes any.
  assert (experiment.model, experiment.federation.num_clients) == ('mlp', 8)
  assert experiment.resolved['partition'] == 'natural' and not experiment.resolved['test_is_of_clients']
  # A run's folder may be handed out: it names the file, and not its place.
  assert experiment.run.identity()['dataset'].startswith('npz:path=mine.npz,')
  assert experiment.run.recorded()['dataset'] == f'npz:path={path}'
  run = harness.run(f'--dataset=npz:path={path}', '--algorithm=certified:clip=0.5', '--warmup_rounds=0')
  assert run.recorded()['dataset'].startswith('npz:path=mine.npz,')
