r"""Trains QuAP-FL.

    python -m experiments.train --flagfile=experiments/presets/demo.flags
    python -m experiments.train --flagfile=experiments/presets/mnist_2025.flags --data_dir=… --output_dir=runs/mnist

Progress goes to standard error, the summary to standard output; its last line is one JSON object. Exit status: 0 when
the run is done, 1 for a wrong flag or a failure, 130 when it was interrupted (by Ctrl-C or SIGTERM; the same command
goes on with it, given an --output_dir).
"""

import os

# Before TensorFlow is loaded: keeps its start-up chatter out. An own choice in the environment stands.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import contextlib
import json
import sys

from absl import app
from absl import flags
from absl import logging

from experiments import flags as experiment_flags
from experiments import interrupts
from experiments import results
from experiments import run_directory
from experiments import setup
from experiments import training
from quap_tff import runtime

# Else --help would not show them.
flags.adopt_module_key_flags(experiment_flags)

_FAILED, _INTERRUPTED = 1, 130


def main(argv):
  if len(argv) > 1:
    return _fail(f'Unexpected argument {argv[1]!r}; flags are written --name=value.')
  logging.set_verbosity(logging.WARNING)
  interrupts.install()
  # An ε that the terminal's encoding lacks must not end a run that is done.
  sys.stdout.reconfigure(errors='backslashreplace')
  try:
    return _run(flags.FLAGS)
  except KeyboardInterrupt:
    print('\nInterrupted before a round was run.', file=sys.stderr)
    return _INTERRUPTED
  except BrokenPipeError:
    # Whoever read the output is gone; Python would say so once more when it ends and flushes.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
      os.dup2(nowhere, stream.fileno())
    return _FAILED


def _run(values) -> int:
  with contextlib.ExitStack() as stack:
    try:
      experiment, process, directory = _prepare(values, stack)
    except (ValueError, FileNotFoundError, runtime.RuntimeStackError) as error:
      return _fail(error)
    _announce(experiment, values, directory)
    try:
      result = training.train(
          experiment,
          process,
          directory,
          checkpoint_every=values.checkpoint_every,
          eval_every=values.eval_every,
          stop_at_accuracy=values.stop_at_accuracy,
          progress=values.progress,
      )
    except (run_directory.RunDirectoryError, runtime.WorkerError) as error:
      return _fail(error)
    report = results.formal_report(experiment, result)
    summary = results.summary(experiment, values, result, report, directory)
    if directory is not None:
      kept = directory.read_summary()
      if result.rounds_run or kept is None or kept.get('rounds') != result.round_num or kept.get('interrupted'):
        results.write(experiment, values, result, report, directory, summary)
      else:
        print('The run was finished already; nothing was trained or written.', file=sys.stderr)
        summary = kept
    _print_summary(experiment, result, report, summary)
    return _INTERRUPTED if result.interrupted else 0


def _prepare(values, stack):
  """The experiment, its process with the runtime active, and the folder, made only when all flags are found right."""
  identity = experiment_flags.identity()
  if values.output_dir is not None:
    run_directory.check(values.output_dir, identity)
  experiment = setup.from_flags(values, _show_reading if sys.stderr.isatty() else None)
  stack.enter_context(runtime.activate(experiment.runtime))
  process = experiment.method.build_process()
  directory = None
  if values.output_dir is not None:
    directory = run_directory.RunDirectory(values.output_dir, experiment_flags.all_values(), identity)
    stack.callback(directory.close)
  return experiment, process, directory


def _announce(experiment, values, directory):
  if directory is not None and not directory.is_new:
    print(f'Going on with the run in {directory.path}.', file=sys.stderr)
  federation = experiment.federation
  print(
      f'{federation.name}: {federation.num_clients} clients ({federation.partition}), {federation.num_examples:,} '
      f'training and {len(federation.test):,} test examples; model {experiment.model}.',
      file=sys.stderr,
  )
  if values.noise_seed is not None:
    print(
        f'--noise_seed={values.noise_seed} makes the noise reproducible: whoever knows the seed can subtract it. '
        'For experiments only.',
        file=sys.stderr,
    )


def _print_summary(experiment, result, report, summary):
  state = 'Interrupted after' if result.interrupted else 'Done:'
  earlier = result.round_num - result.rounds_run
  before = f', {earlier} of them before' if earlier else ''
  print(f'\n{state} {result.round_num} of {experiment.planned_rounds} planned rounds{before}; {result.seconds:.1f} s.')
  if result.interrupted:
    print('The same command goes on from there.' if summary['output_dir'] else 'Without --output_dir nothing is kept.')
  print(f'Test accuracy {result.test["accuracy"]:.2%}, loss {result.test["loss"]:.4f}.')
  if summary['nominal_epsilon_max'] is not None:
    print(
        f'Nominal ε per client: mean {summary["nominal_epsilon_mean"]:.4g}, max {summary["nominal_epsilon_max"]:.4g}, '
        f'with total δ up to {summary["nominal_delta_max"]:.3g}: basic composition of the noised layers\' rounds '
        '(unit: one client\'s whole data), no amplification by sampling, clipping norms taken as given.'
    )
  protection = experiment.method.protection
  print(protection.text.replace(protection.statement, report.text))
  if summary['output_dir']:
    print(f'Results: {summary["output_dir"]}')
  print(json.dumps(summary, allow_nan=False), flush=True)


def _show_reading(done, total):
  print(f'\rreading data {done}/{total}', end='\n' if done == total else '', file=sys.stderr, flush=True)


def _fail(error) -> int:
  """Says what went wrong. Called where an exception is handled, or with a text."""
  if isinstance(error, Exception) and flags.FLAGS.pdb_post_mortem:
    raise error
  print(f'Error: {error}', file=sys.stderr)
  return _FAILED


if __name__ == '__main__':
  app.run(main)
