"""How old the version is that a client trained on, and what that makes of its weight.

    τ_i(t) = min(V_t - 1, τ_max, ⌊b·v_i·|n_i(t)|⌋),    v_i = exp(r·n_i),    n_i, n_i(t) ~ N(0, 1)
    s(τ) = 1/√(1 + τ)

V_t is the number of versions that there have been. v_i is how slow client i is, drawn once, and b·v_i·|n_i(t)| is how
many versions its training takes. s is the weight with which Nguyen et al. 2022 (FedBuff) take a stale update: the
polynomial of Xie, Koyejo and Gupta 2019 (FedAsync) with exponent 1/2. The distribution is our choice: half-normal, with
log-normal speeds. Draws are pure in (seed, round, client), so τ says nothing about anyone's data.
"""

from __future__ import annotations

import dataclasses

from quap_tff.common import array_types
from quap_tff.common import checks
from quap_tff.common.lazy import tf
from quap_tff.common.numbers import seeds

# Each version in flight is a copy of the model in the server's state.
MOST_VERSIONS = 1000

seeds.STREAMS['staleness'] = 14


@dataclasses.dataclass(frozen=True)
class Staleness(checks.Checked):
  """The distribution of τ.

  Attributes:
    scale: b >= 0, in versions; 0: every client trains on the newest version.
    spread: r >= 0, how much clients differ in speed; 0: not at all.
    max_staleness: τ_max >= 0. The server keeps τ_max + 1 versions of the model.
    seed: The seed of the draws, a non-negative integer.
  """

  scale: float = checks.number_field('staleness scale', 2.0, at_least=0, at_most=1e6)
  spread: float = checks.number_field('staleness spread', 0.5, at_least=0, at_most=10)
  max_staleness: int = checks.integer_field('max_staleness', 10, at_least=0, at_most=MOST_VERSIONS - 1)
  seed: int = checks.integer_field('staleness seed', 0, at_least=0, at_most=2**63 - 1)

  def of(self, round_num: tf.Tensor, client_id: tf.Tensor, num_versions: tf.Tensor) -> tf.Tensor:
    """τ_i(t), int32 scalar.

    Args:
      round_num: t, an integer scalar from 1: when the client's update arrives.
      client_id: An integer scalar.
      num_versions: V_t, an integer scalar of at least 1.
    """
    client_seed = seeds.fold_in(seeds.initial_seed(self.seed, 'staleness'), tf.cast(client_id, tf.int64))
    speed = tf.exp(self.spread * tf.random.stateless_normal([], client_seed))
    now = seeds.fold_in(client_seed, tf.cast(round_num, tf.int64))
    delay = self.scale * speed * tf.abs(tf.random.stateless_normal([], now))
    # Before the cast, which has no meaning for floats above int32.
    delay = tf.minimum(delay, float(self.max_staleness))
    return tf.minimum(tf.cast(tf.floor(delay), tf.int32), tf.cast(num_versions, tf.int32) - 1)


def share(staleness: array_types.Numbers) -> tf.Tensor:
  """s(τ) = 1/√(1 + τ), float32, elementwise."""
  return tf.math.rsqrt(1.0 + tf.cast(staleness, tf.float32))
