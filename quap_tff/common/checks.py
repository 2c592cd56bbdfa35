"""Validation of configuration values: every error says what was wrong, what was expected, and what was found."""

from collections.abc import Iterable, Mapping, Sequence, Set
import dataclasses
import functools
import math
import numbers
from typing import Any, Callable, Optional, TypeVar

import numpy as np

_Number = TypeVar('_Number', int, float)
# A value before its check, which may be anything.
Unchecked = Any
# A field of a dataclass, which type checkers take for a value of the type that is written before it.
FieldValue = Any
# Keys of a field's metadata: the check of its values, and the type of a number.
CHECK, TYPE = 'check', 'type'
# A key of a field's metadata: no account depends on it.
NOT_IN_KEYS = 'not_in_keys'
# A key of a field's metadata: it is in keys only where it is not None, so that adding it changed no others.
IN_KEYS_IF_GIVEN = 'in_keys_if_given'
# A key of a field's metadata: the value is a dataclass, whose own fields take the field's place in keys.
KEYS_IN_PLACE = 'keys_in_place'


def number(
  name: str,
  value: Unchecked,
  *,
  above: Optional[float] = None,
  at_least: Optional[float] = None,
  below: Optional[float] = None,
  at_most: Optional[float] = None,
) -> float:
  """Returns `value` as a float; raises `ValueError` unless it is a finite real number inside the given bounds."""
  bounds = [
    (above, 'greater than', lambda v, b: v > b),
    (at_least, 'at least', lambda v, b: v >= b),
    (below, 'less than', lambda v, b: v < b),
    (at_most, 'at most', lambda v, b: v <= b),
  ]
  expected = ' and '.join(f'{words} {bound:g}' for bound, words, _ in bounds if bound is not None)
  is_number = isinstance(value, numbers.Real) and not isinstance(value, bool) and _is_finite(value)
  if not is_number or not all(holds(value, bound) for bound, _, holds in bounds if bound is not None):
    words = f'a finite number {expected}'.rstrip()
    raise ValueError(f'{name} must be {words}, found {plain(value)!r}.')
  return float(value)


def _is_finite(value: numbers.Real) -> bool:
  try:
    return math.isfinite(value)
  except OverflowError:  # An integer above the largest float.
    return False


def integer(name: str, value: Unchecked, *, at_least: Optional[int] = None, at_most: Optional[int] = None) -> int:
  """Returns `value`; raises `ValueError` unless it is an integer inside the given bounds."""
  is_integer = isinstance(value, numbers.Integral) and not isinstance(value, bool)
  if not is_integer or (at_least is not None and value < at_least) or (at_most is not None and value > at_most):
    bounds = [f'at least {at_least}'] if at_least is not None else []
    bounds += [f'at most {at_most}'] if at_most is not None else []
    raise ValueError(f'{name} must be an integer {" and ".join(bounds)}'.rstrip() + f', found {plain(value)!r}.')
  return value


def plain(value: Unchecked) -> Unchecked:
  """`value` with Python's numbers in place of NumPy's, whose `repr` depends on NumPy's version; also in a tuple."""
  if type(value) is tuple and any(issubclass(one, np.generic) for one in set(map(type, value))):
    return tuple(map(plain, value))
  return value.item() if isinstance(value, np.generic) else value


class Checked:
  """A frozen dataclass that checks its fields when it is made.

  These are its `number_field`s, `integer_field`s and `registry.name_field`s, and those that are true or false. One
  value has one text, in fingerprints too: NumPy's numbers are Python's, and the 1 of a float is 1.0. A subclass with a
  `__post_init__` of its own calls this one from it.
  """

  def __post_init__(self) -> None:
    for field in dataclasses.fields(self):  # type: ignore[arg-type]  # Subclasses are dataclasses.
      value = plain(getattr(self, field.name))
      if CHECK in field.metadata and not (value is None and field.default is None):
        field.metadata[CHECK](value)
      to = field.metadata.get(TYPE, type(field.default))
      if to is float and isinstance(value, numbers.Real) and not isinstance(value, bool):
        value = float(value) + 0.0  # -0.0 is 0.0.
      object.__setattr__(self, field.name, value)
      if isinstance(field.default, bool) and not isinstance(value, bool):
        raise ValueError(f'{field.name} must be true or false, found {value!r}.')


def number_field(name: str, default: Unchecked = dataclasses.MISSING, **bounds: float) -> FieldValue:
  """A field of a `Checked`. Its values must be a `number` inside the bounds, or None if that is the default."""
  return dataclasses.field(default=default, metadata={CHECK: functools.partial(number, name, **bounds), TYPE: float})


def integer_field(name: str, default: Unchecked = dataclasses.MISSING, **bounds: int) -> FieldValue:
  """A field of a `Checked`. Its values must be an `integer` inside the bounds, or None if that is the default."""
  return dataclasses.field(default=default, metadata={CHECK: functools.partial(integer, name, **bounds), TYPE: int})


def seed_field(name: str) -> FieldValue:
  """A field of a `Checked` for a seed that no fingerprint names: an integer in [0, 2⁶³), or None."""
  field = integer_field(name, None, at_least=0, at_most=2**63 - 1)
  return dataclasses.field(default=None, metadata={**field.metadata, NOT_IN_KEYS: True})


def numbers_of_clients(name: str, values: object, num_clients: int) -> np.ndarray:
  """`values` as float64[N]; raises `ValueError` unless they are one number for each client, in the order of the ids.

  Text is not a number, nor is what is true or false. A dictionary or a set is refused: it has no order of its own.
  """
  expected = f'{name} must be float[{num_clients}], one number for each client in the order of the ids'
  if isinstance(values, (str, bytes)) or not isinstance(values, (np.ndarray, Sequence)):
    raise ValueError(f'{expected}, found the {type(values).__name__} {values!r}.')
  try:
    array = np.asarray(values)
  except ValueError:  # Rows of different lengths.
    raise ValueError(f'{expected}, found {values!r}.') from None
  if array.shape != (num_clients,) or array.dtype.kind not in 'iuf':
    kind = {'U': 'text', 'S': 'text', 'b': 'true or false'}.get(array.dtype.kind, str(array.dtype))
    raise ValueError(f'{expected}, found {kind} of shape {list(array.shape)}.')
  return array.astype(np.float64)


def ids(name: str, values: np.ndarray, num_clients: Optional[int]) -> None:
  """Raises `ValueError` unless all of `values` are in [0, num_clients), or at least 0 if the number is None."""
  if num_clients is None:
    if values.size:
      integer(name, int(values.min()), at_least=0)
    return
  bad = values[(values < 0) | (values >= num_clients)]
  if len(bad):
    raise ValueError(f'{name} must be ids in [0, {num_clients}), found {bad[0]}.')


def cohort(value: object, num_clients: Optional[int]) -> np.ndarray:
  """`value` as int64[M]; raises `ValueError` unless it is int[M] of distinct ids in [0, num_clients), or empty.

  If the number is None, any ids from 0 are taken. A set is refused: weights are given in the order of a cohort.
  """
  if value is None or isinstance(value, (str, bytes, Set, Mapping)):
    raise ValueError(
      f'cohort must be int[clients], such as [0, 3], found {value!r}. Give the ids as a list or an array.'
    )
  try:
    array = np.asarray(value)
  except ValueError:  # Rows of different lengths.
    raise ValueError(f'cohort must be int[clients], found {value!r}.') from None
  is_empty_list = array.size == 0 and array.dtype.kind == 'f'
  if array.ndim != 1 or not (is_empty_list or np.issubdtype(array.dtype, np.integer)):
    raise ValueError(f'cohort must be int[clients], found {array.dtype}{list(array.shape)}.')
  ids('clients', array, num_clients)
  ordered = np.sort(array)
  twice = ordered[1:][ordered[1:] == ordered[:-1]]
  if len(twice):
    raise ValueError(f'A client can be in a round only once, found client {twice[0]} twice in one round.')
  return array.astype(np.int64)


def schedule(cohorts: Iterable[object], num_clients: Optional[int]) -> list[np.ndarray]:
  """The cohorts of planned rounds as int64[M_t]; raises `ValueError` as `cohort` does, and names the round."""
  if num_clients is not None:
    integer('num_clients', num_clients, at_least=1)
  if not isinstance(cohorts, Iterable) or isinstance(cohorts, (str, bytes, Set, Mapping)):
    raise ValueError(f'A schedule must be a sequence with int[clients] for each planned round, found {cohorts!r}.')
  checked = []
  for round_num, one in enumerate(cohorts, 1):
    try:
      checked.append(cohort(one, num_clients))
    except ValueError as error:
      raise ValueError(f'Round {round_num} of the schedule: {error}') from None
  return checked


def parsed_number(text: str, to: Callable[[str], _Number]) -> _Number:
  """The number that a text gives, read by `to`; raises `ValueError` for digits of other scripts and for underscores.

  Python reads `1_000` and `１０`, in which a person sees a typing error or another text.
  """
  if not text.isascii() or '_' in text:
    raise ValueError(f'numbers are written only in the digits 0 to 9, found {text!r}.')
  return to(text)
