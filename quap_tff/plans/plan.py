"""A plan: one object for a run of a mechanism that gives its process, its account and its statements."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, final, Optional

from quap_tff.common import lazy
from quap_tff.common.lazy import tff
from quap_tff.mechanisms.parts import layers as layers_lib
from quap_tff.plans.accounts import leaving as leavings
from quap_tff.plans.accounts import run_account
from quap_tff.training import extension as extensions

aggregation = lazy.module('quap_tff.federated.aggregation')
client_update = lazy.module('quap_tff.training.client_update')
learning_process = lazy.module('quap_tff.federated.learning_process')
leaving_clients = lazy.module('quap_tff.federated.leaving_clients')
model_functions = lazy.module('quap_tff.training.model_functions')


@final
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Plan(run_account.RunAccount):
  """A mechanism, ready to run and to be accounted for.

      process = plan.build_process(model_fn)          # or plan.aggregator, for a process of your own
      ledger = plan.new_ledger()
      ledger.append(plan.record(output, cohort))      # after each round
      print(plan.report(ledger))

  The arguments are those of a `RunAccount`, the part of a plan that verification also needs. Nothing is changed from
  outside. Only `build_process` adds what is not known before it: the model, and what leaves clients.

  Attributes:
    extension: A method of `quap_tff.training.heterogeneity` around the mechanism; by default none.
    process: The process that `build_process` made last without anything `around` it; None before.
    model_fn: Makes the model of that process.
  """

  extension: Optional[extensions.Extension] = None
  process: Any = dataclasses.field(default=None, init=False)
  model_fn: Optional[Callable[[], Any]] = dataclasses.field(default=None, init=False)

  @property
  def aggregator(self) -> Any:
    """The method's `tff.aggregators.WeightedAggregationFactory`, whose weights carry client ids."""
    own = self.mechanism.server_parts(None, self.model, None)
    return own[0] if own is not None else self._lifted()

  def build_process(
    self,
    model_fn: Callable[[], Any],
    client_optimizer: Any = None,
    server_optimizer: Any = None,
    client_work: Any = None,
    around: Optional[Callable[[Any], Any]] = None,
  ) -> Any:
    """The `tff.learning.templates.LearningProcess`; takes seconds, as it traces TensorFlow.

    Args:
      model_fn: Makes the model anew on each call. A `tff.learning.models.FunctionalModel`, or a function that returns
        one, is taken, too.
      client_optimizer: Local optimizer; default: SGD with learning rate 0.05.
      server_optimizer: Applied to the aggregate; default: SGD with learning rate 1, which is federated averaging.
      client_work: A `quap_tff.ClientWorkConfig`; default: one local epoch in batches of 32.
      around: A function from the method's aggregator to one around it, as audits need (`quap_tff.auditing.canaries`).
        No account covers the results of such a process.

    Raises:
      ValueError: If the server is not trusted, and would get anything but secure sums and public values.
    """
    if around is not None and self.extension is not None:
      raise ValueError(
        'This method keeps state outside its aggregator, and an audit replaces updates only. Audit the base that the '
        'method is built around.'
      )
    model_fn = model_functions.of(model_fn)
    model = layers_lib.model_shape(model_fn)
    self._set(model=model)
    sgd = tff.learning.optimizers.build_sgdm
    client_optimizer = client_optimizer if client_optimizer is not None else sgd(0.05)
    server_optimizer = server_optimizer if server_optimizer is not None else sgd(1.0)
    client_work = client_work if client_work is not None else client_update.ClientWorkConfig()
    # Looked up only if updates are divided by the learning rate: not every optimizer has one.
    rate = lambda round_num: client_update.learning_rate_at(client_optimizer, client_work, round_num)
    self.core.check_before_training()
    own = self.mechanism.server_parts(model_fn, model, server_optimizer)
    aggregator, server_optimizer = own if own is not None else (self._lifted(rate), server_optimizer)
    process = learning_process.compose(
      model_fn,
      aggregator if around is None else around(aggregator),
      client_optimizer,
      server_optimizer,
      client_work,
      extension=self.extension,
      num_clients=self.num_clients,
      staleness=self.mechanism.facts.staleness,
      client_metrics=self.client_metrics,
      with_answers=self.holds_noise,
    )
    if around is not None:
      return process
    if self.mechanism.facts.is_certified:
      leaving = leaving_clients.named_tensors(process.next)
      leavings.check(leaving, self)
      self._set(leaving=leaving)
    self._set(process=process, model_fn=model_fn)
    return process

  def _lifted(self, rate: Optional[Callable[[Any], Any]] = None) -> Any:
    layers = self.model.layers if self.model is not None else None
    return aggregation.AggregationFactory(self.mechanism, layers, rate)
