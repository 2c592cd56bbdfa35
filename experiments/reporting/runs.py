"""Run folders as the report reads them: each becomes a row of runs.csv, with its curves by round and its clients."""

from collections.abc import Sequence
import dataclasses
import functools
import os
from typing import Any, Callable, NamedTuple, Optional

import numpy as np
import pandas as pd

from experiments.command import run_choices
from experiments.folders import folder as run_folder
from experiments.reporting import naming
from experiments.reporting import privacy
from experiments.running import plots
from quap_tff import methods
from quap_tff.accounting import run_ledger
from quap_tff.certificates.folders import folder as certificate_folders
from quap_tff.common import files
from quap_tff.common import json_types

# The flags that every run must have, with the types of their values. Then those that only some methods read.
_NEEDED: dict[str, Any] = {'dataset': str, 'participation': str, 'partition': str, 'rounds': int, 'seed': int}
_IF_READ: dict[str, Any] = dict.fromkeys(('epsilon', 'delta', 'alpha', 'beta'), (int, float))
# The first words of the columns of clients.csv that are 0 for clients that took no part.
_SPENT = ('rounds', 'nominal_', 'formal_')
# Columns of metrics.csv whose means over the rounds are in runs.csv.
_MEANS = ('noise_norm', 'signal_norm', 'noise_to_signal', 'sigma')
# Columns of runs.csv that only some runs have.
_OPTIONAL = (
  'rounds_to_90 seconds minutes jain_accuracy nominal nominal_mean nominal_delta nominal_deviation '
  'nominal_spread nominal_most nominal_least'
).split()
# Thirds of the clients, by the rounds in which they took part.
THIRDS = ('rare', 'middle', 'frequent')


class LeftOut(NamedTuple):
  """Something that the report could not use: its path, and why."""

  path: str
  reason: str


def jain(values: Optional[np.ndarray]) -> Optional[float]:
  """Jain's fairness index (Σx)²/(n·Σx²) of non-negative values, in [1/n, 1]; None for no values or only zeros."""
  if values is None or not np.any(values):
    return None
  return float(values.sum() ** 2 / (len(values) * (values**2).sum()))


@dataclasses.dataclass(frozen=True, eq=False)
class RunFolder:
  """One run folder. Whatever is missing in it is empty or None.

  Attributes:
    path: The folder.
    identity: The flags that the method reads and that decide what is computed.
    flags: All flags.
    resolved: The facts that follow from the data, from run.json. Earlier versions did not write them.
    versions, machine: From run.json.
    metrics: metrics.csv, float64, by round; NaN where a round has no value.
    clients: clients.csv, float64, by client id. In a large population the file lists only those who took part; of the
      others, figures other than what they spent are NaN.
    ledger: Who took part when, with which nominal budget.
    summary: summary.json, or {} while the run goes on.
    certificate: certificate.json of a certified run.
  """

  path: str
  identity: json_types.JsonView
  flags: json_types.JsonView
  resolved: json_types.JsonView
  versions: json_types.JsonView
  machine: json_types.JsonView
  metrics: pd.DataFrame
  clients: pd.DataFrame
  ledger: Optional[run_ledger.RunLedger]
  summary: json_types.JsonView
  certificate: Optional[json_types.JsonView]

  @property
  def is_secret(self) -> bool:
    """Whether nobody knows who took part, so that sampling amplifies privacy."""
    return self.identity.get('cohort_seed') == run_choices.SECRET

  @property
  def algorithm(self) -> str:
    return naming.canonical_algorithm(self.identity.get('algorithm', 'quap'), self.is_secret)

  @property
  def rounds(self) -> int:
    """The rounds that were run."""
    if isinstance(self.summary.get('rounds'), int):
      return self.summary['rounds']
    return int(self.metrics.index.max()) if len(self.metrics) else 0

  @property
  def ended(self) -> bool:
    """Whether the run reached the end that its flags set: the planned rounds, fewer rounds, or an accuracy."""
    return bool(self.summary) and not self.summary.get('interrupted')

  @property
  def test_accuracy(self) -> Optional[float]:
    """The test accuracy of the final model, in [0, 1]. Without a summary, it is the one of the last tested round."""
    accuracy = privacy.number(self.summary.get('test_accuracy'))
    accuracies = self.curve('test_accuracy')
    if accuracy is None and len(accuracies):
      return float(accuracies.iloc[-1])
    return accuracy

  @property
  def counts(self) -> Optional[np.ndarray]:
    """float64[N], the rounds in which each client took part."""
    return self.ledger.rounds.astype(float) if self.ledger is not None else self.client_column('rounds')

  @property
  def num_clients(self) -> Optional[int]:
    """N. By default the dataset decides it, and a run with secret cohorts writes no list of clients."""
    if self.counts is not None:
      return len(self.counts)
    return self.resolved.get('num_clients', self.identity.get('num_clients'))

  def client_column(self, column: str) -> Optional[np.ndarray]:
    """float64[N], a column of clients.csv, or None."""
    return self.clients[column].to_numpy() if column in self.clients else None

  @functools.cached_property
  def nominal_epsilon(self) -> Optional[np.ndarray]:
    """float64[N], each client's nominal Σε_i. None if it is unknown or not finite, or if another formula gave it."""
    if self.identity.get('calibration', 'documents') != 'documents' or self.algorithm.startswith('certified'):
      return None
    epsilon = self.ledger.epsilon if self.ledger is not None else self.client_column('nominal_epsilon')
    return epsilon if epsilon is not None and np.all(np.isfinite(epsilon)) else None

  def curve(self, column: str) -> pd.Series:
    """The finite values of a column of metrics.csv, by round; empty if there is none."""
    values = self.metrics.get(column, pd.Series(dtype=float))
    return values[np.isfinite(values)]

  @functools.cached_property
  def _formal(self) -> json_types.JsonObject:
    is_stopped = self.rounds < self.identity['rounds']
    return privacy.facts(self.summary, self.certificate, self.is_secret, is_stopped)

  def row(self) -> json_types.JsonObject:
    """What was measured, by column of runs.csv; None where it is not known, infinite where it was not reached."""
    seconds, tests, accuracy = self.curve('seconds'), self.curve('test_accuracy'), self.test_accuracy
    found: json_types.JsonObject = {
      'run': self.path,
      'seed': self.identity['seed'],
      'accuracy': None if accuracy is None else 100 * accuracy,
      'rounds_run': self.rounds,
      'ended': self.ended,
      'is_secret': self.is_secret,
      'share_of_ceiling': privacy.number(self.summary.get('share_of_ceiling')),
      **self._formal,
      **dict.fromkeys(_OPTIONAL),
    }
    found.update({column: _mean(self.curve(column)) for column in _MEANS})
    for way in ('up', 'down'):
      bytes_sent = _mean(self.curve(f'{way}_bytes_per_client'))
      found[f'{way}_kilobytes'] = None if bytes_sent is None else bytes_sent / 1e3
    found['root_dimension'] = _mean(self.curve('noise_norm') / self.curve('sigma'))
    if len(tests):
      above = tests.index[tests >= 0.9]
      found['rounds_to_90'] = float(above[0]) if len(above) else np.inf
    if len(seconds):
      found.update(seconds=seconds.median(), minutes=seconds.sum() / 60)
    return found | self._of_clients()

  def _of_clients(self) -> json_types.JsonObject:
    """What clients spent and have, and how equal they are."""
    spent, counts = self.nominal_epsilon, self.counts
    found: json_types.JsonObject = {'jain_rounds': jain(counts), 'jain_nominal': jain(spent)}
    accuracies = self.client_column('test_accuracy')
    if accuracies is not None:
      found['jain_accuracy'] = jain(accuracies[np.isfinite(accuracies)])
    if spent is not None:
      found.update(nominal=spent.max(), nominal_mean=spent.mean(), nominal_delta=self.summary.get('nominal_delta_max'))
      if counts is not None:
        order = np.argsort(-counts, kind='stable')
        fifth = max(1, round(0.2 * len(order)))
        found.update(nominal_most=spent[order[:fifth]].mean(), nominal_least=spent[order[-fifth:]].mean())
      if spent.any():
        found.update(nominal_deviation=spent.std(), nominal_spread=spent.std() / spent.mean())
    if counts is not None and np.ptp(counts) > 0:
      thirds = np.array_split(np.argsort(counts, kind='stable'), 3)  # Ties are by id.
      for what, values in self._figures_of_clients().items():
        for name, members in zip(THIRDS, thirds):
          found[f'{what}_{name}'] = None if values is None else _mean(values[members])
    return found

  def _figures_of_clients(self) -> dict[str, Optional[np.ndarray]]:
    """float64[N] each: what rare and frequent clients are compared by."""
    accuracies, formal, weights = self.client_column('test_accuracy'), self.client_column('formal_epsilon'), None
    is_whole = self._formal['covers'] == privacy.RELEASED
    if formal is not None and not (is_whole and np.all(np.isfinite(formal))):
      formal = None
    if self.ledger is not None and self.algorithm.startswith('certified'):
      arrays = self.ledger.state_dict()
      weights = np.bincount(arrays['clients'], arrays['weights'], self.ledger.num_clients)
    return {
      'rounds': self.counts,
      'weight': weights,
      'examples': self.client_column('examples'),
      'nominal': self.nominal_epsilon,
      'formal': formal,
      'accuracy': None if accuracies is None else 100 * accuracies,
    }


def _mean(values: Any) -> Optional[float]:
  """The mean of the finite values, or None where no value is finite."""
  known = np.asarray(values, float)
  known = known[np.isfinite(known)]
  return float(known.mean()) if len(known) else None


def find(roots: Sequence[str]) -> list[str]:
  """The folders at or below `roots` that hold a run.json, each once, in order."""
  folders: dict[str, str] = {}
  for root in roots:
    for folder, names, found in os.walk(root):
      names.sort()
      if run_folder.RUN in found:
        folders.setdefault(os.path.realpath(folder), folder)
  return list(folders.values())


def load_run(path: str) -> tuple[Optional[RunFolder], list[LeftOut]]:
  """Reads a run folder. Returns the run, or None if it is unusable, and a list of damaged and missing files."""
  left_out = []

  def read(name: str, reader: Callable[[str], Any], otherwise: Any, expected: bool) -> Any:
    file = os.path.join(path, name)
    if not os.path.exists(file):
      if expected:
        left_out.append(LeftOut(file, 'is missing; the report does without it'))
      return otherwise
    try:
      return reader(file)
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
      left_out.append(LeftOut(file, f'cannot be read ({" ".join(str(error).split())}); the report does without it'))
      return otherwise

  run = read(run_folder.RUN, _read_run, None, True)
  if run is None:
    return None, left_out
  summary = read(run_folder.SUMMARY, _read_object, {}, False)
  # These files are written at the end, those of a certified run in the folder of its certificate.
  place = run_folder.CERTIFICATE if os.path.isdir(os.path.join(path, run_folder.CERTIFICATE)) else ''
  ended = bool(summary)
  says_who_came = ended and run['identity'].get('cohort_seed') != run_choices.SECRET
  ledger = read(os.path.join(place, run_folder.LEDGER), run_ledger.RunLedger.load, None, says_who_came)
  clients_file = os.path.join(place, run_folder.CLIENTS)
  certificate_file = os.path.join(run_folder.CERTIFICATE, certificate_folders.CERTIFICATE)
  result = RunFolder(
    path=path,
    metrics=read(run_folder.METRICS, _read_metrics, pd.DataFrame(), True),
    clients=read(clients_file, lambda file: _read_clients(file, ledger), pd.DataFrame(), says_who_came),
    ledger=ledger,
    summary=summary,
    certificate=read(certificate_file, _read_object, None, ended and _gives_certificate(run['identity'])),
    **run,
  )
  if result.test_accuracy is None:
    left_out.append(LeftOut(path, 'has no test accuracy; the run is left out'))
    return None, left_out
  if not result.ended:
    rounds = f'{result.rounds} of {result.identity["rounds"]} planned rounds'
    left_out.append(LeftOut(path, f'unfinished: {rounds}; its rows are marked'))
  return result, left_out


def _gives_certificate(identity: json_types.JsonView) -> bool:
  try:
    return methods.parse(identity['algorithm']).gives_certificate
  except (KeyError, ValueError):
    return False  # This version does not know the method.


def _read_object(path: str) -> json_types.JsonObject:
  value = files.read_json(path)
  if not isinstance(value, dict):
    raise ValueError('not a JSON object')
  return value


def _read_run(path: str) -> json_types.JsonObject:
  run = _read_object(path)
  identity = run.get('identity')
  if not isinstance(identity, dict):
    raise ValueError('it has no identity')
  expected = {**_NEEDED, **{name: kinds for name, kinds in _IF_READ.items() if name in identity}}
  wrong = [name for name, kinds in expected.items() if not isinstance(identity.get(name), kinds)]
  if wrong:
    raise ValueError(f'missing or of the wrong type in its identity: {", ".join(wrong)}')
  parts = {'identity': identity}
  for name in ('flags', 'resolved', 'versions', 'machine'):
    parts[name] = run[name] if isinstance(run.get(name), dict) else {}
  return parts


def _read_metrics(path: str) -> pd.DataFrame:
  metrics = pd.DataFrame(plots.read_metrics(path))
  if 'round' not in metrics or not np.all(np.diff(metrics['round']) > 0):
    raise ValueError('it has no rows, no column named round, or rounds that do not ascend')
  return metrics.set_index('round', drop=False)


def _read_clients(path: str, ledger: Optional[run_ledger.RunLedger]) -> pd.DataFrame:
  clients = pd.DataFrame(plots.read_metrics(path))
  if ledger is None:
    return clients
  if len(clients) != len(ledger.listed):
    raise ValueError(f'it does not have one row for each of the {len(ledger.listed)} clients that the ledger lists')
  whole = clients.set_index(ledger.listed).reindex(range(ledger.num_clients))
  whole['client'] = np.arange(ledger.num_clients, dtype=np.float64)
  # The others took no part: they have spent nothing, and nothing else is known of them. In a run that ended early they
  # were still to come, and the formal figure is a bound.

  def is_bound(name: str) -> bool:
    return name == 'formal_epsilon' and 'formal_epsilon_reading' in clients

  spent = [name for name in clients if name.startswith(_SPENT) and not is_bound(name)]
  others = np.setdiff1d(whole.index, ledger.listed)
  whole.loc[others, spent] = 0.0
  return whole
