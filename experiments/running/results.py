"""The files that a run leaves when it ends: model, ledger, a row for each client, plot, summary, certificate."""

from collections.abc import Sequence
import csv
import dataclasses
import functools
import math
import os
import shlex
import sys
from typing import Any, Optional, Union

import numpy as np
import tensorflow as tf

from data import features
from experiments.folders import directory as run_directory
from experiments.folders import folder as run_folder
from experiments.running import certifying
from experiments.running import final_summary
from experiments.running import loop
from experiments.running import setup
from quap_tff import accounting
from quap_tff import certificates
from quap_tff import plans
from quap_tff.certificates.folders import folder as certificate_folders
from quap_tff.common import files
from quap_tff.common import lazy
from quap_tff.plans.accounts import run_account
from quap_tff.training import models

plots = lazy.module('experiments.running.plots')  # Matplotlib, which only the end of a run needs.

_PREDICTION_BATCH = 512
# In how many rounds a plot shows what clients have spent.
_MOST_ACCOUNTS = 40


@dataclasses.dataclass(frozen=True)
class Outcome:
  """The outcome of a run, and what may be said about it.

  Attributes:
    experiment: The run.
    result: How far it has come.
    directory: Its folder; None keeps nothing.
    leaving: What leaves clients in a round of a run with a certificate.
  """

  experiment: setup.Experiment
  result: loop.TrainingProgress
  directory: Optional[run_directory.RunDirectory]
  leaving: run_account.Leaving

  @functools.cached_property
  def report(self) -> plans.Report:
    """The statements about the run: of one that ended before its last planned round, the bound of its plan."""
    is_stopped = self.result.round_num < self.experiment.run.schedule.rounds
    return self.experiment.plan.report(self.result.ledger, self.experiment.schedule if is_stopped else None)

  @functools.cached_property
  def summary(self) -> dict[str, Any]:
    """The content of summary.json and of the last line of standard output."""
    experiment, result = self.experiment, self.result
    return final_summary.make(
      experiment.run,
      experiment.federation.num_clients,
      self.report,
      rounds=result.round_num,
      test=result.test,
      weights=[*result.weights.trainable, *result.weights.non_trainable],
      date=result.date,
      interrupted=result.interrupted,
      seconds=result.seconds,
      output_dir=self.directory.path if self.directory is not None else None,
      share_of_ceiling=experiment.plan.share_of_ceiling if experiment.plan.mechanism.facts.is_certified else None,
    )

  def keep(self) -> dict[str, Any]:
    """Writes everything, unless it is there already, and removes the checkpoints of a finished run.

    Returns:
      The summary, or the one that was there.
    """
    run, result, directory, summary = self.experiment.run, self.result, self.directory, self.summary
    if directory is None:
      return summary
    kept = run_folder.read_summary(directory.path) or {}
    is_kept = kept.get('rounds') == result.round_num and not kept.get('interrupted')
    has_certificate = os.path.exists(
      os.path.join(directory.file(run_folder.CERTIFICATE), certificate_folders.CERTIFICATE)
    )
    if result.rounds_run or result.interrupted or not is_kept or run.method.gives_certificate and not has_certificate:
      self._write(directory)
    else:
      state = 'was finished' if kept['finished'] else f'had come to round {kept["rounds"]}'
      print(f'The run {state} already; nothing was trained or written.', file=sys.stderr)
      summary = {**kept, 'output_dir': directory.path}
    if summary['finished'] and not run.publication.keep_checkpoints:
      directory.remove_checkpoints()
    elif not result.interrupted:
      why = '' if summary['finished'] else f', so that the run can go on to round {run.schedule.rounds}'
      seeds = 'seeds of the noise and of the cohorts' if self.experiment.cohorts.secret else 'seed of the noise'
      print(
        f'{directory.file(run_folder.CHECKPOINTS)} was kept{why}. It holds the {seeds}: keep it as secret as the data.',
        file=sys.stderr,
      )
    return summary

  def _write(self, directory: run_directory.RunDirectory) -> None:
    """Writes the summary after the files that it speaks of, and the certificate last."""
    experiment, result = self.experiment, self.result
    run, federation = experiment.run, experiment.federation
    features.keep_copy(run.flags['features'], directory.path)
    if not run.method.gives_certificate:
      self._write_model_and_account(directory)
    metrics = plots.read_metrics(directory.file(run_folder.METRICS)) if result.round_num else {}
    if metrics and run.method.gives_certificate:
      metrics[plots.SPENT] = spent_by_round(result.ledger, run.flags['delta'])
    if plots.panels_of(metrics):
      with directory.replacing(run_folder.PLOT) as path:
        plots.plot_run(
          metrics,
          path,
          f'{federation.name}, {federation.num_clients} clients, {run.flags["algorithm"]}, {result.round_num} rounds',
        )
    directory.write_summary(self.summary)
    if run.method.gives_certificate:
      directory.remove_certificate()
      if not result.interrupted:
        tested = np.isfinite(metrics.get('test_accuracy', np.zeros(0)))
        self._certify(directory, int(tested.sum()))

  def _certify(self, directory: run_directory.RunDirectory, tests: int) -> None:
    experiment, result = self.experiment, self.result
    run_json = files.read_json(directory.file(run_folder.RUN))
    about = certifying.about(
      experiment.run,
      experiment.plan,
      run_json['resolved'],
      tests=tests,
      test_accuracy=self.summary['test_accuracy'],
      date=result.date,
      stretches=run_folder.stated_stretches(run_json, result.round_num),
    )
    path, key = directory.file(run_folder.CERTIFICATE), experiment.run.publication.signing_key
    with directory.writing():
      certificates.write_run(path, experiment.plan, self.leaving, result.ledger, result.weights.trainable, about, key)
    print(f'Certified: {path}. python -m quap_tff.verify {shlex.quote(directory.path)} checks it.', file=sys.stderr)

  def _write_model_and_account(self, directory: run_directory.RunDirectory) -> None:
    experiment, result = self.experiment, self.result
    run, federation = experiment.run, experiment.federation
    model = models.build_keras_model(
      experiment.model, federation.input_shape, federation.num_classes, run.local.compute_dtype
    )
    result.weights.assign_weights_to(model)
    with directory.replacing(run_folder.MODEL) as path:
      models.save_model(models.with_stock_layers(model), path)
    if not experiment.cohorts.secret:  # Both say who came.
      with directory.replacing(run_folder.LEDGER) as path:
        files.write(path, files.npz(result.ledger.state_dict()))
      with directory.replacing(run_folder.CLIENTS) as path:
        self._write_clients(path, model)

  def _write_clients(self, path: str, model: tf.keras.Model) -> None:
    """One row for each client that the ledger lists. Without client metrics, nothing in it follows from their data."""
    ledger, clients, report = self.result.ledger, self.experiment.federation.clients, self.report
    logs_clients, formal, listed = self.experiment.plan.client_metrics, report.formal, ledger.listed
    # No cell where a round without noise leaves a client without a finite ε.
    cells = lambda values: ['' if math.isinf(epsilon) else epsilon for epsilon in values[listed]]
    columns: dict[str, Any] = {'client': listed}
    if logs_clients:
      columns['examples'] = [len(clients[client]) for client in listed]
    columns['rounds'] = ledger.rounds[listed]
    if report.nominal_epsilon is not None and report.nominal_delta is not None:
      columns.update(nominal_epsilon=report.nominal_epsilon[listed], nominal_delta=report.nominal_delta[listed])
    if formal.epsilon is not None:
      columns['formal_epsilon'] = cells(formal.epsilon)
    if formal.reading is not None:
      columns['formal_epsilon_reading'] = cells(formal.reading.epsilon)
    if logs_clients:
      columns['test_accuracy'] = client_accuracies(self.experiment, model, listed)
    with open(path, 'w', newline='', encoding='utf-8') as f:
      writer = csv.writer(f)
      writer.writerow(columns)
      writer.writerows(zip(*columns.values()))


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
  hits = np.concatenate(
    [
      # A batch at a time: the scores of all places of all sequences would fill the memory.
      np.argmax(model.predict_on_batch(test.x[rows]), axis=-1) == test.y[rows]
      for rows in (slice(i, i + _PREDICTION_BATCH) for i in range(0, len(test), _PREDICTION_BATCH))
    ]
  )[has_label]
  labels = test.y[has_label]
  totals = np.bincount(labels, minlength=classes)
  accuracies = np.bincount(labels, hits, classes) / np.maximum(totals, 1)
  clients = (federation.clients[client] for client in listed)
  mixes = np.stack([np.bincount(client.labels, minlength=classes) for client in clients]) * (totals > 0)
  with np.errstate(invalid='ignore'):
    return mixes @ accuracies / mixes.sum(axis=1)
