"""The methods that --algorithm can name. A new method is a class here and a line in `METHODS`.

A method is a frozen dataclass of its own parameters, parsed from a spec. `configure` makes its mechanism from the
flags. `plan` then makes the plan of a run: a `quap_tff.plans.Plan`, which gives the learning process, the account and
the statements.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, ClassVar, Dict, FrozenSet, NamedTuple, Optional, Type

from data import cohorts
from quap_tff import budgets
from quap_tff import checks
from quap_tff import clip_rules
from quap_tff import config as configs
from quap_tff import correlation as correlations
from quap_tff import layers as layers_lib
from quap_tff import participation as participations
from quap_tff import plans
from quap_tff import postprocessing
from quap_tff import registry
from quap_tff.certified import clip_split
from quap_tff.certified import config as certified_configs
from quap_tff.certified import weight_rules
from quap_tff.plans import stock_tff

CALIBRATIONS = stock_tff.CALIBRATIONS

_OF_BUDGETS = frozenset({
    'alpha', 'beta', 'round_budget', 'participation_rate', 'ema_weight', 'warmup_rounds', 'count_during_warmup'
})
_OF_NOISE = frozenset({'epsilon', 'delta', 'calibration', 'noise', 'gaussian_calibration', 'noise_seed'})
_OF_CLIP = frozenset({'clip', 'clip_scope', 'max_agg_norm', 'critical_layers', 'update_scale'})
_TUNING = frozenset({'tuning'})


class Setting(NamedTuple):
  """What a plan takes besides the mechanism.

  Attributes:
    participation: Who takes part in which round.
    rounds: T, the planned rounds.
    calibration: One of `CALIBRATIONS`.
    averaging: How the released weights are averaged. A certified plan chooses its noise for this average.
    options: The options of the plan: what else is released with the model, and the model's shape.
  """

  participation: cohorts.ParticipationModel
  rounds: int
  calibration: str
  averaging: postprocessing.Averaging
  options: Dict[str, Any]

  @property
  def schedule(self):
    """int64[M_t] for each planned round."""
    return [self.participation.cohort(round_num) for round_num in range(1, self.rounds + 1)]


@dataclasses.dataclass(frozen=True)
class Method(abc.ABC):
  """A choice of --algorithm and its parameters.

  Attributes:
    unused: Names of flags that have no effect on this method.
    withholds_client_metrics: Whether exact functions of clients' data are kept only if the user asks for that.
    noise_of_its_own: Whether the method decides by itself if it adds noise, whatever --noise says.
    gives_certificate: Whether a run ends with a certificate. Then nothing exact about clients' data may be released,
      not even a figure on held-out examples of the clients themselves.
    plans_averaging: Whether the published average can be chosen together with the noise.
  """

  unused: ClassVar[FrozenSet[str]] = _TUNING
  withholds_client_metrics: ClassVar[bool] = False
  noise_of_its_own: ClassVar[bool] = False
  gives_certificate: ClassVar[bool] = False
  plans_averaging: ClassVar[bool] = False

  @abc.abstractmethod
  def configure(self, values: Any, num_clients: int) -> Any:
    """The mechanism's configuration from the flags. This is cheap, and is called before data are read.

    Raises:
      ValueError: If the method cannot run with these flags.
    """

  def aggregates_once(self, config: Any) -> bool:
    """Whether a round needs only one level of aggregation. Several workers can run nothing else."""
    return not config.clip.uses_current_norms

  @abc.abstractmethod
  def plan(self, config: Any, setting: Setting) -> plans.Plan:
    """The plan of a run."""


def _participation_config(values) -> participations.ParticipationConfig:
  return participations.ParticipationConfig(
      rate=values.participation_rate,
      ema_weight=values.ema_weight,
      warmup_rounds=values.warmup_rounds,
      count_during_warmup=values.count_during_warmup,
  )


def _quap_config(values, num_clients: int, **parts) -> configs.QuapConfig:
  """QuAP-FL's mechanism as the flags describe it. `parts` replace what the flags would give."""
  if 'budget' not in parts:
    parts['budget'] = budgets.BudgetConfig(
        epsilon_total=values.epsilon, num_rounds=values.rounds, alpha=values.alpha, beta=values.beta,
        round_rule=values.round_budget,
    )
  if 'clip' not in parts:
    parts['clip'] = registry.parse_spec('clip rule', values.clip, clip_rules.RULES)
  noise = configs.NoiseConfig(
      placement=parts.pop('placement', values.noise), delta=values.delta, calibration=values.gaussian_calibration,
      seed=values.noise_seed,
  )
  defaults = dict(
      participation=_participation_config(values), clip_scope=values.clip_scope, noise=noise,
      critical_layers=values.critical_layers, max_agg_norm=values.max_agg_norm, update_scale=values.update_scale,
  )
  try:
    return configs.QuapConfig(num_clients=num_clients, **{**defaults, **parts})
  except ValueError as error:
    if 'classic Gaussian calibration' in str(error):
      raise ValueError(f'{error} To run fewer rounds of the same plan, use --stop_after instead of --rounds.') from None
    raise


def _uniform_budget(values) -> budgets.BudgetConfig:
  return budgets.BudgetConfig(epsilon_total=values.epsilon, num_rounds=values.rounds, round_rule='uniform')


@dataclasses.dataclass(frozen=True)
class _Mechanism(Method):
  """A setting of QuAP-FL's own mechanism."""

  def plan(self, config, setting):
    plan = self._plan_class()(config, setting.participation.sampler, **setting.options)
    return plan.calibrated(setting.schedule, config.budget.epsilon_total) if setting.calibration == 'exact' else plan

  def _plan_class(self):
    return plans.QuapPlan


@dataclasses.dataclass(frozen=True)
class _Combination(_Mechanism):
  """One of the eight on/off combinations of QuAP-FL's parts: adaptive budget, adaptive clip, layer-wise noise.

  Flags set the parts that are on: --round_budget, --alpha and others; --clip; --critical_layers. A part that is off is
  as in the baselines: ε_base for everyone; a fixed clipping norm; every layer clipped and noised.
  """

  adaptive_budget: ClassVar[bool] = False
  layerwise: ClassVar[bool] = False

  def configure(self, values, num_clients):
    return _quap_config(values, num_clients, **self._parts(values))

  def _parts(self, values) -> Dict[str, Any]:
    parts = {}
    if not self.adaptive_budget:
      parts['budget'] = _uniform_budget(values)
    if not self.layerwise:
      parts['critical_layers'] = layers_lib.ALL
    return parts


@dataclasses.dataclass(frozen=True)
class _WithFixedClip(_Combination):
  """The clipping norm is `clip` in every round."""

  clip: float = 1.0

  def __post_init__(self):
    clip_rules.Fixed(self.clip)

  def _parts(self, values):
    return {**super()._parts(values), 'clip': clip_rules.Fixed(self.clip)}


def _combination(name: str, doc: str, *, budget: bool, clip: bool, layerwise: bool) -> Type[_Combination]:
  """The class of one combination."""
  unused = _TUNING | (frozenset() if budget else _OF_BUDGETS)
  unused |= (frozenset() if clip else {'clip'}) | (frozenset() if layerwise else {'critical_layers'})
  base = _Combination if clip else _WithFixedClip
  members = dict(
      __doc__=doc, __module__=__name__, adaptive_budget=budget, layerwise=layerwise, unused=frozenset(unused)
  )
  return dataclasses.dataclass(frozen=True)(type(name, (base,), members))


Quap = _combination('Quap', 'QuAP-FL: all three parts.', budget=True, clip=True, layerwise=True)
FixedDp = _combination(
    'FixedDp', 'The documents\' Vanilla, Uniform or Fixed DP-FedAvg: uniform budget, fixed clip, noise everywhere.',
    budget=False, clip=False, layerwise=False,
)
FixedDpLayerwise = _combination(
    'FixedDpLayerwise', 'Uniform budget, fixed clip, layer-wise noise.', budget=False, clip=False, layerwise=True
)
AdaptiveBudget = _combination(
    'AdaptiveBudget', 'Adaptive budget, fixed clip, noise everywhere.', budget=True, clip=False, layerwise=False
)
AdaptiveBudgetLayerwise = _combination(
    'AdaptiveBudgetLayerwise', 'Adaptive budget, fixed clip, layer-wise noise.', budget=True, clip=False, layerwise=True
)
QuantileClip = _combination(
    'QuantileClip', 'Uniform budget, tracked clip, noise everywhere.', budget=False, clip=True, layerwise=False
)
Layerwise = _combination(
    'Layerwise', 'Uniform budget, tracked clip, layer-wise noise: layer-wise DP without participation.',
    budget=False, clip=True, layerwise=True,
)
AdaptiveBudgetClip = _combination(
    'AdaptiveBudgetClip', 'Adaptive budget, tracked clip, noise everywhere.', budget=True, clip=True, layerwise=False
)


@dataclasses.dataclass(frozen=True)
class FedAvg(_Mechanism):
  """Federated averaging without clip and noise. Each client counts the same. This is the documents' upper bound."""

  unused = _TUNING | _OF_BUDGETS | _OF_NOISE | _OF_CLIP
  noise_of_its_own = True

  def configure(self, values, num_clients):
    return configs.QuapConfig(
        num_clients=num_clients,
        budget=budgets.BudgetConfig(num_rounds=values.rounds, round_rule='uniform'),
        participation=_participation_config(values),
        clip=clip_rules.Unclipped(),
        noise=configs.NoiseConfig(placement='none', delta=values.delta),
    )

  def plan(self, config, setting):
    return super().plan(config, setting._replace(calibration='documents'))


@dataclasses.dataclass(frozen=True)
class AdaptiveClip(_Mechanism):
  """The documents' "Adaptive Clipping": Andrew et al.'s private quantile clips every layer, and everyone gets ε_base.

  The fields are those of `clip_rules.PrivateQuantile`.
  """

  unused = _TUNING | _OF_BUDGETS | {'clip', 'critical_layers'}

  quantile: float = 0.5
  initial_clip: float = 1.0
  learning_rate: float = 0.2
  count_stddev: float = 1.0

  def __post_init__(self):
    self._rule()

  def _rule(self):
    return clip_rules.PrivateQuantile(**dataclasses.asdict(self))

  def configure(self, values, num_clients):
    return _quap_config(
        values, num_clients, budget=_uniform_budget(values), clip=self._rule(), critical_layers=layers_lib.ALL
    )


@dataclasses.dataclass(frozen=True)
class PtAdp(_Mechanism):
  """An interpretation. Flags set the clip and the critical layers, as in quap; `plans.PtAdp` sets the budgets.

  The noise is drawn at the server, and is as large as the sum of the noise that each client would have added. There is
  no warm-up: it is meant for participation rates, and these budgets do not follow them.
  """

  unused = _TUNING | _OF_BUDGETS

  participation_credit: float = 0.1
  agreement_credit: float = 0.5

  def __post_init__(self):
    self._rule(0)

  def _rule(self, seed):
    return plans.PtAdp(self.participation_credit, self.agreement_credit, seed)

  def configure(self, values, num_clients):
    budget = budgets.BudgetConfig(
        epsilon_total=values.epsilon, num_rounds=values.rounds, client_rule=self._rule(values.seed),
        round_rule='each_own',
    )
    participation = dataclasses.replace(_participation_config(values), warmup_rounds=0)
    return _quap_config(values, num_clients, budget=budget, participation=participation)

  def _plan_class(self):
    return plans.PtAdpPlan


@dataclasses.dataclass(frozen=True)
class _Stock(Method):
  """One of TFF's own aggregators. Of the mechanism's flags it uses ε, δ and both calibrations."""

  unused = _TUNING | _OF_BUDGETS | _OF_CLIP

  def configure(self, values, num_clients):
    config = _quap_config(
        values, num_clients, budget=_uniform_budget(values), clip=clip_rules.Fixed(1.0), critical_layers=layers_lib.ALL
    )
    return plans.StockPlan.settled(self, config)

  def plan(self, config, setting):
    return plans.StockPlan(
        self, config, setting.schedule, setting.participation.mean_cohort_size, setting.participation.sampler,
        calibration=setting.calibration, **setting.options,
    )


@dataclasses.dataclass(frozen=True)
class TffDpFedAvg(stock_tff.DpFedAvg, _Stock):
  """`plans.DpFedAvg`."""


@dataclasses.dataclass(frozen=True)
class TffDpFedAvgAdaptive(stock_tff.DpFedAvgAdaptive, _Stock):
  """`plans.DpFedAvgAdaptive`."""


@dataclasses.dataclass(frozen=True)
class TffLayerwiseAdaptive(stock_tff.LayerwiseAdaptive, _Stock):
  """`plans.LayerwiseAdaptive`."""


@dataclasses.dataclass(frozen=True)
class TffDpFtrl(stock_tff.DpFtrl, _Stock):
  """`plans.DpFtrl`."""


@dataclasses.dataclass(frozen=True)
class Certified(Method):
  """Certified QuAP-FL: a guarantee for the whole released model. No client exceeds the budget of --epsilon and --delta.

  Attributes:
    weights: The rule for the clients' weights, a spec of `certified.weight_rules.RULES`. 'participation' uses --alpha
      and --beta.
    noise: How the noise of a round takes back noise of earlier rounds, a spec of `correlation.FAMILIES`.
    clip: The clipping norm. With `quantile`, the first clipping norm.
    quantile: If given, Andrew et al.'s private quantile tracks this quantile of the norms.
    count_stddev: The standard deviation of the noised count that the private quantile needs.
    clip_split: How the clipping norm is divided among layers.
    noise_multiplier: z. None for the z that makes the most of the budgets over the planned rounds.
    certificate: Whether the run ends with a certificate. Without one, the run is a rehearsal: --noise_seed and
      --client_metrics may be given, which no certificate covers.
  """

  withholds_client_metrics = True
  noise_of_its_own = True
  plans_averaging = True

  weights: str = 'participation'
  noise: str = 'independent'
  clip: float = 1.0
  quantile: Optional[float] = None
  count_stddev: float = 20.0
  clip_split: str = 'joint'
  noise_multiplier: Optional[float] = None
  certificate: bool = True

  def __post_init__(self):
    self._weight_rule()
    registry.parse_spec('noise correlation', self.noise, correlations.FAMILIES)
    registry.lookup('clip split', self.clip_split, clip_split.SPLITS)
    if self.noise_multiplier is not None:
      checks.number('noise_multiplier', self.noise_multiplier, above=0)
    self._clip_rule()

  @property
  def _follows_rates(self) -> bool:
    return self.weights.partition(':')[0] == 'participation'

  @property
  def unused(self):
    names = {'calibration', 'round_budget', 'clip', 'clip_scope', 'noise', 'gaussian_calibration', 'critical_layers',
             'max_agg_norm', 'update_scale'}
    if self.weights == 'participation':
      return frozenset(names)
    return frozenset(names | ({'alpha', 'beta'} if self._follows_rates else _OF_BUDGETS))

  @property
  def gives_certificate(self):
    return self.certificate

  def _weight_rule(self, values=None):
    rule = registry.parse_spec('weight rule', self.weights, weight_rules.RULES)
    if values is not None and self.weights == 'participation':
      return weight_rules.Participation(alpha=values.alpha, beta=values.beta)
    return rule

  def _clip_rule(self):
    if self.quantile is None:
      return clip_rules.Fixed(self.clip)
    return clip_rules.PrivateQuantile(self.quantile, initial_clip=self.clip, count_stddev=self.count_stddev)

  def configure(self, values, num_clients):
    if self.certificate and (values.noise_seed is not None or values.client_metrics):
      name = '--noise_seed' if values.noise_seed is not None else '--client_metrics'
      raise ValueError(
          f'{name}: a certified run cannot have this flag, because the certificate would not hold. Leave it out, or '
          'mark the run as a rehearsal: --algorithm=certified:certificate=false.'
      )
    return certified_configs.CertifiedConfig(
        num_clients=num_clients,
        epsilon=values.epsilon,
        delta=values.delta,
        noise_multiplier=self.noise_multiplier,
        correlation=registry.parse_spec('noise correlation', self.noise, correlations.FAMILIES),
        num_rounds=values.rounds,
        weights=self._weight_rule(values),
        # The other rules do not use the rates, so the flags of the rates have no effect on them.
        participation=_participation_config(values) if self._follows_rates else participations.ParticipationConfig(),
        clip=self._clip_rule(),
        clip_split=self.clip_split,
        noise_seed=values.noise_seed,
    )

  def aggregates_once(self, config):
    # The weights depend on who is in the cohort, so that must be known first.
    return False

  def plan(self, config, setting):
    return plans.CertifiedPlan(config, setting.schedule, averaging=setting.averaging, **setting.options)


METHODS: Dict[str, Type[Method]] = {
    'quap': Quap,
    'certified': Certified,
    'fedavg': FedAvg,
    'fixed_dp': FixedDp,
    'fixed_dp_layerwise': FixedDpLayerwise,
    'quantile_clip': QuantileClip,
    'layerwise': Layerwise,
    'adaptive_budget': AdaptiveBudget,
    'adaptive_budget_layerwise': AdaptiveBudgetLayerwise,
    'adaptive_budget_clip': AdaptiveBudgetClip,
    'adaptive_clip': AdaptiveClip,
    # An interpretation: the documents name PT-ADP but do not specify it.
    'pt_adp': PtAdp,
    'tff_dp_fedavg': TffDpFedAvg,
    'tff_dp_fedavg_adaptive': TffDpFedAvgAdaptive,
    'tff_layerwise_adaptive': TffLayerwiseAdaptive,
    'tff_dp_ftrl': TffDpFtrl,
}


def parse(spec: str) -> Method:
  """The method that `spec` names, e.g. `fixed_dp:clip=0.5`. Raises `ValueError` for an unknown name."""
  return registry.parse_spec('algorithm', spec, METHODS)


_DEFAULT_COHORT_SHARE, _DEFAULT_COHORT_LIMIT = 0.3, 30


def participation_of(values: Any, num_clients: int) -> cohorts.ParticipationModel:
  """Who takes part in which round, by the flags."""
  cohort_size = values.cohort_size
  if cohort_size is None:
    cohort_size = max(1, min(_DEFAULT_COHORT_LIMIT, round(_DEFAULT_COHORT_SHARE * num_clients)))
  return cohorts.make(values.participation, num_clients, cohort_size, values.seed)


def logs_client_metrics(values: Any) -> bool:
  """Whether exact functions of clients' data are kept, by the flags."""
  if values.client_metrics is not None:
    return values.client_metrics
  return not parse(values.algorithm).withholds_client_metrics


def plan_of(
    values: Any, num_clients: int, model: layers_lib.ModelShape, test_is_of_clients: bool = False
) -> plans.Plan:
  """The plan of a run. It depends only on the flags, the number of clients and the model's shape.

  Args:
    values: The flags of `experiments.flags`, as attributes.
    num_clients: N.
    model: The model's shape.
    test_is_of_clients: Whether the test set holds examples of the clients themselves.

  Raises:
    ValueError: For flags that do not go together.
  """
  method = parse(values.algorithm)
  setting = Setting(
      participation=participation_of(values, num_clients),
      rounds=values.rounds,
      calibration=values.calibration,
      averaging=registry.parse_spec('averaging', values.averaging, postprocessing.AVERAGINGS),
      options=dict(
          client_metrics=logs_client_metrics(values), test_is_of_clients=test_is_of_clients, model=model
      ),
  )
  return method.plan(method.configure(values, num_clients), setting)


def averaging_of(values: Any, plan: plans.Plan) -> postprocessing.Averaging:
  """The average that a run publishes."""
  if isinstance(plan, plans.CertifiedPlan):
    return plan.averaging
  return registry.parse_spec('averaging', values.averaging, postprocessing.AVERAGINGS)


def post_processing(values: Any, plan: plans.Plan) -> str:
  """What is done to the noised weights before they are published, in sentences."""
  averaging = averaging_of(values, plan)
  text = f'The server optimizer {values.server_optimizer} is applied to the noised sums.'
  if averaging != postprocessing.LastIterate():
    name, = (name for name, kind in postprocessing.AVERAGINGS.items() if kind is type(averaging))
    text += f' An average of the weights over the rounds is published: {registry.format_spec(name, averaging)}.'
  if values.shrinkage != 1:
    text += f' The weights are multiplied by {values.shrinkage:g}.'
  return text
