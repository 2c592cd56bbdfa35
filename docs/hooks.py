"""What the documentation site adds to MkDocs: the README as its first page, formulas, whole flags, checked links."""

import pathlib
import re
from typing import Any
from urllib import parse

import latex2mathml.converter
from mkdocs import exceptions

_README = pathlib.Path(__file__).absolute().parents[1] / 'README.md'
_OUTSIDE = r'\[([^\]]*)\]\((?:CHANGELOG\.md|CITATION\.cff|LICENSE)\)'
_INLINE_CODE = re.compile(r'(?<!<pre>)<code>([^<]*)</code>')
_TEXT = re.compile(r'(<pre.*?</pre>|<code.*?</code>|<div class="formula">.*?</div>|<[^>]*>)', re.DOTALL)
_SUBSCRIPT = re.compile(r'(?<=[\w\u0300-\u036f)])_(?:\{([^{}]*)\}|([A-Za-z0-9α-ω]+))')
_SUPERSCRIPT = re.compile(r"(?<=\S)\^(?:\{([^{}]*)\}|\(([^()]*)\)|(-?[\w.]*\w'?))")
_PAGES_WITH_SYMBOLS = ('errata.md', 'method.md', 'names.md', 'privacy.md', 'proofs.md', 'systems.md')
_FLAG = re.compile(r'(?<![\w-])--\w+')
_LINK_TO_MARKDOWN = re.compile(r'(?<=href=")([\w/]+)\.md(?=["#])')
_ADDRESS = re.compile(r'\s(?:href|src)="(?![a-z]+:|#__)([^"#?]*)[^"#]*#?([^"]*)"')
_ANCHOR = re.compile(r'\sid="([^"]+)"')


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
  """Symbols get their indices, links of a notebook lead to pages, and flags stay whole at the end of a line."""
  if page.file.src_uri.endswith('.ipynb'):
    html = _LINK_TO_MARKDOWN.sub(r'\1.html', html)
  if page.file.src_uri in _PAGES_WITH_SYMBOLS:
    parts = _TEXT.split(html)
    parts[::2] = [_raised_and_lowered(text) for text in parts[::2]]
    html = ''.join(parts)
  return _INLINE_CODE.sub(_with_whole_flags, html)


def on_post_build(*, config: Any, **_: Any) -> None:
  """Each link of the site, also those that MkDocs does not look at, leads to a file and to an anchor that are there."""
  site = pathlib.Path(config['site_dir']).resolve()
  texts = {path: path.read_text(encoding='utf-8') for path in site.rglob('*.html') if path.name != '404.html'}
  anchors = {path: set(_ANCHOR.findall(text)) for path, text in texts.items()}
  broken = []
  for page, text in texts.items():
    for address, anchor in sorted(set(_ADDRESS.findall(text))):
      target = (page.parent / parse.unquote(address)).resolve() if address else page
      known = anchors.get(target, {anchor})
      if not target.exists() or (anchor and parse.unquote(anchor) not in known):
        broken.append(f'{page.relative_to(site)}: {address}#{anchor}'.rstrip('#'))
  if broken:
    raise exceptions.PluginError('These links lead nowhere: ' + ', '.join(broken))
