"""Keeps `BUILD` true and the layers in order; `python -m tests.build_test --write` rewrites `BUILD` from the imports.

The checks read `BUILD` as it stands and know nothing of the writer: a target made by hand is as good as a written one.
Nothing here imports the project or TensorFlow.
"""

import argparse
import ast
import collections
import importlib.util
import pathlib
import re
import sys
from typing import Dict, List, NamedTuple, Set

ROOT = pathlib.Path(__file__).resolve().parents[1]

# Import name -> distribution. A new dependency needs a line here and one in the requirements.
THIRD_PARTY = {
    'absl': 'absl-py',
    'attrs': 'attrs',
    'dp_accounting': 'dp-accounting',
    'google.protobuf': 'protobuf',
    'grpc': 'grpcio',
    'hypothesis': 'hypothesis',
    'kymatio': 'kymatio',
    'matplotlib': 'matplotlib',
    'numpy': 'numpy',
    'psutil': 'psutil',
    'pytest': 'pytest',
    'scipy': 'scipy',
    'sklearn': 'scikit-learn',
    'tensorflow': 'tensorflow',
    'tensorflow_federated': 'tensorflow-federated',
    'tensorflow_privacy': 'tensorflow-privacy',
    'tqdm': 'tqdm',
    'tree': 'dm-tree',
}

# The layers of the architecture, lowest first; a file belongs to the layer with the longest prefix that fits, and
# imports only from its own and lower ones. What is in `quap_tff/` and in no later layer is mechanism, which stays free
# of TFF.
LAYERS = [
    ('mechanism', ['quap_tff/']),
    ('TFF computations', [
        'quap_tff/__init__.py',
        'quap_tff/aggregation.py',
        'quap_tff/client_update.py',
        'quap_tff/client_work.py',
        'quap_tff/evaluation.py',
        'quap_tff/learning_process.py',
        'quap_tff/models/',
        'quap_tff/certified/aggregation.py',
        'quap_tff/certified/learning_process.py',
    ]),
    ('accounting', [
        'quap_tff/accounting/',
        'quap_tff/certified/__init__.py',
        'quap_tff/certified/calibration.py',
        'quap_tff/certified/records.py',
    ]),
    ('runtime', ['quap_tff/runtime/']),
    ('data', ['data/']),
    ('experiments', ['experiments/']),
    ('tests', ['tests/', 'conftest.py']),
]
WITHOUT_TFF = 'mechanism'

RULES = ('py_library', 'py_binary', 'py_test')

HEADER = '''"""One target for each Python file, named by its path; `tests/build_test.py` keeps this file true.

After adding a file or an import: python -m tests.build_test --write

A target is a file, not a package: a package's `__init__` imports its modules and these import each other, so that
targets of whole packages would hide what depends on what. All stand in this one file, so that one command rewrites it.
The workspace must provide `rules_python` (1.3 or later, for `main_module`) and a pip hub named `pypi` made from
requirements.txt.
"""

load("@rules_python//python:defs.bzl", "py_binary", "py_library", "py_test")

package(default_visibility = ["//visibility:public"])
'''


class Imports(NamedTuple):
  files: Set[str]  # Of the project, relative to its root.
  third_party: Set[str]  # Keys of THIRD_PARTY.
  unknown: Set[str]  # Neither of the project, nor third party, nor of Python's own library.


def python_files(root: pathlib.Path) -> List[str]:
  """All Python files of the project, relative to `root`; hidden folders are not of it."""
  found = (p.relative_to(root) for p in root.rglob('*.py'))
  return sorted(p.as_posix() for p in found if not any(part.startswith('.') for part in p.parts))


def _file_of(module: str, files: Set[str]) -> str:
  """The file of a dotted module name, '' if the project has none."""
  path = module.replace('.', '/')
  return next((f for f in (f'{path}.py', f'{path}/__init__.py') if f in files), '')


def _is_standard(name: str) -> bool:
  if hasattr(sys, 'stdlib_module_names'):
    return name in sys.stdlib_module_names
  spec = importlib.util.find_spec(name)  # Python 3.9.
  return spec is not None and 'site-packages' not in (spec.origin or '')


def imports_of(root: pathlib.Path, path: str, files: Set[str]) -> Imports:
  """What a file imports, anywhere in it. `from package import module` is the module, not the package's `__init__`."""
  names = []
  for node in ast.walk(ast.parse((root / path).read_text(encoding='utf-8'), path)):
    if isinstance(node, ast.Import):
      names += [(alias.name, None) for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
      base = path.split('/')[:-node.level] if node.level else []
      module = '.'.join(base + ([node.module] if node.module else []))
      names += [(module, alias.name) for alias in node.names]
  roots = {f.split('/')[0].replace('.py', '') for f in files}
  found = Imports(set(), set(), set())
  for module, name in names:
    file = (_file_of(f'{module}.{name}', files) if name else '') or _file_of(module, files)
    prefixes = ['.'.join(module.split('.')[:n]) for n in range(module.count('.') + 1, 0, -1)]
    third_party = next((p for p in prefixes + [f'{module}.{name}'] if p in THIRD_PARTY), None)
    if file:
      found.files.add(file)
    elif module.split('.')[0] in roots:
      found.unknown.add(module)
    elif third_party:
      found.third_party.add(third_party)
    elif not _is_standard(module.split('.')[0]):
      found.unknown.add(module)
  return found


def target_name(path: str) -> str:
  return path[:-len('.py')]


def label(third_party: str) -> str:
  return '@pypi//' + THIRD_PARTY[third_party].replace('-', '_')


def rule_of(root: pathlib.Path, path: str) -> str:
  if path.endswith('_test.py'):
    return 'py_test'
  tree = ast.parse((root / path).read_text(encoding='utf-8'), path)
  is_main = any(isinstance(n, ast.If) and ast.dump(n.test).count('__main__') and ast.dump(n.test).count('__name__')
                for n in tree.body)
  return 'py_binary' if is_main and path.startswith('experiments/') else 'py_library'


def _conftests(path: str, files: Set[str]) -> Set[str]:
  """The files that pytest imports for a test though it does not say so."""
  parts = path.split('/')[:-1]
  folders = ['/'.join(parts[:n] + ['conftest.py']) for n in range(len(parts) + 1)]
  return {f for f in folders if f in files and f != path}


def expected_deps(root: pathlib.Path, path: str, files: Set[str]) -> Set[str]:
  imports = imports_of(root, path, files)
  own = imports.files - {path}
  if path.endswith('_test.py'):
    own |= _conftests(path, files)
  return {':' + target_name(f) for f in own} | {label(t) for t in imports.third_party}


class Target(NamedTuple):
  rule: str
  name: str
  srcs: List[str]
  deps: List[str]


def read_build(text: str) -> List[Target]:
  """The Python targets of a BUILD file. Raises `SyntaxError` if it does not parse as Python."""
  targets = []
  for node in ast.parse(text, 'BUILD').body:
    call = getattr(node, 'value', None)
    if isinstance(call, ast.Call) and getattr(call.func, 'id', None) in RULES:
      values = {k.arg: ast.literal_eval(k.value) for k in call.keywords if k.arg in ('name', 'srcs', 'deps')}
      targets.append(Target(call.func.id, values['name'], values.get('srcs', []), values.get('deps', [])))
  return targets


def build_problems(root: pathlib.Path, text: str) -> List[str]:
  """What is not true in a BUILD file, in words; empty if all is."""
  files = set(python_files(root))
  targets = read_build(text)
  problems = []
  for name, n in collections.Counter(t.name for t in targets).items():
    if n > 1:
      problems.append(f'{name}: {n} targets have this name')
  owners = collections.Counter(src for t in targets for src in t.srcs)
  problems += [f'{f}: in {owners[f]} targets, must be in one' for f in sorted(files) if owners[f] != 1]
  problems += [f'{src}: in a target, but there is no such file' for src in sorted(set(owners) - files)]
  for target in targets:
    if target.srcs != [target.name + '.py']:
      problems.append(f'{target.name}: must hold {target.name}.py alone, found {target.srcs}')
      continue
    path = target.srcs[0]
    if path not in files:
      continue
    if target.rule != rule_of(root, path):
      problems.append(f'{path}: must be a {rule_of(root, path)}, found {target.rule}')
    problems += [f'{path}: imports {name}, which is neither in the project, nor in THIRD_PARTY, nor Python\'s own'
                 for name in sorted(imports_of(root, path, files).unknown)]
    expected = expected_deps(root, path, files)
    problems += [f'{path}: imports {d}, which is not in its deps' for d in sorted(expected - set(target.deps))]
    problems += [f'{path}: does not import {d}, which is in its deps' for d in sorted(set(target.deps) - expected)]
    if len(set(target.deps)) != len(target.deps):
      problems.append(f'{path}: a dep appears twice')
  return problems


def cycle_problems(root: pathlib.Path) -> List[str]:
  """Imports in a circle, which Bazel refuses."""
  files = set(python_files(root))
  graph = {f: imports_of(root, f, files).files - {f} for f in files}
  # Files that import nothing of what is left are taken away, until only circles and their importers remain.
  while True:
    done = {f for f, deps in graph.items() if not deps & set(graph)}
    if not done:
      break
    graph = {f: deps for f, deps in graph.items() if f not in done}
  return [f'{f}: imports in a circle with, or by way of, {", ".join(sorted(deps & set(graph)))}'
          for f, deps in sorted(graph.items())]


def layer_of(path: str) -> int:
  """The index in `LAYERS` of a file's layer; raises `LookupError` for a file outside all of them."""
  prefixes = [(prefix, i) for i, (_, prefixes) in enumerate(LAYERS) for prefix in prefixes]
  fitting = [(len(prefix), i) for prefix, i in prefixes if path.startswith(prefix)]
  if not fitting:
    raise LookupError(path)
  return max(fitting)[1]


def layer_problems(root: pathlib.Path) -> List[str]:
  """Imports of a higher layer, and TFF in the mechanism."""
  files = set(python_files(root))
  problems = []
  for path in sorted(files):
    try:
      layer = layer_of(path)
    except LookupError:
      problems.append(f'{path}: in no layer; add it to LAYERS')
      continue
    imports = imports_of(root, path, files)
    for imported in sorted(imports.files):
      try:
        higher = layer_of(imported)
      except LookupError:
        continue  # Reported as itself.
      if higher > layer:
        problems.append(f'{path} ({LAYERS[layer][0]}) imports {imported} ({LAYERS[higher][0]}), a higher layer')
    if LAYERS[layer][0] == WITHOUT_TFF and 'tensorflow_federated' in imports.third_party:
      problems.append(f'{path} ({WITHOUT_TFF}) imports tensorflow_federated; list TFF computations in LAYERS')
  return problems


def write_build(root: pathlib.Path) -> str:
  """The text of a BUILD file for the project as it is."""
  files = python_files(root)
  binaries = [f':{target_name(f)}' for f in files if rule_of(root, f) == 'py_binary']
  presets = 'glob(["experiments/presets/*.flags"], allow_empty = True)'
  blocks = [HEADER]
  for path in files:
    rule = rule_of(root, path)
    deps = sorted(expected_deps(root, path, set(files)), key=lambda d: (d.startswith('@'), d))
    lines = [f'{rule}(', f'    name = "{target_name(path)}",']
    if path.startswith('tests/') and rule != 'py_test':
      lines.append('    testonly = True,')
    lines.append(f'    srcs = ["{path}"],')
    if rule == 'py_test':
      lines += [f'    args = ["{path}"],', '    main_module = "pytest",']
    if rule == 'py_binary':
      lines.append(f'    data = {presets},')
    elif rule == 'py_test' and path.startswith('tests/experiments/'):
      # These start the binaries, which no import tells.
      lines.append(f'    data = {presets} + [{", ".join(repr(b) for b in binaries)}],'.replace("'", '"'))
    if len(deps) == 1:
      lines.append(f'    deps = ["{deps[0]}"],')
    elif deps:
      lines += ['    deps = ['] + [f'        "{d}",' for d in deps] + ['    ],']
    blocks.append('\n'.join(lines + [')']) + '\n')
  return '\n'.join(blocks)


# Tests of this project.


def test_build_is_true():
  problems = build_problems(ROOT, (ROOT / 'BUILD').read_text(encoding='utf-8'))
  assert not problems, '\n'.join(problems + ['Run: python -m tests.build_test --write'])


def test_every_import_goes_down_the_layers():
  problems = layer_problems(ROOT)
  assert not problems, '\n'.join(problems)


def test_nothing_imports_in_a_circle():
  problems = cycle_problems(ROOT)
  assert not problems, '\n'.join(problems)


def test_every_layer_that_is_listed_exists():
  files = python_files(ROOT)
  for _, prefixes in LAYERS:
    for prefix in prefixes:
      assert prefix == 'conftest.py' or any(f.startswith(prefix) for f in files), f'LAYERS: there is no {prefix}'


def test_every_dependency_that_is_imported_is_required():
  files = set(python_files(ROOT))
  used = set().union(*(imports_of(ROOT, f, files).third_party for f in files))
  required = re.findall(r'^([A-Za-z0-9._-]+)', (ROOT / 'requirements.txt').read_text(encoding='utf-8'), re.MULTILINE)
  required = {re.sub('[-_.]+', '-', name).lower() for name in required}
  missing = {THIRD_PARTY[u] for u in used} - required
  assert not missing, f'requirements.txt lacks {sorted(missing)}'


# Tests of the checks: each on a small project with one mistake.

SMALL: Dict[str, str] = {
    'quap_tff/__init__.py': 'from quap_tff.learning_process import build\n',
    'quap_tff/budget.py': 'import math\nimport numpy as np\n',
    'quap_tff/learning_process.py': 'import tensorflow_federated as tff\nfrom quap_tff import budget\n',
    'data/__init__.py': 'from data.digits import Digits as D\n',
    'data/digits.py': 'def f():\n  from sklearn import datasets\nimport quap_tff\n',
    'experiments/__init__.py': '',
    'experiments/train.py': "import data\nfrom absl import app\nif __name__ == '__main__':\n  app.run(None)\n",
    'tests/__init__.py': '',
    'tests/conftest.py': 'import pytest\n',
    'tests/data/digits_test.py': 'from data import digits\nfrom google import protobuf\n',
}


def project(tmp_path: pathlib.Path, **changes: str) -> pathlib.Path:
  """Writes `SMALL`; a change's key is a path with `__` for `/` and without `.py`."""
  for path, text in {**SMALL, **{k.replace('__', '/') + '.py': v for k, v in changes.items()}}.items():
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).write_text(text)
  return tmp_path


def test_what_the_writer_writes_is_true(tmp_path):
  root = project(tmp_path)
  text = write_build(root)
  assert not build_problems(root, text) + layer_problems(root) + cycle_problems(root)
  targets = {t.name: t for t in read_build(text)}
  assert targets['experiments/train'] == (
      'py_binary', 'experiments/train', ['experiments/train.py'], [':data/__init__', '@pypi//absl_py'])
  assert targets['data/digits'].deps == [':quap_tff/__init__', '@pypi//scikit_learn']
  assert targets['tests/data/digits_test'].rule == 'py_test'
  assert targets['tests/data/digits_test'].deps == [':data/digits', ':tests/conftest', '@pypi//protobuf']


def test_an_import_that_is_not_in_the_deps_is_found(tmp_path):
  text = write_build(project(tmp_path))
  root = project(tmp_path, quap_tff__budget='import tqdm\nfrom data import digits\n')
  assert build_problems(root, text) == [
      'quap_tff/budget.py: imports :data/digits, which is not in its deps',
      'quap_tff/budget.py: imports @pypi//tqdm, which is not in its deps',
      'quap_tff/budget.py: does not import @pypi//numpy, which is in its deps',
  ]


def test_a_relative_import_is_an_import(tmp_path):
  text = write_build(project(tmp_path))
  project(tmp_path, data__digits='from sklearn import datasets\nimport quap_tff\nfrom ..quap_tff import budget\n')
  assert build_problems(tmp_path, text) == ['data/digits.py: imports :quap_tff/budget, which is not in its deps']


def test_a_file_in_no_target_or_in_two_is_found(tmp_path):
  root = project(tmp_path)
  text = write_build(root)
  project(tmp_path, quap_tff__clipping='')
  assert build_problems(root, text) == ['quap_tff/clipping.py: in 0 targets, must be in one']
  (root / 'quap_tff/clipping.py').unlink()
  twice = text + 'py_library(name = "other", srcs = ["quap_tff/budget.py"])\n'
  assert build_problems(root, twice) == [
      'quap_tff/budget.py: in 2 targets, must be in one',
      "other: must hold other.py alone, found ['quap_tff/budget.py']",
  ]
  (root / 'experiments/__init__.py').unlink()
  assert build_problems(root, text) == ['experiments/__init__.py: in a target, but there is no such file']


def test_a_wrong_rule_is_found(tmp_path):
  root = project(tmp_path)
  text = write_build(root).replace('py_binary(\n', 'py_library(\n')
  assert build_problems(root, text) == ['experiments/train.py: must be a py_binary, found py_library']


def test_an_import_of_nothing_known_is_found(tmp_path):
  root = project(tmp_path, quap_tff__budget='import jaxx\nfrom quap_tff.gone import x\n')
  assert [p.split(',')[0] for p in build_problems(root, write_build(root))] == [
      'quap_tff/budget.py: imports jaxx', 'quap_tff/budget.py: imports quap_tff.gone']


def test_an_import_of_a_higher_layer_is_found(tmp_path):
  assert layer_problems(project(tmp_path, quap_tff__budget='def f():\n  import experiments.train\n')) == [
      'quap_tff/budget.py (mechanism) imports experiments/train.py (experiments), a higher layer']
  assert layer_problems(project(tmp_path, quap_tff__budget='from quap_tff import learning_process\n')) == [
      'quap_tff/budget.py (mechanism) imports quap_tff/learning_process.py (TFF computations), a higher layer']
  assert layer_problems(project(tmp_path, data__digits='from experiments import train\n')) == [
      'data/digits.py (data) imports experiments/train.py (experiments), a higher layer']


def test_tff_in_the_mechanism_is_found(tmp_path):
  problem, = layer_problems(project(tmp_path, quap_tff__budget='import tensorflow_federated as tff\n'))
  assert problem.startswith('quap_tff/budget.py (mechanism) imports tensorflow_federated')


def test_a_file_in_no_layer_is_found(tmp_path):
  assert layer_problems(project(tmp_path, tools__x='')) == ['tools/x.py: in no layer; add it to LAYERS']


def test_a_circle_is_found(tmp_path):
  problems = cycle_problems(project(tmp_path, quap_tff__budget='from quap_tff import learning_process\n'))
  assert 'quap_tff/budget.py: imports in a circle with, or by way of, quap_tff/learning_process.py' in problems


def main():
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--write', action='store_true', help='rewrite BUILD from the imports')
  build = ROOT / 'BUILD'
  if parser.parse_args().write:
    build.write_text(write_build(ROOT), encoding='utf-8')
  problems = build_problems(ROOT, build.read_text(encoding='utf-8')) + layer_problems(ROOT) + cycle_problems(ROOT)
  print('\n'.join(problems) or 'BUILD is true and every import goes down the layers.')
  sys.exit(1 if problems else 0)


if __name__ == '__main__':
  main()
