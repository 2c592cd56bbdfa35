r"""Compares the speed and memory of the runtimes and of the client update, on the same data and model, in one run.

    python -m experiments.benchmark [--csv=FILE] [--device=cpu]

The sections are:

  cases        a round in each of the runtimes, below
  aggregation  the aggregation alone
  small        what a client with little to do costs
  start        the time from a command to the end of its first round
  growth       a round by cohort and population
  memory       memory over 200 rounds
  cohort       cohorts of 30 and 1,000 clients, for each rule for the clipping norm

The first four are the default and take at most 8 minutes on two cores. The others are measured if they are named.

The cases are:

  tff_worker         stock TFF DP-FedAvg in TFF's C++ worker, as TFF comes
  tff_worker_onednn  the same with oneDNN's kernels, where TensorFlow does not turn
                     them on by itself
  tff_in_process     the same computation, unchanged, in the in-process runtime
  quap_float32       QuAP-FL in the in-process runtime
  quap_bfloat16      the same with bfloat16 arithmetic
  ceiling            the same steps as a bare TensorFlow loop: no federation, no aggregation
  ceiling_bfloat16   the same loop with bfloat16 arithmetic: Keras' mixed precision

On a CPU without instructions for bfloat16, the two cases with it are left out, unless there is --device=gpu.

What is compared takes turns round by round, so a machine that becomes slower slows all of it. Each case has a process
of its own, which waits while it is not its turn; together, the cases take about 8 GB of memory. A figure is a median
over rounds and, after ±, half the distance between the quartiles: half the range, for three rounds. A ratio is the
median of the rounds' ratios. Memory is the sampled peak of a process and all its children together.
"""

from collections.abc import Iterable, Iterator
import csv
import functools
import os
import platform
import subprocess
import sys
import time
from typing import Any, Optional

from absl import flags

from experiments.benchmarking import turns
from experiments.command import command_line
from quap_tff.common import kernels
from quap_tff.common import lazy
from quap_tff.common import registry

_SECTION_NAMES = ['cases', 'aggregation', 'small', 'start', 'growth', 'memory', 'cohort']

_FLAGS = command_line.new_flags()
_number = functools.partial(flags.DEFINE_integer, lower_bound=1, flag_values=_FLAGS)
_CLIENTS = _number('clients', 30, 'Clients in each round.')
_EXAMPLES = _number('examples', 600, 'Examples of each client.')
_BATCH_SIZE = _number('batch_size', 32, 'Examples in each local step.')
_ROUNDS = _number(
  'rounds', 3, 'Timed rounds of each case, after a first one that is not timed. Section small: at least 20.'
)
_DEVICE = flags.DEFINE_enum(
  'device', 'auto', ['cpu', 'gpu', 'auto'], 'Device for all cases but tff_worker.', flag_values=_FLAGS
)
_CSV = flags.DEFINE_string(
  'csv',
  None,
  'Also write the cases, the cohorts, the small clients and the time to the first round to this file.',
  flag_values=_FLAGS,
)
_SECTIONS = flags.DEFINE_list(
  'sections',
  _SECTION_NAMES[:4],
  f'What to measure, separated by commas: {", ".join(_SECTION_NAMES)}.',
  flag_values=_FLAGS,
)

_CASES = (
  'tff_worker',
  'tff_worker_onednn',
  'tff_in_process',
  'quap_float32',
  'quap_bfloat16',
  'ceiling',
  'ceiling_bfloat16',
)
_REFERENCES = ('tff_worker', 'ceiling', 'ceiling_bfloat16')
_COHORT_EXAMPLES = 60
# The first is the default rule, whose cases have no suffix.
_COHORT_RULES = ['current', 'previous', 'fixed', 'private_quantile', 'certified']
_SMALL_MODELS = {'logistic': 'logistic_regression', 'cnn': 'digits_cnn'}
_SMALL_CLIENTS = 100
_STARTS = 5
_SPREAD_COLUMNS = ['samples_per_second', 'seconds_per_round', 'peak_memory_mib', 'cpu_ms_per_client']
_CSV_COLUMNS = ['case', *_SPREAD_COLUMNS, *(f'{column}_spread' for column in _SPREAD_COLUMNS), 'start_seconds']
_CSV_COLUMNS += [f'of_{other}{end}' for other in _REFERENCES for end in ('', '_spread')]


def main(argv: list[str]) -> int:
  """Measures the sections that the flags in `argv[1:]` name; returns the exit status."""
  command_line.refuse_arguments(command_line.parse(_FLAGS, argv, __doc__))
  unknown = set(_SECTIONS.value) - set(_SECTION_NAMES)
  if unknown:
    raise registry.unknown_name_error('section', min(unknown), _SECTION_NAMES)
  if _CSV.value is not None:
    with open(_CSV.value, 'a', encoding='utf-8'):  # A file that cannot be written is found out now, not at the end.
      pass
  lazy.load('psutil')
  with turns.Measurement('check', device=_DEVICE.value) as measurement:
    used = measurement.labels[0]['kernels']
  cores = len(os.sched_getaffinity(0))
  print(f'{platform.platform()}, {cores} cores, Python {platform.python_version()}, {used}', flush=True)
  sections = dict(zip(_SECTION_NAMES, [_cases, _aggregation, _small, _start, _growth, _memory, _cohort]))
  rows, begin = [], time.monotonic()
  for name, section in sections.items():
    if name in _SECTIONS.value:
      rows += section(functools.partial(_note, begin, name))
  if _CSV.value is not None:
    with open(_CSV.value, 'w', newline='', encoding='utf-8') as f:
      writer = csv.DictWriter(f, _CSV_COLUMNS, extrasaction='ignore')
      writer.writeheader()
      writer.writerows(_cells(row) for row in rows if 'case' in row)
  return 0


def _note(begin: float, section: str, what: str) -> None:
  """Says on standard error what is being measured, and how long all has taken so far."""
  minutes, seconds = divmod(int(time.monotonic() - begin), 60)
  print(f'[{minutes}:{seconds:02}] {section}: {what}', file=sys.stderr, flush=True)


def _cells(row: turns.Row) -> turns.Row:
  """A row of the CSV file: each figure takes two columns."""
  cells = dict(row)
  for name, value in row.items():
    if isinstance(value, turns.RepeatedFigure):
      cells[name], cells[f'{name}_spread'] = value
  return cells


def _print_table(title: str, rows: Iterable[turns.Row]) -> list[turns.Row]:
  """Prints a table, each row as soon as there is one, and returns the rows. Keys are the headings."""
  result: list[turns.Row] = []
  for row in rows:
    if not result:
      print(f'\n{title}\n{_table_line(row)}', flush=True)
    cells = []
    for value in row.values():
      cell = f'{value:.4g}' if isinstance(value, float) else value
      cells.append(cell)
    print(_table_line(cells), flush=True)
    result.append(row)
  return result


def _table_line(cells: Iterable[Any]) -> str:
  first, *others = cells
  return f'{first:<28}' + ''.join(f'{str(cell):>20}' for cell in others)


def cases_here(on_gpu: bool = False) -> list[str]:
  """The cases that mean something on this processor, in order."""
  cases = list(_CASES)
  if kernels.starts_onednn() or lazy.ONEDNN_BEFORE is not None:
    cases.remove('tff_worker_onednn')  # It would be `tff_worker` once more.
  if kernels.emulates_bfloat16() and not on_gpu:
    cases = [name for name in cases if 'bfloat16' not in name]
  return cases


def _cases(note: turns.Note) -> list[turns.Row]:
  workload = dict(clients=_CLIENTS.value, examples=_EXAMPLES.value, batch_size=_BATCH_SIZE.value, device=_DEVICE.value)
  cases = cases_here(on_gpu=_DEVICE.value == 'gpu')
  references = [name for name in _REFERENCES if name in cases]
  if 'quap_bfloat16' not in cases:
    print(
      'Without quap_bfloat16 and ceiling_bfloat16: this CPU has no bfloat16 instructions, and to emulate them takes '
      'minutes a round. --device=gpu measures them on a GPU.',
      flush=True,
    )
  timed = turns.timed({name: ('case', {'name': name, **workload}) for name in cases}, _ROUNDS.value, note)
  seconds = {one.case: one.seconds for one in timed}
  rows = [one.row(_CLIENTS.value * _EXAMPLES.value) for one in timed]
  for row in rows:
    row.update({f'of_{other}': turns.ratio(seconds[other], seconds[row['case']]) for other in references})
  title = f'{_CLIENTS.value} clients of {_EXAMPLES.value} examples, batch {_BATCH_SIZE.value}, 1 epoch, MNIST CNN'
  return _print_table(title, rows)


def _aggregation(note: turns.Note) -> list[turns.Row]:
  cases: turns.Cases = {'aggregation': ('aggregation', dict(clients=_CLIENTS.value))}
  timed = turns.timed(cases, max(10, _ROUNDS.value), note)
  adaptive = {one.labels['weights']: one.seconds for one in timed if one.labels['kind'] == 'TFF adaptive clip'}
  rows = []
  for one in timed:
    milliseconds = turns.figure(1000 * seconds for seconds in one.seconds)
    ratio = turns.ratio(one.seconds, adaptive[one.labels['weights']])
    rows.append({**one.labels, 'ms': milliseconds, 'of_adaptive_clip': ratio})
  return _print_table(f'The aggregation alone, {_CLIENTS.value} clients, in process', rows)


def _small(note: turns.Note) -> list[turns.Row]:
  cases: dict[str, tuple[str, dict[str, Any]]] = {
    f'small_{label}_{examples}': ('small', dict(model=model, examples=examples, clients=_SMALL_CLIENTS, batch_size=10))
    for label, model in _SMALL_MODELS.items()
    for examples in (0, 10, 60)
  }
  # The same with a call of TensorFlow for each client.
  for case in ('small_logistic_0', 'small_cnn_10'):
    name, arguments = cases[case]
    cases[f'{case}_singly'] = name, {**arguments, 'clients_per_call': 1}
  rows = []
  for one in turns.timed(cases, max(20, _ROUNDS.value), note):
    cpu_ms = [1000 * seconds / _SMALL_CLIENTS for seconds in one.cpu_seconds]
    # Other programs only ever add to it, so the least is the best guess.
    figure = turns.figure(cpu_ms)._replace(value=min(cpu_ms))
    rows.append({**one.row(_SMALL_CLIENTS * cases[one.case][1]['examples']), 'cpu_ms_per_client': figure})
  return _print_table('100 clients with little to do, 8x8 digits, batch 10, one thread', rows)


def _start(note: turns.Note) -> list[turns.Row]:
  starts = []
  for number in range(_STARTS):
    note(f'start {number + 1} of {_STARTS}')
    starts.append(_first_round())
  seconds, peaks = map(turns.figure, zip(*starts))
  print(f'\nFrom the command to the end of round 1, digits: {seconds} s', flush=True)
  return [{'case': 'first_round', 'seconds_per_round': seconds, 'peak_memory_mib': peaks}]


def _first_round() -> tuple[float, float]:
  """Seconds from the command to the end of a run's first round, and the peak memory of that run in MiB."""
  demo = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'presets', 'demo.flags')
  command = ['experiments.train', f'--flagfile={demo}', '--stop_after=1', '--progress=lines']
  streams = dict(stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
  seconds: Optional[float] = None
  last = ''
  with turns.MeasuredChild(*command, **streams) as run:
    while line := run.line():
      last = line
      if seconds is None and line.startswith('round 1/'):
        seconds = run.age()
    status = run.status()
  if status or seconds is None:
    raise ValueError(f'The first round failed with status {status}: {last.strip()}')
  return seconds, run.peak_mib


def _growth(note: turns.Note) -> list[turns.Row]:
  sizes = dict(cohorts=[10, 30, 100, 300], populations=[100, 1000, 10000], examples=60, batch_size=_BATCH_SIZE.value)
  rows = []
  for one in turns.timed({'growth': ('growth', sizes)}, _ROUNDS.value, note):
    each_client = turns.figure(1000 * seconds / one.labels['cohort'] for seconds in one.seconds)
    rows.append({**one.labels, 'seconds_per_round': turns.figure(one.seconds), 'ms_per_client': each_client})
  return _print_table('Growth of a QuAP round, clients of 60 examples', rows)


def _memory(note: turns.Note) -> list[turns.Row]:
  def rows() -> Iterator[turns.Row]:
    first = None
    with turns.Measurement('memory') as measurement:
      for number in range(1, 201):
        measurement.run()
        if number % 20 == 0:
          note(f'{number} of 200 rounds')
        if number in (20, 200):
          mib = measurement.memory_mib()
          first = first or mib
          yield {'round': number, 'mib': mib, 'of_first': mib / first}

  return _print_table('Memory over rounds of varying cohorts, QuAP in process', rows())


def _cohort(note: turns.Note) -> list[turns.Row]:
  workload = dict(examples=_COHORT_EXAMPLES, batch_size=_BATCH_SIZE.value, rounds=1 + _ROUNDS.value)

  def rows() -> Iterator[turns.Row]:
    for rule in _COHORT_RULES:
      suffix = f'_{rule}' if rule != _COHORT_RULES[0] else ''
      cases: turns.Cases = {
        f'cohort_{clients}{suffix}': ('cohort', dict(rule=rule, clients=clients, **workload)) for clients in (30, 1000)
      }
      small, large = (
        one.row(cases[one.case][1]['clients'] * _COHORT_EXAMPLES) for one in turns.timed(cases, _ROUNDS.value, note)
      )
      for row in (small, large):
        yield {**row, 'memory_of_smallest': row['peak_memory_mib'] / small['peak_memory_mib']}

  return _print_table(f'Cohorts of clients with {_COHORT_EXAMPLES} examples, MNIST CNN', rows())


if __name__ == '__main__':
  command_line.run(main)
