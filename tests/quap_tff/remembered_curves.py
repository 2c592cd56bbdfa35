"""Within `used()`, an ε that was computed before is not computed again.

A plan, a certificate and its verification spend most of their time on the curves of a few clients. Tests make the same
ones again and again, and change one thing in them.
"""

from collections.abc import Iterator
import contextlib
import threading

import numpy as np
import pytest

from quap_tff.common.numbers import tradeoff

# Larger arrays are computed each time.
_LARGEST = 256

_epsilon_of = tradeoff._epsilon_of
_known: dict[tuple, np.ndarray] = {}
_lock = threading.Lock()


def _remembered(mu, delta):
  if mu.size + delta.size > _LARGEST:
    return _epsilon_of(mu, delta)
  key = (mu.shape, mu.tobytes(), delta.shape, delta.tobytes())
  with _lock:
    if key not in _known:
      _known[key] = _epsilon_of(mu, delta)
    return _known[key].copy()


@contextlib.contextmanager
def used() -> Iterator[None]:
  """Equal arrays have their ε from the first time."""
  with pytest.MonkeyPatch.context() as monkeypatch:
    monkeypatch.setattr(tradeoff, '_epsilon_of', _remembered)
    yield
