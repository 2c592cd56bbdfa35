"""Tests of `quap_tff.federated.learning_process`: its types, its mergeable form, and rounds that can be followed by hand."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import quap_tff
from quap_tff import runtime
from quap_tff.federated.learning_process import reject_update
from quap_tff.mechanisms import clip_rules
from quap_tff.mechanisms import quap_round as mechanism
from quap_tff.mechanisms.config import NoiseConfig
from quap_tff.mechanisms.config import QuapConfig
from quap_tff.training import models
from tests.quap_tff import noise_checks

_sgd = tff.learning.optimizers.build_sgdm
_PREVIOUS = clip_rules.QuantileEma(timing='previous', initial_clip=1.0)


def _linear_model_fn():
  """y = w·x from w = 0; the loss' derivative on one example (x=1, y) is 2·(w - y)."""
  layer = tf.keras.layers.Dense(1, use_bias=False, kernel_initializer='zeros', input_shape=(1,), name='logits')
  return tff.learning.models.from_keras_model(
    tf.keras.Sequential([layer]),
    loss=tf.keras.losses.MeanSquaredError(),
    input_spec=collections.OrderedDict(x=tf.TensorSpec([None, 1]), y=tf.TensorSpec([None, 1])),
  )


def _two_layer_model_fn():
  """Two Dense layers without gradients to speak of: its examples are all zero."""
  keras_model = tf.keras.Sequential(
    [
      tf.keras.layers.Dense(20, use_bias=False, input_shape=(1,), name='hidden', kernel_initializer='ones'),
      tf.keras.layers.Dense(20, use_bias=False, name='logits', kernel_initializer='zeros'),
    ]
  )
  return tff.learning.models.from_keras_model(
    keras_model,
    loss=tf.keras.losses.MeanSquaredError(),
    input_spec=collections.OrderedDict(x=tf.TensorSpec([None, 1]), y=tf.TensorSpec([None, 20])),
  )


def _config(**overrides):
  values = dict(num_clients=10, clip=clip_rules.Fixed(1.0), noise=NoiseConfig('none'))
  values.update(overrides)
  return QuapConfig(**values)


def _client(client_id, y, width=1, x=1.0):
  examples = collections.OrderedDict(x=np.full([1, 1], x, np.float32), y=np.full([1, width], y, np.float32))
  return collections.OrderedDict(
    client_id=tf.data.Dataset.from_tensors(np.int64(client_id)), examples=tf.data.Dataset.from_tensors(examples)
  )


def _weight(process, state):
  return float(np.asarray(process.get_model_weights(state).trainable[0]).ravel()[0])


@pytest.fixture(scope='module')
def context():
  with runtime.activate(runtime.RuntimeConfig(device='cpu')) as active:
    yield active


@pytest.fixture(name='plain_process', scope='module')
def _plain_process():
  return quap_tff.build_quap_fed_avg(_linear_model_fn, _config(), _sgd(0.1))


class TestBuildQuapFedAvgComputation:
  def test_types(self, plain_process):
    process = plain_process
    assert isinstance(process, tff.learning.templates.LearningProcess)
    parameter = process.next.type_signature.parameter
    assert parameter[1].compact_representation() == (
      '{<client_id=int64*,examples=<x=float32[?,1],y=float32[?,1]>*>}@CLIENTS'
    )
    state = process.initialize.type_signature.result
    assert parameter[0] == state == process.next.type_signature.result.state
    tff.test.assert_types_identical(
      state.member.aggregator,
      tff.to_type(
        mechanism.ServerState(
          round=np.int32,
          participation=collections.OrderedDict(counts=(np.int32, [10])),
          clip=np.float32,
          noise=mechanism.NoiseState(seed=(np.int64, [2]), counter=np.int64),
          budget=collections.OrderedDict(),
        )
      ),
    )
    metrics = process.next.type_signature.result.metrics.member
    assert tff.structure.name_list(metrics) == ['distributor', 'client_work', 'aggregator', 'finalizer']

  @pytest.mark.parametrize(
    'overrides',
    [
      dict(clip=_PREVIOUS, noise=NoiseConfig()),
      dict(clip=clip_rules.Fixed(1.0), noise=NoiseConfig('client')),
      dict(clip=clip_rules.PrivateQuantile(), noise=NoiseConfig(), update_scale='pseudo_gradient'),
      dict(clip=clip_rules.Unclipped()),
    ],
  )
  def test_with_a_clip_known_before_next_compiles_to_mergeable_form(self, overrides):
    process = quap_tff.build_quap_fed_avg(_linear_model_fn, _config(**overrides))
    form = tff.backends.native.compile_to_mergeable_comp_form(process.next)
    assert isinstance(form, tff.framework.MergeableCompForm)

  def test_with_a_clip_of_this_round_next_does_not(self):
    process = quap_tff.build_quap_fed_avg(_linear_model_fn, _config(clip=clip_rules.QuantileEma(), noise=NoiseConfig()))
    with pytest.raises(ValueError, match='aggregate dependent on another'):
      tff.backends.native.compile_to_mergeable_comp_form(process.next)

  def test_unknown_critical_layers_are_named_by_the_model(self):
    model_fn = models.build_model_fn('digits_cnn', (8, 8, 1), 10)
    with pytest.raises(ValueError, match="Unknown critical layer 'logit'. Did you mean 'logits'.*conv.*dense"):
      quap_tff.build_quap_fed_avg(model_fn, _config(critical_layers='logit'))


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
    reject, measurements = reject_update((), [tf.constant(u) for u in update])
    assert int(reject) == expected
    assert list(measurements) == ['update_rejected'] and int(measurements['update_rejected']) == expected


@pytest.mark.usefixtures('context')
class TestBuildQuapFedAvgExecution:
  def test_by_hand(self, plain_process):
    # At w = 0 and rate 0.1 the update is -0.2·y: -0.4 for y = 2; -2 for y = 10, clipped to -1.
    process = plain_process
    output = process.next(process.initialize(), [_client(3, 2.0), _client(5, 10.0)])
    assert _weight(process, output.state) == pytest.approx(0.7, rel=1e-6)
    assert output.metrics['aggregator']['norm_max'] == pytest.approx(2.0)
    assert output.metrics['aggregator']['clipped_fraction'] == 0.5
    np.testing.assert_array_equal(np.flatnonzero(output.state.aggregator.participation['counts']), [3, 5])

  def test_pseudo_gradients_with_decay(self):
    # In units of the rate (0.1, then 0.05) the update is -2·(y - w), clipped to 1: w moves by the rate.
    process = quap_tff.build_quap_fed_avg(
      _linear_model_fn,
      _config(update_scale='pseudo_gradient'),
      _sgd(0.1),
      client_work=quap_tff.ClientWorkConfig(learning_rate_decay=0.5),
    )
    state = process.initialize()
    for norm, weight in ((20.0, 0.1), (19.8, 0.15)):
      output = process.next(state, [_client(0, 10.0)])
      state = output.state
      assert output.metrics['aggregator']['norm_max'] == pytest.approx(norm, rel=1e-5)
      assert _weight(process, state) == pytest.approx(weight, rel=1e-5)

  def test_an_empty_cohort_moves_nothing_even_with_server_momentum(self):
    process = quap_tff.build_quap_fed_avg(
      _linear_model_fn,
      _config(clip=clip_rules.QuantileEma(), noise=NoiseConfig(seed=1)),
      _sgd(0.1),
      _sgd(1.0, momentum=0.9),
    )
    before = process.next(process.initialize(), [_client(3, 2.0)]).state
    output = process.next(before, [])
    assert _weight(process, before) != 0.0
    assert _weight(process, output.state) == _weight(process, before)
    tf.nest.map_structure(np.testing.assert_array_equal, output.state.finalizer, before.finalizer)
    assert output.state.aggregator.round == 2
    tf.nest.map_structure(np.testing.assert_array_equal, output.state.aggregator._replace(round=1), before.aggregator)
    assert output.metrics['aggregator']['cohort_size'] == 0
    assert output.metrics['finalizer']['update_rejected'] == 1
    after = process.next(output.state, [_client(3, 2.0)])
    assert after.metrics['finalizer']['update_rejected'] == 0

  def test_a_diverged_client_is_left_out(self, plain_process):
    process = plain_process
    output = process.next(process.initialize(), [_client(0, np.nan), _client(1, 2.0)])
    assert output.metrics['aggregator']['non_finite_updates'] == 1
    assert _weight(process, output.state) == pytest.approx(0.2, rel=1e-6)

  def test_bad_ids(self, plain_process):
    process = plain_process
    state = process.initialize()
    for ids, message in (
      ([0, 10], r'Client ids must lie in \[0, 10\), the configured population; found \[0 10\]\.'),
      ([-1, 2], r'Client ids must lie in \[0, 10\) \(-1: not exactly one id\); found \[-1 2\]\.'),
      ([4, 4], r'A client appears twice in the cohort .* \[4\]\.'),
    ):
      with pytest.raises(tf.errors.InvalidArgumentError, match=message) as raised:
        process.next(state, [_client(i, 1.0) for i in ids])
      # In one line, without TensorFlow's graph around it.
      assert len(str(raised.value).splitlines()) == 1
    client = collections.OrderedDict(_client(0, 1.0), client_id=tf.data.Dataset.from_tensors(np.float32(0)))
    with pytest.raises(
      TypeError, match=r'Expected a sequence of type int64\* for .*client_id, found a dataset of .*float32'
    ):
      process.next(state, [client])

  def test_noise_on_the_final_dense_layer_and_the_same_after_resuming(self):
    process = quap_tff.build_quap_fed_avg(_two_layer_model_fn, _config(noise=NoiseConfig(seed=1)), _sgd(0.1))
    state = process.next(process.initialize(), [_client(0, 0.0, 20, x=0.0)]).state
    hidden, logits = process.get_model_weights(state).trainable
    np.testing.assert_array_equal(hidden, np.ones([1, 20]))
    # ε = 0.03 in warm-up, C = M = 1.
    noise_checks.assert_gaussian(logits, np.sqrt(2 * np.log(1.25e5)) / 0.03)
    saved = tf.nest.map_structure(np.array, state)
    cohort = [_client(i, 0.0, 20, x=0.0) for i in range(2)]
    first, second = (process.get_model_weights(process.next(s, cohort).state).trainable for s in (state, saved))
    for a, b in zip(first, second):
      np.testing.assert_array_equal(a, b)
