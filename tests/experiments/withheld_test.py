"""Two neighbouring runs that release the same noised sums leave the same bytes, however long they took."""

import dataclasses
import datetime
import time

import pytest
import tensorflow as tf

from experiments.folders import directory as run_directory
from experiments.running import loop
from experiments.running import setup
from quap_tff.common.numbers import chacha20
from quap_tff.common.numbers import seeds
from tests.experiments import harness

pytestmark = pytest.mark.slow

_DAY = 24 * 3600
_FROM_RUN = setup.from_run


class _Clock:
  """Python's clocks, all at once. They stand still until somebody calls `pass_`."""

  def __init__(self, monkeypatch):
    self.now = 1.8e9
    for name in ('time', 'monotonic', 'perf_counter', 'process_time'):
      monkeypatch.setattr(time, name, lambda: self.now)
      monkeypatch.setattr(time, f'{name}_ns', lambda: int(self.now * 1e9))
    clock = self

    class Datetime(datetime.datetime):
      @classmethod
      def now(cls, tz=None):
        return cls.fromtimestamp(clock.now, tz)

    class Date(datetime.date):
      @classmethod
      def today(cls):
        return cls.fromtimestamp(clock.now)

    monkeypatch.setattr(datetime, 'datetime', Datetime)
    monkeypatch.setattr(datetime, 'date', Date)


def _with_kept_processes(made):
  """`setup.from_run`, whose experiments share the processes in `made`: they follow from flags, not from data."""

  def from_run(*args):
    experiment = _FROM_RUN(*args)
    once = lambda name, make: made[name] if name in made else made.setdefault(name, make())

    return dataclasses.replace(
      experiment,
      build_process=lambda: once('process', experiment.build_process),
      build_evaluation=lambda: once('evaluation', experiment.build_evaluation),
    )

  return from_run


def _run(path, capsys, arguments, pace, made, change=lambda clients: clients):
  """A run whose clients hold changed data, and take `pace` seconds each. All of them send what unchanged data give.

  Returns:
    What the run wrote into its folder, by name, and on standard output.
  """
  with pytest.MonkeyPatch.context() as monkeypatch:
    clock, load, held = _Clock(monkeypatch), setup.data.load, []

    def changed(*args, **kwargs):
      federation = load(*args, **kwargs)
      held.extend(federation.clients)
      return dataclasses.replace(federation, clients=change(federation.clients))

    def examples_of(_, client):
      clock.now += pace
      return loop.element(held[client])

    monkeypatch.setattr(setup.data, 'load', changed)
    monkeypatch.setattr(loop.RoundExamples, '__getitem__', examples_of)
    # Both runs draw the same noise, from a seed that neither gives away. Processes of other tests have other seeds.
    monkeypatch.setattr(setup, 'from_run', _with_kept_processes(made))
    monkeypatch.setattr(seeds, 'initial_seed', lambda seed, stream: tf.constant([5, seeds.STREAMS[stream]], tf.int64))
    monkeypatch.setattr(chacha20, 'initial_key', lambda seed, stream: tf.constant([5, stream, 0, 0], tf.int64))
    # The data enter here with a secret salt of 32 bytes, and in no other way.
    monkeypatch.setattr(run_directory.RunDirectory, '_commitment', lambda self, digest: 64 * '5')
    capsys.readouterr()
    assert harness.main(*harness.TINY, *arguments, f'--output_dir={path}') == 0
    return {name: content for name, (content, _) in harness.files(path).items()}, capsys.readouterr().out


def _one_with_less(clients):
  less = dataclasses.replace(clients[0], x=clients[0].x[:1], y=clients[0].y[:1])
  return (less, *clients[1:])


@pytest.mark.usefixtures('drawn')
@pytest.mark.parametrize(
  'arguments',
  [['--noclient_metrics'], pytest.param(['--algorithm=certified'], marks=pytest.mark.thorough)],
  ids=' '.join,
)
def test_nothing_that_is_kept_or_printed_depends_on_the_data_or_the_time(arguments, tmp_path, capsys):
  path, made = tmp_path / 'run', {}
  kept, out = _run(path, capsys, arguments, 1.0, made)
  path.rename(tmp_path / 'before')
  other_kept, other_out = _run(path, capsys, arguments, _DAY, made, _one_with_less)
  assert sorted(other_kept) == sorted(kept) and len(kept) >= 8
  assert [name for name in kept if other_kept[name] != kept[name]] == []
  assert other_out == out and '"seconds":null' in out
  assert not (path / 'tensorboard').exists()
