"""A grid over flags, as a command line gives it.

    --vary='algorithm=fedavg|fixed_dp:clip=1.0|quap'            three alternatives
    --vary='seed=42|123|999'                                    times three, so nine combinations
    --vary='dataset=mnist|cifar10;flagfile=a.flags|b.flags'     one axis of two flags that vary together

Values are written as on the training binary's command line. They may contain commas, colons and equals signs, but
neither `|` nor `;`.
"""

import collections
from collections.abc import Sequence
import itertools
import re

from quap_tff.common import registry

# The flag that the sweep itself sets for each run.
OWN_FLAG = 'output_dir'
FLAGFILE = 'flagfile'


def combinations(axes: Sequence[str], flag_names: Sequence[str]) -> list[dict[str, str]]:
  """Every combination of the axes' alternatives, as values by flag. The last axis varies fastest.

  Args:
    axes: Each is `name=value|value…`, or several of these, equally long, joined by `;`.
    flag_names: The names that an axis may have.

  Raises:
    ValueError: For an axis that is not written in this way, an unknown flag, a flag that appears in two places or that
      a sweep may not vary, or a value that appears twice.
  """
  parsed = [_axis(axis, flag_names) for axis in axes]
  counts = collections.Counter(name for axis in parsed for name in axis[0])
  for name, count in counts.items():
    if count > 1:
      raise ValueError(f'--{name} appears {count} times in the grid. Give all of its values in one place.')
  return [{name: value for part in parts for name, value in part.items()} for parts in itertools.product(*parsed)]


def _axis(axis: str, flag_names: Sequence[str]) -> list[dict[str, str]]:
  columns: dict[str, list[str]] = {}
  for part in axis.split(';'):
    name, equals, text = (piece.strip() for piece in part.partition('='))
    if not equals or not name:
      raise ValueError(f'--vary={axis!r}: expected name=value|value, found {part!r}.')
    if name == OWN_FLAG:
      raise ValueError(f'--vary={axis!r}: the sweep gives each run its own --{OWN_FLAG}.')
    if name not in flag_names:
      raise registry.unknown_name_error('flag', name, flag_names)
    if name in columns:
      raise ValueError(f'--vary={axis!r}: {name!r} appears twice.')
    columns[name] = [value.strip() for value in text.split('|')]
    if not all(columns[name]):
      raise ValueError(f'--vary={axis!r}: {name!r} has an empty value: write name=value|value.')
  lengths = {name: len(values) for name, values in columns.items()}
  if len(set(lengths.values())) > 1:
    found = ', '.join(f'{name!r} has {length}' for name, length in lengths.items())
    raise ValueError(f'--vary={axis!r}: flags that vary together need the same number of values; {found}.')
  alternatives = [dict(zip(columns, values)) for values in zip(*columns.values())]
  for alternative, count in collections.Counter(tuple(a.items()) for a in alternatives).items():
    if count > 1:
      raise ValueError(f'--vary={axis!r}: {as_flags(dict(alternative))} appears {count} times.')
  return alternatives


def directory_name(combination: dict[str, str]) -> str:
  """The name of a combination's folder. It depends only on the values, not on their order or the rest of the grid."""
  return ','.join(f'{name}={_readable(value)}' for name, value in sorted(combination.items()))


def _readable(value: str) -> str:
  """The last part of a path, without the suffix of a flag file. Characters that a name cannot have become dashes."""
  value = value.rstrip('/').rpartition('/')[2]
  value = value[: -len('.flags')] if value.endswith('.flags') else value
  return re.sub(r'[^A-Za-z0-9_.=+-]+', '-', value)


def arguments(base: Sequence[str], combination: dict[str, str]) -> list[str]:
  """The training binary's flags. The grid overrides `base`, which overrides a flag file that the grid varies."""
  files = [f'--{FLAGFILE}={combination[FLAGFILE]}'] if FLAGFILE in combination else []
  return files + list(base) + [f'--{name}={value}' for name, value in combination.items() if name != FLAGFILE]


def as_flags(combination: dict[str, str]) -> str:
  """A combination as flags."""
  return ' '.join(f'--{name}={value}' for name, value in combination.items())
