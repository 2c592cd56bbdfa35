"""A bundle as an engine of a `quap_tff.serving.server.Server`: the server of a simulation, as of a deployment."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
import os
from typing import Any, Optional, Union
import warnings

import numpy as np

from quap_tff.bundle import player
from quap_tff.bundle import structures
from quap_tff.serving import engine as engines
from quap_tff.serving import server as servers

# Examples by name, as `Bundle.data_type` has them, or the arrays of an update; [] for none.
Examples = Union[Mapping[str, Any], Sequence[Any]]


class BundleEngine:
  """Computes the rounds of a bundle, with all clients in this process.

  A client whose data cannot be used adds zero.

  Attributes:
    bundle: The bundle.
    plan: Its plan, or None.
    leaving: What leaves clients in a round of a certified plan.
    unusable: Why each client added zero whose data could not be used. It may tell of their data.
  """

  def __init__(self, bundle: player.Bundle, num_threads: int = 1, say: Callable[[str], None] = lambda line: None):
    """Takes a bundle.

    Args:
      bundle: The run.
      num_threads: How many clients train at the same time.
      say: Is given a line on each client whose data cannot be used.
    """
    self.bundle, self.plan, self.leaving = bundle, bundle.plan, bundle.leaving
    self.unusable = dict[int, str]()
    self._num_threads, self._say = num_threads, say

  def initialize(self) -> Any:
    """See `engine.Engine`."""
    return self.bundle.initialize()

  def play(self, state: Any, attendance: engines.Attendance) -> tuple[Any, Any]:
    """See `engine.Engine`."""
    bundle = self.bundle
    message, total = bundle.prepare(state), bundle.zero()

    def work(data: Any) -> player.ClientSums:
      return bundle.attempt(data, message)

    data = (
      client_data(bundle, client, examples, attendance.absent, attendance.answers)
      for client, examples in attendance.examples.items()
    )
    with futures.ThreadPoolExecutor(self._num_threads) as pool:
      for client, one in zip(attendance.examples, _in_turn(pool, work, data, 2 * self._num_threads)):
        total = bundle.add(total, one.sums)
        if one.problem and client not in self.unusable:
          self.unusable[client] = one.problem
          self._say(f'client {client} adds zero: {one.problem}')
    return bundle.update(state, total)

  def weights(self, state: Any) -> Any:
    """See `engine.Engine`."""
    return self.bundle.weights(state)

  def with_trainable(self, weights: Any, trainable: Sequence[np.ndarray]) -> Any:
    """See `engine.Engine`."""
    return type(weights)(weights, trainable=trainable)

  def leaves(self, state: Any) -> list[Any]:
    """See `engine.Engine`."""
    return structures.flatten(self.bundle.state_type, state, 'state')

  def state_of(self, state: Any, leaves: Sequence[Any]) -> Any:
    """See `engine.Engine`."""
    return structures.pack(self.bundle.state_type, iter(leaves))

  def warn(self) -> None:
    """Warns of clients whose data could not be used, if there are any."""
    if self.unusable:
      first, others = min(self.unusable), len(self.unusable) - 1
      said = f'The data of client {first} cannot be used, and it added zero: {self.unusable[first]}'
      if others:
        said += f' So did {others} others.'
      warnings.warn(said, stacklevel=3)


def new_server(engine: BundleEngine, folder: Union[str, os.PathLike, None] = None) -> servers.Server:
  """The server of a bundle's run: with its plan, and the factor on the weights that it publishes.

  Args:
    engine: Of the bundle.
    folder: As for `Server`.
  """
  return servers.Server.of(engine, folder, shrinkage=engine.bundle.rounds.shrinkage)


def checked_cohorts(bundle: player.Bundle, num_rounds: Optional[int] = None) -> list[np.ndarray]:
  """int64[M_t], the clients of each round, or of the first ones; raises `ValueError` if the bundle does not say it."""
  cohorts = list(bundle.rounds.cohorts[:num_rounds])
  if not cohorts:
    raise ValueError('This bundle does not say who takes part in which round. Export it with rounds.')
  return cohorts


def client_data(bundle: player.Bundle, client: int, examples: Examples, absent: Any = (), answers: Any = None) -> Any:
  """A client's data for a round; one of the `absent` has no examples. `answers` are those of guards, by client.

  Where clients bring their updates, `examples` is the client's update.
  """
  if client in absent:
    examples = []
  if 'sequence' in bundle.data_type:  # TFF's own processes do not ask who a client is.
    return examples
  known = {'client_id': np.int64(client), 'absent': [np.int64(other) for other in absent]}
  known.update(examples=examples, update=examples)
  if answers is not None:
    known['answer'] = answers[client]
  return {name: known[name] for name, _ in bundle.data_type['fields']}


def no_data(bundle: player.Bundle, client: int) -> Any:
  """The data of a client that takes part and has none."""
  return client_data(bundle, client, [])


def _in_turn(pool: futures.Executor, function: Any, arguments: Iterator[Any], most: int) -> Iterator[Any]:
  """The results in order, of which at most this many are waiting."""
  waiting: collections.deque[futures.Future[Any]] = collections.deque()
  for argument in arguments:
    waiting.append(pool.submit(function, argument))
    if len(waiting) >= most:
      yield waiting.popleft().result()
  while waiting:
    yield waiting.popleft().result()
