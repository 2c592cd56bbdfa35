"""Tests of `mechanisms.certified.privacy_filter`: no history passes the budget, and what is spent is what it costs."""

import fractions
import math

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import numpy as np
import pytest

from quap_tff.common.lazy import tf
from quap_tff.common.numbers import tradeoff
from quap_tff.mechanisms.certified import privacy_filter
from quap_tff.mechanisms.certified.privacy_filter import Prices


def _spend(prices, spent, proposed):
  """Weights, and what is spent after them, under independent noise."""
  accounts = privacy_filter.opened(len(spent), 0)._replace(spent=np.asarray(spent, np.float64))
  weights, accounts = privacy_filter.spend(prices, accounts, 0, math.inf, np.asarray(proposed, np.float32))
  return weights, accounts.spent


def _exact_cost(prices, weight):
  """w²/z² + 1/c² without any rounding."""
  return (fractions.Fraction(float(weight)) / fractions.Fraction(prices.noise_multiplier)) ** 2 + fractions.Fraction(
    prices.count_cost
  )


_ASKED = np.float32([0.5, 0.1])


class TestLimit:
  @pytest.mark.slow
  @pytest.mark.parametrize(
    'epsilon, delta', [(3.0, 1e-5), (0.01, 1e-5), (1.0, 1e-12), (10.0, 1e-6), (100.0, 1e-5), (0.5, 0.01)]
  )
  def test_is_below_the_exact_one_by_the_slack_and_no_more(self, epsilon, delta):
    limit = privacy_filter.limit_of(epsilon, delta)
    exact = tradeoff.mu_at_most(epsilon, delta) ** 2
    assert exact * (1 - 1.1 * privacy_filter.SLACK) < limit < exact * (1 - 0.9 * privacy_filter.SLACK)
    assert epsilon * (1 - 2e-9) < tradeoff.epsilon_of(math.sqrt(limit), delta) < epsilon

  @pytest.mark.slow
  def test_is_a_number_while_a_graph_is_traced(self):
    privacy_filter.limit_of.cache_clear()
    seen = []
    tf.function(lambda: seen.append(privacy_filter.limit_of(2.5, 1e-5)))()
    assert seen == [privacy_filter.limit_of(2.5, 1e-5)] and isinstance(seen[0], float)


class TestSpend:
  @pytest.mark.parametrize(
    'prices, spent, asked, weights, after',
    [
      # z = 2: weight w costs w²/4. Left: 1, 0.25, 0.0625, nothing.
      (Prices(1.0, 2.0, 0.0), [0.0, 0.75, 0.9375, 1.0], [1.0] * 4, [1.0, 1.0, 0.5, 0.0], [0.25, 1.0, 1.0, 1.0]),
      # The weight that the rule asks for is never exceeded, and the whole clip neither.
      (Prices(1.0, 2.0, 0.0), [0.0] * 2, _ASKED, _ASKED, np.float64(_ASKED) ** 2 / 4),
      (Prices(9.0, 1.0, 0.0), [0.0], [2.0], [1.0], [1.0]),
      # Counts are charged alongside the weight and paid first.
      (Prices(1.0, 2.0, 0.5), [0.0, 0.4375, 0.5 + 1e-12], [1.0] * 3, [1.0, 0.5, 0.0], [0.75, 1.0, 0.5 + 1e-12]),
    ],
  )
  def test_by_hand(self, prices, spent, asked, weights, after):
    found, found_after = _spend(prices, spent, asked)
    np.testing.assert_array_equal(found, np.float32(weights))
    np.testing.assert_allclose(found_after, after, rtol=1e-14)

  def test_scraps_are_left(self):
    share = privacy_filter.SMALLEST_SHARE
    for asked in (1.0, 0.5):
      left = (share * asked) ** 2
      weights, spent = _spend(Prices(1.0, 1.0, 0.0), [1 - left * 0.99, 1 - left * 1.01], [asked, asked])
      assert weights[0] == 0.0 and spent[0] == 1 - left * 0.99
      assert weights[1] == pytest.approx(share * asked, rel=0.01)

  @pytest.mark.parametrize('spent, proposed', [(math.nan, 1.0), (0.0, math.nan), (0.0, -1.0), (math.inf, 1.0)])
  def test_what_makes_no_sense_adds_nothing(self, spent, proposed):
    weights, _ = _spend(Prices(1.0, 1.0, 0.0), [spent], [proposed])
    assert weights[0] == 0.0

  def test_weights_are_rounded_down(self):
    rng = np.random.default_rng(0)
    spent = rng.uniform(0, 0.9, 10_000)
    weights, _ = _spend(Prices(1.0, 0.5, 0.0), spent, np.ones(10_000))
    exact = 0.5 * np.sqrt(1.0 - spent)
    assert (weights <= exact).all() and (weights >= exact * (1 - 2.0**-23)).all()

  @pytest.mark.slow
  @given(
    limit=st.floats(0.001, 30.0),
    multiplier=st.floats(0.05, 50.0),
    count_share=st.sampled_from([0.0, 0.003, 0.21]),
    proposals=st.lists(st.one_of(st.just(1.0), st.floats(0.0, 1.0, width=32)), min_size=1, max_size=60),
  )
  @settings(max_examples=80)
  def test_no_sequence_passes_the_limit(self, limit, multiplier, count_share, proposals):
    prices = Prices(limit, multiplier, limit * count_share)
    spent, exact = np.zeros(1), fractions.Fraction(0)
    for proposed in proposals:
      before = spent
      weights, spent = _spend(prices, before, [proposed])
      assert weights[0] <= np.float32(proposed)
      if weights[0]:
        exact += _exact_cost(prices, weights[0])
      else:
        assert spent == before
      # What is spent is never less than the truth, nor much more.
      assert exact <= fractions.Fraction(spent[0]) <= exact * (1 + fractions.Fraction(1, 10**13))
      assert spent[0] <= limit * (1 + 1e-14)

  @pytest.mark.slow
  @pytest.mark.parametrize('multiplier', [40.0, pytest.param(130.0, marks=pytest.mark.thorough)])
  def test_many_rounds(self, multiplier):
    prices, most = Prices(1.0, multiplier, 0.0), int(multiplier**2)

    @tf.function
    def run(rounds):
      empty = privacy_filter.opened(1, 0)

      def step(t, spent):
        accounts = empty._replace(spent=spent)
        return t + 1, privacy_filter.spend(prices, accounts, 0, math.inf, tf.ones([1]))[1].spent

      return tf.while_loop(lambda t, _: t < rounds, step, (0, tf.zeros([1], tf.float64)))[1]

    # So many weights of 1 spend everything.
    assert run(most - 100).numpy()[0] == pytest.approx((most - 100) / most, rel=1e-11)
    assert 1 - 1.5 / most < run(most + 300).numpy()[0] <= 1 + 1e-14
