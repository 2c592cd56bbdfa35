"""Which sums a node has opened, and who was in each: a state that cannot be removed or put back unnoticed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
import contextlib
import json
import os

import numpy as np

from quap_tff.common import durable
from quap_tff.flower import messages


class Openings:
  """The sums that a node has opened in the rounds of one plan."""

  def __init__(self, folder: str, plan_number: int):
    self._path = os.path.join(folder, f'opened_{plan_number}')

  def note(self, round_num: int, clients: np.ndarray) -> None:
    """Writes down who is in the sum that is opened next; raises `RefusedRoundError` if this round was opened before."""
    with self._opened() as state:
      rounds = _rounds(state)
      if str(round_num) in rounds:
        raise messages.RefusedRoundError(
          f'The sum of round {round_num} was opened already. A second opening could show the difference of two sums.'
        )
      # On disk when this returns, and the share leaves only then.
      state.write(json.dumps({**rounds, str(round_num): clients.tolist()}).encode())

  def by_round(self) -> Mapping[int, np.ndarray]:
    """int64[M'] for each round whose sum was opened: the clients in it."""
    with self._opened() as state:
      return {int(number): np.array(clients, np.int64) for number, clients in _rounds(state).items()}

  @contextlib.contextmanager
  def _opened(self) -> Iterator[durable.StateFile]:
    try:
      with durable.StateFile(self._path, waits=True) as state:
        yield state
    except durable.StateError as error:
      raise messages.RefusedRoundError(str(error)) from None


def _rounds(state: durable.StateFile) -> dict[str, list[int]]:
  return {} if state.content is None else json.loads(state.content)
