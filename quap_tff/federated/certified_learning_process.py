"""Certified federated averaging as a `tff.learning.templates.LearningProcess`.

The guarantee covers everything that its `next` returns, except the state. The state is secret because it holds the seed
of the noise. Apart from it, only the noised sums are computed from clients' data. Training metrics stay at the clients.
"""

import collections
from typing import Any, Callable, Optional

import tensorflow_federated as tff

from quap_tff.federated import certified_aggregation as aggregation
from quap_tff.federated import client_work as client_works
from quap_tff.federated import learning_process
from quap_tff.mechanisms import certified_config as configs
from quap_tff.mechanisms import layers as layers_lib
from quap_tff.training import autograph
from quap_tff.training.heterogeneity import extension as extensions


def build_certified_fed_avg(
  model_fn: Callable[[], tff.learning.models.VariableModel],
  config: configs.CertifiedConfig,
  client_optimizer: tff.learning.optimizers.Optimizer = tff.learning.optimizers.build_sgdm(0.05),
  server_optimizer: tff.learning.optimizers.Optimizer = tff.learning.optimizers.build_sgdm(1.0),
  client_work: Optional[client_works.ClientWorkConfig] = None,
  extension: Optional[extensions.Extension] = None,
  around: Callable[[Any], Any] = lambda aggregator: aggregator,
) -> tff.learning.templates.LearningProcess:
  """Federated averaging with noise on every trained weight, and a budget that no client exceeds.

  One client's data have the form that `quap_tff.build_quap_fed_avg` takes. The metrics of a round are `distributor`,
  `client_work` (`train`, which is empty), `aggregator` (what `quap_tff.mechanisms.certified_round.finish_round` reports) and
  `finalizer`.

  Args:
    model_fn: Makes a new model on each call. Neither its initial weights nor weights that are not trained may come from
      clients' data.
    config: The mechanism.
    client_optimizer: The local optimizer.
    server_optimizer: Applied to the noised sum over D, which is a pseudo-gradient. This is post-processing.
    client_work: Local epochs, batch size, learning-rate decay and the like.
    extension: A method around the mechanism, one of `quap_tff.training.heterogeneity`, that uses nothing of clients but the
      noised sums.
    around: Makes the aggregator that is used from the mechanism's own, such as one that sparsifies updates.

  Raises:
    ValueError: If `config` and the model do not fit.
  """
  aggregator = aggregation.CertifiedAggregationFactory(config, layers_lib.of_model(model_fn).layers)
  return learning_process.compose(
    without_metrics(model_fn),
    around(aggregator),
    client_optimizer,
    server_optimizer,
    client_work,
    extension,
    config.num_clients,
  )


def without_metrics(model_fn: Callable[[], tff.learning.models.VariableModel]) -> Callable[[], '_WithoutMetrics']:
  """The function that makes the same model without metrics, so that clients send none."""
  return lambda: _WithoutMetrics(model_fn())


class _WithoutMetrics(tff.learning.models.VariableModel):
  """A model without metrics. Metrics are exact functions of clients' data and would leave the clients without noise."""

  def __init__(self, model):
    self._model = model
    self.needs_autograph = autograph.is_needed(model)

  @property
  def trainable_variables(self):
    return self._model.trainable_variables

  @property
  def non_trainable_variables(self):
    return self._model.non_trainable_variables

  @property
  def local_variables(self):
    return self._model.local_variables

  @property
  def input_spec(self):
    return self._model.input_spec

  def forward_pass(self, batch_input, training=True):
    return self._model.forward_pass(batch_input, training)

  def predict_on_batch(self, batch_input, training=True):
    return self._model.predict_on_batch(batch_input, training)

  def report_local_unfinalized_metrics(self):
    return collections.OrderedDict()

  def metric_finalizers(self):
    return collections.OrderedDict()

  def reset_metrics(self):
    self._model.reset_metrics()
