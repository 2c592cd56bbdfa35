"""FL-FDMS: friends substitute for clients that drop out (Wang and Xu, "Combating Client Dropout in Federated Learning
via Friend Model Substitution", arXiv:2205.13222).

    r_ij(t) = (1 + cos(Δ_i, Δ_j))/2                          for i, j that both came in round t
    R_ij = the mean of r_ij over the rounds in which both came
    Δ_k := Δ_j,  j = argmax over the clients that came of R_kj      for each client k that was drawn and did not come

Client j then counts w_j = 1 + (how many it substitutes for) times. The mechanism divides by the number M of clients
that came, so j sends (w_j·M/Σw)·Δ_j, before it is clipped. The paper itself could not be read. The three equations come
from the code that its authors published, where everybody comes in the first round. They do not cover a client that has
never been together with any client that came. Here it has no friend and is left out.

Similarities are exact functions of updates, one by one. So no formal figure survives, whatever noise is added: this
method is not orthogonal to differential privacy. With a clip, a friend's update is still clipped to one norm only.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
import dataclasses

from quap_tff.common.lazy import tf
from quap_tff.training import extension


@dataclasses.dataclass(frozen=True)
class FriendSubstitution(extension.Extension):
  """Memory: `similarity` and `together`, float32[N, N]: Σ_t r_ij(t), and the number of rounds in which both came."""

  @property
  def exact_releases(self) -> tuple[str, ...]:
    return ("the server compares the clients' updates one by one, without noise, to find friends",)

  @property
  def statement(self) -> str:
    return (
      "FL-FDMS shows the server each client's update, and how much an update counts depends on all of them. No "
      'formal figure survives that.'
    )

  def memory_bytes(self, num_clients: int, num_weights: int) -> int:
    return 2 * 4 * num_clients**2

  def initial_memory(self, num_clients: int, shapes: Sequence[tf.TensorShape]) -> extension.NamedTensors:
    return collections.OrderedDict(
      similarity=tf.zeros([num_clients, num_clients]), together=tf.zeros([num_clients, num_clients])
    )

  def report(
    self, message: extension.NamedTensors, own: extension.OwnVector, local: extension.LocalKnowledge
  ) -> extension.NamedTensors:
    return collections.OrderedDict(kept=extension.finite_update(local))

  def scales(self, memory: extension.Memory, cohort: extension.Cohort) -> tf.Tensor:
    ids, came = cohort.client_ids, tf.size(cohort.client_ids)
    # float32[N, M]: how similar each client is to each that came; -1 if they were never together.
    known = tf.gather(memory['together'], ids, axis=1)
    similarity = tf.where(known > 0, tf.math.divide_no_nan(tf.gather(memory['similarity'], ids, axis=1), known), -1.0)
    # A column more, so that there is a largest one even if nobody came.
    padded = tf.concat([tf.fill([tf.shape(known)[0], 1], -1.0), similarity], axis=1)
    friend = tf.argmax(padded, axis=1, output_type=tf.int32) - 1
    absent = tf.reduce_any(cohort.reports['absent'] > 0, axis=0)
    has_friend = tf.logical_and(absent, tf.logical_and(friend >= 0, tf.reduce_max(padded, axis=1) >= 0))
    substitutes = tf.math.unsorted_segment_sum(tf.cast(has_friend, tf.float32), friend, came)
    counts = 1.0 + substitutes
    return counts * tf.math.divide_no_nan(tf.cast(came, tf.float32), tf.reduce_sum(counts))

  def server_step(self, memory: extension.Memory, mean: extension.Tensors, cohort: extension.Cohort) -> extension.Step:
    ids, vectors = cohort.client_ids, cohort.reports['kept']
    unit = tf.math.divide_no_nan(vectors, tf.norm(vectors, axis=1, keepdims=True))
    likeness = (1.0 + tf.matmul(unit, unit, transpose_b=True)) / 2
    pairs = tf.stack(tf.meshgrid(ids, ids, indexing='ij'), axis=-1)
    return mean, collections.OrderedDict(
      similarity=tf.tensor_scatter_nd_add(memory['similarity'], pairs, likeness),
      together=tf.tensor_scatter_nd_add(memory['together'], pairs, tf.ones_like(likeness)),
    )
