"""What a certified round goes into the run's ledger as."""

from typing import Any

import numpy as np

from quap_tff.accounting import gaussian_tradeoff
from quap_tff.accounting import run_ledger
from quap_tff.certified import config as configs

# The ledger takes no budget of 0, which is what a client of weight 0 has spent.
_NOTHING = float(np.finfo(np.float64).tiny)


def round_record(
    config: configs.CertifiedConfig, state: Any, clipping_norm: float, cohort: np.ndarray
) -> run_ledger.RoundRecord:
  """The ledger's record of a round.

  Nominal budgets are not ε_base, which this mechanism never spends: they are the ε that the round, taken alone, really
  costs each client at δ, the config's total. So the ledger's nominal Σε at k·δ is a proven figure here, if a loose one,
  by basic composition; the certificate's is the exact one.

  Args:
    config: The mechanism.
    state: The aggregator's state after the round.
    clipping_norm: C_t, which the aggregator has measured in the round.
    cohort: int[M], distinct ids of the clients that took part.
  """
  cohort = np.asarray(cohort, np.int64)
  weights = np.asarray(state['weights'])[cohort].astype(np.float64)
  mu = np.sqrt((weights / config.noise_multiplier)**2 + config.prices.count_cost * (weights > 0))
  return run_ledger.RoundRecord(
      cohort=cohort,
      budgets=np.maximum(gaussian_tradeoff.epsilon_of(mu, config.delta), _NOTHING),
      weights=weights,
      noise_multiplier=config.noise_multiplier,
      count_noise_multiplier=config.clip.count_noise_multiplier,
      clipping_norm=clipping_norm,
  )
