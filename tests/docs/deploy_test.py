"""The programs of docs/deploy.md run as they stand there."""

import pathlib
import re

import numpy as np
import pytest

import quap_tff
from quap_tff.bundle import simulation
from tests.quap_tff import examples

PAGE = pathlib.Path(__file__).absolute().parents[2] / 'docs' / 'deploy.md'
BLOCKS = re.findall(r'^```python\n(.*?)^```', PAGE.read_text(encoding='utf-8'), re.M | re.S)

pytestmark = pytest.mark.slow


def test_exports_and_plays(tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  plan = quap_tff.Plan.certified(examples.guarantee(), examples.SCHEDULE)
  x, y = np.ones([4, 5, 8], np.float32), np.ones([4, 5], np.int32)
  names = dict(quap_tff=quap_tff, plan=plan, x=x, y=y, x_test=x[0], y_test=y[0])
  names['model_fn'] = quap_tff.models.build_model_fn('linear_features', (8,), 3)
  with quap_tff.runtime.activate():
    exec(BLOCKS[0], names)
  exec(BLOCKS[1], names)
  assert names['ledger'].num_rounds == 3 and 'Formal ε of the released model' in capsys.readouterr().out


def test_a_node_reads_the_data_of_its_own_clients_alone(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'records').mkdir()
  np.savez('records/7.npz', x=np.ones([3, 8]), y=np.arange(3))
  names = {}
  exec(BLOCKS[2], names)
  examples = names['examples']({}, 7)
  assert {name: array.shape for name, array in examples.items()} == {'x': (3, 8), 'y': (3,)}
  clients = np.array([0, 24, 25, 99])
  np.savez('clients.npz', x=np.ones([4, 8]), y=np.arange(4), client=clients, x_test=np.ones(2), y_test=np.ones(2))
  exec(BLOCKS[3], {})
  found, test = simulation.read_clients('hospital.npz')
  assert sorted(found) == [0, 24] and test is None
