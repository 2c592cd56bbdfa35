r"""Trains QuAP-FL, or a method that it is compared with.

    python -m experiments.train --flagfile=experiments/presets/demo.flags
    python -m experiments.train --flagfile=experiments/presets/mnist_2025.flags --data_dir=… --output_dir=runs/mnist

Progress goes to standard error, and the summary to standard output: at most 24 rows of 80 columns. The last line is one
JSON object with the keys of summary.json and shorter values (see `final_summary`). In certified runs, only the progress
on standard error tells how long anything took. No guarantee covers that, so keep it to yourself. Exit status: 0 when
the run is done, 1 for a wrong flag or a failure, 130 when it was interrupted by Ctrl-C or SIGTERM. With --output_dir,
the same command continues an interrupted run.

With --help, a flag with choices explains the choice that it names and each of its parameters, and the choices inside
it:

    python -m experiments.train --help --algorithm=certified:weights=online --participation=markov
"""

from collections.abc import Iterator, Sequence
import contextlib
import gc
import os
import sys
from typing import Optional, TYPE_CHECKING

from experiments.command import command_line
from experiments.command import flags as experiment_flags
from experiments.command import interrupts
from experiments.running import final_summary
from experiments.running import progress
from quap_tff.accounting import protection as protections
from quap_tff.accounting import spent as spents
from quap_tff.common import durable
from quap_tff.common import json_types
from quap_tff.common import kernels
from quap_tff.common import lazy
from quap_tff.common.lazy import tf

if TYPE_CHECKING:
  from experiments.command.run import Run
  from experiments.folders.directory import RunDirectory
  from experiments.running.loop import Callback
  from experiments.running.outcome import Outcome
  from experiments.running.setup import Experiment

# These load TensorFlow, so they wait until the flags are found right.
certifying = lazy.module('experiments.running.certifying')
signatures = lazy.module('quap_tff.certificates.folders.signatures')
results = lazy.module('experiments.running.results')
run_directory = lazy.module('experiments.folders.directory')
run_folder = lazy.module('experiments.folders.folder')
setup = lazy.module('experiments.running.setup')
loop = lazy.module('experiments.running.loop')
runtime = lazy.module('quap_tff.runtime')


def main(argv: list[str], callbacks: Sequence['Callback'] = ()) -> int:
  """Trains as the flags in `argv[1:]` say; returns the exit status.

  `callbacks` are called after each round with its number, its metrics and the server's state, see `loop.Callback`.
  With them a program of one's own can report to an experiment tracker:

      command_line.run(lambda argv: train.main(argv, [lambda round_num, metrics, state: tracker.log(metrics)]))
  """
  given = experiment_flags.read_flags(argv)
  if experiment_flags.VALUES.help:
    print(experiment_flags.help_text(given, __doc__))
    return 0
  run = experiment_flags.checked_run(given)
  publication = run.publication
  if publication.signing_key is not None:
    signatures.read_private_key(publication.signing_key)
  if publication.output_dir is not None:
    state = run_folder.check(publication.output_dir, run.identity(), run.needs_same_code)
    if state.finished is not None:
      return _was_finished(state.finished, publication.output_dir)
  # Imports and tracing make millions of objects that stay. Looking through them for garbage again and again would take
  # a tenth of the time to the first round. So nothing is collected until they are there, and they are left out after
  # that.
  gc.disable()
  progress.say(publication.progress, 'Starting TensorFlow …')
  lazy.load('experiments.running.results')  # And with it everything that takes long.
  interrupts.install()
  try:
    return _train(run, callbacks)
  except (run_folder.RunDirectoryError, runtime.RuntimeStackError) as error:
    print(f'Error: {command_line.error_text(error)}', file=sys.stderr)
    return command_line.FAILED
  except (Exception, KeyboardInterrupt) as error:  # pylint: disable=broad-except
    if not interrupts.is_interrupt(error):
      raise
    print('\nInterrupted before a round was run. The same command starts the run again.', file=sys.stderr)
    return command_line.INTERRUPTED
  finally:
    gc.unfreeze()
    gc.enable()


def _train(run: 'Run', callbacks: Sequence['Callback']) -> int:
  publication = run.publication
  with contextlib.ExitStack() as stack:
    progress.say(publication.progress, f'Reading {run.flags["dataset"]} …')
    show = _show_reading if sys.stderr.isatty() else None
    experiment = setup.from_run(run, show)
    certifying.check_before(experiment)
    stack.enter_context(runtime.activate(experiment.runtime))
    progress.say(publication.progress, f'Building {experiment.model} and the round …')
    built = experiment.build_process()
    gc.freeze()
    gc.enable()
    directory = None
    if publication.output_dir is not None:
      directory = run_directory.RunDirectory(
        publication.output_dir,
        run.recorded(),
        run.identity(),
        experiment.resolved,
        experiment.federation.digest(),
        needs_same_code=run.needs_same_code,
        keeps_times=experiment.plan.client_metrics,
      )
      stack.callback(directory.close)
      if directory.finished is not None:  # By the same command, while this one read the data.
        return _was_finished(directory.finished, directory.path)
      _claim_spent(run, directory)
    experiment = experiment.kept_in(directory)
    print(*_opening(experiment, directory), sep='\n', file=sys.stderr)
    outcome = loop.train(experiment, built, directory, callbacks)
    summary = results.keep(outcome)
    _print_summary(outcome, summary)
  return command_line.INTERRUPTED if outcome.interrupted else 0


def _claim_spent(run: 'Run', directory: 'RunDirectory') -> None:
  """Notes that this run counts from the file of --spent, so that no other run with a certificate does."""
  source = run.flags['spent']
  if source is None or not run.method.gives_certificate:
    return
  try:
    spents.claim(source, durable.Heir(directory.secret('heir').hex(), directory.path))
  except (OSError, ValueError) as error:
    raise run_folder.RunDirectoryError(f'--spent: {error}') from error


def _opening(experiment: 'Experiment', directory: Optional['RunDirectory']) -> Iterator[str]:
  """The lines that are printed before the first round."""
  run, federation = experiment.run, experiment.federation
  if directory is not None and not directory.is_new:
    yield f'Continuing the run in {directory.path}.'
  # How many examples clients have is a function of their data.
  counted = federation.num_examples if experiment.plan.client_metrics else None
  training_examples = f'{counted:,} training and ' if counted is not None else ''
  yield (
    f'{federation.name}: {federation.num_clients} clients ({federation.partition}), {training_examples}'
    f'{len(federation.test):,} test examples; model {experiment.model}.'
  )
  if _emulates_bfloat16(run):
    yield (
      'This CPU has no bfloat16 instructions, so bfloat16 is emulated, which takes many times as long as float32. '
      '--compute_dtype=float32 is faster here.'
    )
  attacked = run.attack(federation.num_clients)
  if attacked is not None:
    yield final_summary.malicious(attacked)
  yield from _sentences(experiment.plan.protection)[1]
  if run.method.interpretation:
    yield run.method.interpretation
  if run.by_rule:
    yield _by_rule(experiment)
  elif run.method.clip_follows_rounds:
    norm = experiment.plan.guarantee.clip.initial_norm
    yield (
      f'No clipping norm was given, so it is {norm:.4g}, by --rounds, --server_optimizer and the size of cohorts '
      "alone. To choose a better one without these clients' data, see docs/usage.md, "
      '"Choosing constants".'
    )
  if run.cohorts.participation.statement:
    yield run.cohorts.participation.statement
  if experiment.cohorts.secret:
    yield (
      'Cohorts secret: a round takes as long as its cohort is large. Keep this progress, and the times at which files '
      'change, as secret as the cohorts.'
    )
  noise_seed = run.flags['noise_seed']
  if noise_seed is not None:
    yield (
      f'--noise_seed={noise_seed} makes the noise reproducible: anyone who knows the seed can subtract it. '
      'For experiments only.'
    )


def _by_rule(experiment: 'Experiment') -> str:
  """The constants that the public rule chose."""
  run = experiment.run
  chosen = [f'--{name}={value}' for name, value in run.by_rule.items() if name != 'tuning']
  if run.method.clip_follows_rounds:
    chosen.append(f'a clipping norm of {experiment.plan.guarantee.clip.initial_norm:.4g}')
  return (
    f'Nobody gave these, so a public rule chose them, which looks at no data: {", ".join(chosen)}. See docs/usage.md, '
    '"Choosing constants".'
  )


def _emulates_bfloat16(run: 'Run') -> bool:
  config = run.runtime.config
  on_gpu = config.kind == 'in_process' and config.device != 'cpu' and tf.config.list_physical_devices('GPU')
  return run.local.compute_dtype == 'bfloat16' and not on_gpu and kernels.emulates_bfloat16()


def _print_summary(outcome: 'Outcome', summary: json_types.JsonView) -> None:
  experiment = outcome.experiment
  covered, _ = _sentences(outcome.report.protection)
  other_epsilon = final_summary.other_epsilon(experiment.run, experiment.plan, summary)
  left_out = final_summary.non_finite(*outcome.non_finite)
  guess = final_summary.guessed(outcome.test['accuracy'], experiment.federation.test.labels)
  text = final_summary.text(
    summary, covered, outcome.rounds_run, outcome.seconds, other_epsilon, left_out=left_out, guess=guess
  )
  print(f'\n{text}')
  print(final_summary.line(summary), flush=True)


def _sentences(protection: protections.Protection) -> tuple[list[str], list[str]]:
  """Sentences on the noise: its coverage, for the end of a run, and the others, for the beginning."""
  if protection.covers == protections.WEIGHTS_ONLY:  # Its statement says that every weight is noised.
    covered = [protection.statement]
  elif protection.covers == protections.NOTHING:  # Elsewhere the statement says what is in the logs.
    covered = [protection.noised, protection.statement, protection.exact_logs]
  else:
    covered = [protection.noised]
  return [line for line in covered if line], [line for note in protection.notes for line in note.splitlines()]


def _was_finished(summary: json_types.JsonView, path: str) -> int:
  print('The run was finished already; nothing was trained or written.', file=sys.stderr)
  summary = {**summary, 'output_dir': os.path.abspath(path)}
  print(final_summary.text(summary))
  print(final_summary.line(summary), flush=True)
  return 0


def _show_reading(done: int, total: int) -> None:
  end = '\n' if done == total else ''
  print(f'\rreading data {done}/{total}', end=end, file=sys.stderr, flush=True)


if __name__ == '__main__':
  command_line.run(main)
