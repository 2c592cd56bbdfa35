"""Runs the runs of a sweep, several at a time, and reports how far each has come."""

from collections.abc import Container, Iterable, Mapping, Sequence
import os
import time
from typing import Callable, NamedTuple, Optional

import pandas as pd

from experiments.command import interrupts
from experiments.folders import folder as run_folder
from experiments.sweeps import children
from experiments.sweeps import sweep_runs
from quap_tff.common import files
from quap_tff.common import json_types
from quap_tff.common import lazy

tqdm = lazy.module('tqdm')

_SECONDS_BETWEEN_LOOKS = 0.2
_SECONDS_BETWEEN_REPORTS = 60


class RunStanding(NamedTuple):
  """How far a run has come.

  Attributes:
    rounds: The number of logged rounds.
    finished: Whether it has reached its end.
    seconds_per_round: The mean over the logged rounds, by the files' times, so pauses count, too; None before the first
      round.
    test_accuracy: The test accuracy of a finished run.
  """

  rounds: int
  finished: bool
  seconds_per_round: Optional[float]
  test_accuracy: Optional[float]


def standing(run: sweep_runs.SweepRun) -> RunStanding:
  """How far a run has come, from its folder. An unreadable file counts as missing."""
  metrics, begun = (os.path.join(run.path, name) for name in (run_folder.METRICS, run_folder.RUN))
  rounds, summary = _last_round(metrics), _summary(run.path)
  seconds = max(0.0, os.path.getmtime(metrics) - os.path.getmtime(begun)) / rounds if rounds else None
  unfinished = RunStanding(rounds, False, seconds, None)
  if summary is None or summary['interrupted']:
    return unfinished
  is_accurate = run.stop_at_accuracy is not None and summary['test_accuracy'] >= run.stop_at_accuracy
  has_all_rounds = summary['rounds'] >= run.last_round
  return (
    RunStanding(summary['rounds'], True, seconds, summary['test_accuracy'])
    if is_accurate or has_all_rounds
    else unfinished
  )


def _last_round(path: str) -> int:
  try:
    rounds = pd.read_csv(path)['round'].astype(int)
    return int(rounds.iloc[-1]) if len(rounds) and rounds.min() > 0 else 0
  except (OSError, ValueError, KeyError, TypeError):
    return 0


def _summary(folder: str) -> Optional[json_types.JsonObject]:
  kinds = {'interrupted': bool, 'rounds': int, 'test_accuracy': float}
  try:
    summary = files.read_json(os.path.join(folder, run_folder.SUMMARY))
    return {name: kind(summary[name]) for name, kind in kinds.items()}
  except (OSError, ValueError, KeyError, TypeError, RecursionError):
    return None


def seconds_left(
  runs: Sequence[sweep_runs.SweepRun],
  standings: Mapping[str, RunStanding],
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


def run_all(
  runs: Sequence[sweep_runs.SweepRun],
  parallel: int,
  start: Callable[[sweep_runs.SweepRun], children.Child],
  say: Callable[[str], None],
) -> tuple[dict[str, str], bool]:
  """Runs all runs that are not finished, those that have begun first, group by group. If one fails, the others go on.

  On KeyboardInterrupt, no more runs start, the active ones are asked to end, and the call waits until they have ended.

  Args:
    runs: All runs of the sweep.
    parallel: How many runs are active at a time.
    start: Starts a run.
    say: Prints a line for the user.

  Returns:
    Why runs failed, by the run's name, and whether the user interrupted the sweep.
  """
  standings = {run.name: standing(run) for run in runs}
  waiting = sorted(
    (run for run in runs if not standings[run.name].finished), key=lambda run: not standings[run.name].rounds
  )
  active: dict[str, children.Child] = {}
  began: dict[str, float] = {}  # When new runs were started.
  outside_rounds: list[float] = []  # Seconds of whole runs, without their rounds.
  failed: dict[str, str] = {}
  by_name = {run.name: run for run in runs}
  interrupted, idle = False, list[str]()  # The latter: the groups of processes without a run.

  def report(event: str) -> None:
    for name in active:
      standings[name] = standing(by_name[name])
    unfailed = [run for run in runs if run.name not in failed]
    say(f'{event.rstrip(".")}; {_time_left(unfailed, standings, parallel, outside_rounds, active)}')

  say(_overview(runs, standings, parallel))
  last_report = time.monotonic()
  try:
    while waiting or active:
      while waiting and len(active) < parallel:
        # No signal may come between a child's start and its entry in `active`, or nothing would end the child.
        with interrupts.held_back():
          run = _next(waiting, idle, [by_name[name].group for name in active])
          waiting.remove(run)
          if run.group in idle:
            idle.remove(run.group)
          else:
            idle.clear()  # A new process takes the place of those.
          active[run.name] = start(run)
        if not standings[run.name].rounds:
          began[run.name] = time.monotonic()
      for name, child in list(active.items()):
        code = child.exitcode
        if code is None:
          continue
        del active[name]
        idle.append(by_name[name].group)
        standings[name] = standing(by_name[name])
        if code:
          failed[name] = child.error()
          report(f'FAILED {name}: {failed[name]}')
        else:
          if name in began:
            in_rounds = (standings[name].seconds_per_round or 0.0) * standings[name].rounds
            outside_rounds.append(max(0.0, time.monotonic() - began[name] - in_rounds))
          report(f'done {name}: {_result(standings[name])}')
      if time.monotonic() - last_report > _SECONDS_BETWEEN_REPORTS:
        last_report = time.monotonic()
        report(_at_work(active, by_name))
      if active:
        time.sleep(_SECONDS_BETWEEN_LOOKS)
  except KeyboardInterrupt:
    interrupted = True
    if active:
      say(f'Interrupted. Active runs: {len(active)}. Waiting until they have saved their last round and ended.')
  finally:
    for child in active.values():
      child.terminate()
    for child in active.values():
      child.join()
  return failed, interrupted


def _next(waiting: Sequence[sweep_runs.SweepRun], idle: Container[str], at_work: Container[str]) -> sweep_runs.SweepRun:
  """The first run for a process that has none, or else of a group that no process works on, or else of all."""
  return min(waiting, key=lambda run: (run.group not in idle, run.group in at_work))


def _overview(runs: Sequence[sweep_runs.SweepRun], standings: Mapping[str, RunStanding], parallel: int) -> str:
  finished = sum(at.finished for at in standings.values())
  begun = sum(at.rounds > 0 and not at.finished for at in standings.values())
  new = len(runs) - finished - begun
  return (
    f'{len(runs)} runs, {parallel} at a time: {finished} done, {begun} begun, {new} new; '
    f'{_time_left(runs, standings, parallel, (), ())}'
  )


def _time_left(
  runs: Sequence[sweep_runs.SweepRun],
  standings: Mapping[str, RunStanding],
  parallel: int,
  outside_rounds: Sequence[float],
  active: Container[str],
) -> str:
  """How long the rest will take: with start-ups, as soon as a whole run has shown how long these are."""
  each = sum(outside_rounds) / len(outside_rounds) if outside_rounds else 0.0
  seconds = seconds_left(runs, standings, parallel, each, active)
  left = sum(not standings[run.name].finished for run in runs)
  if not left:
    return 'nothing left'
  if seconds is None:
    return f'{left} left, time unknown until a round has run'
  about = 'about' if outside_rounds else 'at least'
  return f'{left} left, {about} {tqdm.tqdm.format_interval(seconds)}'


def _at_work(active: Iterable[str], by_name: Mapping[str, sweep_runs.SweepRun]) -> str:
  at = {name: standing(by_name[name]).rounds for name in active}
  return 'active: ' + ', '.join(f'{name} (round {at[name]}/{by_name[name].last_round})' for name in active)


def _result(at: RunStanding) -> str:
  accuracy = f', test accuracy {at.test_accuracy:.2%}' if at.test_accuracy is not None else ''
  return f'{at.rounds} rounds{accuracy}'
