"""Budgets by transactions: an interpretation of PT-ADP (Wang et al. 2024), which the documents name and don't specify.

    ε_i(t) = min(2·π_i, λ_t·π_i·(1 + min(c_i, 1))),   λ_t such that Σ_{i in S_t} ε_i(t) = M_t·ε_base

π_i is client i's declared preference, log-uniform in [ε_base/2, 2·ε_base], and c_i >= 0 its credits after round t-1.
λ_t exists in every cohort: the caps 2·π_i are at least ε_base. Of a budget, what is above the preference is bought, a
credit for each π_i. Taking part earns credits, and so does an update that agrees with the aggregate of the round
before.
"""

import collections
import dataclasses

import tensorflow as tf

from quap_tff import checks
from quap_tff import seeds
from quap_tff.budget_rules import base

# Preferences lie within this factor of ε_base, and budgets within it of preferences.
_FACTOR = 2.0


@dataclasses.dataclass(frozen=True)
class PtAdp(base.ClientBudgetRule):
  """An interpretation of PT-ADP. State, float32[N] each: `preferences` π_i, `credits` c_i, and `given`, the budget of
  each client in the last round that it was in (0 before).

  Attributes:
    participation_credit: Credits for taking part in a round.
    agreement_credit: Credits for an update that points where the last aggregate did, in proportion to the cosine; none
      for one that points away.
    seed: Of the preferences.
  """

  needs_cohort = True
  uses_agreement = True

  participation_credit: float = 0.1
  agreement_credit: float = 0.5
  seed: int = 0

  def __post_init__(self):
    checks.number('participation_credit', self.participation_credit, at_least=0)
    checks.number('agreement_credit', self.agreement_credit, at_least=0)
    checks.integer('preference seed', self.seed, at_least=0, at_most=2**63 - 1)

  def largest(self, config):
    return _FACTOR**2 * config.epsilon_base

  def initial_state(self, config, num_clients):
    exponents = tf.random.stateless_uniform([num_clients], seeds.initial_seed(self.seed, 'preferences'), -1.0, 1.0)
    return collections.OrderedDict(
        preferences=config.epsilon_base * tf.pow(_FACTOR, exponents),
        credits=tf.zeros([num_clients], tf.float32),
        given=tf.zeros([num_clients], tf.float32),
    )

  def budgets(self, config, state, client_ids, rates):
    preferences, credits = (tf.gather(state[name], client_ids) for name in ('preferences', 'credits'))
    shares = preferences * (1.0 + tf.minimum(credits, 1.0))
    total = config.epsilon_base * tf.cast(tf.size(client_ids), tf.float32)
    return tf.cast(_filled(shares, _FACTOR * preferences, total), rates.dtype)

  def next_state(self, config, state, client_ids, budgets, agreements):
    indices = client_ids[:, tf.newaxis]
    preferences, credits = (tf.gather(state[name], client_ids) for name in ('preferences', 'credits'))
    bought = tf.clip_by_value(budgets / preferences - 1.0, 0.0, credits)
    earned = self.participation_credit + self.agreement_credit * tf.maximum(agreements, 0.0)
    return collections.OrderedDict(
        preferences=state['preferences'],
        credits=tf.tensor_scatter_nd_update(state['credits'], indices, credits - bought + earned),
        given=tf.tensor_scatter_nd_update(state['given'], indices, budgets),
    )


def _filled(shares, caps, total):
  """min(caps, λ·shares) with the λ that makes the sum `total`, at most Σcaps: water-filling, float32[M] each."""
  order = tf.argsort(caps / shares)
  full = tf.cumsum(tf.gather(caps, order), exclusive=True)
  rest = tf.cumsum(tf.gather(shares, order), reverse=True)
  # However many of the first caps are taken as reached, λ is at least what is left over the others' shares.
  level = tf.reduce_max((total - full) / rest)
  return tf.minimum(caps, level * shares)
