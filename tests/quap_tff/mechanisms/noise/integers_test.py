"""Tests of `mechanisms.noise.integers`: sensitivity, products and buffers, overflow, and what rounding costs."""

import fractions
import math

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import numpy as np
import pytest
import tensorflow as tf

from quap_tff.common.numbers import tradeoff
from quap_tff.mechanisms.noise import integer_noise
from quap_tff.mechanisms.noise import integers
from quap_tff.mechanisms.noise.correlation import Ar1
from quap_tff.mechanisms.noise.correlation import Banded
from quap_tff.mechanisms.noise.correlation import Blt
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.parts import layers
from quap_tff.mechanisms.parts.layers import Layer
from tests.quap_tff import examples
from tests.quap_tff import noise_checks
from tests.quap_tff import rounds

_CORRELATED = [
  Ar1(0.9),
  Ar1(0.999),
  Blt((0.6, 0.3), (0.9, 0.4)),
  Blt((1.0,), (1e-6,)),
  Banded(4, (0.9, 0.5, 0.5)),
  Banded(3, (0.7, 0.0)),
]
# One of each family; the others are thorough.
_ONE_OF_EACH = [
  one if i % 2 == 0 else pytest.param(one, marks=pytest.mark.thorough) for i, one in enumerate(_CORRELATED)
]
_KEY = tf.constant([1, 2, 3, 4], tf.int64)


def _groups(split, sizes):
  return layers.clip_groups(split, sizes, [Layer(str(i), (i,), False) for i in range(len(sizes))])


def _summands(update, weight=1.0, clip=1.0, split='joint', multiplier=1.0):
  """(int32 tensors, the grid) of an update."""
  update = [np.asarray(part) for part in update]
  sizes = [part.size for part in update]
  grid, groups = integers.Grid(multiplier, sum(sizes)), _groups(split, sizes)
  tensors = [tf.constant(part) for part in update]
  norms = [clip_rules.global_norm([tensors[i] for i in group.indices]) for group in groups]
  return grid.summands(tensors, norms, groups, tf.constant(weight, tf.float32), tf.constant(clip, tf.float32)), grid


def _squares(parts):
  return sum(int(x) ** 2 for part in parts for x in np.ravel(part))


def _bound(grid, weight):
  """⌊w·K⌋ of the real product."""
  return math.floor(fractions.Fraction(float(np.float32(weight))) * grid.steps)


class TestSummands:
  def test_by_hand(self):
    # d = 4 gives K = max(1024, 2^12/z). The bound is 4096·(1 - 2^-40) rounded down, less half of √4 for rounding.
    (first, second), grid = _summands([np.float32([12, 0]), np.float32([3, 4])], 0.5, 13.0)
    assert grid.steps == 4096 and first.dtype == second.dtype == tf.int32
    scale = (2047 - 1) / 13
    np.testing.assert_array_equal(first, np.round(np.multiply(scale, [12, 0])))
    np.testing.assert_array_equal(second, np.round(np.multiply(scale, [3, 4])))

  def test_layers_are_clipped_apart(self):
    # By size: ratios of √(9/25) and √(16/25), K = 2^12, and 4095 - √25/2 steps in all.
    quiet, loud = np.float32([0.5] + [0.0] * 8), np.float32([3.0, 4.0] + [0.0] * 14)
    (first, second), _ = _summands([quiet, loud], split='size')
    np.testing.assert_array_equal(first, np.round(quiet * 4096))
    np.testing.assert_array_equal(second, np.round(loud / 5 * 0.8 * (4095 - 2.5)))

  def test_within_the_bound_it_is_the_nearest_point_of_the_grid(self):
    update = [np.float32([0.1, 0.2]), np.float32([-0.3, 0.4])]
    for part, given_ in zip(_summands(update, clip=1.5)[0], update):
      np.testing.assert_array_equal(part, np.round(given_.astype(np.float64) * 4096 / 1.5))

  @pytest.mark.parametrize(
    'update, weight',
    [
      ([[math.nan, 1.0], [1.0, 1.0]], 1.0),
      ([[1.0, 1.0], [math.inf, 1.0]], 1.0),
      ([[1.0, -math.inf], [math.nan, 1.0]], 0.0),
      ([[1.0, 2.0], [3.0, 4.0]], 0.0),
      ([[1.0, 2.0], [3.0, 4.0]], 1e-6),  # Less than a step.
      ([[0.0, 0.0], [0.0, 0.0]], 1.0),
      ([[1e-45, 0.0], [0.0, 0.0]], 1.0),
    ],
  )
  @pytest.mark.parametrize('split', ['joint', 'equal'])
  @pytest.mark.parametrize('dtype', [np.float32, np.float64])
  def test_exact_zeros(self, update, weight, split, dtype):
    for part in _summands([np.array(u, dtype) for u in update], weight, split=split)[0]:
      np.testing.assert_array_equal(part, np.zeros(2, np.int32))

  @pytest.mark.parametrize('largest', [np.float32(3e38), np.float64(1e150), np.float64(1e300)])
  def test_the_largest_floats_keep_the_bound(self, largest):
    parts, grid = _summands([np.array([largest, 0]), np.array([0, -largest])])
    # The norm of 1e300 overflows. Such an update is 0.
    expected = 4094 if largest < 1e200 else 0
    assert math.sqrt(_squares(parts)) == pytest.approx(expected, rel=1e-3) and _squares(parts) <= grid.steps**2

  @pytest.mark.slow
  @given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.lists(st.integers(1, 300), min_size=1, max_size=4),
    split=st.sampled_from(list(layers.CLIP_SPLITS)),
    weight=st.floats(2.0**-20, 1.0, width=32),
    log_clip=st.floats(-44.0, 44.0),
    log_scale=st.floats(-30.0, 70.0),
    multiplier=st.sampled_from([0.01, 1.0, 300.0]),
    dtype=st.sampled_from([np.float32, np.float64]),
  )
  @settings(max_examples=50)
  def test_the_bound_always_holds_and_little_is_lost(
    self, seed, sizes, split, weight, log_clip, log_scale, multiplier, dtype
  ):
    rng = np.random.default_rng(seed)
    clip = float(np.float32(math.exp(log_clip)))
    scale = math.exp(min(log_clip + log_scale, 80.0))
    update = [(rng.standard_normal(n) * scale).astype(dtype) for n in sizes]
    parts, grid = _summands(update, weight, clip, split, multiplier)
    assert all(part.dtype == tf.int32 for part in parts)
    assert _squares(parts) <= _bound(grid, weight) ** 2
    # The clipped update lies within half a step of each entry, but for the room that rounding needs.
    room = min((math.sqrt(sum(sizes)) / 2 + 1) / (weight * grid.steps) + 1e-9, 1.0)
    for group in _groups(split, sizes):
      exact = [update[i].astype(np.float64) * (grid.steps / clip) for i in group.indices]
      norm = math.sqrt(sum(float(part @ part) for part in exact))
      factor = min(1.0, group.ratio * weight * grid.steps / norm) if norm else 1.0
      for index, part in zip(group.indices, exact):
        off = np.abs(parts[index].numpy() - factor * part)
        assert (off <= 0.5 + 1e-6 + room * np.abs(factor * part)).all()

  def test_norms_that_are_wrong_do_not_matter(self):
    """The bound is checked in integers, so it does not stand on the floats that clipped."""
    grid, update = integers.Grid(1.0, 2), [tf.constant([3.0, 4.0])]
    groups, one = _groups('joint', [2]), tf.constant(1.0)
    for norm in (5.0, 4.99, 1.0, 1e-300, 0.0, math.inf, math.nan):
      norms = [tf.constant(norm, tf.float64)]
      (part,) = grid.summands(update, norms, groups, one, one)
      assert _squares([part]) <= grid.steps**2
      assert np.any(part) == (norm == 5.0)
    # The square of 2^32 steps is 0 in integers of 64 bits.
    (part,) = grid.summands([tf.constant([2.0**20, 0.0])], [tf.constant(1.0, tf.float64)], groups, one, one)
    np.testing.assert_array_equal(part, [0, 0])

  @pytest.mark.parametrize('weight', [1.0, 0.999999, 1 / 3, 2.0**-12, 1e-3])
  def test_a_bound_that_is_reached_is_not_passed(self, weight):
    """An update on one axis may use all but half a step and the margin of ⌊w·K⌋."""
    (part,), grid = _summands([np.float32([1e9])], weight)
    bound = _bound(grid, weight)
    assert bound - 2 <= int(part[0]) <= bound

  def test_many_weights(self):
    update = [np.full(3_000_000, 1.1, np.float32), np.float32([1e4, 0.0])]
    parts, grid = _summands(update)
    norm = math.sqrt(sum(float(np.sum(np.square(part.numpy(), dtype=np.float64))) for part in parts))
    assert 0.998 * grid.steps < norm <= grid.steps


class TestProduct:
  @pytest.mark.slow
  @given(values=st.lists(st.integers(-(2**62) + 1, 2**62 - 1), min_size=1, max_size=20), factor=st.floats(1e-6, 1.0))
  @settings(max_examples=100)
  def test_against_fractions(self, values, factor):
    found = integers.product(tf.constant(values, tf.int64), factor).numpy()
    rounded = fractions.Fraction(round(factor * 2**53), 2**53)
    assert factor < 0.5 or rounded == fractions.Fraction(factor)
    for value, one in zip(values, found.tolist()):
      assert -3 < one - value * rounded <= 0

  @pytest.mark.parametrize('value', [0, 1, -1, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**62 - 1, -(2**62) + 1])
  @pytest.mark.parametrize('factor', [1.0, 0.5, 0.999, 1 - 2.0**-53, 2.0**-20, 1e-6])
  def test_at_the_ends(self, value, factor):
    found = int(integers.product(tf.constant([value], tf.int64), factor)[0])
    assert -3 < found - value * fractions.Fraction(round(factor * 2**53), 2**53) <= 0
    if factor in (1.0, 0.5, 2.0**-20):
      assert found == math.floor(value * fractions.Fraction(factor))


class _Draws:
  """In place of `Sampler.draw`: gives chosen values, and keeps the shifts that it was asked for."""

  def __init__(self, monkeypatch):
    self.values, self.shifts = None, None
    self._draw = integer_noise.Sampler.draw
    monkeypatch.setattr(integer_noise.Sampler, 'draw', lambda sampler, *args: self._called(sampler, *args))

  def _called(self, sampler, key, count, shifts):
    self.shifts = shifts.numpy()
    self.values = self._draw(sampler, key, count, shifts) if self.values is None else self.values
    return self.values

  def taken(self, grid, buffers):
    """b_t as the grid computes it, exact: a fraction for each weight."""
    self.values = tf.zeros([grid.num_weights], tf.int64)
    noise, _ = grid.noise(_KEY, buffers)
    return [fractions.Fraction(-int(n)) + fractions.Fraction(float(s)) for n, s in zip(noise, self.shifts)]

  def after(self, grid, buffers, noise):
    """The buffers after this Ẑ_t."""
    whole = [math.floor(b + fractions.Fraction(1, 2)) for b in self.taken(grid, buffers)]
    self.values = tf.constant([int(n) + w for n, w in zip(noise, whole)], tf.int64)
    found, after = grid.noise(_KEY, buffers)
    np.testing.assert_array_equal(found, noise)
    return after


class _Exact:
  """Buffers in fractions: b_t = Σ_j gain_j·buffer_j. Those of banded noise are the last releases' noise."""

  def __init__(self, grid):
    rounded = lambda factors: [fractions.Fraction(round(f * 2**53), 2**53) for f in factors]
    self.gains, self.decays = rounded(grid.correlation.gains), rounded(grid.correlation.decays)
    self.buffers = [[fractions.Fraction(0)] * grid.num_weights for _ in self.gains]
    self.is_banded = isinstance(grid.correlation, Banded)

  def taken(self):
    return [sum(g * b for g, b in zip(self.gains, column)) for column in zip(*self.buffers)]

  def coefficient(self, lag):
    if self.is_banded:
      return [1, *self.gains][lag] if lag <= len(self.gains) else 0
    return sum(g * d ** (lag - 1) for g, d in zip(self.gains, self.decays)) if lag else 1

  def add(self, noise):
    if self.is_banded:
      self.buffers = [[fractions.Fraction(int(n)) for n in noise], *self.buffers[:-1]]
      return
    self.buffers = [[d * b + int(n) for b, n in zip(own, noise)] for d, own in zip(self.decays, self.buffers)]


def _error(grid):
  """The bound on the error of b_t in grid steps, from which `buffer_cost` follows."""
  gains, decays = grid.correlation.gains, grid.correlation.decays
  return 3 * (float(np.sum(gains / (1 - decays))) + len(gains)) * 2.0**-grid.fraction_bits


class TestBuffers:
  @pytest.mark.slow
  @pytest.mark.parametrize('correlation', _CORRELATED)
  def test_against_fractions(self, correlation, monkeypatch):
    grid, draws = integers.Grid(1.0, 3, correlation, 30), _Draws(monkeypatch)
    exact, buffers, largest = _Exact(grid), grid.initial_buffers(), 0.0
    drawn = tf.reshape(grid.sampler.draw(_KEY, 90, tf.zeros([90], tf.float64)), [30, 3])
    for t in range(30):
      taken = draws.taken(grid, buffers)
      largest = max(largest, *(abs(float(a - b)) for a, b in zip(taken, exact.taken())))
      # Each draw is for the part of b_t that is no whole number.
      assert (np.abs(draws.shifts) <= 0.5).all()
      draws.values = drawn[t]
      noise, buffers = grid.noise(tf.constant([t, 0, 0, 0], tf.int64), buffers)
      exact.add(noise.numpy())
    assert largest <= _error(grid)
    # The bound is not a thousand times too large: buffers are in fixed point indeed.
    assert largest > _error(grid) / 1000

  @pytest.mark.slow
  @pytest.mark.parametrize('correlation', _CORRELATED)
  def test_the_noise_is_rounded_once(self, correlation, monkeypatch):
    """Ẑ_t + b_t is within 1/2 of a Gaussian: a draw for the shift b_t - ⌊b_t⌉, less ⌊b_t⌉."""
    grid, draws = integers.Grid(1.0, 3, correlation, 5), _Draws(monkeypatch)
    buffers = grid.initial_buffers()
    for t in range(5):
      taken = draws.taken(grid, buffers)
      draws.values = None
      noise, buffers = grid.noise(tf.constant([t, 0, 0, 0], tf.int64), buffers)
      for n, b, drawn, shift in zip(noise.numpy(), taken, draws.values.numpy(), draws.shifts):
        assert int(n) + b == int(drawn) + fractions.Fraction(float(shift))

  @pytest.mark.slow
  @pytest.mark.parametrize('correlation', _ONE_OF_EACH)
  def test_times_c_the_noise_is_gaussian(self, correlation):
    grid = integers.Grid(1.0, 2000, correlation, 6)
    buffers, drawn = grid.initial_buffers(), []
    for t in range(6):
      noise, buffers = grid.noise(tf.constant([t, 0, 0, 0], tf.int64), buffers)
      drawn.append(noise.numpy().astype(np.float64))
    noise_checks.assert_gaussian(sum(c * n for c, n in zip(correlation.coefficients(6), reversed(drawn))), grid.stddev)

  @pytest.mark.thorough
  @pytest.mark.slow
  def test_in_a_graph(self):
    grid = integers.Grid(1.0, 100, _CORRELATED[2], 6)
    eager, traced = grid.initial_buffers(), grid.initial_buffers()
    step = tf.function(grid.noise, autograph=False)
    for t in range(3):
      key = tf.constant([t, 0, 0, 0], tf.int64)
      (first, eager), (second, traced) = grid.noise(key, eager), step(key, traced)
      np.testing.assert_array_equal(first, second)
      np.testing.assert_array_equal(eager[0], traced[0])

  @pytest.mark.slow
  @pytest.mark.parametrize('correlation', _ONE_OF_EACH)
  def test_what_makes_correlated_noise_private(self, correlation, monkeypatch):
    """For two inputs and the same releases, the means of Z_s differ by Σ_k c_k·ΔX_{s-k}, but for rounding.

    With Ẑ_s = R_s - X_s, the release R_s says that Z_s lies within 1/2 of R_s - X_s + b_s. Its mean moves with X_s, and
    with b_s by what earlier releases have in their Ẑ.
    """
    num_releases, size, rng = 24, 2, np.random.default_rng(0)
    grid, draws = integers.Grid(1.0, size, correlation, num_releases), _Draws(monkeypatch)
    released = rng.integers(-(2**20), 2**20, [num_releases, size])
    sums = rng.integers(-4 * grid.steps, 4 * grid.steps, [num_releases, size])
    moved = np.where(rng.uniform(size=[num_releases, 1]) < 0.5, rng.integers(-grid.steps, grid.steps, [1, size]), 0)
    means = []
    for own in (sums, sums + moved):
      buffers, found = grid.initial_buffers(), []
      for total, release in zip(own, released):
        found.append([int(r) - int(x) + b for r, x, b in zip(release, total, draws.taken(grid, buffers))])
        buffers = draws.after(grid, buffers, release - total)
      means.append(found)
    # c_k in fractions, and Σ_k c_k·ΔX_{s-k} of each entry.
    exact = _Exact(grid)
    coefficients = [exact.coefficient(k) for k in range(num_releases)]
    for s in range(num_releases):
      for entry in range(size):
        expected = -sum(coefficients[k] * int(moved[s - k, entry]) for k in range(s + 1))
        assert abs(means[1][s][entry] - means[0][s][entry] - expected) <= 2 * _error(grid)
    assert moved.any(axis=1).sum() > 6


def _worst_signs(correlation, count):
  """The signs of Z_1 … Z_count that make the last Ẑ largest, from the inverse of the coefficients."""
  column, inverse = correlation.coefficients(count), [1.0]
  for t in range(1, count):
    inverse.append(-sum(column[k] * inverse[t - k] for k in range(1, t + 1)))
  return [1 if h >= 0 else -1 for h in reversed(inverse)]


def _largest_grid(correlation, count):
  """The grid of one weight with the largest noise multiplier, a power of 2, that is not refused."""
  for power in range(40, -1, -1):
    try:
      return integers.Grid(2.0**power, 1, correlation, count)
    except ValueError:
      continue
  raise AssertionError('All grids are refused.')


class TestOverflow:
  @pytest.mark.slow
  @pytest.mark.parametrize('count', [2, pytest.param(60, marks=(pytest.mark.slow, pytest.mark.thorough))])
  @pytest.mark.parametrize('correlation', [*_CORRELATED, Blt((0.5, 0.5), (0.999, 0.998)), Banded(9, (1.0,) * 8)])
  def test_nothing_overflows_in_the_largest_grid(self, correlation, count, monkeypatch):
    """Each draw is as far from 0 as draws can be, with the sign that makes the last release or buffer largest."""
    grid, draws = _largest_grid(correlation, count), _Draws(monkeypatch)
    reach = int(integer_noise.REACH * grid.stddev) + 1
    for signs in (_worst_signs(correlation, count), [1] * count, [-1, 1] * (count // 2)):
      exact, buffers = _Exact(grid), grid.initial_buffers()
      for sign in signs:
        draws.values = tf.constant([sign * reach], tf.int64)
        noise, buffers = grid.noise(_KEY, buffers)
        expected = sign * reach + fractions.Fraction(float(draws.shifts[0])) - exact.taken()[0]
        assert abs(int(noise[0]) - expected) <= _error(grid)
        exact.add(noise.numpy())
        units = [own[0] * 2**grid.fraction_bits for own in exact.buffers]
        assert max(abs(int(noise[0])), *map(abs, units)) < 2**62
        assert abs(sum(g * b for g, b in zip(exact.gains, units))) < 2**62
        assert all(abs(int(b) - u) < 2**62 / 1000 for b, u in zip(buffers[0][:, 0], units))
      grid.check_sum(1)

  @pytest.mark.parametrize('multiplier, num_weights', [(2.0**37, 1), (1e9, 10**6), (math.inf, 1), (1.0, 2**43)])
  def test_grids_that_could_overflow_are_refused(self, multiplier, num_weights):
    with pytest.raises(ValueError, match='could overflow. Use a smaller model'):
      integers.Grid(multiplier, num_weights)

  def test_buffers_that_could_overflow_are_refused(self):
    integers.Grid(2.0**36, 1, Ar1(0.9), 100)
    with pytest.raises(ValueError, match=r'buffers of Ar1\(decay=0.999\) could overflow: .* Use smaller decays'):
      integers.Grid(2.0**36, 1, Ar1(0.999), 100)

  def test_correlated_noise_needs_a_number_of_rounds(self):
    with pytest.raises(ValueError, match='needs a number of rounds.*Give num_rounds'):
      integers.Grid(1.0, 10, Ar1(0.9))

  def test_sums_of_too_many_clients_are_refused(self):
    grid = integers.Grid(1.0, 2**40)
    assert grid.steps == 2**29
    grid.check_sum(2**32)
    with pytest.raises(ValueError, match='8,589,934,592 clients .* could overflow integers of 64 bits'):
      grid.check_sum(2**33)

  def test_an_entry_fits_int32(self):
    assert integers.Grid(1.0, 2**42).steps == 2**30


class TestGrid:
  @pytest.mark.parametrize(
    'multiplier, num_weights, steps',
    # 512·√d, or as many as make σ = 2^12.
    [(1.0, 64, 4096), (8.0, 64, 4096), (8.0, 1, 512), (0.5, 1, 8192), (1e-3, 1, 4_096_000), (4.0, 2570, 25956)],
  )
  def test_steps_by_hand(self, multiplier, num_weights, steps):
    grid = integers.Grid(multiplier, num_weights)
    assert grid.steps == steps and grid.stddev == multiplier * steps >= 2**12

  def test_independent_noise_is_the_samplers(self):
    grid = integers.Grid(4.0, 100)
    noise, buffers = grid.noise(_KEY, grid.initial_buffers())
    np.testing.assert_array_equal(noise, integer_noise.Sampler(grid.stddev).draw(_KEY, 100))
    assert buffers == []

  @pytest.mark.slow
  def test_count_noise(self):
    draw = tf.function(lambda seed: integers.count_noise(tf.stack([seed, 0, 0, 0]), 2.5), autograph=False)
    drawn = np.array([float(draw(tf.constant(seed, tf.int64))) for seed in range(200)])
    noise_checks.assert_gaussian(drawn, 2.5)
    np.testing.assert_array_equal(drawn * 2**16, np.round(drawn * 2**16))

  @pytest.mark.slow
  def test_count_noise_is_not_that_of_the_sum(self):
    sampler = integer_noise.Sampler(2.0**16)
    for seed in range(5):
      key = tf.constant([seed, 0, 0, 0], tf.int64)
      assert float(integers.count_noise(key, 1.0)) * 2**16 not in sampler.draw(key, 100).numpy()

  @pytest.mark.parametrize('stddev, takes', [(1 / 16, True), (0.0624, False), (2.0**29, True), (2.0**29 + 1, False)])
  def test_range_of_count_noise(self, stddev, takes):
    assert integers.takes_count(stddev) == takes


def _moved(num_draws, largest, stddevs, delta=1e-5):
  """ε' of so many draws, written out; a 2^-13 part of δ, e^-(ε + 1) times as likely, is for ratios beyond it."""
  chance = 2.0**-13 * delta * math.exp(-largest - 1)
  missing = (33 * max(stddevs) + 2) * 2.0**-125
  spread = 2.0**-42 * math.sqrt(2 * num_draws * math.log(1 / chance))
  return spread + num_draws * (2.0**-42 * math.expm1(2.0**-42) + 2 * missing)


class TestSlack:
  _DRAWS = 60 * 2570

  def test_of_independent_noise_by_hand(self):
    grid = integers.Grid(4.0, 2570)
    found = grid.slack(3.0, 60.0, 1e-5, [(grid.stddev, self._DRAWS)])
    assert found.epsilon == pytest.approx(2 * _moved(self._DRAWS, 60.0, [grid.stddev]), rel=1e-11)
    assert found.delta == 1e-5 / 2048

  def test_every_kind_of_draw_counts(self):
    grid, wide = integers.Grid(4.0, 2570), integer_noise.LARGEST_STDDEV
    found = grid.slack(3.0, 3.0, 1e-5, [(grid.stddev, 10), (wide, 10**14)])
    expected = 2 * _moved(10**14 + 10, 3.0, [grid.stddev, wide])
    assert found.epsilon == pytest.approx(expected, rel=1e-11)
    # 2^-125 for each of the 33·2^45 values, in 2·10^14 draws, is 5.5e-9, and 4.9e-9 are kept.
    with pytest.raises(ValueError, match='δ = 6.9e-09, .* or a larger delta'):
      grid.slack(3.0, 3.0, 1e-5, [(grid.stddev, 10), (wide, 2 * 10**14)])
    grid.slack(3.0, 3.0, 1e-5, [(grid.stddev, 2 * 10**14), (wide, 10)])

  @pytest.mark.parametrize('correlation', _CORRELATED[:3])
  def test_of_correlated_noise_by_hand(self, correlation):
    grid = integers.Grid(4.0, 2570, correlation, 60)
    # Twice the error of each entry of b_t, in all 60 releases, over σ.
    cost = 2 * _error(grid) * math.sqrt(2570 * 60) / grid.stddev
    assert grid.buffer_cost == pytest.approx(cost, rel=1e-12)
    found = grid.slack(1.0, 3.0, 1e-5, [(grid.stddev, self._DRAWS)])
    mu, kept = tradeoff.mu_at_most(3.0, 1e-5), 1e-5 * (1 - 2.0**-11)
    # A difference of two ε, over a step so large that their rounding does not matter.
    more = float(tradeoff.epsilon_of(mu + 1e-4, kept) - tradeoff.epsilon_of(mu, kept)) * cost / 1e-4
    of_buffers = found.epsilon - 2 * _moved(self._DRAWS, 3.0, [grid.stddev])
    assert more <= of_buffers == pytest.approx(more, rel=0.06)
    assert found.epsilon <= 2.0**-11

  def test_too_many_draws_are_refused(self):
    grid = integers.Grid(4.0, 2570)
    words = (
      r'Rounding of 1,000,000,000,000,000,000 draws .* ε = 0.0032 .* 0.00049 and 4.9e-09 are kept for it\. '
      'Use fewer rounds or a smaller model'
    )
    with pytest.raises(ValueError, match=words):
      grid.slack(1.0, 3.0, 1e-5, [(2.0**12, 10**18)])
    # At ε = 10, ε' would be paid for, and δ would not.
    with pytest.raises(ValueError, match='δ = 1.9e-08'):
      grid.slack(10.0, 10.0, 1e-5, [(2.0**12, 10**18)])

  @pytest.mark.parametrize(
    'largest, delta, advice',
    [
      (3.0, 1e-24, 'a larger delta'),
      (60.0, 1e-27, 'a larger delta'),
      (60.0, 1e-300, 'a larger delta'),
      (100.0, 1e-10, 'a smaller epsilon'),
      (1000.0, 1e-5, 'a smaller epsilon'),
    ],
  )
  def test_a_delta_that_does_not_pay_for_the_tails_is_refused(self, largest, delta, advice):
    with pytest.raises(ValueError, match=f'of noise costs .* δ = .* or {advice}'):
      integers.Grid(4.0, 2570).slack(3.0, largest, delta, [(2.0**18, self._DRAWS)])

  def test_buffers_that_cost_too_much_are_refused(self):
    # A large model and many releases, and little ε.
    grid = integers.Grid(2.0**10, 10**8, Ar1(0.999), 10**4)
    assert grid.buffer_cost > 1e-5
    grid.slack(3.0, 3.0, 1e-5, [(grid.stddev, 1000)])
    with pytest.raises(ValueError, match='smaller decays'):
      grid.slack(0.01, 0.01, 1e-5, [(grid.stddev, 1000)])


class TestReleases:
  """A whole round: sums of integers are the same in any order, so the release is, bit for bit."""

  _SIZES = ([7], [3, 2])

  def _config(self, correlation):
    changes = dict(num_clients=9, epsilon=30.0, noise_multiplier=2.0, divisor=3.0, num_rounds=5)
    return examples.noised(correlation=correlation, clip=clip_rules.Fixed(0.7), **changes)

  @pytest.mark.slow
  @pytest.mark.parametrize(
    'correlation',
    [*(pytest.param(Ar1(one), marks=pytest.mark.thorough) for one in (0.0, 0.9)), Blt((0.6, 0.3), (0.9, 0.4))],
  )
  def test_for_any_order_and_any_split_of_the_cohort(self, correlation):
    process = rounds.Process(self._config(correlation), list(self._SIZES))
    rng = np.random.default_rng(0)
    state, other = process.initialize(), process.initialize()
    for _ in range(3):
      updates = {i: [rng.normal(size=size).astype(np.float32) for size in self._SIZES] for i in range(9)}
      order = rng.permutation(9).tolist()
      first = process.next(state, list(updates.values()), list(updates))
      second = process.next(other, [updates[i] for i in order], order)
      tf.nest.map_structure(np.testing.assert_array_equal, first.result, second.result)
      tf.nest.map_structure(np.testing.assert_array_equal, first.state, second.state)
      # Partial sums of three chunks.
      one, cohort = process.rounds, tf.range(9, dtype=tf.int64)
      announced = one.announce(state)
      admitted = one.admit(state, announced, dict(client_id=cohort))
      sent = [
        one.contribution(dict(enumerate(map(tf.constant, updates[i]))), dict(client_id=cohort[i]), announced)
        for i in range(9)
      ]
      partial = [
        [sum(tf.cast(own[part], one.sum_dtype) for own in sent[a:b]) for part in range(2)]
        for a, b in ((0, 2), (2, 3), (3, 9))
      ]
      total = [chunks[0] + chunks[1] + chunks[2] for chunks in zip(*reversed(partial))]
      _, result, _ = one.release(state, admitted, total)
      tf.nest.map_structure(np.testing.assert_array_equal, first.result, result)
      state, other = first.state, second.state

  @pytest.mark.slow
  def test_what_is_released_is_on_the_grid(self):
    """Each entry is a whole number of steps C/(K·D)."""
    process = rounds.Process(self._config(Ar1(0.9)), [tf.TensorSpec([50], tf.float64)])
    grid, state = process.rounds.grid, process.initialize()
    for _ in range(3):
      state, (result,), _ = process.next(state, [[np.full(50, 0.1)]] * 2, [1, 4])
      steps = result * 3.0 / float(np.float32(0.7)) * grid.steps
      np.testing.assert_allclose(steps, np.round(steps), atol=1e-6)
      assert len(set(np.round(steps) % 2)) == 2
