"""Several of TFF's C++ workers that share a round, on this machine or on others.

A worker listens on every network interface, without authentication, and runs whatever TensorFlow graph it is sent. It
has no flag that restricts this. docs/distributed.md says how to run workers on other machines behind TLS. On this
machine, if others can reach it, run the program in a network namespace of its own (nothing outside can connect to it,
and it ends with the program):

    unshare --user --map-root-user --net sh -c 'ip link set lo up; exec python -m experiments.train --runtime=native'

or admit only the loopback interface (this rule is for the ports that the kernel assigns; workers at given addresses
have one port each and need a rule that admits only the program's machine):

    iptables -A INPUT ! -i lo -p tcp --dport 32768:60999 --syn -j DROP

Workers end when the `with` block ends in any way, and when the interpreter exits. The kernel kills them when this
program is killed (`SIGKILL` included), because each asks for that before it becomes a worker. That request is bound to
the thread that started them: activate on a thread that lives as long as the runtime is needed, such as the main thread.
"""

from collections.abc import Sequence
import concurrent.futures
import functools
import time
from typing import Any, Optional

from absl import logging
import grpc
import tensorflow_federated as tff

from quap_tff.runtime import remote_workers
from quap_tff.runtime.in_process import context as in_process
from quap_tff.runtime.values import errors
from quap_tff.runtime.values import secure_intrinsics
from quap_tff.runtime.values import values

_SECONDS_BETWEEN_LOOKS = 0.05


class WorkersContext(tff.program.FederatedContext):
  """Spreads each computation's clients over several workers, and does the server's part in this process.

  The cohort is cut into one contiguous part for each worker. Partial sums are merged in the order of the parts, so a
  result depends on the number of workers, by the rounding of floating-point sums, and on nothing else: not on who
  computed which part, or in which order they finished. A part whose worker is given up is computed by another one. The
  number of parts stays, so the result has the same bits as if nothing had happened.

  A call returns a whole result or raises an error: nothing of a round that fails reaches the caller. Noise is drawn in
  this process, after the parts are merged, and follows from the state that the caller passes. So a round that is called
  again with the same state draws the same noise.

  Args:
    addresses: Where the workers are, at least one (`None`: start one here).
    timeout: See `remote_workers.Worker`. When no worker is left, one that may come back is waited for as long.
    credentials: For workers behind TLS.

  Raises:
    errors.WorkerError: If a worker cannot be started or reached; it names the worker.
  """

  def __init__(
    self,
    addresses: Sequence[Optional[str]],
    timeout: float = 20.0,
    credentials: Optional[grpc.ChannelCredentials] = None,
  ):
    self._timeout = timeout
    self._server = in_process.InProcessContext(num_threads=1)
    self._forms = in_process.IdentityCache(_mergeable_form)
    self._threads = concurrent.futures.ThreadPoolExecutor(len(addresses), thread_name_prefix='part')
    self.workers: list[remote_workers.Worker] = []
    try:
      for address in addresses:
        self.workers.append(remote_workers.Worker(address, timeout, credentials))
    except BaseException:
      self.close()
      raise

  def invoke(self, comp: tff.Computation, arg: Optional[Any]) -> Any:
    """Runs `comp`; TFF calls it for `comp(...)`.

    Raises:
      errors.NotMergeableError: If an aggregation of `comp` depends on another one's result.
      errors.WorkerError: If no worker is left; it names them.
    """
    if values.num_clients(arg, comp.type_signature.parameter) is None:
      return self._server.invoke(comp, arg)  # There is nothing to spread.
    form = self._forms.get(comp)
    parts = split(arg, comp.type_signature.parameter, len(self.workers))
    futures = [self._threads.submit(self._run_part, form.up_to_merge, part, i) for i, part in enumerate(parts)]
    concurrent.futures.wait(futures)
    partial_results = [future.result() for future in futures]
    merged = functools.reduce(
      lambda a, b: self._server.invoke(form.merge, tff.structure.Struct.unnamed(a, b)), partial_results
    )
    return self._server.invoke(form.after_merge, tff.structure.Struct.unnamed(arg, merged))

  def close(self) -> None:
    """Ends connections, threads, and the workers that this program started."""
    for worker in self.workers:
      worker.close()
    self._threads.shutdown()
    self._server.close()

  def _run_part(self, comp: tff.Computation, arg: Any, index: int) -> Any:
    # Where workers are started again each time, a part that kills them would do so for ever.
    for _ in range(2 * len(self.workers)):
      worker = self._usable_worker(index)
      try:
        return worker.invoke(comp, arg)
      except errors.WorkerError as e:
        error = e
        logging.warning('The %s did not finish part %d of the cohort, which is computed again.', worker, index + 1)
    raise error

  def _usable_worker(self, index: int) -> remote_workers.Worker:
    deadline = time.monotonic() + self._timeout
    while True:
      usable = [worker for worker in self.workers if worker.is_usable]
      if usable:
        own = self.workers[index]
        return own if own in usable else usable[index % len(usable)]
      if time.monotonic() > deadline or not any(worker.may_come_back for worker in self.workers):
        last, reasons = self.workers[-1], ' '.join(str(worker.error()) for worker in self.workers)
        raise errors.WorkerError(f'No worker is left. {reasons}', last.address, last.pid)
      time.sleep(_SECONDS_BETWEEN_LOOKS)


def split(argument: Any, type_spec: tff.Type, count: int) -> list[Any]:
  """At most `count` arguments, each with a contiguous part of the clients and with everything else in full.

  The sizes differ by at most one, the larger parts come first, and no part is empty unless the cohort is. They depend
  on the size of the cohort and on `count` alone, so the sums do not depend on which worker computes a part.

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
