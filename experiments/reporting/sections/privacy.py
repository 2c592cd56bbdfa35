"""The words for a run's privacy figures, and the cost to each participation group.

A formal ε is reported for the released model only if the run's certificate or summary says that it covers that model.
Of a run that ended before its last planned round, this is the bound of its plan. What its rounds cost is a reading.
"""

from collections.abc import Iterable, Sequence
import functools
from typing import Any, Callable, Optional

import numpy as np

from experiments.reporting import naming
from experiments.reporting import pages
from experiments.reporting import runs as runs_lib
from experiments.reporting import study
from quap_tff.accounting import protection as protections
from quap_tff.common import json_types
from quap_tff.common.numbers import rounding

NO_FINITE = 'no finite ε for the released model'
# The mark of figures that hold only for ideal noise.
IDEAL = '†'
WEAKER = f'{IDEAL} These figures hold for ideal Gaussian noise. The noise that was drawn is weaker; the page says how.'

# The accountants' names in print, where they are not those of quap_tff.account.
_ACCOUNTANTS = {'gaussian_exact': 'exact accounting', 'pld': 'privacy loss distributions', 'rdp': 'RDP', 'zcdp': 'zCDP'}
# Thirds of the clients, by the rounds in which they took part.
_GROUPS = ('rare', 'middle', 'frequent')


def whole_model_epsilon(run: runs_lib.RunFolder) -> Optional[float]:
  """The largest ε of any client that holds for the released model: the certificate's, or else the formal one."""
  if run.certificate is not None:
    part, key = ('guarantee', 'epsilon') if _is_stopped(run) else ('achieved', 'epsilon_max')
    return runs_lib.number(_object(run.certificate, part).get(key))
  is_protected = _formal(run).get('covers') == protections.RELEASED_MODEL and run.summary.get('model_protected') is True
  return _smallest(run).get('epsilon_max') if is_protected else None


def is_whole(group: study.StudyGroup) -> bool:
  """Whether the formal ε of all its runs holds for the whole released model."""
  return all(whole_model_epsilon(run) is not None for run in group.runs)


def trust(run: runs_lib.RunFolder) -> str:
  """The trusted party (the server, the protocol of the secure sum, or nobody), and whether cohorts are secret."""
  trusted = str(run.summary.get('trust', 'server')).replace('_', ' ')
  return f'{trusted}, cohorts secret' if run.has_secret_cohorts else trusted


def formal_text(group: study.StudyGroup) -> str:
  """The coverage of a setting's formal figure, and the figure: the largest over seeds. † marks ideal noise."""
  whole = [epsilon for run in group.runs if (epsilon := whole_model_epsilon(run)) is not None]
  unlogged = [run for run in group.runs if _formal(run).get('covers') == protections.WEIGHTS_ONLY]
  of_weights = [smallest['epsilon_max'] for run in unlogged if (smallest := _smallest(run))]
  if len(whole) == len(group.runs):
    covers, epsilons = 'released model', whole
  elif len(of_weights) == len(group.runs):
    covers, epsilons = 'weights only, if the logs stay secret', of_weights
  else:
    return NO_FINITE
  run = group.runs[epsilons.index(max(epsilons))]
  accountant = str(_smallest(run).get('accountant'))
  source = 'certificate.json' if run.certificate is not None else _ACCOUNTANTS.get(accountant, accountant)
  secret = ', cohorts secret' if run.has_secret_cohorts else ''
  mark = IDEAL if ideal_note(run) else ''
  text = f'{covers}: ε = {rounding.up(max(epsilons))} ({source}{secret}){mark}'
  stopped = [run for run in group.runs if _is_stopped(run)]
  if not stopped:
    return text
  readings = [runs_lib.number(_object(_formal(run), 'reading').get('epsilon_max')) for run in stopped]
  known = [reading for reading in readings if reading is not None]
  largest = rounding.up(max(known)) if len(known) == len(readings) else 'none'
  return f'{text}, for all planned rounds; reading of those that ran, no guarantee: {largest}'


def footnotes(groups: Sequence[study.StudyGroup]) -> list[str]:
  """The unit, the relation and the δ of the formal figures, and the meaning of †."""
  runs = [run for group in groups for run in group.runs if _smallest(run)]
  if not runs:
    certified = any(run.certificate is not None for group in groups for run in group.runs)
    return [] if certified else ['No run has a formal figure.']

  def each(values: Iterable[Any]) -> str:
    return ' or '.join(dict.fromkeys(map(str, values)))

  noted: dict[str, dict[str, bool]] = {}
  for run in runs:
    noted.setdefault(ideal_note(run), {})[naming.name_of(run.algorithm)] = True
  return [
    f'Formal figures hold for {each(_formal(run).get("unit") for run in runs)}. Neighbouring datasets: '
    f'{each(_smallest(run).get("neighbours") for run in runs)}. Total δ: '
    f'{each(_formal(run).get("delta") for run in runs)}. Amplification by sampling: '
    f'{each(_smallest(run).get("amplification") for run in runs)}.',
    *(f'{IDEAL} {", ".join(methods)}: {note}' for note, methods in noted.items() if note),
  ]


def _came_unevenly(run: runs_lib.RunFolder) -> bool:
  return run.counts is not None and np.ptp(run.counts) > 0


def by_participation(name: str, groups: Sequence[study.StudyGroup]) -> list[pages.Block]:
  """Rare, middle and frequent clients, if clients differ in how often they took part.

  There are two tables, because one would be too wide for a page: `name` says what the clients did, and `name`_results
  says what they spent and how accurate the model is for them.
  """
  shown = [group for group in groups if group.every(_came_unevenly)]
  did = {
    'rounds taken part in': (lambda run: run.counts, 1),
    'weight contributed': (_contributed, 1),
    'examples': (lambda run: run.client_column('examples'), 0),
  }
  results = {
    'nominal ε': (lambda run: run.nominal_epsilon, 2, True),
    'formal ε': (_formal_epsilon, 2, True),
    'accuracy (%)': (lambda run: _percent(run.client_column('test_accuracy')), 1),
  }

  def columns(measures: pages.Cells, group: study.StudyGroup) -> dict[str, pages.Cell]:
    return {
      f'{what}: {_GROUPS[third]}': group.measure(functools.partial(_mean_of_third, values, third), *form)
      for what, (values, *form) in measures.items()
      for third in range(3)
    }

  blocks = []
  for suffix, words, measures in (('', 'did', did), ('_results', 'spent, and their accuracy', results)):
    own = functools.partial(columns, measures)
    title = f'What rare, middle and frequent clients {words}: means over each third of the clients'
    blocks += study.by_group(name + suffix, title, [g for g in shown if any(own(g).values())], own, 'participation')
  return blocks


def _percent(shares: Optional[np.ndarray]) -> Optional[np.ndarray]:
  return None if shares is None else 100 * shares


def _contributed(run: runs_lib.RunFolder) -> Optional[np.ndarray]:
  """float64[N], the sum over the rounds of each client's weight; None where clients have no weights."""
  if run.ledger is None or not run.algorithm.startswith('certified'):
    return None
  arrays = run.ledger.state_dict()
  return np.bincount(arrays['clients'], arrays['weights'], run.ledger.num_clients)


def _formal_epsilon(run: runs_lib.RunFolder) -> Optional[np.ndarray]:
  epsilon = run.client_column('formal_epsilon') if whole_model_epsilon(run) is not None else None
  return epsilon if epsilon is not None and np.all(np.isfinite(epsilon)) else None


def _mean_of_third(
  of_run: Callable[[runs_lib.RunFolder], Optional[np.ndarray]], third: int, run: runs_lib.RunFolder
) -> Optional[float]:
  """The mean of a figure over those clients of a third of a run that have a value; None if there is none.

  Thirds are by rounds taken part in; ties are by id.
  """
  counts: Any = run.counts
  values, members = of_run(run), np.array_split(np.argsort(counts, kind='stable'), 3)[third]
  known = values[members][np.isfinite(values[members])] if values is not None else ()
  return float(np.mean(known)) if len(known) else None


def _object(holder: json_types.JsonView, name: str) -> json_types.JsonView:
  value = holder.get(name)
  return value if isinstance(value, dict) else {}


def _formal(run: runs_lib.RunFolder) -> json_types.JsonView:
  return _object(run.summary, 'formal')


def _is_stopped(run: runs_lib.RunFolder) -> bool:
  return run.rounds < run.identity['rounds']


def _smallest(run: runs_lib.RunFolder) -> json_types.JsonView:
  """The smallest formal figure; {} if there is none. Amplification counts only where the cohorts are secret."""
  figures = _formal(run).get('figures')
  if not isinstance(figures, list):
    return {}
  known = [
    figure
    for figure in figures
    if runs_lib.number(figure.get('epsilon_max')) is not None
    and (figure.get('amplification') == 'none' or run.has_secret_cohorts)
  ]
  return min(known, key=lambda figure: figure['epsilon_max'], default={})


def ideal_note(run: runs_lib.RunFolder) -> str:
  """How the noise that was drawn differs from the ideal noise of the formal figure; '' if it does not."""
  return str(_formal(run).get('noise_note', ''))
