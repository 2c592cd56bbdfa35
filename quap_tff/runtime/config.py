"""The configuration of a runtime, checked when it is made."""

import dataclasses
import os
from typing import Optional

from quap_tff.common import checks
from quap_tff.common import registry

KINDS = ('in_process', 'native', 'workers')
DEVICES = ('cpu', 'gpu', 'auto')


@dataclasses.dataclass(frozen=True)
class RuntimeConfig(checks.Checked):
  """Where TFF computations run.

  Attributes:
    kind: `in_process` (this process's TensorFlow), `native` (TFF's own C++ worker, one process) or `workers` (a round
      spread over several C++ workers through TFF's mergeable form).
    device: `cpu`, `gpu` or `auto` (every GPU there is, else the CPU). Only `in_process` can use a GPU: TFF's worker is
      a CPU build.
    num_threads: How many clients run at once in `in_process`; `None` means one per available core. Never changes a
      result, only its time. TensorFlow makes its pool of threads once, so in a process that activates several
      configurations the first one should have the largest number.
    clients_per_call: How many clients one call of TensorFlow takes in `in_process`, on one CPU. `None` lets the runtime
      choose: a few at a time where clients are small and many, which can halve the cost of a small client. Never
      changes a result, only time and memory.
    num_workers: How many workers `workers` starts. Sums of floating-point numbers are rounded differently by another
      number of them.

  Raises:
    ValueError: For an unknown kind or device (the nearest valid ones are named), a count below one, or a GPU asked
      of a kind that cannot use one.
  """

  kind: str = registry.name_field('runtime', 'in_process', KINDS)
  device: str = registry.name_field('device', 'auto', DEVICES)
  num_threads: Optional[int] = checks.integer_field('num_threads', None, at_least=1)
  clients_per_call: Optional[int] = checks.integer_field('clients_per_call', None, at_least=1)
  num_workers: int = checks.integer_field('num_workers', 2, at_least=1)

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.clients_per_call is not None and self.kind != 'in_process':
      raise ValueError(f'clients_per_call is for the runtime "in_process", found it with {self.kind!r}.')
    if self.device == 'gpu' and self.kind != 'in_process':
      raise ValueError(
        f'The runtime {self.kind!r} cannot use a GPU (TFF\'s worker is a CPU build). Use kind="in_process", or'
        ' device="cpu".'
      )

  def resolved_num_threads(self) -> int:
    """The number of clients that run at once, with None resolved."""
    return self.num_threads if self.num_threads is not None else len(os.sched_getaffinity(0))
