"""Flags of a binary of its own: in one process with other binaries, flags of the same name must not meet."""

from typing import List, Sequence

from absl import flags


def new() -> flags.FlagValues:
  """Flag values with nothing but --help, for a module's `flags.DEFINE_…(…, flag_values=…)`."""
  values = flags.FlagValues()
  flags.DEFINE_bool('help', False, 'Show this help.', short_name='h', flag_values=values)
  return values


def parse(values: flags.FlagValues, argv: Sequence[str]) -> List[str]:
  """Sets the flags from `argv`, the others to their defaults (a second call starts anew); returns what is no flag.

  Raises:
    flags.Error: For an unknown flag, or a value that it does not take.
  """
  for name in values:
    values[name].unparse()
  return values(argv)[1:]


def help_text(doc: str, values: flags.FlagValues) -> str:
  """What --help prints."""
  return f'{doc}\n{values.get_help()}'


def refuse(arguments: Sequence[str]):
  """Raises `ValueError` if there are any."""
  if arguments:
    raise ValueError(f'Unexpected argument {arguments[0]!r}; flags are written --name=value.')
