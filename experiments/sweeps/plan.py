"""Makes runs from grids and base flags, checks every flag before a run starts, and says how far each run has come."""

import collections
from collections.abc import Container, Mapping, Sequence
import json
import os
from typing import Any, NamedTuple, Optional

import pandas as pd

from experiments.command import flags as experiment_flags
from experiments.command import run as run_lib
from experiments.folders import folder as run_folder
from experiments.sweeps import grid as grid_lib
from quap_tff.common import files

_MOST_BYTES_OF_A_NAME = 255


class Run(NamedTuple):
  """One run of a sweep.

  Attributes:
    name: The name of its folder in the sweep's folder.
    path: Its folder.
    arguments: Its command line, for `experiments.train`.
    identity: The flags that say what it computes.
    last_round: The round after which it ends.
    stop_at_accuracy: The test accuracy at which it ends earlier.
    num_threads: The value of this flag.
  """

  name: str
  path: str
  arguments: list[str]
  identity: Mapping[str, Any]
  last_round: int
  stop_at_accuracy: Optional[float]
  num_threads: Optional[int]


class Standing(NamedTuple):
  """How far a run has come.

  Attributes:
    rounds: The number of logged rounds.
    finished: Whether it has reached its end.
    seconds_per_round: The mean over the logged rounds, by the files' times; None before the first round.
    test_accuracy: The test accuracy of a finished run.
  """

  rounds: int
  finished: bool
  seconds_per_round: Optional[float]
  test_accuracy: Optional[float]


def flag_names() -> list[str]:
  """The flags that a grid may contain."""
  return [grid_lib.FLAGFILE, *experiment_flags.all_values()]


def base_values(base: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
  """The flags' values under the base flags alone: first of the flags that say what is computed, then of all flags.

  Raises:
    ValueError: For an unknown flag, a value of the wrong type, or an output directory.
  """
  with experiment_flags.parsed(base) as values:
    if values.output_dir is not None:
      raise ValueError('--output_dir belongs to the sweep. Give it before the --, and each run gets a folder in it.')
    return run_lib.Run.from_flags(values).identity(), experiment_flags.all_values()


def runs_of(output_dir: str, base: Sequence[str], grids: Sequence[Sequence[str]]) -> list[list[Run]]:
  """The runs of each grid. If an earlier grid already has a combination, its run is used, under its name.

  Raises:
    ValueError: For every mistake that can be found without reading data: in a grid, a flag or a spec; two combinations
      of a grid that are the same run; folders that would have the same name, or that hold something else.
  """
  result: list[list[Run]] = []
  by_values: dict[str, Run] = {}
  for grid in grids:
    own: dict[str, str] = {}  # This grid's combinations, by the flags' values that they give.
    idle: Optional[dict[str, str]] = None  # Flags without an effect in any run so far, and why.
    for combination in grid_lib.combinations(grid, flag_names()):
      text = grid_lib.as_flags(combination)
      try:
        run, values, without_effect = _run(output_dir, base, combination)
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


def _run(output_dir, base, combination):
  """The run, the values of all flags except its folder, and the given flags that have no effect on it, and why.

  The flags without effect are left out of its command line: in a sweep over several methods, each gets what it uses.
  """
  name = grid_lib.directory_name(combination)
  if len(os.fsencode(name)) > _MOST_BYTES_OF_A_NAME:
    raise ValueError(
      f"the folder's name would be longer than {_MOST_BYTES_OF_A_NAME} bytes. Put settings into flag "
      'files, and vary those.'
    )
  path = os.path.join(output_dir, name)
  arguments = grid_lib.arguments(base, combination) + [f'--{grid_lib.OWN_FLAG}={path}']
  with experiment_flags.parsed(arguments):
    settings = experiment_flags.checked()
    without_effect = experiment_flags.without_effect(settings, experiment_flags.names_in(['', *arguments]))
    every_value = experiment_flags.all_values()
  del every_value[grid_lib.OWN_FLAG]
  arguments = experiment_flags.without(arguments, without_effect)
  with experiment_flags.parsed(arguments) as values:  # The run's folder has the defaults of the flags left out.
    identity = run_lib.Run.from_flags(values).identity()
  run_folder.check(path, identity)
  stop_at_accuracy = settings.schedule.stop_at_accuracy
  run = Run(name, path, arguments, identity, settings.last_round, stop_at_accuracy, settings.runtime.num_threads)
  return run, every_value, without_effect


def standing(run: Run) -> Standing:
  """How far a run has come, from its folder. What cannot be read counts as missing."""
  metrics = os.path.join(run.path, run_folder.METRICS)
  rounds = _last_round(metrics)
  summary = _summary(os.path.join(run.path, run_folder.SUMMARY))
  finished = (
    summary is not None
    and not summary['interrupted']
    and (
      summary['rounds'] >= run.last_round
      or run.stop_at_accuracy is not None
      and summary['test_accuracy'] >= run.stop_at_accuracy
    )
  )
  return Standing(
    rounds=summary['rounds'] if finished else rounds,
    finished=finished,
    seconds_per_round=_seconds(run.path, metrics) / rounds if rounds else None,
    test_accuracy=summary['test_accuracy'] if finished else None,
  )


def _last_round(path) -> int:
  try:
    rounds = pd.read_csv(path)['round'].astype(int)
    return int(rounds.iloc[-1]) if len(rounds) and rounds.min() > 0 else 0
  except (OSError, ValueError, KeyError, TypeError):
    return 0


def _seconds(path, metrics) -> float:
  """The time from the start of the run to its latest round. Pauses are counted, too."""
  return max(0.0, os.path.getmtime(metrics) - os.path.getmtime(os.path.join(path, run_folder.RUN)))


def _summary(path):
  kinds = {'interrupted': bool, 'rounds': int, 'test_accuracy': float}
  try:
    summary = files.read_json(path)
    return {name: kind(summary[name]) for name, kind in kinds.items()}
  except (OSError, ValueError, KeyError, TypeError, RecursionError):
    return None


def seconds_left(
  runs: Sequence[Run],
  standings: Mapping[str, Standing],
  parallel: int,
  outside_rounds: float = 0.0,
  at_work: Container[str] = (),
) -> Optional[float]:
  """How long the rest will take with `parallel` runs at a time; None before any round has been measured.

  A run is expected to take as long for a round as it took so far, or as the others took on average.

  Args:
    runs: All runs.
    standings: How far each has come, by its name.
    parallel: How many are active at a time.
    outside_rounds: The seconds of a run before its first round and after its last.
    at_work: The names of the active runs. Those that have logged a round have started up already.
  """
  measured = [s.seconds_per_round for s in standings.values() if s.seconds_per_round is not None]
  if not measured:
    return None
  average = sum(measured) / len(measured)
  ends = [0.0] * parallel
  for run in runs:
    at = standings[run.name]
    if not at.finished:
      pace = average if at.seconds_per_round is None else at.seconds_per_round
      is_started = run.name in at_work and at.rounds > 0
      ends[ends.index(min(ends))] += pace * max(0, run.last_round - at.rounds) + (not is_started) * outside_rounds
  return max(ends)
