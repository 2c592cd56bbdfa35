"""Tests of `mechanisms.noise.integer_noise`: probabilities by mpmath, decisions by NumPy, and distributions."""

import fractions
import math

import mpmath
import numpy as np
import pytest
from scipy import special
from scipy import stats
import tensorflow as tf

from quap_tff.common.numbers import chacha20
from quap_tff.mechanisms.noise import integer_noise
from tests.quap_tff import noise_checks

_STDDEVS = (2.0**12, 519120.0, 2.0**24, 2.0**40)
_KEY = tf.constant([1, 2, 3, 4], tf.int64)
_SIGN = -(2**63)


def _exact_theta(sampler, centre):
  """θ at an exact centre by its definition, with 50 digits left: height·σ·√2π times the probability."""
  with mpmath.workdps(90):
    stddev, centre = mpmath.mpf(sampler.stddev), mpmath.mpf(centre.numerator) / centre.denominator
    height = mpmath.mpf(sampler.height)
    if not sampler.is_rounded:
      return height * mpmath.exp(-((centre / stddev) ** 2) / 2)
    # In the tail that is nearer, where the difference loses the fewest digits.
    ends = [(abs(centre) + half) / (stddev * mpmath.sqrt(2)) for half in (-mpmath.mpf(1) / 2, mpmath.mpf(1) / 2)]
    return height * stddev * mpmath.sqrt(2 * mpmath.pi) * (mpmath.erfc(ends[0]) - mpmath.erfc(ends[1])) / 2


def _magnitudes(sampler):
  """Some magnitudes of all sizes, ends of bands among them."""
  table = sampler._table
  ends = table.first[np.linspace(1, len(table.first) - 1, 12).astype(int)]
  chosen = [0, 1, *ends, *(ends - 1), int(integer_noise.REACH * sampler.stddev)]
  return [int(m) for m in chosen] + [int(x * sampler.stddev) for x in (1, 6, 9, 13, 16.4)]


def _bands(table):
  """(first magnitude, words of each, first word, first word after it) of each band."""
  return list(zip(*(column.tolist() for column in table[:3]), [*table.begins[1:].tolist(), table.end]))


class TestTheta:
  @pytest.mark.slow
  @pytest.mark.parametrize('is_rounded', [True, False])
  @pytest.mark.parametrize('stddev', _STDDEVS)
  def test_against_mpmath(self, stddev, is_rounded):
    sampler = integer_noise.Sampler(stddev, is_rounded)
    shifts = [fractions.Fraction(s, 2**20) for s in (0, 1, -1, 2**19, -(2**19), 123_457, -(2**19) + 3)]
    signed = [sign * magnitude for magnitude in _magnitudes(sampler) for sign in (1, -1)]
    exact = [value + shift for value in signed for shift in shifts]
    # As `decide` adds them up: in float64.
    centres = tf.constant([float(value) for value in signed for _ in shifts], tf.float64)
    found = sampler.theta(centres + tf.constant([float(s) for s in shifts] * len(signed), tf.float64)).numpy()
    errors = [float(mpmath.mpf(theta) / _exact_theta(sampler, centre) - 1) for theta, centre in zip(found, exact)]
    # The other half of the error is that of the sum of all θ.
    assert max(map(abs, errors)) <= integer_noise.RELATIVE_ERROR * 0.35

  def test_the_height_fills_the_words(self):
    for stddev in _STDDEVS:
      # Σ exp(-c²/2σ²) over the magnitudes of both signs is σ·√2π, and each magnitude has words for one sign.
      filled = integer_noise.Sampler(stddev).height * stddev * math.sqrt(math.pi / 2) / 2**63
      assert filled == pytest.approx(0.96, rel=1e-12)

  def test_reach_is_never_passed_by_a_gaussian(self):
    with mpmath.workdps(50):
      assert mpmath.erfc(mpmath.mpf(integer_noise.REACH) / mpmath.sqrt(2)) <= integer_noise.BEYOND_REACH

  @pytest.mark.parametrize('stddev', [0.0, 2.0**12 - 1, 2.0**45 * 1.01, math.inf, math.nan])
  def test_other_standard_deviations_are_refused(self, stddev):
    with pytest.raises(ValueError, match='standard deviation on the grid'):
      integer_noise.Sampler(stddev)


class TestTable:
  @pytest.mark.parametrize('stddev', [*_STDDEVS, 2.0**45, 4097.3])
  def test_the_magnitudes_are_whole_bands_from_zero_to_the_reach(self, stddev):
    table, following = integer_noise.Sampler(stddev)._table, 0
    words = 0
    for first, each, begins, after in _bands(table):
      assert first == following and begins == words and each >= 1
      assert (after - begins) % each == 0 and after > begins
      following, words = first + (after - begins) // each, after
    assert following - 1 == int(integer_noise.REACH * stddev)
    assert words == table.end < 2**63

  @pytest.mark.slow
  @pytest.mark.parametrize('is_rounded', [True, False])
  @pytest.mark.parametrize('stddev', [*_STDDEVS, 2.0**45])
  def test_no_theta_is_larger_than_its_words(self, stddev, is_rounded):
    sampler = integer_noise.Sampler(stddev, is_rounded)
    for first, each, _, _ in _bands(sampler._table):
      # The nearest centre of a value with this magnitude or a larger one, and twice the error that θ may have.
      nearest = max(fractions.Fraction(first) - fractions.Fraction(1, 2), fractions.Fraction(0))
      assert _exact_theta(sampler, nearest) * (1 + integer_noise.RELATIVE_ERROR) < each

  def test_few_draws_are_made_again(self):
    for stddev in _STDDEVS:
      sampler = integer_noise.Sampler(stddev)
      words = np.random.default_rng(0).integers(_SIGN, -_SIGN - 1, [2, 100_000], endpoint=True)
      _, keeps = sampler.decide(*tf.constant(words), tf.zeros([100_000], tf.float64))
      # 0.96 of all words are kept on average, whatever the bands are.
      assert np.mean(keeps) == pytest.approx(0.96, abs=0.005)


def _recomputed(sampler, words, others, shifts):
  """`decide` in NumPy's 80-bit floats, with θ by integrating the density over the cell.

  Returns:
    (values, whether they are kept, how near to its threshold the second word is, as a share of the threshold).
  """
  table = sampler._table
  low = words & (2**63 - 1)
  band = np.searchsorted(table.begins, low, side='right') - 1
  each = table.words[band]
  magnitudes = table.first[band] + (low - table.begins[band]) // each
  values = np.where(others < 0, -magnitudes - 1, magnitudes)
  centres, variance = values.astype(np.longdouble) + shifts, np.longdouble(sampler.stddev) ** 2
  theta = np.exp(centres * centres / (-2 * variance))
  if sampler.is_rounded:
    # Gauss-Legendre with three points: its error is below (1/σ)^6. exp(y) = 1 + y + … for |y| < 0.005.
    cell = np.longdouble(0)
    for point, weight in zip((-np.sqrt(np.longdouble(0.15)), 0, np.sqrt(np.longdouble(0.15))), (5, 8, 5)):
      y = -(2 * point * centres + point * point) / (2 * variance)
      cell = cell + weight * y * (1 + y / 2 * (1 + y / 3 * (1 + y / 4 * (1 + y / 5 * (1 + y / 6)))))
    theta = theta + theta * (cell / 18)
  threshold = np.longdouble(sampler.height) * theta / each * np.longdouble(2.0**63)
  second = (others & (2**63 - 1)).astype(np.longdouble)
  with np.errstate(divide='ignore'):  # Far beyond the bands θ is 0.
    return values, (second < threshold) & (low < table.end), np.abs(second / threshold - 1)


class TestDecide:
  @pytest.mark.slow
  @pytest.mark.parametrize(
    'stddev, is_rounded, count',
    [
      (519120.0, True, 10**6),
      pytest.param(519120.0, True, 3 * 10**6, marks=pytest.mark.thorough),
      (4096.0, False, 10**6),
    ],
  )
  def test_many_draws_as_in_80_bit_floats(self, stddev, is_rounded, count):
    assert np.finfo(np.longdouble).nmant >= 63
    sampler, rng, chunk = integer_noise.Sampler(stddev, is_rounded), np.random.default_rng(7), 500_000
    decide = tf.function(sampler.decide, autograph=False)
    shares = []
    for _ in range(count // chunk):
      words, others = rng.integers(_SIGN, -_SIGN - 1, [2, chunk], endpoint=True)
      shifts = rng.integers(-(2**19), 2**19, chunk, endpoint=True) * 2.0**-20
      values, keeps = decide(words, others, shifts)
      expected, kept, near = _recomputed(sampler, words, others, shifts)
      np.testing.assert_array_equal(values, expected)
      # Both err by less than 2^-42, so they can differ only for a word this near: one in about 10^12.
      assert near.min() > integer_noise.RELATIVE_ERROR
      np.testing.assert_array_equal(keeps, kept)
      shares.append(np.mean(kept))
    assert np.mean(shares) == pytest.approx(0.96, abs=1e-3)

  @pytest.mark.parametrize('stddev', _STDDEVS)
  def test_first_and_last_words_of_bands(self, stddev):
    sampler = integer_noise.Sampler(stddev)
    words, magnitudes = [], []
    for first, each, begins, after in _bands(sampler._table):
      last = first + (after - begins) // each - 1
      words += [begins, begins + each - 1, after - each, after - 1]
      magnitudes += [first, first, last, last]
    for sign in (0, _SIGN):
      # The sign bit of the first word changes nothing, and that of the second is the sign.
      found, keeps = sampler.decide(tf.constant(words) + sign, tf.zeros_like(words), 0.0)
      np.testing.assert_array_equal(found, magnitudes)
      assert np.all(keeps)
      found, _ = sampler.decide(tf.constant(words) + sign, tf.fill([len(words)], np.int64(_SIGN)), 0.0)
      np.testing.assert_array_equal(found, [-1 - m for m in magnitudes])

  @pytest.mark.parametrize('stddev', _STDDEVS)
  def test_words_beyond_the_bands_are_never_kept(self, stddev):
    sampler = integer_noise.Sampler(stddev)
    end = sampler._table.end
    words = tf.constant([end - 1, end, end + 1, 2**63 - 1, _SIGN + end - 1, _SIGN + end, -1])
    _, keeps = sampler.decide(words, tf.zeros_like(words), 0.0)
    np.testing.assert_array_equal(keeps, [True, False, False, False, True, False, False])

  @pytest.mark.slow
  @pytest.mark.parametrize('is_rounded', [True, pytest.param(False, marks=pytest.mark.thorough)])
  @pytest.mark.parametrize(
    'stddev', [*(pytest.param(one, marks=pytest.mark.thorough) for one in _STDDEVS[:-1]), _STDDEVS[-1]]
  )
  def test_keeps_below_the_threshold_only(self, stddev, is_rounded):
    sampler = integer_noise.Sampler(stddev, is_rounded)
    table = sampler._table
    for magnitude in _magnitudes(sampler):
      band = int(np.searchsorted(table.first, magnitude, side='right')) - 1
      each = int(table.words[band])
      word = int(table.begins[band]) + (magnitude - int(table.first[band])) * each
      for sign, value in ((0, magnitude), (_SIGN, -1 - magnitude)):
        for shift in (fractions.Fraction(0), fractions.Fraction(1, 2), fractions.Fraction(-98_765, 2**20)):
          # To the last bit as θ is computed, and but for the stated error as θ is.
          # (A vector's `exp` and a scalar's may differ in the last bit.)
          computed = sampler.theta(tf.fill([4], np.float64(value)) + np.float64(shift)).numpy() / each
          below, threshold = math.ceil(computed[0] * 2.0**63) - 1, math.ceil(computed[1] * 2.0**63)
          exact = _exact_theta(sampler, value + shift) / each * 2**63
          room = int(exact * integer_noise.RELATIVE_ERROR) + 1
          others = [below, threshold, max(int(exact) - room, 0), int(exact) + 1 + room]
          others = tf.constant([sign + other for other in others], tf.int64)
          found, keeps = sampler.decide(tf.fill([4], np.int64(word)), others, tf.fill([4], np.float64(shift)))
          np.testing.assert_array_equal(found, [value] * 4)
          np.testing.assert_array_equal(keeps, [True, False, True, False])

  def test_no_value_is_drawn_in_two_ways(self):
    sampler = integer_noise.Sampler(4096.0)
    table, last = sampler._table, int(integer_noise.REACH * 4096)
    # One word of each magnitude, with both signs.
    magnitudes = np.arange(last + 1)
    band = np.searchsorted(table.first, magnitudes, side='right') - 1
    words = np.tile(table.begins[band] + (magnitudes - table.first[band]) * table.words[band], 2)
    others = np.repeat(np.int64([0, _SIGN]), last + 1)
    values, _ = sampler.decide(tf.constant(words), tf.constant(others), 0.0)
    np.testing.assert_array_equal(np.sort(values), np.arange(-1 - last, last + 1))


def _cell_probabilities(stddev, edges, shift, is_rounded=True):
  """The probability of each set of values [edges[i], edges[i+1]), and of those outside of all."""
  if is_rounded:
    cumulative = special.ndtr((np.asarray(edges) + shift - 0.5) / stddev)
  else:
    values = np.arange(-int(17 * stddev), int(17 * stddev))
    each = np.exp(-(((values + shift) / stddev) ** 2) / 2)
    cumulative = np.concatenate([[0], np.cumsum(each / each.sum())])[np.asarray(edges) - values[0]]
  inside = np.diff(cumulative)
  return np.append(inside, 1 - inside.sum())


class TestDistribution:
  @pytest.mark.slow
  @pytest.mark.parametrize('is_rounded', [True, False])
  @pytest.mark.parametrize('stddev', _STDDEVS)
  def test_is_gaussian(self, stddev, is_rounded):
    draws = integer_noise.Sampler(stddev, is_rounded).draw(_KEY, 20_000)
    assert draws.dtype == tf.int64
    noise_checks.assert_gaussian(draws, stddev)

  def test_with_shifts(self):
    shifts = np.random.default_rng(0).integers(-(2**19), 2**19, 20_000, endpoint=True) * 2.0**-20
    draws = integer_noise.Sampler(4096.0).draw(_KEY, 20_000, tf.constant(shifts))
    noise_checks.assert_gaussian(draws.numpy() + shifts, 4096.0)
    # They go to their own draws: the mean of 20,000 has a standard deviation of 29.
    assert abs(np.mean(draws + shifts)) < 100

  @pytest.mark.slow
  @pytest.mark.parametrize('is_rounded', [True, pytest.param(False, marks=pytest.mark.thorough)])
  @pytest.mark.parametrize('shift', [*(pytest.param(one, marks=pytest.mark.thorough) for one in (0.0, 0.5)), -0.375])
  def test_probabilities_of_single_values(self, shift, is_rounded):
    stddev, count = 4096.0, 1_000_000
    singles = np.arange(-100, 101)
    edges = np.unique(np.concatenate([singles, np.linspace(-3 * stddev, 3 * stddev, 101).astype(np.int64)]))
    shifts = None if shift == 0 else tf.fill([count], tf.constant(shift, tf.float64))
    draws = integer_noise.Sampler(stddev, is_rounded).draw(_KEY, count, shifts).numpy()
    found = np.histogram(draws, [*edges[:-1], edges[-1] - 0.5])[0]
    expected = count * _cell_probabilities(stddev, edges, shift, is_rounded)
    assert expected.min() > 50
    assert stats.chisquare(np.append(found, count - found.sum()), expected).pvalue > 1e-3

  def test_a_shift_moves_the_probabilities(self):
    """What the draws could show of half a step only in 10^9 samples, the thresholds show at once."""
    sampler = integer_noise.Sampler(4096.0)
    table = sampler._table
    band = int(np.searchsorted(table.first, 8192, side='right')) - 1
    word = table.begins[band] + (8192 - table.first[band]) * table.words[band]
    shifts = np.array([-0.5, 0.0, 0.5])
    # θ(8192 + shift)/θ(8192) is exp(-2·shift/4096) but for 1e-8.
    exact = sampler.theta(tf.constant([8192.0], tf.float64)).numpy() / table.words[band] * 2.0**63
    thresholds = exact * np.exp(-2 * shifts / 4096)
    for share, expected in ((1 - 1e-6, True), (1 + 1e-6, False)):
      others = tf.constant((thresholds * share).astype(np.int64))
      _, keeps = sampler.decide(tf.fill([3], word), others, tf.constant(shifts))
      assert np.all(keeps.numpy() == expected)

  def test_low_bits_are_uniform_and_independent(self):
    draws = integer_noise.Sampler(519120.0).draw(_KEY, 400_000).numpy()
    low = draws & 15
    for counted in (low, low[draws < 0], 16 * low[:-1] + low[1:], 16 * low + ((draws >> 4) & 15)):
      assert stats.chisquare(np.bincount(counted)).pvalue > 1e-3

  def test_low_bits_do_not_confirm_a_guess(self):
    stddev = 2.0**40
    drawn = integer_noise.Sampler(stddev).draw(_KEY, 40_000).numpy() / stddev
    # The check does find what it looks for on this grid.
    floats = tf.random.stateless_normal([40_000], [1, 2], dtype=tf.float32, alg='philox').numpy()
    weak = np.round(floats.astype(np.float64) * stddev) / stddev
    assert noise_checks.distance_from_the_float32_grid(weak) < 0.05
    assert noise_checks.distance_from_the_float32_grid(drawn) > 0.22


def _drawn_one_by_one(sampler, key, count, shifts, use):
  """`draw` in a loop of Python: those not kept are drawn again, in order, from pairs that nobody has used."""
  left, index, values = np.arange(count), 0, np.zeros(count, np.int64)
  while left.size:
    pairs = chacha20.integers(
      key, chacha20.nonce(use, 0, index)[tf.newaxis], 2 * (left.size + left.size // 12 + 64)
    ).numpy()
    pairs, used = pairs.reshape(-1, 2), 0
    while left.size and used + left.size <= len(pairs):
      own = pairs[used : used + left.size]
      used += left.size
      drawn, keeps = sampler.decide(*tf.constant(own.T.copy()), tf.constant(shifts[left]))
      values[left] = drawn.numpy()
      left = left[~keeps.numpy()]
    index += 1
  return values, index


class TestDraw:
  @pytest.mark.thorough
  @pytest.mark.slow
  def test_eager_and_in_a_graph(self):
    sampler = integer_noise.Sampler(519120.0)
    traced = tf.function(sampler.draw, reduce_retracing=True, autograph=False)
    for count in (0, 1, 5, 2000):
      shifts = np.linspace(-0.5, 0.5, count)
      for own in (None, tf.constant(shifts)):
        found = sampler.draw(_KEY, count, own)
        assert found.shape == [count] and found.dtype == tf.int64
        np.testing.assert_array_equal(found, traced(_KEY, tf.constant(count), own))
      np.testing.assert_array_equal(found, _drawn_one_by_one(sampler, _KEY, count, shifts, 0)[0])

  @pytest.mark.slow
  def test_is_a_pure_function_of_key_and_use(self):
    sampler = integer_noise.Sampler(2.0**24)
    first = sampler.draw(_KEY, 1000).numpy()
    np.testing.assert_array_equal(first, sampler.draw(_KEY, 1000))
    for position in range(4):
      other = _KEY + tf.one_hot(position, 4, dtype=tf.int64)
      noise_checks.assert_uncorrelated(first, sampler.draw(other, 1000))
    for stream in (integer_noise.Stream(1), integer_noise.Stream(0, 1)):
      noise_checks.assert_uncorrelated(first, sampler.draw(_KEY, 1000, stream=stream))

  def test_words_that_are_known_already(self):
    sampler, stream = integer_noise.Sampler(2.0**24), integer_noise.Stream(3, 8)
    words = integer_noise.stream_words(_KEY, [integer_noise.Stream(1), stream], 1000)
    found = sampler.draw(_KEY, 1000, stream=stream._replace(words=words[1]))
    np.testing.assert_array_equal(found, sampler.draw(_KEY, 1000, stream=stream))

  @pytest.mark.slow
  def test_goes_on_with_another_stream_when_the_words_run_out(self, monkeypatch):
    decide = integer_noise.Sampler.decide

    def seldom(self, words, others, shifts):
      values, keeps = decide(self, words, others, shifts)
      return values, tf.logical_and(keeps, tf.equal(others % 16, 3))

    monkeypatch.setattr(integer_noise.Sampler, 'decide', seldom)
    sampler, shifts = integer_noise.Sampler(2.0**24), np.zeros(1000)
    expected, streams = _drawn_one_by_one(sampler, _KEY, 1000, shifts, 5)
    assert streams > 5
    found = sampler.draw(_KEY, 1000, stream=integer_noise.Stream(5))
    np.testing.assert_array_equal(found, expected)
    noise_checks.assert_gaussian(found, 2.0**24)
    # No pair of words makes two draws.
    assert np.unique(found).size > 990

  @pytest.mark.slow
  def test_every_draw_has_its_own_shift(self, monkeypatch):
    decide = integer_noise.Sampler.decide

    def shown(self, words, others, shifts):
      _, keeps = decide(self, words, others, shifts)
      return tf.cast(shifts * 2.0**20, tf.int64), tf.logical_and(keeps, tf.equal(others % 4, 3))

    monkeypatch.setattr(integer_noise.Sampler, 'decide', shown)
    shifts = np.random.default_rng(0).integers(-(2**19), 2**19, 500)
    found = integer_noise.Sampler(2.0**24).draw(_KEY, 500, tf.constant(shifts * 2.0**-20))
    np.testing.assert_array_equal(found, shifts)

  @pytest.mark.slow
  def test_runtime_does_not_grow_with_the_tail(self):
    # A draw is made again with probability 0.04, so 2,000 draws need one stream only.
    for seed in range(20):
      key = tf.constant([seed, 0, 0, 0], tf.int64)
      assert _drawn_one_by_one(integer_noise.Sampler(519120.0), key, 2000, np.zeros(2000), 0)[1] == 1
