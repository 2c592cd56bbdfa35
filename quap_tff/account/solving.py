"""The one of ε, δ and noise that is not given, for a client whose rounds are known."""

from collections.abc import Mapping
from typing import NamedTuple, Optional, Union

from quap_tff.account import findings
from quap_tff.accounting import accountants
from quap_tff.common import checks
from quap_tff.common.numbers import rounding
from quap_tff.mechanisms.noise import correlation as correlations

# The most releases for which every coefficient is computed.
_MOST_RELEASES = 100_000

_Figures = Mapping[str, Union[accountants.Figure, accountants.NotApplicable]]


class _Rounds(NamedTuple):
  """The rounds of a client: as many, one in `every`, and `after` more without it, under correlated noise."""

  number: int
  every: int
  after: int
  correlation: correlations.Correlation

  def norm(self) -> float:
    """‖C·x‖ of the client. Its rounds together are one Gaussian mechanism with the noise multiplier z/‖C·x‖."""
    checks.integer('rounds', self.number, at_least=1)
    releases = (self.number - 1) * self.every + 1 + self.after
    checks.integer('the number of rounds, with those between and after,', releases, at_most=_MOST_RELEASES)
    return self.correlation.worst_case(self.number, self.every, releases)


def solve(
  *,
  epsilon: Optional[float] = None,
  delta: Optional[float] = None,
  noise_multiplier: Optional[float] = None,
  rounds: int = 1,
  sampling_rate: float = 1.0,
  accountant: Optional[str] = None,
  correlation: correlations.Correlation = correlations.Independent(),
  every: int = 1,
  rounds_after: int = 0,
) -> findings.Finding:
  """The one of ε, δ and z that is None, and what every accountant says for the solution.

  Args:
    epsilon: ε >= 0 in nats.
    delta: The total δ.
    noise_multiplier: z of each round.
    rounds: Rounds that the client is in or, with sampling, could be in.
    sampling_rate: q in (0, 1], of Poisson sampling; 1 for no sampling.
    accountant: The accountant that proves ε and δ; None for that with the smallest figure.
    correlation: The correlation of the noise, with all its numbers.
    every: n, where the client is in every n-th round under correlated noise.
    rounds_after: Rounds under correlated noise after the last one of the client.

  Raises:
    ValueError: If not exactly two of the three are given, a value is out of range, or there is no solution.
  """
  checks.integer('every', every, at_least=1)
  checks.integer('rounds_after', rounds_after, at_least=0)
  is_correlated = correlation.num_buffers > 0
  if not is_correlated and (every, rounds_after) != (1, 0):
    raise ValueError(
      '--every, --rounds_after: these flags need correlated noise. Leave them out, or give --correlation.'
    )
  if is_correlated and sampling_rate != 1:
    raise ValueError(
      '--sampling_rate: no amplification by sampling is proven for correlated noise here. Leave it out, and give the '
      'rounds that the client is in (--rounds, --every).'
    )
  of_client = _Rounds(rounds, every, rounds_after, correlation)
  norm = of_client.norm() if is_correlated else 1.0
  of_one_round = None if noise_multiplier is None else noise_multiplier / norm
  # Correlated noise is that of one round with this norm.
  counted_rounds = 1 if is_correlated else rounds
  solution = accountants.solve(
    epsilon=epsilon,
    delta=delta,
    noise_multiplier=of_one_round,
    rounds=counted_rounds,
    sampling_rate=sampling_rate,
    accountant=accountant,
  )
  solution = solution._replace(noise_multiplier=solution.noise_multiplier * norm)
  figures = accountants.account(solution.history, solution.delta)
  values = {
    'noise_multiplier': solution.noise_multiplier,
    'delta': solution.delta,
    'epsilon': {name: f.epsilon for name, f in figures.items() if isinstance(f, accountants.Figure)},
    'rounds': rounds,
    'sampling_rate': sampling_rate,
    'correlation': correlations.spec_of(correlation),
    'every': every,
    'rounds_after': rounds_after,
    'accountant': solution.accountant,
    'unit': accountants.UNIT,
    'neighbours': solution.history.neighbours,
    'amplification': accountants.amplification(solution.history),
  }
  return findings.Finding(_solution_text(of_client, solution, figures), values)


def _solution_text(rounds: _Rounds, solution: accountants.Solution, figures: _Figures) -> str:
  number = '1 round' if rounds.number == 1 else f'{rounds.number:,} rounds'
  # The noise that a budget needs is a lower limit: rounded down, it would not be enough.
  noise, delta = rounding.up(solution.noise_multiplier, 7), rounding.up(solution.delta, 6)
  lines = [f'Noise multiplier z = {noise}, {number}, total δ = {delta}']
  if rounds.correlation.num_buffers:
    lines.append(_schedule(rounds))
  lines += [
    f'Neighbours: {solution.history.neighbours}; unit: {accountants.UNIT};',
    f'{accountants.amplification(solution.history)}.',
    'The figures hold for values that are released with this noise, not for others that are released as well.',
    '',
  ]
  width = max(map(len, figures))
  lines.append(f'{"accountant":<{width}}  {"ε":>10}')
  for name, figure in figures.items():
    if isinstance(figure, accountants.Figure):
      lines.append(f'{name:<{width}}  {rounding.up(figure.epsilon, 5):>10}  {figure.method}')
    else:
      lines.append(f'{name:<{width}}  {"-":>10}  {figure.reason}')
  return '\n'.join([*lines, ''])


def _schedule(rounds: _Rounds) -> str:
  """The correlation of the noise and when the client comes, in words."""
  words = [f'Noise correlation: {correlations.spec_of(rounds.correlation)}.']
  if rounds.every > 1:
    words.append(f'The client takes part in 1 of every {rounds.every} rounds.')
  if rounds.after == 1:
    words.append('1 more round follows without it.')
  elif rounds.after:
    words.append(f'{rounds.after:,} more rounds follow without it.')
  return ' '.join(words)
