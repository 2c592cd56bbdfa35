"""How a command meets its terminal: texts that command nothing, output that nobody reads, and Ctrl-C."""

from collections.abc import Sequence
import os
import sys
from typing import Callable, NoReturn, TextIO

from quap_tff.common import characters

INTERRUPTED, NOT_READ, FAILED = 130, 141, 2


def shown(text: str) -> str:
  """The text, with escapes for control characters, marks of bidirectional text and others that have no shape."""
  return ''.join(map(_shown_character, text))


def _shown_character(character: str) -> str:
  if character.isprintable() and not characters.is_unseen(character):
    return character
  return character.encode('unicode_escape').decode()


def run(main: Callable[[Sequence[str]], int]) -> NoReturn:
  """Runs a command, and ends the process with the status that `main` returns.

  Standard output may be closed. Characters that it cannot show are written as escapes. The status is 130 after Ctrl-C,
  141 if the reader of standard output has gone, and 2 if it cannot be written for another reason, such as a full disk.

  Args:
    main: Takes the arguments and returns a status. It lets errors of standard output pass.
  """
  for name in ('stdout', 'stderr'):
    stream = getattr(sys, name)
    if stream is None:  # It was closed, and its number is free for the next file.
      setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), 'w', encoding='utf-8'))
    else:
      stream.reconfigure(errors='backslashreplace')
  try:
    status = _status(main)
  except KeyboardInterrupt:
    print('\nInterrupted.', file=sys.stderr)
    status = INTERRUPTED
  except BrokenPipeError:
    status = NOT_READ
  except OSError as error:
    print(f'Error: standard output cannot be written: {error.strerror or error}.', file=sys.stderr)
    status = FAILED
  _drop(sys.stdout)
  sys.exit(status)


def _status(main: Callable[[Sequence[str]], int]) -> int:
  try:
    status = main(sys.argv[1:])
  except SystemExit as end:  # After --help, or for a wrong flag.
    status = end.code if isinstance(end.code, int) else FAILED
  sys.stdout.flush()
  return status


def _drop(stream: TextIO) -> None:
  """Output that could not be written goes nowhere. Otherwise Python tries once more when it ends, and complains."""
  try:
    stream.flush()
  except OSError:
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
