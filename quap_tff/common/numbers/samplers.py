"""How cohorts are drawn, as far as accounts need to know."""

import dataclasses
from typing import Optional

import numpy as np

from quap_tff.common import checks
from quap_tff.common import registry

KINDS = ('bernoulli', 'fixed_size', 'none')
NOISE_FOLLOWS = ('cohorts', 'plan', 'nothing')


@dataclasses.dataclass(frozen=True, eq=False)
class Sampler:
  """How cohorts are drawn.

  Attributes:
    kind: 'bernoulli': each client by its own coin, independent over clients and rounds. 'fixed_size': a uniformly
      random set of `cohort_size` clients, independent over rounds. 'none': everything else.
    rates: float[N] in [0, 1], the coins' rates; for 'bernoulli'.
    cohort_size: M; for 'fixed_size'.
    constant_divisor: Whether the sum is divided by a public constant that does not depend on who came.
    noise_follows: 'cohorts': the noise multiplier depends on who came, as where the budget follows the cohort's
      participation rates. 'plan': the noise was chosen on the run's own cohorts, and so depends on them. 'nothing': it
      is the same whoever comes.
    noises_empty_rounds: Whether a round that nobody comes to releases the same noise as any other. If it releases
      nothing, it reveals that nobody came.
    secret: Whether the seed of the cohorts and everything that follows from it stay secret. A seed that is a flag, or
      that is kept with the results of the run, is not secret.
    reason: For 'none', why such cohorts amplify nothing, a clause.
  """

  kind: str = 'none'
  rates: Optional[np.ndarray] = None
  cohort_size: Optional[int] = None
  constant_divisor: bool = False
  noise_follows: str = 'cohorts'
  noises_empty_rounds: bool = False
  secret: bool = False
  reason: str = 'nothing is known of how the cohorts are drawn'

  def __post_init__(self):
    if self.kind not in KINDS:
      raise registry.unknown_name_error('sampler', self.kind, KINDS)
    if self.noise_follows not in NOISE_FOLLOWS:
      raise registry.unknown_name_error('cause of noise', self.noise_follows, NOISE_FOLLOWS)
    if (self.rates is not None) != (self.kind == 'bernoulli'):
      raise ValueError(f'Sampler {self.kind!r} {"takes no" if self.rates is not None else "needs"} rates.')
    if (self.cohort_size is not None) != (self.kind == 'fixed_size'):
      words = 'takes no' if self.cohort_size is not None else 'needs a'
      raise ValueError(f'Sampler {self.kind!r} {words} cohort_size.')
    if self.rates is not None:
      rates = np.asarray(self.rates, np.float64)
      if rates.ndim != 1 or not ((rates >= 0) & (rates <= 1)).all():
        raise ValueError('Sampler rates must be float[clients], each at least 0 and at most 1.')
    if self.cohort_size is not None:
      checks.integer('cohort_size', self.cohort_size, at_least=1)
