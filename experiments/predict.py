r"""Predicts the labels of new images with the model of a run.

    python -m experiments.predict runs/mnist --input=digits.npz
    python -m experiments.predict runs/mnist --input=seven.png --invert
    python -m experiments.predict runs/mnist --input=digits.npy --output=predictions.npz

The argument is the --output_dir of experiments.train. Nothing else is needed. The images are scaled exactly as in
training, and turned into features if the run used --features.

--input is one of:

  .npz        the array x, or the first array if there is no x
  .npy        an array
  .png .jpg   one image, grey or RGB

Arrays hold one image or many, in the shape that the model was trained on. For MNIST this is [28, 28], [n, 28, 28] or
[n, 28, 28, 1], and for CIFAR-10 it is [n, 32, 32, 3]. Integers are pixels from 0 to 255 (from 0 to 16 for the dataset
digits). Floats are pixels already scaled to [0, 1]. In digits, MNIST and FEMNIST, 1.0 is ink and 0.0 is paper. Give
--invert for dark ink on light paper.

The output has one row for each image, in the order of the images. A row has the label, which is the number of the most
probable class, and its probability. A file that ends in .npz gets two arrays instead: labels, int32[n], and
probabilities, float32[n, classes]. Exit status: 0, or 1 for a wrong flag or a file that cannot be used.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import os
import sys
from typing import Optional
import zipfile

from absl import flags
import numpy as np

from data import datasets
from data import features as features_lib
from data.features import maps
from data.features import store
from experiments.command import command_line
from experiments.folders import folder as run_folder
from quap_tff.certificates.folders import folder as certificate_folders
from quap_tff.certificates.folders import folder_files
from quap_tff.common import files
from quap_tff.common import json_types
from quap_tff.common import lazy
from quap_tff.common import registry
from quap_tff.common.lazy import tf
from quap_tff.training import models

pil = lazy.module('PIL.Image')

_IMAGES = ('.png', '.jpg', '.jpeg')
_MODES = {1: 'L', 3: 'RGB'}
# Features of this many images are held in memory at a time.
_CHUNK = 1000

_FLAGS = command_line.new_flags()
_INPUT = flags.DEFINE_string('input', None, 'File with images: .npz, .npy, .png or .jpg.', flag_values=_FLAGS)
_OUTPUT = flags.DEFINE_string(
  'output', None, 'File to write: .csv or .npz. Default: CSV on standard output.', flag_values=_FLAGS
)
_INVERT = flags.DEFINE_bool('invert', False, 'Swap light and dark before predicting.', flag_values=_FLAGS)
_EXTRACTOR = flags.DEFINE_string(
  'extractor',
  None,
  "Folder of the extractor, for runs with --features=pretrained. Default: the copy in the run's own folder. (Runs "
  'of version 0.1.0 have no copy. There the default is the folder that the run read it from.)',
  flag_values=_FLAGS,
)


@dataclasses.dataclass(frozen=True)
class Predictor:
  """The model of a run, with the steps before it. Call it with images.

  Attributes:
    image_shape: (height, width, channels) of an image.
    white: The integer pixel value that becomes 1.0.
    features: What takes the place of the images.
    model: From float32[n, ...] to logits float32[n, classes].
    warnings: Sentences that a user of the run should read.
  """

  image_shape: tuple[int, ...]
  white: float
  features: maps.Features
  model: tf.keras.Model
  warnings: tuple[str, ...] = ()

  def __call__(self, images: np.ndarray, invert: bool = False) -> np.ndarray:
    """The probabilities of all classes, float32[n, classes].

    Args:
      images: One image or n: [n, *image_shape], the last axis may be missing if it is 1. Integers from 0 to `white`,
        or floats in [0, 1].
      invert: Whether to swap light and dark.

    Raises:
      ValueError: For images of another shape, type or range.
    """
    x = self._scaled(np.asarray(images))
    if invert:
      x = 1 - x
    logits = [np.zeros((0, self.model.output_shape[-1]), np.float32)]
    for start in range(0, len(x), _CHUNK):
      part = x[start : start + _CHUNK]
      if not isinstance(self.features, maps.NoFeatures):
        part = store.uncached(self.features, part)
      logits.append(tf.nn.softmax(self.model.predict(part, batch_size=512, verbose=0)).numpy())
    return np.concatenate(logits)

  def _scaled(self, images: np.ndarray) -> np.ndarray:
    """The images as float32[n, *image_shape] in [0, 1], as in training."""
    shapes = [self.image_shape] + ([self.image_shape[:-1]] if self.image_shape[-1] == 1 else [])
    if images.shape[1:] in shapes:
      images = images.reshape(-1, *self.image_shape)
    elif images.shape in shapes:
      images = images.reshape(1, *self.image_shape)
    else:
      expected = ' or '.join(f'[n, {", ".join(map(str, shape))}]' for shape in shapes)
      raise ValueError(
        f'This model takes images of shape {expected}, or one image without n, but the input has the shape '
        f'{list(images.shape)}. Resize or reshape the images first.'
      )
    if images.dtype.kind not in 'uif':
      raise ValueError(f'Images must be integers or floats, but the input holds {images.dtype}.')
    is_float = images.dtype.kind == 'f'
    largest = 1.0 if is_float else self.white
    # NaN fails the comparison, too.
    if images.size and not (images.min() >= 0 and images.max() <= largest):
      divide = f'Divide pixels from 0 to {self.white:g} by {self.white:g}, or give them as integers.'
      hint = divide if is_float else 'Or give floats in [0, 1].'
      kind = 'Floats' if is_float else 'Integers'
      raise ValueError(
        f'{kind} must be pixels from 0 to {largest:g}, but the input has values from '
        f'{images.min():g} to {images.max():g}. {hint}'
      )
    return np.divide(images, np.float32(largest), dtype=np.float32)


def load(path: str, extractor: Optional[str] = None) -> Predictor:
  """The predictor of a run.

      predictor = predict.load('runs/mnist')
      labels = predictor(images).argmax(axis=1)

  Args:
    path: The run's folder.
    extractor: For runs with pretrained features, the folder of the extractor if it has moved.

  Raises:
    ValueError: If the folder holds no model yet or cannot be read; the message says what to do.
  """
  if not os.path.isfile(os.path.join(path, run_folder.RUN)):
    raise ValueError(
      f'{path} is not the folder of a run: it holds no {run_folder.RUN}. Give the --output_dir of a run of '
      'experiments.train.'
    )
  model_path = _model_path(path)
  run = folder_files.read_json(path, run_folder.RUN)
  try:
    identity, resolved = run['identity'], run['resolved']
    dataset = registry.parse_spec('dataset', identity['dataset'], datasets.DATASETS)
    features = features_lib.parse(features_lib.located(identity['features'], path))
    public_data = resolved['public_data']
  except (KeyError, TypeError, ValueError) as error:
    raise ValueError(f'{os.path.join(path, run_folder.RUN)} is damaged: {type(error).__name__}: {error}') from None
  shape = dataset.image_shape
  if shape is None and identity['features'] == 'none' and len(resolved.get('input_shape', ())) == 3:
    shape = tuple(resolved['input_shape'])  # The file of the dataset decided.
  if shape is None:
    raise ValueError(
      f'{path} is a run on {identity["dataset"]!r}, whose examples are not images. This command predicts the labels '
      'of images only; load the model with Keras instead.'
    )
  if extractor is not None:
    if not isinstance(features, maps.Pretrained):
      raise ValueError('--extractor is for runs with --features=pretrained, and this run has none. Leave it out.')
    features = dataclasses.replace(features, path=extractor)
  features.check(shape)
  if features.public_data() != public_data:
    raise ValueError(_other_features(features, identity['features'], public_data))
  try:
    if model_path.endswith('.keras'):
      model = tf.keras.models.load_model(model_path, compile=False)
    else:
      model = _rebuilt(model_path, identity, resolved)
  except Exception as error:  # Keras raises nearly anything for a damaged file.
    raise ValueError(
      f'{model_path} cannot be read ({type(error).__name__}: {error}). Train again, or restore the file.'
    ) from None
  return Predictor(shape, dataset.white, features, model, _warnings(path))


def _model_path(path: str) -> str:
  """The file of the model in a run's folder: of a certified run, its tensors in the folder of the certificate."""
  of_certificate = os.path.join(path, run_folder.CERTIFICATE, certificate_folders.MODEL)
  for place in (of_certificate, os.path.join(path, run_folder.MODEL)):
    if os.path.isfile(place):
      return place
  raise ValueError(
    f'{path} holds no model yet: a run writes its model when it ends. If it was interrupted, the command that started '
    'it continues it.'
  )


def _rebuilt(path: str, identity: json_types.JsonView, resolved: json_types.JsonView) -> tf.keras.Model:
  """The model with the trained tensors in a file. Its other tensors, if any, follow from the flags."""
  built = models.build_keras_model(
    resolved['model'], resolved['input_shape'], resolved['num_classes'], identity['compute_dtype'], identity['seed']
  )
  with np.load(path, allow_pickle=False) as kept:
    for index, variable in enumerate(built.trainable_variables):
      variable.assign(kept[f'arr_{index}'])
  return models.with_stock_layers(built)


def predict(path: str, images: np.ndarray, *, invert: bool = False, extractor: Optional[str] = None) -> np.ndarray:
  """The probabilities float32[n, classes] of images under the model of the run in `path`; see `load`, `Predictor`."""
  return load(path, extractor)(images, invert)


def read_images(path: str, channels: int) -> np.ndarray:
  """The images in a file.

  Args:
    path: An .npz, .npy, .png or .jpg file.
    channels: 1 or 3, to which a picture is converted.

  Raises:
    ValueError: If the file is missing, empty, damaged or of another kind.
  """
  suffix = os.path.splitext(path)[1].lower()
  if suffix not in ('.npz', '.npy', *_IMAGES):
    raise ValueError(f'--input={path}: expected a file that ends in .npz, .npy, .png, .jpg or .jpeg.')
  if not os.path.isfile(path):
    raise ValueError(f'--input={path}: there is no such file.')
  try:
    if suffix in _IMAGES:
      if channels not in _MODES:
        raise ValueError(f'a picture has 1 or 3 channels, and this model takes {channels}; give an array')
      return _read_picture(path, channels)
    if not os.path.getsize(path):
      raise ValueError('it is empty; expected an array of images')
    images = np.load(path, allow_pickle=False)
    if isinstance(images, np.ndarray):
      return _not_empty(images)
    with images:
      if not images.files:
        raise ValueError('it holds no array; expected one with the images')
      name = 'x' if 'x' in images.files else images.files[0]
      return _not_empty(images[name])
  except (OSError, EOFError, ValueError, SyntaxError, zipfile.BadZipFile) as error:
    raise ValueError(f'--input={path} cannot be read: {error}.') from None


def _not_empty(images: np.ndarray) -> np.ndarray:
  if not images.size:
    raise ValueError(f'its array has the shape {list(images.shape)}, which holds no image; expected at least one')
  return images


def _read_picture(path: str, channels: int) -> np.ndarray:
  with pil.open(path) as picture:
    if picture.mode not in ('1', 'L', 'P', 'RGB'):
      raise ValueError(f'its pixels are {picture.mode}; save it with 8 bits a pixel, grey or RGB, not transparent')
    return np.divide(picture.convert(_MODES[channels]), np.float32(255), dtype=np.float32)


def _other_features(features: maps.Features, spec: str, public_data: str) -> str:
  if isinstance(features, maps.Pretrained) and features.card()['sha256'] not in public_data:
    return (
      f'The extractor in {features.path} is not the one that this run was trained with. Give the folder of the right '
      f'one as --extractor. The run says: {public_data}'
    )
  return (
    f'The features {spec} differ here from those that this run was trained with: the versions of this program, NumPy '
    f'and TensorFlow, or the processor, are others. Predict where the run was trained. The run says: {public_data}'
  )


def _warnings(path: str) -> tuple[str, ...]:
  summary = run_folder.read_summary(path)
  if summary is None:
    return (f'{path} holds no {run_folder.SUMMARY}: the run is still going on, or was cut off.',)
  if summary.get('finished') is not True:
    return (
      f'The run stopped after round {summary.get("rounds")} of {summary.get("planned_rounds")}: its model is not the '
      'final one.',
    )
  return ()


def _write(probabilities: np.ndarray, path: Optional[str]) -> None:
  labels = probabilities.argmax(axis=1).astype(np.int32)
  if path is not None and path.endswith('.npz'):
    files.write(path, files.npz({'labels': labels, 'probabilities': probabilities}))
    return
  with contextlib.ExitStack() as stack:
    f = sys.stdout if path is None else stack.enter_context(open(path, 'w', newline='', encoding='utf-8'))
    writer = csv.writer(f, lineterminator='\n')
    writer.writerow(('label', 'probability'))
    writer.writerows((label, f'{row[label]:.6g}') for label, row in zip(labels, probabilities))


def main(argv: list[str]) -> int:
  """Predicts as the flags in `argv[1:]` say; returns the exit status."""
  paths = command_line.parse(_FLAGS, argv, __doc__)
  if len(paths) != 1:
    raise ValueError(
      f'Give the folder of one run, found {len(paths)}. Usage: python -m experiments.predict RUN --input=FILE'
    )
  if _INPUT.value is None:
    raise ValueError('Give the file with the images: --input=FILE.')
  if _OUTPUT.value is not None and not _OUTPUT.value.endswith(('.csv', '.npz')):
    raise ValueError(f'--output={_OUTPUT.value}: expected a file that ends in .csv or .npz.')
  predictor = load(paths[0], _EXTRACTOR.value)
  for warning in predictor.warnings:
    print(f'Warning: {warning}', file=sys.stderr)
  images = read_images(_INPUT.value, predictor.image_shape[-1])
  _write(predictor(images, _INVERT.value), _OUTPUT.value)
  return 0


if __name__ == '__main__':
  command_line.run(main)
