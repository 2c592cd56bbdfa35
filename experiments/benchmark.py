r"""Compares the speed and memory of the runtimes and of the client update, on the same data and model, in one run.

    python -m experiments.benchmark [--csv=FILE] [--device=cpu]

The cases are:

  tff_worker      stock TFF DP-FedAvg in TFF's C++ worker
  tff_in_process  the same computation, unchanged, in the in-process runtime
  quap_float32    QuAP-FL in the in-process runtime
  quap_bfloat16   the same with bfloat16 arithmetic
  ceiling         the same steps as a bare TensorFlow loop: no federation, no aggregation

After the cases come the aggregation alone, growth with cohort and population, memory over 200 rounds, cohorts of 30 and
1,000 clients for each rule for the clipping norm, the cost of a client with little to do, and the time to the first
round. They are measured one after the other, each in its own process, so that none adds to the memory of another.
Memory is the sampled peak of that process and all its children together.
"""

import csv
import json
import os
import platform
import subprocess
import sys
import threading
import time

from absl import flags

from experiments import command_line
from quap_tff.common import lazy
from quap_tff.common import registry
from quap_tff.runtime import child_process

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

_CASES = ('tff_worker', 'tff_in_process', 'quap_float32', 'quap_bfloat16', 'ceiling')
_GROWTH = dict(cohorts=[10, 30, 100, 300], populations=[100, 1000, 10000], examples=60)
_MEMORY_ROUNDS = [20, 200]
_COHORTS, _COHORT_EXAMPLES = [30, 1000], 60
# The first is the default rule, whose cases have no suffix.
_COHORT_RULES = ['current', 'previous', 'fixed', 'private_quantile', 'certified']
_SMALL = dict(clients=100, batch_size=10)
_SMALL_MODELS = {'logistic': 'logistic_regression', 'cnn': 'digits_cnn'}
_SMALL_EXAMPLES = [0, 10, 60]
_DEMO = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'presets', 'demo.flags')
_FIRST_ROUND = [f'--flagfile={_DEMO}', '--stop_after=1', '--progress=lines']
_CSV_COLUMNS = ['case', 'samples_per_second', 'seconds_per_round', 'peak_memory_mib', 'cpu_ms_per_client']
_SAMPLE_SECONDS = 0.1
# What a measurement's own account of an error begins with.
_ERROR = 'Error: '


def main(argv: list[str]) -> int:
  """Measures what the flags in `argv[1:]` say; returns the exit status."""
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
  sections = {
    'cases': _cases,
    'aggregation': _aggregation,
    'growth': _growth,
    'memory': _memory,
    'cohort': _cohort,
    'small': _small,
    'start': _start,
  }
  rows = []
  for name in _SECTION_NAMES:
    if name in _SECTIONS.value:
      rows += sections[name]() or []
  if _CSV.value is not None:
    with open(_CSV.value, 'w', newline='', encoding='utf-8') as f:
      writer = csv.DictWriter(f, _CSV_COLUMNS)
      writer.writeheader()
      writer.writerows(rows)
  return 0


def _cases():
  print(f'\n{_CLIENTS.value} clients of {_EXAMPLES.value} examples, batch {_BATCH_SIZE.value}, 1 epoch, MNIST CNN')
  print(f'{"case":16}{"samples/s":>12}{"s/round":>10}{"peak MiB":>10}{"of tff_worker":>15}{"of ceiling":>12}')
  rows = []
  for name in _CASES:
    row, peak = _measure(
      'case',
      name=name,
      clients=_CLIENTS.value,
      examples=_EXAMPLES.value,
      batch_size=_BATCH_SIZE.value,
      rounds=_ROUNDS.value,
      device=_DEVICE.value,
    )
    rows.append({'case': name, **row, 'peak_memory_mib': peak})
  speed = {row['case']: row['samples_per_second'] for row in rows}
  for row in rows:
    own = row['samples_per_second']
    print(
      f'{row["case"]:16}{own:12.0f}{row["seconds_per_round"]:10.2f}{row["peak_memory_mib"]:10.0f}'
      f'{own / speed["tff_worker"]:15.2f}{own / speed["ceiling"]:12.1%}',
      flush=True,
    )
  return rows


def _aggregation():
  rows, _ = _measure('aggregation', clients=_CLIENTS.value, rounds=max(10, _ROUNDS.value))
  print(f'\nThe aggregation alone, {_CLIENTS.value} clients, in process')
  print(f'{"weights":10}{"kind":20}{"ms":>8}{"of TFF adaptive clip":>22}')
  adaptive = {row['weights']: row['seconds'] for row in rows if row['kind'] == 'TFF adaptive clip'}
  for row in rows:
    ratio = row['seconds'] / adaptive[row['weights']]
    print(f'{row["weights"]:10}{row["kind"]:20}{1000 * row["seconds"]:8.1f}{ratio:22.2f}', flush=True)


def _growth():
  rows, _ = _measure('growth', batch_size=_BATCH_SIZE.value, rounds=_ROUNDS.value, **_GROWTH)
  print(f'\nGrowth of a QuAP round, clients of {_GROWTH["examples"]} examples')
  print(f'{"population":>10}{"cohort":>8}{"s/round":>10}{"ms/client":>11}')
  for row in rows:
    per_client = 1000 * row['seconds'] / row['cohort']
    print(f'{row["population"]:10}{row["cohort"]:8}{row["seconds"]:10.3f}{per_client:11.2f}', flush=True)


def _memory():
  rows, _ = _measure('memory', rounds=_MEMORY_ROUNDS)
  print('\nMemory over rounds of varying cohorts, QuAP in process')
  for row in rows:
    print(f'round {row["round"]:4}: {row["mib"]:6.0f} MiB ({row["mib"] / rows[0]["mib"]:.1%} of the first)', flush=True)


def _cohort():
  print(f'\nCohorts of clients with {_COHORT_EXAMPLES} examples, MNIST CNN')
  print(f'{"case":28}{"s/round":>10}{"ms/client":>11}{"peak MiB":>10}{"of the smallest":>17}', flush=True)
  rows = []
  for rule in _COHORT_RULES:
    smallest = None
    for clients in _COHORTS:
      row, peak = _measure(
        'cohort',
        rule=rule,
        clients=clients,
        examples=_COHORT_EXAMPLES,
        batch_size=_BATCH_SIZE.value,
        rounds=_ROUNDS.value,
      )
      smallest = smallest or peak
      case = f'cohort_{clients}' + (f'_{rule}' if rule != _COHORT_RULES[0] else '')
      rows.append(
        {
          'case': case,
          'samples_per_second': clients * _COHORT_EXAMPLES / row['seconds'],
          'seconds_per_round': row['seconds'],
          'peak_memory_mib': peak,
        }
      )
      print(
        f'{case:28}{row["seconds"]:10.2f}{1000 * row["seconds"] / clients:11.1f}{peak:10.0f}{peak / smallest:17.2f}',
        flush=True,
      )
  return rows


def _small():
  print(f'\n{_SMALL["clients"]} clients with little to do, 8x8 digits, batch {_SMALL["batch_size"]}, one thread')
  print(f'{"case":28}{"s/round":>10}{"CPU ms/client":>15}', flush=True)
  rows = []
  for label, model in _SMALL_MODELS.items():
    for examples in _SMALL_EXAMPLES:
      row, peak = _measure('small', model=model, examples=examples, rounds=max(20, _ROUNDS.value), **_SMALL)
      case = f'small_{label}_{examples}'
      rows.append(
        {
          'case': case,
          'samples_per_second': _SMALL['clients'] * examples / row['seconds'],
          'seconds_per_round': row['seconds'],
          'peak_memory_mib': peak,
          'cpu_ms_per_client': row['cpu_ms_per_client'],
        }
      )
      print(f'{case:28}{row["seconds"]:10.3f}{row["cpu_ms_per_client"]:15.2f}', flush=True)
  return rows


def _start():
  seconds, peak = _first_round()
  print(f'\nFrom the command to the end of round 1, digits: {seconds:.1f} s', flush=True)
  row, _ = _measure('first_round', clients=_CLIENTS.value, examples=_EXAMPLES.value, batch_size=_BATCH_SIZE.value)
  print(
    f'From the imports to the end of the first QuAP round, MNIST CNN: {row["until_end"]:.1f} s, of which '
    f'{row["overhead"]:.1f} s are not a round\'s own time (building, compiling, tracing)',
    flush=True,
  )
  return [{'case': 'first_round', 'seconds_per_round': seconds, 'peak_memory_mib': peak}]


def _first_round():
  """Seconds from the command to the end of a run's first round, and the peak memory of that run in MiB."""
  begin = time.monotonic()
  process = _started(['experiments.train', *_FIRST_ROUND], stderr=subprocess.PIPE)
  peak, seconds, said = _PeakMemory(process.pid), None, []
  try:
    for line in process.stderr:
      said.append(line)
      if seconds is None and line.startswith('round 1/'):
        seconds = time.monotonic() - begin
    process.communicate()
  finally:
    process.kill()
    peak_mib = peak.stop()
  if process.returncode or seconds is None:
    raise ValueError(f'The first round failed with status {process.returncode}: {"".join(said[-1:]).strip()}')
  return seconds, peak_mib


def _measure(function, **arguments):
  """Runs a function of `benchmark_cases` in a process of its own; returns its result and the peak memory in MiB.

  Raises:
    ValueError: If it failed: in the words of that process, if it found some.
  """
  process = _started(['experiments.benchmark_cases', function, json.dumps(arguments)], stderr=subprocess.PIPE)
  peak = _PeakMemory(process.pid)
  try:
    output, said = process.communicate()
  finally:
    process.kill()
    peak_mib = peak.stop()
  lines, why = said.splitlines(keepends=True), None
  if process.returncode:
    why = f'The measurement {function!r} failed with status {process.returncode}.'
    if lines and lines[-1].startswith(_ERROR):
      why = lines.pop()[len(_ERROR) :].strip()
  sys.stderr.writelines(lines)
  if why is not None:
    raise ValueError(why)
  return json.loads(output.splitlines()[-1]), peak_mib


def _started(module_and_arguments, stderr=None):
  # This process never loads TensorFlow: it stays small and leaves the cores alone.
  return subprocess.Popen(
    # Ends with this process, however that ends.
    child_process.ending_with_this_one([sys.executable, '-m', *module_and_arguments]),
    stdout=subprocess.PIPE,
    stderr=stderr,
    text=True,
  )


class _PeakMemory:
  """Samples the resident memory of a process and its descendants on a thread."""

  def __init__(self, pid: int):
    self._pid = pid
    self._peak = 0
    self._stopped = threading.Event()
    self._thread = threading.Thread(target=self._sample, daemon=True)
    self._thread.start()

  def _sample(self):
    while not self._stopped.wait(_SAMPLE_SECONDS):
      try:
        process = psutil.Process(self._pid)
        family = [process, *process.children(recursive=True)]
        self._peak = max(self._peak, sum(member.memory_info().rss for member in family))
      except psutil.NoSuchProcess:
        continue

  def stop(self) -> float:
    """The peak in MiB."""
    self._stopped.set()
    self._thread.join()
    return self._peak / 2**20


if __name__ == '__main__':
  command_line.run(main)
