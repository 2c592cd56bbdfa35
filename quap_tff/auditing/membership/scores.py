"""The score of a canary from its projections: N(0, 1) for a canary that is not there, N(μ, 1) for one that is.

In round t, a canary that is there moves the projection on its direction by a_t. The noise on the projections of all
rounds has the covariance Σ. The best test of Neyman and Pearson is then the matched filter aᵀΣ⁻¹p / √(aᵀΣ⁻¹a), and
μ = √(aᵀΣ⁻¹a).
"""

from typing import Any, NamedTuple

import numpy as np
from sklearn import covariance as covariances

# The share of the mean variance that is added to a covariance, so that a release without noise can be inverted, too.
_RIDGE = 1e-9


class Filter(NamedTuple):
  """A matched filter for some directions.

  Attributes:
    weights: float64[T, B], Σ⁻¹a of each direction.
    mu: float64[B], √(aᵀΣ⁻¹a): the mean score of a canary that is there.
  """

  weights: np.ndarray
  mu: np.ndarray

  def scores(self, projections: np.ndarray) -> np.ndarray:
    """float64[B], the scores of projections float64[T, B]."""
    return (self.weights * projections).sum(axis=0) / self.mu


def matched_filter(templates: np.ndarray, covariance: np.ndarray) -> Filter:
  """The best filter.

  Args:
    templates: float64[T, B], a_t of each direction; not all zero for any of them.
    covariance: float64[T, T], Σ.
  """
  ridge = _RIDGE * np.trace(covariance) / len(covariance)
  weights = np.linalg.solve(covariance + ridge * np.eye(len(covariance)), templates)
  return Filter(weights, np.sqrt((weights * templates).sum(axis=0)))


def estimated(projections: Any) -> np.ndarray:
  """Σ estimated from directions that nobody added (Ledoit and Wolf 2004), float64[T, T].

  Args:
    projections: float64[T, B]. A direction that is used here must not be counted as a trial.
  """
  found, _ = covariances.ledoit_wolf(np.asarray(projections).T, assume_centered=True)
  return found
