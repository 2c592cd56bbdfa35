r"""Runs TFF's own tests in the in-process runtime, and says where they end differently than in TFF's worker.

    git clone --branch=v0.87.0 --depth=1 URL-OF-TFF tff
    python docs/conformance/run.py --tff=tff [--only=learning/algorithms] [--parallel=2] [--csv=FILE]

The tests are those of TFF's folders `learning`, `aggregators`, `analytics`, `core/templates` and `tests`. The code that
they test is the installed TFF, whose version the checkout must have. Each file has a process of its own, twice: once
with the execution context that the file asks for, and once with `quap_tff.runtime` in its place. A file in which no
computation came to the runtime is counted apart, because its tests say nothing of it.

The exit status is 1 if a test passes in TFF's context and not in ours, and is not in `KNOWN` below.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
import concurrent.futures
import contextlib
import csv
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
from typing import NamedTuple, Optional
from xml.etree import ElementTree

FOLDERS = ('learning', 'aggregators', 'analytics', 'core/templates', 'tests')
VERSION = '0.87.0'
CONTEXTS = ('tff', 'quap_tff')
PASSED, SKIPPED, FAILED = 'passed', 'skipped', 'failed'

# Tests that pass in TFF's context and not in ours, with the reason.
KNOWN = {
  'aggregators/stochastic_discretization_test.py::StochasticDiscretizationExecutionTest.test_discretize_impl_zero_size_'
  'tensor': 'the mean of an empty tensor is NaN, which times 0 is NaN in TensorFlow; the worker makes it 0',
  'analytics/heavy_hitters/iblt/iblt_factory_test.py': "an error in a client's computation is a `ClientError` with the "
  "client's number; the test expects the `grpc.RpcError` of a worker",
}

# Ends a process that hangs, as tests in TFF's own context do now and then. The longest file takes a few minutes.
_SECONDS = 300
# Of a parameter in the name of a test, in each process another.
_ADDRESS = re.compile(r' at 0x[0-9a-f]+')
_CHILD = pathlib.Path(__file__).with_name('run_file.py')


class FileResult(NamedTuple):
  """The tests of one file in one context.

  Attributes:
    outcomes: `PASSED`, `SKIPPED` or `FAILED` by the name of the test.
    invocations: How many computations came to the runtime; 0 in TFF's context.
    problem: Why there are no outcomes; '' if there are.
  """

  outcomes: dict[str, str]
  invocations: int
  problem: str

  def count(self, outcome: str) -> int:
    """How many tests ended so."""
    return sum(found == outcome for found in self.outcomes.values())


class Compared(NamedTuple):
  """One file in both contexts."""

  file: str
  tff: FileResult
  ours: FileResult

  def differences(self) -> Iterator[str]:
    """Names of tests that pass in TFF's context and do not in ours."""
    for name, outcome in self.tff.outcomes.items():
      if outcome == PASSED and self.ours.outcomes.get(name) != PASSED:
        yield f'{self.file}::{name}'


def main() -> int:
  """Runs the tests and prints the table; returns the exit status."""
  arguments = _arguments()
  root = pathlib.Path(arguments.tff) / 'tensorflow_federated' / 'python'
  problem = _version_problem(root)
  if problem:
    print(f'Error: {problem}', file=sys.stderr)
    return 1
  files = sorted(str(path.relative_to(root)) for folder in FOLDERS for path in (root / folder).rglob('*_test.py'))
  files = [file for file in files if file.startswith(arguments.only)]
  compared = []
  with concurrent.futures.ThreadPoolExecutor(arguments.parallel) as pool:
    pending = [pool.submit(_compared, root, file) for file in files]
    for future in concurrent.futures.as_completed(pending):
      compared.append(future.result())
      print(_line(compared[-1]), flush=True)
  compared.sort()
  if arguments.csv:
    _write(arguments.csv, compared)
  return _summary(compared)


def _arguments() -> argparse.Namespace:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--tff', required=True, help=f"A checkout of TFF's source, tag v{VERSION}.")
  parser.add_argument('--only', default='', help='Files whose path begins so, as in learning/algorithms.')
  parser.add_argument('--parallel', type=int, default=2, help='How many processes run at once.')
  parser.add_argument('--csv', help='Also write a row for each test to this file.')
  return parser.parse_args()


def _version_problem(root: pathlib.Path) -> str:
  """The reason why the checkout cannot be used; '' if it can."""
  version = root.parent / 'version.py'
  if not version.exists():
    return f'--tff must be a checkout of TFF, found no {version}.'
  if f"'{VERSION}'" not in version.read_text():
    return f'--tff must be a checkout of TFF {VERSION}, the version that is installed. Check out the tag v{VERSION}.'
  return ''


def _compared(root: pathlib.Path, file: str) -> Compared:
  return Compared(file, *(_run(root / file, context) for context in CONTEXTS))


def _run(path: pathlib.Path, context: str) -> FileResult:
  with tempfile.TemporaryDirectory() as folder:
    report, counts = os.path.join(folder, 'report.xml'), os.path.join(folder, 'counts.json')
    status, output = _ended([sys.executable, str(_CHILD), context, str(path), report, counts], folder)
    if status is None:
      return FileResult({}, 0, f'did not end within {_SECONDS} seconds')
    if not os.path.exists(report):
      last = (output.strip() or 'no output').splitlines()[-1]
      return FileResult({}, 0, f'ended with status {status}: {last}')
    return FileResult(dict(_outcomes(report)), _invocations(counts), '')


def _ended(command: Sequence[str], folder: str) -> tuple[Optional[int], str]:
  """The status and the output of a command; no status if it had to be killed."""
  # A file, because TFF's workers outlive their tests and would hold a pipe open.
  with open(os.path.join(folder, 'output'), 'w+', encoding='utf-8', errors='replace') as output:
    streams = dict(stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
    child = subprocess.Popen(command, cwd=folder, start_new_session=True, **streams)
    try:
      status: Optional[int] = child.wait(_SECONDS)
    except subprocess.TimeoutExpired:
      status = None
    finally:
      with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
      child.wait()
    output.seek(0)
    return status, output.read()


def _outcomes(report: str) -> Iterator[tuple[str, str]]:
  """Name and outcome of each test of an XML report as absltest writes it."""
  for case in ElementTree.parse(report).iter('testcase'):
    outcome = PASSED
    if case.find('failure') is not None or case.find('error') is not None:
      outcome = FAILED
    elif case.get('status') == 'notrun' or case.find('skipped') is not None:
      outcome = SKIPPED
    name = f'{case.get("classname", "").removeprefix("__main__.")}.{case.get("name")}'
    yield _ADDRESS.sub('', name), outcome


def _invocations(counts: str) -> int:
  if not os.path.exists(counts):
    return 0
  with open(counts, encoding='utf-8') as f:
    return json.load(f)


def _line(compared: Compared) -> str:
  cells = []
  for result in (compared.tff, compared.ours):
    counted = '/'.join(str(result.count(outcome)) for outcome in (PASSED, SKIPPED, FAILED))
    cells.append(result.problem or counted)
  return f'{compared.file:<70} {cells[0]:>12} {cells[1]:>12} {compared.ours.invocations:>8}'


def _write(path: str, compared: Sequence[Compared]) -> None:
  with open(path, 'w', newline='', encoding='utf-8') as f:
    writer = csv.writer(f)
    writer.writerow(['file', 'test', *CONTEXTS])
    for one in compared:
      for name in sorted({*one.tff.outcomes, *one.ours.outcomes}):
        writer.writerow([one.file, name, one.tff.outcomes.get(name), one.ours.outcomes.get(name)])


def _summary(compared: Sequence[Compared]) -> int:
  """Prints the totals and the differences; returns the exit status."""
  used = [one for one in compared if one.ours.invocations]
  for title, files in (('all files', compared), ('files whose computations came to the runtime', used)):
    print(f'\n{len(files)} {title}')
    for label, results in (('tff', [one.tff for one in files]), ('quap_tff', [one.ours for one in files])):
      totals = ', '.join(
        f'{sum(r.count(outcome) for r in results):,} {outcome}' for outcome in (PASSED, SKIPPED, FAILED)
      )
      print(f'  {label:<10} {totals}')
  for one in compared:
    for context, result in zip(CONTEXTS, (one.tff, one.ours)):
      if result.problem:
        print(f'{one.file} in {context}: {result.problem}')
  differences = [name for one in compared for name in one.differences()]
  for name in differences:
    print(f'{name} passes in tff and not in quap_tff: {_reason(name) or "not known"}')
  return int(any(_reason(name) is None for name in differences))


def _reason(name: str) -> Optional[str]:
  """The known reason why a test ends differently."""
  return next((reason for known, reason in KNOWN.items() if name.startswith(known)), None)


if __name__ == '__main__':
  sys.exit(main())
