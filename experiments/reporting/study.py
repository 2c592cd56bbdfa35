"""Runs of one setting form a group. Groups are compared in tables that say how they differ. They are never averaged."""

from collections.abc import Iterable, Sequence
import dataclasses
import json
from typing import Any, Callable, NamedTuple, Optional, Union

import numpy as np
import numpy.typing as npt
import pandas as pd

from experiments.command import run as run_lib
from experiments.reporting import naming
from experiments.reporting import pages
from experiments.reporting import published
from experiments.reporting import runs as runs_lib
from quap_tff import methods
from quap_tff.common import json_types
from quap_tff.common import lazy

stats = lazy.module('scipy.stats')

# An interval of fewer seeds is left out.
FEWEST_SEEDS = 3
# What columns begin with in tables that compare measured figures with those of the documents.
_DOCUMENT, _MEASURED = 'document: ', 'measured: '

# Flags in which repetitions of a setting differ, and flags that only name files or the origin of constants.
_REPEATED = ('seed', 'noise_seed', 'output_dir', 'data_dir', 'tuning')
# Flags whose values are already in the title, a column or another cell of every table.
_KNOWN = ('algorithm', 'dataset', 'stop_at_accuracy')


@dataclasses.dataclass(frozen=True, eq=False)
class StudyGroup:
  """Runs of one setting, one for each seed.

  Attributes:
    setting: Every flag that the method reads and that decides what is computed, except the seeds. Also
      `stop_at_accuracy`, which decides where a run ends.
    runs: At least one, by seed.
    place: The place of its --algorithm spec among those of the report, which decides its look in figures.
  """

  setting: json_types.JsonView
  runs: tuple[runs_lib.RunFolder, ...]
  place: int

  @property
  def algorithm(self) -> str:
    return self.setting['algorithm']

  @property
  def method(self) -> str:
    return self.algorithm.partition(':')[0]

  @property
  def dataset(self) -> str:
    return self.setting['dataset']

  @property
  def has_secret_cohorts(self) -> bool:
    """Whether the cohorts of any run are secret."""
    return any(run.has_secret_cohorts for run in self.runs)

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
    text = f'{", ".join(map(str, sorted({run.rounds for run in self.runs})))} of {planned}'
    if stop is not None:
      text += f' (stops at accuracy {stop:g})'
    elif not all(run.ended for run in self.runs):
      text += ' (unfinished)'
    elif self.runs[0].rounds != planned:
      text += ' (stopped early)'
    return {'seeds': f'{len(self.runs)} ({", ".join(str(run.seed) for run in self.runs)})', 'rounds': text}

  def every(self, holds: Callable[[runs_lib.RunFolder], bool]) -> bool:
    """Whether this holds for each run."""
    return all(map(holds, self.runs))

  def measure(
    self, value: Callable[[runs_lib.RunFolder], Optional[float]], digits: int = 2, is_bound: bool = False
  ) -> Optional[pages.Quantity]:
    """A figure of each run, as mean and deviation over the seeds that have it; None if none has. See `over`."""
    return over([value(run) for run in self.runs], digits, is_bound)

  def accuracy(self) -> Optional[pages.Quantity]:
    """Final test accuracy in percent."""
    return self.measure(lambda run: None if run.test_accuracy is None else 100 * run.test_accuracy)

  def interval(self) -> Optional[pages.Quantity]:
    """Final test accuracy in percent, with half of its 95% interval in place of the deviation, see `interval`."""
    return interval(100 * run.test_accuracy for run in self.runs if run.test_accuracy is not None)

  def has(self, **flags: json_types.Json) -> bool:
    """Whether its flags have these values; flags that its method does not read may have any."""
    values = ((name, runs_lib.canonical(name, value)) for name, value in flags.items())
    return all(self.setting.get(name, value) == value for name, value in values)


class Family(NamedTuple):
  """Groups that differ in some flags only.

  Attributes:
    dataset: Their dataset.
    setting: The other flags that they share and other families do not, in words; '' if there are none.
    groups: The groups.
  """

  dataset: str
  setting: str
  groups: Sequence[StudyGroup]

  @property
  def title(self) -> str:
    """The dataset and the shared flags, for a table."""
    return ', '.join(filter(None, [naming.dataset(self.dataset), self.setting]))

  def caption(self, words: str) -> str:
    """The caption of a figure: `words` on how to read it, and the shared flags."""
    return f'{words} Setting: {self.setting}.' if self.setting else words


def collect(runs: Iterable[runs_lib.RunFolder]) -> tuple[list[StudyGroup], list[runs_lib.LeftOut]]:
  """The runs in groups, in the order of their folders.

  A second run of a seed, and a run of fewer rounds than others of its setting, are left out by name.
  """
  runs = list(runs)
  flags = dict.fromkeys(name for run in runs for name in run.identity if name not in _REPEATED)
  same: dict[str, tuple[json_types.JsonObject, list[runs_lib.RunFolder]]] = {}
  for run in runs:
    setting = _setting(run, flags)
    same.setdefault(_json_text(setting), (setting, []))[1].append(run)
  algorithms = sorted({run.algorithm for run in runs}, key=naming.order)
  groups, left_out = [], []
  for setting, found in same.values():
    kept: dict[int, runs_lib.RunFolder] = {}
    most = max(run.rounds for run in found)
    for run in found:
      # A run that stops at an accuracy is as long as it takes.
      if run.rounds < most and run.flags.get('stop_at_accuracy') is None:
        reason = f'{run.rounds} rounds, others of its setting {most}; left out of their mean'
        left_out.append(runs_lib.LeftOut(run.path, reason))
      elif run.seed in kept:
        left_out.append(runs_lib.LeftOut(run.path, f'same setting and seed as {kept[run.seed].path}, which is used'))
      else:
        kept[run.seed] = run
    groups.append(
      StudyGroup(setting, tuple(kept[seed] for seed in sorted(kept)), algorithms.index(setting['algorithm']))
    )
  return groups, left_out


def _setting(run: runs_lib.RunFolder, flags: Iterable[str]) -> json_types.JsonObject:
  """The `flags` that the run's method reads. An older version may not have had all of them."""
  try:
    unread = run_lib.unused_flags(methods.parse(run.algorithm))
  except ValueError:
    unread = frozenset(flags).difference(run.identity)  # This version does not know the method.
  setting = {k: runs_lib.canonical(k, run.identity.get(k, 'absent')) for k in flags if k not in unread}
  stop_at_accuracy = run.flags.get('stop_at_accuracy')
  return {**setting, 'algorithm': run.algorithm, 'num_clients': run.num_clients, 'stop_at_accuracy': stop_at_accuracy}


def _texts(settings: Sequence[json_types.JsonView]) -> pd.DataFrame:
  """A row for each setting, a column for each flag: the value as JSON. It is None where a method does not read it."""
  rows = []
  for setting in settings:
    rows.append({name: _json_text(value) for name, value in setting.items()})
  return pd.DataFrame(rows, dtype=object)


def _json_text(value: json_types.Json) -> str:
  return json.dumps(value, sort_keys=True, default=str)


def describe(settings: Sequence[json_types.JsonView], *known: str, in_full: bool = False) -> tuple[list[str], str]:
  """How settings differ in flags other than method, dataset and those `known` from elsewhere.

  Returns:
    A text for each setting, and the values that a setting has unless its text says otherwise: those of more than half
    of the settings that have the flag, or none of them if `in_full`.
  """
  parts: list[list[str]] = [[] for _ in settings]
  usual = []
  for name, texts in _texts(settings).items():
    counts = texts.value_counts()
    if len(counts) < 2 or name in (*_KNOWN, *known):
      continue
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
  for secret in (False, True):
    own = [group for group in groups if group.has_secret_cohorts == secret]
    found = naming.labels([group.algorithm for group in own])
    labels.update({group: label + ' with secret cohorts' * secret for group, label in zip(own, found)})
  names_: dict[StudyGroup, str] = {}
  for label in labels.values():
    own = [group for group in groups if labels[group] == label]
    settings, _ = describe([group.setting for group in own], *known, in_full=True)
    names_.update({group: ', '.join(filter(None, [label, words])) for group, words in zip(own, settings)})
  return [names_[group] for group in groups]


def families(groups: Sequence[StudyGroup], *axes: str, at_least: int = 1) -> list[list[StudyGroup]]:
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
      members += [i] if i != first and all(agree[i][j] for j in members) else []
    if len(members) >= at_least and not any(set(members) <= set(others) for others in found):
      found.append(members)

  def members_of(ids: Iterable[int]) -> list[StudyGroup]:
    return sorted(map(groups.__getitem__, ids), key=lambda group: group.place)

  return list(map(members_of, sorted(found, key=min)))


def titled(members: Sequence[Sequence[StudyGroup]], *axes: str) -> list[Family]:
  """The families, with settings that tell them apart. Within a family, groups differ in `axes`."""
  shared = []
  for groups in members:
    shared.append({name: value for g in groups for name, value in g.setting.items() if name not in axes})
  words, _ = describe(shared, in_full=True)
  return [Family(s['dataset'], w, groups) for s, w, groups in zip(shared, words, members)]


def places(groups: Sequence[StudyGroup]) -> list[Family]:
  """Methods side by side: for each dataset and participation, the setting in which most methods were run."""
  by_place: dict[Any, list[StudyGroup]] = {}
  for members in families(groups, 'algorithm'):
    place = (members[0].dataset, members[0].setting['participation'])
    by_place[place] = max(
      by_place.get(place, []), members, key=lambda these: (len(these), sum(len(g.runs) for g in these))
    )
  return titled(list(by_place.values()), 'algorithm')


class Row(NamedTuple):
  """A row of a table: the group, or the name of a method that was not run, and the cells before and after them."""

  group: Union[StudyGroup, str]
  first: json_types.JsonView
  last: json_types.JsonView


def table(name: str, title: str, rows: Sequence[Row], *known: str) -> list[pages.Block]:
  """A table and its notes for a reader who compares rows; nothing if no row has a group.

  Args:
    name: The name of the CSV file, and in `published.SOURCES`. The title has that place if the table has figures of it.
    title: The line above the table.
    rows: In order.
    *known: Flags that the title or other cells state.
  """
  groups = [row.group for row in rows if isinstance(row.group, StudyGroup)]
  settings, usual = describe([group.setting for group in groups], *known)
  words = iter(zip(naming.distinguished([group.algorithm for group in groups]), settings))
  is_compared = any(name.startswith(_DOCUMENT) and cell is not None for row in rows for name, cell in row.last.items())
  lines = []
  for row in rows:
    if isinstance(row.group, StudyGroup):
      ((method, more), setting), origin = next(words), row.group.origin
    else:
      method, more, setting, origin = naming.name_of(row.group), '', '', {}
    last = row.last
    if not is_compared:
      last = {name.removeprefix(_MEASURED): cell for name, cell in last.items()}
    described = {'method': method, 'setting': ', '.join(filter(None, [more, setting]))}
    lines.append(dict(row.first) | described | dict(last) | origin)
  title += f' ({published.SOURCES[name]})' if is_compared and name in published.SOURCES else ''
  notes = [f'Unless its setting says otherwise, a row has {usual}.'] if usual else []
  if len({group.origin['rounds'] for group in groups}) > 1:
    notes.append('The rows differ in the number of rounds that were run: compare only rows with equal rounds.')
  return [pages.Table(name, title, lines), *notes] if groups else []


def by_group(
  name: str, title: str, groups: Sequence[StudyGroup], columns: Callable[[StudyGroup], pages.Cells], *first: str
) -> list[pages.Block]:
  """A table for each dataset: a row for each group, sorted by the flags `first`, which have columns, and by method."""

  def key(group: StudyGroup) -> Any:
    values = [group.setting[flag] for flag in first]
    return [(isinstance(value, str), value) for value in values], group.place  # Numbers come before texts.

  def first_cells(group: StudyGroup) -> dict[str, str]:
    cells = {}
    for flag in first:
      value = group.setting[flag]
      column = 'ε' if flag == 'epsilon' else flag
      cells[column] = naming.participation(value) if flag == 'participation' else str(value)
    return cells

  blocks = []
  for dataset in sorted({g.dataset for g in groups}):
    own = sorted((g for g in groups if g.dataset == dataset), key=key)
    rows = [Row(g, first_cells(g), columns(g)) for g in own]
    blocks += table(name, f'{title}: {naming.dataset(dataset)}', rows, *first)
  return blocks


def beside(
  what: str,
  printed: Union[pages.Quantity, str, None],
  groups: Sequence[StudyGroup],
  method: str,
  cells: pages.Cells,
  measure: Callable[[StudyGroup], pages.Cell] = StudyGroup.accuracy,
) -> list[Row]:
  """Rows for a printed figure, or for None: one for each group. Without groups, a row says that `method` was not run.

  Args:
    what: What is printed and measured, for the names of the columns.
    printed: The document's figure.
    groups: The groups of runs to compare with it.
    method: The method of the figure.
    cells: The first cells of the rows.
    measure: The measured figure of a group: a quantity, text, or None.
  """
  document, here = f'{_DOCUMENT}{what}', f'{_MEASURED}{what}'
  rows = []
  for group in groups:
    measured, difference = measure(group), None
    if isinstance(measured, pages.Quantity) and isinstance(printed, pages.Quantity):
      difference = f'{measured.mean - printed.mean:+.{measured.digits}f}'
    measured = 'not logged' if measured is None else measured
    rows.append(Row(group, cells, {document: printed, here: measured, 'difference': difference}))
  return rows or [Row(method, cells, {document: printed, here: 'not run'})]


def over(values: Iterable[Optional[float]], digits: int = 2, is_bound: bool = False) -> Optional[pages.Quantity]:
  """Mean and sample deviation of the finite values, which may be upper bounds; None if there is none."""
  known = np.array([v for v in values if v is not None and np.isfinite(v)], float)
  if not len(known):
    return None
  deviation = float(known.std(ddof=1)) if len(known) > 1 else None
  return pages.Quantity(float(known.mean()), deviation, len(known), digits, is_bound)


def interval(values: Iterable[float]) -> Optional[pages.Quantity]:
  """The mean, and half of Student's 95% interval of it in place of the deviation; None if there is no finite value.

  Fewer than `FEWEST_SEEDS` values have no interval: that of two is 13 times as wide as their standard error.
  """
  quantity = over(values)
  if quantity is None or quantity.deviation is None or quantity.count is None:
    return quantity
  if quantity.count < FEWEST_SEEDS:
    return quantity._replace(deviation=None)
  half = stats.t.ppf(0.975, quantity.count - 1) * quantity.deviation / np.sqrt(quantity.count)
  return quantity._replace(deviation=float(half))


def minus(group: StudyGroup, reference: StudyGroup) -> Optional[pages.Quantity]:
  """The difference of accuracies in points over the seeds that both have, as `interval`; None without such seeds."""
  others = {run.seed: run.test_accuracy for run in reference.runs}
  pairs = [(run.test_accuracy, others[run.seed]) for run in group.runs if run.seed in others]
  return interval(100 * (own - other) for own, other in pairs if own is not None and other is not None)


def jain(values: Optional[np.ndarray]) -> Optional[float]:
  """Jain's fairness index (Σx)²/(n·Σx²) of non-negative values, in [1/n, 1]; None for no values or only zeros."""
  if values is None or not np.any(values):
    return None
  return float(values.sum() ** 2 / (len(values) * (values**2).sum()))


def paired_test(left: npt.ArrayLike, right: npt.ArrayLike, digits: int = 2) -> tuple[pages.Quantity, Optional[float]]:
  """The mean of left - right over pairs, and the two-sided p of Student's paired t test.

  p is None if there are fewer than two pairs, or if the difference is the same in every pair.
  """
  difference = over(np.subtract(left, right), digits)
  if difference is None:
    raise ValueError('A paired test needs a pair with a finite difference, found none.')
  scale = max(np.abs(left).max(), np.abs(right).max())
  # If the spread is no more than rounding errors, the statistic is meaningless or infinite.
  if difference.deviation is None or difference.deviation <= 1e-12 * scale:
    return difference, None
  return difference, float(stats.ttest_rel(left, right).pvalue)
