"""The parts of a report, and its files: report.md, tables/*.csv, figures/*.png, and index.html, which has all of it."""

import base64
import collections
from collections.abc import Mapping, Sequence
import csv
import html
import os
import re
import textwrap
from typing import Any, NamedTuple, Optional, Union

from experiments import plots
from experiments import wide
from quap_tff.common import rounding

_REPORT, _PAGE, _RUN = 'report.md', 'index.html', 'run.json'

# Columns that move into the line above a table if all rows agree.
_SAID_ONCE = (
  'dataset',
  'participation',
  'epsilon',
  'setting',
  'measured',
  'total δ',
  'cores',
  'GPUs',
  'pairs',
  'seeds',
  'rounds',
)
# A table with a single row of more cells than this is shown as two columns.
_LONG_ROW = 4
# Columns with a cell of more characters than this keep a minimum width.
_LONG_CELL = 40
# Words from this length on may break.
_LONG_WORD = 25


class OutputError(ValueError):
  """The folder cannot hold a report."""


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
  count: Optional[int] = None
  digits: int = 2
  is_bound: bool = False

  def __str__(self):
    # Norms can become huge, and then decimals say nothing.
    is_huge = abs(self.mean) >= 1e4
    style = '.3g' if is_huge else f'.{self.digits}f'
    mean = f'{self.mean:{style}}'
    if self.is_bound:
      mean = rounding.up(self.mean, 3) if is_huge else rounding.up_fixed(self.mean, self.digits)
    return mean + ('' if self.deviation is None else f' ± {self.deviation:{style}}')


class Table(NamedTuple):
  """Attributes:
  name: Its CSV file is tables/name.csv; several of one name are numbered.
  title: The line above it.
  rows: Cells by column: text, numbers, a `Quantity`, or None for an empty cell. A column without any value is left
    out.
  """

  name: str
  title: str
  rows: Sequence[Mapping[str, Any]]

  @property
  def columns(self) -> list[str]:
    names = dict.fromkeys(name for row in self.rows for name in row)
    return [name for name in names if any(row.get(name) not in (None, '') for row in self.rows)]

  def for_readers(self) -> tuple[str, list[list[str]]]:
    """(title, lines): the first line holds the column names. What all rows share moves into the title."""
    columns = self.columns
    rows = [[text(row.get(name)) for name in columns] for row in self.rows]
    if len(rows) == 1:
      lines = [columns, *rows]
      return self.title, [list(pair) for pair in zip(*lines)] if len(columns) > _LONG_ROW else lines
    shared = [i for i, name in enumerate(columns) if name in _SAID_ONCE and len({row[i] for row in rows}) == 1]
    words = ', '.join(f'{columns[i]} {rows[0][i]}' for i in shared)
    lines = [[cell for i, cell in enumerate(row) if i not in shared] for row in (columns, *rows)]
    return self.title + (f'. All rows: {words}' if words else ''), lines

  def for_programs(self) -> list[list[str]]:
    """The lines of the CSV file. A column of quantities becomes two columns: the mean and its deviation."""
    columns = []
    for name in self.columns:
      cells = [row.get(name) for row in self.rows]
      means = [cell.mean if isinstance(cell, Quantity) else cell for cell in cells]
      columns.append([name, *('' if mean is None else str(mean) for mean in means)])
      if any(isinstance(cell, Quantity) for cell in cells):
        spreads = [cell.deviation if isinstance(cell, Quantity) else None for cell in cells]
        columns.append([f'{name}, deviation', *('' if spread is None else str(spread) for spread in spreads)])
    return [list(line) for line in zip(*columns)]


class Figure(NamedTuple):
  """Attributes:
  name: Its file is figures/name.png; several of one name are numbered.
  title: What it shows, drawn above it.
  caption: How to read it.
  draw: Draws it into an empty figure.
  size: Width and height in inches, without the title.
  """

  name: str
  title: str
  caption: str
  draw: plots.Draw
  size: tuple[float, float] = (9, 4.2)

  @property
  def titled(self) -> tuple[plots.Draw, tuple[float, float]]:
    """How to draw the figure under its title, and the size of both together."""
    width, height = self.size
    lines = textwrap.wrap(self.title, int(9.8 * width))

    def draw(figure):
      self.draw(figure)
      figure.suptitle('\n'.join(lines), fontsize=11, fontweight='bold', x=0.01, ha='left')

    return draw, (width, height + 0.2 * len(lines))


Block = Union[str, Table, Figure]


class Section(NamedTuple):
  """A heading and its paragraphs, tables and figures in order."""

  title: str
  blocks: Sequence[Block]


def text(cell: Any) -> str:
  """A cell as a reader sees it."""
  return '-' if cell is None or cell == '' else str(cell)


def numbered(sections: Sequence[Section]) -> list[Section]:
  """The sections, with numbers added to the names of tables, and of figures, that share a name."""
  key = lambda block: (type(block), block.name)
  named = [block for section in sections for block in section.blocks if not isinstance(block, str)]
  totals, seen = collections.Counter(map(key, named)), collections.Counter()

  def renamed(block):
    if isinstance(block, str) or totals[key(block)] == 1:
      return block
    seen[key(block)] += 1
    return block._replace(name=f'{block.name}_{seen[key(block)]}')

  return [Section(section.title, [renamed(block) for block in section.blocks]) for section in sections]


def check(folder: str):
  """Raises `OutputError` unless `folder` is new, empty, or holds an earlier report. Changes nothing."""
  if os.path.lexists(folder) and not os.path.isdir(folder):
    raise OutputError(f'output_dir {folder} is a file; give a folder.')
  names = os.listdir(folder) if os.path.isdir(folder) else []
  if _RUN in names or names and _REPORT not in names:
    raise OutputError(f'output_dir {folder} holds files other than an earlier report; give a new or empty folder.')


def write(folder: str, sections: Sequence[Section]):
  """Writes a report. The first section's title is the report's. An earlier report in the folder is replaced."""
  sections = numbered(sections)
  blocks = [block for section in sections for block in section.blocks]
  images = {block.name: plots.png(*block.titled) for block in blocks if isinstance(block, Figure)}
  for kind, suffix in (('tables', '.csv'), ('figures', '.png')):
    os.makedirs(os.path.join(folder, kind), exist_ok=True)
    # The earlier report may have had tables and figures that this one does not have.
    for name in os.listdir(os.path.join(folder, kind)):
      if name.endswith(suffix):
        os.remove(os.path.join(folder, kind, name))
  for table in (block for block in blocks if isinstance(block, Table)):
    with open(os.path.join(folder, 'tables', f'{table.name}.csv'), 'w', newline='', encoding='utf-8') as f:
      csv.writer(f, lineterminator='\n').writerows(table.for_programs())
  for name, image in images.items():
    with open(os.path.join(folder, 'figures', f'{name}.png'), 'wb') as f:
      f.write(image)
  for name, content in ((_REPORT, _markdown(sections)), (_PAGE, page(sections, images))):
    with open(os.path.join(folder, name), 'w', encoding='utf-8') as f:
      f.write(content)


def _markdown(sections: Sequence[Section]) -> str:
  parts = []
  for number, section in enumerate(sections):
    parts += [f'{"##" if number else "#"} {section.title}', *map(_markdown_block, section.blocks)]
  return '\n\n'.join(parts) + '\n'


def _markdown_block(block: Block) -> str:
  if isinstance(block, str):
    return block
  if isinstance(block, Figure):
    return f'![{block.title}](figures/{block.name}.png)\n\n*{block.caption}*'
  title, lines = block.for_readers()
  lines = [[cell.replace('|', '\\|').replace('\n', ' ') for cell in line] for line in lines]
  widths = [max(3, *map(len, column)) for column in zip(*lines)]
  lines.insert(1, ['-' * width for width in widths])
  aligned = ('| ' + ' | '.join(cell.ljust(width) for cell, width in zip(line, widths)) + ' |' for line in lines)
  return f'{title}:\n\n' + '\n'.join(aligned)


_CSS = (
  wide.CSS
  + """
body { font: 16px/1.5 system-ui, sans-serif; color: #111; background: #fff; max-width: 72rem; margin: 2rem auto;
  padding: 0 1rem; }
h2 { margin-top: 2.5rem; border-top: 1px solid #bbb; padding-top: 1rem; }
p, figcaption { max-width: 50rem; overflow-wrap: break-word; }
nav ul { columns: 3 16rem; padding-left: 1.2rem; }
code { background: #eee; padding: 0 .2em; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
.title { font-weight: 600; font-size: .85rem; margin: 1.5rem 0 -.6rem; }
th, td { border: 1px solid #bbb; padding: .25rem .5rem; text-align: left; vertical-align: top; max-width: 18rem; }
th { background: #eee; position: sticky; top: 0; }
th.long { min-width: 11rem; }
figure { margin: 1rem 0; }
img { max-width: 100%; height: auto; }
figcaption { font-size: .9rem; }
@media (max-width: 40rem) { .wide img { max-width: none; width: 40rem; } }
@media print { figure, tr { break-inside: avoid; } }
"""
)


def page(sections: Sequence[Section], images: dict[str, bytes]) -> str:
  """One page that needs nothing else: it contains its images, and has no external links and no script.

  Args:
    sections: The sections.
    images: PNG files by name.
  """
  title, links, parts = html.escape(sections[0].title), [], []
  for number, section in enumerate(sections[1:], 1):
    heading = html.escape(section.title)
    links.append(f'<li><a href="#s{number}">{heading}</a></li>')
    parts += [f'<h2 id="s{number}">{heading}</h2>', *(_html_block(block, images) for block in section.blocks)]
  return '\n'.join(
    [
      '<!DOCTYPE html>',
      '<html lang="en">',
      '<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">',
      f'<title>{title}</title><style>{_CSS}</style></head>',
      f'<body><h1>{title}</h1>',
      *(_html_block(block, images) for block in sections[0].blocks),
      f'<nav><ul>{"".join(links)}</ul></nav>',
      *parts,
      '</body>',
      '</html>',
      '',
    ]
  )


def _html_block(block: Block, images) -> str:
  if isinstance(block, str):
    # The two marks that paragraphs use: `code` and **bold**.
    marked = re.sub(r'`([^`]*)`', r'<code>\1</code>', _breakable(block))
    return '<p>' + re.sub(r'\*\*(.+?)\*\*', r'<strong>\1</strong>', marked) + '</p>'
  if isinstance(block, Figure):
    data = base64.b64encode(images[block.name]).decode('ascii')
    image = f'<img alt="{html.escape(block.title)}" src="data:image/png;base64,{data}">'
    return f'<figure>{wide.framed(image, block.title)}<figcaption>{_breakable(block.caption)}</figcaption></figure>'
  title, (head, *rows) = block.for_readers()
  kinds = [' class="long"' if max(map(len, column)) > _LONG_CELL else '' for column in zip(*rows)]
  head = ''.join(f'<th scope="col"{kind}>{_breakable(cell)}</th>' for cell, kind in zip(head, kinds))
  body = ''.join('<tr>' + ''.join(f'<td>{_breakable(cell)}</td>' for cell in row) + '</tr>\n' for row in rows)
  table = f'<table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table>'
  return f'<p class="title">{_breakable(title)}</p>' + wide.framed(table, title)


def _breakable(words: str) -> str:
  """HTML of `words`. Long flags and paths may also break after punctuation. A number and its sign stay together."""

  def broken(word: re.Match) -> str:
    return re.sub(r'([,:/_]|=(?=\w{9}))(?=\w)', r'\1<wbr>', word[0])

  return re.sub(rf'\S{{{_LONG_WORD},}}', broken, html.escape(words)).replace('± ', '±&nbsp;')
