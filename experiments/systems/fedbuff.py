"""A buffer of clients' updates that is released, with noise, once it holds K of them.

Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek and Huba 2022, "Federated Learning with Buffered Asynchronous
Aggregation", Algorithm 1, with QuAP-FL's clipping norm, budgets and noise:

    buffer ← buffer + s(τ_i)·clip(g_i, C_t)     for each client i whose update arrives in round t
    if it holds K updates or more:  release (buffer + N(0, (z·C)²·I))/(number of updates), and empty it

C is the largest C_t of the rounds that the buffer spans.

What it costs: everything that happened before a release follows from earlier releases and from the data of others. So
client i moves this release by a vector of norm at most C·Σs(τ_i), over its updates in this buffer, and by nothing else.
Its loss in it is that of a Gaussian mechanism of μ = Σs(τ_i)/z. A client that is in several buffers at different
versions is charged for each. τ, K and who arrives do not depend on anyone's data, so these weights are public.

The ledger has a round for each round of arrivals. A round that fills the buffer is recorded with everyone who is in the
buffer, at weights Σs(τ_i). A round that leaves it waiting is recorded with nobody.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
import dataclasses
import functools
import math
from typing import Callable, NamedTuple, Optional

import numpy as np

from experiments.systems import staleness as stalenesses
from quap_tff import methods
from quap_tff.common import array_types
from quap_tff.common import checks
from quap_tff.common import lazy
from quap_tff.common.lazy import tf
from quap_tff.mechanisms import mechanism
from quap_tff.mechanisms.parts import participation as participations
from quap_tff.mechanisms.quap import config as configs
from quap_tff.methods import base
from quap_tff.methods import choices

quap = lazy.module('quap_tff.mechanisms.quap.rounds')


class Buffer(NamedTuple):
  """The updates since the last release.

  Attributes:
    total: Σ s(τ_i)·clipped update, tensors as in an update.
    shares: float32[N], Σ s(τ_i) of each client.
    count: int32 scalar, updates.
    clip: float32 scalar, the largest clipping norm; 0 for an empty buffer.
  """

  total: list[tf.Tensor]
  shares: tf.Tensor
  count: tf.Tensor
  clip: tf.Tensor


class BufferedState(NamedTuple):
  """The server's state between rounds. It holds clipped updates without noise.

  Attributes:
    mechanism: A `quap_tff.mechanisms.quap.rounds.QuapState`.
    buffer: The updates that wait for the next release.
    released: float32[N], Σ s(τ_i) of each client in the release of the latest round; all 0 if it released nothing.
  """

  mechanism: mechanism.State
  buffer: Buffer
  released: tf.Tensor


class Release(NamedTuple):
  """The clients in a buffer that is released: int64[m] ids, and float64[m] Σs(τ_i)."""

  clients: np.ndarray
  shares: np.ndarray


@dataclasses.dataclass(frozen=True)
class Buffered(mechanism.Configured):
  """QuAP-FL's clipping norm, budgets and noise on a buffer. All that it releases is one noised sum.

  Attributes:
    config: The mechanism.
    size: K >= 1, the updates that a release needs.
    staleness: How old the versions are that clients train on.
  """

  config: configs.QuapConfig
  size: int
  staleness: stalenesses.Staleness = stalenesses.Staleness()

  def __post_init__(self) -> None:
    super().__post_init__()
    config = self.config
    if config.noise.placement == 'client':
      raise ValueError(
        'noise=client: FedBuff adds noise once to the sum of a buffer, at the server. Use noise=server or none.'
      )
    if math.isfinite(config.clip.count_noise_multiplier):
      raise ValueError(
        'A private quantile releases a noised count in every round, and the account of FedBuff has one entry for each '
        'release of the buffer: use clip rule fixed, or quantile_ema for a run without a formal figure.'
      )
    if config.budget.rule.needs_cohort or config.budget.rule.observes_updates:
      raise ValueError(
        f'FedBuff needs budgets that follow from participation rates alone, found {type(config.budget.rule).__name__}.'
      )
    if config.update_scale != 'delta':
      raise ValueError(
        'A buffer holds updates of several rounds, which may have different learning rates: use update_scale="delta".'
      )
    checks.integer('buffer', self.size, at_least=1, at_most=2**31 - 1)

  @property
  def facts(self) -> mechanism.Facts:
    facts = self.config.facts
    return facts._replace(
      unsparse='a buffer sums updates of several rounds, which would keep different weights',
      game='',
      unaudited='clients train on versions of the model that are of different ages',
      staleness=self.staleness,
      unamplified='who arrives follows from how slow clients are',
      public_metrics=facts.public_metrics | {'buffered_updates', 'released_updates', 'staleness_mean'},
    )

  def for_model(
    self, specs: mechanism.Specs, layers: mechanism.Layers, learning_rate_fn: mechanism.LearningRateFn = None
  ) -> mechanism.Rounds:
    return BufferedRounds(self, specs, layers)

  def scaled(self, factor: float) -> Buffered:
    return dataclasses.replace(self, config=self.config.scaled(factor))

  def seen(self, state: mechanism.State) -> mechanism.Evidence:
    return self.config.seen(state.mechanism)  # Statistics of those who arrived.

  def spent(self, state: mechanism.State, metrics: mechanism.Measurements, cohort: np.ndarray) -> mechanism.RoundRecord:
    """The state has those who were released, whom the ledger charges."""
    del cohort
    # Updates that still wait when a run ends have never left the server's state, and cost nothing.
    release = _release_of(np.asarray(state.released, np.float64))
    epsilons = self.config.client_budgets(state.mechanism, release.clients)
    return self._cost(release, epsilons, float(metrics['noise_multiplier']), float(metrics['clipping_norm']))

  def planned(self, cohorts: Sequence[np.ndarray]) -> list[mechanism.RoundRecord]:
    config, records = self.config, []
    for state, release in zip(config.planned_states(cohorts), self.planned_releases(cohorts)):
      clients = release.clients
      # A mean over nobody is NaN.
      multiplier = config.planned_multiplier(state, clients) if len(clients) else 0.0
      records.append(self._cost(release, config.client_budgets(state, clients), multiplier, 1.0))
    return records

  def planned_releases(self, cohorts: Sequence[array_types.Ids]) -> list[Release]:
    """The release of each round if these clients arrive, int[M_t] for each round."""
    shares, count, versions, releases = np.zeros(self.num_clients), 0, 1, []
    for round_num, cohort in enumerate(cohorts, 1):
      ids = np.asarray(cohort, np.int64)
      shares[ids] += np.asarray(_shares(self.staleness, round_num, ids, versions), np.float64)
      count += len(cohort)
      if count >= self.size:
        releases.append(_release_of(shares))
        shares, count, versions = np.zeros(self.num_clients), 0, versions + 1
      else:
        releases.append(_release_of(np.zeros(0)))
    return releases

  def _cost(
    self, release: Release, epsilons: np.ndarray, noise_multiplier: float, clipping_norm: float
  ) -> mechanism.RoundRecord:
    """The ledger's weights end at 1, so a client that is in a release twice scales the noise down."""
    spent = self.config.cost(release.clients, epsilons, noise_multiplier, clipping_norm)
    # Noise over weight is what counts, so both are divided.
    largest = max(1.0, release.shares.max(initial=0.0))
    return spent._replace(
      weights=np.minimum(release.shares / largest, 1.0), noise_multiplier=noise_multiplier / largest
    )


class BufferedRounds(mechanism.Rounds):
  """A buffer's functions for updates of known tensors."""

  own_fields = {'staleness': 'how stale it is'}

  def __init__(self, value: Buffered, specs: mechanism.Specs, layers: mechanism.Layers):
    self.specs, self._size, self._config = specs, value.size, value.config
    self._inner = quap.QuapRounds(value.config, specs, layers)
    self.clips_by_this_round = self._inner.clips_by_this_round

  def initial_state(self) -> mechanism.State:
    return BufferedState(
      mechanism=self._inner.initial_state(),
      buffer=Buffer(
        total=[tf.zeros(spec.shape, spec.dtype) for spec in self.specs],
        shares=tf.zeros([self._config.num_clients], tf.float32),
        count=tf.constant(0, tf.int32),
        clip=tf.constant(0.0, tf.float32),
      ),
      released=tf.zeros([self._config.num_clients], tf.float32),
    )

  def announce(self, state: mechanism.State) -> mechanism.Struct:
    return collections.OrderedDict(clip=state.mechanism.clip)

  def report(self, update: list[tf.Tensor], own: mechanism.Struct, announced: mechanism.Struct) -> mechanism.Struct:
    # Norms are in the unit of updates: `Buffered` refuses another.
    report = self._inner.report(update, own, {**announced, 'scale': 1.0})
    return collections.OrderedDict(report, staleness=tf.cast(own['staleness'], tf.int32))

  def admit(
    self, state: mechanism.State, announced: mechanism.Struct, reports: mechanism.Struct
  ) -> mechanism.AdmittedRound:
    """The buffer is released if it is full.

    The budget of a release is that of all clients in the buffer, at their rates in the round of the release.
    `released_updates` is how many updates are in the release, 0 if there is none, and `buffered_updates` is how many
    wait.
    """
    config, arrived = self._config, self._inner.admit(state.mechanism, announced, reports)
    size, shares = arrived.metrics['cohort_size'], stalenesses.share(reports['staleness'])
    # A client may be in a buffer twice. Its parts may point in one direction, so their norms add up.
    inside = tf.tensor_scatter_nd_add(state.buffer.shares, arrived.client_ids[:, tf.newaxis], shares)
    waiting = state.buffer.count + size
    # Each update was clipped by the norm of its own round, and noise must cover the largest. A round with nobody has
    # clipped nothing.
    largest = tf.where(size > 0, tf.maximum(state.buffer.clip, arrived.clip), state.buffer.clip)
    # Algorithm 1 takes one update at a time. Here a round's updates arrive together, so there may be more than K.
    releases = waiting >= self._size
    count = tf.where(releases, waiting, 0)
    has_noise = config.noise.placement != 'none'
    epsilon, multiplier = self._noise(arrived.after, inside)
    noised = tf.logical_and(releases, tf.math.is_finite(largest)) if has_noise else tf.constant(False)
    # A round that only waits has drawn no noise.
    multiplier = tf.where(noised, multiplier, 0.0)
    clip = tf.where(releases, largest, arrived.clip)
    # Written so that 0·inf never appears: a clip rule without a norm has C = +inf.
    divisor = tf.maximum(tf.cast(count, tf.float32), 1.0)
    sigma = tf.where(noised, multiplier * tf.where(noised, clip, 0.0) / divisor, 0.0)
    spent = epsilon if has_noise else tf.constant(math.inf)
    metrics = collections.OrderedDict(
      arrived.metrics,
      epsilon=tf.where(releases, spent, 0.0),
      clipping_norm=clip,
      noise_multiplier=multiplier,
      sigma=sigma,
      released_updates=count,
      buffered_updates=waiting - count,
      staleness_mean=tf.cast(tf.reduce_sum(reports['staleness']), tf.float32)
      / tf.maximum(tf.cast(size, tf.float32), 1.0),
    )
    noise = state.mechanism.noise
    after = BufferedState(
      # Not the counter of `arrived`, which counts rounds: noise is drawn by releases.
      mechanism=arrived.after._replace(noise=noise._replace(counter=noise.counter + tf.cast(count > 0, tf.int64))),
      buffer=Buffer(
        total=state.buffer.total,
        shares=tf.where(releases, tf.zeros_like(inside), inside),
        count=waiting - count,
        clip=tf.where(releases, 0.0, largest),
      ),
      released=tf.where(releases, inside, tf.zeros_like(inside)),
    )
    return arrived._replace(weights=shares, noise_multiplier=multiplier, sigma=sigma, after=after, metrics=metrics)

  def _noise(self, after: mechanism.State, inside: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """ε_t and z_t of a release, from the participation rates of everyone in the buffer."""
    kind = self._config.participation
    rates = participations.rates(kind, after.participation, after.round)
    # Of those who are in the release, not of those who arrived last.
    return self._config.round_noise(tf.boolean_mask(rates, inside > 0), participations.in_warmup(kind, after.round))

  def contribution(
    self,
    update: mechanism.Parts,
    report: mechanism.Struct,
    announced: mechanism.Struct,
    clip: Optional[tf.Tensor] = None,
  ) -> list[tf.Tensor]:
    share = stalenesses.share(report['staleness'])
    return [u * tf.cast(share, u.dtype) for u in self._inner.contribution(update, report, announced, clip)]

  def release(
    self, state: mechanism.State, admitted: mechanism.AdmittedRound, total: list[tf.Tensor]
  ) -> tuple[mechanism.State, list[tf.Tensor], mechanism.Struct]:
    """The mean of the buffer if it is released; else the result is exactly zero, which leaves the model as it is."""
    after, count = admitted.after, admitted.metrics['released_updates']
    filled = [a + b for a, b in zip(state.buffer.total, total)]
    released = [tf.where(count > 0, t, tf.zeros_like(t)) for t in filled]
    inner, mean, metrics = self._inner.finished(
      state.mechanism, admitted._replace(after=after.mechanism), released, count
    )
    for name in ('released_updates', 'buffered_updates', 'staleness_mean'):
      # So that the columns of metrics.csv are in the order of QuAP-FL's, with the buffer's after them.
      metrics.move_to_end(name)
    # Without noise: it is added once, to what is released.
    kept = [tf.where(count > 0, tf.zeros_like(t), t) for t in filled]
    return after._replace(mechanism=inner, buffer=after.buffer._replace(total=kept)), mean, metrics


def _release_of(shares: np.ndarray) -> Release:
  return Release(np.flatnonzero(shares), shares[shares > 0])


@functools.lru_cache(maxsize=8)
def _shares_function(staleness: stalenesses.Staleness) -> Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]:
  """One graph for all rounds and cohorts of a distribution: eager operations one by one would take seconds."""

  def shares(round_num: tf.Tensor, ids: tf.Tensor, versions: tf.Tensor) -> tf.Tensor:
    def share(client_id: tf.Tensor) -> tf.Tensor:
      return stalenesses.share(staleness.of(round_num, client_id, versions))

    return tf.map_fn(share, ids, fn_output_signature=tf.float32)

  signature = [tf.TensorSpec([], tf.int64), tf.TensorSpec([None], tf.int64), tf.TensorSpec([], tf.int64)]
  return tf.function(shares, input_signature=signature)


def _shares(staleness: stalenesses.Staleness, round_num: int, ids: np.ndarray, versions: int) -> tf.Tensor:
  """s(τ_i(t)) of a cohort, float32[M]."""
  return _shares_function(staleness)(*(tf.constant(value, tf.int64) for value in (round_num, ids, versions)))


@dataclasses.dataclass(frozen=True)
class FedBuff(choices.AdaptiveBudgets, choices.Clip, choices.LayersChoice, base.QuapMechanism):
  """FedBuff (Nguyen et al. 2022, Algorithm 1) with QuAP-FL's clip, budgets and noise, as the flags set them for quap.

  The clients that --participation draws are those whose updates arrive in a round. Each has trained on a version of the
  model that is τ releases old and counts with s(τ) = 1/√(1 + τ). The server releases the buffer when it holds `buffer`
  updates (`quap_tff.federated.old_versions`). How τ is distributed is our choice.

  Attributes:
    buffer: K, the updates that fill the buffer.
    staleness: The scale of τ, in versions; 0 for none.
    spread: How much clients differ in speed.
    max_staleness: The largest τ. The server keeps one version more than this.
  """

  title = 'FedBuff (asynchronous)'

  buffer: int = 10
  staleness: float = 2.0
  spread: float = 0.5
  max_staleness: int = 10

  def __post_init__(self) -> None:
    checks.integer('fedbuff buffer', self.buffer, at_least=1, at_most=2**31 - 1)
    self._staleness(0)

  def _staleness(self, seed: int) -> stalenesses.Staleness:
    return stalenesses.Staleness(self.staleness, self.spread, self.max_staleness, seed)

  def configure(self, setting: base.Setting) -> Buffered:
    return Buffered(self.quap_config(setting), self.buffer, self._staleness(setting.seed))

  def check_cohorts(self, setting: base.Setting) -> None:
    assert setting.participation is not None
    arrived = 0
    for round_num in range(1, setting.rounds + 1):
      arrived += len(setting.participation.cohort(round_num))
      if arrived >= self.buffer:
        return
    raise ValueError(
      f'--algorithm=fedbuff:buffer={self.buffer}: {arrived} updates arrive in all of the {setting.rounds} planned '
      f'rounds. So the buffer is never full, and the model is never updated. Give a buffer of at most {arrived}, more '
      '--rounds, or larger cohorts.'
    )


methods.METHODS['fedbuff'] = FedBuff
