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


def test_clients_bring_updates_of_a_program_of_their_own(tmp_path):
  plan = quap_tff.Plan.certified(examples.guarantee(), examples.SCHEDULE)
  with quap_tff.runtime.activate():
    quap_tff.export(plan, tmp_path / 'bundle', weights=[np.zeros([3, 2], np.float32)])
  bundle = quap_tff.Bundle(tmp_path / 'bundle')
  message = bundle.prepare(bundle.initialize())
  names = dict(bundle=bundle, message=message, client=2)
  names['train'] = lambda weights, client: [weights[0] - np.float32(client)]
  exec(BLOCKS[4], names)
  np.testing.assert_array_equal(names['data']['update'][0], np.full([3, 2], 2, np.float32))
  assert not bundle.attempt(names['data'], message).problem


def test_the_example_in_another_framework_is_short():
  """`tests/quap_tff/flower/example_test.py` runs it."""
  example = PAGE.parent / 'own_clients' / 'digits_torch.py'
  assert 'docs/own_clients/digits_torch.py' in PAGE.read_text(encoding='utf-8')
  assert len(example.read_text(encoding='utf-8').splitlines()) < 50


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
