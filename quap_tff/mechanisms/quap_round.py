"""One round of QuAP-FL at the server and at a client, as pure TensorFlow: what `quap_tff.federated.aggregation` federates.

Round t with cohort S_t of size M_t:

  client i:  norm_i = ‖critical part of g_i‖                          `update_norm`
             what the budget rule wants to know of g_i, if anything   `observe_update`
  server:    p_i(t), ε_t, C_t, σ_t from the cohort's ids and norms    `plan_round`
  client i:  clipped_i = g_i·min(1, C_t/norm_i) on the critical part  `clip_update`
  server:    Σ clipped_i / M_t + N(0, σ_t²) on the critical part      `finish_round`

Updates are flat lists of float tensors; `critical` lists the positions of the critical layers' tensors in them.
Equations: docs/method.md, sections 4 to 6.
"""

import collections
from collections.abc import Sequence
import math
from typing import Any, NamedTuple, Optional

import tensorflow as tf

from quap_tff.common import seeds
from quap_tff.mechanisms import budgets
from quap_tff.mechanisms import clip_rules
from quap_tff.mechanisms import config as configs
from quap_tff.mechanisms import gaussian
from quap_tff.mechanisms import participation as participations

# Uses of one round's seed, folded in after the counter, so that no numbers are drawn twice.
_CLIP_RULE, _SERVER_NOISE, _CLIENT_NOISE = range(3)

# Quantiles of the cohort's norms that a round reports.
_NORM_QUANTILES = {'norm_p10': 0.1, 'norm_p50': 0.5, 'norm_p90': 0.9, 'norm_max': 1.0}


class NoiseState(NamedTuple):
  """Where the next noise comes from. Whoever has it can recompute the noise.

  Attributes:
    seed: int64[2].
    counter: int64 scalar, how many rounds have drawn noise.
  """

  seed: tf.Tensor
  counter: tf.Tensor


class ServerState(NamedTuple):
  """The server's state between rounds.

  Attributes:
    round: int32 scalar, t, the number of finished rounds.
    participation: `counts` int32[N], and `rates` float32[N] under EMA rates.
    clip: float32 scalar, C_t; +inf before there is one.
    noise: The seed and counter of the noise.
    budget: The state of the clients' budget rule, by name; empty for rules without state.
  """

  round: tf.Tensor
  participation: 'collections.OrderedDict[str, tf.Tensor]'
  clip: tf.Tensor
  noise: NoiseState
  budget: 'collections.OrderedDict[str, Any]'


class RoundPlan(NamedTuple):
  """Everything that round t decides before it sums updates.

  Attributes:
    clip: float32 scalar, C_t.
    next_clip: float32 scalar, the clipping norm for the state.
    epsilon: float32 scalar, ε_t in nats; 0 for an empty cohort, +inf without noise.
    noise_multiplier: float32 scalar, σ of the noise on the sum of updates over C_t; 0 if there is none.
    sigma: float32 scalar, σ_t, the standard deviation of the noise on each critical entry of the mean.
    cohort_size: int32 scalar, M_t.
    participation: The participation state after the round.
    budget: The budget rule's state once the cohort is known.
    client_ids: int64[M], the cohort.
    shares: float32[M], how much each client counts; their mean is 1.
    reports: `norm_*`, `clipped_fraction` and `non_finite_updates`.
  """

  clip: tf.Tensor
  next_clip: tf.Tensor
  epsilon: tf.Tensor
  noise_multiplier: tf.Tensor
  sigma: tf.Tensor
  cohort_size: tf.Tensor
  participation: 'collections.OrderedDict[str, tf.Tensor]'
  budget: 'collections.OrderedDict[str, Any]'
  client_ids: tf.Tensor
  shares: tf.Tensor
  reports: 'collections.OrderedDict[str, tf.Tensor]'


def initial_state(config: configs.QuapConfig, critical_shapes: Sequence[Any] = ()) -> ServerState:
  """Server state before round 1.

  Args:
    config: The mechanism.
    critical_shapes: Static shapes of the critical tensors, for a budget rule whose state has such shapes.
  """
  return ServerState(
    round=tf.constant(0, tf.int32),
    participation=initial_participation(config),
    clip=tf.constant(config.clip.initial_norm, tf.float32),
    noise=initial_noise(config.noise.seed),
    budget=config.budget.rule.initial_state(config.budget, config.num_clients, critical_shapes),
  )


def initial_noise(seed: Optional[int]) -> NoiseState:
  """The noise state before round 1. Without a given seed, the seed comes from the operating system's entropy."""
  return NoiseState(seed=seeds.initial_seed(seed, 'mechanism'), counter=tf.constant(0, tf.int64))


def initial_participation(config: Any) -> Any:
  """The participation state before round 1, as tensors that are not constants in the graph."""
  state = participations.initial_state(config.participation, config.num_clients)
  return tf.nest.map_structure(lambda zeros: tf.zeros(zeros.shape, zeros.dtype), state)


def update_norm(
  config: configs.QuapConfig, critical: Sequence[int], update: list[tf.Tensor], scale: Any = 1.0
) -> tf.Tensor:
  """The norm that is clipped, in units of `scale`, float32, rounded up.

  It is NaN if any entry of the whole update is not finite, or if its norm is too large for float32.
  """
  critical_norm = clip_rules.global_norm([update[i] for i in critical])
  other_norm = clip_rules.global_norm([u for i, u in enumerate(update) if i not in critical])
  whole_norm = tf.sqrt(tf.square(critical_norm) + tf.square(other_norm))
  norm, whole_norm = (
    clip_rules.as_float32(one / tf.cast(scale, tf.float64))
    for one in (whole_norm if config.clip_scope == 'all_layers' else critical_norm, whole_norm)
  )
  return tf.where(tf.math.is_finite(whole_norm), norm, float('nan'))


def observe_update(
  config: configs.QuapConfig, critical: Sequence[int], update: list[tf.Tensor], norm: tf.Tensor, announced: Any
) -> tf.Tensor:
  """What the budget rule wants to know of a client's update, float32; 0 if its `norm` is not finite."""
  part = [tf.cast(update[i], tf.float32) for i in critical]
  observed = config.budget.rule.observe(part, announced)
  return tf.where(tf.math.is_finite(observed) & tf.math.is_finite(norm), observed, 0.0)


def clip_update(
  config: configs.QuapConfig, critical: Sequence[int], update: list[tf.Tensor], norm: tf.Tensor, clip: tf.Tensor
) -> list[tf.Tensor]:
  """The update with its critical layers (or all, by `clip_scope`) clipped; all zero unless `norm` is finite."""
  positions = clipped_positions(config, critical, len(update))
  clipped = clip_rules.scaled_down([update[i] for i in positions], clip_rules.clip_factor(norm, clip))
  scaled = dict(zip(positions, clipped))
  return finite_update([scaled.get(i, u) for i, u in enumerate(update)], norm)


def finite_update(update: list[tf.Tensor], norm: tf.Tensor) -> list[tf.Tensor]:
  """The update as it is, or any part of it; all zero unless `norm`, that of the whole update, is finite."""
  return tf.cond(tf.math.is_finite(norm), lambda: update, lambda: [tf.zeros_like(u) for u in update])


def clipped_positions(config: configs.QuapConfig, critical: Sequence[int], num_tensors: int) -> Sequence[int]:
  """Positions of the tensors of an update that `clip_update` scales."""
  return range(num_tensors) if config.clip_scope == 'all_layers' else critical


def client_noise(
  config: configs.QuapConfig,
  critical: Sequence[int],
  update: list[tf.Tensor],
  client_id: tf.Tensor,
  broadcast: Any,
  clip: tf.Tensor,
) -> list[tf.Tensor]:
  """Client placement: one float64 N(0, σ_i²) tensor for each critical one, σ_i = z(ε_i(t), δ)·C_t.

  Args:
    config: The mechanism.
    critical: Positions of the critical tensors in `update`.
    update: The client's update, for its shapes.
    client_id: The client.
    broadcast: The result of `client_noise_broadcast`.
    clip: C_t.
  """
  # `plan_round` refuses an id out of range with a clear message, so looking up its rate must not fail first.
  rate = tf.gather(broadcast['rates'], tf.clip_by_value(tf.cast(client_id, tf.int64), 0, config.num_clients - 1))
  epsilon = budgets.client_budgets(config.budget, rate, broadcast['in_warmup']) * broadcast['budget_factor']
  stddev = tf.where(tf.math.is_finite(clip), _multiplier(config, epsilon) * clip, 0.0)
  seed = seeds.fold_in(broadcast['seed'], client_id)
  return _noise(seed, [update[i] for i in critical], stddev)


def client_noise_broadcast(config: configs.QuapConfig, state: ServerState) -> 'collections.OrderedDict[str, tf.Tensor]':
  """What clients need to draw their own noise: all N clients' rates if they take part, and the round's seed."""
  round_num = state.round + 1
  return collections.OrderedDict(
    rates=participations.rates_if_taking_part(config.participation, state.participation, round_num),
    in_warmup=participations.in_warmup(config.participation, round_num),
    budget_factor=tf.cast(config.budget.factor(round_num), tf.float32),
    seed=_round_seed(state, _CLIENT_NOISE),
  )


def plan_round(
  config: configs.QuapConfig,
  state: ServerState,
  client_ids: tf.Tensor,
  norms: tf.Tensor,
  observations: Optional[tf.Tensor] = None,
) -> RoundPlan:
  """Everything that round t decides before it sums updates.

  Args:
    config: The mechanism.
    state: Server state after round t-1.
    client_ids: int64[M], the cohort.
    norms: float32[M], their norms, NaN for non-finite updates.
    observations: float32[M], from `observe_update`, for a budget rule that uses them.

  Raises:
    tf.errors.InvalidArgumentError: When run, if an id is outside [0, N) or appears twice.
  """
  client_ids = checked_ids(config, client_ids)
  round_num = state.round + 1
  in_warmup = participations.in_warmup(config.participation, round_num)
  participation = participations.next_state(config.participation, state.participation, client_ids, round_num)
  rates = tf.gather(participations.rates(config.participation, participation, round_num), client_ids)

  next_clip = config.clip.next_norm(state.clip, norms, _round_seed(state, _CLIP_RULE))
  clip = next_clip if config.clip.uses_current_norms else state.clip
  cohort_size = tf.size(client_ids)
  size = tf.maximum(tf.cast(cohort_size, tf.float32), 1.0)

  client_epsilons = budgets.client_budgets(config.budget, rates, in_warmup, state.budget, client_ids)
  if observations is None:
    observations = tf.zeros_like(norms)
  new_rule_state = config.budget.rule.next_state(config.budget, state.budget, client_ids, client_epsilons, observations)
  epsilon, noise_multiplier = round_noise(config, rates, in_warmup, client_epsilons, config.budget.factor(round_num))
  # Without a bound no finite update has ever come, so everything that is summed is exactly zero.
  noised = tf.logical_and(tf.math.is_finite(clip), cohort_size > 0) if config.noise.placement != 'none' else False

  is_finite = tf.math.is_finite(norms)
  finite = tf.reduce_sum(tf.cast(is_finite, tf.float32))
  clipped = tf.reduce_sum(tf.cast(tf.logical_and(is_finite, norms > clip), tf.float32))
  return RoundPlan(
    clip=clip,
    next_clip=next_clip,
    epsilon=tf.where(cohort_size > 0, math.inf if config.noise.placement == 'none' else epsilon, 0.0),
    noise_multiplier=tf.where(noised, noise_multiplier, 0.0),
    sigma=tf.where(noised, noise_multiplier / size * clip, 0.0),
    cohort_size=cohort_size,
    participation=participation,
    budget=new_rule_state,
    client_ids=client_ids,
    shares=client_shares(config, config.budget.factor(round_num) * client_epsilons),
    reports=collections.OrderedDict(
      zip(_NORM_QUANTILES, tf.unstack(clip_rules.quantile(norms, list(_NORM_QUANTILES.values())))),
      clipped_fraction=tf.math.divide_no_nan(clipped, finite),
      non_finite_updates=cohort_size - tf.cast(finite, tf.int32),
    ),
  )


def client_shares(config: configs.QuapConfig, client_epsilons: Any) -> Any:
  """s_i of the cohort from its budgets ε_i(t), which are float[M], a tensor or an array."""
  return config.weighting.shares(
    client_epsilons, lambda budgets: gaussian.noise_multiplier(config.noise.calibration, budgets, config.noise.delta)
  )


def round_noise(
  config: configs.QuapConfig,
  rates: tf.Tensor,
  in_warmup: Any,
  client_epsilons: Optional[tf.Tensor] = None,
  budget_factor: Any = 1.0,
) -> tuple[tf.Tensor, tf.Tensor]:
  """The budget of a round and its noise.

  Args:
    config: The mechanism.
    rates: float32[M], p_i(t) of the cohort.
    in_warmup: Whether t is a warm-up round.
    client_epsilons: float32[M], ε_i(t) of the cohort before `budget_factor`; by default they follow from the rates.
    budget_factor: f_t of the schedule, which multiplies all budgets.

  Returns:
    (ε_t, z_t), float32 scalars: z_t is σ of the noise on the sum of updates over C_t. Under client placement, and under
    the round budget rule 'each_own', ε_t is the mean of the clients' budgets, and z_t is the noise multiplier of the
    sum of their noises, √Σz(ε_i)². z_t has no meaning for an empty cohort or without noise.
  """
  if client_epsilons is None:
    client_epsilons = budgets.client_budgets(config.budget, rates, in_warmup)
  if config.noise.placement == 'client' or config.budget.round_rule == 'each_own':
    own = budget_factor * client_epsilons
    epsilon = tf.math.divide_no_nan(tf.reduce_sum(own), tf.cast(tf.size(rates), tf.float32))
    return epsilon, tf.norm(client_shares(config, own) * _multiplier(config, own))
  epsilon = budget_factor * budgets.round_budget(config.budget, rates, in_warmup, client_epsilons)
  return epsilon, _multiplier(config, epsilon)


def robust_total(config: configs.QuapConfig, updates: list[tf.Tensor]) -> list[tf.Tensor]:
  """M times the robust aggregate, which takes the place of the sum of the clipped updates; zero for an empty cohort.

  Args:
    config: The mechanism.
    updates: For each tensor of shape S of a clipped update, float[M, *S].
  """
  size = tf.shape(updates[0])[0]
  # An empty cohort has no median. It is replaced by one update of zero.
  present = [
    tf.cond(size > 0, lambda one=one: one, lambda one=one: tf.zeros([1, *one.shape[1:]], one.dtype)) for one in updates
  ]
  return [one * tf.cast(size, one.dtype) for one in config.aggregator.centre(present)]


def finish_round(
  config: configs.QuapConfig,
  critical: Sequence[int],
  state: ServerState,
  plan: RoundPlan,
  total: list[tf.Tensor],
  total_client_noise: list[tf.Tensor],
  scale: Any = 1.0,
) -> tuple[ServerState, list[tf.Tensor], 'collections.OrderedDict[str, tf.Tensor]']:
  """The mean update with its noise, the state after the round, and the round's measurements.

  The norms of signal and noise, like the quantiles of the norms, are exact functions of the clients' data. The papers
  log them, and no privacy figure covers them.

  Args:
    config: The mechanism.
    critical: Positions of the critical tensors.
    state: Server state after round t-1.
    plan: What `plan_round` decided.
    total: Sum of the clipped updates, in units of w_global - w_local.
    total_client_noise: Under client placement, the sum of the clients' noise on the critical tensors, float64; else
      empty.
    scale: The unit of norms: updates are divided by it before clipping and multiplied by it after noise.

  Returns:
    (state after round t, mean update, measurements).
  """
  size = tf.maximum(tf.cast(plan.cohort_size, tf.float32), 1.0)
  mean = [u / tf.cast(size * scale, u.dtype) for u in total]
  signal = [mean[i] for i in critical]
  if config.noise.placement == 'server':
    noise = _noise(_round_seed(state, _SERVER_NOISE), signal, plan.sigma)
  elif config.noise.placement == 'client':
    noise = [n / tf.cast(size, tf.float64) for n in total_client_noise]
  else:
    noise = [tf.zeros_like(s, tf.float64) for s in signal]
  for index, drawn in zip(critical, noise):
    mean[index] = tf.cast(tf.cast(mean[index], tf.float64) + drawn, mean[index].dtype)
  if config.max_agg_norm is not None:
    mean = clip_rules.scaled_down(
      mean, clip_rules.clip_factor(clip_rules.global_norm(mean), tf.constant(config.max_agg_norm, tf.float32))
    )

  round_num = state.round + 1
  new_state = ServerState(
    round=round_num,
    participation=plan.participation,
    clip=plan.next_clip,
    noise=state.noise._replace(counter=state.noise.counter + tf.cast(plan.cohort_size > 0, tf.int64)),
    budget=config.budget.rule.after_round(plan.budget, [mean[i] for i in critical], plan.cohort_size),
  )
  signal_norm, noise_norm = (tf.cast(clip_rules.global_norm(part), tf.float32) for part in (signal, noise))
  measurements = collections.OrderedDict(
    round=round_num,
    cohort_size=plan.cohort_size,
    epsilon=plan.epsilon,
    clipping_norm=plan.clip,
    noise_multiplier=plan.noise_multiplier,
    sigma=plan.sigma,
    **plan.reports,
    signal_norm=signal_norm,
    noise_norm=noise_norm,
    noise_to_signal=tf.where(noise_norm > 0, noise_norm / signal_norm, 0.0),
  )
  for name, value in participations.statistics(config.participation, plan.participation, round_num).items():
    measurements[f'participation_{name}'] = value
  return new_state, [u * tf.cast(scale, u.dtype) for u in mean], measurements


def _multiplier(config, epsilon):
  return config.noise.scale * gaussian.noise_multiplier(config.noise.calibration, epsilon, config.noise.delta)


def _round_seed(state, use):
  return seeds.fold_in(state.noise.seed, state.noise.counter, tf.constant(use, tf.int64))


def _noise(seed, tensors, stddev):
  return [
    gaussian.noise(seeds.fold_in(seed, tf.constant(index, tf.int64)), tf.shape(t), stddev)
    for index, t in enumerate(tensors)
  ]


def checked_ids(config: Any, client_ids: tf.Tensor) -> tf.Tensor:
  """int64[M] `client_ids`, checked.

  Raises:
    tf.errors.InvalidArgumentError: When run, if an id is outside [0, config.num_clients) or appears twice.
  """
  ordered = tf.sort(client_ids)
  checks = [
    tf.debugging.assert_non_negative(
      client_ids, f'Client ids must lie in [0, {config.num_clients}) (-1: not exactly one id); found'
    ),
    tf.debugging.assert_less(
      client_ids,
      tf.constant(config.num_clients, tf.int64),
      f'Client ids must lie in [0, {config.num_clients}), the configured population; found',
    ),
    tf.debugging.assert_greater(
      ordered[1:], ordered[:-1], 'A client appears twice in the cohort (each client takes part at most once a round);'
    ),
  ]
  # In eager mode a failed check has already raised, and there is nothing to depend on.
  with tf.control_dependencies([check for check in checks if check is not None]):
    return tf.identity(client_ids)
