"""Methods of adaptive privacy: what they configure, and what their rounds cost."""

import pytest

from experiments.command import run as run_lib
from experiments.systems import acdp
from experiments.systems import dynamic_budget
from experiments.systems import fedapca
from quap_tff import accounting
from quap_tff import methods
from quap_tff.mechanisms.parts import budgets
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.parts import schedules
from tests.experiments import harness


def _experiment(*arguments):
  return harness.experiment(*harness.TINY, '--epsilon=1.6', *arguments)


def _config(spec, *arguments):
  return harness.configured(
    '--rounds=101', '--epsilon=6', '--critical_layers=all_dense', f'--algorithm={spec}', *arguments
  )


class TestConfiguration:
  @pytest.mark.parametrize(
    'spec, quap_spec, schedule, clip',
    [
      (
        'dynamic_budget:growth=2,clip=0.5',
        'dynamic_budget:quap=true,growth=2',
        dynamic_budget.Geometric(2.0),
        clip_rules.Fixed(0.5),
      ),
      (
        'd2dp:clip=0.5,clip_decay=0.25',
        'd2dp:clip=0.5,clip_decay=0.25,quap=true',
        dynamic_budget.Geometric(2.0),
        clip_rules.Decaying(0.5, 0.25**0.01),
      ),
      (
        'acdp:factor=2,initial_clip=0.5,norm_noise=3',
        'acdp:quap=true,factor=2,initial_clip=0.5,norm_noise=3',
        schedules.Even(),
        acdp.NoisedMean(2.0, 0.5, 3.0),
      ),
    ],
  )
  def test_as_published_and_with_quap(self, spec, quap_spec, schedule, clip):
    alone, composed = _config(spec), _config(quap_spec)
    assert alone.budget.schedule == composed.budget.schedule == schedule and alone.clip == clip
    assert isinstance(alone.budget.rule, budgets.UniformBudgets) and isinstance(
      composed.budget.rule, budgets.ParticipationBudgets
    )
    assert (alone.critical_layers, composed.critical_layers) == ('all', 'all_dense')
    assert composed.clip == (clip_rules.QuantileEma() if 'dynamic' in spec else clip)
    assert {'alpha', 'critical_layers'} <= run_lib.unused_flags(methods.parse(spec))
    assert not {'alpha', 'critical_layers'} & run_lib.unused_flags(methods.parse(quap_spec))

  def test_fedapca(self):
    config = _config('fedapca:clusters=4')
    assert config.weighting == fedapca.Clusters(4) and config.budget.round_rule == 'each_own'
    assert isinstance(config.budget.rule, budgets.ParticipationBudgets) and config.critical_layers == 'all_dense'

  @pytest.mark.parametrize(
    'spec, message',
    [
      ('dynamic_budget:growth=0', 'growth'),
      ('dynamic_budget:clip=-1', 'clipping norm'),
      ('d2dp:clip_decay=2', 'decay'),
      ('acdp:factor=1', 'factor'),
      ('acdp:norm_noise=-1', 'noise_multiplier'),
      ('fedapca:clusters=0', 'clusters'),
      ('lee_kifer:test_share=1', 'test_share'),
      ('lee_kifer:steps=0.5/0', 'step size'),
      ('certified:weights=scale', 'Give own'),
      ('certified:own=0.5/1', 'add up to 1'),
      ('certified:own=0.5', 'pairs'),
      ('certified:own=0.5/0/0.5/6', 'ε in own'),
    ],
  )
  def test_bad_parameters(self, spec, message):
    with pytest.raises(ValueError, match=message):
      methods.parse(spec)

  def test_own_bounds_by_the_seed(self):
    own = [_config('certified:own=0.3/1/0.5/2/0.2/6', f'--seed={seed}').own_epsilon for seed in (1, 1, 2)]
    assert sorted(own[0]) == [1.0] * 3 + [2.0] * 5 + [6.0] * 2
    assert own[0] == own[1] != own[2]
    with pytest.raises(ValueError, match='--epsilon=6 must be the largest'):
      _config('certified:own=0.3/1/0.7/2')


@pytest.mark.slow
class TestCosts:
  @pytest.mark.thorough
  @pytest.mark.parametrize(
    'arguments',
    [
      ['--algorithm=dynamic_budget:quap=true', '--warmup_rounds=2'],
      ['--algorithm=d2dp', '--calibration=exact'],
      ['--algorithm=acdp', '--calibration=exact', '--epsilon=20', '--gaussian_calibration=analytic'],
      ['--algorithm=fedapca', '--warmup_rounds=1', '--critical_layers=all', '--clip=fixed'],
    ],
  )
  def test_what_is_planned_is_covered_and_costs_what_was_asked_for(self, arguments):
    experiment = _experiment('--noclient_metrics', *arguments)
    ledger = experiment.plan.planned_ledger(experiment.schedule)
    report, planned = experiment.plan.report(ledger), ledger.state_dict()
    assert report.formal.covers == accounting.COVERS[2 if 'quap=true' in arguments[0] else 0]
    if '--calibration=exact' in arguments:
      assert report.formal.epsilon.max() == pytest.approx(20 if 'acdp' in arguments[0] else 1.6, rel=1e-4)
    if 'dynamic_budget' in arguments[0]:
      assert planned['noise_multipliers'][7] < planned['noise_multipliers'][0]
    if 'fedapca' in arguments[0]:
      assert (planned['weights'] < 1).any()

  def test_a_schedule_spends_epsilon_in_all(self):
    ledger = _experiment('--algorithm=dynamic_budget', '--participation=full').plan.planned_ledger([[0, 3]] * 8)
    assert ledger.epsilon[3] == pytest.approx(1.6, rel=1e-5)
    z = ledger.state_dict()['noise_multipliers']
    assert z[0] / z[7] == pytest.approx(4, rel=1e-5)

  @pytest.mark.thorough
  def test_lee_kifer_stays_within_its_budget(self):
    experiment = _experiment('--algorithm=lee_kifer:growth=2', '--noclient_metrics', '--client_optimizer=sgd')
    result = harness.trained(experiment)
    epsilon = accounting.epsilon_by_client(result.ledger, 1e-5)
    assert 0 < epsilon.max() <= 1.6
    report = experiment.plan.report(result.ledger)
    assert report.formal.covers == accounting.COVERS[0] and report.formal.epsilon.max() == pytest.approx(1.6, rel=1e-6)
    assert report.as_dict()['nominal_epsilon_max'] is None

  @pytest.mark.thorough
  def test_lee_kifer_learns_if_there_is_hardly_any_noise(self):
    experiment = _experiment(
      '--algorithm=lee_kifer', '--epsilon=100', '--participation=full', '--client_optimizer=sgd:learning_rate=0.5'
    )
    assert harness.trained(experiment).test['accuracy'] > 0.4
