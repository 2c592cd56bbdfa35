"""A dataset of one's own, from an `.npz` file; `np.savez('mine.npz', x=x, y=y, client=client)` writes one.

| array              | holds                                                                                          |
| ------------------ | ---------------------------------------------------------------------------------------------- |
| `x`                | images [n, height, width] or [n, height, width, channels], uint8, or floats in [0, 1];         |
|                    | or vectors of floats [n, d], of at most 1,000,000 in size                                      |
| `y`                | n integers, the labels, from 0; all of them, unless `classes` says how many there are          |
| `client`           | optional: n integers or names, the client of each example. The clients are numbered in the     |
|                    | order of their sorted ids. Without it, --partition deals examples out                          |
| `x_test`, `y_test` | optional: the test set, as `x` and `y`                                                         |
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import math
import os
from typing import Any, Optional
import zipfile

import numpy as np

from data import federation
from data import partition
from data import reading
from data.datasets import base
from quap_tff.common import checks
from quap_tff.common.numbers import rng as rng_lib

_REQUIRED, _OPTIONAL = ('x', 'y'), ('client', 'x_test', 'y_test')
_HOLDS = 'a dataset of your own'
# Larger numbers are not scaled: a step of training on them leaves any sensible range.
_LARGEST = 1e6
# The usual numbers of channels of an image: grey, RGB, and RGB with transparency.
_CHANNELS = (1, 3, 4)
# That an error lists.
_MOST_LABELS = 10


@dataclasses.dataclass(frozen=True)
class Npz(base.Dataset):
  """The examples in an `.npz` file; see `data.datasets.npz` for its arrays. Nothing in it is unpickled.

  Pixels become float32 in [0, 1], with a channel axis. If the file has client ids, these are the clients.
  Without a test set in the file, one is held out by --seed: of whole clients that take part in no round, if the file
  has clients, or of examples before they are dealt out.

  Attributes:
    path: The file; relative to --data_dir if that is given.
    test_share: The share of the clients, or of the examples, that is held out if the file has no test set; in (0, 1),
      rounded up.
    test_of_clients: Whether `x_test` holds examples of the clients themselves. Test figures are then exact functions of
      clients' data. The file can't tell. By default the run assumes that no client holds them, and says so.
    classes: The number of classes, if there are classes without training examples. 0: one more than the largest label.
  """

  title = '{path}'
  auxiliary_source = 'They were drawn from the file by --seed, and belong to nobody who takes part in a round.'

  path: str = ''
  test_share: float = checks.number_field('npz test_share', 0.2, above=0, below=1)
  test_of_clients: bool = False
  classes: int = checks.integer_field('npz classes', 0, at_least=0)

  def __post_init__(self) -> None:
    super().__post_init__()
    if not self.path:
      raise ValueError('A dataset of your own needs its file: npz:path=FILE.')

  @property
  def tests_clients(self) -> bool:  # type: ignore[override]  # The base class has a constant.
    return self.test_of_clients

  @property
  def has_own_clients(self) -> bool:  # type: ignore[override]  # The base class has a constant.
    return 'client.npy' in self._members()

  @property
  def default_num_clients(self) -> Optional[int]:  # type: ignore[override]  # The base class has a constant.
    members = self._members()
    return base.DEFAULT_NUM_CLIENTS if members and 'client.npy' not in members else None

  def _members(self) -> list[str]:
    """The names in the archive; none if it can't be read, which `load` reports."""
    try:
      with zipfile.ZipFile(self.path) as archive:
        return archive.namelist()
    except (OSError, ValueError, zipfile.BadZipFile):
      return []

  def check_file(self, data_dir: Optional[str]) -> None:
    reading.check_is_file(os.path.join(data_dir or '', self.path), f'expected {_HOLDS}: an .npz with x, y')

  def portable(self) -> Npz:
    return dataclasses.replace(self, path=os.path.basename(self.path))

  def load(self, request: base.Request) -> federation.Federation:
    partition.parse_partition(request.partition)
    path = os.path.join(request.data_dir or '', self.path)
    arrays = reading.read_npz(path, _REQUIRED, _HOLDS, _OPTIONAL)
    self._check_names(path, arrays)
    x, y, white = _examples(path, arrays, 'x', 'y')
    owners = _owners(path, arrays['client'], len(y)) if 'client' in arrays else None
    labels = y
    facts: dict[str, Any] = {'name': f'npz:{os.path.splitext(os.path.basename(path))[0]}'}
    if 'x_test' in arrays:
      test_x, test_y, test_white = _examples(path, arrays, 'x_test', 'y_test')
      if test_x.shape[1:] != x.shape[1:] or test_white != white:
        expected = f'x_test to be like x, {reading.described_array(arrays["x"])}'
        raise reading.wrong(path, expected, reading.described_array(arrays['x_test']))
      whose = 'of the clients themselves' if self.test_of_clients else 'taken to be of nobody who takes part in a round'
      facts['test_set'] = f'{len(test_y):,} examples from x_test of the file, {whose}.'
      facts['test_is_of_clients'] = self.test_of_clients
    elif self.test_of_clients:
      raise reading.wrong(
        path, 'x_test and y_test, because of test_of_clients=True', 'neither. Leave test_of_clients out'
      )
    elif owners is None:
      order = rng_lib.generator(request.seed, 'test_split').permutation(len(y))
      held = math.ceil(self.test_share * len(y))
      if held == len(y):
        raise reading.wrong(path, 'examples for training and for the test', f'{len(y)} in all and no x_test')
      (test_x, test_y), (x, y) = ((x[rows], y[rows]) for rows in (np.sort(order[:held]), np.sort(order[held:])))
    else:
      test_x, test_y = x[:0], y[:0]
      self._check_left(path, len(np.unique(owners)))
    pool = base.Pool(x, y, test_x, test_y, white, self._num_classes(path, labels, test_y))
    if owners is None:
      return pool.dealt(request, **facts)
    test_share = 0.0 if 'x_test' in arrays else self.test_share
    return pool.owned(request, owners, 'client', test_share, **facts)

  def _check_names(self, path: str, arrays: Mapping[str, np.ndarray]) -> None:
    with np.load(path, allow_pickle=False) as kept:
      unknown = sorted(set(kept.files) - set(arrays))
    if unknown:
      raise reading.wrong(path, f'arrays named {", ".join((*_REQUIRED, *_OPTIONAL))}', f'also {", ".join(unknown)}')
    if ('x_test' in arrays) != ('y_test' in arrays):
      raise reading.wrong(path, 'x_test and y_test, or neither', 'one of them')

  def _check_left(self, path: str, clients: int) -> None:
    held = math.ceil(self.test_share * clients)
    if clients - held < 2:
      raise reading.wrong(
        path,
        'two clients or more besides those that only test',
        f'{clients} in all, of which test_share={self.test_share:g} takes {held}. Give x_test and y_test, or another '
        'test_share',
      )

  def _num_classes(self, path: str, y: np.ndarray, test_y: np.ndarray) -> int:
    known = np.unique(y)
    num_classes = 1 + int(max(known[-1], test_y.max(initial=0)))
    if not self.classes and len(known) < num_classes:
      few = ', '.join(map(str, known[:_MOST_LABELS])) + (', …' if len(known) > _MOST_LABELS else '')
      raise reading.wrong(
        path,
        f'examples in y of each label from 0 to {num_classes - 1}',
        f'{len(known)} labels: {few}. Number the labels from 0, or give classes={num_classes} if that is right',
      )
    if self.classes and num_classes > self.classes:
      raise reading.wrong(
        path, f'labels in [0, {self.classes}), as classes={self.classes} says', f'the label {num_classes - 1}'
      )
    if len(test_y) and not np.isin(test_y, known).any():
      raise reading.wrong(
        path, 'labels in y_test that are also in y', 'none. A model would be right about no test example'
      )
    return self.classes or num_classes


def _examples(path: str, arrays: dict[str, Any], x_name: str, y_name: str) -> tuple[np.ndarray, np.ndarray, float]:
  """The checked examples, with a channel axis if they are images, their labels, and the value that becomes 1.0."""
  x, y = arrays[x_name], arrays[y_name]
  is_uint8 = x.dtype == np.uint8
  if not (x.dtype.kind == 'f' or (is_uint8 and x.ndim > 2)) or x.ndim not in (2, 3, 4) or not x.size:
    kinds = (
      'images [n, height, width] or [n, height, width, channels], uint8 or floats in [0, 1], or float vectors [n, d]'
    )
    raise reading.wrong(path, f'{x_name} to be {kinds}', reading.described_array(x))
  if x.ndim == 4 and _looks_channels_first(*x.shape[1:]):
    channels, height, width = x.shape[1:]
    raise reading.wrong(
      path,
      f'{x_name} to be images [n, height, width, channels]',
      f'{reading.described_array(x)}, which looks like {channels} channels before {height}x{width} pixels. Save '
      f'np.moveaxis({x_name}, 1, -1); if images really are {channels} high, save np.swapaxes({x_name}, 1, 2)',
    )
  lowest, highest = x.min(), x.max()
  if not (np.isfinite(lowest) and np.isfinite(highest)):
    raise reading.wrong(path, f'the numbers in {x_name} to be finite', _first_not_finite(x, x_name, arrays))
  if not (lowest >= -_LARGEST and highest <= _LARGEST):
    raise reading.wrong(
      path,
      f'the numbers in {x_name} to be of at most {_LARGEST:,.0f} in size',
      f'values from {lowest:g} to {highest:g}. Scale them first, each feature to about 1',
    )
  if x.ndim > 2 and not is_uint8 and not (lowest >= 0 and highest <= 1):
    raise reading.wrong(
      path, f'floats in {x_name} to be pixels in [0, 1]', f'values from {lowest:g} to {highest:g}. Scale them first'
    )
  return x[..., None] if x.ndim == 3 else x, _integers(path, y_name, y, len(x)), 255.0 if is_uint8 else 1.0


def _first_not_finite(x: np.ndarray, x_name: str, arrays: Mapping[str, np.ndarray]) -> str:
  """The place of the first number that is NaN or infinite, and what to do."""
  numbers = x.reshape(len(x), -1)
  wrong = ~np.isfinite(numbers)
  row, column = np.argwhere(wrong)[0]
  owners = arrays.get('client') if x_name == 'x' else None
  owner = ''
  if owners is not None and len(owners.reshape(-1)) == len(x):
    owner = f', an example of client {owners.reshape(-1)[row].item()!r}'
  return (
    f'{numbers[row, column]} in row {row}, column {column}, counted from 0{owner}. {wrong.any(1).sum()} '
    f'of {len(x)} rows have such a number. Put a number in its place, or leave these rows out of all arrays'
  )


def _looks_channels_first(first: int, second: int, last: int) -> bool:
  """True if the first of an image's axes is a usual number of channels, and the last one is not."""
  is_square_map = first == second != last  # Such as features [n, 4, 4, 64].
  return first in _CHANNELS and last not in _CHANNELS and first < last and not is_square_map


def _owners(path: str, values: np.ndarray, count: int) -> np.ndarray:
  """The client of each example: int[n] as in the file, or str[n]."""
  if values.dtype.kind not in 'US':
    return _integers(path, 'client', values, count, lowest=None, kinds='integers or names')
  if values.shape not in ((count,), (count, 1)):
    raise reading.wrong(path, f'client to be {count} names, one for each example', reading.described_array(values))
  try:
    names = np.char.decode(values, 'utf-8') if values.dtype.kind == 'S' else values
    np.char.encode(np.unique(names), 'utf-8')
  except UnicodeError as error:
    raise reading.wrong(path, 'the names in client to be UTF-8', f'another encoding ({error})') from None
  if (nameless := np.flatnonzero(names.reshape(-1) == '')).size:
    raise reading.wrong(path, 'a name in client for each example', f'an empty one at example {nameless[0]}')
  return names.reshape(-1)


def _integers(
  path: str, name: str, values: np.ndarray, count: int, lowest: Optional[int] = 0, kinds: str = 'integers'
) -> np.ndarray:
  if values.dtype.kind not in 'iu' or values.shape not in ((count,), (count, 1)):
    raise reading.wrong(path, f'{name} to be {count} {kinds}, one for each example', reading.described_array(values))
  if lowest is not None and (values.min() < lowest or values.max() >= np.iinfo(np.int32).max):
    raise reading.wrong(path, f'labels of {name} from 0', f'{values.min()} to {values.max()}')
  return values.reshape(-1)
