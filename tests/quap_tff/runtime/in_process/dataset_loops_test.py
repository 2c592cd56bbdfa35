"""Tests of `quap_tff.runtime.in_process.dataset_loops`: reductions become loops, and give what reductions give."""

import collections

import numpy as np
import pytest
import tensorflow as tf

# Not public, as in `dataset_loops`.
from tensorflow.core.framework import dataset_options_pb2
import tensorflow_federated as tff

from quap_tff.runtime.in_process import dataset_loops
from quap_tff.runtime.in_process import section_graphs
from quap_tff.training import models

_SEQUENCE = tff.SequenceType(np.int32)


pytestmark = pytest.mark.usefixtures('context')


def _ops(graph_def):
  nodes = list(graph_def.node) + [node for function in graph_def.library.function for node in function.node_def]
  return collections.Counter(node.op for node in nodes)


@pytest.mark.parametrize('inside', [False, True])
def test_no_reduction_is_left(inside):
  def add_up(dataset):
    return dataset.reduce(0, lambda total, value: total + value)

  with tf.Graph().as_default() as graph:
    function = tf.function(add_up) if inside else add_up
    function(tf.data.Dataset.range(3).map(lambda v: tf.cast(v, tf.int32)))
  graph_def = graph.as_graph_def()
  assert _ops(graph_def)['ReduceDataset'] == 1
  dataset_loops.replace_reductions(graph_def)
  assert _ops(graph_def)['ReduceDataset'] == 0 and _ops(graph_def)['While'] == 1
  with tf.Graph().as_default():
    tf.graph_util.import_graph_def(graph_def)  # TensorFlow takes it for a sound graph.


@pytest.mark.parametrize('asked_for', [False, True])
def test_no_iterator_tunes_itself(asked_for, monkeypatch):
  options = tf.data.Options()
  if asked_for:
    options.autotune.enabled = True
  found, replace_reductions = [], dataset_loops.replace_reductions

  def noted(graph_def):
    replace_reductions(graph_def)
    nodes = {node.name: node for node in graph_def.node}
    for node in nodes.values():
      if node.op == 'MakeIterator':
        serialized = nodes[node.input[0].split(':')[0]].attr['serialized_options'].s
        found.append(dataset_options_pb2.Options.FromString(serialized).autotune_options.enabled)

  monkeypatch.setattr(dataset_loops, 'replace_reductions', noted)

  @tff.tensorflow.computation(_SEQUENCE)
  def computation(dataset):
    doubled = dataset.map(lambda v: 2 * v, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)
    return doubled.with_options(options).reduce(0, lambda total, value: 10 * total + value)

  assert computation([1, 2, 3, 4]) == 2468
  assert found == [False]


def _section(computation):
  proto = computation.to_compiled_building_block().proto.tensorflow
  names = [proto.parameter.sequence.variant_tensor_name], [proto.result.tensor.tensor_name]
  return section_graphs.section_graph(proto, *names).graph_def


def test_a_step_that_calls_functions_is_inlined():
  @tff.tensorflow.computation(_SEQUENCE)
  def computation(dataset):
    step = tf.function(lambda total, value: total + value)
    return dataset.reduce(0, lambda total, value: step(total, value))

  found = _ops(_section(computation))
  assert found['NextIteration'] and not {'ReduceDataset', 'While', 'PartitionedCall', 'StatefulPartitionedCall'} & {
    *found
  }


def test_elements_stay_on_the_cpu_until_a_step_takes_them():
  @tff.tensorflow.computation(_SEQUENCE)
  def computation(dataset):
    return dataset.reduce(0.0, lambda total, value: total + tf.cast(value, tf.float32))

  nodes = _section(computation).node
  on_cpu = {node.op for node in nodes if node.device == '/device:CPU:0'}
  assert {'AnonymousIteratorV3', 'MakeIterator', 'IteratorGetNextAsOptional', 'OptionalHasValue'} <= on_cpu
  assert {'OptionalGetValue', 'Enter', 'Merge', 'Switch', 'NextIteration'} <= on_cpu
  of_loop = [node for node in nodes if node.op in ('Enter', 'Merge', 'Switch', 'NextIteration')]
  assert len(of_loop) > 8
  for node in of_loop:
    assert (node.device == '/device:CPU:0') == (node.attr['T'].type == tf.variant.as_datatype_enum)


@pytest.mark.thorough
@pytest.mark.slow
def test_no_activation_is_computed_twice(monkeypatch):
  nodes, of_section = [], section_graphs.section_graph

  def noted(*arguments):
    section = of_section(*arguments)
    nodes.extend(section.graph_def.node)
    nodes.extend(node for function in section.graph_def.library.function for node in function.node_def)
    return section

  monkeypatch.setattr(section_graphs, 'section_graph', noted)
  process = tff.learning.algorithms.build_unweighted_fed_avg(
    models.build_model_fn('digits_cnn', (8, 8, 1), 10, 'bfloat16'), tff.learning.optimizers.build_sgdm(0.1)
  )
  examples = collections.OrderedDict(x=np.zeros((2, 8, 8, 1), np.float32), y=np.zeros(2, np.int32))
  process.next(process.initialize(), [[examples]])
  assert 'Conv2DBackpropFilter' in {node.op for node in nodes}
  assert not [node.name for node in nodes if 'Recomputed' in node.name]


@pytest.mark.parametrize('numbers', [[], [5], [1, 2, 3, 4]])
def test_several_state_parts_and_other_arguments(numbers):
  @tff.tensorflow.computation(_SEQUENCE, np.int32)
  def sums(dataset, factor):
    return dataset.reduce((0, 1.0), lambda s, v: (s[0] + factor * v, s[1] * 2.0))

  assert sums(numbers, 3) == (3 * sum(numbers), 2.0 ** len(numbers))


@pytest.mark.slow
@pytest.mark.parametrize('inside', [False, True])
def test_steps_assign_in_order(inside):
  @tff.tensorflow.computation(_SEQUENCE)
  def computation(dataset):
    variable = tf.Variable(1, name='product_plus')

    def run(data):
      def step(count, value):
        variable.assign(variable * 10 + value)  # The result does not wait for it; the next step has to.
        return count + 1

      return data.reduce(0, step)

    count = (tf.function(run) if inside else run)(dataset)
    with tf.control_dependencies([count]):
      return count, variable.read_value()

  assert computation([2, 3, 4]) == (3, 1234)
  assert computation([]) == (0, 1)


@pytest.mark.slow
def test_two_reductions_of_one_dataset_and_one_of_a_reduction():
  @tff.tensorflow.computation(_SEQUENCE)
  def computation(dataset):
    total = dataset.reduce(0, lambda s, v: s + v)
    most = dataset.reduce(0, tf.maximum)
    nested = dataset.reduce(
      0, lambda s, v: s + tf.data.Dataset.range(3).reduce(v, lambda t, w: t + tf.cast(w, tf.int32))
    )
    return total, most, nested

  assert computation([4, 7, 1]) == (12, 7, 12 + 3 * 3)


def test_error_in_a_step_keeps_its_words():
  @tff.tensorflow.computation(_SEQUENCE)
  def computation(dataset):
    def step(total, value):
      with tf.control_dependencies([tf.debugging.assert_positive(value, message='not positive')]):
        return total + value

    return dataset.reduce(0, step)

  assert computation([1, 2]) == 3
  with pytest.raises(tf.errors.InvalidArgumentError, match='not positive'):
    computation([1, 0])
