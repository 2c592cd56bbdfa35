"""An observer's view of a round, by the functions of the mechanism itself.

* `client_update` sees what one client sends. Under noise at the server that is the clipped update, without any noise.
  Under noise at the clients it has the client's own noise. With secure aggregation, nobody sees it.
* `aggregate` sees what the round releases: the clipped updates of the whole cohort, summed, noised and divided.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from quap_tff import plans
from quap_tff.mechanisms import playing
from quap_tff.mechanisms.parts import layers as layers_lib


class View(NamedTuple):
  """The view of one observer on the rounds of T targets.

  Attributes:
    update: float64[T, …], one for each trained tensor, in units of w_global - w_local: the target's update, or the mean
      of its cohort's.
    noised: Positions of the tensors that have noise.
    clip: The mean of the rounds' clipping norms; +inf for none.
    noise: The mean standard deviation of the noise on each noised entry of `update`, 0 without noise.
  """

  update: list[np.ndarray]
  noised: frozenset[int]
  clip: float
  noise: float


def observe(
  plan: plans.Plan, layers: Sequence[layers_lib.Layer], updates: Sequence[Sequence[np.ndarray]], seed: int
) -> dict[str, View]:
  """The views of each target's round 1 of a plan, by the observer's name.

  Args:
    plan: Its mechanism has `for_model`. Its clipping norms, noise multipliers and weights are used as they are.
    layers: The model's layers.
    updates: For each client of a cohort, float32[T, …] tensors w_global - w_local. The first client is the target.
    seed: Seed of the noise, in place of the operating system's entropy, so that an attack can be repeated.

  Raises:
    ValueError: If the mechanism clips updates in units of the learning rate.
    NotImplementedError: If a round needs more of a client than its update.
  """
  facts, targets = plan.mechanism.facts, len(updates[0][0])
  # What is around QuAP-FL's mechanism is left out: an attack is on an update that is released at once.
  mechanism: Any = plan.core if facts.is_certified else plan.config
  specs = [tf.TensorSpec(tensor.shape[1:], tf.float32) for tensor in updates[0]]
  rounds = mechanism.for_model(specs, layers)
  critical = sorted(layers_lib.critical_indices(layers, facts.noised_layers))
  cohort_size, num_tensors = len(updates), len(specs)
  client_views: list[View] = []
  aggregate_views: list[View] = []
  for target in range(targets):
    cohort = [_of_target(update, target) for update in updates]
    state = rounds.initial_state()._replace(noise=rounds.initial_noise(seed * targets + target))
    played = playing.play_round(rounds, state, cohort, list(range(cohort_size)))
    clip, sigma = float(played.admitted.clip), float(played.admitted.sigma)
    has_noise = bool(played.admitted.noise_multiplier)
    noised = frozenset(critical) if has_noise else frozenset[int]()
    # The target is the first client. If clients draw noise, it sends its own after the tensors of its update.
    sent = [np.asarray(tensor, np.float64) * rounds.sum_unit(clip) for tensor in played.sent[0]]
    update, own_noise = sent[:num_tensors], sent[num_tensors:]
    for index, drawn in zip(critical, own_noise):
      update[index] = update[index] + drawn
    if own_noise:
      # All clients of a first round have the same rate, so each has an equal share of the cohort's variance.
      client_views.append(View(update, noised, clip, sigma * np.sqrt(cohort_size)))
    else:
      client_views.append(View(update, frozenset(), clip, 0.0))
    # A constant divisor is public: anyone who sees the release can turn it into the mean over this cohort.
    factor = facts.divisor / cohort_size if facts.divisor else 1.0
    mean = [factor * np.asarray(tensor, np.float64) for tensor in played.result]
    aggregate_views.append(View(mean, noised, clip, factor * sigma))
  return {'client_update': _stacked(client_views), 'aggregate': _stacked(aggregate_views)}


def _of_target(update: Sequence[np.ndarray], target: int) -> list[tf.Tensor]:
  """The update of one target, from those of all targets."""
  return [tf.convert_to_tensor(tensor[target], tf.float32) for tensor in update]


def _stacked(views: Sequence[View]) -> View:
  """The views of all targets as one, with their mean clipping norm and noise."""
  updates = [view.update for view in views]
  stacked = [np.stack(tensors) for tensors in zip(*updates)]
  clip = np.mean([view.clip for view in views])
  noise = np.mean([view.noise for view in views])
  return View(stacked, views[0].noised, float(clip), float(noise))
