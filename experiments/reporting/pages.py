"""The parts of a report, and its files: report.md, tables/*.csv, figures/*.png, and index.html, which has all of it."""

import base64
import collections
from collections.abc import Mapping, Sequence
import os
import re
import textwrap
from typing import Any, NamedTuple, Optional, TypeVar, Union

import jinja2
import markupsafe
import pandas as pd

from experiments.folders import folder as run_folder
from experiments.running import plots
from quap_tff.common import files
from quap_tff.common import html_page
from quap_tff.common.numbers import rounding

_REPORT, _PAGE = 'report.md', 'index.html'

# Columns that move into the line above a table if all rows agree.
_SAID_ONCE = set('dataset participation ε setting measured cores GPUs pairs seeds rounds'.split()) | {'total δ'}
# Columns with a cell of more characters than this keep a minimum width. Words from the second length on may break.
_LONG_CELL, _LONG_WORD = 40, 25


_T = TypeVar('_T')


class Quantity(NamedTuple):
  """A figure and its spread over seeds.

  Attributes:
    mean: The mean.
    deviation: The sample standard deviation (n - 1); None for a single value.
    count: The number of values; None if a document does not state it.
    digits: Decimals in print.
    is_bound: Whether the values are upper bounds, so that their mean is rounded up.
  """

  mean: float
  deviation: Optional[float] = None
  count: Optional[int] = None  # type: ignore[assignment]  # It hides the `count` of tuples.
  digits: int = 2
  is_bound: bool = False

  def __str__(self) -> str:
    # Norms can become huge, and then decimals say nothing.
    is_huge = abs(self.mean) >= 1e4
    style = '.3g' if is_huge else f'.{self.digits}f'
    mean = f'{self.mean:{style}}'
    if self.is_bound:
      mean = rounding.up(self.mean, 3) if is_huge else rounding.up_fixed(self.mean, self.digits)
    return mean + ('' if self.deviation is None else f' ± {self.deviation:{style}}')


# A cell of a table: a text, a number, a `Quantity`, or None.
Cell = Any
# A row of a table, by heading.
Cells = Mapping[str, Cell]


def _cell(row: Cells, name: str) -> Cell:
  """The cell of a column; None if it is empty."""
  value = row.get(name)
  return None if value == '' else value


def _mean(cell: Cell) -> Cell:
  """The mean of a quantity; any other cell as it is."""
  return cell.mean if isinstance(cell, Quantity) else cell


def _deviation(cell: Cell) -> Optional[float]:
  return cell.deviation if isinstance(cell, Quantity) else None


def known(value: Optional[_T]) -> _T:
  """A value that there is, because what has none was left out before."""
  assert value is not None
  return value


class Note(str):
  """A paragraph that goes with the table of the finding, wherever the table is shown."""


class Table(NamedTuple):
  """Attributes:
  name: Its CSV file is tables/name.csv; several of one name are numbered.
  title: The line above it.
  rows: Cells by column: text, numbers, a `Quantity`, or None for an empty cell. A column without any value is left
    out.
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
      cells.append([_cell(row, name) for name in names])
    return pd.DataFrame(cells, columns=list(names), dtype=object).dropna(axis='columns', how='all')

  def for_readers(self) -> tuple[str, pd.DataFrame]:
    """The title, and the cells as text. Settings that all rows share move into the title."""
    texts = self.frame.map(cell_text)
    shared = [name for name in texts if name in _SAID_ONCE and texts[name].nunique() == 1]
    words = '; '.join(f'{name} {"= " * (name[-1] in "εδ")}{texts[name].iloc[0]}' for name in shared)
    of_what = 'All rows' if len(texts) > 1 else 'Setting'
    return self.title + (f'. {of_what}: {words}' if words else ''), texts.drop(columns=shared)

  def for_programs(self) -> pd.DataFrame:
    """The cells of the CSV file. A column of quantities becomes two columns: the mean and its deviation."""
    columns = {}
    for name, cells in self.frame.items():
      columns[name] = list(map(_mean, cells))
      if any(isinstance(cell, Quantity) for cell in cells):
        columns[f'{name}, deviation'] = list(map(_deviation, cells))
    return pd.DataFrame(columns, dtype=object)


class Plot(NamedTuple):
  """Attributes:
  name: Its file is figures/name.png; several of one name are numbered.
  title: The text above it.
  caption: How to read it.
  draw: Draws it into an empty figure; None if there is a picture of it already.
  size: Width and height in inches, without the title.
  """

  name: str
  title: str
  caption: str
  draw: Optional[plots.Draw]
  size: tuple[float, float] = (9, 4.2)

  @property
  def titled(self) -> tuple[plots.Draw, tuple[float, float]]:
    """How to draw the figure under its title, and the size of both together."""
    width, height = self.size
    lines = textwrap.wrap(self.title, int(9.8 * width))

    def draw(figure: 'plots.Figure') -> None:
      known(self.draw)(figure)
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
  """The sections, with numbers added to the names of tables, and of figures, that share a name."""

  def key(block: Union[Table, Plot]) -> tuple[type, str]:
    return type(block), block.name

  named = [block for section in sections for block in section.blocks if not isinstance(block, str)]
  totals = collections.Counter(map(key, named))
  seen: collections.Counter[Any] = collections.Counter()

  def renamed(block: Block) -> Block:
    if isinstance(block, str) or totals[key(block)] == 1:
      return block
    seen[key(block)] += 1
    return block._replace(name=f'{block.name}_{seen[key(block)]}')

  return [Section(section.title, list(map(renamed, section.blocks))) for section in sections]


def check_folder(folder: str, file: str = _REPORT, what: str = 'report') -> None:
  """Raises `ValueError` unless `folder` is new, empty, or holds this file of an earlier one. Changes nothing."""
  if os.path.lexists(folder) and not os.path.isdir(folder):
    raise ValueError(f'output_dir {folder} is a file; give a folder.')
  names = os.listdir(folder) if os.path.isdir(folder) else []
  if run_folder.RUN in names or names and file not in names:
    raise ValueError(
      f'output_dir {folder} holds files other than those of an earlier {what}; give a new or empty folder.'
    )


def write_page(folder: str, sections: Sequence[Section]) -> None:
  """Writes a report, whose tables and figures are `numbered`. An earlier report in the folder is replaced.

  The first section's title is the report's. A figure may be in several sections, and is drawn once.
  """
  blocks = [block for section in sections for block in section.blocks]
  figures = {block.name: block for block in blocks if isinstance(block, Plot)}
  images = {name: plots.png(*figure.titled) for name, figure in figures.items()}
  for kind, suffix in (('tables', '.csv'), ('figures', '.png')):
    os.makedirs(os.path.join(folder, kind), exist_ok=True)
    # The earlier report may have had tables and figures that this one does not have.
    for name in os.listdir(os.path.join(folder, kind)):
      if name.endswith(suffix):
        os.remove(os.path.join(folder, kind, name))
  for table in (block for block in blocks if isinstance(block, Table)):
    path = os.path.join(folder, 'tables', f'{table.name}.csv')
    table.for_programs().to_csv(path, index=False, lineterminator='\n', encoding='utf-8')
  for name, image in images.items():
    files.write(os.path.join(folder, 'figures', f'{name}.png'), image)
  for name, content in ((_REPORT, _rendered('report.md', sections)), (_PAGE, page(sections, images))):
    files.write(os.path.join(folder, name), content)


def page(sections: Sequence[Section], images: Mapping[str, bytes]) -> str:
  """One page that needs nothing else: it contains its images, and has no external links and no script.

  Args:
    sections: The sections.
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
  environment.filters.update(breakable=_breakable, marked=_marked, aligned=_aligned, is_long=_is_long)
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


def _is_long(texts: pd.DataFrame, column: str) -> bool:
  return texts[column].map(len).max() > _LONG_CELL


def _marked(paragraph: str) -> markupsafe.Markup:
  """HTML of a paragraph with the two marks that paragraphs use: `code` and **bold**."""
  marked = re.sub(r'`([^`]*)`', r'<code>\1</code>', str(_breakable(paragraph)))
  return markupsafe.Markup(re.sub(r'\*\*(.+?)\*\*', r'<strong>\1</strong>', marked))


def _broken(word: re.Match[str]) -> str:
  return re.sub(r'([,:/_]|=(?=\w{9}))(?=\w)', r'\1<wbr>', word[0])


def _breakable(words: str) -> markupsafe.Markup:
  """HTML of `words`. Long flags and paths may also break after punctuation. A number and its sign stay together."""
  escaped = re.sub(rf'\S{{{_LONG_WORD},}}', _broken, str(markupsafe.escape(words)))
  return markupsafe.Markup(escaped.replace('± ', '±&nbsp;'))
