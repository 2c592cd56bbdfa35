"""What the programs leave out when they import TFF is there as soon as somebody uses it."""

import subprocess
import sys
import types

import pytest

from experiments import fast_imports
from tests.experiments import harness

_MODULE = 'a_large_module'
_USER = 'its_user'
_FAILING_USER = 'its_failing_user'
_load = fast_imports.load  # Under this name tests/build_test.py does not look for the modules.

_PROGRAM = """
import sys
from experiments import fast_imports

fast_imports.load('experiments.results')
left_out = {'jax', 'tensorflow_probability', 'tensorflow_federated.python.core.environments.jax'}
assert not left_out & set(sys.modules), left_out & set(sys.modules)

import numpy as np
import tensorflow_federated as tff
from tensorflow_privacy.privacy.dp_query import discrete_gaussian_utils

add_one = tff.jax.computation(lambda x: x + 1, np.int32)
assert str(add_one.type_signature) == '(int32 -> int32)'
import jax
assert jax.numpy.add(1, 2) == 3
import tensorflow_federated.python.core.environments.jax as environment
assert environment.computation is tff.jax.computation
assert discrete_gaussian_utils.sample_discrete_gaussian(scale=3, shape=[4]).shape == (4,)
import tensorflow_probability.python.distributions
assert left_out <= set(sys.modules)
"""


def test_what_was_left_out_is_there_when_it_is_used():
  subprocess.run([sys.executable, '-c', _PROGRAM], cwd=harness.REPOSITORY, check=True, timeout=120)


@pytest.fixture(name='package')
def _package(tmp_path, monkeypatch):
  (tmp_path / f'{_MODULE}.py').write_text('value = 7\n')
  (tmp_path / f'{_USER}.py').write_text(f'import {_MODULE}\n')
  (tmp_path / f'{_FAILING_USER}.py').write_text(f'import {_MODULE}\nraise ValueError({_MODULE}.value)\n')
  monkeypatch.syspath_prepend(tmp_path)
  monkeypatch.setattr(fast_imports, '_PUT_OFF', (_MODULE,))
  yield
  for name in (_MODULE, _USER, _FAILING_USER):
    sys.modules.pop(name, None)


@pytest.mark.usefixtures('package')
class TestLoad:
  def test_puts_a_module_off_until_it_is_used(self):
    _load(_USER)
    assert _MODULE not in sys.modules
    assert sys.modules[_USER].a_large_module.value == 7
    assert sys.modules[_MODULE].__file__ is not None

  def test_a_module_used_while_another_is_imported_is_there(self):
    with pytest.raises(ValueError, match='7'):
      _load(_FAILING_USER)
    assert sys.modules[_MODULE].__file__ is not None

  def test_keeps_what_was_imported_before(self, monkeypatch):
    before = types.ModuleType(_MODULE)
    monkeypatch.setitem(sys.modules, _MODULE, before)
    monkeypatch.setattr(fast_imports, '_LEFT_OUT', _MODULE)
    _load(_USER)
    assert sys.modules[_USER].a_large_module is before
