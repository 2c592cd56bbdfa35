"""Progress: a bar on a terminal, a few lines in a log, nothing on standard output."""

import contextlib
import fcntl
import io
import math
import os
import pty
import re
import struct
import sys
import termios

import hypothesis
from hypothesis import strategies
import numpy as np
import pytest

from experiments.running import progress
from quap_tff import CertifiedConfig
from quap_tff import plans
from quap_tff.mechanisms.certified import weight_rules
from tests.experiments import harness

ROW = {'train_loss': 1.23456, 'epsilon': 0.03, 'clipping_norm': 0.5, 'sigma': 0.25}


LEGEND = (
  "loss: training loss; test: test accuracy (@ its round); ε: the round's nominal ε; C: clipping norm; "
  'σ: standard deviation of the noise'
)


def _make(kind, first, last):
  return progress.make(kind, first, last, progress.Epsilon("the round's nominal ε", lambda row: row['epsilon']))


def _lines(capsys):
  """What was shown of the rounds, after the legend."""
  out, err = capsys.readouterr()
  legend, *lines = err.splitlines()
  assert out == '' and legend.startswith(('loss: ', 'test: '))
  return lines


class _Terminal(io.StringIO):
  def isatty(self):
    return True


def _terminal(monkeypatch):
  # Not in a fixture: pytest puts its own streams in place between fixtures and test.
  stream = _Terminal()
  monkeypatch.setattr(sys, 'stderr', stream)
  return stream


def _run(display, first, last, tested=lambda t: True, row=ROW):
  for t in range(first, last + 1):
    display.update(t, {**row, **({'test_accuracy': 0.5} if tested(t) else {})})
  display.close()


class TestMake:
  def test_auto_is_a_bar_on_a_terminal_and_lines_elsewhere(self, monkeypatch):
    _terminal(monkeypatch)
    assert isinstance(progress.make('auto', 1, 2), progress.Bar)
    monkeypatch.setattr(sys, 'stderr', io.StringIO())
    assert isinstance(progress.make('auto', 1, 2), progress.Lines)

  def test_none_says_nothing(self, capsys):
    display = progress.make('none', 1, 3)
    display.note('nobody')
    _run(display, 1, 3)
    assert capsys.readouterr() == ('', '')


class TestClippingNorm:
  def test_of_a_round_without_one_it_is_a_dash(self, capsys):
    display = progress.make('lines', 1, 2)
    display.update(1, {**ROW, 'train_loss': math.nan, 'clipping_norm': math.inf, 'sigma': 0.0})
    display.update(2, ROW)
    first, second = _lines(capsys)
    assert first == 'round 1/2  loss=- C=- σ=0' and 'C=0.5 σ=0.25' in second


class TestSay:
  @pytest.mark.parametrize('kind', ['auto', 'bar', 'lines', 'none'])
  def test_says_it_unless_nothing_is_to_be_said(self, kind, capsys):
    progress.say(kind, 'Reading …')
    assert capsys.readouterr() == ('', '' if kind == 'none' else 'Reading …\n')

  @pytest.mark.slow
  def test_a_run_says_what_it_does_before_its_first_round(self, library):
    said = library.run('fedavg').err.splitlines()
    assert said[:3] == ['Starting TensorFlow …', 'Reading digits …', 'Building logistic_regression and the round …']


class TestLines:
  def test_a_line_at_each_tenth_and_at_the_first_round(self, capsys):
    _run(_make('lines', 1, 100), 1, 100)
    out, err = capsys.readouterr()
    assert out == '' and '\r' not in err
    legend, *lines = err.splitlines()
    assert legend == LEGEND
    assert [line.split()[1] for line in lines] == [f'{t}/100' for t in [1, *range(10, 101, 10)]]
    assert all('  loss=1.235 test=50.0% ε=0.0300 C=0.5 σ=0.25' in line for line in lines)

  def test_what_a_run_does_not_log_is_left_out(self, capsys):
    _run(progress.make('lines', 1, 1), 1, 1, row={'clipping_norm': 2.0}, tested=lambda t: False)
    assert capsys.readouterr().err.splitlines() == [
      'test: test accuracy (@ its round); C: clipping norm',
      'round 1/1  C=2',
    ]

  def test_a_loss_without_bounds_is_short(self, capsys):
    _run(progress.make('lines', 1, 1), 1, 1, row={'train_loss': 123456789e22})
    assert 'loss=1.23e+30 ' in capsys.readouterr().err

  def test_a_resumed_run_shows_its_first_round(self, capsys):
    _run(_make('lines', 42, 100), 42, 55)
    assert [line.split()[1] for line in _lines(capsys)] == ['42/100', '50/100']

  def test_a_line_each_minute_in_slow_runs(self, capsys, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(progress.time, 'monotonic', lambda: clock[0])
    display = _make('lines', 1, 1000)
    for t in range(1, 10):
      clock[0] += 25
      display.update(t, ROW)
    lines = _lines(capsys)
    assert [line.split()[1] for line in lines] == ['1/1000', '4/1000', '7/1000']
    assert 'left' not in lines[0] and lines[1].endswith('6:55:00 left')

  def test_the_first_round_which_compiles_is_not_in_the_estimate(self, capsys, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(progress.time, 'monotonic', lambda: clock[0])
    display = _make('lines', 1, 10)
    for t in range(1, 4):
      clock[0] += 60 if t == 1 else 1
      display.update(t, ROW)
    lines = _lines(capsys)
    assert ' left' not in lines[0] and [line.split()[-2] for line in lines[1:]] == ['00:08', '00:07']

  def test_an_accuracy_of_an_earlier_round_names_it(self, capsys):
    _run(_make('lines', 1, 4), 1, 4, tested=lambda t: t == 2)
    shown = [line.split()[3] for line in _lines(capsys)]
    assert shown == ['ε=0.0300', 'test=50.0%', 'test=50.0%@2', 'test=50.0%@2']

  def test_the_budget_of_a_round_is_rounded_up(self, capsys):
    _make('lines', 1, 1).update(1, {**ROW, 'epsilon': 0.03000001})
    assert 'ε=0.0301 ' in capsys.readouterr().err

  def test_a_round_with_nobody_has_no_loss(self, capsys):
    display = _make('lines', 1, 1)
    display.note('round 1: nobody took part')
    display.update(1, {**ROW, 'train_loss': math.nan})
    err = capsys.readouterr().err
    assert err.startswith('round 1: nobody') and 'loss=-' in err and 'nan' not in err


class TestEpsilon:
  def _plan(self, **options):
    return plans.Plan.certified(
      CertifiedConfig(num_clients=9, epsilon=3.0, delta=1e-5, noise_multiplier=4.0, **options), [[0, 1]] * 6
    )

  @pytest.mark.slow
  def test_of_a_certified_run_is_never_below_what_was_spent(self):
    plan = self._plan()
    shown = progress.epsilon_of(plan)

    @hypothesis.given(strategies.floats(1e-6, 1.0))
    def check(share):
      exact = plan.slack.of(math.sqrt(share * plan.core.prices.limit), 1e-5)
      assert exact <= shown.of({'spent_max': float(np.float32(share))}) <= exact * (1 + 1e-6)

    check()

  def test_nobody_has_spent_anything(self):
    assert progress.epsilon_of(self._plan()).of({'spent_max': 0.0}) == 0

  def test_where_clients_have_bounds_of_their_own_it_is_a_bound_for_all(self):
    plan = self._plan(own_epsilon=(1.0,) * 4 + (3.0,) * 5, weights=weight_rules.ScaledWeights())
    assert progress.epsilon_of(plan).of({'spent_max': 1.0}) == pytest.approx(3, rel=1e-3)

  @pytest.mark.slow
  @pytest.mark.parametrize('name, rounds', [('certified', 6), ('held', 4)])
  def test_grows_to_what_the_run_has_spent_in_the_end(self, name, rounds, library):
    _, out, err = library.run(name)
    assert 'ε: no client has spent more so far; C: ' in err
    shown = [float(found) for found in re.findall(r'^round .* ε=([\d.]+) ', err, re.MULTILINE)]
    assert len(shown) == rounds and shown == sorted(shown) and shown[0] < 0.9 * shown[-1]
    (figure,) = harness.last_line(out)['formal']['figures']
    assert 0 <= shown[-1] - figure['epsilon_max'] < 2e-4

  @pytest.mark.slow
  @pytest.mark.parametrize(
    'arguments, shows',
    [
      (['--algorithm=fixed_dp'], True),
      (['--algorithm=fixed_dp', '--calibration=exact'], False),
      (['--algorithm=fedavg'], False),
    ],
  )
  def test_of_others_it_is_the_nominal_one_of_the_round_if_there_is_one(self, arguments, shows):
    found = progress.epsilon_of(harness.experiment(*harness.TINY, *arguments).plan)
    assert (found is not None) == shows
    assert not shows or found.of({'epsilon': 0.03}) == 0.03


class TestBar:
  def test_no_estimate_before_there_is_a_basis(self, monkeypatch):
    terminal = _terminal(monkeypatch)
    clock = [0.0]
    monkeypatch.setattr(progress.time, 'monotonic', lambda: clock[0])
    display = _make('bar', 1, 10)
    display.update(1, ROW)
    display._bar.refresh()
    assert '| ? left, loss' in terminal.getvalue()
    clock[0] += 5
    display.update(2, ROW)
    display._bar.refresh()
    assert '| 00:40 left, loss' in terminal.getvalue()
    display.close()

  def test_shows_round_figures_and_notes(self, monkeypatch, capsys):
    terminal = _terminal(monkeypatch)
    display = _make('bar', 3, 5)
    display.note('round 3: nobody took part')
    _run(display, 3, 5)
    shown = terminal.getvalue()
    assert '5/5' in shown and 'loss=1.235' in shown and 'test=50.0%' in shown
    assert 'round 3: nobody took part' in shown
    assert capsys.readouterr().out == ''

  @pytest.mark.parametrize('columns', [40, 60, 80, 200])
  @pytest.mark.parametrize('last', [5, 1000000])
  def test_stays_on_one_row_of_the_terminal(self, columns, last, monkeypatch):
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack('HHHH', 24, columns, 0, 0))
    with os.fdopen(slave, 'w', encoding='utf-8') as terminal:
      monkeypatch.setattr(sys, 'stderr', terminal)
      display = _make('auto', 1, last)
      assert isinstance(display, progress.Bar)
      _run(display, 1, 5)
    shown = b''
    # The end of a terminal is an error.
    with contextlib.suppress(OSError), os.fdopen(master, 'rb', buffering=0) as reader:
      while True:
        shown += reader.read(4096)
    rows = [row for row in shown.decode().replace('\n', '\r').split('\r') if row and row != LEGEND]
    assert max(map(len, rows)) <= columns
    assert f'5/{last} |' in rows[-1] and ' left' in rows[-1]
    assert ('loss=1.235' in rows[-1]) == (columns >= 60) and ('ε=0.0300' in rows[-1]) == (columns >= 80)
    assert ('σ=0.25' in rows[-1]) == (columns == 200 or (columns == 80 and last == 5))
