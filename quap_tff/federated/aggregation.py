"""QuAP-FL as a TFF aggregation: `QuapAggregationFactory(config).create(value_type, weight_type)`.

    next: (state@SERVER, value@CLIENTS, weight@CLIENTS) -> <state@SERVER, mean update@SERVER, measurements@SERVER>

`weight` carries the client's id: a struct with an integer `client_id`, or the integer itself. Every member of the
cohort counts the same; ids are used only to count participation. With a clip rule that uses the current round's norms,
`next` has two dependent levels of aggregation (norms, then clipped updates) and runs in a single context. The layers
that are not clipped belong to the first level, so that only the clipped ones wait for the norms. With any other clip
rule there is one level, and `next` compiles to TFF's mergeable form.
"""

import collections
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
import tree

from quap_tff.federated import client_ids
from quap_tff.mechanisms import config as configs
from quap_tff.mechanisms import layers as layers_lib
from quap_tff.mechanisms import quap_round as mechanism


class AggregationState(NamedTuple):
  """The state of an aggregation whose inner sum has a state of its own.

  Attributes:
    mechanism: A `mechanism.ServerState`.
    inner_sum: The inner sum's state.
  """

  mechanism: mechanism.ServerState
  inner_sum: Any


class QuapAggregationFactory(tff.aggregators.WeightedAggregationFactory):
  """Makes aggregation processes that average updates with participation-adaptive noise.

  The process' state is a `quap_tff.mechanisms.quap_round.ServerState`, or an `AggregationState` around it if `inner_sum` is given.
  The state is enough to recompute the noise: keep it, and its checkpoints, as secret as the clients' data.
  """

  def __init__(
    self,
    config: configs.QuapConfig,
    layers: Optional[Sequence[layers_lib.Layer]] = None,
    learning_rate_fn: Optional[Callable[[tf.Tensor], tf.Tensor]] = None,
    inner_sum: Optional[tff.aggregators.UnweightedAggregationFactory] = None,
  ):
    """Initializes the factory.

    Args:
      config: The mechanism.
      layers: The model's layers, in the order of the flattened value (`quap_tff.mechanisms.layers.from_variables`). By default
        they follow from the value's type: from its names or, if it has none, from its shapes.
      learning_rate_fn: A function from a round (int32 scalar, counted from 1) to the client learning rate (float32
        scalar). It is needed and used only with `update_scale='pseudo_gradient'`.
      inner_sum: Sums the clipped updates, a list of float tensors; `tff.federated_sum` if not given. A secure or a
        compressed sum can take its place. One that does not return the exact sum, or lets one client add more than its
        clipped update, voids the formal privacy figures.
    """
    if not isinstance(config, configs.QuapConfig):
      raise TypeError(f'config must be a quap_tff.QuapConfig, found {type(config).__name__}.')
    if config.update_scale == 'pseudo_gradient' and learning_rate_fn is None:
      raise ValueError(
        "update_scale='pseudo_gradient' divides updates by the client learning rate: pass learning_rate_fn, "
        'or use build_quap_fed_avg, which does.'
      )
    if inner_sum is not None and config.aggregator.needs_each_update:
      raise ValueError(
        f"Aggregator {type(config.aggregator).__name__} needs each client's update, but inner_sum gives only a sum. "
        'So no secure sum is possible with it: leave inner_sum out, or use quap_tff.robust.Mean().'
      )
    if inner_sum is not None and not isinstance(inner_sum, tff.aggregators.UnweightedAggregationFactory):
      raise TypeError(
        'inner_sum must be a tff.aggregators.UnweightedAggregationFactory, such as tff.aggregators.SumFactory(), '
        f'found {type(inner_sum).__name__}.'
      )
    self._config = config
    self._layers = layers
    self._inner_sum = inner_sum
    self._scale_fn = learning_rate_fn if config.update_scale == 'pseudo_gradient' else lambda round_num: 1.0

  def create(self, value_type: tff.Type, weight_type: tff.Type) -> tff.templates.AggregationProcess:
    """See the module's docstring.

    Args:
      value_type: A struct of float tensors (with Python containers), or one float tensor.
      weight_type: A struct with an integer scalar `client_id`, or an integer scalar.

    Raises:
      TypeError: If a type is none of these.
      ValueError: If the value does not have the configured critical layers.
    """
    config, scale_fn = self._config, self._scale_fn
    specs = tensor_specs(value_type)
    read_client_id = client_ids.reader(weight_type)
    critical = self._critical_indices(specs)
    noise_at_clients = config.noise.placement == 'client'
    observes = config.budget.rule.observes_updates
    leaves = tf.nest.flatten(specs)
    # Which tensors wait for the round's clipping norm. With one level of aggregation, or where the sum is not a plain
    # one, all go together.
    waiting, ready = list(range(len(leaves))), []
    plain = self._inner_sum is None and config.weighting.is_equal and not config.aggregator.needs_each_update
    if config.clip.uses_current_norms and plain:
      waiting = sorted(mechanism.clipped_positions(config, critical, len(leaves)))
      ready = [i for i in range(len(leaves)) if i not in waiting]
    waiting_critical = [waiting.index(i) for i in critical]

    @tff.tensorflow.computation
    def initialize_server():
      return mechanism.initial_state(config, [leaves[i].shape for i in critical])

    state_type = initialize_server.type_signature.result

    # What the server tells clients before the round: C_{t-1}, the unit of norms, and what noise and budgets depend on.
    @tff.tensorflow.computation(state_type)
    def announce(state):
      message = collections.OrderedDict(clip=state.clip, scale=tf.cast(scale_fn(state.round + 1), tf.float32))
      if noise_at_clients:
        message['noise'] = mechanism.client_noise_broadcast(config, state)
      if observes:
        message['budget'] = config.budget.rule.announced(state.budget)
      return message

    message_type = announce.type_signature.result

    @tff.tensorflow.computation(value_type, weight_type, message_type)
    def report(value, weight, message):
      update = tf.nest.flatten(value)
      norm = mechanism.update_norm(config, critical, update, message['scale'])
      own_report = collections.OrderedDict(client_id=tf.cast(read_client_id(weight), tf.int64), norm=norm)
      if observes:
        own_report['observation'] = mechanism.observe_update(config, critical, update, norm, message['budget'])
      return own_report

    report_type = report.type_signature.result

    @tff.tensorflow.computation(value_type)
    def waiting_part(value):
      update = tf.nest.flatten(value)
      return [update[i] for i in waiting]

    @tff.tensorflow.computation(value_type, report_type)
    def ready_part(value, own_report):
      update = tf.nest.flatten(value)
      return mechanism.finite_update([update[i] for i in ready], own_report['norm'])

    # The clipped tensors, and after them the client's own noise if it adds any: one list, so that one sum serves both.
    part_type = waiting_part.type_signature.result if ready else value_type

    @tff.tensorflow.computation(part_type, report_type, message_type, np.float32)
    def contribute(part, own_report, message, clip):
      part = tf.nest.flatten(part)
      clipped = mechanism.clip_update(config, waiting_critical, part, own_report['norm'], clip)
      if not noise_at_clients:
        return clipped
      return clipped + mechanism.client_noise(
        config, waiting_critical, part, own_report['client_id'], message['noise'], clip
      )

    total_type = contribute.type_signature.result
    ready_type = ready_part.type_signature.result if ready else tff.to_type([])
    inner = None if self._inner_sum is None else _created_sum(self._inner_sum, total_type)

    reports_type = collected_type(report_type)

    @tff.tensorflow.computation(state_type, reports_type)
    def plan_round(state, reports):
      return mechanism.plan_round(config, state, reports['client_id'], reports['norm'], reports.get('observation'))

    plan_type = plan_round.type_signature.result

    # A robust aggregator: the server sees all updates. M times the aggregate takes the place of their sum.
    updates_type = tff.to_type([(one.dtype, [None, *one.shape]) for one in total_type])

    @tff.tensorflow.computation(updates_type)
    def robust_total(updates):
      return mechanism.robust_total(config, list(updates))

    @tff.tensorflow.computation(state_type, message_type, plan_type, total_type, ready_type)
    def finish_round(state, message, plan, total, ready_total):
      total = list(total)
      summed = dict(zip(waiting + ready, total[: len(waiting)] + list(ready_total)))
      new_state, mean, measurements = mechanism.finish_round(
        config, critical, state, plan, [summed[i] for i in range(len(leaves))], total[len(waiting) :], message['scale']
      )
      return new_state, tf.nest.pack_sequence_as(specs, mean), measurements

    # A weighting: each client multiplies its clipped update by its share.
    @tff.tensorflow.computation(plan_type)
    def announce_shares(plan):
      return collections.OrderedDict(client_ids=plan.client_ids, shares=plan.shares)

    @tff.tensorflow.computation(total_type, report.type_signature.result, announce_shares.type_signature.result)
    def weigh(contribution, own_report, message):
      own = tf.equal(message['client_ids'], own_report['client_id'])
      share = tf.reduce_sum(tf.where(own, message['shares'], 0.0))
      return [one * tf.cast(share, one.dtype) for one in contribution]

    select_clip = tff.tensorflow.computation(lambda plan: plan.clip, plan_type)

    @tff.federated_computation
    def init_fn():
      state = tff.federated_eval(initialize_server, tff.SERVER)
      return state if inner is None else tff.federated_zip(AggregationState(state, inner.initialize()))

    @tff.federated_computation(
      init_fn.type_signature.result,
      tff.FederatedType(value_type, tff.CLIENTS),
      tff.FederatedType(weight_type, tff.CLIENTS),
    )
    def next_fn(state, value, weight):
      own_state = state if inner is None else state.mechanism
      message = tff.federated_map(announce, own_state)
      message_at_clients = tff.federated_broadcast(message)
      report_at_clients = tff.federated_map(report, (value, weight, message_at_clients))
      plan = tff.federated_map(plan_round, (own_state, federated_collect(report_at_clients, reports_type)))
      if config.clip.uses_current_norms:
        clip = tff.federated_broadcast(tff.federated_map(select_clip, plan))
      else:
        clip = message_at_clients['clip']
      part, ready_total = value, tff.federated_value([], tff.SERVER)
      if ready:
        part = tff.federated_map(waiting_part, value)
        ready_total = tff.federated_sum(tff.federated_map(ready_part, (value, report_at_clients)))
      contributions = tff.federated_map(contribute, (part, report_at_clients, message_at_clients, clip))
      if not config.weighting.is_equal:
        shares = tff.federated_broadcast(tff.federated_map(announce_shares, plan))
        contributions = tff.federated_map(weigh, (contributions, report_at_clients, shares))
      if inner is None:
        if config.aggregator.needs_each_update:
          total = tff.federated_map(robust_total, federated_collect(contributions, updates_type))
        else:
          total = tff.federated_sum(contributions)
        return tff.templates.MeasuredProcessOutput(
          *tff.federated_map(finish_round, (own_state, message, plan, total, ready_total))
        )
      summed = inner.next(state.inner_sum, contributions)
      new_state, mean, measurements = tff.federated_map(
        finish_round, (own_state, message, plan, summed.result, ready_total)
      )
      return tff.templates.MeasuredProcessOutput(
        tff.federated_zip(AggregationState(new_state, summed.state)), mean, measurements
      )

    return tff.templates.AggregationProcess(init_fn, next_fn)

  def _critical_indices(self, specs):
    # dm-tree and tf.nest flatten in the same order.
    paths, leaves = zip(*tree.flatten_with_path(specs))
    layers = self._layers
    if layers is None:
      # Both sort the keys of dicts, which would make the alphabetically last Dense layer the final one.
      declared = _declared_order(specs, len(leaves))
      layers = [
        layer._replace(indices=tuple(declared[i] for i in layer.indices))
        for layer in layers_lib.from_leaves([paths[i] for i in declared], [leaves[i].shape for i in declared])
      ]
    elif sum(len(layer.indices) for layer in layers) != len(leaves):
      raise ValueError(
        f'The value has {len(leaves)} tensors, but the layers given have '
        f'{sum(len(layer.indices) for layer in layers)}: {[layer.name for layer in layers]}.'
      )
    return layers_lib.critical_indices(layers, self._config.critical_layers)


def tensor_specs(value_type):
  """The Python structure of `tf.TensorSpec`s of a value; raises `TypeError` unless they are all of a float dtype."""
  has_tensors = tff.types.contains(value_type, lambda t: isinstance(t, tff.TensorType))
  if not has_tensors or not tff.types.is_structure_of_floats(value_type):
    raise TypeError(f'Updates must be float tensors or a struct of them, found the value type {value_type}.')
  return tff.types.type_to_tf_tensor_specs(value_type)


def _declared_order(specs, num_leaves):
  """Positions of the leaves in `tf.nest`'s order, in the order in which the structure declares them."""
  positions = tf.nest.pack_sequence_as(specs, list(range(num_leaves)))
  if not tf.nest.is_nested(specs):
    return [positions]
  return tff.structure.flatten(tff.structure.from_container(positions, recursive=True))


def _created_sum(inner_sum, total_type):
  process = inner_sum.create(total_type)
  found = process.next.type_signature.result.result.member
  if not total_type.is_assignable_from(found):
    raise TypeError(
      f'inner_sum must return what it sums, {total_type}, but {type(inner_sum).__name__} returns {found}. Give a '
      'factory of sums, such as tff.aggregators.SumFactory().'
    )
  return process


def collected_type(report_type):
  """The type of `federated_collect`'s result: for each scalar of a report, an array over the clients."""
  scalars = tff.structure.to_elements(report_type)
  return tff.to_type(collections.OrderedDict((name, (scalar.dtype, [None])) for name, scalar in scalars))


def federated_collect(reports, reports_type):
  """All clients' reports at the server, in client order.

  Args:
    reports: A struct of tensors at the clients.
    reports_type: The same with each shape S as [None, *S].
  """
  specs = tff.types.type_to_tf_tensor_specs(reports_type)

  @tff.tensorflow.computation
  def zero():
    return tf.nest.map_structure(lambda spec: tf.zeros([0, *spec.shape[1:]], spec.dtype), specs)

  @tff.tensorflow.computation(reports_type, reports.type_signature.member)
  def accumulate(collected, one):
    return tf.nest.map_structure(lambda a, b: tf.concat([a, b[tf.newaxis]], axis=0), collected, one)

  @tff.tensorflow.computation(reports_type, reports_type)
  def merge(a, b):
    return tf.nest.map_structure(lambda x, y: tf.concat([x, y], axis=0), a, b)

  identity = tff.tensorflow.computation(lambda collected: collected, reports_type)
  return tff.federated_aggregate(reports, zero(), accumulate, merge, identity)
