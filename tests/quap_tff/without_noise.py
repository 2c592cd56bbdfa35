"""Certified rounds without noise, for what does not depend on it: drawing takes most of a round's time."""

from collections.abc import Iterator
import contextlib

import pytest

from quap_tff.common.lazy import tf
from quap_tff.common.numbers import chacha20
from quap_tff.mechanisms.noise import integer_noise


@contextlib.contextmanager
def used() -> Iterator[None]:
  """Rounds that are played or traced here draw zeros."""
  with pytest.MonkeyPatch.context() as monkeypatch:
    monkeypatch.setattr(chacha20, 'derived_key', lambda key, nonce: key)
    monkeypatch.setattr(integer_noise.Sampler, 'draw', lambda self, key, count, *_, **__: tf.zeros([count], tf.int64))
    yield
