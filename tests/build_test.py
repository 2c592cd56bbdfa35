"""Compares `BUILD`, which declares the layers, with what the files import. It imports none of them."""

import ast
import collections
import functools
import graphlib
import importlib.util
import pathlib
import re
import sys
from typing import Dict, List, NamedTuple, Optional, Tuple

import pytest

ROOT = pathlib.Path(__file__).absolute().parents[1]

# These targets depend neither on TFF nor on targets other than these.
WITHOUT_TFF = ('mechanism', 'accounting')
TFF = '@pypi//tensorflow_federated'
PEERS = 'experiments/peers/'

# Import name -> distribution, where they differ.
DISTRIBUTIONS = {
  'PIL': 'pillow',
  'absl': 'absl-py',
  'google.protobuf': 'protobuf',
  'grpc': 'grpcio',
  'sklearn': 'scikit-learn',
  'tree': 'dm-tree',
  'xdist': 'pytest-xdist',
}


class Target(NamedTuple):
  rule: str
  main_module: str
  srcs: List[str]
  deps: List[str]
  statement: int  # The number of its statement in BUILD; a comprehension makes several targets.


class Import(NamedTuple):
  kind: str  # 'file', 'third party', or 'missing' for a module of the project that has no file.
  name: str  # A path, a distribution or a module.
  lazy: bool = False


def read_build(root: pathlib.Path) -> Dict[str, Target]:
  """The targets in BUILD by name. BUILD is run as Python, which reads it as Bazel does."""
  targets = {}

  def glob(include, exclude=()):
    found, excluded = (
      {p.relative_to(root).as_posix() for pattern in patterns for p in root.glob(pattern)}
      for patterns in (include, exclude)
    )
    return sorted(found - excluded)

  def add(rule, name, main_module='', srcs=(), deps=(), **_):
    assert name not in targets, f'BUILD has two targets named {name}'
    targets[name] = Target(rule, main_module, list(srcs), list(deps), statement)

  names = {rule: functools.partial(add, rule) for rule in ('py_binary', 'py_library', 'py_test')}
  names.update(glob=glob, load=lambda *_: None, package=lambda **_: None, __builtins__={})
  for statement, node in enumerate(ast.parse((root / 'BUILD').read_text(encoding='utf-8')).body):
    exec(compile(ast.Module([node], []), 'BUILD', 'exec'), names)  # pylint: disable=exec-used
  return targets


def distribution(module: str) -> str:
  """The distribution that a third-party module comes from."""
  names = module.split('.')
  return DISTRIBUTIONS.get('.'.join(names[:2])) or DISTRIBUTIONS.get(names[0]) or names[0].replace('_', '-')


def is_standard(name: str) -> bool:
  if hasattr(sys, 'stdlib_module_names'):
    return name in sys.stdlib_module_names
  spec = importlib.util.find_spec(name)  # Python 3.9.
  return spec is not None and 'site-packages' not in (spec.origin or '')


class Project:
  """The Python files of a folder, what they import, and the targets in its BUILD."""

  def __init__(self, root: pathlib.Path):
    # Not the project's: hidden folders, what `pip install .` leaves in build/, and Bazel's bazel-*/ and external/.
    tops = [p for p in root.iterdir() if not re.match(r'\.|bazel-|(build|external)$', p.name)]
    paths = [p for top in tops for p in (top.rglob('*.py') if top.is_dir() else [top]) if p.suffix == '.py']
    files = sorted(p.relative_to(root).as_posix() for p in paths)
    # Programs for environments of their own: what they import is not installed here, and nothing may import them.
    self.files = [f for f in files if not f.startswith(PEERS)]
    self._trees = {f: ast.parse((root / f).read_text(encoding='utf-8'), f) for f in self.files}
    # quap_tff/lazy.py says `tf = module('tensorflow')`. Whoever imports `tf` from it imports TensorFlow.
    self._lazy_names = {
      node.targets[0].id: node.value.args[0].value
      for node in self._trees['quap_tff/lazy.py'].body
      if isinstance(node, ast.Assign) and getattr(getattr(node.value, 'func', None), 'id', '') == 'module'
    }
    self.imports = {f: self._imports_of(f) for f in self.files}
    self.targets = read_build(root)
    self.owners = {f: [] for f in self.files}  # For each file the names of its targets.
    for name, target in self.targets.items():
      for src in target.srcs:
        self.owners.setdefault(src, []).append(name)
    required = re.findall(r'^([A-Za-z0-9._-]+)', (root / 'requirements.txt').read_text(encoding='utf-8'), re.MULTILINE)
    self.required = {re.sub('[-_.]+', '-', name).lower() for name in required}

  def _imports_of(self, path: str) -> List[Import]:
    """All imports in a file, in functions too. `from package import module` is the module, not the package."""
    found = set()
    for node in ast.walk(self._trees[path]):
      modules = []
      if isinstance(node, ast.Import):
        found |= {self._resolve(alias.name) for alias in node.names}
      elif isinstance(node, ast.ImportFrom):
        base = path.split('/')[: -node.level] if node.level else []
        module = '.'.join(base + ([node.module] if node.module else []))
        found |= {self._resolve(module, alias.name) for alias in node.names}
        if module == 'quap_tff.lazy':
          modules = [self._lazy_names[alias.name] for alias in node.names if alias.name in self._lazy_names]
      elif (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and re.fullmatch(r'_?lazy\.(module|load|exports)|fast_imports\.load', ast.unparse(node.func))
        and
        # It passes on a name that its callers give, and these are looked at.
        not (path == 'experiments/fast_imports.py' and isinstance(node.args[-1], ast.Name))
      ):
        argument = ast.literal_eval(node.args[-1])
        package = '.'.join(path.split('/')[:-1])
        modules = [argument] if isinstance(argument, str) else [f'{package}.{name}' for name in argument]
      found |= {self._resolve(module, lazy=True) for module in modules}
    return sorted(found - {None})

  def _resolve(self, module: str, name: str = '', lazy: bool = False) -> Optional[Import]:
    """What `import module` or `from module import name` imports; `None` for Python's own library."""
    for path in (f'{module}.{name}'.replace('.', '/'), module.replace('.', '/')):
      for file in (f'{path}.py', f'{path}/__init__.py'):
        if file in self.files:
          return Import('file', file, lazy)
    top = module.split('.')[0]
    if any(f.split('/')[0] == top for f in self.files):
      return Import('missing', module, lazy)
    return None if is_standard(top) else Import('third party', distribution(f'{module}.{name}'), lazy)

  def _rule_of(self, path: str) -> Tuple[str, str]:
    """The rule that a file must be in, and its `main_module`."""
    if path.endswith('_test.py'):
      return 'py_test', 'pytest'
    is_main = any(
      isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'" for node in self._trees[path].body
    )
    if is_main and path.startswith('experiments/'):
      return 'py_binary', path[: -len('.py')].replace('/', '.')
    return 'py_library', ''

  def _umbrella_of(self, path: str) -> str:
    """The target without files that stands for all that a package offers; '' if there is none."""
    package, _, name = path.rpartition('/')
    return package if name == '__init__.py' and package in self.targets and not self.targets[package].srcs else ''

  def needed(self) -> Dict[str, Dict[str, str]]:
    """For each target the deps that it must list, each with an import that shows why."""
    needed = {name: {} for name in self.targets}
    for path in (f for f in self.files if self.owners[f]):
      imports = list(self.imports[path])
      if path.endswith('_test.py'):  # It is run by pytest, which imports the conftest.py of each folder above.
        folders = [path.rsplit('/', n + 1)[0] for n in range(path.count('/'))]
        imports += [Import('file', f'{f}/conftest.py') for f in folders if f'{f}/conftest.py' in self.files]
        imports.append(Import('third party', 'pytest'))
      for kind, name, lazy in imports:
        # What a package offers lazily belongs to its umbrella, not to its __init__.py.
        target = lazy and self._umbrella_of(path) or self.owners[path][0]
        label = '@pypi//' + name.replace('-', '_')
        if kind == 'file':
          label = ':' + (self._umbrella_of(name) or ''.join(self.owners[name][:1]))
        if kind != 'missing' and label not in (':', ':' + target):
          needed[target].setdefault(label, f'{path} imports {name}')
    return needed

  def file_problems(self) -> List[str]:
    """Files in no target, in several or under the wrong rule, and imports of what is not there."""
    problems = [
      f'{src} is in :{names[0]}, but there is no such file'
      for src, names in self.owners.items()
      if src not in self.files
    ]
    for path in self.files:
      for kind, name, _ in self.imports[path]:
        if kind == 'missing':
          problems.append(f'{path} imports {name}, but there is no such file')
        if kind == 'third party' and name not in self.required:
          problems.append(f'{path} imports {name}, which is not in requirements.txt')
      owners = [self.targets[name] for name in self.owners[path]]
      if len(owners) != 1:
        problems.append(f'{path} is in {len(owners)} targets; it must be in one')
      elif (owners[0].rule, owners[0].main_module) != self._rule_of(path):
        problems.append('{} must be in a {} with main_module = {!r}'.format(path, *self._rule_of(path)))
    return problems

  def dep_problems(self) -> List[str]:
    """Deps that are missing, that are not used, or that lead to TFF from where they must not."""
    needed = self.needed()
    problems = [
      f'{why}, but :{name} does not depend on {label}'
      for name, target in self.targets.items()
      for label, why in needed[name].items()
      if label not in target.deps
    ]
    sharing = collections.defaultdict(list)  # The targets of one comprehension may share their deps.
    for name, target in self.targets.items():
      sharing[target.statement, tuple(target.deps)].append(name)
    problems += [
      f':{names[0]} depends on {label}, which it does not import'
      for (_, deps), names in sharing.items()
      for label in deps
      if not any(label in needed[name] for name in names)
    ]
    problems += [
      f':{name} must not depend on {label}'
      for name in WITHOUT_TFF
      for label in self.targets[name].deps
      if label == TFF or label[0] == ':' and label[1:] not in WITHOUT_TFF
    ]
    return problems

  def circle_problems(self) -> List[str]:
    """Targets that depend, and files that import, in a circle. A lazy import closes no circle of files."""
    targets = {':' + name: set(target.deps) for name, target in self.targets.items()}
    files = {f: {i.name for i in self.imports[f] if i.kind == 'file' and not i.lazy} - {f} for f in self.files}
    problems = []
    for graph in (targets, files):
      try:
        graphlib.TopologicalSorter(graph).prepare()
      except graphlib.CycleError as error:
        problems.append('In a circle: ' + ', '.join(sorted(set(error.args[1]))))
    return problems

  def problems(self) -> List[str]:
    return self.file_problems() + self.dep_problems() + self.circle_problems()


def test_build_says_what_the_files_import():
  problems = Project(ROOT).problems()
  assert not problems, '\n'.join(problems)


# Tests of the checks, each on a small project with one mistake.

SMALL = {
  'BUILD': """
load("@rules_python//python:defs.bzl", "py_binary", "py_library", "py_test")
package(default_visibility = ["//visibility:public"])
TFF = ["quap_tff/process.py"]
py_library(name = "mechanism", srcs = glob(["quap_tff/*.py"], exclude = TFF), deps = ["@pypi//numpy"])
py_library(name = "accounting", srcs = glob(["quap_tff/accounting/*.py"]), deps = [":mechanism"])
py_library(name = "tff", srcs = TFF, deps = [":mechanism", "@pypi//tensorflow_federated"])
py_library(name = "quap_tff", deps = [":mechanism", ":tff"])
py_library(name = "data", srcs = glob(["data/**/*.py"]), deps = [":mechanism", ":quap_tff", "@pypi//scikit_learn"])
[py_binary(
    name = "experiments/" + name,
    srcs = ["experiments/" + name + ".py"],
    main_module = "experiments." + name,
    deps = deps,
) for name, deps in {"train": [":data", "@pypi//absl_py"]}.items()]
py_library(name = "tests", testonly = True, srcs = ["tests/conftest.py"], deps = [":mechanism"])
[py_test(
    name = test[:-3],
    srcs = [test],
    args = [test],
    main_module = "pytest",
    deps = [":data", ":tests", "@pypi//protobuf", "@pypi//pytest"],
) for test in glob(["tests/**/*_test.py"])]
""",
  'requirements.txt': 'absl-py==1\nnumpy==1\nprotobuf==4\npytest==8\nscikit_learn==1 ; x\ntensorflow-federated==0\n',
  'quap_tff/__init__.py': "from quap_tff import lazy\nx = lazy.exports(__name__, {'budget': [], 'process': ['f']})\n",
  'quap_tff/lazy.py': "tff = module('tensorflow_federated')\n",
  'quap_tff/budget.py': 'import math\nimport numpy as np\n',
  'quap_tff/process.py': 'from quap_tff.lazy import tff\nfrom quap_tff import budget\n',
  'quap_tff/accounting/__init__.py': 'from quap_tff import budget\n',
  'data/__init__.py': "from quap_tff import lazy as _lazy\nx = _lazy.module('data.digits')\n",
  'data/digits.py': 'import data\ndef f():\n  from sklearn import datasets\nimport quap_tff\n',
  'experiments/train.py': "import data\nfrom absl import app\nif __name__ == '__main__':\n  app.run(None)\n",
  'experiments/peers/compare.py': 'import torch\n',
  'tests/conftest.py': 'from quap_tff import budget\n',
  'tests/data/digits_test.py': 'from data import digits\n',
  'tests/data/more_test.py': 'from google import protobuf\n',
}


def project(root: pathlib.Path, path: str = 'BUILD', old: str = '', new: str = '') -> Project:
  """`SMALL` with one change: in the file at `path`, which may be new, `new` takes the place of `old`."""
  for file, text in {path: '', **SMALL}.items():
    assert file != path or old in text
    (root / file).parent.mkdir(parents=True, exist_ok=True)
    (root / file).write_text(text.replace(old, new, 1) if file == path else text)
  return Project(root)


def test_the_small_project_is_right(tmp_path):
  assert not project(tmp_path).problems()


@pytest.mark.parametrize(
  'path, old, new, problem',
  [
    # Imports that the deps do not list.
    (
      'quap_tff/budget.py',
      'math',
      'absl',
      'quap_tff/budget.py imports absl-py, but :mechanism does not depend on @pypi//absl_py',
    ),
    (
      'quap_tff/budget.py',
      'import math',
      'def f():\n  from data import digits',
      'quap_tff/budget.py imports data/digits.py, but :mechanism does not depend on :data',
    ),
    (
      'quap_tff/budget.py',
      'math',
      'quap_tff',
      'quap_tff/budget.py imports quap_tff/__init__.py, but :mechanism does not depend on :quap_tff',
    ),
    (
      'quap_tff/accounting/__init__.py',
      '',
      'from quap_tff.lazy import tff\n',
      'quap_tff/accounting/__init__.py imports tensorflow-federated, but :accounting does not depend on ' + TFF,
    ),
    (
      'experiments/train.py',
      'import data',
      "fast_imports.load('gone')",
      'experiments/train.py imports gone, which is not in requirements.txt',
    ),
    (
      'data/__init__.py',
      'data.digits',
      'quap_tff.process',
      'data/__init__.py imports quap_tff/process.py, but :data does not depend on :tff',
    ),
    (
      'BUILD',
      '[":mechanism", ":tff"]',
      '[":mechanism"]',
      'quap_tff/__init__.py imports quap_tff/process.py, but :quap_tff does not depend on :tff',
    ),
    (
      'BUILD',
      '":tests", ',
      '',
      'tests/data/digits_test.py imports tests/conftest.py, but :tests/data/digits_test does not depend on :tests',
    ),
    # Deps that are not imported, or must not be.
    ('quap_tff/budget.py', 'import numpy as np', '', ':mechanism depends on @pypi//numpy, which it does not import'),
    (
      'tests/data/more_test.py',
      'from google import protobuf',
      '',
      ':tests/data/digits_test depends on @pypi//protobuf, which it does not import',
    ),
    ('BUILD', '["@pypi//numpy"]', f'["@pypi//numpy", "{TFF}"]', f':mechanism must not depend on {TFF}'),
    # Imports of what is not there.
    (
      'data/digits.py',
      'import data',
      'from .gone import x',
      'data/digits.py imports data.gone, but there is no such file',
    ),
    ('requirements.txt', 'numpy', 'numpie', 'quap_tff/budget.py imports numpy, which is not in requirements.txt'),
    # The programs of peers are not part of the project.
    (
      'experiments/train.py',
      'import data',
      'from experiments.peers import compare',
      'experiments/train.py imports experiments.peers, but there is no such file',
    ),
    # Files in the wrong place.
    ('tools/x.py', '', '', 'tools/x.py is in 0 targets; it must be in one'),
    ('BUILD', 'exclude = TFF', '', 'quap_tff/process.py is in 2 targets; it must be in one'),
    ('BUILD', 'TFF)', 'TFF) + ["quap_tff/gone.py"]', 'quap_tff/gone.py is in :mechanism, but there is no such file'),
    (
      'BUILD',
      '[py_binary(',
      '[py_library(',
      "experiments/train.py must be in a py_binary with main_module = 'experiments.train'",
    ),
    ('BUILD', '"pytest",', '"unittest",', "tests/data/digits_test.py must be in a py_test with main_module = 'pytest'"),
    # Circles.
    ('BUILD', '["@pypi//numpy"]', '["@pypi//numpy", ":tff"]', 'In a circle: :mechanism, :tff'),
    ('quap_tff/budget.py', 'math', 'quap_tff.process', 'In a circle: quap_tff/budget.py, quap_tff/process.py'),
  ],
)
def test_a_mistake_is_found(tmp_path, path, old, new, problem):
  assert problem in project(tmp_path, path, old, new).problems()
