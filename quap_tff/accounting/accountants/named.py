"""Accountants: what a client's history of Gaussian mechanisms spends, as (ε, δ). `ACCOUNTANTS` lists all of them.

All figures are upper bounds, for one client with all of its data, and name their neighbouring relation. An accountant
that does not hold for a history refuses it and says why, instead of giving a wrong figure.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import math
from typing import Optional, Union

from quap_tff.accounting.accountants import gaussian as base
from quap_tff.accounting.accountants import history as histories_lib
from quap_tff.accounting.accountants import library as library_accountants
from quap_tff.accounting.accountants import roots
from quap_tff.accounting.accountants.gaussian import NotApplicableError
from quap_tff.common import checks
from quap_tff.common import registry
from quap_tff.common.numbers import rounding

UNIT = 'one client with all of its data'

_SMALLEST_LOG_DELTA = math.log(1e-300)
_LOG_DELTA_TOLERANCE = 1e-9


@dataclasses.dataclass(frozen=True)
class Figure:
  """A formal (ε, δ) and what it means.

  Attributes:
    accountant: Name in `ACCOUNTANTS`.
    epsilon: Nats, an upper bound; +inf if some mechanism has no noise.
    delta: The total δ.
    method: The accountant's theorem in a line.
    amplification: Whether amplification by sampling is counted, and why it may be.
    neighbours: The neighbouring relation.
    unit: Whose privacy it is.
  """

  accountant: str
  epsilon: float
  delta: float
  method: str
  amplification: str
  neighbours: str
  unit: str = UNIT

  def __post_init__(self):
    base.checked(self.epsilon)

  def __str__(self):
    return (
      f'ε = {rounding.up(self.epsilon)} at δ = {rounding.up(self.delta)} ({self.accountant}: {self.method}; '
      f'neighbours: {self.neighbours}; unit: {self.unit}; {self.amplification})'
    )


@dataclasses.dataclass(frozen=True)
class NotApplicable:
  """No figure, and why."""

  accountant: str
  reason: str


ACCOUNTANTS: Mapping[str, base.Accountant] = {
  'gaussian_exact': base.GaussianExact(),
  'zcdp': base.Zcdp(),
  'rdp': library_accountants.Rdp(),
  'pld': library_accountants.Pld(),
  'advanced': base.Advanced(),
  'basic': base.Basic(),
}


def get(name: str) -> base.Accountant:
  """The accountant of this name; raises `ValueError` with the nearest names if there is none."""
  return registry.lookup('accountant', name, ACCOUNTANTS)


def default_name(history: histories_lib.History, delta: Optional[float] = None) -> str:
  """The accountant with the smallest figure: `gaussian_exact`; with sampling `pld`, or `rdp` if δ is too small."""
  if not history.is_sampled:
    return 'gaussian_exact'
  return 'pld' if delta is None or delta >= library_accountants.Pld.MIN_DELTA else 'rdp'


def account(
  history: histories_lib.History, delta: float, names: Optional[Sequence[str]] = None
) -> dict[str, Union[Figure, NotApplicable]]:
  """The privacy loss of a history, by every accountant or by the named ones.

  Args:
    history: The mechanisms that one client goes through.
    delta: Total δ in (0, 1).
    names: Of `ACCOUNTANTS`; None for all.

  Returns:
    For each name a `Figure`, or a `NotApplicable` that says why there is none.

  Raises:
    ValueError: For an unknown name or a δ outside (0, 1).
  """
  result: dict[str, Union[Figure, NotApplicable]] = {}
  for name in names if names is not None else ACCOUNTANTS:
    accountant = get(name)
    try:
      epsilon = accountant.epsilon(history, delta)
    except NotApplicableError as error:
      result[name] = NotApplicable(name, str(error))
    else:
      result[name] = Figure(name, epsilon, delta, accountant.method, amplification(history), history.neighbours)
  return result


def amplification(history: histories_lib.History) -> str:
  """Whether sampling is counted, and why it may be."""
  rates = history.sampling_rates
  if not rates:
    return 'no amplification by sampling'
  shown = f'{rates[0]:g}' if len(rates) == 1 else f'{rates[0]:g} to {rates[-1]:g}'
  return (
    f'amplification by Poisson sampling, q = {shown}: each round draws each client independently, and who was drawn '
    'stays secret; if the exact ε of a client that is in every round is smaller, that one is given'
  )


def delta_of(history: histories_lib.History, epsilon: float, name: str) -> float:
  """The smallest δ at which the accountant proves ε, rounded up; at least the smallest δ that it can handle.

  Args:
    history: The mechanisms that one client goes through.
    epsilon: ε >= 0 in nats.
    name: Of `ACCOUNTANTS`.

  Returns:
    δ in (0, 1), within a factor of 1e-9 of the smallest; 1e-300 for anything smaller.

  Raises:
    ValueError: If no δ < 1 is enough, or the accountant does not apply.
  """
  accountant = get(name)
  checks.number('epsilon', epsilon, at_least=0)
  low, high = _SMALLEST_LOG_DELTA, math.log1p(-1e-12)
  if name == 'pld':
    low = math.log(library_accountants.Pld.MIN_DELTA * (1 + 1e-9))
  # ε falls as δ grows.
  excess = lambda log_delta: accountant.epsilon(history, math.exp(log_delta)) - epsilon
  if excess(high) > 0:
    raise ValueError(f'epsilon={epsilon} is out of reach: {name} proves it for no delta below 1 with this noise.')
  return math.exp(roots.least(excess, low, high, _LOG_DELTA_TOLERANCE))
