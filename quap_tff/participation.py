"""Participation rates: how often each client has taken part, p_i(t) = k_i(t) / t (DESIGN 2.1; `002…` eqs. 2 and 3).

All functions are pure and elementwise over clients; they take numpy arrays or tensors and return tensors. Rounds are
counted from 1, and the counts of a round include that round: k_i(t) is known before the budget of round t is computed.
"""

import collections
import dataclasses
from typing import Any

import tensorflow as tf

from quap_tff import checks
from quap_tff import registry

RATES = ('cumulative', 'ema')


@dataclasses.dataclass(frozen=True)
class ParticipationConfig:
  """How participation rates are computed.

  Attributes:
    rate: 'cumulative', p_i(t) = k_i(t)/t; or 'ema', p_i(t) = η·1[i in S_t] + (1-η)·p_i(t-1), p_i(0) = 0.
    ema_weight: η in (0, 1], the weight of the newest round in 'ema'.
    warmup_rounds: T_warm, in rounds t <= T_warm the budget is the plain base budget.
    count_during_warmup: Whether warm-up rounds count. If not, p_i(t) = k_i(t)/(t - T_warm) with k_i counted after the
      warm-up only, as the documents' reference program does.
  """

  rate: str = 'cumulative'
  ema_weight: float = 0.1
  warmup_rounds: int = 5
  count_during_warmup: bool = True

  def __post_init__(self):
    if self.rate not in RATES:
      raise registry.unknown_name_error('participation rate', self.rate, RATES)
    checks.number('participation ema_weight', self.ema_weight, above=0, at_most=1)
    checks.integer('warmup_rounds', self.warmup_rounds, at_least=0)


def in_warmup(config: ParticipationConfig, round_num: Any) -> tf.Tensor:
  """Whether round `round_num` (int, from 1) is a warm-up round."""
  return round_num <= tf.constant(config.warmup_rounds)


def is_counted(config: ParticipationConfig, round_num: Any) -> tf.Tensor:
  """Whether taking part in round `round_num` is counted."""
  return tf.logical_or(config.count_during_warmup, tf.logical_not(in_warmup(config, round_num)))


def initial_state(config: ParticipationConfig, num_clients: int) -> 'collections.OrderedDict[str, tf.Tensor]':
  """`counts` int32[N], all zero, and under 'ema' also `rates` float32[N], all zero."""
  state = collections.OrderedDict(counts=tf.zeros([num_clients], tf.int32))
  if config.rate == 'ema':
    state['rates'] = tf.zeros([num_clients], tf.float32)
  return state


def rates_if_taking_part(config: ParticipationConfig, state: Any, round_num: Any) -> tf.Tensor:
  """p_i(t) that each client has if it takes part in round t.

  Args:
    config: The kind of rate.
    state: The participation state after round t-1, of all clients or of some of them.
    round_num: t, an integer from 1.

  Returns:
    float32, one rate for each client of `state`, in [0, 1].
  """
  counted = is_counted(config, round_num)
  if config.rate == 'ema':
    rates = state['rates']
    return tf.where(counted, config.ema_weight + (1.0 - config.ema_weight) * rates, rates)
  return _cumulative(config, state['counts'] + tf.cast(counted, tf.int32), round_num)


def rates(config: ParticipationConfig, state: Any, round_num: Any) -> tf.Tensor:
  """p_i(t) of every client, float32[N], from the state after round t."""
  if config.rate == 'ema':
    return state['rates']
  return _cumulative(config, state['counts'], round_num)


def _cumulative(config, counts, round_num):
  rounds = round_num if config.count_during_warmup else tf.maximum(round_num - config.warmup_rounds, 1)
  return tf.cast(counts, tf.float32) / tf.cast(rounds, tf.float32)


def next_state(config: ParticipationConfig, state: Any, cohort: tf.Tensor, round_num: Any) -> Any:
  """The participation state after round `round_num`.

  A round with an empty cohort leaves counts and EMA rates as they are: nobody was asked, so nothing was learned about
  who answers.

  Args:
    config: The kind of rate.
    state: The state after the round before.
    cohort: int[M], distinct client ids in [0, N).
    round_num: An integer from 1.
  """
  counted = is_counted(config, round_num)
  indices = tf.reshape(tf.cast(cohort, tf.int64), [-1, 1])
  ones = tf.ones_like(indices[:, 0], tf.int32)
  new = collections.OrderedDict(
      counts=tf.tensor_scatter_nd_add(state['counts'], indices, ones * tf.cast(counted, tf.int32))
  )
  if config.rate == 'ema':
    decayed = (1.0 - config.ema_weight) * state['rates']
    shares = config.ema_weight * tf.cast(ones, tf.float32)
    updated = tf.tensor_scatter_nd_add(decayed, indices, shares)
    keeps = tf.logical_or(tf.logical_not(counted), tf.equal(tf.size(cohort), 0))
    new['rates'] = tf.where(keeps, state['rates'], updated)
  return new


def statistics(config: ParticipationConfig, state: Any, round_num: Any) -> 'collections.OrderedDict[str, tf.Tensor]':
  """Mean, standard deviation, minimum and maximum of the N rates, and the number of clients never counted (int32)."""
  all_rates = rates(config, state, round_num)
  return collections.OrderedDict(
      mean=tf.reduce_mean(all_rates),
      stddev=tf.math.reduce_std(all_rates),
      min=tf.reduce_min(all_rates),
      max=tf.reduce_max(all_rates),
      never_seen=tf.reduce_sum(tf.cast(tf.equal(state['counts'], 0), tf.int32)),
  )
