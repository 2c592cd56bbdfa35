"""Ed25519 signatures of a certificate and of its audit, in files of one line: the signature in base64."""

import base64
import binascii
import os
from typing import Any, Callable, Optional

from quap_tff.certificates.folders import folder as folders
from quap_tff.certificates.folders import folder_files
from quap_tff.common import files
from quap_tff.common import lazy

ed25519 = lazy.module('cryptography.hazmat.primitives.asymmetric.ed25519')
serialization = lazy.module('cryptography.hazmat.primitives.serialization')

_BYTES = 64
# The signature of each file that can be signed.
_SIGNATURES = {folders.CERTIFICATE: folders.SIGNATURE, folders.AUDIT: folders.AUDIT_SIGNATURE}


def read_private_key(path: str) -> Any:
  """The Ed25519 private key in a PEM file. Raises a `ValueError` that says what is wrong."""
  return _read_key(path, lambda content: serialization.load_pem_private_key(content, None), 'Ed25519PrivateKey')


def read_public_key(path: str) -> Any:
  """The Ed25519 public key in a PEM file. Raises a `ValueError` that says what is wrong."""
  return _read_key(path, serialization.load_pem_public_key, 'Ed25519PublicKey')


def _read_key(path: str, load: Callable[[bytes], Any], kind: str) -> Any:
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


def sign(path: str, name: str, private_key: Optional[Any]) -> None:
  """Signs the folder's certificate or audit. Without a key, an earlier signature is removed."""
  target = os.path.join(path, _SIGNATURES[name])
  if private_key is not None:
    with open(os.path.join(path, name), 'rb') as f:
      files.write(target, _line(private_key.sign(f.read())))
  elif os.path.lexists(target):
    os.remove(target)


def signature_problems(path: str, name: str, key: Optional[Any] = None, source: str = '') -> list[str]:
  """The problems of the signature of the folder's certificate or audit, a sentence each.

  Args:
    path: The folder.
    name: `folder.CERTIFICATE` or `folder.AUDIT`.
    key: The signer's Ed25519 public key. Without it, a signature need not be there, but must be one.
    source: The name of the key in the sentences.
  """
  signature = _SIGNATURES[name]
  if not os.path.lexists(os.path.join(path, signature)):
    return [] if key is None else [f'{signature} is missing in {path}: {name} is not signed.']
  try:
    line = folder_files.read_text(path, signature)
    signed = base64.b64decode(line.rstrip('\n'), validate=True)
    content = folder_files.read_text(path, name).encode()
  except (folder_files.FolderError, binascii.Error) as error:
    return [f'{signature} cannot be checked: {error}']
  if len(signed) != _BYTES or line != _line(signed):
    return [f'{signature} must hold a signature of {_BYTES} bytes and nothing else.']
  if key is None:
    return []
  try:
    key.verify(signed, content)
  except Exception:  # cryptography.exceptions.InvalidSignature
    return [f'{signature} is not a signature of {name} with the key of {source}.']
  return []


def _line(signature: bytes) -> str:
  return base64.b64encode(signature).decode() + '\n'
