r"""Trains with every combination of a grid of flags. Each combination is a run in its own folder.

    python -m experiments.sweep --output_dir=runs/table2 \
        --vary='algorithm=fedavg|fixed_dp:clip=1.0|quap' \
        --vary='seed=42|123|999' \
        -- --flagfile=experiments/presets/mnist_2025.flags --data_dir=…

The flags after the lone `--` are those of `experiments.train`. They go to every run. Each --vary is one axis of the
grid, with values separated by `|`. The grid has every combination of its axes. Flags that vary together share one axis,
separated by `;`:

    --vary='dataset=mnist|cifar10;flagfile=mnist.flags|cifar10.flags'

A flag of the grid overrides the same flag after the `--`, which overrides a flag file of the grid. A run gets only the
flags that its method uses. A flag that no run uses is an error.

The sweep's folder holds the grid and the flags (sweep.json). It also holds a folder for each run, and a file with the
text that the run printed (.log). A second call continues the runs that are not finished. Give it the same grid, or
another grid, whose runs are then added. Without grid and flags, it continues all runs of the folder.

Progress goes to standard error, and a summary to standard output. The last line of the summary is one JSON object. Exit
status: 0 when all runs are done, 1 for wrong input (no run was started) or if a run failed (the others went on), 130
when interrupted by Ctrl-C or SIGTERM (the active runs have saved their last round).
"""

from collections.abc import Sequence
import contextlib
import json
import os
import shlex
import sys
import time
from typing import Callable, NamedTuple, Optional

from absl import flags

from experiments.command import command_line
from experiments.command import interrupts
from experiments.sweeps import children
from experiments.sweeps import scheduler
from experiments.sweeps import sweep_runs
from quap_tff.common import json_types

# Flags of its own: those of `experiments.command.flags` are the runs'.
_FLAGS = command_line.new_flags()
_OUTPUT_DIR = flags.DEFINE_string('output_dir', None, 'Folder of the sweep.', flag_values=_FLAGS)
_VARY = flags.DEFINE_multi_string(
  # absl appends that the flag may be repeated.
  'vary',
  [],
  'An axis of the grid: name=value|value. A semicolon separates flags that share the axis',
  flag_values=_FLAGS,
)
_PARALLEL = flags.DEFINE_integer(
  'parallel',
  1,
  'Number of runs at a time. They share the cores unless --num_threads is given.',
  lower_bound=1,
  flag_values=_FLAGS,
)
_DRY_RUN = flags.DEFINE_bool('dry_run', False, 'List the runs and their commands, and start none.', flag_values=_FLAGS)

Start = Callable[[sweep_runs.SweepRun], children.Child]


class SweepOutcome(NamedTuple):
  """How a sweep ended.

  Attributes:
    status: The exit status.
    said: Lines for a person.
    result: The same for a program, as JSON has it; None if no run was started.
  """

  status: int
  said: list[str]
  result: Optional[json_types.JsonObject]


def main(argv: list[str], start: Optional[Start] = None) -> int:
  """Does what the flags in `argv[1:]` say; returns the exit status. `start` starts a run, by default in a process."""
  interrupts.install()
  base = _parse(argv)
  folder, axes, parallel = _OUTPUT_DIR.value, _VARY.value, _PARALLEL.value
  grids = [axes] if axes else []
  outcome = listed(folder, base, grids, parallel) if _DRY_RUN.value else play_runs(folder, base, grids, parallel, start)
  for line in outcome.said:
    print(line)
  if outcome.result is not None:
    print(json.dumps(outcome.result, allow_nan=False), flush=True)
  return outcome.status


def play_runs(
  folder: str, base: Sequence[str], grids: Sequence[Sequence[str]], parallel: int = 1, start: Optional[Start] = None
) -> SweepOutcome:
  """Runs what is left of a sweep, and prints its progress on standard error.

  Args:
    folder: The folder of the sweep.
    base: The flags of all runs. Empty: those of the folder's sweep.
    grids: The grids, each as --vary has it. Empty: all grids of the folder's sweep.
    parallel: How many runs are active at a time.
    start: Starts a run; None to start each in a process.

  Raises:
    ValueError: For wrong flags or a wrong folder. No run was started.
  """
  try:
    record, runs = _prepare(folder, base, grids)
    for line in sweep_runs.changed_controls(folder, record):
      _say(f'Changed for what is left: {line.strip()}.')
    with sweep_runs.held(folder, record):
      begin = time.monotonic()
      with contextlib.closing(children.Processes()) as processes:

        def start_process(run: sweep_runs.SweepRun) -> children.Child:
          return processes.start(run.group, _arguments(run, parallel), f'{run.path}.log')

        failed, interrupted = scheduler.run_all(runs, parallel, start or start_process, _say)
      return _summarize(folder, parallel, runs, failed, interrupted, time.monotonic() - begin)
  except KeyboardInterrupt:
    print('\nInterrupted before a run was started.', file=sys.stderr)
    return SweepOutcome(command_line.INTERRUPTED, [], None)


def listed(folder: str, base: Sequence[str], grids: Sequence[Sequence[str]], parallel: int = 1) -> SweepOutcome:
  """The runs of a sweep with their commands and how far they have come, as `play_runs` takes them."""
  _, runs = _prepare(folder, base, grids)
  standings = {run.name: scheduler.standing(run) for run in runs}
  said = []
  for run in runs:
    at = standings[run.name]
    state = 'done' if at.finished else f'round {at.rounds} of {run.last_round}' if at.rounds else 'new'
    command = [sys.executable, '-m', 'experiments.train', *_arguments(run, parallel)]
    said.append(f'{run.name} ({state})\n  {shlex.join(command)}')
  done = [name for name, at in standings.items() if at.finished]
  return SweepOutcome(0, said, _result(folder, runs, done, {}, False, 0.0))


def _parse(argv: Sequence[str]) -> list[str]:
  """Sets the sweep's own flags and returns the runs'."""
  end = argv.index('--') if '--' in argv else len(argv)
  misplaced = set(command_line.given_names(argv[:end])) & set(sweep_runs.flag_names()) - set(_FLAGS)
  if misplaced:
    raise ValueError(f'--{min(misplaced)} is a flag of the runs: put it after a lone --.')
  misplaced = set(command_line.given_names(argv[end:])) & set(_FLAGS) - set(sweep_runs.flag_names())
  if misplaced:
    raise ValueError(f'--{min(misplaced)} is a flag of the sweep: put it before the lone --.')
  rest = command_line.parse(_FLAGS, argv[:end], __doc__)
  if rest:
    raise ValueError(f'Unexpected argument {rest[0]!r}. Write flags as --name=value, and flags of the runs after a --.')
  if not _OUTPUT_DIR.value:
    raise ValueError('--output_dir is missing: give the folder of the sweep.')
  return list(argv[end + 1 :])


def _prepare(
  folder: str, base: Sequence[str], grids: Sequence[Sequence[str]]
) -> tuple[sweep_runs.Record, list[sweep_runs.SweepRun]]:
  """The sweep, and the runs that this call is about."""
  record = sweep_runs.extended(folder, base, grids)
  by_grid = sweep_runs.runs_of(folder, record.base, record.grids)
  if grids:
    by_grid = [by_grid[record.grids.index(list(grid))] for grid in grids]
  return record, list({run.name: run for runs in by_grid for run in runs}.values())


def _arguments(run: sweep_runs.SweepRun, parallel: int) -> list[str]:
  if parallel == 1 or run.num_threads is not None:
    return run.arguments
  return [*run.arguments, f'--num_threads={max(1, len(os.sched_getaffinity(0)) // parallel)}']


def _summarize(
  folder: str,
  parallel: int,
  runs: Sequence[sweep_runs.SweepRun],
  failed: dict[str, str],
  interrupted: bool,
  seconds: float,
) -> SweepOutcome:
  done = [run.name for run in runs if scheduler.standing(run).finished]
  said = [f'{len(done)} of {len(runs)} runs are done.']
  for name, error in failed.items():
    said.append(f'Failed: {name}: {error}\n  {os.path.join(folder, name)}.log')
  if len(done) < len(runs):
    command = ['python', '-m', 'experiments.sweep', f'--output_dir={folder}']
    command += [f'--parallel={parallel}'] if parallel > 1 else []
    said.append(f'To go on: {shlex.join(command)}')
  status = command_line.FAILED if failed else 0
  if interrupted:
    status = command_line.INTERRUPTED
  result = _result(folder, runs, done, failed, interrupted, seconds)
  return SweepOutcome(status, said, result)


def _result(
  folder: str,
  runs: Sequence[sweep_runs.SweepRun],
  done: Sequence[str],
  failed: dict[str, str],
  interrupted: bool,
  seconds: float,
) -> json_types.JsonObject:
  return {
    'runs': len(runs),
    'done': list(done),
    'failed': failed,
    'left': [run.name for run in runs if run.name not in done and run.name not in failed],
    'interrupted': interrupted,
    'seconds': round(seconds, 3),
    'output_dir': os.path.abspath(folder),
  }


def _say(text: str) -> None:
  print(text, file=sys.stderr, flush=True)


if __name__ == '__main__':
  command_line.run(main)
