r"""Chooses the constants of a run on data that it makes, in the shape that you state. It reads no client's data.

    python -m experiments.tune --dataset=npz:path=mine.npz --shape=12 --classes=3 --num_clients=64 \
        --algorithm=certified --epsilon=3 --rounds=20 --output=tuned.flags
    python -m experiments.train --flagfile=tuned.flags --output_dir=runs/mine

The flags are those of `experiments.train`, and a few more. What they state is public: the certificate does not cover
it. The file of npz:path=… is not opened, not even for its shapes: its number of rows is a function of clients' data.
So state the shape of an example (--shape), --classes and --num_clients. Known datasets of images have a public shape.

The made federation has this shape, the clients, the cohorts (of --participation, by its model or its log) and the ε of
the run. A table becomes `synthetic` rows of norm --row_norm. Grey images become `glyphs`, and 32×32×3 becomes `things`.
The model is linear: logistic_regression on tables, linear_features on scattering features of images.

The search begins at constants that were right for linear models on rows of norm R: a rate of 100/R², five passes over
all of a client's examples, a clipping norm of 5/R. Then it goes one coordinate at a time, and keeps what has the best
mean test accuracy of two seeds, at the run's ε: rate and passes together, norm, rate again, rounds (with the norm),
and the average that is published. What you give yourself stays: --client_optimizer, --local_epochs, --rounds,
--averaging, and clip=… in --algorithm. At last the choice runs with three more seeds: that accuracy is the expectation.

The flag file has the flags of the run, the choice, and the sentence for --tuning. Progress goes to standard error. The
last line of standard output is one JSON object. Exit status: 0, 1 for wrong input or if a run failed, 130 when
interrupted.
"""

from collections.abc import Iterator, Sequence
import contextlib
import json
import os
import shutil
import sys
import tempfile
import time
from typing import Optional

from absl import flags

from experiments.command import command_line
from experiments.command import interrupts
from experiments.sweeps import children
from experiments.sweeps import scheduler
from experiments.sweeps import sweep_runs
from experiments.tuning import search as search_lib
from experiments.tuning import task as tasks
from quap_tff.common import files

_FLAGS = command_line.new_flags()
_OUTPUT = flags.DEFINE_string('output', None, 'The flag file to write.', flag_values=_FLAGS)
_SHAPE = flags.DEFINE_list(
  'shape',
  None,
  'Shape of an example: 12 for 12 columns, or 28,28,1 for images. You state it as public.',
  flag_values=_FLAGS,
)
_CLASSES = flags.DEFINE_integer(
  'classes', None, 'Number of classes. You state it as public.', lower_bound=2, flag_values=_FLAGS
)
_EXAMPLES = flags.DEFINE_integer(
  'examples_per_client', 40, 'Examples of a made client. You state it as public.', lower_bound=1, flag_values=_FLAGS
)
_ROW_NORM = flags.DEFINE_float(
  'row_norm',
  None,
  'Norm of a row of a table. Default: √columns, that of standardised columns. You state it as public.',
  lower_bound=1e-6,
  flag_values=_FLAGS,
)
_MINUTES = flags.DEFINE_float(
  'minutes', 5.0, 'The search ends after so many minutes, with the best so far.', lower_bound=0.1, flag_values=_FLAGS
)


class _TimeIsOverError(Exception):
  """The minutes of --minutes are over."""


def main(argv: list[str], play: Optional[search_lib.Play] = None) -> int:
  """Does what the flags in `argv[1:]` say; returns the exit status.

  `play` plays the runs of a grid; by default in processes.
  """
  rest = command_line.parse(_FLAGS, argv, __doc__, known_only=True)
  if not _OUTPUT.value:
    raise ValueError('--output is missing: name the flag file to write, such as --output=tuned.flags.')
  stated = tasks.Stated(_SHAPE.value, _CLASSES.value, _EXAMPLES.value, _ROW_NORM.value)
  task = tasks.task_of(rest, stated)
  interrupts.install()
  most = search_lib.most_runs(task)
  # Not a TemporaryDirectory: a forked process that ends would remove it.
  folder = tempfile.mkdtemp()
  try:
    search = search_lib.Search(task, folder, play or _Runs(most, 60 * _MINUTES.value))
    chosen = search.best()
    expected, is_fresh = search.expected(chosen)
  finally:
    shutil.rmtree(folder, ignore_errors=True)
  files.write(_OUTPUT.value, '\n'.join([*tasks.flag_file(task, chosen), '']))
  for line in _said(task, chosen, expected, is_fresh):
    print('\n'.join(command_line.filled(line)))
  result = {'output': os.path.abspath(_OUTPUT.value), 'expected_accuracy': round(expected, 4)}
  print(json.dumps({**result, 'dataset': task.made, 'runs': search.played, **tasks.flags_of(task, chosen)}), flush=True)
  return 0


def _said(task: tasks.Task, chosen: tasks.Constants, expected: float, is_fresh: bool) -> Iterator[str]:
  """The lines for a person."""
  yield f'Made: {task.num_clients} clients of {task.made}; features {task.features}; model {task.model}.'
  if task.model == 'logistic_regression' and task.made.startswith('synthetic'):
    yield 'Scale your columns so that rows have about that norm, by bounds that you know without the data.'
  yield 'Chosen: ' + ' '.join(f'--{name}={value}' for name, value in tasks.flags_of(task, chosen).items())
  seeds = (
    f'seeds {", ".join(map(str, search_lib.FRESH_SEEDS))}' if is_fresh else 'the seeds of the search: time was over'
  )
  yield f'Expected on the made federation: {expected:.1%} ({seeds}). Your data may be easier or harder.'
  yield f'Next: python -m experiments.train --flagfile={_OUTPUT.value} --output_dir=FOLDER'


class _Runs:
  """Plays grids in processes, and shows how long it will take.

  Args:
    most: The most runs of the whole search.
    seconds: When they are over, no more runs start, and active ones end.
  """

  def __init__(self, most: int, seconds: float):
    self._most, self._begin, self._seconds, self._started = most, time.monotonic(), seconds, 0
    self._parallel = len(os.sched_getaffinity(0))

  def __call__(self, folder: str, base: Sequence[str], axes: Sequence[str]) -> list[Optional[float]]:
    (runs,) = sweep_runs.runs_of(folder, [*base, '--num_threads=1'], [list(axes)])
    os.makedirs(folder, exist_ok=True)
    with contextlib.closing(children.Processes()) as processes:

      def start(run: sweep_runs.SweepRun) -> children.Child:
        self._check_time()
        self._started += 1
        self._show()
        return processes.start(run.group, run.arguments, f'{run.path}.log')

      try:
        failed, interrupted = scheduler.run_all(runs, self._parallel, start, lambda text: self._check_time())
      except _TimeIsOverError:
        failed, interrupted = {}, False
    if interrupted:
      raise KeyboardInterrupt
    for error in failed.values():
      raise ValueError(f'A run on the made federation failed: {error}')
    return [scheduler.standing(run).test_accuracy for run in runs]

  def _check_time(self) -> None:
    if time.monotonic() - self._begin > self._seconds:
      raise _TimeIsOverError

  def _show(self) -> None:
    """Shows the progress: in one line of a terminal, and in lines elsewhere."""
    passed = time.monotonic() - self._begin
    left = self._seconds - passed
    if self._started > self._parallel:
      left = min(left, passed / self._started * (self._most - self._started))
    text = f'run {self._started} of at most {self._most}; at most {left / 60:.1f} minutes left'
    text, end = (f'\r{text}', '') if sys.stderr.isatty() else (text, '\n')
    print(text, end=end, file=sys.stderr, flush=True)


if __name__ == '__main__':
  command_line.run(main)
