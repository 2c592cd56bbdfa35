"""How much each client of a cohort counts in the mean: (1/M)·Σ_i s_i·ū_i, where the shares s_i have the mean 1.

Shares follow from budgets, and budgets from participation, so they release nothing. A client's part of the sum has norm
at most s_i·C, which is what the ledger holds as its weight.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import Callable

import numpy as np

from quap_tff.common import array_types
from quap_tff.common import checks
from quap_tff.common.numbers import arrays


class Weighting(checks.Checked, abc.ABC):
  """How shares follow from budgets. Subclasses are frozen dataclasses.

  Attributes:
    is_equal: Whether every client counts the same.
  """

  is_equal: bool = False

  @abc.abstractmethod
  def shares(
    self, budgets: array_types.Array, multiplier: Callable[[array_types.Array], array_types.Array]
  ) -> array_types.Array:
    """s_i, floats with the shape and type of `budgets`; their mean is 1.

    Args:
      budgets: ε_i(t) of the cohort, float[M].
      multiplier: z(ε), the noise multiplier of a budget.
    """


@dataclasses.dataclass(frozen=True)
class Equal(Weighting):
  """s_i = 1, QuAP-FL's choice."""

  is_equal = True

  def shares(
    self, budgets: array_types.Array, multiplier: Callable[[array_types.Array], array_types.Array]
  ) -> array_types.Array:
    return arrays.namespace(budgets).ones_like(budgets)


@dataclasses.dataclass(frozen=True)
class Clusters(Weighting):
  """Clusters of clients with similar budgets: a mean in each cluster, then a mean of the clusters by inverse variance.

  An interpretation of FedAPCA's hierarchical aggregation (Wang, Zhang, Tian and Li 2024, "Local differential privacy
  federated learning based on heterogeneous data multi-privacy mechanism", Computer Networks 254). Only its abstract
  could be read: updates are aggregated cluster by cluster, after the variance of the perturbation. Here

      cluster of i   ⌊K·(ε_i - min ε)/(max ε - min ε)⌋, at most K - 1
      λ_c ∝ 1/v_c,   v_c = Σ_{i in c} z(ε_i)²/M_c², the variance of the mean of cluster c in units of C²
      s_i = M·λ_c/M_c / Σ_c λ_c,  for i in cluster c

  Attributes:
    clusters: K >= 1. With one cluster every client counts the same.
  """

  clusters: int = checks.integer_field('clusters', 3, at_least=1, at_most=1000)

  def shares(
    self, budgets: array_types.Array, multiplier: Callable[[array_types.Array], array_types.Array]
  ) -> array_types.Array:
    xp = arrays.namespace(budgets)
    size = arrays.size(budgets)
    if xp is np and not size:  # NumPy has no minimum of nothing.
      return budgets
    lowest, highest = xp.min(budgets), xp.max(budgets)
    # Budgets that differ by rounding only are one cluster.
    width = xp.maximum(highest - lowest, 1e-6 * highest)
    place = xp.minimum(xp.floor(self.clusters * (budgets - lowest) / width), self.clusters - 1.0)
    same = arrays.cast(xp.equal(place[:, None], place[None, :]), budgets.dtype)
    members = xp.sum(same, axis=1)
    squares = xp.sum(same * xp.square(multiplier(budgets))[None, :], axis=1)
    raw = members / squares  # λ_c/M_c for the cluster of each client.
    return raw * arrays.cast(size, budgets.dtype) / xp.sum(raw)
