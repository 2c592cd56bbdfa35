"""TFF's DP-FedAvg for comparison: fixed clipping, adaptive clipping, and adaptive clipping layer by layer.

Adaptive clipping (Andrew et al. 2021) also releases noised counts of the updates that stayed unclipped. A client that
takes part adds 1/2 to TFF's count if its norm is within the clip, and -1/2 if it is not. A client without data has norm
0 and adds 1/2, so to take a client's data away moves the count by up to 1. With s the standard deviation of the count's
noise, z of sum and count together is 1/z² = 1/z_sum² + 1/s². TFF's own z, 1/z² = 1/z_sum² + 1/(2·s)², is for a client
whose record is added or removed. Layer by layer, each of L layers has z·√L.
"""

import dataclasses
from typing import Optional, Tuple

import tensorflow_federated as tff
from tensorflow_privacy.privacy.dp_query import nested_query
from tensorflow_privacy.privacy.dp_query import normalized_query
from tensorflow_privacy.privacy.dp_query import quantile_adaptive_clip_sum_query

from experiments.algorithms import tff_aggregation
from experiments.algorithms import tff_method
from quap_tff import checks
from quap_tff import clip_rules
from quap_tff import layers as layers_lib

_Factory = tff.aggregators.DifferentiallyPrivateFactory


@dataclasses.dataclass(frozen=True)
class TffDpFedAvg(tff_method.StockAlgorithm):
  """`DifferentiallyPrivateFactory.gaussian_fixed`."""

  clip: float = 1.0

  def __post_init__(self):
    self.clip_rule()

  def clip_rule(self):
    return clip_rules.Fixed(self.clip)

  def aggregator(self, setting, noise_multiplier, clients_per_round):
    return FixedClip(noise_multiplier, clients_per_round, float(self.clip))


@dataclasses.dataclass(frozen=True)
class FixedClip(tff_aggregation.StockAggregator):
  """See `TffDpFedAvg`."""

  value_noise_multiplier: float
  clients_per_round: float
  clip: float

  def factory(self, record_type):
    return _Factory.gaussian_fixed(self.value_noise_multiplier, self.clients_per_round, self.clip)

  def clipping_norms(self, query_state):
    return [query_state.numerator_state.l2_norm_clip]


@dataclasses.dataclass(frozen=True)
class TffDpFedAvgAdaptive(tff_method.StockAlgorithm):
  """`DifferentiallyPrivateFactory.gaussian_adaptive`.

  Attributes:
    quantile: The part of updates that is to stay unclipped.
    initial_clip: The clipping norm of round 1.
    learning_rate: Of the clipping norm.
    clipped_count_stddev: s, more than z. None: TFF's default, a twentieth of a cohort, or 2·z if that is more. TFF's
      alone would be refused at the noise that whole clients need, and 2·z raises the sum's noise by 15% at most.
  """

  quantile: float = 0.5
  initial_clip: float = 1.0
  learning_rate: float = 0.2
  clipped_count_stddev: Optional[float] = None

  def __post_init__(self):
    self.clip_rule()
    if self.clipped_count_stddev is not None:
      checks.number('clipped_count_stddev', self.clipped_count_stddev, above=0)

  def clip_rule(self):
    return clip_rules.PrivateQuantile(self.quantile, self.initial_clip, self.learning_rate)

  def aggregator(self, setting, noise_multiplier, clients_per_round):
    return AdaptiveClip(self, noise_multiplier, clients_per_round)

  def split(self, noise_multiplier: float, clients_per_round: float) -> Tuple[float, float]:
    """(z_sum, s) of a sum and its count whose noise multiplier together is the one given.

    Raises:
      ValueError: If the count alone has too little noise.
    """
    stddev = self.clipped_count_stddev
    if stddev is None:
      stddev = max(clients_per_round / 20, 2 * noise_multiplier)
    if stddev <= noise_multiplier:
      raise ValueError(
          f'clipped_count_stddev must be greater than {noise_multiplier:.4g}, the noise multiplier that this budget '
          f'needs, found {stddev:g}. Raise it, or leave it out.'
      )
    return (noise_multiplier**-2 - stddev**-2)**-0.5, float(stddev)


class AdaptiveClip(tff_aggregation.StockAggregator):
  """See `TffDpFedAvgAdaptive`."""

  def __init__(self, parameters: TffDpFedAvgAdaptive, noise_multiplier: float, clients_per_round: float):
    self._parameters, self._clients_per_round = parameters, clients_per_round
    self.value_noise_multiplier, self.count_stddev = parameters.split(noise_multiplier, clients_per_round)

  def factory(self, record_type):
    return _Factory.gaussian_adaptive(
        # TFF takes its own z, and finds z_sum from it.
        noise_multiplier=(self.value_noise_multiplier**-2 + (2 * self.count_stddev)**-2)**-0.5,
        clients_per_round=self._clients_per_round,
        initial_l2_norm_clip=float(self._parameters.initial_clip),
        target_unclipped_quantile=float(self._parameters.quantile),
        learning_rate=float(self._parameters.learning_rate),
        clipped_count_stddev=self.count_stddev,
    )

  def clipping_norms(self, query_state):
    return [query_state.numerator_state.sum_state.l2_norm_clip]


@dataclasses.dataclass(frozen=True)
class TffLayerwiseAdaptive(TffDpFedAvgAdaptive):
  """TensorFlow Privacy's adaptive clipping for each layer by itself, in a `NestedSumQuery`.

  With √L·z in place of z: `clipped_count_stddev`, of each layer's count, must be more than √L·z.
  """

  clips_each_layer = True

  def aggregator(self, setting, noise_multiplier, clients_per_round):
    return LayerwiseClip(self, noise_multiplier, clients_per_round, setting.layers)


class LayerwiseClip(tff_aggregation.StockAggregator):
  """See `TffLayerwiseAdaptive`."""

  has_one_sigma = False

  def __init__(
      self,
      parameters: TffLayerwiseAdaptive,
      noise_multiplier: float,
      clients_per_round: float,
      layers: Tuple[layers_lib.Layer, ...],
  ):
    self._parameters, self._clients_per_round, self._layers = parameters, clients_per_round, layers
    self.value_noise_multiplier, self.count_stddev = parameters.split(
        noise_multiplier * len(layers)**0.5, clients_per_round
    )

  def grouped(self, update):
    return [[update[i] for i in layer.indices] for layer in self._layers]

  def factory(self, record_type):
    parameters = self._parameters
    queries = [
        quantile_adaptive_clip_sum_query.QuantileAdaptiveClipSumQuery(
            initial_l2_norm_clip=float(parameters.initial_clip),
            noise_multiplier=self.value_noise_multiplier,
            target_unclipped_quantile=float(parameters.quantile),
            learning_rate=float(parameters.learning_rate),
            clipped_count_stddev=self.count_stddev,
            expected_num_records=self._clients_per_round,
        ) for _ in self._layers
    ]
    return _Factory(normalized_query.NormalizedQuery(nested_query.NestedSumQuery(queries), self._clients_per_round))

  def clipping_norms(self, query_state):
    return [state.sum_state.l2_norm_clip for state in query_state.numerator_state]
