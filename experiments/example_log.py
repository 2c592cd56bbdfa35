r"""Writes an example of a log of participation, for --participation=log:path=FILE and for quap_tff.account.

    python -m experiments.example_log --output=devices.csv.gz

The log has the columns round, client and began. Its devices come at night, when they are charged, more often than by
day, and on weekends more often than at work; `data.cohorts.example_log` has the rule. All of it is made up, and the
same flags give the same bytes. A name that ends in .gz gives a gzipped file. Exit status: 0, or 1 for wrong input.
"""

import csv
import functools
import gzip
import io

from absl import flags

from data.cohorts import example_log
from experiments.command import command_line
from quap_tff.common import files

_FLAGS = command_line.new_flags()
_integer = functools.partial(flags.DEFINE_integer, flag_values=_FLAGS)
_OUTPUT = flags.DEFINE_string('output', None, 'File to write. It replaces one of this name.', flag_values=_FLAGS)
_NUM_CLIENTS = _integer('num_clients', 1000, 'Number of devices.')
_ROUNDS = _integer('rounds', 300, 'Number of rounds. Each lasts two hours.')
_SEED = _integer('seed', 0, 'Seed of the devices and of who comes.')
_MEAN_COHORT_SIZE = flags.DEFINE_float(
  'mean_cohort_size', 30.0, 'About how many devices come in a round.', flag_values=_FLAGS
)


def main(argv: list[str]) -> int:
  """Writes the log that the flags in `argv[1:]` describe; returns the exit status."""
  command_line.refuse_arguments(command_line.parse(_FLAGS, argv, __doc__))
  if not _OUTPUT.value:
    raise ValueError('--output is missing. Give the file to write, such as --output=devices.csv.gz.')
  text = io.StringIO()
  csv.writer(text, lineterminator='\n').writerows(
    example_log.rows(_NUM_CLIENTS.value, _ROUNDS.value, _MEAN_COHORT_SIZE.value, _SEED.value)
  )
  content = text.getvalue().encode()
  files.write(_OUTPUT.value, gzip.compress(content, mtime=0) if _OUTPUT.value.endswith('.gz') else content)
  print(f'{_OUTPUT.value}: {_ROUNDS.value} rounds of up to {_NUM_CLIENTS.value} devices.')
  return 0


if __name__ == '__main__':
  command_line.run(main)
