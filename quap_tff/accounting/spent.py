"""Budgets that clients have spent before: read from the files of earlier runs, for the account of the next one.

    spent = accounting.read_spent('run1/ledger.npz', num_clients=60)
    config = quap_tff.CertifiedConfig(60, epsilon, delta, spent_before=spent)

The currency is μ², which adds up over runs whatever their δ. What each run protected goes along with it: whom its
clients trusted, against how many colluders it has figures, and whether its noise is counted as ideal. A file that does
not say this, or whose run has no finite ε, is refused.

Files say what was released up to the moment at which they were written, so the earlier run must have ended: what it
releases afterwards is in no account. They do not say whether anything else was released.
"""

from collections.abc import Iterable, Mapping, Sequence
import contextlib
import csv
import errno
import hashlib
import json
import os
from typing import Any, NoReturn, Optional, Union
import zipfile

import numpy as np

from quap_tff.accounting import gate
from quap_tff.accounting import history
from quap_tff.accounting import protection
from quap_tff.accounting import run_ledger
from quap_tff.common import checks
from quap_tff.common import durable
from quap_tff.common import files
from quap_tff.common.numbers import tradeoff
from quap_tff.mechanisms.certified import spent_before

CERTIFICATE, MECHANISM, GATE = 'certificate.json', 'mechanism.json', 'gate.json'
# The files of a certificate from which another run may count.
_SPENT_FILES = ('ledger.npz', 'clients.csv')
# The columns with the ε of what was released, the first that there is.
_COLUMNS = ('formal_epsilon_reading', 'formal_epsilon', 'epsilon')


def read_spent(
  source: Union[str, os.PathLike, spent_before.SpentBefore], num_clients: Optional[int] = None
) -> spent_before.SpentBefore:
  """The cost to each client of what earlier runs released: μ_i², and what these runs protected.

  Args:
    source: A file: a run's `ledger.npz`, the state that `Gate.save` has written, or the `clients.csv` of a certificate
      in its folder. Or a `SpentBefore`: for several runs, of which none counts from another, the sum of theirs.
    num_clients: N, at least as many as the source has; new clients follow the known ones, and have spent nothing. None:
      as many as the source has, which a clients.csv does not say.

  Raises:
    TypeError: If the source is of another type. Bare numbers do not say what they are the cost of.
    ValueError: If the file is of another kind, damaged, or has clients that are not in [0, N); if a client was in a
      round without noise; or if the run has no account that another one can count from.
    OSError: If it cannot be read.
  """
  if isinstance(source, spent_before.SpentBefore):
    name, spent = 'SpentBefore', source
  elif isinstance(source, (str, os.PathLike)):
    name = os.fspath(source)
    spent = _read_file(name)
  else:
    raise TypeError(
      f'What was spent before must be a file of the earlier run or an accounting.SpentBefore, found '
      f'{type(source).__name__}: numbers alone do not say what that run protected.'
    )
  known = len(spent.mu_squared)
  total = known if num_clients is None else num_clients
  if known > total:
    raise ValueError(
      f'{name} has {known} clients, and this run has {total}. Give the run at least as many clients, with the '
      'same ids; those who no longer come need not be in a cohort.'
    )
  return spent.padded(total)


def claim(source: str, heir: durable.Heir, counters: Optional[str] = None) -> None:
  """Notes that a run counts from a file. Another run is refused from then on.

  Args:
    source: The file, as for `read_spent`.
    heir: The run.
    counters: The folder of the notes, as for `durable.StateFile`.

  Raises:
    ValueError: If another run counts from it already, or from another file of the same run; or if it is a state that is
      in use, or not the latest one.
    OSError: If a file cannot be read or written.
  """
  with contextlib.ExitStack() as stack:
    if durable.is_state(source):
      stack.enter_context(durable.StateFile(source, counters))
    durable.claim(source, keys_of(source), heir, counters)


def keys_of(source: str) -> set[str]:
  """Names of the spending in a file: the id of a state; else digests of the file and, in a certificate, of others."""
  if durable.is_state(source):
    return {durable.id_of(source)}
  with open(source, 'rb') as f:
    digest = hashlib.sha256(f.read()).hexdigest()
  path = os.path.join(os.path.dirname(source), CERTIFICATE)
  if not os.path.isfile(path):
    return {digest}
  named = files.read_json(path)['provenance']['files_sha256']
  spent = {named[name] for name in _SPENT_FILES if name in named}
  # The other files of a certificate tell of the same spending: a run that counts from one has counted from all.
  return {digest, *spent} if digest in spent else {digest}


def _read_file(path: str) -> spent_before.SpentBefore:
  if path.endswith('.csv'):
    return _read_clients_file(path)
  if os.path.isdir(path) or path.endswith('.json'):
    kind = 'a folder' if os.path.isdir(path) else 'no file of spending'
    raise ValueError(
      f'{path} is {kind}. Give the ledger.npz of a run (of a certified one, RUN/certificate/ledger.npz), the '
      'clients.csv of a certificate, or the state of a gate.'
    )
  if not os.path.exists(path):
    raise FileNotFoundError(errno.ENOENT, 'there is no such file of an earlier run', path)
  digest = _sha256(path)
  if zipfile.is_zipfile(path) and path.endswith('.npz'):
    return _of_ledger(path, run_ledger.RunLedger.load(path), digest)
  saved = gate.Gate.load(path)
  # The program that adds up and adds the noise sees the updates. Nothing is known of its source of noise.
  return _checked_spending(path, saved.mu_squared, 'server', is_ideal=True, files=(digest,))


def _of_ledger(path: str, ledger: run_ledger.RunLedger, digest: str) -> spent_before.SpentBefore:
  mu_squared, conditions = np.square(history.total_mu(ledger).whole), ledger.conditions
  if not np.isfinite(mu_squared).all():
    client = np.flatnonzero(~np.isfinite(mu_squared))[0]
    raise ValueError(f'{path}: client {client} was in a round without noise.')
  if conditions is None:
    _fail(path, 'it does not say what its run protected. Give the ledger.npz that a run of a quap_tff.Plan has written')
  if conditions.covers == protection.NOTHING:
    _fail(path, 'the model that its run released has no finite ε, so nothing can be counted from it')
  if conditions.covers != protection.RELEASED_MODEL:
    _fail(path, "its run has also logged exact functions of clients' data, which are in no account")
  if conditions.relation != protection.ZERO_OUT:
    _fail(
      path,
      f'its figures are for {history.REPLACE_ONE} (trust: {conditions.trust}), and those of this run are for '
      f'{history.ZERO_OUT}. The two do not add up',
    )
  against = zip(conditions.colluders, ledger.against)
  return _checked_spending(path, mu_squared, conditions.trust, conditions.is_ideal, against, (digest,))


def _checked_spending(
  path: str,
  mu_squared: np.ndarray,
  trust: str,
  is_ideal: bool,
  against: Iterable[tuple[int, np.ndarray]] = (),
  files: Sequence[str] = (),
) -> spent_before.SpentBefore:
  try:
    pairs = tuple((count, tuple(part.tolist())) for count, part in against)
    return spent_before.SpentBefore(tuple(mu_squared.tolist()), trust, is_ideal, pairs, tuple(files))
  except ValueError as error:
    raise ValueError(f'{path}: {error}') from None


def _read_clients_file(path: str) -> spent_before.SpentBefore:
  """The spending in a certificate's clients.csv, under the conditions of the mechanism alongside it."""
  folder = os.path.dirname(path)
  try:
    content = _read_bytes(path)
    certificate = json.loads(_read_bytes(os.path.join(folder, CERTIFICATE)))
    guarantee, digests = certificate['guarantee'], certificate['provenance']['files_sha256']
    # A gate has another file than a plan.
    name = GATE if certificate.get('kind') == 'gate' else MECHANISM
    mechanism = _read_bytes(os.path.join(folder, name))
    expected = {os.path.basename(path): content, name: mechanism}
    changed = [one for one, part in expected.items() if hashlib.sha256(part).hexdigest() != digests[one]]
  except FileNotFoundError as error:
    raise ValueError(
      f'{path}: {os.path.basename(str(error.filename))} is not there. The δ of its ε, and what its run protected, '
      f'follow from the files alongside it: give the clients.csv in the folder of a certificate, or a ledger.'
    ) from None
  except (ValueError, KeyError, TypeError, AttributeError) as error:
    raise ValueError(f'{path}: the certificate in its folder cannot be read ({error}).') from None
  if changed:
    _fail(
      path, f'the SHA-256 of {changed[0]} is not the one in {CERTIFICATE}: the file was changed, or is of another run'
    )
  header, *rows = list(csv.reader(content.decode().splitlines()))
  column = next((header.index(name) for name in _COLUMNS if name in header), None)
  if column is None or header[0] != 'client':
    _fail(path, f'its header must begin with client, and have one of the columns {", ".join(_COLUMNS)}')
  epsilon = np.array([float(row[column]) for row in rows])
  clients = np.array([int(row[0]) for row in rows], np.int64)
  mu_squared = np.zeros(1 + max(clients.tolist(), default=-1))
  # An ε of 0 still leaves room for a small μ. Only of those who have never come is it known to be 0.
  mu_squared[clients] = tradeoff.mu_of(epsilon, checks.number('delta', guarantee['delta'], above=0, below=1)) ** 2
  try:
    trust, is_ideal, against = _conditions_of(name, json.loads(mechanism), guarantee)
  except (ValueError, KeyError, TypeError) as error:
    raise ValueError(f'{path}: {name} in its folder does not say what the run protected ({error}).') from None
  # The largest of all clients, for each that is listed.
  listed = np.isin(np.arange(len(mu_squared)), clients)
  pairs = [(count, mu**2 * listed) for count, mu in sorted(against)]
  return _checked_spending(path, mu_squared, trust, is_ideal, pairs, (hashlib.sha256(content).hexdigest(),))


def _conditions_of(
  name: str, mechanism: Mapping[str, Any], guarantee: Mapping[str, Any]
) -> tuple[str, bool, list[tuple[int, float]]]:
  """Trust, whether noise is counted as ideal, and μ against each number of colluders, by a certificate's files."""
  if name == GATE:
    return 'server', True, []
  before = guarantee.get('spent_before', {'noise_is_ideal': False})
  return mechanism['trust'], before['noise_is_ideal'], [(one['clients'], one['mu']) for one in guarantee['colluders']]


def _read_bytes(path: str) -> bytes:
  with open(path, 'rb') as f:
    return f.read()


def _sha256(path: str) -> str:
  return hashlib.sha256(_read_bytes(path)).hexdigest()


def _fail(path: str, problem: str) -> NoReturn:
  raise ValueError(f'{path}: {problem}.')
