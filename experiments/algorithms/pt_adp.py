"""QuAP-FL with budgets by transactions: an interpretation of PT-ADP, see `quap_tff.budget_rules.pt_adp`."""

import dataclasses

import numpy as np

from experiments.algorithms import mechanism
import quap_tff
from quap_tff import accounting
from quap_tff import budget_rules


_INTERPRETATION = (
    'The budgets by transactions are an interpretation of PT-ADP, which the documents compare with and do not specify.'
)


class PtAdpMethod(mechanism.MechanismMethod):
  """The mechanism with a budget rule whose budgets depend on clients' data."""

  def __init__(self, setting):
    if setting.calibration == 'exact':
      raise ValueError(
          '--calibration=exact plans a run\'s noise before it begins, and the budgets of pt_adp go by the clients\' '
          'updates: use --calibration=documents.'
      )
    budget = setting.mechanism.budget
    rule = dataclasses.replace(budget.client_rule, seed=setting.cohorts.population.seed)
    config = dataclasses.replace(setting.mechanism, budget=dataclasses.replace(budget, client_rule=rule))
    super().__init__(setting._replace(mechanism=config))
    protection = accounting.describe_protection(
        config,
        setting.layers,
        setting.sizes,
        client_metrics_logged=setting.client_metrics,
        budgets_depend_on_data=True,
    )
    self.protection = protection._replace(text=f'{protection.text}\n{_INTERPRETATION}')

  @property
  def public_metrics(self):
    return super().public_metrics - {'noise_multiplier', 'sigma'}

  def round_record(self, aggregator_state, metrics, cohort):
    given = np.asarray(aggregator_state['budget']['given'], np.float64)[cohort]
    return accounting.RoundRecord(
        cohort=cohort,
        budgets=np.full(len(cohort), np.inf) if self.config.noise.placement == 'none' else given,
        weights=np.ones(len(cohort)),
        noise_multiplier=float(metrics['noise_multiplier']),
        count_noise_multiplier=self.config.clip.count_noise_multiplier,
        clipping_norm=float(metrics['clipping_norm']),
    )


@dataclasses.dataclass(frozen=True)
class PtAdp(mechanism.MechanismAlgorithm):
  """An interpretation: clip and critical layers by their flags, as in quap; budgets by `budget_rules.PtAdp`.

  The noise is what the clients would have added each for itself, drawn at the server. There is no warm-up: it is for
  participation rates, by which these budgets do not go.
  """

  participation_credit: float = 0.1
  agreement_credit: float = 0.5

  def configure(self, config: quap_tff.QuapConfig) -> quap_tff.QuapConfig:
    rule = budget_rules.PtAdp(**dataclasses.asdict(self))
    return dataclasses.replace(
        config,
        budget=dataclasses.replace(config.budget, client_rule=rule, round_rule='each_own'),
        participation=dataclasses.replace(config.participation, warmup_rounds=0),
    )

  def method(self, setting):
    return PtAdpMethod(setting)
