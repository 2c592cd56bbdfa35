"""A cache of results by object, which keeps each result as long as its object lives."""

import threading
from typing import Any, Callable
import weakref


class IdentityCache:
  """Maps objects, by identity and weakly, to what `make` returned for them.

  Computations need this: their own hash serializes the whole proto at every look-up, and an ordinary cache would keep
  every process that a program ever built.

  Args:
    make: Called once per object, one call at a time.
  """

  def __init__(self, make: Callable[[Any], Any]):
    self._make = make
    self._lock = threading.RLock()
    self._entries: dict[int, Any] = {}

  def __len__(self) -> int:
    return len(self._entries)

  def get(self, key: Any) -> Any:
    """The result for `key`, made now if `key` is new."""
    entry = self._entries.get(id(key))
    if entry is not None and entry[0]() is key:
      return entry[1]
    with self._lock:
      entry = self._entries.get(id(key))
      if entry is None or entry[0]() is not key:
        entries, number = self._entries, id(key)
        # The closure holds only the dictionary: holding this cache would keep alive what it contains.
        entry = (weakref.ref(key, lambda dead: _forget(entries, number, dead)), self._make(key))
        entries[number] = entry
      return entry[1]

  def clear(self) -> None:
    self._entries.clear()


def _forget(entries: dict[int, Any], number: int, dead: Any) -> None:
  # Another object may have taken the id since.
  if number in entries and entries[number][0] is dead:
    del entries[number]
