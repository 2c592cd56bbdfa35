"""Maps from examples to features: none, scattering, and a network that was learned from public images.

A feature map is a fixed function of one example. It is applied to each example by itself and takes no statistics over
examples: a client's features are a function of that client's data alone. A guarantee for updates made of features
holds for the data.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import hashlib
import os
from typing import Any, Callable, ClassVar, Optional

import numpy as np

from data import reading
from data.features import drawings
from quap_tff.common import checks
from quap_tff.common import files
from quap_tff.common import lazy
from quap_tff.common import registry
from quap_tff.common.lazy import tf

kymatio_version = lazy.module('kymatio.version')
kymatio_numpy = lazy.module('kymatio.scattering2d.frontend.numpy_frontend')

# The files that `experiments.pretrain` writes into a folder.
EXTRACTOR, CARD = 'extractor.keras', 'card.json'

_CHANNELS_A_GROUP = 3
# Far below the deviations of a group on images in [0, 1], about 0.01.
_SMALLEST_DEVIATION = 1e-3


class Features(checks.Checked, abc.ABC):
  """A feature map. Subclasses are frozen dataclasses in `FEATURES`.

  Attributes:
    needs_files: Whether `check` reads files.
  """

  needs_files: ClassVar[bool] = False

  @abc.abstractmethod
  def check(self, input_shape: tuple[int, ...]) -> None:
    """Raises `ValueError` if there are no such features of examples of this shape."""

  @abc.abstractmethod
  def fingerprint(self) -> str:
    """Everything that the features depend on apart from the example: parameters, versions, the hash of a model."""

  @abc.abstractmethod
  def extractor(self, input_shape: tuple[int, ...]) -> drawings.Extractor:
    """Returns the function float32[b, *input_shape] -> float32[b, d], rows of unit norm. Several threads may call it.

    Features that are zero, those of a blank image, stay zero.
    """

  def public_data(self) -> str:
    """Sentences on the data that the map was learned from, which are taken as public; '' if there are none."""
    return ''


@dataclasses.dataclass(frozen=True)
class NoFeatures(Features):
  """The examples themselves."""

  def check(self, input_shape: tuple[int, ...]) -> None:
    del input_shape

  def fingerprint(self) -> str:
    return 'none'

  def extractor(self, input_shape: tuple[int, ...]) -> drawings.Extractor:
    del input_shape
    return lambda x: x


@dataclasses.dataclass(frozen=True)
class Scattering(Features):
  """Scattering (Bruna and Mallat 2013): moduli of wavelet coefficients, averaged over 2^J pixels. Nothing is learned.

  Of images [height, width, channels], each colour by itself. Normalised for each example by itself as in Tramèr and
  Boneh, "Differentially Private Learning Needs Better Features" (2021, arXiv:2011.11660): GroupNorm over groups of
  three channels, 27 groups of the 81 channels of J=2, L=8; then to unit norm.

  With K = 1 + J·L + L²·J·(J-1)/2 coefficients (order 1: 1 + J·L) at each of ⌊height/2^J⌋ × ⌊width/2^J⌋ places: 3,969
  features of 28×28, 15,552 of 32×32×3, 324 of 8×8.

  Attributes:
    order: Wavelet transforms in a row, 1 or 2.
    scales: J, the scales of wavelets, the coarsest over 2^J pixels.
    angles: L, the orientations of wavelets.
    centred: Whether the mean features of 2,000 randomly drawn glyphs are taken off. The features of all images of
      strokes have a part in common, which says nothing and costs norm. The glyphs are a program's output and not data.
  """

  order: int = checks.integer_field('scattering order', 2, at_least=1, at_most=2)
  scales: int = checks.integer_field('scattering scales', 2, at_least=1)
  angles: int = checks.integer_field('scattering angles', 8, at_least=1)
  centred: bool = False

  def check(self, input_shape: tuple[int, ...]) -> None:
    if len(input_shape) != 3:
      raise ValueError(
        f'Scattering needs images [height, width, channels], but examples have the shape {tuple(input_shape)}.'
      )
    if 2**self.scales > min(input_shape[:2]):
      raise ValueError(
        f'Scattering with scales={self.scales} needs images of at least {2**self.scales} pixels, found '
        f'{input_shape[0]}x{input_shape[1]}: give fewer scales.'
      )

  def fingerprint(self) -> str:
    found = f'{registry.format_spec("scattering", self)} kymatio={kymatio_version.version} numpy={np.__version__}'
    if not self.centred:
      return found
    # Glyphs of any size show whether the program draws the same.
    return f'{found} glyphs={hashlib.sha256(drawings.random_glyphs((8, 8, 1)).tobytes()).hexdigest()}'

  def extractor(self, input_shape: tuple[int, ...]) -> drawings.Extractor:
    transform = kymatio_numpy.ScatteringNumPy2D(
      J=self.scales, shape=input_shape[:2], L=self.angles, max_order=self.order
    )

    def normalised(x: np.ndarray) -> np.ndarray:
      return unit_rows(_group_norm(transform(np.moveaxis(x, -1, 1))))

    if not self.centred:
      return normalised
    mean = normalised(drawings.random_glyphs(input_shape)).mean(axis=0)
    return lambda x: unit_rows(normalised(x) - mean)


class Learned(Features):
  """A map that was learned from public images. It may be centred and reduced by its features of drawings.

  Those are of no client. See `data.features.drawings` for the equation.
  """

  @abc.abstractmethod
  def learned(self) -> tuple[str, str]:
    """Everything that the map itself depends on, for a fingerprint, and sentences on it for a certificate."""

  @abc.abstractmethod
  def map(self, input_shape: tuple[int, ...]) -> drawings.Extractor:
    """The map itself, as `extractor` returns it."""

  @abc.abstractmethod
  def statistics(self) -> Optional[drawings.FeatureStatistics]:
    """The statistics that centre and reduce the features; None if they stay as they are."""

  def fingerprint(self) -> str:
    found = self.statistics()
    return self.learned()[0] + (f' drawings {found.digest()}' if found else '')

  def extractor(self, input_shape: tuple[int, ...]) -> drawings.Extractor:
    extract, found = self.map(input_shape), self.statistics()
    return extract if found is None else lambda x: unit_rows(found.applied(extract(x)))

  def public_data(self) -> str:
    found = self.statistics()
    return self.learned()[1] + (f' {found.sentences()}' if found else '')


@dataclasses.dataclass(frozen=True)
class Pretrained(Learned):
  """A frozen network that `python -m experiments.pretrain` trained on public data or on none, to unit norm.

  The folder holds `extractor.keras`, images [height, width, channels] -> float32[d], and `card.json`, which names its
  training data and parameters, and the SHA-256 of the extractor.

  Attributes:
    path: The folder.
    size: Number of principal components of the features of drawings that are kept. None: the features as they are.
    centred: Whether the mean of the features of drawings is taken off.

  An extractor may have another output, the scores s of a public classifier (`data.features.imported_models`). They are
  neither reduced nor centred: with features z, and both of unit norm, the map gives (s, z)/√2.
  """

  needs_files = True

  path: str = ''
  size: Optional[int] = checks.integer_field('pretrained size', None, at_least=1)
  centred: bool = False

  def __post_init__(self) -> None:
    super().__post_init__()
    if not self.path:
      raise ValueError('Pretrained features need the folder that experiments.pretrain wrote: pretrained:path=FOLDER.')

  def card(self) -> dict[str, Any]:
    """The folder's card, after a check that the extractor is the one it speaks of.

    Raises:
      data.DataFileError: If a file is missing, or the extractor is another one or damaged.
    """
    names = os.path.join(self.path, CARD), os.path.join(self.path, EXTRACTOR)
    advice = 'Give a folder that python -m experiments.pretrain --output=FOLDER has written.'
    for name in names:
      if not os.path.isfile(name):
        raise reading.DataFileError(f'{name} not found. {advice}')
    try:
      card = files.read_json(names[0])
      expected = card['sha256']
      str(card['public_data'])
    except (OSError, ValueError, KeyError, TypeError) as e:
      raise reading.DataFileError(
        f'{names[0]} is damaged or another file: expected JSON with sha256 and public_data, found '
        f'{type(e).__name__}: {e}. {advice}'
      ) from e
    with open(names[1], 'rb') as f:
      found = hashlib.sha256(f.read()).hexdigest()
    if found != expected:
      raise reading.DataFileError(
        f'{names[1]} is damaged or another file: expected SHA-256 {expected}, as {CARD} has it, found {found}. '
        f'{advice}'
      )
    return card

  def check(self, input_shape: tuple[int, ...]) -> None:
    model = self._model()
    wanted, features = tuple(model.input_shape[1:]), model.outputs[-1].shape[-1]
    if wanted != tuple(input_shape):
      raise ValueError(f'The extractor in {self.path} takes examples of shape {wanted}, found {tuple(input_shape)}.')
    most = min(features, drawings.COUNT - 1)
    if self.size is not None and self.size > most:
      raise ValueError(
        f'pretrained size must be at most {most}, found {self.size}: the extractor in {self.path} gives {features} '
        f'features, and their directions come from {drawings.COUNT:,} drawings. Give a smaller size, or leave it out '
        'to keep all features.'
      )

  def learned(self) -> tuple[str, str]:
    card = self.card()
    return (
      f'pretrained {card["sha256"]} tensorflow={tf.__version__}',
      f'{card["public_data"]} Extractor of SHA-256 {card["sha256"]}.',
    )

  def statistics(self) -> Optional[drawings.FeatureStatistics]:
    if self.size is None and not self.centred:
      return None
    shape = tuple(self._model().input_shape[1:])
    return drawings.statistics(lambda: self.map(shape), self.learned()[0], shape, self.size, self.centred)

  def map(self, input_shape: tuple[int, ...]) -> drawings.Extractor:
    del input_shape
    outputs = self._outputs()
    return lambda x: unit_rows(outputs(x)[-1])

  def extractor(self, input_shape: tuple[int, ...]) -> drawings.Extractor:
    if len(self._model().outputs) == 1:
      return super().extractor(input_shape)
    outputs, found = self._outputs(), self.statistics()

    def joined(x: np.ndarray) -> np.ndarray:
      scores, features = (unit_rows(rows) for rows in outputs(x))
      if found is not None:
        features = unit_rows(found.applied(features))
      return unit_rows(np.concatenate([scores, features], axis=1))

    return joined

  def _outputs(self) -> Callable[[np.ndarray], list[np.ndarray]]:
    """The network: images -> scores, if it has them, and features, as it gives them."""
    model = self._model()

    @tf.function(input_signature=[tf.TensorSpec(model.input_shape, tf.float32)])
    def outputs(x: tf.Tensor) -> list[tf.Tensor]:
      return tf.nest.flatten(model(x, training=False))

    return lambda x: [rows.numpy() for rows in outputs(x)]

  def _model(self) -> tf.keras.Model:
    return _loaded(self.path, self.card()['sha256'])


@functools.lru_cache(maxsize=1)
def _loaded(path: str, sha256: str) -> Any:
  """The network in a folder, whose file has this SHA-256. A run asks for it several times."""
  del sha256
  try:
    return tf.keras.models.load_model(os.path.join(path, EXTRACTOR), compile=False)
  except (OSError, ValueError, TypeError, KeyError) as e:
    raise reading.DataFileError(f'The extractor in {path} cannot be read: {type(e).__name__}: {e}') from e


def unit_rows(x: np.ndarray) -> np.ndarray:
  """Rows of `x`, [n, d], over their L2 norms; a row of zeros stays zero."""
  norms = np.linalg.norm(x, axis=1, keepdims=True)
  return np.divide(x, norms, out=np.zeros_like(x), where=norms > 0)


def _group_norm(s: np.ndarray) -> np.ndarray:
  """float32[b, colours, channels, h, w] -> float32[b, d]; the last group of a colour has the rest of the channels."""
  s = s.astype(np.float32)
  for first in range(0, s.shape[2], _CHANNELS_A_GROUP):
    group = s[:, :, first : first + _CHANNELS_A_GROUP]
    group -= group.mean(axis=(2, 3, 4), keepdims=True)
    group /= group.std(axis=(2, 3, 4), keepdims=True) + np.float32(_SMALLEST_DEVIATION)
  return s.reshape(len(s), -1)
