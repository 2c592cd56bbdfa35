"""What stands before and after the tables: which runs, under which settings, and what was left out."""

from typing import Sequence

from experiments.reporting import document
from experiments.reporting import runs as runs_lib
from experiments.reporting import study as study_lib


def header(study: study_lib.Study, command: str) -> document.Section:
  """The runs, the versions and machines, and the flags that all share."""
  runs = study.runs
  differing = study_lib.differing([group.setting for group in study.groups])
  shared = {k: v for k, v in study.groups[0].setting.items() if k not in differing}
  # Tables have columns of their own for these.
  varying = [name for name in differing if name not in ('algorithm', 'dataset')]
  return document.Section('QuAP-FL: measured beside the documents', [
      f'{_plural(len(runs), "run")} of {_plural(len(study.groups), "setting")}, by: `{command}`',
      f'Versions: {_each(run.versions for run in runs)}.',
      f'Machine: {_each(run.machine for run in runs)}.',
      f'All runs share {_flags(shared)}.',
      *(_differences(dataset, common, varying) for dataset, common in study.common.items() if varying),
      'Measured figures are means over seeds ± sample standard deviation; seeds and rounds stand beside them. Runs of '
      'different settings are never averaged. `000…`, `001…` and `002…` are the QuAP-FL documents of version 1.1.2, of '
      'the theory, and of November 2025; docs/errata.md says where they are wrong. No result is adjusted to agree with '
      'them.',
  ])


def left_out(found: Sequence[runs_lib.LeftOut]) -> document.Section:
  """Everything that was not used, by name."""
  rows = [(item.path, item.reason) for item in found]
  title = 'Files and runs that were left out or used in part'
  blocks = [document.Table('left_out', title, ('where', 'what'), rows)] if rows else []
  return document.Section('What was left out', blocks)


def _differences(dataset, common, varying) -> str:
  """The common setting of a dataset."""
  values = _flags({k: common[k] for k in varying if k in common})
  return f'Most frequent on {dataset}: {values}. A column "setting" says what is otherwise in a row.'


def _flags(values) -> str:
  return ', '.join(f'`{name}={value}`' for name, value in values.items() if value is not None)


def _each(mappings) -> str:
  texts = [', '.join(f'{k} {v}' for k, v in mapping.items()) or 'not told' for mapping in mappings]
  return '; or '.join(dict.fromkeys(texts))


def _plural(count, word) -> str:
  return f'{count} {word}' + ('' if count == 1 else 's')
