"""Tests of `quap_tff.mechanisms.held.config`: plans spend limits and do not exceed them, and dropout has room."""

import dataclasses

import numpy as np
import pytest

from quap_tff.common.numbers import rounding
from quap_tff.common.numbers import tradeoff
from quap_tff.mechanisms.noise import correlation
from quap_tff.mechanisms.noise import held_noise
from quap_tff.mechanisms.noise import integers
from quap_tff.mechanisms.parts import postprocessing
from tests.quap_tff import examples


def _schedule(num_clients=40, size=12, num_rounds=30, seed=0):
  rng = np.random.default_rng(seed)
  return [rng.choice(num_clients, size, replace=False) for _ in range(num_rounds)]


def _planned(cohorts, num_clients=40, averaging=postprocessing.PlannedAverage(), decay=None, **changes):
  """The configuration for a schedule, and the average that was chosen."""
  config = examples.held(num_clients=num_clients, correlation=correlation.HeldNoise(decay), **changes)
  return config.settled(cohorts, averaging)


def _run(config, cohorts, dropout=0.0, seed=0):
  """The account after a run, and the share of its rounds that the filter refused."""
  rng, refused, weights = np.random.default_rng(seed), 0, np.array(config.planned_weights)
  account = held_noise.opened(config.num_clients, config.noise_multiplier, config.config.correlation.decay)
  for cohort in cohorts:
    came = cohort[rng.random(len(cohort)) >= dropout]
    after = account.after(came, weights[came])
    refused += not after.is_within(config.prices.limit)
    account = after if after.is_within(config.prices.limit) else account
  return account, refused / len(cohorts)


@pytest.mark.parametrize('decay', [0.0, 0.7, 0.97, None])
def test_everyone_spends_the_limit_and_no_more(decay):
  cohorts = _schedule()
  config, _ = _planned(cohorts, decay=decay)
  account, refused = _run(config, cohorts)
  assert refused == 0
  np.testing.assert_allclose(account.spent, config.prices.limit, rtol=1e-6)
  assert (account.spent <= config.prices.limit).all()
  weights = np.array(config.planned_weights)
  assert weights.max() == pytest.approx(1.0) and weights.max() <= 1
  assert config.divisor == pytest.approx(np.mean([weights[cohort].sum() for cohort in cohorts]))


@pytest.mark.slow
def test_limits_of_clients():
  cohorts = _schedule(num_clients=12, size=5, num_rounds=12)
  config, _ = _planned(cohorts, 12, decay=0.7, own_epsilon=tuple(np.linspace(0.5, 3.0, 12)))
  account, _ = _run(config, cohorts)
  np.testing.assert_allclose(account.spent, config.prices.limit, rtol=1e-6)
  assert (account.spent <= config.prices.limit).all()


def test_who_is_in_no_round_and_rounds_with_nobody():
  cohorts = [*_schedule(), np.zeros(0, np.int64)]
  config, _ = _planned(cohorts, 42)
  account, _ = _run(config, cohorts)
  assert not any(config.planned_weights[40:]) and (account.spent[40:] == 0).all()
  np.testing.assert_allclose(account.spent[:40], config.prices.limit, rtol=1e-6)


def test_the_best_ratio_of_signal_to_noise_is_chosen():
  cohorts, averaging = _schedule(), postprocessing.Tail(16)

  def ratio(planned):
    (config, average), kept = planned, postprocessing.kept_shares(planned.averaging.shares(30))
    signal = sum(share * np.array(config.planned_weights)[cohort].sum() for share, cohort in zip(kept, cohorts))
    covariance = config.config.correlation.covariance(cohorts, [config.noise_multiplier])
    assert average == planned.averaging
    return signal / np.sqrt(kept @ covariance @ kept)

  found = {decay: ratio(_planned(cohorts, averaging=averaging, decay=decay)) for decay in correlation.DECAYS}
  best = _planned(cohorts, averaging=averaging)
  assert ratio(best) == max(found.values()) > 1.1 * found[0.0]
  assert 0 < best.mechanism.config.correlation.decay < 0.97
  chosen = _planned(cohorts)
  assert ratio(chosen) >= ratio(best) and chosen.averaging in postprocessing.PlannedAverage().candidates(30)


@pytest.mark.slow
@pytest.mark.parametrize(
  'size, dropout', [(30, 0.3), *(pytest.param(size, 0.1, marks=pytest.mark.thorough) for size in (12, 30))]
)
def test_with_room_for_dropout_few_rounds_are_refused(size, dropout):
  cohorts = _schedule(100, size, 60)
  config, _ = _planned(cohorts, 100, dropout=dropout)
  runs = [_run(config, cohorts, dropout, seed) for seed in range(20)]
  assert np.mean([refused for _, refused in runs]) < 0.01
  assert all((account.spent <= config.prices.limit).all() for account, _ in runs)
  assert np.median([account.spent.max() for account, _ in runs]) > 0.8 * config.prices.limit


def test_without_room_for_dropout_many_rounds_are_refused():
  cohorts = _schedule(100, 30, 60)
  config, _ = _planned(cohorts, 100)
  runs = [_run(config, cohorts, 0.1, seed) for seed in range(5)]
  assert np.mean([refused for _, refused in runs]) > 0.05
  assert all((account.spent <= config.prices.limit).all() for account, _ in runs)


def test_a_given_divisor_is_kept():
  (free, _), (given, _) = _planned(_schedule()), _planned(_schedule(), divisor=3.0)
  assert given == dataclasses.replace(free.config, divisor=3.0).to_mechanism() != free


def test_one_client_alone():
  config, _ = _planned([[0]] * 5, 1, dropout=0.2)
  assert 0 < config.planned_weights[0] <= 1 and np.isfinite(config.noise_multiplier)


@pytest.mark.parametrize(
  'cohorts, changes, words',
  [
    ([], {}, 'No client that takes part'),
    ([[]], {}, 'No client that takes part'),
    ([[0, 0]], {}, 'twice in one round'),
    ([[0], [5]], {}, r'ids in \[0, 3\), found 5'),
    ([[0]], dict(dropout=1.0), 'dropout'),
    ([[0]], dict(dropout=-0.1), 'dropout'),
  ],
)
def test_refuses_what_makes_no_sense(cohorts, changes, words):
  with pytest.raises(ValueError, match=words):
    _planned(cohorts, 3, **changes)


@pytest.mark.slow
def test_numbers_of_the_documentation():
  cohorts = _schedule(100, 30, 60)
  kept = 1 - integers.RESERVE  # All of (3, 1e-5) is for the noise, and nothing for what rounding costs.
  account, _ = _run(_planned(cohorts, 100, decay=0.7, epsilon=3.0 / kept, delta=1e-5 / kept).mechanism, cohorts)
  frequent = np.argsort(-np.bincount(np.concatenate(cohorts)), kind='stable')
  bounds, named = {}, {}
  for k in (1, 5, 10, 20):
    losses = held_noise.mu_against(account, frequent[:k])
    bounds[k] = float(rounding.up_fixed(tradeoff.epsilon_of(held_noise.mu_against_any(account, k).max(), 1e-5), 2))
    named[k] = float(rounding.up_fixed(tradeoff.epsilon_of(losses[np.isfinite(losses)].max(), 1e-5), 2))
  assert bounds == {1: 3.04, 5: 3.2, 10: 3.69, 20: 14.81}
  assert named == {1: 3.03, 5: 3.13, 10: 3.27, 20: 3.56}
