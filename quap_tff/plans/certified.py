"""Plans of certified runs: their noise is chosen before training, from cohorts that are planned or expected."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import os
from typing import Any, Optional

import numpy as np

from quap_tff import accounting
from quap_tff.accounting import logs
from quap_tff.common import checks
from quap_tff.mechanisms.certified import guarantee
from quap_tff.mechanisms.held import config as held_config
from quap_tff.mechanisms.parts import postprocessing
from quap_tff.plans import ahead
from quap_tff.plans import plan as plans

# What must be given where neither a schedule nor an expectation is there to choose it.
_NUMBERS = ('noise_multiplier', 'divisor', 'num_rounds')


def certified_plan(
  config: guarantee.GuaranteeConfig,
  schedule: Optional[Sequence[Any]] = None,
  *,
  expected: Optional[Any] = None,
  averaging: postprocessing.Averaging = postprocessing.LastIterate(),
  attendance: Optional[Sequence[Any]] = None,
  colluders: Sequence[int] = (),
  min_separation: Optional[int] = None,
  certificate: bool = True,
  spent: Any = None,
  **options: Any,
) -> plans.Plan:
  """The plan of a certified run: its noise and divisor are chosen here, before training, and from no client's data.

  They are chosen from one of three:

    * `schedule`, the public cohorts of all rounds. A certificate is then for these cohorts.
    * `expected`, cohorts such as those that will come: of a log of the past, or of a model. Other clients may come.
    * neither: `noise_multiplier`, `divisor` and `num_rounds` stand in the configuration.

  In the last two cases cohorts are certified as they come. The guarantee is then the limit that the filter keeps,
  for any cohorts, as long as nobody chooses them by looking into clients' data (docs/privacy.md, theorem 1).

  With a `quap_tff.HeldConfig`, each client draws its noise from a key of its own. One client's data are then
  `<client_id=int64*, answer=A*, examples=D*>`, with one answer of its `quap_tff.ClientGuard`. Each client that is
  expected has one weight in all of its rounds. One that is not expected gets the smallest of these.

  The account assumes that who comes is known, so sampling amplifies nothing. A run that ends early is bounded by what
  the filter lets each client spend.

  Args:
    config: What is asked of the mechanism, or a mechanism.
    schedule: int[M_t], distinct ids in [0, N), for each of the T planned rounds.
    expected: int[M_t], as many as there are rounds; or the path of a log of participation, whose clients are ids
      (docs/gate.md has the format); or a model of `data.cohorts`; or rates, float[T, N] in [0, 1], from which one run
      is drawn by a fixed seed.
    averaging: The average of the iterates that is published. The noise is chosen for it; `postprocessing.Planned` is
      chosen together with the noise.
    attendance: int[M_t] for each planned round: who really comes of those who were drawn, if this is known. Only with a
      schedule and a secure sum, in which a client that does not come takes its noise away. By default any of them may
      stay away.
    colluders: Numbers of clients that may tell the server their noise, with `attendance` only. A certificate gives ε
      for each.
    min_separation: How many rounds the sampler promises from one round of a client to its next, with a schedule only;
      None if it promises nothing. The published choices of noise are made for it.
    certificate: Whether the run is to get a certificate. If so, everything is refused here that would prevent one. If
      not, the run is a rehearsal.
    spent: What clients have spent in earlier runs: a file, or float[N] μ², as `accounting.read_spent` takes it. Budgets
      and figures count from there. None: that of the configuration.
    **options: The options of every plan, see `quap_tff.Plan`. Exact functions of clients' data (`client_metrics`) are
      released only if they are asked for.

  Raises:
    TypeError: If `config` or `averaging` is of another type.
    ValueError: If a cohort is none, nobody takes part, nobody's budget pays for a round, a choice needs a schedule and
      there is none, or the run could get no certificate. The message says what to change.
  """
  if not isinstance(config, guarantee.GuaranteeConfig):
    raise TypeError(
      'A certified plan begins with its configuration, a quap_tff.CertifiedConfig or quap_tff.HeldConfig, found '
      f'{type(config).__name__}: certified_plan(config, schedule).'
    )
  if not isinstance(averaging, postprocessing.Averaging):
    raise TypeError(
      f'averaging must be a value such as quap_tff.postprocessing.Planned(), found {averaging!r}. The names in '
      'postprocessing.AVERAGINGS are those of the flag --averaging.'
    )
  if spent is not None:
    config = dataclasses.replace(config, spent_before=tuple(accounting.read_spent(spent, config.num_clients).tolist()))
  colluders = tuple(checks.integer('colluders', k, at_least=1) for k in colluders)
  if schedule is not None:
    if expected is not None:
      raise ValueError(
        'The noise follows from a schedule or from what is expected, found both. Leave `expected` out if the cohorts '
        'of all rounds are known, and `schedule` otherwise.'
      )
    cohorts = checks.schedule(schedule, config.num_clients)
    mechanism, averaging = config.settled(cohorts, averaging, min_separation)
    mechanism.check_colluders(colluders, attendance is not None)
    if attendance is None and not config.holds_noise:
      attendance = cohorts or None
  else:
    cohorts = None
    ahead.check_needs_no_schedule(config, attendance, colluders, min_separation)
    mechanism, averaging = _settled_on(config, expected, averaging)
  plan = plans.Plan(
    mechanism, schedule=cohorts, attendance=attendance, averaging=averaging, colluders=colluders, **options
  )
  if certificate and (reasons := ahead.refusals(plan)):
    raise ValueError(
      f'This run could get no certificate. {" ".join(reasons)} Change this, or give certificate=False for a rehearsal.'
    )
  return plan


def _settled_on(
  config: guarantee.GuaranteeConfig, expected: Optional[Any], averaging: postprocessing.Averaging
) -> guarantee.Planned:
  """The mechanism without a schedule."""
  if expected is not None:
    return _for_any_cohorts(config.settled(_expected_cohorts(config, expected), averaging))
  missing = [name for name in _NUMBERS if getattr(config, name) is None]
  if not config.correlation.is_settled:
    missing.append(f'the numbers of correlation={config.correlation!r}')
  if config.holds_noise and not isinstance(config, guarantee.Guarantee):
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
  found = config.settled([np.zeros(0, np.int64)] * config.num_rounds, averaging)
  richest = np.array([np.argmax(np.broadcast_to(config.limit, [config.num_clients]))])
  if not config.holds_noise and not found.mechanism.allowed([], [], richest).any():
    raise ValueError(
      f"noise_multiplier={config.noise_multiplier:g} is so small that nobody's budget pays for a round at epsilon="
      f'{config.epsilon:g}. Give a larger one, or give `expected`, from which one is chosen.'
    )
  return found


def _expected_cohorts(config: guarantee.GuaranteeConfig, expected: Any) -> list[np.ndarray]:
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


def _for_any_cohorts(planned: guarantee.Planned) -> guarantee.Planned:
  """A mechanism that was settled on expected cohorts, for cohorts of any clients and of any size."""
  mechanism = planned.mechanism
  if not isinstance(mechanism, held_config.Held):
    return planned
  weights = np.asarray(mechanism.planned_weights)
  weights = np.where(weights > 0, weights, weights[weights > 0].min())
  mechanism = dataclasses.replace(
    mechanism, planned_weights=tuple(weights.tolist()), most_clients=mechanism.num_clients
  )
  return planned._replace(mechanism=mechanism)
