"""Extractors made of Keras models that others have trained, for `experiments.pretrain --import_model`.

An image x of a run, in [0, 1], becomes features in three steps, all of them layers of the saved extractor:

    A·x + b at each pixel (grey to RGB, the order of colours, the range)  ->  resized  ->  the model up to a layer

The mean over the places of an image is taken if the layer's output is spatial.

A model that classifies public images also knows classes that mean a class of the run, as its "tabby" and "Siamese cat"
mean "cat". With `scores` the extractor has another output before the features, two figures for each class c of the run:

    s_max,c = max_{k in K_c} l_k,   s_mean,c = mean_{k in K_c} l_k

K_c are the model's outputs that mean c, chosen by their names, and l its logits. Each kind is centred over the classes
of an example and scaled to unit norm.
"""

from __future__ import annotations

import hashlib
import os
import re
from typing import Any

import numpy as np

from data import reading
from data.features import efficientnet_lite0
from quap_tff.common import files
from quap_tff.common import registry
from quap_tff.common.lazy import tf

# Scale and offset of red, green and blue, for x in [0, 1], and whether blue comes first. `tf`, `torch` and `caffe` are
# the modes of Keras' `preprocess_input`; a model that takes bytes, 0 to 255, has its own Rescaling layer.
_MEAN, _DEVIATION = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
PREPROCESSINGS: dict[str, tuple[Any, Any, bool]] = {
  'none': (1.0, 0.0, False),
  'bytes': (255.0, 0.0, False),
  'tf': (2.0, -1.0, False),
  'torch': (1 / _DEVIATION, -_MEAN / _DEVIATION, False),
  'caffe': (255.0, -np.array([123.68, 116.779, 103.939]), True),
}
# Those with figures for each colour.
_OF_COLOURS = ('torch', 'caffe')
_RGB = 3


def imported(
  path: str, layer: str, description: str, image_shape: str, preprocessing: str, scores: str = ''
) -> tuple[Any, dict[str, Any]]:
  """The extractor that a Keras model gives, and its card.

  Args:
    path: A file, .keras or .h5, of a model that takes images [height, width, channels] and has one output. Such a file
      can hold code; load only those whose source you trust.
    layer: The layer of the model whose output is the features.
    description: Sentences for a certificate: which data the model was trained on.
    image_shape: The shape of the run's images, such as '28x28x1'; '' for that of the model's input.
    preprocessing: A key of `PREPROCESSINGS`.
    scores: A JSON file that names the model's outputs for each class of the run, see `read_meanings`; '' for no scores.

  Returns:
    A `tf.keras.Model`, images float32[n, *image_shape] in [0, 1] -> features float32[n, d], or scores float32[n, 2·c]
    and features. And its card, without the facts that every card has.

  Raises:
    reading.DataFileError: If a file is missing, or holds no Keras model or no meanings.
    ValueError: If the model is of another kind, or an argument does not fit it. The message says what to do.
  """
  if not description.strip():
    raise ValueError(
      '--public_data_description is empty: a certificate says which data the features were learned from. Give a '
      'sentence on the data that the model was trained on.'
    )
  registry.lookup('preprocessing', preprocessing, PREPROCESSINGS)
  given = _parsed_shape(image_shape) if image_shape else None
  tf.keras.backend.clear_session()  # Keras names layers by how many there were before.
  model = _loaded(path)
  takes = _input_shape(model, path)
  shape = given or takes
  cut = _cut(model, layer)
  meanings = read_meanings(scores) if scores else {}
  if meanings:
    cut = tf.keras.Model(model.inputs, [_scores(model, meanings), *cut.outputs], name='network')
  extractor = _assembled(cut, shape, takes, preprocessing)
  with open(path, 'rb') as f:
    sha256 = hashlib.sha256(f.read()).hexdigest()
  sentence = description.strip()
  sentence += '' if sentence[-1] in '.!?' else '.'
  statements = [sentence, f'The output of layer {layer!r} of the Keras model of SHA-256 {sha256}.']
  if meanings:
    statements.append(f"The model's scores of {', '.join(meanings)}, by the names of its outputs, are features, too.")
  return extractor, {
    'public_data': ' '.join(statements),
    'model_sha256': sha256,
    'layer': layer,
    'image_shape': list(shape),
    'model_input': list(takes),
    'preprocessing': preprocessing,
    'num_features': sum(output.shape[-1] for output in extractor.outputs),
    'scores': meanings,
  }


def read_meanings(path: str) -> dict[str, str]:
  """The outputs of a public classifier that mean each class of a run.

  The file is a JSON object, such as {"cat": "281-285", "truck": "555 569"}: for each class numbers and ranges of
  outputs, counted from 0.

  Raises:
    reading.DataFileError: If the file is missing or another.
  """
  try:
    given = files.read_json(path)
    if not isinstance(given, dict) or len(given) < 2:
      raise ValueError('it names fewer than two classes')
    for name, text in given.items():
      numbers_in(name, text)
    return given
  except (OSError, ValueError) as error:
    raise reading.DataFileError(
      f'--scores: {path} cannot be read: {error}. Expected a JSON object that gives the outputs of the model for each '
      'class of the run, such as {"cat": "281-285", "truck": "555 569"}.'
    ) from error


def numbers_in(name: str, text: Any) -> list[int]:
  """The numbers in the text of a class, each once."""
  if not isinstance(text, str) or not re.fullmatch(r'\d{1,6}(-\d{1,6})?( \d{1,6}(-\d{1,6})?)*', text, re.ASCII):
    raise ValueError(f'{name} has {text!r}')
  found: list[int] = []
  for part in text.split():
    first, _, last = part.partition('-')
    found += range(int(first), int(last or first) + 1)
  if not found or len(set(found)) != len(found):
    raise ValueError(f'{name} names an output twice, or a range that ends before it begins: {text!r}')
  return found


def _scores(model: tf.keras.Model, meanings: dict[str, str]) -> Any:
  """The scores of the model's logits; see the module."""
  logits, numbers = model.outputs[0], [numbers_in(name, text) for name, text in meanings.items()]
  largest = max(max(outputs) for outputs in numbers)
  if len(logits.shape) != 2 or largest >= logits.shape[1]:
    raise ValueError(
      f"--scores: output {largest} is named, and the model's output has the shape {list(logits.shape[1:])}. Give the "
      'numbers of its outputs, from 0, or a model that ends in logits.'
    )
  each = [tf.gather(logits, outputs, axis=1) for outputs in numbers]
  largest_scores = tf.stack([tf.reduce_max(scores, axis=1) for scores in each], axis=1)
  mean_scores = tf.stack([tf.reduce_mean(scores, axis=1) for scores in each], axis=1)
  kinds = [largest_scores, mean_scores]
  centred = [kind - tf.reduce_mean(kind, axis=1, keepdims=True) for kind in kinds]
  return tf.concat([tf.math.l2_normalize(kind, axis=1) for kind in centred], axis=1)


def _parsed_shape(text: str) -> tuple[int, ...]:
  if not re.fullmatch(r'[1-9][0-9]{0,4}(x[1-9][0-9]{0,4}){2}', text, re.ASCII):
    raise ValueError(
      f"--image_shape must be height, width and channels of the run's images, such as 28x28x1, found {text!r}."
    )
  return tuple(int(part) for part in text.split('x'))


def _loaded(path: str) -> tf.keras.Model:
  if not os.path.isfile(path):
    raise reading.DataFileError(f'--import_model: {path} not found. Give a file of a Keras model, .keras or .h5.')
  if path.endswith('.whl'):
    return efficientnet_lite0.load_network(path)
  try:
    return tf.keras.models.load_model(path, compile=False)
  except Exception as error:  # Keras raises nearly anything for a file of another kind.
    raise reading.DataFileError(
      f'--import_model: {path} cannot be read as a Keras model: {type(error).__name__}: '
      f'{" ".join(str(error).split())[:300].rstrip(".")}. Give a .keras or .h5 file that model.save(…) of TensorFlow '
      f'{tf.__version__} wrote, without layers of your own.'
    ) from error


def _input_shape(model: tf.keras.Model, path: str) -> tuple[int, ...]:
  """(height, width, channels) of the model's only input."""
  inputs, outputs = getattr(model, 'inputs', None) or [], getattr(model, 'outputs', None) or []
  shapes = [tuple(one.shape) for one in inputs]
  whole = len(shapes) == 1 and len(shapes[0]) == 4 and None not in shapes[0][1:]
  if not whole or len(outputs) != 1 or not inputs[0].dtype.is_floating:
    found = ', '.join(f'{one.dtype.name}{list(one.shape[1:])}' for one in inputs)
    raise ValueError(
      f'--import_model: {path} must take one batch of images, floats [height, width, channels] of fixed sizes, and '
      f'have one output; found {len(inputs)} inputs ({found}) and {len(outputs)} outputs. Save a model with the sizes '
      'set, such as tf.keras.Model(images, features), with images = tf.keras.Input((height, width, channels)).'
    )
  return shapes[0][1:]


def _cut(model: tf.keras.Model, name: str) -> tf.keras.Model:
  """The model from its input to the output of the layer, float32[n, d]."""
  names = [one.name for one in model.layers]
  if name not in names:
    error = registry.unknown_name_error('layer', name, names)
    raise ValueError(f'--layer: {error}')
  layer = model.get_layer(name)
  if len(layer.inbound_nodes) != 1:
    raise ValueError(f'--layer: layer {name!r} is used more than once in the model. Name another.')
  # `output` of a model inside the model is of that model's own graph.
  output = layer.get_output_at(0)
  if isinstance(output, (list, tuple)) or len(output.shape) not in (2, 4) or None in output.shape[1:]:
    found = [list(one.shape[1:]) for one in tf.nest.flatten(output)]
    raise ValueError(
      f'--layer: layer {name!r} must give an output [features] or [height, width, features], found {found}. Name '
      'another layer.'
    )
  if len(output.shape) == 4:
    output = tf.keras.layers.GlobalAveragePooling2D(name='mean_over_places')(output)
  return tf.keras.Model(model.inputs, output, name='network')


def _assembled(
  cut: tf.keras.Model, shape: tuple[int, ...], takes: tuple[int, ...], preprocessing: str
) -> tf.keras.Model:
  channels, wanted = shape[2], takes[2]
  if channels != wanted and (channels, wanted) != (1, _RGB):
    raise ValueError(
      f"--image_shape: images of {channels} channels cannot become the model's {wanted}. Only grey images, of one "
      'channel, become three. Take another model, or another --image_shape.'
    )
  if preprocessing in _OF_COLOURS and wanted != _RGB:
    raise ValueError(
      f'--preprocessing={preprocessing} is for models of three colours, and this one takes {wanted} channels. Choose '
      'none, bytes or tf.'
    )
  scale, offset, reverse = PREPROCESSINGS[preprocessing]
  matrix = np.ones((1, wanted)) if channels < wanted else np.eye(wanted)
  matrix, offsets = matrix * scale, np.zeros(wanted) + offset
  if reverse:
    matrix, offsets = matrix[:, ::-1], offsets[::-1]
  layers = tf.keras.layers
  images = tf.keras.Input(shape, name='images')
  pixels = layers.Conv2D(wanted, 1, name='pixels')
  x = pixels(images)
  pixels.set_weights([matrix[np.newaxis, np.newaxis], offsets])
  if shape[:2] != takes[:2]:
    x = layers.Resizing(*takes[:2], name='resized')(x)
  names = ['scores', 'features'][-len(cut.outputs) :]
  outputs = [layers.Activation('linear', dtype='float32', name=n)(y) for n, y in zip(names, tf.nest.flatten(cut(x)))]
  several = outputs if len(outputs) > 1 else outputs[0]
  return tf.keras.Model(images, several, name='extractor')
