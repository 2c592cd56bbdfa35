"""Methods for clients that differ or stay away, each around a base: --algorithm=scaffold:base=quap.

The base keeps its clip, noise, budgets and account. With a base that adds noise, a method uses nothing of the clients
but the base's noised means. What it does to privacy is in its `statement`, and in docs/systems/optimisation.md.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import ClassVar, Optional

from data import dropouts
from experiments import optimizers
from experiments.methods import base as base_lib
from experiments.methods import certified
from experiments.methods import settings
from quap_tff.common import checks
from quap_tff.common import registry
from quap_tff.training import heterogeneity
from quap_tff.training.heterogeneity import extension as extensions

# The choices of `base`: QuAP-FL's own mechanism in all its settings, and the certified one.
BASES: dict[str, type[base_lib.Method]] = {
  'quap': settings.Quap,
  'certified': certified.Certified,
  'fedavg': settings.FedAvg,
  'fixed_dp': settings.FixedDp,
  'fixed_dp_layerwise': settings.FixedDpLayerwise,
  'quantile_clip': settings.QuantileClip,
  'layerwise': settings.Layerwise,
  'adaptive_budget': settings.AdaptiveBudget,
  'adaptive_budget_layerwise': settings.AdaptiveBudgetLayerwise,
  'adaptive_budget_clip': settings.AdaptiveBudgetClip,
  'adaptive_clip': settings.AdaptiveClip,
}
# The most that may be stored for all clients together. A checkpoint holds it, too.
_MOST_BYTES = 2**30


@dataclasses.dataclass(frozen=True)
class _Extended(base_lib.Method):
  """A method around a base.

  Attributes:
    base: What it is built on, a spec of `BASES`. Its flags are this method's, too.
    needs_plain_sgd: Whether the method is defined for plain SGD at the clients only.
  """

  needs_plain_sgd: ClassVar[bool] = False

  base: str = 'fedavg'

  def __post_init__(self):
    self._inner  # pylint: disable=pointless-statement
    self._extension(1.0)

  @property
  def _inner(self) -> base_lib.Method:
    return registry.parse_spec('base', self.base, BASES)

  @property
  def charges_absent(self):
    return self._inner.charges_absent

  @property
  def _is_noised(self) -> bool:
    return self.base != 'fedavg'

  @property
  def unused(self):
    return self._inner.unused

  @property
  def withholds_client_metrics(self):
    return self._inner.withholds_client_metrics

  @property
  def noise_of_its_own(self):
    return self._inner.noise_of_its_own

  @property
  def gives_certificate(self):
    return self._inner.gives_certificate

  @property
  def plans_averaging(self):
    return self._inner.plans_averaging

  @abc.abstractmethod
  def _extension(self, mean_epochs: Optional[float]) -> extensions.Extension:
    """What is put around the base.

    Args:
      mean_epochs: The public mean of the clients' epochs, None if it is the same for all of them.
    """

  def configure(self, values, num_clients):
    config = self._inner.configure(values, num_clients)
    optimizer = registry.parse_spec('client optimizer', values.client_optimizer, optimizers.OPTIMIZERS)
    if self.needs_plain_sgd and not (isinstance(optimizer, optimizers.Sgd) and not optimizer.momentum):
      raise ValueError(
        f'--algorithm={values.algorithm} is defined for plain SGD at the clients, because it takes an update for a '
        f'sum of gradients. Found --client_optimizer={values.client_optimizer}. Use '
        '--client_optimizer=sgd:learning_rate=….'
      )
    self._extension(base_lib.mean_epochs_of(values))  # It is refused before data are read.
    return config

  def aggregates_once(self, config):
    return self._inner.aggregates_once(config)

  def check_cohorts(self, participation, rounds):
    self._inner.check_cohorts(participation, rounds)

  def plan(self, config, setting):
    extension = self._extension(setting.mean_epochs)
    num_weights = sum(setting.options['model'].sizes)
    needed = extension.memory_bytes(config.num_clients, num_weights)
    if needed > _MOST_BYTES:
      name = type(self).__name__
      raise ValueError(
        f'{name} stores a vector of {num_weights:,} weights for each of {config.num_clients:,} clients: '
        f'{needed:,} bytes in memory and in each checkpoint, and {_MOST_BYTES:,} is the most that is allowed. Use '
        'fewer clients (--num_clients), or a smaller model (--model).'
      )
    return self._inner.plan(config, setting._replace(options={**setting.options, 'extension': extension}))


@dataclasses.dataclass(frozen=True)
class Scaffold(_Extended):
  """SCAFFOLD (Karimireddy et al. 2020): see `quap_tff.training.heterogeneity.scaffold` for the equations.

  Attributes:
    option: The paper's option 1 or 2 for the clients' controls.
  """

  needs_plain_sgd = True

  option: int = 2

  def _extension(self, mean_epochs):
    # With noise, a sum of the changes of the clients' controls would be a second release, and an exact one.
    return heterogeneity.Scaffold(self.option, 'released' if self._is_noised else 'sum')


@dataclasses.dataclass(frozen=True)
class FedNova(_Extended):
  """FedNova (Wang et al. 2020): see `quap_tff.training.heterogeneity.fednova` for the equations.

  Attributes:
    effective_steps: The public constant τ_eff. None: the mean of the cohort's steps, or, with a base that adds noise,
      the mean of --local_epochs, with clients normalized by their epochs.
  """

  needs_plain_sgd = True

  effective_steps: Optional[float] = None

  def _extension(self, mean_epochs):
    if self.effective_steps is not None or not self._is_noised:
      return heterogeneity.FedNova(self.effective_steps)
    if mean_epochs is None:
      raise ValueError(
        f'fednova:base={self.base} normalizes clients by their public numbers of epochs, which are all the same: it '
        'would change nothing. Give a range, such as --local_epochs=1..5, or a public number of steps, such as '
        'fednova:effective_steps=10, to normalize by steps.'
      )
    return heterogeneity.FedNova(mean_epochs=mean_epochs)


@dataclasses.dataclass(frozen=True)
class FedDyn(_Extended):
  """FedDyn (Acar et al. 2021): see `quap_tff.training.heterogeneity.feddyn` for the equations.

  Attributes:
    alpha: α > 0.
  """

  needs_plain_sgd = True

  alpha: float = 0.1

  def _extension(self, mean_epochs):
    return heterogeneity.FedDyn(self.alpha)


@dataclasses.dataclass(frozen=True)
class FedVarp(_Extended):
  """FedVARP (Jhunjhunwala et al. 2022): see `quap_tff.training.heterogeneity.fedvarp` for the equations.

  Attributes:
    memory: 'clients': each client's own last update, as in the paper, for base=fedavg only. 'released': the noised mean
      of the round that it was last in. 'auto': the former for fedavg, and the latter for all others.
  """

  memory: str = 'auto'

  def _extension(self, mean_epochs):
    if self.memory == 'auto':
      return heterogeneity.FedVarp('released' if self._is_noised else 'clients')
    if self.memory == 'clients' and self._is_noised:
      raise ValueError(
        f'fedvarp:base={self.base},memory=clients: the server would store single updates and use them again without '
        'noise, in rounds that their clients are not in and do not pay for. Use memory=released, or base=fedavg.'
      )
    return heterogeneity.FedVarp(self.memory)


@dataclasses.dataclass(frozen=True)
class FlFdms(_Extended):
  """FL-FDMS (Wang and Xu 2022): see `quap_tff.training.heterogeneity.friends` for the equations."""

  def _extension(self, mean_epochs):
    if self.base.partition(':')[0] == 'certified':
      raise ValueError(
        "fl_fdms:base=certified: friends are found by comparing single updates without noise, and a friend's update "
        'counts more than once. No certificate would hold. Use another base.'
      )
    return heterogeneity.FriendSubstitution()

  def configure(self, values, num_clients):
    if values.dropout == 'none':
      raise ValueError(
        f'--algorithm={values.algorithm}: friends substitute for clients that drop out, and with --dropout=none '
        'nobody does. Give a --dropout, such as bernoulli:rate=0.1.'
      )
    return super().configure(values, num_clients)

  def aggregates_once(self, config):
    # How much an update counts depends on all of them.
    return False


@dataclasses.dataclass(frozen=True)
class Safari(_Extended):
  """SAFARI (Yang et al. 2024), an interpretation: see `quap_tff.training.heterogeneity.safari`.

  Attributes:
    q: The probability that a round is one of the clients; otherwise the server trains. In (0, 1).
    auxiliary: How many examples the server has, a share in (0, 1): of the pool, before it is dealt out to clients; or
      those of as many others of a dataset's own clients, as a share of the number of clients. They are taken as public.
    server_steps, server_learning_rate: The server's training in one of its rounds.
  """

  interpretation = 'safari is an interpretation: of the paper only the abstract and descriptions could be read.'

  q: float = 0.8
  auxiliary: float = 0.1
  server_steps: int = 10
  server_learning_rate: float = 0.05

  def __post_init__(self):
    super().__post_init__()
    checks.number('safari q', self.q, above=0, below=1)
    checks.number('safari auxiliary', self.auxiliary, above=0, below=1)

  def _extension(self, mean_epochs):
    return heterogeneity.Safari(self.server_steps, self.server_learning_rate)

  def participation(self, model):
    return dropouts.WithServerRounds(model, self.q)

  @property
  def auxiliary_share(self):
    return self.auxiliary
