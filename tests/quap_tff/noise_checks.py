"""Whether samples are Gaussian noise of a given standard deviation: for tests that must also reject the wrong one."""

import numpy as np
from scipy import stats

# Of the right noise, one check in a thousand fails; seeds are fixed, so a test that passes keeps passing.
_SIGNIFICANCE = 1e-3
# For noise that is new in each run of a test: one check in a thousand million fails.
UNSEEDED = 1e-9


def is_gaussian(samples, stddev, significance=_SIGNIFICANCE) -> bool:
  """Whether `samples` pass as independent N(0, stddev²), by variance (chi-square) and shape (Kolmogorov-Smirnov)."""
  scaled = np.ravel(np.asarray(samples, np.float64)) / stddev
  cumulative = stats.chi2.cdf(np.sum(scaled**2), scaled.size)
  return 2 * min(cumulative, 1 - cumulative) > significance and stats.kstest(scaled, 'norm').pvalue > significance


def assert_gaussian(samples, stddev, significance=_SIGNIFICANCE):
  """Fails unless `samples` pass as N(0, stddev²) and do not pass with 2/3 or 3/2 of `stddev`."""
  samples = np.asarray(samples)
  assert samples.size >= 100, 'Too few samples to tell a wrong standard deviation from the right one.'
  found = np.sqrt(np.mean(np.square(samples, dtype=np.float64)))
  assert is_gaussian(samples, stddev, significance), f'standard deviation {found}, expected {stddev}'
  assert not is_gaussian(samples, stddev * 2 / 3, significance)
  assert not is_gaussian(samples, stddev * 3 / 2, significance)


def assert_uncorrelated(a, b, significance=_SIGNIFICANCE, equal=0):
  """Fails if the samples are correlated, or if more than `equal` of them are: on a grid, some are by chance."""
  a, b = np.ravel(a), np.ravel(b)
  assert np.count_nonzero(a == b) <= equal
  assert stats.pearsonr(a, b)[1] > significance


def distance_from_the_float32_grid(noise) -> float:
  """How single float32 draws, made by Box and Muller, give themselves away: about 0.03 for them, 0.25 for others.

  Each pair of such draws comes from two uniform numbers of 23 bits, so that exp(-(n₁²+n₂²)/2) is a multiple of 2⁻²³.

  Args:
    noise: float64, an even number of them, over their standard deviation.

  Returns:
    Mean distance from the nearest multiple, in units of 2⁻²³, over the pairs where it can be measured: below 0.02.
  """
  uniform = np.exp(-(np.asarray(noise, np.float64).reshape(-1, 2) ** 2).sum(axis=1) / 2)
  steps = uniform[uniform < 0.02] * 2**23
  return np.abs(steps - np.round(steps)).mean()
