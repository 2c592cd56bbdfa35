r"""Compares the speed and memory of the runtimes and of the client update, on the same data and model, in one run.

    python -m experiments.benchmark [--csv=FILE] [--device=cpu]

The cases are:

  tff_worker        stock TFF DP-FedAvg in TFF's C++ worker
  tff_in_process    the same computation, unchanged, in the in-process runtime
  quap_float32      QuAP-FL in the in-process runtime
  quap_bfloat16     the same with bfloat16 arithmetic
  ceiling           the same steps as a bare TensorFlow loop: no federation, no aggregation
  ceiling_bfloat16  the same loop with bfloat16 arithmetic: Keras' mixed precision

After the cases come the aggregation alone, growth with cohort and population, memory over 200 rounds, cohorts of 30 and
1,000 clients for each rule for the clipping norm, the cost of a client with little to do, and the time to the first
round. They are measured one after the other, each in its own process, so that none adds to the memory of another.
Memory is the sampled peak of that process and all its children together.
"""

from collections.abc import Iterable, Iterator
import csv
import json
import os
import platform
import subprocess
import sys
import threading
import time
from typing import Any, Optional

from absl import flags

from experiments import command_line
from quap_tff.common import lazy
from quap_tff.common import registry
from quap_tff.runtime import processes

psutil = lazy.module('psutil')

_FLAGS = command_line.new_flags()
_CLIENTS = flags.DEFINE_integer('clients', 30, 'Clients in each round.', lower_bound=1, flag_values=_FLAGS)
_EXAMPLES = flags.DEFINE_integer('examples', 600, 'Examples of each client.', lower_bound=1, flag_values=_FLAGS)
_BATCH_SIZE = flags.DEFINE_integer('batch_size', 32, 'Examples in each local step.', lower_bound=1, flag_values=_FLAGS)
_ROUNDS = flags.DEFINE_integer(
  'rounds', 3, 'Timed rounds of each case, after a first one that is not timed.', lower_bound=1, flag_values=_FLAGS
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
_SECTION_NAMES = ['cases', 'aggregation', 'growth', 'memory', 'cohort', 'small', 'start']
_SECTIONS = flags.DEFINE_list('sections', _SECTION_NAMES, 'What to measure, separated by commas.', flag_values=_FLAGS)

_CASES = ('tff_worker', 'tff_in_process', 'quap_float32', 'quap_bfloat16', 'ceiling', 'ceiling_bfloat16')
_COHORT_EXAMPLES = 60
# The first is the default rule, whose cases have no suffix.
_COHORT_RULES = ['current', 'previous', 'fixed', 'private_quantile', 'certified']
_SMALL_MODELS = {'logistic': 'logistic_regression', 'cnn': 'digits_cnn'}
_DEMO = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'presets', 'demo.flags')
_FIRST_ROUND = ['experiments.train', f'--flagfile={_DEMO}', '--stop_after=1', '--progress=lines']
_CSV_COLUMNS = ['case', 'samples_per_second', 'seconds_per_round', 'peak_memory_mib', 'cpu_ms_per_client']
_SAMPLE_SECONDS = 0.1
# The first word of an error that a measurement explains itself.
_ERROR = 'Error: '

Row = dict[str, Any]


def main(argv: list[str]) -> int:
  """Measures the sections that the flags in `argv[1:]` name; returns the exit status."""
  rest = command_line.parse(_FLAGS, argv)
  if _FLAGS.help:
    print(command_line.help_text(__doc__, _FLAGS))
    return 0
  command_line.refuse_arguments(rest)
  unknown = set(_SECTIONS.value) - set(_SECTION_NAMES)
  if unknown:
    raise registry.unknown_name_error('section', min(unknown), _SECTION_NAMES)
  if _CSV.value is not None:
    with open(_CSV.value, 'a', encoding='utf-8'):  # A file that cannot be written is found out now, not at the end.
      pass
  lazy.load('psutil')
  if _DEVICE.value == 'gpu':
    _measure('check', device=_DEVICE.value)
  print(f'{platform.platform()}, {len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}', flush=True)
  sections = [_cases, _aggregation, _growth, _memory, _cohort, _small, _start]
  rows = []
  for name, section in zip(_SECTION_NAMES, sections):
    if name in _SECTIONS.value:
      rows += section()
  if _CSV.value is not None:
    with open(_CSV.value, 'w', newline='', encoding='utf-8') as f:
      writer = csv.DictWriter(f, _CSV_COLUMNS, extrasaction='ignore')
      writer.writeheader()
      writer.writerows(row for row in rows if 'case' in row)
  return 0


def _shown(title: str, rows: Iterable[Row]) -> list[Row]:
  """Prints a table, each row as soon as there is one, and returns the rows. Keys are the headings."""
  result: list[Row] = []
  for row in rows:
    if not result:
      print(f'\n{title}\n{_line(row)}', flush=True)
    print(_line(f'{value:.4g}' if isinstance(value, float) else value for value in row.values()), flush=True)
    result.append(row)
  return result


def _line(cells: Iterable[Any]) -> str:
  first, *others = cells
  return f'{first:<28}' + ''.join(f'{cell:>20}' for cell in others)


def _cases() -> list[Row]:
  workload = dict(clients=_CLIENTS.value, examples=_EXAMPLES.value, batch_size=_BATCH_SIZE.value, rounds=_ROUNDS.value)
  rows = [_case(name, 'case', name=name, device=_DEVICE.value, **workload) for name in _CASES]
  speed = {row['case']: row['samples_per_second'] for row in rows}
  for row in rows:
    row.update({f'of_{other}': row['samples_per_second'] / speed[other] for other in ('tff_worker', 'ceiling')})
  title = f'{_CLIENTS.value} clients of {_EXAMPLES.value} examples, batch {_BATCH_SIZE.value}, 1 epoch, MNIST CNN'
  return _shown(title, rows)


def _aggregation() -> list[Row]:
  rows, _ = _measure('aggregation', clients=_CLIENTS.value, rounds=max(10, _ROUNDS.value))
  adaptive = {row['weights']: row['ms'] for row in rows if row['kind'] == 'TFF adaptive clip'}
  rows = [{**row, 'of_adaptive_clip': row['ms'] / adaptive[row['weights']]} for row in rows]
  return _shown(f'The aggregation alone, {_CLIENTS.value} clients, in process', rows)


def _growth() -> list[Row]:
  sizes = dict(cohorts=[10, 30, 100, 300], populations=[100, 1000, 10000], examples=60)
  rows, _ = _measure('growth', batch_size=_BATCH_SIZE.value, rounds=_ROUNDS.value, **sizes)
  return _shown('Growth of a QuAP round, clients of 60 examples', rows)


def _memory() -> list[Row]:
  rows, _ = _measure('memory', rounds=[20, 200])
  rows = [{**row, 'of_first': row['mib'] / rows[0]['mib']} for row in rows]
  return _shown('Memory over rounds of varying cohorts, QuAP in process', rows)


def _cohort() -> list[Row]:
  def rows() -> Iterator[Row]:
    workload = dict(examples=_COHORT_EXAMPLES, batch_size=_BATCH_SIZE.value, rounds=_ROUNDS.value)
    for rule in _COHORT_RULES:
      smallest = None
      for clients in (30, 1000):
        case = f'cohort_{clients}' + (f'_{rule}' if rule != _COHORT_RULES[0] else '')
        row = _case(case, 'cohort', rule=rule, clients=clients, **workload)
        smallest = smallest or row['peak_memory_mib']
        yield {**row, 'memory_of_smallest': row['peak_memory_mib'] / smallest}

  return _shown(f'Cohorts of clients with {_COHORT_EXAMPLES} examples, MNIST CNN', rows())


def _small() -> list[Row]:
  workload = dict(clients=100, batch_size=10, rounds=max(20, _ROUNDS.value))
  rows = (
    _case(f'small_{label}_{examples}', 'small', model=model, examples=examples, **workload)
    for label, model in _SMALL_MODELS.items()
    for examples in (0, 10, 60)
  )
  return _shown('100 clients with little to do, 8x8 digits, batch 10, one thread', rows)


def _start() -> list[Row]:
  seconds, peak = _first_round()
  print(f'\nFrom the command to the end of round 1, digits: {seconds:.1f} s', flush=True)
  row, _ = _measure('first_round', clients=_CLIENTS.value, examples=_EXAMPLES.value, batch_size=_BATCH_SIZE.value)
  print(
    f'From the imports to the end of the first QuAP round, MNIST CNN: {row["until_end"]:.1f} s, of which '
    f'{row["overhead"]:.1f} s are not a round\'s own time (building, compiling, tracing)',
    flush=True,
  )
  return [{'case': 'first_round', 'seconds_per_round': seconds, 'peak_memory_mib': peak}]


def _first_round() -> tuple[float, float]:
  """Seconds from the command to the end of a run's first round, and the peak memory of that run in MiB."""
  begin = time.monotonic()
  seconds: Optional[float] = None

  def note_time(line: str) -> None:
    nonlocal seconds
    if seconds is None and line.startswith('round 1/'):
      seconds = time.monotonic() - begin

  status, _, said, peak = _ran(_FIRST_ROUND, note_time)
  if status or seconds is None:
    raise ValueError(f'The first round failed with status {status}: {"".join(said[-1:]).strip()}')
  return seconds, peak


def _case(case: str, function: str, **arguments: Any) -> Row:
  """A row of the CSV file."""
  row, peak = _measure(function, **arguments)
  return {'case': case, **row, 'peak_memory_mib': peak}


def _measure(function: str, **arguments: Any) -> tuple[Any, float]:
  """Runs a function of `benchmark_cases` in a process of its own; returns its result and the peak memory in MiB.

  Raises:
    ValueError: If it failed: in the words of that process, if it gave any.
  """
  status, output, said, peak = _ran(['experiments.benchmark_cases', function, json.dumps(arguments)])
  why = None
  if status:
    why = f'The measurement {function!r} failed with status {status}.'
    if said and said[-1].startswith(_ERROR):
      why = said.pop()[len(_ERROR) :].strip()
  sys.stderr.writelines(said)
  if why is not None:
    raise ValueError(why)
  return json.loads(output.splitlines()[-1]), peak


def _ran(module_and_arguments: list[str], on_line=lambda line: None) -> tuple[int, str, list[str], float]:
  """Runs a module: its exit status, standard output, lines of standard error, and the peak memory in MiB.

  This process never loads TensorFlow: it stays small and leaves the cores alone.

  Args:
    module_and_arguments: The module's name and its command line.
    on_line: Called for each line of standard error when it comes.
  """
  process = subprocess.Popen(
    # Ends with this process, however that ends.
    processes.ending_with_this_one([sys.executable, '-m', *module_and_arguments]),
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )
  assert process.stdout is not None and process.stderr is not None  # They are pipes.
  answers, messages = process.stdout, process.stderr
  peak, stopped, output, said = [0], threading.Event(), [], []

  def sample_memory() -> None:
    while not stopped.wait(_SAMPLE_SECONDS):
      try:
        leader = psutil.Process(process.pid)
        family = [leader, *leader.children(recursive=True)]
        peak[0] = max(peak[0], sum(member.memory_info().rss for member in family))
      except psutil.NoSuchProcess:
        continue

  threads = [
    threading.Thread(target=sample_memory, daemon=True),
    threading.Thread(target=lambda: output.append(answers.read()), daemon=True),
  ]
  for thread in threads:
    thread.start()
  try:
    for line in messages:
      said.append(line)
      on_line(line)
    status = process.wait()
  finally:
    process.kill()
    process.wait()
    stopped.set()
    for thread in threads:
      thread.join()
  return status, ''.join(output), said, peak[0] / 2**20


if __name__ == '__main__':
  command_line.run(main)
