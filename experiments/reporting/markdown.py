"""A report as Markdown, its tables aligned, its figures beside it."""

from typing import Sequence

from experiments.reporting import document


def render(sections: Sequence[document.Section]) -> str:
  """The whole report; the first section's title is the report's."""
  parts = []
  for level, section in enumerate(sections):
    parts.append(f'{"##" if level else "#"} {section.title}')
    parts += [_block(block) for block in section.all_blocks()]
  return '\n\n'.join(parts) + '\n'


def table(shown: document.Table) -> str:
  """A table with columns of equal width."""
  lines = [[_escape(cell) for cell in row] for row in (shown.columns, *shown.texts())]
  widths = [max(3, *(len(line[i]) for line in lines)) for i in range(len(shown.columns))]
  padded = [' | '.join(cell + ' ' * (width - len(cell)) for cell, width in zip(line, widths)) for line in lines]
  rule = ' | '.join('-' * width for width in widths)
  return '\n'.join(f'| {line} |' for line in [padded[0], rule, *padded[1:]])


def _block(block: document.Block) -> str:
  if isinstance(block, document.Table):
    return f'{block.title}:\n\n{table(block)}'
  if isinstance(block, document.Figure):
    return f'![{block.caption}]({document.figure_path(block)})\n\n*{block.caption}*'
  return block


def _escape(text: str) -> str:
  return text.replace('|', '\\|').replace('\n', ' ')
