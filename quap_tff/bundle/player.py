"""Plays rounds that TFF compiled, by TensorFlow alone. One round of a bundle, as a server and its clients play it:

message = bundle.prepare(state)                          server  to every client
update, problem = bundle.attempt(data, message)          client  from its own data
total = bundle.add(total, update)                        server  from total = bundle.zero(); or `merge` of shards
state, metrics = bundle.update(state, total)             server
ledger.append(bundle.record(state, metrics, cohort))     server
"""

from __future__ import annotations

from collections.abc import Mapping
import functools
import os
from typing import Any, NamedTuple, Optional, Union

import numpy as np

from quap_tff import accounting
from quap_tff.bundle import bundle_files
from quap_tff.bundle import graphs
from quap_tff.bundle import structures
from quap_tff.common import array_types
from quap_tff.common import checks
from quap_tff.training import batches

_NOT_FINITE = 'The update has NaN or infinity, or its norm overflows.'


class Sums(NamedTuple):
  """The values that leave a client, or their sum over some clients.

  Attributes:
    plain: What the server may see of each client: a structure of arrays.
    secure: What goes into a secure sum, modulo `Bundle.modulus`: a structure of integer arrays; empty without one.
  """

  plain: Any
  secure: Any


class ClientSums(NamedTuple):
  """The values that a client sends, whatever its data are.

  Attributes:
    sums: The values that leave the client.
    problem: Why the client adds zero; '' if its data count. It may tell of the data: it must not leave the client.
  """

  sums: Sums
  problem: str


class Bundle:
  """A run that was exported, see the module.

  Values go in and come out as nested structures of NumPy arrays. TensorFlow tensors are taken as well.

  Attributes:
    plan: The `quap_tff.Plan`, which keeps the account; None if the process was exported without one.
    leaving: What leaves clients in a round of a certified plan; otherwise empty.
    rounds: Who takes part in which round, and what is published: a `bundle_files.PlannedRounds`.
    about: The statements that a certificate repeats.
    versions: Those of Python, TensorFlow and TFF by which it was exported.
    digest: The SHA-256 of its manifest, in hex: two bundles with the same are the same.
  """

  def __init__(self, folder: Union[str, os.PathLike]):
    """Reads the bundle in a folder, and compares its files with the manifest.

    Raises:
      ValueError: If a file is missing or was changed, the bundle is of another version, or this TensorFlow is too old.
    """
    content = bundle_files.read(os.fspath(folder))
    self.plan, self.leaving = content.plan, content.leaving
    self.rounds, self.about = content.rounds, content.about
    self.versions, self.digest = content.versions, content.digest
    self._graphs = {name: graphs.Graph(one, content.bindings[name]) for name, one in content.graphs.items()}

  @property
  def data_type(self) -> structures.Type:
    """The type of one client's data, see `values`."""
    return self._graphs['work'].parameter['fields'][0][1]

  @property
  def state_type(self) -> structures.Type:
    """The type of the state. With `values.flatten` and `values.pack`, a program keeps a state as arrays."""
    return self._graphs['initialize'].result

  @property
  def message_type(self) -> structures.Type:
    """The type of the message to clients."""
    return self._graphs['prepare'].result

  @property
  def sums_types(self) -> Sums:
    """The types of `Sums.plain` and `Sums.secure`."""
    (_, plain), *_, (_, secure) = self._graphs['work'].result['fields']
    return Sums(plain, secure)

  @functools.cached_property
  def modulus(self) -> Any:
    """The modulus of each entry of the secure sum, in the structure of `Sums.secure`."""
    return self._graphs['secure_modular_sum_modulus']()

  def initialize(self) -> Any:
    """A first state. The key of its noise is new with each call, unless the plan has a given seed: keep it secret."""
    return self._graphs['initialize']()

  def prepare(self, state: Any) -> Any:
    """The message to every client of a round, from the state before it."""
    return self._graphs['prepare'](state)

  @property
  def takes_updates(self) -> bool:
    """Whether clients bring their updates, which somebody else's program has computed, in place of examples."""
    return self._brought == 'update'

  @property
  def _brought(self) -> str:
    """The name of what a client itself brings, the last part of its data."""
    return self.data_type['fields'][-1][0] if 'fields' in self.data_type else 'examples'

  def sent_weights(self, message: Any) -> list[np.ndarray]:
    """The model's trainable weights in a message, from which a client trains. Of a bundle that takes updates."""
    (weights,) = (part for part in message if 'trainable' in part)
    return [np.asarray(one) for one in weights['trainable']]

  def update_of(self, message: Any, trained: Any) -> tuple[np.ndarray, ...]:
    """The update of a client: the weights in a message, less those that it has after its training.

    Args:
      message: From `prepare`.
      trained: The client's new weights, float32 arrays of the same shapes in the same order.

    Raises:
      ValueError: If they are others.
    """
    sent, new = self.sent_weights(message), [np.asarray(one) for one in trained]
    expected, found = map(_shown, (sent, new))
    if expected != found:
      raise ValueError(f'The new weights of a client must be {expected}, found {found or "none"}.')
    return tuple(before - after for before, after in zip(sent, new))

  def work(self, data: Any, message: Any) -> Sums:
    """The values that a client sends. Calls may overlap.

    Args:
      data: The client's data, of `data_type`, by name. A sequence is a `tf.data.Dataset`, a list of elements, or one
        element: `client_id=np.int64(3)`, `examples=dict(x=…, y=…)` with all examples. In a bundle that takes updates,
        a client brings its `update` in place of examples, the arrays of `update_of`, or [] for none.
      message: From `prepare`.

    Raises:
      ValueError: If the data are of another type.
      tf.errors.InvalidArgumentError: If the round itself refuses them.
    """
    return self._worked(data, message)[0]

  def attempt(self, data: Any, message: Any) -> ClientSums:
    """The values that a client sends in a round, also if its data cannot be used.

    Such a client sends what one without examples sends: zero, and the noise that it holds. So no client's data decide
    what happens to the others. Calls may overlap.

    Args:
      data: As for `work`. Its examples, or its update, may be anything.
      message: From `prepare`.

    Raises:
      ValueError: If something else is wrong.
      tf.errors.InvalidArgumentError: If the round itself refuses the client.
    """
    try:
      sums, counts = self._worked(data, message)
      problem = '' if counts else _NOT_FINITE
      return ClientSums(sums, problem)
    except Exception as error:  # Data, and those who read them, raise every kind.
      problem = f'{type(error).__name__}: {" ".join(str(error).split())}'
    nothing = [] if 'sequence' in self.data_type else {**data, self._brought: []}
    return ClientSums(self.work(nothing, message), problem)

  def _worked(self, data: Any, message: Any) -> tuple[Sums, bool]:
    (plain, _, _, secure), counts = self._graphs['work'].with_verdict(data, message)
    return Sums(plain, secure), counts

  def zero(self) -> Sums:
    """The sum over no clients."""
    secure = self.sums_types.secure
    zeros = (np.zeros(one['shape'], one['dtype']) for one in structures.types(secure))
    return Sums(self._graphs['zero'](), structures.pack(secure, zeros))

  def add(self, total: Sums, update: Sums) -> Sums:
    """The sum with one more client."""
    return Sums(self._graphs['accumulate'](total.plain, update.plain), self._secure(total, update))

  def merge(self, total: Sums, other: Sums) -> Sums:
    """The sum of two sums."""
    return Sums(self._graphs['merge'](total.plain, other.plain), self._secure(total, other))

  def _secure(self, total: Sums, other: Sums) -> array_types.Structure:
    return _map(lambda a, b, modulus: (a + b) % modulus, total.secure, other.secure, self.modulus)

  def update(self, state: Any, total: Sums) -> tuple[Any, Any]:
    """The state after a round and the round's metrics, from the state before it and the sum over its clients."""
    sums = [self._graphs['report'](total.plain), [], [], total.secure]
    state, metrics = self._graphs['update'](state, sums).values()
    return state, metrics

  def record(self, state: Any, metrics: Any, cohort: Any) -> accounting.RoundRecord:
    """The cost of a round, for the ledger that `plan.new_ledger` gives.

    Args:
      state: The state after the round.
      metrics: The round's metrics.
      cohort: int[M], distinct ids of the clients that took part.

    Raises:
      ValueError: If this is not the cohort of the round, or the bundle has no plan.
    """
    if self.plan is None:
      raise ValueError(
        'This bundle was exported without a plan, so nothing is known of what a round costs. Export it with one: '
        'quap_tff.export(plan.build_process(…), folder).'
      )
    return self.plan.recorded(state.aggregator, metrics['aggregator'], cohort)

  def weights(self, state: Any) -> Any:
    """The model's weights, `trainable` and `non_trainable`, lists of arrays."""
    return state.global_model_weights

  def evaluate(self, weights: Any, x: Any, y: Any, batch_size: int = 1000) -> Mapping[str, Any]:
    """`<loss=float, accuracy=float, num_examples=int>` of weights on examples.

    Args:
      weights: As from `weights`.
      x: The examples, n rows.
      y: Their labels.
      batch_size: Examples in a batch.

    Raises:
      ValueError: If `x` and `y` are not of the model's types, or no evaluation was exported.
    """
    checks.integer('batch_size', batch_size, at_least=1)
    evaluate: Optional[graphs.Graph] = self._graphs.get('evaluate')
    if evaluate is None:
      raise ValueError(
        'This bundle has no evaluation: the process came without its model, or the model is not a classifier. Export '
        'it with model_fn, or evaluate the weights yourself.'
      )
    return batches.evaluated(lambda *batch: evaluate(weights, *batch), x, y, batch_size)


def _shown(arrays: list[np.ndarray]) -> str:
  return ', '.join(f'{one.dtype.name}{list(one.shape)}' for one in arrays)


def _map(function: Any, value: Any, *others: Any) -> Any:
  """Applies a function of n leaves to n values of one structure, leaf by leaf."""
  if isinstance(value, list):
    return [_map(function, *parts) for parts in zip(value, *others)]
  if isinstance(value, dict):
    mapped = structures.Struct()
    for name, part in value.items():
      parts_of_others = [other[name] for other in others]
      mapped[name] = _map(function, part, *parts_of_others)
    return mapped
  return function(value, *others)
