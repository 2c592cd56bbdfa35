"""The interface of methods that compose with a mechanism: clip, noise and budgets stay the mechanism's own.

An extension is a value with pure functions. It changes a round by the functions that it overrides, in this order:

  server:    sends x, a message and to each client its own vector     `message`
  client i:  trains K_i steps from x with corrected gradients         `correction`
             sends g_i = x - y_i in some unit                         `sent`
             makes its own vector for the next time                   `kept`
             reports to the server                                    `report`
  server:    weighs the updates by all reports                        `scales`
             clips, sums, adds noise: the mechanism, which gives ĝ
             makes the direction from ĝ and its memory                `server_step`
             trains on examples of its own if nobody came             `server_training`

Where the mechanism adds noise, an extension may use only ĝ, constants and the cohort's ids. That is post-processing, so
no account changes. A client's own vector may be anything, because all that leaves the client is clipped and noised. A
simulation keeps these vectors at the server, because it has no other place: the composer
(`quap_tff.federated.learning_process`) gives each back to its client, and the extension's server functions never see
them. If the server learns more of a client, by a report, then that is a release. `exact_releases` names it, and does so
by default for every extension that has a `report`.
"""

from __future__ import annotations

import abc
import collections
from collections.abc import Mapping, Sequence
import dataclasses
from typing import Callable, NamedTuple, Optional, TYPE_CHECKING

from quap_tff.common import array_types
from quap_tff.common import checks
from quap_tff.common.lazy import tf

if TYPE_CHECKING:  # It imports this module.
  from quap_tff.training.client_update import ClientWorkConfig

# A flat list of tensors, as of a model's weights.
Tensors = list['tf.Tensor']
# A client's own vector in the model's shapes: `Tensors`; None if it has none.
OwnVector = array_types.Structure
# What the server sends to all clients, and what a client reports.
NamedTensors = collections.OrderedDict[str, 'tf.Tensor']
# What the server remembers between rounds: tensors by name.
Memory = NamedTensors
# The direction for the server's optimizer, and the memory after the round.
Step = tuple[Tensors, Memory]


class LocalKnowledge(NamedTuple):
  """A client's knowledge after its local training.

  Attributes:
    update: g_i = x - y_i, a flat list of tensors.
    steps: K_i, an int32 scalar; 0 without examples.
    epochs: How often it passed over its examples, an int32 scalar. It is public.
    learning_rate: A function without arguments that gives η_t, a float32 scalar. It raises `ValueError` if the local
      optimizer has no learning rate.
    gradient: A function without arguments that computes the gradient over all its examples at x, a flat list.
  """

  update: Tensors
  steps: tf.Tensor
  epochs: tf.Tensor
  learning_rate: Callable[[], tf.Tensor]
  gradient: Callable[[], Tensors]


class Cohort(NamedTuple):
  """All that the server gets in addition to ĝ.

  Attributes:
    num_clients: N.
    client_ids: int64[M].
    reports: The M clients' reports by name, with M as the first dimension. If the extension `takes_absent`, there
      is also `absent`, int64[M, N]: not 0 for the clients that were drawn and did not come.
    learning_rate: A function without arguments that gives η_t, a float32 scalar, as in `LocalKnowledge`.
  """

  num_clients: int
  client_ids: tf.Tensor
  reports: Mapping[str, tf.Tensor]
  learning_rate: Callable[[], tf.Tensor]


class ServerTraining(NamedTuple):
  """How the server trains: like a client, by plain SGD.

  Attributes:
    examples: A struct of arrays, as clients' examples are.
    config: A `quap_tff.ClientWorkConfig`.
    learning_rate: Above 0.
  """

  examples: array_types.Structure
  config: ClientWorkConfig
  learning_rate: float


@dataclasses.dataclass(frozen=True)
class Extension(checks.Checked, abc.ABC):
  """A method around a mechanism. Subclasses are frozen dataclasses; memory is a struct of tensors by name."""

  @property
  def name(self) -> str:
    """The method's name, for messages."""
    return type(self).__name__

  @property
  @abc.abstractmethod
  def statement(self) -> str:
    """The method's effect on privacy, in a sentence or two."""

  @property
  def exact_releases(self) -> tuple[str, ...]:
    """Exact functions of clients' data that the server uses and that the mechanism does not release, a clause each.

    By default these are the reports of an extension that overrides `report`. One whose clients report nothing, as it is
    configured, may say so by (): the composer refuses it if they do.
    """
    if type(self).report is Extension.report:
      return ()
    return ("the server uses clients' reports without noise",)

  @property
  def takes_absent(self) -> bool:
    """True if clients' data must have `absent`, the ids of the clients that were drawn and did not come."""
    return type(self).scales is not Extension.scales

  @property
  def has_own_vectors(self) -> bool:
    """True if each client gets a vector of its own, see `kept`."""
    return type(self).kept is not Extension.kept

  def memory_bytes(self, num_clients: int, num_weights: int) -> int:
    """The size of the memory for all clients, in bytes."""
    return 4 * num_clients * num_weights if self.has_own_vectors else 0

  def client_work(self, config: ClientWorkConfig) -> ClientWorkConfig:
    """The clients' `quap_tff.ClientWorkConfig` as this method needs it."""
    return config

  def initial_memory(self, num_clients: int, shapes: Sequence[tf.TensorShape]) -> NamedTensors:
    """Memory before round 1.

    Args:
      num_clients: N.
      shapes: Static shapes of the trained tensors.
    """
    return collections.OrderedDict()

  def message(self, memory: Memory) -> NamedTensors:
    """The values that every client gets in addition to x."""
    return collections.OrderedDict()

  def correction(self, message: NamedTensors, own: OwnVector, steps: tf.Tensor) -> Optional[Tensors]:
    """The tensors to add to the gradient of each local step, a flat list; None for nothing.

    Args:
      message: From `message`.
      own: The client's own vector in the model's shapes, a flat list, zero at first; None if it has none.
      steps: K_i, an int32 scalar.
    """
    return None

  def sent(self, local: LocalKnowledge) -> Tensors:
    """The update in the unit in which it is clipped and summed."""
    return local.update

  def kept(self, message: NamedTensors, own: OwnVector, local: LocalKnowledge) -> tf.Tensor:
    """float32[d], the client's own vector for the next time that it comes. By default, clients have none.

    In a simulation it leaves the client, so a run without a trusted server takes no extension that keeps one.
    """
    raise NotImplementedError

  def report(self, message: NamedTensors, own: OwnVector, local: LocalKnowledge) -> NamedTensors:
    """Tensors by name that the server gets from the client: exact functions of its data."""
    return collections.OrderedDict()

  def scales(self, memory: Memory, cohort: Cohort) -> tf.Tensor:
    """float32[M], the factor of each update before it is clipped."""
    raise NotImplementedError

  def server_step(self, memory: Memory, mean: Tensors, cohort: Cohort) -> Step:
    """The direction for the server's optimizer, and the memory after the round.

    Args:
      memory: Memory before the round.
      mean: ĝ, a flat list; all zero in a round without clients.
      cohort: The clients that came.
    """
    return mean, memory

  def server_training(self) -> Optional[ServerTraining]:
    """How the server trains in a round to which nobody comes; None if it does not."""
    return None


@dataclasses.dataclass(frozen=True)
class Nothing(Extension):
  """Changes nothing: the mechanism alone."""

  statement = ''


class WithVectors(Extension):
  """An extension whose server remembers a vector of the model's size for each client: `table`, float32[N, d]."""

  def memory_bytes(self, num_clients: int, num_weights: int) -> int:
    return 4 * num_clients * num_weights

  def initial_memory(self, num_clients: int, shapes: Sequence[tf.TensorShape]) -> NamedTensors:
    size = sum(shape.num_elements() for shape in shapes)
    return collections.OrderedDict(table=tf.zeros([num_clients, size], tf.float32))

  def with_vectors(self, memory: Memory, cohort: Cohort, vectors: tf.Tensor) -> Memory:
    """Memory with the cohort's new vectors, float32[M, d], in its table."""
    table = tf.tensor_scatter_nd_update(memory['table'], cohort.client_ids[:, tf.newaxis], vectors)
    return collections.OrderedDict(memory, table=table)


def flat(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
  """float32[d], the tensors one after the other."""
  return tf.concat([tf.reshape(tf.cast(t, tf.float32), [-1]) for t in tensors], axis=0)


def unflat(vector: tf.Tensor, like: Sequence[tf.Tensor]) -> Tensors:
  """The inverse of `flat`: tensors of the shapes and dtypes of `like`."""
  parts = tf.split(vector, [t.shape.num_elements() for t in like])
  return [tf.cast(tf.reshape(part, t.shape), t.dtype) for part, t in zip(parts, like)]


def zeros(shapes: Sequence[tf.TensorShape]) -> Tensors:
  """float32 zeros of these shapes."""
  return [tf.zeros(shape, tf.float32) for shape in shapes]


def are_finite(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
  """True if all numbers are finite, a bool scalar."""
  return tf.reduce_all([tf.reduce_all(tf.math.is_finite(t)) for t in tensors])


def choose(condition: tf.Tensor, tensors: Sequence[tf.Tensor], others: Sequence[tf.Tensor]) -> Tensors:
  """`tensors` if the bool scalar holds, else `others`."""
  return [tf.where(condition, one, other) for one, other in zip(tensors, others)]


def finite_update(local: LocalKnowledge) -> tf.Tensor:
  """float32[d], the client's update. One that is not finite counts as zero, as in the mechanism."""
  return flat(choose(are_finite(local.update), local.update, [tf.zeros_like(g) for g in local.update]))


def share(count: array_types.Numbers, population: array_types.Numbers) -> tf.Tensor:
  """count/population as a float32 scalar, 0 for a population of 0."""
  return tf.math.divide_no_nan(tf.cast(count, tf.float32), tf.cast(population, tf.float32))
