"""Compares `BUILD`, which declares the layers, with what the files import. It imports none of them."""

import ast
from collections.abc import Iterator
import functools
import graphlib
import pathlib
import re
import sys
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).absolute().parents[1]
PROJECT = ('quap_tff', 'data', 'experiments')
WITHOUT_TFF = (
  'quap_tff/common',
  'quap_tff/mechanisms',
  'quap_tff/accounting',
  'quap_tff/certificates',
  'quap_tff/serving',
  'quap_tff/bundle',
  'quap_tff/flower',
)

# The extra `flower`, and the HTTP client that Flower brings along: no environment has them together with TFF.
OF_FLOWER = ('flwr', 'httpx', 'prometheus_client', 'pycryptodome')

# Import name -> distribution, where they differ.
DISTRIBUTIONS = {
  'Crypto': 'pycryptodome',
  'PIL': 'pillow',
  'absl': 'absl-py',
  'google': 'protobuf',
  'grpc': 'grpcio',
  'sklearn': 'scikit-learn',
  'tree': 'dm-tree',
  'xdist': 'pytest-xdist',
}


def declared(name: str) -> Any:
  """A value of BUILD."""
  for node in ast.parse((ROOT / 'BUILD').read_text(encoding='utf-8')).body:
    if isinstance(node, ast.Assign) and node.targets[0].id == name:
      return ast.literal_eval(node.value)
  raise AssertionError(f'BUILD has no {name}.')


@functools.cache
def rooms() -> dict[str, list[str]]:
  """`ROOMS` of BUILD: for each room the rooms that it may import."""
  return declared('ROOMS')


def room_of(path: str) -> str:
  """The room of a file, or of a module written as a path: the innermost that holds it."""
  return max((r for r in rooms() if path == r or path.startswith(f'{r}/')), key=len)


def python_files(*folders: str) -> list[pathlib.Path]:
  """All files of some folders, but those that run in environments of their own."""
  found = [path for folder in folders for path in (ROOT / folder).rglob('*.py')]
  return [path for path in found if 'peers' not in path.parts]


def imported(source: str) -> Iterator[str]:
  """The dotted modules that a text of Python imports, in functions and lazily, too."""
  for node in ast.walk(ast.parse(source)):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      yield from (f'{node.module}.{alias.name}' for alias in node.names)
    elif isinstance(node, ast.Call) and re.search(r'\blazy\.(module|load)$', ast.unparse(node.func)):
      yield from (argument.value for argument in node.args if isinstance(argument, ast.Constant))


@functools.cache
def modules_of(path: pathlib.Path) -> frozenset[str]:
  lazy_names = {'quap_tff.common.lazy.tf': 'tensorflow', 'quap_tff.common.lazy.tff': 'tensorflow_federated'}
  return frozenset(lazy_names.get(name, name) for name in imported(path.read_text(encoding='utf-8')))


def room_imports() -> dict[str, dict[str, str]]:
  """For each room the rooms that it imports, each with a file that does."""
  found = {room: {} for room in rooms()}
  for path in python_files(*PROJECT):
    name = path.relative_to(ROOT).as_posix()
    for module in modules_of(path):
      if module.split('.')[0] in PROJECT:
        found[room_of(name)].setdefault(room_of(module.replace('.', '/')), f'{name} imports {module}')
  return found


@pytest.mark.slow
def test_rooms_import_what_build_says():
  for room, imports in room_imports().items():
    allowed = rooms()[room]
    strangers = {other: why for other, why in imports.items() if other not in (room, *allowed)}
    assert not strangers, f'{room} may not import these rooms: {strangers}'
    # What a package offers, it imports by name when it is asked for.
    unused = set(allowed) - set(imports) if room != 'quap_tff' else set()
    assert not unused, f'BUILD lets {room} import {sorted(unused)}, which no file there does.'


def reached(*modules: str) -> dict[str, str]:
  """For each of the project's modules that these import, at any depth, a file that does.

  A package that holds one of them is loaded with it, so its own imports count, too.
  """
  found, waiting = dict.fromkeys(modules, 'the test'), list(modules)
  loaded = set()
  while waiting:
    parts = waiting.pop().split('.')
    for path in (ROOT.joinpath(*parts[:end]) for end in range(1, len(parts) + 1)):
      path = path / '__init__.py' if path.is_dir() else path.with_suffix('.py')
      if path in loaded or not path.exists():  # A name in a module is not a file.
        continue
      loaded.add(path)
      for module in modules_of(path):
        if module.split('.')[0] in PROJECT and module not in found:
          found[module] = path.relative_to(ROOT).as_posix()
          waiting.append(module)
  return found


def test_what_verifies_plans_and_counts_reaches_nothing_that_trains():
  files, allowed = declared('ACCOUNT_FILES'), declared('ACCOUNT_ROOMS')
  # No name stands there in vain, and the rooms are closed.
  trains = [room for room in rooms() if re.match('quap_tff/(training|federated|runtime|methods|plans$)', room)]
  assert len(trains) >= 8 and not set(trains) & set(allowed)
  assert set(allowed) == {*allowed, *(other for room in allowed for other in rooms()[room])}
  found = reached('quap_tff.verify', 'quap_tff.account.__main__', 'quap_tff.accounting.gate')
  paths = {module.replace('.', '/'): why for module, why in found.items()}
  strangers = {path: why for path, why in paths.items() if f'{path}.py' not in files and room_of(path) not in allowed}
  assert not strangers, f'What verifies, plans and counts must not import what trains: {strangers}'
  assert set(allowed) <= {room_of(path) for path in paths}


def test_imports_only_go_down():
  order = list(rooms())
  for room, allowed in rooms().items():
    assert all(order.index(other) < order.index(room) for other in allowed), room
  graphlib.TopologicalSorter(rooms()).prepare()


@pytest.mark.parametrize('room', WITHOUT_TFF)
def test_lower_rooms_do_without_tff(room):
  type_checkers_only = ROOT / 'quap_tff/common/lazy.py'
  for path in set(python_files(room)) - {type_checkers_only}:
    assert not any(module.startswith('tensorflow_federated') for module in modules_of(path)), path


@pytest.mark.slow
def test_no_circle_of_files():
  files = {'.'.join(path.relative_to(ROOT).with_suffix('').parts): path for path in python_files(*PROJECT)}
  graph: dict[str, set[str]] = {}
  for name, path in files.items():
    tree = ast.parse(path.read_text(encoding='utf-8'))
    top = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    graph[name] = {m for m in imported(ast.unparse(ast.Module(top, []))) if m in files} - {name}
  graphlib.TopologicalSorter(graph).prepare()


@pytest.mark.parametrize('folder', ['quap_tff/plans', 'quap_tff/certificates'])
def test_no_circle_of_files_lazily_or_for_types(folder):
  files = {'.'.join(path.relative_to(ROOT).with_suffix('').parts): path for path in python_files(folder)}
  graphlib.TopologicalSorter({name: modules_of(path) & files.keys() for name, path in files.items()}).prepare()


@pytest.mark.slow
def test_third_party_packages_are_required():
  required = re.findall(r'^([A-Za-z0-9._-]+)', (ROOT / 'requirements.txt').read_text(encoding='utf-8'), re.MULTILINE)
  known = {re.sub('[-_.]+', '-', name).lower() for name in (*required, *OF_FLOWER)}
  for path in python_files(*PROJECT, 'tests'):
    for module in modules_of(path):
      top = module.split('.')[0]
      if top in sys.stdlib_module_names or (ROOT / top).is_dir() or top in ('__future__', '_typeshed'):
        continue
      assert DISTRIBUTIONS.get(top, top.replace('_', '-')) in known, f'{path}: {module}'


@pytest.mark.parametrize(
  'text, expected',
  [
    ('import a.b', 'a.b'),
    ('from a import b', 'a.b'),
    ('def f():\n  import a', 'a'),
    ("x = lazy.module('a.b')", 'a.b'),
    ("_lazy.load('a')", None),
    ("lazy.load('a')", 'a'),
  ],
)
def test_reads_imports(text: str, expected: str):
  assert list(imported(text)) == ([expected] if expected else [])


def binaries() -> list[tuple[str, ...]]:
  text = (ROOT / 'BUILD').read_text(encoding='utf-8')
  return sorted(re.findall(r'"(\w+)"', text[text.index('for name in [') : text.index('[py_test(')]))


def test_every_program_is_a_binary():
  programs = [
    p.stem for p in (ROOT / 'experiments').glob('*.py') if "__name__ == '__main__'" in p.read_text(encoding='utf-8')
  ]
  assert sorted(programs) == binaries()
