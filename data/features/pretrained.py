"""Features of a frozen network that `python -m experiments.pretrain` trained on public data or on none.

A folder holds `extractor.keras`, images [height, width, channels] -> float32[d], and `card.json`: what it was trained
on, how, and the SHA-256 of the extractor.
"""

import dataclasses
import hashlib
import json
import os
from typing import Any, Dict

import tensorflow as tf

from data import errors
from data.features import base

EXTRACTOR, CARD = 'extractor.keras', 'card.json'


@dataclasses.dataclass(frozen=True)
class Pretrained(base.Features):
  """The output of a network, to unit norm, with weights that no client's data touch.

  Attributes:
    path: The folder.
  """

  path: str = ''

  def __post_init__(self):
    if not self.path:
      raise ValueError('Pretrained features need the folder that experiments.pretrain wrote: pretrained:path=FOLDER.')

  def card(self) -> Dict[str, Any]:
    """The folder's card, after a check that the extractor is the one it speaks of.

    Raises:
      data.DataFileError: If a file is missing, or the extractor is another one or damaged.
    """
    names = os.path.join(self.path, CARD), os.path.join(self.path, EXTRACTOR)
    advice = 'Give a folder that python -m experiments.pretrain --output=FOLDER has written.'
    for name in names:
      if not os.path.isfile(name):
        raise errors.DataFileError(f'{name} not found. {advice}')
    try:
      with open(names[0], encoding='utf-8') as f:
        card = json.load(f)
      expected = card['sha256']
      str(card['public_data'])
    except (OSError, ValueError, KeyError, TypeError) as e:
      raise errors.DataFileError(
          f'{names[0]} is damaged or another file: expected JSON with sha256 and public_data, found '
          f'{type(e).__name__}: {e}. {advice}'
      ) from e
    with open(names[1], 'rb') as f:
      found = hashlib.sha256(f.read()).hexdigest()
    if found != expected:
      raise errors.DataFileError(
          f'{names[1]} is damaged or another file: expected SHA-256 {expected}, as {CARD} has it, found {found}. '
          f'{advice}'
      )
    return card

  def check(self, input_shape):
    wanted = tuple(self._model().input_shape[1:])
    if wanted != tuple(input_shape):
      raise ValueError(f'The extractor in {self.path} takes examples of shape {wanted}, found {tuple(input_shape)}.')

  def fingerprint(self):
    return f'pretrained {self.card()["sha256"]} tensorflow={tf.__version__}'

  def extractor(self, input_shape):
    del input_shape
    model = self._model()

    @tf.function(input_signature=[tf.TensorSpec(model.input_shape, tf.float32)])
    def extract(x):
      return model(x, training=False)

    return lambda x: base.unit_rows(extract(x).numpy())

  def public_data(self):
    card = self.card()
    return f'{card["public_data"]} Extractor of SHA-256 {card["sha256"]}.'

  def _model(self):
    self.card()
    try:
      return tf.keras.models.load_model(os.path.join(self.path, EXTRACTOR), compile=False)
    except (OSError, ValueError, TypeError, KeyError) as e:
      raise errors.DataFileError(f'The extractor in {self.path} cannot be read: {type(e).__name__}: {e}') from e
