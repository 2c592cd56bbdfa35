"""sweep.json in a sweep's folder: its base flags and all its grids. One process at a time may use the folder."""

from collections.abc import Iterator, Sequence
import contextlib
import os
from typing import Any, NamedTuple, Optional

import filelock

from experiments.folders import folder as run_folder
from experiments.sweeps import plan
from quap_tff.common import files

_NAME = 'sweep.json'
_LOCK = '.lock'


class Record(NamedTuple):
  """What a sweep is.

  Attributes:
    base: The base flags of every run, as they were given.
    identity: The values of those flags that decide what is computed.
    flags: The values of all flags.
    grids: The axes of each call's grid.
  """

  base: list[str]
  identity: dict[str, Any]
  flags: dict[str, Any]
  grids: list[list[str]]


def extended(output_dir: str, base: Sequence[str], axes: Sequence[str]) -> Record:
  """The folder's sweep with `axes` as one more grid, or a new sweep if the folder has none. Changes nothing.

  Args:
    output_dir: The sweep's folder.
    base: The base flags of every run. Empty: those of the folder's sweep.
    axes: The grid. Empty: none is added.

  Raises:
    ValueError: If the grid is empty and there is no other grid, if the folder holds something else, if a base flag is
      wrong, or if the base flags compute something else than the folder's sweep (the message says which flags differ).
  """
  kept = _read(output_dir)
  if kept is None:
    if not axes:
      raise ValueError(f'The grid is empty, and {output_dir} holds no sweep to continue. Give --vary=name=value|value.')
    return Record(list(base), *plan.base_values(base), [list(axes)])
  base = list(base) or kept.base
  identity, flags = plan.base_values(base)
  differing = run_folder.differences(kept.identity, identity)
  if differing:
    raise ValueError(
      f'{output_dir} is a sweep with other base flags:{"".join(differing)}\nGive the same flags or none, vary them '
      'in the grid, or use another folder.'
    )
  is_new = axes and list(axes) not in kept.grids
  return Record(base, identity, flags, [*kept.grids, list(axes)] if is_new else kept.grids)


def changed_controls(output_dir: str, record: Record) -> list[str]:
  """A line for each base flag that differs from the folder's sweep but does not change what is computed."""
  kept = _read(output_dir)
  return run_folder.differences(kept.flags, record.flags) if kept else []


@contextlib.contextmanager
def held(output_dir: str, record: Record) -> Iterator[None]:
  """Locks the folder while the block runs, after making it if necessary, and writes the record.

  Raises:
    ValueError: If another process uses the folder, or if it cannot be written.
  """
  lock = filelock.FileLock(os.path.join(output_dir, _LOCK), timeout=0)
  try:
    os.makedirs(output_dir, exist_ok=True)
    lock.acquire()
  except filelock.Timeout:
    raise ValueError(f'Another sweep is running in {output_dir}.') from None
  except OSError as error:
    raise ValueError(f'output_dir {output_dir} cannot be used: {error}.') from error
  try:
    files.write_json(os.path.join(output_dir, _NAME), record._asdict())
    yield
  finally:
    lock.release()


def _check_types(record: Record):
  lists = [record.base, record.grids, *record.grids]
  texts = [*record.base, *(axis for grid in record.grids for axis in grid)]
  if not (all(isinstance(one, list) for one in lists) and all(isinstance(text, str) for text in texts)):
    raise TypeError('base is a list of flags, grids are lists of axes')
  if not (isinstance(record.identity, dict) and isinstance(record.flags, dict)):
    raise TypeError('identity and flags are objects')


def _read(output_dir: str) -> Optional[Record]:
  if not os.path.isdir(output_dir):
    if os.path.lexists(output_dir):
      raise ValueError(f'output_dir {output_dir} is a file; give a folder.')
    return None
  if not set(os.listdir(output_dir)) - {_LOCK, _NAME + files.UNFINISHED}:
    return None
  try:
    record = Record(**files.read_json(os.path.join(output_dir, _NAME)))
    _check_types(record)
  except (OSError, ValueError, TypeError, RecursionError):
    raise ValueError(
      f'output_dir {output_dir} holds files, but no readable {_NAME} of an earlier sweep: give a new or empty folder.'
    ) from None
  return record
