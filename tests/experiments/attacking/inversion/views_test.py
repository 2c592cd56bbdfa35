"""What observers see of a round: clipping and noise of the mechanism itself, where they belong and as large as said."""

import numpy as np
import pytest

from experiments.attacking.inversion import views as inversion_views
from quap_tff import plans
from quap_tff.mechanisms.parts import budgets
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.parts import layers as layers_lib
from quap_tff.mechanisms.quap import config as configs
from tests.quap_tff import examples

# Two layers: a hidden one and a final one of 4,000 entries, so that noise can be measured.
LAYERS = (layers_lib.Layer('hidden', (0,), True), layers_lib.Layer('logits', (1, 2), True))
SHAPES = ((3, 40), (40, 100), (100,))
COHORT, CLIP, EPSILON, ROUNDS, DELTA = 4, 0.5, 6.0, 200, 1e-5


def _updates(norm):
  """Updates that all have this norm on the final layer, and 1 on the hidden one."""
  rng = np.random.default_rng(0)
  updates = []
  for _ in range(COHORT):
    parts = [rng.standard_normal(shape) for shape in SHAPES]
    final = np.sqrt(np.square(parts[1]).sum() + np.square(parts[2]).sum())
    updates.append([parts[0] / np.linalg.norm(parts[0]), norm * parts[1] / final, norm * parts[2] / final])
  return [[part.astype(np.float32) for part in update] for update in updates]


def _quap(placement, critical='final_dense'):
  return plans.Plan(
    configs.QuapConfig(
      num_clients=10,
      budget=budgets.BudgetConfig(epsilon_total=EPSILON, num_rounds=ROUNDS, round_rule='uniform'),
      clip=clip_rules.Fixed(CLIP),
      critical_layers=critical,
      noise=configs.NoiseConfig(placement=placement, delta=DELTA),
    )
  )


def _observe(plan, norm=2.0, seed=1):
  """The updates of a cohort, and what each observer sees of it: the only target's."""
  updates = _updates(norm)
  seen = inversion_views.observe(plan, LAYERS, [[part[None] for part in update] for update in updates], seed)
  return updates, {name: view._replace(update=[part[0] for part in view.update]) for name, view in seen.items()}


def _stddev(view, expected, indices):
  return np.sqrt(np.mean(np.concatenate([np.square(view.update[i] - expected[i]).ravel() for i in indices])))


class TestQuap:
  def test_a_client_sends_a_clipped_update_without_noise(self):
    updates, seen = _observe(_quap('server'))
    view = seen['client_update']
    assert view.noised == frozenset() and view.noise == 0 and view.clip == CLIP
    np.testing.assert_allclose(view.update[0], updates[0][0], rtol=1e-6)
    np.testing.assert_allclose(view.update[1], updates[0][1] * CLIP / 2, rtol=1e-5)

  def test_the_aggregate_has_noise_on_the_final_layer_alone(self):
    updates, seen = _observe(_quap('server'))
    view = seen['aggregate']
    mean = [np.mean(parts, axis=0) for parts in zip(*updates)]
    np.testing.assert_allclose(view.update[0], mean[0], atol=1e-6)
    assert view.noised == {1, 2}
    # By hand: σ = √(2·ln(1.25/δ))/ε_t·C/M with ε_t = ε/T, as everyone is given ε_base.
    sigma = np.sqrt(2 * np.log(1.25 / DELTA)) / (EPSILON / ROUNDS) * CLIP / COHORT
    assert view.noise == pytest.approx(sigma, rel=1e-5)
    assert _stddev(view, [None, mean[1] * CLIP / 2, mean[2] * CLIP / 2], (1, 2)) == pytest.approx(sigma, rel=0.05)

  def test_noise_at_the_clients_is_in_both_views(self):
    updates, seen = _observe(_quap('client', 'all'), norm=0.1)
    own_sigma = np.sqrt(2 * np.log(1.25 / DELTA)) / (EPSILON / ROUNDS) * CLIP
    view = seen['client_update']
    assert view.noised == seen['aggregate'].noised == {0, 1, 2}
    assert view.noise == pytest.approx(own_sigma, rel=1e-5)
    assert _stddev(view, updates[0], (0, 1, 2)) == pytest.approx(own_sigma, rel=0.05)
    mean = [np.mean(parts, axis=0) for parts in zip(*updates)]
    assert _stddev(seen['aggregate'], mean, (0, 1, 2)) == pytest.approx(own_sigma / np.sqrt(COHORT), rel=0.05)

  def test_the_seed_repeats_the_noise(self):
    first, again, other = (_observe(_quap('server'), seed=seed)[1]['aggregate'].update[1] for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()

  def test_each_target_has_noise_of_its_own(self):
    updates = [[np.stack([part, part]) for part in update] for update in _updates(1.0)]
    hidden, final, _ = inversion_views.observe(_quap('server'), LAYERS, updates, 1)['aggregate'].update
    np.testing.assert_array_equal(hidden[0], hidden[1])
    assert (final[0] != final[1]).any()

  def test_updates_in_units_of_the_learning_rate_are_refused(self):
    config = configs.QuapConfig(num_clients=10, update_scale='pseudo_gradient')
    with pytest.raises(ValueError, match='divides updates by the client learning rate'):
      _observe(plans.Plan(config))


class TestCertified:
  def _plan(self):
    config = examples.guarantee(num_clients=10, delta=DELTA, clip=clip_rules.Fixed(CLIP))
    return plans.Plan.certified(config, [list(range(10))] * 5)

  @pytest.mark.slow
  def test_the_aggregate_has_noise_everywhere(self):
    plan = self._plan()
    updates, seen = _observe(plan, norm=0.1)
    view = seen['aggregate']
    assert view.noised == {0, 1, 2}
    sigma = plan.config.noise_multiplier * CLIP / COHORT
    assert view.noise == pytest.approx(sigma, rel=1e-5)
    expected = [np.mean(parts, axis=0) * 0 for parts in zip(*updates)]
    assert _stddev(view, expected, (0, 1, 2)) == pytest.approx(sigma, rel=0.05)

  def test_a_client_sends_its_clipped_update(self):
    _, seen = _observe(self._plan())
    view = seen['client_update']
    norm = np.sqrt(sum(np.square(part).sum() for part in view.update))
    assert view.noised == frozenset() and 0 < norm <= CLIP
