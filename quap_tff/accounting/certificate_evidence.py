"""The evidence for a certificate: the files of a folder are read, computed again and compared.

Nothing here imports TensorFlow, since verification runs no model. The folder may come from anybody.
"""

from collections.abc import Iterable
import math
import os
from typing import Any, Callable, NamedTuple, TypeVar
import zipfile

import numpy as np

from quap_tff import accounting
from quap_tff.accounting import certificate as certificates
from quap_tff.accounting import certificate_facts
from quap_tff.accounting import folder_files
from quap_tff.accounting.folder_files import FolderError
from quap_tff.common import lazy

h5py = lazy.module('h5py')

LEDGER, CLIENTS, LOCK = 'ledger.npz', 'clients.csv', '.lock'
# The errors of a file that does not hold what it should.
DAMAGE = (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError, MemoryError, RecursionError)
# Tolerances between float32 figures of TensorFlow and of NumPy. A standard deviation of equal rates is nearly 0.
RELATIVE, _ABSOLUTE = 1e-5, 1e-6

# An ordinary machine's memory holds so many.
_MOST_CLIENTS = 10**7

_Read = TypeVar('_Read')


class Evidence(NamedTuple):
  """The evidence that a folder holds for its certificate.

  Attributes:
    ledger: From ledger.npz.
    facts: The facts that follow from the other files.
    provenance: The things to which the certificate is bound, see `certificate.issue`.
    problems: Where the files contradict each other, a sentence each.
    warnings: Things in the folder that should not be handed out, a sentence each.
    missing: The things that cannot be computed again from the folder, in sentences; '' if there are none.
  """

  ledger: accounting.RunLedger
  facts: certificate_facts.Facts
  provenance: dict[str, Any]
  problems: list[str]
  warnings: list[str]
  missing: str = ''


def entry_problems(path: str, found: folder_files.Entries) -> list[str]:
  """The things in the folder that cannot be bound by a digest, a sentence each."""
  problems = [
    f'{name} is a {kind}. A certificate covers regular files only.' for name, kind in sorted(found.special.items())
  ]
  problems += [f'{name} is an empty folder, which the certificate does not name.' for name in found.empty]
  if LOCK in found.files and os.path.getsize(os.path.join(path, LOCK)):
    problems.append(f'{LOCK} must be empty.')
  return problems


def check_population(num_clients: int) -> None:
  """Raises `CannotTellError` for a run that is too large to be verified here."""
  if num_clients > _MOST_CLIENTS:
    raise folder_files.CannotTellError(
      f'the run has {num_clients:,} clients, and this program verifies runs of at most {_MOST_CLIENTS:,}.'
    )


def digests(path: str, names: Iterable[str], own: Iterable[str]) -> dict[str, str]:
  """SHA-256 of each file by name, without the lock and the files that are made after the certificate."""
  return {name: folder_files.digest(path, name) for name in names if name not in (*own, LOCK)}


def provenance_of(plan: Any, path: str, names: Iterable[str], own: Iterable[str]) -> dict[str, Any]:
  """The part of a certificate's provenance that follows from a plan, and the digests of the folder's files.

  Args:
    plan: A certified plan: `config`, `correlation` and `schedule` are used.
    path: The folder.
    names: The files in it.
    own: The files that are made from the certificate, or after it. They have no digest.
  """
  return {
    'noise_multiplier': plan.config.noise_multiplier,
    'divisor': plan.config.divisor,
    'correlation': {'gains': plan.correlation.gains.tolist(), 'decays': plan.correlation.decays.tolist()},
    'schedule_sha256': certificates.digest([cohort.tolist() for cohort in plan.schedule]),
    'files_sha256': digests(path, names, own),
  }


def read_ledger(path: str, num_clients: int) -> accounting.RunLedger:
  """The ledger in a folder. Raises `FolderError` if it is missing, damaged, or of another population."""
  whole = folder_files.check_archive(path, LEDGER)
  try:
    # Before the arrays of a population are made.
    with np.load(whole, allow_pickle=False) as kept:
      if int(kept['num_clients']) != num_clients:
        raise ValueError(f'it is of {int(kept["num_clients"]):,} clients, the run of {num_clients:,}')
    return accounting.RunLedger.load(whole)
  except (OSError, EOFError, zipfile.BadZipFile, *DAMAGE) as error:
    raise FolderError(f'{LEDGER} is damaged: {error or type(error).__name__}') from None


def client_columns(ledger: accounting.RunLedger, formal: accounting.FormalReport) -> dict[str, np.ndarray]:
  """The columns of clients.csv that follow from the ledger: one value for each client that it lists.

  Where nothing is covered, there is no ε.
  """
  columns = {'client': np.arange(ledger.num_clients), 'rounds': ledger.rounds, 'formal_epsilon': formal.epsilon}
  if formal.reading is not None:
    columns['formal_epsilon_reading'] = formal.reading.epsilon
  return {name: values[ledger.listed] for name, values in columns.items() if values is not None}


def clients_problems(path: str, ledger: accounting.RunLedger, formal: accounting.FormalReport) -> list[str]:
  """Where clients.csv differs from what the ledger gives, a sentence each; `formal` is the plan's report on it."""
  rows = folder_files.read_rows(path, CLIENTS)
  columns = client_columns(ledger, formal)
  found = column_problems(CLIENTS, rows, columns)
  if found:
    return found
  listed = ledger.listed
  if len(rows) != len(listed) or (rows and list(rows[0]) != list(columns)):
    whom = 'clients' if len(listed) == ledger.num_clients else 'clients that took part'
    return [f'{CLIENTS} must hold {", ".join(columns)} for each of the {len(listed)} {whom}.']
  return [
    f'{CLIENTS}: {name} of client {client} is {row[name]}, but the ledger gives {values[place]:g}.'
    for place, (client, row) in enumerate(zip(listed.tolist(), rows))
    for name, values in columns.items()
    if not is_close(row[name], values[place])
  ]


def column_problems(name: str, rows: list[dict[str, str]], allowed: Iterable[str]) -> list[str]:
  """The columns of a table that no certificate covers, a sentence each."""
  return [
    f"{name}: {column} is an exact function of clients' data, or may be one."
    for column in (rows[0] if rows else ())
    if column not in allowed
  ]


def model_problems(path: str, name: str, sizes: Iterable[int], source: str) -> list[str]:
  """Where the tensors of a model's file do not have the sizes that the file `source` says."""
  found = sorted(in_model(path, name, lambda tensors: [int(tensor.size) for tensor in tensors]))
  if found == sorted(sizes):
    return []
  return [f'{name} holds tensors of {found} weights, but {source} says {sorted(sizes)}.']


def in_model(path: str, name: str, read: Callable[[list[Any]], _Read]) -> _Read:
  """The result of `read` for the tensors of a model's file, .keras or .npz, which can't be used after it."""
  whole = folder_files.check_archive(path, name)
  try:
    if name.endswith('.npz'):
      with np.load(whole, allow_pickle=False) as kept:
        return read([kept[tensor] for tensor in kept])
    with zipfile.ZipFile(whole) as archive:
      with archive.open('model.weights.h5') as f, h5py.File(f, 'r') as weights:
        tensors = []
        weights.visititems(lambda _, item: tensors.append(item) if hasattr(item, 'shape') else None)
        return read(tensors)
  except ImportError:
    raise
  except Exception as error:  # h5py and zipfile raise nearly anything for a damaged file.
    raise FolderError(f'{name} cannot be read: {error}') from None


def number(text: Any) -> float:
  """The number that a cell holds; NaN for anything else."""
  try:
    return float(text)
  except (TypeError, ValueError):
    return math.nan


def is_close(found: Any, expected: float) -> bool:
  """Whether a cell holds a number, within the tolerances."""
  return math.isclose(number(found), expected, rel_tol=RELATIVE, abs_tol=_ABSOLUTE)
