"""The certified mechanism as a value: clipping, weights, noise and account. `certified.py` has its rounds."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import math
from typing import Any, Optional

import numpy as np

from quap_tff.common import checks
from quap_tff.common import lazy
from quap_tff.common import registry
from quap_tff.common.numbers import slack as slacks
from quap_tff.common.numbers import tradeoff
from quap_tff.mechanisms import mechanism
from quap_tff.mechanisms.certified import clip_split as clip_splits
from quap_tff.mechanisms.certified import privacy_filter
from quap_tff.mechanisms.certified import weight_rules
from quap_tff.mechanisms.noise import correlation as correlations
from quap_tff.mechanisms.noise import held_noise
from quap_tff.mechanisms.noise import integers
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.parts import participation as participations

certified = lazy.module('quap_tff.mechanisms.certified.rounds')
held = lazy.module('quap_tff.mechanisms.certified.held_rounds')
planning = lazy.module('quap_tff.mechanisms.certified.planning')

# Up to this norm float32 does not overflow, whatever the noise multiplier and the weight.
LARGEST_CLIP = 1e20
# The least standard deviation of a client's noise in grid steps: this, and so many for each root of a draw. What its
# discreteness costs is the number of draws over the square of the steps.
_SHARE_STEPS, _SHARE_STEPS_BY_DRAW = 2.0**20, 16.0
# The variance of a client's noise in one release, per s²: at least (1-λ)² + λ.
_LEAST_SHARE = 0.75
# The ledger takes no budget of 0, which is what a client of weight 0 has spent.
_NOTHING = float(np.finfo(np.float64).tiny)
SMALLEST_MULTIPLIER, LARGEST_MULTIPLIER = 1e-3, 1e9
TRUSTS = ('server', 'secure_sum')
_PUBLIC_METRICS = {'exhausted_clients', 'weight_mean', 'weight_min', 'spent_max'}
# How many rounds the account of rounding covers if their number is not planned.
_OPEN_ENDED = 10**6


@dataclasses.dataclass(frozen=True)
class CertifiedConfig(mechanism.Mechanism):
  """The mechanism adds the clients' clipped updates and noise, and divides the sum by D.

  Client i's clipped update has norm at most w_i(t)·C_t. Every constant here is public. It must be chosen without a look
  at clients' data. Otherwise it is itself a release, which no account covers.

  Attributes:
    num_clients: N, the population. Client ids are integers in [0, N).
    epsilon: ε > 0, in nats. No client exceeds it over the whole run.
    delta: The total δ, in (0, 1), at which ε holds.
    noise_multiplier: z: the standard deviation of the noise that each round draws, divided by C_t. None: to be chosen
      from a schedule, by `quap_tff.mechanisms.certified.planning.calibrated`.
    correlation: How the noise of a round takes back noise of earlier rounds, one of
      `quap_tff.mechanisms.noise.correlation.FAMILIES`.
    divisor: D > 0. The sum is divided by it in every round. An example is the expected sum of weights. None: to be
      chosen from a schedule, like the noise multiplier.
    num_rounds: T, the planned rounds. After them nobody adds anything. None: to be taken from a schedule. Without a
      schedule there may be any number of rounds, and each client is charged as if they went on for ever.
    weights: The rule for w_i(t), one of `quap_tff.mechanisms.certified.weight_rules.RULES`.
    participation: How the participation rates are computed that the weights depend on.
    clip: C_t: `clip_rules.Fixed`, or `clip_rules.PrivateQuantile`, whose noised count is in the account.
    clip_split: How C_t is divided among layers, one of `quap_tff.mechanisms.certified.clip_split.SPLITS`.
    planned_rounds: int[N], in how many rounds each client is planned to take part. For weight rules with `needs_plan`.
    planned_costs: float[N], what weights of 1 in all these rounds would cost in μ² at z = 1. None: equal to
      `planned_rounds`, as under independent noise.
    own_epsilon: float[N], the bound that each client has chosen for itself, in (0, epsilon]. None: `epsilon` for
      everyone. A bound must not depend on the client's data.
    noise_seed: A non-negative integer makes the noise reproducible and so public: such a run cannot be certified. None:
      the seed is drawn from the operating system's entropy.
    trust: 'server', which sees updates and adds the noise, or 'secure_sum': clients hold the noise, and the server sees
      their secure sum alone.
    planned_weights: float[N] in [0, 1], the weight of each client in each of its rounds. Only with a secure sum; None:
      to be chosen from a schedule.
    most_clients: The size of the largest cohort. Only with a secure sum; None: to be taken from a schedule.
    dropout: The share of clients that are drawn and do not send, for which the plan leaves room. Only with a secure
      sum.
    threshold: The smallest share of the announced clients with which the secure sum opens, in (0, 1]. Clients then add
      so much noise that the account holds whichever of them drop out. Only with independent noise. None: any number
      may drop out, and the account is about a server that tells the truth about them.
  """

  choices = (correlations.FAMILIES, weight_rules.RULES, clip_rules.RULES)

  num_clients: int = checks.integer_field('num_clients', at_least=1, at_most=2**31 - 1)
  epsilon: float = checks.number_field('epsilon', above=0, at_most=100)
  delta: float = checks.number_field('delta', above=0, below=1)
  noise_multiplier: Optional[float] = checks.number_field(
    'noise_multiplier', None, at_least=SMALLEST_MULTIPLIER, at_most=LARGEST_MULTIPLIER
  )
  correlation: correlations.Correlation = correlations.Independent()
  divisor: Optional[float] = checks.number_field('divisor', None, above=0)
  num_rounds: Optional[int] = checks.integer_field('num_rounds', None, at_least=1)
  weights: weight_rules.WeightRule = weight_rules.Participation()
  participation: participations.ParticipationConfig = participations.ParticipationConfig()
  clip: clip_rules.ClipRule = clip_rules.Fixed(1.0)
  clip_split: str = 'joint'
  planned_rounds: Optional[tuple[int, ...]] = None
  planned_costs: Optional[tuple[float, ...]] = None
  own_epsilon: Optional[tuple[float, ...]] = None
  noise_seed: Optional[int] = checks.seed_field('noise_seed')
  trust: str = 'server'
  planned_weights: Optional[tuple[float, ...]] = None
  most_clients: Optional[int] = checks.integer_field('most_clients', None, at_least=0)
  dropout: float = checks.number_field('dropout', 0.0, at_least=0, at_most=0.9)
  threshold: Optional[float] = checks.number_field('threshold', None, above=0, at_most=1)

  def __post_init__(self):
    super().__post_init__()
    if not isinstance(self.correlation, correlations.Correlation):
      raise TypeError(
        f'correlation must be a Correlation of quap_tff.mechanisms.noise.correlation, found {self.correlation!r}.'
      )
    if self.num_rounds is not None:
      self.correlation.check_rounds(self.num_rounds)
    if not isinstance(self.weights, weight_rules.WeightRule):
      raise TypeError(f'weights must be a rule of quap_tff.mechanisms.certified.weight_rules, found {self.weights!r}.')
    if self.clip_split not in clip_splits.SPLITS:
      raise registry.unknown_name_error('clip split', self.clip_split, list(clip_splits.SPLITS))
    if self.trust not in TRUSTS:
      raise registry.unknown_name_error('trust', self.trust, TRUSTS)
    self._check_trust()
    self._check_clip()
    self._check_plan()
    self._check_own_epsilon()

  def _check_trust(self):
    is_held = isinstance(self.correlation, correlations.Held)
    if not self.holds_noise:
      others = self.planned_weights, self.most_clients, self.threshold
      if is_held or self.dropout or any(one is not None for one in others):
        raise ValueError(
          'Noise that clients hold (correlation=Held, planned_weights, most_clients, dropout, threshold) is for '
          'trust="secure_sum". A trusted server adds independent, ar1, banded or blt noise.'
        )
      return
    if not is_held:
      raise ValueError(
        f'With trust="secure_sum", clients hold the noise, and no server has the memory of {self.correlation!r}. Use '
        'correlation=Held(), or Held(0.0) for independent noise.'
      )
    if not isinstance(self.clip, clip_rules.Fixed):
      raise ValueError(
        f'With trust="secure_sum", nobody sees the norms that {self.clip!r} follows. Use a fixed clipping norm.'
      )
    if self.threshold is not None and self.correlation.is_settled and self.correlation.decay:
      raise ValueError(
        f'A threshold needs noise that is independent from round to round, found {self.correlation!r}: if a server '
        'chooses who drops out, it chooses which noise is taken back. Use correlation=Held(0.0), or leave threshold '
        'out.'
      )
    if self.planned_weights is not None:
      weights = np.asarray(self.planned_weights, np.float64)
      if weights.shape != (self.num_clients,) or not ((weights >= 0) & (weights <= 1)).all():
        raise ValueError(f'planned_weights must be float[{self.num_clients}] in [0, 1].')
      object.__setattr__(self, 'planned_weights', tuple((weights + 0.0).tolist()))  # -0.0 is 0.0.

  def _check_own_epsilon(self):
    name = type(self.weights).__name__
    if self.own_epsilon is None:
      if self.weights.needs_own_bounds:
        raise ValueError(
          f'Weight rule {name} follows bounds that clients have chosen, and everyone has epsilon. Give own_epsilon, '
          'or choose another weight rule.'
        )
      return
    if self.weights.takes_worst_case:
      raise ValueError(
        f'Weight rule {name} has one worst case for all clients, but own_epsilon gives each a bound of its own. '
        'Choose another weight rule, such as scale or online.'
      )
    own = np.asarray(self.own_epsilon, np.float64)
    if own.shape != (self.num_clients,) or not ((own > 0) & (own <= self.epsilon)).all():
      raise ValueError(
        f'own_epsilon must be float[{self.num_clients}], above 0 and at most epsilon={self.epsilon:g} for each '
        'client.'
      )
    object.__setattr__(self, 'own_epsilon', tuple(own.tolist()))

  def _check_clip(self):
    if not isinstance(self.clip, clip_rules.ClipRule):
      raise TypeError(f'clip must be a rule of quap_tff.mechanisms.parts.clip_rules, found {self.clip!r}.')
    if self.clip.releases_exact_norms or self.clip.uses_current_norms:
      raise ValueError(
        f"Clip rule {self.clip!r} clips by an un-noised function of the clients' update norms, which no ε covers. "
        'Use fixed, or private_quantile with count_stddev > 0.'
      )
    if not isinstance(self.clip, (clip_rules.Fixed, clip_rules.PrivateQuantile, clip_rules.Unclipped)):
      raise ValueError(
        f'Clip rule {self.clip!r} is not one that a certificate describes. Use fixed, or private_quantile with '
        'count_stddev > 0.'
      )
    if math.isinf(self.clip.initial_norm):
      raise ValueError(
        'Without a clipping norm nothing bounds what one client adds, and no noise covers it. Use clip rule fixed or '
        'private_quantile.'
      )
    checks.number('clipping norm', self.clip.initial_norm, at_most=LARGEST_CLIP)
    stddev = self.clip.count_noise_multiplier / 2
    if math.isfinite(stddev) and not integers.takes_count(stddev):
      raise ValueError(
        f'count_stddev must be in the range of noise in integers, {integers.COUNT_RANGE}, found {stddev:g}.'
      )
    if not self._count_cost < self._limit_of(self.epsilon):
      raise ValueError(
        f'epsilon={self.epsilon} at delta={self.delta} is too small to pay for one noised count of the '
        'private quantile. Give the counts more noise (count_stddev), or use a fixed clipping norm.'
      )

  def _check_plan(self):
    if self.weights.needs_rounds and self.num_rounds is None and self.is_calibrated:
      raise ValueError(
        f'Weight rule {type(self.weights).__name__} spreads what is left of a budget over the remaining '
        'rounds. Give num_rounds, the number of planned rounds.'
      )
    if self.planned_rounds is None:
      if self.planned_costs is not None:
        raise ValueError('planned_costs are those of planned_rounds. Give both, or neither.')
      if self.weights.needs_plan and self.is_calibrated:
        raise ValueError(
          f'Weight rule {type(self.weights).__name__} needs a public schedule. Give planned_rounds: the number '
          f'of rounds in which each of the {self.num_clients} clients is planned to take part.'
        )
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

  @property
  def is_calibrated(self) -> bool:
    """Whether the noise and the divisor are settled."""
    planned = not self.holds_noise or (self.planned_weights is not None and self.num_rounds is not None)
    return self.noise_multiplier is not None and self.divisor is not None and self.correlation.is_settled and planned

  @property
  def holds_noise(self) -> bool:
    """Whether clients hold the noise, because nobody trusts the server."""
    return self.trust == 'secure_sum'

  @property
  def prices(self) -> privacy_filter.Prices:
    """What taking part in a round costs a client."""
    limit: Any = self._limit_of(self.epsilon)
    if self.own_epsilon is not None:
      limit = np.array([self._limit_of(own) for own in self.own_epsilon], np.float64)
    return privacy_filter.Prices(
      limit=limit, noise_multiplier=self.noise_multiplier, count_cost=self._count_cost, correlation=self.correlation
    )

  def rounds_left(self, round_num: Any) -> Any:
    """T - t, the planned rounds after round t; +inf if no number of rounds is planned."""
    return math.inf if self.num_rounds is None else self.num_rounds - round_num

  def _limit_of(self, epsilon: float) -> float:
    """The largest μ² of a client with this ε. A part of ε and δ is kept for what rounding costs."""
    kept = 1 - integers.RESERVE
    return privacy_filter.limit_of(epsilon * kept, self.delta * kept)

  def grid(self, num_weights: int) -> integers.Grid:
    """The grid of integers for an update of `num_weights` entries.

    Raises:
      ValueError: If integers could overflow.
    """
    if self.noise_multiplier is None:
      raise ValueError('The grid follows from the noise. Give noise_multiplier, or calibrate it on a schedule.')
    if self.holds_noise:
      smallest = min(stddev for stddev in self.share_stddevs if stddev)
      steps = max(_SHARE_STEPS, _SHARE_STEPS_BY_DRAW * math.sqrt(num_weights * self.most_releases))
      grid = integers.Grid(smallest, num_weights, smallest_stddev=steps)
    else:
      grid = integers.Grid(self.noise_multiplier, num_weights, self.correlation, self.num_rounds)
    grid.check_sum(self.num_clients)
    return grid

  @property
  def most_releases(self) -> int:
    """How many releases the account of rounding covers."""
    return self.num_rounds if self.num_rounds is not None else _OPEN_ENDED

  def slack(self, num_weights: int) -> slacks.Slack:
    """What rounding costs all releases of a model with `num_weights` weights.

    Raises:
      ValueError: If integers could overflow, or ε and δ do not pay for rounding.
    """
    grid, more = self.grid(num_weights), slacks.Slack()
    largest = max(self.epsilon, slacks.LARGEST_EPSILON)
    if self.holds_noise:
      more = held_noise.discreteness_slack(
        *(largest, self.delta),
        noise_steps=self.share_scale * grid.steps,
        decay=self.share_decay,
        num_releases=self.most_releases,
        num_coordinates=num_weights,
        num_participations=self._most_participations,
      )
    return grid.slack(self._smallest_epsilon, largest, self.delta, self._draws(grid), more)

  @property
  def kept_slack(self) -> slacks.Slack:
    """What is kept for rounding: no less than the slack of any model."""
    return slacks.Slack(integers.RESERVE * self._smallest_epsilon, integers.RESERVE * self.delta)

  @property
  def _most_participations(self) -> int:
    return self.most_releases * (self.most_clients or self.num_clients)

  def _draws(self, grid):
    """The draws of all releases, as `Grid.slack` takes them. A client in a new chain draws twice with the σ of W."""
    if self.holds_noise:
      count = grid.num_weights * self._most_participations
      return [(stddev * grid.steps, uses * count) for stddev, uses in zip(self.share_stddevs, (1, 2)) if stddev]
    counts = [(integers.count_steps(self.clip.count_noise_multiplier / 2), self.most_releases)]
    return [(grid.stddev, grid.num_weights * self.most_releases), *(counts if self.counts_norms else [])]

  @property
  def share_stddevs(self) -> tuple[float, float]:
    """The standard deviations of V and W, in clipping norms; W is 0 for independent noise."""
    return held_noise.stddevs(self.share_scale, self.share_decay)

  @property
  def share_scale(self) -> float:
    """s of noise that clients hold. With a threshold θ, the account has √θ of it, which is left if others drop out."""
    assert self.noise_multiplier is not None
    return self.noise_multiplier / math.sqrt(self.threshold or 1.0)

  @property
  def share_decay(self) -> float:
    """λ of noise that clients hold."""
    return float(self.correlation.decays[0])

  @property
  def _smallest_epsilon(self) -> float:
    return min(self.own_epsilon or (self.epsilon,))

  @property
  def _count_cost(self) -> float:
    """1/c² of the noised count; 0 if there is none."""
    share = 1 / self.clip.count_noise_multiplier
    return share * share

  @property
  def counts_norms(self) -> bool:
    """Whether each round releases a noised count of norms."""
    return math.isfinite(self.clip.count_noise_multiplier)

  @property
  def facts(self) -> mechanism.Facts:
    return mechanism.Facts(
      delta=self.delta,
      public_metrics=mechanism.PUBLIC_METRICS | mechanism.PUBLIC_NORMS | _PUBLIC_METRICS,
      # The noise that a round takes back would be that of other weights than those it updates.
      takes_sparsity=self.correlation.is_settled and not self.correlation.num_buffers,
      noise_is_planned=True,
      divisor=self.divisor,
      correlation=self.correlation,
      trust=self.trust,
      is_saved_before_release=True,
      noise_note='',
    )

  def for_model(
    self, specs: mechanism.Specs, layers: mechanism.Layers, learning_rate_fn: mechanism.LearningRateFn = None
  ) -> mechanism.Rounds:
    return (held.HeldRounds if self.holds_noise else certified.CertifiedRounds)(self, specs, layers)

  def seen(self, state: Any) -> dict[str, Any]:
    return {'weights': state.weights}

  def spent(self, state: Any, metrics: Any, cohort: np.ndarray) -> mechanism.Spent:
    return self.cost(cohort, np.asarray(state.weights)[cohort].astype(np.float64), float(metrics['clipping_norm']))

  def planned(self, cohorts: Sequence[np.ndarray]) -> list[mechanism.Spent]:
    rounds = zip(cohorts, planning.planned_rounds(self, cohorts))
    return [self.cost(cohort, one.weights.astype(np.float64), self.clip.initial_norm) for cohort, one in rounds]

  def cost(self, cohort: np.ndarray, weights: np.ndarray, clipping_norm: float) -> mechanism.Spent:
    """The cost of a round with these weights w_i(t), float64[M].

    Its budgets are the ε that the round, taken alone, costs each client at the total δ. So the ledger's Σε at k·δ is
    proven but loose, by basic composition.
    """
    prices = self.prices
    mu = np.sqrt((weights / prices.noise_multiplier) ** 2 + prices.count_cost * (weights > 0))
    if self.holds_noise:
      mu = mu / math.sqrt(_LEAST_SHARE)
    return mechanism.Spent(
      cohort=cohort,
      budgets=np.maximum(tradeoff.epsilon_of(mu, self.delta), _NOTHING),
      weights=weights,
      noise_multiplier=prices.noise_multiplier,
      count_noise_multiplier=self.clip.count_noise_multiplier,
      clipping_norm=clipping_norm,
    )
