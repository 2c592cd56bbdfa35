"""Rounds as plain functions walk their loops operation by operation. Here each loop is compiled once, as TFF has it."""

from collections.abc import Iterator
import contextlib

import pytest
import tensorflow as tf

from quap_tff.common.numbers import chacha20
from quap_tff.mechanisms.noise import gaussian

_blocks, _integers, _multiplier = chacha20.blocks, chacha20.integers, gaussian._analytic_multiplier

_SIGNATURE = [tf.TensorSpec([4], tf.int64), tf.TensorSpec([None, 3], tf.uint32), tf.TensorSpec([], tf.int32)]


@tf.function(input_signature=_SIGNATURE, autograph=False)
def _compiled_blocks(key, nonces, count):
  return _blocks(key, nonces, count)


@tf.function(input_signature=_SIGNATURE, autograph=False)
def _compiled_integers(key, nonces, count):
  return _integers(key, nonces, count)


@tf.function(autograph=False)
def _compiled_multiplier(epsilon, delta):
  return _multiplier(epsilon, delta)


def _eager_blocks(key, nonces, count, first=0):
  if first or not tf.executing_eagerly():
    return _blocks(key, nonces, count, first)
  return _compiled_blocks(key, nonces, tf.cast(count, tf.int32))


def _eager_integers(key, nonces, count):
  if not tf.executing_eagerly():
    return _integers(key, nonces, count)
  return _compiled_integers(key, nonces, tf.cast(count, tf.int32))


def _eager_multiplier(epsilon, delta):
  if not tf.executing_eagerly():
    return _multiplier(epsilon, delta)
  return _compiled_multiplier(epsilon, tf.constant(delta, tf.float64))


@contextlib.contextmanager
def used() -> Iterator[None]:
  """Plain functions use the compiled loops; what is traced, in TFF or elsewhere, stays as it is."""
  with pytest.MonkeyPatch.context() as monkeypatch:
    monkeypatch.setattr(chacha20, 'blocks', _eager_blocks)
    monkeypatch.setattr(chacha20, 'integers', _eager_integers)
    monkeypatch.setattr(gaussian, '_analytic_multiplier', _eager_multiplier)
    yield
