"""TFF's own aggregators as mechanisms, with their account: DP-FedAvg with fixed and adaptive clipping, and DP-FTRL.

The aggregators are TFF's, without zeroing, which TFF's own account does not cover. They divide by the constant mean
size of a cohort. The neighbouring relation is that of every mechanism: a client's data against none, with its
participation known.

Adaptive clipping (Andrew et al. 2021) also releases noised counts of the updates that stayed unclipped. A client that
takes part adds 1/2 to TFF's count if its norm is within the clip, and -1/2 if it is not. A client without data has norm
0 and adds 1/2, so to take a client's data away moves the count by up to 1. With s the standard deviation of the count's
noise, z of sum and count together is 1/z² = 1/z_sum² + 1/s². TFF's own z, 1/z² = 1/z_sum² + 1/(2·s)², is for a client
whose record is added or removed. Layer by layer, each of L layers has z·√L.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
import dataclasses
import secrets
from typing import NamedTuple, Optional, TYPE_CHECKING

import numpy as np

from quap_tff.common import checks
from quap_tff.common import json_types
from quap_tff.common import lazy
from quap_tff.common.numbers import rounding
from quap_tff.mechanisms import mechanism
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.parts import layers as layers_lib
from quap_tff.mechanisms.quap import config as configs

if TYPE_CHECKING:
  from quap_tff.federated.stock import aggregation
else:
  aggregation = lazy.module('quap_tff.federated.stock.aggregation')

_UNSEEDED = (
  "TFF's noise takes no seed: a run that was interrupted and resumed is not bit for bit the uninterrupted one."
)
_REPEATED = (
  "TFF's tree takes the seed of its noise when the process is built, and all runs of one bundle would have the same "
  'noise'
)
_IDEAL = (
  'The figures are for ideal Gaussian noise; the noise that TFF adds is weaker: {reason}. It is drawn as single '
  "float32 numbers, whose low bits reveal whether a guess of a client's update is right."
)
_FEW_BITS = 'its generator starts from 32 random bits, which can be tried one by one'
_NOT_CRYPTOGRAPHIC = 'its generator is not a cryptographic one'


class Exposure(NamedTuple):
  """The part of the releases that a client's rounds can move: by default one vector of the clipping norm a round.

  Attributes:
    of_one_round: The norm of everything that one round of a client moves, over the clipping norm.
    largest: √ of the most that one more round adds to a client's μ², at a noise multiplier of 1.
    added: For each planned round, what it adds to μ² of each of its clients, by id; empty if it is always 1.
  """

  of_one_round: float = 1.0
  largest: float = 1.0
  added: Sequence[dict[int, float]] = ()

  def weights(self, round_num: int, cohort: np.ndarray) -> np.ndarray:
    """float64[M] in [0, 1]: √ of the round's part of μ² of each client in its cohort, over `largest`."""
    if not self.added:
      return np.ones(len(cohort))
    planned = self.added[round_num - 1]
    if sorted(planned) != sorted(cohort):
      raise ValueError(
        f'The noise of the tree was chosen for the planned cohorts, but round {round_num} has another. Planned are '
        f'the clients {sorted(planned)}, found {sorted(cohort)}.'
      )
    return np.sqrt([planned[client] for client in cohort]) / self.largest


def tree_exposure(cohorts: Sequence[np.ndarray], num_clients: int) -> Exposure:
  """The exposure in a binary tree over rounds, each node of which is released with noise of its own.

  DP-FTRL's releases follow from noised nodes: a node's sum over its 2^d rounds + N(0, (z·C)²), when the last one is
  done. A client that takes part in n of a node's rounds moves that sum by at most n·C, whatever was released before, so
  by the (adaptive) composition of Gaussians

      μ_i² = Σ_nodes n_i(node)² / z²

  This is what Denisov et al. 2022 have for matrices with the tree's rows, with a client's contributions aligned, which
  is the worst case. Each participation is charged with what it adds to the sum, n² - (n-1)² for each node over its
  round, at once, though the nodes above end later; nodes that no planned round completes are never released. Rounds
  with nobody are not leaves of the tree.

  Args:
    cohorts: Distinct ids of who takes part in rounds 1, 2, ….
    num_clients: N; ids lie in [0, N).
  """
  num_leaves = sum(len(cohort) > 0 for cohort in cohorts)
  levels = num_leaves.bit_length()
  spans = 1 << np.arange(levels)
  counts, leaf = np.zeros([num_clients, levels], np.int64), 0
  added: list[dict[int, float]] = []
  for cohort in cohorts:
    if not len(cohort):
      added.append({})
      continue
    counts[:, leaf % spans == 0] = 0
    counts[cohort] += 1
    is_released = (leaf // spans + 1) * spans <= num_leaves
    moved = ((2 * counts[cohort] - 1) * is_released).sum(axis=1).astype(float).tolist()
    added.append(dict(zip(map(int, cohort), moved)))
    leaf += 1
  largest = max([1.0] + [value for one in added for value in one.values()]) ** 0.5
  return Exposure(float(max(levels, 1)) ** 0.5, largest, added)


@dataclasses.dataclass(frozen=True)
class StockConfig(checks.Checked, abc.ABC):
  """One of TFF's aggregators and its parameters.

  Attributes:
    takes_noise_seed: Whether TFF accepts a seed for its noise.
    clips_each_layer: Whether each layer has its own clipping norm.
    noises_empty_rounds: Whether a round without clients releases the same noise as any other.
  """

  takes_noise_seed = False
  clips_each_layer = False
  noises_empty_rounds = True

  def __post_init__(self) -> None:
    super().__post_init__()
    self.clip_rule()

  @abc.abstractmethod
  def clip_rule(self) -> clip_rules.ClipRule:
    """Our rule that is most like TFF's: its statements about its releases are also true of TFF's."""

  @abc.abstractmethod
  def stock_aggregator(self, settled: Stock, layers: Sequence[layers_lib.Layer]) -> aggregation.StockAggregator:
    """TFF's aggregator with these parameters and the noise of `settled`, for a model with these layers."""

  def exposure(self, cohorts: Sequence[np.ndarray], num_clients: int) -> Exposure:
    """The meaning of taking part for the account."""
    del cohorts, num_clients
    return Exposure()


@dataclasses.dataclass(frozen=True)
class Stock(mechanism.Configured):
  """A stock aggregator at a noise multiplier, as far as the account sees it. The rounds themselves are TFF's.

  Attributes:
    stock: The aggregator's parameters.
    config: Population, budget and δ.
    noise_multiplier: z, of all that a round adds noise to; for a tree, of each node.
    clients_per_round: The constant by which sums are divided.
    rounds: T.
    exposure: The cost of taking part, for the account.
    is_exact: Whether z was calibrated by exact accounting.
    is_planned: Whether z was calibrated on the planned cohorts.
  """

  stock: StockConfig
  config: configs.QuapConfig
  noise_multiplier: float
  clients_per_round: float
  rounds: int
  # These follow from the cohorts and from how z was chosen.
  exposure: Exposure = dataclasses.field(metadata={checks.NOT_IN_KEYS: True})
  is_exact: bool = dataclasses.field(metadata={checks.NOT_IN_KEYS: True})
  is_planned: bool = dataclasses.field(metadata={checks.NOT_IN_KEYS: True})

  @property
  def facts(self) -> mechanism.Facts:
    # The cost of a tree's nodes depends on who comes, and so does exact calibration.
    noise_follows = 'cohorts' if self.exposure.added else 'nothing'
    if self.is_planned:
      noise_follows = 'plan'
    is_seeded = self.stock.takes_noise_seed
    reason = _NOT_CRYPTOGRAPHIC if is_seeded else _FEW_BITS
    would_repeat = is_seeded and self.config.noise.seed is None
    unexported = _REPEATED if would_repeat else ''
    note = '' if is_seeded else _UNSEEDED
    return mechanism.Facts(
      delta=self.config.noise.delta,
      noise_seed=self.config.noise.seed,
      game='stock',
      # Clipping norms are fixed, or follow from noised counts.
      public_metrics=mechanism.PUBLIC_METRICS | mechanism.PUBLIC_NORMS,
      unsparse="TFF's aggregators take whole updates",
      has_nominal=not self.is_exact and self.config.noise.scale == 1,
      noise_follows=noise_follows,
      divisor=self.clients_per_round,
      noises_empty_rounds=self.stock.noises_empty_rounds,
      # Where TFF takes no seed, a round that is run again draws other noise.
      is_saved_before_release=not is_seeded,
      unexported=unexported,
      noise_note=_IDEAL.format(reason=reason),
      note=note,
    )

  def aggregator_of(self, model: Optional[layers_lib.ModelShape]) -> aggregation.StockAggregator:
    """TFF's aggregator and the facts about it; the model's shape must be known for one that clips by layer."""
    layers = model.layers if model is not None else ()
    return self.stock.stock_aggregator(self, layers)

  def server_parts(
    self,
    model_fn: Optional[mechanism.ModelFn],
    model: Optional[layers_lib.ModelShape],
    server_optimizer: mechanism.Optimizer,
  ) -> tuple[mechanism.AggregationFactory, mechanism.Optimizer]:
    factory = aggregation.StockAggregationFactory(self.aggregator_of(model), self.stock.noises_empty_rounds)
    return factory, server_optimizer

  def measured(
    self, measurements: mechanism.Measurements, model: Optional[layers_lib.ModelShape]
  ) -> json_types.JsonObject:
    stock, anybody = self.aggregator_of(model), measurements['cohort_size'] > 0
    norms = np.asarray(measurements['clipping_norms'], np.float64)
    row: json_types.JsonObject = dict(epsilon=0.0, clipping_norm=np.linalg.norm(norms), noise_multiplier=0.0)
    if anybody:
      row['epsilon'] = self.config.budget.epsilon_base
    if anybody or self.stock.noises_empty_rounds:
      row['noise_multiplier'] = stock.value_noise_multiplier
    if stock.has_one_sigma:
      row['sigma'] = row['noise_multiplier'] * row['clipping_norm'] / stock.clients_per_round
    if self.stock.clips_each_layer and model is not None:
      row.update((f'clipping_norm_{layer.name}', norm) for layer, norm in zip(model.layers, norms))
    return row

  def seen(self, state: mechanism.State) -> mechanism.Evidence:
    return {}

  def spent(self, state: mechanism.State, metrics: mechanism.Measurements, cohort: np.ndarray) -> mechanism.RoundRecord:
    return self._cost(int(metrics['round']), cohort, float(np.linalg.norm(metrics['clipping_norms'])))

  def planned(self, cohorts: Sequence[np.ndarray]) -> list[mechanism.RoundRecord]:
    return [self._cost(round_num, cohort, 1.0) for round_num, cohort in enumerate(cohorts, 1)]

  def _cost(self, round_num: int, cohort: np.ndarray, clipping_norm: float) -> mechanism.RoundRecord:
    is_noised = self.stock.noises_empty_rounds or len(cohort)
    noise_multiplier = self.noise_multiplier / self.exposure.largest if is_noised else 0.0
    return mechanism.RoundRecord(
      cohort=cohort,
      budgets=np.full(len(cohort), self.config.budget.epsilon_base),
      weights=self.exposure.weights(round_num, cohort),
      noise_multiplier=noise_multiplier,
      # z is that of sums and noised counts together.
      count_noise_multiplier=np.inf,
      clipping_norm=clipping_norm,
    )


@dataclasses.dataclass(frozen=True)
class DpFedAvg(StockConfig):
  """`DifferentiallyPrivateFactory.gaussian_fixed`.

  Attributes:
    clip: The clipping norm of a client's update.
  """

  clip: float = 1.0

  def clip_rule(self) -> clip_rules.ClipRule:
    return clip_rules.Fixed(self.clip)

  def stock_aggregator(self, settled: Stock, layers: Sequence[layers_lib.Layer]) -> aggregation.StockAggregator:
    return aggregation.fixed_clip(settled.noise_multiplier, settled.clients_per_round, float(self.clip))


@dataclasses.dataclass(frozen=True)
class DpFedAvgAdaptive(StockConfig):
  """`DifferentiallyPrivateFactory.gaussian_adaptive`.

  Attributes:
    quantile: The share of updates that should stay unclipped.
    initial_clip: The clipping norm of round 1.
    learning_rate: The learning rate of the clipping norm.
    clipped_count_stddev: s, more than z. None: TFF's default, a twentieth of a cohort, or 2·z if that is more. TFF's
      default alone is too small for the noise that whole clients need; 2·z raises the sum's noise by at most 15%.
  """

  quantile: float = 0.5
  initial_clip: float = 1.0
  learning_rate: float = 0.2
  clipped_count_stddev: Optional[float] = checks.number_field('clipped_count_stddev', None, above=0)

  def clip_rule(self) -> clip_rules.ClipRule:
    return clip_rules.PrivateQuantile(self.quantile, self.initial_clip, self.learning_rate)

  def stock_aggregator(self, settled: Stock, layers: Sequence[layers_lib.Layer]) -> aggregation.StockAggregator:
    # Layer by layer, z is √L·z, and `clipped_count_stddev`, of each layer's count, must be more than that.
    factor = len(layers) ** 0.5 if self.clips_each_layer else 1.0
    multipliers = self.split(settled.noise_multiplier * factor, settled.clients_per_round)
    rule = float(self.quantile), float(self.initial_clip), float(self.learning_rate)
    if self.clips_each_layer:
      return aggregation.layerwise_clip(*multipliers, settled.clients_per_round, layers, *rule)
    return aggregation.adaptive_clip(*multipliers, settled.clients_per_round, *rule)

  def split(self, noise_multiplier: float, clients_per_round: float) -> tuple[float, float]:
    """(z_sum, s) of a sum and its count whose noise multiplier together is the one given.

    Raises:
      ValueError: If the count alone has too little noise.
    """
    stddev = self.clipped_count_stddev
    if stddev is None:
      stddev = max(clients_per_round / 20, 2 * noise_multiplier)
    if stddev <= noise_multiplier:
      raise ValueError(
        f'clipped_count_stddev must be greater than {rounding.up(noise_multiplier)}, the noise multiplier that this '
        f'budget needs, found {stddev:g}. Raise it, or leave it out.'
      )
    return (noise_multiplier**-2 - stddev**-2) ** -0.5, float(stddev)


@dataclasses.dataclass(frozen=True)
class LayerwiseAdaptive(DpFedAvgAdaptive):
  """TensorFlow Privacy's adaptive clipping for each layer by itself, in a `NestedSumQuery`."""

  clips_each_layer = True


@dataclasses.dataclass(frozen=True)
class DpFtrl(DpFedAvg):
  """`DifferentiallyPrivateFactory.tree_aggregation` (Kairouz et al. 2021): efficient estimates, one tree for all.

  z is that of each node, and no amplification by sampling holds. The aggregate of a round is the difference of noised
  cumulative sums, so plain SGD at the server is FTRL; any other server optimizer is post-processing of the same
  releases.
  """

  takes_noise_seed = True
  noises_empty_rounds = False

  def exposure(self, cohorts: Sequence[np.ndarray], num_clients: int) -> Exposure:
    return tree_exposure(cohorts, num_clients)

  def stock_aggregator(self, settled: Stock, layers: Sequence[layers_lib.Layer]) -> aggregation.StockAggregator:
    # Without a seed TFF would take the time of day, which can be guessed.
    seed = settled.config.noise.seed
    seed = secrets.randbits(63) if seed is None else seed
    return aggregation.tree(settled.noise_multiplier, settled.clients_per_round, float(self.clip), settled.rounds, seed)
