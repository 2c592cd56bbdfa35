"""Runs of one setting form a group. Groups are compared in tables that say how they differ. They are never averaged.

The table of all runs has one row for each: the flags that its method reads, and what was measured (`RunFolder.row`).
"""

from collections.abc import Iterable, Sequence
import dataclasses
import json
from typing import Any, Callable, NamedTuple, Optional, Union

import numpy as np
import pandas as pd

from experiments.command import run as run_lib
from experiments.reporting import naming
from experiments.reporting import pages
from experiments.reporting import privacy
from experiments.reporting import published
from experiments.reporting import quantity
from experiments.reporting import runs as runs_lib
from quap_tff import methods
from quap_tff.common import json_types

# Flags in which repetitions of a setting differ, and flags that only name files or the origin of constants.
_REPEATED = ('seed', 'noise_seed', 'output_dir', 'data_dir', 'tuning')
# Flags whose values are already in the title, a column or another cell of every table.
_KNOWN = ('algorithm', 'dataset', 'stop_at_accuracy')
# Columns of the table of all runs that others follow from.
_FOLDER, _SETTING = 'folder', 'setting'


@dataclasses.dataclass(frozen=True, eq=False)
class StudyGroup:
  """Runs of one setting, one for each seed.

  Attributes:
    setting: Every flag that the method reads and that decides what is computed, except the seeds. Also
      `stop_at_accuracy`, which decides where a run ends.
    runs: At least one row, by seed.
    place: The place of its --algorithm spec among those of the report, which decides its look in figures.
  """

  setting: json_types.JsonView
  runs: pd.DataFrame
  place: int

  @property
  def algorithm(self) -> str:
    return self.setting['algorithm']

  @property
  def method(self) -> str:
    return naming.method_of(self.algorithm)

  @property
  def dataset(self) -> str:
    return self.setting['dataset']

  @property
  def folders(self) -> list[runs_lib.RunFolder]:
    return list(self.runs[_FOLDER])

  @property
  def is_secret(self) -> bool:
    """Whether the cohorts are secret."""
    return bool(self.runs['is_secret'].any())

  @property
  def is_whole(self) -> bool:
    """Whether the formal ε of all its runs holds for the whole released model."""
    return bool((self.runs['covers'] == privacy.RELEASED).all())

  @property
  def parts(self) -> tuple[bool, bool, bool]:
    """Whether it has (adaptive budget, adaptive clip, layer-wise noise); no part outside the documents' ablation."""
    return published.PARTS.get(self.method, (False, False, False))

  @property
  def scenario(self) -> Optional[str]:
    """The documents' participation scenario: 'uniform', 'heterogeneous', 'extreme', or None for another."""
    name, _, parameters = self.setting['participation'].partition(':')
    if name in ('beta', 'beta_bernoulli') and parameters == 'a=2,b=5':
      return 'heterogeneous'
    return {'uniform': 'uniform', 'bernoulli': 'uniform', 'extreme_imbalance': 'extreme'}.get(name)

  @property
  def is_of_documents(self) -> bool:
    """Whether the documents' tables are about its setting: data, clients, participation, α, β and calibration."""
    is_known = self.dataset in published.DATASETS and self.scenario is not None
    return is_known and self.has(calibration='documents', **published.COMMON)

  @property
  def origin(self) -> dict[str, str]:
    """The last cells of its rows: the seeds, and the rounds run out of those planned, marked if a run stopped early."""
    planned, stop = self.setting['rounds'], self.setting['stop_at_accuracy']
    lengths = sorted(set(self.runs['rounds_run']))
    text = f'{", ".join(map(str, lengths))} of {planned}'
    if stop is not None:
      text += f' (stops at accuracy {stop:g})'
    elif not self.runs['ended'].all():
      text += ' (unfinished)'
    elif lengths[0] != planned:
      text += ' (stopped early)'
    return {'seeds': f'{len(self.runs)} ({", ".join(map(str, self.runs["seed"]))})', 'rounds': text}

  def measure(self, column: str, digits: int = 2, is_bound: bool = False) -> Optional[quantity.Quantity]:
    """The mean of a column of numbers over the seeds that have one; None if none has. See `quantity.over`."""
    return quantity.over(self.runs[column], digits, is_bound) if column in self.runs else None

  def accuracy(self) -> quantity.Quantity:
    """Final test accuracy in percent."""
    found = self.measure('accuracy')
    assert found is not None  # A run without a test accuracy is left out.
    return found

  def has(self, **flags: json_types.Json) -> bool:
    """Whether its flags have these values; flags that its method does not read may have any."""
    values = ((name, naming.canonical(name, value)) for name, value in flags.items())
    return all(self.setting.get(name, value) == value for name, value in values)


def collect(folders: Sequence[runs_lib.RunFolder]) -> tuple[list[StudyGroup], list[runs_lib.LeftOut]]:
  """The runs in groups, in the order of their folders.

  A second run of a seed, and a run of fewer rounds than others of its setting, are left out by name.
  """
  if not folders:
    return [], []
  flags = dict.fromkeys(name for run in folders for name in run.identity if name not in _REPEATED)
  rows, settings = [], {}
  for run in folders:
    setting = _setting(run, flags)
    key = _json_text(setting)
    settings[key] = setting
    title = naming.title_of(run.algorithm)
    rows.append({**setting, **run.row(), 'title': title, _SETTING: key, _FOLDER: run})
  table = pd.DataFrame(rows)
  is_fedavg = table['algorithm'].map(naming.method_of) == 'fedavg'
  same_model = [table[name] for name in ('dataset', 'model') if name in table]
  of_fedavg = table['up_kilobytes'].where(is_fedavg).groupby(same_model, dropna=False).transform('first')
  table['bytes_above_fedavg'] = 1000.0 * (table['up_kilobytes'] - of_fedavg)
  algorithms = sorted({run.algorithm for run in folders}, key=naming.order)
  groups, left_out = [], []
  for key, found in table.groupby(_SETTING, sort=False):
    # A run that stops at an accuracy is as long as it takes.
    is_short = (found['rounds_run'] < found['rounds_run'].max()) & found['stop_at_accuracy'].isna()
    for path, rounds in zip(found['run'][is_short], found['rounds_run'][is_short]):
      reason = f'{rounds} rounds, others of its setting {found["rounds_run"].max()}; left out of their mean'
      left_out.append(runs_lib.LeftOut(path, reason))
    kept = found[~is_short]
    first = kept.drop_duplicates('seed').set_index('seed')['run']
    again = kept[kept.duplicated('seed')]
    for path, seed in zip(again['run'], again['seed']):
      left_out.append(runs_lib.LeftOut(path, f'same setting and seed as {first[seed]}, which is used'))
    kept = kept.drop_duplicates('seed').sort_values('seed')
    setting = settings[str(key)]
    groups.append(StudyGroup(setting, kept, algorithms.index(setting['algorithm'])))
  return groups, left_out


def _setting(run: runs_lib.RunFolder, flags: Iterable[str]) -> json_types.JsonObject:
  """The `flags` that the run's method reads. An older version may not have had all of them."""
  try:
    unread = run_lib.unused_flags(methods.parse(run.algorithm))
  except ValueError:
    unread = frozenset(flags).difference(run.identity)  # This version does not know the method.
  setting = {k: naming.canonical(k, run.identity.get(k, 'absent')) for k in flags if k not in unread}
  stop_at_accuracy = run.flags.get('stop_at_accuracy')
  return {**setting, 'algorithm': run.algorithm, 'num_clients': run.num_clients, 'stop_at_accuracy': stop_at_accuracy}


def runs_table(groups: Sequence[StudyGroup]) -> pd.DataFrame:
  """runs.csv: a row for each run that the report uses."""
  return pd.concat([group.runs for group in groups]).drop(columns=[_FOLDER, _SETTING])


class Family(NamedTuple):
  """Groups that differ in some flags only.

  Attributes:
    dataset: Their dataset, in print.
    setting: The other flags that they share and other families do not, in words; '' if there are none.
    groups: The groups.
  """

  dataset: str
  setting: str
  groups: Sequence[StudyGroup]

  @property
  def title(self) -> str:
    """The dataset and the shared flags."""
    return ', '.join(filter(None, [self.dataset, self.setting]))


def _texts(settings: Sequence[json_types.JsonView]) -> pd.DataFrame:
  """A row for each setting, a column for each flag: the value as JSON. It is None where a method does not read it."""
  rows = []
  for setting in settings:
    rows.append({name: _json_text(value) for name, value in setting.items()})
  return pd.DataFrame(rows, dtype=object)


def _json_text(value: json_types.Json) -> str:
  return json.dumps(value, sort_keys=True, default=str)


def differing(settings: Sequence[json_types.JsonView]) -> list[str]:
  """The flags in which settings differ, other than method and dataset."""
  texts = _texts(settings)
  return [str(name) for name in texts if texts[name].nunique() > 1 and name not in _KNOWN]


def describe(settings: Sequence[json_types.JsonView], *known: str, in_full: bool = False) -> tuple[list[str], str]:
  """How settings differ in flags other than method, dataset and those `known` from elsewhere.

  Returns:
    A text for each setting, and the values that a setting has unless its text says otherwise: those of more than half
    of the settings that have the flag, or none of them if `in_full`.
  """
  parts: list[list[str]] = [[] for _ in settings]
  usual = []
  all_texts = _texts(settings)
  for name in differing(settings):
    if name in known:
      continue
    texts = all_texts[name]
    counts = texts.value_counts()
    is_usual = 2 * counts.iloc[0] > counts.sum() and not in_full
    for part, setting, text in zip(parts, settings, texts):
      if name in setting and not (is_usual and text == counts.index[0]):
        part.append(naming.value(name, setting[name]))
    if is_usual:
      usual.append(naming.value(name, settings[list(texts).index(counts.index[0])][name]))
  return [', '.join(part) for part in parts], ', '.join(usual)


def figure_names(groups: Sequence[StudyGroup], *known: str) -> list[str]:
  """The groups' names in figures: the method, and settings other than `known` in which groups of one label differ."""
  labels: dict[StudyGroup, str] = {}
  for secret, suffix in ((False, ''), (True, ' with secret cohorts')):
    members = [group for group in groups if group.is_secret == secret]
    found = naming.distinguished([group.algorithm for group in members])
    labels.update({group: label + suffix for group, (label, _) in zip(members, found)})
  names: dict[StudyGroup, str] = {}
  for label in labels.values():
    members = [group for group in groups if labels[group] == label]
    settings, _ = describe([group.setting for group in members], *known, in_full=True)
    names.update({group: ', '.join(filter(None, [label, words])) for group, words in zip(members, settings)})
  return [names[group] for group in groups]


def families(groups: Sequence[StudyGroup], *axes: str, at_least: int = 1) -> list[Family]:
  """Families of groups that agree in every flag that they share, except in `axes`, in the order of the methods.

  A group belongs to several families if they differ only in flags that its method does not read: FedAvg is compared
  with the others at every ε. Families of fewer than `at_least` groups, and those contained in another family, are left
  out.
  """
  texts = _texts([{**g.setting, 'algorithm': g.algorithm} for g in groups]).drop(columns=list(axes), errors='ignore')
  # Each family starts from the group that reads most, so that every setting of that method begins one.
  order = texts.notna().sum(axis=1).sort_values(ascending=False, kind='stable').index
  cells = texts.to_numpy()
  agree = [np.all((row == cells) | pd.isna(row) | pd.isna(cells), axis=1) for row in cells]
  found: list[list[int]] = []
  for first in order:
    members = [first]
    for i in order:
      if i != first and all(agree[i][j] for j in members):
        members.append(i)
    if len(members) >= at_least and not any(set(members) <= set(others) for others in found):
      found.append(members)
  by_method = [sorted(map(groups.__getitem__, members), key=place_of) for members in sorted(found, key=min)]
  return titled(by_method, *axes)


def place_of(group: StudyGroup) -> int:
  return group.place


def titled(members: Sequence[Sequence[StudyGroup]], *axes: str) -> list[Family]:
  """The families, with settings that tell them apart. Within a family, groups differ in `axes`."""
  shared = []
  for groups in members:
    shared.append({name: value for g in groups for name, value in g.setting.items() if name not in axes})
  words, _ = describe(shared, in_full=True)
  return [Family(naming.dataset(s['dataset']), w, groups) for s, w, groups in zip(shared, words, members)]


def places(groups: Sequence[StudyGroup]) -> list[Family]:
  """Methods side by side: for each dataset and participation, the setting in which most methods were run."""
  by_place: dict[Any, Sequence[StudyGroup]] = {}
  for family in families(groups, 'algorithm'):
    place = (family.dataset, family.groups[0].setting['participation'])
    by_place[place] = max(by_place.get(place, []), family.groups, key=_num_groups_and_runs)
  return titled(list(by_place.values()), 'algorithm')


def _num_groups_and_runs(groups: Sequence[StudyGroup]) -> tuple[int, int]:
  return len(groups), sum(len(group.runs) for group in groups)


class Measure(NamedTuple):
  """A column of tables.

  Attributes:
    heading: The heading.
    value: A column of numbers of the table of all runs; or a function of a group, to a quantity, a text or None.
    digits: Decimals in print.
    is_bound: Whether the numbers are upper bounds, so that means are rounded up.
    printed: The figure that a document prints for a group; None where no document prints one.
  """

  heading: str
  value: Union[str, Callable[[StudyGroup], pages.Cell]]
  digits: int = 2
  is_bound: bool = False
  printed: Optional[Callable[[StudyGroup], pages.Cell]] = None

  def of(self, group: StudyGroup) -> pages.Cell:
    return group.measure(self.value, self.digits, self.is_bound) if isinstance(self.value, str) else self.value(group)

  def cells(self, group: StudyGroup) -> pages.Cells:
    """The measured figure of a group, and the printed one if documents print such figures."""
    if self.printed is None:
      return {self.heading: self.of(group)}
    return {self.heading: self.of(group), f'{self.heading} in the documents': self.printed(group)}


def table(
  name: str, title: str, groups: Sequence[StudyGroup], measures: Sequence[Measure], *known: str
) -> list[pages.Block]:
  """A table with a row for each group, in order, and its notes for a reader who compares rows.

  Args:
    name: The name of the table.
    title: The line above it.
    groups: The groups; nothing is shown if there are none.
    measures: Its columns.
    *known: Flags that the title or other cells state.
  """
  settings, usual = describe([group.setting for group in groups], *known)
  words = naming.distinguished([group.algorithm for group in groups])
  rows = []
  for group, (method, more), setting in zip(groups, words, settings):
    cells = {'method': method, 'setting': ', '.join(filter(None, [more, setting]))}
    for measure in measures:
      cells.update(measure.cells(group))
    rows.append(cells | group.origin)
  notes = [f'Unless its setting says otherwise, a row has {usual}.'] if usual else []
  if len({group.origin['rounds'] for group in groups}) > 1:
    notes.append('The rows differ in the number of rounds that were run: compare only rows with equal rounds.')
  return [pages.Table(name, title, rows), *notes] if rows else []


def by_dataset(
  name: str, title: str, groups: Sequence[StudyGroup], measures: Sequence[Measure], *known: str
) -> list[pages.Block]:
  """A table for each dataset, with the methods in order."""
  blocks = []
  for dataset in sorted({g.dataset for g in groups}):
    own = sorted((g for g in groups if g.dataset == dataset), key=place_of)
    blocks += table(name, f'{title}: {naming.dataset(dataset)}', own, measures, *known)
  return blocks


def minus(group: StudyGroup, reference: StudyGroup) -> Optional[quantity.Quantity]:
  """The difference of accuracies in points over the seeds that both have; None without such seeds."""
  pairs = group.runs.merge(reference.runs, on='seed')
  return quantity.over(pairs['accuracy_x'] - pairs['accuracy_y'])
