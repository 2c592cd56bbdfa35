"""The interface of accountants. Each is a theorem that turns a history of Gaussian mechanisms into the ε at a δ."""

import abc
from collections.abc import Sequence
import math
from typing import Any, Optional

import numpy as np

from quap_tff.accounting import history as histories_lib
from quap_tff.common import checks
from quap_tff.mechanisms import tradeoff

# The most distinct histories that `Accountant.epsilons` accounts for one by one.
_MOST_HISTORIES = 64


class NotApplicableError(ValueError):
  """An accountant has no figure for a history. The message says why."""


def checked(epsilon: Any) -> Any:
  """`epsilon`, one or many; raises `ValueError` if one is NaN or negative, which is not a bound."""
  if not np.all(np.asarray(epsilon) >= 0):
    raise ValueError(f'An accountant found ε = {epsilon}, which is not a bound. Nothing can be said by it.')
  return epsilon


class Accountant(abc.ABC):
  """Interprets a history. Stateless.

  Attributes:
    method: The theorem, in a line.
    supports_sampling: Whether this accountant can count amplification by sampling (rates below 1).
    merges: Whether only the histories' `merged` form matters.
    population_step: For many clients, `epsilons` rounds each μ up to the largest one over a power of 1 + this, so that
      few distinct histories are left; 0 for accountants that are fast.
    relative_tolerance: How close a solve for noise comes to the least noise.
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
    """The smallest ε >= 0 that this accountant can prove at δ; never less than the true one. +inf without noise.

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
    return float(checked(self._bounded(history.merged() if self.merges else history, float(delta))))

  def _bounded(self, history: histories_lib.History, delta: float) -> float:
    """ε by this accountant, or the exact ε without sampling where that is smaller or the only one."""
    if not history.is_sampled:
      return float(self._epsilon(history, delta))
    # A client that is drawn with some probability never spends more than one that is in every round.
    always_in = float(tradeoff.epsilon_of(history.always_in().total_mu, delta))
    try:
      return min(float(self._epsilon(history, delta)), always_in)
    except NotApplicableError:
      return always_in

  @abc.abstractmethod
  def _epsilon(self, history: histories_lib.History, delta: float) -> float:
    """ε of a history that has at least one mechanism, all of them with noise."""

  def epsilons(self, histories: Sequence[histories_lib.History], delta: float) -> np.ndarray:
    """float64[len(histories)], the ε of each. Equal histories are computed once.

    If there are more than `_MOST_HISTORIES` distinct ones, they are coarsened (rounded up) by `population_step`, which
    is doubled until few enough are left. The history with the largest μ and rate stays as it is.
    """
    keys = [history.merged() if self.merges else history for history in histories]
    places = {key: place for place, key in enumerate(dict.fromkeys(keys))}
    exact = coarse = list(places)
    step = self.population_step
    while 0 < step < 1 and len(set(coarse)) > _MOST_HISTORIES:
      coarse, step = histories_lib.coarsened(exact, step), 2 * step
    known = {key: self.epsilon(key, delta) for key in dict.fromkeys(coarse)}
    return np.array([known[coarse[places[key]]] for key in keys], np.float64)
