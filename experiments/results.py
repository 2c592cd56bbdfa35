"""What a run leaves when it ends: the model, the ledger, a row for each client, a plot, and last the summary."""

import csv
import math
import sys
from typing import Any, Dict, Optional

from absl import flags
import numpy as np
import tensorflow as tf

from experiments import certificates
from experiments import plots
from experiments import run_directory
from experiments import setup
from experiments import training
from quap_tff import accounting
from quap_tff import models

_PREDICTION_BATCH = 512


def formal_report(experiment: setup.Experiment, result: training.Result) -> accounting.FormalReport:
  """The formal figures of the run so far."""
  method = experiment.method
  return accounting.formal_report(
      result.ledger, experiment.delta, method.protection, _sampler(experiment), method.noise_note
  )


def _sampler(experiment: setup.Experiment) -> accounting.Sampler:
  cohorts, method = experiment.cohorts, experiment.method
  fixed_size = cohorts.sampling == 'fixed_size'
  return accounting.Sampler(
      kind=cohorts.sampling,
      rates=cohorts.inclusion_rates,
      cohort_size=cohorts.population.cohort_size if fixed_size else None,
      constant_divisor=method.constant_divisor or fixed_size,
      constant_noise_multiplier=method.constant_noise_multiplier,
      noises_empty_rounds=method.noises_empty_rounds,
  )


def summary(
    experiment: setup.Experiment,
    values: flags.FlagValues,
    result: training.Result,
    report: accounting.FormalReport,
    directory: Optional[run_directory.RunDirectory],
) -> Dict[str, Any]:
  """What the last line of standard output holds. Nominal figures that the method has not are null."""
  ledger, has_nominal = result.ledger, experiment.method.has_nominal
  return {
      'dataset': values.dataset,
      'algorithm': values.algorithm,
      'rounds': result.round_num,
      'planned_rounds': experiment.planned_rounds,
      'test_accuracy': result.test['accuracy'],
      'test_loss': result.test['loss'] if math.isfinite(result.test['loss']) else None,
      'nominal_epsilon_max': float(ledger.epsilon.max()) if has_nominal else None,
      'nominal_epsilon_mean': float(ledger.epsilon.mean()) if has_nominal else None,
      'nominal_delta_max': float(ledger.delta.max()) if has_nominal else None,
      'model_protected': experiment.method.protection.model_protected,
      'formal': report.as_dict(),
      'interrupted': result.interrupted,
      'seconds': round(result.seconds, 3),
      'output_dir': directory.path if directory is not None else None,
  }


def write(
    experiment: setup.Experiment,
    values: flags.FlagValues,
    result: training.Result,
    report: accounting.FormalReport,
    directory: run_directory.RunDirectory,
    its_summary: Dict[str, Any],
):
  """Writes everything into the run's folder; where the summary stands, the others are there."""
  federation = experiment.federation
  model = models.build_keras_model(
      experiment.model, federation.input_shape, federation.num_classes, values.compute_dtype
  )
  result.weights.assign_weights_to(model)
  with directory.replacing('final_model.keras') as path:
    model.save(path)
  with directory.replacing('ledger.npz') as path:
    np.savez(path, **result.ledger.state_dict())
  with directory.replacing('clients.csv') as path:
    _write_clients(path, experiment, result, report, model)
  if result.round_num:
    with directory.replacing('plot.png') as path:
      plots.plot_run(
          directory.file('metrics.csv'),
          path,
          f'{federation.name}, {federation.num_clients} clients, {values.algorithm}, {result.round_num} rounds',
      )
  _write_certificate(experiment, result, directory)
  directory.write_summary(its_summary)


def _write_certificate(experiment, result, directory):
  """The certificate of a run that has one; says why where a method that gives certificates gives none."""
  facts = experiment.method.certificate
  if facts is None or result.interrupted:
    return
  try:
    certificates.write(directory.path, facts)
  except ValueError as error:
    certificates.remove(directory.path)
    print(error, file=sys.stderr)
  else:
    print(f'Certified: python -m experiments.verify {directory.path} checks it.', file=sys.stderr)


def _write_clients(path, experiment, result, report, model):
  """One row a client. The label mixes behind `test_accuracy` are clients' data: without client metrics, it lacks."""
  clients, ledger = experiment.federation.clients, result.ledger
  columns = {
      'client': range(len(clients)),
      'examples': [len(client) for client in clients],
      'rounds': ledger.rounds,
  }
  if experiment.method.has_nominal:
    columns.update(nominal_epsilon=ledger.epsilon, nominal_delta=ledger.delta)
  if report.epsilon is not None:
    # No cell where a round without noise leaves a client without a finite ε.
    columns['formal_epsilon'] = ['' if math.isinf(epsilon) else epsilon for epsilon in report.epsilon]
  if experiment.client_metrics:
    columns['test_accuracy'] = client_accuracies(experiment, model)
  else:
    del columns['examples']
  with open(path, 'w', newline='') as f:
    writer = csv.writer(f)
    writer.writerow(columns)
    writer.writerows(zip(*columns.values()))


def client_accuracies(experiment: setup.Experiment, model: tf.keras.Model) -> np.ndarray:
  """float64[N], the model's accuracy on the test set re-weighted to each client's own mix of labels.

  Σ_c s_i(c)·a(c), a(c) the accuracy on the test examples of class c and s_i(c) the share of c among client i's
  examples, those of classes that the test set lacks left out; NaN for a client that has no others.
  """
  federation = experiment.federation
  test, classes = federation.test, federation.num_classes
  predicted = np.argmax(model.predict(test.x, batch_size=_PREDICTION_BATCH, verbose=0), axis=-1)
  totals = np.bincount(test.y, minlength=classes)
  accuracies = np.bincount(test.y, predicted == test.y, classes) / np.maximum(totals, 1)
  mixes = np.stack([np.bincount(client.y, minlength=classes) for client in federation.clients]) * (totals > 0)
  with np.errstate(invalid='ignore'):
    return mixes @ accuracies / mixes.sum(axis=1)

