"""Which noise cohorts need: for each mechanism, before anything is trained, from who comes alone.

For known cohorts no Gaussian mechanism has a signal-to-noise ratio above Σ_i μ_max, the ceiling (`planning`). Each row
says which share of it a mechanism reaches in the last model, so the rows answer three questions: how much noise is
needed, which mechanism makes most of it, and what it costs not to trust the server.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import math
from typing import NamedTuple

import numpy as np

from quap_tff.common.numbers import tradeoff
from quap_tff.mechanisms import mechanism
from quap_tff.mechanisms.certified import config as certified_config
from quap_tff.mechanisms.certified import guarantee
from quap_tff.mechanisms.certified import planning
from quap_tff.mechanisms.certified import spending
from quap_tff.mechanisms.certified import weight_rules
from quap_tff.mechanisms.held import config as held_config
from quap_tff.mechanisms.noise import correlation as correlations
from quap_tff.mechanisms.parts import clip_rules

# The families that a trusted server can use, with open numbers.
_FAMILIES = (correlations.Independent(), correlations.Ar1(), correlations.Banded(), correlations.Blt())
# Shares of the noise that everybody needs, for `ends`.
SHARES = (1.0, 0.9, 0.75, 0.5, 0.25)


class Choice(NamedTuple):
  """A mechanism for these cohorts.

  Attributes:
    correlation: Of the noise, with its numbers.
    trust: 'server', or 'secure_sum' for noise that clients hold.
    is_planned: Whether a plan chose noise and weights, with the filter. If not, everybody has the weight 1 in each of
      its rounds, and the noise is the least with which nobody passes ε.
    noise_multiplier: z, or s of one client's noise.
    share: Of the ceiling, in [0, 1].
    ended: How many clients have no weight any more in some of their rounds.
  """

  correlation: correlations.Correlation
  trust: str
  is_planned: bool
  noise_multiplier: float
  share: float
  ended: int


class Ends(NamedTuple):
  """Budgets under a noise that is smaller than everybody needs, at weights of 1 as long as they last.

  Attributes:
    noise_multiplier: z.
    ended: How many clients have no weight any more in some of their rounds.
    first_round: The first round in which a client has none, counted from 1; 0 if all budgets last.
    median_round: The median of the clients' first such rounds; 0 if all budgets last.
  """

  noise_multiplier: float
  ended: int
  first_round: int
  median_round: int


def least_noise(
  cohorts: Sequence[np.ndarray], num_clients: int, epsilon: float, delta: float, correlation: correlations.Correlation
) -> float:
  """The least z at which nobody passes ε at δ, if all have the weight 1 in all of their rounds; rounded up.

  Args:
    cohorts: int[M_t], ids in [0, N), of each round. A round without clients releases nothing.
    num_clients: N.
    epsilon: ε > 0.
    delta: The total δ.
    correlation: Of the noise, with all its numbers.

  Raises:
    ValueError: If nobody takes part, or ε or δ is out of range.
  """

  def spent(z: float) -> float:
    records = [mechanism.RoundRecord(ids, None, np.ones(len(ids)), z) for ids in cohorts]
    return spending.spending(records, correlation, num_clients).mu_squared.max(initial=0.0)

  at_one = spent(1.0)
  if not at_one:
    raise ValueError('Nobody takes part, so there is no noise to choose.')
  multiplier = math.sqrt(at_one) / tradeoff.mu_at_most(epsilon, delta)
  while tradeoff.epsilon_of(math.sqrt(spent(multiplier)), delta) > epsilon:
    multiplier *= 1 + 2.0**-36
  return multiplier


def choices(cohorts: Sequence[np.ndarray], num_clients: int, epsilon: float, delta: float) -> Iterator[Choice]:
  """Every mechanism, with the least noise for all and as it would be planned. Arguments are those of `least_noise`."""
  releases = [ids for ids in cohorts if len(ids)]
  bounds = planning.participation_bounds(releases, num_clients)
  ceiling = len(np.unique(np.concatenate(releases))) * tradeoff.mu_at_most(epsilon, delta)
  signal = sum(map(len, releases))

  def for_all(correlation: correlations.Correlation) -> Choice:
    z = least_noise(releases, num_clients, epsilon, delta, correlation)
    noise = math.sqrt(correlation.covariance(releases, [z] * len(releases)).sum())
    return Choice(correlation, 'server', False, z, signal / noise / ceiling, 0)

  for family in _FAMILIES:
    if isinstance(family, correlations.Banded) and family.bands > len(releases):
      continue
    yield max((for_all(one) for one in family.candidates(len(releases), *bounds)), key=lambda one: one.share)
    config = certified_config.CertifiedConfig(
      num_clients, epsilon, delta, correlation=family, weights=weight_rules.Online()
    )
    yield _planned(config.settled(releases), releases)
  yield _planned(held_config.HeldConfig(num_clients, epsilon, delta).settled(releases), releases)


def _planned(planned: guarantee.Settled, releases: Sequence[np.ndarray]) -> Choice:
  mechanism, config = planned.mechanism, planned.mechanism.config
  ended = np.zeros(config.num_clients, bool)
  for ids, one in zip(releases, mechanism.simulated(releases)):
    ended[ids] |= one.weights == 0
  share = planning.share_of_ceiling(planned, releases)
  return Choice(config.correlation, config.trust, True, mechanism.noise_multiplier, share, int(ended.sum()))


def ends(
  cohorts: Sequence[np.ndarray], num_clients: int, epsilon: float, delta: float, correlation: correlations.Correlation
) -> Iterator[Ends]:
  """When budgets end under less noise than everybody needs. Arguments are those of `least_noise`."""
  needed = least_noise(cohorts, num_clients, epsilon, delta, correlation)
  for share in SHARES:
    # A filter keeps a part of ε and δ for rounding: with just what is needed, it would lower the last weights.
    z = needed * share if share < 1 else needed * (1 + 2.0**-8)
    config = certified_config.CertifiedConfig(
      num_clients,
      *(epsilon, delta, z),
      correlation=correlation,
      divisor=1.0,
      num_rounds=len(cohorts),
      weights=weight_rules.UniformWeights(),
      clip=clip_rules.Fixed(1.0),
    )
    first = np.zeros(num_clients, np.int64)
    for number, (ids, one) in enumerate(zip(cohorts, certified_config.Certified(config).simulated(cohorts)), 1):
      none = ids[one.weights == 0]
      first[none[first[none] == 0]] = number
    ended = first[first > 0]
    first_round, median_round = (int(ended.min()), int(np.median(ended))) if len(ended) else (0, 0)
    yield Ends(z, len(ended), first_round, median_round)
