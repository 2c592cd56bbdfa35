"""A certified round as `certified_fl` writes it down is the certified round that trains."""

import numpy as np
import pytest

from quap_tff import certified_fl
from quap_tff.mechanisms.noise import correlation
from quap_tff.mechanisms.parts import clip_rules
from tests.quap_tff import examples
from tests.quap_tff import noise_checks
from tests.quap_tff import rounds

pytestmark = pytest.mark.slow

_WEIGHTS, _CLIP, _CLIENTS, _ROUNDS = 400, 0.5, 5, 8
# Client 0 comes so often that its budget ends, client 4 diverges, and nobody comes in the fourth round.
_COHORTS = [[2, 0, 3], [0, 4], [0, 1, 2], [], [1, 0], [3, 0], [0, 3, 4, 1], [0, 2]]
_CORRELATIONS = {
  'independent': correlation.Independent(),
  'ar1': correlation.Ar1(0.6),
  'banded': correlation.Banded(3, (0.7, 0.5)),
  'blt': correlation.Blt((0.3, 0.2), (0.8, 0.4)),
}


def _config(**changes):
  defaults = dict(
    num_clients=_CLIENTS, num_rounds=_ROUNDS, noise_multiplier=2.5, clip=clip_rules.Fixed(_CLIP), divisor=2.0
  )
  return examples.certified(**{**defaults, 'noise_seed': 5, **changes})


def _updates(cohort, round_num):
  """Updates from far below the clipping norm to far above it."""
  updates = {}
  for client in cohort:
    generator = np.random.default_rng([round_num, client])
    updates[client] = generator.normal(0, _CLIP * (client + 0.1), _WEIGHTS).astype(np.float32) / 20
    if client == 4:
      updates[client][7] = np.inf
  return updates


class _Given(np.random.Generator):
  """A generator that draws zeros, so that a round's noise is what the earlier ones take back."""

  def __init__(self):
    super().__init__(np.random.PCG64(0))

  def normal(self, loc=0.0, scale=1.0, size=None):
    return np.zeros(size)


@pytest.mark.parametrize('name', list(_CORRELATIONS))
def test_each_round_is_the_one_that_trains(name):
  core = _config(correlation=_CORRELATIONS[name]).to_mechanism()
  process = rounds.Process(core, [[_WEIGHTS]])
  state, expected = process.initialize(), certified_fl.initial_state(core, np.zeros(_WEIGHTS))
  steps = certified_fl.grid_steps(core, _WEIGHTS)
  unit = _CLIP / (steps * core.divisor)
  fresh = []
  for round_num, cohort in enumerate(_COHORTS, 1):
    updates = _updates(cohort, round_num)
    output = process.next(state, [[update] for update in updates.values()], list(updates))
    before, state = expected, output.state
    played = certified_fl.play_round(core, before, np.ones(_CLIENTS), updates, _Given())
    released = len(played.noise) > len(before.noise)
    assert released <= bool(cohort)
    assert state.noise.counter == len(played.noise)
    if released:
      np.testing.assert_allclose(state.weights, played.added[-1], rtol=1e-6)
      # What the real round released beyond the one without fresh noise is its fresh noise: whole grid steps, but for
      # the rounding of what was taken back, which the model's float32 hides.
      drawn = (np.asarray(output.result[0], np.float64) - (before.theta - played.theta)) / unit
      fresh.append(drawn)
      real_noise = played.noise[-1] + np.rint(drawn).astype(np.int64)
      played = played._replace(noise=np.vstack([before.noise, real_noise]))
    np.testing.assert_allclose(state.accounts.spent, played.spent, rtol=1e-6, atol=1e-12)
    expected = played
  stddev = core.noise_multiplier * steps
  noise_checks.assert_gaussian(np.concatenate(fresh), stddev)
  for earlier, later in zip(fresh, fresh[1:]):
    noise_checks.assert_uncorrelated(earlier, later, equal=2)
  # The filter has lowered a weight, and the limit holds. The real one is lower by a share of 2^-30.
  assert 0 < expected.added[:, 0][expected.added[:, 0] > 0].min() < 1
  assert expected.spent.max() <= core.limit * (1 + 2.0**-29)


def test_the_sum_is_the_same_in_integers():
  core = _config(correlation=correlation.Independent(), noise_multiplier=1000.0, divisor=1.0).to_mechanism()
  process = rounds.Process(core, [[_WEIGHTS]])
  steps = certified_fl.grid_steps(core, _WEIGHTS)
  state = process.initialize()
  announced = process.rounds.announce(state)
  for client, update in _updates(range(_CLIENTS), 1).items():
    report = process.rounds.report([update], {'client_id': np.int64(client)}, announced)
    (sent,) = process.rounds.contribution({0: update}, report, announced)
    expected = certified_fl.on_grid(core, update.astype(np.float64), 1.0, steps)
    # Norms of float32 tensors are summed in another order, which moves a scale by less than 1e-6.
    assert np.abs(np.asarray(sent) - expected).max() <= 1
    assert int(expected @ expected) <= steps**2
    assert expected.any() == (client != 4)


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
