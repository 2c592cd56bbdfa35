"""Whatever is registered keeps the contract of its kind. The cases come from the registries.

Each is played as plain functions. One of each kind of round that the aggregation factory tells apart is lifted to TFF,
as its representative, and one of each kind that the composer tells apart is trained. `make test-all` lifts every one,
and trains all representatives and whatever is more than an aggregation.
"""

import dataclasses
import functools
import inspect
import types

import numpy as np
import pytest

from experiments import systems
from experiments.systems import fedapca
from experiments.systems import pt_adp
from quap_tff import methods
from quap_tff import plans
from quap_tff.certificates.folders import folder as folders
from quap_tff.common import registry
from quap_tff.mechanisms import mechanism as mechanism_lib
from quap_tff.mechanisms import sparsity
from quap_tff.mechanisms.certified import weight_rules
from quap_tff.mechanisms.noise import correlation
from quap_tff.mechanisms.parts import aggregators
from quap_tff.mechanisms.parts import budgets
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.parts import participation
from quap_tff.mechanisms.quap.config import NoiseConfig
from quap_tff.mechanisms.quap.config import QuapConfig
from quap_tff.mechanisms.secret_cohorts import config as secret_config
from tests.contracts import mechanisms
from tests.quap_tff import examples

_BUDGET = budgets.BudgetConfig(epsilon_total=3.0, num_rounds=4, round_rule='uniform')
_RATES = participation.ParticipationConfig(warmup_rounds=1)


def _method(name):
  """The plan of a method with its default parameters."""
  plan = methods.parse(name, dict(epsilon=3.0, gaussian_calibration='analytic')).plan(mechanisms.setting())
  if hasattr(plan.extension, 'with_examples'):
    examples = types.SimpleNamespace(x=np.ones([2, 1], np.float32), y=np.ones([2, 2], np.float32))
    plan = dataclasses.replace(plan, extension=plan.extension.with_examples(examples))
  return plan


def _quap(options=(), **changes):
  fields = dict(
    num_clients=mechanisms.NUM_CLIENTS,
    budget=_BUDGET,
    participation=_RATES,
    clip=clip_rules.Fixed(1.0),
    clip_scope='all_layers',
    noise=NoiseConfig('server', calibration='analytic', seed=1),
    critical_layers='all',
  )
  return plans.Plan(QuapConfig(**{**fields, **changes}), **dict(options))


def _certified(**changes):
  fields = dict(
    num_clients=mechanisms.NUM_CLIENTS,
    clip=clip_rules.Fixed(0.5),
    correlation=correlation.Independent(),
    participation=_RATES,
  )
  if not isinstance(changes.get('correlation'), correlation.HeldNoise):
    fields['weights'] = weight_rules.UniformWeights()
  return plans.Plan.certified(examples.guarantee(**{**fields, **changes}), mechanisms.SCHEDULE)


def _secret_cohorts():
  config = secret_config.SecretCohortsConfig(
    num_clients=mechanisms.NUM_CLIENTS,
    epsilon=3.0,
    delta=1e-5,
    rates=(0.5, 0.5, 0.5, 0.2, 0.2),
    num_rounds=len(mechanisms.SCHEDULE),
  )
  return plans.Plan.certified(config)


def _noise(name):
  return _certified(correlation=registry.parse_spec('noise correlation', name, correlation.FAMILIES))


def _clip_rule(name):
  rule = registry.parse_spec('clip rule', name, clip_rules.RULES)
  is_bounded = rule.uses_current_norms or np.isfinite(rule.initial_norm)
  return _quap(clip=rule, noise=NoiseConfig('server' if is_bounded else 'none', calibration='analytic', seed=1))


def _weights(name):
  rule = registry.parse_spec('weight rule', name, weight_rules.RULES)
  return _certified(weights=rule, own_epsilon=(3.0, 1.0, 2.0, 3.0, 1.0) if rule.needs_own_bounds else None)


# Kinds of registered choices: their registry, and a plan of the contract for a name in it.
KINDS = {
  'method': (methods.METHODS, _method),
  'noise': (correlation.FAMILIES, _noise),
  'clip rule': (clip_rules.RULES, _clip_rule),
  'weight rule': (weight_rules.RULES, _weights),
  'round budget': (budgets.ROUND_RULES, lambda name: _quap(budget=budgets.BudgetConfig(3.0, 4, round_rule=name))),
  'aggregator': (aggregators.AGGREGATORS, lambda name: _quap(aggregator=aggregators.AGGREGATORS[name]())),
  'sparsity': (
    sparsity.SPARSITIES,
    lambda name: _quap(dict(sparsity=registry.parse_spec('sparsity', name, sparsity.SPARSITIES), sparsity_seed=1)),
  ),
}
# Options that are no names in a registry, and certified rounds with more than one of them.
_FURTHER = {
  'clip of the round before, rates by EMA, noise on a layer': lambda: _quap(
    clip=clip_rules.QuantileEma(timing='previous', initial_clip=1.0),
    participation=participation.ParticipationConfig('ema', 0.3, warmup_rounds=1),
    clip_scope='critical',
    critical_layers='final_dense',
  ),
  'counted norms, noise of clients': lambda: _quap(
    clip=clip_rules.PrivateQuantile(), noise=NoiseConfig('client', calibration='analytic', seed=1)
  ),
  'pseudo-gradients': lambda: _quap(update_scale='pseudo_gradient'),
  'budgets with a state': lambda: _quap(
    budget=budgets.BudgetConfig(1.0, 6, client_rule=pt_adp.PtAdp(0.1, 0.5), round_rule='each_own')
  ),
  'weighted by clusters': lambda: _quap(
    weighting=fedapca.Clusters(2), budget=budgets.BudgetConfig(1.0, 6, round_rule='each_own')
  ),
  'certified, counted norms, split': lambda: _certified(
    clip=clip_rules.PrivateQuantile(0.5, 1.0, count_stddev=20.0), clip_split='size'
  ),
  'certified, secret cohorts': _secret_cohorts,
  'certified, correlated, online': lambda: _certified(
    correlation=correlation.Blt((0.3, 0.2), (0.9, 0.5)), weights=weight_rules.Online()
  ),
}


def _cases():
  found = {f'{kind} {name}': functools.partial(make, name) for kind, (names, make) in KINDS.items() for name in names}
  return {**found, **_FURTHER}


CASES = _cases()


@functools.cache
def _plan(name):
  """The plan of a case. Plans do not change, and some are solved for seconds."""
  return CASES[name]()


# A case for each kind of round, see `_kind_of_round`. To the composer those of the second set are aggregations as
# that of the method quap is, see `_kind_of_training`.
_TRAINED = frozenset(
  {
    'method quap',
    'method certified',
    'method fedbuff',
    'method scaffold',
    'method lee_kifer',
    'method tff_dp_fedavg',
    'noise held',
  }
)
_LIFTED_ALONE = frozenset(
  {'method fixed_dp', 'method quantile_clip', 'method fedapca', 'aggregator median', 'sparsity random'}
)
_REPRESENTATIVES = _TRAINED | _LIFTED_ALONE


def _kind_of_round(plan):
  """The attributes by which `AggregationFactory` and `compose` build one process or another."""
  if not mechanisms.is_lifted(plan):
    return type(plan.mechanism)
  rounds = mechanisms.pure_process(plan).rounds
  every = range(len(rounds.specs))
  return (
    rounds.prepares,
    tuple(rounds.own_fields),
    tuple(rounds.kept_fields),
    rounds.secure_bounds is not None,
    rounds.needs_each_update,
    rounds.reports_by_sum,
    rounds.sum_dtype is not None,
    rounds.clips_by_this_round,
    rounds.waiting is None or list(rounds.waiting) == list(every),
    plan.extension is not None,
  )


def _kind_of_training(plan):
  """The attributes by which `compose` builds one learning process or another around an aggregation."""
  if not mechanisms.is_lifted(plan):
    return type(plan.mechanism)
  own_fields = mechanisms.pure_process(plan).rounds.own_fields
  return plan.mechanism.facts.is_certified, tuple(own_fields), plan.extension is not None


@pytest.mark.slow
class TestFunctions(mechanisms.FunctionsContract):
  # The account of those that are trained is compared there.
  @pytest.fixture(
    scope='class', params=[pytest.param(name, marks=pytest.mark.thorough if name in _TRAINED else ()) for name in CASES]
  )
  def plan(self, request):
    plan = _plan(request.param)
    if not mechanisms.is_lifted(plan):
      pytest.skip('It has a TFF computation of its own.')
    return plan


@pytest.mark.slow
class TestInTff(mechanisms.MechanismContract):
  @pytest.fixture(scope='class', params=sorted(_TRAINED))
  def plan(self, request):
    return _plan(request.param)


@pytest.mark.slow
class TestLiftedAlone(mechanisms.LiftedContract):
  @pytest.fixture(scope='class', params=sorted(_LIFTED_ALONE))
  def plan(self, request):
    return _plan(request.param)


@pytest.mark.thorough
class TestTrained(mechanisms.TrainedContract):
  @pytest.fixture(scope='class', params=sorted(_LIFTED_ALONE))
  def plan(self, request):
    return _plan(request.param)


@pytest.mark.thorough
class TestLifted(mechanisms.LiftedContract):
  @pytest.fixture(scope='class', params=sorted(CASES.keys() - _REPRESENTATIVES))
  def plan(self, request):
    return _plan(request.param)


@pytest.mark.thorough
class TestMoreThanAnAggregation(mechanisms.TrainedContract):
  """Mechanisms with a TFF computation of their own, and methods that keep state around the aggregation."""

  @pytest.fixture(
    scope='class', params=sorted(methods.METHODS.keys() - {name.partition(' ')[2] for name in _REPRESENTATIVES})
  )
  def plan(self, request):
    plan = _method(request.param)
    if mechanisms.is_lifted(plan) and plan.extension is None:
      pytest.skip('Its representative is trained.')
    return plan


@pytest.mark.slow
@pytest.mark.parametrize('kind_of, names', [(_kind_of_round, _REPRESENTATIVES), (_kind_of_training, _TRAINED)])
def test_each_kind_has_one_representative(kind_of, names):
  kinds = {name: kind_of(_plan(name)) for name in CASES}
  chosen = [kinds[name] for name in sorted(names)]
  assert len(set(chosen)) == len(chosen)
  assert not [name for name, kind in kinds.items() if kind not in chosen]


_PRODUCT = ('quap_tff.', f'{systems.__name__}.')


def _concrete(base):
  """The classes of this project below `base` that can be made, but for those that tests have."""
  for one in base.__subclasses__():
    if not inspect.isabstract(one) and one.__module__.startswith(_PRODUCT):
      yield one
    yield from _concrete(one)


@pytest.mark.slow
def test_each_mechanism_has_a_case():
  found = [_plan(name) for name in CASES]
  kinds = {type(plan.mechanism) for plan in found} | {type(plan.config) for plan in found}
  assert not set(_concrete(mechanism_lib.Mechanism)) - kinds
  assert set(folders.MECHANISMS.values()) <= kinds


def test_whatever_is_registered_now_has_a_case():
  assert _cases().keys() == CASES.keys()


def test_what_cannot_be_made_by_its_name_alone_fails(monkeypatch):
  class NeedsMore(clip_rules.ClipRule):
    def __init__(self, more):
      super().__init__()

  monkeypatch.setitem(clip_rules.RULES, 'needs_more', NeedsMore)
  assert _cases().keys() - CASES.keys() == {'clip rule needs_more'}
  with pytest.raises(TypeError):
    _cases()['clip rule needs_more']()
