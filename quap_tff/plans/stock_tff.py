"""TFF's own differentially private aggregators as plans: DP-FedAvg with fixed and adaptive clipping, and DP-FTRL.

Local training, cohorts, server optimizer, budget and accountants are those of every plan. The aggregators are TFF's,
without zeroing, which TFF's own account does not cover. They divide by the constant mean size of a cohort. The
neighbouring relation is that of every plan, too: a client's data against none, with its participation known.

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
from typing import Any, Optional

import numpy as np

from quap_tff import accounting
from quap_tff.common import checks
from quap_tff.common import lazy
from quap_tff.common import rounding
from quap_tff.mechanisms import budgets
from quap_tff.mechanisms import clip_rules
from quap_tff.mechanisms import config as configs
from quap_tff.mechanisms import gaussian
from quap_tff.mechanisms import layers as layers_lib
from quap_tff.plans import base

learning_process = lazy.module('quap_tff.federated.learning_process')
stock_aggregation = lazy.module('quap_tff.plans.stock_aggregation')

CALIBRATIONS = ('documents', 'exact')

_UNSEEDED = (
  "TFF's noise takes no seed: a run that was interrupted and resumed is not bit for bit the uninterrupted one."
)
_IDEAL = (
  'The figures are for ideal Gaussian noise; the noise that TFF adds is weaker: {reason}. It is drawn as single '
  "float32 numbers, whose low bits reveal whether a guess of a client's update is right."
)
_FEW_BITS = 'its generator starts from 32 random bits, which can be tried one by one'
_NOT_CRYPTOGRAPHIC = 'its generator is not a cryptographic one'


class Exposure:
  """What a client's rounds can move in what is released: here one vector, of at most the clipping norm, in each round.

  Attributes:
    of_one_round: The norm of everything that one round of a client moves, over the clipping norm.
    largest: √ of the most that one more round adds to a client's μ², at a noise multiplier of 1.
  """

  of_one_round = 1.0
  largest = 1.0

  def weights(self, round_num: int, cohort: np.ndarray) -> np.ndarray:
    """float64[M] in [0, 1]: √ of what the round adds to μ² of each of its cohort, over `largest`."""
    del round_num
    return np.ones(len(cohort))


class TreeExposure(Exposure):
  """The same for a binary tree over rounds, each node of which is released with noise of its own.

  DP-FTRL's releases follow from noised nodes: a node's sum over its 2^d rounds + N(0, (z·C)²), when the last one is
  done. A client that takes part in n of a node's rounds moves that sum by at most n·C, whatever was released before, so
  by the (adaptive) composition of Gaussians

      μ_i² = Σ_nodes n_i(node)² / z²

  This is what Denisov et al. 2022 have for matrices with the tree's rows, with a client's contributions aligned, which
  is the worst case. Each participation is charged with what it adds to the sum, n² - (n-1)² for each node over its
  round, at once, though the nodes above end later; nodes that no planned round completes are never released. Rounds
  with nobody are no leaves of the tree.
  """

  def __init__(self, cohorts: Sequence[np.ndarray], num_clients: int):
    """Initializes the exposure.

    Args:
      cohorts: Distinct ids of who takes part in rounds 1, 2, ….
      num_clients: N; ids lie in [0, N).
    """
    num_leaves = sum(len(cohort) > 0 for cohort in cohorts)
    levels = num_leaves.bit_length()
    counts = np.zeros([num_clients, levels], np.int64)
    added: list[np.ndarray] = []
    leaf = 0
    for cohort in cohorts:
      if not len(cohort):
        added.append(np.zeros(0))
        continue
      spans = 1 << np.arange(levels)
      counts[:, leaf % spans == 0] = 0
      counts[cohort] += 1
      is_released = (leaf // spans + 1) * spans <= num_leaves
      added.append(((2 * counts[cohort] - 1) * is_released).sum(axis=1).astype(np.float64))
      leaf += 1
    self._cohorts, self._added = [list(map(int, cohort)) for cohort in cohorts], added
    self.of_one_round = float(max(levels, 1)) ** 0.5
    self.largest = max([1.0] + [float(values.max()) for values in added if len(values)]) ** 0.5

  def weights(self, round_num, cohort):
    planned, added = self._cohorts[round_num - 1], self._added[round_num - 1]
    if sorted(planned) != sorted(cohort):
      raise ValueError(
        f'The noise of the tree was chosen for the planned cohorts, but round {round_num} has another. Planned are '
        f'the clients {sorted(planned)}, found {sorted(cohort)}.'
      )
    by_client = dict(zip(planned, added))
    return np.sqrt([by_client[client] for client in cohort]) / self.largest


@dataclasses.dataclass(frozen=True)
class StockConfig(abc.ABC):
  """One of TFF's aggregators and its parameters.

  Attributes:
    takes_noise_seed: Whether TFF accepts a seed for its noise.
    clips_each_layer: Whether each layer has its own clipping norm.
    noises_empty_rounds: Whether a round without clients releases the same noise as any other.
  """

  takes_noise_seed = False
  clips_each_layer = False
  noises_empty_rounds = True

  @abc.abstractmethod
  def clip_rule(self) -> clip_rules.ClipRule:
    """Our rule that is most like TFF's: what it says about its releases is also true of TFF's."""

  @abc.abstractmethod
  def aggregator(
    self,
    noise_multiplier: float,
    clients_per_round: float,
    layers: Sequence[layers_lib.Layer],
    rounds: int,
    seed: Optional[int],
  ) -> stock_aggregation.StockAggregator:
    """The aggregator at a noise multiplier z.

    Args:
      noise_multiplier: z.
      clients_per_round: The constant by which sums are divided.
      layers: The model's layers.
      rounds: T, the planned rounds.
      seed: Seed of the noise, where TFF takes one.
    """

  def exposure(self, cohorts: Sequence[np.ndarray], num_clients: int) -> Exposure:
    """What taking part means for the account."""
    del cohorts, num_clients
    return Exposure()


@dataclasses.dataclass(frozen=True)
class DpFedAvg(StockConfig):
  """`DifferentiallyPrivateFactory.gaussian_fixed`."""

  clip: float = 1.0

  def __post_init__(self):
    self.clip_rule()

  def clip_rule(self):
    return clip_rules.Fixed(self.clip)

  def aggregator(self, noise_multiplier, clients_per_round, layers, rounds, seed):
    return stock_aggregation.FixedClip(noise_multiplier, clients_per_round, float(self.clip))


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
  clipped_count_stddev: Optional[float] = None

  def __post_init__(self):
    self.clip_rule()
    if self.clipped_count_stddev is not None:
      checks.number('clipped_count_stddev', self.clipped_count_stddev, above=0)

  def clip_rule(self):
    return clip_rules.PrivateQuantile(self.quantile, self.initial_clip, self.learning_rate)

  def aggregator(self, noise_multiplier, clients_per_round, layers, rounds, seed):
    value_multiplier, count_stddev = self.split(noise_multiplier, clients_per_round)
    return stock_aggregation.AdaptiveClip(value_multiplier, count_stddev, clients_per_round, **self._quantile())

  def _quantile(self):
    return dict(
      quantile=float(self.quantile), initial_clip=float(self.initial_clip), learning_rate=float(self.learning_rate)
    )

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
  """TensorFlow Privacy's adaptive clipping for each layer by itself, in a `NestedSumQuery`.

  With √L·z in place of z: `clipped_count_stddev`, of each layer's count, must be more than √L·z.
  """

  clips_each_layer = True

  def aggregator(self, noise_multiplier, clients_per_round, layers, rounds, seed):
    value_multiplier, count_stddev = self.split(noise_multiplier * len(layers) ** 0.5, clients_per_round)
    return stock_aggregation.LayerwiseClip(
      value_multiplier, count_stddev, clients_per_round, layers=tuple(layers), **self._quantile()
    )


@dataclasses.dataclass(frozen=True)
class DpFtrl(StockConfig):
  """`DifferentiallyPrivateFactory.tree_aggregation` (Kairouz et al. 2021): efficient estimates, one tree for all.

  z is that of each node, and no amplification by sampling holds. The aggregate of a round is the difference of noised
  cumulative sums, so plain SGD at the server is FTRL; any other server optimizer is post-processing of the same
  releases.
  """

  takes_noise_seed = True
  noises_empty_rounds = False

  clip: float = 1.0

  def __post_init__(self):
    self.clip_rule()

  def clip_rule(self):
    return clip_rules.Fixed(self.clip)

  def exposure(self, cohorts, num_clients):
    return TreeExposure(cohorts, num_clients)

  def aggregator(self, noise_multiplier, clients_per_round, layers, rounds, seed):
    # Without a seed TFF would take the time of day, which can be guessed.
    seed = secrets.randbits(63) if seed is None else seed
    return stock_aggregation.Tree(noise_multiplier, clients_per_round, float(self.clip), rounds, seed)


class StockPlan(base.Plan):
  """A stock aggregator with noise multiplier z, calibrated from a budget."""

  _has_constant_divisor = True

  def __init__(
    self,
    stock: StockConfig,
    config: configs.QuapConfig,
    cohorts: Sequence[np.ndarray],
    clients_per_round: Optional[float],
    draw: accounting.Sampler = accounting.Sampler(),
    *,
    calibration: str = 'documents',
    **options,
  ):
    """Initializes the plan.

    Args:
      stock: The aggregator.
      config: Population, total budget, δ, and the Gaussian calibration; the rest of it is settled by the aggregator.
      cohorts: int[M_t] for each planned round.
      clients_per_round: The expected size of a cohort, by which sums are divided.
      draw: How the cohorts are drawn.
      calibration: 'documents': each round's noise by the documents' formula. 'exact': the same noise scaled by one
        factor, so that the client that spends most spends ε_total at a total δ by exact accounting.
      **options: Of every plan, see `quap_tff.plans.Plan`.

    Raises:
      ValueError: If the aggregator cannot run so.
    """
    config = self.settled(stock, config)
    super().__init__(config.num_clients, config.noise.delta, draw, **options)
    checks.number(
      "clipping norm of TFF's aggregators",
      config.clip.initial_norm,
      at_least=clip_rules.TFF_SMALLEST_CLIP,
      at_most=clip_rules.TFF_LARGEST_NORM,
    )
    self.config, self._stock, self._clients_per_round = config, stock, self.divisor(clients_per_round)
    cohorts = checks.schedule(cohorts, config.num_clients)
    self._rounds = len(cohorts)
    self.noises_empty_rounds = stock.noises_empty_rounds
    # Where TFF takes no seed, a round that is run again draws other noise.
    self.is_saved_before_release = not stock.takes_noise_seed
    self._exposure = stock.exposure(cohorts, config.num_clients)
    # What a tree's nodes add depends on who comes, and so does exact calibration.
    self._has_constant_noise_multiplier = type(self._exposure) is Exposure
    self._noise_is_planned = calibration == 'exact'
    noise, self._budget = config.noise, config.budget.epsilon_base
    # By the documents' formula a round of a client spends ε_base, with all that it moves.
    formula = gaussian.noise_multiplier(noise.calibration, np.float64(self._budget), noise.delta)
    self._noise_multiplier = noise.scale * self._exposure.of_one_round * float(formula)
    self.has_nominal = calibration == 'documents' and noise.scale == 1
    if calibration == 'exact':
      epsilon = config.budget.epsilon_total
      self._noise_multiplier *= accounting.exact_scale(self.planned_ledger(cohorts), epsilon, noise.delta)
    self.noise_note = _IDEAL.format(reason=_NOT_CRYPTOGRAPHIC if stock.takes_noise_seed else _FEW_BITS)
    # The aggregator, and the model that it was made for; made when it is first asked for.
    self._made_for, self._made = object(), None

  @staticmethod
  def divisor(clients_per_round: Optional[float]) -> float:
    """The expected size of a cohort; raises `ValueError` if it is not known."""
    if clients_per_round is None:
      raise ValueError(
        "TFF's aggregators divide by a constant number of clients, but the mean size of these cohorts is not known "
        'beforehand: use a --participation for which it is (uniform, bernoulli, beta, hybrid, …).'
      )
    return float(clients_per_round)

  @staticmethod
  def settled(stock: StockConfig, config: configs.QuapConfig) -> configs.QuapConfig:
    """The configuration as the aggregator has it.

    Raises:
      ValueError: If TFF's aggregators cannot run with it.
    """
    if config.noise.placement != 'server':
      raise ValueError(
        f"--noise={config.noise.placement}: TFF's aggregators add their noise at the server. Leave --noise out. "
        'For training without noise, use --algorithm=fedavg.'
      )
    if config.noise.seed is not None and not stock.takes_noise_seed:
      raise ValueError(
        "TFF's DP-FedAvg takes no seed for its noise: leave --noise_seed out (tff_dp_ftrl takes one, and so do our "
        'own fixed_dp and adaptive_clip).'
      )
    return dataclasses.replace(
      config,
      budget=budgets.uniform(config.budget),
      clip=stock.clip_rule(),
      clip_scope='critical',
      critical_layers=layers_lib.ALL,
      max_agg_norm=None,
      update_scale='delta',
    )

  @property
  def fingerprint(self):
    config = dataclasses.replace(self.config, noise=dataclasses.replace(self.config.noise, seed=None))
    return repr((self._stock, config, self._noise_multiplier, self._clients_per_round, self._rounds))

  @property
  def protection(self):
    protection = accounting.describe_protection(self.config, self.model, self._exact_logs)
    if self._stock.takes_noise_seed:
      return protection
    return protection._replace(text=f'{protection.text}\n{_UNSEEDED}')

  @property
  def noise_multiplier(self) -> float:
    """z, of all that a round adds noise to; for a tree, of each node."""
    return self._noise_multiplier

  @property
  def stock_aggregator(self) -> Any:
    """TFF's aggregator and what must be known about it; the model's shape must be known for one that clips by layer."""
    if self._made_for != self.model:
      layers = self.model.layers if self.model is not None else ()
      self._made_for, self._made = (
        self.model,
        self._stock.aggregator(
          self._noise_multiplier, self._clients_per_round, layers, self._rounds, self.config.noise.seed
        ),
      )
    return self._made

  @property
  def aggregator(self):
    return stock_aggregation.StockAggregationFactory(self.stock_aggregator, self.noises_empty_rounds)

  @property
  def _layer_names(self):
    return [layer.name for layer in self.model.layers] if self._stock.clips_each_layer and self.model else []

  @property
  def public_metrics(self):
    # Clipping norms are fixed, or follow from noised counts.
    return base.PUBLIC_METRICS | base.PUBLIC_NORMS | {f'clipping_norm_{name}' for name in self._layer_names}

  def _compose(self, model_fn, client_optimizer, server_optimizer, client_work):
    return learning_process.compose(model_fn, self.aggregator, client_optimizer, server_optimizer, client_work)

  def metrics(self, output):
    measurements = base.aggregation_of(output).measurements
    stock = self.stock_aggregator
    anybody = measurements['cohort_size'] > 0
    norms = np.asarray(measurements['clipping_norms'], np.float64)
    row = dict(
      epsilon=self._budget if anybody else 0.0,
      clipping_norm=np.linalg.norm(norms),
      noise_multiplier=stock.value_noise_multiplier if anybody or self.noises_empty_rounds else 0.0,
    )
    if stock.has_one_sigma:
      row['sigma'] = row['noise_multiplier'] * row['clipping_norm'] / self._clients_per_round
    row.update((f'clipping_norm_{name}', norm) for name, norm in zip(self._layer_names, norms))
    return row

  def record(self, output, cohort):
    measurements = base.aggregation_of(output).measurements
    norm = float(np.linalg.norm(measurements['clipping_norms']))
    cohort = base.checked_cohort(cohort, self.num_clients, measurements)
    return self._record(int(measurements['round']), cohort, norm)

  def planned_ledger(self, cohorts):
    return base.planned_ledger(self, cohorts, lambda round_num, cohort: self._record(round_num, cohort, 1.0))

  def _record(self, round_num, cohort, clipping_norm):
    is_noised = self.noises_empty_rounds or len(cohort)
    return accounting.RoundRecord(
      cohort=cohort,
      budgets=np.full(len(cohort), self._budget),
      weights=self._exposure.weights(round_num, cohort),
      noise_multiplier=self._noise_multiplier / self._exposure.largest if is_noised else 0.0,
      # z is that of sums and noised counts together.
      count_noise_multiplier=np.inf,
      clipping_norm=clipping_norm,
    )
