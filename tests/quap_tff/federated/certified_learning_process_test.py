"""Tests of `quap_tff.federated.certified_learning_process`: what it releases, and rounds that can be followed by hand."""

import collections
import math

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import quap_tff
from quap_tff import runtime
from quap_tff.training import models
from tests.quap_tff import noise_checks

_sgd = tff.learning.optimizers.build_sgdm


def _model_fn():
  """Two Dense layers without gradients to speak of where examples are all zero."""
  keras_model = tf.keras.Sequential(
    [
      tf.keras.layers.Dense(20, use_bias=False, input_shape=(1,), name='hidden', kernel_initializer='ones'),
      tf.keras.layers.Dense(20, use_bias=False, name='logits', kernel_initializer='zeros'),
    ]
  )
  return tff.learning.models.from_keras_model(
    keras_model,
    loss=tf.keras.losses.MeanSquaredError(),
    metrics=[tf.keras.metrics.MeanAbsoluteError()],
    input_spec=collections.OrderedDict(x=tf.TensorSpec([None, 1]), y=tf.TensorSpec([None, 20])),
  )


def _config(**overrides):
  values = dict(
    num_clients=10,
    epsilon=3.0,
    delta=1e-5,
    noise_multiplier=4.0,
    divisor=2.0,
    noise_seed=1,
    weights=quap_tff.weight_rules.Uniform(),
  )
  return quap_tff.CertifiedConfig(**{**values, **overrides})


def _client(client_id, x=0.0, y=0.0):
  examples = collections.OrderedDict(x=np.full([1, 1], x, np.float32), y=np.full([1, 20], y, np.float32))
  return collections.OrderedDict(
    client_id=tf.data.Dataset.from_tensors(np.int64(client_id)), examples=tf.data.Dataset.from_tensors(examples)
  )


def _weights(process, state):
  return [np.asarray(w) for w in process.get_model_weights(state).trainable]


@pytest.fixture(name='process', scope='module')
def _process():
  with runtime.activate(runtime.RuntimeConfig(device='cpu')):
    yield quap_tff.build_certified_fed_avg(_model_fn, _config(), _sgd(0.1))


class TestBuildCertifiedFedAvg:
  def test_no_metric_of_the_clients_is_released(self, process):
    assert isinstance(process, tff.learning.templates.LearningProcess)
    metrics = process.next.type_signature.result.metrics.member
    assert tff.structure.name_list(metrics) == ['distributor', 'client_work', 'aggregator', 'finalizer']
    assert metrics.client_work.compact_representation() == '<train=<>>'
    assert metrics.finalizer.compact_representation() == '<update_rejected=int32>'

  def test_what_clients_send_are_ids_and_updates(self, process):
    members = set()

    def visit(block):
      if isinstance(block, tff.framework.Call) and isinstance(block.function, tff.framework.Intrinsic):
        if block.function.uri in ('federated_aggregate', 'federated_sum', 'federated_mean', 'federated_collect'):
          value = block.argument[0] if isinstance(block.argument, tff.framework.Struct) else block.argument
          members.add(value.type_signature.member.compact_representation())
      for child in block.children():
        visit(child)

    visit(tff.backends.native.desugar_and_transform_to_native(process.next).to_building_block())
    # `<>` are the metrics.
    assert members == {'<client_id=int64>', '<float32[1,20],float32[20,20]>', '<>'}

  def test_clients_data_change_nothing_but_the_weights(self, process):
    state = process.initialize()
    quiet, loud = process.next(state, [_client(3)]), process.next(state, [_client(3, 5.0, 7.0)])
    tf.nest.map_structure(np.testing.assert_array_equal, loud.metrics, quiet.metrics)
    tf.nest.map_structure(np.testing.assert_array_equal, loud.state.aggregator, quiet.state.aggregator)
    # By no more than w·C/D = 1/2.
    moved = [a - b for a, b in zip(_weights(process, loud.state), _weights(process, quiet.state))]
    assert math.sqrt(sum(np.sum(np.square(m, dtype=np.float64)) for m in moved)) == pytest.approx(0.5, rel=1e-5)

  def test_noise_is_on_every_layer_and_the_same_after_resuming(self, process):
    state = process.initialize()
    kept = tf.nest.map_structure(np.array, state)
    first, second = (process.next(s, [_client(0), _client(1)]).state for s in (state, kept))
    hidden, logits = _weights(process, first)
    noise_checks.assert_gaussian(np.concatenate([np.ravel(hidden) - 1.0, np.ravel(logits)]), 2.0)
    assert np.all(hidden != 1.0) and np.all(logits != 0.0)
    for a, b in zip(_weights(process, first), _weights(process, second)):
      np.testing.assert_array_equal(a, b)

  def test_an_empty_cohort_moves_nothing(self, process):
    before = process.next(process.initialize(), [_client(3)]).state
    output = process.next(before, [])
    assert output.metrics['finalizer']['update_rejected'] == 1
    for a, b in zip(_weights(process, before), _weights(process, output.state)):
      np.testing.assert_array_equal(a, b)

  def test_replacing_the_released_weights_leaves_the_account_as_it_is(self, process):
    state = process.next(process.initialize(), [_client(3)]).state
    weights = process.get_model_weights(state)
    averaged = tff.learning.models.ModelWeights([0.5 * np.asarray(w) for w in weights.trainable], [])
    changed = process.set_model_weights(state, averaged)
    tf.nest.map_structure(np.testing.assert_array_equal, changed.aggregator, state.aggregator)
    assert process.next(changed, [_client(3)]).metrics['aggregator']['round'] == 2

  def test_layers_of_a_split_are_the_models(self):
    model_fn = models.build_model_fn('digits_cnn', (8, 8, 1), 10)
    process = quap_tff.build_certified_fed_avg(model_fn, _config(clip_split='sqrt_size'))
    assert isinstance(process, tff.learning.templates.LearningProcess)
