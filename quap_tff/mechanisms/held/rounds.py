"""One round of the certified mechanism without a trusted server: clients hold the noise, and the sum is a secure one.

  client i:  its answer from its guard: w_i, the round t, and p, its own last round     `quap_tff.ClientGuard`
             its id, t, p and w_i                                                       `report`
             x_i + V_{i,t} + W_{i,t} - W_{i,p}, all integers                            `contribution`
  server:    checks the reports against its state                                       `admit`
             C/(K·D)·Σ (…), from the secure sum alone                                   `release`

V and W are discrete Gaussians of (1-λ)·s·K and √λ·s·K grid steps, drawn from a key that only the client has
(`quap_tff.mechanisms.noise.held_noise` has the account). Whether a round may be released depends on its whole cohort,
which is public. So it is decided before the round, by the program and by each guard for itself: a client that answers
with weight 0 sends nothing. The server needs no account, and a round has one level of aggregation.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import NamedTuple, Optional

import numpy as np
import tensorflow as tf

from quap_tff.mechanisms import mechanism
from quap_tff.mechanisms.certified import rounds as certified
from quap_tff.mechanisms.held import config as configs
from quap_tff.mechanisms.held import guard
from quap_tff.mechanisms.noise import integer_noise
from quap_tff.mechanisms.parts import layers as layers_lib
from quap_tff.mechanisms.parts import participation as participations

# The uses of a client's key.
_FRESH, _TAKEN_BACK, _SUBSTITUTE = range(3)


class HeldState(NamedTuple):
  """The server's state between rounds. It is public: it holds no noise and no key.

  Attributes:
    round: int32 scalar, the number of finished rounds.
    participation: `counts` int32[N], and `rates` float32[N] under EMA rates.
    clip: float32 scalar, C.
    last_rounds: int64[N], the last round in which each client sent; 0 if there was none.
    weights: float32[N], w_i of the latest round, or 0 for a client that was not in it.
  """

  round: tf.Tensor
  participation: mechanism.Struct
  clip: tf.Tensor
  last_rounds: tf.Tensor
  weights: tf.Tensor


class HeldRounds(certified.RoundsInIntegers):
  """The mechanism's functions for updates of known tensors."""

  core: configs.Held
  config: configs.HeldConfig

  sum_dtype = np.int64
  own_fields = {'answer': "the answer of the client's guard"}
  kept_fields = ('noise_key',)

  def __init__(self, core: configs.Held, specs: mechanism.Specs, layers: Sequence[layers_lib.Layer]):
    super().__init__(core, specs, layers)
    fresh, taken_back = (one * self.grid.steps for one in core.share_stddevs)
    self._fresh = integer_noise.Sampler(fresh, is_rounded=False)
    self._taken_back = integer_noise.Sampler(taken_back, is_rounded=False) if taken_back else None
    self.secure_bounds = [core.share_bound(self.grid)] * len(specs)
    self.most_clients = core.most_clients
    self._weights = core.planned_weights
    self._clip = np.float32(core.clip.initial_norm)
    self._plan = guard.plan_number(core.fingerprint)

  def initial_state(self) -> mechanism.State:
    config = self.config
    return HeldState(
      round=tf.constant(0, tf.int32),
      participation=mechanism.initial_participation(config),
      clip=tf.constant(self._clip),
      last_rounds=tf.zeros([config.num_clients], tf.int64),
      weights=tf.zeros([config.num_clients], tf.float32),
    )

  def report(self, update: list[tf.Tensor], own: mechanism.Struct, announced: mechanism.Struct) -> mechanism.Struct:
    """The client's id and what its guard says of the round; and the key of its noise, which it keeps to itself.

    Raises:
      tf.errors.InvalidArgumentError: When run, if the answer is for another plan, or its weight is not the planned one.
    """
    answer = collections.OrderedDict((name, tf.convert_to_tensor(value)) for name, value in own['answer'].items())
    client_id = tf.clip_by_value(own['client_id'], 0, self.config.num_clients - 1)
    weight, planned = answer['weight'], tf.gather(tf.constant(self._weights), client_id)
    of_plan = tf.debugging.assert_equal(
      answer['plan'],
      tf.constant(self._plan, tf.int64),
      'A client must bring one answer of its guard for this plan; found one for another plan, or none:',
    )
    as_planned = tf.debugging.assert_equal(
      tf.logical_or(tf.equal(weight, planned), tf.equal(weight, 0)),
      True,
      'The weight of an answer must be the planned one, or 0 for a client that sends nothing.',
    )
    return collections.OrderedDict(
      client_id=own['client_id'],
      round=certified.after_checks(answer['round'], of_plan, as_planned),
      last_round=answer['last_round'],
      weight=weight,
      noise_key=answer['noise_key'],
    )

  def admit(
    self, state: mechanism.State, announced: mechanism.Struct, reports: mechanism.Struct
  ) -> mechanism.AdmittedRound:
    """The metrics are those of `CertifiedRounds.admit`. `sigma` is that of one share.

    Raises:
      tf.errors.InvalidArgumentError: When run, if a client reports another round than this one, or a last round that is
        not the last one in which it sent.
    """
    config = self.config
    client_ids = mechanism.checked_ids(config.num_clients, reports['client_id'])
    weights, rounds, last = (reports[name] for name in ('weight', 'round', 'last_round'))
    round_num, known = state.round + 1, tf.gather(state.last_rounds, client_ids)
    sends = weights > 0
    is_next = tf.debugging.assert_equal(
      rounds, tf.cast(round_num, tf.int64), 'Each client must answer the next round, which is y; found answers for x:'
    )
    # A client that begins a new chain takes nothing back.
    agree = tf.debugging.assert_equal(
      tf.reduce_all(tf.equal(last, known) | tf.equal(last, guard.NEW_CHAIN) | ~sends),
      True,
      'A client takes back the noise of another round than the last one in which it sent.',
    )
    weights = certified.after_checks(weights, is_next, agree)
    participation = participations.next_state(config.participation, state.participation, client_ids, round_num)
    last_rounds = tf.tensor_scatter_nd_update(
      state.last_rounds, client_ids[:, tf.newaxis], tf.where(sends, tf.cast(round_num, tf.int64), known)
    )
    return certified.admitted(
      self.core, client_ids, weights, participation, state, state._replace(last_rounds=last_rounds)
    )

  def contribution(
    self,
    update: mechanism.Parts,
    report: mechanism.Struct,
    announced: mechanism.Struct,
    clip: Optional[tf.Tensor] = None,
  ) -> list[tf.Tensor]:
    """The update on the grid, clipped to norm w·C, and the client's noise; nothing at weight 0. C is the plan's."""
    weight = report['weight']
    own = self._on_grid(update, weight, tf.constant(self._clip))
    noise = self._noise(report['noise_key'], report['round'], report['last_round'])
    noise = tf.split(tf.where(weight > 0, noise, tf.zeros_like(noise)), self._sizes)
    return [tf.cast(x, tf.int64) + tf.reshape(n, x.shape) for x, n in zip(own, noise)]

  def _noise(self, key: tf.Tensor, round_num: tf.Tensor, last_round: tf.Tensor) -> tf.Tensor:
    """V_t + W_t - W_p, int64[d]. W_p is left out if there was no round before.

    In a new chain, noise that is never taken back replaces W_p.
    """
    size = self.grid.num_weights
    streams = [integer_noise.Stream(_FRESH, round_num)]
    if self._taken_back is not None:
      begins = tf.equal(last_round, guard.NEW_CHAIN)
      use = tf.where(begins, _SUBSTITUTE, _TAKEN_BACK)
      number = tf.where(begins, round_num, last_round)
      streams += [integer_noise.Stream(_TAKEN_BACK, round_num), integer_noise.Stream(use, number)]
    # One call for all streams: most of its time does not depend on how many there are.
    words = integer_noise.stream_words(key, streams, size)
    fresh, *others = (stream._replace(words=words[index]) for index, stream in enumerate(streams))
    noise = self._fresh.draw(key, size, stream=fresh)
    for stream, sign in zip(others, (1, -1)):
      assert self._taken_back is not None
      drawn = self._taken_back.draw(key, size, stream=stream)
      noise += sign * tf.where(stream.number > 0, drawn, tf.zeros_like(drawn))
    return noise

  def release(
    self, state: mechanism.State, admitted: mechanism.AdmittedRound, total: list[tf.Tensor]
  ) -> tuple[mechanism.State, list[tf.Tensor], mechanism.Struct]:
    step = float(self._clip) / self.grid.steps / self.core.divisor
    result = [tf.cast(tf.cast(one, tf.float64) * step, spec.dtype) for one, spec in zip(total, self.specs)]
    return admitted.after, result, admitted.metrics
