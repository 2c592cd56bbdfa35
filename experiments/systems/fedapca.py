"""FedAPCA, an interpretation: clients in clusters of similar budgets, and clusters weighted by inverse variance.

    cluster of i   ⌊K·(ε_i - min ε)/(max ε - min ε)⌋, at most K - 1
    λ_c ∝ 1/v_c,   v_c = Σ_{i in c} z(ε_i)²/M_c², the variance of the mean of cluster c in units of C²
    s_i = M·λ_c/M_c / Σ_c λ_c,  for i in cluster c

Of Wang, Zhang, Tian and Li 2024, "Local differential privacy federated learning based on heterogeneous data
multi-privacy mechanism" (Computer Networks 254), only the abstract could be read: updates are aggregated cluster by
cluster, after the variance of the perturbation.
"""

from __future__ import annotations

import dataclasses
from typing import Callable

import numpy as np

from quap_tff import methods
from quap_tff.common import array_types
from quap_tff.common import checks
from quap_tff.common.numbers import arrays
from quap_tff.mechanisms.parts import budgets
from quap_tff.mechanisms.parts import weighting
from quap_tff.mechanisms.quap import config as configs
from quap_tff.methods import base
from quap_tff.methods import choices


@dataclasses.dataclass(frozen=True)
class Clusters(weighting.Weighting):
  """Clusters of clients with similar budgets: a mean in each cluster, then a mean of the clusters by inverse variance.

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


@dataclasses.dataclass(frozen=True)
class FedApca(
  choices.Shape,
  choices.Clip,
  choices.LayersChoice,
  choices.ScaleChoice,
  choices.SparseChoice,
  choices.Robust,
  base.QuapMechanism,
):
  """An interpretation: clients in clusters of similar budgets, and clusters weighted by their noise, see
  `experiments.systems.fedapca` for the equations.

  Clients' budgets follow participation, as in quap: with equal budgets there would be one cluster. Each client's own
  noise is drawn at the server, as large as each client would have added. FedAPCA's piecewise mechanism (bounded noise
  by layer, at the clients) is replaced by QuAP-FL's clip and Gaussian noise, and its budgets by accuracy and loss by
  QuAP-FL's budgets: accuracy and loss are exact functions of clients' data. --clip and --critical_layers apply as in
  quap.

  Attributes:
    clusters: K, the number of clusters.
  """

  title = 'FedAPCA (an interpretation)'

  clusters: int = 3

  interpretation = (
    'fedapca is an interpretation: of the paper on FedAPCA only the abstract could be read, and its mechanism and '
    "budgets are replaced by QuAP-FL's."
  )

  def __post_init__(self) -> None:
    Clusters(self.clusters)

  def check_cohorts(self, setting: base.Setting) -> None:
    if self.clusters > setting.num_clients:
      raise ValueError(
        f'--algorithm=fedapca:clusters={self.clusters}: there are only {setting.num_clients} clients to be clustered. '
        f'Give at most {setting.num_clients} clusters, or more clients.'
      )

  def configure(self, setting: base.Setting) -> configs.QuapConfig:
    budget = budgets.BudgetConfig(self.epsilon, setting.rounds, self.alpha, self.beta, round_rule='each_own')
    return self.quap_config(setting, budget=budget, weighting=Clusters(self.clusters))


methods.METHODS['fedapca'] = FedApca
