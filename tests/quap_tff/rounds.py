"""Aggregations of a mechanism without TFF: the same rounds as plain functions, in milliseconds."""

import collections
import functools
from typing import Any, NamedTuple

import numpy as np

from quap_tff.common.lazy import tf
from quap_tff.mechanisms import playing
from quap_tff.mechanisms.parts import layers as layers_lib


class Output(NamedTuple):
  """What a round gives, under the names of a `tff.templates.MeasuredProcessOutput`."""

  state: Any
  result: Any
  measurements: Any


class Process:
  """What `quap_tff.federated.aggregation.AggregationFactory(mechanism).create(…)` gives.

  Args:
    mechanism: The mechanism.
    specs: The structure of an update, of `tf.TensorSpec`s or of shapes of float32 tensors in a list.
    layers: The model's layers, by default from the shapes.
    learning_rate_fn: For a mechanism that clips in units of it.
  """

  def __init__(self, mechanism, specs, layers=None, learning_rate_fn=None):
    if isinstance(specs, (list, tuple)) and not any(isinstance(spec, tf.TensorSpec) for spec in specs):
      specs = [tf.TensorSpec(shape, tf.float32) for shape in specs]
    self._specs, flat = specs, tf.nest.flatten(specs)
    layers = layers_lib.from_shapes([tuple(spec.shape) for spec in flat]) if layers is None else layers
    self.rounds = mechanism.for_model(flat, layers, learning_rate_fn)

  def initialize(self):
    return tf.nest.map_structure(np.asarray, self.rounds.initial_state())

  def next(self, state, values, own):
    """A round with these updates from clients that are known by their ids, or by structs of their own."""
    flat = tf.nest.flatten(self._specs)
    flatten = functools.partial(tf.__internal__.nest.flatten_up_to, check_types=False)
    updates = [
      [tf.constant(u, spec.dtype, shape=spec.shape) for u, spec in zip(flatten(self._specs, value), flat)]
      for value in values
    ]
    played = playing.play_round(self.rounds, state, updates, list(own))
    return Output(
      tf.nest.map_structure(np.asarray, played.state),
      tf.nest.pack_sequence_as(self._specs, [np.asarray(u) for u in played.result]),
      collections.OrderedDict((name, np.asarray(value)[()]) for name, value in played.metrics.items()),
    )


def one_dense(critical, count):
  """The layers of `count` tensors of which those at the positions `critical` are the only Dense layer."""
  others = [layers_lib.Layer(f'other_{i}', (i,), False) for i in range(count) if i not in critical]
  return [*others, layers_lib.Layer('head', tuple(critical), True)]
