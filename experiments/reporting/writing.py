"""A report on disk: report.md, tables/*.csv, figures/*.png, and index.html, which holds all of it."""

import csv
import os
from typing import Sequence

from experiments.reporting import document
from experiments.reporting import figures
from experiments.reporting import markdown
from experiments.reporting import page
from experiments.reporting import runs as runs_lib

_REPORT, _PAGE = 'report.md', 'index.html'


class OutputError(ValueError):
  """The folder cannot take a report."""


def check(folder: str):
  """Raises `OutputError` unless `folder` is new, empty, or holds an earlier report. Changes nothing."""
  if os.path.lexists(folder) and not os.path.isdir(folder):
    raise OutputError(f'output_dir {folder} is a file; give a folder.')
  names = os.listdir(folder) if os.path.isdir(folder) else []
  if runs_lib.RUN in names or names and _REPORT not in names:
    raise OutputError(f'output_dir {folder} holds other files than an earlier report; give a new or empty folder.')


def write(folder: str, sections: Sequence[document.Section]):
  """Writes a report, in the place of an earlier one."""
  blocks = [block for section in sections for block in section.all_blocks()]
  tables = [block for block in blocks if isinstance(block, document.Table)]
  shown = [block for block in blocks if isinstance(block, document.Figure)]
  images = {figure.name: figures.png(figure) for figure in shown}
  for kind, suffix in (('tables', '.csv'), ('figures', '.png')):
    os.makedirs(os.path.join(folder, kind), exist_ok=True)
    # Of an earlier report, which may have had others.
    for name in os.listdir(os.path.join(folder, kind)):
      if name.endswith(suffix):
        os.remove(os.path.join(folder, kind, name))
  for table in tables:
    with open(os.path.join(folder, document.table_path(table)), 'w', newline='', encoding='utf-8') as f:
      columns, rows = table.flat()
      csv.writer(f, lineterminator='\n').writerows([columns, *rows])
  for figure in shown:
    with open(os.path.join(folder, document.figure_path(figure)), 'wb') as f:
      f.write(images[figure.name])
  for name, text in ((_REPORT, markdown.render(sections)), (_PAGE, page.render(sections, images))):
    with open(os.path.join(folder, name), 'w', encoding='utf-8') as f:
      f.write(text)
