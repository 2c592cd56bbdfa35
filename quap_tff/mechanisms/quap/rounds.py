"""One round of QuAP-FL. `quap_tff.mechanisms.quap.config.QuapConfig` is the mechanism as a value.

Round t with cohort S_t of size M_t:

  client i:  norm_i = ‖critical part of g_i‖; and an observation of g_i, if the budget rule wants one  `report`
  server:    p_i(t), ε_t, C_t, σ_t from the cohort's ids and norms                                     `admit`
  client i:  clipped_i = g_i·min(1, C_t/norm_i) on the critical part                                   `contribution`
  server:    Σ clipped_i / M_t + N(0, σ_t²) on the critical part                                       `release`

Equations: docs/method.md, sections 4 to 6.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
import functools
import math
from typing import NamedTuple, Optional

import tensorflow as tf

from quap_tff.common import array_types
from quap_tff.common.numbers import seeds
from quap_tff.mechanisms import mechanism
from quap_tff.mechanisms.noise import gaussian
from quap_tff.mechanisms.parts import budgets
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.parts import layers as layers_lib
from quap_tff.mechanisms.parts import participation as participations
from quap_tff.mechanisms.quap import config as configs

# Uses of one round's seed, folded in after the counter, so that no numbers are drawn twice.
_CLIP_RULE, _SERVER_NOISE, _CLIENT_NOISE = range(3)

# Quantiles of the cohort's norms that a round reports.
_NORM_QUANTILES = {'norm_p10': 0.1, 'norm_p50': 0.5, 'norm_p90': 0.9, 'norm_max': 1.0}


class QuapState(NamedTuple):
  """The server's state between rounds.

  Attributes:
    round: int32 scalar, t, the number of finished rounds.
    participation: `counts` int32[N], and `rates` float32[N] under EMA rates.
    clip: float32 scalar, C_t; +inf before there is one.
    noise: The seed and counter of the noise.
    budget: The state of the clients' budget rule, by name; empty for rules without state.
  """

  round: tf.Tensor
  participation: mechanism.Struct
  clip: tf.Tensor
  noise: mechanism.NoiseState
  budget: mechanism.Struct


class QuapRounds(mechanism.Rounds):
  """QuAP-FL's functions for updates of known tensors.

  Attributes:
    config: The mechanism.
    critical: Positions of the critical layers' tensors.
    clipped: Positions of the tensors that are clipped, by their joint norm.
  """

  def __init__(
    self,
    config: configs.QuapConfig,
    specs: mechanism.Specs,
    layers: Sequence[layers_lib.Layer],
    learning_rate_fn: mechanism.LearningRateFn = None,
  ):
    self._scale_fn: Optional[Callable[[tf.Tensor], tf.Tensor]] = None
    if config.update_scale == 'pseudo_gradient':
      if learning_rate_fn is None:
        raise ValueError(
          "update_scale='pseudo_gradient' divides updates by the client learning rate: pass learning_rate_fn, "
          'or use Plan.build_process, which does.'
        )
      self._scale_fn = learning_rate_fn
    self.config, self.specs = config, specs
    self.critical = layers_lib.critical_indices(layers, config.critical_layers)
    self.clipped = tuple(range(len(specs))) if config.clip_scope == 'all_layers' else self.critical
    self._noise_at_clients = config.noise.placement == 'client'
    self._observes = config.budget.rule.observes_updates
    # Shares follow from the whole cohort.
    self.needs_each_update = config.aggregator.needs_each_update or not config.weighting.is_equal
    self.clips_by_this_round = config.clip.uses_current_norms
    # Only what is clipped by the norms of this round waits for them.
    if self.clips_by_this_round and not self.needs_each_update:
      self.waiting = tuple(sorted(self.clipped))

  def initial_state(self) -> mechanism.State:
    config, shapes = self.config, [self.specs[i].shape for i in self.critical]
    return QuapState(
      round=tf.constant(0, tf.int32),
      participation=mechanism.initial_participation(config),
      clip=tf.constant(config.clip.initial_norm, tf.float32),
      noise=mechanism.initial_noise(config.noise.seed),
      budget=config.budget.rule.initial_state(config.budget, config.num_clients, shapes),
    )

  def _scale(self, state: QuapState) -> tf.Tensor:
    """The unit of norms: updates are divided by it before clipping and multiplied by it after noise."""
    if self._scale_fn is None:
      return tf.constant(1.0)
    # The round that is about to be played: `state.round` counts the finished ones.
    return tf.cast(self._scale_fn(state.round + 1), tf.float32)

  def announce(self, state: mechanism.State) -> mechanism.Struct:
    """C_{t-1}, the unit of norms, and what noise and budgets depend on."""
    message = collections.OrderedDict(clip=state.clip, scale=self._scale(state))
    if self._noise_at_clients:
      message['noise'] = announced_budgets(self.config, state)
    if self._observes:
      message['budget'] = self.config.budget.rule.announced(state.budget)
    return message

  def norm(self, update: Sequence[tf.Tensor], scale: array_types.Numbers = 1.0) -> tf.Tensor:
    """The norm that is clipped, in units of `scale`, float32, rounded up.

    It is NaN if any entry of the whole update is not finite, or if its norm is too large for float32.
    """
    # Both parts, because a layer that is not clipped may have overflowed, too: then nothing of the update counts.
    critical = clip_rules.global_norm([update[i] for i in self.critical])
    other = clip_rules.global_norm([u for i, u in enumerate(update) if i not in self.critical])
    whole = tf.sqrt(tf.square(critical) + tf.square(other))
    clipped = whole if self.config.clip_scope == 'all_layers' else critical
    unit = tf.cast(scale, tf.float64)
    norm, whole = clip_rules.as_float32(clipped / unit), clip_rules.as_float32(whole / unit)
    return tf.where(tf.math.is_finite(whole), norm, float('nan'))

  def report(self, update: list[tf.Tensor], own: mechanism.Struct, announced: mechanism.Struct) -> mechanism.Struct:
    norm = self.norm(update, announced['scale'])
    report = collections.OrderedDict(client_id=own['client_id'], norm=norm)
    if self._observes:
      part = [tf.cast(update[i], tf.float32) for i in self.critical]
      observed = self.config.budget.rule.observe(part, announced['budget'])
      # A client that cannot be used must not decide about budgets: its observation says nothing.
      report['observation'] = tf.where(tf.math.is_finite(observed) & tf.math.is_finite(norm), observed, 0.0)
    return report

  def admit(
    self, state: mechanism.State, announced: mechanism.Struct, reports: mechanism.Struct
  ) -> mechanism.AdmittedRound:
    config, budget, norms = self.config, self.config.budget, reports['norm']
    client_ids = mechanism.checked_ids(config.num_clients, reports['client_id'])
    round_num = state.round + 1
    in_warmup = participations.in_warmup(config.participation, round_num)
    # Before the budgets: the documents' p_i(t) counts the round itself.
    participation = participations.next_state(config.participation, state.participation, client_ids, round_num)
    rates = tf.gather(participations.rates(config.participation, participation, round_num), client_ids)

    # The norms of clients that were drawn with an update of NaN are among them; a rule leaves out what is not finite.
    next_clip = config.clip.next_norm(
      state.clip, norms, functools.partial(gaussian.noise, _round_seed(state, _CLIP_RULE), [])
    )
    clip = next_clip if config.clip.uses_current_norms else state.clip
    size = tf.size(client_ids)

    epsilons = budgets.client_budgets(budget, rates, in_warmup, state.budget, client_ids)
    observations = reports.get('observation', tf.zeros_like(norms))
    factor = budget.factor(round_num)
    epsilon, multiplier = config.round_noise(rates, in_warmup, epsilons, factor)
    # Without a bound no finite update has ever come, so everything that is summed is exactly zero.
    noised = tf.logical_and(tf.math.is_finite(clip), size > 0) if config.noise.placement != 'none' else False
    sigma = tf.where(noised, multiplier / tf.maximum(tf.cast(size, tf.float32), 1.0) * clip, 0.0)
    multiplier = tf.where(noised, multiplier, 0.0)

    is_finite = tf.math.is_finite(norms)
    # Shares of clipped updates are of those that counted.
    finite = tf.reduce_sum(tf.cast(is_finite, tf.float32))
    clipped = tf.reduce_sum(tf.cast(tf.logical_and(is_finite, norms > clip), tf.float32))
    spent = math.inf if config.noise.placement == 'none' else epsilon
    return mechanism.AdmittedRound(
      client_ids=client_ids,
      weights=config.shares(factor * epsilons),
      clip=clip,
      noise_multiplier=multiplier,
      sigma=sigma,
      after=QuapState(
        round=round_num,
        participation=participation,
        clip=next_clip,
        # A round with nobody draws nothing, so the next one takes its number.
        noise=state.noise._replace(counter=state.noise.counter + tf.cast(size > 0, tf.int64)),
        budget=budget.rule.next_state(budget, state.budget, client_ids, epsilons, observations),
      ),
      metrics=collections.OrderedDict(
        round=round_num,
        cohort_size=size,
        epsilon=tf.where(size > 0, spent, 0.0),
        clipping_norm=clip,
        noise_multiplier=multiplier,
        sigma=sigma,
        **dict(zip(_NORM_QUANTILES, tf.unstack(clip_rules.quantile(norms, list(_NORM_QUANTILES.values()))))),
        clipped_fraction=tf.math.divide_no_nan(clipped, finite),
        non_finite_updates=size - tf.cast(finite, tf.int32),
      ),
    )

  def early(self, update: mechanism.Parts, report: mechanism.Struct) -> mechanism.Parts:
    return dict(zip(update, _finite(list(update.values()), report['norm'])))

  def contribution(
    self,
    update: mechanism.Parts,
    report: mechanism.Struct,
    announced: mechanism.Struct,
    clip: Optional[tf.Tensor] = None,
  ) -> list[tf.Tensor]:
    """The update with its clipped layers clipped, all zero unless its norm is finite; then the client's own noise.

    That is under client placement: one float64 N(0, σ_i²) tensor for each critical one, σ_i = z(ε_i(t), δ)·C_t.
    """
    clip = announced['clip'] if clip is None else clip
    positions = [i for i in self.clipped if i in update]
    # By the norm that was reported, which is rounded up: the norm after clipping is at most C.
    clipped = clip_rules.scaled_down([update[i] for i in positions], clip_rules.clip_factor(report['norm'], clip))
    scaled = {**update, **dict(zip(positions, clipped))}
    # Zeros, not an error: what one client sends must not end the round for the others.
    sent = _finite([scaled[i] for i in update], report['norm'])
    if self._noise_at_clients:
      own = own_multiplier(self.config, report['client_id'], announced['noise'])
      # Without a bound yet, C is infinite, and noise of that size would be, too.
      stddev = tf.where(tf.math.is_finite(clip), own * clip, 0.0)
      # By client: two clients of a round that drew the same noise would show the difference of their updates.
      seed = seeds.fold_in(announced['noise']['seed'], report['client_id'])
      # Apart from the updates, in float64: a float32 sum would round the noise of all clients, and the round logs its
      # norm.
      sent = sent + gaussian.noises(seed, [update[i] for i in self.critical], stddev)
    return sent

  def combined(self, contributions: list[tf.Tensor], weights: tf.Tensor) -> list[tf.Tensor]:
    """Σ s_i·ū_i by the clients' shares; or M times the robust aggregate, and zero for an empty cohort."""
    if not self.config.aggregator.needs_each_update:
      return [tf.tensordot(tf.cast(weights, one.dtype), one, 1) for one in contributions]
    size = tf.shape(contributions[0])[0]
    # An empty cohort has no median. It is replaced by one update of zero.
    present = [
      tf.cond(size > 0, lambda one=one: one, lambda one=one: tf.zeros([1, *one.shape[1:]], one.dtype))
      for one in contributions
    ]
    # `release` divides by M, as it does with a sum.
    return [one * tf.cast(size, one.dtype) for one in self.config.aggregator.centre(present)]

  def release(
    self, state: mechanism.State, admitted: mechanism.AdmittedRound, total: list[tf.Tensor]
  ) -> tuple[mechanism.State, list[tf.Tensor], mechanism.Struct]:
    return self.finished(state, admitted, total, admitted.metrics['cohort_size'])

  def finished(
    self, state: QuapState, admitted: mechanism.AdmittedRound, total: list[tf.Tensor], size: tf.Tensor
  ) -> tuple[QuapState, list[tf.Tensor], mechanism.Struct]:
    """`release` of a sum of `size` updates (int32 scalar).

    The norms of signal and noise, like the quantiles of the norms, are exact functions of the clients' data. The papers
    log them, and no privacy figure covers them.
    """
    config, scale, critical = self.config, self._scale(state), self.critical
    # M may be 0: then all sums are zero, and 0/1 leaves the model as it is.
    divisor = tf.maximum(tf.cast(size, tf.float32), 1.0)
    count = len(self.specs)
    # What follows the updates in `total` is the clients' noise.
    mean = [u / tf.cast(divisor * scale, u.dtype) for u in total[:count]]
    signal = [mean[i] for i in critical]
    if config.noise.placement == 'server':
      noise = gaussian.noises(_round_seed(state, _SERVER_NOISE), signal, admitted.sigma)
    elif self._noise_at_clients:
      noise = [n / tf.cast(divisor, tf.float64) for n in total[count:]]
    else:
      noise = [tf.zeros_like(s, tf.float64) for s in signal]
    for index, drawn in zip(critical, noise):
      # Rounded once, after the noise: that is post-processing.
      mean[index] = tf.cast(tf.cast(mean[index], tf.float64) + drawn, mean[index].dtype)
    # After the noise, so it is post-processing.
    if config.max_agg_norm is not None:
      bound = tf.constant(config.max_agg_norm, tf.float32)
      mean = clip_rules.scaled_down(mean, clip_rules.clip_factor(clip_rules.global_norm(mean), bound))

    # The rule sees the noised mean only.
    budget = config.budget.rule.after_round(admitted.after.budget, [mean[i] for i in critical], size)
    signal_norm, noise_norm = (tf.cast(clip_rules.global_norm(part), tf.float32) for part in (signal, noise))
    metrics = collections.OrderedDict(
      admitted.metrics,
      signal_norm=signal_norm,
      noise_norm=noise_norm,
      # 0 without noise, also where both norms are 0.
      noise_to_signal=tf.where(noise_norm > 0, noise_norm / signal_norm, 0.0),
      **mechanism.participation_metrics(config, admitted.after.participation, admitted.after.round),
    )
    return admitted.after._replace(budget=budget), [u * tf.cast(scale, u.dtype) for u in mean], metrics


def announced_budgets(config: configs.QuapConfig, state: mechanism.State) -> mechanism.Struct:
  """The message from which clients draw their own noise: all N clients' rates if they take part, and a seed."""
  round_num = state.round + 1
  return collections.OrderedDict(
    rates=participations.rates_if_taking_part(config.participation, state.participation, round_num),
    in_warmup=participations.in_warmup(config.participation, round_num),
    budget_factor=tf.cast(config.budget.factor(round_num), tf.float32),
    seed=_round_seed(state, _CLIENT_NOISE),
  )


def own_multiplier(
  config: configs.QuapConfig, client_id: tf.Tensor, announced: mechanism.Struct, dtype: tf.DType = tf.float32
) -> tf.Tensor:
  """z(ε_i(t), δ) of a client, from `announced_budgets`."""
  # `admit` refuses an id out of range with a clear message, so looking up its rate must not fail first.
  rate = tf.gather(announced['rates'], tf.clip_by_value(client_id, 0, config.num_clients - 1))
  epsilon = budgets.client_budgets(config.budget, rate, announced['in_warmup']) * announced['budget_factor']
  return config.multiplier(tf.cast(epsilon, dtype))


def _finite(tensors: Sequence[tf.Tensor], norm: tf.Tensor) -> list[tf.Tensor]:
  """The tensors as they are; all zero unless `norm`, that of the whole update, is finite."""
  return tf.cond(tf.math.is_finite(norm), lambda: tensors, lambda: [tf.zeros_like(u) for u in tensors])


def _round_seed(state: QuapState, use: int) -> tf.Tensor:
  return seeds.fold_in(state.noise.seed, state.noise.counter, tf.constant(use, tf.int64))
