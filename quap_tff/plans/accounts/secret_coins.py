"""The constants and the account of a certified run with secret cohorts, from public rates alone (theorem 6)."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from quap_tff import accounting
from quap_tff.accounting import accountants
from quap_tff.accounting import log_report
from quap_tff.accounting import own_rates
from quap_tff.common.numbers import rounding
from quap_tff.common.numbers import slack as slacks
from quap_tff.common.numbers import tradeoff
from quap_tff.mechanisms.certified import guarantee
from quap_tff.mechanisms.noise import integers
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.parts import postprocessing
from quap_tff.mechanisms.secret_cohorts import config as configs

# The noise is the largest with which this share of the best signal-to-noise ratio is left. More noise means larger
# weights, so that one client that rarely comes does not make everyone else's weight small.
_KEPT = 0.98
_CANDIDATES = 1000
# By which share a weight is lowered first where the accountant's grid gives slightly more than ε.
_LOWER = 1e-6


def settled(
  config: configs.SecretCohortsConfig, averaging: postprocessing.Averaging = postprocessing.LastIterate()
) -> guarantee.Settled:
  """The mechanism: z, weights, C and D are chosen here, where they are not given, and from public rates alone.

  Rates are rounded up to a few values, which are those of the coins. w_i = min(1, z·√(1/σ(q_i)² - 1/c²)), where σ(q_i)
  is the least noise multiplier at which T rounds of rate q_i spend the client's ε, and c is that of noised counts, or
  +inf. So each client spends its own ε, whatever its rate is. C is divided by the mean weight, and D = Σ q_i: a client
  of mean weight is clipped to the given norm, and the mean of clipped updates moves the model as without weights.

  Raises:
    ValueError: If the number of rounds is not given, no noise is enough, or counts alone spend a client's ε.
  """
  if config.num_rounds is None:
    raise ValueError('A run with secret cohorts needs num_rounds, T: its account is for all planned rounds.')
  if config.planned_weights is None:
    config = _with_weights(config.clipped(config.num_rounds))
  if config.divisor is None:
    config = dataclasses.replace(config, divisor=math.fsum(config.rates))
  return config.settled((), averaging)


def _with_weights(config: configs.SecretCohortsConfig) -> configs.SecretCohortsConfig:
  assert config.num_rounds is not None and config.clip is not None
  rates, bounds = own_rates.accounted_rates(np.asarray(config.rates)), _bounds(config)
  # A part of ε and δ is for what rounding costs.
  kept = 1 - integers.RESERVE
  least = np.zeros(config.num_clients)
  for bound in np.unique(bounds).tolist():
    own = bounds == bound
    least[own] = own_rates.least_noise(rates[own], config.num_rounds, bound * kept, config.delta * kept)
  least = _with_counts(rates, least, config.clip.count_noise_multiplier)
  multiplier = config.noise_multiplier
  if multiplier is None:
    multiplier = _noise_multiplier(rates, least)
  ideal = np.minimum(1.0, multiplier / least)
  weights = ideal.astype(np.float32)
  weights = np.where(weights > ideal, np.nextafter(weights, np.float32(0)), weights)
  lower = _LOWER
  while True:
    weighted = dataclasses.replace(
      config, noise_multiplier=multiplier, rates=tuple(rates.tolist()), planned_weights=tuple(weights.tolist())
    )
    spent = own_rates.epsilons(rates, weighted.own_multipliers, config.num_rounds, config.delta * kept)
    is_over = spent > bounds * kept
    if not is_over.any():
      break
    weights = np.where(is_over, weights * np.float32(1 - lower), weights)
    lower = min(2 * lower, 0.5)
  mean_weight = float(rates @ weights / rates.sum())
  return dataclasses.replace(weighted, clip=_divided(config.clip, mean_weight))


def _with_counts(rates: np.ndarray, least: np.ndarray, count_noise: float) -> np.ndarray:
  """1/√(1/σ(q_i)² - 1/c²), float64[N]: the least noise of the sums where each round also releases a noised count."""
  largest = int(np.argmax(least))
  if not least[largest] < count_noise:
    raise ValueError(
      f'The noised counts alone spend more than the ε of client {largest}, which comes at {rates[largest]:g}. Give '
      f'count_stddev far above {rounding.up(least[largest] / 2)}, or use a fixed clipping norm.'
    )
  return least / np.sqrt(1 - np.square(least / count_noise))


def _divided(clip: clip_rules.ClipRule, weight: float) -> clip_rules.ClipRule:
  norm = clip.initial_norm / weight
  if isinstance(clip, clip_rules.PrivateQuantile):
    return dataclasses.replace(clip, initial_clip=norm)
  return clip_rules.Fixed(norm)


def _noise_multiplier(rates: np.ndarray, least: np.ndarray) -> float:
  """The largest z with which `_KEPT` of the best signal-to-noise ratio Σ q_i·min(1/z, 1/σ_i) is left."""
  candidates = np.geomspace(least.min(), least.max(), _CANDIDATES)
  # The ends are exact, so that equal rates give weights of 1.
  candidates[0], candidates[-1] = least.min(), least.max()
  distinct, index = np.unique(least, return_inverse=True)
  signals = np.bincount(index, rates)
  ratios = (signals / np.maximum(candidates[:, np.newaxis], distinct)).sum(axis=1)
  return float(candidates[ratios >= _KEPT * ratios[0]].max())


def _bounds(config: configs.SecretCohortsConfig) -> np.ndarray:
  """float64[N], the ε that each client may spend."""
  return np.array(config.own_epsilon or [config.epsilon] * config.num_clients, np.float64)


def epsilons(mechanism: configs.SecretCohorts, slack: slacks.Slack) -> np.ndarray:
  """ε_i of each client over the T planned rounds, float64[N], with what rounding costs."""
  of = mechanism.rates, mechanism.own_multipliers, mechanism.num_rounds
  return own_rates.epsilons(*of, mechanism.config.delta - slack.delta) + slack.epsilon


def clients_text(mechanism: configs.SecretCohorts, slack: slacks.Slack) -> str:
  """clients.csv: the rate, the weight and the ε of each client. Nothing in it follows from who came."""
  return log_report.csv_text(
    {
      'client': range(mechanism.num_clients),
      'rate': mechanism.rates.tolist(),
      'weight': mechanism.planned_weights.astype(np.float64).tolist(),
      'formal_epsilon': log_report.rounded_up(epsilons(mechanism, slack)),
    }
  )


def epsilon_if_known(mechanism: configs.SecretCohorts, slack: slacks.Slack) -> float:
  """The largest ε of a client that is drawn in every round, if coins become known (theorem 1)."""
  return float(np.max(slack.of(np.sqrt(mechanism.limit), mechanism.config.delta)))


def share_of_ceiling(mechanism: configs.SecretCohorts) -> float:
  """See `own_rates.share_of_ceiling`. The ceiling is that of mechanisms with known cohorts and the same bounds."""
  bounds = _bounds(mechanism.config)
  mu = np.array([tradeoff.mu_at_most(bound, mechanism.config.delta) for bound in np.unique(bounds).tolist()])
  mean_mu = float(np.mean(mu[np.unique(bounds, return_inverse=True)[1]]))
  weights = mechanism.planned_weights.astype(np.float64)
  return own_rates.share_of_ceiling(mechanism.rates, weights, mechanism.noise_multiplier, mechanism.num_rounds, mean_mu)


def report(
  mechanism: configs.SecretCohorts, protection: accounting.Protection, slack: slacks.Slack
) -> accounting.FormalReport:
  """The formal figures of a run. They are those of all planned rounds, wherever it ends, and follow from no cohort."""
  epsilon, delta = epsilons(mechanism, slack), mechanism.config.delta
  rates = np.unique(mechanism.rates)
  shown = f'{rates[0]:g}' if len(rates) == 1 else f'{rates[0]:g} to {rates[-1]:g}'
  history = accounting.History.gaussian(mechanism.noise_multiplier, mechanism.num_rounds, float(rates[0]))
  largest = float(epsilon.max())
  figure = accounting.FormalFigure(
    accountants.default_name(history, delta),
    accounting.ADD_OR_REMOVE,
    f'Poisson sampling, q = {shown}, each client by its own rate; assumes that cohorts, their sizes and their coins '
    'stay secret',
    largest,
    # The mean of equal numbers can round to a value above them.
    min(float(epsilon.mean()), largest),
    float(np.median(epsilon)),
  )
  known = rounding.up(epsilon_if_known(mechanism, slack))
  note = (
    'Cohorts secret: the figures assume that nobody learns who came. If that became known, a client in every round '
    f'would have ε = {known} (zero-out).'
  )
  covers, statement = protection.covers, protection.statement
  return accounting.FormalReport(covers, statement, delta, accounting.UNIT, (figure,), (note,), epsilon)
