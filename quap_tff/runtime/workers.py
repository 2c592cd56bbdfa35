"""Several of TFF's C++ workers on this machine that share a round.

A worker listens on every network interface, without authentication, and runs whatever TensorFlow graph it is sent. It
has no flag that restricts this. If others can reach this machine, run the program in a network namespace of its own
(nothing outside can connect to it, and it ends with the program):

    unshare --user --map-root-user --net sh -c 'ip link set lo up; exec python -m experiments.train --runtime=native'

or admit only the loopback interface (this rule is for the ports that the kernel assigns):

    iptables -A INPUT ! -i lo -p tcp --dport 32768:60999 --syn -j DROP

Workers end when the `with` block ends in any way, and when the interpreter exits. The kernel kills them when this
program is killed (`SIGKILL` included), because each asks for that before it becomes a worker. That request is bound to
the thread that started them: activate on a thread that lives as long as the runtime is needed, such as the main thread.
"""

import concurrent.futures
import functools
from typing import Any, Optional

import tensorflow_federated as tff

from quap_tff.runtime import worker
from quap_tff.runtime.in_process import context as in_process
from quap_tff.runtime.values import errors
from quap_tff.runtime.values import secure_intrinsics
from quap_tff.runtime.values import values


class WorkersContext(tff.program.FederatedContext):
  """Spreads each computation's clients over several workers, and does the server's part in this process.

  The cohort is cut into one contiguous part for each worker. Partial sums are merged in the order of the parts, so a
  result depends on the number of workers, by the rounding of floating-point sums, and not on the order in which they
  finish.

  A call returns a whole result or raises an error: nothing of a round that fails reaches the caller. Noise is drawn in
  this process, after the parts are merged, and follows from the state that the caller passes. So a round that is called
  again with the same state draws the same noise.

  Args:
    count: The number of workers, at least one.

  Raises:
    errors.WorkerError: If a worker cannot be started; it names the worker.
  """

  def __init__(self, count: int):
    self._server = in_process.InProcessContext(num_threads=1)
    self._forms = in_process.IdentityCache(_mergeable_form)
    self._threads = concurrent.futures.ThreadPoolExecutor(count, thread_name_prefix='part')
    self.workers: list[worker.Worker] = []
    try:
      for _ in range(count):
        self.workers.append(worker.Worker())
    except BaseException:
      self.close()
      raise

  def invoke(self, comp: tff.Computation, arg: Optional[Any]) -> Any:
    """Runs `comp`; TFF calls it for `comp(...)`.

    Raises:
      errors.NotMergeableError: If an aggregation of `comp` depends on another one's result.
      errors.WorkerError: If a worker dies, or has died before; it names the worker.
    """
    if values.num_clients(arg, comp.type_signature.parameter) is None:
      return self._server.invoke(comp, arg)  # There is nothing to spread.
    form = self._forms.get(comp)
    parts = split(arg, comp.type_signature.parameter, len(self.workers))
    futures = [self._threads.submit(own.invoke, form.up_to_merge, part) for own, part in zip(self.workers, parts)]
    concurrent.futures.wait(futures)
    partial_results = [future.result() for future in futures]
    merged = functools.reduce(
      lambda a, b: self._server.invoke(form.merge, tff.structure.Struct.unnamed(a, b)), partial_results
    )
    return self._server.invoke(form.after_merge, tff.structure.Struct.unnamed(arg, merged))

  def close(self) -> None:
    """Ends workers and threads."""
    for own in self.workers:
      own.close()
    self._threads.shutdown()
    self._server.close()


def split(argument: Any, type_spec: tff.Type, count: int) -> list[Any]:
  """At most `count` arguments, each with a contiguous part of the clients and with everything else in full.

  The sizes differ by at most one, the larger parts come first, and no part is empty unless the cohort is. They depend
  on the size of the cohort and on `count` alone.

  Raises:
    ValueError: If two client-placed arguments differ in their number of clients.
  """
  clients = values.num_clients(argument, type_spec) or 0
  count = max(1, min(count, clients))
  size, larger = divmod(clients, count)
  ends = [(i + 1) * size + min(i + 1, larger) for i in range(count)]
  return [_part(argument, type_spec, begin, end) for begin, end in zip([0, *ends], ends)]


def _part(argument: Any, type_spec: tff.Type, begin: int, end: int) -> Any:
  if values.differs_by_client(type_spec):
    return argument[begin:end]
  if isinstance(type_spec, tff.StructType):
    children = values.children(argument, type_spec)
    return tff.structure.Struct((name, _part(child, child_type, begin, end)) for name, child, child_type in children)
  return argument


def _mergeable_form(comp: tff.Computation) -> tff.framework.MergeableCompForm:
  plain = secure_intrinsics.in_plain(comp)
  try:
    return tff.backends.native.compile_to_mergeable_comp_form(plain)
  except (ValueError, TypeError) as e:
    first_line = (str(e).splitlines() or [type(e).__name__])[0]
    if 'dependent on another' in str(e):
      raise errors.NotMergeableError(
        'This computation cannot be spread over several workers: one of its aggregations depends on the result of'
        ' another in the same round, and workers merge only once a round. With QuAP-FL, set timing=previous in the'
        ' clip rule quantile_ema (last round\'s norm then clips this round), or use the runtime "in_process" or'
        f' "native". TFF says: {first_line}'
      ) from e
    raise errors.NotMergeableError(
      'This computation cannot be spread over several workers; the runtimes "in_process" and "native" run it. TFF'
      f' says: {first_line}'
    ) from e
