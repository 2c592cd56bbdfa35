"""What every accountant is: a theorem that turns a history of Gaussian mechanisms into the ε at a δ."""

import abc
import math
from typing import Optional, Sequence

import numpy as np

from quap_tff import checks
from quap_tff import tradeoff
from quap_tff.accounting import history as histories_lib

# Distinct histories that `Accountant.epsilons` accounts one by one.
_MOST_HISTORIES = 64


class NotApplicableError(ValueError):
  """An accountant has no figure for a history; the message says why."""


class Accountant(abc.ABC):
  """Interprets a history. Stateless.

  Attributes:
    method: The theorem, in a line.
    supports_sampling: Whether rates below 1 are amplification that this accountant can count.
    merges: Whether only the histories' `merged` form matters.
    population_step: `epsilons` rounds the noise of many clients up to the largest over powers of 1 + this, so that few
      distinct histories are left; 0 for accountants that are quick.
    relative_tolerance: How near a solve for noise comes to the least one.
  """

  method: str
  supports_sampling = False
  merges = True
  population_step = 0.0
  relative_tolerance = 1e-10

  def refusal(self, history: histories_lib.History) -> Optional[str]:
    """Why this accountant has no figure for `history`; None if it has one."""
    if history.is_sampled and not self.supports_sampling:
      return 'cannot count amplification by sampling'
    return None

  def epsilon(self, history: histories_lib.History, delta: float) -> float:
    """The smallest ε >= 0 that this accountant can prove at δ; never below the truth. +inf without noise.

    Raises:
      NotApplicableError: If the accountant does not hold for the history or δ.
      ValueError: If δ is not in (0, 1).
    """
    checks.number('delta', delta, above=0, below=1)
    reason = self.refusal(history)
    if reason:
      raise NotApplicableError(reason)
    if not history.releases:
      return 0.0
    if any(math.isinf(mechanism.mu) for mechanism, _ in history.releases):
      return math.inf
    return self._bounded(history.merged() if self.merges else history, float(delta))

  def _bounded(self, history: histories_lib.History, delta: float) -> float:
    """ε by this accountant, or the exact one without sampling where that is smaller or the only one there is."""
    if not history.is_sampled:
      return float(self._epsilon(history, delta))
    # To be drawn with a smaller probability never costs a client more than to be in every round.
    always_in = float(tradeoff.epsilon_of(history.always_in().total_mu, delta))
    try:
      return min(float(self._epsilon(history, delta)), always_in)
    except NotApplicableError:
      return always_in

  @abc.abstractmethod
  def _epsilon(self, history: histories_lib.History, delta: float) -> float:
    """ε of a history with some mechanism and noise in all."""

  def epsilons(self, histories: Sequence[histories_lib.History], delta: float) -> np.ndarray:
    """float64[len(histories)], ε of each: computed once for equal ones and, if many are not, rounded up together.

    More than `_MOST_HISTORIES` distinct ones are coarsened by `population_step`, doubled until few enough are left.
    The history of the largest μ and rate stays as it is.
    """
    keys = [history.merged() if self.merges else history for history in histories]
    places = {key: place for place, key in enumerate(dict.fromkeys(keys))}
    exact = coarse = list(places)
    step = self.population_step
    while 0 < step < 1 and len(set(coarse)) > _MOST_HISTORIES:
      coarse, step = histories_lib.coarsened(exact, step), 2 * step
    known = {key: self.epsilon(key, delta) for key in dict.fromkeys(coarse)}
    return np.array([known[coarse[places[key]]] for key in keys], np.float64)
