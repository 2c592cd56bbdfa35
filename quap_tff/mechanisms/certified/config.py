"""The certified mechanism with a trusted server, as a value. `rounds.py` has its rounds."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import math
from typing import Optional

import numpy as np

from quap_tff.common import array_types
from quap_tff.common import checks
from quap_tff.common import lazy
from quap_tff.common.numbers import slack as slacks
from quap_tff.mechanisms import mechanism
from quap_tff.mechanisms.certified import guarantee
from quap_tff.mechanisms.certified import weight_rules
from quap_tff.mechanisms.noise import correlation as correlations
from quap_tff.mechanisms.noise import integers
from quap_tff.mechanisms.parts import postprocessing

rounds = lazy.module('quap_tff.mechanisms.certified.rounds')
planning = lazy.module('quap_tff.mechanisms.certified.planning')


@dataclasses.dataclass(frozen=True)
class CertifiedConfig(guarantee.PublicCohortsConfig):
  """The configuration of the certified mechanism with a trusted server, which sees updates and adds the noise.

  Attributes:
    correlation: How the noise of a round takes back noise of earlier rounds, one of
      `quap_tff.mechanisms.noise.correlation.FAMILIES`, but for `HeldNoise`. By default `Ar1`, whose decay
      `settled` chooses.
    weights: The rule for w_i(t), one of `quap_tff.mechanisms.certified.weight_rules.RULES`.
    planned_rounds: int[N], in how many rounds each client is planned to take part, for weight rules with `needs_plan`.
      None: to be counted in a schedule.
    planned_costs: float[N], what weights of 1 in all these rounds would cost in μ² at z = 1. None: equal to
      `planned_rounds`, as under independent noise.
  """

  trust = 'server'

  correlation: correlations.Correlation = correlations.Ar1()
  weights: weight_rules.WeightRule = weight_rules.Online()
  planned_rounds: Optional[tuple[int, ...]] = None
  planned_costs: Optional[tuple[float, ...]] = None

  def __post_init__(self) -> None:
    super().__post_init__()
    if isinstance(self.correlation, correlations.HeldNoise):
      raise ValueError(
        'Noise that clients hold is for a server that nobody trusts: quap_tff.HeldConfig. A trusted server adds '
        'independent, ar1, banded or blt noise.'
      )
    if not isinstance(self.weights, weight_rules.WeightRule):
      raise TypeError(f'weights must be a rule of quap_tff.mechanisms.certified.weight_rules, found {self.weights!r}.')
    name = type(self.weights).__name__
    if self.own_epsilon is None and self.weights.needs_own_bounds:
      raise ValueError(
        f'Weight rule {name} follows bounds that clients have chosen, and everyone has epsilon. Give own_epsilon, or '
        'choose another weight rule.'
      )
    if self.own_epsilon is not None and self.weights.takes_worst_case:
      raise ValueError(
        f'Weight rule {name} has one worst case for all clients, but own_epsilon gives each a bound of its own. '
        'Choose another weight rule, such as scale or online.'
      )
    if self.spent_before is not None and self.weights.takes_worst_case:
      raise ValueError(
        f'Weight rule {name} has one worst case for all clients, but by spent_before each has something else left. '
        'Choose another weight rule, such as uniform or online.'
      )
    self._check_planned()

  def _check_planned(self) -> None:
    if self.planned_rounds is None:
      if self.planned_costs is not None:
        raise ValueError('planned_costs are those of planned_rounds. Give both, or neither.')
      return
    planned = np.asarray(self.planned_rounds)
    if planned.shape != (self.num_clients,) or not np.issubdtype(planned.dtype, np.integer) or (planned < 0).any():
      raise ValueError(
        f'planned_rounds must be int[{self.num_clients}], at least 0 for each client, found '
        f'{planned.dtype}{list(planned.shape)}.'
      )
    object.__setattr__(self, 'planned_rounds', tuple(planned.tolist()))
    if self.planned_costs is not None:
      costs = np.asarray(self.planned_costs, np.float64)
      if costs.shape != planned.shape or not (costs >= planned).all() or not np.isfinite(costs).all():
        raise ValueError(f"planned_costs must be float[{self.num_clients}], each at least the client's planned_rounds.")
      object.__setattr__(self, 'planned_costs', tuple(costs.tolist()))

  def to_mechanism(self) -> Certified:
    return Certified(self)

  def settled(
    self,
    cohorts: Sequence[array_types.Ids],
    averaging: postprocessing.Averaging = postprocessing.LastIterate(),
    min_separation: Optional[int] = None,
  ) -> guarantee.Settled:
    return planning.calibrated(self, cohorts, averaging, min_separation)

  def rounds_left(self, round_num: array_types.Numbers) -> array_types.Numbers:
    """T - t, the planned rounds after round t; +inf if no number of rounds is planned."""
    return math.inf if self.num_rounds is None else self.num_rounds - round_num


@dataclasses.dataclass(frozen=True)
class Certified(guarantee.PublicCohorts):
  """The certified mechanism with a trusted server. `CertifiedConfig.settled` makes it.

  Attributes:
    config: The configuration, in which nothing is left open.
  """

  config: CertifiedConfig = dataclasses.field(metadata={checks.KEYS_IN_PLACE: True})

  def __post_init__(self) -> None:
    super().__post_init__()
    config = self.config
    if config.correlation.num_buffers and config.noise_scale(1) != config.noise_scale(config.num_rounds or 1):
      raise ValueError('Under correlated noise all rounds have one scale of noise. Give correlation=Independent().')
    if config.weights.needs_rounds and config.num_rounds is None:
      raise ValueError(
        f'Weight rule {type(config.weights).__name__} spreads what is left of a budget over the remaining '
        'rounds. Give num_rounds, the number of planned rounds.'
      )
    if config.weights.needs_plan and config.planned_rounds is None:
      raise ValueError(
        f'Weight rule {type(config.weights).__name__} needs a public schedule. Give planned_rounds: the number '
        f'of rounds in which each of the {config.num_clients} clients is planned to take part.'
      )

  def simulated(
    self, cohorts: Sequence[array_types.Ids], kept: Sequence[Optional[np.ndarray]] = ()
  ) -> list[guarantee.PlannedRound]:
    return planning.simulated(self, cohorts, kept)

  def _grid(self, num_weights: int) -> integers.Grid:
    return integers.Grid(self.noise_multiplier, num_weights, self.config.correlation, self.config.num_rounds)

  def slack(self, num_weights: int) -> slacks.Slack:
    grid, config = self.grid(num_weights), self.config
    draws = [(grid.stddev, num_weights * config.most_releases)]
    if config.counts_norms:
      draws.append((integers.count_steps(self.clip.count_noise_multiplier / 2), config.most_releases))
    largest = max(config.epsilon, slacks.LARGEST_EPSILON)
    return self._with_slack_before(grid.slack(config.smallest_epsilon, largest, config.delta, draws))

  def check_before_training(self) -> None:
    rounds.check_weights(self)

  def for_model(
    self, specs: mechanism.Specs, layers: mechanism.Layers, learning_rate_fn: mechanism.LearningRateFn = None
  ) -> mechanism.Rounds:
    return rounds.CertifiedRounds(self, specs, layers)
