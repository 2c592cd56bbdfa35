"""A run as its server keeps it: in a folder, from which it goes on after a restart.

    state                        state, ledger, and everything that was announced; it holds the key of the noise
    certificate/, summary.json   what comes out, after the last round

The state is written before anything of a round leaves the server; and where clients hold the noise, before a round
is announced, and before its sum may open. So a server that is started again never releases a second sum under the noise
of a first one, never tells clients another history, and counts each sum that may have opened. A state that is in use,
was removed or was put back is refused (`quap_tff.common.durable`).
"""

from __future__ import annotations

from collections.abc import Mapping
import secrets
from typing import Any, NamedTuple, Optional

import numpy as np

from quap_tff.bundle import bundle_engine
from quap_tff.bundle import player
from quap_tff.bundle import simulation
from quap_tff.bundle import structures
from quap_tff.common.numbers import rounding
from quap_tff.flower import messages
from quap_tff.flower import sums
from quap_tff.mechanisms.held import guard
from quap_tff.plans.accounts import run_account

_ID_BYTES = 16
_NOBODY = np.zeros(0, np.int64)
# What a certificate says of cohorts that nobody planned: a bundle states the origin of those that a simulation plays.
_CONNECTED = 'In each round the enrolled clients came whose nodes were connected, and whose budgets paid for it.'


class CostSoFar(NamedTuple):
  """What the rounds so far have cost the client that they cost most.

  Attributes:
    reading: Its ε in nats, rounded up; None if there is no finite one. It guarantees nothing: the guarantee is that of
      the plan.
    left: The least that a client has left of its budget, in ε, rounded down; None if the plan gives no budgets.
  """

  reading: Optional[float] = None
  left: Optional[float] = None

  @property
  def said(self) -> str:
    """A clause for the log; '' if there is no figure."""
    return '' if self.reading is None else f', ε so far at most {self.reading:g} (a reading)'


class ServerRun:
  """A run, at the round after its state.

  Attributes:
    server: State, ledger and average.
    cohorts: int64[M_t], the clients that are planned for each round. Where nobody planned them, their number counts.
    rounds: For each round, int64[M] who was announced, and int64[M'] who came. Where clients hold the noise, a round is
      here as soon as it is announced.
    holds_noise: Whether clients hold the noise.
    needs_everybody: Whether a certificate needs all planned clients to be announced in each round.
    run_id: An identifier that no other run has.
    models: The digest of the message of each round that was announced, see `messages.Heading`.
  """

  def __init__(self, bundle: player.Bundle, folder: str):
    """Starts a run, or goes on from the state in the folder.

    Raises:
      ValueError: If the state is damaged, of another bundle, in use or not the latest one, or was removed.
    """
    self.bundle, self._folder, self.cohorts = bundle, folder, bundle_engine.checked_cohorts(bundle)
    self.rounds: list[tuple[np.ndarray, np.ndarray]] = []
    self._plain = bundle.zero().plain  # That of the sum which was asked for last, if it was not released.
    self.run_id, self.models = secrets.token_hex(_ID_BYTES), list[bytes]()
    plan = bundle.plan
    self.holds_noise = plan is not None and plan.holds_noise
    certified = plan if plan is not None and plan.mechanism.facts.is_certified else None
    self._is_open = certified is not None and certified.cohorts == run_account.AS_THEY_CAME
    self._counts_all = certified is not None and not self.holds_noise and not self._is_open
    # Such a plan's account is for these clients alone.
    self.needs_everybody = plan is not None and plan.holds_noise and plan.attendance is not None
    held = guard.PublicPlan.of(plan) if self.holds_noise else None
    self._threshold, self._most = (held.threshold, held.most_clients) if held is not None else (None, None)
    # The state is locked as long as this process lives.
    self.server = bundle_engine.new_server(bundle_engine.BundleEngine(bundle), folder)
    if self.server.notes:
      self._restore(self.server.notes)
    else:
      self._keep()

  @property
  def round_num(self) -> int:
    """The next round, from 1."""
    return self.server.done + 1

  @property
  def is_over(self) -> bool:
    """True if all planned rounds were played."""
    return self.server.done == len(self.cohorts)

  def allowed(self, enrolled: np.ndarray) -> np.ndarray:
    """int64[M], who may come in the next round by the plan and by the account.

    Args:
      enrolled: int64[N], all clients that are enrolled. Where no cohorts are planned, these may come.
    """
    if self._is_open:
      return self._paid(enrolled)
    return self._paid(np.asarray(self.cohorts[self.server.done], np.int64))

  def _paid(self, clients: np.ndarray) -> np.ndarray:
    return np.array(list(self.server.ask(clients)), np.int64) if len(clients) else clients

  def may_go_on(self, enrolled: np.ndarray) -> bool:
    """False if cohorts are not planned, and the account lets nobody come any more who is enrolled.

    Args:
      enrolled: int64[N], all clients that are enrolled.
    """
    return not self._is_open or not len(enrolled) or len(self._paid(enrolled)) > 0

  def announce(self, present: np.ndarray, least: int, seconds: float) -> Optional[messages.Announced]:
    """The message to the next round's nodes; None if the account lets nobody come.

    Args:
      present: int64[M], ascending: of those who may come, the ones that are there. Where clients hold the noise, the
        plan has a largest cohort: it is drawn from them. Fewer of them have less noise, so the account may let fewer
        come.
      least: With a server that is trusted, the smallest number of clients with which a round counts.
      seconds: How long the server waits.
    """
    if self._most is not None and len(present) > self._most:
      present = np.sort(np.random.default_rng().choice(present, self._most, replace=False))
    cohort = self._paid(present)
    if not len(cohort):
      return None
    if self.holds_noise:
      least = len(cohort) if self._threshold is None else int(np.ceil(self._threshold * len(cohort)))
    message = self.bundle.prepare(self.server.state)
    self.rounds[self.server.done :] = [(cohort, _NOBODY)]
    self.models[self.server.done :] = [messages.message_digest(self.bundle, message)]
    if self.holds_noise:
      self._keep()
    links = self.links() if self.holds_noise else [messages.Link(self.round_num, cohort, _NOBODY)]
    return messages.Announced(self.bundle, self.run_id, tuple(self.models), message, links, least, seconds)

  def spent(self) -> CostSoFar:
    """What the rounds so far have cost, by the account that the run's summary has."""
    if self.bundle.plan is None or self.server.ledger is None:
      return CostSoFar()
    formal = self.server.report(self.bundle.rounds.cohorts).formal
    epsilon = formal.epsilon if formal.reading is None else formal.reading.epsilon
    if epsilon is None or not np.all(np.isfinite(epsilon)):
      return CostSoFar()
    reading = float(rounding.up(float(np.max(epsilon))))
    if not self.bundle.plan.mechanism.facts.is_certified:
      return CostSoFar(reading)
    config = self.bundle.plan.guarantee.config
    budgets = np.asarray(config.own_epsilon or config.epsilon)
    left = max(0.0, float(np.min(budgets - epsilon)))
    return CostSoFar(reading, float(rounding.down(left)))

  def links(self) -> list[messages.Link]:
    """The messages about all rounds to clients that hold noise."""
    links, before = list[messages.Link](), _NOBODY
    for number, (cohort, came) in enumerate(self.rounds, 1):
      if len(cohort):
        links.append(messages.Link(number, cohort, before))
        before = came
    return links

  def open(self, summed: sums.Summed) -> None:
    """Writes down who is in the sum of this round, before nodes are asked to open it.

    From then on it may open for whoever listens, however late the last node answers. So the round has these clients,
    also if this server ends, or never obtains the sum.

    Args:
      summed: Who is in the sum, with zeros for all that is hidden.
    """
    self.rounds[self.server.done :] = [(self.rounds[self.server.done][0], summed.came)]
    self._plain = summed.total.plain
    self._keep()

  def release(self, summed: sums.Summed) -> None:
    """Ends a round with its sum.

    With planned cohorts and a trusted server, everybody who is planned is charged, and those who did not come count as
    clients whose update is zero. So the account is the planned one, whoever is lost. Cohorts as they come are charged.
    Where clients hold the noise, so are all who were announced.
    """
    done, total, cohort = self.server.done, summed.total, summed.came
    announced = self.rounds[done][0] if len(self.rounds) > done else _NOBODY
    # A planned round for which nobody's budget pays is one of its cohort, at weights of 0.
    expected = announced if len(announced) or self._is_open else np.asarray(self.cohorts[done], np.int64)
    if self._counts_all:
      cohort = np.asarray(self.cohorts[done], np.int64)
      message = self.bundle.prepare(self.server.state)
      for client in np.setdiff1d(cohort, summed.came).tolist():
        total = self.bundle.add(total, self.bundle.work(bundle_engine.no_data(self.bundle, client), message))
    state, metrics = self.bundle.update(self.server.state, total)
    # A trusted server's noise does not depend on who was announced.
    announced_to_all = expected if self.holds_noise else None
    computed = self.server.computed(state, metrics, cohort, announced_to_all)
    self.rounds[done:] = [(announced, summed.came)]
    self._plain = self.bundle.zero().plain
    if len(self.models) == done:
      self.models.append(messages.NO_MODEL)
    self.server.release(computed, self._notes)

  def give_up(self) -> None:
    """Ends a round in which nobody came."""
    self.release(sums.Summed(self.bundle.zero(), _NOBODY))

  def check_is_new(self) -> None:
    """Raises `ValueError` if the result is there already."""
    simulation.check_has_no_result(self._folder)

  def write_run(
    self, evaluate: Optional[simulation.Evaluate], signing_key: Optional[str] = None, secure_sum: str = ''
  ) -> Mapping[str, Any]:
    """Writes what comes out of the run, with its certificate. Returns the summary.

    Args:
      evaluate: Tests weights on examples that no client holds, or None.
      signing_key: File with an Ed25519 private key (PEM), or None.
      secure_sum: The protocol that summed what clients sent, see `certificates.About`.
    """
    plan = self.bundle.plan
    cohorts = '' if plan is None or plan.schedule else _CONNECTED
    return simulation.keep(
      self.bundle, self.server, self._folder, evaluate, signing_key, secure_sum=secure_sum, cohorts=cohorts
    )

  def _keep(self) -> None:
    self.server.notes = self._notes()
    self.server.write()

  def _notes(self) -> dict[str, np.ndarray]:
    return {
      'bundle': np.array(self.bundle.digest),
      'run': np.array(self.run_id),
      'models': np.frombuffer(b''.join(self.models), np.uint8),
      **{f'round {t} {k}': ids for t, one in enumerate(self.rounds) for k, ids in enumerate(one)},
      **{f'plain {index}': np.asarray(leaf) for index, leaf in enumerate(self._leaves())},
    }

  def _leaves(self) -> list[Any]:
    return list(structures.flatten(self.bundle.sums_types.plain, self._plain, 'sums'))

  def _restore(self, notes: Mapping[str, np.ndarray]) -> None:
    try:
      if str(notes['bundle']) != self.bundle.digest:
        raise ValueError(f'it is of the bundle with the digest {notes["bundle"]}')
      self.run_id, models = str(notes['run']), notes['models'].tobytes()
      size = len(messages.NO_MODEL)
      self.models = [models[start : start + size] for start in range(0, len(models), size)]
      plain = [notes[f'plain {index}'] for index in range(len(self._leaves()))]
      self._plain = structures.pack(self.bundle.sums_types.plain, iter(plain))
      count = sum(name.startswith('round ') for name in notes) // 2
      self.rounds = [(notes[f'round {t} 0'], notes[f'round {t} 1']) for t in range(count)]
    except (ValueError, KeyError) as error:
      raise ValueError(
        f'The state in {self._folder} does not fit this run: {error}. Give the bundle that it was started with, '
        'or a new output, for which clients pay anew.'
      ) from None
    if len(self.rounds) > self.server.done:
      # It was announced, and its sum is lost: clients may have answered, and will not answer again.
      self.release(sums.Summed(player.Sums(self._plain, self.bundle.zero().secure), self.rounds[self.server.done][1]))
