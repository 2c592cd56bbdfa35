"""Issues the certificate of a folder from its files, and verifies it by making it again."""

from collections.abc import Mapping, Sequence
import importlib
import os
import shutil
import sys
from typing import Any, Callable, NamedTuple, Optional, Union

import numpy as np

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

# A function from the content of a folder to further problems of it.
Check = Callable[[folders.Content], list[str]]


class Verdict(NamedTuple):
  """The result of a verification.

  Attributes:
    problems: The problems of the folder, a sentence each. Empty if the certificate is valid.
    warnings: Things that a reader should know although they do not make the certificate invalid, a sentence each.
    notes: Things that a reader must know together with the statement, a sentence each.
    statement: The guarantee; '' if the certificate is not valid.
    refutation: The verdict of the audit in the folder if it refutes the claim of the certificate, else ''.
    unchecked: The parts of the folder's files that may hold anything, which the statement is not about.
  """

  problems: list[str]
  warnings: list[str]
  notes: list[str]
  statement: str
  refutation: str = ''
  unchecked: Sequence[str] = ()


def write_run(
  path: str,
  plan: run_account.RunAccount,
  leaving: run_account.Leaving,
  ledger: accounting.RunLedger,
  model: Union[str, os.PathLike, Sequence[Any]],
  about: abouts.About,
  signing_key: Optional[str] = None,
) -> dict[str, Any]:
  """Writes a new folder with a certificate and all that it is bound to. It appears complete or not at all.

  Args:
    path: The folder, which must not exist.
    plan: The plan of the run, with the shape of its model: that of `quap_tff.Plan.build_process`, or of a bundle.
    leaving: What leaves clients in a round, from the same.
    ledger: The run's ledger. A run may have ended before the last round of the plan's schedule.
    model: A Keras file (.keras) of the released model, or its weights: the trained tensors, as arrays.
    about: The facts that no file shows.
    signing_key: File with an Ed25519 private key (PEM) to sign the certificate with.

  Returns:
    The certificate.

  Raises:
    ValueError: If the folder exists, or the run gets no certificate. The message gives every reason.
  """
  if os.path.lexists(path):
    raise ValueError(f'{path} already exists: give a new folder.')
  with files.new_folder(path) as unfinished:
    folders.write_files(unfinished, plan, leaving, ledger, about)
    if isinstance(model, (str, os.PathLike)):
      shutil.copyfile(model, os.path.join(unfinished, folders.KERAS_MODEL))
    else:
      arrays = {f'arr_{index}': np.asarray(tensor) for index, tensor in enumerate(model)}
      files.write(os.path.join(unfinished, folders.ARRAYS_MODEL), files.npz(arrays))
    return issue(unfinished, signing_key)


def issue(folder: str, signing_key: Optional[str] = None, check: Optional[Check] = None) -> dict[str, Any]:
  """Makes the certificate of a run that has ended, and writes it. The page is written first.

  Args:
    folder: The run's folder, with the files that `quap_tff.certificates.folders.folder` names.
    signing_key: File with an Ed25519 private key (PEM) to sign the certificate with.
    check: Finds further problems of the folder.

  Returns:
    The certificate.

  Raises:
    ValueError: If the run gets no certificate. Then an earlier certificate is also removed.
    FolderError: If a file is missing or damaged.
  """
  key = signatures.read_private_key(signing_key) if signing_key is not None else None
  remove(folder)
  content = folders.read(folder)
  problems = _problems(content, check)
  if problems:
    raise ValueError(f'This run cannot be certified. {" ".join(problems)}')
  certificate = certificates.make(content)
  write_page(folder, certificate, None)
  files.write_json(os.path.join(folder, folders.CERTIFICATE), certificate)
  signatures.sign(folder, folders.CERTIFICATE, key)
  return certificate


def write_page(path: str, certificate: Any, audit: Optional[audits.Audit]) -> None:
  """Writes the certificate's page."""
  files.write(os.path.join(path, folders.PAGE), page.render(certificate, audit))


def remove(path: str) -> None:
  """Removes the certificate, its page, its audit, and the signatures of both."""
  for name in folders.OWN:
    if os.path.lexists(os.path.join(path, name)):
      os.remove(os.path.join(path, name))


def read_certificate(path: str) -> dict[str, Any]:
  """The certificate in a folder, of the version that this program verifies.

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


def verify(folder: str, public_key: Optional[str] = None, check: Optional[Check] = None) -> Verdict:
  """Verifies the certificate in a folder. Changes nothing there.

  Args:
    folder: The folder.
    public_key: File with the Ed25519 public key (PEM) of the signer. If it is given, the certificate must have a page,
      and certificate and audit must be signed.
    check: Finds further problems of the folder.

  Raises:
    CannotTellError: If there is no certificate to verify, or one of a version that this program does not know, or the
      public key cannot be read, or the run is too large to be verified here.
    ImportError: If a package is missing that verification needs.
  """
  try:
    key = signatures.read_public_key(public_key) if public_key is not None else None
  except ValueError as error:
    raise CannotTellError(str(error)) from None
  warnings: list[str] = []
  audit: Optional[audits.Audit] = None
  try:
    certificate = read_certificate(folder)
    if certificate.get('kind') == 'gate':
      problems = gate_logs.gate_problems(folder, certificate)
      problems += signatures.signature_problems(folder, folders.CERTIFICATE, key, public_key or '')
      return Verdict(problems, _unchecked(folder, key), [], '' if problems else certificate['statement'])
    content = folders.read(folder)
    warnings += _warnings(content, check is not None)
    problems = problems_of(content, certificate, check)
    audit = audits.read(folder, certificate)
    problems += audit.problems if audit is not None else []
  except folder_files.FolderError as error:
    return Verdict([str(error)], [], [], '')
  if not problems:
    problems += _page_problems(folder, certificate, audit, is_needed=key is not None)
  signed = [folders.CERTIFICATE, *([folders.AUDIT] if audit is not None else [])]
  problems += [one for name in signed for one in signatures.signature_problems(folder, name, key, public_key or '')]
  warnings += _unchecked(folder, key)
  if problems:
    return Verdict(problems, warnings, [], '')
  if audit is not None and audit.refutes:
    return Verdict([], warnings, [], '', audit.verdict)
  unchecked = certificate['provenance']['unchecked']
  return Verdict([], warnings, _changes_of_code(content.about.stretches), certificate['statement'], unchecked=unchecked)


def _unchecked(folder: str, key: Any) -> list[str]:
  """A sentence for each signature that no key was given for."""
  names = (folders.SIGNATURE, folders.AUDIT_SIGNATURE) if key is None else ()
  there = [name for name in names if os.path.lexists(os.path.join(folder, name))]
  return [f"{name} was not checked. To check it, give the signer's --public_key." for name in there]


def problems_of(content: folders.Content, certificate: Any, check: Optional[Check] = None) -> list[str]:
  """The problems of a folder's files and of its certificate, a sentence each. Its page and audit are left aside.

  Raises:
    FolderError: If a file is missing or damaged.
  """
  if problems := _problems(content, check):
    return problems
  try:
    expected = certificates.make(content)
  except ValueError as error:
    return [str(error)]
  return certificates.text_problems(content.path, certificate, expected)


def _problems(content: folders.Content, check: Optional[Check]) -> list[str]:
  return evidence.run_problems(content) or (check(content) if check is not None else [])


def _page_problems(path: str, certificate: Any, audit: Optional[audits.Audit], is_needed: bool) -> list[str]:
  if not os.path.lexists(os.path.join(path, folders.PAGE)):
    return [f'{folders.PAGE} is missing in {path}.'] if is_needed else []
  try:
    is_same = folder_files.read_text(path, folders.PAGE) == page.render(certificate, audit)
  except folder_files.FolderError as error:
    return [str(error)]
  return [] if is_same else [f'{folders.PAGE} does not match {folders.CERTIFICATE}.']


def _warnings(content: folders.Content, is_checked: bool) -> list[str]:
  warnings, here = [], abouts.this_code()
  if content.code != here:
    warnings.append(f'The run was made by other code: {content.code}. This code is {here}.')
  return warnings + content.program.warnings(content.path, is_checked)


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
  if verdict.unchecked:
    say([f'Not checked, and not covered by this statement: {"; ".join(verdict.unchecked)}.'])
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
