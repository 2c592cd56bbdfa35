"""The game that defines differential privacy, played on a mechanism's own functions many times.

A world either has the target client or not. In the world that has it, the target adds in each of its rounds the most
that it may. All other clients answer with functions of earlier releases, which the adversary knows. The
mechanism is simulated many times in each world, and an attack says in which world a simulation was made. From how often
it is right follows a lower bound on ε (`lower_bounds`), which must not exceed the claimed ε.

All draws are simulated at once: a sum of clipped updates has one coordinate, and its noise is drawn for every draw.

The attack is the best linear one. Half of the draws of each world show what the worlds look like, and give the linear
function and its threshold. The other half is counted.
"""

from collections.abc import Iterable, Iterator, Sequence
import dataclasses
import functools
import itertools
import secrets
from typing import Any, Callable, NamedTuple, Optional, TypeVar

import numpy as np
import tensorflow as tf

from quap_tff.auditing.bounds import lower_bounds
from quap_tff.common import array_types
from quap_tff.mechanisms import mechanism
from quap_tff.mechanisms.certified import config as certified_configs
from quap_tff.mechanisms.held import config as held_configs
from quap_tff.mechanisms.held import guarded_clients
from quap_tff.mechanisms.held import rounds as held_rounds
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.parts import layers as layers_lib
from quap_tff.mechanisms.secret_cohorts import config as secret_configs

# The norm of the target's update before clipping, in clipping norms: far more than it may add.
_EXCESS = 1e3
_THRESHOLDS = 200
# A threshold is chosen by a bound of this confidence, so that no chance in the tails looks like a good threshold.
_CAUTION = 1 - 1e-6
_RIDGE = 1e-12

# A function from (whether the target is there, number of draws) to the adversary's view, float64[draws, features].
Simulate = Callable[[bool, int], np.ndarray]
# The state of a simulation, and what it is given for a round.
_State = TypeVar('_State')
_Round = TypeVar('_Round')


class GameOutcome(NamedTuple):
  """The outcome of the game.

  Attributes:
    guesses: The counted trials.
    bound: The lower bounds that follow.
    mu_estimate: μ as estimated from the counted scores: the difference of the worlds' means over their deviation. It is
      not a bound.
  """

  guesses: lower_bounds.Guesses
  bound: lower_bounds.Bound
  mu_estimate: float


def play(
  simulate: Simulate, draws: int, delta: float, confidence: float = 0.95, is_gaussian: bool = True
) -> GameOutcome:
  """Plays the game.

  Args:
    simulate: The mechanism. Two calls must be independent.
    draws: Simulations of each world that are counted; as many again are used to find the attack.
    delta: δ at which ε is bounded.
    confidence: The confidence of the bounds.
    is_gaussian: Whether the attack is to prove the largest μ. If not, as where cohorts are secret, it is to prove the
      largest ε of any trade-off curve (`epsilon_if_independent`).
  """
  score = _best_linear(simulate(True, draws), simulate(False, draws), delta, is_gaussian)
  inserted, unseen = score(simulate(True, draws)), score(simulate(False, draws))
  guesses = lower_bounds.count(inserted, unseen, 0.0)
  deviation = np.sqrt((inserted.var() + unseen.var()) / 2)
  estimate = float((inserted.mean() - unseen.mean()) / deviation) if deviation else np.inf
  return GameOutcome(guesses, lower_bounds.bound(guesses, delta, confidence), estimate)


def _best_linear(
  present: np.ndarray, absent: np.ndarray, delta: float, is_gaussian: bool
) -> Callable[[np.ndarray], np.ndarray]:
  """A function from features to scores: Fisher's discriminant less its best threshold on these draws."""
  middle = absent.mean(axis=0)
  scale = np.maximum(absent.std(axis=0), present.std(axis=0))
  scale[scale == 0] = 1.0
  covariance = (np.cov((absent - middle) / scale, rowvar=False) + np.cov((present - middle) / scale, rowvar=False)) / 2
  covariance = np.atleast_2d(covariance)
  difference = (present.mean(axis=0) - middle) / scale
  direction = np.linalg.solve(covariance + _RIDGE * np.eye(len(covariance)), difference) / scale

  def project(features: np.ndarray) -> np.ndarray:
    return (features - middle) @ direction

  inside, other = project(present), project(absent)
  low, high = np.quantile(np.concatenate([inside, other]), [0.001, 0.999])
  thresholds = np.linspace(low, high, _THRESHOLDS)
  found = [lower_bounds.bound(lower_bounds.count(inside, other, t), delta, _CAUTION) for t in thresholds]
  if is_gaussian:
    proved = [bound.mu for bound in found]
  else:
    proved = [bound.epsilon_if_independent for bound in found]
  threshold = thresholds[int(np.argmax(proved))]
  return lambda features: project(features) - threshold


def certified(
  core: certified_configs.Certified, schedule: Sequence[Any], target: int, seed: Optional[int] = None
) -> Simulate:
  """The certified mechanism: what the adversary sees are the releases less what the others added.

  Args:
    core: The mechanism, with nothing left open.
    schedule: int[M_t], the cohorts.
    target: The client that is there or not.
    seed: For reproducible noise.
  """
  calls, core = _seeds(seed), dataclasses.replace(core.config, clip_split='joint').to_mechanism()
  layers = [layers_lib.Layer('seen', (0,), False)]

  def start(draws: int) -> mechanism.State:
    seeded = dataclasses.replace(core.config, noise_seed=next(calls)).to_mechanism()
    return seeded.for_model([tf.TensorSpec([draws], tf.float64)], layers).initial_state()

  def play(
    state: mechanism.State, cohort: array_types.Ids, present: bool, moves: np.ndarray, draws: int
  ) -> tuple[mechanism.State, Optional[_Release]]:
    clip = float(state.clip)
    rounds = core.for_model([tf.TensorSpec([draws], tf.float64)], layers)
    announced, ids = rounds.announce(state), tf.constant(cohort, tf.int64)
    reports = dict(client_id=ids, norm=tf.fill([len(cohort)], np.float32(clip)))
    admitted = rounds.admit(state, announced, reports)
    takes_part = target in np.asarray(cohort)
    size = _EXCESS * clip if present and takes_part else 0.0
    update = tf.constant([size], tf.float64)
    (scaled,) = rounds.contribution({0: update}, dict(client_id=tf.constant(target, tf.int64)), announced)
    weight = float(announced['weights'][target]) if takes_part else 0.0
    others = (float(tf.reduce_sum(admitted.weights)) - weight) * clip * moves
    scale = float(core.config.noise_scale(int(state.round) + 1))
    total = tf.cast(tf.round(others / rounds.sum_unit(clip * scale)), tf.int64) + tf.cast(scaled, tf.int64)
    state, (mean,), _ = rounds.release(state, admitted, [total])
    if not float(admitted.noise_multiplier):
      return state, None
    return state, _Release(mean.numpy() * core.divisor, others, clip, clip * core.noise_multiplier * scale)

  return _simulation(schedule, start, play)


def held(
  core: held_configs.Held,
  schedule: Sequence[Any],
  target: int,
  seed: Optional[int] = None,
  colluders: Sequence[int] = (),
) -> Simulate:
  """The certified mechanism without a trusted server: the secure sums, less what the others and colluders added.

  Args:
    core: The mechanism, with nothing left open.
    schedule: int[M_t], the cohorts.
    target: The client that is there or not.
    seed: For reproducible keys.
    colluders: Clients that tell the adversary their noise.
  """
  calls, core = _seeds(seed), dataclasses.replace(core.config, clip_split='joint').to_mechanism()
  layers = [layers_lib.Layer('seen', (0,), False)]

  @functools.lru_cache
  def rounds_of(draws: int) -> held_rounds.HeldRounds:
    return held_rounds.HeldRounds(core, [tf.TensorSpec([draws], tf.float64)], layers)

  @functools.lru_cache
  def added(draws: int) -> Callable[..., tf.Tensor]:
    def contribution(update: tf.Tensor, client: tf.Tensor, answer: array_types.Structure) -> tf.Tensor:
      report = rounds_of(draws).report([update], dict(client_id=client, answer=answer), {})
      return rounds_of(draws).contribution({0: update}, report, {})[0]

    return tf.function(contribution)

  def start(draws: int) -> tuple[mechanism.State, guarded_clients.GuardedClients]:
    seed = next(calls)
    secret = secrets.token_bytes(32) if seed is None else b'%d' % seed
    return rounds_of(draws).initial_state(), guarded_clients.GuardedClients(core, secret)

  def play(
    run: tuple[mechanism.State, guarded_clients.GuardedClients],
    cohort: array_types.Ids,
    present: bool,
    moves: np.ndarray,
    draws: int,
  ) -> tuple[tuple[mechanism.State, guarded_clients.GuardedClients], Optional[_Release]]:
    (state, guarded), rounds = run, rounds_of(draws)
    clip, zeros = float(state.clip), tf.zeros([draws], tf.float64)
    total, others, known = tf.zeros([draws], tf.int64), np.zeros(draws), tf.zeros([draws], tf.int64)
    answers = guarded.answers(int(state.round) + 1, cohort)
    for client, answer in answers.items():
      answer = tf.nest.map_structure(tf.constant, answer)
      noise = added(draws)(zeros, tf.constant(client, tf.int64), answer)
      total += noise
      if client in colluders:
        known += noise
      if client == target and present:
        # Each coordinate is a simulation of its own, in which the update has one coordinate.
        total += tf.cast(tf.floor(tf.cast(answer['weight'], tf.float64) * rounds.grid.steps), tf.int64)
      elif client != target:
        others += float(answer['weight']) * clip * moves
    total += tf.cast(tf.round(others / clip * rounds.grid.steps), tf.int64)
    reports = {'client_id': tf.constant(list(answers), tf.int64)}
    for name in ('round', 'last_round', 'weight'):
      reports[name] = np.array([answer[name] for answer in answers.values()])
    admitted = rounds.admit(state, {}, reports)
    state, (mean,), _ = rounds.release(state, admitted, [total])
    if not float(admitted.noise_multiplier):
      return (state, guarded), None
    seen = others + known.numpy() * (clip / rounds.grid.steps)
    return (state, guarded), _Release(mean.numpy() * core.divisor, seen, clip, clip * core.noise_multiplier)

  return _simulation(schedule, start, play)


def secret_cohorts(core: secret_configs.SecretCohorts, target: int, seed: Optional[int] = None) -> Simulate:
  """The certified mechanism with secret cohorts. The adversary knows the releases and what the others added.

  A private quantile's noised counts are a second release, which this game leaves alone: the clipping norm is fixed.
  The adversary does not know when the target was drawn. So it takes each release for the logarithm of the likelihood
  ratio between a round with the target's coin and a round without the target.

  Args:
    core: The mechanism, with nothing left open.
    target: The client that is there or not.
    seed: For reproducible noise and coins.
  """
  clip = clip_rules.Fixed(core.clip.initial_norm)
  calls, core = _seeds(seed), dataclasses.replace(core.config, clip_split='joint', clip=clip).to_mechanism()
  coins = np.random.default_rng(seed)
  layers = [layers_lib.Layer('seen', (0,), False)]
  rate, weight = float(core.rates[target]), float(core.planned_weights[target])
  others_weight = float(core.planned_weights.sum(dtype=np.float64)) - weight

  def start(draws: int) -> mechanism.State:
    seeded = dataclasses.replace(core.config, noise_seed=next(calls)).to_mechanism()
    return seeded.for_model([tf.TensorSpec([draws], tf.float64)], layers).initial_state()

  def play(
    state: mechanism.State, index: int, present: bool, moves: np.ndarray, draws: int
  ) -> tuple[mechanism.State, Optional[_Release]]:
    del index
    clip = float(state.clip)
    rounds = core.for_model([tf.TensorSpec([draws], tf.float64)], layers)
    announced, report = rounds.announce(state), dict(client_id=tf.constant(target, tf.int64))
    admitted = rounds.admit(state, announced, dict(client_id=tf.constant([target], tf.int64)))
    (scaled,) = rounds.contribution({0: tf.constant([_EXCESS * clip], tf.float64)}, report, announced)
    # Each coordinate is a simulation of its own, with a coin of its own.
    heads = coins.random(draws) < rate
    own = np.where(heads & present, scaled.numpy()[0], 0)
    others = others_weight * clip * moves
    total = tf.cast(tf.round(others / rounds.sum_unit(clip)), tf.int64) + tf.constant(own, tf.int64)
    state, (mean,), _ = rounds.release(state, admitted, [total])
    return state, _Release(mean.numpy() * core.divisor, others, clip, clip * core.noise_multiplier)

  releases = _simulation(range(core.num_rounds), start, play)
  variance = core.noise_multiplier**2

  def simulate(present: bool, draws: int) -> np.ndarray:
    seen = releases(present, draws)
    return np.log1p(rate * np.expm1((weight * seen - weight**2 / 2) / variance))

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
  noised_layer = 'seen' if noised else 'other'
  calls, config = _seeds(seed), dataclasses.replace(config, critical_layers=noised_layer)
  layers = [layers_lib.Layer('seen', (0,), False), layers_lib.Layer('other', (1,), False)]

  def rounds_of(draws: int) -> mechanism.Rounds:
    return config.for_model([tf.TensorSpec([draws], tf.float64), tf.TensorSpec([1], tf.float64)], layers)

  def start(draws: int) -> mechanism.State:
    return rounds_of(draws).initial_state()._replace(noise=mechanism.initial_noise(next(calls)))

  def play(
    state: mechanism.State, cohort: array_types.Ids, present: bool, moves: np.ndarray, draws: int
  ) -> tuple[mechanism.State, Optional[_Release]]:
    clip = float(state.clip)
    rounds, ids = rounds_of(draws), tf.constant(cohort, tf.int64)
    announced = rounds.announce(state)
    admitted = rounds.admit(state, announced, dict(client_id=ids, norm=tf.fill([len(cohort)], np.float32(clip))))
    size = _EXCESS * clip if present and target in np.asarray(cohort) else 0.0
    update, nothing = tf.constant([size], tf.float64), tf.zeros([1], tf.float64)
    report = dict(client_id=tf.constant(target, tf.int64), norm=tf.constant(size, tf.float32))
    contribution, _ = rounds.contribution({0: update, 1: nothing}, report, announced, admitted.clip)
    others = (len(cohort) - 1) * clip * moves
    state, (mean, _), _ = rounds.release(
      state, admitted, [tf.constant(others) + tf.repeat(contribution, draws), nothing]
    )
    return state, _Release(mean.numpy() * max(len(cohort), 1), others, clip, clip)

  return _simulation(schedule, start, play)


def query(dp_query: Any, rounds: int, taken: Sequence[int], clip: float, clients_per_round: float) -> Simulate:
  """A TensorFlow Privacy query, as TFF's DP aggregators have it.

  Args:
    dp_query: A query of records that are a list of one vector, whose result is a mean over `clients_per_round`.
    rounds: T.
    taken: The rounds, from 0, that the target is in.
    clip: The clipping norm.
    clients_per_round: How many others there are in a round.
  """

  def play(
    state: array_types.Structure, index: int, present: bool, moves: np.ndarray, draws: int
  ) -> tuple[array_types.Structure, Optional[_Release]]:
    parameters = dp_query.derive_sample_params(state)
    size = _EXCESS * clip if present and index in taken else 0.0
    (record,) = dp_query.preprocess_record(parameters, [tf.constant([size], tf.float32)])
    others = (clients_per_round - 1) * clip * moves
    total = tf.constant(others, tf.float32) + tf.repeat(record, draws)
    (result,), state, _ = dp_query.get_noised_result([total], state)
    return state, _Release(result.numpy().astype(np.float64) * clients_per_round, others, clip, clip)

  return _simulation(range(rounds), lambda draws: dp_query.initial_global_state(), play)


class _Release(NamedTuple):
  """The release of a round.

  Attributes:
    total: float64[draws], the noised sum, not divided.
    others: float64[draws], the others' part of it.
    clip: The clipping norm.
    unit: The total that moves the others by 1.
  """

  total: np.ndarray
  others: np.ndarray
  clip: float
  unit: float


def _simulation(
  rounds: Iterable[_Round],
  start: Callable[[int], _State],
  play: Callable[[_State, _Round, bool, np.ndarray, int], tuple[_State, Optional[_Release]]],
) -> Simulate:
  """All rounds of a mechanism, in which the others follow the releases, each within its bound.

  Args:
    rounds: What `play` is given, one for each round.
    start: A function from the number of draws to the first state.
    play: A function (state, round, present, moves, draws) -> (state, `_Release` or None). Each of the others adds
      `moves`, float64[draws] in (-1, 1), times its bound.
  """

  def simulate(present: bool, draws: int) -> np.ndarray:
    state, seen, moved = start(draws), [], np.zeros(draws)
    for one in rounds:
      state, release = play(state, one, present, np.tanh(moved), draws)
      if release is not None:
        moved = moved + release.total / release.unit
        seen.append((release.total - release.others) / release.clip)
    return np.stack(seen, axis=1)

  return simulate


def _seeds(seed: Optional[int]) -> Iterator[Optional[int]]:
  """A new seed for each simulation; None for the operating system's entropy."""
  return itertools.repeat(None) if seed is None else itertools.count(seed + 1)
