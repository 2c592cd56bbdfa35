"""Noisy gradient descent whose steps and noise are chosen by noised losses, after Lee and Kifer 2018 (DP-AGD).

J. Lee and D. Kifer, "Concentrated Differentially Private Gradient Descent with Adaptive per-Iteration Privacy Budget"
(KDD 2018), algorithm 2 as it is commonly described; its text was not at hand, so no equation is cited by number. Round
t with cohort S_t of size M:

    g̃_t = (Σ_i w_i·u_i·min(1, C/‖u_i‖) + N(0, (z_t·C)²·I))/M        the noisy gradient; ρ = 1/(2·z_t²) for a client
    v_i  = (f_i(θ) - f_i(θ - α_k·g̃_t))_k, scaled down to norm B     how much each step α_k would lower a client's loss
    ṽ_t = Σ_i w_i·v_i + N(0, (c·B)²·I)                              ρ = 1/(2·c²)
    step = α_k of the largest ṽ_tk if it is above 0, else 0
    1/z_{t+1}² = (1 + γ)·1/z_t² if the step was 0, else 1/z_t²      the next gradient gets more of the budget

w_i is 1 as long as the client's account, Σ (1/z_t² + 1/c²) over its rounds, stays within μ_max², else 0. This filter is
needed because z_t follows from earlier releases.

Differences from the paper: the unit is a client, and u_i is its whole local training; the candidates' losses get
Gaussian noise and the best is chosen afterwards, instead of NoisyMax with Laplace noise, so that all releases of a run
are Gaussian and compose exactly; after a step of 0 the next gradient is measured anew, on the next cohort, and is not
averaged with the old one; C and B stay as they are.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from typing import NamedTuple, Optional

import numpy as np

from quap_tff import methods
from quap_tff import plans
from quap_tff.common import checks
from quap_tff.common import lazy
from quap_tff.common import registry
from quap_tff.common.lazy import tf
from quap_tff.common.numbers import seeds
from quap_tff.common.numbers import tradeoff
from quap_tff.mechanisms import mechanism
from quap_tff.mechanisms.noise import gaussian
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.parts import layers as layers_lib
from quap_tff.methods import base
from quap_tff.methods import choices

aggregation = lazy.module('experiments.systems.lee_kifer_aggregation')

_GRADIENT, _LOSSES = range(2)
# Room for the rounding of sums over rounds, and of μ_max.
_SLACK = 2.0**-30
# The most that z falls: 1/z² up to this factor of where it started.
_LARGEST_GROWTH = 1e6


@dataclasses.dataclass(frozen=True)
class LineSearchConfig(mechanism.Mechanism):
  """The mechanism. Its rounds are TFF computations, because clients also test steps.

  The ledger holds the cost of each round. But the noise of later rounds was chosen from the releases of earlier ones.
  So the sum of a run's costs is itself a release, and not a bound that held beforehand. The filter gives such a bound:
  in every run, no client exceeds μ_max²(ε, δ).

  Attributes:
    num_clients: N.
    epsilon: ε > 0, which no client exceeds.
    delta: Total δ.
    planned_rounds: How many rounds the client that comes most often is planned to be in, at least 1. The noise is such
      that its budget would last for `lasts` times as many rounds if it never grew.
    clip: C.
    loss_clip: B.
    steps: α_1 … α_K > 0.
    growth: γ >= 0.
    test_share: The share of the budget for the losses, in (0, 1).
    lasts: At least 1: how much of the budget is kept for later, more exact gradients.
    noise_seed: As in `NoiseConfig`.
  """

  num_clients: int
  epsilon: float
  delta: float
  planned_rounds: int
  clip: float = 1.0
  loss_clip: float = 0.5
  steps: tuple[float, ...] = (0.5, 1.0, 2.0)
  growth: float = 0.1
  test_share: float = 0.1
  lasts: float = 1.2
  noise_seed: Optional[int] = checks.seed_field('noise_seed')

  def __post_init__(self) -> None:
    super().__post_init__()
    checks.integer('num_clients', self.num_clients, at_least=1, at_most=2**31 - 1)
    checks.number('epsilon', self.epsilon, above=0, at_most=100)
    checks.number('delta', self.delta, above=0, below=1)
    checks.integer('planned_rounds', self.planned_rounds, at_least=1)
    checks.number('clipping norm', self.clip, at_least=clip_rules.SMALLEST_CLIP, at_most=1e20)
    checks.number('loss_clip', self.loss_clip, at_least=clip_rules.SMALLEST_CLIP, at_most=1e20)
    if not self.steps:
      raise ValueError('steps is empty. Give at least one step size, such as steps=0.5/1/2.')
    for step in self.steps:
      checks.number('step size', step, above=0, at_most=1e6)
    checks.number('growth', self.growth, at_least=0, at_most=100)
    checks.number('test_share', self.test_share, above=0, below=1)
    checks.number('lasts', self.lasts, at_least=1, at_most=1000)

  @property
  def facts(self) -> mechanism.Facts:
    return mechanism.Facts(
      delta=self.delta,
      noise_seed=self.noise_seed,
      public_metrics=(mechanism.PUBLIC_METRICS | mechanism.PUBLIC_NORMS | {'step', 'exhausted_clients', 'spent_max'}),
      unsparse='clients test steps with all weights',
      waits='each tests the steps that the noised sum of all updates gives',
      is_saved_before_release=True,
      unaudited='clients also send how much each step would lower their losses',
      unamplified='the noise of a round was chosen from what earlier rounds released',
      unplannable='what the rounds of this method cost is not known before they have run',
    )

  def server_parts(
    self,
    model_fn: Optional[mechanism.ModelFn],
    model: Optional[layers_lib.ModelShape],
    server_optimizer: mechanism.Optimizer,
  ) -> tuple[mechanism.AggregationFactory, mechanism.Optimizer]:
    del model, server_optimizer  # The steps are chosen by the losses: the server's optimizer has nothing to choose.
    if model_fn is None:
      raise NotImplementedError("lee_kifer tests steps on the clients' losses: use build_process, not an aggregator.")
    return aggregation.LineSearchAggregationFactory(self, model_fn), aggregation.Subtraction()

  def seen(self, state: mechanism.State) -> mechanism.Evidence:
    return {'weights': state.weights}

  def spent(self, state: mechanism.State, metrics: mechanism.Measurements, cohort: np.ndarray) -> mechanism.RoundRecord:
    weights = np.asarray(state.weights)[cohort].astype(np.float64)
    multiplier, counts = float(metrics['noise_multiplier']), self.loss_multiplier
    cost = (1 / multiplier**2 if multiplier else np.inf) + 1 / counts**2
    mu = np.sqrt(np.where(weights == 0, 0.0, cost))
    return mechanism.RoundRecord(
      cohort=cohort,
      budgets=tradeoff.budgets_of(mu, self.delta),
      weights=weights,
      noise_multiplier=multiplier,
      count_noise_multiplier=counts,
      clipping_norm=self.clip,
    )

  @property
  def limit(self) -> float:
    """μ_max²(ε, δ), a little lower."""
    return (1 - _SLACK) * tradeoff.mu_at_most(self.epsilon, self.delta) ** 2

  @property
  def loss_multiplier(self) -> float:
    """c."""
    return math.sqrt(self.planned_rounds / (self.test_share * self.limit)) * (1 + 1e-9)

  @property
  def first_multiplier(self) -> float:
    """z_1."""
    return math.sqrt(self.lasts * self.planned_rounds / ((1 - self.test_share) * self.limit))


class LineSearchState(NamedTuple):
  """The server's state between rounds.

  Attributes:
    round: int32 scalar.
    multiplier: float64 scalar, z of the next round.
    spent: float64[N], each client's μ² so far.
    weights: float32[N], w_i of the latest round; 0 for a client that was not in it.
    noise: The seed and counter of the noise.
  """

  round: tf.Tensor
  multiplier: tf.Tensor
  spent: tf.Tensor
  weights: tf.Tensor
  noise: mechanism.NoiseState


class RoundPlan(NamedTuple):
  """The facts that are known before anything is summed.

  Attributes:
    client_ids: int64[M].
    weights: float32[M], 0 or 1.
    spent: float64[N], after the round.
  """

  client_ids: tf.Tensor
  weights: tf.Tensor
  spent: tf.Tensor


def initial_state(config: LineSearchConfig) -> LineSearchState:
  """The server's state before round 1."""
  return LineSearchState(
    round=tf.constant(0, tf.int32),
    multiplier=tf.constant(config.first_multiplier, tf.float64),
    spent=tf.zeros([config.num_clients], tf.float64),
    weights=tf.zeros([config.num_clients], tf.float32),
    noise=mechanism.initial_noise(config.noise_seed),
  )


def plan_round(config: LineSearchConfig, state: LineSearchState, client_ids: tf.Tensor) -> RoundPlan:
  """The members of a cohort that can still pay for a round; raises as `mechanism.checked_ids` does."""
  client_ids = mechanism.checked_ids(config.num_clients, client_ids)
  cost = (1 / tf.square(state.multiplier) + 1 / config.loss_multiplier**2) * (1 + 2.0**-50)
  before = tf.gather(state.spent, client_ids)
  pays = before + cost <= config.limit
  places = client_ids[:, tf.newaxis]
  spent = tf.tensor_scatter_nd_update(state.spent, places, tf.where(pays, before + cost, before))
  return RoundPlan(client_ids, tf.cast(pays, tf.float32), spent)


def bounded(values: list[tf.Tensor], bound: float, weight: tf.Tensor) -> list[tf.Tensor]:
  """The tensors scaled to a joint norm of at most `bound`, times a weight; zero if one of them is not finite."""
  norm = clip_rules.global_norm(values)
  # The last factor is room for the rounding of the clipped entries, as in `quap_tff.mechanisms.certified.rounds`.
  factor = clip_rules.clip_factor(norm, bound) * tf.cast(weight, tf.float64) * (1 - 2.0**-20)
  keeps = tf.math.is_finite(norm)
  return [tf.where(keeps, tf.cast(tf.cast(v, tf.float64) * factor, v.dtype), tf.zeros_like(v)) for v in values]


def noised_direction(
  config: LineSearchConfig, state: LineSearchState, plan: RoundPlan, total: list[tf.Tensor]
) -> list[tf.Tensor]:
  """g̃_t from the sum of the bounded updates; zero if nobody could pay."""
  size = tf.maximum(tf.reduce_sum(plan.weights), 1.0)
  active = tf.reduce_any(plan.weights > 0)
  seed = seeds.fold_in(state.noise.seed, state.noise.counter, tf.constant(_GRADIENT, tf.int64))
  result = []
  for index, part in enumerate(total):
    tensor_seed = seeds.fold_in(seed, tf.constant(index, tf.int64))
    drawn = gaussian.noise(tensor_seed, tf.shape(part), state.multiplier * config.clip)
    noised = (tf.cast(part, tf.float64) + drawn) / tf.cast(size, tf.float64)
    result.append(tf.where(active, tf.cast(noised, part.dtype), tf.zeros_like(part)))
  return result


def chosen_step(
  config: LineSearchConfig, state: LineSearchState, plan: RoundPlan, gains: tf.Tensor
) -> tuple[tf.Tensor, LineSearchState]:
  """The step size, float32, and the state after the round.

  Args:
    config: The mechanism.
    state: Server state after round t-1.
    plan: From `plan_round`.
    gains: float32[K], the sum of the bounded v_i.
  """
  active = tf.reduce_any(plan.weights > 0)
  seed = seeds.fold_in(state.noise.seed, state.noise.counter, tf.constant(_LOSSES, tf.int64))
  noised = tf.cast(gains, tf.float64) + gaussian.noise(
    seed, [len(config.steps)], config.loss_multiplier * config.loss_clip
  )
  best = tf.argmax(noised)
  improves = tf.logical_and(active, noised[best] > 0)
  step = tf.where(improves, tf.gather(tf.constant(config.steps, tf.float32), best), 0.0)
  smaller = tf.maximum(
    state.multiplier / math.sqrt(1 + config.growth), config.first_multiplier / math.sqrt(_LARGEST_GROWTH)
  )
  new_state = LineSearchState(
    round=state.round + 1,
    multiplier=tf.where(tf.logical_or(improves, tf.logical_not(active)), state.multiplier, smaller),
    spent=plan.spent,
    weights=tf.scatter_nd(plan.client_ids[:, tf.newaxis], plan.weights, [tf.constant(config.num_clients, tf.int64)]),
    noise=state.noise._replace(counter=state.noise.counter + tf.cast(active, tf.int64)),
  )
  return step, new_state


def measurements(
  config: LineSearchConfig, state: LineSearchState, plan: RoundPlan, step: tf.Tensor, new_state: LineSearchState
) -> collections.OrderedDict[str, tf.Tensor]:
  """The public figures of a round, scalars by name.

  Args:
    config: The mechanism.
    state: Server state after round t-1.
    plan: From `plan_round`.
    step: From `chosen_step`.
    new_state: From `chosen_step`.
  """
  size = tf.size(plan.weights)
  return collections.OrderedDict(
    round=new_state.round,
    cohort_size=size,
    step=step,
    noise_multiplier=tf.where(tf.reduce_any(plan.weights > 0), tf.cast(state.multiplier, tf.float32), 0.0),
    clipping_norm=tf.constant(config.clip, tf.float32),
    exhausted_clients=size - tf.cast(tf.reduce_sum(plan.weights), tf.int32),
    spent_max=tf.cast(tf.reduce_max(plan.spent) / config.limit, tf.float32),
  )


@dataclasses.dataclass(frozen=True)
class LeeKifer(choices.Budget, base.SimpleMethod):
  """Lee and Kifer 2018: noisy steps whose size, and whose share of the budget, are chosen by noised losses.

  `experiments.systems.lee_kifer` has the equations and the differences from the paper. No client exceeds
  --epsilon at a total δ of --delta. The local learning rate sets the unit of the steps; --server_optimizer has no
  effect.

  Attributes:
    clip: The clipping norm C of updates.
    loss_clip: The bound B on a client's differences of losses.
    steps: The step sizes to choose from, in addition to 0.
    growth: γ, by how much the budget of a gradient grows after a step of 0.
    test_share: The share of the budget that the losses get.
    lasts: How much smaller than an even share of the budget the first gradients' share is.
  """

  title = 'Lee and Kifer'

  clip: float = 1.0
  loss_clip: float = 0.5
  steps: tuple = (0.5, 1.0, 2.0)
  growth: float = 0.1
  test_share: float = 0.1
  lasts: float = 1.2

  def __post_init__(self) -> None:
    LineSearchConfig(1, 1.0, 1e-5, 1, **registry.parameter_values(self))

  def configure(self, setting: base.Setting) -> LineSearchConfig:
    return LineSearchConfig(
      setting.num_clients,
      self.epsilon,
      self.delta,
      setting.rounds,
      noise_seed=self.noise_seed,
      **registry.parameter_values(self),
    )

  def plan(self, setting: base.Setting) -> plans.Plan:
    # The public schedule says how often the client comes that comes most often.
    clients = np.concatenate(setting.schedule).astype(np.int64)
    most = int(np.bincount(clients, minlength=1).max())
    config = dataclasses.replace(self.configure(setting), planned_rounds=max(most, 1))
    return plans.Plan(config, **vars(setting.options))


methods.METHODS['lee_kifer'] = LeeKifer
