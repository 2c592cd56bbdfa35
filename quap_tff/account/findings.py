"""The findings of the programs of `quap_tff.account`."""

from collections.abc import Iterator, Sequence
import contextlib
from typing import Any, NamedTuple


class Finding(NamedTuple):
  """The finding of a program.

  Attributes:
    text: Tables and sentences for people.
    values: The figures for a program, as JSON has them.
    is_over: Whether a client has spent more than the bound.
    warnings: Sentences on files that were not made.
  """

  text: str
  values: dict[str, Any]
  is_over: bool = False
  warnings: Sequence[str] = ()


@contextlib.contextmanager
def system_errors_name(what: str, done: str) -> Iterator[None]:
  """Turns an error of the system into a `ValueError` that names the file or flag, which cannot be `done`."""
  try:
    yield
  except OSError as error:
    place = f' ({error.filename})' if error.filename not in (None, what) else ''
    reason = error.strerror or error
    raise ValueError(f'{what} cannot be {done}{place}: {reason}.') from None
