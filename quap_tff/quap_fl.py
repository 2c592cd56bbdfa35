"""QuAP-FL in plain NumPy, to be read first: what the documents' algorithm does, and nothing else.

    for t = 1, …, T:
      g_i = θ_{t-1} - θ_i for each client i of the cohort S_t, by local training                              (2)
      p_i(t) = k_i(t)/t: how often each has taken part                                                        (4)
      ε_i(t), ε_t: smaller budgets for those who come often                                                   (7), (8)
      C_t: a moving average of a quantile of the norms ‖g_i‖                                                  (10), (11)
      g̃_t = Σ_i ḡ_i/M_t + noise: the mean of the clipped updates, with noise on the critical layers           (9), (13)
      θ_t = θ_{t-1} - g̃_t                                                                                     (2)

Numbers and symbols are those of docs/method.md. No program runs this: tests hold the rounds that train to it, those of
`quap_tff/mechanisms/quap/rounds.py`, which `quap_tff/federated` lifts to TFF. Weights are arrays, a list of them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
import math
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from quap_tff.common.numbers import tradeoff
from quap_tff.mechanisms.parts.clip_rules import QuantileEma
from quap_tff.mechanisms.quap.config import QuapConfig

Tensors = Sequence[np.ndarray]  # A model's weights, or an update of them.


class State(NamedTuple):
  """The server's state: t, θ_t, k_i(t) and p_i(t) as float64[N], and C_t; +inf before there is one."""

  round: int
  weights: Tensors
  counts: np.ndarray
  rates: np.ndarray
  clip: float


class Round(NamedTuple):
  """The record of a round: ε_i(t) of its cohort, float64[M]; ε_t; the norm that clipped it; σ_t; and g̃_t."""

  budgets: np.ndarray
  budget: float
  clip: float
  sigma: float
  update: Tensors


def train(
  config: QuapConfig,
  critical: Sequence[int],
  weights: Tensors,
  cohorts: Iterable[Sequence[int]],
  local_update: Callable[[Tensors, int], Tensors],
  generator: Generator,
) -> Tensors:
  """θ_T from θ_0. `critical` are the positions of the critical layers; `local_update(θ, i)` is g_i of client i."""
  state = initial_state(config, weights)
  for cohort in cohorts:
    updates = {client: local_update(state.weights, client) for client in cohort}
    state, _ = play_round(config, critical, state, updates, generator)
  return state.weights


def initial_state(config: QuapConfig, weights: Tensors) -> State:
  """The state before round 1."""
  return State(0, weights, np.zeros(config.num_clients), np.zeros(config.num_clients), config.clip.initial_norm)


def play_round(
  config: QuapConfig, critical: Sequence[int], state: State, updates: Mapping[int, Tensors], generator: Generator
) -> tuple[State, Round]:
  """A round with the updates g_i of its cohort, by client; one that is not finite counts as zero."""
  t, cohort = state.round + 1, list(updates)
  counts, rates = participation_rates(config, state, cohort)
  if not cohort:  # The round counts in t, and changes nothing else.
    still = [0 * theta for theta in state.weights]
    return state._replace(round=t, rates=rates), Round(np.zeros(0), 0.0, state.clip, 0.0, still)

  budgets = client_budgets(config, t, rates[cohort])
  budget = round_budget(config, t, rates[cohort])

  clipped = critical if config.clip_scope == 'critical' else range(len(state.weights))
  finite, norms = {}, {}
  for i, g in updates.items():
    if all(np.isfinite(tensor).all() for tensor in g):
      finite[i] = g
      norms[i] = float(np.linalg.norm([np.linalg.norm(g[layer]) for layer in clipped]))
  next_clip = next_clipping_norm(config, state.clip, list(norms.values()))
  clip = next_clip if config.clip.uses_current_norms else state.clip
  sigma = noise_stddev(config, budgets, budget, clip)

  mean = []
  for layer, theta in enumerate(state.weights):
    total = np.zeros(theta.shape)
    for i, g in finite.items():
      is_clipped = layer in clipped and norms[i] > clip
      factor = clip / norms[i] if is_clipped else 1.0
      total = total + factor * g[layer]  # (9)
    released = total / len(cohort)
    if layer in critical:
      released = released + generator.normal(0, sigma, theta.shape)
    mean.append(released)  # (13)
  weights = [theta - g for theta, g in zip(state.weights, mean)]  # (2)
  return State(t, weights, counts, rates, next_clip), Round(budgets, budget, clip, sigma, mean)


def participation_rates(config: QuapConfig, state: State, cohort: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
  """k_i(t) and p_i(t), float64[N]. Moving averages rest in a round with nobody."""
  how, here = config.participation, np.isin(np.arange(config.num_clients), cohort)
  rounds = state.round + 1 - (0 if how.count_during_warmup else how.warmup_rounds)
  if rounds <= 0:
    return state.counts, state.rates
  counts = state.counts + here
  if how.rate == 'cumulative':
    return counts, counts / rounds  # (4)
  return counts, how.ema_weight * here + (1 - how.ema_weight) * state.rates if cohort else state.rates  # (5)


def client_budgets(config: QuapConfig, t: int, rates: np.ndarray) -> np.ndarray:
  """ε_i(t) of clients with the rates p_i(t), of any shape."""
  base = config.budget.epsilon_total / config.budget.num_rounds
  if t <= config.participation.warmup_rounds or config.budget.round_rule == 'uniform':
    return np.full(np.shape(rates), base)
  return base * (1 + config.budget.alpha * np.exp(-config.budget.beta * rates))  # (7)


def round_budget(config: QuapConfig, t: int, rates: np.ndarray) -> float:
  """ε_t of a cohort with the rates p_i(t), float64[M]."""
  if config.budget.round_rule == 'cohort_mean_rate':
    return float(client_budgets(config, t, np.mean(rates)))  # (8)
  budgets = client_budgets(config, t, rates)
  if config.budget.round_rule == 'cohort_min':
    return float(np.min(budgets))
  return float(np.mean(budgets))


def next_clipping_norm(config: QuapConfig, clip: float, norms: Sequence[float]) -> float:
  """C_t from C_{t-1} and the finite norms ‖g_i‖ of round t."""
  rule = config.clip
  if not isinstance(rule, QuantileEma) or not norms:
    return clip
  target = float(np.clip(np.quantile(norms, rule.quantile), rule.min_clip, rule.max_clip))  # (10)
  return target if math.isinf(clip) else rule.momentum * clip + (1 - rule.momentum) * target  # (11)


def noise_stddev(config: QuapConfig, budgets: np.ndarray, budget: float, clip: float) -> float:
  """σ_t: the noise of the round's budget (14), or the mean of noises of all clients' budgets (16)."""
  if config.noise.placement == 'none' or math.isinf(clip):
    return 0.0
  by_client = config.noise.placement == 'client' or config.budget.round_rule == 'each_own'
  noised = budgets if by_client else np.array([budget])
  multipliers = [noise_multiplier(config, epsilon) for epsilon in noised]
  return math.hypot(*multipliers) * clip / len(budgets)


def noise_multiplier(config: QuapConfig, epsilon: float) -> float:
  """z(ε, δ)."""
  if config.noise.calibration == 'classic':
    return math.sqrt(2 * math.log(1.25 / config.noise.delta)) / epsilon  # (14)
  return 1 / tradeoff.mu_at_most(epsilon, config.noise.delta)  # (15)
