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

from collections.abc import Sequence
import dataclasses
import secrets
from typing import Any, Optional, TYPE_CHECKING

import numpy as np

from quap_tff import accounting
from quap_tff.common import checks
from quap_tff.common import lazy
from quap_tff.common.numbers import rounding
from quap_tff.common.numbers import samplers
from quap_tff.mechanisms.noise import gaussian
from quap_tff.mechanisms.parts import budgets
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.parts import layers as layers_lib
from quap_tff.mechanisms.quap import config as configs
from quap_tff.plans import plan
from quap_tff.plans import stock_account

if TYPE_CHECKING:
  from quap_tff.plans import stock_aggregation
else:
  stock_aggregation = lazy.module('quap_tff.plans.stock_aggregation')

CALIBRATIONS = ('documents', 'exact')


@dataclasses.dataclass(frozen=True)
class DpFedAvg(stock_account.StockConfig):
  """`DifferentiallyPrivateFactory.gaussian_fixed`.

  Attributes:
    clip: The clipping norm of a client's update.
  """

  clip: float = 1.0

  def clip_rule(self) -> clip_rules.ClipRule:
    return clip_rules.Fixed(self.clip)

  def stock_aggregator(self, given: stock_account.Given) -> stock_aggregation.StockAggregator:
    return stock_aggregation.fixed_clip(given.noise_multiplier, given.clients_per_round, float(self.clip))


@dataclasses.dataclass(frozen=True)
class DpFedAvgAdaptive(stock_account.StockConfig):
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

  def stock_aggregator(self, given: stock_account.Given) -> stock_aggregation.StockAggregator:
    # Layer by layer, z is √L·z, and `clipped_count_stddev`, of each layer's count, must be more than that.
    factor = len(given.layers) ** 0.5 if self.clips_each_layer else 1.0
    multipliers = self.split(given.noise_multiplier * factor, given.clients_per_round)
    rule = float(self.quantile), float(self.initial_clip), float(self.learning_rate)
    if self.clips_each_layer:
      return stock_aggregation.layerwise_clip(*multipliers, given.clients_per_round, given.layers, *rule)
    return stock_aggregation.adaptive_clip(*multipliers, given.clients_per_round, *rule)

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

  def exposure(self, cohorts: Sequence[np.ndarray], num_clients: int) -> stock_account.Exposure:
    return stock_account.tree_exposure(cohorts, num_clients)

  def stock_aggregator(self, given: stock_account.Given) -> stock_aggregation.StockAggregator:
    # Without a seed TFF would take the time of day, which can be guessed.
    seed = secrets.randbits(63) if given.seed is None else given.seed
    return stock_aggregation.tree(given.noise_multiplier, given.clients_per_round, float(self.clip), given.rounds, seed)


class StockPlan(plan.Plan):
  """A stock aggregator with noise multiplier z, calibrated from a budget."""

  mechanism: stock_account.Stock

  def __init__(
    self,
    stock: stock_account.StockConfig,
    config: configs.QuapConfig,
    cohorts: Sequence[np.ndarray],
    clients_per_round: Optional[float],
    draw: samplers.Sampler = samplers.Sampler(),
    *,
    calibration: str = 'exact',
    **options: Any,
  ):
    """Initializes the plan.

    Args:
      stock: The aggregator.
      config: Population, total budget, δ, and the Gaussian calibration; the rest of it is settled by the aggregator.
      cohorts: int[M_t] for each planned round.
      clients_per_round: The expected size of a cohort, by which sums are divided.
      draw: How the cohorts are drawn.
      calibration: 'documents': each round's noise by the documents' formula. 'exact': the same noise scaled by one
        factor, so that the client that spends most spends ε_total at a total δ by exact accounting. If the cohorts are
        secret, the noise is chosen from the clients' rates: the same for every cohort.
      **options: Of every plan, see `quap_tff.plans.Plan`.

    Raises:
      ValueError: If the aggregator cannot run so.
    """
    config = self.settled(stock, config)
    checks.number(
      "clipping norm of TFF's aggregators",
      config.clip.initial_norm,
      at_least=clip_rules.TFF_SMALLEST_CLIP,
      at_most=clip_rules.TFF_LARGEST_NORM,
    )
    cohorts = checks.schedule(cohorts, config.num_clients)
    exposure = stock.exposure(cohorts, config.num_clients)
    # By the documents' formula a round of a client spends ε_base, with all that it moves.
    noise, budget = config.noise, config.budget
    formula = gaussian.noise_multiplier(noise.calibration, np.float64(budget.epsilon_base), noise.delta)
    multiplier = noise.scale * exposure.of_one_round * float(formula)
    is_exact = calibration == 'exact'
    # What a tree's rounds cost follows from who came.
    rates = draw.rates if is_exact and draw.secret and not exposure.added else None
    if rates is not None:
      multiplier = accounting.sampled_noise_multiplier(rates, len(cohorts), budget.epsilon_total, noise.delta)
    value = stock_account.Stock(
      stock,
      config,
      multiplier,
      self.divisor(clients_per_round),
      len(cohorts),
      exposure,
      is_exact=is_exact,
      is_planned=is_exact and rates is None,
    )
    super().__init__(value, draw, **options)
    if value.is_planned:
      scale = accounting.exact_scale(self.planned_ledger(cohorts), budget.epsilon_total, noise.delta)
      self.mechanism = dataclasses.replace(value, noise_multiplier=multiplier * scale)
    # The aggregator, and the model that it was made for; made when it is first asked for.
    self._made_for: Any = None
    self._made: Optional[stock_aggregation.StockAggregator] = None

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
  def settled(stock: stock_account.StockConfig, config: configs.QuapConfig) -> configs.QuapConfig:
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
  def noise_multiplier(self) -> float:
    """z, of all that a round adds noise to; for a tree, of each node."""
    return self.mechanism.noise_multiplier

  @property
  def stock_aggregator(self) -> stock_aggregation.StockAggregator:
    """TFF's aggregator and the facts about it; the model's shape must be known for one that clips by layer."""
    value = self.mechanism
    if self._made is None or self._made_for != self.model:
      layers = self.model.layers if self.model is not None else ()
      given = stock_account.Given(
        value.noise_multiplier, value.clients_per_round, layers, value.rounds, self.config.noise.seed
      )
      self._made_for, self._made = self.model, value.stock.stock_aggregator(given)
    return self._made

  def _aggregator(self, rate):
    return stock_aggregation.StockAggregationFactory(self.stock_aggregator, self.mechanism.facts.noises_empty_rounds)

  @property
  def _layer_names(self):
    return [layer.name for layer in self.model.layers] if self.mechanism.stock.clips_each_layer and self.model else []

  @property
  def public_metrics(self) -> frozenset[str]:
    return super().public_metrics | {f'clipping_norm_{name}' for name in self._layer_names}

  def metrics(self, output: Any) -> dict[str, Any]:
    measurements = output.metrics['aggregator']
    stock, anybody = self.stock_aggregator, measurements['cohort_size'] > 0
    norms = np.asarray(measurements['clipping_norms'], np.float64)
    row = dict(
      epsilon=self.config.budget.epsilon_base if anybody else 0.0,
      clipping_norm=np.linalg.norm(norms),
      noise_multiplier=stock.value_noise_multiplier if anybody or self.mechanism.facts.noises_empty_rounds else 0.0,
    )
    if stock.has_one_sigma:
      row['sigma'] = row['noise_multiplier'] * row['clipping_norm'] / stock.clients_per_round
    row.update((f'clipping_norm_{name}', norm) for name, norm in zip(self._layer_names, norms))
    return row
