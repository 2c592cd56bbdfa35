"""Certified QuAP-FL: the same idea with a guarantee that covers the whole released model (`quap_tff.certified`)."""

import dataclasses
from typing import Optional

from experiments import public_metrics
from experiments.algorithms import base
import quap_tff
from quap_tff import accounting
from quap_tff import certified
from quap_tff import checks
from quap_tff import clip_rules
from quap_tff import layers as layers_lib
from quap_tff import learning_process
from quap_tff import registry
from quap_tff.accounting import certificate as certificates
from quap_tff.certified import clip_split as clip_splits

# Until noise and divisor are calibrated.
_NOT_YET = dict(noise_multiplier=1.0, divisor=1.0)


@dataclasses.dataclass(frozen=True)
class Certified(base.Algorithm):
  """--epsilon and --delta are what no client passes; the mechanism's flags for budget, clip and noise do not apply.

  Attributes:
    weights: The rule for the clients' weights, of `certified.weight_rules.RULES`; 'participation' goes by --alpha and
      --beta.
    clip: The clipping norm; the first one with `quantile`.
    quantile: If given, Andrew et al.'s private quantile tracks this quantile of norms.
    count_stddev: Of the noised count that this takes.
    clip_split: How the clipping norm is divided among layers.
    noise_multiplier: z; None for the one that makes the most of the budgets over the planned rounds.
  """

  weights: str = 'participation'
  clip: float = 1.0
  quantile: Optional[float] = None
  count_stddev: float = 20.0
  clip_split: str = 'joint'
  noise_multiplier: Optional[float] = None

  withholds_client_metrics = True
  noise_of_its_own = True

  def __post_init__(self):
    registry.lookup('weight rule', self.weights, certified.weight_rules.RULES)
    registry.lookup('clip split', self.clip_split, clip_splits.SPLITS)
    if self.noise_multiplier is not None:
      checks.number('noise_multiplier', self.noise_multiplier, above=0)
    self.clip_rule()

  def clip_rule(self):
    if self.quantile is None:
      return clip_rules.Fixed(self.clip)
    return clip_rules.PrivateQuantile(self.quantile, initial_clip=self.clip, count_stddev=self.count_stddev)

  def configure(self, mechanism: quap_tff.QuapConfig) -> quap_tff.QuapConfig:
    # What the statements about the run are made from: noise on everything, clipped as here.
    return dataclasses.replace(
        mechanism,
        budget=dataclasses.replace(mechanism.budget, round_rule='uniform'),
        clip=self.clip_rule(),
        clip_scope='critical',
        critical_layers=layers_lib.ALL,
        noise=dataclasses.replace(mechanism.noise, placement='server', calibration='analytic'),
        max_agg_norm=None,
        update_scale='delta',
    )

  def aggregates_once(self, mechanism):
    # The weights of a cohort follow from who is in it.
    return False

  def method(self, setting: base.Setting) -> 'CertifiedMethod':
    return CertifiedMethod(self, setting)


class CertifiedMethod(base.Method):
  """A certified run: its noise and divisor are chosen here, before training, from the planned cohorts.

  Who comes is taken as known: what is calibrated on the cohorts tells of them, and sampling amplifies nothing.
  """

  # A round that is run again, and comes out otherwise, would be a second release that nobody has paid for.
  is_saved_before_release = True
  # Nothing follows the documents' budgets.
  has_nominal = False
  public_metrics = base.PUBLIC_METRICS | public_metrics.OF_CLIP

  def __init__(self, algorithm: Certified, setting: base.Setting):
    self._setting = setting
    cohorts = [setting.cohorts.cohort(t) for t in range(1, setting.rounds + 1)]
    self.config = certified.calibrated(
        _config(algorithm, setting, cohorts), cohorts, noise_multiplier=algorithm.noise_multiplier
    )
    # The name of an extractor says less than what it was learned from, and its digest.
    self.fingerprint = repr((dataclasses.replace(self.config, noise_seed=None), setting.public_data))
    self.protection = accounting.describe_protection(
        setting.mechanism, setting.layers, setting.sizes, client_metrics_logged=setting.client_metrics
    )
    self.certificate = self._facts(algorithm)

  def _facts(self, algorithm):
    setting = self._setting
    trained = sum(setting.sizes)
    return certificates.Facts(
        algorithm=setting.spec,
        epsilon=setting.epsilon,
        delta=setting.delta,
        noised_weights=trained,
        trained_weights=trained,
        clipping=f'{_CLIPPING[algorithm.quantile is not None]} {_SPLIT[algorithm.clip_split == "joint"]}',
        tuning=setting.tuning,
        public_data=setting.public_data,
        post_processing=setting.post_processing,
        fixed_noise_seed=self.config.noise_seed is not None,
        exact_metrics=('training loss and accuracy',) if setting.client_metrics else (),
    )

  def build_process(self):
    setting = self._setting
    optimizers = setting.client_optimizer, setting.server_optimizer
    if setting.client_metrics:
      aggregator = certified.CertifiedAggregationFactory(self.config, setting.layers)
      return learning_process.compose(setting.model_fn, aggregator, *optimizers, setting.client_work)
    return certified.build_certified_fed_avg(setting.model_fn, self.config, *optimizers, setting.client_work)

  def round_record(self, aggregator_state, metrics, cohort):
    return certified.round_record(self.config, aggregator_state, float(metrics['clipping_norm']), cohort)


_CLIPPING = {
    False: 'A client\'s part of each sum is clipped to its weight times a fixed norm.',
    True: 'A client\'s part of each sum is clipped to its weight times a norm that follows a quantile of the updates\' '
          'norms, known from noised counts alone.',
}
_SPLIT = {True: 'All layers are clipped by their joint norm.', False: 'Each layer is clipped by a norm of its own.'}


def _config(algorithm, setting, cohorts) -> certified.CertifiedConfig:
  mechanism = setting.mechanism
  rule = certified.weight_rules.RULES[algorithm.weights]
  follows_budget = algorithm.weights == 'participation'
  planned = None
  if rule.needs_plan:
    planned = [0] * mechanism.num_clients
    for cohort in cohorts:
      for client in cohort:
        planned[client] += 1
  return certified.CertifiedConfig(
      num_clients=mechanism.num_clients,
      epsilon=setting.epsilon,
      delta=setting.delta,
      weights=rule(alpha=mechanism.budget.alpha, beta=mechanism.budget.beta) if follows_budget else rule(),
      participation=mechanism.participation,
      clip=algorithm.clip_rule(),
      clip_split=algorithm.clip_split,
      planned_rounds=planned,
      noise_seed=mechanism.noise.seed,
      **_NOT_YET,
  )
