"""What this machine's processor can do."""

from typing import Optional

# As Linux names them: of Intel's and AMD's processors, and of Arm's.
_BFLOAT16 = {'avx512_bf16', 'amx_bf16', 'bf16'}


def emulates_bfloat16(cpuinfo: Optional[str] = None) -> bool:
  """Whether TensorFlow must emulate bfloat16, because the processor has no instructions for it.

  That was fifteen times slower than float32 on a processor with AVX2 only.

  Args:
    cpuinfo: The text of /proc/cpuinfo; None reads it. Where it lists no instructions, nothing is known, and the answer
      is no.
  """
  if cpuinfo is None:
    try:
      with open('/proc/cpuinfo', encoding='utf-8') as file:
        cpuinfo = file.read()
    except OSError:
      return False
  lists = [line.partition(':')[2].split() for line in cpuinfo.splitlines() if line.startswith(('flags', 'Features'))]
  return bool(lists) and not _BFLOAT16.intersection(lists[0])
