"""A certified round as `certified_fl` writes it down is the certified round that trains."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from quap_tff import certified_fl
from quap_tff.mechanisms import playing
from quap_tff.mechanisms.certified import weight_rules
from quap_tff.mechanisms.noise import correlation
from quap_tff.mechanisms.parts import clip_rules
from tests.quap_tff import examples
from tests.quap_tff import noise_checks
from tests.quap_tff import rounds

pytestmark = pytest.mark.slow

_WEIGHTS, _CLIP, _CLIENTS, _ROUNDS = 400, 0.5, 5, 8
_ASKED = np.float32(0.9)
# Client 0 comes so often that its budget ends, and is alone in the last round. Client 4 diverges. Nobody comes in the
# fourth round.
_COHORTS = [[2, 0, 3], [0, 4], [0, 1, 2], [], [1, 0], [3, 0], [0, 3, 4, 1], [0]]
_CORRELATIONS = {
  'independent': correlation.Independent(),
  'ar1': correlation.Ar1(0.6),
  'banded': correlation.Banded(3, (0.7, 0.5)),
  'blt': correlation.Blt((0.3, 0.2), (0.8, 0.4)),
}


def _config(**changes):
  defaults = dict(
    num_clients=_CLIENTS, num_rounds=_ROUNDS, noise_multiplier=2.0, clip=clip_rules.Fixed(_CLIP), divisor=2.0
  )
  return examples.certified(**{**defaults, 'noise_seed': 5, **changes})


def _updates(cohort, round_num):
  """Updates from far below the clipping norm to far above it, float64 with float32 values."""
  updates = {}
  for client in cohort:
    generator = np.random.default_rng([round_num, client])
    update = generator.normal(0, _CLIP * (client + 0.1), _WEIGHTS) / 20
    updates[client] = update.astype(np.float32).astype(np.float64)
    if client == 4:
      updates[client][7] = np.inf
  return updates


@dataclasses.dataclass(frozen=True)
class _NineTenths(weight_rules.WeightRule):
  """Of w·K grid steps nothing is whole, so the bound is ⌊w·K⌋ with and without a share for the error of floats."""

  def weights(self, view):
    return _ASKED


class _Drawing(np.random.Generator):
  """A generator that draws what it was given, once, and knows of which size it was asked."""

  def __init__(self, drawn):
    super().__init__(np.random.PCG64(0))
    self._drawn, self.stddev = drawn, None

  def normal(self, loc=0.0, scale=1.0, size=None):
    assert (loc, self.stddev) == (0, None)
    self.stddev = scale
    return self._drawn


def _real_noise(process, state, cohort):
  """Ẑ of the real round in grid steps, and the Z that makes it, which is one of those that are rounded to it."""
  grid, key = process.rounds.grid, process.rounds.round_key(state.noise, tf.constant(cohort, tf.int64))
  buffers = [tf.constant(one) for one in state.buffers]
  noise = grid.noise(key, buffers)[0].numpy()
  taken_back = np.zeros(_WEIGHTS)
  if buffers:
    taken_back = grid.correlation.gains @ (state.buffers[0] * 2.0**-grid.fraction_bits)
  return noise, noise + taken_back


def _assert_just_below(found, exact, share):
  """Found is exact, or below it by at most a share."""
  assert (found <= exact).all()
  np.testing.assert_allclose(found, exact, rtol=share, atol=0)


@pytest.mark.parametrize(
  'name',
  [pytest.param(name, marks=pytest.mark.thorough if name in ('ar1', 'banded') else ()) for name in _CORRELATIONS],
)
def test_each_round_is_the_one_that_trains(name):
  """Both play the same cohorts, updates and noise. Integers are equal, and all that is safe to round errs that way."""
  core = _config(correlation=_CORRELATIONS[name], weights=_NineTenths()).to_mechanism()
  process = rounds.Process(core, [[_WEIGHTS]])
  state, expected = process.initialize(), certified_fl.initial_state(core, np.zeros(_WEIGHTS))
  steps = certified_fl.grid_steps(core, _WEIGHTS)
  fresh = []
  for round_num, cohort in enumerate(_COHORTS, 1):
    updates = _updates(cohort, round_num)
    tensors = [[tf.constant(update, tf.float32)] for update in updates.values()]
    played = playing.play_round(process.rounds, tf.nest.map_structure(tf.constant, state), tensors, cohort)
    weights = np.zeros(_CLIENTS)
    weights[cohort] = played.admitted.weights

    # The filter. The real limit is lower by a share of 2^-30, and its weights are rounded down to float32.
    allowed = certified_fl.filtered(core, expected, np.full(_CLIENTS, _ASKED, np.float64))
    _assert_just_below(weights[cohort], allowed[cohort], 1e-6)

    # From here on both have the real weights, which the filter lets through, so that all else can be equal.
    noise, drawn = _real_noise(process, state, cohort)
    generator = _Drawing(drawn)
    before, expected = expected, certified_fl.play_round(core, expected, weights, updates, generator)
    state = tf.nest.map_structure(np.asarray, played.state)
    if not weights.any():
      assert generator.stddev is None and state.noise.counter == len(expected.noise)
      np.testing.assert_array_equal(played.result[0], np.zeros(_WEIGHTS))
      continue

    # The integers of clients and of the noise.
    assert generator.stddev == process.rounds.grid.stddev
    for client, (sent,) in zip(cohort, played.sent):
      whole = certified_fl.on_grid(core, updates[client], weights[client], steps)
      np.testing.assert_array_equal(sent, whole)
      assert whole.any() == (client != 4 and weights[client] > 0)
    np.testing.assert_array_equal(expected.noise[-1], noise)
    np.testing.assert_array_equal(expected.added[-1], state.weights)
    assert state.noise.counter == len(expected.noise)

    # The release, which the model's float32 rounds. From a model of zeros it can be read without another rounding.
    bare = certified_fl.play_round(core, before._replace(theta=np.zeros(_WEIGHTS)), weights, updates, _Drawing(drawn))
    np.testing.assert_array_equal(played.result[0], np.float32(-bare.theta))

    # The charge. The real one is rounded up in each round: by 2^-36 under correlated noise.
    _assert_just_below(expected.spent, state.accounts.spent, 2.0**-35)
    fresh.append(drawn)
  noise_checks.assert_gaussian(np.concatenate(fresh), core.noise_multiplier * steps)
  for earlier, later in zip(fresh, fresh[1:]):
    noise_checks.assert_uncorrelated(earlier, later, equal=2)
  # Two rounds have released nothing: the one with nobody, and the one whose only client had nothing left.
  assert not weights.any() and len(fresh) == len(_COHORTS) - 2
  # The filter has lowered a weight of that client before, and the limit holds.
  of_first = expected.added[:, 0]
  assert 0 < of_first[of_first > 0].min() < _ASKED
  assert state.accounts.spent.max() <= core.limit * (1 + 1e-10)


def test_the_charge_is_the_theorems_norm():
  """Σ of charges is ‖C·w_i‖²/z² if each planned round releases something."""
  core = _config(correlation=_CORRELATIONS['blt'], noise_multiplier=30.0).to_mechanism()
  generator, state = np.random.default_rng(2), certified_fl.initial_state(core, np.zeros(3))
  for _ in range(_ROUNDS):
    cohort = generator.permutation(_CLIENTS)[:3]
    asked = generator.uniform(0.3, 1, _CLIENTS)
    state = certified_fl.play_round(core, state, asked, {int(client): np.ones(3) for client in cohort}, generator)
  column = core.config.correlation.coefficients(_ROUNDS)
  matrix = np.zeros([_ROUNDS, _ROUNDS])
  for release in range(_ROUNDS):
    matrix[release, : release + 1] = column[release::-1]
  expected = np.square(matrix @ state.added).sum(axis=0) / core.noise_multiplier**2
  np.testing.assert_allclose(state.spent, expected, rtol=1e-12)
  after = certified_fl.play_round(core, state, np.ones(_CLIENTS), {0: np.ones(3)}, generator)
  np.testing.assert_array_equal(after.theta, state.theta)
