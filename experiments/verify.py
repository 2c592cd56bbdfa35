r"""Verifies the certificate of a certified run: makes it again from the run's folder, and compares the two.

    python -m experiments.verify runs/mnist_certified
    python -m experiments.verify runs/mnist_certified --public_key=operator.pem
    python -m experiments.verify runs/mnist_certified --publish=handed_out

Prints one of four answers. Exit status 0: VALID, with the guarantee. Exit status 1: INVALID, with everything that is
wrong; or REFUTED, if all is consistent, but the audit in the folder refutes the claim. Exit status 2: CANNOT BE
VERIFIED, with the reason (no certificate there, a package is missing, …), or an error in the command.

The cohorts, each client's weights, the noise and the divisor are computed again from the flags. Each client's μ and ε
are computed again from the ledger. Every round must have had noise, and no client may have exceeded its budget. The
figures in metrics.csv and clients.csv must agree with the ledger, and summary.json is made again. Every file is
compared with its digest. A file that the certificate does not name is an error, and so are links, pipes and empty folders.

VALID means that the folder is consistent with a run that has this guarantee. It does not prove that the run took place,
or that the program did what its code says. Digests reveal mistakes and changes to some of the files. Only a signature
(--signing_key of experiments.train, --public_key here) says who made the folder. Without a signature, somebody could
make the whole folder anew, and nobody would notice. docs/privacy.md says how to read a certificate.
"""

import os
import shutil
import sys
from typing import NamedTuple, Optional

from absl import flags

from experiments import command_line
from experiments import folder_files
from experiments.folder_files import CannotTellError
from quap_tff.common import lazy

# They need packages, and a package that is missing is one of the answers.
certificates = lazy.module('quap_tff.accounting.certificate')
evidence = lazy.module('experiments.evidence')
folders = lazy.module('experiments.certificates')
record = lazy.module('experiments.auditing.record')
run_directory = lazy.module('experiments.run_directory')

# The exit status of each answer.
VALID, INVALID, CANNOT_TELL = 0, 1, 2

_FLAGS = command_line.new_flags()
_PUBLIC_KEY = flags.DEFINE_string(
  'public_key',
  None,
  'File with an Ed25519 public key (PEM). The certificate, and the audit if there is one, must have signatures that '
  'fit this key.',
  flag_values=_FLAGS,
)
_PUBLISH = flags.DEFINE_string(
  'publish',
  None,
  'New folder for a copy of what may be handed out: the certificate and the files whose digests it holds. Nothing is '
  'copied if the certificate is invalid or refuted.',
  flag_values=_FLAGS,
)


class Verdict(NamedTuple):
  """What was found in a folder.

  Attributes:
    problems: What is wrong, a sentence each. Empty if the certificate is valid.
    warnings: What a reader should know although it does not make the certificate invalid, a sentence each.
    notes: What a reader must know together with the statement, a sentence each.
    statement: The guarantee; '' if the certificate is not valid.
    refutation: What the audit in the folder says if it refutes the claim of the certificate, else ''.
  """

  problems: list[str]
  warnings: list[str]
  notes: list[str]
  statement: str
  refutation: str = ''


def verify(path: str, public_key: Optional[str] = None) -> Verdict:
  """Verifies the certificate in a run's folder. Changes nothing there.

  Args:
    path: The folder.
    public_key: File with the public key of the signer. If it is given, certificate and audit must be signed.

  Raises:
    CannotTellError: If there is no certificate to verify, or one of a version that this program does not know, or the
      public key cannot be read.
    ImportError: If a package is missing that verification needs.
  """
  key = _public_key(public_key) if public_key is not None else None
  found = folder_files.entries(path, without=run_directory.CHECKPOINTS)
  if evidence.CERTIFICATE not in (*found.files, *found.special):
    raise CannotTellError(f'{path} holds no {evidence.CERTIFICATE}. Only runs of --algorithm=certified have one.')
  try:
    certificate = folder_files.read_json(path, evidence.CERTIFICATE)
    version = certificate.get('version') if isinstance(certificate, dict) else None
    if type(version) is not int:
      raise folder_files.FolderError(f'{evidence.CERTIFICATE} is damaged: it is not a JSON object with a version.')
    if version not in certificates.VERSIONS:
      raise CannotTellError(
        f'the certificate has version {version}, and this program verifies the versions '
        f'{" and ".join(map(str, certificates.VERSIONS))}. Verify it with the program that issued it.'
      )
    kept = evidence.read(path, version)
  except folder_files.FolderError as error:
    return Verdict([str(error)], [], [], '')
  warnings, provenance = list(kept.warnings), dict(kept.provenance)
  said = certificate.get('provenance')
  code = said.get('code') if isinstance(said, dict) else None
  if code != provenance['code'] and isinstance(code, dict):
    warnings.append(f'The run was made by other code: {code}. This code is {provenance["code"]}.')
    provenance['code'] = code
  problems = kept.problems + certificates.problems(certificate, kept.ledger, kept.facts, provenance)
  problems += folders.audit_problems(path, certificate)
  is_current = version == certificates.VERSION
  if not problems and is_current and folders.page_differs(path, certificate):
    problems.append(f'{evidence.PAGE} does not match {evidence.CERTIFICATE}.')
  if key is not None:
    problems += folders.signature_problems(path, key, public_key)
  else:
    unchecked = [name for name in (evidence.SIGNATURE, record.SIGNATURE) if name in found.files]
    warnings += [f"{name} was not checked. To check it, give the signer's --public_key." for name in unchecked]
  if problems:
    return Verdict(problems, warnings, [], '')
  refutation = folders.refutation(path)
  if refutation:
    return Verdict([], warnings, [], '', refutation)
  issued = certificates.issue(kept.ledger, kept.facts, provenance)
  notes = _changes_of_code(provenance.get('stretches', []))
  if not is_current:
    notes.append(
      f'The certificate has version {version}. Its figures were computed again and agree. Its sentences and '
      f'{evidence.PAGE} were not compared: rely on the statement that follows, not on them. It does not say which '
      'code ran which rounds.'
    )
    if record.AUDIT in found.files:
      notes.append(f'The bounds in {record.AUDIT} were not computed again.')
  return Verdict([], warnings, notes, issued['statement'])


def _public_key(path):
  try:
    return folders.read_public_key(path)
  except ValueError as error:
    raise CannotTellError(str(error)) from None


def _changes_of_code(stretches) -> list[str]:
  """A sentence for each stretch of rounds, if they were run by different code."""
  if len({repr(stretch['code']) for stretch in stretches}) < 2:
    return []
  said = ['The rounds were run by different code. Nothing is known of what other code did:']
  for stretch in stretches:
    code = stretch['code']
    name = f'quap_tff {code["quap_tff"]}, source {code["source_sha256"]}' if code else 'code that was not recorded'
    said.append(f'  rounds {stretch["first_round"]} to {stretch["last_round"]}: {name}')
  return said


def publish(path: str, target: str):
  """Copies what may be handed out from a folder whose certificate is valid into a new folder.

  Raises:
    ValueError: If `target` already exists, or lies in the folder itself.
  """
  if os.path.lexists(target):
    raise ValueError(f'--publish={target} already exists: give a new folder.')
  source, place = os.path.realpath(path), os.path.realpath(target)
  if os.path.commonpath([source, place]) == source:
    raise ValueError(f"--publish={target} lies in the run's own folder. Give a new folder outside {path}.")
  certificate = folder_files.read_json(path, evidence.CERTIFICATE)
  unfinished = target.rstrip(os.sep) + run_directory.UNFINISHED
  shutil.rmtree(unfinished, ignore_errors=True)
  try:
    for name in [*certificate['provenance']['files_sha256'], *evidence.OWN]:
      if os.path.exists(os.path.join(path, name)):
        os.makedirs(os.path.dirname(os.path.join(unfinished, name)), exist_ok=True)
        shutil.copyfile(os.path.join(path, name), os.path.join(unfinished, name))
    os.rename(unfinished, target)
  except BaseException:
    shutil.rmtree(unfinished, ignore_errors=True)
    raise


def main(argv: list[str]) -> int:
  """Verifies the folder that `argv[1:]` names, and returns the exit status."""
  try:
    paths = command_line.parse(_FLAGS, argv)
    if _FLAGS.help:
      print(command_line.help_text(__doc__, _FLAGS))
      return VALID
    if len(paths) != 1:
      raise ValueError(
        f'Give exactly one folder to verify, found {len(paths)}. Usage: python -m experiments.verify DIR'
      )
    verdict = verify(paths[0], _PUBLIC_KEY.value)
    for warning in verdict.warnings:
      print(f'Warning: {warning}', file=sys.stderr)
    if verdict.problems:
      print('\n  '.join(['INVALID', *verdict.problems]))
      return INVALID
    if verdict.refutation:
      print(f'REFUTED: an audit refutes the claim of this certificate.\n  {verdict.refutation}')
      return INVALID
    print('\n'.join(['VALID', *verdict.notes, verdict.statement]))
    if _PUBLISH.value is not None:
      publish(paths[0], _PUBLISH.value)
      print(f'Published: {_PUBLISH.value}', file=sys.stderr)
    return VALID
  except (CannotTellError, ImportError) as error:
    print(f'CANNOT BE VERIFIED\n  {error}')
    return CANNOT_TELL
  except BrokenPipeError:
    raise
  except (ValueError, OSError) as error:
    print(f'Error: {command_line.error_text(error)}', file=sys.stderr)
    return CANNOT_TELL


if __name__ == '__main__':
  command_line.run(main)
