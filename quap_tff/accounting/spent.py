"""Budgets that clients have spent before: read from the files of earlier runs, for the account of the next one.

    spent = accounting.read_spent('run1/ledger.npz', num_clients=60)
    config = quap_tff.CertifiedConfig(60, epsilon, delta, spent_before=spent)

The currency is μ², which adds up over runs whatever their δ. Files say what was released up to the moment at which they
were written, so the earlier run must have ended: what it releases afterwards is in no account. They do not say whether
anything else was released, nor whether the noise covered everything (a ledger of layer-wise noise has no account).
"""

from collections.abc import Mapping
import csv
import hashlib
import json
import os
from typing import Any, NoReturn, Optional, Union
import zipfile

import numpy as np

from quap_tff.accounting import gate
from quap_tff.accounting import history
from quap_tff.accounting import run_ledger
from quap_tff.common import checks
from quap_tff.common import durable
from quap_tff.common import files
from quap_tff.common.numbers import tradeoff

CERTIFICATE = 'certificate.json'
# The files of a certificate from which another run may count.
_SPENT_FILES = ('ledger.npz', 'clients.csv')
# The columns with the ε of what was released, the first that there is.
_COLUMNS = ('formal_epsilon_reading', 'formal_epsilon', 'epsilon')


def read_spent(source: Union[str, os.PathLike, Any], num_clients: Optional[int] = None) -> np.ndarray:
  """float64[N], μ_i² of everything that was released about each client in earlier runs.

  Args:
    source: A file: a run's `ledger.npz`, the state that `Gate.save` has written, or the `clients.csv` of a certificate,
      whose folder also has the certificate. Or float[N], which is returned as it is: sum several files for several
      runs, of which none counts from another.
    num_clients: N, at least as many as the file has; new clients follow the known ones, and have spent nothing. None:
      as many as the file has, which a clients.csv does not say.

  Raises:
    ValueError: If the file is of another kind, damaged, or has clients that are not in [0, N); or if a client was in a
      round without noise.
    OSError: If it cannot be read.
  """
  if not isinstance(source, (str, os.PathLike)):
    return checks.numbers_of_clients('spent', source, len(source) if num_clients is None else num_clients)
  path, spent = os.fspath(source), np.zeros(0)
  if path.endswith('.csv'):
    known = _read_clients_file(path)
    spent = np.zeros(1 + max(known, default=-1), np.float64)
    spent[list(known)] = list(known.values())
  elif zipfile.is_zipfile(path) and path.endswith('.npz'):
    spent = np.square(history.total_mu(run_ledger.RunLedger.load(path)).whole)
  else:
    spent = gate.Gate.load(path).mu_squared
  if not np.isfinite(spent).all():
    raise ValueError(f'{path}: client {np.flatnonzero(~np.isfinite(spent))[0]} was in a round without noise.')
  total = len(spent) if num_clients is None else num_clients
  if len(spent) > total:
    raise ValueError(
      f'{path} has {len(spent)} clients, and this run has {total}. Give the run at least as many clients, with the '
      'same ids; those who no longer come need not be in a cohort.'
    )
  return np.append(spent, np.zeros(total - len(spent)))


def claim(source: str, heir: durable.Heir, counters: Optional[str] = None) -> None:
  """Notes that a run counts from a file. Another run is refused from then on.

  Args:
    source: The file, as for `read_spent`.
    heir: The run.
    counters: The folder of the notes, as for `durable.StateFile`.

  Raises:
    ValueError: If another run counts from it already, or from another file of the same run.
    OSError: If a file cannot be read or written.
  """
  durable.claim(source, keys_of(source), heir, counters)


def keys_of(source: str) -> set[str]:
  """What names the spending in a file: the id of a state; else digests of the file and, in a certificate, of others."""
  if durable.is_state(source):
    return {durable.id_of(source)}
  with open(source, 'rb') as f:
    digest = hashlib.sha256(f.read()).hexdigest()
  path = os.path.join(os.path.dirname(source), CERTIFICATE)
  if not os.path.isfile(path):
    return {digest}
  named = files.read_json(path)['provenance']['files_sha256']
  spent = {named[name] for name in _SPENT_FILES if name in named}
  return {digest, *spent} if digest in spent else {digest}


def _read_clients_file(path: str) -> Mapping[int, float]:
  """μ² by client."""
  folder = os.path.dirname(path)
  try:
    with open(path, 'rb') as f:
      content = f.read()
    with open(os.path.join(folder, CERTIFICATE), encoding='utf-8') as f:
      certificate = json.load(f)
    delta, digests = certificate['guarantee']['delta'], certificate['provenance']['files_sha256']
    expected = digests[os.path.basename(path)]
  except FileNotFoundError as error:
    raise ValueError(
      f'{path}: {os.path.basename(str(error.filename))} is not there. The δ of its ε is in {CERTIFICATE}: give the '
      'clients.csv in the folder of a certificate, or the ledger of the run.'
    ) from None
  except (ValueError, KeyError, TypeError) as error:
    raise ValueError(f'{path}: the certificate in its folder cannot be read ({error}).') from None
  if hashlib.sha256(content).hexdigest() != expected:
    _fail(path, f'its SHA-256 is not the one in {CERTIFICATE}: the file was changed, or is of another run')
  header, *rows = list(csv.reader(content.decode().splitlines()))
  column = next((header.index(name) for name in _COLUMNS if name in header), None)
  if column is None or header[0] != 'client':
    _fail(path, f'its header must begin with client, and have one of the columns {", ".join(_COLUMNS)}')
  epsilon = np.array([float(row[column]) for row in rows])
  # An ε of 0 still leaves room for a small μ. Only of those who have never come is it known to be 0.
  squares = tradeoff.mu_of(epsilon, checks.number('delta', delta, above=0, below=1)) ** 2
  return {int(row[0]): float(square) for row, square in zip(rows, squares)}


def _fail(path: str, problem: str) -> NoReturn:
  raise ValueError(f'{path}: {problem}.')
