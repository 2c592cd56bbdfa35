"""What was made of an object, kept for as long as the object lives."""

import threading
from typing import Any, Callable, Dict
import weakref


class IdentityCache:
  """Maps objects, by identity and weakly, to what `make` returned for them.

  Computations need it: their own hash serializes the whole proto at every look-up, and a cache that holds them keeps
  every process that a program ever built.

  Args:
    make: Called once per object, one call at a time.
  """

  def __init__(self, make: Callable[[Any], Any]):
    self._make = make
    self._lock = threading.RLock()
    self._entries: Dict[int, Any] = {}

  def __len__(self) -> int:
    return len(self._entries)

  def get(self, key: Any) -> Any:
    """What was made of `key`, made now if it is new."""
    entry = self._entries.get(id(key))
    if entry is not None and entry[0]() is key:
      return entry[1]
    with self._lock:
      entry = self._entries.get(id(key))
      if entry is None or entry[0]() is not key:
        entries, number = self._entries, id(key)
        # The closure holds the dictionary alone: holding this object would keep what it keeps.
        entry = (weakref.ref(key, lambda dead: _forget(entries, number, dead)), self._make(key))
        entries[number] = entry
      return entry[1]

  def clear(self) -> None:
    self._entries.clear()


def _forget(entries: Dict[int, Any], number: int, dead: Any) -> None:
  # Another object may have taken the id since.
  if number in entries and entries[number][0] is dead:
    del entries[number]
