"""Tests of what `import quap_tff` offers: the same to programs and to type checkers, and plans from a few numbers."""

import ast
import dataclasses
import importlib
import pathlib
import sys

import pytest

import quap_tff
from quap_tff.mechanisms.certified import config as certified_config
from quap_tff.mechanisms.certified import weight_rules
from quap_tff.mechanisms.held import config as held_config
from quap_tff.mechanisms.parts import budgets
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.parts import postprocessing
from quap_tff.mechanisms.quap import config as quap_config
from tests import processes

ROOT = pathlib.Path(__file__).absolute().parents[2]
# Packages that import what they offer when it is asked for.
LAZY = sorted(
  path.parent for path in (ROOT / 'quap_tff').rglob('__init__.py') if '= lazy.exports(' in path.read_text('utf-8')
)
COHORTS = [[0, 1, 2], [1, 2, 3], [0, 1, 3]]


def _offered(stub):
  """From a stub, each name and the module or the object that it is."""
  found = {}
  for node in ast.parse(stub.read_text('utf-8')).body:
    for alias in node.names if isinstance(node, ast.ImportFrom) else ():
      assert alias.name == alias.asname, f'{stub}: a checker offers only what is imported "as" its own name.'
      found[alias.name] = node.module
  return found


def _defined(module):
  """The names that a module defines at its top."""
  found = set()
  for node in module.body:
    found.add(getattr(node, 'name', None))
    found.update(target.id for target in getattr(node, 'targets', ()) if isinstance(target, ast.Name))
  return found


@pytest.mark.parametrize('folder', LAZY, ids=lambda folder: folder.relative_to(ROOT).as_posix())
def test_checkers_see_what_programs_see(folder):
  package = importlib.import_module('.'.join(folder.relative_to(ROOT).parts))
  offered = _offered(folder / '__init__.pyi')
  assert sorted(offered) == dir(package)
  for name, module in offered.items():
    path = ROOT.joinpath(*module.split('.'), name)
    is_module = path.is_dir() or path.with_suffix('.py').exists()
    if not is_module:
      source = ROOT.joinpath(*module.split('.')).with_suffix('.py').read_text('utf-8')
      assert name in _defined(ast.parse(source)), f'{folder}: {module} defines no {name}.'


def test_the_door_is_narrow():
  assert len(dir(quap_tff)) <= 17


@pytest.mark.slow
@pytest.mark.thorough
def test_mypy_knows_the_names_and_no_others(tmp_path):
  program = tmp_path / 'program.py'
  program.write_text(
    'import quap_tff\nreveal_type(quap_tff.Plan)\nreveal_type(quap_tff.certified)\nquap_tff.nonsense\n'
  )
  arguments = ['--ignore-missing-imports', f'--cache-dir={ROOT / ".mypy_cache"}', str(program)]
  done = processes.run([sys.executable, '-m', 'mypy', *arguments], cwd=ROOT)
  lines = done.stdout.splitlines()
  assert 'quap_tff.plans.plan.Plan"' in lines[0], done.stdout
  assert '-> quap_tff.plans.plan.Plan"' in lines[1]
  assert 'Module has no attribute "nonsense"' in lines[2]


class TestQuap:
  def test_is_the_documents_configuration(self):
    plan = quap_tff.quap(num_clients=100, rounds=50, epsilon=2.0, delta=1e-6)
    assert plan.config == quap_config.QuapConfig(
      100, budgets.BudgetConfig(2.0, 50), noise=quap_config.NoiseConfig(delta=1e-6)
    )
    assert 'No finite ε' in plan.protection.text

  def test_options_go_where_they_belong(self):
    plan = quap_tff.quap(num_clients=9, rounds=5, epsilon=1.0, clip=clip_rules.Fixed(0.5), client_metrics=False)
    assert plan.config.clip == clip_rules.Fixed(0.5) and not plan.client_metrics


class TestCertified:
  @pytest.mark.parametrize(
    'trust, kind', [('server', certified_config.CertifiedConfig), ('secure_sum', held_config.HeldConfig)]
  )
  def test_is_the_plan_of_a_configuration(self, trust, kind):
    plan = quap_tff.certified(num_clients=4, epsilon=3.0, delta=1e-5, schedule=COHORTS, trust=trust)
    same = quap_tff.Plan.certified(kind(num_clients=4, epsilon=3.0, delta=1e-5), COHORTS)
    assert plan.fingerprint == same.fingerprint and plan.averaging == same.averaging

  def test_options_go_where_they_belong(self):
    plan = quap_tff.certified(
      num_clients=4,
      epsilon=3.0,
      delta=1e-5,
      expected=COHORTS,
      weights=weight_rules.UniformWeights(),
      averaging=postprocessing.Tail(2),
    )
    assert plan.config.weights == weight_rules.UniformWeights() and not plan.schedule
    assert plan.averaging == postprocessing.Tail(2)


@pytest.mark.parametrize(
  'make, name, words',
  [
    (lambda **own: quap_tff.quap(num_clients=4, rounds=3, epsilon=1.0, **own), 'clipp', "mean 'clip'"),
    (
      lambda **own: quap_tff.certified(num_clients=4, epsilon=1.0, delta=1e-5, schedule=COHORTS, **own),
      'weight',
      "mean 'weights'",
    ),
    (lambda **own: quap_tff.quap(num_clients=4, rounds=3, epsilon=1.0, **own), 'mechanism', 'Unknown option'),
  ],
)
def test_an_option_that_does_not_exist(make, name, words):
  with pytest.raises(TypeError, match=words):
    make(**{name: 1})


def test_every_option_of_a_plan_is_taken():
  options = {
    field.name: getattr(quap_tff.quap(num_clients=4, rounds=3, epsilon=1.0), field.name)
    for field in dataclasses.fields(quap_tff.Plan)
    if field.name not in ('mechanism', 'colluders', 'attendance')
  }
  assert quap_tff.quap(num_clients=4, rounds=3, epsilon=1.0, **options).client_metrics
