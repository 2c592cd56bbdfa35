"""Attacks by clients: a share of them changes its updates, or the labels on which it trains.

sign_flip    -factor·g_i
scaling      factor·g_i
label_flip   trains on label K-1-y in place of y, of K classes (Fang, Cao, Jia and Gong 2020)
"""

from __future__ import annotations

import dataclasses

import numpy as np

from quap_tff.common import array_types
from quap_tff.common import checks
from quap_tff.common.lazy import tf
from quap_tff.training import malicious


@dataclasses.dataclass(frozen=True)
class _ByAShare(malicious.Attack):
  share: float = checks.number_field('share of malicious clients', 0.2, at_least=0, at_most=1)


@dataclasses.dataclass(frozen=True)
class SignFlip(_ByAShare):
  """A malicious client sends -factor times its update, which pushes the model back.

  Attributes:
    factor: Above 0.
  """

  factor: float = checks.number_field('factor of sign_flip', 1.0, above=0, at_most=1e6)

  def changed_update(self, update: array_types.Structure) -> array_types.Structure:
    return _scaled(update, -self.factor)


@dataclasses.dataclass(frozen=True)
class Scaling(_ByAShare):
  """A malicious client sends `factor` times its update, so that it counts for many.

  Attributes:
    factor: Any number.
  """

  factor: float = checks.number_field('factor of scaling', 10.0, at_least=-1e6, at_most=1e6)

  def changed_update(self, update: array_types.Structure) -> array_types.Structure:
    return _scaled(update, self.factor)


@dataclasses.dataclass(frozen=True)
class LabelFlip(_ByAShare):
  """A malicious client trains on label K-1-y instead of y, of K classes, as in Fang, Cao, Jia and Gong 2020."""

  def changed_labels(self, labels: np.ndarray, num_classes: int) -> np.ndarray:
    return (num_classes - 1 - np.asarray(labels)).astype(np.int32)


def _scaled(update: array_types.Structure, factor: float) -> array_types.Structure:
  return tf.nest.map_structure(lambda one: one * tf.cast(factor, one.dtype), update)


malicious.ATTACKS['sign_flip'] = SignFlip
malicious.ATTACKS['scaling'] = Scaling
malicious.ATTACKS['label_flip'] = LabelFlip
