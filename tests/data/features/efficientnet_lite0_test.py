"""Weights in PyTorch's old format, read without PyTorch and without running what the file names."""

import collections
import io
import os
import pickle
import struct
import sys
import types
import zipfile

import numpy as np
import pytest

from data import reading
from data.features import efficientnet_lite0

MAGIC, PROTOCOL = 119547037146038801333356, 1001


class FloatStorage:
  pass


class Tensor:
  def __init__(self, array, offset=0, shape=None, strides=None):
    self.array, self.offset = np.ascontiguousarray(array, np.float32), offset
    self.shape = self.array.shape if shape is None else shape
    self.strides = tuple(step // 4 for step in self.array.strides) if strides is None else strides


@pytest.fixture(name='write')
def fixture_write(monkeypatch):
  """Writes tensors as PyTorch did before version 1.6; pickle demands that what it names can be imported."""

  def rebuild(*_):
    raise AssertionError('A file must not run anything.')

  for module, name, value in (('torch', 'FloatStorage', FloatStorage), ('torch._utils', '_rebuild_tensor_v2', rebuild)):
    value.__module__, value.__qualname__, value.__name__ = module, name, name
    monkeypatch.setitem(sys.modules, module, types.ModuleType(module))
    setattr(sys.modules[module], name, value)

  class Pickler(pickle.Pickler):
    def persistent_id(self, obj):
      if isinstance(obj, np.ndarray):
        return ('storage', FloatStorage, str(id(obj)), 'cpu', obj.size, None)
      return None

    def reducer_override(self, obj):
      if isinstance(obj, Tensor):
        return rebuild, (obj.array, obj.offset, obj.shape, obj.strides, False, collections.OrderedDict())
      return NotImplemented

  def write(tensors, magic=MAGIC):
    f = io.BytesIO()
    for head in (magic, PROTOCOL, {'little_endian': True}):
      pickle.dump(head, f, 2)
    Pickler(f, 2).dump(collections.OrderedDict(tensors))
    arrays = [one.array for one in tensors.values() if isinstance(one, Tensor)]
    pickle.dump([str(id(one)) for one in arrays], f, 2)
    for one in arrays:
      f.write(struct.pack('<q', one.size) + one.tobytes())
    return f.getvalue()

  return write


def wheel(path, content):
  with zipfile.ZipFile(path, 'w') as f:
    f.writestr('models/weights.pth', content)
  return str(path)


def test_tensors_are_read_with_their_offsets_and_strides(write):
  array = np.arange(12, dtype=np.float32).reshape(3, 4)
  turned = Tensor(array, offset=1, shape=(3, 2), strides=(1, 4))
  found = efficientnet_lite0.read_tensors(io.BytesIO(write({'a': Tensor(array + 20), 'b': turned})))
  assert list(found) == ['a', 'b']
  np.testing.assert_array_equal(found['a'], array + 20)
  np.testing.assert_array_equal(found['b'], [[1, 5], [2, 6], [3, 7]])


def test_nothing_that_a_file_names_is_run(write, tmp_path):
  class Evil:
    def __reduce__(self):
      return os.mkdir, (str(tmp_path / 'made'),)

  with pytest.raises(ValueError, match='mkdir, and only tensors are read'):
    efficientnet_lite0.read_tensors(io.BytesIO(write({'a': Evil()})))
  assert not (tmp_path / 'made').exists()


@pytest.mark.parametrize(
  'shape, strides, offset', [((3, 4), (4, 1), 1), ((4, 4), (4, 1), 0), ((2,), (-1,), 3), ((2,), (1,), -1)]
)
def test_a_tensor_outside_its_storage_is_refused(write, shape, strides, offset):
  one = Tensor(np.zeros((3, 4)), offset, shape, strides)
  with pytest.raises(ValueError, match='outside its storage of 12 numbers'):
    efficientnet_lite0.read_tensors(io.BytesIO(write({'a': one})))


def test_a_file_of_another_kind_or_cut_short_is_refused(write):
  content = write({'a': Tensor(np.zeros(5))})
  for bad, says in ((content[:-1], 'cut short'), (content[:30], 'Error'), (write({}, magic=1), 'begins with')):
    with pytest.raises(ValueError, match=says):
      efficientnet_lite0.read_tensors(io.BytesIO(bad))


def test_a_wheel_without_the_tensors_says_what_to_give(write, tmp_path):
  path = wheel(tmp_path / 'a.whl', write({'_bn0.weight': Tensor(np.zeros(3))}))
  with pytest.raises(reading.DataFileError, match="'_conv_stem.weight' is missing. Give the wheel"):
    efficientnet_lite0.load_network(path)
  with pytest.raises(reading.DataFileError, match='cannot be read'):
    efficientnet_lite0.load_network(str(tmp_path / 'none.whl'))


# Kernel size, channels in and out, and expansion of the 16 blocks.
_BLOCKS = [(3, 32, 16, 1), (3, 16, 24, 6), (3, 24, 24, 6), (5, 24, 40, 6), (5, 40, 40, 6), (3, 40, 80, 6)]
_BLOCKS += [(3, 80, 80, 6), (3, 80, 80, 6), (5, 80, 112, 6), (5, 112, 112, 6), (5, 112, 112, 6), (5, 112, 192, 6)]
_BLOCKS += [(5, 192, 192, 6), (5, 192, 192, 6), (5, 192, 192, 6), (3, 192, 320, 6)]


def random_tensors():
  """Tensors of the published network's names and shapes, as PyTorch has them."""
  rng, tensors = np.random.default_rng(0), {}

  def add(name, *shape):
    tensors[name] = rng.uniform(0.1, 1, shape).astype(np.float32)

  def normalise(name, channels):
    for part in ('weight', 'bias', 'running_mean', 'running_var'):
      add(f'{name}.{part}', channels)

  def convolve(name, norm, out, into, size=1):
    add(f'{name}.weight', out, into, size, size)
    normalise(norm, out)

  convolve('_conv_stem', '_bn0', 32, 3, 3)
  for index, (size, into, out, expansion) in enumerate(_BLOCKS):
    name, wide = f'_blocks.{index}', into * expansion
    if expansion > 1:
      convolve(f'{name}._expand_conv', f'{name}._bn0', wide, into)
    convolve(f'{name}._depthwise_conv', f'{name}._bn1', wide, 1, size)
    convolve(f'{name}._project_conv', f'{name}._bn2', out, wide)
  convolve('_conv_head', '_bn1', 1280, 320)
  add('_fc.weight', 1000, 1280)
  add('_fc.bias', 1000)
  return tensors


@pytest.mark.slow
def test_the_network_has_each_tensor_where_it_belongs():
  tensors = random_tensors()
  network = efficientnet_lite0.build(tensors)
  assert len(network.weights) == len(tensors) and network.count_params() == sum(one.size for one in tensors.values())
  assert sum(int(np.prod(one.shape)) for one in network.trainable_weights) == 4_652_008  # As published.
  kernel = lambda layer: network.get_layer(layer).get_weights()[0]
  np.testing.assert_array_equal(kernel('conv_stem')[2, 0, 1], tensors['_conv_stem.weight'][:, 1, 2, 0])
  depthwise = tensors['_blocks.3._depthwise_conv.weight']
  np.testing.assert_array_equal(kernel('blocks.3._depthwise_conv')[4, 1, :, 0], depthwise[:, 0, 4, 1])
  norm = network.get_layer('blocks.15._bn2').get_weights()
  for part, weights in zip(('weight', 'bias', 'running_mean', 'running_var'), norm):
    np.testing.assert_array_equal(weights, tensors[f'_blocks.15._bn2.{part}'])
  assert network.get_layer('conv_head').output_shape[1:] == (7, 7, 1280)
  assert sum(type(layer).__name__ == 'Add' for layer in network.layers) == 9  # The 16 blocks less 7 that begin stages.
