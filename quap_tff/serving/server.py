"""A run: its state, its ledger, its average, and the order that makes its guarantee true.

    with quap_tff.Server(plan, model_fn, 'runs/mine') as run:    # goes on where it stopped
      while not run.is_over:
        run.play({client: datasets[client] for client in run.ask()})   # on disk before it returns
      run.certify(dataset='mine', cohorts='By a public seed.', tuning='None.')

A guarantee is about one sequence of releases. Each begins from the state that the one before left, is written down
before anybody sees it, and draws noise that was never drawn. A `Server` keeps this order for every engine. The file
`state` in its folder has everything that the next round needs. It holds the key of the noise, so only its owner can
read it. A state that is in use, was removed or was put back is refused (`quap_tff.common.durable`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import os
import secrets
from typing import NamedTuple, Optional, Protocol, Union

import numpy as np

from quap_tff import accounting
from quap_tff import certificates
from quap_tff.certificates.folders import folder as folders
from quap_tff.common import array_types
from quap_tff.common import checks
from quap_tff.common import interrupts
from quap_tff.common.numbers import secret_coins
from quap_tff.mechanisms.held import guarded_clients
from quap_tff.mechanisms.parts import postprocessing
from quap_tff.plans.accounts import report as reports
from quap_tff.plans.accounts import run_account
from quap_tff.serving import engine as engines
from quap_tff.serving import packing
from quap_tff.serving import store as stores

STATE = 'state'
# Makes the model, in a type of the engine's.
ModelFn = Callable[[], object]
# Arrays by name, which a program keeps with each state.
Notes = Mapping[str, np.ndarray]

_LEAF = 'state'
_LEDGER, _AVERAGE, _NOTES = 'ledger/', 'average/', 'notes/'
_CLIENT_SECRET = 'client_secret'
_SECRET_BYTES = 32


class BuildsEngine(Protocol):
  """A `quap_tff.Plan`."""

  def build_process(self, model_fn: ModelFn, **training: object) -> engines.Engine:
    """The engine of a run."""


class ComputedRound(NamedTuple):
  """A round that was computed. It is not released, and changes nothing yet.

  Attributes:
    round_num: t, from 1.
    cohort: int64[M], the clients that the account charges.
    state: The state after it.
    metrics: Its metrics.
    record: Its cost; None without a plan.
    average: The average of the iterates with it.
  """

  round_num: int
  cohort: np.ndarray
  state: array_types.Structure
  metrics: array_types.Structure
  record: Optional[accounting.RoundRecord]
  average: postprocessing.State


class Server:
  """The server's side of a run.

  Without a folder nothing is written. Then the order is the caller's to keep: nothing of a round may be shown to
  anybody before the caller has written down that it was played.

  Attributes:
    engine: Computes the rounds.
    plan: The engine's plan, which keeps the account; None for a bundle without one.
    ledger: The cost of each round; None without a plan.
    state: The state after the last round. It holds the key of the noise: keep it as secret as clients' data.
    done: How many rounds were played, those of earlier processes included.
    notes: What a program keeps with the state: that of the state which was read, before anything is written.
  """

  def __init__(
    self,
    plan: BuildsEngine,
    model_fn: ModelFn,
    folder: Union[str, os.PathLike, None] = None,
    *,
    checkpoint_every: int = 1,
    **training: object,
  ):
    """Begins a run, or goes on with the one in the folder.

    Args:
      plan: A `quap_tff.Plan`.
      model_fn: Makes the model, as for `quap_tff.Plan.build_process`.
      folder: The folder of the run; None keeps it in memory alone.
      checkpoint_every: How many rounds may be lost in a crash. They are played again then, and must have the same
        clients and data. Certified runs lose none: each round is on disk before it is released.
      **training: The optimizers and the client work, as for `quap_tff.Plan.build_process`.

    Raises:
      ValueError: If the folder has the state of another run, or one that is in use, was removed or was put back.
      OSError: If it cannot be read or written.
    """
    engine = plan.build_process(model_fn, **training)
    self._start(engine, folder, checkpoint_every=checkpoint_every)

  @classmethod
  def of(
    cls,
    engine: engines.Engine,
    folder: Union[str, os.PathLike, None] = None,
    *,
    shrinkage: float = 1.0,
    checkpoint_every: int = 1,
    client_secret: Optional[bytes] = None,
    store: Optional[stores.Store] = None,
  ) -> Server:
    """The server of a run whose rounds an engine computes. Arguments and errors are those of `Server`.

    Args:
      engine: What `Plan.build_process` gives, or a bundle's.
      folder: The folder of the run.
      shrinkage: Factor in (0, 1] on the weights that are published.
      checkpoint_every: How many rounds may be lost in a crash.
      client_secret: In a simulation of clients that hold noise, 32 bytes from which their keys follow. None draws them.
      store: Where the state is kept, in place of a file in the folder.
    """
    server = cls.__new__(cls)
    server._start(engine, folder, shrinkage, checkpoint_every, client_secret, store)
    return server

  def _start(
    self,
    engine: engines.Engine,
    folder: Union[str, os.PathLike, None],
    shrinkage: float = 1.0,
    checkpoint_every: int = 1,
    client_secret: Optional[bytes] = None,
    store: Optional[stores.Store] = None,
  ) -> None:
    plan = engine.plan
    self.plan, self.engine, self._shrinkage = plan, engine, shrinkage
    self._averaging = plan.averaging if plan is not None else postprocessing.LastIterate()
    facts = plan.mechanism.facts if plan is not None else None
    self._saves_first = facts is not None and facts.is_saved_before_release
    self._draws_key = facts is not None and facts.noise_seed is None
    checks.integer('checkpoint_every', checkpoint_every, at_least=1)
    self._checkpoint_every = 1 if self._saves_first else checkpoint_every
    self.state, self.done, self.notes = engine.initialize(), 0, dict[str, np.ndarray]()
    self.ledger = plan.new_ledger() if plan is not None else None
    self._average = self._averaging.initial(engine.weights(self.state).trainable)
    self._client_secret = client_secret
    # A copy of this run's state never draws these coins: the key is new in each process, and is not kept.
    self._coin_key = secrets.randbits(secret_coins.KEY_BITS)
    self._guarded: Optional[guarded_clients.GuardedClients] = None
    self.folder = os.fspath(folder) if folder is not None else None
    self._store = store
    self._saved: Optional[int] = None
    if store is None and self.folder is not None:
      os.makedirs(self.folder, mode=0o700, exist_ok=True)
      self._store = stores.Store(os.path.join(self.folder, STATE))
    try:
      self._begin()
    except BaseException:
      self.close()
      raise

  def _begin(self) -> None:
    if self._store is None:
      return
    kept = self._store.read()
    if kept is None:
      # Before the key of the noise is used: a run that is cut off draws the same noise again.
      self.save()
    else:
      self._restore(kept)
      self._saved = self.done

  def __enter__(self) -> Server:
    return self

  def __exit__(self, *_: object) -> None:
    # Rounds since the last checkpoint. After a write that failed, nothing more is written.
    if self._store is not None and self._store.is_open:
      self.save()
    self.close()

  def close(self) -> None:
    """Lets another process go on with the run."""
    if self._store is not None:
      self._store.close()

  @property
  def is_over(self) -> bool:
    """Whether all planned rounds were played. A plan that does not say how many there are is never over."""
    if self.plan is None or not self.plan.mechanism.facts.is_certified:
      return False
    rounds = self.plan.guarantee.config.num_rounds
    return rounds is not None and self.done >= rounds

  @property
  def weights(self) -> array_types.Structure:
    """The weights that are published if the run ends here: `trainable` and `non_trainable`."""
    return self.weights_after(self.state, self._average)

  def weights_after(self, state: array_types.Structure, average: postprocessing.State) -> array_types.Structure:
    """The weights that are published after a round that was computed."""
    weights = self.engine.weights(state)
    trainable = self._averaging.value(average, weights.trainable)
    if self._shrinkage != 1:
      trainable = postprocessing.shrunk(trainable, self._shrinkage)
    return self.engine.with_trainable(weights, trainable)

  def ask(self, cohort: Optional[array_types.Ids] = None) -> dict[int, float]:
    """The clients that may come in the next round, with the weight that the account lets each have. It charges nobody.

    A plan with secret cohorts draws them here, by its coins. Tell nobody but the drawn clients, and let nothing but
    their updates follow from who was drawn: no message to others, no second try, no end of the run.

    Args:
      cohort: int[M], distinct ids of those who could come. None: those whom the plan has for the round.

    Raises:
      ValueError: If the plan has other clients for this round, or draws them itself, or has none and no cohort is
        given.
    """
    if cohort is not None and self._coins is not None:
      raise ValueError(
        'This plan draws its cohorts by secret coins, and its account is of their rates. Call ask() without a cohort.'
      )
    asked = self._planned_cohort() if cohort is None else cohort
    ids = np.asarray(asked, np.int64)
    weights = np.ones(len(ids), np.float32)
    if self.plan is not None and self.ledger is not None and self.plan.mechanism.facts.is_certified:
      weights = self.plan.ask(self.ledger, ids)
    return {client: float(weight) for client, weight in zip(ids.tolist(), weights) if weight > 0}

  def play(self, examples: Mapping[int, array_types.Structure], absent: array_types.Ids = ()) -> Mapping[str, float]:
    """Plays the next round. It is on disk when this returns.

    Args:
      examples: The examples of each client that comes: a `tf.data.Dataset`, or whatever the engine takes. With planned
        cohorts and a trusted server, planned clients that are missing count as clients without examples, and so do
        drawn clients with secret cohorts.
      absent: Clients that were drawn and drop out.

    Returns:
      The round's metrics by name, without exact functions of clients' data where the plan withholds these.

    Raises:
      ValueError: If the account has no such round. Nothing was released then.
    """
    computed = self.compute(examples, absent)
    self.release(computed)
    return self._metrics(computed)

  def compute(self, examples: Mapping[int, array_types.Structure], absent: array_types.Ids = ()) -> ComputedRound:
    """Computes the next round, and changes nothing. Whatever it gives must stay here until `release`."""
    if self._store is not None:
      self._store.check_open()
    if self.plan is not None:
      self.plan.check_round(self.done + 1)
    counted = self._counted()
    if self._coins is not None and len(strangers := np.setdiff1d(list(examples), counted)):
      raise ValueError(
        f'Client {int(strangers[0])} was not drawn for round {self.done + 1}. Play with those whom ask() gives. One of '
        'them that does not come may be left out.'
      )
    missing = np.setdiff1d(counted, list(examples)).tolist()
    # All planned clients are charged, also those that are lost: the account is the one that was planned.
    present = examples if not missing else {**examples, **dict.fromkeys(missing, [])}
    cohort = np.array(list(present), np.int64)
    try:
      attendance = engines.Attendance(present, absent, self._answers(cohort))
      state, metrics = self.engine.play(self.state, attendance)
      return self.computed(state, metrics, cohort)
    except BaseException:
      self._guarded = None  # The guards have answered for a round that was not played. They begin from the ledger.
      raise

  def computed(
    self,
    state: array_types.Structure,
    metrics: array_types.Structure,
    cohort: np.ndarray,
    announced: Optional[np.ndarray] = None,
  ) -> ComputedRound:
    """A round that was computed elsewhere, from `state`.

    Args:
      state: The state after it.
      metrics: Its metrics.
      cohort: int64[M], who is in its sum.
      announced: int64[M'], where clients hold the noise: for whom the sum could have opened. Default: who is in it.
    """
    record = None
    if self.plan is not None:
      record = self.plan.recorded(state.aggregator, metrics['aggregator'], cohort)
      if announced is not None and self.plan.held is not None:
        record = self.plan.held.cost_of_announced(announced, len(cohort) > 0, self.done + 1)
    average = self._averaging.update(self._average, self.engine.weights(state).trainable)
    return ComputedRound(self.done + 1, cohort, state, metrics, record, average)

  def release(self, computed: ComputedRound, notes: Callable[[], Notes] = dict) -> None:
    """Takes a round as played, and writes it down. Only when this returns may anybody see anything of it.

    Args:
      computed: From `compute`.
      notes: Is asked for the notes that are kept with the new state, when everything else of it is in place.

    Raises:
      ValueError: If it was not computed from the latest state.
      OSError: If it cannot be written. Then this object is closed: open the run again.
    """
    if computed.round_num != self.done + 1:
      raise ValueError(
        f'Round {computed.round_num} cannot be released after round {self.done}: it was computed from an older state, '
        'and two releases from one state would be charged once. Compute the next round from here.'
      )
    with interrupts.held_back():
      try:
        if self.ledger is not None and computed.record is not None:
          self.ledger.append(computed.record)
        self.state, self._average, self.done = computed.state, computed.average, self.done + 1
        self.notes = dict(notes())
        if self.done % self._checkpoint_every == 0:
          self.save()
      except BaseException:
        # What is in memory may be ahead of the disk, so nothing may begin from it.
        self.close()
        raise

  def save(self) -> None:
    """Writes the state, if anything is kept."""
    if self._store is not None and self._saved != self.done:
      self.write()

  def write(self) -> None:
    """Writes the state with the notes, also if no round was played since the last time."""
    if self._store is not None:
      self._store.write(self.state_dict())
      self._saved = self.done

  def report(self, planned: Optional[Sequence[np.ndarray]] = None) -> reports.Report:
    """The statements about the run so far. Of a run that has not come to its end, it is the bound of its plan.

    Args:
      planned: int[M_t] for each planned round, where the plan itself has no schedule and they are public.

    Raises:
      ValueError: If there is no plan.
    """
    plan, ledger = self._accounted()
    cohorts = plan.schedule if planned is None else planned
    is_stopped = self.done < len(cohorts)
    bound_of = cohorts if is_stopped else None
    return plan.report(ledger, bound_of)

  def certify(
    self,
    *,
    dataset: str,
    cohorts: str,
    tuning: str,
    test_set: str = 'There is none.',
    signing_key: Optional[str] = None,
    **stated: checks.Unchecked,
  ) -> str:
    """Writes the certificate of the run so far into the folder `certificate`, in place of an older one.

    Args:
      dataset: See `quap_tff.certificates.About`.
      cohorts: See there: where the cohorts come from.
      tuning: See there: how the constants were chosen.
      test_set: See there.
      signing_key: File with an Ed25519 private key (PEM) to sign the certificate with.
      **stated: Other statements of `About`.

    Returns:
      The folder of the certificate. `python -m quap_tff.verify` takes it, or the run's folder.

    Raises:
      ValueError: If the run has no folder, or gets no certificate. The message gives every reason.
    """
    plan, ledger = self._accounted()
    if self.folder is None:
      raise ValueError('A certificate lies in the folder of its run, and this run has none: give `Server` a folder.')
    about = certificates.About(dataset, cohorts, tuning, test_set, **stated)
    certificates.remove(self.folder)
    path = os.path.join(self.folder, folders.SUBFOLDER)
    trainable = [np.asarray(tensor) for tensor in self.weights.trainable]
    certificates.write_run(path, plan, self.engine.leaving, ledger, trainable, about, signing_key)
    return path

  @property
  def spent_max(self) -> Optional[float]:
    """Where clients of this process hold noise: the largest share of its limit that any of them has spent."""
    return self._guarded.spent_max if self._guarded is not None else None

  def state_dict(self) -> dict[str, np.ndarray]:
    """Arrays that a state is kept as. They hold the key of the noise: keep them as secret as clients' data."""
    arrays = {stores.DONE: np.array(self.done, np.int64)}
    arrays.update(packing.packed(self._named_leaves(self.state), self._num_clients))
    if self._client_secret is not None:
      arrays[_CLIENT_SECRET] = np.frombuffer(self._client_secret, np.uint8)
    ledger = self.ledger.state_dict() if self.ledger is not None else {}
    for prefix, part in ((_LEDGER, ledger), (_AVERAGE, self._average), (_NOTES, self.notes)):
      arrays.update({prefix + name: np.asarray(array) for name, array in part.items()})
    return arrays

  def _restore(self, kept: Mapping[str, np.ndarray]) -> None:
    parts = {prefix: _part(kept, prefix) for prefix in (_LEDGER, _AVERAGE, _NOTES)}
    own = {name: array for name, array in kept.items() if name.startswith(f'{_LEAF}/')}
    try:
      leaves = packing.unpacked(own, self._named_leaves(self.state), self._num_clients)
      average = postprocessing.restored(self._average, parts[_AVERAGE])
      if self.ledger is not None:
        self.ledger.load_state_dict(parts[_LEDGER])
      done = int(kept[stores.DONE])
    except (ValueError, KeyError) as error:
      raise ValueError(
        f'{self._where} is of another run: {error}. Give the plan, the model and the code that it was begun with, or '
        'another folder to begin a new run, for which clients pay anew.'
      ) from error
    fresh, state = self.state, self.engine.state_of(self.state, list(leaves.values()))
    if self._saves_first and self._draws_key:
      # A copy of this state that is somewhere else, or was put back, never draws the noise that comes from now on.
      state = engines.with_key_of(self.engine, state, fresh)
    self.state, self._average, self.done, self.notes = state, average, done, parts[_NOTES]
    if _CLIENT_SECRET in kept:
      self._client_secret = kept[_CLIENT_SECRET].tobytes()

  @property
  def _where(self) -> str:
    return self._store.path if self._store is not None else 'The state'

  @property
  def _num_clients(self) -> int:
    return self.plan.num_clients if self.plan is not None else 0

  def _named_leaves(self, state: array_types.Structure) -> dict[str, np.ndarray]:
    return {f'{_LEAF}/{index}': np.asarray(leaf) for index, leaf in enumerate(self.engine.leaves(state))}

  @property
  def _coins(self) -> Optional[np.ndarray]:
    """float64[N], the rates of the coins by which this run draws its cohorts; None if they are not secret."""
    secret = self.plan.secret if self.plan is not None else None
    return secret.rates if secret is not None else None

  def _drawn(self, rates: np.ndarray) -> np.ndarray:
    """int64[M], the clients that are drawn for the next round; the same whenever it is asked for."""
    return secret_coins.heads(self._coin_key, self.done + 1, rates)

  def _planned_cohort(self) -> np.ndarray:
    if self._coins is not None:
      return self._drawn(self._coins)
    schedule = self.plan.schedule if self.plan is not None else ()
    if self.done < len(schedule):
      return schedule[self.done]
    raise ValueError(
      f'The plan does not say who comes in round {self.done + 1}: give `ask` the clients that could come. A certified '
      'plan with a schedule knows them.'
    )

  def _counted(self) -> np.ndarray:
    """int64[M], the clients that count for the next round whether they come or not."""
    plan = self.plan
    if self._coins is not None:
      return self._drawn(self._coins)
    if plan is None or not plan.mechanism.facts.is_certified or plan.holds_noise or self.done >= len(plan.schedule):
      return np.zeros(0, np.int64)
    return np.asarray(plan.schedule[self.done], np.int64)

  def _answers(self, cohort: np.ndarray) -> Optional[Mapping[int, array_types.Structure]]:
    if self.plan is None or self.ledger is None or not self.plan.holds_noise:
      return None
    if self._client_secret is None:
      self._client_secret = secrets.token_bytes(_SECRET_BYTES)
    if self._guarded is None:
      self._guarded = guarded_clients.GuardedClients(self.plan, self._client_secret)
      self._guarded.resume(self.ledger)
    return self._guarded.answers(self.done + 1, cohort)

  def _metrics(self, computed: ComputedRound) -> dict[str, float]:
    plan = self.plan
    if plan is None:
      return {}
    measured = plan.mechanism.measured(computed.metrics['aggregator'], plan.model)
    shown = (
      measured if plan.client_metrics else {name: measured[name] for name in measured if name in plan.public_metrics}
    )
    return {name: np.asarray(value).item() for name, value in shown.items()}

  def _accounted(self) -> tuple[run_account.RunAccount, accounting.RunLedger]:
    if self.plan is None or self.ledger is None:
      raise ValueError('This run has no plan, so nothing is known of what it spent. Give its plan to `Server`.')
    return self.plan, self.ledger


def _part(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
  return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
