"""How programs over Flower log: one event a line, with facts for machines.

    2026-11-29T21:50:01+00:00 INFO server run 5f3a0c1e: Round 7 of 60: 24 of 25 clients came, 4.2 seconds.
    {"time": "2026-11-29T21:50:01+00:00", "level": "INFO", "program": "server", "round": 7, "came": 24, …}

An event is a record of `logging` whose sentence is for people. It may have `facts` for machines, which never say what a
client's data are like. The run and the round are those that the process is in, so that each line has them.
"""

from __future__ import annotations

import datetime
import json
import logging
from typing import Union

LOG_FORMATS = ('text', 'json')
SERVER, NODE = 'server', 'node'
# The kinds of events that metrics count.
ROUND, REFUSED = 'round', 'refused'
# Facts in the order of a line:
#   event            ROUND (one is over) or REFUSED (a node does not take part); others have none
#   node             the node that the event is about
#   came, expected   the clients that came, of how many who may come by plan and account
#   epsilon_reading  the largest ε of a client by the rounds so far, in nats, rounded up; it guarantees nothing
#   epsilon_left     the least that a client has left of its budget, in ε, rounded down
#   seconds          since the round began
FACTS = ('event', 'node', 'came', 'expected', 'epsilon_reading', 'epsilon_left', 'seconds')
Fact = Union[str, int, float, None]

_SHORT_ID = 8
# Of this process.
_round: dict[str, Fact] = {}


def facts(**named: Fact) -> dict[str, dict[str, Fact]]:
  """The facts of an event, as the argument `extra` of a logger's methods. None is not known.

  Raises:
    ValueError: If a name is not one of `FACTS`.
  """
  unknown = named.keys() - set(FACTS)
  if unknown:
    raise ValueError(f'An event has the facts {", ".join(FACTS)}, found {", ".join(sorted(unknown))}.')
  return {'facts': named}


def facts_of(record: logging.LogRecord) -> dict[str, Fact]:
  """The facts of an event that are known, with the run and the round that the process is in."""
  own = getattr(record, 'facts', {})
  return {name: value for name, value in {**_round, **own}.items() if value is not None}


def enter_round(run: str, round_num: int, rounds: int) -> None:
  """The events of this process are of this run and round from now on.

  Args:
    run: The identifier of the run.
    round_num: t, from 1.
    rounds: How many are planned.
  """
  _round.update(run=run, round=round_num, rounds=rounds)


class EventFormatter(logging.Formatter):
  """An event as one line."""

  def __init__(self, log_format: str, program: str, name: str = ''):
    """Formats for people or for machines.

    Args:
      log_format: One of `LOG_FORMATS`.
      program: `SERVER` or `NODE`.
      name: The name of the node; '' for a server.
    """
    super().__init__()
    self._is_json, self._program, self._name = log_format == 'json', program, name

  def format(self, record: logging.LogRecord) -> str:
    """The line, without its end."""
    now = datetime.datetime.fromtimestamp(record.created, datetime.timezone.utc).isoformat(timespec='seconds')
    message, found = _one_line(record.getMessage()), facts_of(record)
    problem = self.formatException(record.exc_info) if record.exc_info else ''
    if self._is_json:
      line: dict[str, Fact] = {'time': now, 'level': record.levelname, 'program': self._program, 'message': message}
      if self._name:
        line['node'] = self._name
      line.update(found)
      if problem:
        line['traceback'] = problem
      return json.dumps(line, ensure_ascii=False)
    who = f'{self._program} {self._name}'.strip()
    run = f' run {str(found["run"])[:_SHORT_ID]}' if 'run' in found else ''
    said = f'{message} | {_one_line(problem)}' if problem else message
    return f'{now} {record.levelname} {who}{run}: {said}'


def begin(log_format: str, program: str, name: str = '') -> None:
  """Logs by an `EventFormatter` in this process, and in its forks, in place of Flower's colours. See there.

  Flower adds its own way when it is imported, so that comes before.
  """
  handler = logging.StreamHandler()
  handler.setLevel(logging.INFO)
  handler.setFormatter(EventFormatter(log_format, program, name))
  # Flower sets lines apart by empty ones.
  handler.addFilter(lambda record: bool(record.getMessage().strip()))
  logger = logging.getLogger('flwr')
  logger.setLevel(logging.INFO)
  logger.handlers[:] = [handler]


def _one_line(text: str) -> str:
  return ' | '.join(' '.join(line.split()) for line in text.splitlines() if line.strip())
