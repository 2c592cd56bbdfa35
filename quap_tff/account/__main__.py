r"""Computes what each client of a log has spent, or which noise cohorts need; or one of ε, δ and noise.

    python -m quap_tff.account LOG.csv --noise_multiplier=6 --delta=1e-5 --epsilon=3 --output_dir=DIR
    python -m quap_tff.account noise LOG.csv --epsilon=2 --delta=1e-6
    python -m quap_tff.account cohorts --participation=beta:a=2,b=5 --num_clients=1000 --rounds=300 \
        --epsilon=2 --delta=1e-6
    python -m quap_tff.account coins --participation=beta_bernoulli --num_clients=1000 --rounds=300 \
        --epsilon=2 --delta=1e-6
    python -m quap_tff.account solve --noise_multiplier=10.8 --rounds=200 --delta=1e-5
    python -m quap_tff.account solve --epsilon=6 --delta=1e-5 --rounds=200
    python -m quap_tff.account solve --epsilon=2 --delta=1e-6 --rounds=1000 --sampling_rate=0.01 --accountant=rdp
    python -m quap_tff.account solve --epsilon=3 --delta=1e-5 --rounds=18 --every=3 --correlation=ar1:decay=0.9

A log has a row for each client in each round, under the header `round,client` or `round,client,weight`; a client is any
text. Every client gets its own exact ε, by the filter of certified runs, and --epsilon is the bound that nobody may
exceed. It also prints what must hold for the figures, and what the usual accountants say for the same log.

`noise` takes the cohorts of a log as those that are expected, and a table has the noise that each mechanism needs.
`cohorts` does so for the cohorts of a model, drawn once by --seed. `coins` gives each client of a model the noise and
the weight that its own rate needs if nobody learns who comes. `solve` takes two of --epsilon, --delta and
--noise_multiplier, and finds the third. Each of the four lists its flags: python -m quap_tff.account solve --help.

Tables go to standard output. The last line is one JSON object. For wrong input, one line on standard error says what is
wrong. Exit status: 0; 1 if a client of a log is over the bound; 2 for wrong input; 130 after Ctrl-C; 141 if nobody
reads standard output. TensorFlow is not needed.
"""

import argparse
from collections.abc import Mapping, Sequence
import json
import sys
from typing import Any, Callable, NamedTuple, NoReturn

from quap_tff import cohorts as cohorts_lib
from quap_tff.account import findings
from quap_tff.account import log_account
from quap_tff.account import needed_noise
from quap_tff.account import own_accounts
from quap_tff.account import solving
from quap_tff.accounting import accountants
from quap_tff.accounting import log_report
from quap_tff.common import checks
from quap_tff.common import console
from quap_tff.common import registry
from quap_tff.mechanisms.noise import correlation as correlations

_COMMAND = 'python -m quap_tff.account'


class _Program(NamedTuple):
  """One of the programs.

  Attributes:
    command: How it is called.
    find: The function that finds out. Each flag that is given is the parameter of its name.
    about: What it does, for --help.
    needs: The flags without which it finds nothing.
    takes: The other flags, and what they say here; '' for what they say everywhere.
    has_log: Whether it reads a log.
  """

  command: str
  find: Callable[..., findings.Finding]
  about: str
  needs: Sequence[str]
  takes: Mapping[str, str]
  has_log: bool = False


class _Parser(argparse.ArgumentParser):
  """A parser whose errors are one line, as all others here."""

  def error(self, message: str) -> NoReturn:
    raise ValueError(f'{message}. {self.prog} --help lists all flags.')


# argparse's errors call a value by the name of the function that reads it.
def number(text: str) -> float:
  """The number of a flag."""
  return checks.parsed_number(text, float)


def integer(text: str) -> int:
  """The integer of a flag."""
  return checks.parsed_number(text, int)


def _correlation(text: str) -> correlations.Correlation:
  try:
    correlation = registry.parse_spec('noise correlation', text, correlations.FAMILIES)
  except ValueError as error:
    raise argparse.ArgumentTypeError(str(error)) from None
  if not correlation.is_settled:
    raise argparse.ArgumentTypeError('give its numbers here, as in ar1:decay=0.9. Only a training run chooses them')
  if isinstance(correlation, correlations.HeldNoise):
    raise argparse.ArgumentTypeError(
      'what noise costs that clients hold depends on everybody. Give the correlation of noise that a server draws'
    )
  return correlation


def _participation(text: str) -> cohorts_lib.ParticipationChoice:
  if text.partition(':')[0] == 'log':
    raise argparse.ArgumentTypeError(f'give the log itself: {_COMMAND} noise LOG.csv')
  try:
    return registry.parse_spec('participation model', text, cohorts_lib.MODELS)
  except ValueError as error:
    raise argparse.ArgumentTypeError(str(error)) from None


_FLAGS: dict[str, tuple[Callable[[str], Any], str]] = {
  'noise_multiplier': (
    number,
    'z: the standard deviation of the noise on the sum, divided by the clipping norm, which is the most that one '
    'client adds',
  ),
  'epsilon': (number, 'ε in nats'),
  'delta': (number, 'total δ'),
  'rounds': (integer, 'the number of rounds'),
  'sampling_rate': (
    number,
    'probability with which each client is drawn, independently in each round (Bernoulli cohorts; default: 1, it '
    'takes part in every round)',
  ),
  'accountant': (
    str,
    f'accountant whose ε and δ are meant: {", ".join(accountants.ACCOUNTANTS)} (default: gaussian_exact, or pld with '
    'sampling)',
  ),
  'correlation': (
    _correlation,
    'how the noise of a round takes back noise of earlier rounds, as in --algorithm=certified:noise=… (default: '
    f'independent): {registry.describe(correlations.FAMILIES)}',
  ),
  'every': (integer, 'with correlated noise: the client is in every n-th round (default: 1)'),
  'rounds_after': (
    integer,
    'with correlated noise: rounds after the last one that the client takes part in (default: 0)',
  ),
  'participation': (_participation, f'model of who takes part: {registry.describe(cohorts_lib.MODELS)}'),
  'num_clients': (integer, 'N'),
  'cohort_size': (integer, 'M (default: 30%% of the clients, at most 30)'),
  'seed': (integer, 'cohorts are a function of it (default: 0)'),
  'output_dir': (str, f'folder for {log_report.CLIENTS}, {log_report.FIGURE} and {log_report.PAGE}'),
}

_LOG = _Program(
  _COMMAND,
  log_account.account_log,
  str(__doc__),
  ('noise_multiplier', 'delta'),
  {
    'epsilon': 'the ε that nobody may exceed',
    'rounds': 'the planned rounds (default: those of the log)',
    'sampling_rate': 'adds amplified figures, under the assumption that this is the probability with which each client '
    'was drawn, independently in each round',
    'correlation': '',
    'output_dir': '',
  },
  has_log=True,
)
_NOISE = _Program(
  f'{_COMMAND} noise',
  needed_noise.noise_for_log,
  'Computes which noise the cohorts of a log need, by every mechanism.',
  ('epsilon', 'delta'),
  {'correlation': ''},
  has_log=True,
)
_COHORTS = _Program(
  f'{_COMMAND} cohorts',
  needed_noise.noise_for_model,
  'Computes which noise the cohorts of a model need, by every mechanism.',
  ('participation', 'num_clients', 'rounds', 'epsilon', 'delta'),
  {'cohort_size': '', 'seed': '', 'correlation': ''},
)
_COINS = _Program(
  f'{_COMMAND} coins',
  own_accounts.own_accounts,
  'Computes the noise and the weights of clients that come by coins that stay secret, each by its own rate.',
  ('participation', 'num_clients', 'rounds', 'epsilon', 'delta'),
  {'seed': 'rates are a function of it (default: 0)'},
)
_SOLVE = _Program(
  f'{_COMMAND} solve',
  solving.solve,
  'Computes one of ε, δ and noise from the other two.',
  (),
  {
    'epsilon': '',
    'delta': '',
    'noise_multiplier': '',
    'rounds': 'rounds that the client takes part in or, with sampling, may take part in (default: 1)',
    'sampling_rate': '',
    'accountant': '',
    'correlation': '',
    'every': '',
    'rounds_after': '',
  },
)
# The programs that the first argument names. Any other first argument is a log to account for, or a flag of that.
_NAMED = {'noise': _NOISE, 'cohorts': _COHORTS, 'coins': _COINS, 'solve': _SOLVE}


def main(argv: Sequence[str]) -> int:
  """Finds what the arguments ask for; returns the exit status."""
  try:
    finding = _found(argv)
  except (ValueError, ImportError) as error:
    print(f'Error: {console.shown(" ".join(str(error).split()))}', file=sys.stderr)
    return console.FAILED
  print(finding.text)
  for sentence in finding.warnings:
    print(sentence, file=sys.stderr)
  print(json.dumps(finding.values, allow_nan=False), flush=True)
  return 1 if finding.is_over else 0


def _found(argv: Sequence[str]) -> findings.Finding:
  program, rest = (_NAMED[argv[0]], argv[1:]) if argv and argv[0] in _NAMED else (_LOG, argv)
  # Below this line there is no namespace of flags: each function has the parameters that it takes.
  parameters = vars(_parsed(program, rest))
  return program.find(**parameters)


def _parsed(program: _Program, argv: Sequence[str]) -> argparse.Namespace:
  """The flags that are given. Raises `ValueError` if one is unknown, of another program, or missing."""
  parser = _Parser(
    program.command,
    description=program.about,
    formatter_class=argparse.RawDescriptionHelpFormatter,
    argument_default=argparse.SUPPRESS,
    allow_abbrev=False,
  )
  if program.has_log:
    parser.add_argument('log', nargs='?', metavar='LOG.csv', help='who took part in which round')
  for name in (*program.needs, *program.takes):
    to, everywhere = _FLAGS[name]
    parser.add_argument(f'--{name}', type=to, help=program.takes.get(name) or everywhere)
  given, unknown = parser.parse_known_args(argv)
  for argument in unknown:
    _refuse_flag_of_another(program, argument)
  if unknown:
    parser.error(f'unrecognized arguments: {" ".join(unknown)}')
  if program.has_log and 'log' not in given:
    raise ValueError(
      f'Name a log: {program.command} LOG.csv. Without one, {_COMMAND} cohorts has the noise for the cohorts of a '
      f'model, and {_COMMAND} solve computes one of ε, δ and noise.'
    )
  missing = [f'--{name}' for name in program.needs if name not in given]
  if missing:
    raise ValueError(f'{" and ".join(missing)} must be given. {_remedy(program)}')
  return given


def _refuse_flag_of_another(program: _Program, argument: str) -> None:
  name = argument.partition('=')[0].removeprefix('--')
  owners = [other.command for other in (_LOG, *_NAMED.values()) if name in (*other.needs, *other.takes)]
  if owners and argument.startswith('--'):
    raise ValueError(f'--{name} plays no part in {program.command}. Leave it out: it is for {" and ".join(owners)}.')


def _remedy(program: _Program) -> str:
  needed = ', '.join(f'--{name}' for name in program.needs)
  if program is _LOG:
    return f'The account of a log needs {needed}. The noise that a log needs: {_NOISE.command} LOG.csv.'
  return f'{program.command} needs {needed}.'


if __name__ == '__main__':
  console.run(main)
