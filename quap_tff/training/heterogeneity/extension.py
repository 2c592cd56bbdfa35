"""The interface of methods that compose with a mechanism: clip, noise and budgets stay the mechanism's own.

One round, with the steps that an extension can change in brackets:

  server:    sends x, [a message]                                     `message`
  client i:  trains K_i steps from x [with corrected gradients]       `correction`
             gives g_i = x - y_i [in another unit]                    `sent`
             [keeps a vector for its next round]                      `kept`
  server:    [weighs the updates by what all of them are]             `scales`
             clips, sums, adds noise: the mechanism, which gives ĝ
             [makes the direction from ĝ and its memory]              `server_step`

Where the mechanism adds noise, an extension may use only ĝ, constants and who came: post-processing, so no account
changes. What a client keeps for itself may be anything, because all that leaves it is clipped and noised. Whatever else
the server would learn of a client is a release of its own; `exact_releases` names it.
"""

from __future__ import annotations

import abc
import collections
from collections.abc import Sequence
import dataclasses
from typing import Any, ClassVar, NamedTuple, Optional

from quap_tff.common.lazy import tf

Tensors = list[Any]


class Local(NamedTuple):
  """What a client knows after its local training.

  Attributes:
    update: g_i = x - y_i, a flat list of tensors.
    steps: K_i, an int32 scalar; 0 without examples.
    epochs: How often it passed over its examples, an int32 scalar. It is public.
    learning_rate: η_t, a float32 scalar.
    gradient: The gradient over all its examples at x, a flat list; None unless the extension asks for it.
  """

  update: Tensors
  steps: Any
  epochs: Any
  learning_rate: Any
  gradient: Optional[Tensors]


class Cohort(NamedTuple):
  """What the server gets beside ĝ; the simulation's view, which also holds what clients keep for themselves.

  Attributes:
    client_ids: int64[M].
    steps: float32[M], K_i; zeros unless the extension `counts_steps`.
    kept: float32[M, d], what `kept` gave; [M, 0] unless the extension `reports_vectors`.
    absent: bool[N], who was drawn and did not come; [0] unless the extension `rescales`.
    learning_rate: η_t, a float32 scalar.
  """

  client_ids: Any
  steps: Any
  kept: Any
  absent: Any
  learning_rate: Any


@dataclasses.dataclass(frozen=True)
class Extension(abc.ABC):
  """What a method adds around a mechanism. Subclasses are frozen dataclasses; memory is a struct of tensors by name.

  Attributes:
    keeps_vectors: Whether there is a vector of the model's size for each client: memory has `table`, float32[N, d].
    reports_vectors: Whether the server (or, for what clients keep, the simulation) gets `kept` from each client.
    returns_vectors: Whether clients get theirs back in the next round.
    counts_steps: Whether K_i is given to the server.
    rescales: Whether updates are weighed by `scales`, which takes who was drawn and did not come: clients' data then
      have `absent`, the ids of those.
    trains_server: Whether the server trains on `examples` of its own in rounds to which nobody comes.
    needs_gradient: Whether clients compute the gradient over all their examples at x.
    learning_rate_divides: Whether η_t is used, so that the local optimizer must have one.
  """

  keeps_vectors: ClassVar[bool] = False
  reports_vectors: ClassVar[bool] = False
  returns_vectors: ClassVar[bool] = False
  counts_steps: ClassVar[bool] = False
  rescales: ClassVar[bool] = False
  trains_server: ClassVar[bool] = False
  needs_gradient: ClassVar[bool] = False
  learning_rate_divides: ClassVar[bool] = False

  @property
  def exact_releases(self) -> tuple[str, ...]:
    """Exact functions of clients' data that the server uses beside the mechanism's release, a clause each."""
    return ()

  @property
  @abc.abstractmethod
  def statement(self) -> str:
    """What the method does to privacy, in a sentence or two."""

  def client_work(self, config: Any) -> Any:
    """The clients' `quap_tff.ClientWorkConfig` as this method needs it."""
    return config

  def memory_bytes(self, num_clients: int, num_weights: int) -> int:
    """The size of what is stored for each client, in bytes."""
    return 4 * num_clients * num_weights if self.keeps_vectors else 0

  def initial_memory(self, num_clients: int, shapes: Sequence[Any]) -> collections.OrderedDict[str, Any]:
    """Memory before round 1.

    Args:
      num_clients: N.
      shapes: Static shapes of the trained tensors.
    """
    memory = collections.OrderedDict()
    if self.keeps_vectors:
      memory['table'] = tf.zeros([num_clients, sum(shape.num_elements() for shape in shapes)], tf.float32)
    return memory

  def message(self, memory: Any) -> collections.OrderedDict[str, Any]:
    """What every client gets beside x."""
    del memory
    return collections.OrderedDict()

  def correction(self, message: Any, own: Optional[Tensors], steps: Any) -> Optional[Tensors]:
    """What is added to the gradient of each local step, a flat list; None for nothing.

    Args:
      message: From `message`.
      own: The client's vector in the model's shapes, if it `returns_vectors`.
      steps: K_i, an int32 scalar.
    """
    del message, own, steps

  def sent(self, local: Local) -> Tensors:
    """The update in the unit in which it is clipped and summed."""
    return local.update

  def kept(self, message: Any, own: Optional[Tensors], local: Local) -> Tensors:
    """A vector of the client in the model's shapes, if the extension `reports_vectors`."""
    raise NotImplementedError

  def scales(self, memory: Any, cohort: Cohort) -> Any:
    """float32[M], the factor of each update before it is clipped, if the extension `rescales`."""
    raise NotImplementedError

  def server_step(self, memory: Any, mean: Tensors, cohort: Cohort) -> tuple[Tensors, Any]:
    """The direction for the server's optimizer, and the memory after the round.

    Args:
      memory: Memory before the round.
      mean: ĝ, a flat list; all zero in a round without clients.
      cohort: Who came.
    """
    return mean, self.with_vectors(memory, cohort)

  def with_vectors(self, memory: Any, cohort: Cohort) -> Any:
    """Memory with the cohort's new vectors in its table, if there is one."""
    if not self.keeps_vectors:
      return memory
    table = tf.tensor_scatter_nd_update(memory['table'], cohort.client_ids[:, tf.newaxis], cohort.kept)
    return collections.OrderedDict(memory, table=table)


def flat(tensors: Sequence[Any]) -> Any:
  """float32[d], the tensors one after the other."""
  return tf.concat([tf.reshape(tf.cast(t, tf.float32), [-1]) for t in tensors], axis=0)


def unflat(vector: Any, like: Sequence[Any]) -> Tensors:
  """The inverse of `flat`: tensors of the shapes and dtypes of `like`."""
  parts = tf.split(vector, [t.shape.num_elements() for t in like])
  return [tf.cast(tf.reshape(part, t.shape), t.dtype) for part, t in zip(parts, like)]


def zeros(shapes: Sequence[Any]) -> Tensors:
  """float32 zeros of these shapes."""
  return [tf.zeros(shape, tf.float32) for shape in shapes]


def share(count: Any, population: Any) -> Any:
  """count/population as a float32 scalar, 0 for a population of 0."""
  return tf.math.divide_no_nan(tf.cast(count, tf.float32), tf.cast(population, tf.float32))
