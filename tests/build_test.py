"""Compares `BUILD`, which declares the layers, with what the files import. It imports none of them."""

import ast
from collections.abc import Iterator
import graphlib
import pathlib
import re
import sys

import pytest

ROOT = pathlib.Path(__file__).absolute().parents[1]
WITHOUT_TFF = (
  'quap_tff/common',
  'quap_tff/mechanisms',
  'quap_tff/accounting',
  'quap_tff/certificates',
  'quap_tff/bundle',
  'quap_tff/flower',
)

# Of the extra `flower`: no environment has it together with TFF.
OF_FLOWER = 'flwr'

# Import name -> distribution, where they differ.
DISTRIBUTIONS = {
  'PIL': 'pillow',
  'absl': 'absl-py',
  'google': 'protobuf',
  'grpc': 'grpcio',
  'sklearn': 'scikit-learn',
  'tree': 'dm-tree',
  'xdist': 'pytest-xdist',
}


def rooms() -> dict[str, list[str]]:
  """`ROOMS` of BUILD: for each room the rooms that it may import."""
  for node in ast.parse((ROOT / 'BUILD').read_text(encoding='utf-8')).body:
    if isinstance(node, ast.Assign) and node.targets[0].id == 'ROOMS':
      return ast.literal_eval(node.value)
  raise AssertionError('BUILD has no ROOMS.')


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


def modules_of(path: pathlib.Path) -> set[str]:
  lazy_names = {'quap_tff.common.lazy.tf': 'tensorflow', 'quap_tff.common.lazy.tff': 'tensorflow_federated'}
  return {lazy_names.get(name, name) for name in imported(path.read_text(encoding='utf-8'))}


def room_imports() -> dict[str, dict[str, str]]:
  """For each room the rooms that it imports, each with a file that does."""
  found = {room: {} for room in rooms()}
  for path in python_files('quap_tff', 'data', 'experiments'):
    name = path.relative_to(ROOT).as_posix()
    for module in modules_of(path):
      if module.split('.')[0] in ('quap_tff', 'data', 'experiments'):
        found[room_of(name)].setdefault(room_of(module.replace('.', '/')), f'{name} imports {module}')
  return found


def test_rooms_import_what_build_says():
  for room, imports in room_imports().items():
    allowed = rooms()[room]
    strangers = {other: why for other, why in imports.items() if other not in (room, *allowed)}
    assert not strangers, f'{room} may not import these rooms: {strangers}'
    # What a package offers, it imports by name when it is asked for.
    unused = set(allowed) - set(imports) if room != 'quap_tff' else set()
    assert not unused, f'BUILD lets {room} import {sorted(unused)}, which no file there does.'


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


def test_no_circle_of_files():
  files = {
    '.'.join(path.relative_to(ROOT).with_suffix('').parts): path
    for path in python_files('quap_tff', 'data', 'experiments')
  }
  graph: dict[str, set[str]] = {}
  for name, path in files.items():
    tree = ast.parse(path.read_text(encoding='utf-8'))
    top = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    graph[name] = {m for m in imported(ast.unparse(ast.Module(top, []))) if m in files} - {name}
  graphlib.TopologicalSorter(graph).prepare()


@pytest.mark.skipif(sys.version_info < (3, 10), reason='Python 3.9 does not name its own modules.')
def test_third_party_packages_are_required():
  required = re.findall(r'^([A-Za-z0-9._-]+)', (ROOT / 'requirements.txt').read_text(encoding='utf-8'), re.MULTILINE)
  known = {re.sub('[-_.]+', '-', name).lower() for name in (*required, OF_FLOWER)}
  for path in python_files('quap_tff', 'data', 'experiments', 'tests'):
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
