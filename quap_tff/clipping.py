"""Clipping: g <- g·min(1, C/‖g‖), quantiles of norms, and what a rule for the clipping norm C must provide.

A clipping norm of +inf means "no bound". A norm of NaN stands for a non-finite update, left out of every quantile.
"""

import abc
import math
from typing import Any

import tensorflow as tf


# Larger ones would become +inf in float32, which means "no bound": neither clipped nor noised.
LARGEST_NORM = 1e38


class ClipRule(abc.ABC):
  """How the clipping norm moves from round to round. Subclasses are frozen dataclasses in `quap_tff.clip_rules.RULES`.

  Attributes:
    uses_current_norms: Whether the clipping norm of a round depends on that round's norms. If so, aggregation takes two
      dependent levels; if not, C of a round is known before it begins and one level is enough.
    releases_exact_norms: Whether the clipping norm is an un-noised function of the clients' norms, a data-dependent
      release that no privacy figure covers.
    count_noise_multiplier: Of the noised count of norms that a round releases, its σ over the most that one client
      moves the count; +inf if there is no such release.
  """

  uses_current_norms: bool = False
  releases_exact_norms: bool = False
  count_noise_multiplier: float = math.inf

  @property
  @abc.abstractmethod
  def initial_norm(self) -> float:
    """C_0; +inf if there is none."""

  def next_norm(self, norm: tf.Tensor, norms: tf.Tensor, noise_seed: tf.Tensor) -> tf.Tensor:
    """C_t from C_{t-1} (float32 scalar) and the cohort's norms (float32[M], NaN for non-finite updates).

    Args:
      norm: C_{t-1}.
      norms: L2 norms of the cohort's updates; may be empty.
      noise_seed: int64[2], for rules that add noise.
    """
    del norms, noise_seed
    return norm


def quantile(values: tf.Tensor, q: Any) -> tf.Tensor:
  """The q-quantile of the finite entries of float32[M] `values`, interpolated as numpy's; NaN if there are none."""
  finite = tf.sort(tf.boolean_mask(values, tf.math.is_finite(values)))
  last = tf.size(finite) - 1
  position = tf.cast(last, tf.float32) * q
  lower = tf.clip_by_value(tf.cast(tf.floor(position), tf.int32), 0, tf.maximum(last, 0))
  upper = tf.minimum(lower + 1, tf.maximum(last, 0))
  padded = tf.concat([finite, [float('nan')]], axis=0)
  fraction = position - tf.cast(lower, tf.float32)
  return tf.where(last >= 0, padded[lower] + fraction * (padded[upper] - padded[lower]), float('nan'))


def clip_factor(norm: tf.Tensor, clipping_norm: tf.Tensor) -> tf.Tensor:
  """min(1, C/‖g‖), elementwise: 1 for ‖g‖ = 0 or C = +inf, 0 for a NaN norm, that of a non-finite update."""
  within = tf.logical_or(norm <= clipping_norm, tf.equal(norm, 0.0))
  factor = tf.where(within, tf.ones_like(norm), clipping_norm / tf.where(within, tf.ones_like(norm), norm))
  return tf.where(tf.math.is_nan(norm), tf.zeros_like(norm), factor)


def global_norm(tensors: Any) -> tf.Tensor:
  """The L2 norm of a list of float tensors taken together, float32; 0 for an empty list."""
  return tf.sqrt(tf.add_n([tf.zeros([])] + [2.0 * tf.nn.l2_loss(tf.cast(t, tf.float32)) for t in tensors]))
