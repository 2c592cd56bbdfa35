r"""Computes ε, δ or the noise of a Gaussian mechanism over rounds, from the other two.

    python -m experiments.account --noise_multiplier=10.8 --rounds=200 --delta=1e-5
    python -m experiments.account --epsilon=6 --delta=1e-5 --rounds=200
    python -m experiments.account --epsilon=2 --delta=1e-6 --rounds=1000 --sampling_rate=0.01 --accountant=rdp
    python -m experiments.account --epsilon=3 --delta=1e-5 --rounds=18 --every=3 --correlation=ar1:decay=0.9

A table goes to standard output. Its last line is one JSON object with `noise_multiplier`, `delta`, and `epsilon` by
each accountant that applies. For wrong input, one line on standard error says what is wrong. Exit status: 0, or
1 for wrong input.
"""

import json
from typing import Any

from absl import flags

from experiments.command import command_line
from quap_tff.accounting import calibration
from quap_tff.accounting.accountants import named as accountants
from quap_tff.common import checks
from quap_tff.common import registry
from quap_tff.common.numbers import rounding
from quap_tff.mechanisms.noise import correlation as correlations

# The most releases for which every coefficient is computed.
_MOST_RELEASES = 100_000

_FLAGS = command_line.new_flags()
_NOISE_MULTIPLIER = flags.DEFINE_float(
  'noise_multiplier',
  None,
  'z: the standard deviation of the noise on the sum, divided by the clipping norm, which is the most that one '
  'client adds.',
  flag_values=_FLAGS,
)
_EPSILON = flags.DEFINE_float('epsilon', None, 'ε in nats.', flag_values=_FLAGS)
_DELTA = flags.DEFINE_float('delta', None, 'Total δ.', flag_values=_FLAGS)
_ROUNDS = flags.DEFINE_integer(
  'rounds', 1, 'Rounds that the client takes part in or, with sampling, may take part in.', flag_values=_FLAGS
)
_SAMPLING_RATE = flags.DEFINE_float(
  'sampling_rate',
  1.0,
  'Probability with which each client is drawn, independently in each round (Bernoulli cohorts). 1: it takes part in '
  'every round.',
  flag_values=_FLAGS,
)
_ACCOUNTANT = flags.DEFINE_string(
  'accountant',
  None,
  f'Accountant whose ε and δ are meant: {", ".join(accountants.ACCOUNTANTS)}. Default: gaussian_exact, or pld with '
  'sampling.',
  flag_values=_FLAGS,
)
_CORRELATION = flags.DEFINE_string(
  'correlation',
  'independent',
  'How the noise of a round takes back noise of earlier rounds, as in --algorithm=certified:noise=…: '
  f'{registry.describe(correlations.FAMILIES)}.',
  flag_values=_FLAGS,
)
_EVERY = flags.DEFINE_integer(
  'every',
  1,
  'With correlated noise: the client takes part in every n-th round, with a weight of 1.',
  flag_values=_FLAGS,
)
_ROUNDS_AFTER = flags.DEFINE_integer(
  'rounds_after',
  0,
  'With correlated noise: rounds after the last one that the client takes part in.',
  flag_values=_FLAGS,
)


def main(argv: list[str]) -> int:
  """Accounts for the mechanism that the flags in `argv[1:]` describe; returns the exit status."""
  rest = command_line.parse(_FLAGS, argv)
  if _FLAGS.help:
    print(command_line.help_text(__doc__, _FLAGS))
    return 0
  command_line.refuse_arguments(rest)
  correlation = _correlation()
  # Under correlated noise, a client's rounds together are one Gaussian mechanism with the noise multiplier z/‖C·x‖.
  factor = _moved(correlation) if correlation.num_buffers else 1.0
  solution = calibration.solve(
    epsilon=_EPSILON.value,
    delta=_DELTA.value,
    noise_multiplier=_NOISE_MULTIPLIER.value and _NOISE_MULTIPLIER.value / factor,
    rounds=1 if correlation.num_buffers else _ROUNDS.value,
    sampling_rate=_SAMPLING_RATE.value,
    accountant=_ACCOUNTANT.value,
  )
  solution = solution._replace(noise_multiplier=solution.noise_multiplier * factor)
  figures = accountants.account(solution.history, solution.delta)
  _print_table(solution, figures)
  print(json.dumps(_summary(solution, figures), allow_nan=False), flush=True)
  return 0


def _correlation() -> correlations.Correlation:
  correlation = registry.parse_spec('noise correlation', _CORRELATION.value, correlations.FAMILIES)
  if not correlation.is_settled:
    raise ValueError('--correlation: give its numbers here, as in ar1:decay=0.9. Only a training run chooses them.')
  checks.integer('every', _EVERY.value, at_least=1)
  checks.integer('rounds_after', _ROUNDS_AFTER.value, at_least=0)
  if correlation.num_buffers and _SAMPLING_RATE.value != 1:
    raise ValueError(
      '--sampling_rate: no amplification by sampling is proven for correlated noise here. Leave it out, and give the '
      'rounds that the client is in (--rounds, --every).'
    )
  if not correlation.num_buffers and (_EVERY.value, _ROUNDS_AFTER.value) != (1, 0):
    raise ValueError(
      '--every, --rounds_after: these flags need correlated noise. Leave them out, or give --correlation.'
    )
  return correlation


def _moved(correlation: correlations.Correlation) -> float:
  """‖C·x‖ for a client that is in every n-th round."""
  checks.integer('rounds', _ROUNDS.value, at_least=1)
  releases = (_ROUNDS.value - 1) * _EVERY.value + 1 + _ROUNDS_AFTER.value
  checks.integer('the number of rounds, with those between and after,', releases, at_most=_MOST_RELEASES)
  return correlation.worst_case(_ROUNDS.value, _EVERY.value, releases)


def _print_table(solution: calibration.Solution, figures: dict[str, Any]):
  rounds = '1 round' if _ROUNDS.value == 1 else f'{_ROUNDS.value:,} rounds'
  # The noise that a budget needs is a lower limit: rounded down, it would not be enough.
  noise, delta = rounding.up(solution.noise_multiplier, 7), rounding.up(solution.delta, 6)
  print(f'Noise multiplier z = {noise}, {rounds}, total δ = {delta}')
  if _EVERY.value > 1 or _ROUNDS_AFTER.value or _CORRELATION.value != 'independent':
    words = [f'Noise correlation: {_CORRELATION.value}.']
    if _EVERY.value > 1:
      words.append(f'The client takes part in 1 of every {_EVERY.value} rounds.')
    if _ROUNDS_AFTER.value:
      more = '1 more round follows' if _ROUNDS_AFTER.value == 1 else f'{_ROUNDS_AFTER.value:,} more rounds follow'
      words.append(f'{more} without it.')
    print(' '.join(words))
  print(f'Neighbours: {solution.history.neighbours}; unit: {accountants.UNIT};')
  print(f'{accountants.amplification(solution.history)}.')
  print('The figures hold for values that are released with this noise, not for others that are released as well.\n')
  width = max(map(len, figures))
  print(f'{"accountant":<{width}}  {"ε":>10}')
  for name, figure in figures.items():
    if isinstance(figure, accountants.Figure):
      print(f'{name:<{width}}  {rounding.up(figure.epsilon, 5):>10}  {figure.method}')
    else:
      print(f'{name:<{width}}  {"-":>10}  {figure.reason}')
  print()


def _summary(solution: calibration.Solution, figures: dict[str, Any]) -> dict[str, Any]:
  return {
    'noise_multiplier': solution.noise_multiplier,
    'delta': solution.delta,
    'epsilon': {name: f.epsilon for name, f in figures.items() if isinstance(f, accountants.Figure)},
    'rounds': _ROUNDS.value,
    'sampling_rate': _SAMPLING_RATE.value,
    'correlation': _CORRELATION.value,
    'every': _EVERY.value,
    'rounds_after': _ROUNDS_AFTER.value,
    'accountant': solution.accountant,
    'unit': accountants.UNIT,
    'neighbours': solution.history.neighbours,
    'amplification': accountants.amplification(solution.history),
  }


if __name__ == '__main__':
  command_line.run(main)
