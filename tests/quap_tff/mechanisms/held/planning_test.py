"""Tests of `quap_tff.mechanisms.held.planning`: plans spend limits and do not exceed them, and dropout has room."""

import numpy as np
import pytest

from quap_tff.common.numbers import rounding
from quap_tff.common.numbers import tradeoff
from quap_tff.mechanisms.certified import privacy_filter
from quap_tff.mechanisms.held import planning as held_planning
from quap_tff.mechanisms.noise import correlation
from quap_tff.mechanisms.noise import held_noise
from quap_tff.mechanisms.parts import postprocessing

LIMIT = 0.517


def _schedule(num_clients=40, size=12, num_rounds=30, seed=0):
  rng = np.random.default_rng(seed)
  return [rng.choice(num_clients, size, replace=False) for _ in range(num_rounds)]


def _run(plan, cohorts, limit, dropout=0.0, seed=0):
  """The account after a run, and the share of its rounds that the filter refused."""
  rng, refused = np.random.default_rng(seed), 0
  account = held_noise.opened(len(plan.weights), plan.noise_multiplier, plan.decay)
  for cohort in cohorts:
    came = cohort[rng.random(len(cohort)) >= dropout]
    after = account.after(came, plan.weights[came])
    refused += not after.is_within(limit)
    account = after if after.is_within(limit) else account
  return account, refused / len(cohorts)


@pytest.mark.parametrize('decays', [(0.0,), (0.7,), (0.97,), correlation.DECAYS])
def test_everyone_spends_the_limit_and_no_more(decays):
  cohorts = _schedule()
  plan = held_planning.calibrated(cohorts, 40, LIMIT, decays=decays)
  account, refused = _run(plan, cohorts, LIMIT)
  assert refused == 0
  np.testing.assert_allclose(account.spent, LIMIT, rtol=1e-6)
  assert (account.spent <= LIMIT).all()
  assert plan.weights.max() == pytest.approx(1.0) and plan.weights.max() <= 1
  assert plan.divisor == pytest.approx(np.mean([plan.weights[cohort].sum() for cohort in cohorts]))


def test_limits_of_clients():
  cohorts = _schedule()
  limits = np.linspace(0.1, 1.0, 40)
  limits[5] = 0.0
  plan = held_planning.calibrated(cohorts, 40, limits)
  account, _ = _run(plan, cohorts, limits)
  np.testing.assert_allclose(account.spent, limits, rtol=1e-6)
  assert (account.spent <= limits).all() and plan.weights[5] == 0


def test_who_is_in_no_round_and_rounds_with_nobody():
  cohorts = [*_schedule(), np.zeros(0, np.int64)]
  plan = held_planning.calibrated(cohorts, 42, LIMIT)
  account, _ = _run(plan, cohorts, LIMIT)
  assert (plan.weights[40:] == 0).all() and (account.spent[40:] == 0).all()
  np.testing.assert_allclose(account.spent[:40], LIMIT, rtol=1e-6)


def test_objective_is_the_ratio_of_signal_to_noise():
  cohorts, averaging = _schedule(), postprocessing.Tail(16)
  found = {
    decay: held_planning.calibrated(cohorts, 40, LIMIT, averaging=averaging, decays=(decay,))
    for decay in correlation.DECAYS
  }
  kept = postprocessing.kept_shares(averaging.shares(30))
  for decay, plan in found.items():
    signal = sum(share * plan.weights[cohort].sum() for share, cohort in zip(kept, cohorts))
    noise = plan.noise_multiplier * np.sqrt(kept @ held_noise.covariance(cohorts, decay) @ kept)
    assert plan.objective == pytest.approx(signal / noise)
  best = held_planning.calibrated(cohorts, 40, LIMIT, averaging=averaging)
  assert best.objective == max(plan.objective for plan in found.values()) > 1.1 * found[0.0].objective
  assert 0 < best.decay < 0.97
  chosen = held_planning.calibrated(cohorts, 40, LIMIT)
  assert chosen.objective >= best.objective and chosen.averaging in postprocessing.Planned().candidates(30)


@pytest.mark.parametrize('size, dropout', [(30, 0.1), (30, 0.3), (12, 0.1)])
def test_with_room_for_dropout_few_rounds_are_refused(size, dropout):
  cohorts = _schedule(100, size, 60)
  plan = held_planning.calibrated(cohorts, 100, LIMIT, dropout=dropout)
  runs = [_run(plan, cohorts, LIMIT, dropout, seed) for seed in range(20)]
  assert np.mean([refused for _, refused in runs]) < 0.01
  assert all((account.spent <= LIMIT).all() for account, _ in runs)
  assert np.median([account.spent.max() for account, _ in runs]) > 0.8 * LIMIT


def test_without_room_for_dropout_many_rounds_are_refused():
  cohorts = _schedule(100, 30, 60)
  plan = held_planning.calibrated(cohorts, 100, LIMIT)
  runs = [_run(plan, cohorts, LIMIT, 0.1, seed) for seed in range(5)]
  assert np.mean([refused for _, refused in runs]) > 0.05
  assert all((account.spent <= LIMIT).all() for account, _ in runs)


def test_one_client_alone():
  plan = held_planning.calibrated([[0]] * 5, 1, LIMIT, dropout=0.2)
  assert 0 < plan.weights[0] <= 1 and np.isfinite(plan.noise_multiplier)


@pytest.mark.parametrize(
  'cohorts, limit, dropout',
  [
    ([], LIMIT, 0.0),
    ([[]], LIMIT, 0.0),
    ([[0, 0]], LIMIT, 0.0),
    ([[0], [5]], LIMIT, 0.0),
    ([[0]], 0.0, 0.0),
    ([[0]], -1.0, 0.0),
    ([[0]], np.nan, 0.0),
    ([[0]], LIMIT, 1.0),
    ([[0]], LIMIT, -0.1),
  ],
)
def test_refuses_what_makes_no_sense(cohorts, limit, dropout):
  with pytest.raises(ValueError):
    held_planning.calibrated(cohorts, 3, limit, dropout=dropout)


def test_numbers_of_the_documentation():
  rng = np.random.default_rng(0)
  cohorts, limit = [rng.choice(100, 30, replace=False) for _ in range(60)], privacy_filter.limit_of(3.0, 1e-5)
  plan = held_planning.calibrated(cohorts, 100, limit, decays=(0.7,))
  account, _ = _run(plan, cohorts, limit)
  frequent = np.argsort(-np.bincount(np.concatenate(cohorts)), kind='stable')
  bounds, named = {}, {}
  for k in (1, 5, 10, 20):
    losses = held_noise.mu_against(account, frequent[:k])
    bounds[k] = float(rounding.up_fixed(tradeoff.epsilon_of(held_noise.mu_against_any(account, k).max(), 1e-5), 2))
    named[k] = float(rounding.up_fixed(tradeoff.epsilon_of(losses[np.isfinite(losses)].max(), 1e-5), 2))
  assert bounds == {1: 3.04, 5: 3.2, 10: 3.69, 20: 14.81}
  assert named == {1: 3.03, 5: 3.13, 10: 3.27, 20: 3.56}
