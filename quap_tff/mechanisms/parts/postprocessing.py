"""Averages of released iterates, a_t = a_{t-1} + r_t·(θ_t - a_{t-1}) with r_t by a rule and r_1 = 1; and shrinkage.

This is post-processing: whatever is computed from released weights and public constants alone has the privacy of the
weights, and no account changes. That holds only if the constants are public. A constant that was chosen by looking at
clients' data is a release of its own.
"""

import abc
from collections.abc import Mapping, Sequence
import dataclasses

import numpy as np

from quap_tff.common import array_types
from quap_tff.common import checks

# How far one round moves the model towards where training would end, as a share. It does not depend on any data.
PULL = 0.2
# Arrays by name, as a checkpoint keeps them: `releases` int64[], and `weights_<k>`, the average of tensor k, float64.
State = dict[str, np.ndarray]


class Averaging(checks.Checked, abc.ABC):
  """An average over the iterates that a run releases. Subclasses are frozen dataclasses in `AVERAGINGS`."""

  @abc.abstractmethod
  def rate(self, release: int) -> float:
    """r_t in (0, 1], the weight of the t-th iterate, counted from 1, in the average over the first t; r_1 = 1."""

  def candidates(self, num_rounds: int) -> 'list[Averaging]':
    """The averages that a plan for this many rounds may choose from."""
    return [self]

  def shares(self, num_rounds: int) -> np.ndarray:
    """float64[T], the share of each of T iterates in the average over all of them; the shares sum to 1."""
    shares = np.zeros(num_rounds)
    left = 1.0
    for release in range(num_rounds, 0, -1):
      shares[release - 1] = left * self.rate(release)
      left -= shares[release - 1]
    return shares

  def initial(self, weights: Sequence[array_types.Array]) -> State:
    """The state before the first release.

    Args:
      weights: The model's initial weights, a list of float arrays. They are the average until there is an iterate.
    """
    return _state(0, [np.asarray(w, np.float64) for w in weights])

  def update(self, state: State, weights: Sequence[array_types.Array]) -> State:
    """The state with one more iterate; `state` is left as it is.

    Args:
      state: From `initial` or `update`.
      weights: The released weights, of the same shapes.

    Raises:
      ValueError: If the shapes differ.
    """
    average = _averages(state)
    weights = [np.asarray(w, np.float64) for w in weights]
    if [w.shape for w in weights] != [a.shape for a in average]:
      raise ValueError(
        f'The average is over weights of shapes {[a.shape for a in average]}, found {[w.shape for w in weights]}.'
      )
    release = int(state['releases']) + 1
    rate = self.rate(release)
    if rate < 1:  # At 1 nothing of the old average is left, not even values that are not finite.
      weights = [a + rate * (w - a) for a, w in zip(average, weights)]
    return _state(release, weights)

  def value(self, state: State, weights: Sequence[array_types.Array]) -> list[np.ndarray]:
    """The averaged weights, float32 arrays, given the weights that `state` was last updated with (or started from)."""
    return [a.astype(np.float32) for a in _averages(state)]


@dataclasses.dataclass(frozen=True)
class LastIterate(Averaging):
  """The latest iterate."""

  def rate(self, release: int) -> float:
    return 1.0

  # Nothing is kept: checkpoints hold the weights themselves.
  def initial(self, weights: Sequence[array_types.Array]) -> State:
    return _state(0, [])

  def update(self, state: State, weights: Sequence[array_types.Array]) -> State:
    return _state(int(state['releases']) + 1, [])

  def value(self, state: State, weights: Sequence[array_types.Array]) -> list[np.ndarray]:
    return [np.asarray(w) for w in weights]


@dataclasses.dataclass(frozen=True)
class Exponential(Averaging):
  """θ_s has a weight in proportion to decay^(t-s). Unlike a plain EMA, it has no pull to the initial weights.

  Attributes:
    decay: In [0, 1); about 1/(1 - decay) iterates count.
  """

  decay: float = checks.number_field('decay', 0.9, at_least=0, below=1)

  def rate(self, release: int) -> float:
    return (1 - self.decay) / (1 - self.decay**release)


@dataclasses.dataclass(frozen=True)
class Tail(Averaging):
  """The mean of all iterates from the `start`-th on; the latest one before that.

  Attributes:
    start: Counted from 1.
  """

  start: int = checks.integer_field('start', 1, at_least=1)

  def rate(self, release: int) -> float:
    return 1 / max(1, release - self.start + 1)


@dataclasses.dataclass(frozen=True)
class PlannedAverage(Averaging):
  """The mean of the iterates of the last half or the last quarter of the planned rounds, or the latest iterate.

  A certified plan chooses, together with its noise: see `quap_tff.mechanisms.certified.planning`.
  """

  def candidates(self, num_rounds: int) -> list[Averaging]:
    return [Tail(num_rounds // 2 + 1), Tail(3 * num_rounds // 4 + 1), LastIterate()]

  def rate(self, release: int) -> float:
    raise ValueError('This average has not been chosen yet: a certified plan chooses it from its schedule.')


AVERAGINGS: Mapping[str, type[Averaging]] = {
  'none': LastIterate,
  'exponential': Exponential,
  'tail': Tail,
  'planned': PlannedAverage,
}


def restored(expected: State, kept: Mapping[str, array_types.Array]) -> State:
  """A state that was saved in a checkpoint.

  Args:
    expected: A state of the same run, for names and shapes.
    kept: Arrays by name.

  Raises:
    ValueError: If names or shapes differ, because it is the average of another model.
  """
  shapes = {name: np.shape(value) for name, value in kept.items()}
  expected_shapes = {name: value.shape for name, value in expected.items()}
  if shapes != expected_shapes:
    raise ValueError(
      f'The saved average belongs to another model: it holds {shapes}, this run needs {expected_shapes}.'
    )
  return {name: np.asarray(kept[name], value.dtype) for name, value in expected.items()}


def shrunk(weights: Sequence[array_types.Array], factor: float) -> list[np.ndarray]:
  """The weights times a public factor in (0, 1]; for a linear model that lowers confidence and changes no decision.

  Raises:
    ValueError: If the factor is out of range.
  """
  checks.number('shrinkage', factor, above=0, at_most=1)
  return [np.asarray(w) * np.asarray(factor, np.asarray(w).dtype) for w in weights]


def _state(releases: int, averages: Sequence[np.ndarray]) -> State:
  return {'releases': np.array(releases, np.int64), **{f'weights_{k}': a for k, a in enumerate(averages)}}


def _averages(state: State) -> list[np.ndarray]:
  return [state[f'weights_{k}'] for k in range(len(state) - 1)]


def kept_shares(iterates: np.ndarray) -> np.ndarray:
  """v_t, float64[T]: the share of each round's update that is left in what is published, from that of each iterate.

  Each later round moves the model by a share `PULL` towards where training would end.
  """
  kept = np.zeros(len(iterates))
  later = 0.0
  for index in reversed(range(len(iterates))):
    later = iterates[index] + (1 - PULL) * later
    kept[index] = later
  return kept
