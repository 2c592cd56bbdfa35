"""One round of the certified mechanism, as pure TensorFlow: what `quap_tff.federated.certified_aggregation` federates.

Neighbours: all data of one client are replaced by nothing, so that its update is zero. Who takes part when is known.

  server:    w_i(t) from who takes part, lowered by the filter         `plan_round`
  client i:  u_i = g_i clipped to norm w_i(t)·C_t                      `contribute`
  server:    C_{t+1} from the norms, if the clip rule counts them      `next_clip`
             (Σ u_i + C_t·Ẑ_t) / D                                     `finish_round`

The noise Ẑ_t takes back a part of what earlier rounds added: Σ_k c_k·Ẑ_{t-k} = Z_t, with Z_t drawn anew from N(0, z²·I)
(`quap_tff.mechanisms.correlation`; under independent noise Ẑ_t = Z_t). The releases can be transformed so that round t has the
noise Z_t. Client i then moves round t by at most Σ_{k, i∈S_{t-k}} c_k·w_i(t-k) units of the clipping norm, whatever C_t
was in each round. docs/privacy.md has the proof. A private quantile's noised count is a second mechanism beside this
one. C_t is known before the round, from earlier releases.

If nobody may add anything in a round, the round releases nothing at all. This is so when the cohort is empty, or when
all its clients have spent their budgets, and it follows from who takes part. The result is then zero, and the clipping
norm, the noise counter and the buffers stay as they are. t above counts only the rounds that release something.

Arithmetic: norms and sums are float64. Clients clip to (1 - `CLIP_MARGIN`)·w·C. The margin is room for the rounding of
the clipped entries, of σ, and of a sum over M clients, which is at most 2·M²·2^-53·C. So for M up to a thousand and
weights from 0.001, one client moves the sum by at most w·C in floating-point numbers, and not only in real numbers.
"""

import collections
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

import tensorflow as tf

from quap_tff.common import seeds
from quap_tff.mechanisms import certified_config as configs
from quap_tff.mechanisms import clip_rules
from quap_tff.mechanisms import clip_split
from quap_tff.mechanisms import gaussian
from quap_tff.mechanisms import participation as participations
from quap_tff.mechanisms import planning
from quap_tff.mechanisms import privacy_filter
from quap_tff.mechanisms import quap_round as quap_mechanism

# A relative margin. The docstring above explains it.
CLIP_MARGIN = 2.0**-20

# The uses of a round's seed. They are folded in after the counter and the cohort, so that no numbers are drawn twice.
_CLIP_RULE, _NOISE = range(2)


class ServerState(NamedTuple):
  """The server's state between rounds.

  Attributes:
    round: int32 scalar, the number of finished rounds.
    participation: `counts` int32[N], and `rates` float32[N] under EMA rates.
    clip: float32 scalar, C of the next round.
    noise: The seed of the noise, and the number of rounds that have drawn noise, which is the number of releases.
    buffers: For each tensor of shape S in an update, float64[d, *S]: Σ_k decay_j^(k-1)·Ẑ_{t-k}. The noise of the next
      round takes a part of this back. Empty under independent noise.
    accounts: What each client has spent.
    weights: float32[N], w_i of the latest round, or 0 for a client that was not in it.
  """

  round: tf.Tensor
  participation: 'collections.OrderedDict[str, tf.Tensor]'
  clip: tf.Tensor
  noise: quap_mechanism.NoiseState
  buffers: list[tf.Tensor]
  accounts: privacy_filter.Accounts
  weights: tf.Tensor


class RoundPlan(NamedTuple):
  """Everything that round t decides before it sums updates. Everything except `next_clip` follows from who takes part.

  Attributes:
    client_ids: int64[M], the cohort.
    weights: float32[M], w_i(t).
    releases: bool scalar, whether anybody may add anything.
    next_clip: float32 scalar, C of the next round.
    participation: The participation state after the round.
    accounts: All clients' accounts after the round.
    seed: int64[2], the seed of the round.
  """

  client_ids: tf.Tensor
  weights: tf.Tensor
  releases: tf.Tensor
  next_clip: tf.Tensor
  participation: 'collections.OrderedDict[str, tf.Tensor]'
  accounts: privacy_filter.Accounts
  seed: tf.Tensor


def initial_state(config: configs.CertifiedConfig, shapes: Sequence[Any]) -> ServerState:
  """The server's state before round 1.

  Args:
    config: The mechanism.
    shapes: The static shapes of an update's tensors.
  """
  d = config.correlation.num_buffers
  return ServerState(
    round=tf.constant(0, tf.int32),
    participation=quap_mechanism.initial_participation(config),
    clip=tf.constant(config.clip.initial_norm, tf.float32),
    noise=quap_mechanism.initial_noise(config.noise_seed),
    buffers=[tf.zeros([d, *shape], tf.float64) for shape in shapes] if d else [],
    # Made by tf.zeros, so that the graph does not contain whole arrays.
    accounts=tf.nest.map_structure(lambda one: tf.zeros([config.num_clients], one.dtype), privacy_filter.opened(0, d)),
    weights=tf.zeros([config.num_clients], tf.float32),
  )


def update_norm(groups: Sequence[clip_split.ClipGroup], update: list[tf.Tensor]) -> tf.Tensor:
  """The smallest C at which clipping leaves the update unchanged: max_l ‖u_l‖/r_l, float32.

  It is not finite if an entry of the update is not finite.
  """
  norms = _group_norms(groups, update)
  largest = tf.reduce_max([norm / group.ratio for group, norm in zip(groups, norms)])
  return tf.cast(tf.where(_all_finite(norms), largest, float('nan')), tf.float32)


def plan_round(
  config: configs.CertifiedConfig, state: ServerState, client_ids: tf.Tensor, norms: Optional[tf.Tensor] = None
) -> RoundPlan:
  """Everything that round t decides before it sums updates.

  Args:
    config: The mechanism.
    state: Server state after round t-1.
    client_ids: int64[M], the cohort.
    norms: float32[M], from `update_norm`, if `config.counts_norms` and they are known by now. If they come later, the
      caller replaces the plan's `next_clip` by that of `next_clip`.

  Raises:
    tf.errors.InvalidArgumentError: When it runs, if an id is outside [0, N) or appears twice.
  """
  client_ids = quap_mechanism.checked_ids(config, client_ids)
  round_num = state.round + 1
  release = state.noise.counter
  participation = participations.next_state(config.participation, state.participation, client_ids, round_num)
  own = tf.nest.map_structure(lambda part: tf.gather(part, client_ids), state.accounts)
  prices = privacy_filter.prices_of(config.prices, client_ids)
  cohort_participation = participations.of_clients(participation, client_ids)
  view = planning.round_view(config, prices, cohort_participation, own, release, round_num, client_ids)
  weights, own = privacy_filter.spend(prices, own, release, view.rounds_left, config.weights.weights(view))

  places = client_ids[:, tf.newaxis]
  plan = RoundPlan(
    client_ids=client_ids,
    weights=weights,
    releases=tf.reduce_any(weights > 0),
    next_clip=state.clip,
    participation=participation,
    accounts=tf.nest.map_structure(
      lambda part, new: tf.tensor_scatter_nd_update(part, places, new), state.accounts, own
    ),
    seed=_round_seed(state, client_ids),
  )
  return plan if norms is None else plan._replace(next_clip=next_clip(config, state, plan, norms, weights))


def next_clip(
  config: configs.CertifiedConfig, state: ServerState, plan: RoundPlan, norms: tf.Tensor, weights: tf.Tensor
) -> tf.Tensor:
  """C of the next round, a float32 scalar.

  Args:
    config: The mechanism.
    state: Server state after round t-1.
    plan: What `plan_round` decided.
    norms: float32[M], from `update_norm`, in any order of the clients.
    weights: float32[M], w_i(t), in the same order. Only clients with a positive weight count.
  """
  if not config.counts_norms:
    return state.clip
  counted = tf.boolean_mask(norms, weights > 0)
  moved = config.clip.next_norm(state.clip, counted, seeds.fold_in(plan.seed, tf.constant(_CLIP_RULE, tf.int64)))
  return tf.minimum(moved, configs.LARGEST_CLIP)


def contribute(
  groups: Sequence[clip_split.ClipGroup], update: list[tf.Tensor], weight: tf.Tensor, clip: tf.Tensor
) -> list[tf.Tensor]:
  """What the client adds to the sum: its update, each group clipped to norm r_l·w·C·(1 - `CLIP_MARGIN`).

  | update             | weight | result                        |
  | any entry NaN, inf | any    | exact zeros in every tensor   |
  | any                | 0      | exact zeros                   |
  | zero               | any    | exact zeros                   |
  | within the bounds  | > 0    | the update, bit for bit       |

  Args:
    groups: The groups, which hold each tensor once.
    update: Tensors of float32 or float64.
    weight: w_i(t), float32 scalar in [0, 1].
    clip: C_t, float32 scalar.
  """
  norms = _group_norms(groups, update)
  keeps = _all_finite(norms)
  bound = tf.cast(weight, tf.float64) * tf.cast(clip, tf.float64) * (1 - CLIP_MARGIN)
  result = list(update)
  for group, norm in zip(groups, norms):
    within = norm <= group.ratio * bound
    factor = group.ratio * bound / tf.where(within, tf.ones_like(norm), norm)
    for index in group.indices:
      tensor = update[index]
      clipped = tf.where(within, tensor, tf.cast(tf.cast(tensor, tf.float64) * factor, tensor.dtype))
      result[index] = tf.where(keeps, clipped, tf.zeros_like(tensor))
  return result


def finish_round(
  config: configs.CertifiedConfig, state: ServerState, plan: RoundPlan, total: list[tf.Tensor]
) -> tuple[ServerState, list[tf.Tensor], 'collections.OrderedDict[str, tf.Tensor]']:
  """The released sum divided by D, the state after the round, and measurements.

  Args:
    config: The mechanism.
    state: Server state after round t-1.
    plan: What `plan_round` decided.
    total: Sum of the contributions, float64 tensors.

  Returns:
    (state after round t, float64 tensors, measurements). All measurements are functions of public values. Some of them:
    `weight_mean` and `weight_min` are over the cohort, and 0 if it is empty. `exhausted_clients` is how many clients of
    the cohort have weight 0. `spent_max` is the largest share of the limit on μ² that any client has spent. `sigma` is
    the standard deviation of the noise that the round draws for each entry of the result.
  """
  weights = plan.weights
  clip = tf.cast(state.clip, tf.float64)
  noise_multiplier = tf.where(plan.releases, tf.constant(config.noise_multiplier, tf.float64), 0.0)
  noise, buffers = _correlated_noise(config, state, plan, total, noise_multiplier)
  mean = [(part + clip * own) / config.divisor for part, own in zip(total, noise)]

  round_num = state.round + 1
  new_state = ServerState(
    round=round_num,
    participation=plan.participation,
    clip=plan.next_clip,
    noise=state.noise._replace(counter=state.noise.counter + tf.cast(plan.releases, tf.int64)),
    buffers=buffers,
    accounts=plan.accounts,
    weights=tf.scatter_nd(plan.client_ids[:, tf.newaxis], weights, [tf.constant(config.num_clients, tf.int64)]),
  )
  size = tf.size(weights)
  measurements = collections.OrderedDict(
    round=round_num,
    cohort_size=size,
    clipping_norm=state.clip,
    noise_multiplier=tf.cast(noise_multiplier, tf.float32),
    sigma=tf.cast(noise_multiplier * clip / config.divisor, tf.float32),
    exhausted_clients=tf.reduce_sum(tf.cast(tf.equal(weights, 0), tf.int32)),
    weight_mean=tf.math.divide_no_nan(tf.reduce_sum(weights), tf.cast(size, tf.float32)),
    weight_min=tf.where(size > 0, tf.reduce_min(weights), 0.0),
    spent_max=tf.cast(tf.reduce_max(plan.accounts.spent / config.prices.limit), tf.float32),
  )
  for name, value in participations.statistics(config.participation, plan.participation, round_num).items():
    measurements[f'participation_{name}'] = value
  return new_state, mean, measurements


def _correlated_noise(config, state, plan, total, noise_multiplier):
  """Ẑ_t for each tensor of `total`, in units of the clipping norm (zero without a release), and the new buffers."""
  gains, decays = config.correlation.gains, config.correlation.decays
  seed = seeds.fold_in(plan.seed, tf.constant(_NOISE, tf.int64))
  noise, buffers = [], []
  for index, part in enumerate(total):
    drawn = gaussian.noise(seeds.fold_in(seed, tf.constant(index, tf.int64)), tf.shape(part), noise_multiplier)
    if len(gains):
      before = state.buffers[index]
      drawn = tf.where(plan.releases, drawn - tf.tensordot(gains, before, 1), tf.zeros_like(drawn))
      moved = tf.reshape(decays, [-1] + [1] * part.shape.rank) * before + drawn
      buffers.append(tf.where(plan.releases, moved, before))
    noise.append(drawn)
  return noise, buffers


def _round_seed(state, client_ids):
  # The seed depends on the cohort, too. A round that is tried again with other clients must not draw noise that was
  # already used: the difference of the two results would then be the difference of the bare sums.
  cohort = tf.strings.reduce_join(tf.strings.as_string(tf.sort(client_ids)), separator=',')
  return seeds.fold_in(state.noise.seed, state.noise.counter, tf.strings.to_hash_bucket_fast(cohort, 2**62))


def _group_norms(groups, update):
  return [clip_rules.global_norm([update[i] for i in group.indices]) for group in groups]


def _all_finite(norms):
  return tf.reduce_all(tf.math.is_finite(tf.stack(norms)))
