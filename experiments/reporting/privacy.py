"""The privacy figures of a run as columns of its row, and the words for them.

A formal ε is reported for the released model only if the run's certificate or summary says that it covers that model.
Of a run that ended before its last planned round, this is the bound of its plan. What its rounds cost is a reading.
"""

from typing import Optional

import pandas as pd

from quap_tff.accounting import protection as protections
from quap_tff.common import json_types
from quap_tff.common.numbers import rounding

RELEASED, WEIGHTS = 'released model', 'weights only, if the logs stay secret'
NO_FINITE = 'no finite ε for the released model'
# The mark of figures that hold only for ideal noise.
IDEAL = '†'
WEAKER = f'{IDEAL} These figures hold for ideal Gaussian noise. The noise that was drawn is weaker, as the report says.'

# The accountants' names in print, where they are not those of quap_tff.account.
_ACCOUNTANTS = {'gaussian_exact': 'exact accounting', 'pld': 'privacy loss distributions', 'rdp': 'RDP', 'zcdp': 'zCDP'}


def number(value: json_types.Json) -> Optional[float]:
  """The number that a JSON file holds; None for any other value."""
  return float(value) if isinstance(value, (int, float)) else None


def facts(
  summary: json_types.JsonView, certificate: Optional[json_types.JsonView], is_secret: bool, is_stopped: bool
) -> json_types.JsonObject:
  """The formal figure of a run and its conditions, by column; None where there is no figure.

  Args:
    summary: summary.json.
    certificate: certificate.json, if the run is certified.
    is_secret: Whether nobody knows who took part, so that sampling amplifies privacy.
    is_stopped: Whether the run ended before its last planned round.
  """
  formal = _object(summary, 'formal')
  smallest = _smallest(formal, is_secret)
  epsilon, accountant = number(smallest.get('epsilon_max')), str(smallest.get('accountant'))
  covers: Optional[str] = None
  source = _ACCOUNTANTS.get(accountant, accountant)
  if certificate is not None:
    part, key = ('guarantee', 'epsilon') if is_stopped else ('achieved', 'epsilon_max')
    epsilon, source = number(_object(certificate, part).get(key)), 'certificate.json'
    covers = RELEASED
  elif formal.get('covers') == protections.RELEASED_MODEL and summary.get('model_protected') is True:
    covers = RELEASED
  elif formal.get('covers') == protections.WEIGHTS_ONLY:
    covers = WEIGHTS
  if epsilon is None or covers is None:
    epsilon = covers = None
  found: json_types.JsonObject = {'covers': covers, 'formal_epsilon': epsilon, 'formal_source': source}
  found['trust'] = str(summary.get('trust', 'server')).replace('_', ' ')
  found['reading'] = number(_object(formal, 'reading').get('epsilon_max'))
  found['noise_note'] = str(formal.get('noise_note') or '')
  holder = formal if smallest else {}
  found.update(unit=holder.get('unit'), formal_delta=holder.get('delta'))
  found.update(neighbours=smallest.get('neighbours'), amplification=smallest.get('amplification'))
  return found


def _object(holder: json_types.JsonView, name: str) -> json_types.JsonView:
  value = holder.get(name)
  return value if isinstance(value, dict) else {}


def _smallest(formal: json_types.JsonView, is_secret: bool) -> json_types.JsonView:
  """The smallest formal figure, or {}. Amplification counts only where the cohorts are secret."""
  figures = formal.get('figures')
  if not isinstance(figures, list):
    return {}
  known = [one for one in figures if number(one.get('epsilon_max')) is not None]
  counted = [one for one in known if is_secret or one.get('amplification') == 'none']
  return min(counted, key=lambda one: one['epsilon_max'], default={})


def formal_text(runs: pd.DataFrame) -> str:
  """The coverage of a setting's formal figure, and the figure: the largest over seeds. † marks ideal noise."""
  covers = runs['covers'].iloc[0]
  if runs['covers'].nunique(dropna=False) > 1 or pd.isna(covers):
    return NO_FINITE
  worst = runs.loc[runs['formal_epsilon'].astype(float).idxmax()]
  secret = ', cohorts secret' if worst['is_secret'] else ''
  mark = IDEAL if worst['noise_note'] else ''
  text = f'{covers}: ε = {rounding.up(worst["formal_epsilon"])} ({worst["formal_source"]}{secret}){mark}'
  stopped = runs[runs['rounds_run'] < runs['rounds']]
  if stopped.empty:
    return text
  reading = 'none' if stopped['reading'].isna().any() else rounding.up(stopped['reading'].max())
  return f'{text}, for all planned rounds; reading of those that ran, no guarantee: {reading}'


def footnotes(runs: pd.DataFrame) -> list[str]:
  """The unit, the relation and the δ of the formal figures, and the meaning of †."""
  with_figure = runs.dropna(subset=['unit'])
  if with_figure.empty:
    return [] if (runs['covers'] == RELEASED).any() else ['No run has a formal figure.']
  words = {}
  for name in ('unit', 'formal_delta', 'neighbours', 'amplification'):
    words[name] = '; or '.join(dict.fromkeys(map(str, with_figure[name])))
  notes = [
    f'Formal figures hold for {words["unit"]}. Neighbouring datasets: {words["neighbours"]}. Total δ: '
    f'{words["formal_delta"]}. Amplification by sampling: {words["amplification"]}.'
  ]
  for note, noted in with_figure[with_figure['noise_note'] != ''].groupby('noise_note', sort=False):
    notes.append(f'{IDEAL} {", ".join(noted["title"].unique())}: {note}')
  return notes
