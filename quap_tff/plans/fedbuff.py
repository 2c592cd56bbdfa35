"""FedBuff as a plan: the ledger has a round for each round of arrivals, and charges for what is released.

A round that fills the buffer is recorded with everyone who is in the buffer, at weights Σs(τ_i) as in
`quap_tff.mechanisms.buffer`. A round that leaves it waiting is recorded with nobody. Updates that still wait when a
run ends have never left the server's state, and cost nothing.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from quap_tff import accounting
from quap_tff.common import checks
from quap_tff.common import lazy
from quap_tff.common.lazy import tf
from quap_tff.mechanisms import buffer_restrictions as restrictions
from quap_tff.mechanisms import participation as participations
from quap_tff.mechanisms import staleness as stalenesses
from quap_tff.plans import base
from quap_tff.plans import quap

aggregation = lazy.module('quap_tff.federated.buffered_aggregation')
learning_process = lazy.module('quap_tff.federated.learning_process')


class Release(NamedTuple):
  """Who is in a buffer that is released: int64[m] ids, and float64[m] Σs(τ_i)."""

  clients: np.ndarray
  shares: np.ndarray


class FedBuffPlan(quap.QuapPlan):
  """FedBuff with QuAP-FL's clip, budgets and noise under a configuration."""

  # A buffer sums updates of several rounds, which would keep different weights.
  takes_sparsity = False

  def __init__(self, config, size: int, staleness: stalenesses.Staleness, draw=accounting.Sampler(), **options):
    """Initializes the plan.

    Args:
      config: The mechanism.
      size: K, the updates that a release needs.
      staleness: How old the versions are that clients train on.
      draw: How the clients are drawn whose updates arrive. It amplifies nothing: who arrives follows from how slow
        clients are.
      **options: The options of every plan, see `quap_tff.plans.Plan`.
    """
    restrictions.check_config(config)
    del draw
    super().__init__(config, accounting.Sampler(reason='who arrives follows from how slow clients are'), **options)
    self.size, self.staleness = size, staleness
    self.public_metrics = self.public_metrics | {'buffered_updates', 'released_updates', 'staleness_mean'}

  def _with_config(self, config):
    return type(self)(config, self.size, self.staleness, **self._options)

  @property
  def fingerprint(self):
    return f'{super().fingerprint}, buffer={self.size}, {self.staleness!r}'

  @property
  def aggregator(self):
    layers = self.model.layers if self.model is not None else None
    return aggregation.BufferedAggregationFactory(self.config, self.size, layers)

  def _compose(self, model_fn, client_optimizer, server_optimizer, client_work):
    return learning_process.compose(
      model_fn,
      self.aggregator,
      client_optimizer,
      server_optimizer,
      client_work,
      staleness=self.staleness,
      client_metrics=self.client_metrics,
    )

  def record(self, output, cohort):
    state, measurements = base.aggregation_of(output)
    # The cohort are those who arrived. The state has those who were released, whom the ledger charges.
    base.checked_cohort(cohort, self.num_clients, measurements, quap.counted_rounds(self.config, state.mechanism))
    shares = np.asarray(state.released, np.float64)
    release = Release(np.flatnonzero(shares), shares[shares > 0])
    return self._released(
      release,
      self._own_budgets(state.mechanism, release.clients),
      float(measurements['noise_multiplier']),
      float(measurements['clipping_norm']),
    )

  def _released(self, release, own_budgets, noise_multiplier, clipping_norm):
    """The record of a release. The ledger's weights end at 1, so a client that is in it twice scales the noise down."""
    record = self._record(release.clients, own_budgets, noise_multiplier, clipping_norm)
    largest = max(1.0, release.shares.max(initial=0.0))
    return record._replace(
      weights=np.minimum(release.shares / largest, 1.0), noise_multiplier=noise_multiplier / largest
    )

  def planned_ledger(self, cohorts):
    cohorts = checks.schedule(cohorts, self.num_clients)
    config, releases = self.config, self.planned_releases(cohorts)
    state = participations.initial_state(config.participation, config.num_clients)
    ledger = self.new_ledger()
    for round_num, (cohort, release) in enumerate(zip(cohorts, releases), 1):
      state = participations.next_state(config.participation, state, cohort, round_num)
      clients = release.clients
      multiplier = quap.round_noise_multiplier(config, state, round_num, clients) if len(clients) else 0.0
      budgets = quap.client_budgets(config, state, round_num, clients)
      ledger.append(self._released(release, budgets, multiplier, 1.0))
    return ledger

  def planned_releases(self, cohorts) -> list[Release]:
    """What each round releases if these clients arrive, int[M_t] for each round."""
    shares, count, versions, found = np.zeros(self.num_clients), 0, 1, []
    for round_num, cohort in enumerate(cohorts, 1):
      ids = np.asarray(cohort, np.int64)
      shares[ids] += np.asarray(_shares(self.staleness, round_num, ids, versions), np.float64)
      count += len(cohort)
      if count >= self.size:
        found.append(Release(np.flatnonzero(shares), shares[shares > 0]))
        shares, count, versions = np.zeros(self.num_clients), 0, versions + 1
      else:
        found.append(Release(np.zeros(0, np.int64), np.zeros(0)))
    return found


@functools.lru_cache(maxsize=8)
def _shares_function(staleness):
  """One graph for all rounds and cohorts of a distribution: eager operations one by one would take seconds."""

  def shares(round_num, ids, versions):
    of_one = lambda client_id: stalenesses.share(staleness.of(round_num, client_id, versions))
    return tf.map_fn(of_one, ids, fn_output_signature=tf.float32)

  signature = [tf.TensorSpec([], tf.int64), tf.TensorSpec([None], tf.int64), tf.TensorSpec([], tf.int64)]
  return tf.function(shares, input_signature=signature)


def _shares(staleness, round_num, ids, versions):
  """s(τ_i(t)) of a cohort, float32[M]."""
  return _shares_function(staleness)(*(tf.constant(value, tf.int64) for value in (round_num, ids, versions)))
