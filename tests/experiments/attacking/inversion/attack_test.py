"""Gradient inversion: closed form, labels, distances, the simulated update, and attacks with and without noise."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from experiments.attacking.inversion import attack as inversion
from experiments.attacking.inversion import closed_form
from experiments.attacking.inversion import images
from experiments.attacking.inversion import model as inversion_model
from quap_tff.training import client_update
from quap_tff.training import models

SHAPE, CLASSES, RATE = (6, 6, 1), 5, 0.1


def _model(name='mlp', shape=SHAPE):
  return inversion_model.StackedModel(models.build_keras_model(name, shape, CLASSES, seed=3))


def _examples(targets, batch, shape=SHAPE, seed=1):
  rng = np.random.default_rng(seed)
  return rng.random((targets, batch, *shape)).astype(np.float32), rng.integers(0, CLASSES, (targets, batch))


def _update(model, x, y, steps=1):
  weights = model.stacked(len(x))
  found = inversion_model.local_update(model, weights, tf.constant(x), tf.one_hot(y, CLASSES), RATE, steps)
  return [u.numpy() for u in found]


def _problem(model, x, y, steps=1, noise=0.0, noised=()):
  rng = np.random.default_rng(5)
  observed = [
    u + noise * rng.standard_normal(u.shape) if i in noised else u for i, u in enumerate(_update(model, x, y, steps))
  ]
  return inversion.Problem(model, x.shape[1], observed, frozenset(noised))


def _recovered(name, problem, steps=1, iterations=100):
  return inversion.ATTACKS[name].build(problem.model, RATE, steps, iterations)(problem, 0)


@pytest.mark.slow
class TestLocalUpdate:
  @pytest.mark.thorough
  @pytest.mark.parametrize(
    'name, shape, steps', [('digits_cnn', (8, 8, 1), 3), pytest.param('mlp', SHAPE, 1, marks=pytest.mark.thorough)]
  )
  def test_is_what_the_projects_client_sends(self, name, shape, steps):
    x, y = _examples(2, 4, shape)
    found = _update(_model(name, shape), x, y, steps)
    model_fn = models.build_model_fn(name, shape, CLASSES, seed=3)
    config = client_update.ClientWorkConfig(local_epochs=steps, batch_size=4, seed=0)
    for target in range(2):
      model = model_fn()
      weights = tff.learning.models.ModelWeights.from_model(model_fn())
      update = client_update.build_client_update(model, tff.learning.optimizers.build_sgdm(RATE), config)
      examples = {'x': tf.constant(x[target]), 'y': tf.constant(y[target], tf.int32)}
      values = tf.nest.map_structure(lambda v: v.read_value(), weights)
      sent, _ = update(values, examples, tf.constant(0, tf.int64), tf.constant(1), tf.constant([0, 0], tf.int64))
      for own, other in zip(found, tf.nest.flatten(sent)):
        np.testing.assert_allclose(own[target], other.numpy(), atol=1e-6)

  @pytest.mark.parametrize('name, shape', [('mnist_cnn', (12, 12, 1)), ('cifar10_cnn', (16, 16, 3))])
  def test_logits_are_those_of_keras_without_dropout(self, name, shape):
    keras = models.build_keras_model(name, shape, CLASSES, seed=3)
    x, _ = _examples(2, 3, shape)
    model = inversion_model.StackedModel(keras)
    expected = np.stack([keras(part, training=False) for part in x])
    np.testing.assert_allclose(model.logits(model.stacked(2), tf.constant(x)), expected, atol=1e-5)
    # One set of weights for all takes another path.
    np.testing.assert_allclose(
      model.logits(model.stacked(1), tf.reshape(x, [1, 6, *shape]))[0], expected.reshape([6, -1]), atol=1e-5
    )

  @pytest.mark.parametrize('which', ['x', 'labels'])
  def test_its_derivative_is_that_of_differences(self, which):
    """TensorFlow's own cross-entropy has a wrong second derivative by the labels."""
    model = _model('logistic_regression')  # With ReLU, an update has jumps as a function of x.
    x, y = _examples(1, 2)
    values = {'x': tf.constant(x), 'labels': tf.one_hot(y, CLASSES) * 0.8 + 0.04}
    rng = np.random.default_rng(2)
    probe = [tf.constant(rng.standard_normal(w.shape), tf.float32) for w in model.stacked(1)]

    def inner(value):
      update = inversion_model.local_update(
        model, model.stacked(1), learning_rate=RATE, steps=2, **{**values, which: value}
      )
      return tf.add_n([tf.reduce_sum(u * p) for u, p in zip(update, probe)])

    direction = tf.constant(rng.standard_normal(values[which].shape), tf.float32)
    with tf.GradientTape() as tape:
      tape.watch(values[which])
      out = inner(values[which])
    exact = float(tf.reduce_sum(tape.gradient(out, values[which]) * direction))
    h = 1e-2
    differences = float(inner(values[which] + h * direction) - inner(values[which] - h * direction)) / (2 * h)
    assert exact == pytest.approx(differences, rel=0.03) and abs(exact) > 0.01

  def test_another_layer_is_refused(self):
    keras = tf.keras.Sequential([tf.keras.layers.InputLayer((4,)), tf.keras.layers.BatchNormalization()])
    with pytest.raises(ValueError, match='is a BatchNormalization of a kind that gradient inversion does not know'):
      inversion_model.StackedModel(keras)


class TestClosedForm:
  def test_the_quotient_is_the_input_of_the_layer(self):
    rng = np.random.default_rng(0)
    a, delta = rng.random(7), rng.standard_normal(4)
    quotients, strengths = closed_form.dense_inputs(np.outer(a, delta), delta)
    np.testing.assert_allclose(quotients, np.tile(a, [4, 1]), rtol=1e-12)
    np.testing.assert_allclose(strengths, np.abs(delta))

  def test_units_that_hardly_moved_are_left_out(self):
    quotients, _ = closed_form.dense_inputs(np.ones([2, 3]), np.array([1.0, 1e-6, 0.0]))
    assert quotients.shape == (1, 2)
    quotients, strengths = closed_form.dense_inputs(np.ones([2, 3]), np.zeros(3))
    assert not quotients.any() and not strengths.any()

  def test_repeated_quotients_come_before_mixtures(self):
    a, b = np.array([0.9, 0.1, 0.4]), np.array([0.2, 0.8, 0.7])
    candidates = np.stack([(a + b) / 2, b, 0.3 * a + 0.7 * b, a, 2 * a - b, b, a])
    chosen = closed_form.choose(candidates, np.array([9.0, 1, 8, 1, 7, 1, 1]), 2, upper=1.0)
    assert sorted(map(tuple, chosen)) == sorted(map(tuple, (a, b)))

  @pytest.mark.parametrize('steps', [1, 4])
  def test_an_image_comes_back_exactly(self, steps):
    model = _model()
    x, y = _examples(4, 1)
    found = _recovered('closed_form', _problem(model, x, y, steps), steps)
    np.testing.assert_allclose(found.codes.reshape(x.shape), x, atol=1e-5)
    np.testing.assert_array_equal(found.labels, y)

  def test_of_a_small_batch_those_come_back_that_have_a_unit_of_their_own(self):
    model = _model()
    x, y = _examples(4, 3)
    x = x * (x > 0.7)
    found = _recovered('closed_form', _problem(model, x, y))
    errors = [
      np.abs(codes[images.nearest(true, codes)] - true.reshape([3, -1])).max(axis=1)
      for true, codes in zip(x, found.codes)
    ]
    assert np.mean(np.array(errors) < 1e-3) > 0.6

  def test_a_layer_without_bias_is_refused(self):
    with pytest.raises(ValueError, match="this model's has no bias"):
      inversion.ClosedForm().build(_model('linear_features'), RATE, 1, 1)

  @pytest.mark.slow
  def test_features_become_an_image_with_these_features(self):
    model = _model('digits_cnn', (8, 8, 1))
    x, y = _examples(3, 1, (8, 8, 1))
    x = x * (x > 0.7)
    found = _recovered('closed_form', _problem(model, x, y))
    assert not found.are_images
    weights = [w[tf.newaxis] for w in model.initial_weights]
    features = model.features(weights, tf.constant(x[:, 0][None]))[0]
    np.testing.assert_allclose(found.codes[:, 0], features, atol=1e-4)
    back = closed_form.build_feature_inversion(model, 300)(found.codes[:, 0])
    again = model.features(weights, tf.constant(back[None]))[0]
    apart = np.linalg.norm(again - features, axis=1) / np.linalg.norm(features, axis=1)
    assert np.median(apart) < 0.01  # Max pooling has local minima: not every image is found.
    assert np.median(images.psnr(x[:, 0], back)) > 20


class TestLabels:
  # Without a bias, the rows of the kernel tell.
  @pytest.mark.parametrize('name', ['mlp', 'linear_features'])
  def test_one_label_is_exact(self, name):
    model = _model(name)
    x, y = _examples(20, 1)
    np.testing.assert_array_equal(closed_form.labels(model, _update(model, x, y), 1), y)

  def test_counts_of_a_batch_at_any_scale(self):
    # p̄ is uniform, and the labels are 0, 0, 0, 2.
    g = np.full(4, 0.25) - np.array([0.75, 0, 0.25, 0])
    for scale in (1e-3, 1.0, 50.0):
      labels = closed_form.labels_from_scores(scale * g[None], 4, np.full(4, 0.25))
      np.testing.assert_array_equal(labels, [[0, 0, 0, 2]])


class TestDistances:
  @pytest.mark.parametrize(
    'kind, visible, expected',
    [
      # <(3, 4), (4, 3)> = 24; both of norm 5.
      ('cosine', [1, 0], 1 - 24 / 25),
      ('l2', [1, 0], 2 / 25),
      # With the second tensor: <.,.> = 24 + 0, norms √(25 + 1) and √25.
      ('cosine', [1, 1], 1 - 24 / (5 * np.sqrt(26))),
      ('l2', [1, 1], 3 / 25),
    ],
  )
  def test_by_hand(self, kind, visible, expected):
    found = [tf.constant([[3.0, 4.0]]), tf.constant([[1.0]])]
    wanted = [tf.constant([[4.0, 3.0]]), tf.constant([[0.0]])]
    distance = inversion.distances(kind, found, wanted, tf.constant(visible, tf.float32))
    np.testing.assert_allclose(distance, [expected], atol=1e-6)

  def test_total_variation_by_hand(self):
    x = tf.constant([[0.0, 1.0], [0.5, 0.5]])[None, :, :, None]
    # Down: |0.5|, |-0.5|. Right: |1|, |0|.
    np.testing.assert_allclose(closed_form.total_variation(x), [0.5 + 0.5])


@pytest.mark.slow
class TestAttacks:
  def _psnr(self, x, found):
    flat = np.clip(found.codes, 0, 1).reshape([-1, *SHAPE]).astype(np.float32)
    return images.psnr(x.reshape([-1, *SHAPE]), flat).mean()

  @pytest.mark.parametrize(
    'name, steps',
    [
      pytest.param('dlg', 1, marks=pytest.mark.thorough),
      pytest.param('idlg', 1, marks=pytest.mark.thorough),
      pytest.param('geiping', 1, marks=pytest.mark.thorough),
      ('geiping', 2),
    ],
  )
  def test_an_image_is_recovered(self, name, steps):
    model = _model()
    x, y = _examples(4, 1)
    found = _recovered(name, _problem(model, x, y, steps), steps, iterations=200)
    assert self._psnr(x, found) > 18
    np.testing.assert_array_equal(found.labels, y)

  @pytest.mark.parametrize('name', ['closed_form', pytest.param('geiping', marks=pytest.mark.thorough)])
  def test_noise_on_all_layers_prevents_it(self, name):
    model = _model()
    x, y = _examples(4, 1)
    # Ten times the largest entry of any update.
    problem = _problem(model, x, y, noise=1.0, noised=range(6))
    assert all(problem.visible)
    assert self._psnr(x, _recovered(name, problem)) < 12

  @pytest.mark.parametrize(
    'name, least', [('closed_form', 59.0), pytest.param('geiping', 15.0, marks=pytest.mark.thorough)]
  )
  def test_layers_without_noise_are_enough(self, name, least):
    model = _model()
    x, y = _examples(4, 1)
    problem = _problem(model, x, y, noise=1.0, noised=model.final_dense)
    assert problem.visible == (True, True, True, True, False, False) and problem.labels_are_hidden
    assert self._psnr(x, _recovered(name, problem, iterations=300)) > least


class TestSameProblem:
  def _problem(self, **noise):
    model = _model()
    return _problem(model, *_examples(2, 1), **noise)

  def test_a_factor_counts_only_where_it_is_seen(self):
    problem = self._problem()
    scaled = problem._replace(observed=[0.5 * o for o in problem.observed])
    assert inversion.same_problem(problem, scaled, up_to_scale=True)
    assert not inversion.same_problem(problem, scaled, up_to_scale=False)

  # Noise on all layers, and another choice of the layers to look at.
  @pytest.mark.parametrize('noise', [dict(noise=1e-3, noised=range(6)), dict(noised=[5])])
  def test_noise_and_other_layers_make_a_difference(self, noise):
    assert not inversion.same_problem(self._problem(), self._problem(**noise), up_to_scale=True)
