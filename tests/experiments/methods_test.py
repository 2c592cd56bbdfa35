"""Methods that are settings of the mechanism: what each turns on and off, and that the plan is what a run spends."""

import types
from unittest import mock

import numpy as np
import pytest

from experiments.command import command_line
from experiments.command import run as run_lib
from experiments.running import loop
import quap_tff
from quap_tff import accounting
from quap_tff import methods
from quap_tff import plans
from quap_tff import quap_fl
from quap_tff.mechanisms.parts import budgets
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.parts.budgets import BudgetConfig
from quap_tff.mechanisms.parts.participation import ParticipationConfig
from tests.experiments import harness

# Budget, clip and layers adapt: the three columns of table 3 in the November 2025 document.
_COMBINATIONS = {
  'fixed_dp': (False, False, False),
  'adaptive_budget': (True, False, False),
  'quantile_clip': (False, True, False),
  'fixed_dp_layerwise': (False, False, True),
  'adaptive_budget_clip': (True, True, False),
  'adaptive_budget_layerwise': (True, False, True),
  'layerwise': (False, True, True),
  'quap': (True, True, True),
}
_ASKED = (
  '--alpha=0.7',
  '--round_budget=cohort_min',
  '--clip=quantile_ema:quantile=0.8',
  '--critical_layers=all_dense',
  '--rounds=200',
  '--epsilon=6',
)


def _experiment(*arguments):
  return harness.experiment(*harness.TINY, *arguments)


def _configured(spec, *arguments):
  return harness.configured(*_ASKED, f'--algorithm={spec}', *arguments)


class TestInterpretations:
  @pytest.mark.slow
  @pytest.mark.parametrize('name', ['d2dp', 'acdp', 'fedapca', 'safari'])
  def test_a_run_says_so_before_it_begins(self, name, capsys, monkeypatch):
    def stop(*args, **kwargs):
      raise KeyboardInterrupt

    # Nothing is built or trained.
    monkeypatch.setattr(plans.Plan, 'build_process', lambda *args, **kwargs: mock.Mock())
    monkeypatch.setattr(loop, 'train', stop)
    assert harness.main(*harness.TINY, f'--algorithm={name}') == command_line.INTERRUPTED
    assert f'{name} is an interpretation' in capsys.readouterr().err

  def test_other_methods_say_nothing(self):
    assert not methods.METHODS['quap'].interpretation and not methods.METHODS['scaffold'].interpretation


class TestNoise:
  @pytest.mark.parametrize('spec', ['quap', 'adaptive_clip', 'd2dp', 'fedbuff', 'scaffold:base=quap'])
  def test_the_flag_decides_whether_a_method_adds_noise(self, spec):
    def adds_noise(placement):
      flags = ('--clip=fixed', '--critical_layers=all', '--clip_scope=all_layers', '--gaussian_calibration=analytic')
      return harness.run(f'--algorithm={spec}', f'--noise={placement}', *flags).facts.adds_noise

    assert adds_noise('server') and not adds_noise('none')
    assert spec == 'fedbuff' or adds_noise('client')


class TestCombinations:
  @pytest.mark.parametrize('name', _COMBINATIONS)
  def test_each_part_is_as_asked_or_as_in_the_baseline(self, name):
    budget, clip, layerwise = _COMBINATIONS[name]
    config = _configured(name)
    assert config.budget.rule == (budgets.ParticipationBudgets() if budget else budgets.UniformBudgets())
    assert config.budget.round_rule == ('cohort_min' if budget else 'uniform')
    assert config.clip == (clip_rules.QuantileEma(quantile=0.8) if clip else clip_rules.Fixed(1.0))
    assert config.critical_layers == ('all_dense' if layerwise else 'all')
    assert (config.budget.epsilon_total, config.num_clients, config.noise.placement) == (6.0, 10, 'server')

  @pytest.mark.parametrize('name', _COMBINATIONS)
  def test_flags_of_a_part_that_is_off_are_known_to_have_no_effect(self, name):
    budget, clip, layerwise = _COMBINATIONS[name]
    unused = run_lib.unused_flags(methods.parse(name))
    assert ('alpha' in unused, 'clip' in unused, 'critical_layers' in unused) == (not budget, not clip, not layerwise)
    for flag, value in (('alpha', '0.9'), ('clip', 'fixed:norm=3'), ('critical_layers', 'all')):
      if flag in unused:
        assert _configured(name, f'--{flag}={value}') == _configured(name)

  def test_all_eight(self):
    assert len(set(_COMBINATIONS.values())) == 8

  def test_the_fixed_clip_is_a_parameter(self):
    assert _configured('fixed_dp:clip=0.25').clip == clip_rules.Fixed(0.25)

  def test_adaptive_clip_is_a_private_quantile_on_every_layer(self):
    config = _configured('adaptive_clip:count_stddev=2,initial_clip=0.5')
    assert config.clip == clip_rules.PrivateQuantile(initial_clip=0.5, count_stddev=2.0)
    assert (config.critical_layers, config.budget.round_rule) == ('all', 'uniform')
    plan = _experiment('--algorithm=adaptive_clip').plan
    assert (plan.planned_ledger([[0, 3]] * 8).state_dict()['count_noise_multipliers'] == 2.0).all()

  def test_fedavg_is_the_plain_mean_whatever_the_flags(self):
    plan = _experiment('--algorithm=fedavg', '--epsilon=1e6', '--max_agg_norm=1', '--clip=fixed').plan
    assert plan.config.noise.placement == 'none'
    assert plan.config.clip == clip_rules.Unclipped() and plan.config.max_agg_norm is None

  @pytest.mark.parametrize(
    'spec, message',
    [('quapp', "'quap'"), ('fixed_dp:clip=0', 'clipping norm'), ('quap:clip=1', "'quap' takes no parameters")],
  )
  def test_bad_specs(self, spec, message):
    with pytest.raises(ValueError, match=message):
      _experiment(f'--algorithm={spec}')


class TestLedger:
  def test_budgets_by_hand(self):
    # ε_base = 4/8; round 1, everyone's rate is 1, no warm-up.
    plan = _experiment('--warmup_rounds=0').plan
    participation = dict(counts=np.array([1, 0, 1, 0, 0, 0, 0, 0], np.int32))
    state = types.SimpleNamespace(round=1, participation=participation, budget={})
    measured = dict(noise_multiplier=7.0, clipping_norm=0.5, cohort_size=2)
    record = plan.recorded(state, measured, np.array([0, 2]))
    np.testing.assert_allclose(record.budgets, 0.5 * (1 + 0.5 * np.exp(-2.0)) * np.ones(2), rtol=1e-6)
    assert (record.noise_multiplier, record.clipping_norm) == (7.0, 0.5)
    assert record.weights.tolist() == [1.0, 1.0] and record.count_noise_multiplier == np.inf


def _documents_sums(config, cohorts):
  """Σ ε_i and k_i, as the documents' algorithm has them."""
  epsilon, taken = np.zeros(config.num_clients), np.zeros(config.num_clients, int)
  state = quap_fl.initial_state(config, [])
  for cohort in cohorts:
    state, played = quap_fl.play_round(config, [], state, {client: [] for client in cohort}, np.random.default_rng(0))
    epsilon[cohort] += played.budgets
    taken[cohort] += 1
  return epsilon, taken


class _Cohorts:
  """A history of 12 rounds, some with nobody, some with everybody."""

  def __init__(self, seed):
    rng = np.random.default_rng(seed)
    self.all = [np.flatnonzero(rng.random(7) < p) for p in rng.choice([0.0, 0.2, 0.5, 1.0], 12)]

  def cohort(self, round_num):
    return self.all[round_num - 1]


class TestNominal:
  @pytest.mark.slow
  @pytest.mark.parametrize('seed', range(3))
  @pytest.mark.parametrize(
    'rule, rates',
    [
      ('cohort_mean_rate', dict(warmup_rounds=0)),
      ('cohort_min', dict(warmup_rounds=4)),
      ('cohort_mean_budget', dict(warmup_rounds=4, count_during_warmup=False)),
      ('cohort_mean_rate', dict(rate='ema', ema_weight=0.3, warmup_rounds=0)),
      ('cohort_mean_rate', dict(rate='ema', ema_weight=0.3, warmup_rounds=3, count_during_warmup=False)),
      ('uniform', dict(warmup_rounds=0)),
    ],
  )
  def test_sums_of_the_documents_budgets(self, rule, rates, seed):
    config = quap_tff.QuapConfig(
      num_clients=7,
      budget=BudgetConfig(3.0, 12, alpha=0.7, beta=1.5, round_rule=rule),
      participation=ParticipationConfig(**rates),
    )
    cohorts = _Cohorts(seed)
    ledger = quap_tff.Plan(config).planned_ledger([cohorts.cohort(t) for t in range(1, 13)])
    epsilon, taken = _documents_sums(config, cohorts.all)
    np.testing.assert_allclose(ledger.epsilon, epsilon, rtol=2e-6)
    assert ledger.rounds.tolist() == taken.tolist()

  @pytest.mark.slow
  def test_everyone_always_spends_the_documents_sum(self):
    # ε_total·(1 + α·e^-β), above ε_total = 6; without the warm-up.
    config = quap_tff.QuapConfig(num_clients=5, participation=ParticipationConfig(warmup_rounds=0))
    ledger = quap_tff.Plan(config).planned_ledger([np.arange(5)] * 200)
    np.testing.assert_allclose(ledger.epsilon, 6 * (1 + 0.5 * np.exp(-2)), rtol=1e-6)
    np.testing.assert_allclose(ledger.delta, 0.002)

  @pytest.mark.slow
  def test_there_are_none_for_noise_that_does_not_follow_the_budgets(self):
    assert _experiment('--algorithm=quap').plan.has_nominal
    assert not _experiment('--algorithm=fixed_dp', '--calibration=exact').plan.has_nominal
    assert not _experiment('--algorithm=fedavg').plan.has_nominal


@pytest.mark.slow
class TestCalibration:
  @pytest.mark.parametrize(
    'arguments',
    [
      ['--algorithm=fixed_dp'],
      ['--algorithm=adaptive_budget', '--participation=beta:a=2,b=5'],
      ['--algorithm=adaptive_clip:count_stddev=10'],
    ],
  )
  def test_exact_lets_the_most_exposed_client_spend_epsilon(self, arguments):
    experiment = _experiment(*arguments, '--calibration=exact', '--epsilon=2', '--rounds=6')
    ledger = experiment.plan.planned_ledger([experiment.cohorts.cohort(t) for t in range(1, 7)])
    histories = accounting.histories(ledger).histories
    epsilon = max(accounting.ACCOUNTANTS['gaussian_exact'].epsilon(h, 1e-5) for h in histories)
    assert 2 * (1 - 1e-3) < epsilon <= 2

  @pytest.mark.parametrize(
    'algorithm, reason', [('quap', 'un-noised averages'), ('quantile_clip', 'un-noised function')]
  )
  def test_there_must_be_a_formal_epsilon_to_calibrate(self, algorithm, reason):
    with pytest.raises(ValueError, match=f'this run has none.*{reason}'):
      _experiment(f'--algorithm={algorithm}', '--calibration=exact', '--model=digits_cnn')

  def test_another_calibration_is_another_run_for_the_ledger(self):
    exact, documents = (
      _experiment('--algorithm=fixed_dp', f'--calibration={c}').plan.fingerprint for c in ('exact', 'documents')
    )
    assert exact != documents
    assert documents == _experiment('--algorithm=fixed_dp', '--noise_seed=3').plan.fingerprint

  @pytest.mark.parametrize('algorithm', [name for name in methods.METHODS if name.startswith('tff_')])
  def test_epsilon_is_the_formal_one_of_tff_s_aggregators(self, algorithm):
    # Ten rounds of an ε that the classic formula does not hold for.
    experiment = _experiment(f'--algorithm={algorithm}', '--epsilon=12', '--rounds=10')
    formal = experiment.plan.report(experiment.plan.planned_ledger(experiment.schedule)).formal
    assert 12 * (1 - 1e-3) < formal.epsilon.max() <= 12

  @pytest.mark.parametrize(
    'arguments, calibration',
    [
      (['--algorithm=tff_dp_ftrl'], 'exact'),
      (['--algorithm=tff_dp_ftrl', '--calibration=documents'], 'documents'),
      (['--algorithm=fixed_dp'], 'documents'),
      (['--algorithm=fixed_dp', '--calibration=exact'], 'exact'),
      (['--algorithm=scaffold:base=fixed_dp'], 'documents'),
    ],
  )
  def test_the_default_is_the_method_s_own_and_is_recorded(self, arguments, calibration):
    run = harness.run(*harness.TINY, *arguments)
    assert run.recorded()['calibration'] == run.identity()['calibration'] == calibration
    assert getattr(run.method, 'base', run.method).calibration == calibration
    assert run_lib.Run.from_json({'flags': run.recorded(), 'identity': run.identity()}) == run

  def test_the_formula_has_no_effect_on_exact_noise_of_tff_s_aggregators(self):
    flags = ['--algorithm=tff_dp_fedavg', '--gaussian_calibration=analytic']
    assert "'tff_dp_fedavg' does not use this flag" in harness.refusal(*flags)
    harness.check(*flags, '--calibration=documents')
