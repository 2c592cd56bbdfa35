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
from typing import Optional

from quap_tff import methods
from quap_tff.common.lazy import tf
from quap_tff.mechanisms import mechanism as mechanisms
from quap_tff.methods import base
from quap_tff.methods import certified_method
from quap_tff.methods import extended
from quap_tff.training import extension as extensions


@dataclasses.dataclass(frozen=True)
class FriendSubstitution(extensions.Extension):
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

  def initial_memory(self, num_clients: int, shapes: Sequence[tf.TensorShape]) -> extensions.NamedTensors:
    return collections.OrderedDict(
      similarity=tf.zeros([num_clients, num_clients]), together=tf.zeros([num_clients, num_clients])
    )

  def report(
    self, message: extensions.NamedTensors, own: extensions.OwnVector, local: extensions.LocalKnowledge
  ) -> extensions.NamedTensors:
    return collections.OrderedDict(kept=extensions.finite_update(local))

  def scales(self, memory: extensions.Memory, cohort: extensions.Cohort) -> tf.Tensor:
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

  def server_step(
    self, memory: extensions.Memory, mean: extensions.Tensors, cohort: extensions.Cohort
  ) -> extensions.Step:
    ids, vectors = cohort.client_ids, cohort.reports['kept']
    unit = tf.math.divide_no_nan(vectors, tf.norm(vectors, axis=1, keepdims=True))
    likeness = (1.0 + tf.matmul(unit, unit, transpose_b=True)) / 2
    pairs = tf.stack(tf.meshgrid(ids, ids, indexing='ij'), axis=-1)
    return mean, collections.OrderedDict(
      similarity=tf.tensor_scatter_nd_add(memory['similarity'], pairs, likeness),
      together=tf.tensor_scatter_nd_add(memory['together'], pairs, tf.ones_like(likeness)),
    )


@dataclasses.dataclass(frozen=True)
class FlFdms(extended.ExtendedMethod):
  """FL-FDMS (Wang and Xu 2022), where friends substitute for clients that drop out: see
  `experiments.systems.fl_fdms` for the equations."""

  title = 'FL-FDMS'

  def extension(self, mean_epochs: Optional[float]) -> FriendSubstitution:
    if isinstance(self.base, certified_method.CertifiedMethod):
      raise ValueError(
        "fl_fdms:base=certified: friends are found by comparing single updates without noise, and a friend's update "
        'counts more than once. No certificate would hold. Use another base.'
      )
    return FriendSubstitution()

  def configure(self, setting: base.Setting) -> mechanisms.Configuration:
    if not setting.has_dropout:
      raise ValueError(
        '--algorithm=fl_fdms: friends substitute for clients that drop out, and with --dropout=none no client does. '
        'Give a --dropout, such as bernoulli:rate=0.1.'
      )
    return super().configure(setting)

  def facts(self, setting: base.Setting) -> mechanisms.Facts:
    return super().facts(setting)._replace(waits='how much an update counts depends on all of them')


methods.METHODS['fl_fdms'] = FlFdms
