"""QuAP-FL's mechanism as a value: clip, noise, budgets, and the cost of a round. `rounds.py` has its rounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import dataclasses
import math
from typing import NamedTuple, Optional

import numpy as np

from quap_tff.common import array_types
from quap_tff.common import checks
from quap_tff.common import lazy
from quap_tff.common import registry
from quap_tff.common.lazy import tf
from quap_tff.common.numbers import arrays
from quap_tff.common.numbers import rounding
from quap_tff.mechanisms import mechanism
from quap_tff.mechanisms.noise import gaussian
from quap_tff.mechanisms.parts import aggregators
from quap_tff.mechanisms.parts import budgets
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.parts import layers as layers_lib
from quap_tff.mechanisms.parts import participation as participations
from quap_tff.mechanisms.parts import weighting as weightings

quap = lazy.module('quap_tff.mechanisms.quap.rounds')

PLACEMENTS = ('server', 'client', 'none')
CLIP_SCOPES = ('critical', 'all_layers')
UPDATE_SCALES = ('delta', 'pseudo_gradient')


class RoundBudgetError(ValueError):
  """A round's ε is larger than the formula of its noise holds for."""


@dataclasses.dataclass(frozen=True)
class NoiseConfig(checks.Checked):
  """Gaussian noise on the critical layers.

  Attributes:
    placement: 'server': N(0, σ_t²) on the mean of the clipped updates, σ_t = z(ε_t, δ)·C_t/M_t (docs/method.md, section
      6.1). 'client': each client's own N(0, σ_i²) before the mean, σ_i = z(ε_i(t), δ)·C_t (section 6.2). This is a
      simulation: it sends every client the N rates and the round's seed, so its cost grows with the population, and
      clients could compute each other's noise. 'none': no noise.
    delta: δ of one round, in (0, 1).
    calibration: The formula for z(ε, δ), 'classic' or 'analytic'; see `quap_tff.mechanisms.noise.gaussian`.
    scale: A public factor on every z(ε, δ), for noise that an accountant has calibrated over the whole run; 1 is the
      documents' noise.
    seed: A non-negative integer makes the noise reproducible, hence public. None draws the seed from the operating
      system's entropy.
  """

  placement: str = registry.name_field('noise placement', 'server', PLACEMENTS)
  delta: float = checks.number_field('delta', 1e-5, above=0, below=1)
  calibration: str = registry.name_field('gaussian calibration', 'classic', gaussian.CALIBRATIONS)
  scale: float = checks.number_field('noise scale', 1.0, above=0)
  seed: Optional[int] = checks.seed_field('noise_seed')


@dataclasses.dataclass(frozen=True)
class QuapConfig(mechanism.Mechanism):
  """QuAP-FL's aggregation.

  Attributes:
    num_clients: N, the population. Client ids are integers in [0, N).
    budget: Privacy budgets of clients and rounds.
    participation: How participation rates are computed.
    clip: The rule for the clipping norm, one of `quap_tff.mechanisms.parts.clip_rules.RULES`.
    clip_scope: 'critical': the critical layers' entries are clipped by their joint norm, and the other layers pass
      unclipped. 'all_layers': the whole update is clipped by its norm.
    noise: Gaussian noise on the critical layers.
    critical_layers: A selection of `quap_tff.mechanisms.parts.layers`.
    max_agg_norm: Optional bound on the norm of the noised mean, which is scaled down to it (docs/method.md, section
      6.3).
    update_scale: 'delta': updates are w_global - w_local. 'pseudo_gradient': they are divided by the client's learning
      rate before clipping and multiplied by it after noise, as the reference program does. The clipping norm means
      different things under the two (docs/method.md, section 3.1).
    weighting: How much each client counts in the mean, one of `quap_tff.mechanisms.parts.weighting`.
    aggregator: The replacement of the mean of the clipped updates, one of
      `quap_tff.mechanisms.parts.aggregators.AGGREGATORS`.
  """

  choices = (budgets.ROUND_RULES, clip_rules.RULES, aggregators.AGGREGATORS)

  num_clients: int
  budget: budgets.BudgetConfig = budgets.BudgetConfig()
  participation: participations.ParticipationConfig = participations.ParticipationConfig()
  clip: clip_rules.ClipRule = clip_rules.QuantileEma()
  clip_scope: str = registry.name_field('clip scope', 'critical', CLIP_SCOPES)
  noise: NoiseConfig = NoiseConfig()
  critical_layers: str = layers_lib.FINAL_DENSE
  max_agg_norm: Optional[float] = checks.number_field('max_agg_norm', None, above=0)
  update_scale: str = registry.name_field('update scale', 'delta', UPDATE_SCALES)
  weighting: weightings.Weighting = weightings.Equal()
  aggregator: aggregators.Aggregator = aggregators.Mean()

  def __post_init__(self) -> None:
    super().__post_init__()
    checks.integer('num_clients', self.num_clients, at_least=1, at_most=2**31 - 1)
    if not isinstance(self.clip, clip_rules.ClipRule):
      raise TypeError(f'clip must be a rule of quap_tff.mechanisms.parts.clip_rules, found {self.clip!r}.')
    if not self.critical_layers:
      raise ValueError('critical_layers is empty. Name a layer, or train without noise (none).')
    if not isinstance(self.aggregator, aggregators.Aggregator):
      raise TypeError(f'aggregator must be one of quap_tff.mechanisms.parts.aggregators, found {self.aggregator!r}.')
    if not isinstance(self.weighting, weightings.Weighting):
      raise TypeError(f'weighting must be one of quap_tff.mechanisms.parts.weighting, found {self.weighting!r}.')
    if not self.weighting.is_equal and (
      self.aggregator.needs_each_update or self.noise.placement == 'client' or self.budget.round_rule != 'each_own'
    ):
      raise ValueError(
        f'Weighting {type(self.weighting).__name__} gives clients shares by the noise of each, in a mean: use '
        'round_rule="each_own", noise at the server or none, and the mean for an aggregator.'
      )
    if self.noise.placement == 'client' and self.aggregator.needs_each_update:
      raise ValueError(
        f'Aggregator {type(self.aggregator).__name__} is computed from clipped updates, and noise at the '
        'clients is summed apart from them. Add the noise at the server, or none.'
      )
    if self.noise.placement == 'client' and self.budget.rule.needs_cohort:
      raise ValueError(
        'Noise at the clients needs budgets that follow from participation rates, but the budgets of '
        f'{type(self.budget.rule).__name__} are computed at the server. Add the noise at the server, too.'
      )
    if self.noise.placement == 'none':
      return
    # A rule that uses current norms has one as soon as there is an update.
    if not self.clip.uses_current_norms and math.isinf(self.clip.initial_norm):
      raise ValueError(
        'Noise is scaled by the clipping norm, but clip rule "none" has no norm: choose another clip rule, or no '
        'noise.'
      )
    # Beyond this the classic formula is not proved, and it could give too little noise without a word.
    if self.noise.calibration == 'classic' and self.budget.largest_budget > gaussian.CLASSIC_MAX_EPSILON:
      raise RoundBudgetError(
        f"A round's epsilon can reach {rounding.up(self.budget.largest_budget)}, but the classic Gaussian "
        f'calibration holds only for epsilon <= {gaussian.CLASSIC_MAX_EPSILON:g}. Use gaussian_calibration=analytic, '
        'or a smaller epsilon or more rounds.'
      )

  def _waits(self) -> str:
    if not self.weighting.is_equal:
      return 'how much an update counts depends on all of them'
    if not self.clip.uses_current_norms:
      return ''
    return (
      "a round's norms decide on its own clipping norm (with clip rule quantile_ema:timing=previous,initial_clip=1, "
      'fixed or private_quantile they do not)'
    )

  @property
  def facts(self) -> mechanism.Facts:
    noised, rule = self.noise.placement != 'none', self.budget.rule
    # A clipping norm that is fixed or tracked by a noised count is public; an exact quantile is not.
    public, unsparse = mechanism.PUBLIC_METRICS, ''
    if not self.clip.releases_exact_norms:
      public = public | mechanism.PUBLIC_NORMS
    if rule.observes_updates:
      # Budgets that follow the updates are not public numbers, and the noise follows them.
      public = public - {'noise_multiplier', 'sigma'}
      unsparse = 'updates are compared with the last result, of which other weights were kept'
    clipped_layers = layers_lib.ALL if self.clip_scope == 'all_layers' else self.critical_layers
    game = 'quap' if self.noise.placement == 'server' else ''
    return mechanism.Facts(
      delta=self.noise.delta,
      public_metrics=public,
      adds_noise=noised,
      noise_seed=self.noise.seed,
      exact_releases=tuple(self._exact_releases()),
      noised_layers=self.critical_layers,
      clipped_layers=clipped_layers,
      waits=self._waits(),
      needs_each_update=self.aggregator.needs_each_update,
      game=game,
      unsparse=unsparse,
      # The documents' formula is about a mean, which one client moves by C/M at most.
      has_nominal=self.noise.scale == 1 and noised and not self.aggregator.needs_each_update,
      noise_follows=self._noise_follows(),
      unplannable=rule.unplannable,
      note=rule.note,
    )

  def _noise_follows(self) -> str:
    if self.noise.scale != 1:
      return 'plan'  # An accountant has calibrated the scale on the planned cohorts.
    return 'nothing' if self.budget.round_rule == 'uniform' and self.noise.placement == 'server' else 'cohorts'

  def _exact_releases(self) -> Iterator[str]:
    if self.clip.releases_exact_norms:
      yield "the clipping norm is an un-noised function of the clients' update norms"
    if self.aggregator.needs_each_update:
      yield (
        f'the updates are aggregated by {type(self.aggregator).__name__}, which one client can move further than a '
        'mean, and the noise covers only a mean'
      )
    if self.budget.rule.observes_updates:
      yield "the budgets, and so the noise level, follow the clients' un-noised updates"

  def for_model(
    self, specs: mechanism.Specs, layers: mechanism.Layers, learning_rate_fn: mechanism.LearningRateFn = None
  ) -> mechanism.Rounds:
    return quap.QuapRounds(self, specs, layers, learning_rate_fn)

  def scaled(self, factor: float) -> QuapConfig:
    return dataclasses.replace(self, noise=dataclasses.replace(self.noise, scale=factor))

  def multiplier(self, epsilon: array_types.Numbers) -> tf.Tensor:
    """z(ε, δ), with the noise's scale: the noise multiplier of a budget, elementwise."""
    # The scale is outside: an accountant calibrates the noise of all budgets together.
    return self.noise.scale * gaussian.noise_multiplier(self.noise.calibration, epsilon, self.noise.delta)

  def shares(self, epsilons: array_types.Array) -> array_types.Array:
    """s_i of the cohort from its budgets ε_i(t), which are float[M], a tensor or an array."""
    calibration, delta = self.noise.calibration, self.noise.delta
    # Without the scale, which all clients have: shares are ratios.
    return self.weighting.shares(epsilons, lambda own: gaussian.noise_multiplier(calibration, own, delta))

  def round_noise(
    self,
    rates: tf.Tensor,
    in_warmup: array_types.Booleans,
    client_epsilons: Optional[tf.Tensor] = None,
    budget_factor: array_types.Numbers = 1.0,
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """The budget of a round and its noise.

    Args:
      rates: float32[M], p_i(t) of the cohort.
      in_warmup: Whether t is a warm-up round.
      client_epsilons: float32[M], ε_i(t) of the cohort before `budget_factor`; by default they follow from the rates.
      budget_factor: f_t of the schedule, which multiplies all budgets.

    Returns:
      (ε_t, z_t), float32 scalars: z_t is σ of the noise on the sum of updates over C_t. Under client placement, and
      under the round budget rule 'each_own', ε_t is the mean of the clients' budgets, and z_t is the noise multiplier
      of the sum of their noises, √Σz(ε_i)². z_t has no meaning for an empty cohort or without noise.
    """
    if client_epsilons is None:
      client_epsilons = budgets.client_budgets(self.budget, rates, in_warmup)
    if self.noise.placement == 'client' or self.budget.round_rule == 'each_own':
      scaled_epsilons = budget_factor * client_epsilons
      epsilon = tf.math.divide_no_nan(tf.reduce_sum(scaled_epsilons), tf.cast(tf.size(rates), tf.float32))
      # Independent noises of clients add up in squares.
      return epsilon, tf.norm(self.shares(scaled_epsilons) * self.multiplier(scaled_epsilons))
    epsilon = budget_factor * budgets.round_budget(self.budget, rates, in_warmup, client_epsilons)
    return epsilon, self.multiplier(epsilon)

  def seen(self, state: mechanism.State) -> mechanism.Evidence:
    # Counts that leave rounds out do not say who was in one.
    counts_all = self.participation.count_during_warmup or not self.participation.warmup_rounds
    return {'counts': np.asarray(state.participation['counts'])} if counts_all else {}

  def spent(self, state: mechanism.State, metrics: mechanism.Measurements, cohort: np.ndarray) -> mechanism.RoundRecord:
    counts = self.seen(state).get('counts')
    if counts is not None:
      counts = counts[cohort]
    multiplier, clip = float(metrics['noise_multiplier']), float(metrics['clipping_norm'])
    return self.cost(cohort, self.client_budgets(state, cohort), multiplier, clip, counts)

  def planned(self, cohorts: Sequence[np.ndarray]) -> list[mechanism.RoundRecord]:
    # Budgets and noise follow from who takes part. C = 1 in all planned rounds.
    records = []
    for state, cohort in zip(self.planned_states(cohorts), cohorts):
      multiplier = self.planned_multiplier(state, cohort) if len(cohort) else 0.0
      records.append(self.cost(cohort, self.client_budgets(state, cohort), multiplier, 1.0))
    return records

  def cost(
    self,
    cohort: np.ndarray,
    epsilons: np.ndarray,
    noise_multiplier: float,
    clipping_norm: float,
    counts: Optional[np.ndarray] = None,
  ) -> mechanism.RoundRecord:
    """The cost of a round with these budgets ε_i(t), float64[M], and this noise."""
    # A client's part of the sum has norm at most its share of C. The ledger's unit is the largest share.
    shares = np.ones(len(cohort)) if self.weighting.is_equal else self.shares(epsilons)
    largest = shares.max(initial=1.0)
    # Without noise a round spends what no budget can hold.
    budgets = epsilons if self.noise.placement != 'none' else np.full(len(cohort), np.inf)
    return mechanism.RoundRecord(
      cohort=cohort,
      budgets=budgets,
      weights=shares / largest,
      noise_multiplier=noise_multiplier / largest,
      count_noise_multiplier=self.clip.count_noise_multiplier,
      clipping_norm=clipping_norm,
      counts=counts,
    )

  def planned_states(self, cohorts: Sequence[np.ndarray]) -> list[PlannedState]:
    """The part of the state after each round that follows from the cohorts alone."""
    state, states = participations.initial_state(self.participation, self.num_clients), []
    for round_num, cohort in enumerate(cohorts, 1):
      state = participations.next_state(self.participation, state, cohort, round_num)
      states.append(PlannedState(round_num, state, None))
    return states

  def client_budgets(self, state: mechanism.State, cohort: np.ndarray) -> np.ndarray:
    """ε_i(t) of the cohort, float64[M], from the state after the round."""
    # A rule that follows updates cannot be computed again: its budgets are in the state.
    given = self.budget.rule.given(state.budget)
    if given is not None:
      return np.asarray(given, np.float64)[cohort]
    rates, in_warmup = self._rates(state, cohort)
    # The state is the one after the round, so its number is t.
    epsilons = budgets.client_budgets(self.budget, rates, in_warmup) * self.budget.factor(int(state.round))
    return np.asarray(epsilons, np.float64)

  def planned_multiplier(self, state: PlannedState, cohort: np.ndarray) -> float:
    """σ of the noise on the sum of a round's updates over C_t, as `round_noise` has it."""
    rates, in_warmup = self._rates(state, cohort)
    factor = self.budget.factor(state.round)
    return float(self.round_noise(tf.constant(rates), in_warmup, budget_factor=factor)[1])

  def _rates(self, state: array_types.Structure, cohort: np.ndarray) -> tuple[array_types.Array, array_types.Booleans]:
    of_cohort = {name: arrays.take(np.asarray(value), cohort) for name, value in state.participation.items()}
    round_num = int(state.round)
    rates = participations.rates(self.participation, of_cohort, round_num)
    return rates, participations.in_warmup(self.participation, round_num)


class PlannedState(NamedTuple):
  """The part of a state that follows from cohorts alone: its `round`, the `participation` state, and no `budget`."""

  round: int
  participation: array_types.Structure
  budget: None
