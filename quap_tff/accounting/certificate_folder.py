"""The certificate in a folder: issued from the files there, bound to them, and made again to verify it.

    certificate.json    what each client has spent, and what the guarantee rests on
    certificate.html    the same for people
    certificate.sig     an Ed25519 signature of certificate.json, if a key was given
    audit.json          what an audit measured (experiments.audit), and audit.sig, a signature of it

A certificate is bound to every other file in the folder by its SHA-256. A function from a folder to its `Evidence`
computes again all that follows from these files. There is one for each origin: `quap_tff.plans.certificates` for
folders that library code has written, `experiments.evidence` for runs of experiments.train.
"""

import base64
from collections.abc import Mapping
import json
import os
import sys
from typing import Any, Callable, NamedTuple, Optional

from quap_tff.accounting import certificate as certificates
from quap_tff.accounting import certificate_page
from quap_tff.accounting import folder_files
from quap_tff.accounting.certificate_evidence import Evidence
from quap_tff.accounting.certificate_page import Audit
from quap_tff.accounting.folder_files import CannotTellError
from quap_tff.common import files
from quap_tff.common import lazy

ed25519 = lazy.module('cryptography.hazmat.primitives.asymmetric.ed25519')
serialization = lazy.module('cryptography.hazmat.primitives.serialization')

CERTIFICATE, PAGE, SIGNATURE = 'certificate.json', 'certificate.html', 'certificate.sig'
AUDIT, AUDIT_SIGNATURE = 'audit.json', 'audit.sig'
CHECKPOINTS = 'checkpoints'
# Files that are made from the certificate, or after it.
OWN = (CERTIFICATE, PAGE, SIGNATURE, AUDIT, AUDIT_SIGNATURE)
_SIGNATURES = {CERTIFICATE: SIGNATURE, AUDIT: AUDIT_SIGNATURE}

# The exit status of each answer.
VALID, INVALID, CANNOT_TELL = 0, 1, 2


class Verdict(NamedTuple):
  """The result of a verification.

  Attributes:
    problems: The problems of the folder, a sentence each. Empty if the certificate is valid.
    warnings: Things that a reader should know although they do not make the certificate invalid, a sentence each.
    notes: Things that a reader must know together with the statement, a sentence each.
    statement: The guarantee; '' if the certificate is not valid.
    refutation: The verdict of the audit in the folder if it refutes the claim of the certificate, else ''.
  """

  problems: list[str]
  warnings: list[str]
  notes: list[str]
  statement: str
  refutation: str = ''


def write(path: str, read: Callable[[str], Evidence], signing_key: Optional[str] = None) -> dict[str, Any]:
  """Issues the certificate of a run that has ended, and writes it. The page is written first.

  Args:
    path: The run's folder, with its other files in place.
    read: A function from the folder to its evidence.
    signing_key: File with an Ed25519 private key to sign the certificate with.

  Returns:
    The certificate.

  Raises:
    ValueError: If the run gets no certificate. An earlier certificate is removed then, too.
    FolderError: If a file is missing or damaged.
  """
  remove(path)
  evidence = read(path)
  if evidence.problems:
    raise ValueError(f'This run cannot be certified. {" ".join(evidence.problems)}')
  certificate = certificates.issue(evidence.ledger, evidence.facts, evidence.provenance)
  text = json.dumps(certificate, indent=2, ensure_ascii=False, allow_nan=False) + '\n'
  key = read_private_key(signing_key) if signing_key is not None else None
  write_page(path, certificate, None)
  if key is not None:
    files.write(os.path.join(path, SIGNATURE), signature_of(text.encode(), key))
  files.write(os.path.join(path, CERTIFICATE), text)
  return certificate


def write_page(path: str, certificate: Mapping[str, Any], audit: Optional[Audit]) -> None:
  """Writes the certificate's page."""
  files.write(os.path.join(path, PAGE), certificate_page.render(certificate, audit))


def remove(path: str) -> None:
  """Removes the certificate, its page, its audit, and the signatures of both."""
  for name in OWN:
    if os.path.exists(os.path.join(path, name)):
      os.remove(os.path.join(path, name))


def read_private_key(path: str) -> Any:
  """The Ed25519 private key in a PEM file. Raises a `ValueError` that says what is wrong."""
  return _read_key(path, lambda content: serialization.load_pem_private_key(content, None), 'Ed25519PrivateKey')


def read_public_key(path: str) -> Any:
  """The Ed25519 public key in a PEM file. Raises a `ValueError` that says what is wrong."""
  return _read_key(path, serialization.load_pem_public_key, 'Ed25519PublicKey')


def _read_key(path, load, kind):
  try:
    with open(path, 'rb') as f:
      key = load(f.read())
  except OSError as error:
    raise ValueError(f'The key {path} cannot be read: {error.strerror}.') from None
  except ImportError:
    raise
  except Exception as error:  # cryptography raises its own errors, and TypeError for a key with a password.
    raise ValueError(f'{path} must hold a PEM key without a password: {error}') from None
  if not isinstance(key, getattr(ed25519, kind)):
    raise ValueError(f'{path} must hold an {kind}, found {type(key).__name__}.')
  return key


def signature_of(content: bytes, private_key: Any) -> str:
  """The text of a file with the signature of another file's content."""
  return base64.b64encode(private_key.sign(content)).decode() + '\n'


def sign_audit(path: str, private_key: Optional[Any]) -> None:
  """Signs the folder's audit. Without a key, the signature of an earlier audit is removed."""
  target = os.path.join(path, AUDIT_SIGNATURE)
  if private_key is not None:
    with open(os.path.join(path, AUDIT), 'rb') as f:
      files.write(target, signature_of(f.read(), private_key))
  elif os.path.lexists(target):
    os.remove(target)


def problems_of_signature(path: str, name: str, key: Any, source: str) -> list[str]:
  """The problems of the signature of the folder's certificate or audit, a sentence each.

  Args:
    path: The folder.
    name: `CERTIFICATE` or `AUDIT`.
    key: The signer's Ed25519 public key.
    source: The name of the key in the sentences.
  """
  signature = _SIGNATURES[name]
  try:
    with open(folder_files.check_regular(path, name), 'rb') as f:
      content = f.read()
    if not os.path.lexists(os.path.join(path, signature)):
      return [f'{signature} is missing in {path}: {name} is not signed.']
    with open(folder_files.check_regular(path, signature), 'rb') as f:
      found = base64.b64decode(f.read(), validate=False)
  except (OSError, ValueError) as error:
    return [f'{signature} cannot be checked: {error}']
  try:
    key.verify(found, content)
  except Exception:  # cryptography.exceptions.InvalidSignature
    return [f'{signature} is not a signature of {name} with the key of {source}.']
  return []


def read_certificate(path: str, found: folder_files.Entries) -> dict[str, Any]:
  """The certificate in a folder, of a version that this program verifies; `found` is what lies there.

  Raises:
    CannotTellError: If there is none, or it is of another version.
    FolderError: If it is damaged.
  """
  if CERTIFICATE not in (*found.files, *found.special):
    raise CannotTellError(f'{path} holds no {CERTIFICATE}. Only runs of --algorithm=certified have one.')
  certificate = folder_files.read_json(path, CERTIFICATE)
  version = certificate.get('version') if isinstance(certificate, dict) else None
  if type(version) is not int:
    raise folder_files.FolderError(f'{CERTIFICATE} is damaged: it is not a JSON object with a version.')
  if version not in certificates.VERSIONS:
    raise CannotTellError(
      f'the certificate has version {version}, and this program verifies the versions '
      f'{" and ".join(map(str, certificates.VERSIONS))}. Verify it with the program that issued it.'
    )
  return certificate


def verify(
  path: str,
  read: Callable[[str, Mapping[str, Any]], Evidence],
  read_audit: Callable[[str, Mapping[str, Any]], Optional[Audit]],
  public_key: Optional[str] = None,
) -> Verdict:
  """Verifies the certificate in a folder. Changes nothing there.

  Args:
    path: The folder.
    read: A function from (folder, certificate) to the evidence.
    read_audit: A function from (folder, certificate) to the audit in the folder, or None.
    public_key: File with the public key of the signer. If it is given, certificate and audit must be signed.

  Raises:
    CannotTellError: If there is no certificate to verify, or one of a version that this program does not know, or the
      public key cannot be read, or something cannot be computed again here and everything else is right.
    ImportError: If a package is missing that verification needs.
  """
  key = _public_key(public_key) if public_key is not None else None
  found = folder_files.entries(path, without=CHECKPOINTS)
  try:
    certificate = read_certificate(path, found)
    kept = read(path, certificate)
  except folder_files.FolderError as error:
    return Verdict([str(error)], [], [], '')
  warnings, provenance = list(kept.warnings), dict(kept.provenance)
  said = certificate.get('provenance')
  code = said.get('code') if isinstance(said, dict) else None
  if code != provenance['code'] and isinstance(code, dict):
    warnings.append(f'The run was made by other code: {code}. This code is {provenance["code"]}.')
    provenance['code'] = code
  problems = kept.problems + certificates.problems(certificate, kept.ledger, kept.facts, provenance)
  audit = None
  try:
    audit = read_audit(path, certificate)
    problems += audit.problems if audit is not None else []
  except folder_files.FolderError as error:
    problems.append(str(error))
  is_current = certificate['version'] == certificates.VERSION
  # The page of a folder whose audit is not read here shows that audit.
  is_comparable = is_current and (audit is not None or AUDIT not in found.files)
  if not problems and is_comparable and _page_differs(path, certificate, audit):
    problems.append(f'{PAGE} does not match {CERTIFICATE}.')
  if key is not None and public_key is not None:
    problems += problems_of_signature(path, CERTIFICATE, key, public_key)
    if any(os.path.lexists(os.path.join(path, name)) for name in (AUDIT, AUDIT_SIGNATURE)):
      problems += problems_of_signature(path, AUDIT, key, public_key)
  else:
    unchecked = [name for name in (SIGNATURE, AUDIT_SIGNATURE) if name in found.files]
    warnings += [f"{name} was not checked. To check it, give the signer's --public_key." for name in unchecked]
  if problems:
    return Verdict(problems, warnings, [], '')
  if audit is not None and audit.refutes:
    return Verdict([], warnings, [], '', audit.verdict)
  if kept.missing or (AUDIT in found.files and audit is None):
    raise CannotTellError(kept.missing or f'{AUDIT} cannot be checked here.')
  notes = _changes_of_code(provenance.get('stretches', []))
  if not is_current:
    notes += _notes_on_earlier(certificate['version'], AUDIT in found.files)
  return Verdict([], warnings, notes, certificates.issue(kept.ledger, kept.facts, provenance)['statement'])


def _public_key(path):
  try:
    return read_public_key(path)
  except ValueError as error:
    raise CannotTellError(str(error)) from None


def _page_differs(path: str, certificate: Mapping[str, Any], audit: Optional[Audit]) -> bool:
  """Whether the folder has a page that differs from the one that the certificate gives. It may have no page."""
  if not os.path.lexists(os.path.join(path, PAGE)):
    return False
  try:
    with open(folder_files.check_regular(path, PAGE), encoding='utf-8', newline='') as f:
      return f.read() != certificate_page.render(certificate, audit)
  except (OSError, ValueError):
    return True


def _notes_on_earlier(version: int, has_audit: bool) -> list[str]:
  """The things that are not compared in a certificate of an earlier version."""
  return [
    f'The certificate has version {version}. Its figures were computed again and agree. Its sentences and '
    f'{PAGE} were not compared: rely on the statement that follows, not on them. It does not say which '
    'code ran which rounds.',
    *([f'The bounds in {AUDIT} were not computed again.'] if has_audit else []),
  ]


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


def answer(find: Callable[[], Verdict]) -> int:
  """Prints one of the four answers, and returns its exit status. Warnings go to standard error."""
  try:
    verdict = find()
  except (CannotTellError, ImportError) as error:
    print(f'CANNOT BE VERIFIED\n  {error}')
    return CANNOT_TELL
  for warning in verdict.warnings:
    print(f'Warning: {warning}', file=sys.stderr)
  if verdict.problems:
    print('\n  '.join(['INVALID', *verdict.problems]))
    return INVALID
  if verdict.refutation:
    print(f'REFUTED: an audit refutes the claim of this certificate.\n  {verdict.refutation}')
    return INVALID
  print('\n'.join(['VALID', *verdict.notes, verdict.statement]))
  return VALID
