"""Pooling before biases and ReLUs: the same values and gradients, and in bfloat16 only."""

import collections

import numpy as np
import pytest
import tensorflow as tf

from quap_tff import plans
from quap_tff.common.numbers import seeds
from quap_tff.mechanisms.quap.config import QuapConfig
from quap_tff.training import dropout
from quap_tff.training import model_functions
from quap_tff.training import models

pytestmark = pytest.mark.slow

layers = tf.keras.layers
CASES = [('mnist_cnn', (28, 28, 1)), ('cifar10_cnn', (32, 32, 3)), ('digits_cnn', (8, 8, 1)), ('mlp', (8, 8, 1))]


def example_batch(shape, size=6):
  return tf.constant(np.random.default_rng(0).standard_normal((size, *shape)), tf.float32)


def with_biases(model):
  """The model with biases that are not zero, as initial biases are."""
  rng = np.random.default_rng(1)
  model.set_weights([w if w.any() else 0.3 * rng.standard_normal(w.shape) for w in model.get_weights()])
  return model


def built(name, shape, compute_dtype):
  return with_biases(models.build_keras_model(name, shape, 10, compute_dtype, seed=1))


def loss_and_gradients(scores_of, model, x):
  """A loss that gives each score a weight of its own, and its gradients by the variables."""
  with tf.GradientTape() as tape:
    scores = scores_of(x)
    loss = tf.reduce_sum(tf.sin(tf.cast(tf.range(tf.size(scores)), tf.float32)) * tf.reshape(scores, [-1]))
  return loss, tape.gradient(loss, model.trainable_variables)


def ops_of(compute_dtype):
  """The types of the ops of a forward pass, in their order."""
  model = models.build_model_fn('digits_cnn', (8, 8, 1), 10, compute_dtype)()
  graph = model.forward_pass.get_concrete_function(model.input_spec).graph
  return [op.type for op in graph.get_operations() if op.type in ('Conv2D', 'BiasAdd', 'Relu', 'MaxPool')]


class TestOf:
  @pytest.mark.parametrize('wrapped', [lambda model: model, lambda model: lambda: model], ids=['model', 'function'])
  def test_a_keras_model_needs_tffs_form(self, wrapped):
    model = models.build_keras_model('logistic_regression', (8, 8, 1), 10, seed=1)
    with pytest.raises(TypeError, match=r'found the Keras model .*tff\.learning\.models\.from_keras_model\('):
      plans.Plan(QuapConfig(num_clients=3)).build_process(wrapped(model))


class TestPooledFirst:
  @pytest.mark.parametrize('compute_dtype', ['float32', 'bfloat16'])
  @pytest.mark.parametrize('name, shape', CASES)
  def test_values_are_the_models_bit_for_bit(self, name, shape, compute_dtype):
    model, x = built(name, shape, compute_dtype), example_batch(shape)
    scores = model_functions.pooled_first(model, x, False)
    assert scores.dtype == tf.float32 and scores.shape == (6, 10)
    np.testing.assert_array_equal(scores, model(x, training=False))

  @pytest.mark.parametrize('name, shape', CASES)
  def test_gradients_are_the_models(self, name, shape):
    model, x = built(name, shape, 'float32'), example_batch(shape)
    found = loss_and_gradients(lambda x: model_functions.pooled_first(model, x, False), model, x)
    expected = loss_and_gradients(lambda x: model(x, training=False), model, x)
    for a, b in zip(tf.nest.flatten(found), tf.nest.flatten(expected)):
      # Sums are made in another order.
      np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5 * np.abs(b).max())

  def test_gradients_in_bfloat16_are_near_those_in_float32(self):
    x = example_batch((28, 28, 1), 32)
    exact = built('mnist_cnn', (28, 28, 1), 'float32')
    rounded = built('mnist_cnn', (28, 28, 1), 'bfloat16')
    _, expected = loss_and_gradients(lambda x: exact(x, training=False), exact, x)
    _, found = loss_and_gradients(lambda x: model_functions.pooled_first(rounded, x, False), rounded, x)
    _, stock = loss_and_gradients(lambda x: rounded(x, training=False), rounded, x)
    for a, b, keras in zip(found, expected, stock):
      assert a.dtype == tf.float32
      error, of_keras = (np.linalg.norm(g - b) / np.linalg.norm(b) for g in (a, keras))
      # The scores' random weights cancel most of the gradient, and rounding does not cancel.
      assert error < 0.2 and error < 1.2 * of_keras + 1e-6

  def test_layers_that_train_otherwise_do_so(self):
    model, x = built('mnist_cnn', (28, 28, 1), 'bfloat16'), example_batch((28, 28, 1))
    masks = dropout.dropout_stream(seeds.initial_seed(7, 'client_update'))

    def in_step(step, scores_of):
      with dropout.seeded_dropout(masks, step):
        return scores_of().numpy()

    mine = lambda: model_functions.pooled_first(model, x, True)
    np.testing.assert_array_equal(in_step(3, mine), in_step(3, lambda: model(x, training=True)))
    assert (in_step(3, mine) != in_step(4, mine)).any()
    assert (in_step(3, mine) != model_functions.pooled_first(model, x, False).numpy()).any()

  @pytest.mark.parametrize(
    'convolution, layer_after',
    [
      (dict(activation='relu', use_bias=False), lambda: layers.MaxPooling2D(2)),
      (dict(activation=lambda x: -tf.nn.relu(x)), lambda: layers.MaxPooling2D(2)),
      (dict(activation='relu'), lambda: layers.AveragePooling2D(2)),
      (dict(activation='relu'), lambda: layers.Conv2D(2, 1, activation='relu')),
      (dict(activation='relu', padding='same', strides=2), lambda: layers.MaxPooling2D(3, 1, padding='same')),
      (dict(activation='relu', dilation_rate=2), lambda: layers.MaxPooling2D((2, 3), strides=(1, 2))),
    ],
  )
  def test_other_layers_keep_their_values(self, convolution, layer_after):
    x = example_batch((9, 9, 2))
    # A layer is made in the test that uses it: Keras moves the class of a layer to another base when
    # TFF builds one in a graph, and refuses layers that were made before.
    network = [layers.InputLayer((9, 9, 2)), layers.Conv2D(4, 3, **convolution), layer_after()]
    model = with_biases(tf.keras.Sequential(network))
    np.testing.assert_array_equal(model_functions.pooled_first(model, x, False), model(x))

  def test_which_convolutions_are_meant(self):
    class Own(layers.Conv2D):
      """A user's layer, which may do anything."""

    relu = dict(filters=2, kernel_size=3, activation='relu')
    others = [Own(**relu), layers.Conv2D(2, 3), layers.Conv2D(**relu, data_format='channels_first')]
    others += [layers.Conv2D(**relu, use_bias=False), layers.Dense(2, activation='relu')]
    assert model_functions._adds_bias_and_relu(layers.Conv2D(**relu))
    assert not any(map(model_functions._adds_bias_and_relu, others))

  def test_of_numbers_that_tie_by_rounding_the_largest_gets_the_gradient(self):
    # In bfloat16, 256 + 0.25 and 256 + 0.5 are 256.
    policy = tf.keras.mixed_precision.Policy('mixed_bfloat16')
    model = tf.keras.Sequential([layers.InputLayer((1, 2, 1)), layers.Conv2D(1, 1, activation='relu', dtype=policy)])
    model.add(layers.MaxPooling2D((1, 2), dtype=policy))
    model.set_weights([np.ones((1, 1, 1, 1)), np.array([256])])
    x = tf.constant([0.25, 0.5], shape=[1, 1, 2, 1])
    for scores_of, place in ((model, 0.25), (lambda x: model_functions.pooled_first(model, x, True), 0.5)):
      with tf.GradientTape() as tape:
        scores = tf.cast(scores_of(x), tf.float32)
      assert float(scores) == 256 and float(tape.gradient(scores, model.trainable_variables[0])) == place


class TestClassifiers:
  def test_float32_keeps_its_graph(self):
    assert ops_of('float32') == ['Conv2D', 'BiasAdd', 'Relu', 'MaxPool', 'BiasAdd', 'Relu', 'BiasAdd']

  def test_bfloat16_pools_first(self):
    assert ops_of('bfloat16') == ['Conv2D', 'MaxPool', 'BiasAdd', 'Relu', 'BiasAdd', 'Relu', 'BiasAdd']

  def test_scores_loss_and_metrics_are_those_of_the_keras_model(self):
    model = models.build_model_fn('digits_cnn', (8, 8, 1), 10, 'bfloat16', seed=1)()
    keras_model = models.build_keras_model('digits_cnn', (8, 8, 1), 10, 'bfloat16', seed=1)
    x, y = example_batch((8, 8, 1)), tf.range(6)
    output = model.forward_pass(collections.OrderedDict(x=x, y=y))
    np.testing.assert_array_equal(output.predictions, keras_model(x))
    np.testing.assert_array_equal(model.predict_on_batch(x), keras_model(x))
    assert float(output.loss) == tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)(y, keras_model(x))
    found = model.report_local_unfinalized_metrics()
    assert (found['num_examples'], found['accuracy'][0]) == ([6], np.sum(np.argmax(keras_model(x), axis=-1) == y))
