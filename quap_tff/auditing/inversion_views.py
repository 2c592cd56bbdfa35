"""What an observer sees of a round, by the functions of the mechanism itself.

* `client_update` sees what one client sends. Under noise at the server that is the clipped update, without any noise.
  Under noise at the clients it has the client's own noise. With secure aggregation, nobody sees it.
* `aggregate` sees what the round releases: the clipped updates of the whole cohort, summed, noised and divided.
"""

from collections.abc import Sequence
import dataclasses
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from quap_tff import plans
from quap_tff.mechanisms import certified_round as certified_mechanism
from quap_tff.mechanisms import clip_split
from quap_tff.mechanisms import layers as layers_lib
from quap_tff.mechanisms import quap_round as mechanism

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
    plan: A `QuapPlan` or a `CertifiedPlan`. Its clipping norms, noise multipliers and weights are used as they are.
    layers: The model's layers.
    updates: For each client of the cohort, float32 tensors w_global - w_local.
    client_ids: Their ids.
    seed: Seed of the noise, in place of the operating system's entropy, so that an attack can be repeated.

  Raises:
    ValueError: For another kind of plan, or one that clips updates in units of the learning rate.
  """
  updates = [[tf.convert_to_tensor(u, tf.float32) for u in update] for update in updates]
  ids = tf.constant(client_ids, tf.int64)
  if isinstance(plan, plans.CertifiedPlan):
    return _certified(plan.config, layers, updates, ids, seed)
  if isinstance(plan, plans.QuapPlan) and plan.config.update_scale == 'delta':
    return _quap(plan.config, layers, updates, ids, seed)
  raise ValueError(
    f'Gradient inversion knows QuapPlan with update_scale=delta and CertifiedPlan, found {type(plan).__name__}. '
    'Choose another method.'
  )


def _quap(config, layers, updates, ids, seed):
  config = dataclasses.replace(config, noise=dataclasses.replace(config.noise, seed=seed))
  critical = layers_lib.critical_indices(layers, config.critical_layers)
  state = mechanism.initial_state(config, [updates[0][i].shape for i in critical])
  norms = tf.stack([mechanism.update_norm(config, critical, update) for update in updates])
  plan = mechanism.plan_round(config, state, ids, norms)
  sent = [mechanism.clip_update(config, critical, u, norm, plan.clip) for u, norm in zip(updates, norms)]
  own_noise = []
  if config.noise.placement == 'client':
    broadcast = mechanism.client_noise_broadcast(config, state)
    own_noise = [
      mechanism.client_noise(config, critical, u, ids[i], broadcast, plan.clip) for i, u in enumerate(updates)
    ]
  first = [np.asarray(u, np.float64) for u in sent[0]]
  for index, drawn in zip(critical, own_noise[0] if own_noise else ()):
    first[index] = first[index] + drawn.numpy()
  _, mean, _ = mechanism.finish_round(
    config,
    critical,
    state,
    plan,
    [tf.add_n(parts) for parts in zip(*sent)],
    [tf.add_n(parts) for parts in zip(*own_noise)],
  )
  noised = frozenset(critical) if config.noise.placement != 'none' else frozenset()
  clip, sigma = float(plan.clip), float(plan.sigma)
  # All clients of a first round have the same rate, so each has an equal share of the cohort's variance.
  own_sigma = sigma * np.sqrt(len(updates)) if own_noise else 0.0
  return Views(
    View(first, noised if own_noise else frozenset(), clip, own_sigma),
    View([np.asarray(m, np.float64) for m in mean], noised, clip, sigma),
  )


def _certified(config, layers, updates, ids, seed):
  config = dataclasses.replace(config, noise_seed=seed)
  shapes = [u.shape for u in updates[0]]
  groups = clip_split.clip_groups(config.clip_split, [shape.num_elements() for shape in shapes], layers)
  state = certified_mechanism.initial_state(config, shapes)
  norms = tf.stack([certified_mechanism.update_norm(groups, update) for update in updates])
  plan = certified_mechanism.plan_round(config, state, ids, norms)
  sent = [
    certified_mechanism.contribute(groups, update, plan.weights[i], state.clip) for i, update in enumerate(updates)
  ]
  total = [tf.add_n([tf.cast(part, tf.float64) for part in parts]) for parts in zip(*sent)]
  _, released, measured = certified_mechanism.finish_round(config, state, plan, total)
  # The divisor is public: whoever sees the release can turn it into the mean over this cohort.
  factor = config.divisor / len(updates)
  clip = float(state.clip)
  return Views(
    View([np.asarray(u, np.float64) for u in sent[0]], frozenset(), clip, 0.0),
    View(
      [factor * r.numpy() for r in released], frozenset(range(len(shapes))), clip, factor * float(measured['sigma'])
    ),
  )
