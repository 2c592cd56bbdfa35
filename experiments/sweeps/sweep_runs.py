"""The plan of a sweep: sweep.json with its base flags and all its grids, and the runs that these mean.

A grid is a list of axes, as a command line gives them:

    --vary='algorithm=fedavg|fixed_dp:clip=1.0|quap'            three alternatives
    --vary='seed=42|123|999'                                    times three, so nine combinations
    --vary='dataset=mnist|cifar10;flagfile=a.flags|b.flags'     one axis of two flags that vary together

Values are written as on the training binary's command line. They may contain commas, colons and equals signs, but
neither `|` nor `;`. Every flag is checked before a run starts. One process at a time may use a sweep's folder.
"""

import collections
from collections.abc import Iterator, Sequence
import contextlib
import itertools
import json
import os
import re
from typing import Any, NamedTuple, Optional

import filelock

from experiments.command import flags as experiment_flags
from experiments.command import run as run_lib
from experiments.folders import folder as run_folder
from quap_tff.common import files
from quap_tff.common import json_types
from quap_tff.common import registry

_NAME = 'sweep.json'
_LOCK = '.lock'
_MOST_BYTES_OF_A_NAME = 255
_FLAGFILE = 'flagfile'
# Flags that may differ between the runs of a group.
_WITHIN_GROUPS = ('seed', 'noise_seed', 'epsilon', 'participation')


class SweepRun(NamedTuple):
  """One run of a sweep.

  Attributes:
    name: The name of its folder in the sweep's folder.
    path: Its folder.
    arguments: Its command line, for `experiments.train`.
    identity: The flags that say what it computes.
    last_round: The round after which it ends.
    stop_at_accuracy: The test accuracy at which it ends earlier.
    num_threads: The value of this flag.
    group: Runs with the same text may share a process: they differ in nothing but seeds, cohorts and amounts of noise.
  """

  name: str
  path: str
  arguments: list[str]
  identity: json_types.JsonView
  last_round: int
  stop_at_accuracy: Optional[float]
  num_threads: Optional[int]
  group: str


class Record(NamedTuple):
  """The content of sweep.json.

  Attributes:
    base: The base flags of every run, as they were given.
    identity: The values of those flags that decide what is computed.
    flags: The values of all flags.
    grids: The axes of each call's grid.
  """

  base: list[str]
  identity: json_types.JsonObject
  flags: json_types.JsonObject
  grids: list[list[str]]


def extended(output_dir: str, base: Sequence[str], grids: Sequence[Sequence[str]]) -> Record:
  """The folder's sweep with more grids, or a new sweep if the folder has none. Changes nothing.

  Args:
    output_dir: The sweep's folder.
    base: The base flags of every run. Empty: those of the folder's sweep.
    grids: The grids; those that the sweep has already are not added again.

  Raises:
    ValueError: If there is no grid at all, if the folder holds something else, if a base flag is
      wrong, or if the base flags compute something else than the folder's sweep (the message says which flags differ).
  """
  kept = _read_record(output_dir)
  if kept is None:
    if not grids:
      raise ValueError(f'The grid is empty, and {output_dir} holds no sweep to continue. Give --vary=name=value|value.')
    return Record(list(base), *_base_values(base), [list(grid) for grid in grids])
  base = list(base) or kept.base
  identity, flags = _base_values(base)
  differing = run_folder.differences(kept.identity, identity)
  if differing:
    raise ValueError(
      f'{output_dir} is a sweep with other base flags:{"".join(differing)}\nGive the same flags or none, vary them '
      'in the grid, or use another folder.'
    )
  new = [list(grid) for grid in grids if list(grid) not in kept.grids]
  return Record(base, identity, flags, [*kept.grids, *new])


def changed_controls(output_dir: str, record: Record) -> list[str]:
  """A line for each base flag that differs from the folder's sweep but does not change what is computed."""
  kept = _read_record(output_dir)
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


def _base_values(base: Sequence[str]) -> tuple[json_types.JsonObject, json_types.JsonObject]:
  """The flags' values under the base flags alone: first of the flags that say what is computed, then of all flags.

  Raises:
    ValueError: For an unknown flag, a value of the wrong type, or an output directory.
  """
  with experiment_flags.parsed(base) as values:
    if values.output_dir is not None:
      raise ValueError('--output_dir belongs to the sweep. Give it before the --, and each run gets a folder in it.')
    return run_lib.Run.from_flags(values).identity(), experiment_flags.all_values()


def _read_record(output_dir: str) -> Optional[Record]:
  if not os.path.isdir(output_dir):
    if os.path.lexists(output_dir):
      raise ValueError(f'output_dir {output_dir} is a file; give a folder.')
    return None
  if not set(os.listdir(output_dir)) - {_LOCK, _NAME + files.UNFINISHED}:
    return None
  try:
    record = Record(**files.read_json(os.path.join(output_dir, _NAME)))
    lists, objects = [record.base, record.grids, *record.grids], [record.identity, record.flags]
    if not all(isinstance(one, list) for one in lists) or not all(isinstance(one, dict) for one in objects):
      raise TypeError
    if not all(isinstance(text, str) for texts in (record.base, *record.grids) for text in texts):
      raise TypeError
  except (OSError, ValueError, TypeError, RecursionError):
    raise ValueError(
      f'output_dir {output_dir} holds files, but no readable {_NAME} of an earlier sweep: give a new or empty folder.'
    ) from None
  return record


def flag_names() -> list[str]:
  """The flags that a grid may contain."""
  return [_FLAGFILE, *experiment_flags.all_values()]


def runs_of(output_dir: str, base: Sequence[str], grids: Sequence[Sequence[str]]) -> list[list[SweepRun]]:
  """The runs of each grid. If an earlier grid already has a combination, its run is used, under its name.

  Raises:
    ValueError: For every mistake that can be found without reading data: in a grid, a flag or a spec; two combinations
      of a grid that are the same run; folders that would have the same name, or that hold something else.
  """
  result: list[list[SweepRun]] = []
  by_values: dict[str, SweepRun] = {}
  for grid in grids:
    own: dict[str, str] = {}  # This grid's combinations, by the flags' values that they give.
    idle: Optional[dict[str, str]] = None  # Flags without an effect in any run so far, and why.
    for combination in combinations(grid):
      text = as_flags(combination)
      try:
        run, values, without_effect = _run_of(output_dir, base, combination)
      except ValueError as error:
        raise ValueError(f'{text}: {error}') from error
      kept = without_effect if idle is None else idle
      idle = {name: reason for name, reason in kept.items() if name in without_effect}
      key = json.dumps(values, sort_keys=True)
      if key in own:
        raise ValueError(f'These are the same run: {own[key]} and {text}.')
      own[key] = text
      by_values.setdefault(key, run)
    for name, reason in (idle or {}).items():
      raise ValueError(f'--{name} has no effect in any run of the grid: {reason}')
    result.append([by_values[key] for key in own])
  for name, count in collections.Counter(run.name for run in by_values.values()).items():
    if count > 1:
      raise ValueError(
        f'{count} combinations would have the same folder {name!r}. Names tell values apart only by letters, digits '
        'and _.=+-, and paths only by their last part.'
      )
  return result


def _run_of(
  output_dir: str, base: Sequence[str], combination: Any
) -> tuple[SweepRun, json_types.JsonObject, dict[str, str]]:
  """The run, the values of all flags except its folder, and the given flags that have no effect on it, and why.

  The flags without effect are left out of its command line: in a sweep over several methods, each gets what it uses.
  """
  name = directory_name(combination)
  if len(os.fsencode(name)) > _MOST_BYTES_OF_A_NAME:
    raise ValueError(
      f"the folder's name would be longer than {_MOST_BYTES_OF_A_NAME} bytes. Put settings into flag "
      'files, and vary those.'
    )
  path = os.path.join(output_dir, name)
  arguments = arguments_of(base, combination) + [f'--output_dir={path}']
  with experiment_flags.parsed(arguments):
    settings = experiment_flags.checked_run()
    without_effect = experiment_flags.without_effect(settings, experiment_flags.names_in(['', *arguments]))
    every_value = experiment_flags.all_values()
  del every_value['output_dir']
  arguments = experiment_flags.without(arguments, without_effect)
  with experiment_flags.parsed(arguments) as values:  # The run's folder has the defaults of the flags left out.
    identity = run_lib.Run.from_flags(values).identity()
  run_folder.check(path, identity)
  stop_at_accuracy = settings.schedule.stop_at_accuracy
  group = json.dumps({key: value for key, value in every_value.items() if key not in _WITHIN_GROUPS}, sort_keys=True)
  num_threads = settings.runtime.num_threads
  run = SweepRun(name, path, arguments, identity, settings.last_round, stop_at_accuracy, num_threads, group)
  return run, every_value, without_effect


def combinations(axes: Sequence[str]) -> list[dict[str, str]]:
  """Every combination of the axes' alternatives, as values by flag. The last axis varies fastest.

  Args:
    axes: Each is `name=value|value…`, or several of these, equally long, joined by `;`.

  Raises:
    ValueError: For an axis that is not written in this way, an unknown flag, a flag that appears in two places or that
      a sweep may not vary, or a value that appears twice.
  """
  parsed = [_axis(axis) for axis in axes]
  counts = collections.Counter(name for axis in parsed for name in axis[0])
  for name, count in counts.items():
    if count > 1:
      raise ValueError(f'--{name} appears {count} times in the grid. Give all of its values in one place.')
  found = []
  for alternatives in itertools.product(*parsed):
    combination: dict[str, str] = {}
    for alternative in alternatives:
      combination.update(alternative)
    found.append(combination)
  return found


def _axis(axis: str) -> list[dict[str, str]]:
  columns: dict[str, list[str]] = {}
  for part in axis.split(';'):
    name, equals, text = (piece.strip() for piece in part.partition('='))
    if not equals or not name:
      raise ValueError(f'--vary={axis!r}: expected name=value|value, found {part!r}.')
    if name == 'output_dir':
      raise ValueError(f'--vary={axis!r}: the sweep gives each run its own --output_dir.')
    if name not in flag_names():
      raise registry.unknown_name_error('flag', name, flag_names())
    if name in columns:
      raise ValueError(f'--vary={axis!r}: {name!r} appears twice.')
    columns[name] = [value.strip() for value in text.split('|')]
    if not all(columns[name]):
      raise ValueError(f'--vary={axis!r}: {name!r} has an empty value: write name=value|value.')
  lengths = {name: len(values) for name, values in columns.items()}
  if len(set(lengths.values())) > 1:
    sizes = ', '.join(f'{name!r} has {length}' for name, length in lengths.items())
    raise ValueError(f'--vary={axis!r}: flags that vary together need the same number of values; {sizes}.')
  alternatives = [dict(zip(columns, values)) for values in zip(*columns.values())]
  for alternative, count in collections.Counter(tuple(a.items()) for a in alternatives).items():
    if count > 1:
      raise ValueError(f'--vary={axis!r}: {as_flags(dict(alternative))} appears {count} times.')
  return alternatives


def directory_name(combination: dict[str, str]) -> str:
  """The name of a combination's folder. It depends only on the values, not on their order or the rest of the grid."""
  return ','.join(f'{name}={_readable(value)}' for name, value in sorted(combination.items()))


def _readable(value: str) -> str:
  """The last part of a path, without the suffix of a flag file. Characters that a name cannot have become dashes."""
  last = value.rstrip('/').rpartition('/')[2]
  return re.sub(r'[^A-Za-z0-9_.=+-]+', '-', last.removesuffix('.flags'))


def arguments_of(base: Sequence[str], combination: dict[str, str]) -> list[str]:
  """The training binary's flags. The grid overrides `base`, which overrides a flag file that the grid varies."""
  first = [f'--{_FLAGFILE}={combination[_FLAGFILE]}'] if _FLAGFILE in combination else []
  return first + list(base) + [f'--{name}={value}' for name, value in combination.items() if name != _FLAGFILE]


def as_flags(combination: dict[str, str]) -> str:
  """A combination as flags."""
  return ' '.join(f'--{name}={value}' for name, value in combination.items())
