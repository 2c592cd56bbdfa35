"""How the noise of a round is correlated with that of the rounds before.

Noise that is independent from round to round adds up in a model like a random walk. Noise that partly takes back what
earlier rounds added does not. Let Z_s be independent Gaussian vectors. Release s adds the noise Ẑ_s, where

    Σ_{k≥0} c_k·Ẑ_{s-k} = Z_s,     c_0 = 1.

A family says what the coefficients c_k are, and how the server and the accounts compute with them step by step
(`quap_tff.mechanisms.noise.recursions`). docs/privacy.md derives a client's privacy loss under it. A new family is a
class here and a line in `FAMILIES`.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
from typing import Any, Optional

import numpy as np

from quap_tff.common import checks
from quap_tff.mechanisms.noise import banded
from quap_tff.mechanisms.noise import held_noise
from quap_tff.mechanisms.noise import published_noise
from quap_tff.mechanisms.noise import recursions
from quap_tff.mechanisms.noise.recursions import Correlation

# With this limit, a client's sum of exponentials forgets rounding errors that are older than some thousand releases.
LARGEST_DECAY = 0.999
# A smaller decay changes next to nothing, and its powers would soon be too small for a float.
SMALLEST_DECAY = 1e-6
# The values from which an open decay is chosen.
DECAYS = (0.0, 0.3, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.925, 0.95, 0.97)
# In place of a gain, in a ledger: the noise was held by clients.
_OF_HELD = -1.0


@dataclasses.dataclass(frozen=True)
class Independent(recursions.Exponentials):
  """Ẑ_s = Z_s: each round has independent noise."""

  @property
  def terms(self) -> tuple[tuple[float, float], ...]:
    return ()


class _OfOneDecay(recursions.Exponentials):
  """A family with one decay, which may be left to the plan."""

  decay: Optional[float]

  @property
  def is_settled(self) -> bool:
    return self.decay is not None

  @property
  def chosen(self) -> float:
    """The decay; raises `ValueError` while it is open."""
    if self.decay is None:
      raise ValueError(recursions.NOT_CHOSEN.format('decay'))
    return self.decay


@dataclasses.dataclass(frozen=True)
class Ar1(_OfOneDecay):
  """c_k = decay^k, so that Ẑ_s = Z_s - decay·Z_{s-1}: each round takes back a share of what the round before added.

  Attributes:
    decay: 0, which is independent noise, or in [1e-6, 0.999]. None: chosen from the planned cohorts, like the noise
      multiplier.
  """

  decay: Optional[float] = checks.number_field('decay', None, at_least=0, at_most=LARGEST_DECAY)

  def __post_init__(self):
    super().__post_init__()
    if self.decay:
      _checked_decay('decay, unless it is 0 (independent noise),', self.decay)

  def candidates(self, num_releases: int, most: int, apart: int) -> tuple[Correlation, ...]:
    del num_releases, most, apart
    return (self,) if self.is_settled else tuple(Ar1(decay) for decay in DECAYS)

  @property
  def terms(self) -> tuple[tuple[float, float], ...]:
    return ((self.chosen, self.chosen),) if self.chosen else ()


@dataclasses.dataclass(frozen=True)
class Blt(recursions.Exponentials):
  """c_k = Σ_j gain_j·decay_j^(k-1): several memories of different lengths.

  Coefficients never grow with k, because Σ gain_j ≤ 1 and decay_j < 1.

  Attributes:
    gain: gain_j of each term. Each is greater than 0, and their sum is at most 1. Empty, like `decay`: both are those
      of the least published error for the planned rounds, with as many terms as pay (`published_noise.buffered`).
    decay: decay_j of each term, in [1e-6, 0.999].
  """

  gain: tuple[float, ...] = ()
  decay: tuple[float, ...] = ()

  def __post_init__(self):
    super().__post_init__()
    for name, values in (('gain', self.gain), ('decay', self.decay)):
      if not isinstance(values, tuple):
        raise ValueError(f'{name} must be a tuple with one number for each term, found {values!r}.')
    object.__setattr__(self, 'gain', tuple(checks.number('gain', one, above=0, at_most=1) for one in self.gain))
    object.__setattr__(self, 'decay', tuple(_checked_decay('decay', one) for one in self.decay))
    if len(self.gain) != len(self.decay):
      raise ValueError(f'There must be as many gains as decays, found {len(self.gain)} and {len(self.decay)}.')
    if sum(self.gain) > 1:
      raise ValueError(f'The gains must not sum to more than 1, found {sum(self.gain):g}.')
    if len(set(self.decay)) != len(self.decay):
      raise ValueError(f'Each decay must appear once, found {self.decay}.')

  @property
  def is_settled(self) -> bool:
    return bool(self.gain)

  def candidates(self, num_releases: int, most: int, apart: int) -> tuple[Correlation, ...]:
    if self.is_settled:
      return (self,)
    return (Blt(*published_noise.buffered(num_releases, most, apart, SMALLEST_DECAY, LARGEST_DECAY)),)

  @property
  def terms(self) -> tuple[tuple[float, float], ...]:
    if not self.is_settled:
      raise ValueError(recursions.NOT_CHOSEN.format('gain'))
    return tuple(zip(self.gain, self.decay))


@dataclasses.dataclass(frozen=True)
class Held(_OfOneDecay):
  """Noise that clients hold: each takes back a part of the noise of its own last round (`held_noise`).

  There are no coefficients that hold for all clients. A client's account follows from who came.

  Attributes:
    decay: λ, in [0, 0.999]; 0 is independent noise. None: chosen from the planned cohorts.
  """

  decay: Optional[float] = checks.number_field('decay', None, at_least=0, at_most=held_noise.LARGEST_DECAY)

  @property
  def terms(self) -> tuple[tuple[float, float], ...]:
    return ((_OF_HELD, self.chosen),)

  def coefficients(self, count: int) -> np.ndarray:
    raise ValueError('Noise that clients hold has no coefficients that are the same for all clients.')

  def covariance(self, cohorts: Sequence[Any], noise_multipliers: Sequence[float]) -> np.ndarray:
    return held_noise.covariance(cohorts, self.terms[0][1]) * min(noise_multipliers) ** 2

  def squared_norms(self, cohorts: Sequence[Any], weights: Sequence[Any], num_clients: int) -> np.ndarray:
    account = held_noise.opened(num_clients, 1.0, self.terms[0][1])
    for ids, own in zip(cohorts, weights):
      sends = np.asarray(own) > 0  # A client of weight 0 sends nothing, not even noise.
      account = account.after(np.asarray(ids, np.int64)[sends], np.asarray(own, np.float64)[sends])
    return account.spent


def _checked_decay(name, value) -> float:
  return checks.number(name, value, at_least=SMALLEST_DECAY, at_most=LARGEST_DECAY)


def of_terms(gains: Sequence[float], decays: Sequence[float]) -> Correlation:
  """The correlation with these gains and decays, as a ledger keeps them.

  Without any, the noise is independent. If all decays are 0, buffers hold a release each, and the noise is banded.
  """
  if list(gains) == [_OF_HELD]:
    (decay,) = decays
    return Held(float(decay))
  if len(decays) and not any(decays):
    return banded.Banded(len(gains) + 1, tuple(map(float, gains)))
  return Blt(tuple(map(float, gains)), tuple(map(float, decays))) if len(gains) else Independent()


FAMILIES = {'independent': Independent, 'ar1': Ar1, 'banded': banded.Banded, 'blt': Blt, 'held': Held}
