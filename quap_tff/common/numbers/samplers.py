"""How cohorts are drawn, as far as accounts need to know."""

import dataclasses
from typing import Optional

import numpy as np

from quap_tff.common import checks
from quap_tff.common import registry


@dataclasses.dataclass(frozen=True, eq=False)
class CohortSampler(checks.Checked):
  """How cohorts are drawn.

  Attributes:
    kind: 'bernoulli': each client by its own coin, independent over clients and rounds. 'fixed_size': a uniformly
      random set of `cohort_size` clients, independent over rounds. 'none': everything else.
    rates: float[N] in [0, 1], the coins' rates; for 'bernoulli'.
    cohort_size: M; for 'fixed_size'.
    constant_divisor: Whether the sum is divided by a public constant that does not depend on who came.
    noise_follows: 'cohorts': the noise multiplier depends on who came, as where the budget follows the cohort's
      participation rates. 'plan': the noise was chosen on the run's own cohorts, and so depends on them. 'nothing': it
      is the same for every cohort.
    noises_empty_rounds: Whether a round that nobody comes to releases the same noise as any other. If it releases
      nothing, it reveals that nobody came.
    secret: Whether the seed of the cohorts and everything that follows from it stay secret. A seed that is a flag, or
      that is kept with the results of the run, is not secret.
    reason: For 'none', why such cohorts amplify nothing, a clause.
  """

  kind: str = registry.name_field('sampler', 'none', ('bernoulli', 'fixed_size', 'none'))
  rates: Optional[np.ndarray] = None
  cohort_size: Optional[int] = checks.integer_field('cohort_size', None, at_least=1)
  constant_divisor: bool = False
  noise_follows: str = registry.name_field('cause of noise', 'cohorts', ('cohorts', 'plan', 'nothing'))
  noises_empty_rounds: bool = False
  secret: bool = False
  reason: str = 'nothing is known of how the cohorts are drawn'

  def __post_init__(self) -> None:
    super().__post_init__()
    for name, kind, needs in (('rates', 'bernoulli', 'needs'), ('cohort_size', 'fixed_size', 'needs a')):
      is_given = getattr(self, name) is not None
      if is_given != (self.kind == kind):
        what = 'takes no' if is_given else needs
        raise ValueError(f'Sampler {self.kind!r} {what} {name}.')
    if self.rates is not None:
      rates = np.asarray(self.rates, np.float64)
      if rates.ndim != 1 or not ((rates >= 0) & (rates <= 1)).all():
        raise ValueError('Sampler rates must be float[clients], each at least 0 and at most 1.')
