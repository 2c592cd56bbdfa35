"""Participation rates: how often each client has taken part, p_i(t) = k_i(t) / t.

All functions are pure and elementwise over clients, and take NumPy arrays or tensors. Rounds are counted from 1, and
the counts of a round include that round: k_i(t) is known before the budget of round t is computed. Equations:
docs/method.md, section 4.
"""

import collections
import dataclasses

import numpy as np

from quap_tff.common import array_types
from quap_tff.common import checks
from quap_tff.common import registry
from quap_tff.common.numbers import arrays

RATES = ('cumulative', 'ema')


@dataclasses.dataclass(frozen=True)
class ParticipationConfig(checks.Checked):
  """How participation rates are computed.

  Attributes:
    rate: 'cumulative', p_i(t) = k_i(t)/t; or 'ema', p_i(t) = η·1[i in S_t] + (1-η)·p_i(t-1), p_i(0) = 0.
    ema_weight: η in (0, 1], the weight of the newest round in 'ema'.
    warmup_rounds: T_warm. In rounds t <= T_warm the budget is ε_base.
    count_during_warmup: Whether warm-up rounds count. If not, p_i(t) = k_i(t)/(t - T_warm) with k_i counted after the
      warm-up only, as the documents' reference program does.
  """

  rate: str = registry.name_field('participation rate', 'cumulative', RATES)
  ema_weight: float = checks.number_field('ema_weight', 0.1, above=0, at_most=1)
  warmup_rounds: int = checks.integer_field('warmup_rounds', 5, at_least=0)
  count_during_warmup: bool = True


def in_warmup(config: ParticipationConfig, round_num: array_types.Numbers) -> array_types.Booleans:
  """True if round `round_num` (int, from 1) is a warm-up round."""
  return round_num <= config.warmup_rounds


def is_counted(config: ParticipationConfig, round_num: array_types.Numbers) -> array_types.Booleans:
  """True if taking part in round `round_num` is counted."""
  xp = arrays.namespace(round_num)
  return xp.logical_or(config.count_during_warmup, xp.logical_not(in_warmup(config, round_num)))


def initial_state(config: ParticipationConfig, num_clients: int) -> 'collections.OrderedDict[str, np.ndarray]':
  """`counts` int32[N], all zero, and under 'ema' also `rates` float32[N], all zero."""
  state = collections.OrderedDict(counts=np.zeros(num_clients, np.int32))
  if config.rate == 'ema':
    state['rates'] = np.zeros(num_clients, np.float32)
  return state


def rates_if_taking_part(
  config: ParticipationConfig, state: array_types.Structure, round_num: array_types.Numbers
) -> array_types.Array:
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
    return arrays.namespace(rates).where(counted, config.ema_weight + (1.0 - config.ema_weight) * rates, rates)
  return _cumulative(config, state['counts'] + arrays.cast(counted, np.int32), round_num)


def rates(
  config: ParticipationConfig, state: array_types.Structure, round_num: array_types.Numbers
) -> array_types.Array:
  """p_i(t) of every client, float32[N], from the state after round t."""
  if config.rate == 'ema':
    return state['rates']
  return _cumulative(config, state['counts'], round_num)


def for_clients(state: array_types.Structure, client_ids: array_types.Array) -> array_types.Structure:
  """The participation state of some clients, int[M] ids: also that of `rates` and `rates_if_taking_part`."""
  return collections.OrderedDict((name, arrays.take(values, client_ids)) for name, values in state.items())


def counted_rounds(config: ParticipationConfig, round_num: array_types.Numbers) -> array_types.Array:
  """How many of the rounds 1..t are counted. At least 1, even if none is counted yet: rates are divided by it."""
  uncounted = 0 if config.count_during_warmup else config.warmup_rounds
  return arrays.namespace(round_num).maximum(round_num - uncounted, 1)


def _cumulative(
  config: ParticipationConfig, counts: array_types.Array, round_num: array_types.Numbers
) -> array_types.Array:
  return arrays.cast(counts, np.float32) / arrays.cast(counted_rounds(config, round_num), np.float32)


def next_state(
  config: ParticipationConfig, state: array_types.Structure, cohort: array_types.Ids, round_num: array_types.Numbers
) -> array_types.Structure:
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
  new = collections.OrderedDict(counts=arrays.with_added(state['counts'], cohort, arrays.cast(counted, np.int32)))
  if config.rate == 'ema':
    xp = arrays.namespace(state['rates'], cohort)
    decayed = np.float32(1.0 - config.ema_weight) * state['rates']
    updated = arrays.with_added(decayed, cohort, np.float32(config.ema_weight))
    keeps = xp.logical_or(xp.logical_not(counted), xp.equal(arrays.size(cohort), 0))
    new['rates'] = xp.where(keeps, state['rates'], updated)
  return new


def statistics(
  config: ParticipationConfig, state: array_types.Structure, round_num: array_types.Numbers
) -> 'collections.OrderedDict[str, array_types.Numbers]':
  """Mean, standard deviation, minimum and maximum of the N rates, and the number of clients never counted (int32)."""
  all_rates = rates(config, state, round_num)
  xp = arrays.namespace(all_rates)
  return collections.OrderedDict(
    mean=xp.mean(all_rates),
    stddev=xp.std(all_rates),
    min=xp.min(all_rates),
    max=xp.max(all_rates),
    never_seen=xp.sum(arrays.cast(xp.equal(state['counts'], 0), np.int32)),
  )
