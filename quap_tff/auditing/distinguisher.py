"""The game that defines differential privacy, played on a mechanism's own functions many times.

A world either has the target client or not. In the world that has it, the target adds in each of its rounds the most
that it may. All other clients answer with functions of what was released before, which the adversary knows. The
mechanism is simulated many times in each world, and an attack says in which world a simulation was made. From how often
it is right follows a lower bound on ε (`lower_bounds`), which must not exceed what is claimed.

All draws are simulated at once: a sum of clipped updates has one coordinate, and its noise is drawn for every draw.

The attack is the best linear one. Half of the draws of each world show what the worlds look like, and give the linear
function and its threshold. The other half is counted.
"""

from collections.abc import Sequence
from typing import Any, Callable, NamedTuple, Optional

import numpy as np
import tensorflow as tf

from quap_tff.auditing import lower_bounds
from quap_tff.mechanisms import certified_config as certified_configs
from quap_tff.mechanisms import certified_round as certified_mechanism
from quap_tff.mechanisms import clip_split
from quap_tff.mechanisms import quap_round as quap_mechanism

# The norm of the target's update before clipping, in clipping norms: far more than it may add.
_EXCESS = 1e3
_THRESHOLDS = 200
# A threshold is chosen by a bound of this confidence, so that no chance in the tails looks like a good threshold.
_CAUTION = 1 - 1e-6
_RIDGE = 1e-12
# So that the logarithm of a release of exactly zero is a number.
_SMALLEST_SQUARE = 1e-30

# A function from (whether the target is there, number of draws) to what the adversary sees, float64[draws, features].
Simulate = Callable[[bool, int], np.ndarray]


class Verdict(NamedTuple):
  """What the game proved.

  Attributes:
    guesses: The counted trials.
    bound: The lower bounds that follow.
    mu_estimate: μ as estimated from the counted scores: the difference of the worlds' means over their deviation. It is
      no bound.
  """

  guesses: lower_bounds.Guesses
  bound: lower_bounds.Bound
  mu_estimate: float


def play(simulate: Simulate, draws: int, delta: float, confidence: float = 0.95) -> Verdict:
  """Plays the game.

  Args:
    simulate: The mechanism. Two calls must be independent.
    draws: Simulations of each world that are counted; as many again are used to find the attack.
    delta: δ at which ε is bounded.
    confidence: Of the bounds.
  """
  score = _best_linear(simulate(True, draws), simulate(False, draws))
  inserted, unseen = score(simulate(True, draws)), score(simulate(False, draws))
  guesses = lower_bounds.count(inserted, unseen, 0.0)
  deviation = np.sqrt((inserted.var() + unseen.var()) / 2)
  estimate = float((inserted.mean() - unseen.mean()) / deviation) if deviation else np.inf
  return Verdict(guesses, lower_bounds.bound(guesses, delta, confidence), estimate)


def _best_linear(present, absent):
  """A function from features to scores: Fisher's discriminant less its best threshold on these draws."""
  middle = absent.mean(axis=0)
  scale = np.maximum(absent.std(axis=0), present.std(axis=0))
  scale[scale == 0] = 1.0
  covariance = (np.cov((absent - middle) / scale, rowvar=False) + np.cov((present - middle) / scale, rowvar=False)) / 2
  covariance = np.atleast_2d(covariance)
  difference = (present.mean(axis=0) - middle) / scale
  direction = np.linalg.solve(covariance + _RIDGE * np.eye(len(covariance)), difference) / scale

  def project(features):
    return (features - middle) @ direction

  own, other = project(present), project(absent)
  low, high = np.quantile(np.concatenate([own, other]), [0.001, 0.999])
  thresholds = np.linspace(low, high, _THRESHOLDS)
  found = [lower_bounds.bound(lower_bounds.count(own, other, t), 0.5, _CAUTION).mu for t in thresholds]
  threshold = thresholds[int(np.argmax(found))]
  return lambda features: project(features) - threshold


def certified(
  config: certified_configs.CertifiedConfig, schedule: Sequence[Any], target: int, seed: Optional[int] = None
) -> Simulate:
  """The certified mechanism: what the adversary sees are the releases less what the others added.

  Args:
    config: The mechanism, with nothing left open.
    schedule: int[M_t], the cohorts.
    target: The client that is there or not.
    seed: For reproducible noise.
  """
  calls = _Seeds(seed)

  def simulate(present, draws):
    state = certified_mechanism.initial_state(config, [[draws]])
    state = state._replace(noise=quap_mechanism.initial_noise(calls.next()))
    groups = clip_split.clip_groups('joint', [1])
    seen, moved = [], np.zeros(draws)
    for cohort in schedule:
      clip = float(state.clip)
      norms = tf.fill([len(cohort)], np.float32(clip)) if config.counts_norms else None
      plan = certified_mechanism.plan_round(config, state, tf.constant(cohort, tf.int64), norms)
      weight = tf.reduce_sum(tf.where(tf.equal(plan.client_ids, target), plan.weights, 0.0))
      update = [tf.constant([_EXCESS * clip if present else 0.0], tf.float64)]
      (own,) = certified_mechanism.contribute(groups, update, weight, state.clip)
      # The others follow what was released, each within its bound.
      others = float(tf.reduce_sum(plan.weights) - weight) * clip * np.tanh(moved)
      state, (mean,), measurements = certified_mechanism.finish_round(
        config, state, plan, [tf.constant(others) + tf.repeat(own, draws)]
      )
      if not float(measurements['noise_multiplier']) and not plan.releases:
        continue
      release = mean.numpy() * config.divisor
      moved = moved + release / (clip * config.noise_multiplier)
      seen.append((release - others) / clip)
    return np.stack(seen, axis=1)

  return simulate


def quap(
  config: Any, schedule: Sequence[Any], target: int, seed: Optional[int] = None, noised: bool = True
) -> Simulate:
  """QuAP-FL's mechanism under a fixed clipping norm, in a layer that it noises, or in one that it does not.

  Args:
    config: A `quap_tff.QuapConfig` whose clip rule is fixed and whose noise is the server's.
    schedule: int[M_t], the cohorts.
    target: The client that is there or not.
    seed: For reproducible noise.
    noised: Whether the adversary looks at a critical layer.
  """
  calls = _Seeds(seed)
  critical = [0] if noised else []

  def simulate(present, draws):
    state = quap_mechanism.initial_state(config)._replace(noise=quap_mechanism.initial_noise(calls.next()))
    seen, moved = [], np.zeros(draws)
    for cohort in schedule:
      clip = float(state.clip)
      plan = quap_mechanism.plan_round(
        config, state, tf.constant(cohort, tf.int64), tf.fill([len(cohort)], np.float32(clip))
      )
      update = [tf.constant([_EXCESS * clip if present and target in np.asarray(cohort) else 0.0], tf.float64)]
      norm = tf.cast(tf.abs(update[0][0]), tf.float32)
      (own,) = quap_mechanism.clip_update(config, critical, update, norm, plan.clip)
      others = (len(cohort) - 1) * clip * np.tanh(moved)
      state, (mean,), _ = quap_mechanism.finish_round(
        config, critical, state, plan, [tf.constant(others) + tf.repeat(own, draws)], []
      )
      release = mean.numpy() * max(len(cohort), 1)
      moved = moved + release / clip
      seen.append((release - others) / clip)
    return np.stack(seen, axis=1)

  return simulate


def query(dp_query: Any, rounds: int, taken: Sequence[int], clip: float, clients_per_round: float) -> Simulate:
  """A TensorFlow Privacy query, as TFF's DP aggregators have it.

  Args:
    dp_query: A query of records that are a list of one vector, whose result is a mean over `clients_per_round`.
    rounds: T.
    taken: The rounds, from 0, that the target is in.
    clip: The clipping norm.
    clients_per_round: How many others there are in a round.
  """

  def simulate(present, draws):
    state = dp_query.initial_global_state()
    seen, moved = [], np.zeros(draws)
    for index in range(rounds):
      parameters = dp_query.derive_sample_params(state)
      size = _EXCESS * clip if present and index in taken else 0.0
      (own,) = dp_query.preprocess_record(parameters, [tf.constant([size], tf.float32)])
      others = (clients_per_round - 1) * clip * np.tanh(moved)
      total = tf.constant(others, tf.float32) + tf.repeat(own, draws)
      (result,), state, _ = dp_query.get_noised_result([total], state)
      release = result.numpy().astype(np.float64) * clients_per_round
      moved = moved + release / clip
      seen.append((release - others) / clip)
    return np.stack(seen, axis=1)

  return simulate


def sampled(
  release: Callable[[np.ndarray, np.ndarray], np.ndarray],
  rounds: int,
  rate: float,
  others: int,
  dimension: int,
  seed: int,
) -> Simulate:
  """Rounds with Poisson sampling, whose cohorts the adversary does not know: what amplification by sampling claims.

  The others have nothing to add. The target adds 1 to the first coordinate in each round that it is drawn for. The
  adversary sees this coordinate, how large the others are, and if the release is exactly zero.

  Args:
    release: A function from sums, float64[draws, dimension], and the sizes of cohorts, int64[draws], to releases.
    rounds: T.
    rate: Probability with which each client is drawn in each round.
    others: The number of clients beside the target.
    dimension: Of the releases, at least 2.
    seed: Of the cohorts.
  """
  rng = np.random.default_rng(seed)

  def simulate(present, draws):
    seen = []
    for _ in range(rounds):
      drawn = (rng.random(draws) < rate) & present
      sums = np.zeros([draws, dimension])
      sums[:, 0] = drawn
      released = release(sums, rng.binomial(others, rate, draws) + drawn)
      size = np.log(np.maximum((released[:, 1:] ** 2).mean(axis=1), _SMALLEST_SQUARE))
      seen += [released[:, 0], size, (released == 0).all(axis=1).astype(np.float64)]
    return np.stack(seen, axis=1)

  return simulate


class _Seeds:
  """A new seed for each simulation; None for the operating system's entropy."""

  def __init__(self, seed):
    self._seed = seed

  def next(self):
    if self._seed is None:
      return None
    self._seed += 1
    return self._seed
