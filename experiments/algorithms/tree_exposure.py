"""What a client's rounds move in a binary tree over rounds, each node of which is released with noise of its own.

DP-FTRL's releases follow from noised nodes: a node's sum over its 2^d rounds + N(0, (z·C)²), when the last one is done.
A client that takes part in n of a node's rounds moves that sum by at most n·C, whatever was released before, so by the
(adaptive) composition of Gaussians

    μ_i² = Σ_nodes n_i(node)² / z²

This is what Denisov et al. 2022 have for matrices with the tree's rows, with a client's contributions aligned, which is
the worst case. Each participation is charged with what it adds to the sum, n² - (n-1)² for each node over its round, at
once, though the nodes above end later; nodes that no planned round completes are never released.
"""

from typing import List, Sequence

import numpy as np

from experiments.algorithms import tff_method


class TreeExposure(tff_method.Exposure):
  """The exposure of the planned cohorts' clients.

  Rounds with nobody are no leaves of the tree.
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
    added: List[np.ndarray] = []
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
    self._added = added
    self.of_one_round = float(max(levels, 1))**0.5
    self.largest = max([1.0] + [float(values.max()) for values in added if len(values)])**0.5

  def weights(self, round_num, cohort):
    added = self._added[round_num - 1]
    if len(added) != len(cohort):
      raise ValueError(f'Round {round_num} was planned with {len(added)} clients, found {len(cohort)}.')
    return np.sqrt(added) / self.largest
