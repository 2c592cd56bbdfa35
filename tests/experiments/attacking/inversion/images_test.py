"""PSNR, SSIM, the assignment of recovered to true images, pictures, and shares of labels."""

import numpy as np
import pytest

from experiments.attacking.inversion import images


def _random(n, side=12, channels=1, seed=0):
  return np.random.default_rng(seed).random((n, side, side, channels)).astype(np.float32)


class TestMeasures:
  def test_psnr_by_hand(self):
    true = np.full([2, 8, 8, 1], 0.5, np.float32)
    # Mean squared errors of 0.01 and 0.0001.
    recovered = true + np.array([0.1, 0.01], np.float32)[:, None, None, None]
    np.testing.assert_allclose(images.psnr(true, recovered), [20, 40], rtol=1e-4)

  def test_identical_images_have_the_largest_psnr_and_an_ssim_of_one(self):
    x = _random(3)
    np.testing.assert_array_equal(images.psnr(x, x), np.full(3, images.LARGEST_PSNR))
    np.testing.assert_allclose(images.ssim(x, x), np.ones(3), atol=1e-6)

  def test_ssim_of_constant_images_by_hand(self):
    # Without variance the structure term is one and the luminance term is (2ab + c)/(a² + b² + c), c = 0.01². Float32
    # convolutions of some processors leave a little variance.
    a, b = 0.25, 0.75
    true, recovered = np.full([1, 16, 16, 1], a, np.float32), np.full([1, 16, 16, 1], b, np.float32)
    np.testing.assert_allclose(images.ssim(true, recovered), (2 * a * b + 1e-4) / (a * a + b * b + 1e-4), rtol=4e-4)

  def test_the_negative_has_a_negative_ssim(self):
    x = _random(2)
    assert (images.ssim(x, 1 - x) < 0).all()

  @pytest.mark.parametrize('side', [7, 8, 11, 28])
  def test_ssim_takes_small_images(self, side):
    x = _random(1, side)
    assert images.ssim(x, x).shape == (1,)


class TestNearest:
  def test_finds_the_order(self):
    x = _random(5)
    order = np.array([3, 0, 4, 1, 2])
    np.testing.assert_array_equal(order[images.nearest(x, x[order])], np.arange(5))

  def test_one_recovered_image_serves_one_true_image(self):
    true = np.zeros([2, 1])
    np.testing.assert_array_equal(sorted(images.nearest(true, np.array([[9.0], [0.1], [5.0]]))), [1, 2])

  def test_takes_the_least_total_error(self):
    # The first true value is nearest to 1.0, but the second needs that one more.
    np.testing.assert_array_equal(images.nearest(np.array([[0.9], [2.0]]), np.array([[1.0], [0.0]])), [1, 0])

  def test_too_few_are_refused(self):
    with pytest.raises(ValueError, match=r'at least as many recovered images as true ones \(2\), found 1'):
      images.nearest(np.zeros([2, 3]), np.zeros([1, 3]))


class TestGrid:
  def test_true_above_recovered_below(self):
    true, recovered = np.zeros([2, 2, 3, 1], np.float32), np.ones([2, 2, 3, 1], np.float32)
    picture = images.grid(true, recovered)
    assert picture.shape == (7, 9, 3)
    assert (picture[1:3, 1:4] == 0).all() and (picture[4:6, 5:8] == 1).all() and (picture[3] == 0.5).all()

  def test_values_out_of_range_are_cut_off(self):
    picture = images.grid(np.full([1, 1, 1, 3], -5.0), np.full([1, 1, 1, 3], np.nan))
    assert picture.min() == 0 and picture.max() == 0.5


def test_accuracy_of_labels_counts_multisets():
  found = images.label_accuracy(np.array([[1, 1, 2], [0, 3, 4]]), np.array([[2, 1, 0], [4, 3, 0]]))
  np.testing.assert_allclose(found, [2 / 3, 1])
