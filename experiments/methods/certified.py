"""Certified QuAP-FL as a method."""

from __future__ import annotations

import dataclasses
from typing import Optional

import numpy as np

from data import rng
from experiments.methods import base
from quap_tff import plans
from quap_tff.common import checks
from quap_tff.common import registry
from quap_tff.mechanisms import certified_config as certified_configs
from quap_tff.mechanisms import clip_rules
from quap_tff.mechanisms import clip_split
from quap_tff.mechanisms import correlation as correlations
from quap_tff.mechanisms import participation as participations
from quap_tff.mechanisms import weight_rules

_COUNT_STDDEV = 20.0


@dataclasses.dataclass(frozen=True)
class Certified(base.Method):
  """Certified QuAP-FL: a guarantee for the whole released model. No client exceeds the budget of --epsilon and --delta.

  Attributes:
    weights: The rule for the clients' weights, a spec of `certified.weight_rules.RULES`. 'participation' uses --alpha
      and --beta.
    noise: How the noise of a round takes back noise of earlier rounds, a spec of `correlation.FAMILIES`.
    clip: The clipping norm. With `quantile`, the first clipping norm.
    quantile: If given, Andrew et al.'s private quantile tracks this quantile of the norms.
    count_stddev: The standard deviation of the noised count that the private quantile needs, 20 by default. Only with
      `quantile`.
    clip_split: How the clipping norm is divided among layers.
    own: Bounds that clients choose for themselves, as pairs share/ε: 0.34/1/0.43/2/0.23/3 gives 34% of the clients
      ε = 1, 43% ε = 2 and 23% ε = 3, by --seed. The largest must be --epsilon. Empty: --epsilon for everyone.
    noise_multiplier: z. None for the z that makes the most of the budgets over the planned rounds.
    certificate: Whether the run ends with a certificate. Without one, the run is a rehearsal: --noise_seed and
      --client_metrics may be given, which no certificate covers.
  """

  withholds_client_metrics = True
  noise_of_its_own = True
  takes_sparsity = True
  plans_averaging = True
  # The noise was chosen for the planned cohorts, and the certificate speaks of them.
  charges_absent = True

  weights: str = 'participation'
  noise: str = 'independent'
  clip: float = 1.0
  quantile: Optional[float] = None
  count_stddev: Optional[float] = None
  clip_split: str = 'joint'
  own: tuple = ()
  noise_multiplier: Optional[float] = None
  certificate: bool = True

  def __post_init__(self):
    self._weight_rule()
    registry.parse_spec('noise correlation', self.noise, correlations.FAMILIES)
    registry.lookup('clip split', self.clip_split, clip_split.SPLITS)
    if self.noise_multiplier is not None:
      checks.number('noise_multiplier', self.noise_multiplier, above=0)
    self._clip_rule()
    if self._weight_rule().needs_own_bounds and not self.own:
      raise ValueError(
        f'weights={self.weights} follows bounds that clients choose, and everyone has --epsilon. Give own, such as '
        'own=0.34/1/0.43/2/0.23/3, or choose other weights.'
      )
    if len(self.own) % 2 or (self.own and abs(sum(self.own[::2]) - 1) > 1e-6):
      raise ValueError(f'own must be pairs share/ε whose shares add up to 1, found {"/".join(map(str, self.own))!r}.')
    for share, epsilon in zip(self.own[::2], self.own[1::2]):
      checks.number('share of clients in own', share, above=0, at_most=1)
      checks.number('ε in own', epsilon, above=0)

  @property
  def _follows_rates(self) -> bool:
    return self.weights.partition(':')[0] == 'participation'

  @property
  def unused(self):
    names = {
      'calibration',
      'round_budget',
      'clip',
      'clip_scope',
      'noise',
      'gaussian_calibration',
      'critical_layers',
      'max_agg_norm',
      'update_scale',
    }
    if self.weights == 'participation':
      return frozenset(names)
    return frozenset(names | ({'alpha', 'beta'} if self._follows_rates else base.OF_BUDGETS))

  @property
  def gives_certificate(self):
    return self.certificate

  def _weight_rule(self, values=None):
    rule = registry.parse_spec('weight rule', self.weights, weight_rules.RULES)
    if values is not None and self.weights == 'participation':
      return weight_rules.Participation(alpha=values.alpha, beta=values.beta)
    return rule

  def _own_epsilon(self, values, num_clients):
    """float[N], who has which bound; None if everyone has --epsilon. A pure function of the seed."""
    if not self.own:
      return None
    if max(self.own[1::2]) != values.epsilon:
      raise ValueError(
        f'--epsilon={values.epsilon:g} must be the largest of the bounds that clients choose, which is '
        f'{max(self.own[1::2]):g}.'
      )
    ends = np.round(np.cumsum(self.own[::2]) * num_clients).astype(int)
    order = rng.generator(values.seed, 'own_budgets').permutation(num_clients)
    bounds = np.full(num_clients, min(self.own[1::2]))
    for begin, end, epsilon in zip([0, *ends], ends, self.own[1::2]):
      bounds[order[begin:end]] = epsilon
    return tuple(bounds.tolist())

  def _clip_rule(self):
    if self.quantile is None:
      if self.count_stddev is not None:
        raise ValueError(
          f'count_stddev={self.count_stddev:g} is the noise on the counts of a private quantile, and this run has '
          'none. Leave it out, or give quantile, such as quantile=0.5.'
        )
      return clip_rules.Fixed(self.clip)
    stddev = _COUNT_STDDEV if self.count_stddev is None else self.count_stddev
    return clip_rules.PrivateQuantile(self.quantile, initial_clip=self.clip, count_stddev=stddev)

  def configure(self, values, num_clients):
    if self.certificate and (values.noise_seed is not None or values.client_metrics):
      name = '--noise_seed' if values.noise_seed is not None else '--client_metrics'
      raise ValueError(
        f'{name}: a certified run cannot have this flag, because the certificate would not hold. Leave it out, or '
        'mark the run as a rehearsal: --algorithm=certified:certificate=false.'
      )
    correlation = registry.parse_spec('noise correlation', self.noise, correlations.FAMILIES)
    if base.sparsity_of(values).is_sparse and not isinstance(correlation, correlations.Independent):
      raise ValueError(
        f'--sparsity={values.sparsity}: under noise={self.noise}, a round would take back noise of other weights '
        'than those it updates. Use noise=independent, or --sparsity=none.'
      )
    return certified_configs.CertifiedConfig(
      num_clients=num_clients,
      epsilon=values.epsilon,
      delta=values.delta,
      noise_multiplier=self.noise_multiplier,
      correlation=correlation,
      num_rounds=values.rounds,
      weights=self._weight_rule(values),
      # The other rules do not use the rates, so the flags of the rates have no effect on them.
      participation=(
        base.participation_config(values) if self._follows_rates else participations.ParticipationConfig()
      ),
      clip=self._clip_rule(),
      clip_split=self.clip_split,
      own_epsilon=self._own_epsilon(values, num_clients),
      noise_seed=values.noise_seed,
    )

  def aggregates_once(self, config):
    # The weights depend on who is in the cohort, so that must be known first.
    return False

  def plan(self, config, setting):
    return plans.CertifiedPlan(config, setting.schedule, averaging=setting.averaging, **setting.options)
