"""Tests of `quap_tff.mechanisms.noise.published_noise`: the loss in full matrices, and coefficients of least loss."""

import itertools
import math

import numpy as np
import pytest
import scipy.linalg

from quap_tff.mechanisms.noise import correlation
from quap_tff.mechanisms.noise import published_noise
from quap_tff.mechanisms.noise.correlation import Banded

_SMALL, _LARGE = 1e-6, 0.999


def _column(choice, most, apart, releases):
  """c_0 … c_{n-1} of the coefficients that a family chooses."""
  (settled,) = choice.candidates(releases, most, apart)
  assert settled.is_settled
  return settled.coefficients(releases)


def _root_loss(column, most, apart):
  """√(E·S) of the coefficients, as the choice of them computes it."""
  values = np.asarray(column, np.float64)
  return math.exp(published_noise._log_loss(values, values, np.ones(1), most, apart)[0] / 2)


def _dense_loss(column, most, apart):
  """‖A·C⁻¹‖/√n·max ‖C·x‖ over every schedule x that the bounds allow."""
  releases = len(column)
  matrix = scipy.linalg.toeplitz(column, np.zeros(releases))
  error = np.linalg.norm(np.tril(np.ones([releases, releases])) @ np.linalg.inv(matrix)) / math.sqrt(releases)
  largest = 0.0
  for bits in itertools.product((0.0, 1.0), repeat=releases):
    rounds = np.flatnonzero(bits)
    if len(rounds) <= most and (np.diff(rounds) >= apart).all():
      largest = max(largest, np.linalg.norm(matrix @ np.array(bits)))
  return error * largest


class TestLoss:
  @pytest.mark.parametrize('most, apart', [(1, 1), (2, 3), (4, 2), (9, 1), (3, 4)])
  def test_is_that_of_full_matrices(self, most, apart):
    for seed in range(3):
      column = np.sort(np.random.default_rng(seed).uniform(0.1, 1, 9))[::-1]
      assert _root_loss(column, most, apart) == pytest.approx(_dense_loss(column, most, apart), rel=1e-9)

  def test_independent_noise_by_hand(self):
    # Prefix sum s has s independent draws: a mean square of (n+1)/2. A client that is in all of n rounds has norm √n.
    assert _root_loss([1, 0, 0, 0, 0], 1, 1) == pytest.approx(math.sqrt(3))
    assert _root_loss([1, 0, 0, 0, 0], 5, 1) == pytest.approx(math.sqrt(15))

  @pytest.mark.parametrize('most, apart, bands', [(20, 3, 3), (6, 10, 10), (60, 1, 1), (2, 30, 4)])
  def test_up_to_b_bands_have_the_printed_sensitivity(self, most, apart, bands):
    """√k·‖c‖, Theorem 2 of Choquette-Choo et al. 2023, as long as the last participation ends before the run."""
    releases = most * apart
    chosen = Banded(bands).candidates(releases, most, apart)[0]
    printed = math.sqrt(most) * np.linalg.norm(chosen.coefficients(bands))
    assert chosen.worst_case(most, apart, releases) == pytest.approx(printed, rel=1e-12)


class TestChoices:
  def test_two_releases_by_hand(self):
    """c_1 = c minimises (1 + (1-c)²/2)·(1+c²): 2c³ - 3c² + 4c = 1."""
    (root,) = (one.real for one in np.roots([2, -3, 4, -1]) if abs(one.imag) < 1e-12)
    expected = round(root, published_noise.DECIMALS)
    assert published_noise.banded(2, 1, 1, 2) == (expected,)
    (gain,), _ = published_noise.buffered(2, 1, 1, _SMALL, _LARGE)
    assert gain == expected

  @pytest.mark.slow
  def test_everyone_in_every_round_wants_independent_noise(self):
    assert not any(published_noise.banded(20, 20, 1, 4))
    gains, _ = published_noise.buffered(20, 20, 1, _SMALL, _LARGE)
    assert max(gains) <= 10**-published_noise.DECIMALS

  @pytest.mark.slow
  @pytest.mark.parametrize('most, apart, bands', [(20, 3, 3), (20, 3, 2), (4, 15, 15), (1, 60, 60), (20, 3, 6)])
  def test_no_step_from_the_bands_is_better(self, most, apart, bands):
    column = _column(Banded(bands), most, apart, 60)
    assert (np.diff(column) <= 0).all() and (column >= 0).all() and not column[bands:].any()
    best, rng = _root_loss(column, most, apart), np.random.default_rng(0)
    for size in (0.003, 0.03, 0.2):
      for _ in range(60):
        other = column.copy()
        other[1:bands] += rng.normal(0, size, bands - 1)
        other = np.clip(np.minimum.accumulate(other), 0, 1)
        # Rounding to some decimals leaves a little.
        assert _root_loss(other, most, apart) > best * (1 - 1e-6)

  @pytest.mark.thorough
  @pytest.mark.slow
  @pytest.mark.parametrize('most, apart', [(20, 3), (4, 15), (1, 60), (60, 1), (30, 2)])
  def test_no_step_from_the_buffers_is_better(self, most, apart):
    (settled,) = correlation.Blt().candidates(60, most, apart)
    best, rng = _root_loss(settled.coefficients(60), most, apart), np.random.default_rng(0)
    for size in (0.003, 0.03, 0.2):
      for _ in range(60):
        gains = np.clip(settled.gains * np.exp(rng.normal(0, size, settled.num_buffers)), 1e-9, 1)
        odds = np.log(settled.decays / (1 - settled.decays)) + rng.normal(0, size, settled.num_buffers)
        decays = np.minimum(1 / (1 + np.exp(-odds)), _LARGE)
        if gains.sum() <= 1 and len(set(decays)) == len(decays):
          other = correlation.Blt(tuple(gains), tuple(decays))
          assert _root_loss(other.coefficients(60), most, apart) > best * (1 - 1e-5)

  @pytest.mark.thorough
  @pytest.mark.slow
  @pytest.mark.parametrize('releases, most, apart', [(60, 20, 3), (60, 4, 15), (200, 10, 20), (200, 1, 200)])
  def test_buffers_come_close_to_bands(self, releases, most, apart):
    """As McMahan, Xu and Zhang 2024 report: BLTs lose a few percent against as many bands as b."""
    bands = _root_loss(_column(Banded(apart), most, apart, releases), most, apart)
    buffers = _root_loss(_column(correlation.Blt(), most, apart, releases), most, apart)
    assert bands < buffers < 1.07 * bands
    independent = _root_loss(np.eye(releases)[0], most, apart)
    assert buffers < 0.7 * independent

  @pytest.mark.slow
  def test_one_buffer_more_must_pay(self):
    """A single one at 60 rounds and b = 3, several for one participation in 200 rounds."""
    assert len(published_noise.buffered(60, 20, 3, _SMALL, _LARGE)[0]) == 1
    gains, decays = published_noise.buffered(200, 1, 200, _SMALL, _LARGE)
    assert len(gains) > 1 and sum(gains) < 1 and list(decays) == sorted(set(decays), reverse=True)

  def test_more_bands_than_b_do_not_help(self):
    assert published_noise.banded(60, 20, 3, 6)[:2] == published_noise.banded(60, 20, 3, 3)
    assert not any(published_noise.banded(60, 20, 3, 6)[2:])

  @pytest.mark.slow
  def test_is_found_in_few_steps(self, monkeypatch):
    """Each step computes the loss once: some thousand take seconds."""
    steps, log_loss = [], published_noise._log_loss
    monkeypatch.setattr(published_noise, '_log_loss', lambda *args: steps.append(args) or log_loss(*args))
    published_noise.banded(200, 10, 20, 20)
    of_bands = len(steps)
    published_noise.buffered(200, 10, 20, _SMALL, _LARGE)
    print(of_bands, len(steps))
    assert 0 < of_bands < 1000 and of_bands < len(steps) < 1000


class TestReference:
  """With the largest error of a prefix sum in place of the mean, the answers are known."""

  @pytest.fixture(autouse=True)
  def largest_error(self, monkeypatch):
    # The last prefix sum has the largest error, in which each coefficient counts once.
    monkeypatch.setattr(published_noise, '_shares', np.ones)
    monkeypatch.setattr(published_noise, 'DECIMALS', 9)

  def test_the_square_root_is_best(self):
    """Of Toeplitz matrices, for one participation: C = √A (Fichtenberger, Henzinger and Upadhyay 2023)."""
    found = published_noise.banded(50, 1, 1, 50)
    expected = [math.comb(2 * k, k) / 4**k for k in range(50)]
    np.testing.assert_allclose(found, expected[1:], rtol=1e-6)
    # A·C⁻¹ = C: the largest error is ‖f‖, and so is the sensitivity.
    assert _root_loss(expected, 1, 1) == pytest.approx(sum(f * f for f in expected), rel=1e-12)

  @pytest.mark.thorough
  @pytest.mark.slow
  def test_two_buffers_for_a_hundred_thousand_releases(self, monkeypatch):
    """To the digits that the BLT papers' authors have in the tests of their program, google-deepmind/jax_privacy.

    There it is called test_optimize_single_participation_golden, and stated to a relative 1e-5.
    """
    monkeypatch.setattr(published_noise, '_MOST_BUFFERS', 2)
    monkeypatch.setattr(published_noise, '_FIRST_DECAYS', (0.99,))
    gains, decays = published_noise.buffered(100_000, 1, 1, _SMALL, 0.999999)
    np.testing.assert_allclose(gains, [0.0122853238, 0.1878393665], rtol=1e-4)
    np.testing.assert_allclose(decays, [0.9999528892, 0.9857068667], rtol=1e-7)
