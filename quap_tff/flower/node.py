"""A node: the data of its clients, their guards, and what it answers in a round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import contextlib
import datetime
import functools
import importlib
import logging
import os
from typing import Any, NamedTuple, Optional

from flwr.app import RecordDict
import numpy as np

from quap_tff.bundle import bundle_engine
from quap_tff.bundle import player
from quap_tff.bundle import simulation
from quap_tff.flower import enrolment
from quap_tff.flower import messages
from quap_tff.flower import notes
from quap_tff.flower import operators
from quap_tff.flower import own_program
from quap_tff.mechanisms.held import guard

_LOG = logging.getLogger('flwr')
# In a node's folder: what is wrong with clients' data, by client. It stays with the node.
PRIVATE_LOG = 'private.log'


# How long a client's training may take in a round.
TRAIN_SECONDS = 60.0


class _Brought(NamedTuple):
  """What a client brings to a round.

  Attributes:
    examples: Its examples, or its update; [] for none.
    problem: Why there are none, if that is somebody's fault.
  """

  examples: bundle_engine.Examples
  problem: str = ''


class Node:
  """The clients of one machine.

  Attributes:
    bundle: What is played.
    examples: The examples of each client.
    folder: The node's folder.
    enrolment: The folder with the cards of all nodes; '' if it has none.
    holds_noise: Whether its clients hold the noise.
  """

  def __init__(
    self,
    bundle: player.Bundle,
    examples: Mapping[int, bundle_engine.Examples],
    folder: str,
    operator: str,
    enrolled: str = '',
    train: Optional[own_program.OwnFunction] = None,
  ):
    """Reads the keys.

    Args:
      bundle: What is played.
      examples: The examples of each client, by name.
      folder: The node's folder, with its keys. It keeps what the node was asked.
      operator: The file with the public key of the operator.
      enrolled: The folder with the cards of all nodes, for a run in which clients hold the noise.
      train: Gives a client's new weights, for a bundle that takes updates. Its clients have no examples here.

    Raises:
      ValueError: If there is no folder, or no key of the operator; or clients hold the noise, and there is no secret,
        or nothing is known of the other nodes.
    """
    if not os.path.isdir(folder):
      raise ValueError(
        f'This node has no folder for its keys, found {folder!r}. Make one by python -m quap_tff.flower enrol FOLDER '
        "--clients=…, and name it in the node's configuration: folder=…."
      )
    self.bundle, self.examples, self.folder, self.enrolment = bundle, examples, folder, enrolled
    self.holds_noise = bundle.plan is not None and bundle.plan.holds_noise
    self._train = train
    self._operator = operators.public_key(operator)
    self._secret = enrolment.secret_of(folder) if self.holds_noise else None
    if self.holds_noise:
      if not enrolled:
        raise ValueError(
          'Clients hold the noise of this run, and sum it up with the other nodes, whose keys this one must know. Name '
          "the folder with the enrolment.json of every node in the node's configuration: enrolment=…."
        )
      enrolment.Enrolled(enrolled)

  def _path(self, name: str) -> str:
    return os.path.join(self.folder, name)

  @classmethod
  def of(cls, config: Mapping[str, Any]) -> Node:
    """The node of a configuration (`flower-supernode --node-config`).

    Args:
      config: `bundle`, a folder. `data`, an .npz file as `experiments.export --clients` writes it, or
        `module:function`, a function from this configuration and a client's id to the examples of this client.
        `train` in place of `data`, for a bundle that takes updates: `module:function`, a function from weights, a
        client's id and a round to the client's new weights; `train_seconds`, how long it may take. `clients`, such as
        0-24, those who are at this node (default: all in the file). `folder`, from `python -m quap_tff.flower enrol`.
        `operator`, the file with the operator's public key. `enrolment`, the folder with the cards of all nodes, for a
        run in which clients hold the noise.

    Raises:
      ValueError: If something is missing or wrong; the message says what to do.
    """
    for name in ('bundle', 'folder', 'operator'):
      _check_given(name, config)
    bundle = player.Bundle(str(config['bundle']))
    _check_source(bundle, config)
    clients = enrolment.clients_of(str(config['clients'])).tolist() if 'clients' in config else None
    train, unread = None, dict[int, str]()
    if bundle.takes_updates:
      examples: dict[int, bundle_engine.Examples] = dict.fromkeys(_needed(clients), [])
      train = own_program.OwnFunction(str(config['train']), float(config.get('train_seconds', TRAIN_SECONDS)))
    else:
      examples, unread = _read(config, clients)
    folder, operator, enrolled = (str(config.get(name, '')) for name in ('folder', 'operator', 'enrolment'))
    try:
      node = cls(bundle, examples, folder, operator, enrolled, train)
    except BaseException:
      if train is not None:
        train.close()
      raise
    for client, problem in unread.items():
      node.note(f'The reader failed: client {client} adds zero. {problem}')
    return node

  def close(self) -> None:
    """Ends the program that trains, if there is one."""
    if self._train is not None:
      self._train.close()

  def admit(self, content: RecordDict) -> messages.Heading:
    """The heading of a message that the operator has signed, of a round that goes on from the last one.

    Nothing else is answered. That the round was asked for is written down.

    Raises:
      RefusedRoundError: If it is another message, of another bundle or other versions.
      OSError: If what is written down cannot be read, or written.
    """
    operators.check(content, self._operator)
    heading = messages.read_heading(content, self.bundle)
    notes.take(self.folder, heading)
    return heading

  def answer(self, content: RecordDict) -> messages.Answer:
    """The answer of this node's clients in a round that a server announces.

    A client whose data cannot be used adds zero, and comes like the others.

    Raises:
      RefusedRoundError: If a guard refuses, or the server plays another bundle or has other versions.
    """
    message, history = messages.read_round(content, self.bundle)
    clients = np.intersect1d(history[-1].cohort, list(self.examples)).tolist()
    answers = self._guarded(history, clients) if self.holds_noise else None
    total, round_num = self.bundle.zero(), history[-1].round_num
    for client in clients:
      brought = self._brought(client, round_num, message)
      total = self.bundle.add(total, self._attempt(f'Round {round_num}', client, brought, message, answers))
    return messages.Answer(round_num, total, np.array(clients, np.int64))

  def check_clients(self) -> None:
    """Notes which clients add zero as things are. Each is tried by itself, in a round that is for nobody."""
    bundle = self.bundle
    message = bundle.prepare(bundle.initialize())
    silence = guard.silence(guard.PublicPlan.of(bundle.plan), 1) if self.holds_noise else None
    for client, examples in self.examples.items():
      if self._train is None and isinstance(examples, list) and not examples:
        self.note(f'At the start: client {client} has no examples, and adds zero.')
      else:
        self._attempt('At the start', client, self._brought(client, 1, message), message, {client: silence})

  def note(self, line: str) -> None:
    """Adds a line to `PRIVATE_LOG` in the node's folder: what may tell of clients' data, and is for its owner alone."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
    now = datetime.datetime.now().isoformat(timespec='seconds')
    # A note that cannot be written must not decide whether the others are in the sum.
    with contextlib.suppress(OSError), os.fdopen(os.open(self._path(PRIVATE_LOG), flags, 0o600), 'ab') as f:
      f.write(f'{now} {" ".join(line.split())}\n'.encode(errors='backslashreplace'))

  def note_failure(self, error: Exception) -> None:
    """Says that this node failed; only its owner reads why, because the error may tell of data."""
    self.note(f'{type(error).__name__}: {error}')
    _LOG.error('This node failed: %s says why.', self._path(PRIVATE_LOG))

  def _brought(self, client: int, round_num: int, message: Any) -> _Brought:
    """What a client brings to a round: its examples, or the update of its training; nothing, and why, if that fails."""
    if self._train is None:
      return _Brought(self.examples[client])
    try:
      trained = self._train(self.bundle.sent_weights(message), client, round_num)
      return _Brought(self.bundle.update_of(message, trained))
    except ValueError as error:  # Of the function, or of what it gave.
      return _Brought([], f'{self._train.name} failed. {error}')

  def _attempt(self, when: str, client: int, brought: _Brought, message: Any, answers: Any) -> player.Sums:
    """The values that a client sends; a note says if it adds zero."""
    data = bundle_engine.client_data(self.bundle, client, brought.examples, answers=answers)
    sums, problem = self.bundle.attempt(data, message)
    problem = brought.problem or problem
    if problem:
      self.note(f'{when}: client {client} adds zero. {problem}')
    return sums

  def _guarded(self, history: Sequence[messages.Link], clients: list[int]) -> dict[int, Any]:
    """The answers of the clients' guards. They write down what was announced before they answer."""
    plan = guard.PublicPlan.of(self.bundle.plan)
    try:
      chain = functools.reduce(lambda before, link: before.then(*link), history, guard.Chain(plan))
      assert self._secret is not None  # Where clients hold the noise, there is one.
      guards = [guard.ClientGuard(plan, one, self._secret, self._path(f'guard_{one}')) for one in clients]
      return {one.client_id: one.answer_at(chain) for one in guards}
    except ValueError as error:  # These follow from what was announced alone.
      raise messages.RefusedRoundError(str(error)) from None


def _check_given(name: str, config: Mapping[str, Any]) -> None:
  if name not in config:
    raise ValueError(f'The node has no {name}. Start it with --node-config \'{name}="…"\'.')


def _check_source(bundle: player.Bundle, config: Mapping[str, Any]) -> None:
  """Raises `ValueError` unless the node has data, or trains, as the bundle needs it."""
  if bundle.takes_updates and 'train' not in config:
    raise ValueError(
      'Clients of this bundle bring their updates, and this node has no function that trains them. Start it with '
      '--train=module:function.'
    )
  if bundle.takes_updates and 'data' in config:
    raise ValueError(
      'Clients of this bundle bring their updates, which --train computes: it reads the data itself. Leave --data out.'
    )
  if not bundle.takes_updates and 'train' in config:
    raise ValueError(
      'Clients train in this bundle, on --data. For --train, export a bundle that takes updates: python -m '
      'experiments.export --weights=….'
    )
  if not bundle.takes_updates:
    _check_given('data', config)


def _needed(clients: Optional[list[int]]) -> list[int]:
  """The clients; raises `ValueError` if nobody has said who they are."""
  if clients is None:
    raise ValueError('The node has no clients. Start it with --node-config \'clients="…"\', such as 0-24.')
  return clients


def _read(
  config: Mapping[str, Any], clients: Optional[list[int]]
) -> tuple[dict[int, bundle_engine.Examples], dict[int, str]]:
  """The examples of each client, and why those of some cannot be read."""
  data, unread = str(config['data']), dict[int, str]()
  if data.endswith('.npz'):
    found = simulation.read_clients(data)[0]
    # Who is at a node must not follow from data: a client without examples adds zero.
    here = found if clients is None else clients
    return {client: found.get(client, []) for client in here}, unread
  module, _, function = data.partition(':')
  examples: dict[int, bundle_engine.Examples] = dict.fromkeys(_needed(clients), [])
  read = getattr(importlib.import_module(module), function)
  for client in examples:
    try:
      examples[client] = read(config, client)
    except Exception as error:  # It is anybody's, and one client must not keep the others out.
      unread[client] = f'{type(error).__name__}: {error}'
  return examples, unread
