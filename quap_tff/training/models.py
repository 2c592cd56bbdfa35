"""Models by name, and how they are saved.

A model is a function from its layers' maker and the number of classes to the layers after the input, the last of which
gives float32 logits, and a line in `MODELS`. A model of sequences of tokens is also named in `OF_SEQUENCES`.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
import inspect
import json
import math
from typing import Callable, Optional
import zipfile

import numpy as np

from quap_tff.common import array_types
from quap_tff.common import checks
from quap_tff.common import lazy
from quap_tff.common import registry
from quap_tff.common.lazy import tf
from quap_tff.common.lazy import tff

dropout = lazy.module('quap_tff.training.dropout')
model_functions = lazy.module('quap_tff.training.model_functions')

# The choices of a compute dtype, and Keras' names of them.
COMPUTE_DTYPES = {'float32': 'float32', 'bfloat16': 'mixed_bfloat16'}
# Scale of `linear_features`: a choice of units, by which updates on features of unit norm are of norm 1 or so. Scale s,
# learning rate r and clipping norm C do what scale 1, s²·r and s·C do. `scaled_linear` brings its rows to this norm.
LOGIT_SCALE = 10.0


class LayerMaker:
  """Makes one model's layers: in one compute dtype, with seeded initial weights.

  Weights are float32 whatever the compute dtype. The k-th initializer gets a seed made of (`seed`, k), so the initial
  weights are a pure function of `seed`.

  Args:
    compute_dtype: 'float32' or 'bfloat16'.
    seed: A non-negative integer, or `None` for TensorFlow's own unseeded initial weights.
    input_shape: The shape of an example.
  """

  def __init__(self, compute_dtype: str = 'float32', seed: Optional[int] = None, input_shape: Sequence[int] = ()):
    self.input_shape = tuple(input_shape)
    self._policy = tf.keras.mixed_precision.Policy(registry.lookup('compute dtype', compute_dtype, COMPUTE_DTYPES))
    self._seed = None if seed is None else checks.integer('model seed', seed, at_least=0)
    self._count = 0

  def _initializer(self) -> tf.keras.initializers.Initializer:
    index, self._count = self._count, self._count + 1
    if self._seed is None:
      return tf.keras.initializers.GlorotUniform()
    mixed = np.random.SeedSequence([self._seed, index]).generate_state(1)[0]
    return tf.keras.initializers.GlorotUniform(seed=int(mixed) & 0x7FFFFFFF)

  def __call__(
    self, layer: type[tf.keras.layers.Layer], *arguments: object, **options: object
  ) -> tf.keras.layers.Layer:
    """A layer with the compute dtype, and with seeded weights where it has weights.

    Args:
      layer: A class of `tf.keras.layers`, or one like it.
      *arguments: Its own arguments.
      **options: Its own options. `name` should be given, because Keras' own names depend on what was built before.
    """
    options.setdefault('dtype', self._policy)
    for weights in ('kernel', 'recurrent', 'embeddings'):
      name = f'{weights}_initializer'
      if name in inspect.signature(layer.__init__).parameters and name not in options:
        options[name] = self._initializer()
    return layer(*arguments, **options)

  def conv(self, filters: int, *, name: str, padding: str = 'valid') -> tf.keras.layers.Layer:
    """A 3x3 convolution and ReLU."""
    return self(tf.keras.layers.Conv2D, filters, 3, padding=padding, activation='relu', name=name)

  def dense(self, units: int, *, name: str) -> tf.keras.layers.Layer:
    """A fully connected layer and ReLU."""
    return self(tf.keras.layers.Dense, units, activation='relu', name=name)

  def recurrent(self, cell: type[tf.keras.layers.Layer], units: int, *, name: str) -> tf.keras.layers.Layer:
    """A layer of such cells, as `tf.keras.layers.LSTMCell`, with an output for each token of a sequence."""
    # Not Keras' LSTM and GRU layers: these put two implementations into the graph, of which TensorFlow chooses one when
    # it runs, and a runtime that imports graphs as bare operations cannot do that. No masks: what follows the end of a
    # text is padding, which no output before it depends on, and which has no labels.
    return self(tf.keras.layers.RNN, self(cell, units, name='cell'), return_sequences=True, name=name)

  def logits(self, num_classes: int) -> tf.keras.layers.Layer:
    """The final Dense layer; always computed in float32, for a loss in bfloat16 loses most of its digits."""
    return self(tf.keras.layers.Dense, num_classes, dtype='float32', name='logits')


def mnist_cnn(make: LayerMaker, num_classes: int) -> list[tf.keras.layers.Layer]:
  """The documents' MNIST model, two convolutions and a hidden Dense layer; also TFF's own EMNIST 'cnn_dropout'.

  1,199,882 weights on 28x28x1 and 10 classes, 1,290 of them in the final layer.
  """
  return [
    make.conv(32, name='conv1'),
    make.conv(64, name='conv2'),
    make(tf.keras.layers.MaxPooling2D, 2, name='pool'),
    make(dropout.SeededDropout, 0.25, name='dropout1'),
    make(tf.keras.layers.Flatten, name='flatten'),
    make.dense(128, name='dense'),
    make(dropout.SeededDropout, 0.5, name='dropout2'),
    make.logits(num_classes),
  ]


def cifar10_cnn(make: LayerMaker, num_classes: int) -> list[tf.keras.layers.Layer]:
  """The documents' CIFAR-10 model: three convolutions, each halved by pooling, and two hidden Dense layers.

  1,453,834 weights on 32x32x3 and 10 classes, 1,290 of them in the final layer.
  """
  return [
    make.conv(64, padding='same', name='conv1'),
    make(tf.keras.layers.MaxPooling2D, 2, name='pool1'),
    make.conv(128, padding='same', name='conv2'),
    make(tf.keras.layers.MaxPooling2D, 2, name='pool2'),
    make.conv(256, padding='same', name='conv3'),
    make(tf.keras.layers.MaxPooling2D, 2, name='pool3'),
    make(tf.keras.layers.Flatten, name='flatten'),
    make.dense(256, name='dense1'),
    make(dropout.SeededDropout, 0.5, name='dropout'),
    make.dense(128, name='dense2'),
    make.logits(num_classes),
  ]


def digits_cnn(make: LayerMaker, num_classes: int) -> list[tf.keras.layers.Layer]:
  """A small model of the 8x8 digits, one convolution and a hidden Dense layer: trains in seconds.

  8,714 weights on 8x8x1 and 10 classes, 330 of them in the final layer.
  """
  return [
    make.conv(16, padding='same', name='conv'),
    make(tf.keras.layers.MaxPooling2D, 2, name='pool'),
    make(tf.keras.layers.Flatten, name='flatten'),
    make.dense(32, name='dense'),
    make.logits(num_classes),
  ]


def linear_features(make: LayerMaker, num_classes: int) -> list[tf.keras.layers.Layer]:
  """A linear head on fixed features, logits = s·x·W with a public scale s: all that is trained is one Dense layer.

  There is no bias, and the kernel starts at zero, which is public.
  """
  zeros = dict(use_bias=False, kernel_initializer='zeros', dtype='float32')
  head = make(tf.keras.layers.Dense, num_classes, **zeros, name='logits')
  return [
    make(tf.keras.layers.Flatten, name='flatten'),
    make(tf.keras.layers.Rescaling, LOGIT_SCALE, name='scale'),
    head,
  ]


def logistic_regression(make: LayerMaker, num_classes: int) -> list[tf.keras.layers.Layer]:
  """Multinomial logistic regression, the convex baseline: one Dense layer on the flattened example."""
  return [make(tf.keras.layers.Flatten, name='flatten'), make.logits(num_classes)]


def scaled_linear(make: LayerMaker, num_classes: int) -> list[tf.keras.layers.Layer]:
  """A linear model from zero on examples that are scaled to a norm of about 10: logits = W·(10/R)·x + b.

  R is a public function of the shape, see `row_norm`. So one learning rate and one clipping norm suit all shapes.
  """
  return [
    make(tf.keras.layers.Flatten, name='flatten'),
    make(tf.keras.layers.Rescaling, LOGIT_SCALE / row_norm(make.input_shape), name='scale', dtype='float32'),
    make(tf.keras.layers.Dense, num_classes, kernel_initializer='zeros', dtype='float32', name='logits'),
  ]


def row_norm(shape: Sequence[int]) -> float:
  """R, the norm that an example of this shape is expected to have, from the shape alone.

  Standardised columns have √columns. Images with pixels in [0, 1] get a third of the root of their size, which is
  about what drawn characters have.
  """
  root = math.sqrt(math.prod(shape))
  return root if len(shape) == 1 else root / 3


def mlp(make: LayerMaker, num_classes: int) -> list[tf.keras.layers.Layer]:
  """Two hidden Dense layers of 200 units on the flattened example: the "2NN" of McMahan et al. 2017.

  199,210 weights on 28x28x1 and 10 classes, 2,010 of them in the final layer.
  """
  return [
    make(tf.keras.layers.Flatten, name='flatten'),
    make.dense(200, name='dense1'),
    make.dense(200, name='dense2'),
    make.logits(num_classes),
  ]


def shakespeare_lstm(make: LayerMaker, num_classes: int) -> list[tf.keras.layers.Layer]:
  """TFF's baseline for next-character prediction: an embedding of size 8 and two LSTM layers of 256 units.

  McMahan et al. 2017, arXiv:1602.05629. 820,522 weights on 90 tokens, 23,130 of them in the final layer. The logits are
  for each character of a sequence, here and below.
  """
  return [
    make(tf.keras.layers.Embedding, num_classes, 8, name='embedding'),
    make.recurrent(tf.keras.layers.LSTMCell, 256, name='lstm1'),
    make.recurrent(tf.keras.layers.LSTMCell, 256, name='lstm2'),
    make.logits(num_classes),
  ]


def shakespeare_gru(make: LayerMaker, num_classes: int) -> list[tf.keras.layers.Layer]:
  """A small model for next-character prediction: an embedding of size 8 and one GRU layer of 128 units.

  65,322 weights on 90 tokens, 11,610 of them in the final layer.
  """
  return [
    make(tf.keras.layers.Embedding, num_classes, 8, name='embedding'),
    make.recurrent(tf.keras.layers.GRUCell, 128, name='gru'),
    make.logits(num_classes),
  ]


def shakespeare_bigram(make: LayerMaker, num_classes: int) -> list[tf.keras.layers.Layer]:
  """A linear model for next-character prediction: logits = W·(one-hot vector of the character), from zero.

  8,100 weights on 90 tokens. All that is trained is one linear layer over fixed features, as in `linear_features`, and
  the features follow from the vocabulary, which is public. The layer is a look-up, not a Dense layer, as W times a
  one-hot vector is a row of W.
  """
  zeros = dict(embeddings_initializer='zeros', dtype='float32')
  return [make(tf.keras.layers.Embedding, num_classes, num_classes, **zeros, name='logits')]


def words_lstm(make: LayerMaker, num_classes: int) -> list[tf.keras.layers.Layer]:
  """Next-word prediction: an embedding of size 96, an LSTM layer of 670 units, and a Dense layer back to 96.

  The sizes of Reddi et al. 2021, arXiv:2003.00295. 4,050,748 weights on 10,004 tokens, 970,388 of them in the final
  layer.
  """
  return [
    make(tf.keras.layers.Embedding, num_classes, 96, name='embedding'),
    make.recurrent(tf.keras.layers.LSTMCell, 670, name='lstm'),
    make(tf.keras.layers.Dense, 96, name='projection'),
    make.logits(num_classes),
  ]


MODELS: dict[str, Callable[[LayerMaker, int], list[tf.keras.layers.Layer]]] = {
  'cifar10_cnn': cifar10_cnn,
  'digits_cnn': digits_cnn,
  'femnist_cnn': mnist_cnn,  # The same architecture with 10 or 62 classes.
  'linear_features': linear_features,
  'logistic_regression': logistic_regression,
  'mlp': mlp,
  'mnist_cnn': mnist_cnn,
  'scaled_linear': scaled_linear,
  'shakespeare_bigram': shakespeare_bigram,
  'shakespeare_gru': shakespeare_gru,
  'shakespeare_lstm': shakespeare_lstm,
  'words_lstm': words_lstm,
}
# Their examples are sequences of tokens, and they have an output for each token. The classes are the tokens.
OF_SEQUENCES = frozenset({'shakespeare_bigram', 'shakespeare_gru', 'shakespeare_lstm', 'words_lstm'})

# Why examples do not fit a model, by Keras' words for it.
_MISFITS = {
  'Negative dimension size': 'they are too small for its convolutions and poolings',
  '<= 0 due to downsampling': 'they are too small for its convolutions and poolings',
  'is incompatible with the layer': 'its layers are for examples with other dimensions, such as images',
}


def build_keras_model(
  name: str, input_shape: Sequence[int], num_classes: int, compute_dtype: str = 'float32', seed: Optional[int] = None
) -> tf.keras.Model:
  """The named model, uncompiled.

  Args:
    name: A key of `MODELS`.
    input_shape: The shape of one example.
    num_classes: The number of classes, at least 2.
    compute_dtype: 'float32' or 'bfloat16'. Weights and logits are float32 either way.
    seed: A non-negative integer from which the initial weights follow, or `None` for other weights each time.

  Raises:
    ValueError: For an unknown model or dtype (with the nearest names), a number out of range, or examples that are too
      small for the model's layers.
  """
  layers_of = registry.lookup('model', name, MODELS)
  shape = tuple(checks.integer('every dimension of the input shape', int(d), at_least=1) for d in input_shape)
  num_classes = checks.integer('num_classes', num_classes, at_least=2)
  make = LayerMaker(compute_dtype, seed, shape)
  dtype = 'int32' if name in OF_SEQUENCES else 'float32'
  first = tf.keras.layers.InputLayer(input_shape=shape, dtype=dtype, name='input')
  try:
    # The function's name, not the registry's: the same architecture gives the same file.
    return tf.keras.Sequential([first, *layers_of(make, num_classes)], name=layers_of.__name__)
  except ValueError as error:
    why = next((ours for keras, ours in _MISFITS.items() if keras in str(error)), None)
    if why is None:
      raise
    raise ValueError(
      f'The model {name} does not take examples of shape {list(shape)}: {why}. Choose a model that takes any shape, '
      'such as mlp or logistic_regression.'
    ) from error


def input_spec(input_shape: Sequence[int], of_sequences: bool = False) -> array_types.StructureSpec:
  """A batch of examples as the models take it: `<x=float32[?, *input_shape], y=int32[?]>`.

  For sequences of tokens, it is `<x=int32[?, length], y=int32[?, length]>`. A label of -1 says that there is none.
  """
  if of_sequences:
    tokens = tf.TensorSpec((None, *input_shape), tf.int32)
    return collections.OrderedDict(x=tokens, y=tokens)
  x = tf.TensorSpec((None, *input_shape), tf.float32)
  return collections.OrderedDict(x=x, y=tf.TensorSpec((None,), tf.int32))


def build_model_fn(
  name: str, input_shape: Sequence[int], num_classes: int, compute_dtype: str = 'float32', seed: Optional[int] = None
) -> Callable[[], tff.learning.models.VariableModel]:
  """A `model_fn` for TFF's learning API: the named classifier with cross-entropy loss.

  Its metrics are `accuracy`, `loss`, `num_examples` and `num_batches`. The arguments and errors are those of
  `build_keras_model`; they are checked here, not when the model is first made.
  """
  with tf.Graph().as_default():
    build_keras_model(name, input_shape, num_classes, compute_dtype, seed)
  of_sequences = name in OF_SEQUENCES
  spec = input_spec(input_shape, of_sequences)

  def model_fn() -> tff.learning.models.VariableModel:
    if of_sequences:
      loss, label_weights = model_functions.LabelledCrossEntropy(), model_functions.label_weights
    else:
      loss, label_weights = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True), None
    keras_model = build_keras_model(name, input_shape, num_classes, compute_dtype, seed)
    kind = model_functions.Classifier if compute_dtype == 'float32' else model_functions.MixedPrecisionClassifier
    return kind(keras_model, loss, spec, label_weights)

  return model_fn


def with_stock_layers(model: tf.keras.Model) -> tf.keras.Model:
  """A copy of the `tf.keras.Model`, weights included, for saving: plain Keras loads the file without `quap_tff`.

  Each `SeededDropout` becomes a `tf.keras.layers.Dropout` of the same name and rate, so predictions are the same.
  """

  def stock(layer: tf.keras.layers.Layer) -> tf.keras.layers.Layer:
    kind = tf.keras.layers.Dropout if isinstance(layer, dropout.SeededDropout) else layer.__class__
    return kind.from_config(layer.get_config())

  copy = tf.keras.models.clone_model(model, clone_function=stock)
  copy.set_weights(model.get_weights())
  return copy


def save_model(model: tf.keras.Model, path: str) -> None:
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
  metadata = json.loads(entries['metadata.json'])
  del metadata['date_saved']
  entries['metadata.json'] = json.dumps(metadata).encode()
  with zipfile.ZipFile(path, 'w') as archive:
    for name, content in entries.items():
      archive.writestr(zipfile.ZipInfo(name), content)
