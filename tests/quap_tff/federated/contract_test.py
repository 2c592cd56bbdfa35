"""What every mechanism must pass as a TFF aggregation: its rounds there are its pure functions, which its tests follow.

tests/quap_tff/mechanisms says what a round is. Here, each mechanism's process plays three rounds, the second with
nobody and the third from a state that was kept, and gives what `rounds.Process` gives.
"""

import collections
import dataclasses
import functools
from typing import Any, Callable, Optional

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from quap_tff.federated import aggregation
from quap_tff.mechanisms import sparsity
from quap_tff.mechanisms.certified import weight_rules
from quap_tff.mechanisms.noise import correlation
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.parts import robust
from quap_tff.mechanisms.parts import weighting
from quap_tff.mechanisms.parts.budgets import BudgetConfig
from quap_tff.mechanisms.parts.layers import Layer
from quap_tff.mechanisms.parts.participation import ParticipationConfig
from quap_tff.mechanisms.quap import buffered
from quap_tff.mechanisms.quap import local
from quap_tff.mechanisms.quap import pt_adp
from quap_tff.mechanisms.quap import staleness as stalenesses
from quap_tff.mechanisms.quap.config import NoiseConfig
from tests.quap_tff import examples
from tests.quap_tff import rounds

pytestmark = pytest.mark.slow

_VALUE = tff.to_type(
  collections.OrderedDict(conv=(np.float32, [2]), dense=collections.OrderedDict(kernel=(np.float32, [1, 2])))
)
_LAYERS = (Layer('conv', (0,), False), Layer('dense', (1,), True))
_SERVER, _CLIENT = NoiseConfig(seed=1), NoiseConfig('client', calibration='analytic', seed=1)
_WHOLE = dict(clip_scope='all_layers', critical_layers='all', budget=BudgetConfig(1.0, 8, round_rule='uniform'))
_COUNTED = clip_rules.PrivateQuantile(0.5, 1.0, count_stddev=20.0)


@dataclasses.dataclass(frozen=True)
class _Case:
  """A mechanism of ten clients.

  Attributes:
    mechanism: The mechanism.
    levels: The levels of aggregation of a round.
    own: What a client says of itself, by its id, if that is more than the id.
    learning_rate_fn: Of the factory.
    plans: Whether its rounds have a cost.
  """

  mechanism: Any
  levels: int = 1
  own: Optional[Callable[[int], dict]] = None
  learning_rate_fn: Optional[Callable[[tf.Tensor], tf.Tensor]] = None
  plans: bool = True


_quap = functools.partial(examples.quap, noise=_SERVER)


_certified = functools.partial(examples.noised, weights=weight_rules.Participation(), num_rounds=3)


_CASES = {
  'clip of this round': _Case(_quap(clip=clip_rules.QuantileEma()), levels=2),
  'clip of the round before': _Case(
    _quap(
      clip=clip_rules.QuantileEma(timing='previous', initial_clip=1.0),
      participation=ParticipationConfig('ema', 0.3, warmup_rounds=1),
    )
  ),
  'no clip': _Case(_quap(clip=clip_rules.Unclipped(), noise=NoiseConfig('none', seed=1)), plans=False),
  'counted norms, noise of clients': _Case(
    _quap(clip=clip_rules.PrivateQuantile(), noise=NoiseConfig('client', seed=1))
  ),
  'pseudo-gradients': _Case(
    _quap(clip=clip_rules.Fixed(2.0), update_scale='pseudo_gradient'),
    learning_rate_fn=lambda round_num: tf.pow(0.5, tf.cast(round_num, tf.float32)),
  ),
  'budgets with a state': _Case(
    _quap(budget=BudgetConfig(1.0, 6, client_rule=pt_adp.PtAdp(0.1, 0.5), round_rule='each_own'))
  ),
  'weighted by clusters': _Case(
    _quap(weighting=weighting.Clusters(2), budget=BudgetConfig(1.0, 6, round_rule='each_own'))
  ),
  'median': _Case(_quap(**_WHOLE, aggregator=robust.Median())),
  'local': _Case(local.Local(_quap(**_WHOLE, noise=_CLIENT))),
  'sparse': _Case(sparsity.Sparse(_quap(**_WHOLE), sparsity.RandomMask(0.5), 1)),
  'buffered': _Case(
    buffered.Buffered(_quap(**_WHOLE), 3, stalenesses.Staleness(scale=0.0)),
    own=lambda client: {'staleness': np.int32(client % 3)},
  ),
  'certified': _Case(_certified(clip=clip_rules.Fixed(0.5))),
  'certified, counted norms, split': _Case(_certified(clip=_COUNTED, clip_split='size', noise_multiplier=1.0)),
  'certified, correlated': _Case(_certified(correlation=correlation.Blt((0.3, 0.2), (0.9, 0.5)))),
}


@pytest.fixture(scope='module', params=_CASES)
def case(request):
  return _CASES[request.param]


@pytest.fixture(scope='module')
def process(case):
  fields = collections.OrderedDict(client_id=np.int64, **({'staleness': np.int32} if case.own else {}))
  factory = aggregation.AggregationFactory(case.mechanism, _LAYERS, case.learning_rate_fn)
  return factory.create(_VALUE, tff.to_type(fields))


def _values(count):
  """Updates of norms from 0.1 to 100."""
  generator = np.random.default_rng(count)
  for scale in np.geomspace(0.1, 100, max(count, 1))[:count]:
    conv, kernel = generator.normal(size=[2, 2]).astype(np.float32) * np.float32(scale)
    yield collections.OrderedDict(conv=conv, dense=collections.OrderedDict(kernel=kernel.reshape([1, 2])))


def _own(case, cohort):
  more = case.own or (lambda client: {})
  return [collections.OrderedDict(client_id=np.int64(client), **more(client)) for client in cohort]


def test_its_rounds_are_those_of_its_functions(case, process, context):
  pure = rounds.Process(case.mechanism, tff.types.type_to_tf_tensor_specs(_VALUE), _LAYERS, case.learning_rate_fn)
  state, expected = process.initialize(), pure.initialize()
  for cohort in ([3, 9, 4], [], [9, 3]):
    output = process.next(state, list(_values(len(cohort))), _own(case, cohort))
    found = pure.next(expected, list(_values(len(cohort))), _own(case, cohort))
    for name in ('state', 'result', 'measurements'):
      one, other = tf.nest.flatten(getattr(output, name)), tf.nest.flatten(getattr(found, name))
      assert len(one) == len(other)
      for a, b in zip(one, other):
        np.testing.assert_allclose(np.float64(a), np.float64(b), rtol=2e-6, atol=1e-6, err_msg=f'{name} of {cohort}')
    assert list(output.measurements) == list(found.measurements)
    state = tf.nest.map_structure(np.array, output.state)  # As it comes from a checkpoint.
    expected = found.state


def test_the_order_of_the_cohort_does_not_matter(case, process, context):
  values, own = list(_values(3)), _own(case, [3, 9, 4])
  first = process.next(process.initialize(), values, own)
  second = process.next(process.initialize(), values[::-1], own[::-1])
  for a, b in zip(tf.nest.flatten(first.result), tf.nest.flatten(second.result)):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_bad_ids_are_refused(case, process, context):
  bad = [([0, 10], r'Client ids must lie in \[0, 10\), .*; found \[(0 )?10\]'), ([-1, 1], 'Client ids must lie in')]
  # A buffer can hold a client twice.
  for ids, message in bad if case.own else [*bad, ([4, 4], 'appears twice')]:
    with pytest.raises(Exception, match=message):
      process.next(process.initialize(), list(_values(2)), _own(case, ids))


def test_it_compiles_to_mergeable_form_if_it_has_one_level(case, process):
  if case.levels == 1:
    form = tff.backends.native.compile_to_mergeable_comp_form(process.next)
    assert isinstance(form, tff.framework.MergeableCompForm)
  else:
    with pytest.raises(ValueError, match='aggregate dependent on another'):
      tff.backends.native.compile_to_mergeable_comp_form(process.next)


def test_its_rounds_cost_what_was_planned(case, process, context):
  cohorts = [np.array(cohort, np.int64) for cohort in ([0, 3, 9], [3, 6], [6, 9])]  # None of them is stale.
  if case.mechanism.facts.unplannable or not case.plans:
    pytest.skip(case.mechanism.facts.unplannable or 'Without noise there is no cost.')
  planned, state = case.mechanism.planned(cohorts), process.initialize()
  for cohort, expected in zip(cohorts, planned):
    output = process.next(state, list(_values(len(cohort))), _own(case, cohort))
    state = output.state
    spent = case.mechanism.spent(state, output.measurements, cohort)
    assert spent.releases == expected.releases
    for name in set(spent._fields) - {'clipping_norm', 'counts', 'released'}:
      np.testing.assert_allclose(getattr(spent, name), getattr(expected, name), rtol=1e-5, err_msg=name)
  assert len(planned) == len(cohorts)
