"""Tests of `quap_tff.common.interrupts`: a signal waits until the step is done, and is handled then."""

import signal
import threading

import pytest

from quap_tff.common import interrupts


@pytest.fixture(name='handled', params=[signal.SIGINT, signal.SIGTERM])
def _handled(request):
  """A signal, and the events of the test: the handler that a program has set notes when it is called."""
  events = []
  before = signal.signal(request.param, lambda signum, frame: events.append(signum))
  yield request.param, events
  signal.signal(request.param, before)


def test_a_signal_is_handled_when_the_block_has_ended(handled):
  signum, events = handled
  with interrupts.held_back():
    signal.raise_signal(signum)
    events.append('done')
  assert events == ['done', signum]
  # The program's own handler is back.
  signal.raise_signal(signum)
  assert events == ['done', signum, signum]


def test_the_handler_is_back_after_an_error(handled):
  signum, events = handled
  with pytest.raises(ZeroDivisionError), interrupts.held_back():
    1 / 0
  signal.raise_signal(signum)
  assert events == [signum]


def test_a_signal_is_not_lost_by_an_error(handled):
  signum, events = handled
  with pytest.raises(ZeroDivisionError), interrupts.held_back():
    signal.raise_signal(signum)
    events.append('held back')
    1 / 0
  assert events == ['held back', signum]


def test_in_another_thread_nothing_is_held_back(handled):
  signum, _ = handled
  before, found = signal.getsignal(signum), []

  def look():
    with interrupts.held_back():
      found.append(signal.getsignal(signum))

  thread = threading.Thread(target=look)
  thread.start()
  thread.join()
  assert found == [before]
