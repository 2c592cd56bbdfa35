"""Trains what a bundle holds, with all clients in this process, which knows no TFF."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping, Sequence
from concurrent import futures
import dataclasses
import datetime
import math
import os
import secrets
from typing import Any, Callable, NamedTuple, Optional, Union
import warnings
import zipfile

import numpy as np

from quap_tff import accounting
from quap_tff import certificates
from quap_tff.bundle import player
from quap_tff.bundle import server as servers
from quap_tff.bundle import structures
from quap_tff.certificates.folders import folder as folders
from quap_tff.common import files
from quap_tff.mechanisms.held import guarded_clients

SUMMARY = 'summary.json'

# Examples by name, as `Bundle.data_type` has them; [] for none.
Examples = Union[Mapping[str, Any], Sequence[Any]]


def read_clients(path: str) -> tuple[dict[int, Examples], Optional[tuple[Any, Any]]]:
  """Each client's examples, and x_test and y_test if there are any, from a file of `experiments.export --clients`.

  Args:
    path: An .npz file of x[n, …], y[n, …], client int[n], the client of each example, and x_test, y_test.

  Raises:
    ValueError: If it cannot be read, or an array is missing.
  """
  try:
    with np.load(path, allow_pickle=False) as kept:
      arrays = dict(kept)
    order = np.argsort(arrays['client'], kind='stable')
    clients, begins = np.unique(arrays['client'][order], return_index=True)
    rows = np.split(order, begins[1:])
    examples: dict[int, Examples] = {}
    for client, own in zip(clients.tolist(), rows):
      examples[client] = {name: arrays[name][own] for name in 'xy'}
  except (OSError, ValueError, LookupError, zipfile.BadZipFile) as error:
    raise ValueError(
      f'{path} must be an .npz file with x, y and client, of one length ({error}). experiments.export --clients writes '
      'such a file.'
    ) from None
  return examples, (arrays['x_test'], arrays['y_test']) if {'x_test', 'y_test'} <= set(arrays) else None


class SimulationOutcome(NamedTuple):
  """The outcome of a simulation.

  Attributes:
    weights: The published weights: `trainable` and `non_trainable`.
    ledger: The cost of each round; None without a plan.
    rounds: How many rounds were played.
    test: `loss` and `accuracy` of the published weights; None without a test set.
  """

  weights: Any
  ledger: Optional[accounting.RunLedger]
  rounds: int
  test: Optional[Mapping[str, float]]


def simulate(
  bundle: player.Bundle,
  clients: Mapping[int, Examples],
  test: Optional[tuple[Any, Any]] = None,
  *,
  num_rounds: Optional[int] = None,
  num_threads: int = 1,
  say: Callable[[str], None] = lambda line: None,
) -> SimulationOutcome:
  """Plays the rounds of a bundle. Ctrl-C ends it after the last whole round.

  A client whose data cannot be used adds zero, and a warning says so.

  Args:
    bundle: The run.
    clients: The examples of each client.
    test: Examples and labels that no client holds.
    num_rounds: How many of the planned rounds; by default all.
    num_threads: How many clients train at the same time.
    say: Is given a line after each round.

  Raises:
    ValueError: If the bundle does not say who takes part, or a client who takes part is not there.
  """
  rounds, plan = bundle.rounds, bundle.plan
  cohorts = servers.checked_cohorts(bundle, num_rounds)
  strangers = np.setdiff1d(np.concatenate(cohorts), list(clients))
  if len(strangers):
    raise ValueError(f'There are no examples of client {strangers[0]}, who takes part. Give those of the same run.')
  absent = list(rounds.absent) or [np.zeros(0, np.int64)] * len(cohorts)
  is_held = plan is not None and plan.holds_noise
  guarded = guarded_clients.GuardedClients(plan, secrets.token_bytes(32)) if is_held else None
  server, unusable = servers.Server(bundle), dict[int, str]()
  with futures.ThreadPoolExecutor(num_threads) as pool:
    try:
      for round_num, (cohort, away) in enumerate(zip(cohorts, absent), 1):
        answers = guarded.answers(round_num, cohort) if guarded is not None else None
        message, total = bundle.prepare(server.state), bundle.zero()
        work = lambda data, message=message: bundle.attempt(data, message)
        data = (client_data(bundle, client, clients[client], away, answers) for client in cohort.tolist())
        for client, one in zip(cohort.tolist(), _in_turn(pool, work, data, 2 * num_threads)):
          total = bundle.add(total, one.sums)
          if one.problem and client not in unusable:
            unusable[client] = one.problem
            say(f'client {client} adds zero: {one.problem}')
        server.release(total, cohort)
        say(f'round {round_num} of {len(cohorts)}: {len(cohort)} clients')
    except KeyboardInterrupt:
      say(f'Interrupted: {server.done} rounds are kept.')
  if unusable:
    first, others = min(unusable), len(unusable) - 1
    said = f'The data of client {first} cannot be used, and it added zero: {unusable[first]}'
    warnings.warn(f'{said} So did {others} others.' if others else said, stacklevel=2)
  return outcome(server, test)


def outcome(server: servers.Server, test: Optional[tuple[Any, Any]] = None) -> SimulationOutcome:
  """The outcome of a run that ends here."""
  weights = server.published()
  tested = server.bundle.evaluate(weights, *test) if test is not None else None
  return SimulationOutcome(weights, server.ledger, server.done, tested)


def _in_turn(pool: futures.Executor, function: Any, arguments: Iterator[Any], most: int) -> Iterator[Any]:
  """The results in order, of which at most this many are waiting."""
  waiting: collections.deque[futures.Future[Any]] = collections.deque()
  for argument in arguments:
    waiting.append(pool.submit(function, argument))
    if len(waiting) >= most:
      yield waiting.popleft().result()
  while waiting:
    yield waiting.popleft().result()


def check_types(bundle: player.Bundle, clients: Mapping[int, Examples]) -> None:
  """Raises `ValueError` if the examples of a file have other types than the bundle takes; all clients' are the same."""
  for examples in list(clients.values())[:1]:
    kind = bundle.data_type
    if 'sequence' not in kind:
      kind = dict(kind['fields'])['examples']
    structures.flatten(kind, examples, 'examples')


def client_data(bundle: player.Bundle, client: int, examples: Examples, absent: Any = (), answers: Any = None) -> Any:
  """A client's data for a round; one of the `absent` has no examples. `answers` are those of guards, by client."""
  if client in absent:
    examples = []
  if 'sequence' in bundle.data_type:  # TFF's own processes do not ask who a client is.
    return examples
  known = {'client_id': np.int64(client), 'examples': examples, 'absent': [np.int64(other) for other in absent]}
  if answers is not None:
    known['answer'] = answers[client]
  return {name: known[name] for name, _ in bundle.data_type['fields']}


def no_data(bundle: player.Bundle, client: int) -> Any:
  """The data of a client that takes part and has none."""
  return client_data(bundle, client, [])


def keep(
  bundle: player.Bundle,
  simulated: SimulationOutcome,
  folder: str,
  signing_key: Optional[str] = None,
  *,
  secure_sum: str = '',
  cohorts: str = '',
) -> dict[str, Any]:
  """Writes a new folder with what came out: with its certificate if the run gets one.

  The tests, accuracy and date that it states are of this run, and so is the protocol of the secure sum. `cohorts` says
  where the cohorts came from, if not as the bundle states.

  Without one, these are final_model.npz, the trained tensors arr_0, arr_1, …; ledger.npz; and summary.json.

  Returns:
    The summary. Its `no_certificate` says why a certified run has none.

  Raises:
    ValueError: If the folder exists.
  """
  if os.path.lexists(folder):
    raise ValueError(f'{folder} already exists: give a new folder.')
  plan, ledger, planned, test = bundle.plan, simulated.ledger, bundle.rounds.cohorts, simulated.test
  trainable = [np.asarray(tensor) for tensor in simulated.weights.trainable]
  summary: dict[str, Any] = {'rounds': simulated.rounds, 'planned_rounds': len(planned)}
  if test is not None:
    summary.update({f'test_{name}': test[name] if math.isfinite(test[name]) else None for name in ('accuracy', 'loss')})
  if plan is not None and ledger is not None:
    summary.update(plan.report(ledger, planned if simulated.rounds < len(planned) else None).as_dict())
    if plan.mechanism.facts.is_certified:
      about = dataclasses.replace(
        bundle.about,
        tests=int(test is not None and simulated.rounds > 0),
        test_accuracy=summary.get('test_accuracy'),
        date=datetime.date.today().isoformat(),
        secure_sum=secure_sum,
        cohorts=cohorts or bundle.about.cohorts,
      )
      try:
        certificates.write_run(folder, plan, bundle.leaving, ledger, trainable, about, signing_key)
        return summary
      except ValueError as error:
        summary['no_certificate'] = str(error)
  with files.new_folder(folder) as unfinished:
    content = {folders.MODEL: {f'arr_{index}': tensor for index, tensor in enumerate(trainable)}}
    if ledger is not None:
      content[folders.LEDGER] = dict(ledger.state_dict())
    for name, arrays in content.items():
      files.write(os.path.join(unfinished, name), files.npz(arrays))
    files.write_json(os.path.join(unfinished, SUMMARY), summary)
  return summary
