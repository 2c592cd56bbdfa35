"""The noise that cohorts need, by every mechanism: the cohorts of a log, or those that a model draws."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Optional, TYPE_CHECKING

import numpy as np

from quap_tff import cohorts as cohorts_lib
from quap_tff.account import findings
from quap_tff.accounting import log_report
from quap_tff.accounting import logs
from quap_tff.common import checks
from quap_tff.common import lazy
from quap_tff.common import registry
from quap_tff.common.numbers import rounding
from quap_tff.mechanisms.noise import correlation as correlations

if TYPE_CHECKING:
  from quap_tff.plans.accounts import noise_choices
else:
  noise_choices = lazy.module('quap_tff.plans.accounts.noise_choices')

_MOST_ROUNDS = 100_000
# The most participations from which a noise is chosen: all of them are in memory, and read again for each candidate.
_MOST_PARTICIPATIONS = 10**6


def noise_for_log(
  log: str, epsilon: float, delta: float, *, correlation: correlations.Correlation = correlations.Independent()
) -> findings.Finding:
  """The noise that the cohorts of a log need.

  Args:
    log: The path of the log.
    epsilon: The ε that nobody may exceed.
    delta: The total δ.
    correlation: The correlation of the least noise, with all its numbers.

  Raises:
    ValueError: For a value that is out of range, or a log that cannot be read, is too large or has no clients.
  """
  checks.number('delta', delta, above=0, below=1)
  rows = logs.Log(log)
  with findings.system_errors_name(log, 'read'):
    present = (one.ids[one.weights > 0].copy() for one in rows.rounds())
    cohorts = _held(present, log, 'Give a part of it, or account for it with a --noise_multiplier.')
  return _noise_for(cohorts, rows.num_clients, epsilon, delta, correlation)


def noise_for_model(
  participation: cohorts_lib.ParticipationChoice,
  num_clients: int,
  rounds: int,
  epsilon: float,
  delta: float,
  *,
  cohort_size: Optional[int] = None,
  seed: int = 0,
  correlation: correlations.Correlation = correlations.Independent(),
) -> findings.Finding:
  """The noise that the cohorts of a model need, which are drawn once.

  Args:
    participation: The model of who takes part.
    num_clients: N.
    rounds: T.
    epsilon: The ε that nobody may exceed.
    delta: The total δ.
    cohort_size: M; None for the default, or for models that draw the size.
    seed: Cohorts are a function of it.
    correlation: The correlation of the least noise, with all its numbers.

  Raises:
    ValueError: For a value that is out of range, or cohorts that are too many.
  """
  checks.number('delta', delta, above=0, below=1)
  checks.integer('num_clients', num_clients, at_least=1)
  checks.integer('rounds', rounds, at_least=1, at_most=_MOST_ROUNDS)
  if cohort_size is None and not participation.ignores_cohort_size:
    cohort_size = cohorts_lib.default_cohort_size(num_clients)
  model = participation.over(cohorts_lib.Population(num_clients, cohort_size, seed))
  drawn = map(model.cohort, range(1, rounds + 1))
  cohorts = _held(drawn, f'{rounds:,} rounds of this model', 'Give fewer rounds or clients.')
  finding = _noise_for(cohorts, num_clients, epsilon, delta, correlation)
  spec = registry.format_spec(registry.name_of(participation, cohorts_lib.MODELS), participation)
  origin = f'Drawn once from --participation={spec} by --seed={seed}: others come by other seeds.'
  finding.values.update(participation=spec, seed=seed, cohort_size=cohort_size)
  return finding._replace(text=f'{origin}\n{finding.text}')


def _held(cohorts: Iterable[np.ndarray], source: str, remedy: str) -> list[np.ndarray]:
  """The cohorts in memory; `ValueError` if they are too many for it."""
  held, total = [], 0
  for ids in cohorts:
    held.append(ids)
    total += len(ids)
    if total > _MOST_PARTICIPATIONS:
      raise ValueError(
        f'{source} has more than {_MOST_PARTICIPATIONS:,} participations, too many to choose a noise from. {remedy}'
      )
  return held


def _noise_for(
  cohorts: Sequence[np.ndarray], num_clients: int, epsilon: float, delta: float, correlation: correlations.Correlation
) -> findings.Finding:
  checks.number('epsilon', epsilon, above=0)
  total = sum(map(len, cohorts))
  least = noise_choices.least_noise(cohorts, num_clients, epsilon, delta, correlation)
  choices = list(noise_choices.choices(cohorts, num_clients, epsilon, delta))
  ends = noise_choices.ends(cohorts, num_clients, epsilon, delta, correlation)
  noise = correlations.spec_of(correlation)
  head = (
    f'{num_clients:,} clients, {total:,} participations in {len(cohorts):,} rounds. ε = {epsilon:g}, total δ = '
    f'{delta:g}, noise: {noise}.\n'
    f'z = {rounding.up(least, 6)} is the least noise with which nobody passes ε, if all have the weight 1 in all of '
    'these rounds.\nThe noise is chosen from who came, and from no data. In other rounds, other clients come: a filter '
    '(quap_tff.Gate, or a certified run) keeps each client within ε, also in other cohorts.\n'
  )
  tables = log_report.tables_text([_choices_table(choices), _ends_table(list(ends))])
  values = {
    'noise_multiplier': least,
    'epsilon': epsilon,
    'delta': delta,
    'correlation': noise,
    'clients': num_clients,
    'rounds': len(cohorts),
    'participations': total,
    'choices': [{**one._asdict(), 'correlation': correlations.spec_of(one.correlation)} for one in choices],
  }
  return findings.Finding(f'{head}\n{tables}', values)


def _choices_table(choices: Sequence[noise_choices.Choice]) -> log_report.TextTable:
  rows = []
  for choice in choices:
    trusted = 'the server' if choice.trust == 'server' else 'a secure sum'
    weights = 'by a plan' if choice.is_planned else '1 for all'
    noise, multiplier = correlations.spec_of(choice.correlation), rounding.up(choice.noise_multiplier, 5)
    rows.append((noise, trusted, weights, multiplier, f'{choice.share:.1%}', f'{choice.ended:,}'))
  header = ('noise', 'trusted', 'weights', 'z', 'share of the ceiling', 'budgets that end')
  return log_report.TextTable(
    'Which mechanism makes how much of the budgets',
    header,
    rows,
    'The ceiling is the largest signal-to-noise ratio of the last model that any Gaussian mechanism can have. Planned '
    'weights are those of the online rule; with a secure sum, z is the noise of one client.',
  )


def _ends_table(ends: Sequence[noise_choices.Ends]) -> log_report.TextTable:
  rows = []
  for one in ends:
    first, median = ('', '') if not one.ended else (str(one.first_round), str(one.median_round))
    rows.append((rounding.up(one.noise_multiplier, 5), f'{one.ended:,}', first, median))
  header = ('z', 'budgets that end', 'the first in round', 'their median')
  return log_report.TextTable('With less noise and a filter, at weights of 1', header, rows, '')
