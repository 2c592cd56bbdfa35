"""The numbers of docs/errata.md, computed from the code."""

import math

import numpy as np
import pytest

from data import cohorts
from quap_tff.cohorts import static
from quap_tff.common.lazy import tf
from quap_tff.mechanisms.noise import gaussian
from quap_tff.mechanisms.parts import budgets as budget_lib
from quap_tff.mechanisms.parts import layers
from quap_tff.training import models

_DOCUMENTS = budget_lib.BudgetConfig(epsilon_total=6.0, num_rounds=200, alpha=0.5, beta=2.0)
_DELTA = 1e-5


def _round_epsilon():
  """ε_t with the cohort's rates at 0.3, the documents' M/N."""
  return float(budget_lib.round_budget(_DOCUMENTS, np.full(30, 0.3), False))


def _multiplier():
  """z of a round by the documents' formula."""
  return float(gaussian.noise_multiplier('classic', np.float64(_round_epsilon()), _DELTA))


def test_share_of_the_critical_layers():
  with tf.Graph().as_default():
    variables = models.build_keras_model('mnist_cnn', (28, 28, 1), 10).trainable_variables
  found = layers.from_variables(variables)
  sizes = [int(np.prod(v.shape)) for v in variables]
  final = sum(sizes[i] for i in layers.critical_indices(found, layers.FINAL_DENSE))
  dense = sum(sizes[i] for i in layers.critical_indices(found, layers.ALL_DENSE))
  assert (final, dense, sum(sizes)) == (1290, 1181066, 1199882)
  assert dense / sum(sizes) == pytest.approx(0.98, abs=0.005)
  assert math.sqrt(sum(sizes) / final) == pytest.approx(30.5, abs=0.05)
  assert sum(sizes) / final == pytest.approx(930, abs=0.5)


def test_budgets_at_high_participation():
  at_one = budget_lib.client_budgets(_DOCUMENTS, np.array([1.0]), False)[0]
  assert float(at_one) / _DOCUMENTS.epsilon_base == pytest.approx(1.068, abs=5e-4)
  first = budget_lib.BudgetConfig(epsilon_total=3.0, num_rounds=200)
  budgets = budget_lib.client_budgets(first, np.array([0.5, 0.9]), False)
  assert np.round(budgets, 4).tolist() == [0.0178, 0.0162]


def test_sums_of_a_client_that_joins_every_round():
  assert 200 * _round_epsilon() == pytest.approx(7.65, abs=0.005)
  assert pytest.approx(0.002) == 200 * _DELTA
  assert 1.5 * _DOCUMENTS.epsilon_total == 9


def test_exact_account_of_the_documents_noise():
  assert _multiplier() == pytest.approx(127, abs=0.5)
  # 200 Gaussians of one multiplier are one Gaussian of z/√200.
  composed = tf.constant(_multiplier() / math.sqrt(200), tf.float64)
  delta = lambda epsilon: float(gaussian.delta_of(tf.constant(epsilon, tf.float64), composed))
  assert delta(0.385) < _DELTA < delta(0.375)


def test_noise_that_epsilon_6_needs():
  needed = math.sqrt(200) * float(gaussian.noise_multiplier('analytic', np.float64(6.0), _DELTA))
  assert needed == pytest.approx(10.8, abs=0.05)
  assert _multiplier() / needed == pytest.approx(12, abs=0.5)


def test_uniform_share_of_the_hybrid_sampler():
  gamma, population = 0.8, 100
  uniform = gamma / population
  beta_mean = 2 / 7
  assert uniform / (uniform + (1 - gamma) * beta_mean) == pytest.approx(0.12, abs=0.005)
  odd, _ = static.Hybrid().weights(cohorts.Population(population, 30, 0))
  assert np.mean(odd) == pytest.approx(uniform + (1 - gamma) * beta_mean, rel=0.1)
