"""One round of the certified mechanism with secret cohorts. `config.SecretCohortsConfig` is its value.

  server:    the clipping norm, and the weight of each client           `announce`
  client i:  its id, to the server alone                                `report`
             u_i = g_i clipped to norm w_i·C                            `contribution`
  server:    (Σ u_i + N(0, z²·C²·I)) / D, also if nobody was drawn      `release`

Weights, noise and divisor are public constants. The state counts rounds and holds the key of the noise. The clipping
norm is a constant, or it follows a quantile: client i then also reports the least C at which w_i·C leaves g_i as it is,
and the next norm follows from the noised number of those within C, divided by Σ q_i (`admit`). So nothing follows from
who was drawn but the noised sum and the noised count.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
import functools
from typing import NamedTuple, Optional

import tensorflow as tf

from quap_tff.mechanisms import mechanism
from quap_tff.mechanisms.certified import guarantee
from quap_tff.mechanisms.certified import rounds as certified
from quap_tff.mechanisms.noise import integers
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.parts import layers as layers_lib
from quap_tff.mechanisms.secret_cohorts import config as configs


class SecretState(NamedTuple):
  """The server's state between rounds.

  Attributes:
    round: int32 scalar, the number of finished rounds.
    clip: float32 scalar, C.
    noise: The key of the noise, int64[4], and the number of releases.
  """

  round: tf.Tensor
  clip: tf.Tensor
  noise: mechanism.NoiseState


class SecretRounds(certified.TrustedRounds):
  """The functions of a round for updates of known tensors."""

  core: configs.SecretCohorts
  config: configs.SecretCohortsConfig

  def __init__(self, core: configs.SecretCohorts, specs: mechanism.Specs, layers: Sequence[layers_lib.Layer]):
    super().__init__(core, specs, layers)
    self._weights = core.planned_weights

  def initial_state(self) -> mechanism.State:
    return SecretState(
      round=tf.constant(0, tf.int32),
      clip=tf.constant(self.core.clip.initial_norm, tf.float32),
      noise=self.initial_noise(self.config.noise_seed),
    )

  def announce(self, state: mechanism.State) -> mechanism.Struct:
    """C, and `weights` float32[N], the weight of each client."""
    return collections.OrderedDict(clip=state.clip, weights=tf.constant(self._weights))

  def report(self, update: list[tf.Tensor], own: mechanism.Struct, announced: mechanism.Struct) -> mechanism.Struct:
    report = collections.OrderedDict(client_id=own['client_id'])
    if self.config.counts_norms:
      report['norm'] = self._least_clip(update) / self._own_weight(report, announced)
    return report

  def contribution(
    self,
    update: mechanism.Parts,
    report: mechanism.Struct,
    announced: mechanism.Struct,
    clip: Optional[tf.Tensor] = None,
  ) -> list[tf.Tensor]:
    """The update on the grid, each group clipped to norm r_l·w·C; exact zeros if an entry is not finite."""
    return self._on_grid(update, self._own_weight(report, announced), announced['clip'])

  def _own_weight(self, report: mechanism.Struct, announced: mechanism.Struct) -> tf.Tensor:
    # `admit` refuses an id out of range with a clear message, so looking up its weight must not fail first.
    place = tf.clip_by_value(report['client_id'], 0, self.config.num_clients - 1)
    return tf.gather(announced['weights'], place)

  def admit(
    self, state: mechanism.State, announced: mechanism.Struct, reports: mechanism.Struct
  ) -> mechanism.AdmittedRound:
    """The metrics are public constants, the number of the round, and a norm that follows from earlier releases."""
    client_ids = mechanism.checked_ids(self.config.num_clients, reports['client_id'])
    multiplier = tf.constant(self.core.noise_multiplier, tf.float64)
    sigma = tf.cast(multiplier * tf.cast(state.clip, tf.float64) / self.core.divisor, tf.float32)
    round_num, clip = state.round + 1, state.clip
    rule = self.core.clip
    if isinstance(rule, clip_rules.PrivateQuantile):
      draw = functools.partial(integers.count_noise, self.round_key(state.noise, client_ids))
      clip = tf.minimum(rule.moved(clip, reports['norm'], draw, self.core.mean_cohort_size), guarantee.LARGEST_CLIP)
    # Every round releases noise. So the counter is a function of the number of rounds alone.
    noise = state.noise._replace(counter=state.noise.counter + 1)
    return mechanism.AdmittedRound(
      client_ids=client_ids,
      weights=tf.gather(announced['weights'], client_ids),
      clip=state.clip,
      noise_multiplier=multiplier,
      sigma=sigma,
      after=state._replace(round=round_num, noise=noise, clip=clip),
      metrics=collections.OrderedDict(
        round=round_num, clipping_norm=state.clip, noise_multiplier=tf.cast(multiplier, tf.float32), sigma=sigma
      ),
    )

  def release(
    self, state: mechanism.State, admitted: mechanism.AdmittedRound, total: list[tf.Tensor]
  ) -> tuple[mechanism.State, list[tf.Tensor], mechanism.Struct]:
    key = self.round_key(state.noise, admitted.client_ids)
    noise, _ = self.grid.noise(key, [])
    result = self._noised_mean(total, noise, tf.cast(state.clip, tf.float64))
    return admitted.after, result, admitted.metrics
