"""Runs of these tests share processes and draw no plots. Tests of plots ask for `drawn`."""

import contextlib

import pytest

from experiments.running import plots
from tests import light
from tests.experiments import sharing

_DRAW = plots.plot_run


@pytest.fixture(scope='session', name='shared')
def _shared():
  with contextlib.closing(sharing.Shared()) as shared:
    yield shared


# For each module, not once for all of them: tests of other folders that run in this process afterwards share nothing.
@pytest.fixture(scope='module', autouse=True)
def _sharing(request):
  shares = contextlib.nullcontext() if light.ON else request.getfixturevalue('shared').used()
  with shares, sharing.no_plots():
    yield


@pytest.fixture
def drawn(monkeypatch):
  """Runs of this test draw their plot."""
  monkeypatch.setattr(plots, 'plot_run', _DRAW)
