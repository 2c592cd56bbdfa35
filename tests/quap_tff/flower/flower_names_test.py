"""Says what breaks here with another Flower: the version of the pin, and each name of Flower that is used.

For the newest of the index, install it into a copy of build/deploy_venv, and run this file there.
"""

import ast
import pathlib
import pydoc
import re

import pytest

flwr = pytest.importorskip('flwr', reason='make test-deploy sets up the newest Python that Flower runs on, and Flower.')

ROOT = pathlib.Path(__file__).absolute().parents[3]
FLOWER = ROOT / 'quap_tff' / 'flower'
# What Flower documents for apps. Other modules are without a promise to stay.
PUBLIC = {'flwr.app', 'flwr.clientapp', 'flwr.serverapp'}
# What is replaced or overridden, which no import shows.
OVERRIDDEN = [('flwr.supernode.fleet_http_client', 'FleetHttpClient._unary_unary')]


def _used(path):
  """Pairs of a module of Flower and a name in it that a file uses."""
  tree, found, modules = ast.parse(path.read_text(encoding='utf-8')), [], {}
  for node in ast.walk(tree):
    if isinstance(node, ast.ImportFrom) and str(node.module).startswith('flwr'):
      for alias in node.names:
        found.append((node.module, alias.name))
        modules[alias.asname or alias.name] = f'{node.module}.{alias.name}'
    elif isinstance(node, ast.Import):
      modules.update({alias.name: alias.name for alias in node.names if alias.name.startswith('flwr')})
    elif isinstance(node, ast.AnnAssign) and 'import_module' in ast.unparse(node.value or node):
      modules[node.target.id] = ast.literal_eval(node.value.args[0])
  for node in ast.walk(tree):
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
      found.append((modules[node.value.id], node.attr))
  return found


def _has(module, name):
  """Whether Flower has such a name: a module, or one of a module or a class."""
  try:
    return pydoc.locate(f'{module}.{name}') is not None
  except pydoc.ErrorDuringImport:
    return False


USED = {(str(path.relative_to(ROOT)), *used) for path in sorted(FLOWER.rglob('*.py')) for used in _used(path)}


def test_is_the_version_that_is_tested():
  (pinned,) = re.findall(r'"flwr==([\d.]+);', (ROOT / 'pyproject.toml').read_text(encoding='utf-8'))
  assert flwr.__version__ == pinned, f'This is Flower {flwr.__version__}, and all tests are for {pinned}.'


def test_has_what_is_used():
  assert len(USED) > 30
  missing = [f'{path}: {module} has no {name}' for path, module, name in sorted(USED) if not _has(module, name)]
  missing += [f'{module} has no {name}' for module, name in OVERRIDDEN if not _has(module, name)]
  assert not missing, '\n'.join([f'With Flower {flwr.__version__}, these break:', *missing])


def test_the_secure_sum_uses_what_is_public_alone():
  used = {(module, name) for path, module, name in USED if '/secure_sum/' in path}
  assert used and {module for module, _ in used} <= PUBLIC


@pytest.mark.parametrize('module, name', [('flwr.app', 'NoSuchName'), ('flwr.no_such_module', 'run'), ('flwr', 'x.y')])
def test_finds_what_is_missing(module, name):
  assert not _has(module, name)
