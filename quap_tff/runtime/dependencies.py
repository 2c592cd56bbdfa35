"""What a node of a graph needs."""

from collections.abc import Iterable
from typing import Callable


def closure(names: Iterable[str], needs_of: Callable[[str], Iterable[str]]) -> set[str]:
  """`names` and everything that they need, directly or not. `needs_of` gives what a name needs directly."""
  found: set[str] = set()
  pending = list(names)
  while pending:
    name = pending.pop()
    if name not in found:
      found.add(name)
      pending.extend(needs_of(name))
  return found
