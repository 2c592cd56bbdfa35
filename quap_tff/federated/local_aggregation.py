"""Locally private updates as a TFF aggregation: each client noises everything that it sends.

    m_i = g_i·min(1, C/‖g_i‖) + N(0, σ_i²·I),     σ_i = 2·C·z(ε_i(t), δ)     over all trained weights
    result = (1/M_t)·Σ_{i ∈ S_t} m_i

z(ε, δ) is the analytic Gaussian calibration (Balle and Wang 2018, theorem 8). In the local model (Kasiviswanathan, Lee,
Nissim, Raskhodnikova and Smith 2011; Duchi, Jordan and Wainwright 2013) neighbours are any two data sets of one client.
Both give an update of norm at most C, so one data set in place of another moves the message by up to 2·C. The relation
of the central account, a client against zeros in its place, has no meaning here: the server sees that a message came.
So m_i is an (ε_i(t), δ)-differentially private function of the client's whole data, whatever was released before, and
everything that the server does with it is post-processing.

    next: (state@SERVER, value@CLIENTS, weight@CLIENTS) -> <state@SERVER, mean message@SERVER, measurements@SERVER>

`weight` carries the client's id. A client sends its message and its id and nothing else: no norm, no loss. An update
that is not finite counts as zero, and only the client knows. There is one level of aggregation.

This is a simulation. The noise of all clients follows from one seed in the state, so that a resumed run draws it again;
in a deployment each client draws its own.
"""

import collections
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from quap_tff.common import seeds
from quap_tff.federated import aggregation
from quap_tff.federated import client_ids
from quap_tff.mechanisms import budgets
from quap_tff.mechanisms import clip_rules
from quap_tff.mechanisms import config as configs
from quap_tff.mechanisms import gaussian
from quap_tff.mechanisms import participation as participations
from quap_tff.mechanisms import quap_round as mechanism

# Room for the rounding of the clipped entries, as in `quap_tff.mechanisms.certified_round`.
CLIP_MARGIN = 2.0**-20
# What one client's message moves by if its data are replaced, in units of the clipping norm.
SENSITIVITY = 2.0


def check_config(config: configs.QuapConfig):
  """Raises `ValueError` unless clients can clip and noise by themselves, and all that they send."""
  if config.noise.placement != 'client':
    raise ValueError(f'Local privacy needs noise placement "client", found {config.noise.placement!r}.')
  if not isinstance(config.clip, clip_rules.Fixed):
    raise ValueError(
      f'Under local privacy no client sends the norm of its update, but clip rule {config.clip!r} needs the norms or '
      'does not clip: use clip rule fixed.'
    )
  if config.critical_layers != 'all' or config.clip_scope != 'all_layers':
    raise ValueError(
      'Local privacy covers everything that a client sends: use critical_layers="all" and clip_scope="all_layers".'
    )


def noise_multipliers(config: configs.QuapConfig, epsilons: Any) -> tf.Tensor:
  """z of each client's message: σ over the 2·C by which its data move it; float64, like ε_i(t) of any shape."""
  epsilons = tf.cast(epsilons, tf.float64)
  return config.noise.scale * gaussian.noise_multiplier(config.noise.calibration, epsilons, config.noise.delta)


def randomize(update: list[tf.Tensor], clip: Any, noise_multiplier: Any, seed: tf.Tensor) -> list[tf.Tensor]:
  """A client's message: its clipped update and N(0, (2·C·z)²) on each entry, in the update's dtypes.

  | update             | what is noised |
  | any entry NaN, inf | zeros          |
  | norm at most C     | the update     |
  | else               | the update, scaled to norm C |

  Args:
    update: Float tensors.
    clip: C, a scalar.
    noise_multiplier: z, a float64 scalar.
    seed: int64[2], of this client and round.
  """
  exact = [tf.cast(u, tf.float64) for u in update]
  norm = clip_rules.global_norm(exact)
  bound = tf.cast(clip, tf.float64) * (1 - CLIP_MARGIN)
  factor = tf.minimum(tf.ones_like(norm), bound / tf.maximum(norm, np.finfo(np.float64).tiny))
  message = []
  for index, u in enumerate(exact):
    clipped = tf.where(tf.math.is_finite(norm), u * factor, tf.zeros_like(u))
    stddev = SENSITIVITY * tf.cast(clip, tf.float64) * noise_multiplier
    drawn = gaussian.noise(seeds.fold_in(seed, tf.constant(index, tf.int64)), tf.shape(u), stddev)
    # One rounding, after the noise: post-processing.
    message.append(tf.cast(clipped + drawn, update[index].dtype))
  return message


class LocalAggregationFactory(tff.aggregators.WeightedAggregationFactory):
  """Makes aggregation processes whose every client message is differentially private by itself."""

  def __init__(self, config: configs.QuapConfig):
    """Initializes the factory.

    Args:
      config: The mechanism: population, budgets, participation, a fixed clip on all layers, noise at the clients.

    Raises:
      ValueError: If clients cannot clip and noise by themselves with it.
    """
    check_config(config)
    self._config = config

  def create(self, value_type: tff.Type, weight_type: tff.Type) -> tff.templates.AggregationProcess:
    """See the module's docstring; the arguments are those of `quap_tff.QuapAggregationFactory.create`."""
    config = self._config
    specs = aggregation.tensor_specs(value_type)
    read_client_id = client_ids.reader(weight_type)

    @tff.tensorflow.computation
    def initialize_server():
      return mechanism.initial_state(config)

    state_type = initialize_server.type_signature.result

    @tff.tensorflow.computation(state_type)
    def announce(state):
      # A client needs its own rate only; the simulation sends all of them, as it does the seed.
      return collections.OrderedDict(clip=state.clip, **mechanism.client_noise_broadcast(config, state))

    @tff.tensorflow.computation(value_type, weight_type, announce.type_signature.result)
    def send(value, weight, message):
      client_id = tf.cast(read_client_id(weight), tf.int64)
      # The server refuses an id out of range with a clear message, so looking up its rate must not fail first.
      rate = tf.gather(message['rates'], tf.clip_by_value(client_id, 0, config.num_clients - 1))
      multiplier = noise_multipliers(config, budgets.client_budgets(config.budget, rate, message['in_warmup']))
      seed = seeds.fold_in(message['seed'], client_id)
      return randomize(tf.nest.flatten(value), message['clip'], multiplier, seed)

    @tff.tensorflow.computation(weight_type)
    def send_id(weight):
      return collections.OrderedDict(client_id=tf.cast(read_client_id(weight), tf.int64))

    reports_type = tff.to_type(collections.OrderedDict(client_id=(np.int64, [None])))

    @tff.tensorflow.computation(state_type, reports_type, send.type_signature.result)
    def finish_round(state, reports, total):
      new_state, mean, measurements = _finished(config, state, reports['client_id'], list(total))
      return new_state, tf.nest.pack_sequence_as(specs, mean), measurements

    @tff.federated_computation
    def init_fn():
      return tff.federated_eval(initialize_server, tff.SERVER)

    @tff.federated_computation(
      init_fn.type_signature.result,
      tff.FederatedType(value_type, tff.CLIENTS),
      tff.FederatedType(weight_type, tff.CLIENTS),
    )
    def next_fn(state, value, weight):
      message = tff.federated_broadcast(tff.federated_map(announce, state))
      ids = aggregation.federated_collect(tff.federated_map(send_id, weight), reports_type)
      total = tff.federated_sum(tff.federated_map(send, (value, weight, message)))
      return tff.templates.MeasuredProcessOutput(*tff.federated_map(finish_round, (state, ids, total)))

    return tff.templates.AggregationProcess(init_fn, next_fn)


def _finished(config, state, ids, total):
  """The state after the round, the mean message, and measurements, all of which follow from who takes part."""
  ids = mechanism.checked_ids(config, ids)
  round_num = state.round + 1
  participation = participations.next_state(config.participation, state.participation, ids, round_num)
  rates = tf.gather(participations.rates(config.participation, participation, round_num), ids)
  in_warmup = participations.in_warmup(config.participation, round_num)
  epsilons = budgets.client_budgets(config.budget, rates, in_warmup)
  multipliers = noise_multipliers(config, epsilons)
  size = tf.size(ids)
  divisor = tf.maximum(tf.cast(size, tf.float64), 1.0)
  stddev = SENSITIVITY * tf.cast(state.clip, tf.float64) * tf.norm(multipliers) / divisor
  new_state = state._replace(
    round=round_num,
    participation=participation,
    noise=state.noise._replace(counter=state.noise.counter + tf.cast(size > 0, tf.int64)),
  )
  measurements = collections.OrderedDict(
    round=round_num,
    cohort_size=size,
    epsilon=tf.math.divide_no_nan(tf.reduce_sum(epsilons), tf.cast(size, tf.float32)),
    clipping_norm=state.clip,
    # Of one message, over what it moves by: the smallest of the cohort.
    noise_multiplier=tf.cast(tf.where(size > 0, tf.reduce_min(multipliers), 0.0), tf.float32),
    # On each entry of the mean.
    sigma=tf.cast(stddev, tf.float32),
  )
  for name, value in participations.statistics(config.participation, participation, round_num).items():
    measurements[f'participation_{name}'] = value
  return new_state, [t / tf.cast(divisor, t.dtype) for t in total], measurements
