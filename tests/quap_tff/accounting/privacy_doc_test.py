"""The numbers of docs/privacy.md and docs/proofs.md, computed from the code, and claims about floating-point noise."""

import math
import pathlib

import numpy as np
import pytest

from quap_tff.accounting import accountants
from quap_tff.accounting import history
from quap_tff.common.lazy import tf
from quap_tff.common.numbers import rounding
from quap_tff.common.numbers import slack as slacks
from quap_tff.common.numbers import tradeoff
from quap_tff.common.numbers.rounding import up_fixed
from quap_tff.mechanisms.held import config as held_config
from quap_tff.mechanisms.noise import correlation
from quap_tff.mechanisms.noise import gaussian
from quap_tff.mechanisms.noise import held_noise
from quap_tff.mechanisms.noise import integer_noise
from quap_tff.mechanisms.noise import integers
from quap_tff.mechanisms.parts import budgets
from quap_tff.mechanisms.parts import clip_rules
from tests.quap_tff import noise_checks

_ROOT = pathlib.Path(__file__).parents[3]
_PAGES = [(_ROOT / 'docs' / name).read_text(encoding='utf-8') for name in ('privacy.md', 'proofs.md')]
_DOC = ' '.join(' '.join(_PAGES).split())
_TRUST = ' '.join((_ROOT / 'docs' / 'trust.md').read_text(encoding='utf-8').split())
_DELTA = 1e-5
_MU = tradeoff.mu_at_most(3.0, _DELTA)
_Z = math.sqrt(20) / _MU


def _epsilon(mu):
  return float(tradeoff.epsilon_of(mu, _DELTA))


@pytest.mark.slow
@pytest.mark.parametrize('epsilon', [1, 3, 6, 10])
def test_mu_and_noise(epsilon):
  mu = tradeoff.mu_at_most(epsilon, _DELTA)
  noise = up_fixed(math.sqrt(20) / mu, 3), up_fixed(math.sqrt(200) / mu, 2)
  assert f'| {epsilon} | {rounding.down(mu)} | {noise[0]} | {noise[1]} |' in _DOC


def test_the_formula_is_that_of_the_code():
  normal = lambda x: 0.5 * math.erfc(-x / math.sqrt(2))
  delta = normal(-3 / _MU + _MU / 2) - math.exp(3) * normal(-3 / _MU - _MU / 2)
  assert delta == pytest.approx(_DELTA, rel=1e-6)


def test_counts():
  rule = clip_rules.PrivateQuantile(count_stddev=10.0)
  assert rule.count_noise_multiplier == 2 * 10
  spent = 20 / rule.count_noise_multiplier**2
  share = spent / _MU**2
  assert f'With s = 10, twenty rounds of such counts cost μ² = {spent:.2f}, which is {share:.1%} of the' in _DOC


def test_adaptive_weights():
  config = budgets.BudgetConfig(epsilon_total=3.0, num_rounds=20, alpha=0.5, beta=2.0)
  always, rarely = np.asarray(budgets.client_budgets(config, np.array([1.0, 0.1]), False)) / (config.epsilon_base * 1.5)
  assert f'at participation rate 1 has w = {always:.3f} and spends {always**2:.3f} of the μ²' in _DOC
  assert f'at rate 0.1 it has w = {rarely:.3f}' in _DOC


def _rounded_up(value, unit):
  return math.ceil(value / unit * 10) / 10


def test_what_integers_cost():
  small = integers.Grid(20.0, 2570, correlation.Ar1(0.9), 60)
  large = integers.Grid(40.0, 1_199_882, correlation.Ar1(0.97), 200)
  assert f'F is {small.fraction_bits} and the second term is {_rounded_up(small.buffer_cost, 1e-12)}·10⁻¹²' in _DOC
  largest, huge = slacks.LARGEST_EPSILON, integers.Grid(40.0, 10**8, correlation.Ar1(0.97), 2000)
  costs = [
    grid.slack(3.0, largest, _DELTA, [(grid.stddev, grid.num_weights * grid.num_releases)]).epsilon
    for grid in (small, large, huge)
  ]
  assert f'the slack of ε is {_rounded_up(costs[0], 1e-9)}·10⁻⁹ at 2,570 weights and 60 rounds' in _DOC
  assert f'{_rounded_up(costs[1], 1e-7)}·10⁻⁷ at 1,199,882 weights and 200 rounds' in _DOC
  assert f'{_rounded_up(costs[2], 1e-6)}·10⁻⁶ at a hundred million weights and 2,000 rounds' in _DOC


def test_the_error_of_a_draw():
  error = 2.0**-42
  assert 5 * 136.2 * 2.0**-53 <= 2.0**-43.58 and integer_noise.REACH**2 / 2 < 136.2
  assert 0.7 * error > 2 * (2.0**-43.58 + 2.0**-49) and r'\kappa = 0.7 \cdot 2^{-42}' in _DOC
  left_out = integer_noise.added(integer_noise.LARGEST_STDDEV)
  assert left_out < 2.0**-74 and integer_noise.BEYOND_REACH == 4e-61
  assert math.log1p(0.7 * error) - math.log1p(-left_out) - math.log1p(-4e-61) <= error == integer_noise.RELATIVE_ERROR
  assert integers.RESERVE / 4 == 2.0**-13


def test_what_discrete_shares_cost():
  found = held_noise.discreteness_slack(
    *(slacks.LARGEST_EPSILON, _DELTA),
    noise_steps=2.0**20,
    decay=0.7,
    num_releases=60,
    num_coordinates=2570,
    num_participations=60 * 30,
  )
  assert f'it is {_rounded_up(found.epsilon, 1e-7)}e-7 in ε' in _DOC


def test_a_sum_that_opens_for_one_client():
  planned = held_config.HeldConfig(300, 3.0, _DELTA).settled([range(300)] * 20).mechanism
  account, weights = (
    held_noise.opened(300, planned.noise_multiplier, planned.config.correlation.chosen),
    planned.planned_weights,
  )
  for came in [np.arange(300)] * 19 + [np.array([7])]:
    account = account.after(came, np.array(weights)[came])
  epsilon = rounding.down(_epsilon(math.sqrt(account.spent[7])), 3)
  assert f'the last one for one client alone takes that client past ε = {epsilon}, under a plan of 3' in _TRUST


def test_what_a_threshold_costs():
  times = [f'{math.sqrt(1 / share):.2f} times' for share in (2 / 3, 1 / 2)]
  assert f'{times[0]} the noise at two thirds, and {times[1]} at one half' in _TRUST
  plain, half = (
    held_config.HeldConfig(4, 3.0, _DELTA, correlation=correlation.HeldNoise(0.0), threshold=one) for one in (None, 0.5)
  )
  scales = [one.settled([range(4)] * 5).mechanism.share_scale for one in (plain, half)]
  assert scales[1] / scales[0] == pytest.approx(math.sqrt(2), rel=1e-9)


def test_replace_one():
  assert f'has ε = 3 under zero-out has ε = {up_fixed(_epsilon(2 * _MU), 2)} under replace-one' in _DOC


def test_amplification():
  amplified = accountants.get('pld').epsilon(history.History.gaussian(_Z, 20, 0.3), _DELTA)
  bounds = up_fixed(amplified, 2), up_fixed(_epsilon(math.sqrt(6) / _Z), 2)
  assert f'For z = {up_fixed(_Z, 3)}, 20 rounds and q = 0.3, privacy loss distributions give ε = {bounds[0]} (' in _DOC
  assert f'A client known to have been in 6 of the 20 rounds has ε = {bounds[1]}.' in _DOC


def test_the_charge_is_the_one_that_is_written_out():
  noise, left, weight, h = correlation.Blt((0.6, 0.3), (0.9, 0.4)), 7, 0.7, np.array([1.3, 0.4])
  g, d = noise.gains, noise.decays
  a = [g[j] * sum(g[k] * (1 - (d[j] * d[k]) ** left) / (1 - d[j] * d[k]) for k in range(2)) for j in range(2)]
  written = (1 + sum(a)) * weight**2 + 2 * weight * sum((g[j] + d[j] * a[j]) * h[j] for j in range(2))
  unit, by_sum = noise.price(left)
  assert unit * weight**2 + 2 * weight * np.dot(by_sum, h) == pytest.approx(written, rel=1e-12)


def _float32_draws(seed, shape, stddev):
  """Noise as TensorFlow makes it by default."""
  return stddev * tf.random.stateless_normal(shape, seed, dtype=tf.float32, alg='philox').numpy()


def test_the_low_bits_of_float32_noise_tell_a_right_guess_from_a_wrong_one():
  rng, size, multiplier = np.random.default_rng(0), 20_000, np.float32(6.2)
  others = rng.normal(0, 0.01, size).astype(np.float32)
  seed = tf.constant([1, 2], tf.int64)
  distance = lambda released, guess: noise_checks.distance_from_the_float32_grid(
    (released.astype(np.float64) - guess) / float(multiplier)
  )
  released = others + _float32_draws(seed, [size], multiplier)
  wrong = others + rng.normal(size=size) / math.sqrt(size)
  assert (
    f'is {distance(released, others):.2f} under the right guess. '
    f'Under a wrong guess it is {distance(released, wrong):.2f}, as for random numbers.'
  ) in _DOC
  ours = others.astype(np.float64) + gaussian.noise(seed, [size], multiplier).numpy()
  assert f'gives {distance(ours, others):.2f} under the right guess, too' in _DOC


def test_the_tails_end():
  bound = math.sqrt(-2 * math.log(1e-7))
  assert f'no single number is larger than {bound:.2f}·σ' in _DOC
  assert f'larger than {2 * bound:.2f}·σ' in _DOC
  assert 4.5 < np.abs(_float32_draws(tf.constant([3, 4], tf.int64), [2_000_000], 1.0)).max() <= bound * (1 + 1e-6)
