"""The loss of an ideal mechanism's guarantee where integers take the place of real numbers."""

from __future__ import annotations

import math
from typing import NamedTuple, Union

import numpy as np

from quap_tff.common.numbers import tradeoff

# A run's slack covers every ε up to this one: that of several clients together, or against colluders. An ε above it,
# and above the run's own, is not stated.
LARGEST_EPSILON = 60.0


class Slack(NamedTuple):
  """The ideal mechanism is (ε, δ - delta)-private, and the computed one (ε + epsilon, δ)-private.

  Attributes:
    epsilon: Nats, at least 0.
    delta: At least 0.
  """

  epsilon: float = 0.0
  delta: float = 0.0

  def of(self, mu: Union[float, np.ndarray], delta: float) -> np.ndarray:
    """The ε of μ-GDP with this slack: float64s; 0 where μ is 0."""
    return tradeoff.epsilon_of(mu, delta - self.delta) + self.epsilon * (np.asarray(mu) > 0)

  def epsilon_of(self, came: np.ndarray, mu: np.ndarray, delta: float) -> np.ndarray:
    """float64[N], the ε of μ-GDP, with this slack for the clients bool[N] that it is about."""
    epsilons = np.array(tradeoff.epsilon_of(mu, delta))
    epsilons[came] = tradeoff.epsilon_of(mu[came], delta - self.delta) + self.epsilon
    return epsilons


def slack_of_draws(num_draws: int, log_ratio: float, missing: float, delta: float) -> float:
  """ε' with which n draws of computed noise are close to n ideal draws, rounded up; docs/proofs.md has the proof.

      ε' = η·√(2·n·ln(1/δ')) + n·(η·(e^η - 1) + 2·m)

  Each distribution of a draw is a part of at least the mass 1 - m, and a rest. The probability of any event under one
  of the two is at most e^ε' times its probability under the other, plus δ', plus n times the mass of the first one's
  rest. Each draw may depend on all earlier ones.

  Args:
    num_draws: n >= 0.
    log_ratio: η >= 0, the largest |ln| of the ratio of the two parts, each divided by its mass.
    missing: m in [0, 1/2].
    delta: δ' in (0, 1).
  """
  spread = log_ratio * math.sqrt(2 * num_draws * math.log(1 / delta))
  return (spread + num_draws * (log_ratio * math.expm1(log_ratio) + 2 * missing)) * (1 + 2.0**-40)
