"""Prints where the time of a training step goes: the shares of TensorFlow's operations, by their kind.

    python docs/benchmarks/step_profile.py mnist_cnn
    ONEDNN_MAX_CPU_ISA=AVX2 python docs/benchmarks/step_profile.py mnist_cnn

A client trains on one thread. Of each operation the least time of 120 counts: other programs only ever add to it.
Convolutions and matrix products were 89.5% of a step of `mnist_cnn` with AVX-512 and 93.9% with AVX2 (November 2026).
"""

import collections
import glob
import os
import sys
import tempfile

import numpy as np

import quap_tff  # isort: skip  # It turns on oneDNN, which TensorFlow asks for when it is loaded.
import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2
import tensorflow_federated as tff

from quap_tff.common import kernels
from quap_tff.common.numbers import seeds
from quap_tff.training import client_update
from quap_tff.training import models

_SHAPES = {'mnist_cnn': (28, 28, 1), 'cifar10_cnn': (32, 32, 3), 'digits_cnn': (8, 8, 1)}
_BATCH, _STEPS, _ROUNDS, _SHOWN = 32, 20, 6, 14


def client(name: str) -> tf.types.experimental.GenericFunction:
  """A function of a round's number: the training of a client on images of noise."""
  model = models.build_model_fn(name, _SHAPES[name], 10, 'float32', seed=2)()
  weights = tf.nest.map_structure(lambda v: v.read_value(), tff.learning.models.ModelWeights.from_model(model))
  rng, count = np.random.default_rng(0), _BATCH * _STEPS
  images, labels = rng.random((count, *_SHAPES[name]), np.float32), rng.integers(0, 10, count)
  examples = collections.OrderedDict(x=tf.constant(images), y=tf.constant(labels, tf.int32))
  optimizer = tff.learning.optimizers.build_sgdm(0.1)
  config = client_update.ClientWorkConfig(batch_size=_BATCH)
  update = client_update.build_client_update(model, optimizer, config)
  seed = seeds.initial_seed(1, 'client_update')
  return tf.function(lambda round_num: update(weights, examples, tf.constant(1, tf.int64), round_num, seed))


def durations(folder: str) -> dict[str, list[float]]:
  """Milliseconds of every run of each operation, by `name:kind`, from the profile in a folder."""
  (path,) = glob.glob(os.path.join(folder, '**', '*.xplane.pb'), recursive=True)
  space, found = xplane_pb2.XSpace(), collections.defaultdict(list)
  with open(path, 'rb') as f:
    space.ParseFromString(f.read())
  for plane in space.planes:
    for event in (event for line in plane.lines for event in line.events):
      name = plane.event_metadata[event.metadata_id].name
      if ':' in name and '::' not in name:
        found[name].append(event.duration_ps / 1e9)
  return found


def main(name: str) -> None:
  tf.config.threading.set_intra_op_parallelism_threads(1)
  tf.config.threading.set_inter_op_parallelism_threads(1)
  train = client(name)
  train(tf.constant(1))
  with tempfile.TemporaryDirectory() as folder:
    with tf.profiler.experimental.Profile(folder):
      for round_num in range(_ROUNDS):
        train(tf.constant(2 + round_num))
    found = durations(folder)
  kinds = collections.Counter()
  for operation, times in found.items():
    runs_in_a_step = len(times) / (_STEPS * _ROUNDS)
    if runs_in_a_step >= 0.9:
      kinds[operation.rpartition(':')[2]] += runs_in_a_step * min(times)
  print(f'quap_tff {quap_tff.__version__}, TensorFlow {tf.__version__}, {kernels.described()}')
  print(f'{name}: {kinds.total():.2f} ms a step')
  for kind, time in kinds.most_common(_SHOWN):
    print(f'{time / kinds.total():7.1%}  {kind}')


if __name__ == '__main__':
  main(*sys.argv[1:])
