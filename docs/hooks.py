"""What the documentation site adds to MkDocs: the README as its first page, formulas, and flags that stay whole."""

import pathlib
import re
from typing import Any

import latex2mathml.converter

_README = pathlib.Path(__file__).absolute().parents[1] / 'README.md'
_OUTSIDE = r'\[([^\]]*)\]\((?:CHANGELOG\.md|CITATION\.cff|LICENSE)\)'
_INLINE_CODE = re.compile(r'(?<!<pre>)<code>([^<]*)</code>')
_TEXT = re.compile(r'(<pre.*?</pre>|<code.*?</code>|<div class="formula">.*?</div>|<[^>]*>)', re.DOTALL)
_SUBSCRIPT = re.compile(r'(?<=[\w\u0300-\u036f)])_(?:\{([^{}]*)\}|([A-Za-z0-9α-ω]+))')
_SUPERSCRIPT = re.compile(r"(?<=\S)\^(?:\{([^{}]*)\}|\(([^()]*)\)|(-?[\w.]*\w'?))")
_PAGES_WITH_SYMBOLS = ('errata.md', 'method.md', 'names.md', 'privacy.md', 'proofs.md', 'systems.md')
_FLAG = re.compile(r'(?<![\w-])--\w+')


def _formula(source: str, *_: Any, **__: Any) -> str:
  """A block of LaTeX as MathML, which browsers typeset without a script, a font or a network."""
  return f'<div class="formula">{latex2mathml.converter.convert(source, display="block")}</div>'


def on_config(config: Any) -> Any:
  """A code block of the language `math` is a formula, as it is on code hosts."""
  fence = {'name': 'math', 'class': 'formula', 'format': _formula}
  config['mdx_configs'].setdefault('pymdownx.superfences', {})['custom_fences'] = [fence]
  return config


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
  """The first page is the README. Its links are seen from the folder of the pages; what is not on the site has none."""
  if page.file.src_uri != 'index.md':
    return markdown
  readme = _README.read_text(encoding='utf-8')
  readme = re.sub(_OUTSIDE, r'\1', readme)
  return readme.replace('](docs/', '](').replace('](CONTRIBUTING.md)', '](contributing.md)')


def _with_whole_flags(code: re.Match[str]) -> str:
  return f'<code>{_FLAG.sub(_whole, code[1])}</code>'


def _whole(flag: re.Match[str]) -> str:
  return f'<span class="flag">{flag[0]}</span>'


def _raised_and_lowered(text: str) -> str:
  """`w_i` and `e^{-x}` as a printed page has them, from the innermost braces outwards."""
  before = ''
  while before != text:
    before = text
    text = _SUBSCRIPT.sub(lambda found: f'<sub>{found[1] or found[2]}</sub>', text)
    text = _SUPERSCRIPT.sub(lambda found: f'<sup>{found[1] or found[2] or found[3]}</sup>', text)
  return text


def on_page_content(html: str, *, page: Any, **_: Any) -> str:
  """Symbols get their indices, and flags stay whole: browsers may end a line after a hyphen."""
  if page.file.src_uri in _PAGES_WITH_SYMBOLS:
    parts = _TEXT.split(html)
    parts[::2] = [_raised_and_lowered(text) for text in parts[::2]]
    html = ''.join(parts)
  return _INLINE_CODE.sub(_with_whole_flags, html)
