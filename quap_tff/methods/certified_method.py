"""Certified QuAP-FL as a method."""

from __future__ import annotations

import collections
from collections.abc import Mapping
import dataclasses
from typing import Any, Optional

import numpy as np

from quap_tff import accounting
from quap_tff import plans
from quap_tff.common import checks
from quap_tff.common import flag_fields
from quap_tff.common import registry
from quap_tff.mechanisms.certified import config as certified_configs
from quap_tff.mechanisms.certified import guarantee
from quap_tff.mechanisms.certified import weight_rules
from quap_tff.mechanisms.held import config as held_config
from quap_tff.mechanisms.noise import correlation as correlations
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.parts import layers as layers_lib
from quap_tff.mechanisms.secret_cohorts import config as secret_config
from quap_tff.methods import base
from quap_tff.methods import choices

_COUNT_STDDEV = 20.0


@dataclasses.dataclass(frozen=True)
class ByParticipation(choices.Rates):
  """`weight_rules.ParticipationWeights`, whose parameters are --alpha and --beta if none is given.

  Attributes:
    alpha: α >= 0.
    beta: β > 0.
  """

  needs_own_bounds = False

  alpha: Optional[float] = None
  beta: Optional[float] = None

  def __post_init__(self) -> None:
    self.rule({})

  @property
  def follows_flags(self) -> bool:
    """True if neither parameter is given."""
    return self.alpha is None and self.beta is None

  def rule(self, flags: dict[str, float]) -> weight_rules.ParticipationWeights:
    """The rule. `flags` are --alpha and --beta."""
    if self.follows_flags:
      return weight_rules.ParticipationWeights(**flags)
    parameters = {name: value for name, value in registry.parameter_values(self).items() if value is not None}
    return weight_rules.ParticipationWeights(**parameters)


_TRUSTS = (certified_configs.CertifiedConfig.trust, held_config.HeldConfig.trust)
# The rules that users add are among them.
WEIGHTS: Mapping[str, Any] = collections.ChainMap({'participation': ByParticipation}, weight_rules.RULES)


def _checked_count(count: float) -> int:
  """A number of colluders, which a spec may write as 2.0."""
  whole = int(count) if count == int(count) else count
  return checks.integer('colluders', whole, at_least=1)


@dataclasses.dataclass(frozen=True)
class CertifiedMethod(
  choices.SparseChoice, choices.ServerOptimizer, choices.Tuned, choices.Spent, choices.Budget, base.Method
):
  """Certified QuAP-FL: a guarantee for the whole released model. No client exceeds the budget of --epsilon and --delta.

  Attributes:
    weights: The rule for the clients' weights, a spec of `WEIGHTS`. auto: 'online' with trust=server, and
      'spend_evenly', the only one, with trust=secure_sum. 'participation' uses --alpha and --beta.
    noise: How the noise of a round takes back noise of earlier rounds, a spec of `correlation.FAMILIES`. auto: 'ar1'
      with trust=server, 'held' with trust=secure_sum, and 'independent' with a threshold or with secret cohorts.
    clip: The clipping norm. With `quantile`, the first clipping norm. auto: by the rounds, the size of cohorts and the
      step of --server_optimizer (`clip_rules.public_norm`). It follows from no client's data.
    quantile: If given, Andrew et al.'s private quantile tracks this quantile of the norms.
    count_stddev: The standard deviation of the noised count that the private quantile needs, 20 by default. Only with
      `quantile`.
    clip_split: How the clipping norm is divided among layers.
    own: Bounds that clients choose for themselves, as pairs share/ε: 0.34/1/0.43/2/0.23/3 gives 34% of the clients
      ε = 1, 43% ε = 2 and 23% ε = 3, by --seed. The largest must be --epsilon. Empty: --epsilon for everyone.
    noise_multiplier: z. None for the z that makes the most of the budgets over the planned rounds.
    trust: 'server', which sees updates and adds the noise. Or 'secure_sum': clients hold the noise, and the server sees
      only their secure sum; `noise` is then held or independent.
    colluders: Numbers of clients that may tell the server their noise, such as 10/30. The certificate gives ε for each.
    threshold: The smallest share of a round's clients with which the secure sum opens, such as 0.67: the one of its
      protocol, if it has one. The noise is then enough for whichever others a server lets drop out. Only with
      trust=secure_sum and noise=independent. Without it, figures hold against the server only if the sum opens for all
      announced clients or for nobody, and the server tells them truthfully who they are.
    expected: A seed. The noise is chosen from other rounds, which --participation draws with it. The certificate is
      then for cohorts as they came. None: the noise is chosen from the rounds themselves, which are the public
      schedule.
    certificate: Whether the run ends with a certificate. Without one, the run is a rehearsal: --noise_seed and
      --client_metrics may be given, which no certificate covers.
  """

  title = 'Certified QuAP-FL'
  divides_by_planned_cohort = True
  follows_public_rule = True

  epsilon: float = flag_fields.flag(3.0, differs=True)

  weights: Optional[weight_rules.WeightRule] = flag_fields.parameter('weight rule', WEIGHTS, None)
  noise: Optional[correlations.Correlation] = flag_fields.parameter('noise correlation', correlations.FAMILIES, None)
  clip: Optional[float] = dataclasses.field(default=None, metadata={registry.CHOSEN: True})
  quantile: Optional[float] = None
  count_stddev: Optional[float] = None
  clip_split: str = 'joint'
  own: tuple = ()
  noise_multiplier: Optional[float] = None
  trust: str = 'server'
  colluders: tuple = ()
  threshold: Optional[float] = None
  expected: Optional[int] = None
  certificate: bool = True
  shape: choices.Shape = flag_fields.part(choices.Shape())

  def __post_init__(self) -> None:
    registry.lookup('clip split', self.clip_split, layers_lib.CLIP_SPLITS)
    if self.noise_multiplier is not None:
      checks.number('noise_multiplier', self.noise_multiplier, above=0)
    registry.lookup('trust', self.trust, dict.fromkeys(_TRUSTS))
    if self.holds_noise:
      self._check_held()
    elif self.colluders or self.threshold is not None or isinstance(self.correlation, correlations.HeldNoise):
      raise ValueError(
        'noise=held, colluders and threshold are for clients that hold noise because nobody trusts the server. Give '
        'trust=secure_sum, or leave them out.'
      )
    if self.expected is not None:
      whole = int(self.expected) if self.expected == int(self.expected) else self.expected
      object.__setattr__(self, 'expected', checks.integer('expected', whole, at_least=0))
      if self.colluders:
        raise ValueError(
          'colluders: no ε against them is stated for cohorts as they come. Leave colluders or expected out.'
        )
      if isinstance(self.weight_rule, weight_rules.SpendEvenly) and not self.holds_noise:
        raise ValueError(
          'weights=spend_evenly spreads each budget over the rounds of its client, so it needs a schedule, and with '
          'expected there is none. Leave one of them out.'
        )
    self._clip_rule(1.0)
    if self.weight_rule.needs_own_bounds and not self.own:
      raise ValueError(
        f'weights={registry.name_of(self.weight_rule, WEIGHTS)} follows bounds that clients choose, and everyone has '
        '--epsilon. Give own, such as own=0.34/1/0.43/2/0.23/3, or choose other weights.'
      )
    if len(self.own) % 2 or (self.own and abs(sum(self.own[::2]) - 1) > 1e-6):
      raise ValueError(f'own must be pairs share/ε whose shares add up to 1, found {"/".join(map(str, self.own))!r}.')
    for share, epsilon in zip(self.own[::2], self.own[1::2]):
      checks.number('share of clients in own', share, above=0, at_most=1)
      checks.number('ε in own', epsilon, above=0)

  @property
  def holds_noise(self) -> bool:
    """True if clients hold the noise."""
    return self.trust == 'secure_sum'

  @property
  def weight_rule(self) -> weight_rules.WeightRule:
    """`weights`, or the rule that suits the trust."""
    if self.weights is not None:
      return self.weights
    return weight_rules.SpendEvenly() if self.holds_noise else weight_rules.Online()

  @property
  def correlation(self) -> correlations.Correlation:
    """`noise`, or the correlation that suits the trust."""
    if self.noise is not None:
      return self.noise
    if not self.holds_noise:
      return correlations.Ar1()
    return correlations.HeldNoise() if self.threshold is None else correlations.Independent()

  @property
  def written_out(self) -> CertifiedMethod:
    return dataclasses.replace(self, weights=self.weight_rule, noise=self.correlation)

  def _check_held(self) -> None:
    if not isinstance(self.correlation, (correlations.HeldNoise, correlations.Independent)):
      raise ValueError(
        f'noise={registry.name_of(self.correlation, correlations.FAMILIES)} needs a server that remembers the noise, '
        'and trust=secure_sum has none. Use noise=held or noise=independent.'
      )
    if self.quantile is not None:
      raise ValueError(
        'quantile: a private quantile needs counts of norms, and with trust=secure_sum clients add no noise to counts. '
        'Leave it out.'
      )
    if not isinstance(self.weight_rule, weight_rules.SpendEvenly):
      raise ValueError(
        f'weights={registry.name_of(self.weight_rule, WEIGHTS)}: with trust=secure_sum, weights are planned so that '
        'budgets are spent evenly over the public schedule. Leave weights out.'
      )
    if self.noise_multiplier is not None:
      raise ValueError('noise_multiplier: with trust=secure_sum the noise is planned from the schedule. Leave it out.')
    if self.threshold is not None and (self.colluders or isinstance(self.correlation, correlations.HeldNoise)):
      raise ValueError(
        'threshold: the account of whichever clients drop out is known for independent noise, and without colluders. '
        'Give noise=independent without colluders, or leave threshold out.'
      )
    object.__setattr__(self, 'colluders', tuple(map(_checked_count, self.colluders)))

  def flag_names(self) -> frozenset[str]:
    # --alpha and --beta are for weights that have none of their own, and flags of rates for weights that follow rates.
    names = super().flag_names() - flag_fields.flags_of(choices.Shape).keys()
    if isinstance(self.weight_rule, ByParticipation):
      names |= flag_fields.flags_of(choices.Rates).keys() | (
        {'alpha', 'beta'} if self.weight_rule.follows_flags else set()
      )
    return names

  @property
  def clip_follows_rounds(self) -> bool:
    return self.clip is None

  @property
  def gives_certificate(self) -> bool:
    return self.certificate

  def check_cohorts(self, setting: base.Setting) -> None:
    if self.spent is not None:
      self.configure(setting)

  def _spent_before(self, setting: base.Setting) -> Optional[accounting.SpentBefore]:
    """The cost of what was released about each client before; None for nothing."""
    if self.spent is None or setting.participation is None:  # Facts are asked for before the clients are known.
      return None
    try:
      return accounting.read_spent(self.spent, setting.num_clients)
    except (OSError, ValueError) as error:
      raise ValueError(f'--spent: {error}') from error

  def _own_epsilon(self, setting: base.Setting) -> Optional[tuple[float, ...]]:
    """float[N], the bound of each client; None if everyone has --epsilon. A pure function of the seed."""
    if not self.own:
      return None
    if max(self.own[1::2]) != self.epsilon:
      raise ValueError(
        f'--epsilon={self.epsilon:g} must be the largest of the bounds that clients choose, which is '
        f'{max(self.own[1::2]):g}.'
      )
    ends = np.round(np.cumsum(self.own[::2]) * setting.num_clients).astype(int)
    assert setting.order is not None
    order = setting.order()
    bounds = np.full(setting.num_clients, min(self.own[1::2]))
    for begin, end, epsilon in zip([0, *ends], ends, self.own[1::2]):
      bounds[order[begin:end]] = epsilon
    return tuple(bounds.tolist())

  def _clip_rule(self, chosen: float) -> clip_rules.ClipRule:
    clip = chosen if self.clip is None else self.clip
    if self.quantile is None:
      if self.count_stddev is not None:
        raise ValueError(
          f'count_stddev={self.count_stddev:g} is the noise on the counts of a private quantile, and this run has '
          'none. Leave it out, or give quantile, such as quantile=0.5.'
        )
      return clip_rules.Fixed(clip)
    stddev = _COUNT_STDDEV if self.count_stddev is None else self.count_stddev
    return clip_rules.PrivateQuantile(self.quantile, initial_clip=clip, count_stddev=stddev)

  def configure(self, setting: base.Setting) -> guarantee.GuaranteeConfig:
    if self.certificate and (self.noise_seed is not None or setting.asks_client_metrics):
      name = '--noise_seed' if self.noise_seed is not None else '--client_metrics'
      raise ValueError(
        f'{name}: a certified run cannot have this flag, because the certificate would not hold. Leave it out, or '
        'mark the run as a rehearsal: --algorithm=certified:certificate=false.'
      )
    if self.certificate and not self.tuning.strip():
      raise ValueError(
        '--tuning must be a sentence for the certificate, on how the constants of the run were chosen; it is empty. '
        'Write one, or leave this flag out.'
      )
    if self.sparsity.is_sparse and self.correlation != correlations.Independent():
      raise ValueError(
        f'--sparsity: under noise={registry.name_of(self.correlation, correlations.FAMILIES)}, a round would take back '
        'noise of other weights than those it updates. Use noise=independent, or --sparsity=none.'
      )
    norm = clip_rules.public_norm(setting.rounds, self.server_optimizer.length, setting.mean_cohort_size)
    shared: dict[str, checks.Unchecked] = dict(
      num_clients=setting.num_clients,
      epsilon=self.epsilon,
      delta=self.delta,
      noise_multiplier=self.noise_multiplier,
      num_rounds=setting.rounds,
      clip=self._clip_rule(norm),
      clip_split=self.clip_split,
      own_epsilon=self._own_epsilon(setting),
      spent_before=self._spent_before(setting),
      noise_seed=self.noise_seed,
    )
    if setting.has_secret_cohorts:
      return self._with_secret_cohorts(setting, shared)
    if self.holds_noise:
      noise = self.correlation if isinstance(self.correlation, correlations.HeldNoise) else correlations.HeldNoise(0.0)
      return held_config.HeldConfig(**shared, correlation=noise, dropout=setting.mean_dropout, threshold=self.threshold)
    weights = self.weight_rule
    if isinstance(weights, ByParticipation):
      shared['participation'] = weights.rates()
      weights = weights.rule(dict(alpha=self.shape.alpha, beta=self.shape.beta))
    return certified_configs.CertifiedConfig(**shared, correlation=self.correlation, weights=weights)

  def _with_secret_cohorts(self, setting: base.Setting, shared: dict[str, Any]) -> secret_config.SecretCohortsConfig:
    refused = '--cohort_seed=secret'
    if self.holds_noise:
      raise ValueError(
        f'{refused}: with trust=secure_sum, clients see who is announced, so cohorts are not secret from them. Use '
        'trust=server, or leave this flag out.'
      )
    if self.weights is not None:
      raise ValueError(f'{refused}: weights follow from the rates of the coins alone. Leave weights out.')
    if self.correlation != correlations.Independent() and self.noise is not None:
      raise ValueError(
        f'{refused}: noise={registry.name_of(self.noise, correlations.FAMILIES)} has no proof for secret coins. Leave '
        'noise out, which makes it independent.'
      )
    if self.expected is not None:
      raise ValueError(f'{refused}: the noise follows from rates, and expects no rounds. Leave expected out.')
    if self.spent is not None:
      raise ValueError(
        f'{refused}: --spent counts μ², and a run with secret cohorts has an account of another kind. Leave it out, or '
        'use public cohorts.'
      )
    rates = [1.0] * setting.num_clients
    if setting.participation is not None:  # Facts are asked for before the clients are known.
      coins = setting.participation.sampler.rates
      assert coins is not None  # Other models have no secret cohorts.
      rates = coins.tolist()
    return secret_config.SecretCohortsConfig(**shared, rates=tuple(rates))

  def plan(self, setting: base.Setting) -> plans.Plan:
    if setting.has_secret_cohorts:
      return plans.Plan.certified(self.configure(setting), certificate=self.certificate, **vars(setting.options))
    if self.expected is not None:
      assert setting.reseeded is not None
      others = setting.reseeded(self.expected)
      cohort = others.drawn if self.holds_noise else others.cohort
      more: dict[str, checks.Unchecked] = dict(expected=setting.rounds_of(cohort))
    elif self.holds_noise:
      more = dict(schedule=setting.drawn_schedule, attendance=setting.schedule, colluders=self.colluders)
    else:
      assert setting.participation is not None
      more = dict(schedule=setting.schedule, min_separation=setting.participation.min_separation)
    return plans.Plan.certified(self.configure(setting), certificate=self.certificate, **more, **vars(setting.options))
