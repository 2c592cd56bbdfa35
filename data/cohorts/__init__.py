"""The participation models by name. A new one is its own file here and one line in `PARTICIPATION_MODELS`."""

from typing import Dict, Optional, Type

from data.cohorts import base
from data.cohorts import bernoulli
from data.cohorts import beta
from data.cohorts import beta_bernoulli
from data.cohorts import extreme_imbalance
from data.cohorts import full
from data.cohorts import hybrid
from data.cohorts import hybrid_reference
from data.cohorts import markov
from data.cohorts import uniform
from data.cohorts.base import ParticipationModel
from data.cohorts.base import Population
from quap_tff import registry

PARTICIPATION_MODELS: Dict[str, Type[base.ParticipationChoice]] = {
    'uniform': uniform.Uniform,
    'full': full.Full,
    'bernoulli': bernoulli.Bernoulli,
    'beta': beta.Beta,
    'beta_bernoulli': beta_bernoulli.BetaBernoulli,
    'extreme_imbalance': extreme_imbalance.ExtremeImbalance,
    'hybrid': hybrid.Hybrid,
    'hybrid_reference': hybrid_reference.HybridReference,
    'markov': markov.Markov,
}


def make(spec: str, num_clients: int, cohort_size: Optional[int], seed: int) -> ParticipationModel:
  """The participation model that `spec` names, over clients 0 to `num_clients` - 1.

  Args:
    spec: E.g. `uniform`, `bernoulli:q=0.3`, `beta:a=2,b=5`; see `PARTICIPATION_MODELS`.
    num_clients: N.
    cohort_size: M; `None` is enough for models of random size (`bernoulli`, `beta_bernoulli`, `extreme_imbalance`,
      `full`, `markov`).
    seed: Non-negative; cohorts are a pure function of it and the round number.

  Raises:
    ValueError: For an unknown name, a value out of range, or a cohort larger than the population.
  """
  choice = registry.parse_spec('participation model', spec, PARTICIPATION_MODELS)
  return choice.over(Population(num_clients=num_clients, cohort_size=cohort_size, seed=seed))
