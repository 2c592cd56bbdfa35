"""The files that a run leaves when it ends: model, ledger, a row for each client, plot, summary, certificate."""

from collections.abc import Iterable, Sequence
import csv
import math
import os
import shlex
import sys
from typing import Union

import numpy as np
import tensorflow as tf

from data import features
from experiments.folders import directory as run_directory
from experiments.folders import folder as run_folder
from experiments.running import certifying
from experiments.running import outcome as outcomes
from experiments.running import setup
from quap_tff import accounting
from quap_tff import certificates
from quap_tff.certificates.folders import folder as certificate_folders
from quap_tff.common import files
from quap_tff.common import json_types
from quap_tff.common import lazy
from quap_tff.training import models

plots = lazy.module('experiments.running.plots')  # Matplotlib, which only the end of a run needs.

_PREDICTION_BATCH = 512
# In how many rounds a plot shows what clients have spent.
_MOST_ACCOUNTS = 40


def keep(outcome: outcomes.Outcome) -> json_types.JsonObject:
  """Writes everything, unless it is there already, and removes the checkpoints of a finished run.

  Returns:
    The summary, or the one that was there.
  """
  run, directory, summary = outcome.experiment.run, outcome.directory, outcome.summary
  if directory is None:
    return summary
  kept = run_folder.read_summary(directory.path) or {}
  was_written = kept.get('rounds') == outcome.round_num and not kept.get('interrupted')
  certificate = os.path.join(directory.file(run_folder.CERTIFICATE), certificate_folders.CERTIFICATE)
  has_certificate = os.path.exists(certificate)
  needs_certificate = run.method.gives_certificate and not has_certificate
  has_news = outcome.rounds_run > 0 or outcome.interrupted
  if has_news or needs_certificate or not was_written:
    _write(outcome, directory)
  else:
    state = 'was finished' if kept['finished'] else f'had come to round {kept["rounds"]}'
    print(f'The run {state} already; nothing was trained or written.', file=sys.stderr)
    summary = {**kept, 'output_dir': directory.path}
  if summary['finished'] and not run.publication.keep_checkpoints:
    directory.remove_checkpoints()
  elif not outcome.interrupted:
    why = '' if summary['finished'] else f', so that the run can go on to round {run.schedule.rounds}'
    keeps_cohorts = outcome.experiment.cohorts.secret and outcome.experiment.plan.secret is None
    seeds = 'seeds of the noise and of the cohorts' if keeps_cohorts else 'seed of the noise'
    print(
      f'{directory.file(run_folder.CHECKPOINTS)} was kept{why}. It holds the {seeds}: keep it as secret as the data.',
      file=sys.stderr,
    )
  return summary


def _write(outcome: outcomes.Outcome, directory: run_directory.RunDirectory) -> None:
  """Writes the summary after the files that it speaks of, and the certificate last."""
  run, federation = outcome.experiment.run, outcome.experiment.federation
  gives_certificate = run.method.gives_certificate
  features.keep_copy(run.flags['features'], directory.path)
  if not gives_certificate:
    _write_model_and_account(outcome, directory)
  metrics = plots.read_metrics(directory.file(run_folder.METRICS)) if outcome.round_num else {}
  is_secret = outcome.experiment.plan.secret is not None
  if metrics and gives_certificate and not is_secret:
    metrics[plots.SPENT] = spent_by_round(outcome.ledger, run.flags['delta'])
  if plots.panels_of(metrics):
    clients = f'{federation.num_clients} clients'
    title = f'{federation.name}, {clients}, {run.flags["algorithm"]}, {outcome.round_num} rounds'
    with directory.replacing(run_folder.PLOT) as path:
      plots.plot_run(metrics, path, title)
  directory.write_summary(outcome.summary)
  if gives_certificate:
    directory.remove_certificate()
    if not outcome.interrupted:
      tested = np.isfinite(metrics.get('test_accuracy', np.zeros(0)))
      _certify(outcome, directory, int(tested.sum()))


def _certify(outcome: outcomes.Outcome, directory: run_directory.RunDirectory, tests: int) -> None:
  experiment = outcome.experiment
  run_json = files.read_json(directory.file(run_folder.RUN))
  about = certifying.about(
    experiment.run,
    experiment.plan,
    run_json['resolved'],
    tests=tests,
    test_accuracy=outcome.summary['test_accuracy'],
    date=outcome.date,
    stretches=run_folder.stated_stretches(run_json, outcome.round_num),
  )
  path, key = directory.file(run_folder.CERTIFICATE), experiment.run.publication.signing_key
  trainable = outcome.weights.trainable
  with directory.writing():
    certificates.write_run(path, experiment.plan, outcome.leaving, outcome.ledger, trainable, about, key)
  print(f'Certified: {path}. python -m quap_tff.verify {shlex.quote(directory.path)} checks it.', file=sys.stderr)


def _write_model_and_account(outcome: outcomes.Outcome, directory: run_directory.RunDirectory) -> None:
  experiment, federation = outcome.experiment, outcome.experiment.federation
  model = models.build_keras_model(
    experiment.model, federation.input_shape, federation.num_classes, experiment.run.local.compute_dtype
  )
  outcome.weights.assign_weights_to(model)
  with directory.replacing(run_folder.MODEL) as path:
    models.save_model(models.with_stock_layers(model), path)
  if not experiment.cohorts.secret:  # Both say who came.
    with directory.replacing(run_folder.LEDGER) as path:
      files.write(path, files.npz(outcome.ledger.state_dict()))
    with directory.replacing(run_folder.CLIENTS) as path:
      _write_clients(outcome, path, model)


def _write_clients(outcome: outcomes.Outcome, path: str, model: tf.keras.Model) -> None:
  """One row for each client that the ledger lists. Without client metrics, nothing in it follows from their data."""
  ledger, clients, report = outcome.ledger, outcome.experiment.federation.clients, outcome.report
  logs_clients, formal, listed = outcome.experiment.plan.client_metrics, report.formal, ledger.listed
  columns: dict[str, Iterable[object]] = {'client': listed}
  if logs_clients:
    columns['examples'] = [len(clients[client]) for client in listed]
  columns['rounds'] = ledger.rounds[listed]
  if report.nominal_epsilon is not None and report.nominal_delta is not None:
    columns.update(nominal_epsilon=report.nominal_epsilon[listed], nominal_delta=report.nominal_delta[listed])
  if formal.epsilon is not None:
    columns['formal_epsilon'] = _cells(formal.epsilon[listed])
  if formal.reading is not None:
    columns['formal_epsilon_reading'] = _cells(formal.reading.epsilon[listed])
  if logs_clients:
    columns['test_accuracy'] = client_accuracies(outcome.experiment, model, listed)
  with open(path, 'w', newline='', encoding='utf-8') as f:
    writer = csv.writer(f)
    writer.writerow(columns)
    writer.writerows(zip(*columns.values()))


def _cells(epsilons: np.ndarray) -> list[Union[float, str]]:
  """Cells of clients.csv: empty where a round without noise leaves a client without a finite ε."""
  cells: list[Union[float, str]] = []
  for epsilon in epsilons:
    cell = '' if math.isinf(epsilon) else epsilon
    cells.append(cell)
  return cells


def spent_by_round(ledger: accounting.RunLedger, delta: float) -> np.ndarray:
  """float64[T], the largest exact ε of any client after each round; NaN in most rounds of a long run."""
  epsilons = np.full(ledger.num_rounds, np.nan)
  for rounds in np.linspace(1, ledger.num_rounds, min(ledger.num_rounds, _MOST_ACCOUNTS), dtype=int):
    epsilons[rounds - 1] = accounting.epsilon_by_client(ledger.truncated(rounds), delta).max()
  return epsilons


def client_accuracies(
  experiment: setup.Experiment, model: tf.keras.Model, listed: Union[Sequence[int], np.ndarray]
) -> np.ndarray:
  """The model's accuracy on the test set re-weighted to each client's own mix of labels.

  Args:
    experiment: Holds clients and test set.
    model: The model.
    listed: The K clients that are asked about.

  Returns:
    float64[K]:
    Σ_c s_i(c)·a(c), a(c) the accuracy on the test labels of class c and s_i(c) the share of c among client i's labels,
    those of classes that are not in the test set left out; NaN for a client that has no others.
  """
  federation = experiment.federation
  test, classes = federation.test, federation.num_classes
  has_label = test.y >= 0
  hits_of_batches = []
  # A batch at a time: the scores of all places of all sequences would fill the memory.
  for begin in range(0, len(test), _PREDICTION_BATCH):
    rows = slice(begin, begin + _PREDICTION_BATCH)
    hits_of_batches.append(np.argmax(model.predict_on_batch(test.x[rows]), axis=-1) == test.y[rows])
  hits = np.concatenate(hits_of_batches)[has_label]
  labels = test.y[has_label]
  totals = np.bincount(labels, minlength=classes)
  accuracies = np.bincount(labels, hits, classes) / np.maximum(totals, 1)
  clients = (federation.clients[client] for client in listed)
  mixes = np.stack([np.bincount(client.labels, minlength=classes) for client in clients]) * (totals > 0)
  with np.errstate(invalid='ignore'):
    return mixes @ accuracies / mixes.sum(axis=1)
