"""Trains what a bundle holds, with all clients in this process, which knows no TFF."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping
from concurrent import futures
import dataclasses
import datetime
import math
import os
import secrets
import tempfile
from typing import Any, Callable, NamedTuple, Optional
import zipfile

import numpy as np

from quap_tff import accounting
from quap_tff import certificates
from quap_tff.bundle import player
from quap_tff.certificates.folders import about as abouts
from quap_tff.certificates.folders import folder as folders
from quap_tff.common import files
from quap_tff.mechanisms.held import guarded_clients
from quap_tff.mechanisms.parts import postprocessing

SUMMARY = 'summary.json'


class Clients:
  """The clients' examples in a file that `experiments.export --clients` wrote, or one like it.

  Attributes:
    test: x_test and y_test; None if the file has none.
  """

  def __init__(self, path: str):
    """Reads the file: x[n, …], y[n, …], client int[n], the client of each example, and x_test, y_test.

    Raises:
      ValueError: If it cannot be read, or lacks an array.
    """
    try:
      with np.load(path, allow_pickle=False) as kept:
        arrays = dict(kept)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
      raise ValueError(f'{path} must be an .npz file that experiments.export --clients wrote: {error}') from None
    missing = [name for name in ('x', 'y', 'client') if name not in arrays]
    if missing or not len(arrays['x']) == len(arrays['y']) == len(arrays['client']):
      raise ValueError(
        f'{path} must hold x, y and client, of one length, found {", ".join(sorted(arrays)) or "nothing"}. '
        'experiments.export --clients writes such a file.'
      )
    self._path, owners = path, arrays['client']
    order = np.argsort(owners, kind='stable')
    found, begins = np.unique(owners[order], return_index=True)
    self._x, self._y = arrays['x'][order], arrays['y'][order]
    self._rows = {int(i): slice(*ends) for i, *ends in zip(found, begins, [*begins[1:], len(order)])}
    self.test = (arrays['x_test'], arrays['y_test']) if {'x_test', 'y_test'} <= set(arrays) else None

  def __call__(self, client: int) -> dict[str, np.ndarray]:
    """x and y of a client."""
    if client not in self._rows:
      raise ValueError(
        f'{self._path} has no examples of client {client}, who takes part. Export the data of the same run.'
      )
    return {'x': self._x[self._rows[client]], 'y': self._y[self._rows[client]]}


class Outcome(NamedTuple):
  """What came out of a simulation.

  Attributes:
    weights: The published weights: `trainable` and `non_trainable`.
    ledger: The cost of each round; None without a plan.
    rounds: How many rounds were played.
    test: `loss` and `accuracy` of the published weights; None without a test set.
    tests: How often they were tested.
  """

  weights: Any
  ledger: Optional[accounting.RunLedger]
  rounds: int
  test: Optional[Mapping[str, float]]
  tests: int


def simulate(
  bundle: player.Bundle,
  clients: Callable[[int], Mapping[str, Any]],
  test: Optional[tuple[Any, Any]] = None,
  *,
  num_rounds: Optional[int] = None,
  eval_every: Optional[int] = None,
  num_threads: int = 1,
  say: Callable[[str], None] = lambda line: None,
) -> Outcome:
  """Plays the rounds of a bundle. Ctrl-C ends it after the last whole round.

  Args:
    bundle: The run.
    clients: Gives the examples of a client: one element of the sequence in `Bundle.data_type`, by name.
    test: Examples and labels that no client holds.
    num_rounds: How many of the planned rounds; by default all.
    eval_every: Tests after each so many rounds, and at the end; by default only at the end.
    num_threads: How many clients train at the same time.
    say: Is given a line after each round.

  Raises:
    ValueError: If the bundle does not say who takes part, or examples are not of its type.
  """
  rounds, plan = bundle.rounds, bundle.plan
  cohorts = rounds.cohorts[:num_rounds]
  if not cohorts:
    raise ValueError('This bundle does not say who takes part in which round. Export it with rounds.')
  absent = list(rounds.absent) or [np.zeros(0, np.int64)] * len(cohorts)
  guarded = None
  if plan is not None and plan.holds_noise:
    guarded = guarded_clients.GuardedClients(plan, secrets.token_bytes(32))
  state, ledger = bundle.initialize(), plan.new_ledger() if plan is not None else None
  average = rounds.averaging.initial(bundle.weights(state).trainable)
  done, tests, found = 0, 0, None

  def published() -> Any:
    weights = bundle.weights(state)
    trainable = rounds.averaging.value(average, weights.trainable)
    return weights._replace(trainable=postprocessing.shrunk(trainable, rounds.shrinkage))

  with futures.ThreadPoolExecutor(num_threads) as pool:
    try:
      for round_num, cohort in enumerate(cohorts, 1):
        answers = guarded.answers(round_num, cohort) if guarded is not None else None
        data = (client_data(bundle, int(client), clients, absent[round_num - 1], answers) for client in cohort)
        new_state, metrics = play_round(bundle, state, data, pool, 2 * num_threads)
        if ledger is not None:
          ledger.append(bundle.record(new_state, metrics, cohort))
        average = rounds.averaging.update(average, bundle.weights(new_state).trainable)
        state, done, found = new_state, round_num, None
        if test is not None and (round_num == len(cohorts) or (eval_every and round_num % eval_every == 0)):
          found, tests = bundle.evaluate(published(), *test), tests + 1
        figures = f', test accuracy {found["accuracy"]:.4f}' if found is not None else ''
        say(f'round {round_num}/{len(cohorts)}: {len(cohort)} clients{figures}')
    except KeyboardInterrupt:
      say(f'Interrupted: {done} rounds are kept.')
  if test is not None and found is None:
    found, tests = bundle.evaluate(published(), *test), tests + 1
  return Outcome(published(), ledger, done, found, tests)


def play_round(
  bundle: player.Bundle, state: Any, data: Iterator[Any], pool: futures.Executor, most_waiting: int
) -> tuple[Any, Any]:
  """The state after a round and its metrics.

  Args:
    bundle: The run.
    state: The state before the round.
    data: The data of each client of the round, in the order in which they are summed.
    pool: Runs the clients' work.
    most_waiting: How many updates may wait to be summed.
  """
  message, total = bundle.prepare(state), bundle.zero()
  for update in _in_turn(pool, lambda one: bundle.work(one, message), data, most_waiting):
    total = bundle.add(total, update)
  return bundle.update(state, total)


def _in_turn(pool: futures.Executor, function: Any, arguments: Iterator[Any], most: int) -> Iterator[Any]:
  """The results in order, of which at most so many are waiting."""
  waiting: collections.deque[futures.Future[Any]] = collections.deque()
  for argument in arguments:
    waiting.append(pool.submit(function, argument))
    if len(waiting) >= most:
      yield waiting.popleft().result()
  while waiting:
    yield waiting.popleft().result()


def client_data(bundle: player.Bundle, client: int, clients: Any, absent: Any, answers: Any) -> Any:
  """A client's data for a round; one of the `absent` has no examples. `answers` are those of guards, by client."""
  examples = dict(clients(client))
  if client in absent:
    examples = {name: values[:0] for name, values in examples.items()}
  if 'sequence' in bundle.data_type:
    return examples
  own: dict[str, Any] = {'client_id': np.int64(client), 'examples': examples}
  if answers is not None:
    own['answer'] = answers[client]
  if 'absent' in [name for name, _ in bundle.data_type['fields']]:
    own['absent'] = [np.int64(other) for other in absent]
  return own


def no_certificate(bundle: player.Bundle) -> str:
  """Why a run of a certified plan could get no certificate, in sentences; '' if it could, or is not certified."""
  plan = bundle.plan
  if plan is None or not plan.mechanism.facts.is_certified:
    return ''
  try:
    with tempfile.TemporaryDirectory() as folder:
      folders.write_files(folder, plan, plan.planned_ledger(plan.expected), bundle.about)
  except ValueError as error:
    return str(error)
  return ''


def keep(
  bundle: player.Bundle, outcome: Outcome, folder: str, signing_key: Optional[str] = None
) -> tuple[dict[str, Any], str]:
  """Writes a new folder with what came out: with its certificate if the run gets one.

  Without a certificate, these are final_model.npz, the trained tensors arr_0, arr_1, …; ledger.npz; and summary.json.

  Returns:
    The summary, and why a certified run got no certificate; '' if it got one, or is not certified.

  Raises:
    ValueError: If the folder exists.
  """
  if os.path.lexists(folder):
    raise ValueError(f'{folder} already exists: give a new folder.')
  plan, ledger, planned = bundle.plan, outcome.ledger, bundle.rounds.cohorts
  summary: dict[str, Any] = {'rounds': outcome.rounds, 'planned_rounds': len(planned)}
  if outcome.test is not None:
    figures = {name: float(outcome.test[name]) for name in ('accuracy', 'loss')}
    summary.update({f'test_{name}': value if math.isfinite(value) else None for name, value in figures.items()})
  if plan is not None and ledger is not None:
    summary.update(plan.report(ledger, planned if outcome.rounds < len(planned) else None).as_dict())
  reason = ''
  if plan is not None and plan.mechanism.facts.is_certified:
    try:
      certificates.write(folder, plan, ledger, outcome.weights.trainable, _about(bundle, outcome), signing_key)
      return summary, ''
    except ValueError as error:
      reason = str(error)
  arrays = {f'arr_{index}': np.asarray(tensor) for index, tensor in enumerate(outcome.weights.trainable)}
  with files.new_folder(folder) as unfinished:
    files.write(os.path.join(unfinished, folders.ARRAYS_MODEL), files.npz(arrays))
    if ledger is not None:
      files.write(os.path.join(unfinished, folders.LEDGER), files.npz(ledger.state_dict()))
    files.write_json(os.path.join(unfinished, SUMMARY), summary)
  return summary, reason


def _about(bundle: player.Bundle, outcome: Outcome) -> abouts.About:
  """What the certificate states: what was stated at the export, and what is known since."""
  return dataclasses.replace(
    bundle.about,
    tests=outcome.tests,
    test_accuracy=None if outcome.test is None else float(outcome.test['accuracy']),
    date=datetime.date.today().isoformat(),
  )
