"""Methods around a base: what they refuse, what stays the base's, and runs with dropout and certificates."""

import numpy as np
import pytest

from data import cohorts
from experiments.command import flags as experiment_flags
from experiments.running import loop
from experiments.systems import fednova
from experiments.systems import fedvarp
from experiments.systems import fl_fdms
from experiments.systems import scaffold
from quap_tff import plans
from quap_tff.accounting import protection
from quap_tff.certificates.folders import evidence
from quap_tff.mechanisms.parts import layers as layers_lib
from quap_tff.methods import extended as own
from tests.data import tff_file
from tests.experiments import harness

_DROPOUT = '--dropout=bernoulli:rate=0.4'


def _plan(*arguments, shapes=((3, 2), (2,)), num_clients=8):
  layer = layers_lib.Layer('logits', tuple(range(len(shapes))), True)
  model = layers_lib.ModelShape((layer,), shapes)
  with harness.parsed(*harness.TINY, *arguments):
    return experiment_flags.checked_run().plan(num_clients, model)


def _refusal(*arguments, **options):
  with pytest.raises(ValueError) as caught:
    _plan(*arguments, **options)
  return str(caught.value)


class TestRefusals:
  @pytest.mark.parametrize(
    'arguments, words',
    [
      (['--algorithm=scaffold', '--client_optimizer=adam'], ['plain SGD', '--client_optimizer']),
      (['--algorithm=fednova', '--client_optimizer=sgd:momentum=0.9'], ['plain SGD', '--client_optimizer']),
      (['--algorithm=scaffold:base=tff_dp_ftrl'], ['Unknown base', 'certified']),
      (['--algorithm=scaffold:option=3'], ['options I and II']),
      (['--algorithm=fednova:base=quap'], ['would change nothing', '--local_epochs=1..5']),
      (['--algorithm=fedvarp:base=quap,memory=clients'], ['without noise', 'memory=released']),
      (['--algorithm=fedvarp:base=certified,memory=clients'], ['without noise', 'memory=released']),
      (['--algorithm=fedvarp:memory=none'], ['fedvarp memory', 'released']),
      (['--algorithm=fl_fdms'], ['--dropout=none', 'bernoulli']),
      (['--algorithm=fl_fdms:base=certified', _DROPOUT], ['No certificate']),
      (['--algorithm=safari:q=1'], ['safari q', 'less than 1']),
      (['--algorithm=feddyn:alpha=0'], ['feddyn alpha', 'greater than 0']),
      (['--local_epochs=5..2'], ['--local_epochs', '1..5']),
      (['--local_epochs=many'], ['--local_epochs', '1..5']),
      (['--participation=flpadpm'], ['--dropout=none', 'markov']),
    ],
  )
  def test_in_words(self, arguments, words):
    message = _refusal(*arguments)
    assert all(word in message for word in words), message

  @pytest.mark.parametrize('spec', ['scaffold', 'fedvarp', 'feddyn'])
  def test_vectors_that_do_not_fit(self, spec):
    # 4 bytes for each of 1000 · 10^6 numbers.
    message = _refusal(f'--algorithm={spec}', shapes=((10**6,),), num_clients=1000)
    assert '4,000,000,000 bytes' in message and '--num_clients' in message

  def test_similarities_that_do_not_fit(self):
    assert '3,200,000,000 bytes' in _refusal('--algorithm=fl_fdms', _DROPOUT, num_clients=20000)


class TestComposition:
  @pytest.mark.slow
  @pytest.mark.parametrize('base', own.BASES)
  def test_the_mechanism_is_the_base_s(self, base):
    arguments = ['--epsilon=3'] if base != 'fedavg' else []
    alone = _plan(f'--algorithm={base}', *arguments)
    extended = _plan(f'--algorithm=scaffold:base={base}', *arguments)
    assert extended.config == alone.config and type(extended) is type(alone)
    assert extended.fingerprint == alone.fingerprint and extended.protection.covers == alone.protection.covers
    assert alone.extension is None
    assert extended.extension == scaffold.Scaffold(2, 'sum' if base == 'fedavg' else 'released')

  def test_parameters_of_the_base_and_of_the_method(self):
    plan = _plan('--algorithm=scaffold:base=fixed_dp:clip=0.25,option=1')
    assert plan.config.clip.norm == 0.25 and plan.extension.option == 1

  def test_calibrated_noise_keeps_the_extension(self):
    plan = _plan('--algorithm=fedvarp:base=fixed_dp', '--calibration=exact')
    assert plan.extension == fedvarp.FedVarp('released') and plan.config.noise.scale != 1

  @pytest.mark.parametrize(
    'spec, expected',
    [
      ('fednova', fednova.FedNova()),
      ('fednova:base=quap', fednova.FedNova(mean_epochs=3.0)),
      ('fednova:base=quap,effective_steps=7', fednova.FedNova(7.0)),
      ('fedvarp', fedvarp.FedVarp('clients')),
      ('fedvarp:base=quap', fedvarp.FedVarp('released')),
    ],
  )
  def test_what_is_exact_and_what_is_public(self, spec, expected):
    assert _plan(f'--algorithm={spec}', '--local_epochs=1..5').extension == expected

  def test_friends_leave_no_formal_figure(self):
    alone = _plan('--algorithm=fixed_dp', '--noclient_metrics')
    extended = _plan('--algorithm=fl_fdms:base=fixed_dp', '--noclient_metrics', _DROPOUT)
    assert alone.protection.covers == protection.RELEASED_MODEL
    assert extended.protection.covers == protection.NOTHING
    assert 'one by one' in extended.protection.statement

  def test_certified_plans_refuse_what_is_not_a_function_of_the_sums(self):
    plan = _plan('--algorithm=certified')
    for extension in (
      scaffold.Scaffold(2, 'sum'),
      fedvarp.FedVarp('clients'),
      fednova.FedNova(),
      fl_fdms.FriendSubstitution(),
    ):
      with pytest.raises(ValueError, match='no certificate would hold'):
        plans.Plan.certified(plan.config, plan.schedule, extension=extension)


@pytest.mark.slow
class TestDropout:
  def _cohorts(self, algorithm):
    return harness.run(*harness.TINY, f'--algorithm={algorithm}', _DROPOUT).participation(8)

  def test_who_does_not_come_is_charged_in_certified_runs_alone(self):
    drawn = cohorts.make('uniform', 8, 3, 42)
    assert min(len(self._cohorts('quap').cohort(t)) for t in range(1, 9)) < 3
    for spec in ('certified', 'scaffold:base=certified'):
      for t in range(1, 9):
        np.testing.assert_array_equal(self._cohorts(spec).cohort(t), drawn.cohort(t))

  def test_an_absent_client_of_a_certified_run_has_no_examples(self):
    experiment = harness.experiment(*harness.TINY, '--algorithm=certified', _DROPOUT)
    for absent, rows in (((), len(experiment.federation.clients[2])), ((2,), 0)):
      (element,) = loop.client_data(experiment, 2, absent)['examples']
      assert len(element['x']) == rows


@pytest.mark.slow
class TestSafari:
  def test_the_server_trains_on_nobody_s_examples(self):
    experiment = harness.experiment(*harness.TINY, '--algorithm=safari:base=certified,auxiliary=0.2')
    federation, own = experiment.federation, experiment.plan.extension.examples
    held = {x.tobytes() for client in federation.clients for x in client.x}
    assert len(own['x']) == 287 and federation.num_examples == 1437 - 287  # A fifth of the pool, rounded down.
    assert not held & {x.tobytes() for x in own['x']}
    assert experiment.resolved['num_clients'] == federation.num_clients == experiment.plan.num_clients == 8

  def test_clients_of_their_own_lose_some_of_their_number(self, tmp_path):
    tff_file.emnist(tmp_path / 'emnist_all.sqlite', tff_file.writers('abcdefgh'))
    experiment = harness.experiment(
      '--dataset=femnist',
      f'--data_dir={tmp_path}',
      '--cohort_size=2',
      '--rounds=2',
      '--model=logistic_regression',
      '--algorithm=safari:auxiliary=0.25',
    )
    said = experiment.run.post_processing(experiment.plan)
    assert experiment.resolved['num_clients'] == 6 and 'who take part in no round' in said


@pytest.mark.slow
@pytest.mark.thorough
class TestRuns:
  def test_a_certified_run_charges_the_plan_and_says_what_is_around_it(self, tmp_path):
    experiment = harness.experiment(*harness.TINY, '--algorithm=fedvarp:base=certified', _DROPOUT, '--rounds=2')
    text = experiment.run.post_processing(experiment.plan)
    result = harness.trained(experiment)
    assert sum(len(experiment.cohorts.absent(t)) for t in (1, 2))
    assert not evidence.ledger_problems(experiment.plan, result.ledger)
    np.testing.assert_array_equal(
      result.ledger.state_dict()['clients'], np.concatenate([np.sort(one) for one in experiment.plan.schedule])
    )
    assert 'FedVARP releases nothing more' in text
