"""A node: the data of its clients, their guards, and what it answers in a round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import functools
import importlib
import os
from typing import Any

from flwr.app import RecordDict
import numpy as np

from quap_tff.bundle import player
from quap_tff.bundle import simulation
from quap_tff.flower import enrolment
from quap_tff.flower import messages
from quap_tff.mechanisms.held import guard


class Node:
  """The clients of one machine.

  Attributes:
    bundle: The run.
    examples: The examples of each client.
    folder: The node's folder; '' if it has none.
    enrolment: The folder with the cards of all nodes; '' if it has none.
    holds_noise: Whether its clients hold the noise.
  """

  def __init__(
    self, bundle: player.Bundle, examples: Mapping[int, simulation.Examples], folder: str = '', enrolled: str = ''
  ):
    """Reads the keys.

    Args:
      bundle: The run.
      examples: The examples of each client, by name.
      folder: The node's folder, with the secret of its clients, for a run in which clients hold the noise.
      enrolled: The folder with the cards of all nodes, for such a run.

    Raises:
      ValueError: If clients hold the noise, and there is no secret, or nothing is known of the other nodes.
    """
    self.bundle, self.examples, self.folder, self.enrolment = bundle, examples, folder, enrolled
    self.holds_noise = bundle.plan is not None and bundle.plan.holds_noise
    self._secret = enrolment.secret_of(folder) if self.holds_noise else None
    if self.holds_noise:
      if not enrolled:
        raise ValueError(
          'Clients hold the noise of this run, and sum it up with the other nodes, whose keys this one must know. Name '
          "the folder with the enrolment.json of every node in the node's configuration: enrolment=…."
        )
      enrolment.Enrolled(enrolled)

  @classmethod
  def of(cls, config: Mapping[str, Any]) -> Node:
    """The node of a configuration (`flower-supernode --node-config`).

    Args:
      config: `bundle`, a folder. `data`, an .npz file as `experiments.export --clients` writes it, or
        `module:function`, a function from this configuration to the examples of each client. `clients`, such as 0-24,
        those of them who are at this node (default: all). `folder`, from `python -m quap_tff.flower enrol`.
        `enrolment`, the folder with the cards of all nodes. The last two are for a run in which clients hold the noise.

    Raises:
      ValueError: If something is missing or wrong; the message says what to do.
    """
    for name in ('bundle', 'data'):
      if name not in config:
        raise ValueError(f'The node has no {name}. Start it with --node-config \'{name}="…"\'.')
    bundle, data = player.Bundle(str(config['bundle'])), str(config['data'])
    if data.endswith('.npz'):
      examples = simulation.read_clients(data)[0]
    else:
      module, _, function = data.partition(':')
      examples = getattr(importlib.import_module(module), function)(config)
    if 'clients' in config:
      clients = enrolment.clients_of(str(config['clients']))
      examples = {client: one for client, one in examples.items() if client in clients}
    return cls(bundle, examples, str(config.get('folder', '')), str(config.get('enrolment', '')))

  def answer(self, content: RecordDict) -> messages.Answer:
    """The answer of this node's clients in a round that a server announces.

    Raises:
      RefusedRoundError: If a guard refuses, or the server plays another bundle or has other versions.
      ValueError: If the data are not those that the bundle takes. The message may tell of the data.
    """
    message, history = messages.read_round(content, self.bundle)
    clients = np.intersect1d(history[-1].cohort, list(self.examples)).tolist()
    answers = self._guarded(history, clients) if self.holds_noise else None
    total = self.bundle.zero()
    for client in clients:
      data = simulation.client_data(self.bundle, client, self.examples[client], answers=answers)
      total = self.bundle.add(total, self.bundle.work(data, message))
    return messages.Answer(history[-1].round_num, total, np.array(clients, np.int64))

  def _guarded(self, history: Sequence[messages.Link], clients: list[int]) -> dict[int, Any]:
    """The answers of the clients' guards. They write down what was announced before they answer."""
    plan = guard.PublicPlan.of(self.bundle.plan)
    try:
      chain = functools.reduce(lambda before, link: before.then(*link), history, guard.Chain(plan))
      path = functools.partial(os.path.join, self.folder)
      assert self._secret is not None  # Where clients hold the noise, there is one.
      guards = [guard.ClientGuard(plan, one, self._secret, path(f'guard_{one}')) for one in clients]
      return {one.client_id: one.answer_at(chain) for one in guards}
    except ValueError as error:  # These follow from what was announced alone.
      raise messages.RefusedRoundError(str(error)) from None
