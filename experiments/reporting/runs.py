"""Run directories as the report reads them: what a run was, what it measured, and what could not be read."""

import dataclasses
import functools
import json
import os
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from experiments import plots
from experiments.reporting import ledger as ledger_lib
from experiments.reporting import specs

RUN = 'run.json'

# Flags without which a run cannot be placed, and the types of their values.
_NEEDED = {
    'dataset': str, 'participation': str, 'partition': str, 'critical_layers': str, 'rounds': int, 'seed': int,
    **dict.fromkeys(('epsilon', 'delta', 'alpha', 'beta'), (int, float)),
}


class LeftOut(NamedTuple):
  """Something that the report could not use: where it lies, and what is wrong with it."""

  path: str
  reason: str


@dataclasses.dataclass(frozen=True)
class Run:
  """One run directory. What is missing in it is empty or None.

  Attributes:
    path: The folder.
    identity: The flags that say what is computed.
    flags: All flags.
    versions, machine: As run.json has them.
    metrics: Columns of metrics.csv, float64[rounds] each, NaN where a round has no value.
    clients: Columns of clients.csv, float64[N] each.
    ledger: Who took part when, on what nominal budget.
    summary: summary.json, or {} while the run goes on.
    certificate: certificate.json of a certified run.
  """

  path: str
  identity: Mapping[str, Any]
  flags: Mapping[str, Any]
  versions: Mapping[str, Any]
  machine: Mapping[str, Any]
  metrics: Mapping[str, np.ndarray]
  clients: Mapping[str, np.ndarray]
  ledger: Optional[ledger_lib.Ledger]
  summary: Mapping[str, Any]
  certificate: Optional[Mapping[str, Any]]

  @property
  def seed(self) -> Any:
    return self.identity.get('seed')

  @property
  def algorithm(self) -> str:
    return specs.canonical('algorithm', self.identity.get('algorithm', 'quap'))

  @property
  def rounds(self) -> int:
    """Rounds that were run."""
    if isinstance(self.summary.get('rounds'), int):
      return self.summary['rounds']
    return int(self.metrics['round'][-1]) if len(self.metrics.get('round', ())) else 0

  @property
  def planned_rounds(self) -> Optional[int]:
    return self.summary.get('planned_rounds', self.identity.get('rounds'))

  @property
  def stop_at_accuracy(self) -> Optional[float]:
    return self.flags.get('stop_at_accuracy')

  @property
  def ended(self) -> bool:
    """Whether it came to the end that it was given: its planned rounds, fewer by a flag, or an accuracy to stop at."""
    return bool(self.summary) and not self.summary.get('interrupted')

  @functools.cached_property
  def test_accuracy(self) -> Optional[float]:
    """Of the final model, in [0, 1]; of the last tested round where there is no summary."""
    accuracy = self.summary.get('test_accuracy')
    if isinstance(accuracy, (int, float)):
      return float(accuracy)
    _, accuracies = self.curve('test_accuracy')
    return float(accuracies[-1]) if len(accuracies) else None

  @property
  def num_clients(self) -> Optional[int]:
    if self.ledger is not None:
      return self.ledger.num_clients
    return len(self.clients['client']) if 'client' in self.clients else self.identity.get('num_clients')

  @property
  def participation_counts(self) -> Optional[np.ndarray]:
    """float64[N], rounds of each client."""
    if self.ledger is not None:
      return self.ledger.counts.astype(float)
    return self.clients.get('rounds')

  @property
  def has_nominal(self) -> bool:
    """Whether the noise is the one that the documents' formula gives for the nominal budgets."""
    is_certified = specs.parse(self.algorithm)[0] == 'certified'
    return self.identity.get('calibration', 'documents') == 'documents' and not is_certified

  @property
  def client_epsilon(self) -> Optional[np.ndarray]:
    """float64[N], each client's nominal Σε_i; None without a ledger, without noise or with other noise."""
    if not self.has_nominal:
      return None
    epsilon = self.ledger.epsilon if self.ledger is not None else self.clients.get('nominal_epsilon')
    return epsilon if epsilon is not None and np.all(np.isfinite(epsilon)) else None

  @property
  def client_accuracy(self) -> Optional[np.ndarray]:
    """float64[<=N], the final model's accuracy on each client's own mix of labels, of those that have one."""
    accuracy = self.clients.get('test_accuracy')
    return accuracy[np.isfinite(accuracy)] if accuracy is not None else None

  def curve(self, column: str) -> Tuple[np.ndarray, np.ndarray]:
    """(rounds, values) where `column` of metrics.csv has a finite value; empty if there is none."""
    values = self.metrics.get(column)
    if values is None:
      return np.empty(0), np.empty(0)
    known = np.isfinite(values)
    return self.metrics['round'][known], values[known]

  def mean_of(self, column: str) -> Optional[float]:
    """Mean over the rounds of a column of metrics.csv, or None."""
    _, values = self.curve(column)
    return float(values.mean()) if len(values) else None


def find(roots: Sequence[str]) -> List[str]:
  """Folders at or below `roots` that hold a run.json, each once, in order."""
  folders = {}
  for root in roots:
    for folder, names, files in os.walk(root):
      names.sort()
      if RUN in files:
        folders.setdefault(os.path.realpath(folder), folder)
  return list(folders.values())


def load(path: str) -> Tuple[Optional[Run], List[LeftOut]]:
  """Reads a run directory: the run, or None if nothing can be told from it, and what is damaged or missing."""
  left_out = []

  def leave_out(name, reason):
    left_out.append(LeftOut(os.path.join(path, name), reason))

  def read(name, reader, otherwise, expected):
    file = os.path.join(path, name)
    if not os.path.exists(file):
      if expected:
        leave_out(name, 'is missing; what it would tell is left out')
      return otherwise
    try:
      return reader(file)
    except (OSError, ValueError, TypeError, KeyError) as error:
      leave_out(name, f'cannot be read ({" ".join(str(error).split())}); what it would tell is left out')
      return otherwise

  run = read(RUN, _read_run, None, True)
  if run is None:
    return None, left_out
  summary = read('summary.json', _read_object, {}, False)
  result = Run(
      path=path,
      identity=run['identity'],
      flags=run['flags'],
      versions=run['versions'],
      machine=run['machine'],
      metrics=read('metrics.csv', _read_metrics, {}, True),
      # These are written at the end.
      clients=read('clients.csv', plots.read_metrics, {}, bool(summary)),
      ledger=read('ledger.npz', ledger_lib.load, None, bool(summary)),
      summary=summary,
      certificate=read(
          'certificate.json', _read_object, None,
          bool(summary) and str(run['identity'].get('algorithm', '')).startswith('certified')
      ),
  )
  if result.test_accuracy is None:
    leave_out('', 'no test accuracy in it: the run is left out')
    return None, left_out
  if not result.ended:
    leave_out('', f'unfinished: {result.rounds} of {result.planned_rounds} planned rounds; marked where it is used')
  return result, left_out


def _read_object(path) -> Dict[str, Any]:
  with open(path, encoding='utf-8') as f:
    value = json.load(f)
  if not isinstance(value, dict):
    raise ValueError('not a JSON object')
  return value


def _read_run(path):
  run = _read_object(path)
  identity = run.get('identity')
  if not isinstance(identity, dict):
    raise ValueError('it has no identity')
  lacking = [name for name, kinds in _NEEDED.items() if not isinstance(identity.get(name), kinds)]
  if lacking:
    raise ValueError(f'its identity lacks {", ".join(lacking)}')
  return {'identity': identity, **{
      name: run[name] if isinstance(run.get(name), dict) else {} for name in ('flags', 'versions', 'machine')
  }}


def _read_metrics(path):
  metrics = plots.read_metrics(path)
  if 'round' not in metrics:
    raise ValueError('no column named round, or no rows')
  if not np.all(np.diff(metrics['round']) > 0):
    raise ValueError('its rounds do not ascend')
  return metrics
