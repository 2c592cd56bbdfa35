r"""Computes what each client of a log has spent, or which noise it needs; without a log, one of ε, δ and noise.

    python -m quap_tff.account LOG.csv --noise_multiplier=6 --delta=1e-5 --epsilon=3 --output_dir=DIR
    python -m quap_tff.account LOG.csv --epsilon=2 --delta=1e-6
    python -m quap_tff.account --participation=beta:a=2,b=5 --num_clients=1000 --rounds=300 --epsilon=2 --delta=1e-6
    python -m quap_tff.account --noise_multiplier=10.8 --rounds=200 --delta=1e-5
    python -m quap_tff.account --epsilon=6 --delta=1e-5 --rounds=200
    python -m quap_tff.account --epsilon=2 --delta=1e-6 --rounds=1000 --sampling_rate=0.01 --accountant=rdp
    python -m quap_tff.account --epsilon=3 --delta=1e-5 --rounds=18 --every=3 --correlation=ar1:decay=0.9

A log has a row for each client in each round, under the header `round,client` or `round,client,weight`; a client is any
text. Every client gets its own exact ε, by the filter of certified runs, and --epsilon is the bound that nobody may
exceed. It also prints what must hold for the figures, and what the usual accountants say for the same log. Without
--noise_multiplier, the log says which cohorts are expected, and a table has the noise that each mechanism needs. So it
does for the cohorts of a model, --participation, drawn once by --seed.

Tables go to standard output. The last line is one JSON object. For wrong input, one line on standard error says what is
wrong. Exit status: 0; 1 if a client of a log is over the bound; 2 for wrong input; 130 after Ctrl-C; 141 if nobody
reads standard output. TensorFlow is not needed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
import contextlib
import functools
import json
import sys
import types
from typing import Any, NoReturn, TYPE_CHECKING

import numpy as np

from quap_tff import cohorts as cohorts_lib
from quap_tff.accounting import accountants
from quap_tff.accounting import coins
from quap_tff.accounting import log_report
from quap_tff.accounting import logs
from quap_tff.common import checks
from quap_tff.common import console
from quap_tff.common import lazy
from quap_tff.common import registry
from quap_tff.common.numbers import rounding
from quap_tff.mechanisms.noise import correlation as correlations

if TYPE_CHECKING:
  from quap_tff.plans.accounts import noise_choices
else:
  noise_choices = lazy.module('quap_tff.plans.accounts.noise_choices')

# The most releases for which every coefficient is computed.
_MOST_RELEASES = 100_000
# The most participations from which a noise is chosen.
_MOST_PARTICIPATIONS = 10**6
# Flags that play no part where the cohorts of a model choose the noise, with their defaults.
_NOT_WITH_MODELS = dict(
  noise_multiplier=None, sampling_rate=None, accountant=None, every=1, rounds_after=0, output_dir=None
)


class _Parser(argparse.ArgumentParser):
  """Errors are one line, as all others here."""

  def error(self, message: str) -> NoReturn:
    raise ValueError(f'{message}. --help lists all flags.')


def _parser() -> argparse.ArgumentParser:
  parser = _Parser(
    'python -m quap_tff.account',
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
    allow_abbrev=False,
  )
  real, whole = functools.partial(checks.parsed_number, to=float), functools.partial(checks.parsed_number, to=int)
  real.__name__, whole.__name__ = 'number', 'integer'  # type: ignore[attr-defined]  # For errors.
  add = parser.add_argument
  add('log', nargs='?', metavar='LOG.csv', help='who took part in which round')
  add(
    '--noise_multiplier',
    type=real,
    help='z: the standard deviation of the noise on the sum, divided by the clipping norm, which is the most that one '
    'client adds',
  )
  add('--epsilon', type=real, help='ε in nats')
  add('--delta', type=real, help='total δ')
  add(
    '--rounds',
    type=whole,
    help='rounds that the client takes part in or, with sampling, may take part in (default: 1). With a log: the '
    'planned rounds (default: those of the log). With --participation: the rounds that are drawn',
  )
  add(
    '--sampling_rate',
    type=real,
    help='probability with which each client is drawn, independently in each round (Bernoulli cohorts; default: 1, it '
    'takes part in every round). With a log: adds amplified figures, under the assumption that clients were drawn so',
  )
  add(
    '--accountant',
    help=f'accountant whose ε and δ are meant: {", ".join(accountants.ACCOUNTANTS)} (default: gaussian_exact, or pld '
    'with sampling). Not with a log',
  )
  add(
    '--correlation',
    default='independent',
    help='how the noise of a round takes back noise of earlier rounds, as in --algorithm=certified:noise=…: '
    f'{registry.describe(correlations.FAMILIES)}',
  )
  add('--every', type=whole, default=1, help='with correlated noise: the client is in every n-th round. Not with a log')
  add(
    '--rounds_after',
    type=whole,
    default=0,
    help='with correlated noise: rounds after the last one that the client takes part in. Not with a log',
  )
  add(
    '--participation',
    help='model of who takes part, whose cohorts are drawn in place of those of a log: '
    f'{registry.describe(cohorts_lib.MODELS)}',
  )
  add('--num_clients', type=whole, help='with --participation: N')
  add('--cohort_size', type=whole, help='with --participation: M (default: 30%% of the clients, at most 30)')
  add('--seed', type=whole, help='with --participation: cohorts are a function of it (default: 0)')
  add('--output_dir', help=f'with a log: folder for {log_report.CLIENTS}, {log_report.FIGURE} and {log_report.PAGE}')
  return parser


def main(argv: Sequence[str]) -> int:
  """Accounts for what the arguments describe; returns the exit status."""
  try:
    arguments = _parser().parse_args(argv)
    if arguments.participation is not None:
      return _account_model(arguments)
    for name in ('num_clients', 'cohort_size', 'seed'):
      if getattr(arguments, name) is not None:
        raise ValueError(f'--{name} is for the cohorts of a model. Give --participation, or leave it out.')
    return _account_log(arguments) if arguments.log is not None else _account_plan(arguments)
  except (ValueError, ImportError) as error:
    print(f'Error: {console.shown(" ".join(str(error).split()))}', file=sys.stderr)
  return console.FAILED


def _account_log(arguments: argparse.Namespace) -> int:
  correlation = _correlation(arguments)
  if arguments.delta is None or arguments.noise_multiplier is None and arguments.epsilon is None:
    raise ValueError(
      'With a log, give --noise_multiplier and --delta, and --epsilon if there is a bound; or --epsilon and --delta, '
      'for the noise that these cohorts need.'
    )
  if arguments.accountant is not None or arguments.every != 1 or arguments.rounds_after:
    raise ValueError('--accountant, --every and --rounds_after are for plans without a log. Leave them out.')
  checks.number('delta', arguments.delta, above=0, below=1)
  if arguments.noise_multiplier is None:
    return _noise_for_log(arguments, correlation)
  checks.number(
    'noise_multiplier', arguments.noise_multiplier, at_least=accountants.MIN_FACTOR, at_most=accountants.MAX_FACTOR
  )
  for name, bounds in (('epsilon', {'above': 0}), ('sampling_rate', {'above': 0, 'at_most': 1})):
    if (value := getattr(arguments, name)) is not None:
      checks.number(name, value, **bounds)
  if arguments.rounds is not None:
    checks.integer('rounds', arguments.rounds, at_least=1)
  log = logs.Log(arguments.log)
  with _blamed(arguments.log, 'read'):
    account = logs.account(log, arguments.noise_multiplier, correlation, arguments.rounds)
    assumed = None if arguments.sampling_rate is None else coins.Coins.of(log, arguments.sampling_rate)
  if not account.names:
    raise ValueError(f'{arguments.log} names no client: nobody has spent anything. Give a log in which somebody came.')
  report = log_report.report(
    account, arguments.noise_multiplier, arguments.delta, arguments.epsilon, correlation, assumed
  )
  head = [
    f'{len(account.names):,} clients, {int(account.counts.sum()):,} participations in {account.num_rounds:,} rounds. '
    f'z = {arguments.noise_multiplier:.15g}, total δ = {rounding.up(arguments.delta, 6)}, noise: '
    f'{arguments.correlation}.',
    log_report.STATEMENT,
  ]
  if arguments.delta * len(account.names) > 1:
    head.append('Warning: δ is above 1/N. A program that publishes the data of a client drawn at random has such a δ.')
  if arguments.epsilon is not None:
    head.append(
      f'Nobody has spent more than ε = {rounding.up(arguments.epsilon, 7)}.'
      if not report.over
      else f'OVER: {report.over:,} of {len(account.names):,} clients have spent more than ε = '
      f'{rounding.down(arguments.epsilon, 7)}.'
    )
  print('\n'.join(head), end='\n\n')
  print(log_report.text(report.tables))
  if arguments.output_dir is not None:
    with _blamed(f'--output_dir={arguments.output_dir}', 'written'):
      missing = log_report.write_report(arguments.output_dir, report, head)
    for sentence in missing:
      print(sentence, file=sys.stderr)
  noise = {name: getattr(arguments, name) for name in ('noise_multiplier', 'delta', 'correlation')}
  print(json.dumps({**log_report.summary(report), **noise}, allow_nan=False), flush=True)
  return 1 if report.over else 0


def _noise_for_log(arguments: argparse.Namespace, correlation: correlations.Correlation) -> int:
  """The noise for the cohorts of a log, by every mechanism."""
  for name in ('rounds', 'sampling_rate', 'output_dir'):
    if getattr(arguments, name) is not None:
      raise ValueError(f'--{name} is for the account of a log, with --noise_multiplier. Leave it out.')
  log, cohorts, total = logs.Log(arguments.log), [], 0
  with _blamed(arguments.log, 'read'):
    for one in log.rounds():
      cohorts.append(one.ids[one.weights > 0].copy())
      total += len(cohorts[-1])
      if total > _MOST_PARTICIPATIONS:
        raise ValueError(
          f'{arguments.log} has more than {_MOST_PARTICIPATIONS:,} participations, too many to choose a noise from. '
          'Give a part of it, or --noise_multiplier.'
        )
  return _noise_for(cohorts, log.num_clients, arguments, correlation)


def _account_model(arguments: argparse.Namespace) -> int:
  """The noise for cohorts that a model draws."""
  spec, num_clients, num_rounds = arguments.participation, arguments.num_clients, arguments.rounds
  if arguments.log is not None:
    raise ValueError('Give a log, or a model of one by --participation, and not both.')
  if spec.partition(':')[0] == 'log':
    raise ValueError(f'--participation={spec}: give the log itself: python -m quap_tff.account LOG.csv.')
  if None in (num_clients, num_rounds, arguments.epsilon, arguments.delta):
    raise ValueError('With --participation, give --num_clients, --rounds, --epsilon and --delta.')
  for name, default in _NOT_WITH_MODELS.items():
    if getattr(arguments, name) != default:
      raise ValueError(f'--{name} plays no part where a noise is chosen from --participation. Leave it out.')
  checks.number('delta', arguments.delta, above=0, below=1)
  checks.integer('num_clients', num_clients, at_least=1)
  checks.integer('rounds', num_rounds, at_least=1, at_most=_MOST_RELEASES)
  choice = registry.parse_spec('participation model', spec, cohorts_lib.MODELS)
  size = arguments.cohort_size
  if size is None and not choice.ignores_cohort_size:
    size = cohorts_lib.default_cohort_size(num_clients)
  seed = 0 if arguments.seed is None else arguments.seed
  model = choice.over(cohorts_lib.Population(num_clients, size, seed))
  cohorts, total = [], 0
  for round_num in range(1, num_rounds + 1):
    cohorts.append(model.cohort(round_num))
    total += len(cohorts[-1])
    if total > _MOST_PARTICIPATIONS:
      raise ValueError(
        f'{num_rounds:,} rounds of this model have more than {_MOST_PARTICIPATIONS:,} participations, too many to '
        'choose a noise from. Give fewer rounds or clients.'
      )
  print(f'Drawn once from --participation={spec} by --seed={seed}: others come by other seeds.')
  drawn = {'participation': spec, 'seed': seed, 'cohort_size': size}
  return _noise_for(cohorts, num_clients, arguments, _correlation(arguments), drawn)


def _noise_for(
  cohorts: Sequence[np.ndarray],
  num_clients: int,
  arguments: argparse.Namespace,
  correlation: correlations.Correlation,
  more: Mapping[str, Any] = types.MappingProxyType({}),
) -> int:
  """Prints the noise that cohorts need, by every mechanism. `more` are further values of the last line."""
  epsilon, delta = checks.number('epsilon', arguments.epsilon, above=0), arguments.delta
  total = sum(map(len, cohorts))
  least = noise_choices.least_noise(cohorts, num_clients, epsilon, delta, correlation)
  print(
    f'{num_clients:,} clients, {total:,} participations in {len(cohorts):,} rounds. ε = {epsilon:g}, total δ = '
    f'{delta:g}, noise: {arguments.correlation}.\n'
    f'z = {rounding.up(least, 6)} is the least noise with which nobody passes ε, if all have the weight 1 in all of '
    'these rounds.\nThe noise is chosen from who came, and from no data. In other rounds, other clients come: a filter '
    '(quap_tff.Gate, or a certified run) keeps each client within ε, also in other cohorts.\n'
  )
  choices = list(noise_choices.choices(cohorts, num_clients, epsilon, delta))
  print(log_report.text([_choices_table(choices), _ends_table(cohorts, num_clients, epsilon, delta, correlation)]))
  rows = [{**one._asdict(), 'correlation': correlations.spec_of(one.correlation)} for one in choices]
  values = {'noise_multiplier': least, 'epsilon': epsilon, 'delta': delta, 'correlation': arguments.correlation}
  counts = {'clients': num_clients, 'rounds': len(cohorts), 'participations': total, **more}
  print(json.dumps({**values, **counts, 'choices': rows}, allow_nan=False), flush=True)
  return 0


def _choices_table(choices: Sequence[noise_choices.Choice]) -> log_report.TextTable:
  rows = [
    (
      correlations.spec_of(one.correlation),
      'the server' if one.trust == 'server' else 'a secure sum',
      'by a plan' if one.is_planned else '1 for all',
      rounding.up(one.noise_multiplier, 5),
      f'{one.share:.1%}',
      f'{one.ended:,}',
    )
    for one in choices
  ]
  header = ('noise', 'trusted', 'weights', 'z', 'share of the ceiling', 'budgets that end')
  return log_report.TextTable(
    'Which mechanism makes how much of the budgets',
    header,
    rows,
    'The ceiling is the largest signal-to-noise ratio of the last model that any Gaussian mechanism can have. Planned '
    'weights are those of the online rule; with a secure sum, z is the noise of one client.',
  )


def _ends_table(
  cohorts: Sequence[np.ndarray], num_clients: int, epsilon: float, delta: float, correlation: correlations.Correlation
) -> log_report.TextTable:
  rows = [
    (rounding.up(one.noise_multiplier, 5), f'{one.ended:,}', *(str(r) if r else '' for r in one[2:]))
    for one in noise_choices.ends(cohorts, num_clients, epsilon, delta, correlation)
  ]
  header = ('z', 'budgets that end', 'the first in round', 'their median')
  return log_report.TextTable('With less noise and a filter, at weights of 1', header, rows, '')


@contextlib.contextmanager
def _blamed(what: str, done: str) -> Iterator[None]:
  """Names the file or flag that an error of the system is about."""
  try:
    yield
  except OSError as error:
    place = f' ({error.filename})' if error.filename not in (None, what) else ''
    raise ValueError(f'{what} cannot be {done}{place}: {error.strerror or error}.') from None


def _account_plan(arguments: argparse.Namespace) -> int:
  if arguments.output_dir is not None:
    raise ValueError('--output_dir is for the account of a log. Name the log, or leave it out.')
  arguments.rounds = 1 if arguments.rounds is None else arguments.rounds
  arguments.sampling_rate = 1.0 if arguments.sampling_rate is None else arguments.sampling_rate
  correlation = _correlation(arguments)
  if correlation.num_buffers and arguments.sampling_rate != 1:
    raise ValueError(
      '--sampling_rate: no amplification by sampling is proven for correlated noise here. Leave it out, and give the '
      'rounds that the client is in (--rounds, --every).'
    )
  # Under correlated noise, a client's rounds together are one Gaussian mechanism with the noise multiplier z/‖C·x‖.
  factor = _moved(arguments, correlation) if correlation.num_buffers else 1.0
  solution = accountants.solve(
    epsilon=arguments.epsilon,
    delta=arguments.delta,
    noise_multiplier=arguments.noise_multiplier and arguments.noise_multiplier / factor,
    rounds=1 if correlation.num_buffers else arguments.rounds,
    sampling_rate=arguments.sampling_rate,
    accountant=arguments.accountant,
  )
  solution = solution._replace(noise_multiplier=solution.noise_multiplier * factor)
  figures = accountants.account(solution.history, solution.delta)
  _print_table(arguments, solution, figures)
  print(json.dumps(_summary(arguments, solution, figures), allow_nan=False), flush=True)
  return 0


def _correlation(arguments: argparse.Namespace) -> correlations.Correlation:
  correlation = registry.parse_spec('noise correlation', arguments.correlation, correlations.FAMILIES)
  if not correlation.is_settled:
    raise ValueError('--correlation: give its numbers here, as in ar1:decay=0.9. Only a training run chooses them.')
  checks.integer('every', arguments.every, at_least=1)
  checks.integer('rounds_after', arguments.rounds_after, at_least=0)
  if isinstance(correlation, correlations.HeldNoise):
    raise ValueError('--correlation: what noise costs that clients hold depends on everybody. Give that of a server.')
  if not correlation.num_buffers and (arguments.every, arguments.rounds_after) != (1, 0):
    raise ValueError(
      '--every, --rounds_after: these flags need correlated noise. Leave them out, or give --correlation.'
    )
  return correlation


def _moved(arguments: argparse.Namespace, correlation: correlations.Correlation) -> float:
  """‖C·x‖ for a client that is in every n-th round."""
  checks.integer('rounds', arguments.rounds, at_least=1)
  releases = (arguments.rounds - 1) * arguments.every + 1 + arguments.rounds_after
  checks.integer('the number of rounds, with those between and after,', releases, at_most=_MOST_RELEASES)
  return correlation.worst_case(arguments.rounds, arguments.every, releases)


def _print_table(arguments: argparse.Namespace, solution: accountants.Solution, figures: dict[str, Any]) -> None:
  rounds = '1 round' if arguments.rounds == 1 else f'{arguments.rounds:,} rounds'
  # The noise that a budget needs is a lower limit: rounded down, it would not be enough.
  noise, delta = rounding.up(solution.noise_multiplier, 7), rounding.up(solution.delta, 6)
  print(f'Noise multiplier z = {noise}, {rounds}, total δ = {delta}')
  if arguments.every > 1 or arguments.rounds_after or arguments.correlation != 'independent':
    words = [f'Noise correlation: {arguments.correlation}.']
    if arguments.every > 1:
      words.append(f'The client takes part in 1 of every {arguments.every} rounds.')
    if arguments.rounds_after:
      after = arguments.rounds_after
      words.append(f'{"1 more round follows" if after == 1 else f"{after:,} more rounds follow"} without it.')
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


def _summary(arguments: argparse.Namespace, solution: accountants.Solution, figures: dict[str, Any]) -> dict[str, Any]:
  return {
    'noise_multiplier': solution.noise_multiplier,
    'delta': solution.delta,
    'epsilon': {name: f.epsilon for name, f in figures.items() if isinstance(f, accountants.Figure)},
    'rounds': arguments.rounds,
    'sampling_rate': arguments.sampling_rate,
    'correlation': arguments.correlation,
    'every': arguments.every,
    'rounds_after': arguments.rounds_after,
    'accountant': solution.accountant,
    'unit': accountants.UNIT,
    'neighbours': solution.history.neighbours,
    'amplification': accountants.amplification(solution.history),
  }


if __name__ == '__main__':
  console.run(main)
