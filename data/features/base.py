"""What features are: a fixed function of one example, in place of the example itself."""

import abc
from typing import Callable, Tuple

import numpy as np


class Features(abc.ABC):
  """A feature map. Subclasses are frozen dataclasses in `FEATURES`.

  It is applied to each example by itself and takes no statistics over examples: a client's features are a function of
  that client's data alone, and what is guaranteed for updates made of features holds for the data.
  """

  @abc.abstractmethod
  def check(self, input_shape: Tuple[int, ...]):
    """Raises `ValueError` if there are no such features of examples of this shape."""

  @abc.abstractmethod
  def fingerprint(self) -> str:
    """Everything beside the example that the features depend on: parameters, versions, the hash of a model."""

  @abc.abstractmethod
  def extractor(self, input_shape: Tuple[int, ...]) -> Callable[[np.ndarray], np.ndarray]:
    """Returns the function float32[b, *input_shape] -> float32[b, d], rows of unit norm. Several threads may call it.

    Features that are zero, those of a blank image, stay zero.
    """

  def public_data(self) -> str:
    """Sentences on the data that the map was learned from, which are taken as public; '' if there are none."""
    return ''


def unit_rows(x: np.ndarray) -> np.ndarray:
  """Rows of `x`, [n, d], over their L2 norms; a row of zeros stays zero."""
  norms = np.linalg.norm(x, axis=1, keepdims=True)
  return np.divide(x, norms, out=np.zeros_like(x), where=norms > 0)
