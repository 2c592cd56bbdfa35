"""The two arithmetics of the certified mechanism: what clients add, where noise comes from, and what is released."""

from __future__ import annotations

import abc
from collections.abc import Sequence
import math
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from quap_tff.common import chacha20
from quap_tff.common import seeds
from quap_tff.mechanisms import certified_config as configs
from quap_tff.mechanisms import clip_split
from quap_tff.mechanisms import gaussian
from quap_tff.mechanisms import integers
from quap_tff.mechanisms import mechanism

# The margin of float64 sums, as a share: see `Floats`.
CLIP_MARGIN = 2.0**-20

# The uses of a round's seed in float arithmetic. They are folded in after the counter and the cohort.
_CLIP_RULE, _NOISE = range(2)


class Arithmetic(abc.ABC):
  """What the two have in common.

  Attributes:
    sum_dtype: The dtype of sums.
  """

  sum_dtype: Any

  def __init__(self, config: configs.CertifiedConfig, specs: Sequence[Any]):
    self.config, self.specs = config, specs

  @abc.abstractmethod
  def initial_noise(self, seed: Optional[int]) -> mechanism.NoiseState:
    """The noise state before round 1. Without a seed, it comes from the operating system's entropy."""

  @abc.abstractmethod
  def initial_buffers(self) -> list[Any]:
    """The buffers of correlated noise before round 1; empty under independent noise."""

  @abc.abstractmethod
  def summands(
    self, update: mechanism.Parts, norms: Sequence[Any], groups: Sequence[clip_split.ClipGroup], weight: Any, clip: Any
  ) -> list[Any]:
    """A client's part of the sum, with each group clipped; zeros if an entry is not finite."""

  @abc.abstractmethod
  def sum_unit(self, clip: float) -> float:
    """The unit of sums at a clipping norm, in units of updates."""

  def summed(self, value: Any, clip: float) -> Any:
    """A sum of updates, float64 of any shape, as `noised` takes it."""
    total = tf.constant(value, tf.float64) / self.sum_unit(clip)
    return tf.cast(tf.round(total), self.sum_dtype) if self.sum_dtype == np.int64 else total

  @abc.abstractmethod
  def of_round(self, noise: mechanism.NoiseState, client_ids: Any) -> Any:
    """The seed of a round. It depends on the cohort, too.

    A round that is tried again with other clients must not draw noise that was already used: the difference of the two
    results would then be the difference of the bare sums.
    """

  @abc.abstractmethod
  def count_noise(self, seed: Any, stddev: float) -> Any:
    """float64 scalar, noise on a count, from the round's seed."""

  @abc.abstractmethod
  def noised(
    self, seed: Any, total: list[Any], buffers: list[Any], clip: Any, multiplier: Any
  ) -> tuple[list[Any], list[Any]]:
    """(the sums with noise, float64 tensors in the units of updates; the buffers after it).

    Args:
      seed: The round's seed.
      total: The sums of the clients' parts.
      buffers: The buffers before.
      clip: float32 scalar, the clipping norm.
      multiplier: float64 scalar, the noise multiplier. If it is 0, the round releases nothing and buffers stay.
    """


class Floats(Arithmetic):
  """float64 numbers, which only approximate the real numbers that the account is about.

  Clients clip to (1 - `CLIP_MARGIN`)·w·C. The margin is room for the rounding of the clipped entries, of σ, and of a
  sum over M clients, which is at most 2·M²·2^-53·C. So for M up to a thousand and weights from 0.001, one client moves
  the sum by at most w·C in floating-point numbers, and not only in real numbers.
  """

  sum_dtype = np.float64

  def initial_noise(self, seed: Optional[int]) -> mechanism.NoiseState:
    return mechanism.initial_noise(seed)

  def initial_buffers(self) -> list[Any]:
    count = self.config.correlation.num_buffers
    return [tf.zeros([count, *spec.shape], tf.float64) for spec in self.specs] if count else []

  def summands(
    self, update: mechanism.Parts, norms: Sequence[Any], groups: Sequence[clip_split.ClipGroup], weight: Any, clip: Any
  ) -> list[Any]:
    keeps = tf.reduce_all(tf.math.is_finite(tf.stack(norms)))
    bound = tf.cast(weight, tf.float64) * tf.cast(clip, tf.float64) * (1 - CLIP_MARGIN)
    result = dict(update)
    for group, norm in zip(groups, norms):
      within = norm <= group.ratio * bound
      factor = group.ratio * bound / tf.where(within, tf.ones_like(norm), norm)
      for index in group.indices:
        tensor = update[index]
        clipped = tf.where(within, tensor, tf.cast(tf.cast(tensor, tf.float64) * factor, tensor.dtype))
        result[index] = tf.where(keeps, clipped, tf.zeros_like(tensor))
    return list(result.values())

  def sum_unit(self, clip: float) -> float:
    return 1.0

  def of_round(self, noise: mechanism.NoiseState, client_ids: Any) -> Any:
    return seeds.fold_in(noise.seed, noise.counter, _cohort_hash(client_ids))

  def count_noise(self, seed: Any, stddev: float) -> Any:
    return gaussian.noise(seeds.fold_in(seed, tf.constant(_CLIP_RULE, tf.int64)), [], stddev)

  def noised(
    self, seed: Any, total: list[Any], buffers: list[Any], clip: Any, multiplier: Any
  ) -> tuple[list[Any], list[Any]]:
    drawn = gaussian.noises(seeds.fold_in(seed, tf.constant(_NOISE, tf.int64)), total, multiplier)
    noise, after = drawn, []
    if buffers:
      noise, releases = [], multiplier > 0
      correlation = self.config.correlation
      for own, before in zip(drawn, buffers):
        own = tf.where(releases, own - tf.tensordot(correlation.gains, before, 1), tf.zeros_like(own))
        moved = tf.stack(correlation.after(tf.unstack(before), own))
        after.append(tf.where(releases, moved, before))
        noise.append(own)
    return [part + tf.cast(clip, tf.float64) * own for part, own in zip(total, noise)], after


class Integers(Arithmetic):
  """Whole numbers on a grid: what is certified is what is computed (`quap_tff.mechanisms.integers`)."""

  sum_dtype = np.int64

  def __init__(self, config: configs.CertifiedConfig, specs: Sequence[Any]):
    super().__init__(config, specs)
    self._sizes = [math.prod(spec.shape) for spec in specs]
    size = sum(self._sizes)
    config.slack(size)  # Refuses what cannot be paid for.
    self.grid, self._most_releases = config.grid(size), config.most_releases(size)

  def initial_noise(self, seed: Optional[int]) -> mechanism.NoiseState:
    key = chacha20.initial_key(seed, seeds.STREAMS['mechanism'])
    return mechanism.NoiseState(seed=key, counter=tf.constant(0, tf.int64))

  def initial_buffers(self) -> list[Any]:
    return self.grid.initial_buffers()

  def summands(
    self, update: mechanism.Parts, norms: Sequence[Any], groups: Sequence[clip_split.ClipGroup], weight: Any, clip: Any
  ) -> list[Any]:
    return self.grid.summands(list(update.values()), norms, groups, weight, clip)

  def sum_unit(self, clip: float) -> float:
    return clip / self.grid.steps

  def of_round(self, noise: mechanism.NoiseState, client_ids: Any) -> Any:
    limit = tf.constant(self._most_releases, tf.int64)
    checks = [tf.debugging.assert_less(noise.counter, limit, 'The run has more rounds than the account of rounding.')]
    with tf.control_dependencies([check for check in checks if check is not None]):
      cohort = tf.bitcast(_cohort_hash(client_ids), tf.uint32)
    return chacha20.derived_key(noise.seed, chacha20.nonce(noise.counter, cohort[0], cohort[1]))

  def count_noise(self, seed: Any, stddev: float) -> Any:
    return integers.count_noise(seed, stddev)

  def noised(
    self, seed: Any, total: list[Any], buffers: list[Any], clip: Any, multiplier: Any
  ) -> tuple[list[Any], list[Any]]:
    releases = multiplier > 0
    noise, after = self.grid.noise(seed, buffers)
    # If nobody may add anything, all sums are zero.
    noise = tf.split(tf.where(releases, noise, tf.zeros_like(noise)), self._sizes)
    sums = [part + tf.reshape(own, part.shape) for part, own in zip(total, noise)]
    kept = [tf.where(releases, new, old) for new, old in zip(after, buffers)]
    step = tf.cast(clip, tf.float64) / self.grid.steps
    return [tf.cast(part, tf.float64) * step for part in sums], kept


ARITHMETICS: dict[str, type[Arithmetic]] = {'integer': Integers, 'float': Floats}


def of_config(config: configs.CertifiedConfig, specs: Sequence[Any]) -> Arithmetic:
  """The arithmetic of a mechanism for updates of known tensors."""
  return ARITHMETICS[config.arithmetic](config, specs)


def _cohort_hash(client_ids: Any) -> Any:
  cohort = tf.strings.reduce_join(tf.strings.as_string(tf.sort(client_ids)), separator=',')
  return tf.strings.to_hash_bucket_fast(cohort, 2**62)
