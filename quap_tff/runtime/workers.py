"""TFF's C++ workers: one (`native`), or several that share a round (`workers`).

A worker listens on every network interface, without authentication, and runs whatever TensorFlow graph it is sent. It
has no flag that restricts this. If others can reach the machine, run the program in a network namespace of its own
(nothing outside can connect to it, and it ends with the program):

    unshare --user --map-root-user --net sh -c 'ip link set lo up; exec python -m experiments.train --runtime=native'

or admit only the loopback interface (this rule is for the ports that the kernel assigns; workers at given addresses
have one port each and need a rule that admits only the program's machine):

    iptables -A INPUT ! -i lo -p tcp --dport 32768:60999 --syn -j DROP

Workers end when the `with` block ends in any way, and when the interpreter exits. The kernel kills them when this
program is killed (`SIGKILL` included), because each asks for that before it becomes a worker. That request is bound to
the thread that started them: activate on a thread that lives as long as the runtime is needed, such as the main thread.
"""

from typing import Any, List, Optional, Sequence

import tensorflow_federated as tff

from quap_tff.runtime import errors
from quap_tff.runtime import identity_cache
from quap_tff.runtime import processes


def native_context(worker: processes.Worker) -> tff.framework.SyncContext:
  """TFF's own execution context on `worker`."""
  return tff.framework.SyncExecutionContext(
      worker.executor_factory(),
      tff.backends.native.desugar_and_transform_to_native,
      transform_args=tff.tensorflow.transform_args,
      transform_result=tff.tensorflow.transform_result,
  )


class WorkersContext(tff.framework.SyncContext):
  """Spreads each computation's clients over several workers and merges what they aggregate.

  Every worker gets a contiguous part of the cohort. Sums are merged in the workers' order, so a result depends on the
  number of workers, by the rounding of floating-point sums.

  Args:
    workers: The workers, at least one.
  """

  def __init__(self, workers: Sequence[processes.Worker]):
    contexts = [
        tff.framework.AsyncExecutionContext(
            worker.executor_factory(),
            tff.backends.native.desugar_and_transform_to_native,
            transform_args=tff.tensorflow.transform_args,
            transform_result=tff.tensorflow.transform_result,
        )
        for worker in workers
    ]
    self._context = tff.framework.MergeableCompExecutionContext(
        contexts, transform_result=tff.tensorflow.transform_result, num_subrounds=len(contexts))
    # A computation without clients has nothing to spread.
    self._single = native_context(workers[0])
    self._forms = identity_cache.IdentityCache(_mergeable_form)
    self.workers: List[processes.Worker] = list(workers)

  def invoke(self, comp: tff.Computation, arg: Optional[Any]) -> Any:
    """Runs `comp`; TFF calls it for `comp(...)`.

    Raises:
      errors.NotMergeableError: If an aggregation of `comp` depends on another one's result.
      errors.WorkerError: If a worker is gone; it names the worker.
    """
    form = self._forms.get(comp)
    return self._single.invoke(comp, arg) if form is None else self._context.invoke(form, arg)


def _mergeable_form(comp: tff.Computation) -> Optional[tff.framework.MergeableCompForm]:
  """The form that can be spread, or `None` if there is nothing to spread."""
  if '@CLIENTS' not in str(comp.type_signature):
    return None
  try:
    return tff.backends.native.compile_to_mergeable_comp_form(comp)
  except (ValueError, TypeError) as e:
    first_line = (str(e).splitlines() or [type(e).__name__])[0]
    if 'dependent on another' in str(e):
      raise errors.NotMergeableError(
          'This computation cannot be spread over several workers: one of its aggregations depends on the result of'
          ' another in the same round, and workers merge only once a round. With QuAP-FL, set timing=previous in the'
          ' clip rule quantile_ema (last round\'s norm then clips this round), or use the runtime "in_process" or'
          f' "native". TFF says: {first_line}') from e
    raise errors.NotMergeableError(
        'This computation cannot be spread over several workers; the runtimes "in_process" and "native" run it. TFF'
        f' says: {first_line}') from e
