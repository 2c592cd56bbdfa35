"""The messages between server and nodes, as records of Flower.

    server to node    announced: the heading   message: arrays   history: who was announced, and who came
                      operator: a signature of all this, see `operators`
    node to server    answered: round, refused   came: the clients in the sums   plain, secure: arrays

Arrays have the order of the leaves of the bundle's types (`quap_tff.bundle.structures`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import hashlib
import json
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

# In place of the digest of a message that was not sent.
NO_MODEL = bytes(hashlib.sha256().digest_size)
# The record with the heading.
HEADING = 'announced'
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


class Heading(NamedTuple):
  """The part that all messages about a round have in common.

  Attributes:
    run: The identifier of the run, a text that no other run has.
    round_num: t.
    models: The digest of the message of each round until this one; zeros for a round that was not announced.
  """

  run: str
  round_num: int
  models: Sequence[bytes]


class Announced(NamedTuple):
  """A server's message to every node about a round.

  Attributes:
    bundle: What is played.
    run: The identifier of the run.
    models: See `Heading`.
    message: From `Bundle.prepare`.
    history: All rounds that were announced, this one last. Without noise that clients hold, only this one.
    least: The smallest number of clients for which the sum may open. With fewer it opens for nobody.
    seconds: How long the server waits.
    names: The name of each node by id, for the server's own log.
  """

  bundle: player.Bundle
  run: str
  models: Sequence[bytes]
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


def heading_record(announced: Announced) -> ConfigRecord:
  """The heading of every message about a round."""
  return ConfigRecord(
    {
      'run': announced.run,
      'round': announced.round_num,
      'bundle': announced.bundle.digest,
      'models': list(announced.models),
      **_versions(),
    }
  )


def read_heading(content: RecordDict, bundle: player.Bundle) -> Heading:
  """The heading, on a node.

  Raises:
    RefusedRoundError: If the server plays another bundle, or by other versions.
  """
  config = content.config_records.get(HEADING, {})
  _check_versions(config)
  if config.get('bundle') != bundle.digest:
    raise RefusedRoundError(
      f'The server plays a bundle with the digest {config.get("bundle")}, and this node has {bundle.digest}. Give both '
      'the same one.'
    )
  run, round_num, models = (config.get(name) for name in ('run', 'round', 'models'))
  if not isinstance(run, str) or not isinstance(models, list) or not models or len(models) != round_num:
    raise RefusedRoundError('The server sent a heading without the run, or without the digest of each message.')
  return Heading(run, round_num, models)


def round_content(announced: Announced) -> RecordDict:
  """The message to every node."""
  message = _message_record(announced.bundle, announced.message)
  history = _history_record(announced.history)
  return RecordDict({HEADING: heading_record(announced), 'message': message, 'history': history})


def read_round(content: RecordDict, bundle: player.Bundle) -> tuple[Any, Sequence[Link]]:
  """The message and the history, on a node.

  Raises:
    RefusedRoundError: If the server plays another bundle, or by other versions, or the heading is of another message.
  """
  heading = read_heading(content, bundle)
  try:
    record = content.array_records['message']
    message = _packed(bundle.message_type, record, 'message')
    history = _history(content.array_records['history'])
  except (LookupError, ValueError, TypeError) as error:
    raise RefusedRoundError(f'The server sent what is no round of this bundle: {error}.') from None
  if _record_digest(record) != heading.models[-1] or history[-1].round_num != heading.round_num:
    raise RefusedRoundError('The server sent another message, or another round, than its heading says.')
  return message, history


def message_digest(bundle: player.Bundle, message: Any) -> bytes:
  """The SHA-256 of a message of `Bundle.prepare`, as nodes are sent it."""
  return _record_digest(_message_record(bundle, message))


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
  """The versions that this process runs, by package."""
  return {'flwr': flwr.__version__, 'quap_tff': version.VERSION}


def _check_versions(versions: Mapping[str, Any]) -> None:
  """Raises `RefusedRoundError` unless the server has the versions of this node."""
  for name, own in _versions().items():
    if versions.get(name) != own:
      raise RefusedRoundError(
        f'The server has {name} {versions.get(name)}, and this node has {own}. '
        'Install one version of it on all machines.'
      )


def array_digest(array: Array) -> list[Any]:
  """The type of an array, and the SHA-256 of its content in hex."""
  return [array.dtype, list(array.shape), array.stype, hashlib.sha256(array.data).hexdigest()]


def _message_record(bundle: player.Bundle, message: Any) -> ArrayRecord:
  return _arrays(structures.flatten(bundle.message_type, message, 'message'))


def _record_digest(record: ArrayRecord) -> bytes:
  digests = [array_digest(record[str(index)]) for index in range(len(record))]
  return hashlib.sha256(json.dumps(digests).encode()).digest()


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
