"""Tests of docs/names.md, and of what names in the code must be."""

import ast
import collections
import functools
import pathlib
import re

ROOT = pathlib.Path(__file__).absolute().parents[2]
PAGE = ROOT / 'docs' / 'names.md'
TOPS = ('quap_tff', 'experiments', 'data')
MOST_LINES = 110


@functools.cache
def _modules():
  """The path, the dotted name and the tree of each module of the product."""
  found = []
  for top in TOPS:
    for path in sorted((ROOT / top).rglob('*.py')):
      parts = path.relative_to(ROOT).with_suffix('').parts
      found.append(
        (path, '.'.join(parts[:-1] if parts[-1] == '__init__' else parts), ast.parse(path.read_text('utf-8')))
      )
  return found


def _classes():
  """Where each public class is defined, by name."""
  found = collections.defaultdict(list)
  for _, module, tree in _modules():
    for node in tree.body:
      if isinstance(node, ast.ClassDef) and not node.name.startswith('_'):
        found[node.name].append(module)
  return found


def test_no_two_public_classes_have_one_name():
  assert {name: where for name, where in _classes().items() if len(where) > 1} == {}


def test_no_module_has_the_name_of_another_room():
  """Programs, at the top of a package, are named by what they do."""
  rooms = {path.parent.name for path, _, _ in _modules() if path.name == '__init__.py'} - set(TOPS)
  strangers = []
  for path, module, _ in _modules():
    room = next((one for one in (path.stem, f'{path.stem}s') if one in rooms), None)
    if room is not None and path.parent.name != room and module.count('.') > 1:
      strangers.append(module)
  assert not strangers, strangers


def test_the_page_is_short_and_each_name_is_where_it_says():
  lines = PAGE.read_text('utf-8').splitlines()
  assert len(lines) <= MOST_LINES
  classes, modules = _classes(), {module for _, module, _ in _modules()}
  rows = [re.match(r'\| (`(\w+)`|\w+) \| `([\w.]+)` \|', line) for line in lines if line.startswith('|')]
  rows = [row for row in rows if row]
  assert len(rows) > 30
  for row in rows:
    name, module = row[2], row[3]
    assert module in modules, row[0]
    assert name is None or classes[name] == [module], row[0]
