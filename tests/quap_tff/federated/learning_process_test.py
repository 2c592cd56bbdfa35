"""Tests of the composer: types, the mergeable form, and rounds of every kind that can be followed by hand."""

import collections
import dataclasses
import math

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from experiments.systems import lee_kifer
from experiments.systems import malicious
import quap_tff
from quap_tff import plans
from quap_tff.federated import learning_process
from quap_tff.federated import leaving_clients
from quap_tff.mechanisms import mechanism as mechanisms
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.quap import rounds as quap
from quap_tff.mechanisms.quap.config import NoiseConfig
from quap_tff.training import extension as extensions
from quap_tff.training import models
from tests.quap_tff import examples
from tests.quap_tff import linear_model

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures('context')]

_config = examples.quap
_sgd = tff.learning.optimizers.build_sgdm
_client = linear_model.client
_weight = linear_model.weight
_METRICS = ['distributor', 'client_work', 'aggregator', 'finalizer']


def _built(model_fn, config, *optimizers, extension=None, **options):
  return plans.Plan(config, extension=extension).build_process(model_fn, *optimizers, **options).process


@pytest.fixture(name='plain_process', scope='module')
def _plain_process():
  return _built(linear_model.Linear, _config(), _sgd(0.1))


def _normalized(layer):
  """A function that makes a model with this layer, a normalization."""

  def model_fn():
    keras = tf.keras.Sequential([tf.keras.layers.InputLayer([4]), layer(), tf.keras.layers.Dense(2)])
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return tff.learning.models.from_keras_model(keras, loss, models.input_spec([4]))

  return model_fn


class TestVariablesThatAreNotTrainable:
  @pytest.mark.thorough
  def test_a_model_whose_training_changes_them_is_refused_with_the_remedy(self):
    model_fn = _normalized(tf.keras.layers.BatchNormalization)
    message = r'Training changes batch_norm\S+/moving_mean, batch_norm\S+/moving_variance, which .*GroupNormalization'
    with pytest.raises(ValueError, match=message):
      _built(model_fn, _config(critical_layers='all'))
    certified = plans.Plan.certified(examples.guarantee(num_clients=4), examples.SCHEDULE)
    with pytest.raises(ValueError, match=message):
      certified.build_process(model_fn)

  @pytest.mark.thorough
  @pytest.mark.parametrize(
    'layer',
    [
      pytest.param(lambda: tf.keras.layers.BatchNormalization(trainable=False), marks=pytest.mark.thorough),
      lambda: tf.keras.layers.Normalization(mean=1.0, variance=4.0),
      pytest.param(lambda: tf.keras.layers.GroupNormalization(groups=2), marks=pytest.mark.thorough),
    ],
  )
  def test_others_train(self, layer):
    process = _built(_normalized(layer), _config(critical_layers='all'), _sgd(0.1))
    state = process.initialize()
    before = process.get_model_weights(state)
    batch = collections.OrderedDict(x=np.eye(4, dtype=np.float32), y=np.ones(4, np.int32))
    output = process.next(state, [collections.OrderedDict(client_id=[np.int64(0)], examples=[batch])])
    after = process.get_model_weights(output.state)
    assert not np.array_equal(after.trainable[-1], before.trainable[-1])
    tf.nest.map_structure(np.testing.assert_array_equal, after.non_trainable, before.non_trainable)


class TestOptimizers:
  @pytest.mark.parametrize('name', ['client_optimizer', 'server_optimizer'])
  @pytest.mark.parametrize('optimizer', [tf.keras.optimizers.SGD(0.1), lambda: tf.keras.optimizers.SGD(0.1)])
  def test_those_of_keras_are_refused_with_the_remedy(self, name, optimizer):
    message = rf'{name} must be one of tff.learning.optimizers, such as .*build_sgdm\(0.05\) .*, found (SGD|function)\.'
    with pytest.raises(TypeError, match=message):
      plans.Plan(_config()).build_process(linear_model.Linear, **{name: optimizer})


class TestQuap:
  def test_types(self, plain_process):
    assert isinstance(plain_process, tff.learning.templates.LearningProcess)
    parameter = plain_process.next.type_signature.parameter
    assert parameter[1].compact_representation() == (
      '{<client_id=int64*,examples=<x=float32[?,1],y=float32[?,1]>*>}@CLIENTS'
    )
    state = plain_process.initialize.type_signature.result
    assert parameter[0] == state == plain_process.next.type_signature.result.state
    tff.test.assert_types_identical(
      state.member.aggregator,
      tff.to_type(
        quap.QuapState(
          round=np.int32,
          participation=collections.OrderedDict(counts=(np.int32, [10])),
          clip=np.float32,
          noise=mechanisms.NoiseState(seed=(np.int64, [2]), counter=np.int64),
          budget=collections.OrderedDict(),
        )
      ),
    )
    assert tff.structure.name_list(plain_process.next.type_signature.result.metrics.member) == _METRICS

  @pytest.mark.thorough
  def test_with_a_clip_known_before_next_compiles_to_mergeable_form(self):
    config = _config(clip=clip_rules.PrivateQuantile(), noise=NoiseConfig(), update_scale='pseudo_gradient')
    process = _built(linear_model.Linear, config)
    form = tff.backends.native.compile_to_mergeable_comp_form(process.next)
    assert isinstance(form, tff.framework.MergeableCompForm)

  @pytest.mark.thorough
  def test_with_a_clip_of_this_round_next_does_not(self):
    config = _config(clip=clip_rules.QuantileEma(), noise=NoiseConfig())
    process = _built(linear_model.Linear, config)
    with pytest.raises(ValueError, match='aggregate dependent on another'):
      tff.backends.native.compile_to_mergeable_comp_form(process.next)

  @pytest.mark.thorough
  def test_unknown_critical_layers_are_named_by_the_model(self):
    model_fn = models.build_model_fn('digits_cnn', (8, 8, 1), 10)
    with pytest.raises(ValueError, match="Unknown critical layer 'logit'. Did you mean 'logits'.*conv.*dense"):
      _built(model_fn, _config(critical_layers='logit'))

  def test_by_hand(self, plain_process):
    # At w = 0 and rate 0.1 the update is -0.2·y: -0.4 for y = 2; -2 for y = 10, clipped to -1.
    output = plain_process.next(plain_process.initialize(), [_client(3, 2.0), _client(5, 10.0)])
    assert _weight(plain_process, output.state) == pytest.approx(0.7, rel=1e-6)
    assert output.metrics['aggregator']['norm_max'] == pytest.approx(2.0)
    assert output.metrics['aggregator']['clipped_fraction'] == 0.5
    assert output.metrics['client_work']['train']['num_examples'] == 2
    np.testing.assert_array_equal(np.flatnonzero(output.state.aggregator.participation['counts']), [3, 5])

  @pytest.mark.thorough
  def test_pseudo_gradients_with_decay(self):
    # In units of the rate (0.1, then 0.05) the update is -2·(y - w), clipped to 1: w moves by the rate.
    work = quap_tff.ClientWorkConfig(learning_rate_decay=0.5)
    config = _config(update_scale='pseudo_gradient')
    process = _built(linear_model.Linear, config, _sgd(0.1), client_work=work)
    state = process.initialize()
    for norm, weight in ((20.0, 0.1), (19.8, 0.15)):
      output = process.next(state, [_client(0, 10.0)])
      state = output.state
      assert output.metrics['aggregator']['norm_max'] == pytest.approx(norm, rel=1e-5)
      assert _weight(process, state) == pytest.approx(weight, rel=1e-5)

  @pytest.mark.thorough
  def test_an_empty_cohort_moves_nothing_even_with_server_momentum(self):
    config = _config(clip=clip_rules.QuantileEma(), noise=NoiseConfig(seed=1))
    process = _built(linear_model.Linear, config, _sgd(0.1), _sgd(1.0, momentum=0.9))
    before = process.next(process.initialize(), [_client(3, 2.0)]).state
    output = process.next(before, [])
    assert _weight(process, output.state) == _weight(process, before) != 0.0
    tf.nest.map_structure(np.testing.assert_array_equal, output.state.finalizer, before.finalizer)
    assert output.state.aggregator.round == 2
    tf.nest.map_structure(np.testing.assert_array_equal, output.state.aggregator._replace(round=1), before.aggregator)
    assert output.metrics['aggregator']['cohort_size'] == 0
    assert output.metrics['finalizer']['update_rejected'] == 1
    after = process.next(output.state, [_client(3, 2.0)])
    assert after.metrics['finalizer']['update_rejected'] == 0

  def test_a_diverged_client_is_left_out(self, plain_process):
    output = plain_process.next(plain_process.initialize(), [_client(0, np.nan), _client(1, 2.0)])
    assert output.metrics['aggregator']['non_finite_updates'] == 1
    assert _weight(plain_process, output.state) == pytest.approx(0.2, rel=1e-6)

  def test_the_servers_learning_rate_can_be_read_and_set(self, plain_process):
    state = plain_process.initialize()
    hparams = plain_process.get_hparams(state)
    assert hparams['finalizer'] == {'learning_rate': 1.0}
    hparams['finalizer']['learning_rate'] = 0.5
    state = plain_process.set_hparams(state, hparams)
    assert _weight(plain_process, plain_process.next(state, [_client(1, 2.0)]).state) == pytest.approx(0.2, rel=1e-6)

  @pytest.mark.parametrize(
    'ids, message',
    [
      ([0, 10], r'Client ids must lie in \[0, 10\), the configured population; found \[0 10\]\.'),
      ([-1, 2], r'Client ids must lie in \[0, 10\) \(-1: not exactly one id\); found \[-1 2\]\.'),
      ([4, 4], r'A client appears twice in the cohort .* \[4\]\.'),
    ],
  )
  def test_bad_ids(self, plain_process, ids, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=message) as raised:
      plain_process.next(plain_process.initialize(), [_client(i, 1.0) for i in ids])
    # In one line, without TensorFlow's graph around it.
    assert len(str(raised.value).splitlines()) == 1

  def test_ids_of_another_type(self, plain_process):
    client = collections.OrderedDict(_client(0, 1.0), client_id=tf.data.Dataset.from_tensors(np.float32(0)))
    message = r'Expected a sequence of type int64\* for .*client_id, found a dataset of .*float32'
    with pytest.raises(TypeError, match=message):
      plain_process.next(plain_process.initialize(), [client])


class TestRejectUpdate:
  @pytest.mark.parametrize(
    'update, expected',
    [
      ([[0.0, 0.0], [0.0]], 1),
      ([[0.0, -0.0], [0.0]], 1),
      ([[0.0, np.nan], [1.0]], 1),
      ([[1.0, 0.0], [np.inf]], 1),
      ([[0.0, 0.0], [1e-30]], 0),
      ([[1.0, 2.0], [3.0]], 0),
    ],
  )
  def test_non_finite_and_zero_updates(self, update, expected):
    reject, measurements = learning_process.reject_update((), [tf.constant(u) for u in update])
    assert int(reject) == expected
    assert list(measurements) == ['update_rejected'] and int(measurements['update_rejected']) == expected


@pytest.fixture(name='certified', scope='module')
def _certified():
  config = examples.noised(noise_seed=1)
  return _built(linear_model.functional(1, 20, 20), config, _sgd(0.1))


def _twenty(client_id, x=0.0, y=0.0):
  """A client of the certified process; without examples to speak of unless x and y are given."""
  return _client(client_id, y, x=x, width=20)


class TestCertified:
  def test_no_metric_of_the_clients_is_released(self, certified):
    assert isinstance(certified, tff.learning.templates.LearningProcess)
    metrics = certified.next.type_signature.result.metrics.member
    assert tff.structure.name_list(metrics) == _METRICS
    assert metrics.client_work.compact_representation() == '<train=<>>'
    assert metrics.finalizer.compact_representation() == '<update_rejected=int32>'

  def test_what_clients_send_are_ids_and_updates(self, certified):
    members = {member.compact_representation() for _, member in leaving_clients.leaving_clients(certified.next)}
    # `<>` are the metrics.
    assert members == {'<client_id=int32[11]>', '<int32[1,20],int32[20,20]>', '<>'}

  def test_clients_data_change_nothing_but_the_weights(self, certified):
    state = certified.initialize()
    quiet, loud = certified.next(state, [_twenty(3)]), certified.next(state, [_twenty(3, 5.0, 7.0)])
    tf.nest.map_structure(np.testing.assert_array_equal, loud.metrics, quiet.metrics)
    tf.nest.map_structure(np.testing.assert_array_equal, loud.state.aggregator, quiet.state.aggregator)
    # By no more than w·C/D = 1/2, and by little less: rounding to the grid has room.
    both = zip(linear_model.weights(certified, loud.state), linear_model.weights(certified, quiet.state))
    moved = math.sqrt(sum(np.sum(np.square(a - b, dtype=np.float64)) for a, b in both))
    assert 0.499 < moved <= 0.5

  def test_a_client_whose_data_fail_adds_zero_alone(self, certified):
    state, loud, failing = certified.initialize(), _twenty(4, 5.0, 7.0), _twenty(3, 5.0, 7.0)
    spec = failing['examples'].element_spec

    def broken():
      raise ValueError('A record of this client cannot be read.')
      yield

    failing['examples'] = tf.data.Dataset.from_generator(broken, output_signature=spec)
    with pytest.warns(
      UserWarning, match='^Client 1 of the cohort .*cannot be read.* counts as a client without examples'
    ):
      found = certified.next(state, [loud, failing])
    failing['examples'] = []
    expected = certified.next(state, [loud, failing])
    tf.nest.map_structure(np.testing.assert_array_equal, found.state, expected.state)
    tf.nest.map_structure(np.testing.assert_array_equal, found.metrics, expected.metrics)

  def test_replacing_the_released_weights_leaves_the_account_as_it_is(self, certified):
    state = certified.next(certified.initialize(), [_twenty(3)]).state
    halved = [0.5 * w for w in linear_model.weights(certified, state)]
    changed = certified.set_model_weights(state, tff.learning.models.ModelWeights(halved, ()))
    tf.nest.map_structure(np.testing.assert_array_equal, linear_model.weights(certified, changed), halved)
    tf.nest.map_structure(np.testing.assert_array_equal, changed.aggregator, state.aggregator)
    assert certified.next(changed, [_twenty(3)]).metrics['aggregator']['round'] == 2

  @pytest.mark.thorough
  def test_layers_of_a_split_are_the_models(self):
    config = examples.noised(clip_split='sqrt_size')
    model_fn = models.build_model_fn('logistic_regression', (2,), 2)
    assert isinstance(_built(model_fn, config), tff.learning.templates.LearningProcess)


@dataclasses.dataclass(frozen=True)
class _Everything(extensions.Extension):
  """Uses all that an extension can: each of its parts leaves a mark in the numbers."""

  statement = ''

  def initial_memory(self, num_clients, shapes):
    return collections.OrderedDict(
      rounds=tf.constant(0.0), absent=tf.zeros([num_clients], tf.int32), steps=tf.constant(0)
    )

  def client_work(self, config):
    return dataclasses.replace(config, local_epochs=2)

  def message(self, memory):
    return collections.OrderedDict(rounds=memory['rounds'])

  def correction(self, message, own, steps):
    return [own[0] + message['rounds'] + tf.cast(steps, tf.float32)]

  def sent(self, local):
    return [2.0 * g for g in local.update]

  def kept(self, message, own, local):
    return extensions.flat([mine + g + local.learning_rate() for mine, g in zip(own, local.gradient())])

  def report(self, message, own, local):
    return collections.OrderedDict(steps=local.steps)

  def scales(self, memory, cohort):
    return memory['rounds'] + 1.0 + tf.cast(cohort.client_ids, tf.float32)

  def server_step(self, memory, mean, cohort):
    absent = tf.cast(tf.reduce_any(cohort.reports['absent'] > 0, axis=0), tf.int32)
    assert 'own' not in cohort.reports and cohort.num_clients == 4
    direction = [g + cohort.learning_rate() for g in mean]
    steps = memory['steps'] + tf.reduce_sum(cohort.reports['steps'])
    return direction, collections.OrderedDict(rounds=memory['rounds'] + 1.0, absent=absent, steps=steps)

  def server_training(self):
    examples = collections.OrderedDict(x=np.ones([3, 1], np.float32), y=np.full([3, 1], 4.0, np.float32))
    return extensions.ServerTraining(examples, quap_tff.ClientWorkConfig(local_epochs=5, batch_size=3), 0.05)


class TestExtension:
  def test_every_part_by_hand(self):
    work = quap_tff.ClientWorkConfig(learning_rate_decay=0.5, seed=1, attack=malicious.SignFlip(), attackers=(3,))
    config = _config(num_clients=4, clip=clip_rules.Unclipped())
    process = _built(linear_model.Linear, config, _sgd(0.1), client_work=work, extension=_Everything())
    state = process.initialize()
    assert list(state.client_work) == ['work', 'memory', 'own']
    w, table = 0.0, np.zeros(4)
    rounds = [{1: 1.0, 3: 3.0}, {1: 3.0}]
    for t, ys in enumerate(rounds):
      output = process.next(state, [_client(i, y, absent=[0, 2]) for i, y in ys.items()])
      state, rate, mean = output.state, 0.1 * 0.5**t, 0.0
      for i, y in ys.items():
        end = w
        for _ in range(2):
          end -= rate * (2 * (end - y) + table[i] + t + 2)
        table[i] += 2 * (w - y) + rate
        # Client 3 is an attacker: it sends the opposite.
        mean += (-1 if i == 3 else 1) * 2 * (w - end) * (t + 1 + i) / len(ys)
      w -= mean + rate
      assert _weight(process, state) == pytest.approx(w, rel=1e-5)
      np.testing.assert_allclose(state.client_work['own'][:, 0], table, rtol=1e-5)
      assert state.client_work['memory']['absent'].tolist() == [1, 0, 1, 0]
      assert state.client_work['work']['round'] == state.client_work['memory']['rounds'] == t + 1
    state = process.next(state, []).state
    w -= 0.1 * 0.5**2
    for _ in range(5):
      w -= 0.05 * 2 * (w - 4.0)
    assert _weight(process, state) == pytest.approx(w, rel=1e-5)

  def test_an_optimizer_without_a_learning_rate(self):
    class NoLearningRate(type(_sgd(0.1))):
      def get_hparams(self, state):
        return collections.OrderedDict()

    with pytest.raises(ValueError, match="hyperparameter 'learning_rate'"):
      _built(linear_model.Linear, _config(), NoLearningRate(0.1), extension=_Everything())


class TestLineSearch:
  @pytest.mark.thorough
  def test_the_best_step_along_the_mean_update(self):
    # Little noise. The updates from w = 0 are -0.2·y for y = 1 and 3, so that w = 2 is five mean updates away.
    config = lee_kifer.LineSearchConfig(
      num_clients=4, epsilon=100.0, delta=0.5, planned_rounds=1, steps=(1.0, 4.0, 20.0), noise_seed=1
    )
    process = plans.Plan(config).build_process(linear_model.Linear, _sgd(0.1)).process
    assert tff.structure.name_list(process.next.type_signature.result.metrics.member) == _METRICS
    state = process.initialize()
    output = process.next(state, [_client(0, 1.0), _client(2, 3.0)])
    metrics = output.metrics['aggregator']
    assert metrics['cohort_size'] == 2 and metrics['exhausted_clients'] == 0
    assert metrics['step'] == 4.0 and output.metrics['finalizer']['update_rejected'] == 0
    # The noise on the sum is of z·C.
    assert _weight(process, output.state) == pytest.approx(4 * 0.4, abs=4 * 4 * config.first_multiplier / 2)
    np.testing.assert_array_equal(output.state.aggregator.weights, [1, 0, 1, 0])
    nobody = process.next(output.state, [])
    assert _weight(process, nobody.state) == _weight(process, output.state)
    assert nobody.metrics['finalizer']['update_rejected'] == 1
