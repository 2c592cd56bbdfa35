"""The flags of an experiment, made from the fields of `run.Run`. Presets are `.flags` files of them.

A flag that takes a spec (`name` or `name:key=value,…`) lists its choices from the registry that it is parsed with.
Nothing here loads TensorFlow: `--help`, and most wrong flags, are answered at once.
"""

from collections.abc import Collection, Iterator, Sequence
import contextlib
import inspect
from typing import Any, get_type_hints, Optional

from absl import flags

from experiments.command import checks as flag_checks
from experiments.command import command_line
from experiments.command import parts
from experiments.command import run as run_lib
from quap_tff import methods
from quap_tff.common import checks
from quap_tff.common import flag_fields
from quap_tff.common import registry

VALUES = command_line.new_flags()

# Parts whose flags --help shows together, under the first one's title.
_MECHANISM = (parts.Mechanism, *methods.PARTS)


class _NumberOrText(flags.ArgumentParser):
  """Reads 3 as a number, and leaves everything else, such as 1..5, to `run.Epochs`."""

  def parse(self, argument):
    try:
      return checks.parsed_number(str(argument), int)
    except ValueError:
      return argument


def _define(name: str, found: flag_fields.Flag, kind: Any, text: str):
  """Makes the absl flag of a field of type `kind`."""
  own = dict(flag_values=VALUES)
  bounds = dict(lower_bound=found.lower, upper_bound=found.upper)
  default = None if found.differs else found.default
  if kind is parts.Epochs:
    flags.DEFINE(_NumberOrText(), name, default, text, **own)
  elif found.one_of:
    flags.DEFINE_enum(name, default, found.one_of, text, **own)
  elif kind in (bool, Optional[bool]):
    flags.DEFINE_bool(name, default, text, **own)
  elif kind in (int, Optional[int]):
    flags.DEFINE_integer(name, default, text, **bounds, **own)
  elif kind in (float, Optional[float]):
    flags.DEFINE_float(name, default, text, **bounds, **own)
  elif kind == tuple[str, ...]:
    flags.DEFINE_list(name, list(found.default), text, **own)
  else:
    flags.DEFINE_string(name, default, text, **own)


def _help(name: str, found: flag_fields.Flag, text: str) -> str:
  """The docstring's words, and the choices from the registry."""
  if name == 'algorithm':
    return f'{text}\n{methods.table()}'
  choices = registry.describe(found.choices) if found.choices is not None else ', '.join((*found.names, *found.words))
  return f'{text} Choices: {choices}.' if choices else text


def _define_all() -> dict[str, list[str]]:
  """Makes all flags; returns their names by the titles of their groups."""
  groups: dict[str, list[str]] = {}
  for part in parts.PARTS:
    group = parts.Mechanism if part in _MECHANISM else part
    names = groups.setdefault(str(group.__doc__).partition('\n')[0].rstrip('.'), [])
    types, helps = get_type_hints(part), flag_fields.helps(part)
    for name, found in flag_fields.flags_of(part).items():
      if name not in VALUES:  # Parts share flags.
        _define(name, found, types[name], _help(name, found, helps[name]))
        names.append(name)
  return groups


GROUPS = _define_all()


def choices_help(given: Sequence[str]) -> str:
  """What the choices are that the named flags ask for, and what each of their parameters does; '' if there are none.

  The words are those of the docstrings.

  Raises:
    ValueError: For an unknown choice.
  """
  lines: list[str] = []
  for flag in dict.fromkeys(map(_flag_of, given)):
    found = parts.FLAGS.get(flag)
    choices = methods.METHODS if flag == 'algorithm' else found and found.choices
    for kind, name, choice in registry.chosen(flag, VALUES[flag].value, choices) if choices else ():
      title = f'{"--" if kind == flag else ""}{kind}={name}'
      doc = inspect.cleandoc(choice.__doc__ or '').partition('\nAttributes:\n')[0]
      lines += command_line.entry(title, doc.replace('`', ''), _parameters(choice))
      lines.append('')
    if flag == 'algorithm':
      with contextlib.suppress(ValueError):  # A choice inside may need parameters that are not given.
        uses = methods.parse(VALUES[flag].value).flag_names()
        named = ' '.join(f'--{name}' for name in methods.FLAGS if name in uses)
        lines += [*command_line.filled(f'Flags that it uses, and that --help alone explains: {named}'), '']
  return '\n'.join(lines).rstrip()


def _parameters(choice: type[Any]) -> Iterator[tuple[str, str]]:
  """(name, words) of a choice's parameters."""
  helps = flag_fields.helps(choice)
  for name, field in registry.parameters(choice).items():
    inner = field.metadata.get(registry.CHOICES)
    choices = f' Choices: {", ".join(inner)}.' if inner is not None else ''
    default = registry.text_of(field.default, field) or 'empty'
    yield name, f'{helps.get(name, "").replace("`", "")}{choices} (default: {default})'


def parse(argv: Sequence[str]) -> list[str]:
  """Sets the flags from `argv[1:]`; see `command_line.parse`."""
  return command_line.parse(VALUES, argv)


@contextlib.contextmanager
def parsed(arguments: Sequence[str]) -> Iterator[flags.FlagValues]:
  """The flags as a command line with these arguments would set them. Afterwards they have their defaults again.

  Raises:
    ValueError: For an unknown flag, a value of the wrong type, or an argument that is not a flag.
  """
  try:
    command_line.refuse_arguments(parse(['train', *arguments]))
    yield VALUES
  finally:
    for name in VALUES:
      VALUES[name].unparse()


def all_values() -> dict[str, Any]:
  """Every flag of an experiment and its value, by name."""
  return {name: value for name, value in VALUES.flag_values_dict().items() if name not in ('help', 'h')}


def run() -> run_lib.Run:
  """The run that these flags describe."""
  return run_lib.Run.from_flags(VALUES)


def checked(given: Sequence[str] = ()) -> run_lib.Run:
  """See `flag_checks.checked`."""
  return flag_checks.checked(VALUES, [_flag_of(name) for name in given])


def without_effect(given: Sequence[str]) -> dict[str, str]:
  """`flag_checks.without_effect` of these flags."""
  return flag_checks.without_effect(run(), [_flag_of(name) for name in given])


def _flag_of(name: str) -> str:
  """The flag that `name` or `noname` sets."""
  return name[2:] if name not in VALUES and name.startswith('no') else name


def without(arguments: Sequence[str], names: Collection[str]) -> list[str]:
  """Command-line arguments without the flags of these names."""
  kept: list[str] = []
  index = 0
  while index < len(arguments):
    argument = arguments[index]
    name, equals, _ = argument.lstrip('-').partition('=')
    flag = _flag_of(name)
    # `--name value`, unless the flag is a switch.
    takes_next = not equals and flag in VALUES and not VALUES[flag].boolean
    width = 2 if takes_next else 1
    if not (argument.startswith('-') and flag in names):
      kept += arguments[index : index + width]
    index += width
  return kept
