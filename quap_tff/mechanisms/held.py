"""One round of the certified mechanism without a trusted server: clients hold the noise, and the sum is a secure one.

  client i:  its id                                                     `report`
  server:    w_i from the plan, and p, i's last round that was released  `admit`
             whether everyone's exact account allows the round
  client i:  x_i + V_{i,t} + W_{i,t} - W_{i,p}, all integers             `contribution`
  server:    C/(K·D)·Σ (…), from the secure sum alone                   `release`

V and W are discrete Gaussians of (1-λ)·s·K and √λ·s·K grid steps, drawn from a key that only the client has
(`quap_tff.mechanisms.held_noise` has the account). A round that somebody's budget does not pay for is not released: its
clients send nothing, and it counts for nobody. Participation alone decides this, so it reveals nothing.

The numbers of rounds name the draws, so a client that is asked twice for a round would send the same noise twice. It
must answer only rounds after the last one that it answered. That number is public, and all it has to remember.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
import math
from typing import Any, NamedTuple, Optional

import numpy as np
import tensorflow as tf

from quap_tff.mechanisms import certified
from quap_tff.mechanisms import certified_config as configs
from quap_tff.mechanisms import clip_rules
from quap_tff.mechanisms import clip_split
from quap_tff.mechanisms import held_noise
from quap_tff.mechanisms import integer_noise
from quap_tff.mechanisms import layers as layers_lib
from quap_tff.mechanisms import mechanism
from quap_tff.mechanisms import participation as participations

# The uses of a client's key.
_FRESH, _TAKEN_BACK = range(2)
# Rounding, see `held_noise`: sums of T terms, and a pivot that is a difference.
_PIVOT_ERROR = 2.0**-40


class ServerState(NamedTuple):
  """The server's state between rounds. It is public: it holds no noise and no key.

  Attributes:
    round: int32 scalar, the number of finished rounds.
    participation: `counts` int32[N], and `rates` float32[N] under EMA rates.
    clip: float32 scalar, C.
    releases: int64 scalar, the number of rounds that were released.
    previous_rounds: int64[N], the last round in which each client sent; 0 if there was none.
    latest: int64[N], the last release that each client was in; -1 if there was none.
    whitening: float64[T, T], L⁻¹ of `held_noise.Account`, with zeros after the releases so far.
    presence: float32[T, N], 1 where a client was in a release.
    spent: float64[N], μ_i².
    weights: float32[N], w_i of the latest round, or 0 for a client that was not in it.
  """

  round: tf.Tensor
  participation: mechanism.Struct
  clip: tf.Tensor
  releases: tf.Tensor
  previous_rounds: tf.Tensor
  latest: tf.Tensor
  whitening: tf.Tensor
  presence: tf.Tensor
  spent: tf.Tensor
  weights: tf.Tensor


class HeldRounds(mechanism.Rounds):
  """The mechanism's functions for updates of known tensors.

  Attributes:
    config: The mechanism.
    groups: The tensors that are clipped together.
  """

  reports_updates = False
  tells = True
  sum_dtype = np.int64
  own_fields = {'noise_key': "the client's own key, from which it draws noise"}
  kept_fields = ('noise_key',)

  def __init__(self, config: configs.CertifiedConfig, specs: Sequence[Any], layers: Sequence[layers_lib.Layer]):
    certified.check_dtypes(specs)
    self.config, self.specs = config, specs
    self._sizes = [math.prod(spec.shape) for spec in specs]
    self.groups = clip_split.clip_groups(config.clip_split, self._sizes, layers)
    config.slack(sum(self._sizes))  # Refuses what cannot be paid for.
    self.grid = config.grid(sum(self._sizes))
    fresh, taken_back = (one * self.grid.steps for one in config.share_stddevs)
    self._fresh = integer_noise.Sampler(fresh, is_rounded=False)
    self._taken_back = integer_noise.Sampler(taken_back, is_rounded=False) if taken_back else None
    reach = self.grid.steps + math.ceil(integer_noise.REACH * (fresh + 2 * taken_back)) + 3
    self.secure_bounds = [reach] * len(specs)
    self.most_clients = config.most_clients or config.num_clients
    self._rounds = config.most_releases

  def initial_state(self) -> Any:
    config = self.config
    size, count = self._rounds, config.num_clients
    return ServerState(
      round=tf.constant(0, tf.int32),
      participation=mechanism.initial_participation(config),
      clip=tf.constant(config.clip.initial_norm, tf.float32),
      releases=tf.constant(0, tf.int64),
      previous_rounds=tf.zeros([count], tf.int64),
      latest=tf.fill([count], tf.constant(-1, tf.int64)),
      whitening=tf.zeros([size, size], tf.float64),
      presence=tf.zeros([size, count], tf.float32),
      spent=tf.zeros([count], tf.float64),
      weights=tf.zeros([count], tf.float32),
    )

  def report(self, update: Optional[list[Any]], own: mechanism.Struct, announced: mechanism.Struct) -> mechanism.Struct:
    return collections.OrderedDict(client_id=own['client_id'], noise_key=own['noise_key'])

  def admit(self, state: Any, reports: mechanism.Struct) -> mechanism.Round:
    """The metrics are those of `quap_tff.mechanisms.certified.CertifiedRounds.admit`. `sigma` is that of one share."""
    config = self.config
    client_ids = mechanism.checked_ids(config.num_clients, reports['client_id'])
    round_num = state.round + 1
    participation = participations.next_state(config.participation, state.participation, client_ids, round_num)
    planned = tf.gather(tf.constant(config.planned_weights, tf.float32), client_ids)
    sends = planned > 0
    after, is_within = self._account_after(state, tf.boolean_mask(client_ids, sends))
    releases = tf.logical_and(tf.logical_and(is_within, tf.reduce_any(sends)), round_num <= self._rounds)
    weights = tf.where(releases, planned, 0.0)
    after = tf.nest.map_structure(lambda new, old: tf.where(releases, new, old), after, state)
    return certified.admitted(config, client_ids, weights, participation, after, after.spent)

  def _account_after(self, state, members):
    """(The state with a release of these clients' noise, whether everyone is then within its limit).

    The same account as `held_noise.Account.after`, in arrays that have room for all planned rounds.
    """
    config, decay, most = self.config, self.config.share_decay, self._rounds
    places = members[:, tf.newaxis]
    before = tf.gather(state.latest, members)
    returning = tf.boolean_mask(before, before >= 0)
    count, again = (tf.cast(tf.size(one), tf.float64) for one in (members, returning))
    index = tf.minimum(state.releases, most - 1)
    up = 1 + (4 * most + 64) * 2.0**-53
    links = decay * tf.math.bincount(tf.cast(returning, tf.int32), minlength=most, maxlength=most, dtype=tf.float64)
    projected = tf.linalg.matvec(state.whitening, links) * up
    own = held_noise.own_noise(decay, count, again)
    pivot = own * (1 - _PIVOT_ERROR) - tf.reduce_sum(tf.square(projected)) * up
    row = tf.linalg.matvec(state.whitening, projected, transpose_a=True) + tf.one_hot(index, most, dtype=tf.float64)
    row = row * (up / tf.sqrt(tf.maximum(pivot, np.finfo(np.float64).tiny)))
    is_row = tf.equal(tf.range(most, dtype=tf.int64), index)
    here = tf.scatter_nd(places, tf.ones_like(members, tf.float32), [tf.constant(config.num_clients, tf.int64)])
    presence = tf.where(is_row[:, tf.newaxis], here, state.presence)
    shares = tf.constant(np.asarray(config.planned_weights, np.float32).astype(np.float64) / config.share_scale)
    moved = tf.linalg.matvec(tf.cast(presence, tf.float64), row, transpose_a=True) * shares
    spent = (state.spent + tf.square(moved) * up) * (1 + 2.0**-52)
    after = state._replace(
      releases=state.releases + 1,
      previous_rounds=tf.tensor_scatter_nd_update(
        state.previous_rounds, places, tf.fill(tf.shape(members), tf.cast(state.round + 1, tf.int64))
      ),
      latest=tf.tensor_scatter_nd_update(state.latest, places, tf.fill(tf.shape(members), index)),
      whitening=tf.where(is_row[:, tf.newaxis], row, state.whitening),
      presence=presence,
      spent=spent,
    )
    # Written so that NaN is not within.
    return after, tf.logical_and(pivot > 0, tf.reduce_all(spent <= config.prices.limit))

  def tell(self, state: Any, admitted: mechanism.Round) -> mechanism.Struct:
    return collections.OrderedDict(
      weights=admitted.weights,
      previous_rounds=tf.gather(state.previous_rounds, admitted.client_ids),
      clip=admitted.clip,
      round=tf.cast(admitted.after.round, tf.int64),
    )

  def contribution(
    self, update: mechanism.Parts, report: mechanism.Struct, announced: mechanism.Struct, told: mechanism.Struct
  ) -> tuple[list[Any], mechanism.Struct]:
    """The update on the grid, clipped to norm w·C, and the client's noise; nothing at weight 0."""
    norms = [clip_rules.global_norm([update[i] for i in group.indices]) for group in self.groups]
    own = self.grid.summands(list(update.values()), norms, self.groups, told['weight'], told['clip'])
    noise = self._noise(report['noise_key'], told['round'], told['previous_round'])
    noise = tf.split(tf.where(told['weight'] > 0, noise, tf.zeros_like(noise)), self._sizes)
    return [tf.cast(x, tf.int64) + tf.reshape(n, x.shape) for x, n in zip(own, noise)], collections.OrderedDict()

  def _noise(self, key, round_num, previous_round):
    """V_t + W_t - W_p, int64[d]. W_p is left out if the client was in no release before."""
    size = self.grid.num_weights
    streams = [integer_noise.Stream(_FRESH, round_num)]
    if self._taken_back is not None:
      streams += [integer_noise.Stream(_TAKEN_BACK, number) for number in (round_num, previous_round)]
    # One call for all streams: most of its time does not depend on how many there are.
    words = integer_noise.stream_words(key, streams, size)
    fresh, *others = (stream._replace(words=words[index]) for index, stream in enumerate(streams))
    noise = self._fresh.draw(key, size, stream=fresh)
    for stream, sign in zip(others, (1, -1)):
      drawn = self._taken_back.draw(key, size, stream=stream)
      noise += sign * tf.where(stream.number > 0, drawn, tf.zeros_like(drawn))
    return noise

  def release(
    self, state: Any, admitted: mechanism.Round, total: list[Any], late: Optional[mechanism.Struct] = None
  ) -> tuple[Any, list[Any], mechanism.Struct]:
    step = tf.cast(state.clip, tf.float64) / self.grid.steps / self.config.divisor
    result = [tf.cast(tf.cast(one, tf.float64) * step, spec.dtype) for one, spec in zip(total, self.specs)]
    return admitted.after, result, admitted.metrics
