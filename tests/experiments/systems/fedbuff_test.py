"""Tests of FedBuff: staleness, what a buffer releases, which version a client trains on, and what is charged."""

import collections
import dataclasses
import functools
import math

import numpy as np
import pytest
import tensorflow_federated as tff

from experiments.systems import fedbuff
from experiments.systems import pt_adp
from experiments.systems import staleness as stalenesses
from quap_tff import accounting
from quap_tff import plans
from quap_tff.common.numbers import samplers
from quap_tff.federated import aggregation
from quap_tff.federated import learning_process
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.parts.budgets import BudgetConfig
from quap_tff.mechanisms.quap.config import NoiseConfig
from tests.quap_tff import examples
from tests.quap_tff import linear_model
from tests.quap_tff import noise_checks
from tests.quap_tff import rounds

_VALUE = tff.to_type(collections.OrderedDict(a=(np.float32, [2]), b=(np.float32, [600])))
_SPECS = tff.types.type_to_tf_tensor_specs(_VALUE)
_WEIGHT = tff.to_type(collections.OrderedDict(client_id=np.int64, staleness=np.int32))
_NEWEST = stalenesses.Staleness(scale=0.0)


_config = functools.partial(examples.whole, num_clients=6)


def _noised(**overrides):
  return _config(noise=NoiseConfig('server', calibration='analytic', seed=5), **overrides)


def _value(a):
  return collections.OrderedDict(a=np.float32(a), b=np.zeros([600], np.float32))


def _next(process, state, arrivals):
  """Arrivals are (client, a, staleness)."""
  weights = [collections.OrderedDict(client_id=np.int64(i), staleness=np.int32(old)) for i, _, old in arrivals]
  return process.next(state, [_value(a) for _, a, _ in arrivals], weights)


def _process(config, size):
  return rounds.Process(fedbuff.Buffered(config, size), _SPECS)


class TestStaleness:
  def test_share_by_hand(self):
    np.testing.assert_allclose(stalenesses.share([0, 3, 8]), [1.0, 0.5, 1 / 3], rtol=1e-6)

  def test_is_pure_and_within_its_bounds(self):
    drawn = stalenesses.Staleness(scale=3.0, spread=1.0, max_staleness=4, seed=7)
    found = [[int(drawn.of(t, i, versions)) for t in range(1, 12)] for i, versions in ((0, 9), (1, 9), (0, 3))]
    assert found[0] == [int(drawn.of(t, 0, 9)) for t in range(1, 12)]
    assert found[0] != found[1]
    assert max(found[0]) == 4 and min(found[0]) < 4
    assert found[2] == [min(old, 2) for old in found[0]]

  @pytest.mark.slow
  def test_is_half_normal_without_spread(self):
    drawn = stalenesses.Staleness(scale=10.0, spread=0.0, max_staleness=100)
    found = [int(drawn.of(t, 0, 1000)) for t in range(1, 301)]
    # P(|n| < 0.6745) is one half.
    assert np.mean(np.less(found, 6.745)) == pytest.approx(0.5, abs=0.09)

  @pytest.mark.parametrize(
    'overrides', [dict(scale=-1.0), dict(spread=math.nan), dict(max_staleness=1000), dict(seed=-1)]
  )
  def test_bad_parameters(self, overrides):
    with pytest.raises(ValueError):
      stalenesses.Staleness(**overrides)


class TestBuffer:
  def test_waits_until_it_is_full_then_releases_the_mean(self, context):
    process = _process(_config(), 3)
    first = _next(process, process.initialize(), [(0, [3, 4], 0), (1, [0, 0.5], 3)])
    assert not np.any(first.result['a'])
    assert (first.measurements['buffered_updates'], first.measurements['released_updates']) == (2, 0)
    second = _next(process, first.state, [(2, [1, 0], 8)])
    # Norm 5 is clipped to 1 and fresh; the second is 3 versions old, the third 8.
    np.testing.assert_allclose(second.result['a'], np.array([0.6 + 1 / 3, 0.8 + 0.25]) / 3, rtol=1e-6)
    np.testing.assert_allclose(second.state.released, [1, 0.5, 1 / 3, 0, 0, 0], rtol=1e-6)
    assert (second.measurements['buffered_updates'], second.measurements['released_updates']) == (0, 3)
    third = _next(process, second.state, [(5, [1, 0], 0)])
    assert not np.any(third.result['a']) and not np.any(third.state.released)

  def test_divides_by_the_updates_that_it_holds(self, context):
    process = _process(_config(), 2)
    output = _next(process, process.initialize(), [(i, [1, 0], 0) for i in range(4)])
    np.testing.assert_allclose(output.result['a'], [1, 0])

  def test_a_client_can_be_in_a_buffer_twice(self, context):
    process = _process(_config(), 2)
    state = _next(process, process.initialize(), [(4, [1, 0], 0)]).state
    np.testing.assert_allclose(_next(process, state, [(4, [1, 0], 3)]).state.released, [0, 0, 0, 0, 1.5, 0])

  @pytest.mark.slow
  def test_nobody_arrives(self, context):
    process = _process(_noised(), 2)
    state = _next(process, process.initialize(), [(4, [1, 0], 0)]).state
    output = _next(process, state, [])
    assert not np.any(output.result['b']) and output.measurements['buffered_updates'] == 1

  @pytest.mark.slow
  def test_noise_is_added_once_to_a_release(self, context):
    process = _process(_noised(clip=clip_rules.Fixed(0.5)), 2)
    waiting = _next(process, process.initialize(), [(0, [0, 0], 0)])
    assert waiting.measurements['noise_multiplier'] == 0 and not np.any(waiting.result['b'])
    release = _next(process, waiting.state, [(1, [0, 0], 0), (2, [0, 0], 0)])
    multiplier = float(release.measurements['noise_multiplier'])
    assert accounting.epsilon_by_client(_ledger(multiplier), 1e-5)[0] == pytest.approx(0.5, rel=1e-5)
    noise_checks.assert_gaussian(release.result['b'], multiplier * 0.5 / 3)
    again = _next(process, _next(process, release.state, [(3, [0, 0], 0)]).state, [(4, [0, 0], 0)])
    noise_checks.assert_uncorrelated(release.result['b'], again.result['b'])

  def test_an_update_that_is_not_finite_is_zero(self, context):
    process = _process(_config(), 1)
    np.testing.assert_array_equal(_next(process, process.initialize(), [(0, [np.nan, 1], 0)]).result['a'], [0, 0])

  @pytest.mark.parametrize(
    'overrides, message',
    [
      (dict(noise=NoiseConfig('client', calibration='analytic')), 'at the server'),
      (dict(clip=clip_rules.PrivateQuantile()), 'noised count in every round'),
      (dict(update_scale='pseudo_gradient'), 'update_scale="delta"'),
      (dict(budget=BudgetConfig(client_rule=pt_adp.PtAdp(), round_rule='each_own')), 'rates alone'),
    ],
  )
  def test_what_a_buffer_cannot_do_is_refused(self, overrides, message):
    with pytest.raises(ValueError, match=message):
      fedbuff.Buffered(dataclasses.replace(_config(), **overrides), 2)

  def test_a_size_out_of_range(self):
    with pytest.raises(ValueError, match='buffer must be an integer at least 1'):
      fedbuff.Buffered(_config(), 0)

  def test_updates_without_staleness_are_refused(self):
    with pytest.raises(TypeError, match='staleness'):
      aggregation.AggregationFactory(fedbuff.Buffered(_config(), 1)).create(
        _VALUE, tff.to_type(collections.OrderedDict(client_id=np.int64))
      )


def _ledger(multiplier):
  ledger = accounting.RunLedger(1, 1e-5, '')
  ledger.append(accounting.RoundRecord([0], [1.0], [1.0], multiplier, math.inf, 1.0))
  return ledger


@pytest.mark.slow
class TestVersions:
  """y = w·x from w = 0 at a learning rate of 0.5: one step on (1, y) leads to w = y, whatever w was."""

  def _run(self, staleness, size, ys):
    sgd = tff.learning.optimizers.build_sgdm
    config = _config(clip=clip_rules.Fixed(1e6))
    factory = aggregation.AggregationFactory(fedbuff.Buffered(config, size))
    process = learning_process.compose(linear_model.Linear, factory, sgd(0.5), sgd(1.0), staleness=staleness)
    state, weights, states = process.initialize(), [], []
    for y in ys:
      state = process.next(state, [linear_model.client(0, y)]).state
      weights.append(linear_model.weight(process, state))
      states.append(state)
    return weights, states

  @pytest.mark.thorough
  def test_on_the_newest_version_it_is_federated_averaging(self, context):
    assert self._run(_NEWEST, 1, [1.0, 5.0, 2.0])[0] == [1.0, 5.0, 2.0]

  def test_by_hand_on_old_versions(self, context):
    # A large scale: every client is as stale as can be, τ = min(V - 1, 2).
    weights, states = self._run(stalenesses.Staleness(scale=1e6, max_staleness=2), 1, [1.0, 5.0, 2.0, 4.0])
    # Version 1 is w=0: 0+1. Then τ=1 from w=0: 1 + 5/√2. Then τ=2 from 0: + 2/√3. Then τ=2 from w=1: + (4-1)/√3.
    steps = [1.0, 5 / math.sqrt(2), 2 / math.sqrt(3), 3 / math.sqrt(3)]
    np.testing.assert_allclose(weights, np.cumsum(steps), rtol=1e-6)
    kept = np.ravel(states[-1].distributor['versions'].trainable[0])
    np.testing.assert_allclose(kept, np.cumsum(steps)[[2, 1, 0]], rtol=1e-6)

  @pytest.mark.thorough
  def test_a_round_that_only_waits_makes_no_version(self, context):
    weights, states = self._run(stalenesses.Staleness(scale=1e6, max_staleness=5), 2, [1.0, 3.0, 2.0, 2.0])
    # Both of the first trained on version 1. The next two are one version old, not two: (2 + 2)/2/√2.
    np.testing.assert_allclose(weights, [0, 2, 2, 2 + math.sqrt(2)], rtol=1e-6)
    assert int(states[-1].distributor['num_versions']) == 2


class TestPlan:
  def _plan(self, size, staleness=_NEWEST, **overrides):
    return plans.Plan(fedbuff.Buffered(_noised(**overrides), size, staleness))

  @pytest.mark.slow
  def test_each_buffer_counts_by_the_sum_of_shares(self):
    ledger = self._plan(2).planned_ledger([[0], [0], [0, 1], [2]])
    multiplier = ledger.state_dict()['noise_multipliers'][2]
    # Buffer 1 holds client 0 twice, buffer 2 holds it once; what waits at the end costs nothing.
    np.testing.assert_allclose(
      accounting.total_mu(ledger).whole, np.array([math.sqrt(2**2 + 1), 1, 0, 0, 0, 0]) / multiplier, rtol=1e-6
    )
    assert list(ledger.rounds) == [2, 1, 0, 0, 0, 0]

  @pytest.mark.slow
  def test_stale_updates_cost_less(self):
    # One version, then two, ..., so the staleness is 0, 1, 2, 3.
    ledger = self._plan(1, stalenesses.Staleness(scale=1e6)).planned_ledger([[0]] * 4)
    multiplier = ledger.state_dict()['noise_multipliers'][0]
    assert accounting.total_mu(ledger).whole[0] * multiplier == pytest.approx(math.sqrt(1 + 1 / 2 + 1 / 3 + 1 / 4))

  @pytest.mark.slow
  def test_a_run_spends_what_was_planned(self, context):
    staleness = stalenesses.Staleness(scale=1.0, max_staleness=3)
    plan = self._plan(3, staleness)
    process, cohorts = rounds.Process(plan.mechanism, _SPECS), [[0, 1], [1, 2], [3], [4], [0, 5]]
    state, ledger, versions = process.initialize(), plan.new_ledger(), 1
    for round_num, cohort in enumerate(cohorts, 1):
      output = _next(process, state, [(i, [1, 0], int(staleness.of(round_num, i, versions))) for i in cohort])
      state = output.state
      versions += int(output.measurements['released_updates'] > 0)
      ledger.append(plan.recorded(output.state, output.measurements, cohort))
    planned = plan.planned_ledger(cohorts)
    np.testing.assert_allclose(accounting.total_mu(ledger).whole, accounting.total_mu(planned).whole, rtol=1e-6)
    np.testing.assert_allclose(ledger.epsilon, planned.epsilon, rtol=1e-6)
    assert versions == 3 and list(ledger.rounds) == list(planned.rounds)

  @pytest.mark.slow
  def test_the_charge_bounds_what_a_client_moves(self, context):
    # Client 1 is in the buffer twice, at staleness 0 and 3, always in one direction; then not at all.
    plan = self._plan(3, clip=clip_rules.Fixed(0.5))
    process = rounds.Process(plan.mechanism, _SPECS)
    released = []
    for a in ([9, 0], [0, 0]):
      state = _next(process, process.initialize(), [(1, a, 0), (2, [0, 1], 0)]).state
      released.append(_next(process, state, [(1, a, 3)]))
    moved = float(released[0].result['a'][0] - released[1].result['a'][0])
    ledger = plan.new_ledger()
    ledger.append(plan.recorded(released[0].state, released[0].measurements, [1]))
    mu = accounting.total_mu(ledger).whole[1]
    assert moved == pytest.approx(1.5 * 0.5 / 3, rel=1e-5)
    noise_checks.assert_gaussian(released[0].result['b'], moved / mu)

  @pytest.mark.slow
  def test_calibrated_to_a_total(self):
    cohorts = [[0, 1], [0, 2], [0, 3], [1, 2]]
    plan = self._plan(3, stalenesses.Staleness()).calibrated(cohorts, 2.0)
    assert isinstance(plan.mechanism, fedbuff.Buffered) and plan.mechanism.size == 3
    assert accounting.epsilon_by_client(plan.planned_ledger(cohorts), 1e-5).max() == pytest.approx(2.0, rel=1e-4)

  def test_sampling_amplifies_nothing(self):
    draw = samplers.CohortSampler(kind='fixed_size', cohort_size=2)
    assert plans.Plan(fedbuff.Buffered(_noised(), 2, _NEWEST), draw).sampler.kind == 'none'
