"""The inverse of ε(μ, δ) for many ε at once."""

import numpy as np
import pytest

from quap_tff.common.numbers import tradeoff


@pytest.mark.slow
@pytest.mark.parametrize('delta', [*(pytest.param(one, marks=pytest.mark.thorough) for one in (1e-12, 0.3)), 1e-5])
def test_the_mu_of_an_epsilon(delta):
  epsilon = np.array([0.0, 1e-3, 0.5, 3.0, 100.0])
  found = tradeoff.mu_of(epsilon, delta)
  assert (tradeoff.epsilon_of(found, delta) <= epsilon).all()
  assert (tradeoff.epsilon_of(found * (1 + 1e-8), delta)[1:] > epsilon[1:]).all()
  np.testing.assert_allclose(found[1:], [tradeoff.mu_at_most(one, delta) for one in epsilon[1:]], rtol=1e-10)
  assert tradeoff.mu_of(3.0, delta) == found[3]


def test_an_epsilon_of_0_leaves_room_for_a_small_mu():
  # The total variation of two normal distributions, 2·Φ(μ/2) - 1, is the δ at ε = 0.
  assert tradeoff.mu_of(0.0, 1e-3) == pytest.approx(2 * 1.2533e-3, rel=1e-4)


@pytest.mark.parametrize('epsilon', [-1.0, np.nan, np.inf])
def test_what_is_no_epsilon(epsilon):
  with pytest.raises(ValueError, match='epsilon'):
    tradeoff.mu_of(np.array([1.0, epsilon]), 1e-5)
