"""Tests of `quap_tff.training.client_update`: exact local training and its randomness, without federation."""

import collections
import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from experiments.systems import malicious
from quap_tff.common.numbers import seeds
from quap_tff.training import client_update
from quap_tff.training import dropout
from quap_tff.training import extension as extensions
from quap_tff.training import model_functions
from quap_tff.training import models
from tests.quap_tff import linear_model

pytestmark = pytest.mark.slow

Config = client_update.ClientWorkConfig
ModelWeights = tff.learning.models.ModelWeights
sgd = tff.learning.optimizers.build_sgdm


def examples_of(x, y):
  return collections.OrderedDict(
    x=tf.constant(x, tf.float32, shape=[len(x), 1]), y=tf.constant(y, tf.float32, shape=[len(y), 1])
  )


X, Y = [1.0, 2.0, 3.0, -1.0, 0.5], [2.0, 3.0, 7.0, 0.0, 1.0]


def run_update(
  config, optimizer=None, w=0.5, x=X, y=Y, client_id=3, round_number=1, seed=11, model_fn=linear_model.Linear
):
  """The change of the one weight, w_global - w_local."""
  model = model_fn()
  update_fn = client_update.build_client_update(model, optimizer or sgd(0.1), config)
  update, metrics = update_fn(
    tf.nest.map_structure(lambda _: tf.constant([[w]]), ModelWeights.from_model(model)),
    examples_of(x, y),
    tf.constant(client_id, tf.int64),
    tf.constant(round_number),
    seeds.initial_seed(seed, 'client_update'),
  )
  return float(update[0][0, 0]), metrics


def batches_of(config, n, client_id=3, round_number=1, seed=11):
  """The rows of each step, by the definition: epochs of a shuffled order, cut every batch_size."""
  own_seed = seeds.fold_in(
    seeds.initial_seed(seed, 'client_update'), tf.constant(round_number), tf.constant(client_id, tf.int64)
  )
  order = client_update.shuffled_order(own_seed, tf.constant(n), config.local_epochs).numpy()
  epochs = order.reshape(config.local_epochs, n)
  batches = [epoch[i : i + config.batch_size] for epoch in epochs for i in range(0, n, config.batch_size)]
  return batches[: config.max_steps]


def gradient(w, rows, x=X, y=Y):
  x, y = np.asarray(x)[rows], np.asarray(y)[rows]
  return 2 * np.mean(x * (w * x - y))


class TestLocalTraining:
  def test_one_step_by_hand(self):
    # w = 0.5, x = (1, 3), y = (2, 4): residuals -1.5 and -2.5, gradient 2·(-1.5 - 7.5)/2 = -9, step 0.1.
    update, metrics = run_update(Config(batch_size=2), x=[1.0, 3.0], y=[2.0, 4.0])
    assert update == pytest.approx(-0.9)
    # Loss before the step: (2.25 + 6.25)/2, twice, over two examples.
    np.testing.assert_allclose(metrics['loss'], [8.5, 2.0])
    assert metrics['num_examples'][0].numpy() == 2

  @pytest.mark.parametrize(
    'config',
    [
      Config(batch_size=2),
      Config(batch_size=2, local_epochs=2),
      Config(batch_size=5, local_epochs=3),
      Config(batch_size=1, local_epochs=2, max_steps=7),
      Config(batch_size=2, local_epochs=2, max_steps=100),
      Config(batch_size=64),
    ],
  )
  def test_batches_epochs_and_max_steps(self, config):
    w = 0.5
    batches = batches_of(config, len(X))
    for rows in batches:
      w -= 0.05 * gradient(w, rows)
    update, metrics = run_update(config, sgd(0.05))
    assert update == pytest.approx(0.5 - w, rel=1e-5)
    assert metrics['num_examples'][0].numpy() == sum(map(len, batches))
    assert metrics['num_batches'][0].numpy() == len(batches)

  def test_proximal_term(self):
    config = Config(batch_size=2, local_epochs=2, proximal_strength=0.7)
    w = 0.5
    for rows in batches_of(config, len(X)):
      w -= 0.05 * (gradient(w, rows) + 0.7 * (w - 0.5))
    assert run_update(config, sgd(0.05))[0] == pytest.approx(0.5 - w, rel=1e-5)

  @pytest.mark.parametrize('round_number', [1, 2, 5])
  def test_learning_rate_decay(self, round_number):
    config = Config(batch_size=5, learning_rate_decay=0.5)
    expected = 0.1 * 0.5 ** (round_number - 1)
    assert float(client_update.learning_rate_at(sgd(0.1), config, round_number)) == pytest.approx(expected)
    update = run_update(config, sgd(0.1), round_number=round_number)[0]
    assert update == pytest.approx(expected * gradient(0.5, slice(None)), rel=1e-5)

  def test_momentum_by_definition(self):
    config = Config(batch_size=2, local_epochs=2, learning_rate_decay=0.9)
    w, velocity = 0.5, 0.0
    for rows in batches_of(config, len(X), round_number=3):
      velocity = 0.9 * velocity + gradient(w, rows)
      w -= 0.02 * 0.81 * velocity
    assert run_update(config, sgd(0.02, 0.9), round_number=3)[0] == pytest.approx(0.5 - w, rel=1e-5)

  def test_adam_by_definition(self):
    config = Config(batch_size=2, local_epochs=2)
    w, first, second = 0.5, 0.0, 0.0
    for t, rows in enumerate(batches_of(config, len(X)), 1):
      g = gradient(w, rows)
      first, second = 0.9 * first + 0.1 * g, 0.99 * second + 0.01 * g * g
      w -= 0.03 * (first / (1 - 0.9**t)) / (np.sqrt(second / (1 - 0.99**t)) + 1e-7)
    adam = tff.learning.optimizers.build_adam(0.03, beta_1=0.9, beta_2=0.99)
    assert run_update(config, adam)[0] == pytest.approx(0.5 - w, rel=1e-4)

  @pytest.mark.parametrize(
    'optimizer',
    [
      pytest.param(tff.learning.optimizers.build_adagrad(0.1), marks=pytest.mark.thorough),
      pytest.param(tff.learning.optimizers.build_rmsprop(0.1), marks=pytest.mark.thorough),
      pytest.param(tff.learning.optimizers.build_yogi(0.1), marks=pytest.mark.thorough),
      tff.learning.optimizers.build_adamw(0.1),
    ],
  )
  def test_other_tff_optimizers(self, optimizer):
    config = Config(batch_size=2, learning_rate_decay=0.5)
    state, w = optimizer.initialize(tf.TensorSpec([])), tf.constant(0.5)
    state = optimizer.set_hparams(state, {**optimizer.get_hparams(state), 'learning_rate': 0.05})
    for rows in batches_of(config, len(X), round_number=2):
      state, w = optimizer.next(state, w, tf.constant(gradient(float(w), rows), tf.float32))
    assert run_update(config, optimizer, round_number=2)[0] == pytest.approx(0.5 - float(w), rel=1e-4)

  def test_no_examples_no_update(self):
    for config in (Config(local_epochs=3), Config(proximal_strength=1.0)):
      update, metrics = run_update(config, x=[], y=[])
      assert update == 0.0 and metrics['num_examples'][0].numpy() == 0

  def test_non_finite_updates_pass(self):
    assert np.isnan(run_update(Config(), x=[1.0], y=[float('nan')])[0])

  def test_a_call_forgets_the_one_before(self):
    update_fn = client_update.build_client_update(linear_model.Linear(), sgd(0.05, 0.9), Config(batch_size=2))
    weights, seed = ModelWeights([tf.constant([[0.5]])], []), seeds.initial_seed(1, 'client_update')
    args = (weights, examples_of(X, Y), tf.constant(1, tf.int64), tf.constant(1), seed)
    np.testing.assert_array_equal(update_fn(*args)[0], update_fn(*args)[0])


class TestConfig:
  @pytest.mark.parametrize(
    'bad',
    [
      dict(local_epochs=0),
      dict(batch_size=0),
      dict(batch_size=2.0),
      dict(learning_rate_decay=0.0),
      dict(learning_rate_decay=1.1),
      dict(max_steps=0),
      dict(proximal_strength=-0.1),
      dict(proximal_strength=float('nan')),
      dict(seed=-1),
    ],
  )
  def test_bad_config(self, bad):
    (name,) = bad
    with pytest.raises(ValueError, match={'seed': 'client seed', 'max_steps': 'max_local_steps'}.get(name, name)):
      Config(**bad)


class TestClientRound:
  """The arguments that an extension gets, and the update that an attacker sends."""

  @dataclasses.dataclass(frozen=True)
  class Telling(extensions.Extension):
    statement = ''

    def correction(self, message, own, steps):
      return [own[0] + message['add'] * tf.cast(steps, tf.float32)]

    def report(self, message, own, local):
      return dict(local._asdict(), rate=local.learning_rate(), full=local.gradient()[0])

    def sent(self, local):
      return [10.0 * g for g in local.update]

  def test_by_hand(self):
    config = Config(
      local_epochs=2,
      most_local_epochs=2,
      batch_size=3,
      learning_rate_decay=0.5,
      attack=malicious.SignFlip(),
      attackers=(4, 7),
    )
    client_round = client_update.build_client_round(linear_model.Linear, sgd(0.1), config, self.Telling())
    seed, found = seeds.initial_seed(11, 'client_update'), {}
    for client_id in (3, 4):
      sent, report, _, _ = client_round(
        ModelWeights([tf.constant([[0.5]])], []),
        examples_of(X, Y),
        tf.constant(client_id, tf.int64),
        tf.constant(2),
        seed,
        dict(add=tf.constant(0.25)),
        tf.constant([2.0]),
      )
      w = 0.5
      for rows in batches_of(config, len(X), client_id, round_number=2):
        # Two batches in each of two epochs.
        w -= 0.05 * (gradient(w, rows) + 2.0 + 0.25 * 4)
      assert float(report['update'][0]) == pytest.approx(0.5 - w, rel=1e-5)
      assert (int(report['steps']), int(report['epochs'])) == (4, 2)
      assert float(report['rate']) == pytest.approx(0.05)
      assert float(report['full']) == pytest.approx(gradient(0.5, slice(None)), rel=1e-5)
      found[client_id] = float(sent[0]) / (0.5 - w)
    assert found == {3: pytest.approx(10, rel=1e-5), 4: pytest.approx(-10, rel=1e-5)}


class TestFullGradient:
  def test_over_all_examples_at_the_global_weights_and_uncounted(self):
    model = linear_model.Linear()
    update_fn = client_update.build_full_gradient(model)
    weights = ModelWeights([tf.constant([[0.5]])], [])
    (found,) = update_fn(weights, examples_of(X, Y))
    assert float(found[0, 0]) == pytest.approx(gradient(0.5, slice(None)), rel=1e-6)
    assert float(update_fn(weights, examples_of([], []))[0][0, 0]) == 0
    assert model.report_local_unfinalized_metrics()['num_examples'][0].numpy() == 0


class TestLocalEpochs:
  def test_each_client_has_a_number_of_its_own_in_all_rounds(self):
    config, seed = Config(local_epochs=2, most_local_epochs=4), seeds.initial_seed(11, 'client_update')
    found = [int(client_update.epochs_of(config, seed, tf.constant(i, tf.int64))) for i in range(40)]
    assert set(found) == {2, 3, 4}
    for client_id in (0, 1):
      for round_number in (1, 2):
        _, metrics = run_update(config, client_id=client_id, round_number=round_number, seed=11)
        assert metrics['num_examples'][0].numpy() == found[client_id] * len(X)

  def test_a_range_that_falls_is_refused(self):
    with pytest.raises(ValueError, match='most_local_epochs'):
      Config(local_epochs=3, most_local_epochs=2)


class TestShuffle:
  def orders(self, round_number=1, client_id=3, epochs=2, n=50, seed=11):
    return np.stack(batches_of(Config(local_epochs=epochs, batch_size=n), n, client_id, round_number, seed))

  def test_each_epoch_is_a_permutation(self):
    for n in (1, 2, 50, 333):
      np.testing.assert_array_equal(np.sort(self.orders(n=n, epochs=3)), np.tile(np.arange(n), (3, 1)))

  def test_differs_by_epoch_round_client_and_seed_and_by_nothing_else(self):
    first, second = self.orders()
    others = [second] + [self.orders(**{key: 7})[0] for key in ('round_number', 'client_id', 'seed')]
    for i, order in enumerate([first] + others):
      for other in others[i:]:
        assert (order != other).mean() > 0.8
    np.testing.assert_array_equal(self.orders(epochs=5)[:2], [first, second])

  def test_first_places_are_uniform(self):
    counts = np.zeros((4, 4))
    for order in self.orders(epochs=2000, n=4):
      counts[np.arange(4), order] += 1
    # 2000 draws of 1/4: standard deviation 19.
    assert np.abs(counts - 500).max() < 100

  def test_training_visits_each_example_once_an_epoch(self):
    # With the label as input and lr tiny, the summed loss over an epoch is that of all examples.
    x = np.arange(1.0, 38.0)
    _, metrics = run_update(Config(batch_size=8, local_epochs=2), sgd(0.0), w=0.0, x=x, y=x)
    np.testing.assert_allclose(metrics['loss'], [2 * np.sum(x**2), 2 * len(x)], rtol=1e-6)


class TestReading:
  SPEC = collections.OrderedDict(x=tf.TensorSpec([None, 2]), y=tf.TensorSpec([None], tf.int32))

  def dataset(self, sizes):
    x, y = np.arange(2.0 * sum(sizes), dtype=np.float32).reshape(-1, 2), np.arange(sum(sizes), dtype=np.int32)
    ends = np.cumsum(sizes)

    def elements():
      for begin, end in zip(ends - sizes, ends):
        yield collections.OrderedDict(x=x[begin:end], y=y[begin:end])

    return tf.data.Dataset.from_generator(elements, output_signature=self.SPEC), x, y

  @pytest.mark.parametrize('sizes', [[7], [3, 3, 1], [1] * 7, [0, 4, 0, 3, 0], [0], [], [0, 0]])
  def test_batching_does_not_matter(self, sizes):
    dataset, x, y = self.dataset(np.array(sizes, int))
    examples = client_update.read_examples(dataset, self.SPEC)
    np.testing.assert_array_equal(examples['x'], x)
    np.testing.assert_array_equal(examples['y'], y)

  def test_client_id_is_the_one_element(self):
    ids = tf.data.Dataset.from_tensor_slices(np.array([2**40, 5], np.int64))
    assert client_update.read_client_id(ids.take(1)).numpy() == 2**40
    assert client_update.read_client_id(ids).numpy() == -1
    assert client_update.read_client_id(ids.take(0)).numpy() == -1


class TestWithoutInitialWeights:
  def test_weights_are_zero_and_other_variables_keep_their_values(self):
    def model_fn():
      return tff.learning.models.from_keras_model(
        models.build_keras_model('digits_cnn', (8, 8, 1), 10),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        input_spec=models.input_spec((8, 8, 1)),
        metrics=[lambda: StartsAtSeven(name='seven')],
      )

    with tf.Graph().as_default():
      model = model_functions.without_initial_weights(model_fn)()
      with tf.compat.v1.Session() as session:
        variables = [*model.trainable_variables, *model.local_variables]
        session.run([v.initializer for v in variables])
        weights, others = session.run((list(model.trainable_variables), list(model.local_variables)))
    assert [w.shape for w in weights] == [v.shape for v in model.trainable_variables]
    assert not any(w.any() for w in weights)
    assert 7.0 in [float(v) for v in others]


class StartsAtSeven(tf.keras.metrics.Metric):
  """A metric whose variable does not start at zero."""

  def __init__(self, **kwargs):
    super().__init__(**kwargs)
    self.value = self.add_weight('value', initializer=tf.keras.initializers.Constant(7.0))

  def update_state(self, y_true, y_pred, sample_weight=None):
    pass

  def result(self):
    return self.value


class TestDropoutInTraining:
  def update(self, model_fn, seed=1, client_id=4, **config):
    update_fn = client_update.build_client_update(model_fn(), sgd(0.1), Config(batch_size=8, **config))
    weights = tf.nest.map_structure(lambda v: v.read_value(), ModelWeights.from_model(model_fn()))
    rng = np.random.default_rng(0)
    examples = collections.OrderedDict(
      x=tf.constant(rng.random((20, 4), np.float32)), y=tf.constant(rng.integers(0, 2, 20), tf.int32)
    )
    state = (tf.constant(client_id, tf.int64), tf.constant(1), seeds.initial_seed(seed, 'client_update'))
    return np.concatenate([leaf.numpy().ravel() for leaf in update_fn(weights, examples, *state)[0]])

  def model_fn(self, dropout_layer):
    def make():
      dense = tf.keras.layers.Dense(16, kernel_initializer=tf.keras.initializers.GlorotUniform(seed=1))
      final = tf.keras.layers.Dense(2, kernel_initializer=tf.keras.initializers.GlorotUniform(seed=2))
      return tff.learning.models.from_keras_model(
        tf.keras.Sequential([tf.keras.layers.InputLayer((4,)), dense, dropout_layer(0.5), final]),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        input_spec=models.input_spec((4,)),
      )

    return make

  @pytest.mark.thorough
  def test_seeded_masks_repeat_and_follow_the_client(self):
    model_fn = self.model_fn(dropout.SeededDropout)
    first = self.update(model_fn)
    np.testing.assert_array_equal(first, self.update(model_fn))
    assert (first != self.update(model_fn, client_id=5)).any()

  def test_masks_do_not_draw_the_numbers_of_shuffles(self):
    own = seeds.initial_seed(1, 'client_update')
    order = client_update.shuffled_order(own, tf.constant(32), 1)
    keys = seeds.integers(seeds.fold_in(own, client_update._DROPOUT), [1, 32])
    assert (order != tf.reshape(tf.argsort(keys, axis=1, stable=True), [-1])).numpy().any()

  def test_each_step_has_its_own_mask(self):
    # All examples equal and nothing learned: gradients of two steps differ by their masks only.
    seen = []
    model = self.model_fn(dropout.SeededDropout)()

    class Recorder(type(sgd(0.1))):
      def next(self, state, weights, gradients):
        with tf.control_dependencies([tf.py_function(lambda g: seen.append(g.numpy()), [gradients[2]], [])]):
          return state, tuple(tf.identity(w) for w in weights)

    update_fn = client_update.build_client_update(model, Recorder(0.1), Config(batch_size=4))
    weights = tf.nest.map_structure(lambda v: v.read_value(), ModelWeights.from_model(model))
    examples = collections.OrderedDict(x=tf.ones([8, 4]), y=tf.zeros([8], tf.int32))
    update_fn(weights, examples, tf.constant(1, tf.int64), tf.constant(1), seeds.initial_seed(1, 'client_update'))
    assert len(seen) == 2 and (seen[0] != seen[1]).any()

  @pytest.mark.thorough
  def test_stock_dropout_trains_unseeded(self):
    tf.random.set_seed(None)  # A test that ran before may have left a seed.
    model_fn = self.model_fn(tf.keras.layers.Dropout)
    assert (self.update(model_fn) != self.update(model_fn)).any()

  @pytest.mark.thorough
  @pytest.mark.parametrize(
    'name, shape', [('digits_cnn', (8, 8, 1)), pytest.param('mnist_cnn', (12, 12, 1), marks=pytest.mark.thorough)]
  )
  def test_bfloat16_update_is_near_the_float32_one(self, name, shape):
    rng = np.random.default_rng(0)
    examples = collections.OrderedDict(x=tf.constant(rng.random((64, *shape), np.float32)), y=tf.zeros([64], tf.int32))
    updates = []
    # The third client is another one, and so are its batches and its dropout masks.
    for compute_dtype, client_id in (('float32', 1), ('bfloat16', 1), ('bfloat16', 2)):
      model = models.build_model_fn(name, shape, 10, compute_dtype, seed=2)()
      weights = tf.nest.map_structure(lambda v: v.read_value(), ModelWeights.from_model(model))
      update_fn = client_update.build_client_update(model, sgd(0.1), Config(batch_size=16))
      update, _ = update_fn(
        weights, examples, tf.constant(client_id, tf.int64), tf.constant(1), seeds.initial_seed(1, 'client_update')
      )
      assert {leaf.dtype for leaf in update} == {tf.float32}
      updates.append(np.concatenate([leaf.numpy().ravel() for leaf in update]))
    exact, rounded, other = updates
    near, far = (np.linalg.norm(exact - update) / np.linalg.norm(exact) for update in (rounded, other))
    assert 1e-4 < near < 0.03 and far > 4 * near


class TestModelForms:
  """A model is taken as a function that makes it, as a `FunctionalModel`, or as a function that returns one."""

  @pytest.mark.thorough
  @pytest.mark.parametrize(
    'model',
    [linear_model.Linear, linear_model.functional(), linear_model.functional],
    ids=['model_fn', 'itself', 'made'],
  )
  def test_all_train_alike(self, model):
    model_fn = model_functions.of(model_functions.of(model))
    assert run_update(Config(batch_size=2), model_fn=model_fn)[0] == pytest.approx(run_update(Config(batch_size=2))[0])

  def test_without_metrics(self):
    model = model_functions.without_metrics(linear_model.Linear)()
    assert not model.report_local_unfinalized_metrics() and not model.metric_finalizers()
    x = tf.ones([3, 1])
    expected = linear_model.Linear()
    assert model.input_spec == expected.input_spec and not model.predict_on_batch(x).numpy().any()
    for name in ('trainable_variables', 'non_trainable_variables', 'local_variables'):
      assert len(getattr(model, name)) == len(getattr(expected, name))
    assert float(model.forward_pass(collections.OrderedDict(x=x, y=2 * x)).loss) == 4.0
