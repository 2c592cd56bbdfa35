"""Runs of these tests share processes, and draw no plots. Tests of plots ask for `drawn`, readers for `library`.

To trace and compile a process takes longer than to train a tiny model by it. Runs with the same flags and the same data
have the same learning process. It is a function of its state alone, so one serves them all.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator
import contextlib
import dataclasses
import json
import os
from typing import Any, Callable

import pytest

from experiments.running import plots
from quap_tff import runtime
from quap_tff.common import lazy
from quap_tff.common.lazy import tff
from tests import light
from tests.experiments import library as runs
from tests.quap_tff import remembered_curves

_DRAW = plots.plot_run
# With what was compiled from it, each takes some 50 MB.
_MOST_KEPT = 12


class Shared:
  """Keeps the latest processes, evaluations and contexts, for all runs that use it."""

  def __init__(self):
    self._kept: collections.OrderedDict[Any, Any] = collections.OrderedDict()
    self._contexts = {}
    # The module itself: what is set on a lazy one, others do not see.
    self._setup = lazy.load('experiments.running.setup')
    self._from_run, self._activate = self._setup.from_run, runtime.activate

  def use(self, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs share what they can, until the patch is undone."""
    monkeypatch.setattr(self._setup, 'from_run', self._sharing_from_run)
    monkeypatch.setattr(runtime, 'activate', self._sharing_activate)

  def close(self) -> None:
    """Ends the contexts' threads."""
    self._kept.clear()
    while self._contexts:
      self._contexts.popitem()[1].close()

  def _sharing_from_run(self, run, *args) -> Any:
    experiment = self._from_run(run, *args)
    # The facts that must stay the same when a run is resumed.
    key = json.dumps(run.identity(), default=str), experiment.federation.digest()

    return dataclasses.replace(
      experiment,
      build_process=lambda: self._get(('process', *key), experiment.build_process),
      build_evaluation=lambda: self._get(('evaluation', *key), experiment.build_evaluation),
    )

  @contextlib.contextmanager
  def _sharing_activate(self, config=runtime.RuntimeConfig()) -> Iterator[tff.framework.SyncContext]:
    if not isinstance(config, runtime.RuntimeConfig) or config.kind != 'in_process':
      with self._activate(config) as context:
        yield context
      return
    names, num_threads = runtime.prepare(config), config.resolved_num_threads()
    if (num_threads, *names) not in self._contexts:
      self._contexts[(num_threads, *names)] = runtime.InProcessContext(num_threads, names)
    context = self._contexts[(num_threads, *names)]
    with tff.framework.get_context_stack().install(context):
      yield context

  def _get(self, key: Any, make: Callable[[], Any]) -> Any:
    if key not in self._kept:
      self._kept[key] = make()
      if len(self._kept) > _MOST_KEPT:
        self._kept.popitem(last=False)
    self._kept.move_to_end(key)
    return self._kept[key]


def _no_plot(metrics, plot_path, title):
  """Writes a file without an image where the plot of a run would be: drawing takes as long as training."""
  del metrics, title
  with open(plot_path, 'wb') as f:
    f.write(b'In place of a plot.')


@pytest.fixture(scope='session', name='shared')
def _shared():
  with contextlib.closing(Shared()) as shared:
    yield shared


# For each module, not once for all of them: tests of other folders that run in this process afterwards share nothing.
@pytest.fixture(scope='module', autouse=True)
def _sharing(request):
  with pytest.MonkeyPatch.context() as monkeypatch, remembered_curves.used():
    monkeypatch.setattr(plots, 'plot_run', _no_plot)
    if not light.ON:
      request.getfixturevalue('shared').use(monkeypatch)
    yield


@pytest.fixture(scope='session')
def library(tmp_path_factory):
  """Runs that are trained once for all processes of pytest-xdist."""
  base = tmp_path_factory.getbasetemp()
  folder = base.parent if 'PYTEST_XDIST_WORKER' in os.environ else base
  return runs.Library(folder / 'library', _DRAW, _no_plot)


@pytest.fixture
def drawn(monkeypatch):
  """Runs of this test draw their plot."""
  monkeypatch.setattr(plots, 'plot_run', _DRAW)
