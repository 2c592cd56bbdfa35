"""Compares the documentation site with what there is to document. `make docs` builds it, and checks its links."""

import ast
import importlib
import pathlib
import re

ROOT = pathlib.Path(__file__).absolute().parents[2]
DOCS = ROOT / 'docs'
PACKAGES = ('quap_tff', 'quap_tff.plans', 'quap_tff.runtime')


def _exports(package):
  """What a package's `lazy.exports` lists: public names by submodule."""
  tree = ast.parse((ROOT / package.replace('.', '/') / '__init__.py').read_text(encoding='utf-8'))
  call = next(
    node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == 'lazy.exports'
  )
  return ast.literal_eval(call.args[1])


def _documented():
  text = '\n'.join(page.read_text(encoding='utf-8') for page in (DOCS / 'reference').glob('*.md'))
  return set(re.findall(r'^::: (\S+)$', text, re.MULTILINE))


def test_the_reference_has_every_public_name():
  documented, missing = _documented(), []
  for package in PACKAGES:
    for module, names in _exports(package).items():
      path = f'{package}.{module}'
      for name in names:
        found = getattr(importlib.import_module(path), name)
        if not {f'{found.__module__}.{name}', found.__module__, path} & documented:
          missing.append(f'{package}.{name}')
      if not names and not any(place == path or place.startswith(f'{path}.') for place in documented):
        missing.append(path)
  assert not missing, f'Add them to a page in docs/reference: {missing}'


def test_the_reference_names_only_what_exists():
  for place in _documented():
    path, _, name = place.rpartition('.')
    module = ROOT / place.replace('.', '/')
    if not (module.with_suffix('.py').exists() or (module / '__init__.py').exists()):
      assert hasattr(importlib.import_module(path), name), place


def test_the_menu_has_every_page():
  menu = set(re.findall(r': (\S+\.(?:md|ipynb))$', (ROOT / 'mkdocs.yml').read_text(encoding='utf-8'), re.MULTILINE))
  pages = {p.relative_to(DOCS).as_posix() for pattern in ('*.md', '*.ipynb') for p in DOCS.rglob(pattern)}
  assert menu == {page for page in pages if '.ipynb_checkpoints' not in page}


def test_links_of_pages_outside_the_site():
  for name in ('README.md', 'CONTRIBUTING.md', 'CHANGELOG.md'):
    text = (ROOT / name).read_text(encoding='utf-8')
    for link, anchor in re.findall(r'\]\((?!https?:)([^)#\s]*)(#[^)\s]*)?\)', text):
      target = ROOT / (link or name)
      assert target.exists(), f'{name}: {link}'
      page = target.read_text(encoding='utf-8') if target.suffix == '.md' else ''
      headings = [re.sub(r'[^\w\- ]', '', h.lower()).replace(' ', '-') for h in re.findall('^#+ (.*)$', page, re.M)]
      assert not anchor or anchor[1:] in headings, f'{name}: {link}{anchor}'


def _words(markdown):
  """The words that a reader reads: without code, tables, pictures and the addresses of links."""
  text = re.sub(r'^```.*?^```', '', markdown, flags=re.MULTILINE | re.DOTALL)
  text = re.sub(r'^(?:    |\||!\[).*$', '', text, flags=re.MULTILINE)
  return re.sub(r'\]\([^)]*\)', ']', text).split()


def test_the_readme_is_read_in_a_minute():
  readme = (ROOT / 'README.md').read_text(encoding='utf-8')
  assert len(_words(readme)) <= 600
  (caption,) = re.findall(r'^!\[.*\n\n\*(.*?)\*$', readme, re.MULTILINE | re.DOTALL)
  assert len(_words(caption)) <= 60
  cells = [cell for line in readme.splitlines() if line.startswith('| ') for cell in line.split(' | ')]
  assert max(len(_words(f' {cell}')) for cell in cells) <= 20


def test_privacy_is_a_statement_and_not_a_treatise():
  assert len((DOCS / 'privacy.md').read_text(encoding='utf-8').split()) <= 2500
