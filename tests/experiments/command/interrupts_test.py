"""Signals: held back where they must not cut, raised once, ignored at the end."""

import gc
import signal
import threading
import weakref

import pytest

from experiments.command import interrupts
from tests import processes
from tests.experiments import harness


@pytest.fixture(autouse=True)
def installed():
  with harness.signal_handlers_kept():
    interrupts.install()
    yield


class TestInterrupts:
  @pytest.mark.parametrize('signum', [signal.SIGINT, signal.SIGTERM])
  def test_raises_at_once(self, signum):
    with pytest.raises(KeyboardInterrupt):
      signal.raise_signal(signum)

  @pytest.mark.parametrize('signum', [signal.SIGINT, signal.SIGTERM])
  def test_held_back_until_the_block_has_ended(self, signum):
    done = []
    with pytest.raises(KeyboardInterrupt):
      with interrupts.held_back():
        signal.raise_signal(signum)
        with interrupts.held_back():
          done.append('inner')
        done.append('outer')
    assert done == ['inner', 'outer']

  def test_a_block_without_a_signal_raises_nothing(self):
    with interrupts.held_back():
      pass

  def test_an_error_of_the_block_goes_first(self):
    with pytest.raises(ValueError):
      with interrupts.held_back():
        signal.raise_signal(signal.SIGINT)
        raise ValueError

  def test_an_impatient_second_signal_cuts_nothing(self):
    with pytest.raises(KeyboardInterrupt):
      signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGTERM)

  def test_one_that_was_swallowed_is_raised_after_the_next_block(self):
    try:
      signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
      pass  # As Python does in a finalizer.
    with pytest.raises(KeyboardInterrupt):
      with interrupts.held_back():
        pass

  def test_ignored_at_the_end(self):
    interrupts.ignore_from_now_on()
    signal.raise_signal(signal.SIGINT)
    with interrupts.held_back():
      pass

  @pytest.mark.thorough
  @pytest.mark.slow
  def test_one_that_comes_where_exceptions_are_lost_is_raised_soon_after(self, capfd):
    calls = []

    def collecting(phase, info):
      del info
      if not calls:
        calls.append(phase)
        signal.raise_signal(signal.SIGINT)

    # No collection but this one: a thread that an earlier test left could begin one, and get the signal in its place.
    gc.disable()
    gc.callbacks.append(collecting)
    try:
      with pytest.raises(KeyboardInterrupt):
        gc.collect()
        threading.Event().wait(processes.DEADLINE_SECONDS)
    finally:
      gc.callbacks.remove(collecting)
      gc.enable()
    assert calls and 'Exception ignored' not in capfd.readouterr().err

  def test_nor_is_one_lost_in_a_finalizer(self, capfd):
    class Finalized:
      def __del__(self):
        signal.raise_signal(signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):
      Finalized()
      threading.Event().wait(processes.DEADLINE_SECONDS)
    assert 'Exception ignored' not in capfd.readouterr().err

  def test_nor_in_a_callback_of_a_weak_reference(self, capfd):
    class Entries(dict):
      def __delitem__(self, key):
        signal.raise_signal(signal.SIGTERM)
        super().__delitem__(key)

    class Key:
      pass

    kept, key = weakref.WeakKeyDictionary(), Key()
    kept.data = Entries()
    kept[key] = 1
    with pytest.raises(KeyboardInterrupt):
      del key
      threading.Event().wait(processes.DEADLINE_SECONDS)
    assert not kept.data and 'Exception ignored' not in capfd.readouterr().err

  def test_nor_in_a_function_that_tensorflow_calls(self):
    done = []
    module = {'__name__': 'tensorflow.python.made_up', 'signal': signal, 'done': done}
    exec('def convert():\n  signal.raise_signal(signal.SIGINT)\n  done.append(True)', module)
    with pytest.raises(KeyboardInterrupt):
      module['convert']()
      threading.Event().wait(processes.DEADLINE_SECONDS)
    assert done

  def test_nor_at_the_end_of_a_generator(self, capfd):
    def numbers():
      try:
        yield 1
      finally:
        signal.raise_signal(signal.SIGINT)

    ended = numbers()
    next(ended)
    with pytest.raises(KeyboardInterrupt):
      del ended
      threading.Event().wait(processes.DEADLINE_SECONDS)
    assert 'Exception ignored' not in capfd.readouterr().err

  def test_other_errors_that_python_drops_are_printed(self, capfd):
    class Finalized:
      def __del__(self):
        raise ValueError('of the finalizer')

    Finalized()
    assert 'of the finalizer' in capfd.readouterr().err

  def test_it_is_raised_once_where_a_block_raises_it_first(self):
    class Finalized:
      def __del__(self):
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
      with interrupts.held_back():
        pass
      Finalized()
      with interrupts.held_back():
        pass
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
