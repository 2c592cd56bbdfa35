"""Tests of `mechanisms.noise.correlation`: coefficients, prices and noise against matrices written out in full."""

import dataclasses
from fractions import Fraction
import itertools
import math

import numpy as np
import pytest
import scipy.linalg

from quap_tff.common import registry
from quap_tff.common.lazy import tf
from quap_tff.mechanisms.noise import correlation
from quap_tff.mechanisms.noise import recursions
from quap_tff.mechanisms.noise.correlation import Ar1
from quap_tff.mechanisms.noise.correlation import Banded
from quap_tff.mechanisms.noise.correlation import Blt
from quap_tff.mechanisms.noise.correlation import Independent

_ALL = [
  Independent(),
  Ar1(0.5),
  Ar1(0.97),
  Blt((0.6, 0.3), (0.9, 0.4)),
  Blt((0.2, 0.5, 0.1), (0.99, 0.7, 0.05)),
  Banded(1),
  Banded(2, (0.7,)),
  Banded(6, (0.9, 0.5, 0.5, 0.2, 0.0)),
]


def _matrix(choice, size):
  """C, lower triangular, float64[T, T]."""
  return scipy.linalg.toeplitz(choice.coefficients(size), np.zeros(size))


class TestCoefficients:
  def test_by_hand(self):
    np.testing.assert_array_equal(Independent().coefficients(3), [1, 0, 0])
    np.testing.assert_allclose(Ar1(0.5).coefficients(4), [1, 0.5, 0.25, 0.125])
    np.testing.assert_allclose(Blt((0.6, 0.3), (0.9, 0.4)).coefficients(4), [1, 0.9, 0.66, 0.534])
    np.testing.assert_array_equal(Banded(3, (0.7, 0.2)).coefficients(5), [1, 0.7, 0.2, 0, 0])
    np.testing.assert_array_equal(Banded(3, (0.7, 0.2)).coefficients(2), [1, 0.7])

  def test_no_decay_is_independent_noise(self):
    assert Ar1(0.0).num_buffers == 0 and Ar1(0.0).price(5) == (1.0, [])

  def test_ar1_is_the_blt_of_one_term(self):
    for count in (1, 2, 9):
      np.testing.assert_allclose(Ar1(0.8).coefficients(count), Blt((0.8,), (0.8,)).coefficients(count))

  def test_a_file_keeps_the_family_and_its_parameters(self):
    for choice in (*_ALL, correlation.HeldNoise(0.7)):
      assert correlation.from_spec(correlation.spec_of(choice)) == choice
    assert correlation.spec_of(Ar1(0.9)) == 'ar1:decay=0.9'

  def test_a_family_that_a_file_cannot_name_is_refused(self, monkeypatch):
    @dataclasses.dataclass(frozen=True)
    class Secretive(Ar1):
      other: float = dataclasses.field(default=0.0, metadata={registry.NOT_IN_SPECS: True})

    with pytest.raises(ValueError, match='Secretive has no name. Register it'):
      correlation.spec_of(Secretive(0.5))
    monkeypatch.setitem(correlation.FAMILIES, 'secretive', Secretive)
    assert correlation.from_spec('secretive:decay=0.5') == Secretive(0.5)
    with pytest.raises(ValueError, match='is not all that'):
      correlation.spec_of(Secretive(0.5, 1.0))
    with pytest.raises(ValueError, match='is not how a file writes ar1:decay=0.5'):
      correlation.from_spec('ar1:decay=0.50')

  @pytest.mark.parametrize(
    'make, message',
    [
      (lambda: Ar1(1.0), 'decay must be a finite number at least 0 and at most 0.999'),
      (lambda: Ar1(-0.1), 'decay must be'),
      (lambda: Ar1(1e-200), 'decay, unless it is 0 .independent noise., must be a finite number at least 1e-06'),
      (lambda: Ar1(math.nan), 'decay must be a finite number'),
      (lambda: Blt((0.5,), (0.0,)), 'decay must be a finite number at least 1e-06'),
      (lambda: Blt((0.5, 0.1), (0.9, 1e-7)), 'decay must be a finite number at least 1e-06'),
      (lambda: Blt((0.0,), (0.5,)), 'gain must be'),
      (lambda: Blt((0.5, 0.6), (0.9, 0.5)), 'must not sum to more than 1, found 1.1'),
      (lambda: Blt((0.5,), (0.9, 0.5)), 'as many gains as decays, found 1 and 2'),
      (lambda: Blt((0.5, 0.1), (0.9, 0.9)), 'Each decay must appear once'),
      (lambda: Blt([0.5], [0.5]), 'gain must be a tuple'),
      (lambda: Blt((), (0.5,)), 'as many gains as decays, found 0 and 1'),
      (lambda: Banded(0), 'bands must be an integer at least 1'),
      (lambda: Banded(3, (0.5,)), 'gain must have 2 numbers for bands=3, .* found 1'),
      (lambda: Banded(3, (0.5, 0.6)), 'gain must not grow'),
      (lambda: Banded(2, (1.1,)), 'gain must be a finite number at least 0 and at most 1'),
      (lambda: Banded(2, (math.nan,)), 'gain must be a finite number'),
      (lambda: Banded(3, [0.5, 0.2]), 'gain must be a tuple'),
      (lambda: registry.parse_spec('noise correlation', 'blt:gain=0.5/x', correlation.FAMILIES), 'found .0.5/x'),
      (lambda: registry.parse_spec('noise correlation', 'arl', correlation.FAMILIES), "Did you mean 'ar1'"),
    ],
  )
  def test_what_is_refused(self, make, message):
    with pytest.raises(ValueError, match=message):
      make()

  @pytest.mark.parametrize(
    'spec, expected',
    [
      ('independent', Independent()),
      ('ar1:decay=0.9', Ar1(0.9)),
      ('ar1', Ar1(None)),
      ('blt:gain=0.6/0.3,decay=0.9/0.4', Blt((0.6, 0.3), (0.9, 0.4))),
      ('blt', Blt()),
      ('banded:bands=4', Banded(4)),
      ('banded:bands=3,gain=0.7/0.2', Banded(3, (0.7, 0.2))),
    ],
  )
  def test_specs(self, spec, expected):
    found = registry.parse_spec('noise correlation', spec, correlation.FAMILIES)
    assert found == expected
    name = spec.partition(':')[0]
    assert registry.parse_spec('noise correlation', registry.format_spec(name, found), correlation.FAMILIES) == found

  @pytest.mark.parametrize('choice, name', [(Ar1(), 'decay'), (Blt(), 'gain'), (Banded(2), 'gain')])
  def test_what_is_not_chosen_is_not_independent_noise(self, choice, name):
    assert not choice.is_settled
    with pytest.raises(ValueError, match=f'The {name} is not chosen yet'):
      choice.num_buffers  # pylint: disable=expression-not-assigned


class TestBuffers:
  @pytest.mark.parametrize('choice', _ALL)
  def test_what_is_taken_back_is_what_the_coefficients_say(self, choice):
    values = np.random.default_rng(5).uniform(size=12)
    buffers = [0.0] * choice.num_buffers
    for release, value in enumerate(values):
      expected = choice.coefficients(release + 1)[1:] @ values[:release][::-1]
      assert choice.gains @ buffers == pytest.approx(expected, rel=1e-12, abs=1e-300)
      buffers = choice.after(buffers, value)

  @pytest.mark.parametrize('choice', _ALL)
  @pytest.mark.parametrize('to', [np.asarray, lambda values: tf.constant(values)])
  def test_releases_that_add_nothing(self, choice, to):
    rng = np.random.default_rng(6)
    before, elapsed = rng.uniform(size=[choice.num_buffers, 2, 9]), np.arange(9.0)
    found = choice.faded([to(one) for one in before], to(elapsed))
    for own, gap in itertools.product(range(2), range(9)):
      buffers = list(before[:, own, gap])
      for _ in range(gap):
        buffers = choice.after(buffers, 0.0)
      np.testing.assert_allclose([np.asarray(one)[own, gap] for one in found], buffers, rtol=1e-12)


class TestPrice:
  @pytest.mark.parametrize('choice', _ALL)
  @pytest.mark.parametrize('before, left', [(0, 0), (0, 7), (1, 0), (6, 1), (6, 40)])
  def test_is_what_the_matrix_gives(self, choice, before, left):
    rng = np.random.default_rng(before + left)
    earlier = rng.uniform(0, 1, before) * (rng.uniform(size=before) < 0.6)
    matrix = _matrix(choice, before + 1 + left)

    def squares(own):
      return np.square(matrix @ np.concatenate([earlier, [own], np.zeros(left)])).sum()

    unit, by_sum = choice.price(left)
    sums = [0.0] * choice.num_buffers
    for one in earlier:
      sums = choice.after(sums, one)
    for own in (0.3, 1.0):
      cost = unit * own * own + 2 * own * sum(f * s for f, s in zip(by_sum, sums))
      assert squares(own) - squares(0.0) == pytest.approx(cost, rel=1e-10)

  @pytest.mark.parametrize('choice', _ALL)
  def test_for_ever_is_the_limit(self, choice):
    for found, expected in zip(np.hstack(choice.price(math.inf)), np.hstack(choice.price(20_000))):
      assert found == pytest.approx(expected, rel=1e-12)

  @pytest.mark.parametrize('choice', [Blt((0.6, 0.3), (0.9, 0.4)), Banded(4, (0.6, 0.3, 0.2))])
  def test_tensors(self, choice):
    found = choice.price(tf.constant(4))
    np.testing.assert_allclose(np.hstack([np.asarray(f) for f in found]), np.hstack(choice.price(4)), rtol=1e-14)


class TestSquaredNorms:
  @pytest.mark.slow
  @pytest.mark.parametrize('choice', _ALL)
  def test_random_schedules(self, choice):
    rng = np.random.default_rng(3)
    for num_clients, rounds in ((1, 1), (5, 30), (20, 200)):
      takes_part = rng.uniform(size=(rounds, num_clients)) < rng.beta(1, 2, num_clients)
      weights = np.where(takes_part, rng.uniform(0, 1, takes_part.shape), 0.0)
      cohorts = [np.flatnonzero(row) for row in takes_part]
      found = choice.squared_norms(cohorts, [w[c] for w, c in zip(weights, cohorts)], num_clients)
      expected = np.square(_matrix(choice, rounds) @ weights).sum(axis=0)
      np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-300)


class TestExtremeDecays:
  """At the smallest and the largest decay, against fractions: an account must not be short by more than rounding."""

  _CHOICES = [
    Ar1(correlation.SMALLEST_DECAY),
    Ar1(correlation.LARGEST_DECAY),
    Blt((0.5, 0.5), (correlation.SMALLEST_DECAY, correlation.LARGEST_DECAY)),
    Blt((5e-324, 0.5), (correlation.SMALLEST_DECAY, 2 * correlation.SMALLEST_DECAY)),
  ]

  def _coefficients(self, choice, size):
    terms = [(Fraction(gain), Fraction(decay)) for gain, decay in choice.terms]
    return [Fraction(1)] + [sum(gain * decay ** (k - 1) for gain, decay in terms) for k in range(1, size)]

  @pytest.mark.parametrize('choice', _CHOICES)
  def test_squared_norms(self, choice):
    rounds, weights = [0, 1, 4, 11], [0.7, 1.0, 2.0**-20, 0.3]
    column = self._coefficients(choice, 12)
    moved = [sum(column[s - t] * Fraction(w) for t, w in zip(rounds, weights) if t <= s) for s in range(12)]
    cohorts = [[0] if t in rounds else [] for t in range(12)]
    (found,) = choice.squared_norms(
      cohorts, [weights[rounds.index(t) :][:1] if t in rounds else [] for t in range(12)], 1
    )
    assert float(Fraction(found) / sum(one * one for one in moved)) == pytest.approx(1, rel=1e-13)

  @pytest.mark.parametrize('choice', _CHOICES)
  @pytest.mark.parametrize('left', [0, 1, 30])
  def test_price(self, choice, left):
    column = self._coefficients(choice, left + 1)
    unit, by_sum = choice.price(left)
    assert float(unit) == pytest.approx(float(sum(c * c for c in column)), rel=1e-13)
    for (gain, decay), found in zip(choice.terms, by_sum):
      # A sum of exponentials of 1 before this release adds gain·decay^k to the release that is k after it.
      exact = sum(Fraction(gain) * Fraction(decay) ** k * c for k, c in enumerate(column))
      assert float(found) == pytest.approx(float(exact), rel=1e-11)

  @pytest.mark.parametrize('gap', [1, 2, 7])
  def test_overlap(self, gap):
    power = Fraction(correlation.SMALLEST_DECAY) ** gap
    assert float(Ar1(correlation.SMALLEST_DECAY).overlap(np.float64(gap))) == pytest.approx(
      float(power / (1 - power)), rel=1e-9
    )

  @pytest.mark.parametrize('decay', [1e-200, 5e-324])
  def test_a_decay_that_nobody_checked_gives_no_nan(self, decay):
    class Unchecked(recursions.Exponentials):
      terms = ((decay, decay),)

    unit, (factor,) = Unchecked().price(5)
    assert unit == 1 and 0 <= factor <= decay
    assert Unchecked().squared_norms([[0], [0]], [[1.0], [1.0]], 1).tolist() == [2.0]


class TestOverlap:
  @pytest.mark.slow
  @pytest.mark.parametrize('choice', _ALL)
  @pytest.mark.parametrize('gap', [1, 3, 10])
  def test_is_the_sum_of_inner_products(self, choice, gap):
    size = 30_000
    coefficients = choice.coefficients(size)
    own = coefficients @ coefficients
    shifted = sum(coefficients[:-m] @ coefficients[m:] for m in range(gap, size, gap) if coefficients[m] > 1e-30)
    assert float(choice.overlap(np.float64(gap))) == pytest.approx(shifted / own, rel=1e-9, abs=1e-12)

  @pytest.mark.parametrize('choice', [Banded(2, (0.7,)), Banded(6, (0.9, 0.5, 0.5, 0.2, 0.0))])
  def test_between_whole_gaps_it_lies_between(self, choice):
    low, middle, high = choice.overlap(np.array([2.0, 2.25, 3.0]))
    assert high <= middle <= low
    np.testing.assert_allclose(choice.overlap(tf.constant([2.0, 2.25, 3.0], tf.float64)), [low, middle, high])

  @pytest.mark.slow
  @pytest.mark.parametrize('choice', _ALL)
  @pytest.mark.parametrize('gap', [1, 2, 5])
  def test_lasting_is_the_price_of_later_participations(self, choice, gap):
    """What earlier weights add to the cost of participations at 0, gap, 2·gap, …, once and in full."""
    size, earlier = 4_000, np.array([0.4, 0.0, 0.9, 1.0])
    matrix = _matrix(choice, size)
    before = np.concatenate([earlier, np.zeros(size - 4)])
    later = np.zeros(size)
    later[4::gap] = 1.0
    expected = (matrix @ before) @ (matrix @ later)
    buffers = [0.0] * choice.num_buffers
    for one in earlier:
      buffers = choice.after(buffers, one)
    _, factors = choice.price(math.inf)
    rounds = np.float64(later.sum())
    assert sum(choice.lasting(factors, buffers, np.float64(gap), rounds)) == pytest.approx(expected, rel=1e-9)
    # One participation is no more than the first.
    first = sum(factor * own for factor, own in zip(factors, buffers))
    assert sum(choice.lasting(factors, buffers, np.float64(gap), np.float64(1))) == pytest.approx(first, rel=1e-12)

  @pytest.mark.slow
  @pytest.mark.parametrize('choice', _ALL)
  def test_lasting_is_the_same_in_a_graph(self, choice):
    buffers = np.linspace(0.3, 0.9, choice.num_buffers)

    def lasting(buffers, left, gap, rounds):
      _, factors = choice.price(left)
      return choice.lasting(factors, list(buffers), gap, rounds)

    arguments = [np.float64(5), np.float64(2), np.float64(3)]
    of_tensors = tf.function(lambda own, *rest: lasting(tf.unstack(own, len(buffers)), *rest), autograph=False)
    found = of_tensors(*map(tf.constant, [buffers, *arguments]))
    np.testing.assert_allclose(found, lasting(buffers, *arguments), rtol=1e-12)


class TestPublishedNoise:
  @pytest.mark.parametrize('choice', _ALL)
  def test_is_what_the_inverse_gives(self, choice):
    shares = np.random.default_rng(0).uniform(size=25)
    expected = np.linalg.norm(np.linalg.solve(_matrix(choice, 25).T, shares))
    assert choice.published_noise(shares) == pytest.approx(expected, rel=1e-10)

  def test_correlation_takes_noise_back_from_a_sum(self):
    ones = np.ones(100)
    assert Independent().published_noise(ones) == pytest.approx(10)
    assert Ar1(0.9).published_noise(ones) < 1.5


class TestWorstCase:
  @pytest.mark.parametrize('choice', _ALL)
  @pytest.mark.parametrize('most, apart, releases', [(1, 1, 6), (3, 2, 9), (2, 4, 9), (9, 3, 9), (9, 1, 7)])
  def test_against_every_schedule(self, choice, most, apart, releases):
    matrix, largest = _matrix(choice, releases), 0.0
    for bits in itertools.product((0.0, 1.0), repeat=releases):
      rounds = np.flatnonzero(bits)
      if len(rounds) <= most and (np.diff(rounds) >= apart).all():
        largest = max(largest, np.linalg.norm(matrix @ np.array(bits)))
    assert choice.worst_case(most, apart, releases) == pytest.approx(largest, rel=1e-12)
