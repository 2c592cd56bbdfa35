"""Local privacy as a method: nobody has to trust the server."""

from __future__ import annotations

import dataclasses

from experiments.methods import base
from quap_tff import plans
from quap_tff.common import registry
from quap_tff.mechanisms import budgets
from quap_tff.mechanisms import clip_rules
from quap_tff.mechanisms import config as configs
from quap_tff.mechanisms import layers as layers_lib

_BUDGETS = ('participation', 'uniform')


@dataclasses.dataclass(frozen=True)
class LocalDp(base.Method):
  """Local differential privacy: each client adds its own Gaussian noise to everything that it sends.

  A message is the client's update, clipped to norm C, plus N(0, (2·C·z(ε_i(t), δ))²) on every weight
  (`quap_tff.federated.local_aggregation`). It is (ε_i(t), δ)-private for the client's whole data against the server.

  Attributes:
    clip: C. No client sends a norm, so C cannot follow the norms.
    budget: 'participation': ε_i(t) follows QuAP-FL's budgets, with --alpha, --beta and the flags of rates. 'uniform':
      ε_base for everyone.
  """

  withholds_client_metrics = True
  noise_of_its_own = True
  takes_sparsity = True

  clip: float = 1.0
  budget: str = 'participation'

  def __post_init__(self):
    clip_rules.Fixed(self.clip)
    if self.budget not in _BUDGETS:
      raise registry.unknown_name_error('local budget', self.budget, _BUDGETS)

  @property
  def unused(self):
    names = base.TUNING | base.OF_CLIP | {'noise', 'gaussian_calibration', 'round_budget'}
    return frozenset(names | (base.OF_BUDGETS if self.budget == 'uniform' else set()))

  def configure(self, values, num_clients):
    if values.client_metrics:
      raise ValueError(
        '--client_metrics: under local_dp a client sends its noised update and nothing else, so there are no '
        'training metrics. Leave this flag out.'
      )
    budget = budgets.BudgetConfig(
      epsilon_total=values.epsilon, num_rounds=values.rounds, alpha=values.alpha, beta=values.beta
    )
    return configs.QuapConfig(
      num_clients=num_clients,
      budget=budget if self.budget == 'participation' else budgets.uniform(budget),
      participation=base.participation_config(values),
      clip=clip_rules.Fixed(self.clip),
      clip_scope='all_layers',
      critical_layers=layers_lib.ALL,
      noise=configs.NoiseConfig(placement='client', delta=values.delta, calibration='analytic', seed=values.noise_seed),
    )

  def plan(self, config, setting):
    plan = plans.LocalPlan(config, setting.participation.sampler, **setting.options)
    return plan.calibrated(setting.schedule, config.budget.epsilon_total) if setting.calibration == 'exact' else plan
