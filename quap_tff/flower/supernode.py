"""Flower's SuperNode as a process that says in a sentence why it is not connected, and ends when it does not work.

    the clock is off            the key is not registered        another process has this key
    nothing listens there       the certificate does not fit     the other side is no SuperLink, or fails

By itself, a SuperNode hangs once the SuperLink has answered with an error: its main thread or that of its heartbeat
ends, and a server inside keeps the process alive without work. Here the process ends with either thread, and
`node_program` starts another one. It uses parts of Flower that have no promise to stay.
"""

from __future__ import annotations

import argparse
import datetime
import email.utils
import logging
import os
import sys
import threading
from typing import Any

from flwr.common.constant import SYSTEM_TIME_TOLERANCE
from flwr.common.constant import TIMESTAMP_TOLERANCE
from flwr.proto import fleet_pb2
from flwr.supercore import date
from flwr.supercore.error import ApiErrorCode
from flwr.supercore.error import FlowerError
from flwr.supernode import fleet_http_connection
from flwr.supernode.cli import flower_supernode
from flwr.supernode.fleet_http_client import FleetHttpClient
import httpx

from quap_tff.flower import logs

_LOG = logging.getLogger('flwr')
_FAILED = 1


class _SayingClient(FleetHttpClient):
  """Flower's client of the SuperLink, which says once why a request failed."""

  _said = ''

  def _unary_unary(self, **request: Any) -> Any:  # type: ignore[override]
    try:
      response = super()._unary_unary(**request)
    except (httpx.HTTPError, ValueError) as error:
      self._say(self._reason(error, request['request']))
      raise
    self._said = ''
    return response

  def _say(self, reason: str) -> None:
    if reason and reason != self._said:
      _LOG.error('%s', reason)
      self._said = reason

  def _reason(self, error: Exception, request: Any) -> str:
    """A sentence on what is wrong, and what to do; '' where Flower says it, or goes on."""
    if not isinstance(error, httpx.HTTPStatusError):
      return unreachable(self._base_url, error)
    found = FlowerError.from_json(error.response.text)
    code = found.code if found else None
    if code == ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED and isinstance(request, fleet_pb2.ActivateNodeRequest):
      return refused(self._is_registered(request.public_key))
    if code is not None and error.response.status_code < httpx.codes.INTERNAL_SERVER_ERROR:
      return ''
    return answered(self._base_url, error.response, date.now())

  def _is_registered(self, public_key: bytes) -> bool:
    """Whether the SuperLink knows the key: only then it goes on to check the interval, which is none."""
    try:
      super()._unary_unary(
        path='/v1/fleet/activate-node',
        rpc_method='/flwr.proto.Fleet/ActivateNode',
        request=fleet_pb2.ActivateNodeRequest(public_key=public_key, heartbeat_interval=0.0),
        response_type=fleet_pb2.ActivateNodeResponse,
      )
    except httpx.HTTPStatusError as error:
      found = FlowerError.from_json(error.response.text)
      return found is not None and found.code == ApiErrorCode.FLEET_INVALID_HEARTBEAT_INTERVAL
    return True


def refused(is_registered: bool) -> str:
  """The sentence on a node that the SuperLink does not let in."""
  if is_registered:
    return (
      'The SuperLink has another connection with the key of this node: a copy of its folder, which must be stopped, or '
      'this node before it was killed, which is forgotten after a minute. This node tries again until then.'
    )
  return (
    'The SuperLink does not know the key of this node. On the server, run flwr supernode register with the file '
    'node_key.pub of its folder. This node tries again until then.'
  )


def unreachable(url: str, error: Exception) -> str:
  """The sentence on a request that got no answer of a SuperLink."""
  text = ' '.join(str(error).split()) or type(error).__name__
  if 'CERTIFICATE' in text.upper():
    return (
      f'The certificate that {url} shows does not fit --root-certificates, or is for another name ({text}). Give the '
      'certificate of the server, and the name or address that is in it.'
    )
  if 'SSL' in text.upper():
    return f'What listens at {url} speaks no TLS ({text}). Check the port of --superlink.'
  if isinstance(error, httpx.ConnectError):
    return (
      f'Nothing listens at {url} ({text}). Check address and port of --superlink, and whether the SuperLink runs. This '
      'node tries again until then.'
    )
  return f'The connection with {url} was lost ({text}). This node tries again.'


def answered(url: str, response: httpx.Response, now: datetime.datetime) -> str:
  """The sentence on a SuperLink that answers with an error.

  Args:
    url: Of the SuperLink.
    response: Its answer, whose date is the time of its clock.
    now: The time of this machine's clock.
  """
  status = response.status_code
  if status == httpx.codes.UNAUTHORIZED:
    ahead = _seconds_ahead(response.headers.get('date', ''), now)
    if ahead is not None and not -TIMESTAMP_TOLERANCE < ahead < SYSTEM_TIME_TOLERANCE:
      side = 'ahead of' if ahead > 0 else 'behind'
      return (
        f'The clock of this machine is {abs(ahead):.0f} seconds {side} that of the SuperLink, which takes at most '
        f'{SYSTEM_TIME_TOLERANCE} seconds ahead and {TIMESTAMP_TOLERANCE} behind. Set the clock (timedatectl set-ntp '
        'true).'
      )
    return (
      'The SuperLink does not take the signature of this node: its key was registered anew or removed. On the server, '
      'look at flwr supernode list.'
    )
  if status in (httpx.codes.NOT_FOUND, httpx.codes.METHOD_NOT_ALLOWED, httpx.codes.FORBIDDEN):
    return f'What listens at {url} is no SuperLink for nodes: it answers {status}. Check the port of --superlink.'
  return f'The SuperLink at {url} answers {status}: its own log says why. This node connects again.'


def _seconds_ahead(told: str, now: datetime.datetime) -> float | None:
  """How far this machine's clock is ahead of an HTTP date; None for another text."""
  try:
    return (now - email.utils.parsedate_to_datetime(told)).total_seconds()
  except (TypeError, ValueError):
    return None


def _end_with_a_thread(failed: threading.ExceptHookArgs) -> None:
  """Ends the process with a thread that fails: the SuperLink would take this node for one that is gone."""
  _LOG.error('%s', failed.exc_value)
  os._exit(_FAILED)


def _begin_log() -> None:
  """Sets up logging by the arguments of this process, and leaves the others to Flower."""
  parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
  parser.add_argument('--log-format', choices=logs.LOG_FORMATS, default='text')
  parser.add_argument('--name', default='')
  own, sys.argv[1:] = parser.parse_known_args()
  logs.begin(own.log_format, logs.NODE, own.name)


def main() -> None:
  """Runs `flower-supernode` with the arguments of this process, and never returns.

  `--log-format` and `--name` say how it logs, and as which node.
  """
  _begin_log()
  fleet_http_connection.FleetHttpClient = _SayingClient  # type: ignore[misc]
  threading.excepthook = _end_with_a_thread
  try:
    flower_supernode()
  finally:
    os._exit(_FAILED)


if __name__ == '__main__':
  main()
