"""Models of who takes part in which round, without any data: each is a pure function of (seed, round).

A choice (`ParticipationChoice`) is a frozen dataclass of parameters, parsed from a spec; `over` applies it to a
population and gives the model (`ParticipationModel`) that draws cohorts. `base.independent`, `base.fixed_size` and
`base.weighted` make most models. `data.cohorts` adds those that read files.

The amplification that a sampler earns is stated here, next to the draw, so that an accountant cannot assume more:

| `Sampler`    | the draw                                                             | amplification by sampling     |
| ------------ | -------------------------------------------------------------------- | ----------------------------- |
| `bernoulli`  | each client by its own coin of known rate, independent over rounds   | Poisson, at its `rates`       |
| `fixed_size` | a uniformly random set of M clients, independent over rounds         | without replacement, at M/N   |
| `none`       | all else: unequal weights at a fixed size, availability, everyone    | none                          |

Amplification also requires that the cohorts are secret. By default they follow from a seed that runs publish, and earn
nothing. `cohort_seed` is a seed of their own, and independent coins from it are secret for as long as it is.
"""

from quap_tff.cohorts import stateful
from quap_tff.cohorts import static
from quap_tff.cohorts.base import default_cohort_size
from quap_tff.cohorts.base import ParticipationChoice
from quap_tff.cohorts.base import ParticipationModel
from quap_tff.cohorts.base import Population

MODELS: dict[str, type[ParticipationChoice]] = {
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
}
