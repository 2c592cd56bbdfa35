"""Named choices of a run. Each is a frozen dataclass; a command line writes `name` or `name:key=value,key=value`.

A registry is a plain dict of name -> dataclass. It is the only place that lists the choices: flags, error messages and
documentation all read it. A new choice needs its own class and one line in the dict.
"""

import abc
from collections.abc import Iterable, Iterator, Mapping, Sequence
import dataclasses
import difflib
from typing import Any, TypeVar, Union

from quap_tff.common import checks
from quap_tff.common import json_types

_T = TypeVar('_T')
# A value that somebody has chosen: a frozen dataclass with parameters of its own.
Choice = Any
# The classes of choices by name.
Registry = Mapping[str, type[Any]]
Field = dataclasses.Field[Any]
# A key of a field's metadata: its value is itself one of these choices, and errors call it so.
CHOICES, KIND = 'choices', 'kind'
# A key of a field's metadata: it is set in another way than by a spec.
NOT_IN_SPECS = 'not_in_specs'
# A key of a field's metadata, where the default is None: a spec writes None as AUTO, because a rule chooses the value.
CHOSEN, AUTO = 'chosen', 'auto'


class UnknownChoiceError(ValueError):
  """A spec names a choice that nothing has registered here."""


def parameters(choice: Choice) -> dict[str, Field]:
  """The fields of a choice that a spec can set, by name."""
  return {f.name: f for f in dataclasses.fields(choice) if f.init and NOT_IN_SPECS not in f.metadata}


def parameter_values(choice: Choice) -> json_types.JsonObject:
  """The values of a choice's `parameters`, by name."""
  return {name: getattr(choice, name) for name in parameters(choice)}


def name_of(choice: Choice, registry: Registry) -> str:
  """The name under which a choice's class is registered. Raises `ValueError` if it is not."""
  for name, known in registry.items():
    if known is type(choice):
      return name
  raise ValueError(f'{type(choice).__name__} has no name. Register it: these are {", ".join(sorted(registry))}.')


def unknown_name_error(kind: str, name: str, known: Sequence[str]) -> ValueError:
  """An error that gives the nearest valid names, and then all of them."""
  if not known:
    return ValueError(f'Unknown {kind} {name!r}: there are none to choose from.')
  close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
  hint = f'Did you mean {" or ".join(repr(c) for c in close)}? ' if close else ''
  return ValueError(f'Unknown {kind} {name!r}. {hint}Valid: {", ".join(sorted(known))}.')


def lookup(kind: str, name: str, registry: Mapping[str, _T]) -> _T:
  """Returns `registry[name]`. Raises `ValueError` with the nearest names if there is no such name."""
  if name not in registry:
    raise unknown_name_error(kind, name, list(registry))
  return registry[name]


def name_field(kind: str, default: str, names: Iterable[str]) -> checks.FieldValue:
  """A field of a `checks.Checked` whose values are among `names`."""
  known = dict.fromkeys(names)
  return dataclasses.field(default=default, metadata={checks.CHECK: lambda name: lookup(kind, name, known)})


def parse_spec(kind: str, spec: Union[str, Choice], registry: Registry) -> Choice:
  """Makes the dataclass that `spec` names, e.g. `beta:a=2,b=5`.

  Args:
    kind: What is being chosen, in words, for error messages ('participation model').
    spec: `name` or `name:key=value,...`. A choice that was made already is returned as it is. A value has the type of
      the field's default. A field whose default is None takes `none` or a number, which is an integer for a
      `checks.integer_field`; None is `auto` where a rule then chooses the value. A tuple is written `0.9/0.5`. A value
      may itself be a spec. Keys that are not this choice's own then belong to that spec, as in
      `certified:weights=online:prior_a=1,prior_b=2,clip=0.5`.
    registry: The choices by name.

  Returns:
    An instance of the named dataclass, which has validated itself.

  Raises:
    ValueError: For an unknown name or key, or for a value that is out of range or of the wrong type.
  """
  if not isinstance(spec, str):
    return spec
  name, choice, texts = _split(kind, spec, registry)
  fields = parameters(choice)
  return choice(**{key: _convert(kind, name, fields[key], text) for key, text in texts.items()})


def chosen(kind: str, spec: str, registry: Registry) -> Iterator[tuple[str, str, type]]:
  """(what is chosen, name, class) of the choice that a spec names, and then of those inside it. None is made.

  Raises:
    ValueError: For an unknown name or key.
  """
  name, choice, texts = _split(kind, spec, registry)
  yield kind, name, choice
  for key, field in parameters(choice).items():
    if key in texts and CHOICES in field.metadata:
      yield from chosen(key, texts[key], field.metadata[CHOICES])


def _split(kind: str, spec: str, registry: Registry) -> tuple[str, type, dict[str, str]]:
  """(name, class, the text of each parameter that is given)."""
  name, _, arguments = spec.partition(':')
  if name not in registry:
    raise UnknownChoiceError(str(unknown_name_error(kind, name, list(registry))))
  choice = registry[name]
  fields = parameters(choice)
  texts: dict[str, str] = {}
  latest = None
  for argument in filter(None, arguments.split(',')):
    key, equals, text = argument.partition('=')
    if not equals:
      raise ValueError(f'{kind} {spec!r}: expected key=value, found {argument!r}.')
    if key not in fields and latest is not None and ':' in texts[latest]:
      texts[latest] += f',{argument}'
      continue
    if not fields:
      raise ValueError(f'{kind} {name!r} takes no parameters, found {argument!r}. Leave it out.')
    if key not in fields:
      raise unknown_name_error(f'parameter of {kind} {name!r}:', key, list(fields))
    if key in texts:
      raise ValueError(f'{kind} {spec!r}: {key!r} appears twice.')
    texts[key], latest = text, key
  return name, choice, texts


def _convert(kind: str, name: str, field: Field, text: str) -> checks.Unchecked:
  if CHOSEN in field.metadata and text.lower() == AUTO:
    return None
  if CHOICES in field.metadata:
    return parse_spec(field.metadata[KIND], text, field.metadata[CHOICES])
  key, to = field.name, type(field.default)
  if to is type(None):
    if text.lower() == 'none' and CHOSEN not in field.metadata:
      return None
    to = field.metadata.get(checks.TYPE, float)
  if to is bool:
    if text.lower() not in ('true', 'false'):
      raise ValueError(f'{kind} {name!r}: {key} must be true or false, found {text!r}.')
    return text.lower() == 'true'
  try:
    if to is tuple:
      return tuple(checks.parsed_number(part, float) for part in text.split('/')) if text else ()
    return text if to is str else checks.parsed_number(text, to)
  except ValueError:
    if to is tuple:
      raise ValueError(f'{kind} {name!r}: {key} must be numbers with / between them, found {text!r}.') from None
    raise ValueError(f'{kind} {name!r}: {key} must be of type {to.__name__}, found {text!r}.') from None


def format_spec(name: str, choice: Choice) -> str:
  """The spec that `parse_spec` reads back as `choice`, with all parameters."""
  return _spec(name, choice, parameter_values(choice))


def value_of(config: Choice, *registries: Registry) -> json_types.Json:
  """A frozen dataclass as a value that JSON can hold: what the account depends on, by the names of its fields.

  A choice of one of the registries is its spec, and any other abstract class's is one with the name of its class. So
  a class that is registered can be renamed. Fields with `checks.NOT_IN_KEYS` are left out, and so are those with
  `checks.IN_KEYS_IF_GIVEN` that are None. The fields of one with `checks.KEYS_IN_PLACE` take its place.
  """
  if dataclasses.is_dataclass(config):
    registries = (*registries, *getattr(config, 'choices', ()))
    kept = [field for field in dataclasses.fields(config) if checks.NOT_IN_KEYS not in field.metadata]
    found: json_types.JsonObject = {}
    for field in kept:
      value = getattr(config, field.name)
      if value is not None or checks.IN_KEYS_IF_GIVEN not in field.metadata:
        part = _part_of(value, registries)
        keys = part if checks.KEYS_IN_PLACE in field.metadata else {field.name: part}
        found.update(keys)
    return found
  return list(config) if isinstance(config, tuple) else config


def _part_of(value: Choice, registries: Sequence[Registry]) -> json_types.Json:
  known = {choice: name for registry in registries for name, choice in registry.items()}
  if type(value) in known or (isinstance(type(value), abc.ABCMeta) and not hasattr(value, 'choices')):
    return format_spec(known.get(type(value), type(value).__name__), value)
  return value_of(value, *registries)


def describe(registry: Registry) -> str:
  """The choices of a registry with their parameters and defaults, for a flag's help."""
  return '; '.join(described(name, choice) for name, choice in registry.items())


def described(name: str, choice: type) -> str:
  """A choice with its parameters and their defaults."""
  return _spec(name, choice, {key: field.default for key, field in parameters(choice).items()})


def _spec(name: str, choice: Choice, values: json_types.JsonView) -> str:
  fields = parameters(choice)
  arguments = ','.join(f'{key}={text_of(value, fields[key])}' for key, value in values.items())
  return f'{name}:{arguments}' if arguments else name


def text_of(value: Choice, field: Field) -> str:
  """A parameter's value as a spec has it."""
  if CHOSEN in field.metadata and value is None:
    return AUTO
  if CHOICES in field.metadata:
    name = name_of(value, field.metadata[CHOICES])
    return name if value == type(value)() else format_spec(name, value)
  return '/'.join(map(str, value)) if isinstance(value, tuple) else str(value)
