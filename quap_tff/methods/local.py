"""Local privacy as a method: no client has to trust the server."""

from __future__ import annotations

import dataclasses

from quap_tff.common import flag_fields
from quap_tff.common import registry
from quap_tff.mechanisms.parts import budgets
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.parts import layers
from quap_tff.mechanisms.parts import participation as participations
from quap_tff.mechanisms.quap import config as configs
from quap_tff.mechanisms.quap import local
from quap_tff.methods import base
from quap_tff.methods import parts

_BUDGETS = ('participation', 'uniform')


@dataclasses.dataclass(frozen=True)
class LocalDp(parts.Shape, parts.Sparse, parts.ServerOptimizer, parts.Calibrated, base.Method):
  """Local differential privacy: each client adds its own Gaussian noise to everything that it sends.

  A message is the client's update, clipped to norm C, plus N(0, (2·C·z(ε_i(t), δ))²) on every weight
  (`quap_tff.mechanisms.quap.local`). It is (ε_i(t), δ)-private for the client's whole data against the server.

  Attributes:
    clip: C. No client sends a norm, so C cannot follow the norms.
    budget: 'participation': ε_i(t) follows QuAP-FL's budgets, with --alpha, --beta and the flags of rates. 'uniform':
      ε_base for everyone.
  """

  withholds_client_metrics = True

  clip: float = 1.0
  budget: str = 'participation'

  def __post_init__(self):
    clip_rules.Fixed(self.clip)
    if self.budget not in _BUDGETS:
      raise registry.unknown_name_error('local budget', self.budget, _BUDGETS)

  def flag_names(self) -> frozenset[str]:
    return super().flag_names() - (flag_fields.flags_of(parts.Shape).keys() if self.budget == 'uniform' else set())

  def configure(self, setting: base.Setting) -> local.Local:
    if setting.asks_client_metrics:
      raise ValueError(
        '--client_metrics: under local_dp a client sends its noised update and nothing else, so there are no '
        'training metrics. Leave this flag out.'
      )
    if self.budget == 'uniform':
      budget = budgets.BudgetConfig(self.epsilon, setting.rounds, round_rule='uniform')
      rates = participations.ParticipationConfig()
    else:
      budget = budgets.BudgetConfig(self.epsilon, setting.rounds, self.alpha, self.beta)
      rates = self.rates()
    config = configs.QuapConfig(
      num_clients=setting.num_clients,
      budget=budget,
      participation=rates,
      clip=clip_rules.Fixed(self.clip),
      clip_scope='all_layers',
      critical_layers=layers.ALL,
      noise=configs.NoiseConfig(placement='client', delta=self.delta, calibration='analytic', seed=self.noise_seed),
    )
    return local.Local(config)
