"""Runs of these tests share processes and draw no plots. Tests of plots ask for `drawn`."""

import contextlib

import pytest

from experiments import plots
from tests.experiments import sharing

_SHARED = sharing.Shared()
_DRAW = plots.plot_run


@pytest.fixture(scope='session', autouse=True)
def _sharing():
  with contextlib.closing(_SHARED), _SHARED.used(), sharing.no_plots():
    yield


@pytest.fixture
def drawn(monkeypatch):
  """Runs of this test draw their plot."""
  monkeypatch.setattr(plots, 'plot_run', _DRAW)
