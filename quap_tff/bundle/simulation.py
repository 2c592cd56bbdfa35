"""Trains what a bundle holds, with all clients in this process, which knows no TFF."""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import datetime
import math
import os
from typing import Any, Callable, Optional
import zipfile

import numpy as np

from quap_tff import certificates
from quap_tff.bundle import bundle_engine
from quap_tff.bundle import player
from quap_tff.bundle import structures
from quap_tff.certificates.folders import folder as folders
from quap_tff.common import files
from quap_tff.serving import server as servers

# From weights to their accuracy, and perhaps their loss, by name.
Evaluate = Callable[[Any], Mapping[str, float]]

SUMMARY = 'summary.json'


def read_clients(path: str) -> tuple[dict[int, bundle_engine.Examples], Optional[tuple[Any, Any]]]:
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
    examples: dict[int, bundle_engine.Examples] = {}
    for client, own in zip(clients.tolist(), rows):
      examples[client] = {name: arrays[name][own] for name in 'xy'}
  except (OSError, ValueError, LookupError, zipfile.BadZipFile) as error:
    raise ValueError(
      f'{path} must be an .npz file with x, y and client, of one length ({error}). experiments.export --clients writes '
      'such a file.'
    ) from None
  return examples, (arrays['x_test'], arrays['y_test']) if {'x_test', 'y_test'} <= set(arrays) else None


def simulate(
  bundle: player.Bundle,
  clients: Mapping[int, bundle_engine.Examples],
  *,
  num_rounds: Optional[int] = None,
  num_threads: int = 1,
  say: Callable[[str], None] = lambda line: None,
) -> servers.Server:
  """Plays the rounds of a bundle. Ctrl-C ends it after the last whole round.

  A client whose data cannot be used adds zero, and a warning says so.

  Args:
    bundle: The run.
    clients: The examples of each client.
    num_rounds: How many of the planned rounds; by default all.
    num_threads: How many clients train at the same time.
    say: Is given a line after each round.

  Returns:
    The server after the last round.

  Raises:
    ValueError: If the bundle does not say who takes part, or a client who takes part is not there.
  """
  cohorts = bundle_engine.checked_cohorts(bundle, num_rounds)
  strangers = np.setdiff1d(np.concatenate(cohorts), list(clients))
  if len(strangers):
    raise ValueError(f'There are no examples of client {strangers[0]}, who takes part. Give those of the same run.')
  absent = list(bundle.rounds.absent) or [np.zeros(0, np.int64)] * len(cohorts)
  engine = bundle_engine.BundleEngine(bundle, num_threads, say)
  server = bundle_engine.new_server(engine)
  try:
    for cohort, away in zip(cohorts, absent):
      server.play({client: clients[client] for client in cohort.tolist()}, away)
      say(f'round {server.done} of {len(cohorts)}: {len(cohort)} clients')
  except KeyboardInterrupt:
    say(f'Interrupted: {server.done} rounds are kept.')
  engine.warn()
  return server


def evaluation(bundle: player.Bundle, test: Optional[tuple[Any, Any]]) -> Optional[Evaluate]:
  """Tests weights on examples and labels, by the bundle; None if there are none."""
  return (lambda weights: bundle.evaluate(weights, *test)) if test is not None else None


def _tested(found: Mapping[str, float]) -> dict[str, Optional[float]]:
  """Accuracy and loss for the summary; None for a loss that is not finite, which JSON does not have."""
  tested: dict[str, Optional[float]] = {}
  for name in ('accuracy', 'loss'):
    if name in found:
      tested[f'test_{name}'] = found[name] if math.isfinite(found[name]) else None
  return tested


def check_types(bundle: player.Bundle, clients: Mapping[int, bundle_engine.Examples]) -> None:
  """Raises `ValueError` if the examples of a file have other types than the bundle takes; all clients' are the same."""
  if bundle.takes_updates:
    raise ValueError(
      'Clients of this bundle bring their updates, which a program of your own computes. Play its rounds there, or '
      'over Flower: python -m quap_tff.flower node … --train=module:function.'
    )
  for examples in list(clients.values())[:1]:
    kind = bundle.data_type
    if 'sequence' not in kind:
      kind = dict(kind['fields'])['examples']
    structures.flatten(kind, examples, 'examples')


def keep(
  bundle: player.Bundle,
  server: servers.Server,
  folder: str,
  evaluate: Optional[Evaluate] = None,
  signing_key: Optional[str] = None,
  *,
  secure_sum: str = '',
  cohorts: str = '',
) -> dict[str, Any]:
  """Writes what came out into a run's folder: summary.json last, and `certificate` if the run gets one.

  The tests, accuracy and date that a certificate states are of this run. Without a certificate, there are
  final_model.npz, the trained tensors arr_0, arr_1, …, and ledger.npz.

  Args:
    bundle: The run.
    server: Its server, after the last round.
    folder: The folder; it is made if it is not there.
    evaluate: Tests weights on examples that no client holds.
    signing_key: File with an Ed25519 private key (PEM), or None.
    secure_sum: The protocol that summed what clients sent, see `certificates.About`.
    cohorts: Where the cohorts came from, if not as the bundle states.

  Returns:
    The summary. Its `no_certificate` says why a certified run has none.

  Raises:
    ValueError: If the folder has the summary of a run.
  """
  check_has_no_result(folder)
  os.makedirs(folder, exist_ok=True)
  plan, ledger, planned, weights = server.plan, server.ledger, bundle.rounds.cohorts, server.weights
  trainable = [np.asarray(tensor) for tensor in weights.trainable]
  summary: dict[str, Any] = {'rounds': server.done, 'planned_rounds': len(planned)}
  if evaluate is not None:
    summary.update(_tested(evaluate(weights)))
  if plan is not None and ledger is not None:
    summary.update(server.report(planned).as_dict())
    if plan.mechanism.facts.is_certified:
      about = dataclasses.replace(
        bundle.about,
        tests=int(evaluate is not None and server.done > 0),
        test_accuracy=summary.get('test_accuracy'),
        date=datetime.date.today().isoformat(),
        secure_sum=secure_sum,
        cohorts=cohorts or bundle.about.cohorts,
      )
      certificates.remove(folder)  # Of a process that ended before it had written the summary.
      path = os.path.join(folder, folders.SUBFOLDER)
      try:
        certificates.write_run(path, plan, bundle.leaving, ledger, trainable, about, signing_key)
        files.write_json(os.path.join(folder, SUMMARY), summary)
        return summary
      except ValueError as error:
        summary['no_certificate'] = str(error)
  content = {folders.MODEL: {f'arr_{index}': tensor for index, tensor in enumerate(trainable)}}
  if ledger is not None:
    content[folders.LEDGER] = dict(ledger.state_dict())
  for name, arrays in content.items():
    files.write(os.path.join(folder, name), files.npz(arrays))
  files.write_json(os.path.join(folder, SUMMARY), summary)
  return summary


def check_has_no_result(folder: str) -> None:
  """Raises `ValueError` if a run has ended in a folder."""
  path = os.path.join(folder, SUMMARY)
  if os.path.lexists(path):
    raise ValueError(f'{path} is there already: this run has ended. Give another output for another one.')
