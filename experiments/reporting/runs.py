"""Run folders as the report reads them: flags, measurements, and a list of files that could not be read."""

from collections.abc import Sequence
import dataclasses
import functools
import os
from typing import Any, Callable, NamedTuple, Optional

import numpy as np
import pandas as pd

from data import cohorts
from data import datasets
from data import partition
from experiments.command import run_choices as run_parts
from experiments.folders import folder as run_folder
from experiments.running import plots
from quap_tff import methods
from quap_tff.accounting import run_ledger
from quap_tff.certificates.folders import folder as certificate_folders
from quap_tff.common import files
from quap_tff.common import json_types
from quap_tff.common import registry
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.training import optimizers

# The flags that every run must have, with the types of their values. Then those that only some methods read.
_NEEDED: dict[str, Any] = {'dataset': str, 'participation': str, 'partition': str, 'rounds': int, 'seed': int}
_IF_READ: dict[str, Any] = dict.fromkeys(('epsilon', 'delta', 'alpha', 'beta'), (int, float))
# The first words of the columns of clients.csv that are 0 for clients that took no part.
_SPENT = ('rounds', 'nominal_', 'formal_')

# The flags whose values are choices with parameters. Then the choices whose parameters are always written out.
CHOICES: dict[str, registry.Registry] = {
  'algorithm': methods.METHODS,
  'dataset': datasets.DATASETS,
  'participation': cohorts.PARTICIPATION_MODELS,
  'partition': partition.PARTITIONS,
  'clip': clip_rules.RULES,
  'client_optimizer': optimizers.OPTIMIZERS,
  'server_optimizer': optimizers.OPTIMIZERS,
}
_WRITTEN_OUT = ('bernoulli', 'beta', 'beta_bernoulli', 'dirichlet')


class LeftOut(NamedTuple):
  """Something that the report could not use: its path, and why."""

  path: str
  reason: str


def parse_choice(flag: str, spec: str) -> tuple[str, dict[str, str], dict[str, str]]:
  """A choice `name:key=value,…` as its name, its parameters, and those parameters that differ from the defaults.

  If this version does not know the choice, or the choice now has other parameters, the parameters stay as written.
  """
  name, _, arguments = spec.partition(':')
  try:
    choice = registry.parse_spec(flag, spec, CHOICES[flag])
  except ValueError:
    given = dict(argument.partition('=')[::2] for argument in arguments.split(',') if argument)
    return name, given, given
  if isinstance(choice, methods.Method):
    choice = choice.written_out
  values, fields = registry.parameter_values(choice), registry.parameters(choice)
  shortest = {}
  for key, value in values.items():
    shortest[key] = f'{value:g}' if isinstance(value, float) else registry.text_of(value, fields[key])
  return name, shortest, {key: text for key, text in shortest.items() if values[key] != fields[key].default}


def canonical(flag: str, value: json_types.Json) -> json_types.Json:
  """A flag's value in one form, however it is written: `beta`, `beta:b=5.0` and `beta:a=2,b=5` are the same model."""
  if value is None:
    return 'default'
  if isinstance(value, float) and value.is_integer():
    return int(value)
  if flag not in CHOICES or not isinstance(value, str):
    return value
  name, parameters, changed = parse_choice(flag, value)
  shown = parameters if name in _WRITTEN_OUT else changed
  return ':'.join(filter(None, [name, ','.join(f'{key}={shown[key]}' for key in sorted(shown))]))


def number(value: json_types.Json) -> Optional[float]:
  """The number that a JSON file holds; None for any other value."""
  return float(value) if isinstance(value, (int, float)) else None


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
  def seed(self) -> int:
    return self.identity['seed']

  @property
  def algorithm(self) -> str:
    spec = self.identity.get('algorithm', 'quap')
    name, _, given = spec.partition(':')
    if self.has_secret_cohorts and name == 'certified' and 'noise=' not in given:
      # Not the noise that suits public cohorts.
      spec = f'{name}:{",".join(filter(None, [given, "noise=independent"]))}'
    return canonical('algorithm', spec)

  @property
  def has_secret_cohorts(self) -> bool:
    """Whether nobody knows who took part, so that sampling amplifies privacy."""
    return self.identity.get('cohort_seed') == run_parts.SECRET

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
    accuracy = number(self.summary.get('test_accuracy'))
    if accuracy is not None:
      return accuracy
    accuracies = self.curve('test_accuracy')
    return float(accuracies.iloc[-1]) if len(accuracies) else None

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

  def cumulative_epsilon(self, members: np.ndarray) -> np.ndarray:
    """float64[T], the mean over `members` (client ids) of the nominal ε spent up to each round; needs the ledger."""
    if self.ledger is None:
      raise ValueError(f'{self.path} has no ledger, which tells what each round spent.')
    arrays = self.ledger.state_dict()
    budgets = np.where(np.isin(arrays['clients'], members), arrays['budgets'], 0.0)
    return np.concatenate([[0.0], np.cumsum(budgets)])[arrays['offsets'][1:]] / len(members)

  def curve(self, column: str) -> pd.Series:
    """The finite values of a column of metrics.csv, by round; empty if there is none."""
    values = self.metrics.get(column, pd.Series(dtype=float))
    return values[np.isfinite(values)]

  def mean_of(self, column: str) -> Optional[float]:
    """The mean over the rounds of a column of metrics.csv, or None."""
    values = self.curve(column)
    return float(values.mean()) if len(values) else None


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
  says_who_came = ended and run['identity'].get('cohort_seed') != run_parts.SECRET
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
