"""The interface of methods that are built around a base: --algorithm=scaffold:base=quap.

A subclass says which `quap_tff.training.extension.Extension` goes around the base, and is a line in `METHODS`. The base
keeps its clipping norm, noise, budgets and account. With a base that adds noise, an extension uses nothing of the
clients but the base's noised means. Its `statement` says how it affects privacy. `experiments/systems/fedvarp.py` is an
example.
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
from quap_tff.training import optimizers

# The choices of `base`: QuAP-FL's own mechanism in all its settings, and the certified one. A program may add others,
# whose mechanism is lifted by `quap_tff.federated.aggregation`.
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
class ExtendedMethod(checks.Checked, base_lib.Method):
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
    self.extension(1.0)

  @property
  def base_name(self) -> str:
    """The name of the base in `BASES`."""
    return registry.name_of(self.base, BASES)

  @property
  def is_noised(self) -> bool:
    """Whether the base is a method that adds noise."""
    # Whatever --noise says: the memory of rounds must not depend on it.
    return not isinstance(self.base, combinations.FedAvg)

  def flag_names(self) -> frozenset[str]:
    return self.base.flag_names() - _OF_THE_BASE_ALONE

  @abc.abstractmethod
  def extension(self, mean_epochs: Optional[float]) -> extensions.Extension:
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
    self.extension(setting.mean_epochs)  # It is refused before data are read.
    return config

  def check_cohorts(self, setting: base_lib.Setting) -> None:
    self.base.check_cohorts(setting)

  def plan(self, setting: base_lib.Setting) -> plans.Plan:
    self.configure(setting)  # Its refusals.
    extension = self.extension(setting.mean_epochs)
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
