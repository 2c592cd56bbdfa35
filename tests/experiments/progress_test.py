"""Progress: a bar on a terminal, a few lines in a log, nothing on standard output."""

import contextlib
import fcntl
import io
import math
import os
import pty
import struct
import sys
import termios

import pytest

from experiments import progress
from tests.experiments import harness

ROW = {'train_loss': 1.23456, 'epsilon': 0.03, 'clipping_norm': 0.5, 'sigma': 0.25}


class _Terminal(io.StringIO):
  def isatty(self):
    return True


def _terminal(monkeypatch):
  # Not in a fixture: pytest puts its own streams in place between fixtures and test.
  stream = _Terminal()
  monkeypatch.setattr(sys, 'stderr', stream)
  return stream


def _run(display, first, last, tested=lambda t: True):
  for t in range(first, last + 1):
    display.update(t, {**ROW, **({'test_accuracy': 0.5} if tested(t) else {})})
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


class TestSay:
  @pytest.mark.parametrize('kind', ['auto', 'bar', 'lines', 'none'])
  def test_says_it_unless_nothing_is_to_be_said(self, kind, capsys):
    progress.say(kind, 'Reading …')
    assert capsys.readouterr() == ('', '' if kind == 'none' else 'Reading …\n')

  @pytest.mark.slow
  def test_a_run_says_what_it_does_before_its_first_round(self, capsys):
    assert harness.main(*harness.TINY, '--algorithm=fedavg', '--rounds=1', '--progress=lines') == 0
    said = capsys.readouterr().err.splitlines()
    assert said[:3] == ['Starting TensorFlow …', 'Reading digits …', 'Building logistic_regression and the round …']


class TestLines:
  def test_a_line_at_each_tenth_and_at_the_first_round(self, capsys):
    _run(progress.make('lines', 1, 100), 1, 100)
    out, err = capsys.readouterr()
    assert out == ''
    assert [line.split()[1] for line in err.splitlines()] == [f'{t}/100' for t in [1, *range(10, 101, 10)]]
    for text in ('loss=1.235', 'test=50.0%', 'ε=0.0300', 'C=0.5', 'σ=0.25'):
      assert all(text in line for line in err.splitlines())
    assert '\r' not in err

  def test_a_resumed_run_shows_its_first_round(self, capsys):
    _run(progress.make('lines', 42, 100), 42, 55)
    assert [line.split()[1] for line in capsys.readouterr().err.splitlines()] == ['42/100', '50/100']

  def test_a_line_each_minute_in_slow_runs(self, capsys, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(progress.time, 'monotonic', lambda: clock[0])
    display = progress.make('lines', 1, 1000)
    for t in range(1, 10):
      clock[0] += 25
      display.update(t, ROW)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in lines] == ['1/1000', '4/1000', '7/1000']
    assert 'left' not in lines[0] and lines[1].endswith('6:55:00 left')

  def test_the_first_round_which_compiles_is_not_in_the_estimate(self, capsys, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(progress.time, 'monotonic', lambda: clock[0])
    display = progress.make('lines', 1, 10)
    for t in range(1, 4):
      clock[0] += 60 if t == 1 else 1
      display.update(t, ROW)
    lines = capsys.readouterr().err.splitlines()
    assert ' left' not in lines[0] and [line.split()[-2] for line in lines[1:]] == ['00:08', '00:07']

  def test_an_accuracy_of_an_earlier_round_names_it(self, capsys):
    _run(progress.make('lines', 1, 4), 1, 4, tested=lambda t: t == 2)
    shown = [line.split()[3] for line in capsys.readouterr().err.splitlines()]
    assert shown == ['test=-', 'test=50.0%', 'test=50.0%@2', 'test=50.0%@2']

  def test_the_budget_of_a_round_is_rounded_up(self, capsys):
    progress.make('lines', 1, 1).update(1, {**ROW, 'epsilon': 0.03000001})
    assert 'ε=0.0301 ' in capsys.readouterr().err

  def test_a_round_with_nobody_has_no_loss(self, capsys):
    display = progress.make('lines', 1, 1)
    display.note('round 1: nobody took part')
    display.update(1, {**ROW, 'train_loss': math.nan})
    err = capsys.readouterr().err
    assert err.startswith('round 1: nobody') and 'loss=-' in err and 'nan' not in err


class TestBar:
  def test_no_estimate_before_there_is_a_basis(self, monkeypatch):
    terminal = _terminal(monkeypatch)
    clock = [0.0]
    monkeypatch.setattr(progress.time, 'monotonic', lambda: clock[0])
    display = progress.make('bar', 1, 10)
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
    display = progress.make('bar', 3, 5)
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
      display = progress.make('auto', 1, last)
      assert isinstance(display, progress.Bar)
      _run(display, 1, 5)
    shown = b''
    # The end of a terminal is an error.
    with contextlib.suppress(OSError), os.fdopen(master, 'rb', buffering=0) as reader:
      while True:
        shown += reader.read(4096)
    rows = [row for row in shown.decode().replace('\n', '\r').split('\r') if row]
    assert max(map(len, rows)) <= columns
    assert f'5/{last} |' in rows[-1] and ' left' in rows[-1]
    assert ('loss=1.235' in rows[-1]) == (columns >= 60) and ('ε=0.0300' in rows[-1]) == (columns >= 80)
    assert ('σ=0.25' in rows[-1]) == (columns == 200 or (columns == 80 and last == 5))
