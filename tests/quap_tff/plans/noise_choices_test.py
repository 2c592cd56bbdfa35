"""Which noise cohorts need, against accounts, filters and figures by hand."""

import numpy as np
import pytest

from quap_tff.common.numbers import tradeoff
from quap_tff.mechanisms import mechanism
from quap_tff.mechanisms.certified import spending
from quap_tff.mechanisms.noise import correlation as correlations
from quap_tff.plans.accounts import noise_choices

_RNG = np.random.default_rng(7)
_COHORTS = [np.flatnonzero(_RNG.random(12) < np.linspace(0.9, 0.1, 12)) for _ in range(20)]
_ARGUMENTS = _COHORTS, 12, 3.0, 1e-5


@pytest.mark.parametrize(
  'correlation', [correlations.Independent(), correlations.Ar1(0.9), correlations.Blt((0.5,), (0.8,))]
)
def test_the_least_noise_is_the_least(correlation):
  def epsilon(z):
    history = [mechanism.RoundRecord(ids, None, np.ones(len(ids)), z) for ids in _COHORTS]
    return tradeoff.epsilon_of(np.sqrt(spending.spending(history, correlation, 12).mu_squared.max()), 1e-5)

  least = noise_choices.least_noise(*_ARGUMENTS, correlation)
  assert epsilon(least) <= 3.0 < epsilon(least * (1 - 1e-6))


@pytest.mark.slow
def test_everyone_in_every_round_reaches_the_ceiling():
  """Where all come to all rounds, independent noise is optimal, and correlation gains nothing."""
  everyone = [np.arange(5)] * 8
  found = list(noise_choices.choices(everyone, 5, 3.0, 1e-5))
  independent, planned = found[0], found[1]
  assert independent.noise_multiplier == pytest.approx(np.sqrt(8) / tradeoff.mu_at_most(3.0, 1e-5), rel=1e-8)
  assert independent.share == pytest.approx(1.0, rel=1e-6) and planned.share == pytest.approx(1.0, abs=0.01)
  assert all(one.share < 1 + 1e-6 for one in found)
  assert {type(one.correlation).__name__ for one in found} == {'Independent', 'Ar1', 'Banded', 'Blt', 'HeldNoise'}
  assert [one.trust for one in found].count('secure_sum') == 1


@pytest.mark.slow
def test_no_share_is_above_the_ceiling_and_correlation_pays_for_uneven_cohorts():
  found = list(noise_choices.choices(*_ARGUMENTS))
  assert all(0 < one.share < 1 for one in found)
  assert found[2].correlation.decay > 0 and found[2].share > found[0].share
  assert all(not one.ended for one in found if not one.is_planned)


def test_budgets_end_where_the_noise_pays_for_no_more():
  all_last, *rest = noise_choices.ends(*_ARGUMENTS, correlations.Independent())
  assert (all_last.ended, all_last.first_round, all_last.median_round) == (0, 0, 0)
  assert [one.ended for one in rest] == sorted(one.ended for one in rest) and rest[-1].ended > 5
  # z at half of what is needed pays for a quarter of the most frequent client's rounds.
  half = next(one for one in rest if one.noise_multiplier == pytest.approx(all_last.noise_multiplier / 2, rel=0.01))
  counts = np.cumsum([np.isin(np.arange(12), ids) for ids in _COHORTS], axis=0)
  most = counts[-1].max()
  by_hand = min(int(np.argmax(counts[:, i] > most / 4)) + 1 for i in range(12) if counts[-1, i] > most / 4 + 1)
  assert abs(half.first_round - by_hand) <= 2


def test_nobody():
  with pytest.raises(ValueError, match='Nobody takes part'):
    noise_choices.least_noise([np.zeros(0, np.int64)] * 3, 4, 3.0, 1e-5, correlations.Independent())
