"""Tests of the log: one event is one line, for people and for machines."""

import io
import json
import logging

import pytest

from quap_tff.flower import logs


@pytest.fixture(name='lines_of')
def _lines_of(monkeypatch):
  """From a format to a logger and its lines so far."""
  monkeypatch.setattr(logs, '_round', {})
  logger = logging.getLogger('flwr')
  before, level = list(logger.handlers), logger.level

  def lines_of(log_format, program=logs.SERVER, name=''):
    logs.begin(log_format, program, name)
    [handler] = logger.handlers
    stream = io.StringIO()
    handler.setStream(stream)
    return logger, lambda: stream.getvalue().splitlines()

  yield lines_of
  logger.handlers[:] = before
  logger.setLevel(level)


def _say_all(logger):
  """A round that ended, one of Flower's lines, which is several, and an error."""
  logs.enter_round('5f3a0c1e77', 7, 60)
  said = logs.facts(event=logs.ROUND, came=24, expected=25, epsilon_reading=1.04, epsilon_left=None, seconds=4.2)
  logger.info('Round %d of %d: %d of %d clients came.', 7, 60, 24, 25, extra=said)
  logger.info('')
  logger.info('[RUN 1]\n  Received')
  logger.debug('a detail')
  try:
    raise OSError('No space\nleft')
  except OSError:
    logger.exception('It failed.')


def test_text_is_one_line_an_event_with_time_program_and_run(lines_of):
  logger, lines = lines_of('text', logs.NODE, 'hospital')
  logger.info('It begins.')
  _say_all(logger)
  begins, ended, flowers, failed = lines()
  time, rest = begins.split(' ', 1)
  assert rest == 'INFO node hospital: It begins.' and time.endswith('+00:00') and len(time) == 25
  assert ended.endswith(' INFO node hospital run 5f3a0c1e: Round 7 of 60: 24 of 25 clients came.')
  assert flowers.endswith(': [RUN 1] | Received')
  assert ' ERROR ' in failed and failed.endswith('| OSError: No space | left') and 'Traceback' in failed


def test_json_has_the_facts_that_are_known(lines_of):
  logger, lines = lines_of('json')
  _say_all(logger)
  ended, flowers, failed = map(json.loads, lines())
  del ended['time']
  assert ended == {
    'level': 'INFO',
    'program': 'server',
    'message': 'Round 7 of 60: 24 of 25 clients came.',
    'run': '5f3a0c1e77',
    'round': 7,
    'rounds': 60,
    'event': 'round',
    'came': 24,
    'expected': 25,
    'epsilon_reading': 1.04,
    'seconds': 4.2,
  }
  assert (flowers['round'], flowers['message']) == (7, '[RUN 1] | Received')
  assert failed['traceback'].splitlines()[-2:] == ['OSError: No space', 'left']


def test_json_names_the_node_that_speaks_or_that_is_spoken_of(lines_of):
  logger, lines = lines_of('json', logs.NODE, 'hospital')
  logger.info('One.')
  logger.info('Another.', extra=logs.facts(node='clinic'))
  assert [json.loads(line)['node'] for line in lines()] == ['hospital', 'clinic']


def test_an_event_has_no_other_facts():
  with pytest.raises(ValueError, match='has the facts event, node, .*, found label'):
    logs.facts(label=3)
