"""TFF's own client work under QuAP-FL's aggregators: the drop-in, in our runtime and in TFF's own context."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import quap_tff
from quap_tff import runtime
from quap_tff.federated import aggregation
from quap_tff.federated import client_ids
from quap_tff.federated import client_work
from tests.quap_tff import examples
from tests.quap_tff import linear_model

pytestmark = pytest.mark.slow

_config = examples.quap
_SGD = tff.learning.optimizers.build_sgdm


def _stock_work():
  return tff.learning.templates.build_model_delta_client_work(
    linear_model.Linear, _SGD(0.1), client_weighting=tff.learning.ClientWeighting.NUM_EXAMPLES
  )


def _process(aggregator, work):
  """What a TFF user writes: TFF's client work, distributor and finalizer around an aggregator of ours."""

  @tff.tensorflow.computation
  def initial_weights():
    return tff.learning.models.ModelWeights.from_model(linear_model.Linear())

  weights_type = initial_weights.type_signature.result
  result_type = work.next.type_signature.result.result.member
  return tff.learning.templates.compose_learning_process(
    initial_weights,
    tff.learning.templates.build_broadcast_process(weights_type),
    work,
    aggregator.create(result_type.update, result_type.update_weight),
    tff.learning.templates.build_apply_optimizer_finalizer(_SGD(1.0), weights_type),
  )


@pytest.fixture(name='work', scope='module')
def _work():
  return client_ids.with_client_ids(_stock_work())


@pytest.fixture(name='process', scope='module')
def _quap_process(work):
  return _process(quap_tff.Plan(_config()).aggregator, work)


def _in_process():
  return runtime.activate(runtime.RuntimeConfig(device='cpu'))


def _in_tffs_worker():
  # Installed for the block only: it ends with it.
  return tff.framework.get_context_stack().install(tff.backends.native.create_sync_local_cpp_execution_context())


class TestWithClientIds:
  def test_types(self, work):
    stock = _stock_work()
    assert isinstance(work, tff.learning.templates.ClientWorkProcess)
    assert work.initialize.type_signature == stock.initialize.type_signature
    parameter = work.next.type_signature.parameter
    assert parameter[2].compact_representation() == (
      '{<client_id=int64*,examples=<x=float32[?,1],y=float32[?,1]>*>}@CLIENTS'
    )
    weight = work.next.type_signature.result.result.member.update_weight
    assert weight.compact_representation() == '<client_id=int64,weight=float32>'

  @pytest.mark.parametrize('context', [_in_process, pytest.param(_in_tffs_worker, marks=pytest.mark.thorough)])
  def test_stock_client_work_under_quap(self, process, context):
    # At w = 0 and rate 0.1 the update is -0.2·y: -0.4 for y = 2; -2 for y = 10, clipped to -1.
    plan = quap_tff.Plan(_config())
    ledger = plan.new_ledger()
    with context():
      output = process.next(process.initialize(), [linear_model.client(3, 2.0), linear_model.client(5, 10.0)])
      ledger.append(plan.record(output, [3, 5]))
      assert linear_model.weight(process, output.state) == pytest.approx(0.7, rel=1e-6)
    np.testing.assert_array_equal(np.flatnonzero(output.state.aggregator.participation['counts']), [3, 5])
    np.testing.assert_array_equal(ledger.rounds, [0, 0, 0, 1, 0, 1, 0, 0, 0, 0])
    assert 'finite ε' in str(plan.report(ledger))

  @pytest.mark.thorough
  def test_stock_client_work_under_certified(self, work):
    config = examples.noised(num_clients=4, noise_seed=1)
    with _in_process():
      process = _process(aggregation.AggregationFactory(config), work)
      output = process.next(process.initialize(), [linear_model.client(3, 2.0)])
    assert output.metrics['aggregator']['cohort_size'] == 1

  @pytest.mark.parametrize('ids', [pytest.param([], marks=pytest.mark.thorough), [1, 2]])
  def test_a_sequence_of_no_id_or_of_two_is_refused(self, process, ids):
    client = {**linear_model.client(1, 2.0), 'client_id': tf.data.Dataset.from_tensor_slices(np.array(ids, np.int64))}
    with _in_process(), pytest.raises(Exception, match='Client ids must lie in'):
      process.next(process.initialize(), [collections.OrderedDict(client)])

  def test_what_is_no_client_work(self):
    with pytest.raises(TypeError, match='must be a tff.learning.templates.ClientWorkProcess, found function'):
      client_ids.with_client_ids(lambda: None)

  def test_work_that_has_ids(self, work):
    for one in (client_work.build_client_work(linear_model.Linear, _SGD(0.1)), work):
      with pytest.raises(TypeError, match='have ids already'):
        client_ids.with_client_ids(one)


class TestWithIds:
  @pytest.mark.parametrize('datasets', [{3: ['a'], 5: ['b']}, [None, None, None, ['a'], None, ['b']]])
  def test_each_client_says_who_it_is(self, datasets):
    found = client_ids.with_ids(np.array([5, 3]), datasets)
    assert found == [{'client_id': [5], 'examples': ['b']}, {'client_id': [3], 'examples': ['a']}]
    assert found[0]['client_id'][0].dtype == np.int64

  def test_a_process_takes_them(self, process):
    datasets = [linear_model.client(i, 2.0)['examples'] for i in range(4)]
    with _in_process():
      output = process.next(process.initialize(), client_ids.with_ids([1, 2], datasets))
    np.testing.assert_array_equal(np.flatnonzero(output.state.aggregator.participation['counts']), [1, 2])


class TestStockBuilders:
  @pytest.mark.parametrize(
    'aggregator',
    [aggregation.AggregationFactory(_config()), aggregation.AggregationFactory(examples.noised(num_clients=4))],
  )
  def test_the_error_names_the_adapter(self, aggregator):
    with pytest.raises(TypeError, match='(?s)Found the type float32.*client_ids.with_client_ids'):
      tff.learning.algorithms.build_weighted_fed_avg(
        linear_model.Linear, _SGD(0.1), _SGD(1.0), model_aggregator=aggregator
      )


def test_read_ids():
  assert client_ids.reader(tff.TensorType(np.int32))(7) == 7
  weight_type = tff.to_type(collections.OrderedDict(weight=np.float32, client_id=np.int64))
  assert client_ids.reader(weight_type)({'weight': 0.5, 'client_id': 7}) == 7
