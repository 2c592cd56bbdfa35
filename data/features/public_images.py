"""Labelled images that no client holds, by name, to learn features from: a public data set, or drawings."""

import abc
import dataclasses
import os
from typing import Optional

import numpy as np

from data import reading
from data import unipen
from data.features import characters
from quap_tff.common import checks

EMNIST_FILENAME = 'emnist_byclass_test.npz'
_SIDE = 28
_DIGITS, _CHARACTERS = 10, 62
# Written alike in both cases; one class each, as in EMNIST's own ByMerge.
_MERGED = 'CIJKLMOPSUVWXYZ'


@dataclasses.dataclass(frozen=True, eq=False)
class PublicImages:
  """Images, and statements about them.

  Attributes:
    x: uint8[n, 28, 28], 255 = ink.
    y: int32[n] in [0, num_classes).
    num_classes: Number of classes.
    description: Sentences for a certificate: the source of the images, and assumptions on them.
  """

  x: np.ndarray
  y: np.ndarray
  num_classes: int
  description: str


class Source(checks.Checked, abc.ABC):
  """A source of public images. Subclasses are frozen dataclasses in `SOURCES`."""

  @abc.abstractmethod
  def read(self, data_dir: Optional[str], seed: int) -> PublicImages:
    """Reads or draws the images.

    Raises:
      reading.DataFileError: If a file is missing, damaged or the wrong one.
    """


@dataclasses.dataclass(frozen=True)
class EmnistLetters(Source):
  """The letters among EMNIST's ByClass test images, 37 classes; the digits are left out."""

  def read(self, data_dir: Optional[str], seed: int) -> PublicImages:
    del seed
    if data_dir is None:
      raise reading.DataFileError(
        f'emnist_letters needs {EMNIST_FILENAME} (an .npz with x and y), which no loader downloads. Give its folder '
        'as --data_dir, or take --public_data=glyphs, which needs no file.'
      )
    path = os.path.join(data_dir, EMNIST_FILENAME)
    file = reading.read_npz(path, ['x', 'y'], 'EMNIST ByClass images')
    x, y = file['x'], file['y']
    if x.dtype != np.uint8 or x.shape[1:] != (_SIDE, _SIDE) or y.shape != x.shape[:1] or y.dtype.kind not in 'iu':
      found = f'x {reading.described_array(x)} and y {reading.described_array(y)}'
      raise reading.wrong(path, f'x uint8[n, {_SIDE}, {_SIDE}] and y, n integers', found)
    letters = y >= _DIGITS
    if not letters.any() or y.min() < 0 or y.max() >= _CHARACTERS:
      expected = f'labels in [0, {_CHARACTERS}), letters from {_DIGITS} on'
      raise reading.wrong(path, expected, str(sorted(set(y.tolist()))))
    classes, labels = np.unique(_merged_cases(y[letters]), return_inverse=True)
    return PublicImages(
      x=x[letters],
      y=labels.astype(np.int32),
      num_classes=len(classes),
      description=f"Learned on the {letters.sum():,} letters of EMNIST ByClass's test images, no digits among them. "
      'People who wrote digits of MNIST may have written letters of EMNIST.',
    )


def _merged_cases(y: np.ndarray) -> np.ndarray:
  """Labels in EMNIST's ByClass order, where both cases of a letter that is written alike have the upper one's."""
  merged = np.arange(_CHARACTERS)
  for letter in _MERGED:
    upper = _DIGITS + ord(letter) - ord('A')
    merged[upper + 26] = upper
  return merged[y]


@dataclasses.dataclass(frozen=True)
class UnipenCharacters(Source):
  """UNIPEN's isolated characters, 47 classes: letters that are written alike in both cases are one."""

  def read(self, data_dir: Optional[str], seed: int) -> PublicImages:
    del seed
    x, y, writer = unipen.read_unipen(data_dir)
    classes, labels = np.unique(_merged_cases(y), return_inverse=True)
    writers = len(np.unique(writer))
    return PublicImages(
      x=x,
      y=labels.astype(np.int32),
      num_classes=len(classes),
      description=f'Learned on {len(x):,} characters of {writers} writers. {unipen.PROVENANCE}',
    )


@dataclasses.dataclass(frozen=True)
class GlyphImages(Source):
  """Random glyphs, and digits and Latin letters, as `data.features.characters` draws them.

  Attributes:
    classes: Number of random glyphs.
    copies: Drawings of each.
    latin: Whether there are as many drawings again, of digits and Latin letters, which are further classes.
  """

  classes: int = checks.integer_field('glyph classes', 1000, at_least=2)
  copies: int = checks.integer_field('glyph copies', 150, at_least=1)
  latin: bool = True

  def read(self, data_dir: Optional[str], seed: int) -> PublicImages:
    del data_dir
    rng = np.random.default_rng(seed)
    glyphs = characters.random_characters(self.classes, rng)
    x, y = characters.draw(glyphs, self.copies, _SIDE, rng)
    if not self.latin:
      description = f"Learned on {len(x):,} drawings of {len(glyphs):,} random glyphs: a program's output, no data."
      return PublicImages(x, y, len(glyphs), description)
    shapes = characters.latin()
    more, labels = characters.draw(shapes, max(1, len(x) // len(shapes)), _SIDE, rng)
    return PublicImages(
      x=np.concatenate([x, more]),
      y=np.concatenate([y, labels + len(glyphs)]),
      num_classes=len(glyphs) + len(shapes),
      description=f'Learned on {len(x) + len(more):,} drawings: of {len(glyphs):,} random glyphs, and of {len(shapes)} '
      "shapes of digits and Latin letters that are part of the program. A program's output, no data.",
    )


SOURCES: dict[str, type[Source]] = {'emnist_letters': EmnistLetters, 'glyphs': GlyphImages, 'unipen': UnipenCharacters}
