"""What the documentation site adds to MkDocs: the README as its first page, formulas, and flags that do not break."""

import pathlib
import re
from typing import Any

import latex2mathml.converter

_README = pathlib.Path(__file__).absolute().parents[1] / 'README.md'
_OUTSIDE = r'\[([^\]]*)\]\((?:CHANGELOG\.md|CITATION\.cff|LICENSE)\)'
_INLINE_CODE = re.compile(r'(?<!<pre>)<code>([^<]*)</code>')
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


def on_page_content(html: str, **_: Any) -> str:
  """Browsers may end a line after a hyphen, which would part `--` from the name of a flag."""
  return _INLINE_CODE.sub(_with_whole_flags, html)
