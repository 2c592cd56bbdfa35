"""A plan: one object for a run of a mechanism that gives its process, its account and its statements."""

from __future__ import annotations

import dataclasses
from typing import Callable, final, Optional, TYPE_CHECKING

from quap_tff.common import array_types
from quap_tff.common import lazy
from quap_tff.common.lazy import tff
from quap_tff.mechanisms.parts import layers as layers_lib
from quap_tff.plans import built_process
from quap_tff.plans.accounts import leaving as leavings
from quap_tff.plans.accounts import run_account
from quap_tff.training import extension as extensions

aggregation = lazy.module('quap_tff.federated.aggregation')
client_update = lazy.module('quap_tff.training.client_update')
given_weights = lazy.module('quap_tff.training.given_weights')
learning_process = lazy.module('quap_tff.federated.learning_process')
leaving_clients = lazy.module('quap_tff.federated.leaving_clients')
model_functions = lazy.module('quap_tff.training.model_functions')

if TYPE_CHECKING:
  from quap_tff.training.client_update import ClientWorkConfig
  from quap_tff.training.given_weights import Weights
  from quap_tff.training.model_functions import Model
  from quap_tff.training.model_functions import ModelFn

  Optimizer = Optional[tff.learning.optimizers.Optimizer]
  # From a round's number to the clients' learning rate.
  LearningRateFn = Optional[Callable[[array_types.Array], array_types.Array]]
  # What an audit puts around an aggregator.
  Wrapper = Callable[[tff.aggregators.WeightedAggregationFactory], tff.aggregators.WeightedAggregationFactory]


@final
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Plan(run_account.RunAccount):
  """A mechanism, ready to run and to be accounted for.

      process = plan.build_process(model_fn).process  # or plan.aggregator, for a process of your own
      ledger = plan.new_ledger()
      ledger.append(plan.record(output, cohort))      # after each round
      print(plan.report(ledger))

  The arguments are those of a `RunAccount`, the part of a plan that verification also needs. A plan never changes. What
  is known only with a process, such as what leaves clients, is in the `BuiltProcess`.

  Attributes:
    extension: A method around the mechanism; by default none.
  """

  extension: Optional[extensions.Extension] = dataclasses.field(default=None, kw_only=True)

  @property
  def aggregator(self) -> tff.aggregators.WeightedAggregationFactory:
    """The method's `tff.aggregators.WeightedAggregationFactory`, whose weights carry client ids."""
    own = self.mechanism.server_parts(None, self.model, None)
    return own[0] if own is not None else self._lifted()

  def build_process(
    self,
    model_fn: Model,
    client_optimizer: Optimizer = None,
    server_optimizer: Optimizer = None,
    client_work: Optional[ClientWorkConfig] = None,
  ) -> built_process.BuiltProcess:
    """The process of a run, and what is known with it. This takes seconds, as it traces TensorFlow.

    Args:
      model_fn: Makes the model anew on each call. A `tff.learning.models.FunctionalModel`, or a function that returns
        one, is taken, too.
      client_optimizer: Local optimizer; default: SGD with learning rate 0.05.
      server_optimizer: Applied to the aggregate; default: SGD with learning rate 1, which is federated averaging.
      client_work: A `quap_tff.ClientWorkConfig`; default: one local epoch in batches of 32.

    Raises:
      TypeError: If `model_fn` makes no TFF model, but a Keras model, for example. The message says how to wrap it.
      ValueError: If the server is not trusted, and would get anything but secure sums and public values.
    """
    made = model_functions.of(model_fn)
    plan = self._with_shape_of(made)
    process = plan._composed(made, client_optimizer, server_optimizer, client_work)
    return built_process.BuiltProcess(plan, process, made, plan._leaving(process))

  def build_update_process(self, weights: Weights, server_optimizer: Optimizer = None) -> built_process.BuiltProcess:
    """The process of a run whose clients bring their updates, which a program of the issuer's own computes.

    One client's data are `<client_id=int64*, update=U*>` in place of examples, where U has the tensors of the weights
    in order: the weights before a client's training, less those after it. A client without an update adds zero.
    Everything else is as in `build_process`. A certificate assumes that each update follows from that client's data
    and from releases alone.

    Args:
      weights: The first weights, float32 arrays: by name, as in an .npz file, or in order.
      server_optimizer: As for `build_process`.

    Raises:
      ValueError: If the weights are not finite float32 arrays, or the method changes local training.
    """
    facts = self.mechanism.facts
    reasons = {
      f'{type(self.extension).__name__} changes local training': self.extension is not None,
      'clients train on old versions of the model': facts.staleness is not None,
      f'clients wait for others in mid-round, because {facts.waits}': bool(facts.waits),
    }
    for reason, applies in reasons.items():
      if applies:
        raise ValueError(
          f'Clients that bring their updates do not train here, and with this method {reason}. Choose another one, '
          'such as certified.'
        )
    plan = dataclasses.replace(self, model=given_weights.shape_of(weights), own_updates=True)
    self.core.check_before_training()
    sgd = tff.learning.optimizers.build_sgdm
    optimizer = server_optimizer if server_optimizer is not None else sgd(1.0)
    own = self.mechanism.server_parts(None, plan.model, optimizer)
    aggregator, optimizer = own if own is not None else (plan._lifted(), optimizer)
    initial = given_weights.initial(weights)
    process = learning_process.compose_updates(initial, aggregator, optimizer, with_answers=self.holds_noise)
    return built_process.BuiltProcess(plan, process, None, plan._leaving(process))

  def _leaving(self, process: tff.learning.templates.LearningProcess) -> run_account.Leaving:
    """The values that leave clients of a certified plan, checked; empty for another plan."""
    if not self.mechanism.facts.is_certified:
      return ()
    leaving = leaving_clients.named_tensors(process.next)
    leavings.check_leaving(leaving, self)
    return leaving

  def build_audited_process(
    self,
    around: Wrapper,
    model_fn: Model,
    client_optimizer: Optimizer = None,
    server_optimizer: Optimizer = None,
    client_work: Optional[ClientWorkConfig] = None,
  ) -> tff.learning.templates.LearningProcess:
    """A `tff.learning.templates.LearningProcess` whose aggregator an audit has wrapped. No account covers its results.

    Args:
      around: A function from the method's aggregator to one around it, as in `quap_tff.auditing.canaries`.
      model_fn: As for `build_process`, and so are the others.
      client_optimizer: Local optimizer.
      server_optimizer: Applied to the aggregate.
      client_work: A `quap_tff.ClientWorkConfig`.

    Raises:
      ValueError: If the method has an extension, which keeps state outside the aggregator.
    """
    if self.extension is not None:
      raise ValueError(
        'This method keeps state outside its aggregator, and an audit replaces updates only. Audit the base that the '
        'method is built around.'
      )
    made = model_functions.of(model_fn)
    return self._with_shape_of(made)._composed(made, client_optimizer, server_optimizer, client_work, around)

  def _with_shape_of(self, model_fn: ModelFn) -> Plan:
    """The plan with the shape of a model. A plan that has it already is the same, with all that it has computed."""
    model = layers_lib.model_shape(model_fn)
    return self if model == self.model else dataclasses.replace(self, model=model)

  def _composed(
    self,
    model_fn: ModelFn,
    client_optimizer: Optimizer,
    server_optimizer: Optimizer,
    client_work: Optional[ClientWorkConfig],
    around: Optional[Wrapper] = None,
  ) -> tff.learning.templates.LearningProcess:
    """The learning process of a plan whose model is known."""
    sgd = tff.learning.optimizers.build_sgdm
    client_optimizer = client_optimizer if client_optimizer is not None else sgd(0.05)
    server_optimizer = server_optimizer if server_optimizer is not None else sgd(1.0)
    client_work = client_work if client_work is not None else client_update.ClientWorkConfig()

    # Looked up only if updates are divided by the learning rate: not every optimizer has one.
    def rate(round_num: array_types.Array) -> array_types.Array:
      return client_update.learning_rate_at(client_optimizer, client_work, round_num)

    self.core.check_before_training()
    own = self.mechanism.server_parts(model_fn, self.model, server_optimizer)
    aggregator, server_optimizer = own if own is not None else (self._lifted(rate), server_optimizer)
    if around is not None:
      aggregator = around(aggregator)
    return learning_process.compose(
      model_fn,
      aggregator,
      client_optimizer,
      server_optimizer,
      client_work,
      extension=self.extension,
      num_clients=self.num_clients,
      staleness=self.mechanism.facts.staleness,
      client_metrics=self.client_metrics,
      with_answers=self.holds_noise,
    )

  def _lifted(self, rate: LearningRateFn = None) -> tff.aggregators.WeightedAggregationFactory:
    layers = self.model.layers if self.model is not None else None
    return aggregation.AggregationFactory(self.mechanism, layers, rate)
