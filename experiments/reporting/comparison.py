"""Tables of measured figures beside the documents'."""

from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple, Union

from experiments.reporting import document
from experiments.reporting import documents
from experiments.reporting import methods
from experiments.reporting import quantities
from experiments.reporting import study as study_lib

_NOT_LOGGED = 'not logged'

Measure = Callable[[study_lib.Group], Union[quantities.Quantity, str, None]]


class Entry(NamedTuple):
  """A row asked for.

  Attributes:
    labels: Its first cells.
    printed: What the document has; None where it has nothing.
    groups: The runs for it. Of several settings, each gets a row of its own, which says what sets it apart.
  """

  labels: Sequence[Any]
  printed: Union[quantities.Quantity, str, None]
  groups: Sequence[study_lib.Group]


def table(
    name: str,
    title: str,
    label_columns: Sequence[str],
    entries: Sequence[Entry],
    measure: Measure = study_lib.Group.accuracy,
    what: str = 'accuracy (%)',
    told: Sequence[str] = (),
) -> document.Table:
  """Measured beside printed; a row without runs says so. `told`: flags that the first columns tell."""
  rows = []
  for entry in entries:
    for group in entry.groups:
      measured = measure(group)
      rows.append((
          *entry.labels, group.label('algorithm', 'stop_at_accuracy', *told), entry.printed,
          _NOT_LOGGED if measured is None else measured,
          _difference(measured, entry.printed), group.seeds_text, group.rounds_text,
      ))
    if not entry.groups:
      rows.append((*entry.labels, '', entry.printed, document.NOT_RUN, None, None, None))
  columns = (
      *label_columns, 'setting', f'document: {what}', f'measured: {what}', 'difference', 'seeds',
      'rounds run of planned'
  )
  return without_empty(document.Table(name, title, columns, rows), 'setting')


def without_empty(table_: document.Table, *columns: str) -> document.Table:
  """Leaves out those of `columns` that have no cell."""
  empty = [
      i for i, name in enumerate(table_.columns)
      if name in columns and not any(row[i] not in (None, '') for row in table_.rows)
  ]
  keep = lambda cells: tuple(cell for i, cell in enumerate(cells) if i not in empty)
  return table_._replace(columns=keep(table_.columns), rows=[keep(row) for row in table_.rows])


def mixed_settings(groups: Sequence[study_lib.Group], axes: Sequence[str]) -> List[str]:
  """A paragraph that names the flags, besides `axes`, in which the runs of one table differ; none if there are none."""
  names = [
      name for name in study_lib.differing([group.setting for group in groups]) if name not in axes
  ]
  if not names:
    return []
  return [
      'These runs differ in more than the table\'s own columns: '
      + ', '.join(f'`{name}`' for name in names)
      + '. A row with several settings is split; runs of different settings are never averaged.'
  ]


def unequal_rounds(groups: Sequence[study_lib.Group]) -> List[str]:
  """A paragraph if the runs went differently far; none otherwise."""
  if len({group.rounds_text for group in groups}) < 2:
    return []
  return ['The rounds run differ from row to row: compare rows of equal rounds only.']


def notes(groups: Sequence[study_lib.Group], *axes: str) -> List[str]:
  """What a reader must know before comparing these rows, apart from the flags `axes`."""
  return mixed_settings(groups, axes) + unequal_rounds(groups)


def labelled(groups: Sequence[study_lib.Group], *told: str) -> List[Tuple[study_lib.Group, str]]:
  """Groups by dataset and method, each with its departures besides the flags `told` by other columns."""
  ordered = sorted(groups, key=lambda g: (str(g.setting.get('dataset')), methods.order(g.algorithm)))
  return [(group, group.label('algorithm', 'dataset', 'stop_at_accuracy', *told)) for group in ordered]


def printed_accuracy(group: study_lib.Group) -> Optional[quantities.Quantity]:
  """The final accuracy that a document prints for runs of this setting, or None."""
  setting = group.setting
  common = {**documents.COMMON, 'calibration': 'documents'}
  if any(setting.get(name) != value for name, value in common.items()):
    return None
  method = methods.METHODS.get(group.method)
  is_layerwise = method is not None and method.ablation is not None and method.ablation[-1]
  if is_layerwise and setting.get('critical_layers') != 'final_dense':
    return None
  return documents.accuracy(setting.get('dataset'), group.scenario, group.method, setting.get('epsilon'))


def _difference(measured: Any, printed: Any) -> Optional[str]:
  if not isinstance(measured, quantities.Quantity) or not isinstance(printed, quantities.Quantity):
    return None
  return f'{measured.mean - printed.mean:+.{measured.digits}f}'
