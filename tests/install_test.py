"""Tests of the installed library: what `make setup` and `pip install .` install, and what a missing package says."""

import gc
import os
import pathlib
import platform
import re
import shutil
import sys
import zipfile

from packaging import requirements
import pytest

from quap_tff.common import lazy
from tests import light
from tests import processes

ROOT = pathlib.Path(__file__).absolute().parents[1]
PINS = dict(re.findall(r'^([\w.-]+)==([\w.]+)', (ROOT / 'requirements.txt').read_text(encoding='utf-8'), re.MULTILINE))


@pytest.fixture(scope='module', name='wheel')
def _wheel(tmp_path_factory):
  """The wheel that `pip install .` makes, built from a copy of the sources."""
  pytest.importorskip('pip', reason='Bazel runs tests in an environment without pip.')
  folder = tmp_path_factory.mktemp('wheel')
  shutil.copytree(ROOT / 'quap_tff', folder / 'source' / 'quap_tff', ignore=shutil.ignore_patterns('__pycache__'))
  for name in ('pyproject.toml', 'README.md', 'LICENSE'):
    shutil.copy(ROOT / name, folder / 'source')
  options = ('--quiet', '--no-deps', '--no-index', '--no-build-isolation')
  done = processes.run([sys.executable, '-m', 'pip', 'wheel', *options, '--wheel-dir', folder, folder / 'source'])
  assert done.returncode == 0, done.stderr
  return next(folder.glob('quap_tff-*.whl'))


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.skipif(shutil.which('make') is None, reason='There is no make.')
def test_make_setup_lets_the_project_run_from_any_folder(tmp_path):
  project, elsewhere = tmp_path / 'a project', tmp_path / 'elsewhere'
  elsewhere.mkdir()
  for name in ('quap_tff', 'data', 'experiments'):
    (project / name).mkdir(parents=True)
    (project / name / '__init__.py').touch()
  shutil.copy(ROOT / 'Makefile', project)
  (project / 'requirements.txt').touch()
  processes.run([sys.executable, '-m', 'venv', '--without-pip', project / '.venv']).check_returncode()
  (project / '.venv' / '.ready').touch()  # All packages are there.
  environment = {name: value for name, value in os.environ.items() if name not in ('PYTHONPATH', 'MAKEFLAGS')}
  processes.run(['make', 'setup'], cwd=project, env=environment).check_returncode()
  moved = project.rename(tmp_path / 'moved')
  code = 'import data, experiments, quap_tff; print(quap_tff.__file__)'
  python = [str(moved / '.venv' / 'bin' / 'python'), '-c', code]
  done = processes.run(python, cwd=elsewhere, env=environment)
  assert done.stdout.strip() == str(moved / 'quap_tff' / '__init__.py'), done.stderr


@pytest.mark.slow
@pytest.mark.thorough
class TestWheel:
  def test_holds_every_file_of_the_library_and_nothing_else(self, wheel):
    names = [name for name in zipfile.ZipFile(wheel).namelist() if '.dist-info/' not in name]
    files = [p for p in (ROOT / 'quap_tff').rglob('*') if p.is_file() and p.suffix != '.pyc']
    assert sorted(names) == sorted(p.relative_to(ROOT).as_posix() for p in files)

  def test_the_pinned_environment_meets_its_requirements(self, wheel):
    archive = zipfile.ZipFile(wheel)
    metadata = archive.read(next(n for n in archive.namelist() if n.endswith('METADATA'))).decode()
    needed = [requirements.Requirement(text) for text in re.findall('^Requires-Dist: (.*)$', metadata, re.MULTILINE)]
    assert {'numpy', 'tensorflow-federated'} <= {one.name for one in needed}
    for one in needed:
      if 'extra == "flower"' not in str(one.marker):  # Its environment has no TFF.
        assert one.specifier.contains(PINS[one.name]), one

  def test_has_the_license(self, wheel):
    archive = zipfile.ZipFile(wheel)
    read = lambda end: archive.read(next(name for name in archive.namelist() if name.endswith(end))).decode()
    assert 'License: Apache-2.0\n' in read('/METADATA')
    text = (ROOT / 'LICENSE').read_text(encoding='utf-8')
    assert read('/LICENSE') == text and 'The quap_tff authors' in text.splitlines()[0]
    assert 'license: Apache-2.0\n' in (ROOT / 'CITATION.cff').read_text(encoding='utf-8')

  def test_works_from_another_folder(self, wheel, tmp_path):
    code = 'import quap_tff; print(quap_tff.Plan(quap_tff.QuapConfig(num_clients=3)).num_clients, quap_tff.__file__)'
    environment = {**os.environ, 'PYTHONPATH': os.pathsep.join([str(wheel), *_without_sources()])}
    done = processes.run([sys.executable, '-c', code], cwd=tmp_path, env=environment)
    assert done.stdout == f'3 {wheel}/quap_tff/__init__.py\n', done.stderr


def _without_sources():
  return [path for path in sys.path if path and not os.path.isdir(os.path.join(path, 'quap_tff'))]


_WITHOUT_TENSORFLOW = 'import sys; sys.modules.update(tensorflow=None, tensorflow_federated=None)'


def _child(code):
  environment = {**os.environ, 'PYTHONPATH': os.pathsep.join([str(ROOT), *sys.path])}
  return processes.run([sys.executable, '-c', code], cwd=ROOT, env=environment)


@pytest.mark.slow
@pytest.mark.thorough
def test_essential_tests_are_imported_without_tensorflow():
  done = _child(f"""{_WITHOUT_TENSORFLOW}
import os, pytest
os.environ['PYTEST_DISABLE_PLUGIN_AUTOLOAD'] = '1'
sys.exit(pytest.main(['--collect-only', '-qq', '-pno:cacheprovider', *{light.ESSENTIAL}]))
""")
  assert done.returncode == 0, done.stdout + done.stderr
  assert 'asks for' not in done.stdout and len(re.findall('_test.py', done.stdout)) >= len(light.ESSENTIAL)


def test_the_readme_has_the_overrides_that_uv_needs():
  [overrides] = re.findall('^override-dependencies = .*$', (ROOT / 'pyproject.toml').read_text(encoding='utf-8'), re.M)
  assert f'[tool.uv]\n{overrides}\n[tool.uv.sources]\n' in (ROOT / 'README.md').read_text(encoding='utf-8')


class TestMissingPackage:
  # In the order in which they are imported, so that one process can miss one after the other.
  _MISSING = {'tensorflow': 'tensorflow', 'tensorflow_federated': 'tensorflow-federated', 'tree': 'dm-tree'}

  @pytest.mark.slow
  @pytest.mark.thorough
  def test_says_which_and_how_to_install_it(self):
    pytest.importorskip('tensorflow_federated')
    code = f"""
import sys
import quap_tff
for name in {list(self._MISSING)}:
  assert name not in sys.modules
  sys.modules[name] = None
  try:
    quap_tff.with_ids
  except quap_tff.common.lazy.MissingPackageError as error:
    print(error)
  del sys.modules[name]
"""
    done = _child(code)
    said = done.stdout.splitlines()
    assert len(said) == len(self._MISSING), done.stderr
    for line, package in zip(said, self._MISSING.values()):
      assert line.startswith(f'quap_tff needs the package {package}, which is not')
      assert line.endswith('pip install --no-deps -r requirements.txt')

  @pytest.mark.slow
  @pytest.mark.thorough
  def test_is_no_error_for_those_who_look_around(self):
    done = _child(f"""{_WITHOUT_TENSORFLOW}
import inspect, pydoc
import quap_tff
found = dict(inspect.getmembers(quap_tff))
print('QuapConfig' in found, 'with_ids' in found, hasattr(quap_tff, 'with_ids'))
for module in (quap_tff, quap_tff.plans.scheduled):
  pydoc.render_doc(module)
inspect.unwrap(quap_tff.common.lazy.tf)
assert not hasattr(quap_tff.common.lazy.tf, '__bases__')
try:
  from quap_tff import with_ids
except ImportError as error:
  print(error)
""")
    assert not done.stderr
    found, said = done.stdout.splitlines()
    assert found == 'True False False' and said.startswith('quap_tff needs the package tensorflow, ')

  def test_is_an_import_error_that_names_the_module(self, monkeypatch):
    monkeypatch.setitem(sys.modules, 'tensorflow_federated', None)
    with pytest.raises(ImportError, match='the package tensorflow-federated') as caught:
      lazy.tff.learning
    assert caught.value.name == 'tensorflow_federated'

  def test_on_a_newer_python_says_which_it_is_and_which_training_needs(self, monkeypatch):
    monkeypatch.setitem(sys.modules, 'tensorflow_federated', None)
    monkeypatch.setattr(lazy, '_NEWEST_PYTHON', (3, 9))
    with pytest.raises(ImportError, match='the package tensorflow-federated') as caught:
      lazy.tff.learning
    said = str(caught.value)
    assert f'This is Python {platform.python_version()}, and training needs Python 3.10 or 3.11' in said
    assert 'jaxlib' not in said

  def test_a_module_of_the_library_that_is_missing_is_not_a_missing_package(self):
    load = lazy.load  # Under this name tests/build_test.py does not look for the module.
    with pytest.raises(ModuleNotFoundError) as caught:
      load('quap_tff.gone')
    assert not isinstance(caught.value, lazy.MissingPackageError)


class TestLoad:
  @pytest.mark.parametrize('collects', [False, True])
  def test_collects_no_garbage_meanwhile_and_then_as_before(self, collects, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(tmp_path)
    name = f'seen_{collects}'.lower()
    (tmp_path / f'{name}.py').write_text('import gc\nCOLLECTS = gc.isenabled()\n')
    load, was = lazy.load, gc.isenabled()
    try:
      gc.enable() if collects else gc.disable()
      assert not load(name).COLLECTS and gc.isenabled() == collects
    finally:
      gc.enable() if was else gc.disable()
