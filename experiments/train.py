r"""Trains QuAP-FL.

    python -m experiments.train --flagfile=experiments/presets/demo.flags
    python -m experiments.train --flagfile=experiments/presets/mnist_2025.flags --data_dir=… --output_dir=runs/mnist

Progress goes to standard error, the summary to standard output; its last line is one JSON object. Exit status: 0 when the run is
done, 1 for a wrong flag, 130 when it was interrupted (the same command goes on with it, given an --output_dir).
"""

import os

# Before TensorFlow is loaded: keeps its start-up chatter out. An own choice in the environment stands.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import json
import math
import signal
import sys

from absl import app
from absl import flags
from absl import logging

from experiments import flags as experiment_flags
from experiments import plots
from experiments import run_directory
from experiments import setup
from experiments import training
from quap_tff import models

_INTERRUPTED = 130


def main(argv):
  if len(argv) > 1:
    return _fail(f'Unexpected argument {argv[1]!r}; flags are written --name=value.')
  logging.set_verbosity(logging.WARNING)
  signal.signal(signal.SIGTERM, _interrupt)
  try:
    return _run(flags.FLAGS)
  except (ValueError, FileNotFoundError) as error:
    if flags.FLAGS.pdb_post_mortem:
      raise
    return _fail(str(error))
  except KeyboardInterrupt:
    print('\nInterrupted before the first round.', file=sys.stderr)
    return _INTERRUPTED


def _run(values) -> int:
  experiment = setup.from_flags(values, _show_reading if sys.stderr.isatty() else None)
  directory = None
  if values.output_dir is not None:
    directory = run_directory.RunDirectory(
        values.output_dir, experiment_flags.all_values(), experiment_flags.identity()
    )
    if not directory.is_new:
      print(f'Going on with the run in {directory.path}.', file=sys.stderr)
  _announce(experiment, values)
  result = training.train(
      experiment,
      directory,
      checkpoint_every=values.checkpoint_every,
      eval_every=values.eval_every,
      stop_at_accuracy=values.stop_at_accuracy,
      progress=values.progress,
  )
  summary = _summary(experiment, values, result, directory)
  if directory is not None:
    kept = directory.read_summary()
    if result.rounds_run or kept is None:
      _write_results(experiment, values, result, directory, summary)
    else:
      print('The run was finished already; nothing was trained or written.', file=sys.stderr)
      summary = kept
    directory.close()
  _print_summary(experiment, result, summary)
  return _INTERRUPTED if result.interrupted else 0


def _announce(experiment, values):
  federation = experiment.federation
  print(
      f'{federation.name}: {federation.num_clients} clients ({federation.partition}), {federation.num_examples:,} training '
      f'and {len(federation.test):,} test examples; model {experiment.model}.',
      file=sys.stderr,
  )
  if values.noise_seed is not None and experiment.config.noise.placement != 'none':
    print(
        f'--noise_seed={values.noise_seed} makes the noise reproducible: whoever knows the seed can subtract it. '
        'For experiments only.',
        file=sys.stderr,
    )


def _summary(experiment, values, result, directory):
  """What the last line of standard output holds. A nominal ε that does not exist (no noise) is null."""
  noised = experiment.config.noise.placement != 'none'
  ledger = result.ledger
  return {
      'dataset': values.dataset,
      'rounds': result.round_num,
      'planned_rounds': experiment.planned_rounds,
      'test_accuracy': result.test['accuracy'],
      'test_loss': result.test['loss'] if math.isfinite(result.test['loss']) else None,
      'nominal_epsilon_max': float(ledger.epsilon.max()) if noised else None,
      'nominal_epsilon_mean': float(ledger.epsilon.mean()) if noised else None,
      'nominal_delta_max': float(ledger.delta.max()) if noised else None,
      'model_protected': experiment.protection.model_protected,
      'interrupted': result.interrupted,
      'seconds': round(result.seconds, 3),
      'output_dir': directory.path if directory is not None else None,
  }


def _write_results(experiment, values, result, directory, summary):
  directory.write_summary(summary)
  keras_model = models.build_keras_model(
      experiment.model, experiment.federation.input_shape, experiment.federation.num_classes, values.compute_dtype
  )
  result.weights.assign_weights_to(keras_model)
  keras_model.save(directory.file('final_model.keras'))
  if result.round_num:
    plots.plot_run(
        directory.file('metrics.csv'),
        directory.file('plot.png'),
        f'{experiment.federation.name}, {experiment.federation.num_clients} clients, {result.round_num} rounds',
    )


def _print_summary(experiment, result, summary):
  state = 'Interrupted after' if result.interrupted else 'Done:'
  print(f'\n{state} {result.round_num} of {experiment.last_round} rounds in {summary["seconds"]:.1f} s.')
  print(f'Test accuracy {result.test["accuracy"]:.2%}, loss {result.test["loss"]:.4f}.')
  if summary['nominal_epsilon_max'] is not None:
    print(
        f'Nominal ε per client: mean {summary["nominal_epsilon_mean"]:.4g}, max {summary["nominal_epsilon_max"]:.4g}, '
        f'with total δ up to {summary["nominal_delta_max"]:.3g}.'
    )
  print(experiment.protection.text)
  if summary['output_dir']:
    print(f'Results: {summary["output_dir"]}')
  print(json.dumps(summary), flush=True)


def _show_reading(done, total):
  print(f'\rreading client {done}/{total}', end='\n' if done == total else '', file=sys.stderr, flush=True)


def _interrupt(signum, frame):
  del signum, frame
  raise KeyboardInterrupt


def _fail(message) -> int:
  print(f'Error: {message}', file=sys.stderr)
  return 1


if __name__ == '__main__':
  app.run(main)
