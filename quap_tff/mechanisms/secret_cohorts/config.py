"""The certified mechanism whose cohorts are drawn by secret coins, as a value. `rounds.py` has its rounds.

In each of T rounds, client i is drawn by a secret coin of public rate q_i. Its weight w_i and the noise are public
constants, and nothing that leaves the server follows from who was drawn, except for the noised sum. So each client has
an account of its own, by its own rate (docs/proofs.md, theorem 6).
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import functools
import math
from typing import Any, Optional, Union

import numpy as np

from quap_tff.common import array_types
from quap_tff.common import checks
from quap_tff.common import lazy
from quap_tff.common.numbers import slack as slacks
from quap_tff.mechanisms import mechanism
from quap_tff.mechanisms.certified import guarantee
from quap_tff.mechanisms.noise import correlation as correlations
from quap_tff.mechanisms.noise import integers
from quap_tff.mechanisms.parts import postprocessing

rounds = lazy.module('quap_tff.mechanisms.secret_cohorts.rounds')

# The grid follows the smallest weight, so that rounding costs a client of this weight no more than others. Below the
# second number it does not: such a client loses more by rounding, and others lose no memory.
_LEAST_GRID_WEIGHT = 1 / 64
_NOT_COUNTED = 'the account of secret cohorts does not cover it'


@dataclasses.dataclass(frozen=True)
class SecretCohortsConfig(guarantee.GuaranteeConfig):
  """What is asked of the certified mechanism whose cohorts are drawn by secret coins, with a trusted server.

  Attributes:
    rates: float[N] in (0, 1], q_i: the rate of each client's coin. They are public and follow from no client's data.
    planned_weights: float[N] in (0, 1], w_i: a client's part of the sum has norm at most w_i·C. None: to be chosen
      from the rates, as `plans.accounts.secret_coins` does.
    clip: C_t, see `GuaranteeConfig`. A private quantile divides its counts by Σ q_i. While `planned_weights` are to be
      chosen, it is the norm to which a client of mean weight is clipped.
  """

  trust = 'server'

  rates: tuple[float, ...] = dataclasses.field(kw_only=True)
  planned_weights: Optional[tuple[float, ...]] = None

  def __post_init__(self) -> None:
    super().__post_init__()
    rates = checks.numbers_of_clients('rates', self.rates, self.num_clients)
    bad = np.flatnonzero(~((rates > 0) & (rates <= 1)))
    if len(bad):
      raise ValueError(
        f'Each client needs a rate above 0 and at most 1, found {rates[bad[0]]:g} for client {bad[0]}. Leave out '
        'clients that never come.'
      )
    object.__setattr__(self, 'rates', tuple(rates.tolist()))
    if self.planned_weights is not None:
      weights = checks.numbers_of_clients('planned_weights', self.planned_weights, self.num_clients)
      if not ((weights > 0) & (weights <= 1)).all():
        raise ValueError(f'planned_weights must be float[{self.num_clients}] in (0, 1].')
      object.__setattr__(self, 'planned_weights', tuple(weights.tolist()))
    if self.spent_before is not None:
      raise ValueError(
        'spent_before cannot be counted by a run with secret cohorts: earlier runs have an account of μ², and this one '
        'has one of privacy loss distributions. Leave it out, or plan with public cohorts.'
      )

  @property
  def correlation(self) -> correlations.Correlation:
    """Independent: no other noise has a proof for secret coins."""
    return correlations.Independent()

  @property
  def limit(self) -> Union[float, np.ndarray]:
    """float64[N], T·(w_i²/z² + 1/c²), the μ² of a client in every round: it is left if coins become known."""
    weights = np.asarray(self.planned_weights, np.float64)
    assert self.noise_multiplier is not None and self.num_rounds is not None
    return self.num_rounds * (np.square(weights / self.noise_multiplier) + self.count_cost)

  @property
  def own_multipliers(self) -> np.ndarray:
    """See `SecretCohorts.own_multipliers`."""
    assert self.noise_multiplier is not None and self.clip is not None
    of_sums = self.noise_multiplier / np.asarray(self.planned_weights, np.float64)
    return of_sums / np.sqrt(1 + np.square(of_sums / self.clip.count_noise_multiplier))

  @property
  def facts(self) -> mechanism.Facts:
    return super().facts._replace(
      # Everything that follows from who was drawn stays at the server.
      public_metrics=mechanism.PUBLIC_NORMS | {'noise_multiplier', 'update_rejected'},
      noise_follows='nothing',
      noises_empty_rounds=True,
      needs_secret_cohorts=True,
      unsparse=_NOT_COUNTED,
      game='',
      unexported='a program that plays it would see the cohorts, which must stay secret. Play it by a quap_tff.Server',
      unaudited='canaries are scored by the rounds that they are in, and these must stay secret',
    )

  def settled(
    self,
    cohorts: Sequence[array_types.Ids],
    averaging: postprocessing.Averaging = postprocessing.LastIterate(),
    min_separation: Optional[int] = None,
  ) -> guarantee.Settled:
    """Only an average is chosen here: all else follows from the rates. Cohorts and separations play no part."""
    mechanism_ = self.to_mechanism()

    def ratio(average: postprocessing.Averaging) -> float:
      """The signal-to-noise ratio of an average of T rounds with equal sums and independent noise, up to a constant."""
      kept = postprocessing.kept_shares(average.shares(mechanism_.num_rounds))
      return float(kept.sum() / np.linalg.norm(kept))

    return guarantee.Settled(mechanism_, max(averaging.candidates(mechanism_.num_rounds), key=ratio))

  def to_mechanism(self) -> SecretCohorts:
    return SecretCohorts(self)


@dataclasses.dataclass(frozen=True)
class SecretCohorts(guarantee.Guarantee):
  """The certified mechanism whose cohorts are drawn by secret coins.

  Attributes:
    config: The configuration, in which nothing is left open.
  """

  config: SecretCohortsConfig = dataclasses.field(metadata={checks.KEYS_IN_PLACE: True})
  needed = ('noise_multiplier', 'divisor', 'num_rounds', 'planned_weights')

  @property
  def num_rounds(self) -> int:
    """T."""
    assert self.config.num_rounds is not None
    return self.config.num_rounds

  @functools.cached_property
  def rates(self) -> np.ndarray:
    """float64[N], q_i."""
    return np.asarray(self.config.rates, np.float64)

  @functools.cached_property
  def planned_weights(self) -> np.ndarray:
    """float32[N], w_i."""
    return np.asarray(self.config.planned_weights, np.float32)

  @property
  def mean_cohort_size(self) -> float:
    """Σ q_i, by which counts are divided."""
    return math.fsum(self.config.rates)

  @property
  def own_multipliers(self) -> np.ndarray:
    """float64[N], 1/√(w_i²/z² + 1/c²): the noise multiplier of each client's account (theorem 6)."""
    return self.config.own_multipliers

  def simulated(
    self, cohorts: Sequence[array_types.Ids], kept: Sequence[Optional[np.ndarray]] = ()
  ) -> list[guarantee.PlannedRound]:
    """Each client has its own weight in every round. No filter follows who came."""
    del kept
    return [guarantee.PlannedRound(self.planned_weights[np.asarray(ids, np.int64)], 1.0) for ids in cohorts]

  def seen(self, state: mechanism.State) -> dict[str, Any]:
    return {}

  def spent(self, state: mechanism.State, metrics: mechanism.Measurements, cohort: np.ndarray) -> mechanism.RoundRecord:
    """A round that names nobody: its cost follows from public constants alone, and who came must stay secret."""
    return self._record(float(metrics['clipping_norm']))

  def planned(self, cohorts: Sequence[np.ndarray]) -> list[mechanism.RoundRecord]:
    return [self._record(float(np.float32(self.clip.initial_norm)))] * len(cohorts)

  def _record(self, clipping_norm: float) -> mechanism.RoundRecord:
    nobody = np.zeros(0)
    return mechanism.RoundRecord(
      cohort=nobody.astype(np.int64),
      budgets=nobody,
      weights=nobody,
      noise_multiplier=self.noise_multiplier,
      clipping_norm=clipping_norm,
      released=True,
    )

  def _grid(self, num_weights: int) -> integers.Grid:
    least = max(float(self.planned_weights.min()), _LEAST_GRID_WEIGHT)
    return integers.Grid(self.noise_multiplier, num_weights, least_weight=least)

  def slack(self, num_weights: int) -> slacks.Slack:
    grid, config = self.grid(num_weights), self.config
    draws = [(grid.stddev, num_weights * config.most_releases)]
    if config.counts_norms:
      draws.append((integers.count_steps(self.clip.count_noise_multiplier / 2), config.most_releases))
    largest = max(config.epsilon, slacks.LARGEST_EPSILON)
    return grid.slack(config.smallest_epsilon, largest, config.delta, draws)

  def for_model(
    self, specs: mechanism.Specs, layers: mechanism.Layers, learning_rate_fn: mechanism.LearningRateFn = None
  ) -> mechanism.Rounds:
    return rounds.SecretRounds(self, specs, layers)
