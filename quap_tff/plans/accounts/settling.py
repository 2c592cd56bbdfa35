"""Settles what a certified run asks of its mechanism: noise, divisor and average, before training and from no data."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import os
from typing import Optional

import numpy as np

from quap_tff.accounting import logs
from quap_tff.common import array_types
from quap_tff.common import checks
from quap_tff.mechanisms.certified import guarantee
from quap_tff.mechanisms.held import config as held_config
from quap_tff.mechanisms.parts import postprocessing

# What must be given where neither a schedule nor an expectation is there to choose it.
_NUMBERS = ('noise_multiplier', 'divisor', 'num_rounds')


def check_colluders_before(config: guarantee.GuaranteeConfig, colluders: Sequence[int]) -> None:
  """Raises `ValueError` if it is not known what was spent before against so many colluders."""
  before = config.spent_before
  missing = [k for k in colluders if before is not None and before.against_any(k) is None]
  if missing:
    raise ValueError(
      f'colluders={missing[0]}: the earlier runs have no figure against {missing[0]} colluders, so none can be stated '
      f'for all runs together. Leave this number out here, or plan the earlier runs with colluders={missing[0]}.'
    )


def check_needs_no_schedule(
  config: object,
  attendance: Optional[Sequence[array_types.Ids]] = None,
  colluders: Sequence[int] = (),
  min_separation: Optional[int] = None,
) -> None:
  """Raises `ValueError` for what cannot be had where nobody knows who will come."""
  weights = getattr(config, 'weights', None)
  if weights is not None and weights.needs_plan:
    raise ValueError(
      f'Weight rule {type(weights).__name__} spreads each budget over the rounds in which its client will take part, '
      'so it needs a schedule. Give one, or use a rule that needs none, such as weight_rules.Online().'
    )
  if min_separation is not None:
    raise ValueError(
      f'min_separation={min_separation} is a promise about rounds to come, so it needs a schedule. Give one, or leave '
      'min_separation out: the noise is then chosen for the separation that is expected.'
    )
  if attendance is not None or colluders:
    given = 'attendance' if attendance is not None else 'colluders'
    raise ValueError(
      f'{given} needs rounds whose clients are known before the run. '
      'Give a schedule, or leave it out: no ε against colluders is stated for cohorts as they come.'
    )


def for_any_cohorts(
  config: guarantee.GuaranteeConfig, expected: Optional[checks.Unchecked], averaging: postprocessing.Averaging
) -> guarantee.Settled:
  """The mechanism for cohorts as they come; `RunAccount.certified` has arguments and errors."""
  if expected is not None:
    return _of_any_size(config.settled(_expected_cohorts(config, expected), averaging))
  missing = [name for name in _NUMBERS if getattr(config, name) is None]
  if not config.correlation.is_settled:
    missing.append(f'the numbers of correlation={config.correlation!r}')
  if config.holds_noise and getattr(config, 'planned_weights', None) is None:
    missing.append("the clients' weights")
  if missing:
    raise ValueError(
      f'Without a schedule, {", ".join(missing)} must be known before the run. Give `expected`, from which they are '
      'chosen: the cohorts of a log of the past or of a model. Or give a schedule, or these values.'
    )
  assert config.num_rounds is not None
  if len(averaging.candidates(config.num_rounds)) > 1:
    raise ValueError(
      f'{averaging!r} is chosen from who comes. Give `expected` or a schedule, or name the average, such as '
      'postprocessing.LastIterate().'
    )
  chosen = config.settled([np.zeros(0, np.int64)] * config.num_rounds, averaging)
  richest = np.array([np.argmax(np.broadcast_to(config.limit, [config.num_clients]))])
  if not config.holds_noise and not chosen.mechanism.allowed([], [], richest).any():
    raise ValueError(
      f"noise_multiplier={config.noise_multiplier:g} is so small that nobody's budget pays for a round at epsilon="
      f'{config.epsilon:g}. Give a larger one, or give `expected`, from which one is chosen.'
    )
  return chosen


def _expected_cohorts(config: guarantee.GuaranteeConfig, expected: checks.Unchecked) -> list[np.ndarray]:
  """int64[M_t] for each round."""
  if isinstance(expected, (str, os.PathLike)):
    expected = [one.ids for one in logs.by_id(os.fspath(expected), config.num_clients)]
  elif hasattr(expected, 'cohort'):
    if config.num_rounds is None:
      raise ValueError(f'How many rounds of {type(expected).__name__} are expected? Give num_rounds.')
    expected = [expected.cohort(round_num) for round_num in range(1, config.num_rounds + 1)]
  if isinstance(expected, np.ndarray) and expected.dtype.kind == 'f':
    if expected.ndim != 2 or expected.shape[1] != config.num_clients or not ((expected >= 0) & (expected <= 1)).all():
      raise ValueError(
        f'expected must be rates in [0, 1], float[T, {config.num_clients}], or the cohorts of the rounds, found '
        f'{expected.dtype}{list(expected.shape)}.'
      )
    random = np.random.default_rng(0)
    expected = [np.flatnonzero(random.random(config.num_clients) < rates) for rates in expected]
  try:
    cohorts = checks.schedule(expected, config.num_clients)
  except ValueError as error:
    raise ValueError(
      f'expected: {error} Its clients must be those of the run, by their ids in [0, {config.num_clients:,}).'
    ) from None
  if config.num_rounds not in (None, len(cohorts)):
    raise ValueError(
      f'expected has {len(cohorts):,} rounds, and num_rounds={config.num_rounds:,}. Give as many rounds as are to be '
      'run, or leave num_rounds out.'
    )
  return cohorts


def _of_any_size(planned: guarantee.Settled) -> guarantee.Settled:
  """A mechanism that was settled on expected cohorts, for cohorts of any clients and of any size."""
  mechanism = planned.mechanism
  if not isinstance(mechanism, held_config.Held):
    return planned
  weights = np.asarray(mechanism.config.planned_weights)
  weights = np.where(weights > 0, weights, weights[weights > 0].min())
  config = dataclasses.replace(
    mechanism.config, planned_weights=tuple(weights.tolist()), most_clients=mechanism.num_clients
  )
  return planned._replace(mechanism=config.to_mechanism())
