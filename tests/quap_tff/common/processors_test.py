"""Which processors emulate bfloat16, by the text that Linux gives of them."""

import pytest

from quap_tff.common import processors

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
  assert processors.emulates_bfloat16(cpuinfo) == emulates


def test_reads_this_machine_s_own():
  try:
    with open('/proc/cpuinfo', encoding='utf-8') as file:
      own = file.read()
  except OSError:
    own = ''
  assert processors.emulates_bfloat16() == processors.emulates_bfloat16(own)
