"""What the guarantee of an ideal mechanism loses where integers take the place of real numbers."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from quap_tff.mechanisms import tradeoff

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

  def of(self, mu: Any, delta: float) -> Any:
    """The ε of μ-GDP with this slack: float64s; 0 where μ is 0."""
    return tradeoff.epsilon_of(mu, delta - self.delta) + self.epsilon * (np.asarray(mu) > 0)
