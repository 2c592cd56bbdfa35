"""Keras models in files that plain Keras loads and that do not depend on when they were written."""

import json
from typing import Any
import zipfile

from quap_tff.common import lazy
from quap_tff.common.lazy import tf

dropout = lazy.module('quap_tff.training.layers.dropout')

_METADATA = 'metadata.json'


def with_stock_layers(model: Any) -> Any:
  """A copy of the `tf.keras.Model`, weights included, for saving: plain Keras loads the file without `quap_tff`.

  Each `SeededDropout` becomes a `tf.keras.layers.Dropout` of the same name and rate, so predictions are the same.
  """

  def stock(layer):
    kind = tf.keras.layers.Dropout if isinstance(layer, dropout.SeededDropout) else layer.__class__
    return kind.from_config(layer.get_config())

  copy = tf.keras.models.clone_model(model, clone_function=stock)
  copy.set_weights(model.get_weights())
  return copy


def save_model(model: Any, path: str) -> None:
  """Saves a `tf.keras.Model` in Keras' format: equal weights and configurations give equal bytes.

  Keras writes the local time into the archive's entries and into its metadata. A running time can depend on data, and a
  digest of the file should be a digest of the model. So entries get the zip format's first day, and the date is left
  out, which Keras does not read.

  Args:
    model: The model. Layers that were named by Keras have names that depend on how many models were made before.
    path: The file, which must end in `.keras`.
  """
  model.save(path)
  with zipfile.ZipFile(path) as archive:
    entries = {name: archive.read(name) for name in archive.namelist()}
  metadata = json.loads(entries[_METADATA])
  del metadata['date_saved']
  entries[_METADATA] = json.dumps(metadata).encode()
  with zipfile.ZipFile(path, 'w') as archive:
    for name, content in entries.items():
      archive.writestr(zipfile.ZipInfo(name), content)
