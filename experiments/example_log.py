r"""Writes an example of a log of participation, for --participation=log:path=FILE and for quap_tff.account.

    python -m experiments.example_log --output=devices.csv.gz

The log has the columns round, client and began. Its devices come at night, when they are charged, more often than by
day, and on weekends more often than at work. All of it is made up, and the same flags give the same bytes. A name that
ends in .gz gives a gzipped file. Exit status: 0, or 1 for wrong input.
"""

from collections.abc import Iterator
import csv
import datetime
import functools
import gzip
import io

from absl import flags
import numpy as np

from experiments.command import command_line
from quap_tff.common import checks
from quap_tff.common import files
from quap_tff.common.numbers import rng as rng_lib

# Every round lasts two hours, and the first one begins on a Monday.
_ROUND, _MONDAY = datetime.timedelta(hours=2), datetime.datetime(2024, 1, 1)
# How much likelier a device is to come: while its user sleeps, while at work, and otherwise; and on weekends.
_ASLEEP, _AT_WORK, _OTHERWISE, _WEEKEND = 6.0, 0.4, 1.0, 1.4

_FLAGS = command_line.new_flags()
_integer = functools.partial(flags.DEFINE_integer, flag_values=_FLAGS)
_OUTPUT = flags.DEFINE_string('output', None, 'File to write. It replaces one of this name.', flag_values=_FLAGS)
_NUM_CLIENTS = _integer('num_clients', 1000, 'Number of devices.')
_ROUNDS = _integer('rounds', 300, 'Number of rounds. Each lasts two hours.')
_SEED = _integer('seed', 0, 'Seed of the devices and of who comes.')
_MEAN_COHORT_SIZE = flags.DEFINE_float(
  'mean_cohort_size', 30.0, 'About how many devices come in a round.', flag_values=_FLAGS
)


def log_rows(num_clients: int, num_rounds: int, mean_cohort_size: float, seed: int) -> Iterator[tuple[str, ...]]:
  """The rows of the log, with its header: devices with nights, days and weekends, in four time zones.

  A device is drawn from Beta(2, 5) once, which says how often it comes, and so is its time zone. It comes by a coin of
  its own in each round: six times as often at night (22 to 6 o'clock, when it is charged) as in the evening, rarely at
  work, and more often on weekends. A tenth of the devices are bought or sold in the meantime. The rows are made up.

  Args:
    num_clients: N.
    num_rounds: T; each lasts two hours, and twelve are a day.
    mean_cohort_size: About how many devices come in a round.
    seed: Non-negative. The rows are a pure function of the arguments.
  """
  checks.integer('num_clients', num_clients, at_least=1)
  checks.integer('num_rounds', num_rounds, at_least=1)
  checks.number('mean_cohort_size', mean_cohort_size, above=0, at_most=num_clients)
  rng = rng_lib.generator(seed, 'example_log')
  names = [f'device-{number:06x}' for number in rng.choice(2**24, num_clients, replace=False)]
  often, zone = rng.beta(2.0, 5.0, num_clients), rng.choice([-6, -1, 1, 9], num_clients, p=[0.3, 0.2, 0.4, 0.1])
  changes, turn = rng.random(num_clients) < 0.1, rng.integers(1, num_rounds + 1, num_clients)
  is_bought = rng.random(num_clients) < 0.5
  numbers = np.arange(num_rounds)[:, np.newaxis]
  hours = numbers * (_ROUND.seconds // 3600) + zone
  of_day, is_weekend = hours % 24, hours // 24 % 7 >= 5
  at_work = (of_day >= 9) & (of_day < 17) & ~is_weekend
  chance = often * np.where((of_day >= 22) | (of_day < 6), _ASLEEP, np.where(at_work, _AT_WORK, _OTHERWISE))
  chance = chance * np.where(is_weekend, _WEEKEND, 1.0)
  chance = np.where(changes & ((numbers < turn) == is_bought), 0.0, chance)
  comes = rng.random(chance.shape) < np.minimum(chance * (mean_cohort_size / max(chance.sum(axis=1).mean(), 1e-9)), 1.0)
  yield 'round', 'client', 'began'
  for number in range(num_rounds):
    began = (_MONDAY + number * _ROUND).isoformat(timespec='minutes')
    for client in np.flatnonzero(comes[number]).tolist() or [None]:
      yield str(number + 1), '' if client is None else names[client], began


def main(argv: list[str]) -> int:
  """Writes the log that the flags in `argv[1:]` describe; returns the exit status."""
  command_line.refuse_arguments(command_line.parse(_FLAGS, argv, __doc__))
  if not _OUTPUT.value:
    raise ValueError('--output is missing. Give the file to write, such as --output=devices.csv.gz.')
  text = io.StringIO()
  csv.writer(text, lineterminator='\n').writerows(
    log_rows(_NUM_CLIENTS.value, _ROUNDS.value, _MEAN_COHORT_SIZE.value, _SEED.value)
  )
  content = text.getvalue().encode()
  if _OUTPUT.value.endswith('.gz'):
    content = gzip.compress(content, mtime=0)
  files.write(_OUTPUT.value, content)
  print(f'{_OUTPUT.value}: {_ROUNDS.value} rounds of up to {_NUM_CLIENTS.value} devices.')
  return 0


if __name__ == '__main__':
  command_line.run(main)
