"""Runs of `experiments.train` for tests: in this process, where most can be seen, or as the command of a user."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
import contextlib
import csv
import json
import os
import pathlib
import signal
import subprocess
import sys
from typing import Any, NamedTuple

import pytest

from experiments import train
from experiments.command import command_line
from experiments.command import flags as experiment_flags
from experiments.command import interrupts
from experiments.command import run as run_lib
from quap_tff import runtime
from quap_tff.common import lazy
from tests import processes
from tests.quap_tff.certificates import made

setup = lazy.module('experiments.running.setup')  # These load TensorFlow.
loop = lazy.module('experiments.running.loop')
outcome = lazy.module('experiments.running.outcome')

REPOSITORY = pathlib.Path(__file__).absolute().parents[2]
PRESETS = REPOSITORY / 'experiments' / 'presets'
# For child processes: this project from any folder, and the packages of this process, which Bazel puts on its path.
PYTHONPATH = os.pathsep.join([str(REPOSITORY), *sys.path])

# A round in milliseconds. From a file, as presets are: what a method does not use is refused on a command line only.
TINY_FLAGS = REPOSITORY / 'tests' / 'experiments' / 'tiny.flags'
TINY = (f'--flagfile={TINY_FLAGS}',)

keys = made.keys


def parsed(*arguments: str):
  """The flags as a command line with these arguments would set them, within a `with` block."""
  return experiment_flags.parsed(arguments)


def run(*arguments: str) -> run_lib.Run:
  """The run that a command line with these arguments describes."""
  with parsed(*arguments) as values:
    return run_lib.Run.from_flags(values)


def check(*arguments: str) -> None:
  """Checks the flags of a command line with these arguments, before data are read."""
  with parsed(*arguments):
    experiment_flags.checked_run(experiment_flags.names_in(['', *arguments]))


def refusal(*arguments: str) -> str:
  """The message with which that check refuses a command line."""
  with pytest.raises(ValueError) as caught:
    check(*arguments)
  return str(caught.value)


def experiment(*arguments: str) -> setup.Experiment:
  """The experiment that a command line with these arguments describes."""
  with parsed(*arguments) as values:
    return setup.from_flags(values)


def trained(experiment: setup.Experiment) -> outcome.Outcome:
  """The result of an experiment that is run without a folder and without progress."""
  with runtime.activate(experiment.runtime):
    return loop.train(experiment, experiment.build_process())


def configured(*arguments: str, num_clients: int = 10):
  """The mechanism's configuration in that run."""
  found = run(*arguments)
  return found.method.configure(found.setting(num_clients)).configuration


@contextlib.contextmanager
def signal_handlers_kept() -> Iterator[None]:
  """Gives SIGINT, SIGTERM and Python's hook back to their owners; what has come is forgotten, as in another process."""
  hook, before = sys.unraisablehook, {signum: signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)}
  try:
    yield
  finally:
    interrupts.install()
    sys.unraisablehook = hook
    for signum, handler in before.items():
      signal.signal(signum, handler)


def main(*arguments: str) -> int:
  """The binary in this process, with its errors as a user sees them; returns the exit status."""
  with signal_handlers_kept():
    return command_line.status_of(train.main, ['train', *arguments])


class Finished(NamedTuple):
  """How a command ended."""

  status: int
  out: str
  err: str

  @property
  def summary(self) -> dict[str, Any]:
    return last_line(self.out)


def start(*arguments: str, cwd: Any) -> subprocess.Popen:
  """Starts the command in a folder of its own choice."""
  environment = {**os.environ, 'PYTHONPATH': PYTHONPATH}
  environment.pop('TF_CPP_MIN_LOG_LEVEL', None)
  return subprocess.Popen(
    [sys.executable, '-m', 'experiments.train', *arguments],
    cwd=cwd,
    env=environment,
    stdin=subprocess.DEVNULL,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    universal_newlines=True,
    encoding='utf-8',
  )


def finish(process: subprocess.Popen) -> Finished:
  """Waits until the command has ended and all who could write to its output have."""
  out, err = processes.finish(process)
  return Finished(process.returncode, out, err)


def gone(children: Iterable[Any]) -> bool:
  """Waits until these processes of psutil have ended; false if one does not."""
  import psutil  # `make test-light` has none.

  return not psutil.wait_procs(list(children), timeout=processes.DEADLINE_SECONDS)[1]


def rows(directory: Any) -> list[dict[str, str]]:
  """The rows of a run's metrics.csv, without the seconds, which no two runs share."""
  path = pathlib.Path(directory) / 'metrics.csv'
  if not path.exists():
    return []
  header, *lines = path.read_text().splitlines()
  names = header.split(',')
  return [{name: value for name, value in zip(names, line.split(',')) if name != 'seconds'} for line in lines]


def table(path: Any) -> list[dict[str, str]]:
  """The rows of a CSV file."""
  with open(path, newline='') as f:
    return list(csv.DictReader(f))


def files(directory: Any) -> dict[str, Any]:
  """What lies in a folder, by relative path: contents and time of the last change."""
  root = pathlib.Path(directory)
  return {
    str(path.relative_to(root)): (path.read_bytes(), path.stat().st_mtime_ns)
    for path in sorted(root.rglob('*'))
    if path.is_file()
  }


def strict_json(text: str) -> Any:
  """Parses JSON as the standard has it: without NaN and Infinity."""

  def refuse(constant):
    raise AssertionError(f'{constant} is not JSON')

  return json.loads(text, parse_constant=refuse)


def summary(directory: Any) -> dict[str, Any]:
  """A run's summary.json."""
  return strict_json((pathlib.Path(directory) / 'summary.json').read_text(encoding='utf-8'))


def last_line(out: str) -> dict[str, Any]:
  """The JSON object on the last line of standard output."""
  return strict_json(out.splitlines()[-1])
