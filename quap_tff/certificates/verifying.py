"""Writes the folder of a certificate, and verifies it by making it again from its files."""

from collections.abc import Mapping, Sequence
import contextlib
import importlib
import os
import shutil
import sys
from typing import Any, Callable, NamedTuple, Optional

from quap_tff import accounting
from quap_tff.certificates import audits
from quap_tff.certificates import certificate as certificates
from quap_tff.certificates import gate_logs
from quap_tff.certificates import page
from quap_tff.certificates.folders import about as abouts
from quap_tff.certificates.folders import evidence
from quap_tff.certificates.folders import folder as folders
from quap_tff.certificates.folders import folder_files
from quap_tff.certificates.folders import signatures
from quap_tff.certificates.folders.folder_files import CannotTellError
from quap_tff.common import console
from quap_tff.common import files
from quap_tff.plans.accounts import run_account

# The exit status of each answer.
VALID, INVALID, CANNOT_TELL = 0, 1, 2


class Verdict(NamedTuple):
  """The result of a verification.

  Attributes:
    problems: The problems of the folder, a sentence each. Empty if the certificate is valid.
    warnings: Things that a reader should know although they do not make the certificate invalid, a sentence each.
    notes: Things that a reader must know together with the statement, a sentence each.
    statement: The guarantee; '' if the certificate is not valid.
    refutation: The verdict of the audit alongside the certificate if it refutes the claim, else ''.
    scope: What was looked at, and what was not, in sentences.
  """

  problems: list[str]
  warnings: list[str]
  notes: list[str]
  statement: str
  refutation: str = ''
  scope: str = ''


def remove(run_folder: str) -> None:
  """Removes the certificate of the run in a folder, and the audit that is bound to it, if they are there."""
  for name in (folders.AUDIT, folders.AUDIT_SIGNATURE):
    with contextlib.suppress(FileNotFoundError):
      os.remove(os.path.join(run_folder, name))
  path = os.path.join(run_folder, folders.SUBFOLDER)
  if os.path.lexists(path):
    # Under this name nobody takes a part of it for a certificate. A killed process may have left one.
    shutil.rmtree(path + files.UNFINISHED, ignore_errors=True)
    os.rename(path, path + files.UNFINISHED)
    shutil.rmtree(path + files.UNFINISHED)


def write_run(
  path: str,
  plan: run_account.RunAccount,
  leaving: run_account.Leaving,
  ledger: accounting.RunLedger,
  trainable: Sequence[Any],
  about: abouts.About,
  signing_key: Optional[str] = None,
) -> dict[str, Any]:
  """Writes a new folder with a certificate and all that it is bound to. It appears complete or not at all.

  What was written is read again and checked, as verification does it, before the certificate is made of it.

  Args:
    path: The folder, which must not exist: `certificate` in the folder of the run.
    plan: The plan of the run, with the shape of its model: that of `quap_tff.Plan.build_process`, or of a bundle.
    leaving: What leaves clients in a round, from the same.
    ledger: The run's ledger. A run may have ended before the last round of the plan's schedule.
    trainable: The released model: its trained tensors, as arrays.
    about: The facts that no file shows.
    signing_key: File with an Ed25519 private key (PEM) to sign the certificate with.

  Returns:
    The certificate.

  Raises:
    ValueError: If the folder exists, or the run gets no certificate. The message gives every reason.
  """
  if os.path.lexists(path):
    raise ValueError(f'{path} already exists: give a new folder.')
  key = signatures.read_private_key(signing_key) if signing_key is not None else None
  with files.new_folder(path) as unfinished:
    folders.write_files(unfinished, plan, leaving, ledger, trainable, about)
    content = folders.read(unfinished)
    if problems := evidence.run_problems(content):
      raise ValueError(f'This run cannot be certified. {" ".join(problems)}')
    certificate = certificates.make(content)
    files.write(os.path.join(unfinished, folders.PAGE), page.render(certificate))
    files.write_json(os.path.join(unfinished, folders.CERTIFICATE), certificate)
    signatures.sign(unfinished, folders.CERTIFICATE, key)
  return certificate


def read_certificate(path: str) -> dict[str, Any]:
  """The certificate in its folder, of the version that this program verifies.

  Raises:
    CannotTellError: If there is no such folder, no certificate in it, or one of another version.
    FolderError: If it is damaged.
  """
  entries = folder_files.entries(path)
  if folders.CERTIFICATE not in (*entries.files, *entries.special):
    raise CannotTellError(f'{path} holds no {folders.CERTIFICATE}. Only certified runs have one.')
  certificate = folder_files.read_json(path, folders.CERTIFICATE)
  folders.check_version(folders.CERTIFICATE, certificate)
  return certificate


def verify(path: str, public_key: Optional[str] = None) -> Verdict:
  """Verifies a certificate, and reads the audit alongside its folder if there is one. Changes nothing.

  Args:
    path: The folder of the certificate, or of a run that holds it. An audit is looked for in the latter alone.
    public_key: File with the Ed25519 public key (PEM) of the signer. If it is given, the certificate must have a page,
      and certificate and audit must be signed.

  Raises:
    CannotTellError: If there is no certificate to verify, or one of a version that this program does not know, or the
      public key cannot be read, or the run is too large to be verified here.
    ImportError: If a package is missing that verification needs.
  """
  try:
    key = signatures.read_public_key(public_key) if public_key is not None else None
  except ValueError as error:
    raise CannotTellError(str(error)) from None
  signed_by, audit, notes = public_key or '', None, list[str]()
  warnings = list[str]()
  try:
    folder = folders.certificate_folder(path)
    certificate = read_certificate(folder)
    is_of_gate = certificate.get('kind') == 'gate'
    if is_of_gate:
      problems = gate_logs.gate_problems(folder, certificate)
    else:
      content = folders.read(folder)
      warnings += _warnings(content)
      notes += _changes_of_code(content.about.stretches)
      problems = problems_of(content, certificate)
    if folder != path:
      audit = audits.read(path, certificate)
      problems += audit.problems if audit is not None else []
  except folder_files.FolderError as error:
    return Verdict([str(error)], [], [], '')
  if not problems and not is_of_gate:
    problems += _page_problems(folder, certificate, is_needed=key is not None)
  problems += signatures.signature_problems(folder, folders.CERTIFICATE, key, signed_by)
  if audit is not None:
    problems += signatures.signature_problems(path, folders.AUDIT, key, signed_by)
  if key is None:
    warnings += _unchecked_signatures(path, folder)
  if problems:
    return Verdict(problems, warnings, [], '')
  if audit is not None and audit.refutes:
    return Verdict([], warnings, [], '', audit.verdict)
  # The folder of a gate has no audit, and no run around it.
  scope = '' if is_of_gate else _scope(audit, is_alone=folder == path)
  return Verdict([], warnings, notes, certificate['statement'], scope=scope)


def _scope(audit: Optional[audits.Audit], is_alone: bool) -> str:
  """A sentence on what was looked at. `is_alone` says that the certificate's own folder was given."""
  if is_alone:
    return (
      f'No audit was looked for. It lies alongside the folder {folders.SUBFOLDER}/, and is read if the folder of the '
      'run is given.'
    )
  if audit is None:
    return f'Only {folders.SUBFOLDER}/ was checked. There is no audit alongside it; other files there were not read.'
  return (
    f'Only {folders.SUBFOLDER}/ was checked, and {folders.AUDIT} alongside it, whose figures the guarantee does not '
    f'cover. {audit.verdict}'
  )


def _unchecked_signatures(path: str, folder: str) -> list[str]:
  """A sentence for each signature that is there, if no key was given."""
  signed = ((folder, folders.SIGNATURE), (path, folders.AUDIT_SIGNATURE))
  there = [name for place, name in signed if os.path.lexists(os.path.join(place, name))]
  return [f"{name} was not checked. To check it, give the signer's --public_key." for name in there]


def problems_of(content: folders.Content, certificate: Any) -> list[str]:
  """The problems of a folder's files and of its certificate, a sentence each. Its page is left aside.

  Raises:
    FolderError: If a file is missing or damaged.
  """
  if problems := evidence.run_problems(content):
    return problems
  try:
    expected = certificates.make(content)
  except ValueError as error:
    return [str(error)]
  return certificates.text_problems(content.path, certificate, expected)


def _page_problems(path: str, certificate: Any, is_needed: bool) -> list[str]:
  if not os.path.lexists(os.path.join(path, folders.PAGE)):
    return [f'{folders.PAGE} is missing in {path}.'] if is_needed else []
  try:
    is_same = folder_files.read_text(path, folders.PAGE) == page.render(certificate)
  except folder_files.FolderError as error:
    return [str(error)]
  return [] if is_same else [f'{folders.PAGE} does not match {folders.CERTIFICATE}.']


def _warnings(content: folders.Content) -> list[str]:
  here = abouts.this_code()
  if content.code == here:
    return []
  return [f'The run was made by other code: {content.code}. This code is {here}.']


def _changes_of_code(stretches: Sequence[Mapping[str, Any]]) -> list[str]:
  """A sentence for each stretch of rounds, if they were run by different code."""
  if len({repr(stretch['code']) for stretch in stretches}) < 2:
    return []
  said = ['The rounds were run by different code. Nothing is known of what other code did:']
  for one in stretches:
    name = f'quap_tff {one["code"]["quap_tff"]}, source {one["code"]["source_sha256"]}'
    said.append(f'  rounds {one["first_round"]} to {one["last_round"]}: {name}')
  return said


def answer(find: Callable[[], Verdict], modules: Sequence[str] = ()) -> int:
  """Prints one of the four answers, and returns its exit status. Warnings go to standard error.

  Args:
    find: Verifies the folder.
    modules: Names of modules that are imported first, because they register choices that the folder names.
  """
  try:
    for name in modules:
      _import(name)
      say([f'Warning: The code of {name} was run. It could change every answer of this program.'], sys.stderr)
    verdict = find()
  except (CannotTellError, ImportError) as error:
    say(['CANNOT BE VERIFIED', f'  {error}'])
    return CANNOT_TELL
  except Exception as error:  # Whatever is in the folder, there is one of four answers.
    say(['CANNOT BE VERIFIED', f'  This folder shows a fault of this program: {type(error).__name__}: {error}'])
    return CANNOT_TELL
  say([f'Warning: {warning}' for warning in verdict.warnings], sys.stderr)
  if verdict.problems:
    say(['INVALID', *(f'  {problem}' for problem in verdict.problems)])
    return INVALID
  if verdict.refutation:
    say(['REFUTED: an audit refutes the claim of this certificate.', f'  {verdict.refutation}'])
    return INVALID
  say(['VALID', *verdict.notes, verdict.statement])
  if verdict.scope:
    say([verdict.scope])
  return VALID


def _import(name: str) -> None:
  try:
    importlib.import_module(name)
  except Exception as error:  # It may raise anything.
    raise CannotTellError(f'--import={name}: {type(error).__name__}: {error}') from None


def say(lines: Sequence[str], stream: Any = None) -> None:
  """Prints lines. The texts in them may be anybody's: no character of theirs ends a line or commands a terminal."""
  stream = sys.stdout if stream is None else stream
  for line in lines:
    encoding = stream.encoding or 'utf-8'
    print(console.shown(line).encode(encoding, 'backslashreplace').decode(encoding), file=stream)
