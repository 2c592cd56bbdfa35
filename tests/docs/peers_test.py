"""The comparison with other simulators takes turns, and compares like with like. The simulators are not needed."""

import argparse
import importlib.util
import json

import pytest

from tests.experiments import harness

_PATH = harness.REPOSITORY / 'docs' / 'benchmarks' / 'peers' / 'compare.py'
_OURS = {'tff_worker': 100.0, 'quap_float32': 200.0, 'quap_bfloat16': 400.0, 'ceiling_bfloat16': 500.0}


@pytest.fixture
def compare(monkeypatch):
  """The script as a module. No program runs."""
  spec = importlib.util.spec_from_file_location('compare', _PATH)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  module.commands = []

  def run(command, **environment):
    command = [str(part) for part in command]
    module.commands.append(command)
    peer = next(peer for peer in ('bundle', 'pfl', 'flower') if any(f'run_{peer}.py' in part for part in command))
    speed = 250.0 if '--channels_last' in command else 100.0
    dtype = 'bfloat16' if '--dtype=bfloat16' in command else 'float32'
    return json.dumps({'case': f'{peer}_{dtype}', 'samples_per_second': speed}) + '\n'

  monkeypatch.setattr(module, '_run', run)
  monkeypatch.setattr(module.benchmark, 'cases_here', lambda: list(_OURS))
  monkeypatch.setattr(module, '_ours', lambda args, case: {'case': case, 'samples_per_second': _OURS[case]})
  monkeypatch.setattr(module, '_DTYPES', ('float32', 'bfloat16'))
  return module


def test_all_take_turns_in_the_layout_that_the_first_turn_found(compare):
  rows = []
  args = argparse.Namespace(environments='none', bundle_python='python', clients=2, examples=4, rounds=1, turns=3)
  compare._run_simulators(args, 'bundles', rows.append)
  played = ['bundle_float32', 'bundle_bfloat16']
  peers = ['pfl_float32', 'pfl_bfloat16', 'flower_float32', 'flower_bfloat16']
  assert [(row['turn'], row['case']) for row in rows] == [
    (turn, case) for turn in range(3) for case in [*_OURS, *played, *peers]
  ]
  assert {row['samples_per_second'] for row in rows if row['case'] in peers} == {250.0}
  layouts = ['--channels_last' in command for command in compare.commands if 'bundles' not in ' '.join(command)]
  assert layouts == [False, True] * 4 + [True] * 8


def test_bfloat16_is_left_out_where_the_processor_has_none(compare, monkeypatch):
  monkeypatch.setattr(compare, '_DTYPES', ('float32',))
  rows = []
  args = argparse.Namespace(environments='none', bundle_python='python', clients=2, examples=4, rounds=1, turns=1)
  compare._run_simulators(args, 'bundles', rows.append)
  assert [row['case'] for row in rows if row['case'] not in _OURS] == [
    'bundle_float32',
    'pfl_float32',
    'flower_float32',
  ]


def test_each_case_is_compared_in_its_own_arithmetic(compare):
  rows = [{'machine': 'here'}]
  for turn, slower in enumerate([1, 2, 4]):
    speeds = {**_OURS, 'pfl_float32': 100.0 + 60 * (turn == 1), 'flower_bfloat16': 200.0}
    rows += [{'turn': turn, 'case': name, 'samples_per_second': s / slower} for name, s in speeds.items()]
  table = compare._table(rows).splitlines()
  # 100, 160 and 100 samples/s on a machine that became four times slower.
  assert '| `pfl_float32` | 80 ±38 | 2.00 ±0.38 times |' in table
  assert '| `flower_bfloat16` | 100 ±75 | 2.00 ±0.00 times |' in table
  assert '| `ceiling_bfloat16` | 250 ±188 | 0.80 ±0.00 times |' in table
  assert '| `pfl_float32` | 100 | 2.00 times |' in compare._table(rows[: 1 + len(speeds)])
