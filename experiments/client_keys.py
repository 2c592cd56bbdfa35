"""The keys from which clients draw noise of their own. In a simulation, one operator makes them all."""

import hashlib
import os
import secrets
from typing import Optional

import numpy as np

from quap_tff.common import files

_FILE = 'client_keys'
_BYTES = 32


class ClientKeys:
  """A key of 256 bits for each client, by its number, from one secret of the simulation."""

  def __init__(self, seed: Optional[int], folder: Optional[str] = None):
    """Makes the secret, or reads the one that a run began with.

    Args:
      seed: Makes the keys, and so all noise, reproducible and public. None: the operating system's entropy.
      folder: Where the secret is kept for a run that is continued. None keeps it in memory only.
    """
    if seed is not None:
      self._secret = hashlib.sha256(b'public %d' % seed).digest()
      return
    path = os.path.join(folder, _FILE) if folder is not None else None
    if path is not None and os.path.exists(path):
      with open(path, 'rb') as f:
        self._secret = f.read()
      return
    self._secret = secrets.token_bytes(_BYTES)
    if path is not None:
      with files.private():
        files.write(path, self._secret)

  def of(self, client: int) -> np.ndarray:
    """int64[4]."""
    return np.frombuffer(hashlib.sha256(self._secret + b' client %d' % client).digest(), np.int64)
