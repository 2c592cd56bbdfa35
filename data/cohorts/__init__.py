"""Participation models: who takes part in a round. Those of `quap_tff.cohorts`, and those that read files.

A new choice is a class in a file of this folder, or of that one, and a line in `PARTICIPATION_MODELS`.
"""

from typing import Optional

from data.cohorts import replayed
from quap_tff import cohorts
from quap_tff.cohorts import base
from quap_tff.cohorts import ParticipationChoice
from quap_tff.cohorts import ParticipationModel
from quap_tff.cohorts import Population
from quap_tff.common import registry

PARTICIPATION_MODELS: dict[str, type[ParticipationChoice]] = {**cohorts.MODELS, 'log': replayed.ReplayedLog}


def portable(spec: str) -> str:
  """The spec as a run's folder names it, without the places of files on this machine."""
  choice = registry.parse_spec('participation model', spec, PARTICIPATION_MODELS)
  kept = choice.portable()
  return spec if kept is choice else registry.format_spec(spec.partition(':')[0], kept)


def make(
  spec: str,
  num_clients: int,
  cohort_size: Optional[int],
  seed: int,
  dropout: Optional[base.Dropout] = None,
  cohort_seed: Optional[int] = None,
) -> ParticipationModel:
  """The participation model that `spec` names, over clients 0 to `num_clients` - 1.

  Args:
    spec: E.g. `uniform`, `bernoulli:q=0.3`, `beta:a=2,b=5`; see `PARTICIPATION_MODELS`.
    num_clients: N.
    cohort_size: M; `None` is enough for models of random size (`bernoulli`, `beta_bernoulli`, `extreme_imbalance`,
      `full`, `markov`, `energy`).
    seed: Non-negative; cohorts are a pure function of it and the round number.
    dropout: Which clients drop out, for models that learn from that. None if none does.
    cohort_seed: A secret seed, non-negative, that cohorts follow from in place of `seed`; weights and rates do not.

  Raises:
    ValueError: For an unknown name, a value out of range, or a cohort larger than the population.
  """
  choice = registry.parse_spec('participation model', spec, PARTICIPATION_MODELS)
  return choice.over(Population(num_clients, cohort_size, seed, dropout, cohort_seed))
