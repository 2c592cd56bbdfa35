"""Models, seeded dropout and evaluation."""

import collections
import datetime
import threading
import time
import zipfile

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from quap_tff.common.numbers import seeds
from quap_tff.training import client_update
from quap_tff.training import dropout
from quap_tff.training import evaluation
from quap_tff.training import model_functions
from quap_tff.training import models

CASES = [
  ('mnist_cnn', (28, 28, 1), 10, 1_199_882, 1_290),
  ('femnist_cnn', (28, 28, 1), 62, 1_206_590, 7_998),
  ('cifar10_cnn', (32, 32, 3), 10, 1_453_834, 1_290),
  ('digits_cnn', (8, 8, 1), 10, 8_714, 330),
  ('linear_features', (256,), 10, 2_560, 2_560),
  ('logistic_regression', (8, 8, 1), 10, 650, 650),
  ('mlp', (28, 28, 1), 10, 199_210, 2_010),
  ('scaled_linear', (12,), 3, 39, 39),
  ('shakespeare_lstm', (80,), 90, 820_522, 23_130),
  ('shakespeare_gru', (80,), 90, 65_322, 11_610),
  ('shakespeare_bigram', (80,), 90, 8_100, 8_100),
  ('words_lstm', (20,), 10_004, 4_050_748, 970_388),
]


def digits_model(**kwargs):
  return models.build_keras_model('digits_cnn', (8, 8, 1), 10, **kwargs)


def stream(seed=7):
  return dropout.dropout_stream(seeds.initial_seed(seed, 'client_update'))


@pytest.mark.slow
class TestModels:
  def test_every_model_has_a_case(self):
    assert {case[0] for case in CASES} == set(models.MODELS)

  @pytest.mark.parametrize('compute_dtype', ['float32', pytest.param('bfloat16', marks=pytest.mark.thorough)])
  @pytest.mark.parametrize('name,shape,num_classes,weights,final_weights', CASES)
  def test_sizes_and_dtypes(self, name, shape, num_classes, weights, final_weights, compute_dtype):
    with tf.Graph().as_default():
      model = models.build_keras_model(name, shape, num_classes, compute_dtype)
      of_sequences = name in models.OF_SEQUENCES
      logits = model(tf.zeros([3, *shape], tf.int32 if of_sequences else tf.float32), training=True)
    assert (model.count_params(), model.layers[-1].count_params()) == (weights, final_weights)
    # A row of W for each character is what a Dense layer does on one-hot vectors.
    final = tf.keras.layers.Embedding if name == 'shakespeare_bigram' else tf.keras.layers.Dense
    assert isinstance(model.layers[-1], final)
    expected = (3, *shape, num_classes) if of_sequences else (3, num_classes)
    assert logits.shape == expected and logits.dtype == tf.float32
    assert {v.dtype for v in model.weights} == {tf.float32}
    hidden = {layer.compute_dtype for layer in model.layers[:-1] if layer.weights}
    assert hidden <= {compute_dtype}

  def test_tff_weights_type_does_not_depend_on_the_compute_dtype(self):
    types = []
    for compute_dtype in ('float32', 'bfloat16'):
      with tf.Graph().as_default():
        model = models.build_model_fn('mnist_cnn', (28, 28, 1), 10, compute_dtype)()
      types.append(tff.learning.models.weights_type_from_model(model))
    assert types[0] == types[1]
    assert list(model.metric_finalizers()) == ['accuracy', 'loss', 'num_examples', 'num_batches']

  def test_bfloat16_computes_in_bfloat16_and_close_to_float32(self):
    x = np.random.default_rng(0).random((64, 8, 8, 1), np.float32)
    exact, rounded = (digits_model(compute_dtype=d, seed=1)(x).numpy() for d in ('float32', 'bfloat16'))
    error = np.abs(exact - rounded).max() / np.abs(exact).max()
    assert 1e-5 < error < 0.03

  def test_initial_weights_follow_from_the_seed(self):
    first, again, other = (digits_model(seed=s).get_weights() for s in (5, 5, 6))
    for a, b, c in zip(first, again, other):
      np.testing.assert_array_equal(a, b)
      assert not a.any() or (a != c).any()
    unseeded, unseeded_again = digits_model().get_weights(), digits_model().get_weights()
    assert (unseeded[0] != unseeded_again[0]).any()

  def test_layers_of_one_model_start_differently(self):
    model = models.build_keras_model('mnist_cnn', (28, 28, 1), 128, seed=5)
    hidden, final = model.get_layer('dense').kernel.numpy(), model.get_layer('logits').kernel.numpy()
    scaled = [k.ravel()[:1000] / np.abs(k).max() for k in (hidden, final)]
    assert abs(np.corrcoef(scaled)[0, 1]) < 0.2

  def test_linear_features_starts_at_zero_and_scales_its_logits(self):
    model = models.build_keras_model('linear_features', (4,), 3, seed=1)
    x = np.random.default_rng(0).random((5, 4), np.float32)
    assert not model(x).numpy().any()
    kernel = np.arange(12, dtype=np.float32).reshape(4, 3)
    model.set_weights([kernel])
    np.testing.assert_allclose(model(x), 10 * x @ kernel, rtol=1e-5)

  @pytest.mark.parametrize('shape, norm', [((16,), 4), ((6, 6, 1), 2)])
  def test_scaled_linear_starts_at_zero_on_rows_of_norm_ten(self, shape, norm):
    model = models.build_keras_model('scaled_linear', shape, 3, seed=1)
    x = np.random.default_rng(0).random((5, *shape), np.float32)
    x *= norm / np.linalg.norm(x.reshape(5, -1), axis=1).reshape(5, *[1] * len(shape))
    assert not model(x).numpy().any()
    rows = x.reshape(5, -1) / norm
    model.set_weights([rows.T[:, :3], np.arange(3, dtype=np.float32)])
    np.testing.assert_allclose(model(x), 10 * rows @ rows.T[:, :3] + np.arange(3), rtol=1e-5)

  def test_stock_layers_predict_the_same_and_keep_names_and_dtypes(self):
    model = models.build_keras_model('mnist_cnn', (8, 8, 1), 10, 'bfloat16', seed=1)
    copy = models.with_stock_layers(model)
    for mine, stock in zip(model.layers, copy.layers):
      assert type(stock).__module__.startswith('keras.')
      assert (stock.name, stock.compute_dtype) == (mine.name, mine.compute_dtype)
      assert getattr(stock, 'rate', None) == getattr(mine, 'rate', None)
    x = np.random.default_rng(0).random((4, 8, 8, 1), np.float32)
    np.testing.assert_array_equal(copy(x), model(x))
    copy.set_weights([0 * w for w in copy.get_weights()])
    assert model(x).numpy().any()

  @pytest.mark.parametrize('name', sorted(models.OF_SEQUENCES))
  def test_an_output_depends_on_no_later_token(self, name):
    model = models.build_keras_model(name, (6,), 12, seed=1)
    rng = np.random.default_rng(0)
    model.set_weights([0.5 * rng.standard_normal(w.shape) for w in model.get_weights()])
    x = rng.integers(0, 12, (4, 6)).astype(np.int32)
    changed = x.copy()
    changed[:, 3] = (x[:, 3] + 1) % 12
    before, after = model(x).numpy(), model(changed).numpy()
    np.testing.assert_array_equal(before[:, :3], after[:, :3])
    assert (before[:, 3] != after[:, 3]).any(axis=-1).all()
    # All but the bigram model remember.
    assert (before[:, 4] != after[:, 4]).any() == (name != 'shakespeare_bigram')

  def test_the_lstm_is_keras_own(self):
    mine = models.build_keras_model('shakespeare_lstm', (5,), 12, seed=1)
    theirs = tf.keras.Sequential(
      [
        tf.keras.layers.Embedding(12, 8, input_length=5),
        tf.keras.layers.LSTM(256, return_sequences=True),
        tf.keras.layers.LSTM(256, return_sequences=True),
        tf.keras.layers.Dense(12),
      ]
    )
    theirs.build((None, 5))
    theirs.set_weights(mine.get_weights())
    x = np.random.default_rng(0).integers(0, 12, (3, 5)).astype(np.int32)
    np.testing.assert_allclose(mine(x), theirs(x), atol=1e-5)

  def test_names_of_layers_do_not_depend_on_what_was_built_before(self):
    names = [[v.name for v in models.build_keras_model('shakespeare_lstm', (5,), 12).weights] for _ in range(2)]
    assert names[0] == names[1]

  def test_errors(self):
    with pytest.raises(ValueError, match="Unknown model 'mnist_cn'. Did you mean 'mnist_cnn'"):
      models.build_model_fn('mnist_cn', (28, 28, 1), 10)
    with pytest.raises(ValueError, match="Unknown compute dtype 'float16'. Did you mean"):
      models.build_model_fn('mnist_cnn', (28, 28, 1), 10, 'float16')
    with pytest.raises(ValueError, match='num_classes'):
      models.build_model_fn('mnist_cnn', (28, 28, 1), 1)
    with pytest.raises(ValueError, match='model seed'):
      models.build_model_fn('mnist_cnn', (28, 28, 1), 10, seed=-1)

  @pytest.mark.parametrize(
    'name, shape, why',
    [
      ('mnist_cnn', (2, 2, 1), 'too small for its convolutions'),
      ('mnist_cnn', (3, 3, 1), 'too small for its convolutions'),
      ('cifar10_cnn', (7, 7, 3), 'too small for its convolutions'),
      ('digits_cnn', (7,), 'for examples with other dimensions'),
    ],
  )
  def test_examples_that_do_not_fit(self, name, shape, why):
    with pytest.raises(ValueError) as caught:
      models.build_model_fn(name, shape, 10)
    said = str(caught.value)
    assert said.startswith(f'The model {name} does not take examples of shape {list(shape)}: ') and why in said
    assert said.endswith('such as mlp or logistic_regression.')


class TestSeededDropout:
  @pytest.mark.parametrize('rate', [0.1, 0.25, 0.5, 0.9])
  def test_keeps_the_right_share_and_scales_it(self, rate):
    x = tf.ones([200, 1001])
    with dropout.seeded_dropout(stream(), 0):
      y = dropout.SeededDropout(rate)(x, training=True).numpy()
    # 1/3 more or less of the rate is over 50 standard deviations away.
    deviation = np.sqrt(rate * (1 - rate) / y.size)
    assert abs((y == 0).mean() - rate) < 5 * deviation < rate / 10
    np.testing.assert_allclose(np.unique(y), [0, 1 / (1 - rate)], rtol=2e-4)
    # No row, column or neighbour is special: what the packing of draws into words could break.
    dropped = y == 0
    for axis, size in ((0, 200), (1, 1001)):
      assert 0.75 < dropped.mean(axis).std() / np.sqrt(rate * (1 - rate) / size) < 1.25
    for lag in (1, 2, 4):
      assert abs(np.corrcoef(dropped[:, lag:].ravel(), dropped[:, :-lag].ravel())[0, 1]) < 0.015

  def test_mask_follows_from_seed_step_and_layer(self):
    layer = dropout.SeededDropout(0.5)
    x = tf.ones([64, 64])

    @tf.function
    def masks(seed, step):
      with dropout.seeded_dropout(dropout.dropout_stream(seed), step):
        return layer(x, training=True), layer(x, training=True)

    seed, other_seed = seeds.initial_seed(1, 'client_update'), seeds.initial_seed(2, 'client_update')
    calls = [masks(seed, tf.constant(s)) for s in (0, 1)] + [masks(other_seed, tf.constant(0))]
    drawn = [mask.numpy() for call in calls for mask in call]
    for i, a in enumerate(drawn):
      for b in drawn[:i]:
        assert 0.4 < (a == b).mean() < 0.6
    for mask, again in zip(calls[0], masks(seed, tf.constant(0))):
      np.testing.assert_array_equal(mask, again)

  def test_gradient_passes_where_the_value_does(self):
    x = tf.Variable(tf.ones([1000]))
    with tf.GradientTape() as tape, dropout.seeded_dropout(stream(), 3):
      y = dropout.SeededDropout(0.25)(x, training=True)
    np.testing.assert_array_equal(tape.gradient(y, x), y)

  def test_outside_a_scope_it_is_ordinary_dropout(self):
    layer = dropout.SeededDropout(0.25)
    x = tf.ones([300, 300])
    first, second = layer(x, training=True).numpy(), layer(x, training=True).numpy()
    assert (first != second).any() and abs((first == 0).mean() - 0.25) < 0.01
    np.testing.assert_array_equal(layer(x, training=False), x)
    np.testing.assert_array_equal(layer(x), x)

  def test_a_scope_is_of_its_thread_and_ends(self):
    seen = []
    with dropout.seeded_dropout(stream(), 0):
      thread = threading.Thread(target=lambda: seen.append(dropout.current_scope()))
      thread.start()
      thread.join()
      assert dropout.current_scope() is not None
    assert seen == [None] and dropout.current_scope() is None

  def test_config_round_trip_and_bad_rate(self):
    layer = dropout.SeededDropout.from_config(dropout.SeededDropout(0.3, name='d').get_config())
    assert (layer.rate, layer.name) == (0.3, 'd')
    for rate in (-0.1, 1.0, float('nan')):
      with pytest.raises(ValueError, match='dropout rate'):
        dropout.SeededDropout(rate)


def metrics_of(model):
  """The model's metrics, finalized."""
  finalizers, values = model.metric_finalizers(), model.report_local_unfinalized_metrics()
  return {name: finalizers[name](values[name]).numpy() for name in finalizers}


@pytest.mark.slow
class TestClassifier:
  """Our TFF model does what TFF's own does."""

  def models(self, seed=3):
    """Ours, and TFF's, of the same initial weights."""
    spec = models.input_spec((8, 8, 1))
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    accuracy = tf.keras.metrics.SparseCategoricalAccuracy
    return (
      model_functions.Classifier(digits_model(seed=seed), loss, spec),
      tff.learning.models.from_keras_model(
        digits_model(seed=seed), loss=loss, input_spec=spec, metrics=[lambda: accuracy(name='accuracy')]
      ),
    )

  def batches(self):
    rng = np.random.default_rng(0)
    return [
      {'x': tf.constant(rng.random((n, 8, 8, 1), np.float32)), 'y': tf.constant(rng.integers(0, 10, n, np.int32))}
      for n in (5, 3)
    ]

  def test_outputs_gradients_and_metrics_are_those_of_tffs_model(self):
    ours, tffs = self.models()
    for batch in self.batches():
      outputs, gradients = [], []
      for model in (ours, tffs):
        with tf.GradientTape() as tape:
          outputs.append(model.forward_pass(batch))
        gradients.append(tape.gradient(outputs[-1].loss, model.trainable_variables))
        np.testing.assert_array_equal(model.predict_on_batch(batch['x']), outputs[-1].predictions)
      tf.nest.map_structure(np.testing.assert_array_equal, outputs[0], outputs[1])
      tf.nest.map_structure(np.testing.assert_array_equal, gradients[0], gradients[1])
    found = ours.report_local_unfinalized_metrics(), tffs.report_local_unfinalized_metrics()
    tf.nest.map_structure(np.testing.assert_array_equal, *found)
    assert [v.dtype for v in tf.nest.flatten(found[0])] == [v.dtype for v in tf.nest.flatten(found[1])]
    hits, examples = found[1]['accuracy']
    assert metrics_of(ours)['accuracy'] == pytest.approx(float(hits) / 8) and float(examples) == 8
    assert metrics_of(ours)['loss'] == pytest.approx(float(found[1]['loss'][0]) / 8)
    assert (metrics_of(ours)['num_examples'], metrics_of(ours)['num_batches']) == (8, 2)

  def test_metrics_start_anew_when_reset(self):
    model, _ = self.models()
    model.forward_pass(self.batches()[0])
    model.reset_metrics()
    assert not any(metrics_of(model).values())
    model.forward_pass(self.batches()[1])
    assert metrics_of(model)['num_examples'] == 3


class _BranchingModel(model_functions.Classifier):
  """A model that needs AutoGraph: its loss depends on Python's `if` over a tensor."""

  needs_autograph = True

  def __init__(self):
    super().__init__(models.build_keras_model('logistic_regression', (2,), 2, seed=0), None, models.input_spec((2,)))

  def forward_pass(self, batch_input, training=True):
    scores = self._keras_model(batch_input['x'], training=training)
    if tf.shape(scores)[0] > 3:
      loss = tf.reduce_sum(scores)
    else:
      loss = tf.reduce_sum(scores**2)
    return tff.learning.models.BatchOutput(loss=loss, predictions=scores, num_examples=tf.shape(scores)[0])


class TestAutograph:
  """AutoGraph rewrites what may need it, and nothing else."""

  @pytest.mark.slow
  @pytest.mark.parametrize('num_examples', [3, 4])
  def test_a_models_own_control_flow_may_depend_on_tensors(self, num_examples):
    x, y = np.ones((num_examples, 2), np.float32), np.zeros(num_examples, np.int32)
    model = _BranchingModel()
    weights = tff.learning.models.ModelWeights.from_model(model)
    found = evaluation.build_evaluation(_BranchingModel)(weights, x, y)['loss']
    assert found == pytest.approx(float(model.forward_pass({'x': x, 'y': y}).loss))

  def test_only_the_optimizers_that_are_known_are_spared(self):
    optimizers = tff.learning.optimizers
    model, _ = TestClassifier().models()
    for known in (optimizers.build_sgdm(0.1, 0.9), optimizers.build_adam(0.1)):
      assert not model_functions.needs_autograph(model, known) and model_functions.without_autograph(known) is not known
    scheduled = optimizers.schedule_learning_rate(optimizers.build_sgdm(0.1), lambda t: 0.1 if t < 3 else 0.01)
    assert (
      model_functions.needs_autograph(model, scheduled) and model_functions.without_autograph(scheduled) is scheduled
    )
    assert model_functions.needs_autograph(_BranchingModel())


class TestSequences:
  """Next-token models: padding has no label, in the loss, in the metrics and in a client's update."""

  LOGITS = np.log([[[0.5, 0.25, 0.25], [0.25, 0.25, 0.5], [0.1, 0.8, 0.1]], [[0.25, 0.5, 0.25]] * 3]).astype(np.float32)
  LABELS = np.array([[0, 1, -1], [1, -1, -1]], np.int32)

  def test_loss_is_the_mean_over_labels(self):
    found = model_functions.LabelledCrossEntropy()(self.LABELS, self.LOGITS)
    # -ln of 1/2, 1/4 and 1/2.
    assert float(found) == pytest.approx(np.log(2) * 4 / 3, rel=1e-6)

  def test_padding_has_no_gradient_and_nothing_but_padding_no_loss(self):
    logits = tf.Variable(self.LOGITS)
    for labels, moved in ((self.LABELS, self.LABELS >= 0), (np.full([2, 3], -1, np.int32), np.zeros([2, 3], bool))):
      with tf.GradientTape() as tape:
        loss = model_functions.LabelledCrossEntropy()(labels, logits)
      np.testing.assert_array_equal(tape.gradient(loss, logits).numpy().any(axis=-1), moved)
    assert float(loss) == 0

  def test_accuracy_is_over_labels(self):
    scores = lambda x, training: x
    model = model_functions.Classifier(
      scores, model_functions.LabelledCrossEntropy(), None, model_functions.label_weights
    )
    model.forward_pass({'x': self.LOGITS, 'y': self.LABELS})
    assert metrics_of(model)['accuracy'] == pytest.approx(2 / 3)

  @pytest.mark.slow
  def test_evaluation_weighs_labels_not_batches_or_examples(self):
    model_fn = models.build_model_fn('shakespeare_bigram', (4,), 5)
    kernel = np.random.default_rng(0).standard_normal((5, 5)).astype(np.float32)
    x = np.random.default_rng(1).integers(0, 5, (7, 4)).astype(np.int32)
    y = np.random.default_rng(2).integers(0, 5, (7, 4)).astype(np.int32)
    y[1, 1:] = y[4, 2:] = y[6, :] = -1
    weights = tff.learning.models.ModelWeights([kernel], [])
    logits = kernel[x][y >= 0]
    losses = np.log(np.exp(logits).sum(-1)) - logits[np.arange(len(logits)), y[y >= 0]]
    hits = logits.argmax(-1) == y[y >= 0]
    for batch_size in (2, 100):
      found = evaluation.build_evaluation(model_fn, batch_size)(weights, x, y)
      assert found['loss'] == pytest.approx(losses.mean(), rel=1e-5)
      assert found['accuracy'] == pytest.approx(hits.mean())
      assert found['num_examples'] == 7
    nothing = evaluation.build_evaluation(model_fn)(weights, x, np.full_like(y, -1))
    assert np.isnan(nothing['loss']) and np.isnan(nothing['accuracy'])

  @pytest.mark.slow
  def test_a_client_update_is_the_gradient_of_the_mean_over_labels(self):
    model_fn = models.build_model_fn('shakespeare_bigram', (3,), 4)
    x = np.array([[1, 2, 3], [1, 0, 0]], np.int32)
    y = np.array([[2, 3, -1], [3, -1, -1]], np.int32)
    update_fn = client_update.build_client_update(
      model_fn(), tff.learning.optimizers.build_sgdm(0.5), client_update.ClientWorkConfig(batch_size=2, seed=0)
    )
    zeros = tff.learning.models.ModelWeights([tf.zeros([4, 4])], [])
    examples = collections.OrderedDict(x=tf.constant(x), y=tf.constant(y))
    client, seed = tf.constant(0, tf.int64), tf.constant([1, 2], tf.int64)
    update, metrics = update_fn(zeros, examples, client, tf.constant(1), seed)
    expected = np.zeros([4, 4])
    for token, label in ((1, 2), (2, 3), (1, 3)):
      expected[token] += 0.25 - np.eye(4)[label]
    np.testing.assert_allclose(update[0], 0.5 * expected / 3, atol=1e-7)
    np.testing.assert_allclose(metrics['accuracy'], [0, 3])  # Ties go to token 0, which is no label here.


@pytest.mark.slow
class TestEvaluation:
  def test_equals_keras_evaluate_and_is_traced_once(self, monkeypatch):
    traces = []
    argmax = tf.argmax
    monkeypatch.setattr(tf, 'argmax', lambda *args, **kwargs: traces.append(1) or argmax(*args, **kwargs))
    model_fn = models.build_model_fn('digits_cnn', (8, 8, 1), 10, seed=4)
    rng = np.random.default_rng(0)
    x, y = rng.random((250, 8, 8, 1), np.float32), rng.integers(0, 10, 250).astype(np.int32)
    evaluate = evaluation.build_evaluation(model_fn, batch_size=64)
    for seed in (4, 5):
      keras_model = digits_model(seed=seed)
      keras_model.compile(loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=['accuracy'])
      expected = keras_model.evaluate(x, y, verbose=0)
      weights = tff.learning.models.ModelWeights(keras_model.get_weights(), [])
      found = evaluate(weights, x, y)
      np.testing.assert_allclose([found['loss'], found['accuracy']], expected, rtol=1e-5)
      assert list(found) == ['loss', 'accuracy', 'num_examples'] and found['num_examples'] == 250
    assert len(traces) == 1

  def test_does_not_drop_out(self):
    model_fn = models.build_model_fn('mnist_cnn', (28, 28, 1), 10, seed=4)
    evaluate = evaluation.build_evaluation(model_fn)
    weights = tff.learning.models.ModelWeights.from_model(model_fn())
    x, y = np.random.default_rng(0).random((8, 28, 28, 1), np.float32), np.arange(8, dtype=np.int32)
    assert evaluate(weights, x, y) == evaluate(weights, x, y)

  def test_survives_keras_models_made_in_other_graphs(self):
    model_fn = models.build_model_fn('digits_cnn', (8, 8, 1), 10, seed=4)
    evaluate = evaluation.build_evaluation(model_fn)
    weights = tff.learning.models.ModelWeights.from_model(model_fn())
    with tf.Graph().as_default():
      model_fn()
    assert evaluate(weights, np.zeros((3, 8, 8, 1), np.float32), np.zeros(3, np.int32))['num_examples'] == 3

  @pytest.mark.parametrize('num_examples', [0, 3, 4, 9])
  def test_logits_are_those_of_the_weights_in_the_order_of_the_examples(self, num_examples):
    logits = evaluation.build_logits(models.build_model_fn('logistic_regression', (2,), 2), batch_size=4)
    kernel, bias = np.array([[1, 2], [3, 5]], np.float32), np.array([0, 7], np.float32)
    x = np.arange(2 * num_examples, dtype=np.float32).reshape(-1, 2)
    for scale in (1, 2):
      weights = tff.learning.models.ModelWeights([scale * kernel, bias], [])
      np.testing.assert_allclose(logits(weights, x), scale * x @ kernel + bias)

  def test_no_examples_and_unequal_lengths(self):
    evaluate = evaluation.build_evaluation(models.build_model_fn('logistic_regression', (2,), 2))
    weights = tff.learning.models.ModelWeights([np.zeros((2, 2), np.float32), np.zeros(2, np.float32)], [])
    empty = evaluate(weights, np.zeros((0, 2), np.float32), np.zeros(0, np.int32))
    assert np.isnan(empty['loss']) and np.isnan(empty['accuracy']) and empty['num_examples'] == 0
    with pytest.raises(ValueError, match=r'\[2, 3\]'):
      evaluate(weights, np.zeros((2, 2), np.float32), np.zeros(3, np.int32))


@pytest.mark.slow
class TestSaving:
  """Equal models give equal bytes, without a time in them."""

  def test_the_time_of_saving_does_not_count_and_keras_loads_the_file(self, tmp_path, monkeypatch):
    model = digits_model(seed=1)
    models.save_model(model, str(tmp_path / 'one.keras'))
    monkeypatch.setattr(time, 'time', lambda: 2e9)

    class Later(datetime.datetime):
      @classmethod
      def now(cls, tz=None):
        return cls(2033, 5, 18)

    monkeypatch.setattr(datetime, 'datetime', Later)
    models.save_model(digits_model(seed=1), str(tmp_path / 'two.keras'))
    models.save_model(digits_model(seed=2), str(tmp_path / 'other.keras'))
    one, two, other = ((tmp_path / f'{name}.keras').read_bytes() for name in ('one', 'two', 'other'))
    assert one == two != other
    with zipfile.ZipFile(tmp_path / 'one.keras') as archive:
      assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
      assert b'date' not in archive.read('metadata.json')
    x = np.random.default_rng(0).random((3, 8, 8, 1), np.float32)
    np.testing.assert_array_equal(tf.keras.models.load_model(tmp_path / 'one.keras', compile=False)(x), model(x))
