"""A certified round with a trusted server in plain NumPy, to be read after `quap_fl`: the mechanism and its account.

    for t = 1, …, T:
      w_i(t): the weight that the rule asks for, lowered to what is left of client i's budget           the filter
      x_i = ⌊(K/C)·g_i⌉, scaled so that ‖x_i‖ ≤ ⌊w_i(t)·K⌋, for each client i of the cohort S_t         clipping
      μ_i² grows by what x_i can ever show, in this release and in all that may follow                  the charge
      Ẑ_s = ⌊Z_s - Σ_{k≥1} c_k·Ẑ_{s-k}⌉,  Z_s ~ N(0, (z·K)²·I)                                          the noise
      Y_s = C/(K·D)·(Σ_i x_i + Ẑ_s)                                                                     the release
      θ_t = θ_{t-1} - Y_s

s counts the releases: a round in which nobody has a weight releases nothing. Theorem 2 of docs/proofs.md says that all
releases are (ε, δ)-differentially private for client i as long as μ_i² = ‖C·w_i‖²/z² ≤ μ_max²(ε, δ), where C is the
lower triangular matrix of the coefficients c_{s-t}. The filter keeps that bound before the noise is drawn.

No program runs this: tests hold the rounds that train to it, in `quap_tff/mechanisms/certified/rounds.py`. Those keep a
few sums in place of the history, round every figure to the safe side, and draw noise whose distribution is proved.
"""

from collections.abc import Mapping
import math
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from quap_tff.common.numbers import tradeoff
from quap_tff.mechanisms.certified.config import Certified
from quap_tff.mechanisms.certified.privacy_filter import SMALLEST_SHARE
from quap_tff.mechanisms.certified.privacy_filter import SMALLEST_WEIGHT
from quap_tff.mechanisms.noise.integer_noise import SMALLEST_STDDEV
from quap_tff.mechanisms.noise.integers import RESERVE


class RunState(NamedTuple):
  """The server's state after t rounds and s releases, for N clients and d model weights."""

  round: int  # t.
  theta: np.ndarray  # float64[d], the model.
  added: np.ndarray  # float64[s, N], w_i of each release; 0 for a client that was not in it.
  noise: np.ndarray  # int64[s, d], Ẑ of each release, in grid steps.
  spent: np.ndarray  # float64[N], μ_i².


def initial_state(core: Certified, theta: np.ndarray) -> RunState:
  """The state before round 1."""
  clients = core.num_clients
  return RunState(0, theta, np.zeros([0, clients]), np.zeros([0, len(theta)], np.int64), np.zeros(clients))


def play_round(
  core: Certified, state: RunState, asked: np.ndarray, updates: Mapping[int, np.ndarray], generator: Generator
) -> RunState:
  """The state after a round: with z, D, T and a fixed C from the mechanism, the weights that the rule asks for,
  float64[N], and the updates g_i of the cohort, float64[d] by client."""
  allowed = filtered(core, state, asked)
  weights = np.zeros(core.num_clients)
  for client in updates:
    weights[client] = allowed[client]
  if not weights.any():  # Known before the round, so it says nothing of clients' data.
    return state._replace(round=state.round + 1)

  steps = grid_steps(core, len(state.theta))
  total = np.zeros(len(state.theta), np.int64)
  for client, update in updates.items():
    total += on_grid(core, update, weights[client], steps)

  # The charge comes before the release: a round that was computed counts, even if it is then withheld.
  unit, cross = prices(core, state)
  spent = state.spent + (unit * weights**2 + 2 * cross * weights) / core.noise_multiplier**2

  fresh = generator.normal(0, core.noise_multiplier * steps, len(state.theta))
  coefficients = core.config.correlation.coefficients(len(state.noise) + 1)
  taken_back = coefficients[:0:-1] @ state.noise
  noise = np.rint(fresh - taken_back).astype(np.int64)

  release = core.clip.initial_norm / (steps * core.divisor) * (total + noise)
  added, noises = np.vstack([state.added, weights]), np.vstack([state.noise, noise])
  return RunState(state.round + 1, state.theta - release, added, noises, spent)


def filtered(core: Certified, state: RunState, asked: np.ndarray) -> np.ndarray:
  """w_i(t), float64[N]: the largest weight up to the one asked for whose charge fits into what is left."""
  # Clients were charged for what shows up to round T, and for nothing later.
  if state.round >= core.config.most_releases:
    return np.zeros(core.num_clients)
  # A small share of ε and of δ pays for what rounding to integers costs.
  largest_mu = tradeoff.mu_at_most(core.config.epsilon * (1 - RESERVE), core.config.delta * (1 - RESERVE))
  room = np.maximum(largest_mu**2 - state.spent, 0) * core.noise_multiplier**2
  unit, cross = prices(core, state)
  affordable = (np.sqrt(cross**2 + unit * room) - cross) / unit
  weights = np.minimum(asked, affordable)
  # With only tiny weights, a round would release hardly any signal and all of its noise.
  is_worthwhile = weights >= np.maximum(SMALLEST_SHARE * asked, SMALLEST_WEIGHT)
  return np.where(is_worthwhile, weights, 0)


def prices(core: Certified, state: RunState) -> tuple[float, np.ndarray]:
  """A and B_i float64[N]: a weight of w in this release raises ‖C·w_i‖² by A·w² + 2·B_i·w.

  The norm is over the rows of C up to the last planned round, because what a client adds shows in all of them.
  """
  releases, rounds_left = len(state.added), core.config.most_releases - state.round - 1
  coefficients = core.config.correlation.coefficients(releases + 1 + rounds_left)
  own_column = coefficients[: 1 + rounds_left]
  cross = np.zeros(core.num_clients)
  for release, weights in enumerate(state.added):
    age = releases - release
    cross += own_column @ coefficients[age : age + 1 + rounds_left] * weights
  return float(own_column @ own_column), cross


def grid_steps(core: Certified, num_weights: int) -> int:
  """K, the grid steps in the clipping norm: many for each weight, and enough that the noise's shape is exact."""
  return math.ceil(max(512 * math.sqrt(num_weights), SMALLEST_STDDEV / core.noise_multiplier))


def on_grid(core: Certified, update: np.ndarray, weight: float, steps: int) -> np.ndarray:
  """x_i, int64[d] with ‖x_i‖ ≤ ⌊w·K⌋; zeros for an update that is not finite."""
  norm, bound = float(np.linalg.norm(update)), math.floor(weight * steps)
  if not np.isfinite(norm):
    return np.zeros(len(update), np.int64)
  # Rounding d entries adds at most √d/2 to the norm.
  aim = max(bound - math.sqrt(len(update)) / 2, 0)
  scale = steps / core.clip.initial_norm
  if norm * scale > aim:
    scale = aim / norm
  whole = np.rint(scale * update).astype(np.int64)
  # Counted in integers, so that no rounding of floats can let a longer one through.
  is_within = int(whole @ whole) <= bound**2
  return whole if is_within else np.zeros_like(whole)
