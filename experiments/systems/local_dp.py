"""Local privacy: each client noises everything that it sends.

    m_i = g_i·min(1, C/‖g_i‖) + N(0, σ_i²·I),     σ_i = 2·C·z(ε_i(t), δ)     over all trained weights
    result = (1/M_t)·Σ_{i ∈ S_t} m_i

z(ε, δ) is the analytic Gaussian calibration (Balle and Wang 2018, theorem 8). In the local model (Kasiviswanathan, Lee,
Nissim, Raskhodnikova and Smith 2011; Duchi, Jordan and Wainwright 2013) neighbours are any two data sets of one client.
Both give an update of norm at most C, so one data set in place of another moves the message by up to 2·C. The relation
of the central account, a client against zeros in its place, has no meaning here: the server sees that a message came.
So m_i is an (ε_i(t), δ)-differentially private function of the client's whole data, whatever was released before, and
everything that the server does with it is post-processing.

Each message of client i is one Gaussian mechanism of μ_i(t) = 2·C/σ_i(t) = 1/z_i(t). Messages are adaptively composed,
so μ_i² = Σ_t 1/z_i(t)² over the rounds that the client takes part in.

A client sends its message and its id and nothing else: no norm, no loss. This is a simulation. The noise of all clients
follows from one seed in the state, so that a resumed run draws it again; in a deployment each client draws its own.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
import dataclasses
from typing import Optional

import numpy as np

from quap_tff import methods
from quap_tff.common import flag_fields
from quap_tff.common import lazy
from quap_tff.common import registry
from quap_tff.common.lazy import tf
from quap_tff.common.numbers import seeds
from quap_tff.mechanisms import mechanism
from quap_tff.mechanisms.noise import gaussian
from quap_tff.mechanisms.parts import budgets
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.parts import layers as layers_lib
from quap_tff.mechanisms.parts import participation as participations
from quap_tff.mechanisms.quap import config as configs
from quap_tff.methods import base
from quap_tff.methods import choices

quap = lazy.module('quap_tff.mechanisms.quap.rounds')

# Room for the rounding of the clipped entries.
CLIP_MARGIN = 2.0**-20
# How far one client's message moves if its data are replaced, in units of the clipping norm.
SENSITIVITY = 2.0

_LOCAL_BUDGETS = ('participation', 'uniform')
_TRUST_NOTE = (
  'The figures hold against the server itself if each client draws its own noise. In this simulation all noise '
  "follows from one seed in the server's state."
)


@dataclasses.dataclass(frozen=True)
class LocalPrivacy(mechanism.Configured):
  """Local privacy.

  Attributes:
    config: Population, budgets, participation, a fixed clipping norm on all layers, and noise at the clients.
  """

  config: configs.QuapConfig

  def __post_init__(self) -> None:
    super().__post_init__()
    config = self.config
    if config.noise.placement != 'client':
      raise ValueError(
        f'Local privacy needs noise at the clients (placement "client"), found {config.noise.placement!r}.'
      )
    if not isinstance(config.clip, clip_rules.Fixed):
      raise ValueError(
        f'Under local privacy no client sends the norm of its update, but clip rule {config.clip!r} needs the norms or '
        'does not clip: use clip rule fixed.'
      )
    if config.critical_layers != layers_lib.ALL or config.clip_scope != 'all_layers':
      raise ValueError(
        'Local privacy covers everything that a client sends: use critical_layers="all" and clip_scope="all_layers".'
      )

  @property
  def facts(self) -> mechanism.Facts:
    return self.config.facts._replace(trust='client', trust_note=_TRUST_NOTE)

  def for_model(
    self, specs: mechanism.Specs, layers: mechanism.Layers, learning_rate_fn: mechanism.LearningRateFn = None
  ) -> mechanism.Rounds:
    return LocalRounds(self.config, specs)

  def scaled(self, factor: float) -> LocalPrivacy:
    return LocalPrivacy(self.config.scaled(factor))

  def seen(self, state: mechanism.State) -> mechanism.Evidence:
    return self.config.seen(state)

  def spent(self, state: mechanism.State, metrics: mechanism.Measurements, cohort: np.ndarray) -> mechanism.RoundRecord:
    return self._by_message(self.config.spent(state, metrics, cohort))

  def planned(self, cohorts: Sequence[np.ndarray]) -> list[mechanism.RoundRecord]:
    return [self._by_message(spent) for spent in self.config.planned(cohorts)]

  def _by_message(self, spent: mechanism.RoundRecord) -> mechanism.RoundRecord:
    # The ledger has one noise multiplier for each round, and clients have one each. With the smallest one, and with the
    # weight min_j z_j(t)/z_i(t), weight over multiplier is 1/z_i(t).
    multipliers = np.asarray(self.config.multiplier(np.asarray(spent.budgets, np.float64)))
    smallest = float(multipliers.min(initial=np.inf)) if len(spent.cohort) else 0.0
    assert spent.clipping_norm is not None
    return spent._replace(
      weights=smallest / multipliers,
      noise_multiplier=smallest,
      # No norms are sent, so there is no noised count of them.
      count_noise_multiplier=np.inf,
      # The most that a client's data can move its message.
      clipping_norm=SENSITIVITY * spent.clipping_norm,
    )


class LocalRounds(mechanism.Rounds):
  """Local privacy's functions for updates of known tensors. The state is that of QuAP-FL's rounds."""

  def __init__(self, config: configs.QuapConfig, specs: mechanism.Specs):
    self.config, self.specs = config, specs

  def initial_state(self) -> mechanism.State:
    # One layer with all tensors: which layer is critical has no meaning here.
    every = (layers_lib.Layer('all', tuple(range(len(self.specs))), False),)
    return quap.QuapRounds(self.config, self.specs, every).initial_state()

  def announce(self, state: mechanism.State) -> mechanism.Struct:
    # A client needs its own rate only; the simulation sends all of them, as it does the seed.
    return collections.OrderedDict(clip=state.clip, **quap.announced_budgets(self.config, state))

  def report(self, update: list[tf.Tensor], own: mechanism.Struct, announced: mechanism.Struct) -> mechanism.Struct:
    # Not even a norm: it would leave the client without noise.
    return collections.OrderedDict(client_id=own['client_id'])

  def admit(
    self, state: mechanism.State, announced: mechanism.Struct, reports: mechanism.Struct
  ) -> mechanism.AdmittedRound:
    """The metrics follow from who takes part. `noise_multiplier` is the smallest one of a message of the cohort."""
    config = self.config
    ids = mechanism.checked_ids(config.num_clients, reports['client_id'])
    round_num, size = state.round + 1, tf.size(ids)
    participation = participations.next_state(config.participation, state.participation, ids, round_num)
    rates = tf.gather(participations.rates(config.participation, participation, round_num), ids)
    in_warmup = participations.in_warmup(config.participation, round_num)
    epsilons = budgets.client_budgets(config.budget, rates, in_warmup) * config.budget.factor(round_num)
    multipliers = config.multiplier(tf.cast(epsilons, tf.float64))
    divisor = tf.maximum(tf.cast(size, tf.float64), 1.0)
    sigma = tf.cast(SENSITIVITY * tf.cast(state.clip, tf.float64) * tf.norm(multipliers) / divisor, tf.float32)
    smallest = tf.cast(tf.where(size > 0, tf.reduce_min(multipliers), 0.0), tf.float32)
    return mechanism.AdmittedRound(
      client_ids=ids,
      weights=tf.ones_like(rates),
      clip=state.clip,
      noise_multiplier=smallest,
      sigma=sigma,
      after=state._replace(
        round=round_num,
        participation=participation,
        noise=state.noise._replace(counter=state.noise.counter + tf.cast(size > 0, tf.int64)),
      ),
      metrics=collections.OrderedDict(
        round=round_num,
        cohort_size=size,
        epsilon=tf.math.divide_no_nan(tf.reduce_sum(epsilons), tf.cast(size, tf.float32)),
        clipping_norm=state.clip,
        noise_multiplier=smallest,
        sigma=sigma,
        **mechanism.participation_metrics(config, participation, round_num),
      ),
    )

  def contribution(
    self,
    update: mechanism.Parts,
    report: mechanism.Struct,
    announced: mechanism.Struct,
    clip: Optional[tf.Tensor] = None,
  ) -> list[tf.Tensor]:
    """A client's message: its clipped update and N(0, (2·C·z)²) on each entry, in the update's dtypes.

    | update             | what is noised               |
    | any entry NaN, inf | zeros                        |
    | norm at most C     | the update                   |
    | else               | the update, scaled to norm C |
    """
    multiplier = quap.own_multiplier(self.config, report['client_id'], announced, tf.float64)
    bound = tf.cast(announced['clip'], tf.float64)
    # In float64, so that rounding stays within `CLIP_MARGIN`.
    exact = [tf.cast(u, tf.float64) for u in update.values()]
    norm = clip_rules.global_norm(exact)
    factor = tf.minimum(tf.ones_like(norm), bound * (1 - CLIP_MARGIN) / tf.maximum(norm, np.finfo(np.float64).tiny))
    # What is not finite counts as zero, and only the client knows: its message has noise as any other.
    clipped = [tf.where(tf.math.is_finite(norm), u * factor, tf.zeros_like(u)) for u in exact]
    # By client: two clients that drew the same noise would show the difference of their updates.
    seed = seeds.fold_in(announced['seed'], report['client_id'])
    noise = gaussian.noises(seed, exact, SENSITIVITY * bound * multiplier)
    # One rounding, after the noise: post-processing.
    return [tf.cast(c + n, u.dtype) for c, n, u in zip(clipped, noise, update.values())]

  def release(
    self, state: mechanism.State, admitted: mechanism.AdmittedRound, total: list[tf.Tensor]
  ) -> tuple[mechanism.State, list[tf.Tensor], mechanism.Struct]:
    # With nobody, the sum is zero and stays zero.
    divisor = tf.maximum(tf.cast(admitted.metrics['cohort_size'], tf.float64), 1.0)
    return admitted.after, [t / tf.cast(divisor, t.dtype) for t in total], admitted.metrics


@dataclasses.dataclass(frozen=True)
class LocalDp(choices.Shape, choices.SparseChoice, choices.ServerOptimizer, choices.Calibrated, base.SimpleMethod):
  """Local differential privacy: each client adds its own Gaussian noise to everything that it sends.

  A message is the client's update, clipped to norm C, plus N(0, (2·C·z(ε_i(t), δ))²) on every weight
  (`experiments.systems.local_dp`). It is (ε_i(t), δ)-private for the client's whole data against the server.

  Attributes:
    clip: C. No client sends a norm, so C cannot follow the norms.
    budget: 'participation': ε_i(t) follows QuAP-FL's budgets, with --alpha, --beta and the flags of rates. 'uniform':
      ε_base for everyone.
  """

  title = 'Local DP'

  clip: float = 1.0
  budget: str = 'participation'

  def __post_init__(self) -> None:
    clip_rules.Fixed(self.clip)
    if self.budget not in _LOCAL_BUDGETS:
      raise registry.unknown_name_error('local budget', self.budget, _LOCAL_BUDGETS)

  def flag_names(self) -> frozenset[str]:
    return super().flag_names() - (flag_fields.flags_of(choices.Shape).keys() if self.budget == 'uniform' else set())

  def configure(self, setting: base.Setting) -> LocalPrivacy:
    if setting.asks_client_metrics:
      raise ValueError(
        '--client_metrics: under local_dp a client sends its noised update and nothing else, so there are no '
        'training metrics. Leave this flag out.'
      )
    if self.budget == 'uniform':
      budget = budgets.BudgetConfig(self.epsilon, setting.rounds, round_rule='uniform')
      rates = participations.ParticipationConfig()
    else:
      budget = budgets.BudgetConfig(self.epsilon, setting.rounds, self.alpha, self.beta)
      rates = self.rates()
    config = configs.QuapConfig(
      num_clients=setting.num_clients,
      budget=budget,
      participation=rates,
      clip=clip_rules.Fixed(self.clip),
      clip_scope='all_layers',
      critical_layers=layers_lib.ALL,
      noise=configs.NoiseConfig(placement='client', delta=self.delta, calibration='analytic', seed=self.noise_seed),
    )
    return LocalPrivacy(config)


methods.METHODS['local_dp'] = LocalDp
