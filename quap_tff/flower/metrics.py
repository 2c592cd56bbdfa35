"""Metrics for Prometheus, of a server or a node.

They follow from the facts of events (`logs`), so they say nothing that the log does not say. Rounds are played in
forks, which write the facts to a pipe; the process that made them reads it, counts, and answers Prometheus.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from typing import BinaryIO

import prometheus_client

from quap_tff.flower import logs

_LOOPBACK = '127.0.0.1'


# By fact of an event at the end of a round: its metric, and what that is.
_OF_ROUND = {
  'round': ('quap_round', 'The round that ended last.'),
  'rounds': ('quap_planned_rounds', 'Rounds that are planned.'),
  'came': ('quap_came', 'Clients that came in the round that ended last.'),
  'expected': ('quap_expected', 'Clients that could have come in it, by plan and account.'),
  'seconds': ('quap_round_seconds', 'Seconds from its begin to its end.'),
  'epsilon_reading': ('quap_epsilon_reading', 'The largest epsilon of a client so far. It guarantees nothing.'),
  'epsilon_left': ('quap_epsilon_left', 'The least that a client has left of its budget.'),
}


class Metrics:
  """The metrics of a program."""

  def __init__(self, registry: prometheus_client.CollectorRegistry):
    """Registers them."""
    self._rounds = prometheus_client.Counter(
      'quap_rounds', 'Rounds that ended since this program started.', registry=registry
    )
    self._empty = prometheus_client.Counter(
      'quap_empty_rounds', 'Those of them in which nobody came.', registry=registry
    )
    self._refused = prometheus_client.Counter(
      'quap_refused', 'Refusals, failures and missing answers.', ['node'], registry=registry
    )
    self._registry = registry
    self._gauges = dict[str, prometheus_client.Gauge]()

  def count(self, facts: dict[str, logs.Fact]) -> None:
    """Counts an event by its facts."""
    if facts.get('event') == logs.REFUSED:
      self._refused.labels(str(facts.get('node', ''))).inc()
    if facts.get('event') != logs.ROUND:
      return
    self._rounds.inc()
    if not facts.get('came'):
      self._empty.inc()
    for fact, (name, about) in _OF_ROUND.items():
      if fact not in facts:
        continue
      if fact not in self._gauges:  # A value that is not known has no metric, and not a zero.
        self._gauges[fact] = prometheus_client.Gauge(name, about, registry=self._registry)
      self._gauges[fact].set(float(facts[fact] or 0))


class _Sender(logging.Handler):
  """Writes the facts of events to a pipe."""

  def __init__(self, pipe: int):
    super().__init__(logging.INFO)
    self._pipe = pipe

  def emit(self, record: logging.LogRecord) -> None:
    facts = logs.facts_of(record)
    if 'event' in facts:
      # One write of so few bytes is whole, also next to those of other forks.
      os.write(self._pipe, f'{json.dumps(facts)}\n'.encode())


def _count_all(metrics: Metrics, events: BinaryIO) -> None:
  with events:
    for line in events:
      metrics.count(json.loads(line))


def serve(port: int, address: str = '') -> None:
  """Answers Prometheus from now on, at http://ADDRESS:PORT/metrics, for events of this process and its later forks.

  Args:
    port: The port.
    address: Where it listens; '' for this machine alone.

  Raises:
    OSError: If another program has the port.
  """
  registry = prometheus_client.CollectorRegistry()
  metrics = Metrics(registry)
  read, write = os.pipe()
  prometheus_client.start_http_server(port, address or _LOOPBACK, registry)
  threading.Thread(target=_count_all, args=(metrics, os.fdopen(read, 'rb')), daemon=True).start()
  logging.getLogger('flwr').addHandler(_Sender(write))
