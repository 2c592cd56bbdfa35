"""What methods with a stock TFF aggregator share: calibration of its noise, what rounds spend, what is logged.

Local training, cohorts, server optimizer, budget and accountants are those of every method; the aggregators are TFF's,
without zeroing, which its own account does not cover, and divide by the constant mean size of a cohort. The neighbouring
relation is that of every method, too: a client's data against none, with its participation known.
"""

import abc
import dataclasses

import numpy as np
import tensorflow as tf

from experiments import public_metrics
from experiments.algorithms import base
from experiments.algorithms import mechanism
from experiments.algorithms import tff_aggregation
import quap_tff
from quap_tff import accounting
from quap_tff import clipping
from quap_tff import gaussian
from quap_tff import layers as layers_lib
from quap_tff import learning_process

_UNSEEDED = (
    'TFF\'s noise takes no seed: a run that was interrupted and resumed is not bit for bit the uninterrupted one.'
)
_IDEAL = (
    'The figures are for ideal Gaussian noise; the noise that TFF adds is weaker: {reason}. It is drawn as single '
    'float32 numbers, whose low bits give a right guess of a client\'s update away.'
)
_FEW_BITS = 'its generator starts from 32 random bits, which can be tried one by one'
_NOT_CRYPTOGRAPHIC = 'its generator is not a cryptographic one'


class Exposure:
  """What a client's rounds move of what is released: here one vector of at most the clipping norm in each, and no more.

  Attributes:
    of_one_round: The norm of all that a round of one client moves, over the clipping norm.
    largest: √ of the most that one more round adds to a client's μ², at a noise multiplier of 1.
  """

  of_one_round = 1.0
  largest = 1.0

  def weights(self, round_num: int, cohort: np.ndarray) -> np.ndarray:
    """float64[M] in [0, 1]: √ of what the round adds to μ² of each of its cohort, over `largest`."""
    del round_num
    return np.ones(len(cohort))


class StockMethod(base.Method):
  """A stock aggregator with noise multiplier z, calibrated from the flags' budget."""

  constant_divisor = True

  def __init__(self, algorithm: 'StockAlgorithm', setting: base.Setting):
    clients_per_round = setting.cohorts.mean_cohort_size
    if clients_per_round is None:
      raise ValueError(
          f'TFF\'s aggregators divide by a constant number of clients, and the cohorts of '
          f'{type(setting.cohorts).__name__} have no mean size that is known beforehand: use a --participation that '
          'has one (uniform, bernoulli, beta, hybrid, …).'
      )
    self._setting, self._config = setting, setting.mechanism
    self._exposure = algorithm.exposure(setting)
    self.noises_empty_rounds = algorithm.noises_empty_rounds
    # Exact calibration goes by who will come.
    self.constant_noise_multiplier = type(self._exposure) is Exposure and setting.calibration == 'documents'
    noise, self._budget = self._config.noise, self._config.budget.epsilon_base
    # By the documents' formula a round of a client spends ε_base, with all that it moves.
    formula = gaussian.noise_multiplier(noise.calibration, tf.constant(self._budget, tf.float64), noise.delta)
    self._noise_multiplier = noise.scale * self._exposure.of_one_round * float(formula)
    self.has_nominal = setting.calibration == 'documents' and noise.scale == 1
    if setting.calibration == 'exact':
      self._noise_multiplier *= accounting.exact_scale(self.planned_ledger(), setting.epsilon, setting.delta)
    self._stock = algorithm.aggregator(setting, self._noise_multiplier, float(clients_per_round))
    self.fingerprint = repr((
        algorithm,
        dataclasses.replace(self._config, noise=dataclasses.replace(noise, seed=None)),
        self._noise_multiplier,
        clients_per_round,
        setting.rounds,
    ))
    self._names = [layer.name for layer in setting.layers] if algorithm.clips_each_layer else []
    protection = accounting.describe_protection(
        self._config, setting.layers, setting.sizes, client_metrics_logged=setting.client_metrics
    )
    if not algorithm.takes_noise_seed:
      protection = protection._replace(text=f'{protection.text}\n{_UNSEEDED}')
    self.protection = protection
    self.noise_note = _IDEAL.format(reason=_NOT_CRYPTOGRAPHIC if algorithm.takes_noise_seed else _FEW_BITS)

  @property
  def noise_multiplier(self) -> float:
    """z, of all that a round adds noise to; for a tree, of each node."""
    return self._noise_multiplier

  @property
  def public_metrics(self):
    # Clipping norms are fixed, or follow from noised counts.
    return base.PUBLIC_METRICS | public_metrics.OF_CLIP | {f'clipping_norm_{name}' for name in self._names}

  def build_process(self):
    setting = self._setting
    return learning_process.compose(
        setting.model_fn,
        tff_aggregation.StockAggregationFactory(self._stock, self.noises_empty_rounds),
        setting.client_optimizer,
        setting.server_optimizer,
        setting.client_work,
    )

  def round_metrics(self, aggregator_state, metrics):
    anybody = metrics['cohort_size'] > 0
    norms = np.asarray(metrics['clipping_norms'], np.float64)
    row = dict(
        epsilon=self._budget if anybody else 0.0,
        clipping_norm=np.linalg.norm(norms),
        noise_multiplier=self._stock.value_noise_multiplier if anybody or self.noises_empty_rounds else 0.0,
    )
    if self._stock.has_one_sigma:
      row['sigma'] = row['noise_multiplier'] * row['clipping_norm'] / self._setting.cohorts.mean_cohort_size
    row.update((f'clipping_norm_{name}', norm) for name, norm in zip(self._names, norms))
    return row

  def round_record(self, aggregator_state, metrics, cohort):
    return self._record(int(metrics['round']), cohort, float(np.linalg.norm(metrics['clipping_norms'])))

  def planned_ledger(self) -> accounting.RunLedger:
    """The ledger that a run of all T rounds will have."""
    ledger = accounting.RunLedger(self._config.num_clients, self._config.noise.delta, 'planned')
    for round_num in range(1, self._setting.rounds + 1):
      ledger.record(self._record(round_num, self._setting.cohorts.cohort(round_num), 1.0))
    return ledger

  def _record(self, round_num, cohort, clipping_norm):
    is_noised = self.noises_empty_rounds or len(cohort)
    return accounting.RoundRecord(
        cohort=cohort,
        budgets=np.full(len(cohort), self._budget),
        weights=self._exposure.weights(round_num, cohort),
        noise_multiplier=self._noise_multiplier / self._exposure.largest if is_noised else 0.0,
        # z is that of sums and noised counts together.
        count_noise_multiplier=np.inf,
        clipping_norm=clipping_norm,
    )


@dataclasses.dataclass(frozen=True)
class StockAlgorithm(base.Algorithm):
  """A stock TFF aggregator. Of the mechanism's flags it takes ε, δ, the Gaussian calibration and --calibration.

  Attributes:
    takes_noise_seed: Whether TFF lets its noise be seeded.
    clips_each_layer: Whether each layer has a clipping norm of its own.
    noises_empty_rounds: Whether a round with nobody releases the same noise as any other.
  """

  takes_noise_seed = False
  noises_empty_rounds = True
  clips_each_layer = False

  def configure(self, config: quap_tff.QuapConfig) -> quap_tff.QuapConfig:
    if config.noise.placement != 'server':
      raise ValueError(
          f'--noise={config.noise.placement}: TFF\'s aggregators add their noise at the server. Leave --noise out; '
          'without noise, there is --algorithm=fedavg.'
      )
    if config.noise.seed is not None and not self.takes_noise_seed:
      raise ValueError(
          'TFF\'s DP-FedAvg takes no seed for its noise: leave --noise_seed out (tff_dp_ftrl takes one, and so do our '
          'own fixed_dp and adaptive_clip).'
      )
    return dataclasses.replace(
        mechanism.uniform_budget(config),
        clip=self.clip_rule(),
        clip_scope='critical',
        critical_layers=layers_lib.ALL,
        max_agg_norm=None,
        update_scale='delta',
    )

  @abc.abstractmethod
  def clip_rule(self) -> clipping.ClipRule:
    """The rule of ours that is most like TFF's: what it says of its releases is true of TFF's, too."""

  @abc.abstractmethod
  def aggregator(
      self, setting: base.Setting, noise_multiplier: float, clients_per_round: float
  ) -> tff_aggregation.StockAggregator:
    """The aggregator at a noise multiplier z."""

  def exposure(self, setting: base.Setting) -> Exposure:
    """What taking part means for the account."""
    del setting
    return Exposure()

  def method(self, setting: base.Setting) -> StockMethod:
    return StockMethod(self, setting)
