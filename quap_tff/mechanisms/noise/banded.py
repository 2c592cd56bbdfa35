"""Banded correlation: a release takes back noise of the last few releases alone, whose noise the server remembers."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import operator
from typing import Any, Callable

import numpy as np

from quap_tff.common import checks
from quap_tff.common.numbers import arrays
from quap_tff.mechanisms.noise import published_noise
from quap_tff.mechanisms.noise import recursions


@dataclasses.dataclass(frozen=True)
class Banded(recursions.Correlation):
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

  def __post_init__(self):
    super().__post_init__()
    checks.integer('bands', self.bands, at_least=1)
    if not isinstance(self.gain, tuple):
      raise ValueError(f'gain must be a tuple with c_1 and the coefficients after it, found {self.gain!r}.')
    gains = tuple(checks.number('gain', one, at_least=0, at_most=1) + 0.0 for one in self.gain)  # -0.0 is 0.0.
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

  def candidates(self, num_releases: int, most: int, apart: int) -> tuple[recursions.Correlation, ...]:
    self.check_rounds(num_releases)
    if self.is_settled:
      return (self,)
    return (Banded(self.bands, published_noise.banded(num_releases, most, apart, self.bands)),)

  @property
  def gains(self) -> np.ndarray:
    if not self.is_settled:
      raise ValueError(recursions.NOT_CHOSEN.format('gain'))
    return np.array(self.gain, np.float64)

  @property
  def decays(self) -> np.ndarray:
    return np.zeros_like(self.gains)

  @property
  def formula(self) -> str:
    return f'c_1, c_2, … = {", ".join(f"{gain:.6g}" for gain in self.gain)}, and 0 after that'

  def coefficients(self, count: int) -> np.ndarray:
    found = np.zeros(count)
    found[: self.bands] = np.append(1.0, self.gains)[:count]
    return found

  def after(self, buffers: Sequence[Any], added: Any, times: Callable[[Any, float], Any] = operator.mul) -> list[Any]:
    return [added, *buffers][: self.num_buffers]

  def faded(self, buffers: Sequence[Any], elapsed: Any) -> list[Any]:
    xp = arrays.namespace(elapsed, *buffers)
    # The buffers move by the binary digits of what has elapsed.
    left, step, moved = xp.minimum(elapsed, float(self.num_buffers)), 1, list(buffers)
    while step <= self.num_buffers:
      moves = xp.equal(xp.floor(left / step) % 2.0, 1.0)
      moved = [
        xp.where(moves, moved[j - step] if j >= step else xp.zeros_like(own), own) for j, own in enumerate(moved)
      ]
      step *= 2
    return moved

  def _aged(self, buffers: np.ndarray, elapsed: np.ndarray) -> np.ndarray:
    return np.array(self.faded(list(buffers.T), elapsed.astype(np.float64))).T

  @property
  def _products(self) -> np.ndarray:
    """Σ_{k≤L} c_k·c_{k+j} for L and j from 0 to d, float64[d+1, d+1]."""
    column = np.append(1.0, self.gains)
    shifted = np.array([np.append(column[j:], np.zeros(j)) for j in range(len(column))]).T
    return np.cumsum(column[:, np.newaxis] * shifted, axis=0)

  def price(self, releases_left: Any) -> tuple[Any, list[Any]]:
    left = arrays.cast(releases_left, np.float64)
    last = arrays.cast(arrays.namespace(left).minimum(left, float(self.num_buffers)), np.int64)
    row = arrays.take(self._products, last)
    return row[0], [row[j] for j in range(1, self.bands)]

  def overlap(self, gap: Any) -> Any:
    products = self._products[-1]
    return (_along(products, 0, gap) - products[0]) / products[0]

  def lasting(self, factors: Sequence[Any], buffers: Sequence[Any], gap: Any, rounds: Any) -> list[Any]:
    if not buffers:
      return []
    xp = arrays.namespace(gap, rounds, *buffers, *factors)
    by_age = xp.stack([factors[0], *factors])
    # There are no more participations than rounds, and no later one overlaps more than the first.
    return [
      own * xp.minimum(_along(by_age, age, gap), rounds * factor)
      for age, (own, factor) in enumerate(zip(buffers, factors), start=1)
    ]


def _along(values: Any, start: int, gap: Any) -> Any:
  """Σ_{m≥0} values[start + m·gap]: on the straight line between neighbours, and 0 beyond the last.

  Args:
    values: float64[n].
    start: At least 0.
    gap: At least 1, floats of any shape, which is that of the result.
  """
  xp = arrays.namespace(values, gap)
  padded = xp.concatenate([values, [0.0]]) if xp is np else xp.concat([values, [0.0]], axis=0)
  last = len(values)
  places = arrays.cast(gap, np.float64)[..., np.newaxis] * np.arange(last, dtype=np.float64)
  whole = xp.floor(places)
  part = places - whole
  at = lambda index: arrays.take(padded, arrays.cast(xp.minimum(index, float(last)), np.int64))
  return xp.sum((1.0 - part) * at(whole + start) + part * at(whole + (start + 1)), axis=-1)
