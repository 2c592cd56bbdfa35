"""The kernels that TensorFlow computes with: the processor's instructions, and whether oneDNN is on.

Two machines' speeds cannot be compared without both.
"""

import os
from typing import Optional

from quap_tff.common import lazy

# From the narrowest to the widest, as Linux names them: Intel's and AMD's.
_SETS = ('avx', 'avx2', 'avx512f', 'avx512_vnni', 'avx512_bf16', 'amx_bf16')
# Instructions for bfloat16: Intel's and AMD's, and Arm's.
_BFLOAT16 = {'avx512_bf16', 'amx_bf16', 'bf16'}
_STARTS_ONEDNN = {'avx512_vnni', 'avx512_bf16', 'amx_bf16', 'amx_int8', 'amx_tile'}
# Keeps oneDNN from the instructions beyond a set. By one of `_NARROW`, a processor acts as one with AVX2 alone.
_LIMIT = 'ONEDNN_MAX_CPU_ISA'
_NARROW = {'SSE41', 'AVX', 'AVX2'}


def instructions(cpuinfo: Optional[str] = None) -> set[str]:
  """The instructions that the first processor lists; none where nothing is known.

  Args:
    cpuinfo: The text of /proc/cpuinfo. None reads it, and leaves out what the environment keeps oneDNN from.
  """
  if cpuinfo is not None:
    return _listed(cpuinfo)
  try:
    with open('/proc/cpuinfo', encoding='utf-8') as file:
      known = _listed(file.read())
  except OSError:
    return set()
  if os.environ.get(_LIMIT, '').upper() not in _NARROW:
    return known
  return {name for name in known if not name.startswith(('avx512', 'amx'))}


def _listed(cpuinfo: str) -> set[str]:
  lists = [line.partition(':')[2].split() for line in cpuinfo.splitlines() if line.startswith(('flags', 'Features'))]
  return set(lists[0]) if lists else set()


def emulates_bfloat16(cpuinfo: Optional[str] = None) -> bool:
  """True if TensorFlow must emulate bfloat16, because the processor has no instructions for it.

  That was fifteen times slower than float32 on a processor with AVX2 only. Where nothing is known of the processor, the
  answer is no. The argument is that of `instructions`.
  """
  known = instructions(cpuinfo)
  return bool(known) and not known & _BFLOAT16


def starts_onednn(cpuinfo: Optional[str] = None) -> bool:
  """Whether TensorFlow turns oneDNN on by itself on this processor. The argument is that of `instructions`."""
  return bool(instructions(cpuinfo) & _STARTS_ONEDNN)


def uses_onednn() -> bool:
  """Whether oneDNN is on in this process. Loads TensorFlow."""
  # The public API does not say it, and the environment alone does not either: TensorFlow reads it once.
  return bool(lazy.load('tensorflow.python.util._pywrap_util_port').IsMklEnabled())


def described() -> str:
  """For people, such as 'oneDNN on, AVX512_BF16'. Loads TensorFlow."""
  known = instructions()
  widest = next((name.upper() for name in reversed(_SETS) if name in known), 'unknown instructions')
  parts = ['oneDNN on' if uses_onednn() else 'oneDNN off', widest]
  if limit := os.environ.get(_LIMIT):
    parts.append(f'{_LIMIT}={limit}')
  return ', '.join(parts)


def late_setting() -> Optional[str]:
  """A sentence for the log if oneDNN is off because TensorFlow was imported before this package; else None."""
  if lazy.ONEDNN_BEFORE is not None or uses_onednn():
    return None
  return (
    'oneDNN is off, because TensorFlow was imported before quap_tff, so convolutions may be slow. Import quap_tff '
    f'first, or set {lazy.ONEDNN_VARIABLE}=1 in the environment.'
  )
