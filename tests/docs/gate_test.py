"""The recipes in docs/gates run in the programs that they are for, where these are installed."""

import collections
import functools
import importlib.util
import json
import os
import pathlib
import re
import shutil
import sys

import numpy as np
import pytest

import quap_tff
from quap_tff.accounting import logs
from quap_tff.common.numbers import tradeoff
from tests import processes

ROOT = pathlib.Path(__file__).absolute().parents[2]
BLOCKS = re.findall(r'^```python\n(.*?)^```', (ROOT / 'docs' / 'gate.md').read_text(encoding='utf-8'), re.M | re.S)
FILES = {'flwr': 'flower_strategy.py', 'pfl': 'pfl_callback.py'}
RECIPES = {name: (ROOT / 'docs' / 'gates' / file).read_text(encoding='utf-8') for name, file in FILES.items()}
PEERS = {'flwr': 'flower', 'pfl': 'pfl'}


def test_the_first_lines_run(capsys):
  names = {}
  exec(BLOCKS[0], names)
  assert capsys.readouterr().out.startswith('[0.')
  exec(BLOCKS[1], names)  # Of reserved rounds.
  assert names['gate'].rounds == 2 and not names['gate'].epsilon()[[1, 2]].any()


@pytest.mark.parametrize('name', RECIPES)
def test_recipes_are_short(name):
  assert len([line for line in RECIPES[name].splitlines() if line]) <= 60


def _run(name, tmp_path):
  """What the program prints, and the gate and the log that it leaves."""
  python = ROOT / 'build' / 'peers' / PEERS[name] / 'bin' / 'python'
  if importlib.util.find_spec(name) is not None:
    python = pathlib.Path(sys.executable)
  elif not python.exists():
    pytest.skip(f'{name} is not installed. docs/benchmarks/peers/setup.sh makes an environment with it.')
  (tmp_path / 'recipe.py').write_text(RECIPES[name], encoding='utf-8')
  shutil.copy(ROOT / 'tests' / 'docs' / 'peers' / f'gate_{PEERS[name]}.py', tmp_path / 'program.py')
  environment = {**os.environ, 'PYTHONPATH': os.pathsep.join([str(ROOT), str(tmp_path)])}
  run = functools.partial(processes.run, [python, 'program.py'], cwd=tmp_path, env=environment)
  done = run()
  assert done.returncode == 0, done.stderr[-3000:]
  found = json.loads([line for line in done.stdout.splitlines() if line.startswith('{"rounds"')][-1])
  header, *rows = (line.split(',') for line in (tmp_path / 'log.csv').read_text().splitlines())
  assert header == ['round', 'client', 'weight', 'released'] and {tuple(rest) for _, _, *rest in rows} == {
    ('1.0', 'yes')
  }
  gate = quap_tff.Gate.load(str(tmp_path / 'gate.state'), noise_multiplier=4.0, epsilon=3.0)
  assert gate.rounds == found['rounds'] and gate.epsilon().tolist() == found['epsilon']
  counts = collections.Counter(int(client) for _, client, *_ in rows)
  exact = [float(tradeoff.epsilon_of(np.sqrt(counts[client]) / 4, 1e-5)) for client in range(gate.num_clients)]
  np.testing.assert_allclose(found['epsilon'], exact, rtol=1e-9)
  # The gate stopped the run before the last round, and nobody is over.
  assert gate.rounds < gate.config.num_rounds and 2.7 < max(found['epsilon']) <= 3
  assert logs.account(logs.Log(str(tmp_path / 'log.csv')), 4.0).num_rounds == gate.rounds
  again = run()
  assert again.returncode != 0 and 'gate.state is of an earlier run, with' in again.stdout + again.stderr
  return found, rows


@pytest.mark.slow
@pytest.mark.thorough  # For half a minute. `make test-deploy` runs it, too.
def test_flower(tmp_path):
  found, rows = _run('flwr', tmp_path)
  sizes = np.array(list(collections.Counter(number for number, *_ in rows).values()))
  assert len(set(sizes)) > 1  # Some dropped out, and were not charged.
  # Of the sum of all means: the noise is that of the clients who came. All clients count the same, and replies that
  # cannot be used add nothing. Flower's noise has no seed, and a deviation of 20,000 draws errs by 0.5%.
  assert found['stddev'] == pytest.approx(4.0 * np.sqrt((1.0 / sizes**2).sum()), rel=0.03)
  assert found['weights'] == [1] and found['metrics'] == 0 and found['replaced'] == found['unusable'] > 0


@pytest.mark.slow
def test_pfl(tmp_path):
  found, rows = _run('pfl', tmp_path)
  assert set(collections.Counter(number for number, *_ in rows).values()) == {4}
  assert len(found['stddevs']) == found['rounds'] and np.mean(found['stddevs']) == pytest.approx(4.0, rel=0.01)
