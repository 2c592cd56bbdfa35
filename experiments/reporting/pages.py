"""The parts of a report, and its files: report.md, figures/*.png, index.html, which has both, and runs.csv."""

import base64
import collections
from collections.abc import Mapping, Sequence
import os
import re
import textwrap
from typing import Any, NamedTuple, Optional, Union

import jinja2
import markupsafe
import pandas as pd

from experiments.folders import folder as run_folder
from experiments.reporting import quantity
from experiments.running import plots
from quap_tff.common import files
from quap_tff.common import html_page

_REPORT, _PAGE, _RUNS = 'report.md', 'index.html', 'runs.csv'

# Columns that move into the line above a table if all rows agree.
_SAID_ONCE = set('dataset participation ε setting measured cores GPUs pairs seeds rounds'.split()) | {'total δ'}
# A column is wide enough for this many characters of its longest cell, and of its heading. So no text has one word a
# line, and a table that is wider than the page scrolls. Longer words than the last number may break.
_CELL, _HEADING, _LONG_WORD = 18, 13, 25

# A cell of a table: a text, a number, a `quantity.Quantity`, or None.
Cell = Any
# A row of a table, by heading.
Cells = Mapping[str, Cell]


class Note(str):
  """A paragraph that goes with the table of the finding, wherever the table is shown."""


class Table(NamedTuple):
  """Attributes:
  name: What kind of table it is; several may have one name.
  title: The line above it.
  rows: Cells by column: text, numbers, a `quantity.Quantity`, or None for an empty cell. A column without any value is
    left out.
  """

  name: str
  title: str
  rows: Sequence[Cells]

  @property
  def frame(self) -> pd.DataFrame:
    """The cells, without columns that have no value. Empty cells are None."""
    names = dict.fromkeys(name for row in self.rows for name in row)
    cells = []
    for row in self.rows:
      cells.append([row.get(name) for name in names])
    frame = pd.DataFrame(cells, columns=list(names), dtype=object)
    return frame.where(frame.map(lambda cell: cell != ''), None).dropna(axis='columns', how='all')

  def for_readers(self) -> tuple[str, pd.DataFrame]:
    """The title, and the cells as text. The title says what ± is, and the settings that all rows share."""
    frame = self.frame
    texts = frame.map(cell_text)
    shared = [name for name in texts if name in _SAID_ONCE and texts[name].nunique() == 1]
    words = '; '.join(f'{name} {"= " * (name[-1] in "εδ")}{texts[name].iloc[0]}' for name in shared)
    parts = [self.title]
    if any(isinstance(cell, quantity.Quantity) and cell.half is not None for cell in frame.to_numpy().flat):
      parts.append(quantity.MEANING)
    if words:
      of_what = 'All rows' if len(texts) > 1 else 'Setting'
      parts.append(f'{of_what}: {words}')
    return '. '.join(parts), texts.drop(columns=shared)


class Plot(NamedTuple):
  """Attributes:
  name: Its file is figures/name.png; several of one name are numbered.
  title: The text above it.
  caption: How to read it.
  draw: Draws it into an empty figure; None if there is a picture of it already.
  size: Width and height in inches, without the title.
  shows: What it shows, in words, for a reader who does not see it.
  """

  name: str
  title: str
  caption: str
  draw: Optional[plots.Draw]
  size: tuple[float, float] = (9, 4.2)
  shows: str = ''

  @property
  def alternative(self) -> str:
    """The text in place of the figure."""
    return f'{self.title}. {self.shows}' if self.shows else self.title

  @property
  def titled(self) -> tuple[plots.Draw, tuple[float, float]]:
    """How to draw the figure under its title, and the size of both together."""
    width, height = self.size
    lines = textwrap.wrap(self.title, int(9.8 * width))

    def draw(figure: 'plots.Figure') -> None:
      assert self.draw is not None
      self.draw(figure)
      figure.suptitle('\n'.join(lines), fontsize=11, fontweight='bold', x=0.01, ha='left')

    return draw, (width, height + 0.2 * len(lines))


Block = Union[str, Table, Plot]


class Section(NamedTuple):
  """A heading and its paragraphs, tables and figures in order."""

  title: str
  blocks: Sequence[Block]


def cell_text(cell: Cell) -> str:
  """A cell as a reader sees it."""
  return '-' if cell is None or cell == '' else str(cell)


def in_text(table: Table) -> str:
  """A table under its title, for a terminal or for Markdown."""
  title, texts = table.for_readers()
  return f'{title}:\n\n{_aligned(texts)}'


def numbered(sections: Sequence[Section]) -> list[Section]:
  """The sections, with numbers added to the names of figures that share a name."""
  totals = collections.Counter(
    block.name for section in sections for block in section.blocks if isinstance(block, Plot)
  )
  seen: collections.Counter[str] = collections.Counter()
  found = []
  for section in sections:
    blocks = list(section.blocks)
    for place, block in enumerate(blocks):
      if isinstance(block, Plot) and totals[block.name] > 1:
        seen[block.name] += 1
        blocks[place] = block._replace(name=f'{block.name}_{seen[block.name]}')
    found.append(Section(section.title, blocks))
  return found


def check_folder(folder: str, file: str = _REPORT, what: str = 'report') -> None:
  """Raises `ValueError` unless `folder` is new, empty, or holds this file of an earlier one. Changes nothing."""
  if os.path.lexists(folder) and not os.path.isdir(folder):
    raise ValueError(f'output_dir {folder} is a file; give a folder.')
  names = os.listdir(folder) if os.path.isdir(folder) else []
  if run_folder.RUN in names or names and file not in names:
    raise ValueError(
      f'output_dir {folder} holds files other than those of an earlier {what}; give a new or empty folder.'
    )


def write_page(folder: str, sections: Sequence[Section], runs: pd.DataFrame) -> None:
  """Writes a report, whose figures are `numbered`, and the table of all runs. An earlier report is replaced.

  The first section's title is the report's. A figure may be in several sections, and is drawn once.
  """
  figures = {block.name: block for section in sections for block in section.blocks if isinstance(block, Plot)}
  images = {name: plots.png(*figure.titled) for name, figure in figures.items()}
  place = os.path.join(folder, 'figures')
  os.makedirs(place, exist_ok=True)
  # The earlier report may have had figures that this one does not have.
  for name in os.listdir(place):
    if name.endswith('.png'):
      os.remove(os.path.join(place, name))
  for name, image in images.items():
    files.write(os.path.join(place, f'{name}.png'), image)
  runs.to_csv(os.path.join(folder, _RUNS), index=False, lineterminator='\n', encoding='utf-8')
  for name, content in ((_REPORT, _rendered('report.md', sections)), (_PAGE, page(sections, images))):
    files.write(os.path.join(folder, name), content)


def page(sections: Sequence[Section], images: Mapping[str, bytes]) -> str:
  """HTML of a page that needs no network.

  Args:
    sections: The first has the page's title.
    images: PNG files by name.
  """
  encoded = {name: base64.b64encode(image).decode('ascii') for name, image in images.items()}
  body = _rendered('page.html', sections, images=encoded)
  return html_page.page(sections[0].title, body, '72rem', _rendered('page.css', sections))


def _rendered(template: str, sections: Sequence[Section], **values: object) -> str:
  environment = jinja2.Environment(
    loader=jinja2.FileSystemLoader(os.path.join(os.path.dirname(__file__), 'templates')),
    autoescape=jinja2.select_autoescape(['html']),
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
  )
  environment.filters.update(breakable=_breakable, marked=_marked, aligned=_aligned, width=_width)
  environment.globals['framed'] = _framed
  return environment.get_template(template).render(first=sections[0], sections=sections[1:], **values)


def _framed(content: str, label: str) -> markupsafe.Markup:
  return markupsafe.Markup(html_page.framed(content, label))


def _aligned(texts: pd.DataFrame) -> str:
  """A table in Markdown, with columns of equal width."""
  rows = [list(map(_in_markdown, row)) for row in (texts, *texts.to_numpy())]
  widths = [max(3, *map(len, column)) for column in zip(*rows)]
  rows.insert(1, ['-' * width for width in widths])
  lines = []
  for row in rows:
    cells = [cell.ljust(width) for cell, width in zip(row, widths)]
    lines.append(f'| {" | ".join(cells)} |')
  return '\n'.join(lines)


def _in_markdown(cell: Cell) -> str:
  return str(cell).replace('|', '\\|').replace('\n', ' ')


def _width(texts: pd.DataFrame, column: str) -> int:
  """The least width of a column, in characters."""
  longest = int(texts[column].map(len).max())
  return max(min(longest, _CELL), min(len(column), _HEADING))


def _marked(paragraph: str) -> markupsafe.Markup:
  """HTML of a paragraph with the two marks that paragraphs use: `code` and **bold**."""
  marked = re.sub(r'`([^`]*)`', r'<code>\1</code>', str(_breakable(paragraph)))
  return markupsafe.Markup(re.sub(r'\*\*(.+?)\*\*', r'<strong>\1</strong>', marked))


def _broken(word: re.Match[str]) -> str:
  return re.sub(r'([,:/_]|=(?=\w{9}))(?=\w)', r'\1<wbr>', word[0])


def _breakable(words: str) -> markupsafe.Markup:
  """HTML of `words`. Long flags and paths may also break after punctuation. A number and its sign stay together."""
  escaped = re.sub(rf'\S{{{_LONG_WORD},}}', _broken, str(markupsafe.escape(words)))
  return markupsafe.Markup(escaped.replace(' ± ', '&nbsp;±&nbsp;'))
