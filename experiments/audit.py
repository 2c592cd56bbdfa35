r"""Audits a method: puts canaries into runs of it, and compares the ε that they prove with the claimed ε.

    python -m experiments.audit --flagfile=experiments/presets/digits_audit.flags
    python -m experiments.audit --canaries=30 --dataset=digits --algorithm=fixed_dp --rounds=20
    python -m experiments.audit runs/mnist_certified --data_dir=DIR

The flags of experiments.train say what is audited. With the folder of a finished certified run, its own flags do. The
audit makes a run of its own. It has the cohorts, weights, noise and divisor of the run, but some clients are canaries:
each tosses a coin, and adds the most that it may, or nothing. Its model is thrown away. With a folder, the result is
written there as audit.json, which is bound to the certificate, and python -m quap_tff.verify reads both. If the
certificate is signed, --signing_key must be given, and audit.sig is a signature of audit.json. A certified run with
secret cohorts has no canaries, because they are scored by the rounds that they are in: the distinguishing game alone is
played.

An audit gives a lower bound on ε and a certificate an upper one. A lower bound above a claimed ε refutes the claim. A
lower bound below it proves nothing more than itself. docs/audits.md says how to read the figures, and what they
assume.

Progress goes to standard error. The last line of standard output is one JSON object with `claimed_epsilon`,
`epsilon_lower_bound`, `confidence`, `refuted`, and `canaries` if there are any. Exit status: 0, or 1 for wrong input or
a certified or formal claim that the audit refutes, or 130 when it was interrupted.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from typing import Any, Optional, TYPE_CHECKING

from absl import flags

from data import datasets
from experiments.command import command_line
from experiments.command import flags as experiment_flags
from experiments.command import interrupts
from experiments.command import run as run_lib
from experiments.folders import folder as run_folder
from quap_tff.certificates.folders import folder_files
from quap_tff.common import checks
from quap_tff.common import json_types
from quap_tff.common import lazy

if TYPE_CHECKING:
  from experiments.running import setup as setup_lib

# These load TensorFlow, so they wait until the flags are known to be right.
canary_run = lazy.module('experiments.auditing.canary_run')
game = lazy.module('experiments.auditing.game')
certificates = lazy.module('quap_tff.certificates.folders.folder')
verifying = lazy.module('quap_tff.certificates.verifying')
signatures = lazy.module('quap_tff.certificates.folders.signatures')
one_run = lazy.module('quap_tff.auditing.bounds.one_run')
record = lazy.module('quap_tff.certificates.audits')
runtime = lazy.module('quap_tff.runtime')
setup = lazy.module('experiments.running.setup')

_FLAGS = command_line.new_flags()
_CANARIES = flags.DEFINE_integer(
  'canaries',
  100,
  'Number of clients that are canaries: those that are planned to spend most of their budgets. More give a tighter '
  'bound.',
  flag_values=_FLAGS,
)
_UNSEEN = flags.DEFINE_integer(
  'unseen',
  1000,
  'Number of further random directions, which nobody adds. They show what chance gives.',
  flag_values=_FLAGS,
)
_REPEATS = flags.DEFINE_integer(
  'repeats', 1, 'Number of runs. Their canaries are counted together.', flag_values=_FLAGS
)
_CONFIDENCE = flags.DEFINE_float(
  'confidence',
  0.95,
  'Probability that all lower bounds hold, at least 0.5 and less than 1. The canaries and the game share the error.',
  flag_values=_FLAGS,
)
_PART = flags.DEFINE_enum(
  'part',
  'all',
  ['all', 'noised', 'unnoised'],
  'Layers in which canaries hide: all, only those with noise, or only those without noise.',
  flag_values=_FLAGS,
)
_DRAWS = flags.DEFINE_integer(
  'draws',
  200_000,
  "Simulations of each world in the distinguishing game, which is played on the mechanism's functions. 0: no game.",
  flag_values=_FLAGS,
)
_SIGNING_KEY = flags.DEFINE_string(
  'signing_key',
  None,
  'For a folder whose certificate is signed: file with the Ed25519 private key (PEM) that signed it, and that signs '
  'audit.json.',
  flag_values=_FLAGS,
)
_CANARY_SEED = flags.DEFINE_integer(
  'canary_seed', 1, "Seed of the canaries' random directions and coins.", flag_values=_FLAGS
)

# Flags of experiments.train that the audit of a folder may change: they do not change the result.
_WITH_FOLDER = ('data_dir', 'num_threads')
# With fewer draws, the game finds no attack.
_FEWEST_DRAWS = 100
# Flags of experiments.train that have no effect here.
_REFUSED = (
  'output_dir',
  'signing_key',
  'allow_code_change',
  'keep_checkpoints',
  'stop_at_accuracy',
  'checkpoint_every',
  'eval_every',
)


def main(argv: list[str]) -> int:
  """Audits what `argv[1:]` says; returns the exit status."""
  rest = command_line.parse(_FLAGS, argv, __doc__, known_only=True)  # With those of flag files.
  _check_own()
  folders = [argument for argument in rest if not argument.startswith('-')]
  if len(folders) > 1:
    raise ValueError(f'Give at most one folder to audit, found {len(folders)}: {", ".join(folders)}.')
  path = folders[0] if folders else None
  own_flags = [argument for argument in rest if argument not in folders]
  given = experiment_flags.names_in([argv[0], *own_flags])
  for name in given:
    if name in _REFUSED:
      raise ValueError(f'--{name}: an audit keeps no run, so this flag has no effect here. Leave it out.')
    if path is not None and name not in _WITH_FOLDER:
      raise ValueError(
        f'--{name}: the flags of the run in {path} say what is audited. Only {", ".join(_WITH_FOLDER)} may be given.'
      )
  certificate = key = None
  if path is not None:
    certificate, key = _certificate(path), _private_key(path)
  elif _SIGNING_KEY.value is not None:
    raise ValueError('--signing_key signs the audit of a folder: name the folder, or leave the flag out.')
  interrupts.install()
  with experiment_flags.parsed(own_flags) as values:
    if path is None:
      run = experiment_flags.checked_run(given)
    else:
      run = _run_of(path, {name: values[name].value for name in given})
      run.check()
    if run.cohorts.are_secret:
      _check_secret(run)
    measure = _measure_secret if run.cohorts.are_secret else _measure
    try:
      measured = measure(run)
    except Exception as error:  # pylint: disable=broad-except
      if interrupts.is_interrupt(error):
        raise KeyboardInterrupt from None  # TensorFlow has made another error of it.
      if not isinstance(error, runtime.RuntimeStackError):
        raise
      print(f'Error: {error}', file=sys.stderr)
      return command_line.FAILED
  print('\n'.join(f'{name + ":":34}{figure}' for name, figure in record.rows(measured)))
  print(record.verdict(measured))
  if path is not None:
    record.write_audit(path, measured, certificate)
    signatures.sign(path, certificates.AUDIT, key)
    print(f'Written: {os.path.join(path, record.AUDIT)}', file=sys.stderr)
  print(json.dumps({name: value for name, value in measured.items() if name != 'canary_clients'}), flush=True)
  return command_line.FAILED if measured['refuted'] and measured['claim'] in ('certified', 'formal') else 0


def _check_own() -> None:
  for flag in (_CANARIES, _UNSEEN, _REPEATS):
    checks.integer(f'--{flag.name}', flag.value, at_least=1)
  checks.integer('--canaries times --repeats', _CANARIES.value * _REPEATS.value, at_most=one_run.MOST_COINS)
  checks.number('--confidence', _CONFIDENCE.value, at_least=0.5, below=1)
  checks.integer('--canary_seed', _CANARY_SEED.value, at_least=0, at_most=2**62)
  if _DRAWS.value and _DRAWS.value < _FEWEST_DRAWS:
    raise ValueError(f'--draws must be 0, for no game, or at least {_FEWEST_DRAWS}, found {_DRAWS.value}.')


def _check_secret(run: run_lib.Run) -> None:
  """Raises `ValueError` if there is no audit of a run with secret cohorts, or a flag asks for canaries in it."""
  if not run.facts.is_certified:
    raise ValueError(
      '--cohort_seed=secret: canaries are scored by the rounds that they are in, and only certified runs have a game '
      'for secret coins. Audit --algorithm=certified, or leave this flag out.'
    )
  for flag in (_CANARIES, _UNSEEN, _REPEATS, _PART, _CANARY_SEED):
    if flag.present:
      raise ValueError(
        f'--{flag.name}: canaries are scored by the rounds that they are in, and cohorts are secret here. The '
        'distinguishing game takes their place. Leave this flag out.'
      )
  if not _DRAWS.value:
    raise ValueError('--draws=0: with secret cohorts the distinguishing game is the only test. Leave this flag out.')


def _measure_secret(run: run_lib.Run) -> json_types.JsonObject:
  """The game alone: nobody is trained, and no coin of the run plays a part in it."""
  experiment, draws, confidence = _experiment(run), _DRAWS.value, _CONFIDENCE.value
  plan = experiment.plan
  _say(f'playing the distinguishing game with {draws:,} draws of each world')
  with runtime.activate(experiment.runtime):
    played = game.play_secret(plan, draws, confidence)
  print(file=sys.stderr)
  measured = {
    'claimed_epsilon': plan.guarantee.config.epsilon,
    'claim': 'certified',
    'delta': plan.delta,
    'epsilon_lower_bound': played['epsilon_lower_bound'],
    'confidence': confidence,
    **_names(run),
    'game': played,
    'seconds': None,
  }
  return {**measured, 'refuted': record.refutes(measured)}


def _names(run: run_lib.Run) -> dict[str, str]:
  return {'algorithm': run.flags['algorithm'], 'dataset': datasets.portable(run.flags['dataset'])}


def _experiment(run: run_lib.Run) -> setup_lib.Experiment:
  lazy.load('experiments.running.setup')
  lazy.load('quap_tff.runtime.activation')  # With it, TFF leaves without a complaint, whatever happens.
  return setup.from_run(run)


def _measure(run: run_lib.Run) -> json_types.JsonObject:
  begin = time.monotonic()
  experiment = _experiment(run)
  schedule, draws = experiment.schedule[: run.last_round], _DRAWS.value
  with runtime.activate(experiment.runtime):
    own_game = game.game_for(experiment.plan, schedule, draws) if draws else None
    each = record.confidences(_CONFIDENCE.value, own_game is not None)
    settings = canary_run.Settings(
      _CANARIES.value, _UNSEEN.value, _REPEATS.value, each.canaries, _PART.value, _CANARY_SEED.value
    )
    result = canary_run.audit_run(experiment, settings, _say)
  played = None
  if own_game is not None:
    _say(f'playing the distinguishing game with {draws:,} draws of each world')
    played = game.play(own_game, draws, experiment.plan.delta, each.game)
  print(file=sys.stderr)
  measured = {
    **result.as_dict(),
    'confidence': _CONFIDENCE.value,
    'repeats': settings.repeats,
    'part': settings.part,
    **_names(run),
    'game': played,
    # They depend on how much data clients have, and audit.json is kept with a certified run.
    'seconds': round(time.monotonic() - begin, 1) if experiment.plan.client_metrics else None,
  }
  return {**measured, 'refuted': record.refutes(measured)}


def _certificate(path: str) -> json_types.JsonObject:
  """The certificate of a finished run's folder, which must be valid. An earlier audit and a page may be damaged."""
  folder = os.path.join(path, certificates.SUBFOLDER)
  try:
    certificate = verifying.read_certificate(folder)
    if not verifying.problems_of(certificates.read(folder), certificate):
      return certificate
  except folder_files.CannotTellError as error:
    raise ValueError(f'{path} has no certificate to audit: {error}') from None
  except folder_files.FolderError:
    pass
  raise ValueError(f'{path} has no valid certificate: python -m quap_tff.verify {shlex.quote(path)} says why.')


def _private_key(path: str) -> Optional[Any]:
  """The key that signs the audit of a folder; None if its certificate is not signed."""
  key_file, folder = _SIGNING_KEY.value, os.path.join(path, certificates.SUBFOLDER)
  if not os.path.lexists(os.path.join(folder, certificates.SIGNATURE)):
    if key_file is not None:
      raise ValueError(
        f'--signing_key: the certificate in {path} is not signed, so its audit is not signed either. Leave the flag '
        'out.'
      )
    return None
  if key_file is None:
    raise ValueError(
      f'The certificate in {path} is signed, so its audit must be: give --signing_key, the key of the certificate. '
      f'Without a signature, quap_tff.verify --public_key would find that the folder is invalid. To audit without '
      f'the key, audit a copy of the folder from which {certificates.SIGNATURE} was removed.'
    )
  key = signatures.read_private_key(key_file)
  problems = signatures.signature_problems(folder, certificates.CERTIFICATE, key.public_key(), key_file)
  if problems:
    raise ValueError(f'--signing_key: {" ".join(problems)} Give the key that signed the certificate.')
  return key


def _run_of(path: str, given: json_types.JsonView) -> run_lib.Run:
  """The run of a folder, with flags that may differ."""
  with folder_files.damage(f'{run_folder.RUN} in {path}'):
    run = run_lib.Run.from_json(folder_files.read_json(path, run_folder.RUN), path)
  return run_lib.Run.from_flags({**run.flags, **given})


def _say(text: str, is_whole_run: bool = True) -> None:
  if sys.stderr.isatty():
    print(f'\r\x1b[K{text}', end='', file=sys.stderr, flush=True)
  elif is_whole_run:
    print(text, file=sys.stderr, flush=True)  # In a log, a line for each run is enough.


if __name__ == '__main__':
  command_line.run(main)
