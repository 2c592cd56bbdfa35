"""How the noise of a round is correlated with that of the rounds before.

Noise that is independent from round to round adds up in a model like a random walk. Noise that partly takes back what
earlier rounds added does not. Let Z_s be independent Gaussian vectors. Release s adds the noise Ẑ_s, where

    Σ_{k≥0} c_k·Ẑ_{s-k} = Z_s,     c_0 = 1.

A family says what the coefficients c_k are, and how the server and the accounts compute with them step by step
(`quap_tff.mechanisms.noise.recursions`). docs/proofs.md derives a client's privacy loss under it. A new family is a
class here and a line in `FAMILIES`. Files keep the name of the family and its parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import operator
from typing import Callable, Optional

import numpy as np

from quap_tff.common import array_types
from quap_tff.common import checks
from quap_tff.common import registry
from quap_tff.common.numbers import arrays
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
_NOT_CHOSEN = 'The {} is not chosen yet. Give it, or let `CertifiedConfig.settled` choose it from a schedule.'
_KIND = 'noise correlation'


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
      raise ValueError(_NOT_CHOSEN.format('decay'))
    return self.decay


@dataclasses.dataclass(frozen=True)
class Ar1(_OfOneDecay):
  """c_k = decay^k, so that Ẑ_s = Z_s - decay·Z_{s-1}: each round takes back a share of what the round before added.

  Attributes:
    decay: 0, which is independent noise, or in [1e-6, 0.999]. None: chosen from the planned cohorts, like the noise
      multiplier.
  """

  decay: Optional[float] = checks.number_field('decay', None, at_least=0, at_most=LARGEST_DECAY)

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.decay:
      _checked_decay('decay, unless it is 0 (independent noise),', self.decay)

  def candidates(self, num_releases: int, most: int, apart: int) -> tuple[Correlation, ...]:
    if self.is_settled:
      return (self,)
    return tuple(Ar1(decay) for decay in DECAYS)

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

  def __post_init__(self) -> None:
    super().__post_init__()
    for name, values in (('gain', self.gain), ('decay', self.decay)):
      if not isinstance(values, tuple):
        raise ValueError(f'{name} must be a tuple with one number for each term, found {values!r}.')
    gains = tuple(checks.number('gain', gain, above=0, at_most=1) for gain in self.gain)
    decays = tuple(_checked_decay('decay', decay) for decay in self.decay)
    object.__setattr__(self, 'gain', gains)
    object.__setattr__(self, 'decay', decays)
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
    gains, decays = published_noise.buffered(num_releases, most, apart, SMALLEST_DECAY, LARGEST_DECAY)
    return (Blt(gains, decays),)

  @property
  def terms(self) -> tuple[tuple[float, float], ...]:
    if not self.is_settled:
      raise ValueError(_NOT_CHOSEN.format('gain'))
    return tuple(zip(self.gain, self.decay))


@dataclasses.dataclass(frozen=True)
class Banded(Correlation):
  """c_k = 0 from k = bands on: a banded Toeplitz matrix C (Choquette-Choo et al. 2023; McKenna 2024).

  Buffer j is the noise of the release j before, Ẑ_{s-j}, so there are bands - 1 buffers. With no more bands than
  releases from one participation of a client to its next, a client's participations do not overlap. More bands are
  accounted for, too, but the published choice of coefficients then makes the further ones 0 or nearly so.

  Attributes:
    bands: How many coefficients there are, with c_0, from 1 (independent noise) to the number of rounds.
    gain: c_1 … c_{bands-1}, each in [0, 1] and none larger than the one before. Empty: those of the least published
      error for the planned rounds (`published_noise.banded`).
  """

  bands: int = 3
  gain: tuple[float, ...] = ()

  def __post_init__(self) -> None:
    super().__post_init__()
    checks.integer('bands', self.bands, at_least=1)
    if not isinstance(self.gain, tuple):
      raise ValueError(f'gain must be a tuple with c_1 and the coefficients after it, found {self.gain!r}.')
    # Adding 0.0 makes 0.0 of -0.0, which files would write in another way.
    gains = tuple(checks.number('gain', gain, at_least=0, at_most=1) + 0.0 for gain in self.gain)
    object.__setattr__(self, 'gain', gains)
    if self.gain and len(self.gain) != self.bands - 1:
      raise ValueError(
        f'gain must have {self.bands - 1} numbers for bands={self.bands}, one for each coefficient after the first, '
        f'found {len(self.gain)}. Leave it out to have them chosen.'
      )
    if any(later > earlier for earlier, later in zip(self.gain, self.gain[1:])):
      raise ValueError(f'gain must not grow from one coefficient to the next, found {self.gain}.')

  @property
  def is_settled(self) -> bool:
    return len(self.gain) == self.bands - 1

  def check_rounds(self, num_rounds: int) -> None:
    if self.bands > num_rounds:
      raise ValueError(
        f'bands={self.bands} needs at least as many planned rounds in which clients take part, found {num_rounds}. Use '
        'fewer bands, or plan more rounds.'
      )

  def candidates(self, num_releases: int, most: int, apart: int) -> tuple[Correlation, ...]:
    self.check_rounds(num_releases)
    if self.is_settled:
      return (self,)
    gains = published_noise.banded(num_releases, most, apart, self.bands)
    return (Banded(self.bands, gains),)

  @property
  def gains(self) -> np.ndarray:
    if not self.is_settled:
      raise ValueError(_NOT_CHOSEN.format('gain'))
    return np.array(self.gain, np.float64)

  @property
  def decays(self) -> np.ndarray:
    return np.zeros_like(self.gains)

  @property
  def formula(self) -> str:
    return f'c_1, c_2, … = {", ".join(f"{gain:.6g}" for gain in self.gain)}, and 0 after that'

  def coefficients(self, count: int) -> np.ndarray:
    coefficients = np.zeros(count)
    coefficients[: self.bands] = np.append(1.0, self.gains)[:count]
    return coefficients

  def after(
    self,
    buffers: Sequence[array_types.Array],
    added: array_types.Array,
    times: Callable[[array_types.Array, float], array_types.Array] = operator.mul,
  ) -> list[array_types.Array]:
    return [added, *buffers][: self.num_buffers]

  def faded(self, buffers: Sequence[array_types.Array], elapsed: array_types.Numbers) -> list[array_types.Array]:
    xp = arrays.namespace(elapsed, *buffers)
    left = xp.minimum(elapsed, float(self.num_buffers))
    result = list(buffers)
    # The buffers move by the binary digits of what has elapsed, which differs from client to client.
    step = 1
    while step <= self.num_buffers:
      moves = xp.equal(xp.floor(left / step) % 2.0, 1.0)
      # What comes in at the near end is 0: no noise was drawn there.
      came_in = [xp.zeros_like(buffer) for buffer in result[:step]]
      moved = came_in + result[:-step]
      result = [xp.where(moves, new, old) for new, old in zip(moved, result)]
      step *= 2
    return result

  @property
  def _products(self) -> np.ndarray:
    """Σ_{k≤L} c_k·c_{k+j} for L and j from 0 to d, float64[d+1, d+1]."""
    column = np.append(1.0, self.gains)
    rows = [np.append(column[j:], np.zeros(j)) for j in range(len(column))]
    shifted = np.array(rows).T
    return np.cumsum(column[:, np.newaxis] * shifted, axis=0)

  def price(self, releases_left: array_types.Numbers) -> tuple[array_types.Numbers, list[array_types.Array]]:
    left = arrays.cast(releases_left, np.float64)
    # No coefficient is left after the last band.
    left = arrays.namespace(left).minimum(left, float(self.num_buffers))
    row = arrays.take(self._products, arrays.cast(left, np.int64))
    return row[0], [row[j] for j in range(1, self.bands)]

  def overlap(self, gap: array_types.Numbers) -> array_types.Numbers:
    products = self._products[-1]
    return (_along(products, 0, gap) - products[0]) / products[0]

  def lasting(
    self,
    factors: Sequence[array_types.Numbers],
    buffers: Sequence[array_types.Array],
    gap: array_types.Numbers,
    rounds: array_types.Numbers,
  ) -> list[array_types.Array]:
    if not buffers:
      return []
    xp = arrays.namespace(gap, rounds, *buffers, *factors)
    by_age = xp.stack([factors[0], *factors])
    # There are no more participations than rounds, and no later one overlaps more than the first.
    return [
      own * xp.minimum(_along(by_age, age, gap), rounds * factor)
      for age, (own, factor) in enumerate(zip(buffers, factors), start=1)
    ]


def _along(values: array_types.Array, start: int, gap: array_types.Numbers) -> array_types.Array:
  """Σ_{m≥0} values[start + m·gap]: on the straight line between neighbours, and 0 beyond the last.

  Args:
    values: float64[n].
    start: At least 0.
    gap: At least 1, floats of any shape, which is that of the result.
  """
  xp = arrays.namespace(values, gap)
  joined = xp.concatenate if xp is np else xp.concat
  padded = joined([values, xp.zeros_like(values[:1])], axis=0)
  last = int(values.shape[0])
  gaps = arrays.cast(gap, np.float64)[..., np.newaxis]
  places = gaps * np.arange(last, dtype=np.float64)  # m·gap. Further ones lie beyond the last value.
  whole = xp.floor(places)
  part = places - whole

  def at(index: array_types.Array) -> array_types.Array:
    inside = xp.minimum(index, float(last))
    return arrays.take(padded, arrays.cast(inside, np.int64))

  before, after = at(whole + start), at(whole + (start + 1))
  return xp.sum((1.0 - part) * before + part * after, axis=-1)


@dataclasses.dataclass(frozen=True)
class HeldNoise(_OfOneDecay):
  """Noise that clients hold: each takes back a part of the noise of its own last round (`held_noise`).

  There are no coefficients that hold for all clients. A client's account follows from who came.

  Attributes:
    decay: λ, in [0, 0.999]; 0 is independent noise. None: chosen from the planned cohorts.
  """

  decay: Optional[float] = checks.number_field('decay', None, at_least=0, at_most=held_noise.LARGEST_DECAY)

  @property
  def terms(self) -> tuple[tuple[float, float], ...]:
    raise ValueError('Noise that clients hold has no terms that are the same for all clients.')

  @property
  def num_buffers(self) -> int:
    """1: each client's own last W."""
    return 1

  def coefficients(self, count: int) -> np.ndarray:
    raise ValueError('Noise that clients hold has no coefficients that are the same for all clients.')

  def covariance(self, cohorts: Sequence[array_types.Ids], noise_multipliers: Sequence[float]) -> np.ndarray:
    return held_noise.covariance(cohorts, self.chosen) * min(noise_multipliers) ** 2


def _checked_decay(name: str, value: float) -> float:
  return checks.number(name, value, at_least=SMALLEST_DECAY, at_most=LARGEST_DECAY)


FAMILIES = {'independent': Independent, 'ar1': Ar1, 'banded': Banded, 'blt': Blt, 'held': HeldNoise}


def spec_of(correlation: Correlation) -> str:
  """The registered name of a correlation with its parameters, as in `ar1:decay=0.9`, which `from_spec` reads back.

  Raises:
    ValueError: If its class is not in `FAMILIES`, or its parameters do not say all that it is.
  """
  spec = registry.format_spec(registry.name_of(correlation, FAMILIES), correlation)
  if registry.parse_spec(_KIND, spec, FAMILIES) != correlation:
    raise ValueError(
      f'{spec} is not all that {correlation!r} is, so files could not keep it. Make it a frozen dataclass whose fields '
      'are numbers, or tuples of numbers.'
    )
  return spec


def from_spec(spec: str) -> Correlation:
  """The correlation of a spec that `spec_of` wrote. Raises `ValueError` for any other text."""
  correlation = registry.parse_spec(_KIND, spec, FAMILIES)
  if spec_of(correlation) != spec:
    raise ValueError(f'{spec!r} is not how a file writes {spec_of(correlation)}.')
  return correlation
