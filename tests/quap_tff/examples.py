"""Configurations that many tests change in a field or two. They need no TensorFlow."""

from typing import Any

import numpy as np

from quap_tff.mechanisms.certified import weight_rules
from quap_tff.mechanisms.certified.config import Certified
from quap_tff.mechanisms.certified.config import CertifiedConfig
from quap_tff.mechanisms.certified.guarantee import GuaranteeConfig
from quap_tff.mechanisms.held.config import HeldConfig
from quap_tff.mechanisms.noise import correlation
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.parts.budgets import BudgetConfig
from quap_tff.mechanisms.parts.participation import ParticipationConfig
from quap_tff.mechanisms.quap.config import NoiseConfig
from quap_tff.mechanisms.quap.config import QuapConfig

# Three rounds of four clients.
SCHEDULE = [np.array([0, 2, 3]), np.array([1, 2]), np.array([0, 2, 3])]

_NO_WARMUP = ParticipationConfig(warmup_rounds=0)


def _changed(make: Any, defaults: dict[str, Any], changes: dict[str, Any]) -> Any:
  return make(**{**defaults, **changes})


def quap(**changes: Any) -> QuapConfig:
  """Ten clients whose updates get a norm of at most 1 and no noise."""
  return _changed(QuapConfig, dict(num_clients=10, clip=clip_rules.Fixed(1.0), noise=NoiseConfig('none')), changes)


def whole(**changes: Any) -> QuapConfig:
  """Four clients whose updates are clipped as one, in every layer, and get no noise."""
  budget = BudgetConfig(epsilon_total=4.0, num_rounds=8, round_rule='uniform')
  return quap(**{**dict(num_clients=4, clip_scope='all_layers', critical_layers='all', budget=budget), **changes})


# Ten clients with ε = 3, and weights of 1 as long as they last.
_CERTIFIED = dict(
  num_clients=10,
  epsilon=3.0,
  delta=1e-5,
  clip=clip_rules.Fixed(1.0),
  correlation=correlation.Independent(),
  weights=weight_rules.UniformWeights(),
  participation=_NO_WARMUP,
)


def certified(**changes: Any) -> CertifiedConfig:
  """Ten clients with ε = 3, and weights of 1 as long as they last; what noise that takes is open."""
  return _changed(CertifiedConfig, _CERTIFIED, changes)


def noised(**changes: Any) -> Certified:
  """With noise of four clipping norms on a sum that is divided by two."""
  return certified(**{**dict(noise_multiplier=4.0, divisor=2.0, noise_seed=3), **changes}).to_mechanism()


def held(**changes: Any) -> HeldConfig:
  """Four clients who hold the noise, and take half of it back."""
  defaults = dict(
    num_clients=4, epsilon=3.0, delta=1e-5, correlation=correlation.HeldNoise(0.5), clip=clip_rules.Fixed(0.5)
  )
  return _changed(HeldConfig, defaults, changes)


def guarantee(**fields: Any) -> GuaranteeConfig:
  """Four clients with ε = 3 at δ = 1e-5, who hold `Held` noise; any other is a trusted server's, by participation."""
  defaults = dict(num_clients=4, epsilon=3.0, delta=1e-5, clip=clip_rules.Fixed(1.0))
  if isinstance(fields.get('correlation'), correlation.HeldNoise):
    return _changed(HeldConfig, defaults, fields)
  defaults.update(correlation=correlation.Independent(), weights=weight_rules.ParticipationWeights())
  return _changed(CertifiedConfig, defaults, fields)
