"""A report as one HTML page that needs nothing else: images inside, no links out, no script."""

import base64
import html
import re
from typing import Mapping, Sequence

from experiments.reporting import document

_STYLE = '''
body { font: 16px/1.5 system-ui, sans-serif; color: #111; background: #fff; max-width: 75rem; margin: 2rem auto;
  padding: 0 1rem; }
h2 { margin-top: 2.5rem; border-top: 1px solid #bbb; padding-top: 1rem; }
p { max-width: 50rem; }
nav ul { columns: 3 16rem; padding-left: 1.2rem; }
code { background: #eee; padding: 0 .2em; overflow-wrap: anywhere; }
.wide { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: .85rem; }
caption { text-align: left; font-weight: 600; padding-bottom: .4rem; }
th, td { border: 1px solid #bbb; padding: .25rem .5rem; text-align: left; vertical-align: top; min-width: 4.5rem; }
th { background: #eee; }
figure { margin: 1rem 0; }
img { max-width: 100%; height: auto; }
figcaption { font-size: .9rem; }
@media print { .wide { overflow: visible; } figure, tr { break-inside: avoid; } }
'''


def render(sections: Sequence[document.Section], images: Mapping[str, bytes]) -> str:
  """The page; `images`: PNG bytes of each figure by name."""
  title = html.escape(sections[0].title)
  links = ''.join(f'<li><a href="#s{i}">{html.escape(s.title)}</a></li>' for i, s in enumerate(sections) if i)
  parts = [
      '<!DOCTYPE html>', '<html lang="en">',
      '<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">',
      f'<title>{title}</title><style>{_STYLE}</style></head>', '<body>', f'<h1>{title}</h1>'
  ]
  for i, section in enumerate(sections):
    if i:
      parts.append(f'<h2 id="s{i}">{html.escape(section.title)}</h2>')
    parts += [_block(block, images) for block in section.all_blocks()]
    if not i:
      parts.append(f'<nav><ul>{links}</ul></nav>')
  return '\n'.join([*parts, '</body>', '</html>', ''])


def _block(block: document.Block, images) -> str:
  if isinstance(block, document.Table):
    head = ''.join(f'<th scope="col">{html.escape(name)}</th>' for name in block.columns)
    rows = ''.join(
        '<tr>' + ''.join(f'<td>{html.escape(cell)}</td>' for cell in row) + '</tr>\n' for row in block.texts()
    )
    caption = f'<caption>{html.escape(block.title)}</caption>'
    return f'<div class="wide"><table>{caption}<thead><tr>{head}</tr></thead><tbody>\n{rows}</tbody></table></div>'
  if isinstance(block, document.Figure):
    data = base64.b64encode(images[block.name]).decode('ascii')
    caption = html.escape(block.caption)
    return (
        f'<figure><img alt="{caption}" src="data:image/png;base64,{data}"><figcaption>{caption}</figcaption></figure>'
    )
  return f'<p>{_inline(block)}</p>'


def _inline(text: str) -> str:
  """The two marks that paragraphs use: `code` and **bold**."""
  text = re.sub(r'`([^`]*)`', r'<code>\1</code>', html.escape(text))
  return re.sub(r'\*\*(.+?)\*\*', r'<strong>\1</strong>', text)
