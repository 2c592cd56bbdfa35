"""The messages between server and nodes, as records of Flower.

    server to node    announced: bundle, flwr, round   message: arrays   history: who was announced, and who came
    node to server    answered: round, refused   came: the clients in the sums   plain, secure: arrays

Arrays have the order of the leaves of the bundle's types (`quap_tff.bundle.structures`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import types
from typing import Any, NamedTuple

import flwr
from flwr.app import Array
from flwr.app import ArrayRecord
from flwr.app import ConfigRecord
from flwr.app import Message
from flwr.app import RecordDict
import numpy as np

from quap_tff.bundle import player
from quap_tff.bundle import structures
from quap_tff.common import version

# What a server is told in place of a reason that may tell of clients' data.
UNSAID = "Its own log says why: the reason may tell of clients' data."


class RefusedRoundError(ValueError):
  """The other side does not take part in a round, or says what cannot be. The message says why, and what to do."""


class Link(NamedTuple):
  """A round that was announced.

  Attributes:
    round_num: t, from 1.
    cohort: int64[M], who was announced.
    came: int64[M'], who came in the round that was announced before it.
  """

  round_num: int
  cohort: np.ndarray
  came: np.ndarray


class Announced(NamedTuple):
  """A server's message to every node about a round.

  Attributes:
    bundle: The run.
    message: From `Bundle.prepare`.
    history: All rounds that were announced, this one last. Without noise that clients hold, only this one.
    least: The smallest number of clients for which the sum may open. With fewer it opens for nobody.
    seconds: How long the server waits.
    names: The name of each node by id, for the server's own log.
  """

  bundle: player.Bundle
  message: Any
  history: Sequence[Link]
  least: int
  seconds: float
  names: Mapping[int, str] = types.MappingProxyType({})

  @property
  def round_num(self) -> int:
    """t."""
    return self.history[-1].round_num

  @property
  def cohort(self) -> np.ndarray:
    """int64[M], who is announced."""
    return self.history[-1].cohort

  def name(self, node: int) -> str:
    """A node as the log names it."""
    return self.names.get(node, str(node))


class Answer(NamedTuple):
  """A node's answer in a round.

  Attributes:
    round_num: t.
    sums: The sum over its clients.
    came: int64[M], the clients in it.
  """

  round_num: int
  sums: player.Sums
  came: np.ndarray


def round_content(announced: Announced) -> RecordDict:
  """The message to every node."""
  bundle = announced.bundle
  config = ConfigRecord({'round': announced.round_num, 'bundle': bundle.digest, **_versions()})
  leaves = structures.flatten(bundle.message_type, announced.message, 'message')
  return RecordDict({'announced': config, 'message': _arrays(leaves), 'history': _history_record(announced.history)})


def read_round(content: RecordDict, bundle: player.Bundle) -> tuple[Any, Sequence[Link]]:
  """The message and the history, on a node.

  Raises:
    RefusedRoundError: If the server plays another bundle, or by other versions.
  """
  config = content.config_records.get('announced', {})
  _check_versions(config)
  if config.get('bundle') != bundle.digest:
    raise RefusedRoundError(
      f'The server plays a bundle with the digest {config.get("bundle")}, and this node has {bundle.digest}. Give both '
      'the same one.'
    )
  try:
    message = _packed(bundle.message_type, content.array_records['message'], 'message')
    return message, _history(content.array_records['history'])
  except (LookupError, ValueError, TypeError) as error:
    raise RefusedRoundError(f'The server sent what is no round of this bundle: {error}.') from None


def answer_content(answer: Answer, bundle: player.Bundle) -> RecordDict:
  """A node's reply."""
  plain, secure = (structures.flatten(kind, own, 'sums') for kind, own in zip(bundle.sums_types, answer.sums))
  return RecordDict(
    {
      'answered': ConfigRecord({'round': answer.round_num}),
      'came': _arrays([answer.came]),
      'plain': _arrays(plain),
      'secure': _arrays(secure),
    }
  )


def refusal_content(reason: str) -> RecordDict:
  """A node's reply if it does not take part."""
  return RecordDict({'answered': ConfigRecord({'refused': reason})})


def check_reply(reply: Message) -> None:
  """Raises `RefusedRoundError` if a node refuses, or has failed."""
  if reply.has_error():
    # Flower's text is a traceback; its last line says what happened.
    said = ' '.join((reply.error.reason or '').strip().splitlines()[-1:])
    raise RefusedRoundError(f'failed: {said or "it does not say why"}. Its log says more.')
  answered = reply.content.config_records.get('answered', {})
  if 'refused' in answered:
    raise RefusedRoundError(f'refuses. {answered["refused"]}')


def answer(reply: Message, bundle: player.Bundle, round_num: int, clients: np.ndarray) -> Answer:
  """The answer that a node has sent.

  Args:
    reply: The reply of the node.
    bundle: The run.
    round_num: The round that was announced.
    clients: int64[M], the clients of the cohort that are enrolled at this node.

  Raises:
    RefusedRoundError: If it refuses, failed, or sent what is no answer.
  """
  check_reply(reply)
  try:
    content = reply.content
    config = content.config_records['answered']
    (came,) = _numpy(content.array_records['came'])
    plain, secure = (
      _packed(kind, content.array_records[name], name) for name, kind in zip(('plain', 'secure'), bundle.sums_types)
    )
  except (LookupError, ValueError, TypeError) as error:
    raise RefusedRoundError(f'sent what is no answer: {error}. Give it the quap_tff of the server.') from None
  strangers = np.setdiff1d(came, clients)
  if config['round'] != round_num or len(strangers) or len(np.unique(came)) != len(came):
    raise RefusedRoundError(
      f'answers round {config["round"]} for the clients {came.tolist()}, and was asked for round {round_num} of '
      f'{clients.tolist()}. Its answer is left out.'
    )
  return Answer(round_num, player.Sums(plain, secure), came)


def _versions() -> dict[str, str]:
  """Those of this process, by package."""
  return {'flwr': flwr.__version__, 'quap_tff': version.VERSION}


def _check_versions(versions: Mapping[str, Any]) -> None:
  """Raises `RefusedRoundError` unless the server has the versions of this node."""
  for name, own in _versions().items():
    if versions.get(name) != own:
      raise RefusedRoundError(
        f'The server has {name} {versions.get(name)}, and this node has {own}. '
        'Install one version of it on all machines.'
      )


def _arrays(leaves: Sequence[Any]) -> ArrayRecord:
  return ArrayRecord({str(index): Array(np.asarray(leaf)) for index, leaf in enumerate(leaves)})


def _numpy(record: ArrayRecord) -> list[np.ndarray]:
  return [record[str(index)].numpy() for index in range(len(record))]


def _packed(kind: structures.Type, record: ArrayRecord, name: str) -> Any:
  """The value of a type. Raises `ValueError` if the arrays are not its leaves."""
  leaves = _numpy(record)
  expected = len(list(structures.types(kind)))
  if len(leaves) != expected:
    raise ValueError(f'{name} must have {expected} arrays, found {len(leaves)}')
  value = structures.pack(kind, iter(leaves))
  structures.flatten(kind, value, name)
  return value


def _history_record(history: Sequence[Link]) -> ArrayRecord:
  parts = [part for link in history for part in (link.cohort, link.came)]
  return _arrays(
    [
      np.array([link.round_num for link in history], np.int64),
      np.array([len(part) for part in parts], np.int64),
      np.concatenate([*parts, np.zeros(0, np.int64)]),
    ]
  )


def _history(record: ArrayRecord) -> list[Link]:
  rounds, sizes, clients = _numpy(record)
  parts = np.split(clients, np.cumsum(sizes)[:-1])
  return [Link(number, *parts[2 * k : 2 * k + 2]) for k, number in enumerate(rounds.tolist())]
