"""Tests of `quap_tff.federated.client_work`: types and rounds of clients; local training is tested as functions."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from quap_tff import runtime
from quap_tff.common.numbers import seeds
from quap_tff.federated import client_work
from tests.quap_tff import linear_model
from tests.quap_tff.training import client_update_test as exact

pytestmark = pytest.mark.slow

Config = client_work.ClientWorkConfig
ModelWeights = tff.learning.models.ModelWeights
sgd = tff.learning.optimizers.build_sgdm


@pytest.fixture(name='process', scope='module')
def _process():
  config = Config(batch_size=2, local_epochs=2, learning_rate_decay=0.5, seed=11)
  return client_work.build_client_work(linear_model.Linear, sgd(0.05), config)


class TestComputations:
  def test_types(self, process):
    state = '<round=int32,seed=int64[2]>@SERVER'
    data = '{<client_id=int64*,examples=<x=float32[?,1],y=float32[?,1]>*>}@CLIENTS'
    weights = '{<trainable=<float32[1,1]>,non_trainable=<>>}@CLIENTS'
    metrics = '<train=<loss=float32,num_examples=int64,num_batches=int64>>@SERVER'
    result = '{<update=<float32[1,1]>,update_weight=<client_id=int64>>}@CLIENTS'
    assert process.initialize.type_signature.compact_representation() == f'( -> {state})'
    assert process.next.type_signature.compact_representation() == (
      f'(<state={state},global_weights={weights},client_data={data}> -> '
      f'<state={state},result={result},measurements={metrics}>)'
    )

  def test_composes_with_stock_parts(self, process):
    member = process.next.type_signature.result.result.member
    with tf.Graph().as_default():
      weights_type = tff.learning.models.weights_type_from_model(linear_model.Linear())
    assert member.update == weights_type.trainable
    assert member.python_container is tff.learning.templates.ClientResult

  def test_errors(self):
    class FixedBatch(linear_model.Linear):
      input_spec = collections.OrderedDict(x=tf.TensorSpec([4, 1]), y=tf.TensorSpec([4, 1]))

    with pytest.raises(ValueError, match='first dimension of None'):
      client_work.build_client_work(FixedBatch, sgd(0.1))

    class NoLearningRate(type(sgd(0.1))):
      def get_hparams(self, state):
        return collections.OrderedDict()

    with pytest.raises(ValueError, match="hyperparameter 'learning_rate'"):
      client_work.build_client_work(linear_model.Linear, NoLearningRate(0.1), Config(learning_rate_decay=0.5))
    client_work.build_client_work(linear_model.functional(), NoLearningRate(0.1), Config())


def _data(client_id, x, y, batch_size):
  examples = tf.data.Dataset.from_tensor_slices(exact.examples_of(x, y)).batch(batch_size)
  return collections.OrderedDict(client_id=tf.data.Dataset.from_tensors(np.int64(client_id)), examples=examples)


class TestExecution:
  @pytest.fixture(autouse=True, scope='class')
  def context(self):
    # TFF's own context ends its worker by SIGINT and waits for it: for ever, where this process was started with SIGINT
    # ignored, as a shell starts what runs in its background.
    with runtime.activate(runtime.RuntimeConfig('native')):
      yield

  def test_rounds_of_clients(self, process):
    state = process.initialize()
    assert state == collections.OrderedDict(round=0, seed=pytest.approx([11, seeds.STREAMS['client_update']]))
    weights = ModelWeights([np.array([[0.5]], np.float32)], [])
    data = [_data(3, exact.X, exact.Y, 1), _data(8, exact.X, exact.Y, 3), _data(9, [], [], 1)]
    config = Config(batch_size=2, local_epochs=2, learning_rate_decay=0.5)
    for round_number in (1, 2):
      output = process.next(state, [weights] * 3, data)
      state = output.state
      assert state['round'] == round_number and list(state['seed']) == [11, seeds.STREAMS['client_update']]
      for client_id, result in zip((3, 8), output.result):
        expected, _ = exact.run_update(
          config, sgd(0.05), client_id=client_id, round_number=round_number, model_fn=linear_model.Linear
        )
        assert result.update_weight == collections.OrderedDict(client_id=client_id)
        np.testing.assert_allclose(result.update[0], [[expected]], rtol=1e-5)
      assert output.result[2].update[0] == 0.0 and output.result[2].update_weight['client_id'] == 9
      assert output.measurements['train']['num_examples'] == 20 and output.measurements['train']['num_batches'] == 12

  def test_nobody_came(self, process):
    # Without the results: TFF can't hand out a value of no clients.
    @tff.federated_computation(process.next.type_signature.parameter)
    def train(state, global_weights, client_data):
      output = process.next(state, global_weights, client_data)
      return output.state, output.measurements

    state, measurements = train(process.initialize(), [], [])
    assert state['round'] == 1 and measurements['train']['num_examples'] == 0
    assert np.isnan(measurements['train']['loss'])

  def test_without_examples_there_is_no_loss(self, process):
    weights = ModelWeights([np.array([[0.5]], np.float32)], [])
    train = lambda *data: process.next(process.initialize(), [weights] * len(data), list(data)).measurements['train']
    assert np.isnan(train(_data(9, [], [], 1))['loss']) and train(_data(9, [], [], 1))['num_batches'] == 0
    assert train(_data(9, [], [], 1), _data(3, exact.X, exact.Y, 1))['loss'] > 0

  def test_unseeded_runs_differ_and_a_functional_model_is_taken_as_it_is(self):
    process = client_work.build_client_work(linear_model.functional(), sgd(0.1), Config(batch_size=5))
    assert list(process.initialize()['seed']) != list(process.initialize()['seed'])
    weights = ModelWeights((np.array([[0.5]], np.float32),), ())
    output = process.next(process.initialize(), [weights], [_data(3, exact.X, exact.Y, 5)])
    expected = 0.1 * exact.gradient(0.5, slice(None))
    np.testing.assert_allclose(output.result[0].update[0], [[expected]], rtol=1e-5)
    assert list(output.measurements['train']) == ['loss']
