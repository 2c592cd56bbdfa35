"""The certificate in a run's folder. It is issued from the files there when a run ends, and made again to verify it.

    certificate.json    what each client has spent, and what the guarantee rests on
    certificate.html    the same for people
    certificate.sig     an Ed25519 signature of certificate.json, if the run was given a key
    audit.json          what an audit measured (experiments.audit), and audit.sig, a signature of it

A certificate is bound to every other file in the folder by its SHA-256, and to what follows from the flags: cohorts,
weights, noise, divisor and facts. `experiments.evidence` recomputes everything that can be recomputed.
"""

import base64
from collections.abc import Mapping
import json
import os
from typing import Any, Optional

from experiments import certificate_page
from experiments import evidence as evidence_lib
from experiments import folder_files
from experiments import run_directory
from experiments.auditing import record
from experiments.evidence import CERTIFICATE
from experiments.evidence import OWN
from experiments.evidence import PAGE
from experiments.evidence import SIGNATURE
from quap_tff.accounting import certificate as certificates
from quap_tff.common import lazy

ed25519 = lazy.module('cryptography.hazmat.primitives.asymmetric.ed25519')
serialization = lazy.module('cryptography.hazmat.primitives.serialization')

_SIGNATURES = {CERTIFICATE: SIGNATURE, record.AUDIT: record.SIGNATURE}


def write(path: str, signing_key: Optional[str] = None) -> dict[str, Any]:
  """Issues the certificate of a run that has ended, and writes it. The page is written first.

  Args:
    path: The run's folder, with its other files in place.
    signing_key: File with an Ed25519 private key to sign the certificate with.

  Returns:
    The certificate.

  Raises:
    ValueError: If the run gets no certificate. An earlier certificate is removed then, too.
    FolderError: If a file is missing or damaged.
  """
  remove(path)
  evidence = evidence_lib.read(path)
  if evidence.problems:
    raise ValueError(f'This run cannot be certified. {" ".join(evidence.problems)}')
  certificate = certificates.issue(evidence.ledger, evidence.facts, evidence.provenance)
  text = json.dumps(certificate, indent=2, ensure_ascii=False, allow_nan=False) + '\n'
  contents = {PAGE: certificate_page.render(certificate)}
  if signing_key is not None:
    contents[SIGNATURE] = signature_of(text.encode(), read_private_key(signing_key))
  for name, content in {**contents, CERTIFICATE: text}.items():
    unfinished = os.path.join(path, name + run_directory.UNFINISHED)
    with open(unfinished, 'w', encoding='utf-8') as f:
      f.write(content)
    os.replace(unfinished, os.path.join(path, name))
  return certificate


def remove(path: str):
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
  except Exception as error:  # cryptography raises its own errors, and TypeError for a key with a password.
    raise ValueError(f'{path} must hold a PEM key without a password: {error}') from None
  if not isinstance(key, getattr(ed25519, kind)):
    raise ValueError(f'{path} must hold an {kind}, found {type(key).__name__}.')
  return key


def signature_of(content: bytes, private_key: Any) -> str:
  """The text of a file with the signature of another file's content."""
  return base64.b64encode(private_key.sign(content)).decode() + '\n'


def sign_audit(path: str, private_key: Optional[Any]):
  """Signs the folder's audit. Without a key, the signature of an earlier audit is removed."""
  target = os.path.join(path, record.SIGNATURE)
  if private_key is None:
    if os.path.lexists(target):
      os.remove(target)
    return
  with open(os.path.join(path, record.AUDIT), 'rb') as f:
    text = signature_of(f.read(), private_key)
  with open(target + run_directory.UNFINISHED, 'w', encoding='utf-8') as f:
    f.write(text)
  os.replace(target + run_directory.UNFINISHED, target)


def signature_problems(path: str, key: Any, source: str) -> list[str]:
  """What is wrong with the signatures of the folder's certificate and, if there is one, of its audit, a sentence each.

  Args:
    path: The folder.
    key: The signer's Ed25519 public key.
    source: What the key is called in the sentences.
  """
  found = problems_of_signature(path, CERTIFICATE, key, source)
  if any(os.path.lexists(os.path.join(path, name)) for name in (record.AUDIT, record.SIGNATURE)):
    found += problems_of_signature(path, record.AUDIT, key, source)
  return found


def problems_of_signature(path: str, name: str, key: Any, source: str) -> list[str]:
  """As above, of one of the two files."""
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


def write_page(path: str, certificate: Mapping[str, Any]):
  """Writes the certificate's page anew, with the audit that is now in the folder."""
  target = os.path.join(path, PAGE)
  with open(target + run_directory.UNFINISHED, 'w', encoding='utf-8') as f:
    f.write(certificate_page.render(certificate, _audit(path)))
  os.replace(target + run_directory.UNFINISHED, target)


def audit_problems(path: str, certificate: Mapping[str, Any]) -> list[str]:
  """What is wrong with the audit in the folder, a sentence each; nothing if there is no audit."""
  try:
    found = _audit(path)
  except folder_files.FolderError as error:
    return [str(error)]
  return record.problems(found, certificate) if found is not None else []


def refutation(path: str) -> str:
  """What the audit in the folder, which has no problems, says if it refutes the claim; '' if it does not."""
  found = _audit(path)
  return record.verdict(found) if found is not None and record.refutes(found) else ''


def _audit(path):
  return record.of_folder(path, folder_files.read_json)


def page_differs(path: str, certificate: Mapping[str, Any]) -> bool:
  """Whether the folder has a page that differs from the one that the certificate gives. It may have no page."""
  if not os.path.lexists(os.path.join(path, PAGE)):
    return False
  try:
    with open(folder_files.check_regular(path, PAGE), encoding='utf-8', newline='') as f:
      return f.read() != certificate_page.render(certificate, _audit(path))
  except (OSError, ValueError):
    return True
