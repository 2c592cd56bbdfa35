"""The formal figures of a run: the ε of each client by every applicable accountant, and what the figures cover."""

import dataclasses
import math
from typing import Any, Optional

import numpy as np

from quap_tff.accounting import ledger_histories
from quap_tff.accounting import protection as protections
from quap_tff.accounting import run_ledger
from quap_tff.accounting import sampling
from quap_tff.accounting import stopping
from quap_tff.accounting.accountants import gaussian as accountant_lib
from quap_tff.accounting.accountants import history as histories_lib
from quap_tff.accounting.accountants import named as accountants
from quap_tff.common import checks
from quap_tff.common.numbers import rounding
from quap_tff.common.numbers import samplers
from quap_tff.common.numbers import slack as slacks
from quap_tff.common.numbers import tradeoff

_NO_AMPLIFICATION = 'none'


@dataclasses.dataclass(frozen=True)
class FormalFigure:
  """ε of all N clients by one accountant; clients that never took part count as 0.

  Attributes:
    accountant: Name in `accountants.ACCOUNTANTS`.
    neighbours: The neighbouring relation.
    amplification: 'none', or the sampling that is counted and its assumption.
    epsilon_max: ε of the most exposed client, in nats; +inf without noise.
    epsilon_mean: The mean over clients.
    epsilon_median: The median.
  """

  accountant: str
  neighbours: str
  amplification: str
  epsilon_max: float
  epsilon_mean: float
  epsilon_median: float

  def __post_init__(self):
    accountant_lib.checked((self.epsilon_max, self.epsilon_mean, self.epsilon_median))


@dataclasses.dataclass(frozen=True, eq=False)
class FormalReport:
  """The formal statement about a run.

  Attributes:
    covers: One of `protection.COVERS`.
    statement: What that means, in words.
    delta: The total δ of every figure.
    unit: Whose privacy it is.
    figures: By accountant; empty if nothing is covered. Where sampling amplifies, all are amplified: those without
      amplification follow from who came, which must stay secret then.
    notes: Why there is no amplification, or no figure by some accountant, and how the real noise differs from ideal
      noise.
    epsilon: float64[N], each client's ε by the exact composition of Gaussians without amplification, or, where sampling
      amplifies, by the accountant with the smallest figure; None if nothing is covered, or if there is no bound.
    reading: For a run that ended before its last planned round, the cost of its rounds. The figures are then the bound
      of the plan. None for a run that reached its last round.
  """

  covers: str
  statement: str
  delta: float
  unit: str
  figures: tuple[FormalFigure, ...]
  notes: tuple[str, ...]
  epsilon: Optional[np.ndarray]
  reading: Optional[stopping.Reading] = None

  def as_dict(self) -> Optional[dict[str, Any]]:
    """For JSON: None if nothing is covered. An infinite ε becomes None."""
    if self.covers == protections.NOTHING:
      return None
    figures = [
      {key: value if isinstance(value, str) or math.isfinite(value) else None for key, value in vars(figure).items()}
      for figure in self.figures
    ]
    return {
      'covers': self.covers,
      'statement': self.statement,
      'delta': self.delta,
      'unit': self.unit,
      'figures': figures,
      'notes': list(self.notes),
      'reading': self.reading.as_dict() if self.reading is not None else None,
    }

  @property
  def text(self) -> str:
    """A few lines for a terminal."""
    lines = [self.statement]
    if self.figures:
      delta = rounding.up(self.delta)
      lines.append(f'Formal ε of the {self.covers} at total δ = {delta}, by client; unit: {self.unit}:')
    shown = None
    for figure in self.figures:
      head = f'  neighbours: {figure.neighbours}; amplification: {figure.amplification}'
      lines += [head] if head != shown else []
      shown = head
      lines.append(
        f'    {figure.accountant:<15} max {rounding.up(figure.epsilon_max):<10} '
        f'mean {rounding.up(figure.epsilon_mean):<10} median {rounding.up(figure.epsilon_median)}'
      )
    if self.reading is not None:
      lines.append(
        f'Reading after {self.reading.rounds} rounds: ε ≤ {rounding.up(self.reading.epsilon.max())}. This is not a '
        'guarantee: the run may have ended because of what it released. The figures above are for all planned rounds.'
      )
    return '\n'.join(lines + [f'  {note}' for note in self.notes])


def formal_report(
  ledger: run_ledger.RunLedger,
  delta: float,
  protection: protections.Protection,
  sampler: samplers.Sampler = samplers.Sampler(),
  noise_note: str = '',
  neighbours: str = histories_lib.ZERO_OUT,
  slack: slacks.Slack = slacks.Slack(),
) -> FormalReport:
  """The figures of a run.

  Args:
    ledger: The rounds of the run.
    delta: The total δ, in (0, 1).
    protection: From `describe_protection`, for the same run.
    sampler: How the cohorts were drawn. Amplification is counted only where the whole release is covered: un-noised
      values would reveal who took part.
    noise_note: How the real noise differs from the ideal noise that the figures assume, a sentence or two; '' if it
      does not.
    neighbours: The relation for which the ledger's weights and noise bound what a client's data move. Under
      `history.REPLACE_ONE` the noise is the clients' own. The server sees who sent what, and sampling amplifies
      nothing.
    slack: What rounding costs. The figures without amplification include it.

  Raises:
    ValueError: If δ is out of range or the sampler is of another population.
  """
  checks.number('delta', delta, above=0, below=1)
  figures: list[FormalFigure] = []
  notes: list[str] = []
  epsilon = None
  if protection.covers != protections.NOTHING:
    reason = no_amplification(ledger, protection, sampler, neighbours)
    if ledger.num_rounds and not reason:
      relation, words, found = _amplified(ledger, delta, sampler, notes)
      epsilon = min(found.values(), key=np.max)
    else:
      found = _unamplified(ledger, delta - slack.delta, notes)
      took_part = ledger.rounds > 0
      for values in found.values():
        values[took_part] += slack.epsilon
      epsilon = found['gaussian_exact']
      relation, words = neighbours, _NO_AMPLIFICATION
    figures += [_figure(name, relation, words, values) for name, values in found.items()]
    if reason:
      notes.append(f'No amplification by sampling: {reason}.')
    if noise_note:
      notes.append(noise_note)
  return FormalReport(
    protection.covers, protection.statement, delta, accountants.UNIT, tuple(figures), tuple(notes), epsilon
  )


def no_amplification(
  ledger: run_ledger.RunLedger,
  protection: protections.Protection,
  sampler: samplers.Sampler,
  neighbours: str = histories_lib.ZERO_OUT,
) -> Optional[str]:
  """Why sampling amplifies nothing in a run, a clause; None if it does. The arguments are those of `formal_report`."""
  if neighbours == histories_lib.REPLACE_ONE:
    return "the server sees every client's message and whose it is"
  if reason := sampling.refusal(ledger, sampler):
    return reason
  if protection.covers != protections.RELEASED_MODEL:
    return 'un-noised values are released, and they reveal who took part'
  return None


def _unamplified(ledger, delta, notes) -> dict[str, np.ndarray]:
  """float64[N] by accountant. The reasons of accountants without a figure go to the notes."""
  mu = ledger_histories.total_mu(ledger).whole
  # Histories of a large population may be rounded up. This figure is exact, and comes first as it needs most memory.
  exact = tradeoff.epsilon_of(mu, delta) if len(mu) > run_ledger.LARGE_POPULATION else None
  merged = ledger_histories.merged_histories(mu)
  whole = merged if ledger.correlation.num_buffers else ledger_histories.histories(ledger)
  found = _by_accountant(
    {name: merged if accountant.merges else whole for name, accountant in accountants.ACCOUNTANTS.items()}, delta, notes
  )
  if exact is not None:
    found['gaussian_exact'] = exact
  return found


def _amplified(ledger, delta, sampler, notes) -> tuple[str, str, dict[str, np.ndarray]]:
  """The neighbouring relation, the amplification, and float64[N] by accountant."""
  if sampler.kind == 'fixed_size':
    epsilon = np.full(ledger.num_clients, sampling.fixed_size_epsilon(ledger, sampler, delta))
    return histories_lib.REPLACE_ONE, sampling.fixed_size_amplification(ledger, sampler), {'rdp': epsilon}
  population = sampling.poisson_histories(ledger, sampler)
  found = _by_accountant(
    {name: population for name, accountant in accountants.ACCOUNTANTS.items() if accountant.supports_sampling},
    delta,
    notes,
  )
  notes.append(sampling.if_known(population, delta))
  return histories_lib.ADD_OR_REMOVE, sampling.poisson_amplification(sampler), found


def _by_accountant(populations, delta, notes) -> dict[str, np.ndarray]:
  found = {}
  for name, (histories, index) in populations.items():
    try:
      found[name] = accountants.get(name).epsilons(histories, delta)[index]
    except accountants.NotApplicableError as error:
      notes.append(f'No figure by {name}: {error}.')
  return found


def _figure(name, neighbours, amplification, epsilon) -> FormalFigure:
  largest = float(epsilon.max())
  # The mean of equal numbers can round to a value above them.
  mean = min(float(epsilon.mean()), largest)
  return FormalFigure(name, neighbours, amplification, largest, mean, float(np.median(epsilon)))
