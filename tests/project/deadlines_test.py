"""Every child process of a test has the deadline of `tests.processes`: tests that wait without it are found."""

import ast
from collections.abc import Iterator
import pathlib

import pytest

from tests import build_test

# What starts a child and waits for it, or waits for one, without a deadline of its own.
_WAITS = (
  *('subprocess.run', 'subprocess.call', 'subprocess.check_call', 'subprocess.check_output'),
  *('subprocess.getoutput', 'subprocess.getstatusoutput', 'os.system', 'os.popen'),
)


def found(tree: ast.AST) -> Iterator[int]:
  """The line of each wait."""
  for node in ast.walk(tree):
    is_wait = isinstance(node, ast.Attribute) and (ast.unparse(node) in _WAITS or node.attr == 'communicate')
    hides_waits = isinstance(node, ast.ImportFrom) and node.module == 'subprocess'
    if is_wait or hides_waits:
      yield node.lineno


def _places(path: pathlib.Path) -> list[str]:
  lines = found(ast.parse(path.read_text(encoding='utf-8')))
  return [f'{path.relative_to(build_test.ROOT).as_posix()}:{line}' for line in lines]


@pytest.mark.slow
def test_one_file_waits_for_children():
  paths = [path for path in build_test.python_files('tests') if path != build_test.ROOT / 'tests' / 'processes.py']
  places = [place for path in paths for place in _places(path)]
  assert len(paths) > 100 and not places, f'Use tests.processes, which has the deadline, at: {", ".join(places)}'


@pytest.mark.parametrize(
  'source, count',
  [
    ('subprocess.run([])', 1),
    ('run = lambda *more: subprocess.check_output(more)', 1),
    ('os.system("true")', 1),
    ('from subprocess import run', 1),
    ('process.communicate()', 1),
    ('subprocess.Popen([], stdout=subprocess.PIPE)', 0),
    ('processes.run([])', 0),
  ],
)
def test_each_wait_is_found(source, count):
  assert len(list(found(ast.parse(source)))) == count
