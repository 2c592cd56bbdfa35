"""A buffer of clients' updates that is released, with noise, once it holds K of them. Pure TensorFlow.

Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek and Huba 2022, "Federated Learning with Buffered Asynchronous
Aggregation", Algorithm 1, with QuAP-FL's clip, budgets and noise:

    buffer ← buffer + s(τ_i)·clip(g_i, C_t)     for each client i whose update arrives in round t
    if it holds K updates or more:  release (buffer + N(0, (z·C)²·I))/(number of updates), and empty it

Algorithm 1 takes one update at a time. Here a round's updates arrive together, so a buffer can hold more than K when it
is released, and the sum is divided by their number. C is the largest C_t of the rounds that the buffer spans.

What it costs: everything that happened before a release follows from earlier releases and from the data of others. So
client i moves this release by a vector of norm at most C·Σs(τ_i), over its updates in this buffer, and by nothing else.
Its loss in it is that of a Gaussian mechanism of μ = Σs(τ_i)/z. A client that is in several buffers at different
versions is charged for each. τ, K and who arrives do not depend on anyone's data, so these weights are public.
"""

import collections
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from quap_tff.mechanisms import config as configs
from quap_tff.mechanisms import participation as participations
from quap_tff.mechanisms import quap_round as mechanism


class Buffer(NamedTuple):
  """What has arrived since the last release.

  Attributes:
    total: Σ s(τ_i)·clipped update, tensors as in an update.
    shares: float32[N], Σ s(τ_i) of each client.
    count: int32 scalar, updates.
    clip: float32 scalar, the largest clipping norm; 0 for an empty buffer.
  """

  total: list[tf.Tensor]
  shares: tf.Tensor
  count: tf.Tensor
  clip: tf.Tensor


class BufferedState(NamedTuple):
  """The server's state between rounds.

  Attributes:
    mechanism: A `quap_tff.mechanisms.quap_round.ServerState`.
    buffer: What waits for the next release.
    released: float32[N], Σ s(τ_i) of each client in what the latest round released; all 0 if it released nothing.
  """

  mechanism: mechanism.ServerState
  buffer: Buffer
  released: tf.Tensor


def empty(num_clients: int, leaves: Sequence[Any]) -> Buffer:
  """An empty buffer for updates of these `tf.TensorSpec`s."""
  return Buffer(
    total=[tf.zeros(leaf.shape, leaf.dtype) for leaf in leaves],
    shares=tf.zeros([num_clients], tf.float32),
    count=tf.constant(0, tf.int32),
    clip=tf.constant(0.0, tf.float32),
  )


def with_arrivals(
  buffer: Buffer, total: list[tf.Tensor], client_ids: tf.Tensor, shares: tf.Tensor, clip: tf.Tensor
) -> Buffer:
  """The buffer with a round's updates.

  Args:
    buffer: What has arrived before.
    total: Σ s(τ_i)·clipped update of the round.
    client_ids: int64[M], distinct.
    shares: float32[M], s(τ_i).
    clip: float32 scalar, C_t.
  """
  size = tf.size(client_ids)
  return Buffer(
    total=[a + b for a, b in zip(buffer.total, total)],
    shares=tf.tensor_scatter_nd_add(buffer.shares, client_ids[:, tf.newaxis], shares),
    count=buffer.count + size,
    clip=tf.where(size > 0, tf.maximum(buffer.clip, clip), buffer.clip),
  )


def finish_round(
  config: configs.QuapConfig,
  size: int,
  critical: Sequence[int],
  state: BufferedState,
  plan: mechanism.RoundPlan,
  buffer: Buffer,
) -> tuple[BufferedState, list[tf.Tensor], 'collections.OrderedDict[str, tf.Tensor]']:
  """Releases the buffer if it is full; else the result is exactly zero, which leaves the model as it is.

  The budget of a release is that of all clients in the buffer, at their rates in the round of the release.

  Args:
    config: The mechanism.
    size: K.
    critical: Positions of the critical tensors.
    state: The state after round t-1.
    plan: What `mechanism.plan_round` decided for the clients that arrived in round t.
    buffer: With the updates of round t.

  Returns:
    (state after round t, mean update, measurements). `released_updates` is how many updates are in what was released, 0
    if nothing was, and `buffered_updates` is how many wait.
  """
  releases = buffer.count >= size
  count = tf.where(releases, buffer.count, 0)
  epsilon, multiplier = _noise(config, plan, state.mechanism.round + 1, buffer)
  if config.noise.placement == 'none':
    noised = tf.constant(False)
  else:
    noised = tf.logical_and(releases, tf.math.is_finite(buffer.clip))
  multiplier = tf.where(noised, multiplier, 0.0)
  clip = tf.where(releases, buffer.clip, plan.clip)
  # Written so that 0·inf never appears: a clip rule without a norm has C = +inf.
  sigma = tf.where(noised, multiplier * tf.where(noised, clip, 0.0) / tf.maximum(tf.cast(count, tf.float32), 1.0), 0.0)
  release = plan._replace(
    clip=clip, epsilon=tf.where(releases, epsilon, 0.0), noise_multiplier=multiplier, sigma=sigma, cohort_size=count
  )
  total = [tf.where(releases, t, tf.zeros_like(t)) for t in buffer.total]
  after, mean, measurements = mechanism.finish_round(config, critical, state.mechanism, release, total, [])
  kept = Buffer(*tf.nest.map_structure(lambda part: tf.where(releases, tf.zeros_like(part), part), tuple(buffer)))
  measurements.update(cohort_size=plan.cohort_size, released_updates=count, buffered_updates=kept.count)
  released = tf.where(releases, buffer.shares, tf.zeros_like(buffer.shares))
  return BufferedState(after, kept, released), mean, measurements


def _noise(config, plan, round_num, buffer):
  """ε_t and z_t of a release, from the participation rates of everyone in the buffer."""
  rates = participations.rates(config.participation, plan.participation, round_num)
  inside = tf.boolean_mask(rates, buffer.shares > 0)
  epsilon, multiplier = mechanism.round_noise(config, inside, participations.in_warmup(config.participation, round_num))
  if config.noise.placement == 'none':
    epsilon = tf.constant(float('inf'))
  return epsilon, multiplier
