"""Participation models: who takes part in a round, each a pure function of (seed, round).

A choice (`ParticipationChoice`) is a frozen dataclass of parameters, parsed from a spec; `over` applies it to a
population and gives the model (`ParticipationModel`) that draws cohorts. `base.independent`, `base.fixed_size` and
`base.weighted` make most models. A new choice is a class in a file of this folder and a line in `PARTICIPATION_MODELS`.

The amplification that a sampler earns is stated here, next to the draw, so that an accountant cannot assume more:

| `Sampler`    | the draw                                                             | amplification by sampling     |
| ------------ | -------------------------------------------------------------------- | ----------------------------- |
| `bernoulli`  | each client by its own coin of known rate, independent over rounds   | Poisson, at its `rates`       |
| `fixed_size` | a uniformly random set of M clients, independent over rounds         | without replacement, at M/N   |
| `none`       | all else: unequal weights at a fixed size, availability, everyone    | none                          |

Amplification also requires that the cohorts are secret. By default they follow from a seed that runs publish, and earn
nothing. `cohort_seed` is a seed of their own, and independent coins from it are secret for as long as it is.
"""

from typing import Any, Optional

from data.cohorts import replayed
from data.cohorts import stateful
from data.cohorts import static
from data.cohorts.base import ParticipationChoice
from data.cohorts.base import ParticipationModel
from data.cohorts.base import Population
from quap_tff.common import registry

PARTICIPATION_MODELS: dict[str, type[ParticipationChoice]] = {
  'uniform': static.Uniform,
  'separated': static.Separated,
  'full': static.Full,
  'bernoulli': static.Bernoulli,
  'beta': static.Beta,
  'beta_bernoulli': static.BetaBernoulli,
  'extreme_imbalance': static.ExtremeImbalance,
  'hybrid': static.Hybrid,
  'hybrid_reference': static.HybridReference,
  'markov': stateful.Markov,
  'flpadpm': stateful.FlPadpm,
  'client_selection': stateful.ClientSelection,
  'energy': stateful.Energy,
  'log': replayed.Log,
}


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
  dropout: Optional[Any] = None,
  cohort_seed: Optional[int] = None,
) -> ParticipationModel:
  """The participation model that `spec` names, over clients 0 to `num_clients` - 1.

  Args:
    spec: E.g. `uniform`, `bernoulli:q=0.3`, `beta:a=2,b=5`; see `PARTICIPATION_MODELS`.
    num_clients: N.
    cohort_size: M; `None` is enough for models of random size (`bernoulli`, `beta_bernoulli`, `extreme_imbalance`,
      `full`, `markov`, `energy`).
    seed: Non-negative; cohorts are a pure function of it and the round number.
    dropout: Which clients drop out, a `data.cohorts.dropouts.DropoutModel`, for models that learn from that. None if
      none does.
    cohort_seed: A secret seed, non-negative, that cohorts follow from in place of `seed`; weights and rates do not.

  Raises:
    ValueError: For an unknown name, a value out of range, or a cohort larger than the population.
  """
  choice = registry.parse_spec('participation model', spec, PARTICIPATION_MODELS)
  return choice.over(Population(num_clients, cohort_size, seed, dropout, cohort_seed))
