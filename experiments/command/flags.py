"""The flags of an experiment, made from the fields of `run.Run`. Presets are `.flags` files of them.

A flag that takes a spec (`name` or `name:key=value,…`) lists its choices from the registry that it is parsed with.
Nothing here loads TensorFlow: `--help`, and most wrong flags, are answered at once.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
import contextlib
import inspect
from typing import Any, get_type_hints, Optional

from absl import flags

from experiments.command import command_line
from experiments.command import run as run_lib
from experiments.command import run_choices
from quap_tff import methods
from quap_tff.common import checks
from quap_tff.common import flag_fields
from quap_tff.common import json_types
from quap_tff.common import registry

VALUES = command_line.new_flags()

# Flags that only one runtime uses, and that nothing else refuses under the others.
_OF_RUNTIME = {'num_threads': 'in_process', 'num_workers': 'workers'}
# Flags about the files in --output_dir.
_OF_FOLDER = ('checkpoint_every', 'keep_checkpoints', 'signing_key')
# Parts whose flags --help shows together, under the first one's title.
_MECHANISM = (run_choices.MechanismChoice, *methods.PARTS)


class _NumberOrText(flags.ArgumentParser):
  """Reads 3 as a number, and leaves everything else, such as 1..5, to `parts.Epochs`."""

  def parse(self, argument: checks.Unchecked) -> checks.Unchecked:
    try:
      return checks.parsed_number(str(argument), int)
    except ValueError:
      return argument


def _define(name: str, definition: flag_fields.Flag, kind: Any, text: str) -> None:
  options = dict(flag_values=VALUES)
  bounds = dict(lower_bound=definition.lower, upper_bound=definition.upper)
  default = None if definition.differs else definition.default
  if kind is run_choices.Epochs:
    flags.DEFINE(_NumberOrText(), name, default, text, **options)
  elif definition.one_of:
    flags.DEFINE_enum(name, default, definition.one_of, text, **options)
  elif kind in (bool, Optional[bool]):
    flags.DEFINE_bool(name, default, text, **options)
  elif kind in (int, Optional[int]):
    flags.DEFINE_integer(name, default, text, **bounds, **options)
  elif kind in (float, Optional[float]):
    flags.DEFINE_float(name, default, text, **bounds, **options)
  else:
    flags.DEFINE_string(name, default, text, **options)


def _help(name: str, definition: flag_fields.Flag, text: str) -> str:
  """The docstring's words, and the choices from the registry."""
  if name == 'algorithm':
    return f'{text}\n{methods.table()}'
  choices = (
    registry.describe(definition.choices)
    if definition.choices is not None
    else ', '.join((*definition.names, *definition.words))
  )
  return f'{text} Choices: {choices}.' if choices else text


def _define_all() -> dict[str, list[str]]:
  """Makes all flags; returns their names by the titles of their groups."""
  groups: dict[str, list[str]] = {}
  for part in run_choices.PARTS:
    group = run_choices.MechanismChoice if part in _MECHANISM else part
    names = groups.setdefault(str(group.__doc__).partition('\n')[0].rstrip('.'), [])
    types, helps = get_type_hints(part), flag_fields.helps(part)
    for name, definition in flag_fields.flags_of(part).items():
      if name not in VALUES:  # Parts share flags.
        _define(name, definition, types[name], _help(name, definition, helps[name]))
        names.append(name)
  return groups


GROUPS = _define_all()


def read_flags(argv: Sequence[str]) -> list[str]:
  """Sets the flags from `argv[1:]`, see `command_line.parse`, and returns the names of those that are given there.

  Raises:
    ValueError: For an unknown flag, a value of the wrong type, or an argument that is not a flag.
  """
  arguments = command_line.parse(VALUES, argv)
  if not VALUES.help:
    command_line.refuse_arguments(arguments)
  return names_in(argv)


def names_in(argv: Sequence[str]) -> list[str]:
  """The flags that `argv[1:]` itself sets, as opposed to those in flag files."""
  return [_flag_of(name) for name in command_line.given_names(argv)]


def _flag_of(name: str) -> str:
  """The flag that `name` or `noname` sets."""
  return name[2:] if name not in VALUES and name.startswith('no') else name


def checked_run(given: Sequence[str] = ()) -> run_lib.Run:
  """The run that the flags describe, after everything is checked that can be checked from the flags alone.

  Args:
    given: Names of flags that were given on the command line itself. Those that would have no effect are refused there.

  Raises:
    ValueError: For a flag that is wrong, alone or together with others. The message names it.
  """
  run = run_lib.Run.from_flags(VALUES)
  try:
    run.check()
  except ValueError:
    run.data.dataset.check_file(run.data.data_dir)  # A wrong path is said before constants that do not fit.
    raise
  for name, reason in without_effect(run, given).items():
    raise ValueError(f'--{name}: {reason}')
  return run


def without_effect(run: run_lib.Run, given: Sequence[str]) -> dict[str, str]:
  """Names the given flags that have no effect together with the others, and says why, in a sentence or two each."""
  reasons = {name: _no_effect(run, name) for name in given}
  return {name: reason for name, reason in reasons.items() if reason is not None}


def _no_effect(run: run_lib.Run, name: str) -> Optional[str]:
  """Why a flag that was given has no effect, or None."""
  written, rounds = run.flags, run.schedule.rounds
  if name in run_lib.unused_flags(run.method):
    method = written['algorithm'].partition(':')[0]
    return f'the method {method!r} does not use this flag. Leave it out, or choose another --algorithm.'
  if name in _OF_RUNTIME and run.runtime.runtime != _OF_RUNTIME[name]:
    return f'this flag is for --runtime={_OF_RUNTIME[name]} only, and this run uses {run.runtime.runtime!r}.'
  if name in _OF_FOLDER and run.publication.output_dir is None:
    return 'nothing is kept without a folder. Name one with --output_dir, or leave this flag out.'
  if name == 'signing_key' and not run.method.gives_certificate:
    return f'this flag signs a certificate, and {written["algorithm"]!r} gives none. Leave it out.'
  if name == 'ema_weight' and written['participation_rate'] != 'ema':
    return (
      f'it is the weight for --participation_rate=ema, and this run uses {written["participation_rate"]!r}. Leave it '
      'out, or choose that rate.'
    )
  if name == 'partition' and run.data.dataset.has_own_clients:
    return f'the dataset {written["dataset"]!r} has clients of its own and is not shared out. Leave it out.'
  if name == 'cohort_size' and run.cohorts.participation.ignores_cohort_size:
    return f'participation model {written["participation"]!r} sets the size of its cohorts itself. Leave it out.'
  if name == 'warmup_rounds' and written[name] >= rounds:
    return f'must be less than --rounds={rounds}, found {written[name]}. Otherwise budgets never follow participation.'
  if name == 'averaging' and getattr(run.publication.averaging, 'start', 1) > rounds:
    return f'{written[name]} starts after round {rounds}, the last one: nothing would be averaged.'
  return None


def help_text(given: Iterable[str], doc: str) -> str:
  """The answer to --help: the choices that the named flags ask for, and what each of their parameters does.

  The words are those of the docstrings. If there are no such flags, it is a program's docstring, and all flags.

  Raises:
    ValueError: For an unknown choice.
  """
  lines: list[str] = []
  for flag in dict.fromkeys(given):
    choices = run_choices.FLAGS[flag].choices if flag in run_choices.FLAGS else None
    for kind, name, choice in registry.chosen(flag, VALUES[flag].value, choices) if choices else ():
      title = f'--{kind}={name}' if kind == flag else f'{kind}={name}'
      doc = inspect.cleandoc(choice.__doc__ or '').partition('\nAttributes:\n')[0]
      lines += command_line.entry(title, doc.replace('`', ''), _parameters(choice))
      lines.append('')
    if flag == 'algorithm':
      with contextlib.suppress(ValueError):  # A choice inside may need parameters that are not given.
        uses = methods.parse(VALUES[flag].value).flag_names()
        named = ' '.join(f'--{name}' for name in methods.FLAGS if name in uses)
        lines += [*command_line.filled(f'Flags that it uses, and that --help alone explains: {named}'), '']
  return '\n'.join(lines).rstrip() or command_line.help_text(doc, VALUES, GROUPS)


def _parameters(choice: type) -> Iterator[tuple[str, str]]:
  """(name, words) of a choice's parameters."""
  helps = flag_fields.helps(choice)
  for name, field in registry.parameters(choice).items():
    inner = field.metadata.get(registry.CHOICES)
    choices = f' Choices: {", ".join(inner)}.' if inner is not None else ''
    default = registry.text_of(field.default, field) or 'empty'
    yield name, f'{helps.get(name, "").replace("`", "")}{choices} (default: {default})'


@contextlib.contextmanager
def parsed(arguments: Sequence[str]) -> Iterator[flags.FlagValues]:
  """The flags as `read` sets them for these arguments. Afterwards they have their defaults again."""
  try:
    read_flags(['train', *arguments])
    yield VALUES
  finally:
    for name in VALUES:
      VALUES[name].unparse()


def all_values() -> json_types.JsonObject:
  """Every flag of an experiment and its value, by name."""
  return {name: value for name, value in VALUES.flag_values_dict().items() if name not in ('help', 'h')}


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
