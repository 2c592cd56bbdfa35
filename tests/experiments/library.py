"""Runs that tests look at, or go on from: each is trained once, by the process whose test asks for it first.

Tests that run in several processes share the folder. `Library.run` is only to be read; a test that changes a run's
files takes a copy. Tests whose flags are the point have runs of their own.
"""

from __future__ import annotations

import contextlib
import io
import pathlib
import shutil
from typing import Any, Callable, NamedTuple

import pytest

from experiments.running import plots
from quap_tff.common import durable
from tests.experiments import harness

CERTIFIED = 'certified:weights=participation,noise=independent,clip=0.5'

# The flags of each run, after those of harness.TINY.
RUNS: dict[str, tuple[str, ...]] = {
  'quap': ('--noise_seed=3', '--checkpoint_every=3'),
  'quap_stopped': ('--noise_seed=3', '--checkpoint_every=3', '--stop_after=3'),
  # Layers without noise, so no finite ε.
  'layerwise': ('--model=mlp', '--rounds=2', '--epsilon=1', '--noise_seed=1'),
  'fixed_dp': ('--algorithm=fixed_dp', '--noclient_metrics'),
  'fedavg': ('--algorithm=fedavg', '--client_optimizer=sgd:learning_rate=1.0', '--progress=lines'),
  # With dropout, as the models of MNIST and CIFAR-10 have it.
  'mnist_cnn': ('--model=mnist_cnn', '--algorithm=fedavg', '--rounds=4', '--client_optimizer=sgd:learning_rate=0.2'),
  'certified': (f'--algorithm={CERTIFIED}', '--rounds=6', '--eval_every=2', '--progress=lines'),
  # Stopped, with own bounds.
  'certified_stopped': ('--algorithm=certified:weights=scale,own=0.5/2/0.5/4', '--stop_after=5'),
  # Without a trusted server, and clients who drop out.
  'held': (
    '--algorithm=certified:trust=secure_sum,noise=held,clip=0.5,colluders=1',
    '--rounds=4',
    '--dropout=bernoulli:rate=0.3',
    '--progress=lines',
  ),
  'features': (
    '--features=scattering:scales=1',
    '--model=auto',
    f'--algorithm={CERTIFIED}',
    '--rounds=3',
    '--warmup_rounds=0',
  ),
}

# Drawing takes a second; the others have a file without an image in place of their plot.
_DRAWN = ('fedavg',)


class Trained(NamedTuple):
  """A run of the library.

  Attributes:
    path: Its folder.
    out: What it printed on standard output.
    err: And on standard error.
  """

  path: pathlib.Path
  out: str
  err: str

  @property
  def summary(self) -> dict[str, Any]:
    return harness.summary(self.path)


class Library:
  """The runs, in one folder for all processes of a test run."""

  def __init__(self, folder: pathlib.Path, draw: Callable[..., None], no_plot: Callable[..., None]):
    self._folder, self._draw, self._no_plot = folder, draw, no_plot
    folder.mkdir(exist_ok=True)

  def run(self, name: str) -> Trained:
    """The run of that name, which nobody may change."""
    import filelock  # `make test-light` has none, and imports this file.

    place = self._folder / name
    with filelock.FileLock(f'{place}.lock'):
      if not (place / 'err').exists():
        shutil.rmtree(place, ignore_errors=True)
        self._train(name, place)
    out, err = ((place / stream).read_text(encoding='utf-8') for stream in ('out', 'err'))
    return Trained(place / 'run', out, err)

  def copy(self, name: str, path: Any) -> pathlib.Path:
    """A copy of that run's folder."""
    copied = pathlib.Path(shutil.copytree(self.run(name).path, path))
    state = copied / 'checkpoints' / 'state'
    if state.exists():
      # A state of its own: of one state only one copy goes on.
      content = durable.content_of(state)
      state.unlink()
      with durable.StateFile(str(state)) as own:
        own.write(content)
    return copied

  def _train(self, name: str, place: pathlib.Path) -> None:
    with contextlib.ExitStack() as stack:
      patch = stack.enter_context(pytest.MonkeyPatch.context())
      patch.setattr(plots, 'plot_run', self._draw if name in _DRAWN else self._no_plot)
      place.mkdir()
      patch.setenv('XDG_CACHE_HOME', str(place / 'cache'))
      out = stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
      err = stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
      status = harness.main(*harness.TINY, *RUNS[name], f'--output_dir={place / "run"}')
    assert status == 0, err.getvalue()
    shutil.rmtree(place / 'cache', ignore_errors=True)
    (place / 'out').write_text(out.getvalue(), encoding='utf-8')
    (place / 'err').write_text(err.getvalue(), encoding='utf-8')
