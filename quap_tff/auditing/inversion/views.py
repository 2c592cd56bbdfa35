"""What an observer sees of a round, by the functions of the mechanism itself.

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

CLIENT_UPDATE, AGGREGATE = 'client_update', 'aggregate'
OBSERVERS = (CLIENT_UPDATE, AGGREGATE)


class View(NamedTuple):
  """What one observer sees.

  Attributes:
    update: float64 arrays, one for each trained tensor, in units of w_global - w_local: the client's update, or the
      mean of the cohort's.
    noised: Positions of the tensors that have noise.
    clip: The round's clipping norm; +inf for none.
    noise: The standard deviation of the noise on each noised entry of `update`, 0 without noise.
  """

  update: list[np.ndarray]
  noised: frozenset[int]
  clip: float
  noise: float


class Views(NamedTuple):
  """What the two observers see of one round; `client_update` is that of the cohort's first client."""

  client_update: View
  aggregate: View


def observe(
  plan: plans.Plan,
  layers: Sequence[layers_lib.Layer],
  updates: Sequence[Sequence[Any]],
  client_ids: Sequence[int],
  seed: int,
) -> Views:
  """Round 1 of a plan with given updates.

  Args:
    plan: Its mechanism has `for_model`. Its clipping norms, noise multipliers and weights are used as they are.
    layers: The model's layers.
    updates: For each client of the cohort, float32 tensors w_global - w_local.
    client_ids: Their ids.
    seed: Seed of the noise, in place of the operating system's entropy, so that an attack can be repeated.

  Raises:
    ValueError: If the mechanism clips updates in units of the learning rate.
    NotImplementedError: If a round needs more of a client than its update.
  """
  facts = plan.mechanism.facts
  updates = [[tf.convert_to_tensor(u, tf.float32) for u in update] for update in updates]
  rounds = plan.config.for_model([tf.TensorSpec(u.shape, u.dtype) for u in updates[0]], layers)
  state = rounds.initial_state()._replace(noise=rounds.initial_noise(seed))
  played = playing.play_round(rounds, state, updates, list(client_ids))
  clip, sigma = float(played.admitted.clip), float(played.admitted.sigma)
  critical = sorted(layers_lib.critical_indices(layers, facts.noised_layers))
  noised = frozenset(critical if float(played.admitted.noise_multiplier) else ())
  first = [np.asarray(u, np.float64) * rounds.sum_unit(clip) for u in played.sent[0]]
  first, own_noise = first[: len(updates[0])], first[len(updates[0]) :]
  for index, drawn in zip(critical, own_noise):
    first[index] = first[index] + drawn
  # A constant divisor is public: anyone who sees the release can turn it into the mean over this cohort.
  factor = facts.divisor / len(updates) if facts.divisor else 1.0
  # All clients of a first round have the same rate, so each has an equal share of the cohort's variance.
  own_sigma = sigma * np.sqrt(len(updates)) if own_noise else 0.0
  return Views(
    View(first, noised if own_noise else frozenset(), clip, own_sigma),
    View([factor * np.asarray(m, np.float64) for m in played.result], noised, clip, factor * sigma),
  )
