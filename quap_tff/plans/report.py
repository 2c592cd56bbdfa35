"""What may be said about a run, and the check of who was in a round."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import hashlib
import pickle
from typing import Any, Optional, TYPE_CHECKING

import numpy as np

from quap_tff import accounting
from quap_tff.common import checks
from quap_tff.common.numbers import rounding

if TYPE_CHECKING:
  from quap_tff.plans import plan as plans

# Of cohorts that were not planned.
_WHY = 'who came, and when the run ended, may have followed what it released'
_BOUND = "The figures above hold for any cohorts, if nobody chose them by looking into clients' data."


def checked_cohort(
  cohort: Any, num_clients: int, measurements: Any, counts: Optional[Any] = None, weights: Optional[Any] = None
) -> np.ndarray:
  """The cohort of a finished round as int64[M], compared with the aggregator's own evidence.

  The size is compared with the one that the aggregator measured. With `weights`, another client can take only the place
  of one that added nothing. With `counts`, each client must have been in some round; whether it was in this one shows
  when the ledger compares the counts with its own (`RoundRecord.counts`). Without both, as for TFF's own aggregators,
  nothing shows that one client was given in place of another.

  Args:
    cohort: int[M].
    num_clients: N.
    measurements: The aggregator's, with `cohort_size`.
    counts: int[N], how often each client has taken part, after the round.
    weights: float[N], each client's weight in the round; 0 for those who were not in it.

  Raises:
    ValueError: If these are not distinct ids in [0, N), or not those of the round.
  """
  ids = checks.cohort(cohort, num_clients)
  size = int(measurements['cohort_size'])
  strangers: Any = [] if counts is None else ids[np.asarray(counts)[ids] < 1]
  missing: Any = [] if weights is None else np.setdiff1d(np.flatnonzero(np.asarray(weights)), ids)
  if len(ids) != size:
    problem = f'the aggregator counted {size} clients in the round, and the cohort has {len(ids)}'
  elif len(strangers):
    problem = f'the aggregator has never seen client {strangers[0]}'
  elif len(missing):
    problem = f'client {missing[0]} was in the round, and is not in the cohort'
  else:
    return ids
  raise ValueError(
    f'This is not the cohort of the round: {problem}. Give the ids of all clients whose data `next` got.'
  )


@dataclasses.dataclass(frozen=True, eq=False)
class Report:
  """What may be said about a run: nominal figures, formal figures, and what is protected.

  Attributes:
    protection: The coverage of the noise, in words.
    formal: The formal figures; it has none where the released model has no finite ε.
    nominal_epsilon: float64[N], Σ ε_i(t) of each client in nats, by basic composition (docs/method.md, section 7.1).
      None for a method whose noise does not follow such budgets, and for one without noise.
    nominal_delta: float64[N], k_i·δ, or None.
    trust: Who is trusted, see `quap_tff.mechanisms.mechanism.Facts`.
  """

  protection: accounting.Protection
  formal: accounting.FormalReport
  nominal_epsilon: Optional[np.ndarray]
  nominal_delta: Optional[np.ndarray]
  trust: str = 'server'

  def as_dict(self) -> dict[str, Any]:
    """For JSON. Figures that a method does not have are null."""
    nominal = self.nominal_epsilon
    return {
      'nominal_epsilon_max': float(nominal.max()) if nominal is not None else None,
      'nominal_epsilon_mean': float(nominal.mean()) if nominal is not None else None,
      'nominal_delta_max': float(self.nominal_delta.max()) if self.nominal_delta is not None else None,
      'trust': self.trust,
      'model_protected': self.protection.model_protected,
      'protection': self.protection.statement,
      'formal': self.formal.as_dict(),
    }

  def __str__(self) -> str:
    lines = []
    if self.nominal_epsilon is not None and self.nominal_delta is not None:
      lines.append(
        f'Nominal ε per client: mean {rounding.up(self.nominal_epsilon.mean())}, max '
        f'{rounding.up(self.nominal_epsilon.max())}, with total δ up to {rounding.up(self.nominal_delta.max())}: '
        "basic composition of the noised layers' rounds (unit: one client's whole data), no amplification by "
        'sampling, clipping norms taken as given.'
      )
    return '\n'.join(lines + [self.protection.text.replace(self.protection.statement, self.formal.text)])


def check_ledger(plan: plans.Plan, ledger: accounting.RunLedger) -> None:
  """Raises `ValueError` if the ledger is of another plan."""
  own, found = (one.state_dict()['fingerprint'] for one in (plan.new_ledger(), ledger))
  if not np.array_equal(own, found):
    raise ValueError(
      'This ledger is of another plan, because their fingerprints differ. Give a ledger that new_ledger of this plan '
      'has made, or ask the plan of the run for the report.'
    )


def of_run(plan: plans.Plan, ledger: accounting.RunLedger, cohorts: Optional[Sequence[Any]]) -> Report:
  """See `Plan.report`, which checks whose ledger it is."""
  nominal, protection = plan.has_nominal, plan.protection
  is_reading = _came(plan) or (cohorts is not None and ledger.num_rounds < len(cohorts))
  return Report(
    protection=protection,
    formal=_with_reading(plan, ledger, cohorts) if is_reading and protection.model_protected else _formal(plan, ledger),
    nominal_epsilon=ledger.epsilon if nominal else None,
    nominal_delta=ledger.delta if nominal else None,
    trust=plan.mechanism.facts.trust,
  )


def _formal(plan, ledger):
  """The figures of a ledger."""
  facts = plan.mechanism.facts
  if plan.mechanism.core.limit is not None and facts.unplannable and plan.protection.model_protected:
    # What the rounds happened to cost is itself a release. The filter's limit held beforehand.
    spent = rounding.up(float(accounting.total_mu(ledger).whole.max()) ** 2 / 2)
    whom = f' that took part, and not what rounds happened to cost (at most ρ = {spent})'
    return _of_filter(plan, ledger.rounds > 0, whom)
  return _figures(plan, ledger, ' '.join(filter(None, [facts.trust_note, facts.noise_note])))


def _bound(plan, ledger, cohorts):
  """The figures that hold for a run over these cohorts wherever it ends; raises `NoBoundError` if there are none."""
  limit = plan.mechanism.core.limit
  if limit is None:
    return _formal(plan, accounting.completed(ledger, plan.planned_ledger(cohorts)))
  if plan.mechanism.facts.unplannable:
    clients = np.isin(np.arange(plan.num_clients), np.concatenate(cohorts))
    return _of_filter(plan, clients, ' that was planned to take part')
  limits = np.broadcast_to(np.sqrt(limit), [plan.num_clients])
  return _formal(plan, accounting.of_limits(limits, plan.delta, plan.mechanism.core.spent_before))


def _of_filter(plan, clients, whom):
  """The figures of a filter for noise that follows releases, for each of the clients bool[N]."""
  limit = plan.mechanism.core.limit
  note = (
    'The noise was chosen from noised releases. So the figures are those of the filter, '
    f'ρ = {rounding.up(limit / 2)} for each client{whom}.'
  )
  return _figures(plan, accounting.of_limits(np.where(clients, np.sqrt(limit), 0.0), plan.delta), note)


def _came(plan):
  return plan.mechanism.facts.is_certified and not plan.schedule


def _with_reading(plan, ledger, cohorts):
  """The bound that holds wherever the run ends, and what the ledger gives."""
  try:
    bound = _bound(plan, ledger, cohorts)
  except accounting.NoBoundError as error:
    covers, statement, _ = plan.protection
    note = f'No formal figure: the run has ended early, and {error}.'
    bound = accounting.FormalReport(covers, statement, plan.delta, accounting.UNIT, (), (note,), None)
  # By who came, or by public rates if that is secret.
  own = _formal(plan, ledger).epsilon if plan.draw.secret else None
  mu = accounting.total_mu(ledger)
  epsilon = own if own is not None else plan.slack.of_those_who(mu.came, mu.whole, plan.delta)
  said = dict(why=_WHY, bound=_BOUND) if _came(plan) else {}
  return dataclasses.replace(bound, reading=accounting.Reading(ledger.num_rounds, epsilon, **said))


# The last figures, by the digest of what they follow from: the files of a certified run and their check ask six times.
_LAST: dict[bytes, accounting.FormalReport] = {}


def _figures(plan, ledger, note):
  """The figures of a ledger with a note on the noise. Nobody may change their arrays."""
  others = plan.delta, plan.protection, plan.sampler, note, plan.neighbours, plan.slack
  digest = hashlib.sha256(pickle.dumps(others))
  for name, array in ledger.state_dict().items():
    digest.update(f'{name} {array.dtype} {array.shape}'.encode())
    digest.update(np.ascontiguousarray(array).data)
  key = digest.digest()
  if key not in _LAST:
    found = accounting.formal_report(ledger, *others)
    _LAST.clear()
    _LAST[key] = found
  return _LAST[key]
