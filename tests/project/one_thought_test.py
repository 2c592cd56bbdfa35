"""One thought a line: constructs that hold several thoughts are counted, and the counts only go down.

A maximum must be exact. Whoever lowers a count lowers its number here, and nobody raises one: a local name takes the
place of nesting.
"""

import ast
import collections
from collections.abc import Iterator
import functools
import pathlib

import pytest

ROOT = pathlib.Path(__file__).absolute().parents[2]
TOPS = ('quap_tff', 'data', 'experiments')

MAXIMA = {
  # A comprehension or generator inside another one.
  'nested comprehension': 0,
  # `a if b else c` inside an f-string, a comprehension or an argument.
  'condition inside an expression': 0,
  # `name = lambda …`, which `def` names better.
  'lambda with a name': 0,
  # More than two `*` or `**` in a list, tuple, set or dict.
  'literal of many unpackings': 0,
  # More than `MOST_PARAMETERS`, without self.
  'function of many parameters': 3,
}
MOST_PARAMETERS = 8

_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def found(tree: ast.AST) -> Iterator[tuple[str, int]]:
  """The kind and the line of each construct."""
  yield from _found(tree, in_comprehension=False, in_expression=False)


def _found(node: ast.AST, in_comprehension: bool, in_expression: bool) -> Iterator[tuple[str, int]]:
  if isinstance(node, _COMPREHENSIONS):
    if in_comprehension:
      yield 'nested comprehension', node.lineno
    in_comprehension = in_expression = True
  elif isinstance(node, ast.IfExp) and in_expression:
    yield 'condition inside an expression', node.lineno
  elif isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(node.value, ast.Lambda):
    yield 'lambda with a name', node.lineno
  elif isinstance(node, (ast.List, ast.Tuple, ast.Set, ast.Dict)) and _unpackings(node) > 2:
    yield 'literal of many unpackings', node.lineno
  elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
    in_comprehension = in_expression = False
    if _num_parameters(node.args) > MOST_PARAMETERS:
      yield 'function of many parameters', node.lineno
  elif isinstance(node, ast.Lambda):
    in_expression = False
  in_expression = in_expression or isinstance(node, ast.JoinedStr)
  for child in ast.iter_child_nodes(node):
    is_argument = isinstance(node, ast.Call) and child is not node.func
    yield from _found(child, in_comprehension, in_expression or is_argument)


def _unpackings(literal: ast.AST) -> int:
  if isinstance(literal, ast.Dict):
    return literal.keys.count(None)
  return sum(isinstance(element, ast.Starred) for element in literal.elts)


def _num_parameters(arguments: ast.arguments) -> int:
  names = [one.arg for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
  return len(names) - (names[:1] in (['self'], ['cls']))


@functools.cache
def _places() -> dict[str, list[str]]:
  """Where each kind is, as file:line."""
  places = collections.defaultdict(list)
  for top in TOPS:
    for path in sorted((ROOT / top).rglob('*.py')):
      for kind, line in found(ast.parse(path.read_text(encoding='utf-8'))):
        places[kind].append(f'{path.relative_to(ROOT).as_posix()}:{line}')
  return places


@pytest.mark.slow
@pytest.mark.parametrize('kind', MAXIMA)
def test_counts_only_go_down(kind):
  places, maximum = _places()[kind], MAXIMA[kind]
  shown = '\n'.join(places)
  assert len(places) <= maximum, f'{kind}: {len(places)} where at most {maximum} may be. Name a step.\n{shown}'
  assert len(places) == maximum, f'{kind}: {len(places)} are left. Lower the maximum, {maximum}, to that.'


@pytest.mark.parametrize(
  'source, kinds',
  [
    ('[[y for y in x] for x in z]', ['nested comprehension']),
    ('{k: sum(v for v in vs) for k, vs in z}', ['nested comprehension']),
    ('[x for x in [y for y in z]]', ['nested comprehension']),
    ('[x for y in z for x in y]', []),
    ('f(a if b else c)', ['condition inside an expression']),
    ('f(x=[a if b else c])', ['condition inside an expression']),
    ("f'{a if b else c}'", ['condition inside an expression']),
    ('[a if b else c for b in d]', ['condition inside an expression']),
    ('x = a if b else c', []),
    ('(a if b else c).f()', []),
    ('f(lambda: a if b else c)', []),
    ('f = lambda x: x', ['lambda with a name']),
    ('f: int = lambda x: x', ['lambda with a name']),
    ('f(lambda x: x)', []),
    ('[*a, *b, *c]', ['literal of many unpackings']),
    ('{**a, **b, **c}', ['literal of many unpackings']),
    ('[*a, *b, c]', []),
    ('def f(a, b, c, d, e, g, h, *, i, j): pass', ['function of many parameters']),
    ('def f(self, a, b, c, d, e, g, h, i): pass', []),
  ],
)
def test_each_kind_is_found(source, kinds):
  assert [kind for kind, _ in found(ast.parse(source))] == kinds
