"""Accountants of the dp-accounting library, which can count sampling: Rényi and privacy loss distributions."""

from collections.abc import Sequence
import functools
import math
from typing import Any

import numpy as np

from quap_tff.accounting.accountants import gaussian as base
from quap_tff.accounting.accountants import history as histories_lib
from quap_tff.common import lazy
from quap_tff.common.numbers import rounding
from quap_tff.common.numbers import tradeoff

# Imported when first used, so that a program's help need not wait for SciPy's statistics, which come with it.
dp_accounting = lazy.module('dp_accounting')
pld = lazy.module('dp_accounting.pld')
rdp = lazy.module('dp_accounting.rdp')


class Rdp(base.Accountant):
  """dp-accounting's Rényi accountant."""

  method = 'Rényi composition by dp-accounting (Mironov et al. 2019; Canonne et al. 2020)'
  supports_sampling = True
  population_step = 1e-2

  def _epsilon(self, history, delta):
    orders = _orders(history.is_sampled)
    epsilon, _ = rdp.compute_epsilon(orders, _rdp_of(history, orders), delta)
    return float(epsilon) * (1 + tradeoff.RELATIVE_MARGIN)


class Pld(base.Accountant):
  """dp-accounting's privacy loss distributions, on a grid that suits the history."""

  method = 'privacy loss distributions by dp-accounting (Doroshenko et al. 2022)'
  supports_sampling = True
  population_step = 1e-2
  relative_tolerance = 1e-6

  # The library cuts off tails of 1e-15 and convolves in floats, with errors in δ of up to about 1e-14 either way. So it
  # is asked for a δ smaller by this margin, and never for a δ close to the margin.
  DELTA_MARGIN = 1e-12
  MIN_DELTA = 1e-10

  def _epsilon(self, history, delta):
    if delta < self.MIN_DELTA:
      raise base.NotApplicableError(
        f'rounding and cut-off tails of its distributions reach about 1e-12, too close to δ = '
        f'{rounding.up(delta)} (smallest: {self.MIN_DELTA:g})'
      )
    if _discretization(history) > _COARSEST_STEP:
      raise base.NotApplicableError(f'losses reach beyond its grid ({_MOST_STEPS * _COARSEST_STEP:g} nats)')
    with np.errstate(over='ignore', invalid='ignore'):
      epsilon = float(_pld_of(history).get_epsilon(delta - self.DELTA_MARGIN))
    if math.isinf(epsilon):
      raise base.NotApplicableError(
        f'the tails that its distributions cut off weigh more than δ = {rounding.up(delta)}'
      )
    return epsilon * (1 + tradeoff.RELATIVE_MARGIN)


@functools.cache
def _orders(is_sampled: bool) -> tuple[float, ...]:
  """The library's own orders and, unless rounds are sampled, those that are best for small losses.

  With sampling, large orders would cost time.
  """
  own = tuple(map(float, rdp.rdp_privacy_accountant.DEFAULT_RDP_ORDERS))
  return own if is_sampled else tuple(sorted({*own, *(1 + np.exp(np.linspace(math.log(1e-2), math.log(1e9), 600)))}))


def _event(mechanism: histories_lib.GaussianMechanism) -> Any:
  event = dp_accounting.GaussianDpEvent(mechanism.noise_multiplier)
  return event if mechanism.sampling_rate == 1 else dp_accounting.PoissonSampledDpEvent(mechanism.sampling_rate, event)


# A solve for δ asks for the same history again and again.
@functools.lru_cache(maxsize=8)
def _rdp_of(history, orders):
  """Rényi divergence of a history at each order, an upper bound."""
  accountant = rdp.RdpAccountant(list(orders), dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
  for mechanism, n in history.releases:
    accountant.compose(_event(mechanism), n)
  sampled = sum(n for mechanism, n in history.releases if mechanism.sampling_rate < 1)
  return without_nan(np.maximum(accountant.rdp, 0.0) + rdp_rounding(sampled, orders))


def without_nan(divergences: np.ndarray) -> np.ndarray:
  """Rényi divergences with +inf for NaN, of which the library would make an ε of 0."""
  return np.where(np.isnan(divergences), np.inf, divergences)


def rdp_rounding(sampled_rounds: int, orders: Sequence[float]) -> np.ndarray:
  """What to add to the library's Rényi divergences of sampled rounds, at each order, to be on the safe side.

  The library cuts off the series of a sampled round at e^-30 and sums it in floats. For a round with very little loss
  its result can be 0 or less.
  """
  alpha = np.array(orders, np.float64)
  return sampled_rounds * 1e-12 * (1 + alpha / 100) / (alpha - 1)


@functools.lru_cache(maxsize=8)
def _pld_of(history):
  accountant = pld.PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE, _discretization(history))
  for mechanism, n in history.releases:
    accountant.compose(_event(mechanism), n)
  return accountant


# The grid's step as a share of a mechanism's own spread of loss. The ε that the library's pessimistic rounding adds
# grows with the square of this share: 1e-3 at a tenth. And the largest number of steps: 2e5 take a second.
_STEP_OF_SPREAD = 1 / 50
_MOST_STEPS = 2e5
_USUAL_STEP, _COARSEST_STEP = 1e-3, 0.1
_TAIL = 1e-15


def _discretization(history) -> float:
  """The step of the grid of losses, nats: small against each mechanism's loss, large enough to be computed."""
  spread = min(min(1.0, mechanism.mu) * mechanism.sampling_rate for mechanism, _ in history.releases)
  largest_mu = max(mechanism.mu for mechanism, _ in history.releases)
  largest = max(Rdp().epsilon(history, _TAIL), largest_mu * (largest_mu / 2 + 10))
  return max(min(_USUAL_STEP, _STEP_OF_SPREAD * spread), largest / _MOST_STEPS)
