"""What messages of Flower need in a process that no SuperLink has started."""

import pytest


@pytest.fixture(autouse=True)
def _is_a_server(monkeypatch):
  identity = pytest.importorskip('flwr.supercore.task_identity', reason='make test-deploy sets up Flower.').TaskIdentity
  for name in ('_run_id', '_node_id', '_task_id'):
    monkeypatch.setattr(identity, name, 1)
