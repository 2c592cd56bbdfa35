"""Budgets by transactions: an interpretation of PT-ADP (Wang et al. 2024), which the documents name and don't specify.

    ε_i(t) = min(2·π_i, λ_t·π_i·(1 + min(c_i, 1))),   λ_t such that Σ_{i in S_t} ε_i(t) = M_t·ε_base

π_i is client i's declared preference, log-uniform in [ε_base/2, 2·ε_base], and c_i >= 0 its credits after round t-1.
λ_t exists in every cohort, because the caps 2·π_i are at least ε_base. A client pays for the part of its budget that
exceeds its preference, one credit for each π_i. Taking part earns credits, and so does an update that agrees with the
aggregate of the round before.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
import dataclasses

from quap_tff import methods
from quap_tff.common import array_types
from quap_tff.common import checks
from quap_tff.common.lazy import tf
from quap_tff.common.numbers import seeds
from quap_tff.mechanisms.parts import budgets as budget_rules
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.parts import participation as participations
from quap_tff.methods import base
from quap_tff.methods import choices

# Preferences lie within this factor of ε_base, and budgets within it of preferences.
_FACTOR = 2.0

seeds.STREAMS['preferences'] = 3


@dataclasses.dataclass(frozen=True)
class PtAdp(budget_rules.ClientBudgetRule):
  """An interpretation of PT-ADP.

  State: `preferences` π_i, `credits` c_i, and `given`, the budget of each client in the last round that it was in (0
  before), float32[N] each; and `aggregate`, the noised critical part of the last mean update, float32 tensors.

  Attributes:
    participation_credit: Credits for taking part in a round.
    agreement_credit: Credits for an update in the direction of the last aggregate, in proportion to the cosine; none
      for an update that points away from it.
    seed: Seed of the preferences.
  """

  needs_cohort = True
  observes_updates = True
  unplannable = "the budgets of pt_adp depend on the clients' updates"
  note = (
    'The budgets by transactions are an interpretation of PT-ADP, which the documents compare with and do not specify.'
  )

  participation_credit: float = checks.number_field('participation_credit', 0.1, at_least=0)
  agreement_credit: float = checks.number_field('agreement_credit', 0.5, at_least=0)
  seed: int = checks.integer_field('preference seed', 0, at_least=0, at_most=2**63 - 1)

  def largest(self, config: budget_rules.BudgetConfig) -> float:
    return _FACTOR**2 * config.epsilon_base

  def initial_state(
    self, config: budget_rules.BudgetConfig, num_clients: int, critical_shapes: Sequence[tf.TensorShape]
  ) -> collections.OrderedDict[str, tf.Tensor]:
    # Log-uniform: as many clients declare less than ε_base as declare more.
    exponents = tf.random.stateless_uniform([num_clients], seeds.initial_seed(self.seed, 'preferences'), -1.0, 1.0)
    return collections.OrderedDict(
      preferences=config.epsilon_base * tf.pow(_FACTOR, exponents),
      credits=tf.zeros([num_clients], tf.float32),
      given=tf.zeros([num_clients], tf.float32),
      aggregate=[tf.zeros(shape, tf.float32) for shape in critical_shapes],
    )

  def budgets(
    self, config: budget_rules.BudgetConfig, state: array_types.Structure, client_ids: tf.Tensor, rates: tf.Tensor
  ) -> tf.Tensor:
    preferences, credits = (tf.gather(state[name], client_ids) for name in ('preferences', 'credits'))
    shares = preferences * (1.0 + tf.minimum(credits, 1.0))
    # What the cohort would have without transactions, so these only redistribute.
    total = config.epsilon_base * tf.cast(tf.size(client_ids), tf.float32)
    return tf.cast(_filled(shares, _FACTOR * preferences, total), rates.dtype)

  def announced(self, state: array_types.Structure) -> array_types.Structure:
    return state['aggregate']

  def observe(self, critical_update: Sequence[tf.Tensor], announced: array_types.Structure) -> tf.Tensor:
    """The cosine of the update's critical part, clipped or not, with the last aggregate; 0 if either is zero."""
    product = tf.add_n(
      [tf.zeros([], tf.float64)]
      + [tf.reduce_sum(tf.cast(u, tf.float64) * tf.cast(a, tf.float64)) for u, a in zip(critical_update, announced)]
    )
    norms = clip_rules.global_norm(critical_update) * clip_rules.global_norm(announced)
    return tf.cast(tf.clip_by_value(tf.math.divide_no_nan(product, norms), -1.0, 1.0), tf.float32)

  def next_state(
    self,
    config: budget_rules.BudgetConfig,
    state: array_types.Structure,
    client_ids: tf.Tensor,
    budgets: tf.Tensor,
    observations: tf.Tensor,
  ) -> array_types.Structure:
    indices = client_ids[:, tf.newaxis]
    preferences, credits = (tf.gather(state[name], client_ids) for name in ('preferences', 'credits'))
    # Water-filling may have given less than the credits would have bought. Only what was given is paid.
    bought = tf.clip_by_value(budgets / preferences - 1.0, 0.0, credits)
    earned = self.participation_credit + self.agreement_credit * tf.maximum(observations, 0.0)
    return collections.OrderedDict(
      preferences=state['preferences'],
      credits=tf.tensor_scatter_nd_update(state['credits'], indices, credits - bought + earned),
      given=tf.tensor_scatter_nd_update(state['given'], indices, budgets),
      aggregate=state['aggregate'],
    )

  def given(self, state: array_types.Structure) -> tf.Tensor:
    return state['given']

  def after_round(
    self, state: array_types.Structure, critical_mean: Sequence[tf.Tensor], cohort_size: tf.Tensor
  ) -> array_types.Structure:
    # A round with nobody leaves it as it is.
    aggregate = [
      tf.where(cohort_size > 0, tf.cast(mean, tf.float32), before)
      for mean, before in zip(critical_mean, state['aggregate'])
    ]
    return collections.OrderedDict(state, aggregate=aggregate)


def _filled(shares: tf.Tensor, caps: tf.Tensor, total: tf.Tensor) -> tf.Tensor:
  """min(caps, λ·shares) with the λ that makes the sum `total`, at most Σcaps: water-filling, float32[M] each."""
  # As λ rises, caps are reached in this order.
  order = tf.argsort(caps / shares)
  full = tf.cumsum(tf.gather(caps, order), exclusive=True)
  rest = tf.cumsum(tf.gather(shares, order), reverse=True)
  # However many of the first caps are reached, λ is at least what is left divided by the shares of the others.
  level = tf.reduce_max((total - full) / rest)
  return tf.minimum(caps, level * shares)


@dataclasses.dataclass(frozen=True)
class PtAdpMethod(choices.Clip, choices.LayersChoice, choices.ScaleChoice, choices.Robust, base.QuapMechanism):
  """An interpretation of PT-ADP: budgets that are credited for participation and agreement, see
  `experiments.systems.pt_adp` for the equations.

  Flags set the clip and the critical layers, as in quap. The noise is drawn at the server, and is as large as the sum
  of the noise that each client would have added. There is no warm-up: it is meant for participation rates, and these
  budgets do not follow them.

  Attributes:
    participation_credit: The credits for taking part in a round.
    agreement_credit: The most credits for an update in the direction of the last aggregate.
  """

  title = 'PT-ADP (an interpretation)'

  participation_credit: float = 0.1
  agreement_credit: float = 0.5

  def __post_init__(self) -> None:
    self._rule(0)

  def _rule(self, seed: int) -> PtAdp:
    return PtAdp(self.participation_credit, self.agreement_credit, seed)

  def budgets(self, setting: base.Setting) -> budget_rules.BudgetConfig:
    rule = self._rule(setting.seed)
    return budget_rules.BudgetConfig(self.epsilon, setting.rounds, client_rule=rule, round_rule='each_own')

  def rates(self) -> participations.ParticipationConfig:
    return participations.ParticipationConfig(warmup_rounds=0)


methods.METHODS['pt_adp'] = PtAdpMethod
