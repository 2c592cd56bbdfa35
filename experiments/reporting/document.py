"""What a report is made of: sections of paragraphs, tables and figures."""

from typing import Any, Callable, NamedTuple, Sequence, Tuple, Union

from matplotlib import figure as mpl_figure

from experiments.reporting import quantities

NOT_RUN = 'not run'
NONE = '-'


class Table(NamedTuple):
  """Attributes:
    name: The stem of its CSV file.
    title: A line above it.
    columns: Names, each once.
    rows: A cell a column: text, a `Quantity`, or None where there is nothing.
  """

  name: str
  title: str
  columns: Sequence[str]
  rows: Sequence[Sequence[Any]]

  def texts(self) -> Sequence[Sequence[str]]:
    """The cells as a reader sees them."""
    return [[NONE if cell is None or cell == '' else str(cell) for cell in row] for row in self.rows]

  def flat(self) -> Tuple[Sequence[str], Sequence[Sequence[str]]]:
    """(columns, rows) for a program: a column of quantities becomes two, the mean and its deviation."""
    spread = [any(isinstance(row[i], quantities.Quantity) for row in self.rows) for i in range(len(self.columns))]
    columns = [name for i, c in enumerate(self.columns) for name in ([c, f'{c}, deviation'] if spread[i] else [c])]
    rows = [[text for i, cell in enumerate(row) for text in _flat_cell(cell, spread[i])] for row in self.rows]
    return columns, rows


class Figure(NamedTuple):
  """Attributes:
    name: The stem of its PNG file.
    caption: What it shows.
    draw: Draws it into an empty matplotlib figure.
    size: Width and height in inches.
  """

  name: str
  caption: str
  draw: Callable[[mpl_figure.Figure], None]
  size: Tuple[float, float] = (7.5, 4.5)


def table_path(table: Table) -> str:
  """Where a table's CSV stands, relative to the report."""
  return f'tables/{table.name}.csv'


def figure_path(figure: Figure) -> str:
  """Where a figure's PNG stands, relative to the report."""
  return f'figures/{figure.name}.png'


Block = Union[str, Table, Figure]


class Section(NamedTuple):
  """Attributes:
    title: The heading.
    blocks: Paragraphs, tables and figures, in order; none where there are no runs for them.
    command: The command whose runs would fill it.
  """

  title: str
  blocks: Sequence[Block]
  command: str = ''

  def all_blocks(self) -> Sequence[Block]:
    """The blocks, or the sentence that says how to get them."""
    if self.blocks:
      return self.blocks
    return [f'Not run. These runs would fill it: `{self.command}`'] if self.command else ['Nothing.']


def _flat_cell(cell, is_spread) -> Sequence[str]:
  if isinstance(cell, quantities.Quantity):
    return [repr(float(cell.mean)), '' if cell.deviation is None else repr(float(cell.deviation))]
  text = '' if cell is None else str(cell)
  return [text, ''] if is_spread else [text]
