"""Measures this project and its peers, which take turns, on a quiet machine: about 15 minutes.

    docs/benchmarks/peers/setup.sh && make build/deploy_venv/.ready
    python docs/benchmarks/peers/compare.py [--output=FILE]

docs/benchmarks.md says what is compared. Each measurement is a process of its own, and its line is printed and written
when it ends. At last come the medians over the turns, with half the distance between the quartiles after the sign ±.
"""

import argparse
import collections
from collections.abc import Sequence
import json
import os
import pathlib
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from typing import Callable

from experiments import benchmark
from experiments.benchmarking import turns
from quap_tff.common import kernels
from quap_tff.runtime import worker_processes

_HERE = pathlib.Path(__file__).absolute().parent
_ROOT = _HERE.parents[2]
# To emulate bfloat16 takes minutes a round, in PyTorch as in TensorFlow.
_DTYPES = ('float32',) if kernels.emulates_bfloat16() else ('float32', 'bfloat16')
_BATCH_SIZE = 32
_LAYOUTS = ([], ['--channels_last'])
# QuAP-FL as `experiments.benchmark` has it, except that it clips at the last norm: clients that wait in mid-round
# cannot be exported. The drawings give the shapes, and no data.
_EXPORTED = [
  '--dataset=glyphs',
  '--model=mnist_cnn',
  '--participation=full',
  f'--batch_size={_BATCH_SIZE}',
  '--local_epochs=1',
]
_EXPORTED += ['--clip=quantile_ema:timing=previous,initial_clip=1', '--client_optimizer=sgd:learning_rate=0.005']


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--environments', default=str(_ROOT / 'build' / 'peers'), help='Where setup.sh made them.')
  parser.add_argument(
    '--bundle_python', default=str(_ROOT / 'build' / 'deploy_venv' / 'bin' / 'python'), help='Of a newer TensorFlow.'
  )
  parser.add_argument('--output', help='Also write the lines to this file.')
  parser.add_argument('--clients', type=int, default=30)
  parser.add_argument('--examples', type=int, default=600)
  parser.add_argument('--rounds', type=int, default=1, help='Timed rounds of each case in a turn.')
  parser.add_argument('--turns', type=int, default=3, help='How often each case is measured.')
  args = parser.parse_args()
  for peer in ('pfl', 'flower'):
    if not _python(args, peer).exists():
      parser.error(f'{_python(args, peer)} is missing: run {_HERE / "setup.sh"} first, or give --environments.')
  if not os.path.exists(args.bundle_python):
    parser.error(f'{args.bundle_python} is missing: run `make build/deploy_venv/.ready`, or give --bundle_python.')
  rows = []

  def keep(row: dict) -> None:
    rows.append(row)
    print(json.dumps(row), flush=True)
    if args.output:
      pathlib.Path(args.output).write_text(''.join(json.dumps(r) + '\n' for r in rows), encoding='utf-8')

  with turns.Measurement('check', device='cpu') as measurement:
    used = measurement.labels[0]['kernels']
  cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
  keep({'machine': platform.platform(), 'cores': cores, 'load': load, 'kernels': used})
  with tempfile.TemporaryDirectory() as folder:
    for dtype in _DTYPES:
      _export(args, os.path.join(folder, dtype), dtype)
    _run_simulators(args, folder, keep)
  print(_table(rows))


def _export(args: argparse.Namespace, path: str, dtype: str) -> None:
  flags = [*_EXPORTED, f'--num_clients={args.clients}', f'--compute_dtype={dtype}', f'--output={path}']
  _run([sys.executable, '-m', 'experiments.export', *flags])


def _run_simulators(args: argparse.Namespace, bundles: str, keep: Callable[[dict], None]) -> None:
  workload = [f'--clients={args.clients}', f'--examples={args.examples}', f'--rounds={args.rounds}']
  faster: dict[tuple[str, str], list[str]] = {}
  for turn in range(args.turns):
    for case in benchmark.cases_here():
      keep({'turn': turn, **_ours(args, case)})
    for dtype in _DTYPES:
      script = [args.bundle_python, str(_HERE / 'run_bundle.py'), os.path.join(bundles, dtype), f'--dtype={dtype}']
      keep({'turn': turn, **_last_json(_run([*script, *workload], PYTHONPATH=str(_ROOT)))})
    for peer in ('pfl', 'flower'):
      for dtype in _DTYPES:
        # The first turn tells which layout of images is faster.
        layouts = [faster[peer, dtype]] if turn else _LAYOUTS
        row, faster[peer, dtype] = _peer(args, peer, [*workload, f'--dtype={dtype}'], layouts)
        keep({'turn': turn, **row})


def _python(args: argparse.Namespace, peer: str) -> pathlib.Path:
  return pathlib.Path(args.environments) / peer / 'bin' / 'python'


def _run(command: list[str], **environment: str) -> str:
  """Standard output of a command; its errors are shown if it fails."""
  env = {**os.environ, **environment}
  # Ends with this program, however it is ended.
  ending = worker_processes.ending_with_this_one([shutil.which(command[0]) or command[0], *command[1:]])
  done = subprocess.run(ending, cwd=_ROOT, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True)
  if done.returncode:
    raise SystemExit(f'{" ".join(map(str, command))} failed:\n{done.stdout[-3000:]}{done.stderr[-3000:]}')
  return done.stdout


def _last_json(output: str) -> dict:
  return json.loads([line for line in output.splitlines() if line.startswith('{')][-1])


def _ours(args: argparse.Namespace, case: str) -> dict:
  """A case of `experiments.benchmark`, in a process of its own."""
  workload = dict(clients=args.clients, examples=args.examples, batch_size=_BATCH_SIZE, device='cpu')
  with turns.Measurement('case', name=case, **workload) as measurement:
    measurement.run()  # Traces and compiles.
    median = statistics.median(measurement.run()[0] for _ in range(args.rounds))
  speed = args.clients * args.examples / median
  return {'case': case, 'samples_per_second': speed, 'seconds_per_round': median, 'rounds': args.rounds}


def _peer(
  args: argparse.Namespace, peer: str, arguments: list[str], layouts: Sequence[list[str]]
) -> tuple[dict, list[str]]:
  """A peer's figures in the layout of images, one of `layouts`, in which it is faster; and that layout."""
  python, cores = str(_python(args, peer)), len(os.sched_getaffinity(0))
  script = str(_HERE / f'run_{peer}.py')
  if peer == 'pfl' and cores > 1:
    # Processes of one thread each: PyTorch's own threads gain less on steps as small as these.
    command = [python, '-m', 'torch.distributed.run', '--standalone', f'--nproc_per_node={cores}', script]
  else:
    command = [python, script]
  tried = [(_last_json(_run([*command, *arguments, *layout], OMP_NUM_THREADS='1')), layout) for layout in layouts]
  return max(tried, key=lambda row_and_layout: row_and_layout[0]['samples_per_second'])


def _figure(repetitions: Sequence[float], digits: str) -> str:
  """The median and, over more than one repetition, half the distance between the quartiles."""
  value, spread = turns.figure(repetitions)
  return format(value, digits) if spread is None else f'{value:{digits}} ±{spread:{digits}}'


def _table(rows: list[dict]) -> str:
  """The cases in Markdown. Each is compared with QuAP-FL in its own arithmetic, turn by turn."""
  speeds = collections.defaultdict(list)
  for row in rows:
    if 'turn' in row:
      speeds[row['case']].append(row['samples_per_second'])
  lines = ['| case | samples/s | QuAP-FL in the same arithmetic is |', '| --- | ---: | ---: |']
  for case, own in speeds.items():
    quap = speeds['quap_bfloat16' if case.endswith('bfloat16') else 'quap_float32']
    times = _figure([q / o for q, o in zip(quap, own)], '.2f')
    lines.append(f'| `{case}` | {_figure(own, ",.0f")} | {times} times |')
  return '\n'.join(lines)


if __name__ == '__main__':
  main()
