"""Tests of `quap_tff.mechanisms.parts.participation`, by hand and against `quap_fl`."""

import collections

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import numpy as np
import pytest

from quap_tff import quap_fl
from quap_tff.common.lazy import tf
from quap_tff.mechanisms.parts import participation
from quap_tff.mechanisms.parts.participation import ParticipationConfig
from quap_tff.mechanisms.quap.config import QuapConfig

_N = 6

# A history: the cohort of each round, possibly empty.
_histories = st.lists(st.lists(st.integers(0, _N - 1), unique=True, max_size=_N), min_size=1, max_size=12)
_configs = st.builds(
  ParticipationConfig,
  rate=st.sampled_from(participation.RATES),
  ema_weight=st.floats(0.05, 1.0),
  warmup_rounds=st.integers(0, 6),
  count_during_warmup=st.booleans(),
)


def _expected(config, history):
  """p_i and k_i after the last round, float64[N]."""
  whole = QuapConfig(_N, participation=config)
  state = quap_fl.initial_state(whole, [])
  for cohort in history:
    state, _ = quap_fl.play_round(whole, [], state, {client: [] for client in cohort}, np.random.default_rng(0))
  return state.rates, state.counts


def _run(config, history):
  """The state after the rounds, in NumPy; TensorFlow must come to the same, bit for bit."""
  state = participation.initial_state(config, _N)
  in_graphs = {name: tf.constant(value) for name, value in state.items()}
  for t, cohort in enumerate(history, start=1):
    state = participation.next_state(config, state, np.array(cohort, np.int64), t)
    in_graphs = participation.next_state(config, in_graphs, tf.constant(cohort, tf.int64), tf.constant(t))
  for name, value in state.items():
    np.testing.assert_array_equal(in_graphs[name].numpy(), value, name)
    assert in_graphs[name].dtype.as_numpy_dtype == value.dtype
  rates = participation.rates(config, in_graphs, tf.constant(len(history))).numpy()
  np.testing.assert_array_equal(rates, participation.rates(config, state, len(history)))
  return state


class TestRates:
  def test_cumulative_by_hand(self):
    config = ParticipationConfig()
    state = _run(config, [[0, 1], [0], [0, 2], []])
    np.testing.assert_array_equal(state['counts'], [3, 1, 1, 0, 0, 0])
    np.testing.assert_allclose(participation.rates(config, state, 4), [0.75, 0.25, 0.25, 0, 0, 0])

  def test_ema_by_hand(self):
    config = ParticipationConfig(rate='ema', ema_weight=0.25)
    state = _run(config, [[0], [1], [0]])
    np.testing.assert_allclose(
      participation.rates(config, state, 3)[:2], [0.25 * 0.75**2 + 0.25, 0.25 * 0.75], rtol=1e-6
    )

  def test_the_present_round_counts(self):
    config = ParticipationConfig()
    np.testing.assert_allclose(participation.rates(config, _run(config, [[3]]), 1)[3], 1.0)

  def test_without_counting_warmup_both_counts_and_rounds_start_after_it(self):
    config = ParticipationConfig(warmup_rounds=2, count_during_warmup=False)
    state = _run(config, [[0], [0], [0], [1]])
    np.testing.assert_allclose(participation.rates(config, state, 4)[:2], [0.5, 0.5])

  def test_an_empty_cohort_leaves_ema_rates_bit_equal(self):
    config = ParticipationConfig(rate='ema')
    before, after = _run(config, [[0, 2], [2]]), _run(config, [[0, 2], [2], []])
    np.testing.assert_array_equal(before['rates'], after['rates'])

  @pytest.mark.slow
  @pytest.mark.slow
  @given(config=_configs, history=_histories)
  @settings(max_examples=25)
  def test_any_history(self, config, history):
    state = _run(config, history)
    rates, counts = _expected(config, history)
    np.testing.assert_array_equal(state['counts'], counts)
    np.testing.assert_allclose(participation.rates(config, state, len(history)), rates, atol=1e-6)
    found = participation.statistics(config, state, len(history))
    assert list(found) == ['mean', 'stddev', 'min', 'max', 'never_seen']
    expected = [rates.mean(), rates.std(), rates.min(), rates.max(), np.sum(counts == 0)]
    np.testing.assert_allclose([float(v) for v in found.values()], expected, atol=1e-6)

  @pytest.mark.slow
  @given(config=_configs, history=_histories)
  @settings(max_examples=40)
  def test_rates_if_taking_part_are_the_rates_of_those_who_do(self, config, history):
    round_num, cohort = len(history), history[-1]
    before, after = _run(config, history[:-1]), _run(config, history)
    promised = participation.rates_if_taking_part(config, before, round_num)
    np.testing.assert_allclose(promised[cohort], participation.rates(config, after, round_num)[cohort], rtol=1e-6)
    assert np.all((promised >= 0) & (promised <= 1 + 1e-6))

  @pytest.mark.parametrize('warmup, round_num, expected', [(5, 1, True), (5, 5, True), (5, 6, False), (0, 1, False)])
  def test_warmup_includes_its_last_round(self, warmup, round_num, expected):
    assert bool(participation.in_warmup(ParticipationConfig(warmup_rounds=warmup), round_num)) is expected

  @pytest.mark.parametrize('count_during_warmup', [True, False])
  def test_before_the_first_round_rates_are_zero(self, count_during_warmup):
    config = ParticipationConfig(count_during_warmup=count_during_warmup)
    with np.errstate(all='raise'):
      assert not participation.rates(config, participation.initial_state(config, 3), 0).any()

  def test_a_million_clients_are_four_megabytes(self):
    config = ParticipationConfig()
    state = participation.initial_state(config, 10**6)
    state = participation.next_state(config, state, tf.constant([999_999], tf.int64), 1)
    assert sum(np.asarray(v).nbytes for v in state.values()) == 4_000_000
    found = participation.statistics(config, state, 1)
    assert int(found['never_seen']) == 999_999
    np.testing.assert_allclose(found['mean'], 1e-6, rtol=1e-5)


@pytest.mark.parametrize('rate, kept', [('cumulative', {}), ('ema', dict(rates=(np.float32, (3,))))])
def test_kept_state(rate, kept):
  state = participation.initial_state(ParticipationConfig(rate), 3)
  found = collections.OrderedDict((name, (value.dtype, value.shape)) for name, value in state.items())
  assert found == collections.OrderedDict(counts=(np.int32, (3,)), **kept)
