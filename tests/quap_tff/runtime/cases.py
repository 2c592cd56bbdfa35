"""Computations that both TFF's own context and the in-process runtime are asked to run, with their results.

Each case is a function that calls computations in the current context and returns results to compare. Learning
processes are built once for all contexts. Nothing is random, except noise too small to see at the tolerance.
"""

import collections
import functools

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

_FEATURES = 3
_CLASSES = 2
_FLOATS_AT_CLIENTS = tff.FederatedType(np.float32, tff.CLIENTS)
_VECTOR = tff.TensorType(np.float32, [4])

CASES = {}


def _case(function):
  CASES[function.__name__] = function
  return function


def client_data(sizes=(7, 4, 9), seed=0):
  """One dataset of labelled examples per client, batches of four, a smaller one at the end."""
  random = np.random.RandomState(seed)
  datasets = []
  for size in sizes:
    x = random.normal(size=(size, _FEATURES)).astype(np.float32)
    y = (x.sum(axis=1) > 0).astype(np.int32)
    datasets.append(tf.data.Dataset.from_tensor_slices(collections.OrderedDict(x=x, y=y)).batch(4))
  return datasets


def _loss_and_spec():
  spec = collections.OrderedDict(x=tf.TensorSpec([None, _FEATURES], tf.float32), y=tf.TensorSpec([None], tf.int32))
  return tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True), spec


def keras_model_fn():
  """A model with trainable, non-trainable and metric variables."""
  model = tf.keras.Sequential(
    [
      tf.keras.layers.InputLayer([_FEATURES]),
      tf.keras.layers.BatchNormalization(),
      tf.keras.layers.Dense(_CLASSES, kernel_initializer=tf.keras.initializers.Constant(0.1)),
    ]
  )
  loss, spec = _loss_and_spec()
  metrics = [tf.keras.metrics.SparseCategoricalAccuracy()]
  return tff.learning.models.from_keras_model(model, loss=loss, input_spec=spec, metrics=metrics)


def functional_model():
  model = tf.keras.Sequential(
    [tf.keras.layers.InputLayer([_FEATURES]), tf.keras.layers.Dense(_CLASSES, kernel_initializer='zeros')]
  )
  loss, spec = _loss_and_spec()
  return tff.learning.models.functional_model_from_keras(model, loss_fn=loss, input_spec=spec)


def _rounds(process, arguments):
  """The outputs of rounds, each with its arguments after the state."""
  state, outputs = process.initialize(), []
  for of_round in arguments:
    outputs.append(process.next(state, *of_round))
    state = outputs[-1].state
  return outputs


@functools.cache
def fed_avg_keras_process():
  """With a weighted mean, a proximal term, momentum and a server optimizer; reduces datasets."""
  return tff.learning.algorithms.build_weighted_fed_prox(
    keras_model_fn,
    proximal_strength=0.5,
    client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.1, 0.9),
    server_optimizer_fn=tff.learning.optimizers.build_adam(0.1),
  )


@functools.cache
def fed_avg_iterator_process():
  """Unweighted, iterates over datasets."""
  return tff.learning.algorithms.build_unweighted_fed_avg(
    keras_model_fn,
    client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.1),
    loop_implementation=tff.learning.LoopImplementation.DATASET_ITERATOR,
  )


def _adaptive_clip():
  # Without noise on the sum or on the clipped count: the clip's way from round to round is compared.
  return tff.aggregators.DifferentiallyPrivateFactory.gaussian_adaptive(
    noise_multiplier=1e-7, clients_per_round=3.0, initial_l2_norm_clip=1.0, clipped_count_stddev=1e-6
  )


@functools.cache
def _fed_avg_functional_process():
  return tff.learning.algorithms.build_unweighted_fed_avg(
    functional_model(), client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.1), model_aggregator=_adaptive_clip()
  )


def _learning(process):
  data = client_data()
  return _rounds(process, [(data,), (data[:2],), (data,)])


def _aggregation(factory, weighted=False):
  process = factory.create(_VECTOR, tff.TensorType(np.float32)) if weighted else factory.create(_VECTOR)
  random, arguments = np.random.RandomState(1), []
  for num_clients in (3, 5, 2):
    values = [random.normal(scale=3.0, size=_VECTOR.shape).astype(np.float32) for _ in range(num_clients)]
    weights = [np.float32(i + 1) for i in range(num_clients)]
    arguments.append((values, weights) if weighted else (values,))
  return [(output.result, output.measurements) for output in _rounds(process, arguments)]


@_case
def federated_sums_and_means():
  @tff.federated_computation(_FLOATS_AT_CLIENTS, tff.FederatedType(np.float32, tff.SERVER))
  def computation(x, at_server):
    weights = tff.federated_map(tff.tensorflow.computation(lambda v: v * v, np.float32), x)
    return collections.OrderedDict(
      clients=x,
      total=tff.federated_sum(x),
      mean=tff.federated_mean(x),
      weighted=tff.federated_mean(x, weights),
      least=tff.federated_min(x),
      most=tff.federated_max(x),
      everywhere=tff.federated_broadcast(at_server),
      pairs=tff.federated_zip((x, tff.federated_broadcast(at_server))),
      at_clients=tff.federated_value(3, tff.CLIENTS),
      evaluated=tff.federated_eval(tff.tensorflow.computation(lambda: tf.constant([1, 2])), tff.CLIENTS),
      at_server=tff.federated_eval(tff.tensorflow.computation(lambda: tf.constant('text')), tff.SERVER),
    )

  return [computation([1.0, 2.5, -4.0], 7.0), computation([0.5], -1.0)]


@_case
def nested_structures():
  struct = tff.to_type(collections.OrderedDict(b=np.int32, a=(np.float32, [2])))

  @tff.tensorflow.computation(struct)
  def change(value):
    return collections.OrderedDict(b=value['b'] + 1, a=(value['a'] * 2.0, tf.reduce_sum(value['a'])))

  @tff.federated_computation(tff.FederatedType(struct, tff.CLIENTS))
  def computation(values):
    changed = tff.federated_map(change, values)
    return changed, tff.federated_sum(changed)

  one = collections.OrderedDict(b=1, a=np.array([1.0, 2.0], np.float32))
  return computation([one, collections.OrderedDict(b=5, a=np.array([0.5, 0.25], np.float32))])


@_case
def aggregate_with_report():
  accumulator = tff.to_type((np.float32, np.int32))
  zero = tff.tensorflow.computation(lambda: (tf.constant(0.0), tf.constant(0)))
  accumulate = tff.tensorflow.computation(lambda a, v: (a[0] + v * v, a[1] + 1), [accumulator, np.float32])
  merge = tff.tensorflow.computation(lambda a, b: (a[0] + b[0], a[1] + b[1]), [accumulator, accumulator])
  report = tff.tensorflow.computation(lambda a: tf.sqrt(a[0]) / tf.cast(a[1], tf.float32), accumulator)

  @tff.federated_computation(_FLOATS_AT_CLIENTS)
  def computation(values):
    return tff.federated_aggregate(values, zero(), accumulate, merge, report)

  return computation([3.0, 4.0, 12.0])


@_case
def dependent_levels():
  subtract = tff.tensorflow.computation(lambda v, center: v - center, [np.float32, np.float32])
  square = tff.tensorflow.computation(lambda v: v * v, np.float32)
  scale = tff.tensorflow.computation(lambda v, by: v / by, [np.float32, np.float32])

  @tff.federated_computation(_FLOATS_AT_CLIENTS)
  def computation(values):
    mean = tff.federated_mean(values)
    centered = tff.federated_map(subtract, (values, tff.federated_broadcast(mean)))
    variance = tff.federated_mean(tff.federated_map(square, centered))
    scaled = tff.federated_map(scale, (centered, tff.federated_broadcast(variance)))
    return mean, variance, tff.federated_sum(scaled), scaled

  return computation([1.0, 2.0, 6.0])


@_case
def sequences():
  element = tff.to_type(collections.OrderedDict(z=np.int64, a=(np.float32, [None])))

  @tff.tensorflow.computation(tff.SequenceType(element))
  def total(dataset):
    return dataset.reduce(np.float32(0), lambda t, e: t + tf.reduce_sum(e['a']) * tf.cast(e['z'], tf.float32))

  @tff.tensorflow.computation(tff.SequenceType(element))
  def doubled(dataset):
    return dataset.map(lambda e: collections.OrderedDict(z=e['z'] * 2, a=e['a']))

  @tff.federated_computation(tff.FederatedType(tff.SequenceType(element), tff.CLIENTS))
  def computation(datasets):
    twice = tff.federated_map(doubled, datasets)
    return tff.federated_map(total, twice), twice

  lists = [
    [collections.OrderedDict(z=i, a=np.arange(3 if i < 4 else 2, dtype=np.float32)) for i in range(n)]
    for n in (2, 5, 1)
  ]
  return computation(lists)


@_case
def local_computations():
  @tff.tensorflow.computation(np.int32, np.str_)
  def in_tensorflow(number, text):
    return collections.OrderedDict(
      twice=number * 2, text=tf.strings.join([text, '!']), flags=tf.constant([True, False])
    )

  @tff.federated_computation(np.int32)
  def in_tff(number):
    return (number, in_tensorflow(number, 'a')), 5

  @tff.federated_computation(tff.FederatedType(np.int32, tff.SERVER))
  def at_server(number):
    return tff.federated_map(tff.tensorflow.computation(lambda v: v + 1, np.int32), number)

  return in_tensorflow(3, 'b'), in_tff(4), at_server(9)


@_case
def select():
  choose = tff.tensorflow.computation(lambda table, key: tf.gather(table, key), [(np.float32, [3]), np.int32])

  @tff.federated_computation(
    tff.FederatedType((np.int32, [2]), tff.CLIENTS), tff.FederatedType((np.float32, [3]), tff.SERVER)
  )
  def computation(keys, table):
    return tff.federated_select(keys, tff.federated_value(3, tff.SERVER), table, choose)

  keys = [np.array([0, 2], np.int32), np.array([1, 1], np.int32)]
  return computation(keys, np.array([1.0, 2.0, 4.0], np.float32))


@_case
def fed_avg_keras():
  return _learning(fed_avg_keras_process())


@_case
def fed_avg_iterator_loop():
  return _learning(fed_avg_iterator_process())


@_case
def fed_avg_functional():
  return _learning(_fed_avg_functional_process())


@_case
def fed_eval():
  process = tff.learning.algorithms.build_fed_eval(keras_model_fn)
  state = process.set_model_weights(process.initialize(), tff.learning.models.ModelWeights.from_model(keras_model_fn()))
  return process.next(state, client_data()).metrics


@_case
def gaussian_fixed():
  return _aggregation(tff.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(1e-9, 3.0, 1.0))


@_case
def gaussian_adaptive():
  return _aggregation(_adaptive_clip())


@_case
def tree_aggregation():
  return _aggregation(
    tff.aggregators.DifferentiallyPrivateFactory.tree_aggregation(
      noise_multiplier=1e-9,
      clients_per_round=3.0,
      l2_norm_clip=1.0,
      record_specs=tf.TensorSpec([4], tf.float32),
      noise_seed=1,
    )
  )


@_case
def robust_aggregator():
  return _aggregation(tff.learning.robust_aggregator(), weighted=True)


@_case
def clipping_factory():
  return _aggregation(tff.aggregators.clipping_factory(1.5, tff.aggregators.MeanFactory()), weighted=True)


@_case
def quantile_estimation():
  process = tff.aggregators.PrivateQuantileEstimationProcess.no_noise(
    initial_estimate=1.0, target_quantile=0.7, learning_rate=0.2
  )
  state = process.initialize()
  results = []
  for values in ([0.5, 2.0, 3.0], [4.0], [0.1, 0.2]):
    state = process.next(state, values)
    results.append(process.report(state))
  return results


@_case
def fed_kmeans():
  random = np.random.RandomState(2)
  points = [tf.data.Dataset.from_tensor_slices(random.normal(size=(n, 2)).astype(np.float32)) for n in (6, 9)]
  process = tff.learning.algorithms.build_fed_kmeans(num_clusters=2, data_shape=(2,), random_seed=(3, 4))
  return _rounds(process, [(points,), (points[:1],), (points,)])
