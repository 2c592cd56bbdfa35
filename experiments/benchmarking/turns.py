"""Measurements that take turns, round by round, for `experiments.benchmark`. Each figure has a spread.

A machine that becomes slower then slows all that is compared. Each measurement has a process of its own, so that none
adds to the memory of another, and waits while it is not its turn. This process never loads TensorFlow: it stays small
and leaves the cores alone.
"""

from collections.abc import Iterable, Mapping
import contextlib
import json
import select
import statistics
import subprocess
import sys
import time
from typing import Any, Callable, NamedTuple, Optional, TypeVar

from quap_tff.common import json_types
from quap_tff.common import lazy
from quap_tff.runtime import worker_processes

psutil = lazy.module('psutil')

_SAMPLE_SECONDS = 0.1
# Rounds that take longer are announced one by one.
_LONG_SECONDS = 1.0

# A row of a table, by heading.
Row = dict[str, Any]
# For each case, a measurement of `benchmarking.cases` and its arguments.
Cases = Mapping[str, tuple[str, dict[str, Any]]]
# Says what is being measured now.
Note = Callable[[str], None]


class RepeatedFigure(NamedTuple):
  """A figure over repetitions.

  Attributes:
    value: The median, unless a column says otherwise.
    spread: Half the distance between the quartiles, which is half the range of three repetitions. None for a single
      one.
  """

  value: float
  spread: Optional[float]

  def __str__(self) -> str:
    return f'{self.value:.4g}' + ('' if self.spread is None else f' ±{self.spread:.2g}')


def figure(repetitions: Iterable[float]) -> RepeatedFigure:
  """The figure over some repetitions, of which there is at least one."""
  figures = list(repetitions)
  if len(figures) == 1:
    return RepeatedFigure(figures[0], None)
  low, _, high = statistics.quantiles(figures)
  return RepeatedFigure(statistics.median(figures), (high - low) / 2)


def ratio(numerators: Iterable[float], denominators: Iterable[float]) -> RepeatedFigure:
  """The figure over the rounds' ratios."""
  return figure(n / d for n, d in zip(numerators, denominators))


_Child = TypeVar('_Child', bound='MeasuredChild')


class MeasuredChild:
  """A process of this project, whose lines are read while its memory is sampled.

  Only a process whose line is awaited is sampled: a sample takes milliseconds.

  Args:
    *module_and_arguments: The module's name and its command line.
    **streams: Which standard streams are pipes, for `subprocess.Popen`. Lines come from its standard output, or else
      from its standard error.

  Attributes:
    peak_mib: The most memory that it and its children together had, in MiB.
  """

  def __init__(self, *module_and_arguments: str, **streams: int):
    self._begin = time.monotonic()
    self._process: subprocess.Popen = subprocess.Popen(
      # Ends with this process, however that ends. Ctrl-C at the terminal is meant for this process only.
      worker_processes.ending_with_this_one([sys.executable, '-m', *module_and_arguments]),
      bufsize=0,
      start_new_session=True,
      env=lazy.environment_before(),
      **streams,  # type: ignore[call-overload]
    )
    self._lines: Any = self._process.stdout or self._process.stderr
    self.peak_mib = 0.0

  def __enter__(self: _Child) -> _Child:
    return self

  def __exit__(self, kind: Optional[type[BaseException]], *_: object) -> None:
    if kind is not None:
      self._process.kill()
    with self._process:  # Closes the pipes, which ends a measurement, and waits.
      pass

  def age(self) -> float:
    """Seconds since it was started."""
    return time.monotonic() - self._begin

  def line(self) -> str:
    """The next line that it prints; the empty text when there will be none."""
    while not select.select([self._lines], [], [], _SAMPLE_SECONDS)[0]:
      self._sample()
    self._sample()
    return self._lines.readline().decode(errors='replace')

  def status(self) -> int:
    """Waits for its end, and returns its exit status."""
    return self._process.wait()

  def memory_mib(self) -> float:
    """The memory of it and its children, in MiB."""
    leader = psutil.Process(self._process.pid)
    return sum(member.memory_info().rss for member in [leader, *leader.children(recursive=True)]) / 2**20

  def _sample(self) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
      self.peak_mib = max(self.peak_mib, self.memory_mib())


class Measurement(MeasuredChild):
  """A measurement of `benchmarking.cases`, ready to run rounds.

  Attributes:
    labels: What tells its kinds of rounds apart.

  Raises:
    ValueError: If it fails, now or in a round: in its own words, if it gave any.
  """

  def __init__(self, name: str, /, **arguments: json_types.Json):
    streams = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    super().__init__('experiments.benchmarking.cases', name, json.dumps(arguments), **streams)
    self._name = name
    self.labels: list[Row] = self._answer()

  def run(self, index: int = 0) -> tuple[float, float]:
    """Seconds and CPU seconds of a round of the kind with this index."""
    with contextlib.suppress(BrokenPipeError):  # Then there is no answer.
      self._process.stdin.write(b'%d\n' % index)  # type: ignore[union-attr]
    seconds, cpu_seconds = self._answer()
    return seconds, cpu_seconds

  def _answer(self) -> json_types.Json:
    line = self.line()
    if not line:
      raise ValueError(f'The measurement {self._name!r} failed with status {self.status()}.')
    answer = json.loads(line)
    if isinstance(answer, str):
      raise ValueError(answer)
    return answer


class Timed:
  """Rounds of one kind, the first of which is not timed.

  Attributes:
    case: The case's name.
    labels: The labels of the kind.
    is_long: Whether the last round took long.
    seconds: Seconds of each timed round.
    cpu_seconds: CPU seconds of each timed round.
  """

  def __init__(self, case: str, measurement: Measurement, index: int):
    self.case, self.labels = case, measurement.labels[index]
    self.seconds: list[float] = []
    self.cpu_seconds: list[float] = []
    self._measurement, self._index = measurement, index
    self.is_long = measurement.run(index)[0] > _LONG_SECONDS
    self._first_ended = measurement.age()

  def run(self) -> None:
    """Times one more round."""
    seconds, cpu_seconds = self._measurement.run(self._index)
    self.is_long = seconds > _LONG_SECONDS
    self.seconds.append(seconds)
    self.cpu_seconds.append(cpu_seconds)

  def row(self, examples: int) -> Row:
    """A row of the CSV file, for rounds of this many examples."""
    return {
      'case': self.case,
      'samples_per_second': figure(examples / seconds for seconds in self.seconds),
      'seconds_per_round': figure(self.seconds),
      'peak_memory_mib': self._measurement.peak_mib,
      # Until the steps of the first round: imports, building, compiling and tracing.
      'start_seconds': self._first_ended - statistics.median(self.seconds),
    }


def timed(cases: Cases, rounds: int, note: Note) -> list[Timed]:
  """Times rounds of some cases, which take turns.

  Args:
    cases: What to measure.
    rounds: How many rounds of each are timed.
    note: Called as it goes on.

  Raises:
    ValueError: If a measurement fails.
  """
  kinds = []
  with contextlib.ExitStack() as stack:
    for case, (name, arguments) in cases.items():
      note(f'{case}, start and first round')
      measurement = stack.enter_context(Measurement(name, **arguments))
      kinds += [Timed(case, measurement, index) for index in range(len(measurement.labels))]
    for number in range(rounds):
      # Every other time in reverse, so that none always follows the same one.
      order = kinds[:: -1 if number % 2 else 1]
      for kind in order:
        if kind is order[0] or kind.is_long:
          note(f'{", ".join([kind.case, *map(str, kind.labels.values())])}, round {number + 1} of {rounds}')
        kind.run()
  return kinds
