"""One round of the certified mechanism. `quap_tff.mechanisms.certified.config.CertifiedConfig` is its value.

Neighbours: all data of one client are replaced by nothing, so that its update is zero. Who takes part when is known.

  server:    the weight w_i(t) that each client has if it comes        `announce`
  client i:  its id; and its norm, if the clip rule counts norms       `report`
             u_i = g_i clipped to norm w_i(t)·C_t                      `contribution`
  server:    charges those who came; C_{t+1}                           `admit`
             (Σ u_i + C_t·Ẑ_t) / D                                     `release`

w_i(t) is lowered by the filter to what is left of the client's budget. It follows from the state alone: from the
client's own account and participation, and from the number of releases. So everyone's weight can be announced before
anybody comes, and a round has one level of aggregation.

The noise Ẑ_t takes back a part of what earlier rounds added: Σ_k c_k·Ẑ_{t-k} = Z_t, with Z_t drawn anew from N(0, z²·I)
(`quap_tff.mechanisms.noise.correlation`; under independent noise Ẑ_t = Z_t). The releases can be transformed so that
round t has the noise Z_t. Client i then moves round t by at most Σ_{k, i∈S_{t-k}} c_k·w_i(t-k) units of the clipping
norm, whatever C_t was in each round. docs/proofs.md has the proof. A private quantile's noised count is a second
mechanism alongside this one. C_t is known before the round, from earlier releases.

If nobody may add anything in a round, the round releases nothing at all. This is so when the cohort is empty, or when
all its clients have spent their budgets, and it follows from who takes part. The result is then zero, and the clipping
norm, the noise counter and the buffers stay as they are. t above counts only the rounds that release something.

Clipping, sums and noise are whole numbers on a grid (`quap_tff.mechanisms.noise.integers`): the account is about what
is computed.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
import math
from typing import NamedTuple, Optional

import numpy as np
import tensorflow as tf

from quap_tff.common import array_types
from quap_tff.common.numbers import chacha20
from quap_tff.common.numbers import seeds
from quap_tff.mechanisms import mechanism
from quap_tff.mechanisms.certified import config as configs
from quap_tff.mechanisms.certified import guarantee
from quap_tff.mechanisms.certified import planning
from quap_tff.mechanisms.certified import privacy_filter
from quap_tff.mechanisms.noise import integers
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.parts import layers as layers_lib
from quap_tff.mechanisms.parts import participation as participations

# How many rounds and clients `check_weights` compares, and how much their weights may differ.
_COMPARED_ROUNDS, _COMPARED_CLIENTS, _SAME_WEIGHT = 3, 4, 1e-6
# How many clients' weights are computed at once.
_BLOCK = 2**16


class CertifiedState(NamedTuple):
  """The server's state between rounds.

  Attributes:
    round: int32 scalar, the number of finished rounds.
    participation: `counts` int32[N], and `rates` float32[N] under EMA rates.
    clip: float32 scalar, C of the next round.
    noise: The key of the noise, int64[4], and the number of rounds that have drawn noise: the number of releases.
    buffers: What the d buffers of the correlation hold of earlier noise: sums of exponentials, or the noise of each of
      the last releases, one int64[d, weights]. The noise of the next round takes a part of this back. Empty under
      independent noise.
    accounts: Each client's account.
    weights: float32[N], w_i of the latest round, or 0 for a client that was not in it.
  """

  round: tf.Tensor
  participation: mechanism.Struct
  clip: tf.Tensor
  noise: mechanism.NoiseState
  buffers: list[tf.Tensor]
  accounts: privacy_filter.Accounts
  weights: tf.Tensor


class RoundsInIntegers(mechanism.Rounds):
  """The part that the rounds of both certified mechanisms share.

  Attributes:
    core: The mechanism.
    config: Its configuration.
    groups: The tensors that are clipped together.
    grid: The grid of its integers.
  """

  core: guarantee.Guarantee
  config: guarantee.GuaranteeConfig

  reports_by_sum = True

  def __init__(self, core: guarantee.Guarantee, specs: mechanism.Specs, layers: Sequence[layers_lib.Layer]):
    if any(spec.dtype not in (tf.float32, tf.float64) for spec in specs):
      raise TypeError(
        f'Updates must be float32 or float64, found {[spec.dtype.name for spec in specs]}. With fewer bits, rounding '
        'could make an update larger than its clipping norm.'
      )
    self.core, self.config, self.specs = core, core.config, specs
    self._sizes = [math.prod(spec.shape) for spec in specs]
    self.groups = layers_lib.clip_groups(self.config.clip_split, self._sizes, layers)
    core.slack(sum(self._sizes))  # Refuses what cannot be paid for.
    self.grid = core.grid(sum(self._sizes))

  def _norms(self, update: mechanism.Parts) -> list[tf.Tensor]:
    norms = []
    for group in self.groups:
      norms.append(clip_rules.global_norm([update[i] for i in group.indices]))
    return norms

  def _least_clip(self, update: list[tf.Tensor]) -> tf.Tensor:
    """The smallest C at which clipping to C leaves the update unchanged: max_l ‖u_l‖/r_l, float32.

    It is not finite if an entry of the update is not finite.
    """
    norms = self._norms(dict(enumerate(update)))
    largest = tf.reduce_max([norm / group.ratio for group, norm in zip(self.groups, norms)])
    keeps = tf.reduce_all(tf.math.is_finite(tf.stack(norms)))
    return tf.cast(tf.where(keeps, largest, float('nan')), tf.float32)

  def _on_grid(self, update: mechanism.Parts, weight: tf.Tensor, clip: tf.Tensor) -> list[tf.Tensor]:
    """The update on the grid, each group clipped to norm r_l·w·C."""
    return self.grid.summands(list(update.values()), self._norms(update), self.groups, weight, clip)


class TrustedRounds(RoundsInIntegers):
  """The part that rounds share in which a trusted server adds the noise."""

  def __init__(self, core: guarantee.Guarantee, specs: mechanism.Specs, layers: Sequence[layers_lib.Layer]):
    super().__init__(core, specs, layers)
    # An entry of a client has at most K steps, and nobody is in a sum twice: such sums do not overflow.
    largest_sum = self.grid.steps * self.config.num_clients
    self.sum_dtype = np.int32 if largest_sum < 2**31 else np.int64

  def initial_noise(self, seed: Optional[int]) -> mechanism.NoiseState:
    key = chacha20.initial_key(seed, seeds.STREAMS['mechanism'])
    return mechanism.NoiseState(seed=key, counter=tf.constant(0, tf.int64))

  def sum_unit(self, clip: float) -> float:
    return clip / self.grid.steps

  def _noised_mean(self, total: list[tf.Tensor], noise: tf.Tensor, clip: tf.Tensor) -> list[tf.Tensor]:
    """The sums with their noise, int64[d], in units of updates at clipping norm C, float64 scalar; divided by D."""
    step = clip / self.grid.steps
    # Noise is added while all are integers: in floats, the sum would be rounded in a way that depends on data.
    noises = tf.split(noise, self._sizes)
    result = []
    for part, own, spec in zip(total, noises, self.specs):
      noised = tf.cast(part, tf.int64) + tf.reshape(own, part.shape)
      mean = tf.cast(noised, tf.float64) * step / self.core.divisor
      result.append(tf.cast(mean, spec.dtype))
    return result

  def round_key(self, noise: mechanism.NoiseState, client_ids: tf.Tensor) -> tf.Tensor:
    """The key of a round's noise, int64[4]. It depends on the cohort, too.

    A round that is tried again with other clients must not draw noise that was already used: the difference of the two
    results would then be the difference of the bare sums.
    """
    limit = tf.constant(self.config.most_releases, tf.int64)
    check = tf.debugging.assert_less(noise.counter, limit, 'The run has more rounds than the account of rounding.')
    # Sorted, so that the order in which clients come changes nothing.
    ids = tf.sort(after_checks(client_ids, check))
    cohort = tf.strings.reduce_join(tf.strings.as_string(ids), separator=',')
    words = tf.bitcast(tf.strings.to_hash_bucket_fast(cohort, 2**62), tf.uint32)
    nonce = chacha20.nonce(noise.counter, words[0], words[1])
    return chacha20.derived_key(noise.seed, nonce)


class CertifiedRounds(TrustedRounds):
  """The functions of a trusted server's certified mechanism for updates of known tensors."""

  core: configs.Certified
  config: configs.CertifiedConfig

  def __init__(self, core: configs.Certified, specs: mechanism.Specs, layers: Sequence[layers_lib.Layer]):
    super().__init__(core, specs, layers)
    self._is_scaled = type(self.config).noise_scale is not guarantee.GuaranteeConfig.noise_scale

  def initial_state(self) -> mechanism.State:
    config = self.config
    of_nobody = privacy_filter.opened(0, config.correlation.num_buffers)
    # Made by tf.zeros, so that the graph does not contain whole arrays.
    accounts = tf.nest.map_structure(lambda part: tf.zeros([config.num_clients], part.dtype), of_nobody)
    return CertifiedState(
      round=tf.constant(0, tf.int32),
      participation=mechanism.initial_participation(config),
      clip=tf.constant(self.core.clip.initial_norm, tf.float32),
      noise=self.initial_noise(config.noise_seed),
      buffers=self.grid.initial_buffers(),
      accounts=accounts,
      weights=tf.zeros([config.num_clients], tf.float32),
    )

  def announce(self, state: mechanism.State) -> mechanism.Struct:
    """C_t, and `weights` float32[N], the weight that each client has if it comes; and `noise_scale` if it is not 1."""
    message = collections.OrderedDict(clip=state.clip, weights=self._weights(state))
    if self._is_scaled:
      message['noise_scale'] = self._scale(state)
    return message

  def _scale(self, state: CertifiedState) -> tf.Tensor:
    return tf.cast(self.config.noise_scale(state.round + 1), tf.float64)

  def _weights(self, state: CertifiedState) -> tf.Tensor:
    """float32[N]; in blocks, so that a large population needs no arrays of its size for each step."""
    count = self.config.num_clients
    if count <= _BLOCK:
      return self._weights_of(state, tf.range(count, dtype=tf.int64))
    starts = tf.range(0, count, _BLOCK, dtype=tf.int64)

    def block(start: tf.Tensor) -> tf.Tensor:
      ids = start + tf.range(_BLOCK, dtype=tf.int64)
      # The last block goes on with the last client, so that all blocks have one size. What is too much is cut off.
      return self._weights_of(state, tf.minimum(ids, count - 1))

    spec = tf.TensorSpec([_BLOCK], tf.float32)
    # One block at a time: more of them would need the memory that blocks are there to save.
    weights = tf.map_fn(block, starts, fn_output_signature=spec, parallel_iterations=1)
    return tf.reshape(weights, [-1])[:count]

  def _weights_of(self, state: CertifiedState, ids: tf.Tensor) -> tf.Tensor:
    config, round_num, release = self.config, state.round + 1, state.noise.counter
    accounts = _accounts_of(state, ids)
    prices = self.core.prices_of(self.core.prices, ids, round_num)
    participation = participations.for_clients(state.participation, ids)
    places = tf.range(tf.size(ids, tf.int64), dtype=tf.int64)
    # A weight is announced for the case that the client comes, so each counts as one that did.
    as_if_all_came = participations.next_state(config.participation, participation, places, round_num)
    view = planning.round_view(self.core, prices, as_if_all_came, accounts, release, round_num, ids)
    asked = config.weights.weights(view)
    weights, _ = privacy_filter.spend(prices, accounts, release, view.rounds_left, asked)
    return weights

  def report(self, update: list[tf.Tensor], own: mechanism.Struct, announced: mechanism.Struct) -> mechanism.Struct:
    """The id; and where norms are counted, the smallest C at which clipping to C leaves the update unchanged."""
    report = collections.OrderedDict(client_id=own['client_id'])
    if self.config.counts_norms:
      report['norm'] = self._least_clip(update)
    return report

  def contribution(
    self,
    update: mechanism.Parts,
    report: mechanism.Struct,
    announced: mechanism.Struct,
    clip: Optional[tf.Tensor] = None,
  ) -> list[tf.Tensor]:
    """The update, each group clipped to norm r_l·w·C, on the grid.

    | update             | weight | contribution                                            |
    | any entry NaN, inf | any    | exact zeros in every tensor                             |
    | any                | 0      | exact zeros                                             |
    | zero               | any    | exact zeros                                             |
    | within the bounds  | > 0    | the update, rounded to the grid                         |
    """
    # `admit` refuses an id out of range with a clear message, so looking up its weight must not fail first.
    client_id = tf.clip_by_value(report['client_id'], 0, self.config.num_clients - 1)
    weight = tf.cast(tf.gather(announced['weights'], client_id), tf.float64)
    # The noise has one size on the grid. Where it is to be larger, the grid's steps are.
    scale = tf.cast(announced.get('noise_scale', 1.0), tf.float64)
    unit = tf.cast(announced['clip'], tf.float64) * scale
    return self._on_grid(update, weight / scale, unit)

  def admit(
    self, state: mechanism.State, announced: mechanism.Struct, reports: mechanism.Struct
  ) -> mechanism.AdmittedRound:
    """The metrics are functions of public values.

    `weight_mean` and `weight_min` are over the cohort, and 0 if it is empty. `exhausted_clients` is how many clients of
    the cohort have weight 0. `spent_max` is the largest share of the limit on μ² that any client has spent. `sigma` is
    the standard deviation of the noise that the round draws for each entry of the result.
    """
    config = self.config
    client_ids = mechanism.checked_ids(config.num_clients, reports['client_id'])
    round_num, release = state.round + 1, state.noise.counter
    participation = participations.next_state(config.participation, state.participation, client_ids, round_num)
    weights = tf.gather(announced['weights'], client_ids)
    prices = self.core.prices_of(self.core.prices, client_ids, round_num)
    rounds_left = config.rounds_left(round_num)
    charged = privacy_filter.charged(prices, _accounts_of(state, client_ids), release, rounds_left, weights)
    places = client_ids[:, tf.newaxis]
    accounts = tf.nest.map_structure(
      lambda whole, part: tf.tensor_scatter_nd_update(whole, places, part), state.accounts, charged
    )
    clip = state.clip
    if config.counts_norms:
      # Only clients with a positive weight count.
      counted = tf.boolean_mask(reports['norm'], weights > 0)
      key = self.round_key(state.noise, client_ids)
      moved = self.core.clip.next_norm(clip, counted, lambda stddev: integers.count_noise(key, stddev))
      clip = tf.minimum(moved, guarantee.LARGEST_CLIP)
    # A round that releases nothing has shown no noise, so the next one takes its number.
    releases = tf.cast(tf.reduce_any(weights > 0), tf.int64)
    noise = state.noise._replace(counter=state.noise.counter + releases)
    after = state._replace(clip=clip, noise=noise, accounts=accounts)
    largest_share = tf.reduce_max(privacy_filter.share_of(config.limit, accounts.spent))
    spent_max = tf.cast(largest_share, tf.float32)
    return admitted(self.core, client_ids, weights, participation, state, after, spent_max=spent_max)

  def release(
    self, state: mechanism.State, admitted: mechanism.AdmittedRound, total: list[tf.Tensor]
  ) -> tuple[mechanism.State, list[tf.Tensor], mechanism.Struct]:
    releases = admitted.noise_multiplier > 0
    key = self.round_key(state.noise, admitted.client_ids)
    noise, moved = self.grid.noise(key, state.buffers)
    # If nobody may add anything, all sums are zero, and nothing is released.
    noise = tf.where(releases, noise, tf.zeros_like(noise))
    buffers = [tf.where(releases, new, old) for new, old in zip(moved, state.buffers)]
    unit = tf.cast(state.clip, tf.float64) * self._scale(state)
    result = self._noised_mean(total, noise, unit)
    return admitted.after._replace(buffers=buffers), result, admitted.metrics


def check_weights(core: configs.Certified) -> None:
  """Compares the weight rule's weights in TensorFlow with those in NumPy, over three rounds of a few clients.

  Rounds compute with tensors, and plans and verification with arrays. A rule for one of them only gives weights that no
  verification can compute again.

  Raises:
    ValueError: If the weights differ, or the rule fails for tensors.
  """
  config = core.config
  count = config.num_rounds if config.num_rounds is not None else _COMPARED_ROUNDS
  ids = np.arange(min(config.num_clients, _COMPARED_CLIENTS))
  cohorts = [ids] * min(count, _COMPARED_ROUNDS)
  name, kept = type(config.weights).__name__, list[np.ndarray]()
  remedy = (
    'Write it by the functions of quap_tff.common.numbers.arrays, which take both: `xp = arrays.namespace(view.rates)`.'
  )
  # Outside of any graph that is being built, so that the weights are numbers.
  with tf.init_scope():
    one_weight = [tf.TensorSpec([1], tf.float32)]
    rounds = CertifiedRounds(core, one_weight, layers_lib.from_shapes([(1,)]))
    state = rounds.initial_state()
    for number in range(1, len(cohorts) + 1):
      try:
        given = rounds.announce(state)['weights'].numpy()[ids]
      except Exception as error:  # The rule is anybody's.
        raise ValueError(f'Weight rule {name} fails for tensors ({type(error).__name__}: {error}). {remedy}') from error
      expected = core.simulated(cohorts[:number], kept)[-1].weights
      differs = ~np.isclose(given, expected, rtol=_SAME_WEIGHT, atol=0)
      if differs.any():
        client = int(np.argmax(differs))
        raise ValueError(
          f'Weight rule {name} gives client {client} the weight {given[client]:g} in round {number} for tensors, '
          f'and {expected[client]:g} for arrays, so nobody could verify it. {remedy}'
        )
      kept.append(given)
      reports = collections.OrderedDict(client_id=tf.constant(ids, tf.int64), norm=tf.ones(len(ids)))
      state = rounds.admit(state, rounds.announce(state), reports).after


def _accounts_of(state: CertifiedState, client_ids: tf.Tensor) -> privacy_filter.Accounts:
  return tf.nest.map_structure(lambda part: tf.gather(part, client_ids), state.accounts)


def after_checks(value: tf.Tensor, *checks: Optional[tf.Operation]) -> tf.Tensor:
  """`value`, once the checks have passed. In eager mode a failed one has already raised, and the others are None."""
  with tf.control_dependencies([check for check in checks if check is not None]):
    return tf.identity(value)


def admitted(
  core: guarantee.PublicCohorts,
  client_ids: tf.Tensor,
  weights: tf.Tensor,
  participation: array_types.Structure,
  state: mechanism.State,
  after: mechanism.State,
  **more: tf.Tensor,
) -> mechanism.AdmittedRound:
  """A round whose weights are decided. The server or the clients draw its noise.

  Args:
    core: The mechanism.
    client_ids: int64[M], the cohort, checked.
    weights: float32[M], in its order. If all are 0, the round releases nothing.
    participation: The participation state with this round.
    state: The state before the round.
    after: The state with what the round changed in it; its `round`, `participation` and `weights` are the old ones.
    **more: More measurements.
  """
  round_num, size = state.round + 1, tf.size(weights)
  releases = tf.reduce_any(weights > 0)
  multiplier = tf.cast(core.noise_multiplier * core.config.noise_scale(round_num), tf.float64)
  multiplier = tf.where(releases, multiplier, tf.zeros_like(multiplier))
  noise = multiplier * tf.cast(state.clip, tf.float64)
  sigma = tf.cast(noise / core.divisor, tf.float32)
  num_clients = tf.constant(core.num_clients, tf.int64)
  weights_of_all = tf.scatter_nd(client_ids[:, tf.newaxis], weights, [num_clients])
  return mechanism.AdmittedRound(
    client_ids=client_ids,
    weights=weights,
    clip=state.clip,
    noise_multiplier=multiplier,
    sigma=sigma,
    after=after._replace(round=round_num, participation=participation, weights=weights_of_all),
    metrics=collections.OrderedDict(
      round=round_num,
      cohort_size=size,
      clipping_norm=state.clip,
      noise_multiplier=tf.cast(multiplier, tf.float32),
      sigma=sigma,
      exhausted_clients=tf.reduce_sum(tf.cast(tf.equal(weights, 0), tf.int32)),
      weight_mean=tf.math.divide_no_nan(tf.reduce_sum(weights), tf.cast(size, tf.float32)),
      weight_min=tf.where(size > 0, tf.reduce_min(weights), 0.0),
      **more,
      **mechanism.participation_metrics(core.config, participation, round_num),
    ),
  )
