"""Compares what two contexts returned: the same containers, the same kinds of leaves, values within a tolerance."""

from collections.abc import Iterator
import contextlib
from typing import Optional

import attrs
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from quap_tff import runtime


@contextlib.contextmanager
def threads(
  context: runtime.InProcessContext, num_threads: int, clients_per_call: Optional[int] = None
) -> Iterator[None]:
  """Runs computations on `context` with another number of threads and of clients in a call, compiled as they are."""
  before = context._num_threads
  _set_threads(context, num_threads)
  context._clients_per_call = clients_per_call
  try:
    with tff.framework.get_context_stack().install(context):
      yield
  finally:
    _set_threads(context, before)
    context._clients_per_call = None


def _set_threads(context, num_threads):
  pool, context._pool, context._num_threads = context._pool, None, num_threads
  if pool is not None:
    pool.shutdown()


def assert_same(found, expected, tolerance, path='result'):
  """Fails where `found` differs from `expected`; `tolerance` 0 asks for the same bits."""
  # By name: TFF makes some named tuples' classes anew for each process.
  datasets = isinstance(found, tf.data.Dataset) and isinstance(expected, tf.data.Dataset)
  assert datasets or type(found).__name__ == type(expected).__name__, (path, type(found), type(expected))
  if isinstance(expected, tf.data.Dataset):
    assert found.element_spec == expected.element_spec, path
    assert_same(list(found), list(expected), tolerance, path)
  elif attrs.has(type(expected)):
    for field in attrs.fields(type(expected)):
      assert_same(getattr(found, field.name), getattr(expected, field.name), tolerance, f'{path}.{field.name}')
  elif isinstance(expected, dict):
    assert list(found) == list(expected), path
    for key in expected:
      assert_same(found[key], expected[key], tolerance, f'{path}[{key!r}]')
  elif isinstance(expected, (list, tuple)):
    assert len(found) == len(expected), path
    for i, (f, e) in enumerate(zip(found, expected)):
      assert_same(f, e, tolerance, f'{path}[{i}]')
  else:
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.dtype == expected.dtype and found.shape == expected.shape, (path, found.dtype, expected.dtype)
    if tolerance and found.dtype.kind == 'f':
      np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance, err_msg=path)
    else:
      np.testing.assert_array_equal(found, expected, err_msg=path)
