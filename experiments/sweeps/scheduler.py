"""Runs the runs of a sweep, several at a time, and reports progress."""

import collections
from collections.abc import Sequence
import time
from typing import Any, Callable, NamedTuple

from experiments.command import interrupts
from experiments.sweeps import plan
from quap_tff.common import lazy

tqdm = lazy.module('tqdm')

_SECONDS_BETWEEN_LOOKS = 0.2
_SECONDS_BETWEEN_REPORTS = 60


class Outcome(NamedTuple):
  """How a sweep ended.

  Attributes:
    done: The names of the finished runs, including those of earlier calls.
    failed: What went wrong, by the name of the run.
    interrupted: Whether the user interrupted the sweep.
  """

  done: list[str]
  failed: dict[str, str]
  interrupted: bool


def run_all(
  runs: Sequence[plan.Run], parallel: int, start: Callable[[plan.Run], Any], say: Callable[[str], None]
) -> Outcome:
  """Runs all runs that are not finished, those that have begun first. If one fails, the others go on.

  On KeyboardInterrupt, no more runs start, the active ones are asked to end, and the call waits until they have ended.

  Args:
    runs: All runs of the sweep.
    parallel: How many runs are active at a time.
    start: Starts a run, and returns a `children.Child`.
    say: Prints a line for the user.
  """
  standings = {run.name: plan.standing(run) for run in runs}
  waiting = collections.deque(
    sorted((run for run in runs if not standings[run.name].finished), key=lambda run: not standings[run.name].rounds)
  )
  active: dict[str, Any] = {}
  began: dict[str, float] = {}  # When new runs were started.
  outside_rounds: list[float] = []  # Seconds of whole runs, without their rounds.
  failed: dict[str, str] = {}
  by_name = {run.name: run for run in runs}
  interrupted = False

  def report(event: str):
    for name in active:
      standings[name] = plan.standing(by_name[name])
    unfailed = [run for run in runs if run.name not in failed]
    say(f'{event.rstrip(".")}; {_time_left(unfailed, standings, parallel, outside_rounds, active)}')

  say(_overview(runs, standings, parallel))
  last_report = time.monotonic()
  try:
    while waiting or active:
      for name in _fill(active, waiting, parallel, start):
        if not standings[name].rounds:
          began[name] = time.monotonic()
      for name, child in list(active.items()):
        code = child.poll()
        if code is None:
          continue
        del active[name]
        standings[name] = plan.standing(by_name[name])
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
      child.end()
    for child in active.values():
      child.wait()
  return Outcome([run.name for run in runs if plan.standing(run).finished], failed, interrupted)


def _fill(
  active: dict[str, Any], waiting: collections.deque[plan.Run], parallel: int, start: Callable[[plan.Run], Any]
):
  """Starts runs until enough are active; returns their names."""
  started = []
  while waiting and len(active) < parallel:
    # No signal may come between a child's start and its entry in `active`, or nothing would end the child.
    with interrupts.held_back():
      run = waiting.popleft()
      active[run.name] = start(run)
    started.append(run.name)
  return started


def _overview(runs, standings, parallel):
  finished = sum(standing.finished for standing in standings.values())
  begun = sum(standing.rounds > 0 and not standing.finished for standing in standings.values())
  new = len(runs) - finished - begun
  return (
    f'{len(runs)} runs, {parallel} at a time: {finished} done, {begun} begun, {new} new; '
    f'{_time_left(runs, standings, parallel, (), ())}'
  )


def _time_left(runs, standings, parallel, outside_rounds, active):
  """How long the rest will take: with start-ups, as soon as a whole run has shown how long these are."""
  each = sum(outside_rounds) / len(outside_rounds) if outside_rounds else 0.0
  seconds = plan.seconds_left(runs, standings, parallel, each, active)
  left = sum(not standings[run.name].finished for run in runs)
  if not left:
    return 'nothing left'
  if seconds is None:
    return f'{left} left, time unknown until a round has run'
  return f'{left} left, {"about" if outside_rounds else "at least"} {tqdm.tqdm.format_interval(seconds)}'


def _at_work(active, by_name):
  at = {name: plan.standing(by_name[name]).rounds for name in active}
  return 'active: ' + ', '.join(f'{name} (round {at[name]}/{by_name[name].last_round})' for name in active)


def _result(standing):
  accuracy = f', test accuracy {standing.test_accuracy:.2%}' if standing.test_accuracy is not None else ''
  return f'{standing.rounds} rounds{accuracy}'
