"""TFF's aggregators as values, and their account: what taking part moves, and what a round costs."""

from __future__ import annotations

import abc
from collections.abc import Sequence
import dataclasses
from typing import Any, NamedTuple, Optional, TYPE_CHECKING

import numpy as np

from quap_tff.common import checks
from quap_tff.mechanisms import mechanism
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.parts import layers as layers_lib
from quap_tff.mechanisms.quap import config as configs

if TYPE_CHECKING:
  from quap_tff.plans import stock_aggregation

_UNSEEDED = (
  "TFF's noise takes no seed: a run that was interrupted and resumed is not bit for bit the uninterrupted one."
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


class Given(NamedTuple):
  """What a plan settles for its aggregator.

  Attributes:
    noise_multiplier: z.
    clients_per_round: The constant by which sums are divided.
    layers: The model's layers.
    rounds: T, the planned rounds.
    seed: Seed of the noise, where TFF takes one.
  """

  noise_multiplier: float
  clients_per_round: float
  layers: Sequence[layers_lib.Layer]
  rounds: int
  seed: Optional[int]


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

  def __post_init__(self):
    super().__post_init__()
    self.clip_rule()

  @abc.abstractmethod
  def clip_rule(self) -> clip_rules.ClipRule:
    """Our rule that is most like TFF's: its statements about its releases are also true of TFF's."""

  @abc.abstractmethod
  def stock_aggregator(self, given: Given) -> stock_aggregation.StockAggregator:
    """TFF's aggregator with these parameters."""

  def exposure(self, cohorts: Sequence[np.ndarray], num_clients: int) -> Exposure:
    """What taking part means for the account."""
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
    return mechanism.Facts(
      delta=self.config.noise.delta,
      # Clipping norms are fixed, or follow from noised counts.
      public_metrics=mechanism.PUBLIC_METRICS | mechanism.PUBLIC_NORMS,
      takes_sparsity=False,
      is_playable=False,
      has_nominal=not self.is_exact and self.config.noise.scale == 1,
      # The cost of a tree's nodes depends on who comes, and so does exact calibration.
      noise_is_constant=not self.exposure.added and self.stock.noises_empty_rounds,
      noise_is_planned=self.is_planned,
      divisor=self.clients_per_round,
      noises_empty_rounds=self.stock.noises_empty_rounds,
      # Where TFF takes no seed, a round that is run again draws other noise.
      is_saved_before_release=not self.stock.takes_noise_seed,
      noise_note=_IDEAL.format(reason=_NOT_CRYPTOGRAPHIC if self.stock.takes_noise_seed else _FEW_BITS),
      note='' if self.stock.takes_noise_seed else _UNSEEDED,
    )

  def seen(self, state: Any) -> dict[str, Any]:
    return {}

  def spent(self, state: Any, metrics: Any, cohort: np.ndarray) -> mechanism.Spent:
    return self._cost(int(metrics['round']), cohort, float(np.linalg.norm(metrics['clipping_norms'])))

  def planned(self, cohorts: Sequence[np.ndarray]) -> list[mechanism.Spent]:
    return [self._cost(round_num, cohort, 1.0) for round_num, cohort in enumerate(cohorts, 1)]

  def _cost(self, round_num, cohort, clipping_norm):
    is_noised = self.stock.noises_empty_rounds or len(cohort)
    return mechanism.Spent(
      cohort=cohort,
      budgets=np.full(len(cohort), self.config.budget.epsilon_base),
      weights=self.exposure.weights(round_num, cohort),
      noise_multiplier=self.noise_multiplier / self.exposure.largest if is_noised else 0.0,
      # z is that of sums and noised counts together.
      count_noise_multiplier=np.inf,
      clipping_norm=clipping_norm,
    )
