"""Any mechanism as a TFF aggregation: `AggregationFactory(mechanism).create(value_type, weight_type)`.

    next: (state@SERVER, value@CLIENTS, weight@CLIENTS) -> <state@SERVER, result@SERVER, measurements@SERVER>

`weight` carries the client's id: a struct with an integer `client_id`, or the integer itself. The steps of a round are
those of `quap_tff.mechanisms.mechanism.Rounds`, and this module only says where each is done:

* one level of aggregation, for which `next` compiles to TFF's `MapReduceForm` and mergeable form, and that of the
  certified mechanism to `DistributeAggregateForm`, too;
* two where the documents clip a round by its own norms (`clips_by_this_round`): the second depends on the first, and a
  round runs in a single context. Tensors that are not clipped belong to the first level.
"""

import collections
from collections.abc import Mapping, Sequence
from typing import Callable, NamedTuple, Optional

import tensorflow as tf
import tensorflow_federated as tff
import tree

from quap_tff.common import array_types
from quap_tff.federated import client_ids
from quap_tff.federated import sums
from quap_tff.mechanisms import mechanism as mechanisms
from quap_tff.mechanisms.parts import layers as layers_lib


class AggregationState(NamedTuple):
  """The state of an aggregation whose inner sum has a state of its own.

  Attributes:
    mechanism: The mechanism's state.
    inner_sum: The inner sum's state.
  """

  mechanism: mechanisms.State
  inner_sum: array_types.Structure


class AggregationFactory(tff.aggregators.WeightedAggregationFactory):
  """Makes the aggregation processes of a mechanism.

  The state of a process is the mechanism's, or an `AggregationState` around it if `inner_sum` is given. The state is
  enough to compute the noise: keep it, and its checkpoints, as secret as the clients' data. Each round must start from
  the state that the round before returned. If two rounds start from one state, two results are released, but clients
  are charged for one.
  """

  def __init__(
    self,
    mechanism: mechanisms.Mechanism,
    layers: Optional[Sequence[layers_lib.Layer]] = None,
    learning_rate_fn: Optional[Callable[[tf.Tensor], tf.Tensor]] = None,
    inner_sum: Optional[tff.aggregators.UnweightedAggregationFactory] = None,
  ):
    """Initializes the factory.

    Args:
      mechanism: The mechanism, such as a `quap_tff.QuapConfig` or a `quap_tff.CertifiedConfig`.
      layers: The model's layers, in the order of the flattened value
        (`quap_tff.mechanisms.parts.layers.from_variables`). By default they follow from the value's type: from its
        names or, if it has none, from its shapes.
      learning_rate_fn: A function from a round (int32 scalar, counted from 1) to the client learning rate (float32
        scalar). It is needed and used only with `update_scale='pseudo_gradient'`.
      inner_sum: Sums the contributions, a list of float tensors; `tff.federated_sum` if not given. A secure or a
        compressed sum can take its place. One that does not return the exact sum, or lets one client add more than its
        bounded contribution, voids the formal privacy figures.
    """
    if not isinstance(mechanism, mechanisms.Mechanism):
      raise TypeError(
        'config must be a mechanism such as a quap_tff.QuapConfig, or a certified one, found '
        f'{type(mechanism).__name__}. CertifiedConfig.settled(cohorts).mechanism makes one.'
      )
    if inner_sum is not None and not isinstance(inner_sum, tff.aggregators.UnweightedAggregationFactory):
      raise TypeError(
        'inner_sum must be a tff.aggregators.UnweightedAggregationFactory, such as tff.aggregators.SumFactory(), '
        f'found {type(inner_sum).__name__}.'
      )
    self._mechanism, self._layers, self._learning_rate_fn = mechanism, layers, learning_rate_fn
    self._inner_sum = inner_sum

  def create(self, value_type: tff.Type, weight_type: tff.Type) -> tff.templates.AggregationProcess:
    """Makes the aggregation process for these types, as the module's docstring describes it.

    Args:
      value_type: A struct of float tensors (with Python containers), or one float tensor.
      weight_type: A struct with an integer scalar `client_id`, or an integer scalar; and whatever else the mechanism
        must know of a client.

    Raises:
      TypeError: If a type is none of these, or the mechanism cannot bound tensors of its dtypes.
      ValueError: If the value does not have the layers that the mechanism names.
    """
    specs = tensor_specs(value_type)
    rounds = self._mechanism.for_model(tf.nest.flatten(specs), _layers_of(specs, self._layers), self._learning_rate_fn)
    if self._inner_sum is not None and rounds.sum_dtype is not None:
      raise ValueError('The account of this mechanism is for its own sum, of integers: leave inner_sum out.')
    if self._inner_sum is not None and rounds.needs_each_update:
      raise ValueError(
        "This mechanism needs each client's update, but inner_sum gives only a sum. So no secure sum is possible with "
        'it: leave inner_sum out, or use a robust aggregator and a weighting that need the sum alone.'
      )
    own_of = _own_reader(weight_type, rounds.own_fields)
    every = range(len(rounds.specs))
    # All tensors go together where there is one level of aggregation, or where the sum is not a plain one.
    waiting = every if rounds.waiting is None or self._inner_sum is not None else rounds.waiting
    ready = [i for i in every if i not in waiting]
    nothing_type = tff.to_type([])

    initialize_server = tff.tensorflow.computation(rounds.initial_state)
    state_type = initialize_server.type_signature.result
    announce = tff.tensorflow.computation(rounds.announce, state_type)
    message_type = announce.type_signature.result

    update_type = value_type
    if rounds.prepares:

      @tff.tensorflow.computation(value_type, message_type)
      def prepare(value: array_types.Structure, message: mechanisms.Struct) -> list[tf.Tensor]:
        return rounds.prepared(tf.nest.flatten(value), message)

      update_type = prepare.type_signature.result

    @tff.tensorflow.computation(update_type, weight_type, message_type)
    def report(
      update: array_types.Structure, weight: array_types.Structure, message: mechanisms.Struct
    ) -> mechanisms.Struct:
      return rounds.report(tf.nest.flatten(update), own_of(weight), message)

    report_type = report.type_signature.result

    @tff.tensorflow.computation(report_type)
    def told_server(own_report: mechanisms.Struct) -> mechanisms.Struct:
      return collections.OrderedDict((name, own_report[name]) for name in own_report if name not in rounds.kept_fields)

    reports_type = sums.collected_type(told_server.type_signature.result)

    admit = tff.tensorflow.computation(rounds.admit, state_type, message_type, reports_type)
    admitted_type = admit.type_signature.result

    clip_type = nothing_type
    if rounds.clips_by_this_round:
      clip_of_round = tff.tensorflow.computation(lambda admitted: admitted.clip, admitted_type)
      clip_type = clip_of_round.type_signature.result

    part_type, ready_type = update_type, nothing_type
    if ready:

      @tff.tensorflow.computation(update_type)
      def waiting_part(update: array_types.Structure) -> list[tf.Tensor]:
        update = tf.nest.flatten(update)
        return [update[i] for i in waiting]

      @tff.tensorflow.computation(update_type, report_type)
      def ready_part(update: array_types.Structure, own_report: mechanisms.Struct) -> list[tf.Tensor]:
        update = tf.nest.flatten(update)
        return list(rounds.early({i: update[i] for i in ready}, own_report).values())

      part_type, ready_type = waiting_part.type_signature.result, ready_part.type_signature.result

    @tff.tensorflow.computation(part_type, report_type, message_type, clip_type)
    def contribute(
      part: array_types.Structure,
      own_report: mechanisms.Struct,
      message: mechanisms.Struct,
      clip: array_types.Structure,
    ) -> list[tf.Tensor]:
      parts = dict(zip(waiting, tf.nest.flatten(part)))
      own_clip = clip if rounds.clips_by_this_round else None
      summands = rounds.contribution(parts, own_report, message, own_clip)
      return [tf.cast(one, rounds.sum_dtype or one.dtype) for one in summands]

    summands_type = contribute.type_signature.result
    inner = None if self._inner_sum is None else _created_sum(self._inner_sum, summands_type)
    if rounds.needs_each_update:

      @tff.tensorflow.computation(summands_type, report_type)
      def with_id(summands: Sequence[tf.Tensor], own_report: mechanisms.Struct) -> mechanisms.Struct:
        return collections.OrderedDict(
          client_id=own_report['client_id'], **{str(k): one for k, one in enumerate(summands)}
        )

      @tff.tensorflow.computation(sums.collected_type(with_id.type_signature.result), admitted_type)
      def combine(contributions: mechanisms.Struct, admitted: mechanisms.AdmittedRound) -> list[tf.Tensor]:
        order = tf.argsort(contributions['client_id'])  # That of the reports.
        each = [tf.gather(contributions[str(k)], order) for k in range(len(summands_type))]
        return rounds.combined(each, admitted.weights)

    @tff.tensorflow.computation(state_type, admitted_type, summands_type, ready_type)
    def release(
      state: mechanisms.State,
      admitted: mechanisms.AdmittedRound,
      total: Sequence[tf.Tensor],
      ready_total: Sequence[tf.Tensor],
    ) -> tuple[mechanisms.State, array_types.Structure, mechanisms.Struct]:
      total = list(total)
      totals = {**dict(zip(waiting, total)), **dict(zip(ready, ready_total))}
      summed = [totals[i] for i in every] + total[len(waiting) :]
      new_state, result, measurements = rounds.release(state, admitted, summed)
      return new_state, tf.nest.pack_sequence_as(specs, result), measurements

    @tff.federated_computation
    def init_fn() -> tff.Value:
      state = tff.federated_eval(initialize_server, tff.SERVER)
      return state if inner is None else tff.federated_zip(AggregationState(state, inner.initialize()))

    @tff.federated_computation(
      init_fn.type_signature.result,
      tff.FederatedType(value_type, tff.CLIENTS),
      tff.FederatedType(weight_type, tff.CLIENTS),
    )
    def next_fn(state: tff.Value, value: tff.Value, weight: tff.Value) -> tff.templates.MeasuredProcessOutput:
      nothing = tff.federated_value([], tff.SERVER)
      own_state = state if inner is None else state.mechanism
      announced = tff.federated_map(announce, own_state)
      message = tff.federated_broadcast(announced)
      update = tff.federated_map(prepare, (value, message)) if rounds.prepares else value
      reports = tff.federated_map(report, (update, weight, message))
      sent = tff.federated_map(told_server, reports) if rounds.kept_fields else reports
      if rounds.reports_by_sum:
        at_server = sums.summed_by_id(sent, self._mechanism.num_clients)
      else:
        at_server = sums.collected_by_id(sent)
      admitted = tff.federated_map(admit, (own_state, announced, at_server))
      clip = tff.federated_map(clip_of_round, admitted) if rounds.clips_by_this_round else nothing
      part, ready_total = update, nothing
      if ready:
        part = tff.federated_map(waiting_part, update)
        ready_total = tff.federated_sum(tff.federated_map(ready_part, (update, reports)))
      summands = tff.federated_map(contribute, (part, reports, message, tff.federated_broadcast(clip)))
      if inner is not None:
        summed = inner.next(state.inner_sum, summands)
        total = summed.result
      elif rounds.secure_bounds is not None:
        total = sums.secure_sum(summands, rounds.secure_bounds, rounds.most_clients)
      elif rounds.needs_each_update:
        each = sums.collected(tff.federated_map(with_id, (summands, reports)))
        total = tff.federated_map(combine, (each, admitted))
      else:
        total = tff.federated_sum(summands)
      new_state, result, measurements = tff.federated_map(release, (own_state, admitted, total, ready_total))
      if inner is not None:
        new_state = tff.federated_zip(AggregationState(new_state, summed.state))
      return tff.templates.MeasuredProcessOutput(new_state, result, measurements)

    return tff.templates.AggregationProcess(init_fn, next_fn)


def tensor_specs(value_type: tff.Type) -> array_types.StructureSpec:
  """The Python structure of `tf.TensorSpec`s of a value; raises `TypeError` unless they are all of a float dtype."""
  has_tensors = tff.types.contains(value_type, lambda t: isinstance(t, tff.TensorType))
  if not has_tensors or not tff.types.is_structure_of_floats(value_type):
    raise TypeError(f'Updates must be float tensors or a struct of them, found the value type {value_type}.')
  return tff.types.type_to_tf_tensor_specs(value_type)


def _layers_of(specs: array_types.StructureSpec, layers: Optional[mechanisms.Layers]) -> mechanisms.Layers:
  """The layers of a value, by default from its names or shapes; raises `ValueError` for those of another model."""
  # dm-tree and tf.nest flatten in the same order.
  paths, leaves = zip(*tree.flatten_with_path(specs))
  if layers is not None:
    if sum(len(layer.indices) for layer in layers) != len(leaves):
      raise ValueError(
        f'The value has {len(leaves)} tensors, but the layers given have '
        f'{sum(len(layer.indices) for layer in layers)}: {[layer.name for layer in layers]}.'
      )
    return layers
  # Both sort the keys of dicts, which would make the alphabetically last Dense layer the final one.
  positions = tf.nest.pack_sequence_as(specs, list(range(len(leaves))))
  declared = [positions]
  if tf.nest.is_nested(specs):
    declared = tff.structure.flatten(tff.structure.from_container(positions, recursive=True))
  all_layers = layers_lib.from_leaves([paths[i] for i in declared], [leaves[i].shape for i in declared])
  ordered = []
  for layer in all_layers:
    indices = tuple(declared[i] for i in layer.indices)
    ordered.append(layer._replace(indices=indices))
  return ordered


def _own_reader(
  weight_type: tff.Type, fields: Mapping[str, str]
) -> Callable[[array_types.Structure], mechanisms.Struct]:
  """A function that reads a client's `client_id` and `fields` out of its weight."""
  read_client_id = client_ids.reader(weight_type)
  names = [name for name, _ in tff.structure.iter_elements(weight_type)] if fields else []
  for name, meaning in fields.items():
    if name not in names:
      raise TypeError(
        f'The weight of an update must say {meaning}, as `{name}`; found the weight type {weight_type}. The process of '
        "the mechanism's own plan gives it."
      )

  def own_of(weight: array_types.Structure) -> mechanisms.Struct:
    own = collections.OrderedDict(client_id=tf.cast(read_client_id(weight), tf.int64))
    own.update((name, weight[name]) for name in fields)
    return own

  return own_of


def _created_sum(
  inner_sum: tff.aggregators.UnweightedAggregationFactory, total_type: tff.Type
) -> tff.templates.AggregationProcess:
  process = inner_sum.create(total_type)
  summed_type = process.next.type_signature.result.result.member
  if not total_type.is_assignable_from(summed_type):
    raise TypeError(
      f'inner_sum must return what it sums, {total_type}, but {type(inner_sum).__name__} returns {summed_type}. Give a '
      'factory of sums, such as tff.aggregators.SumFactory().'
    )
  return process
