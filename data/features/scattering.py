"""Scattering features (Bruna and Mallat, 2013): moduli of wavelet coefficients, averaged over 2^J pixels.

Nothing is learned. Normalised for each example by itself as in Tramèr and Boneh, "Differentially Private Learning Needs Better Features"
(2021, arXiv:2011.11660): GroupNorm over groups of three channels, 27 groups of the 81 channels of J=2, L=8; then to
unit norm.
"""

import dataclasses
from typing import Tuple

from kymatio import version as kymatio_version
from kymatio.scattering2d.frontend import numpy_frontend
import numpy as np

from data import glyphs
from data.features import base
from quap_tff import checks
from quap_tff import registry

_CHANNELS_A_GROUP = 3
# Far below the deviations of a group on images in [0, 1], about 0.01.
_SMALLEST_DEVIATION = 1e-3
_GLYPHS, _GLYPH_SEED = 2000, 7


@dataclasses.dataclass(frozen=True)
class Scattering(base.Features):
  """Of images [height, width, channels], each colour by itself.

  With K = 1 + J·L + L²·J·(J-1)/2 coefficients (order 1: 1 + J·L) at each of ⌊height/2^J⌋ × ⌊width/2^J⌋ places: 3,969
  features of 28×28, 15,552 of 32×32×3, 324 of 8×8.

  Attributes:
    order: Wavelet transforms in a row, 1 or 2.
    scales: J, the scales of wavelets, the coarsest over 2^J pixels.
    angles: L, the orientations of wavelets.
    centred: Whether the mean features of 2,000 randomly drawn glyphs are taken off. The features of all images of
      strokes have a part in common, which says nothing and costs norm. The glyphs are a program's output, no data.
  """

  order: int = 2
  scales: int = 2
  angles: int = 8
  centred: bool = False

  def __post_init__(self):
    checks.integer('scattering order', self.order, at_least=1, at_most=2)
    checks.integer('scattering scales', self.scales, at_least=1)
    checks.integer('scattering angles', self.angles, at_least=1)

  def check(self, input_shape):
    if len(input_shape) != 3:
      raise ValueError(f'Scattering is of images [height, width, channels], found examples of shape {input_shape}.')
    if 2**self.scales > min(input_shape[:2]):
      raise ValueError(
          f'Scattering with scales={self.scales} needs images of at least {2**self.scales} pixels, found '
          f'{input_shape[0]}x{input_shape[1]}: give fewer scales.'
      )

  def fingerprint(self):
    return f'{registry.format_spec("scattering", self)} kymatio={kymatio_version.version} numpy={np.__version__}'

  def extractor(self, input_shape):
    transform = numpy_frontend.ScatteringNumPy2D(
        J=self.scales, shape=input_shape[:2], L=self.angles, max_order=self.order
    )

    def normalised(x):
      return base.unit_rows(_group_norm(transform(np.moveaxis(x, -1, 1))))

    if not self.centred:
      return normalised
    mean = normalised(_drawings(input_shape)).mean(axis=0)
    return lambda x: base.unit_rows(normalised(x) - mean)


def _group_norm(s: np.ndarray) -> np.ndarray:
  """float32[b, colours, channels, h, w] -> float32[b, d]; the last group of a colour takes what channels are left."""
  s = s.astype(np.float32)
  for first in range(0, s.shape[2], _CHANNELS_A_GROUP):
    group = s[:, :, first:first + _CHANNELS_A_GROUP]
    group -= group.mean(axis=(2, 3, 4), keepdims=True)
    group /= group.std(axis=(2, 3, 4), keepdims=True) + np.float32(_SMALLEST_DEVIATION)
  return s.reshape(len(s), -1)


def _drawings(input_shape: Tuple[int, ...]) -> np.ndarray:
  rng = np.random.default_rng(_GLYPH_SEED)
  height, width, channels = input_shape
  side = min(height, width)
  images, _ = glyphs.draw(glyphs.alphabet(_GLYPHS, rng), 1, side, rng)
  framed = np.pad(images, ((0, 0), (0, height - side), (0, width - side))) / np.float32(255)
  return np.repeat(framed[..., None], channels, axis=-1)
