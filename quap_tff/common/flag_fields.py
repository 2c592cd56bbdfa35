"""Fields of configurations that are also flags of a program.

A configuration is a tree of frozen dataclasses. `flag` marks those fields that a flag of the same name sets. The
"Attributes:" of a class's docstring say what its fields mean, and are the help of the flags. `decoded` makes a
configuration from the flags' values, and reads each of them once: a spec becomes the value that it describes.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import inspect
import re
from typing import Callable, Optional, TYPE_CHECKING, TypeVar

from quap_tff.common import checks
from quap_tff.common import json_types
from quap_tff.common import registry

if TYPE_CHECKING:
  from _typeshed import DataclassInstance

_T = TypeVar('_T', bound='DataclassInstance')
_KEY = 'flag'


def _as_written(value: checks.Unchecked) -> checks.Unchecked:
  return value


@dataclasses.dataclass(frozen=True)
class Flag:
  """The facts of a flag, alongside the type of its field.

  Attributes:
    default: As a user would write it.
    kind: The kind of choice, in words, for errors ('participation model').
    choices: The registry of a flag that takes a spec.
    names: The names of a flag that takes a name. An unknown one is refused when the flag is decoded.
    words: Names that a flag takes among other texts. They are for its help only.
    one_of: The names of a flag that takes a name. An unknown one is refused when the command line is read.
    lower, upper: Bounds of a number, held when the command line is read.
    parse: Makes the field's value from the written text; called where there are no `choices`.
    is_control: Whether the flag says how a run is watched and kept, and not what it computes.
    is_neutral: Whether its default asks for nothing, so that it may be given where it has no effect.
    differs: Whether methods have defaults of their own, so that there is none before the method is known.
  """

  default: checks.Unchecked
  kind: str = ''
  choices: Optional[Mapping[str, type]] = None
  names: Sequence[str] = ()
  words: Sequence[str] = ()
  one_of: Sequence[str] = ()
  lower: Optional[float] = None
  upper: Optional[float] = None
  parse: Callable[[checks.Unchecked], checks.Unchecked] = _as_written
  is_control: bool = False
  is_neutral: bool = False
  differs: bool = False

  def value(self, written: checks.Unchecked) -> checks.Unchecked:
    """The field's value. Raises `ValueError` for a text that gives none."""
    if self.choices is not None:
      return registry.parse_spec(self.kind, written, self.choices)
    if self.names:
      registry.lookup(self.kind, written, dict.fromkeys(self.names))
    return self.parse(written)


def flag(default: checks.Unchecked = None, **facts: checks.Unchecked) -> checks.FieldValue:
  """A dataclass field that a flag of its name sets. `facts` are the other fields of `Flag`.

  The `repr` of a configuration leaves these fields out: it shows the parameters that a spec has.
  """
  definition = Flag(default, **facts)
  metadata = {_KEY: definition, registry.NOT_IN_SPECS: True}
  return dataclasses.field(default=definition.value(default), repr=False, metadata=metadata)


def part(config: object) -> checks.FieldValue:
  """A dataclass field that holds a configuration with flags of its own, and that no spec can set."""
  return dataclasses.field(default=config, repr=False, metadata={registry.NOT_IN_SPECS: True})


def parameter(kind: str, choices: Mapping[str, type], default: Optional[str]) -> checks.FieldValue:
  """A dataclass field that is not a flag, and whose value is one of `choices`, written as a spec inside a spec.

  With None as its default, a rule chooses the value that is not given, and a spec writes it as `auto`.
  """
  value = registry.parse_spec(kind, default, choices)
  chosen = {registry.CHOSEN: True} if default is None else {}
  return dataclasses.field(default=value, metadata={registry.KIND: kind, registry.CHOICES: choices, **chosen})


def flags_of(config: registry.Choice) -> dict[str, Flag]:
  """The flags of a configuration, or of a class of them, by name. Flags of nested configurations are among them."""
  flags: dict[str, Flag] = {}
  for field in dataclasses.fields(config):
    if _KEY in field.metadata:
      flags[field.name] = field.metadata[_KEY]
    elif dataclasses.is_dataclass(nested := getattr(config, field.name, None)):
      flags.update(flags_of(nested))
  return flags


def decoded(config: _T, values: json_types.JsonView) -> _T:
  """The configuration with its flags set from `values`, also in nested configurations.

  Args:
    config: A configuration with any values.
    values: The text that was written for each flag, by name. Flags without a value stay as they are.

  Raises:
    ValueError: For a value that a flag does not take. The message names the flag.
  """
  changes = {}
  for field in dataclasses.fields(config):
    if _KEY in field.metadata:
      if field.name in values:
        try:
          changes[field.name] = field.metadata[_KEY].value(values[field.name])
        except ValueError as error:
          text = str(error)
          named = text if f'--{field.name}' in text else f'--{field.name}: {text}'
          raise ValueError(named) from error
    elif dataclasses.is_dataclass(nested := getattr(config, field.name)) and flags_of(nested):
      changes[field.name] = decoded(nested, values)
  return dataclasses.replace(config, **changes)


def helps(config: type) -> dict[str, str]:
  """The words of a class's docstring, and of its bases', on its fields under "Attributes:", by name."""
  by_name: dict[str, str] = {}
  for one in reversed(config.__mro__):
    _, _, attributes = inspect.cleandoc(one.__doc__ or '').partition('\nAttributes:\n')
    for names, text in re.findall(r'^  (\w+(?:, \w+)*): (.*(?:\n    .*)*)', attributes, re.MULTILINE):
      by_name.update(dict.fromkeys(names.split(', '), ' '.join(text.split())))
  return by_name
