"""The kernels that TensorFlow computes with."""

import io
import sys

import pytest

from quap_tff.common import kernels
from quap_tff.common import lazy
from tests import processes

_OLD = 'fpu vme sse4_2 avx avx2 fma'


@pytest.mark.parametrize(
  'cpuinfo, emulates',
  [
    (f'processor\t: 0\nflags\t\t: {_OLD}\nvmx flags\t: ept\n\nprocessor\t: 1\nflags\t\t: {_OLD}\n', True),
    (f'flags\t\t: {_OLD} avx512f avx512_vnni\n', True),
    (f'flags\t\t: {_OLD} avx512f avx512_bf16\n', False),
    (f'flags\t\t: {_OLD} amx_bf16 amx_tile\n', False),
    ('Features\t: fp asimd sve\n', True),
    ('Features\t: fp asimd sve bf16\n', False),
    # Nothing is known.
    ('', False),
    ('processor\t: 0\ncpu\t\t: POWER9\n', False),
  ],
)
def test_emulates_bfloat16(cpuinfo, emulates):
  assert kernels.emulates_bfloat16(cpuinfo) == emulates


def test_emulation_is_asked_of_this_machine():
  try:
    with open('/proc/cpuinfo', encoding='utf-8') as file:
      own = file.read()
  except OSError:
    own = ''
  assert kernels.emulates_bfloat16() == kernels.emulates_bfloat16(own)


def test_a_processor_that_onednn_may_not_use_in_full_stands_in_for_a_narrower_one(monkeypatch):
  wide = f'flags\t\t: {_OLD} avx512f avx512_bf16 amx_tile\n'
  monkeypatch.setattr('builtins.open', lambda *_, **__: io.StringIO(wide))
  monkeypatch.delenv('ONEDNN_MAX_CPU_ISA', raising=False)
  assert kernels.starts_onednn() and not kernels.emulates_bfloat16()
  monkeypatch.setenv('ONEDNN_MAX_CPU_ISA', 'AVX512_CORE_BF16')
  assert kernels.starts_onednn() and not kernels.emulates_bfloat16()
  monkeypatch.setenv('ONEDNN_MAX_CPU_ISA', 'avx2')
  assert not kernels.starts_onednn() and kernels.emulates_bfloat16()
  assert kernels.instructions() == set(_OLD.split())


def test_onednn_starts_by_itself_on_some_processors():
  assert kernels.starts_onednn(f'flags\t\t: {_OLD} avx512f avx512_vnni\n')
  assert not kernels.starts_onednn(f'flags\t\t: {_OLD} avx512f\n')


def _printed(code: str, given: dict[str, str]) -> str:
  """The output of a program that begins in an environment with nothing but `given` on oneDNN."""
  environment = {name: value for name, value in lazy.environment_before().items() if name != lazy.ONEDNN_VARIABLE}
  return processes.run([sys.executable, '-c', code], env={**environment, **given}, check=True).stdout


_SAID = """
import os
from quap_tff.common import lazy
name = lazy.ONEDNN_VARIABLE
print(os.environ[name], name in lazy.environment_before())
"""


@pytest.mark.parametrize('given, printed', [({}, '1 False'), ({'TF_ENABLE_ONEDNN_OPTS': '0'}, '0 True')])
def test_onednn_is_on_unless_the_user_says_otherwise(given, printed):
  assert _printed(_SAID, given).strip() == printed


def test_a_setting_that_comes_too_late_is_said(monkeypatch):
  monkeypatch.setattr(lazy, 'ONEDNN_BEFORE', None)
  monkeypatch.setattr(kernels, 'uses_onednn', lambda: True)
  assert kernels.late_setting() is None
  monkeypatch.setattr(kernels, 'uses_onednn', lambda: False)
  assert 'TF_ENABLE_ONEDNN_OPTS=1' in kernels.late_setting()
  monkeypatch.setattr(lazy, 'ONEDNN_BEFORE', '0')
  assert kernels.late_setting() is None


_DESCRIBES = 'from quap_tff.common import kernels; print(kernels.described())'


@pytest.mark.slow
def test_tensorflow_says_what_the_kernels_are():
  pytest.importorskip('tensorflow')
  off = _printed(_DESCRIBES, {'TF_ENABLE_ONEDNN_OPTS': '0', 'ONEDNN_MAX_CPU_ISA': 'AVX2'})
  assert off.startswith('oneDNN off, ') and off.strip().endswith(', ONEDNN_MAX_CPU_ISA=AVX2')


@pytest.mark.slow
@pytest.mark.thorough
def test_tensorflow_says_that_onednn_is_on():
  pytest.importorskip('tensorflow')
  assert _printed(_DESCRIBES, {}).startswith('oneDNN on, ')
