"""Methods for clients that differ or stay away, each around a base: --algorithm=scaffold:base=quap.

The base keeps its clipping norm, noise, budgets and account. With a base that adds noise, a method uses nothing of the
clients but the base's noised means. Its `statement` and docs/systems.md say how it affects privacy.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import ClassVar, Optional

from quap_tff import plans
from quap_tff.common import checks
from quap_tff.common import flag_fields
from quap_tff.common import registry
from quap_tff.mechanisms import mechanism as mechanisms
from quap_tff.methods import base as base_lib
from quap_tff.methods import certified_method
from quap_tff.methods import combinations
from quap_tff.training import extension as extensions
from quap_tff.training import heterogeneity
from quap_tff.training import optimizers

# The choices of `base`: QuAP-FL's own mechanism in all its settings, and the certified one.
BASES: dict[str, type[base_lib.Method]] = {
  'quap': combinations.Quap,
  'certified': certified_method.CertifiedMethod,
  'fedavg': combinations.FedAvg,
  'fixed_dp': combinations.FixedDp,
  'fixed_dp_layerwise': combinations.FixedDpLayerwise,
  'quantile_clip': combinations.QuantileClip,
  'layerwise': combinations.Layerwise,
  'adaptive_budget': combinations.AdaptiveBudget,
  'adaptive_budget_layerwise': combinations.AdaptiveBudgetLayerwise,
  'adaptive_budget_clip': combinations.AdaptiveBudgetClip,
  'adaptive_clip': combinations.AdaptiveClip,
}
# The most that may be stored for all clients together. A checkpoint also holds it.
_MOST_BYTES = 2**30
# Flags of a base that do not compose with a method around it.
_OF_THE_BASE_ALONE = {'sparsity', 'aggregator'}


def _base_field(name: str) -> checks.FieldValue:
  """A fact that a method has from its base."""
  return property(lambda method: getattr(method.base, name))


@dataclasses.dataclass(frozen=True)
class _Extended(checks.Checked, base_lib.Method):
  """A method around a base.

  Attributes:
    base: The method inside. Its flags are also this method's.
    needs_plain_sgd: Whether the method is defined for plain SGD at the clients only.
  """

  needs_plain_sgd: ClassVar[bool] = False

  base: base_lib.Method = flag_fields.parameter('base', BASES, 'fedavg')

  clip_follows_rounds = _base_field('clip_follows_rounds')
  gives_certificate = _base_field('gives_certificate')
  server_optimizer = _base_field('server_optimizer')

  def __post_init__(self) -> None:
    super().__post_init__()
    self._extension(1.0)

  @property
  def _base_name(self) -> str:
    return registry.name_of(self.base, BASES)

  @property
  def _is_noised(self) -> bool:
    # Whatever --noise says: the memory of rounds must not depend on it.
    return not isinstance(self.base, combinations.FedAvg)

  def flag_names(self) -> frozenset[str]:
    return self.base.flag_names() - _OF_THE_BASE_ALONE

  @abc.abstractmethod
  def _extension(self, mean_epochs: Optional[float]) -> extensions.Extension:
    """The extension around the base.

    Args:
      mean_epochs: The public mean of the clients' epochs, None if it is the same for all of them.
    """

  def configure(self, setting: base_lib.Setting) -> mechanisms.Configuration:
    config = self.base.configure(setting)
    optimizer = setting.client_optimizer
    if self.needs_plain_sgd and (not isinstance(optimizer, optimizers.Sgd) or optimizer.momentum):
      raise ValueError(
        f'{type(self).__name__} is defined for plain SGD at the clients, because it takes an update for a sum of '
        f'gradients. Found {optimizer!r}. Use --client_optimizer=sgd:learning_rate=….'
      )
    self._extension(setting.mean_epochs)  # It is refused before data are read.
    return config

  def check_cohorts(self, setting: base_lib.Setting) -> None:
    self.base.check_cohorts(setting)

  def plan(self, setting: base_lib.Setting) -> plans.Plan:
    self.configure(setting)  # Its refusals.
    extension = self._extension(setting.mean_epochs)
    assert setting.options.model is not None
    num_weights = sum(setting.options.model.sizes)
    needed = extension.memory_bytes(setting.num_clients, num_weights)
    if needed > _MOST_BYTES:
      name = type(self).__name__
      raise ValueError(
        f'{name} stores a vector of {num_weights:,} weights for each of {setting.num_clients:,} clients: '
        f'{needed:,} bytes in memory and in each checkpoint, and {_MOST_BYTES:,} is the most that is allowed. Use '
        'fewer clients (--num_clients), or a smaller model (--model).'
      )
    options = dataclasses.replace(setting.options, extension=extension)
    return self.base.plan(dataclasses.replace(setting, options=options))


@dataclasses.dataclass(frozen=True)
class ScaffoldMethod(_Extended):
  """SCAFFOLD (Karimireddy et al. 2020), against the drift of clients that differ: see
  `quap_tff.training.heterogeneity.scaffold` for the equations.

  Attributes:
    option: The paper's option 1 or 2 for the clients' controls.
  """

  title = 'SCAFFOLD'
  needs_plain_sgd = True

  option: int = 2

  def _extension(self, mean_epochs: Optional[float]) -> heterogeneity.Scaffold:
    # With noise, a sum of the changes of the clients' controls would be a second release, and an exact one.
    server_control = 'released' if self._is_noised else 'sum'
    return heterogeneity.Scaffold(self.option, server_control)


@dataclasses.dataclass(frozen=True)
class FedNovaMethod(_Extended):
  """FedNova (Wang et al. 2020), for clients that take different numbers of steps: see
  `quap_tff.training.heterogeneity.fednova` for the equations.

  Attributes:
    effective_steps: The public constant τ_eff. None: the mean of the cohort's steps, or, with a base that adds noise,
      the mean of --local_epochs, with clients normalized by their epochs.
  """

  title = 'FedNova'
  needs_plain_sgd = True

  effective_steps: Optional[float] = None

  def _extension(self, mean_epochs: Optional[float]) -> heterogeneity.FedNova:
    if self.effective_steps is not None or not self._is_noised:
      return heterogeneity.FedNova(self.effective_steps)
    if mean_epochs is None:
      raise ValueError(
        f'fednova:base={self._base_name} normalizes clients by their public numbers of epochs, which are all the same: '
        'it would change nothing. Give a range, such as --local_epochs=1..5, or a public number of steps, such as '
        'fednova:effective_steps=10, to normalize by steps.'
      )
    return heterogeneity.FedNova(mean_epochs=mean_epochs)


@dataclasses.dataclass(frozen=True)
class FedDynMethod(_Extended):
  """FedDyn (Acar et al. 2021), with a dynamic regulariser at each client: see
  `quap_tff.training.heterogeneity.feddyn` for the equations.

  Attributes:
    alpha: α > 0, the strength of the regulariser.
  """

  title = 'FedDyn'
  needs_plain_sgd = True

  alpha: float = 0.1

  def _extension(self, mean_epochs: Optional[float]) -> heterogeneity.FedDyn:
    return heterogeneity.FedDyn(self.alpha)


@dataclasses.dataclass(frozen=True)
class FedVarpMethod(_Extended):
  """FedVARP (Jhunjhunwala et al. 2022), with a memory of earlier updates: see
  `quap_tff.training.heterogeneity.fedvarp` for the equations.

  Attributes:
    memory: 'clients': each client's own last update, as in the paper, for base=fedavg only. 'released': the noised mean
      of the round that it was last in. 'auto': the former for fedavg, and the latter for all others.
  """

  title = 'FedVARP'

  memory: str = 'auto'

  def _extension(self, mean_epochs: Optional[float]) -> heterogeneity.FedVarp:
    if self.memory == 'auto':
      memory = 'released' if self._is_noised else 'clients'
      return heterogeneity.FedVarp(memory)
    if self.memory == 'clients' and self._is_noised:
      raise ValueError(
        f'fedvarp:base={self._base_name},memory=clients: the server would store single updates and use them again '
        'without noise, in rounds that their clients are not in and do not pay for. Use memory=released, or '
        'base=fedavg.'
      )
    return heterogeneity.FedVarp(self.memory)


@dataclasses.dataclass(frozen=True)
class FlFdms(_Extended):
  """FL-FDMS (Wang and Xu 2022), where friends substitute for clients that drop out: see
  `quap_tff.training.heterogeneity.friends` for the equations."""

  title = 'FL-FDMS'

  def _extension(self, mean_epochs: Optional[float]) -> heterogeneity.FriendSubstitution:
    if isinstance(self.base, certified_method.CertifiedMethod):
      raise ValueError(
        "fl_fdms:base=certified: friends are found by comparing single updates without noise, and a friend's update "
        'counts more than once. No certificate would hold. Use another base.'
      )
    return heterogeneity.FriendSubstitution()

  def configure(self, setting: base_lib.Setting) -> mechanisms.Configuration:
    if not setting.has_dropout:
      raise ValueError(
        '--algorithm=fl_fdms: friends substitute for clients that drop out, and with --dropout=none no client does. '
        'Give a --dropout, such as bernoulli:rate=0.1.'
      )
    return super().configure(setting)

  def facts(self, setting: base_lib.Setting) -> mechanisms.Facts:
    return super().facts(setting)._replace(waits='how much an update counts depends on all of them')


@dataclasses.dataclass(frozen=True)
class SafariMethod(_Extended):
  """SAFARI (Yang et al. 2024), an interpretation, with rounds in which the server trains: see
  `quap_tff.training.heterogeneity.safari`.

  Attributes:
    q: The probability that a round is one of the clients; otherwise the server trains. In (0, 1).
    auxiliary: How many examples the server has, a share in (0, 1): of the pool, before it is dealt out to clients; or
      those of as many others of a dataset's own clients, as a share of the number of clients. They are taken as public.
    server_steps: The server's steps in one of its rounds.
    server_learning_rate: The length of one of these steps, over the gradient.
  """

  title = 'SAFARI (an interpretation)'
  interpretation = 'safari is an interpretation: of the paper only the abstract and descriptions could be read.'

  q: float = checks.number_field('safari q', 0.8, above=0, below=1)
  auxiliary: float = checks.number_field('safari auxiliary', 0.1, above=0, below=1)
  server_steps: int = 10
  server_learning_rate: float = 0.05

  def _extension(self, mean_epochs: Optional[float]) -> heterogeneity.Safari:
    return heterogeneity.Safari(self.server_steps, self.server_learning_rate)

  @property
  def client_round_share(self) -> float:
    return self.q

  @property
  def auxiliary_share(self) -> float:
    return self.auxiliary
