"""The search for constants, one coordinate at a time."""

from collections.abc import Sequence
import operator
import os
from typing import Callable, Optional

from experiments.tuning import task as tasks
from experiments.tuning.task import Constants
from experiments.tuning.task import Task

# Seeds of the search, and of the check after it.
SEEDS, FRESH_SEEDS = (1, 2), (3, 4, 5)
# More rounds must gain this.
_LEAST_GAIN_OF_ROUNDS = 0.01

# Plays the runs of a grid, from a folder, base flags and axes. The result is the test accuracy of each, None where it
# did not end in time.
Play = Callable[[str, Sequence[str], Sequence[str]], list[Optional[float]]]


def _rates_and_epochs(task: Task, best: Constants) -> list[Constants]:
  rates = _times(best.rate, (1, 0.3, 3)) if 'rate' in task.free else [best.rate]
  epochs = (5, 10) if 'epochs' in task.free else (best.epochs,)
  return [best._replace(rate=rate, epochs=number) for number in epochs for rate in rates]


def _norms(task: Task, best: Constants) -> list[Constants]:
  if 'clip' not in task.free or best.clip is None:
    return []
  return [best._replace(clip=clip) for clip in _times(best.clip, (0.25, 0.5, 2, 4))]


def _rates(task: Task, best: Constants) -> list[Constants]:
  return [best._replace(rate=rate) for rate in _times(best.rate, (0.3, 3))] if 'rate' in task.free else []


def _rounds(task: Task, best: Constants) -> list[Constants]:
  """Other numbers of rounds, with the norm as it is, and so that norm times rounds stays."""
  if 'rounds' not in task.free:
    return []
  found = []
  for factor in (0.5, 2, 4):
    longer = best._replace(rounds=round(factor * best.rounds))
    found.append(longer)
    if 'clip' in task.free and best.clip is not None:
      found.append(longer._replace(clip=tasks.three_digits(best.clip / factor)))
  return found


def _averages(task: Task, best: Constants) -> list[Constants]:
  return [best._replace(averaging='planned')] if 'averaging' in task.free else []


def _times(value: float, factors: Sequence[float]) -> list[float]:
  return [tasks.three_digits(value * factor) for factor in factors]


STAGES = (_rates_and_epochs, _norms, _rates, _rounds, _averages)


def most_runs(task: Task) -> int:
  """The most runs of a search."""
  return sum(len(stage(task, task.start)) for stage in STAGES) * len(SEEDS) + len(FRESH_SEEDS)


class Search:
  """A search, one coordinate at a time. `played` counts its runs."""

  def __init__(self, task: Task, folder: str, play: Play):
    self._task, self._folder, self._play = task, folder, play
    self._scores: dict[Constants, float] = {}
    self.played = 0

  def best(self) -> Constants:
    """The best constants that were found.

    Raises:
      ValueError: If no run ended in time.
    """
    best = self._task.start
    for number, stage in enumerate(STAGES):
      found = dict.fromkeys((*stage(self._task, best), best))
      new = [one for one in found if one not in self._scores]
      self._scores.update(self._scored(f'stage{number}', new, SEEDS))
      best = self._better() if self._scores else best
    if not self._scores:
      raise ValueError('No run ended in time: give more --minutes, or fewer --examples_per_client.')
    return best

  def _better(self) -> Constants:
    """The best so far. More rounds must gain `_LEAST_GAIN_OF_ROUNDS`."""
    best: Optional[Constants] = None
    for one in sorted(self._scores, key=lambda constants: constants.rounds):  # Stable: earlier ones first.
      gain = 0.0 if best is None or one.rounds == best.rounds else _LEAST_GAIN_OF_ROUNDS
      if best is None or self._scores[one] > self._scores[best] + gain:
        best = one
    assert best is not None
    return best

  def expected(self, chosen: Constants) -> tuple[float, bool]:
    """The mean accuracy of the choice, and whether it is of fresh seeds. If time is over it is that of the search."""
    fresh = self._scored('fresh', [chosen], FRESH_SEEDS)
    return fresh.get(chosen, self._scores[chosen]), chosen in fresh

  def _scored(self, name: str, candidates: Sequence[Constants], seeds: Sequence[int]) -> dict[Constants, float]:
    """The mean accuracy of each candidate all of whose runs ended."""
    if not candidates:
      return {}
    rows = [tasks.flags_of(self._task, one, is_rehearsal=True) for one in candidates]
    columns = {flag: '|'.join(map(operator.itemgetter(flag), rows)) for flag in rows[0]}
    axes = [';'.join(f'{flag}={values}' for flag, values in columns.items()), f'seed={"|".join(map(str, seeds))}']
    found = self._play(os.path.join(self._folder, name), tasks.base_flags(self._task), axes)
    self.played += sum(accuracy is not None for accuracy in found)
    scores = {}
    for number, one in enumerate(candidates):
      accuracies = found[number * len(seeds) : (number + 1) * len(seeds)]
      ended = [accuracy for accuracy in accuracies if accuracy is not None]
      if len(ended) == len(seeds):
        scores[one] = sum(ended) / len(ended)
    return scores
