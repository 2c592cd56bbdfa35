"""The error for a data file that is missing, damaged or the wrong one."""

import os
import stat

_KINDS = (
  (stat.S_ISDIR, 'a folder'),
  (stat.S_ISFIFO, 'a pipe'),
  (stat.S_ISSOCK, 'a socket'),
  (stat.S_ISCHR, 'a device'),
  (stat.S_ISBLK, 'a device'),
)


class DataFileError(ValueError):
  """Says which file, what was expected in it, what was found, and what to do."""


def check_is_file(path: str, expected: str):
  """Raises `DataFileError` with `expected`, a clause, unless the path is a file or a link to one. Opens nothing."""
  try:
    mode = os.stat(path).st_mode
  except FileNotFoundError:
    found = 'is a link to a file that does not exist' if os.path.islink(path) else 'not found'
  except OSError as error:
    found = f'cannot be used: {error.strerror}'
  else:
    if stat.S_ISREG(mode):
      return
    kind = next((name for is_kind, name in _KINDS if is_kind(mode)), 'a special file')
    found = f'is {kind} and not a file'
  raise DataFileError(f'{path} {found}; {expected}.')
