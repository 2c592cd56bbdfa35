"""The formal figures of a run: the ε of each client by every applicable accountant, and what the figures cover.

Sampling amplifies: a client is better hidden if an adversary cannot tell in which rounds it was. That takes a draw of
known distribution, rounds in which nothing but the noised sum depends on who came, and cohorts that stay secret.
"""

from collections.abc import Mapping
import dataclasses
import math
from typing import Any, Optional

import numpy as np

from quap_tff.accounting import accountants
from quap_tff.accounting import history as histories_lib
from quap_tff.accounting import protection as protections
from quap_tff.accounting import run_ledger
from quap_tff.accounting import theorems
from quap_tff.common import checks
from quap_tff.common import lazy
from quap_tff.common.numbers import rounding
from quap_tff.common.numbers import samplers
from quap_tff.common.numbers import slack as slacks
from quap_tff.common.numbers import tradeoff

dp_accounting = lazy.module('dp_accounting')
rdp = lazy.module('dp_accounting.rdp')


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

  def __post_init__(self) -> None:
    theorems.checked_epsilon((self.epsilon_max, self.epsilon_mean, self.epsilon_median))


@dataclasses.dataclass(frozen=True, eq=False)
class Reading:
  """The cost of the rounds of a run that ended before its last planned round, or whose cohorts nobody planned.

  It guarantees nothing.

  A run can end because of what it has released: at an accuracy, or when somebody who looked at it stops it. Then the
  number of its rounds is chosen by the releases, and at the ε of the rounds that ran, the real δ can be many times the
  stated one. An account of all planned rounds over the public schedule is a constant, and so it bounds a run wherever
  it ends: the releases that are left out are post-processing.

  Attributes:
    rounds: The rounds that ran.
    epsilon: float64[N], ε of each client by the exact composition of Gaussians, as if their number had been planned. If
      the cohorts are secret, it follows from the client's rate.
    why: Why it is not a guarantee, a clause.
    bound: What the guarantee covers, a sentence.
  """

  rounds: int
  epsilon: np.ndarray
  why: str = 'the run may have ended because of what it released'
  bound: str = 'The figures above are for all planned rounds.'

  def as_dict(self) -> dict[str, Any]:
    """The reading as JSON has it. An ε that is not finite becomes None."""
    largest, mean = _max_and_mean(self.epsilon)
    return _finite({'rounds': self.rounds, 'epsilon_max': largest, 'epsilon_mean': mean, 'why': self.why})


@dataclasses.dataclass(frozen=True, eq=False)
class FormalReport:
  """The formal statement about a run.

  Attributes:
    covers: One of `protection.COVERS`.
    statement: What that means, in words.
    delta: The total δ of every figure.
    unit: Whose privacy it is.
    figures: The figures by accountant; empty if nothing is covered. Where sampling amplifies, all are amplified:
      figures without amplification follow from who came, which must stay secret then.
    notes: Why there is no amplification, or no figure by some accountant, and how the real noise differs from ideal
      noise.
    epsilon: float64[N], each client's ε by the exact composition of Gaussians without amplification, or, where sampling
      amplifies, by the accountant with the smallest figure; None if nothing is covered, or if there is no bound.
    reading: For a run that ended before its last planned round, the cost of its rounds. The figures are then the bound
      of the plan. None for a run that reached its last round.
    noise_note: How the real noise differs from the ideal noise of the figures, also among the notes; '' if it does not.
  """

  covers: str
  statement: str
  delta: float
  unit: str
  figures: tuple[FormalFigure, ...]
  notes: tuple[str, ...]
  epsilon: Optional[np.ndarray]
  reading: Optional[Reading] = None
  noise_note: str = ''

  def as_dict(self) -> Optional[dict[str, Any]]:
    """The report as JSON has it; None if nothing is covered. An infinite ε becomes None."""
    if self.covers == protections.NOTHING:
      return None
    return {
      'covers': self.covers,
      'statement': self.statement,
      'delta': self.delta,
      'unit': self.unit,
      'figures': [_finite(vars(figure)) for figure in self.figures],
      'notes': list(self.notes),
      'noise_note': self.noise_note,
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
        f'guarantee: {self.reading.why}. {self.reading.bound}'
      )
    return '\n'.join(lines + [f'  {note}' for note in self.notes])


def formal_report(
  ledger: run_ledger.RunLedger,
  delta: float,
  protection: protections.Protection,
  sampler: samplers.CohortSampler = samplers.CohortSampler(),
  noise_note: str = '',
  neighbours: str = histories_lib.ZERO_OUT,
  slack: slacks.Slack = slacks.Slack(),
  note: str = '',
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
    note: What else must be said about the figures, or ''.

  Raises:
    ValueError: If δ is out of range or the sampler is of another population.
  """
  checks.number('delta', delta, above=0, below=1)
  covers, statement = protection.covers, protection.statement
  if covers == protections.NOTHING:
    return FormalReport(covers, statement, delta, accountants.UNIT, (), (), None)
  notes: list[str] = []
  reason = no_amplification(ledger, protection, sampler, neighbours)
  if ledger.num_rounds and not reason:
    neighbours, amplification, epsilons = _amplified(ledger, delta, sampler, notes)
    epsilon = min(epsilons.values(), key=np.max)
  else:
    amplification, epsilons = 'none', _unamplified(ledger, delta, slack, notes)
    epsilon = epsilons['gaussian_exact']
  figures = tuple(
    FormalFigure(name, neighbours, amplification, *_max_and_mean(values), float(np.median(values)))
    for name, values in epsilons.items()
  )
  if reason:
    notes.append(f'No amplification by sampling: {reason}.')
  if said := ' '.join(filter(None, [note, noise_note])):
    notes.append(said)
  return FormalReport(covers, statement, delta, accountants.UNIT, figures, tuple(notes), epsilon, noise_note=noise_note)


def no_amplification(
  ledger: run_ledger.RunLedger,
  protection: protections.Protection,
  sampler: samplers.CohortSampler,
  neighbours: str = histories_lib.ZERO_OUT,
) -> Optional[str]:
  """Why sampling amplifies nothing in a run, a clause; None if it does. The arguments are those of `formal_report`.

  Raises:
    ValueError: If the sampler is of another population.
  """
  if neighbours == histories_lib.REPLACE_ONE:
    return "the server sees every client's message and whose it is"
  if sampler.rates is not None and len(sampler.rates) != ledger.num_clients:
    raise ValueError(f'The ledger has {ledger.num_clients} clients, found rates of {len(sampler.rates)}.')
  # First what would remain if the cohorts were drawn in another way, or in secret.
  if sampler.noise_follows == 'plan':
    return 'the noise was chosen on the planned cohorts'
  if sampler.kind == 'none':
    return sampler.reason
  if not sampler.secret:
    return 'the cohorts follow from a seed that is not secret'
  state = ledger.state_dict()
  multipliers = state['noise_multipliers']
  if sampler.noise_follows != 'nothing' or len(np.unique(multipliers)) > 1:
    return 'the noise depends on who came'
  # A cohort of independent coins can be empty, however unlikely that is, unless two coins always show heads. One such
  # coin is not enough: in the neighbouring data set, its client is missing.
  can_be_empty = sampler.kind == 'bernoulli' and np.count_nonzero(np.asarray(sampler.rates) == 1) < 2
  if can_be_empty and not sampler.noises_empty_rounds:
    # Whether this run had such a round does not matter: its probability differs between the two worlds.
    return 'a round that nobody comes to releases nothing, which reveals that nobody came'
  if not sampler.constant_divisor:
    return 'sums are divided by the size of the cohort, which reveals something about who came'
  if ledger.correlation.num_buffers:
    return 'the noise of a round is correlated with that of the rounds before'
  if (state['weights'] != 1).any():
    return "the clients' weights depend on how often they came"
  if sampler.kind == 'bernoulli' and np.isfinite(state['count_noise_multipliers']).any():
    return "the private quantile's count is divided by the size of the cohort, which reveals something about who came"
  if sampler.cohort_size is not None:
    sizes = np.diff(state['offsets'])
    if sampler.cohort_size > ledger.num_clients or (sizes != sampler.cohort_size).any():
      return f'not every cohort has {sampler.cohort_size} of {ledger.num_clients} clients'
  if protection.covers != protections.RELEASED_MODEL:
    return 'un-noised values are released, and they reveal who took part'
  return None


def _unamplified(
  ledger: run_ledger.RunLedger, delta: float, slack: slacks.Slack, notes: list[str]
) -> dict[str, np.ndarray]:
  """float64[N] by accountant, with the slack. The reasons of accountants without a figure go to the notes."""
  total = histories_lib.total_mu(ledger)
  # For a client about whom only earlier runs have released something, rounding in this one costs nothing.
  took_part = np.where(ledger.spent_before > 0, total.came, ledger.rounds > 0)
  mu = total.whole
  # Histories may be rounded up. This figure is the account's own, and comes first as it needs most memory.
  exact = slack.epsilon_of(took_part, mu, delta)
  merged = histories_lib.merged_histories(mu)
  whole = merged if ledger.correlation.num_buffers else histories_lib.histories(ledger)
  populations = {}
  for name, accountant in accountants.ACCOUNTANTS.items():
    if name != 'gaussian_exact':
      populations[name] = merged if accountant.merges else whole
  others = _by_accountant(populations, delta - slack.delta, notes)
  for values in others.values():
    values[took_part] += slack.epsilon
  return {'gaussian_exact': exact, **others}


def _amplified(
  ledger: run_ledger.RunLedger, delta: float, sampler: samplers.CohortSampler, notes: list[str]
) -> tuple[str, str, dict[str, np.ndarray]]:
  """The neighbouring relation, the amplification and its assumption, and float64[N] by accountant."""
  secret = 'assumes that cohorts, their sizes and their seed stay secret'
  if sampler.kind == 'fixed_size':
    words = f'{sampler.cohort_size} of {ledger.num_clients} clients, uniformly without replacement; {secret}'
    epsilon = np.full(ledger.num_clients, fixed_size_epsilon(ledger, sampler, delta))
    return histories_lib.REPLACE_ONE, words, {'rdp': epsilon}
  rates, index = np.unique(np.asarray(sampler.rates, np.float64), return_inverse=True)
  # Every round counts at a client's rate, including rounds without it. All rounds have the same noise.
  noise_multiplier = float(ledger.state_dict()['noise_multipliers'][0])
  of_rates = []
  for rate in rates.tolist():
    history = histories_lib.History(())
    if rate:
      history = histories_lib.History.gaussian(noise_multiplier, ledger.num_rounds, rate)
    of_rates.append(history)
  population = histories_lib.ClientHistories(of_rates, index)
  amplifying = [name for name, accountant in accountants.ACCOUNTANTS.items() if accountant.supports_sampling]
  epsilons = _by_accountant(dict.fromkeys(amplifying, population), delta, notes)
  always_in = max(history.always_in().total_mu for history in population.histories)
  notes.append(
    'Cohorts secret: the figures assume that nobody learns who came. If that became known, a client in every round '
    f'would have ε = {rounding.up(float(tradeoff.epsilon_of(always_in, delta)))} (zero-out).'
  )
  taking_part = rates[rates > 0]
  low, high = (taking_part[0], taking_part[-1]) if len(taking_part) else (0.0, 0.0)
  shown = f'{low:g}' if low == high else f'{low:g} to {high:g}'
  return histories_lib.ADD_OR_REMOVE, f'Poisson sampling, q = {shown}; {secret}', epsilons


def fixed_size_epsilon(ledger: run_ledger.RunLedger, sampler: samplers.CohortSampler, delta: float) -> float:
  """ε of every client against replacing its data by another's, by Rényi composition (Wang et al. 2019, theorem 27).

  Where that bound is larger than the ε of a client in every round, as it is for large cohorts, the latter is returned:
  the exact composition of Gaussians, which needs no sampling. Replacing a client's data moves a sum by up to twice the
  clipping norm, and a count by twice what one client adds. dp-accounting's noise multiplier refers to that sensitivity,
  so it is half of ours. Only valid where sampling amplifies (`no_amplification`).
  """
  state = ledger.state_dict()
  # The sum and the count of a round come from the same draw, so they are one mechanism.
  mu = np.hypot(1 / state['noise_multipliers'], 1 / state['count_noise_multipliers'])
  # The library's bound holds for integer orders and takes time in proportion to their square.
  orders = tuple(range(2, 65)) + (128, 256)
  accountant = rdp.RdpAccountant(orders, dp_accounting.NeighboringRelation.REPLACE_ONE)
  for one, count in zip(*np.unique(mu, return_counts=True)):
    gaussian = dp_accounting.GaussianDpEvent(1 / (2 * one))
    accountant.compose(
      dp_accounting.SampledWithoutReplacementDpEvent(ledger.num_clients, sampler.cohort_size, gaussian), int(count)
    )
  epsilon, _ = rdp.compute_epsilon(orders, theorems.divergences(accountant, orders, ledger.num_rounds), delta)
  always_in = tradeoff.epsilon_of(2 * math.sqrt(math.fsum(mu * mu)), delta)
  return min(float(epsilon) * (1 + tradeoff.RELATIVE_MARGIN), float(always_in))


def _by_accountant(
  populations: Mapping[str, histories_lib.ClientHistories], delta: float, notes: list[str]
) -> dict[str, np.ndarray]:
  epsilons = {}
  for name, (histories, index) in populations.items():
    try:
      epsilons[name] = accountants.get(name).epsilons(histories, delta)[index]
    except accountants.NotApplicableError as error:
      notes.append(f'No figure by {name}: {error}.')
  return epsilons


def _max_and_mean(epsilon: np.ndarray) -> tuple[float, float]:
  largest = float(epsilon.max())
  # The mean of equal numbers can round to a value above them.
  return largest, min(float(epsilon.mean()), largest)


def _finite(values: dict[str, Any]) -> dict[str, Any]:
  """The values, with None in place of a number that JSON cannot hold."""
  found = {}
  for name, value in values.items():
    is_lost = isinstance(value, float) and not math.isfinite(value)
    found[name] = None if is_lost else value
  return found
