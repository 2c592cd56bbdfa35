"""UNIPEN's public release train_r01_v07: reads its pen strokes, and draws its isolated characters as images.

The release has two folders. A file below `data/1a` (digits), `1b` (upper case) or `1c` (lower case) includes a file
below `include`, and names its characters:

    .INCLUDE aga/data/one.dat
    .SEGMENT CHARACTER 12:0-13:20 ? "A"

12 and 13 are numbers of components, the first of which is 0; 0 and 20 are the first and the last point. The included
file says who writes, and has the components. Each is a keyword with points, of which those of .PEN_UP leave no ink. A
component without points has no number.

    .COORD X Y
    .X_POINTS_PER_INCH 145
    .Y_POINTS_PER_INCH 145
    .WRITER_ID one
    .PEN_DOWN
    94 397
    94 396
    .PEN_UP
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import functools
import os
import re
import string
from typing import Callable, NamedTuple

import numpy as np

from data import reading
from data import unipen

CATEGORIES = ('1a', '1b', '1c')
# In the order of EMNIST's ByClass.
_CHARACTERS = string.digits + string.ascii_uppercase + string.ascii_lowercase
_SEGMENT = re.compile(r'CHARACTER\s+([\d:,-]+)\s+\S+\s+"(.*)"')
_PEN = {'.PEN_DOWN': True, '.PEN_UP': False}
# Inches in the unit, for each axis. Some tablets have more points to an inch of height than of width.
_UNITS = {'PER_INCH': 1.0, 'PER_MM': 1 / 25.4}
# IBM's writers came for up to three sessions, r02-15 and r03-15, and `ibm0.doc` says that they are 12. Sessions whose
# second number is the same share characters, point by point.
_SESSION = re.compile(r'r\d\d-(\d\d)')
_RESOLUTION = re.compile(r'\.([XY])_POINTS_(PER_INCH|PER_MM)')
_SIDE = 28
# Pixels that the longer side of the ink is long, and the pen's width as a share of a writer's median character.
_INK, _PEN_WIDTH = 22.0, 0.15


class Component(NamedTuple):
  """Points between two changes of the pen.

  Attributes:
    points: float64[n, 2] with n ≥ 1, x to the right and y upwards, in inches, or in points if no resolution is given.
    has_ink: Whether the pen was down.
    writer: The last .WRITER_ID before it.
  """

  points: np.ndarray
  has_ink: bool
  writer: str


class PenCharacter(NamedTuple):
  """An isolated character.

  Attributes:
    label: In [0, 62), in the order of EMNIST's ByClass.
    writer: The person who wrote it.
    strokes: float64[n, 2] for each stroke, as in `Component`.
  """

  label: int
  writer: str
  strokes: tuple[np.ndarray, ...]

  def size(self) -> float:
    """The longer side of its box."""
    return float(np.ptp(np.concatenate(self.strokes), axis=0).max())


def read_release(folder: str) -> list[PenCharacter]:
  """Reads the isolated characters of the release.

  What is there twice counts once, for the first of its writers. Characters without a stroke, and strokes in which the
  pen did not move, are left out, as are characters whose components the file does not have. A writer is a person by the
  name of .WRITER_ID: where two contributors have the same name, it is one person.

  Args:
    folder: The folder with `data` and `include`, such as `train_r01_v07`.

  Raises:
    reading.DataFileError: If a folder or an included file is missing, or a line cannot be read.
  """
  # A file is included by up to three files, one after the other.
  included = functools.lru_cache(maxsize=4)(lambda path: tuple(_components(folder, path)))
  found: dict[object, PenCharacter] = {}
  for path in _files(folder):
    for character in _characters(folder, path, included):
      if character.strokes and character.size() > 0:
        key = (character.label, *(stroke.tobytes() for stroke in character.strokes))
        found.setdefault(key, character)
  if not found:
    raise reading.DataFileError(
      f'{folder}: expected isolated characters below data/1a, data/1b or data/1c, found none.'
    )
  return list(found.values())


def _files(folder: str) -> list[str]:
  """The files that name characters. All three categories of an included file come in a row."""
  found = []
  for category in CATEGORIES:
    top = os.path.join(folder, 'data', category)
    if not os.path.isdir(top):
      raise reading.DataFileError(
        f"{top} not found; expected the folder of UNIPEN's release train_r01_v07, which has data/1a and include."
      )
    for parent, _, names in os.walk(top):
      found += [(os.path.relpath(os.path.join(parent, name), top), category) for name in names]
  return [os.path.join(folder, 'data', category, path) for path, category in sorted(found)]


def _characters(folder: str, path: str, included: Callable[[str], Sequence[Component]]) -> Iterator[PenCharacter]:
  components: list[Component] = []
  for keyword, text in _statements(path):
    if keyword == '.INCLUDE':
      components += included(_resolved(folder, path, text))
  for keyword, text in _statements(path):
    match = _SEGMENT.match(text) if keyword == '.SEGMENT' else None
    if match and len(match[2]) == 1 and match[2] in _CHARACTERS:
      parts = list(_selected(components, match[1]))
      strokes = tuple(part.points for part in parts if part.has_ink)
      if strokes:
        yield PenCharacter(_CHARACTERS.index(match[2]), _person(parts[0].writer), strokes)


def _person(writer: str) -> str:
  session = _SESSION.fullmatch(writer)
  return f'r-{session[1]}' if session else writer


def _selected(components: Sequence[Component], delineation: str) -> Iterator[Component]:
  """Components by a list such as `12:0-13:20,15`; none if one of them is not there."""
  for part in delineation.split(','):
    begin, _, end = part.partition('-')
    first, _, from_point = begin.partition(':')
    last, _, to_point = (end or begin).partition(':')
    low, high = int(first), int(last)
    if high >= len(components):
      return
    for number in range(low, high + 1):
      component = components[number]
      start = int(from_point) if from_point and number == low else 0
      stop = int(to_point) + 1 if to_point and number == high else len(component.points)
      yield component._replace(points=component.points[start:stop])


def _components(folder: str, path: str) -> Iterator[Component]:
  writer, columns, per_inch = '', ['X', 'Y'], {'X': 1.0, 'Y': 1.0}
  for keyword, text in _statements(path):
    if keyword == '.INCLUDE':
      yield from _components(folder, _resolved(folder, path, text))
    elif keyword == '.WRITER_ID':
      writer = text
    elif keyword == '.COORD':
      columns = text.upper().split()
    elif resolution := _RESOLUTION.fullmatch(keyword):
      axis, unit = resolution.groups()
      per_inch[axis] = float(_numbers(path, text, 1)[0, 0]) / _UNITS[unit]
    elif keyword in _PEN and text:
      values = _numbers(path, text, len(columns))
      points = [values[:, columns.index(axis)] / per_inch[axis] for axis in 'XY']
      yield Component(np.stack(points, axis=1), _PEN[keyword], writer)


def _numbers(path: str, text: str, width: int) -> np.ndarray:
  """float64[n, width]: the numbers of a text, `width` to a point."""
  try:
    return np.array(text.split(), np.float64).reshape(-1, width)
  except ValueError:
    raise reading.wrong(path, f'{width} numbers for each point', repr(text[:40])) from None


def _statements(path: str) -> Iterator[tuple[str, str]]:
  """The keywords of a file, with the text that follows each, up to the next one."""
  reading.check_is_file(path, "expected a file of UNIPEN's release")
  keyword = ''
  lines: list[str] = []
  with open(path, encoding='latin-1') as file:
    for line in file:
      if line.startswith('.'):
        yield keyword, '\n'.join(lines).strip()
        keyword, _, text = line.strip().replace('\t', ' ').partition(' ')
        lines = [text]
      else:
        lines.append(line)
  yield keyword, '\n'.join(lines).strip()


def _resolved(folder: str, path: str, name: str) -> str:
  """The path of an included file, below `include` or beside the file that includes it."""
  below = os.path.join(folder, 'include', name)
  beside = os.path.join(os.path.dirname(path), name)
  return below if os.path.exists(below) or not os.path.exists(beside) else beside


def drawn(characters: Sequence[PenCharacter]) -> unipen.UnipenFile:
  """Draws characters like EMNIST's: ink in the middle, its longer side 22 of 28 pixels, by a pen of each writer's own.

  A writer's pen is 0.15 times as wide as the longer side of their median character is long.
  """
  people, writer = np.unique([character.writer for character in characters], return_inverse=True)
  sizes = np.array([character.size() for character in characters])
  pens = np.array([_PEN_WIDTH * np.median(sizes[writer == number]) for number in range(len(people))])
  x = np.stack([_image(one.strokes, pens[number]) for one, number in zip(characters, writer)])
  return unipen.UnipenFile(x, np.array([one.label for one in characters], np.int64), writer.astype(np.int64))


def _image(strokes: Sequence[np.ndarray], pen: float) -> np.ndarray:
  """uint8[28, 28], 255 = ink: one less the distance to a stroke, in pixels, at the edge of a round pen."""
  points = np.concatenate(strokes)
  low, high = points.min(axis=0), points.max(axis=0)
  scale = _INK / ((high - low).max() + pen)
  squared = np.full((_SIDE, _SIDE), np.inf)
  rows, columns = np.mgrid[:_SIDE, :_SIDE]
  for stroke in strokes:
    placed = (stroke - (low + high) / 2) * (scale, -scale) + (_SIDE - 1) / 2
    np.minimum(squared, _squared_distance(placed, columns, rows), out=squared)
  ink = np.clip(scale * pen / 2 - np.sqrt(squared) + 0.5, 0, 1)
  return np.rint(255 * ink).astype(np.uint8)


def _squared_distance(stroke: np.ndarray, columns: np.ndarray, rows: np.ndarray) -> np.ndarray:
  """The least squared distance of each pixel to a polygonal line, in pixels."""
  begin, along = stroke[:-1], np.diff(stroke, axis=0)
  if not len(along):
    begin, along = stroke, np.zeros((1, 2))
  across = columns[..., None] - begin[:, 0], rows[..., None] - begin[:, 1]
  length = np.maximum((along**2).sum(axis=1), 1e-12)
  share = np.clip((across[0] * along[:, 0] + across[1] * along[:, 1]) / length, 0, 1)
  return ((across[0] - share * along[:, 0]) ** 2 + (across[1] - share * along[:, 1]) ** 2).min(axis=-1)
