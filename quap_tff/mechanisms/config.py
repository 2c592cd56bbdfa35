"""The mechanism's configuration: one frozen object that settles clip, noise, budgets and accounting."""

import dataclasses
import math
from typing import Optional

from quap_tff.common import checks
from quap_tff.common import registry
from quap_tff.common import rounding
from quap_tff.mechanisms import budgets
from quap_tff.mechanisms import clip_rules
from quap_tff.mechanisms import gaussian
from quap_tff.mechanisms import layers
from quap_tff.mechanisms import participation as participations
from quap_tff.mechanisms import robust
from quap_tff.mechanisms import weighting as weightings

PLACEMENTS = ('server', 'client', 'none')
CLIP_SCOPES = ('critical', 'all_layers')
UPDATE_SCALES = ('delta', 'pseudo_gradient')


@dataclasses.dataclass(frozen=True)
class NoiseConfig:
  """Gaussian noise on the critical layers.

  Attributes:
    placement: 'server': N(0, σ_t²) on the mean of the clipped updates, σ_t = z(ε_t, δ)·C_t/M_t (docs/method.md, section
      6.1). 'client': each client's own N(0, σ_i²) before the mean, σ_i = z(ε_i(t), δ)·C_t (section 6.2). This is a
      simulation: it sends every client the N rates and the round's seed, so its cost grows with the population, and
      clients could compute each other's noise. 'none': no noise.
    delta: δ of one round, in (0, 1).
    calibration: The formula for z(ε, δ), 'classic' or 'analytic'; see `quap_tff.mechanisms.gaussian`.
    scale: A public factor on every z(ε, δ), for noise that an accountant has calibrated over the whole run; 1 is the
      documents' noise.
    seed: A non-negative integer makes the noise reproducible, hence public. None draws the seed from the operating
      system's entropy.
  """

  placement: str = 'server'
  delta: float = 1e-5
  calibration: str = 'classic'
  scale: float = 1.0
  seed: Optional[int] = None

  def __post_init__(self):
    if self.placement not in PLACEMENTS:
      raise registry.unknown_name_error('noise placement', self.placement, PLACEMENTS)
    if self.calibration not in gaussian.CALIBRATIONS:
      raise registry.unknown_name_error('gaussian calibration', self.calibration, gaussian.CALIBRATIONS)
    checks.number('delta', self.delta, above=0, below=1)
    checks.number('noise scale', self.scale, above=0)
    if self.seed is not None:
      checks.integer('noise seed', self.seed, at_least=0, at_most=2**63 - 1)


@dataclasses.dataclass(frozen=True)
class QuapConfig:
  """QuAP-FL's aggregation.

  Attributes:
    num_clients: N, the population. Client ids are integers in [0, N).
    budget: Privacy budgets of clients and rounds.
    participation: How participation rates are computed.
    clip: The rule for the clipping norm, one of `quap_tff.mechanisms.clip_rules.RULES`.
    clip_scope: 'critical': the critical layers' entries are clipped by their joint norm, and the other layers pass
      unclipped. 'all_layers': the whole update is clipped by its norm.
    noise: Gaussian noise on the critical layers.
    critical_layers: A selection of `quap_tff.mechanisms.layers`.
    max_agg_norm: Optional bound on the norm of the noised mean, which is scaled down to it (docs/method.md, section
      6.3).
    update_scale: 'delta': updates are w_global - w_local. 'pseudo_gradient': they are divided by the client's learning
      rate before clipping and multiplied by it after noise, as the reference program does. The clipping norm means
      different things under the two (docs/method.md, section 3.1).
    weighting: How much each client counts in the mean, one of `quap_tff.mechanisms.weighting`.
    aggregator: What replaces the mean of the clipped updates, one of `quap_tff.mechanisms.robust.AGGREGATORS`.
  """

  num_clients: int
  budget: budgets.BudgetConfig = budgets.BudgetConfig()
  participation: participations.ParticipationConfig = participations.ParticipationConfig()
  clip: clip_rules.ClipRule = clip_rules.QuantileEma()
  clip_scope: str = 'critical'
  noise: NoiseConfig = NoiseConfig()
  critical_layers: str = layers.FINAL_DENSE
  max_agg_norm: Optional[float] = None
  update_scale: str = 'delta'
  weighting: weightings.Weighting = weightings.Equal()
  aggregator: robust.Aggregator = robust.Mean()

  def __post_init__(self):
    checks.integer('num_clients', self.num_clients, at_least=1, at_most=2**31 - 1)
    if self.clip_scope not in CLIP_SCOPES:
      raise registry.unknown_name_error('clip scope', self.clip_scope, CLIP_SCOPES)
    if self.update_scale not in UPDATE_SCALES:
      raise registry.unknown_name_error('update scale', self.update_scale, UPDATE_SCALES)
    if self.max_agg_norm is not None:
      checks.number('max_agg_norm', self.max_agg_norm, above=0)
    if not isinstance(self.clip, clip_rules.ClipRule):
      raise TypeError(f'clip must be a rule of quap_tff.mechanisms.clip_rules, found {self.clip!r}.')
    if not self.critical_layers:
      raise ValueError('critical_layers is empty; use noise placement "none" for training without noise.')
    if not isinstance(self.aggregator, robust.Aggregator):
      raise TypeError(f'aggregator must be one of quap_tff.mechanisms.robust, found {self.aggregator!r}.')
    if not isinstance(self.weighting, weightings.Weighting):
      raise TypeError(f'weighting must be one of quap_tff.mechanisms.weighting, found {self.weighting!r}.')
    if not self.weighting.is_equal and (
      self.aggregator.needs_each_update or self.noise.placement == 'client' or self.budget.round_rule != 'each_own'
    ):
      raise ValueError(
        f'Weighting {type(self.weighting).__name__} gives clients shares by the noise of each, in a mean: use '
        'round_rule="each_own", noise placement "server" or "none", and aggregator robust.Mean().'
      )
    if self.noise.placement == 'client' and self.aggregator.needs_each_update:
      raise ValueError(
        f'Aggregator {type(self.aggregator).__name__} is computed from clipped updates, but with noise placement '
        '"client" the noise of the clients is summed apart from them. Use placement "server" or "none".'
      )
    if self.noise.placement == 'client' and self.budget.rule.needs_cohort:
      raise ValueError(
        f'Noise placement "client" needs budgets that follow from participation rates, but the budgets of '
        f'{type(self.budget.rule).__name__} are computed at the server: use placement "server".'
      )
    if self.noise.placement == 'none':
      return
    if not self.clip.uses_current_norms and math.isinf(self.clip.initial_norm):
      raise ValueError(
        'Noise is scaled by the clipping norm, but clip rule "none" has no norm: choose another clip rule, or no '
        'noise.'
      )
    if self.noise.calibration == 'classic' and self.budget.largest_budget > gaussian.CLASSIC_MAX_EPSILON:
      raise ValueError(
        f"A round's epsilon can reach {rounding.up(self.budget.largest_budget)}, but the classic Gaussian "
        f'calibration holds only for epsilon <= {gaussian.CLASSIC_MAX_EPSILON:g}. Use '
        'gaussian_calibration=analytic, or a smaller '
        'epsilon_total or more rounds.'
      )
