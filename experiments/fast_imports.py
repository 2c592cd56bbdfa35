"""Imports TensorFlow and TFF without two large packages that no experiment uses: JAX and TensorFlow Probability.

TensorFlow imports JAX, if it is there, to convert models to TensorFlow Lite. TFF imports it for `tff.jax`, and
TensorFlow Privacy imports TensorFlow Probability for noise whose values are integers. docs/benchmarks.md says how much
time is saved without them. `tff.jax` and TensorFlow Privacy import them when they first use them, and so can anyone
else. Only TensorFlow Lite's converter goes without JAX. That is why the programs of this folder import TFF in this way,
and `quap_tff` does not.
"""

from collections.abc import Iterator, Sequence
import contextlib
import importlib
import importlib.machinery
import sys
import types
from typing import Any

from quap_tff.common import lazy

# TensorFlow can do without it.
_LEFT_OUT = 'jax'
# Imported when it is first used.
_PUT_OFF = ('tensorflow_federated.python.core.environments.jax', 'tensorflow_probability')


def load(name: str):
  """Imports a module with everything that it imports, like `lazy.load`, but without JAX and TensorFlow Probability."""
  with _without(_LEFT_OUT):
    lazy.load('tensorflow')
  with _put_off(_PUT_OFF):
    lazy.load(name)


@contextlib.contextmanager
def _without(name: str) -> Iterator[None]:
  """In the `with` block, `import name` says that there is no such module, unless it was imported before."""
  if name in sys.modules:
    yield
    return
  sys.modules[name] = None
  try:
    yield
  finally:
    del sys.modules[name]


class _Deferred(types.ModuleType):
  """Represents a module in those that imported it early, and imports it when one of its attributes is first used."""

  def __init__(self, name: str):
    super().__init__(name)
    self.__spec__ = importlib.machinery.ModuleSpec(name, None)  # An `import` statement looks at it.

  def __getattr__(self, attribute: str) -> Any:
    if attribute.startswith('__'):
      raise AttributeError(f'module {self.__name__!r} was not imported yet and has no attribute {attribute!r}')
    self.step_aside()
    return getattr(importlib.import_module(self.__name__), attribute)

  def step_aside(self):
    """Lets the next `import` of the name find the module itself."""
    if sys.modules.get(self.__name__) is self:
      del sys.modules[self.__name__]


@contextlib.contextmanager
def _put_off(names: Sequence[str]) -> Iterator[None]:
  """In the `with` block, importing one of `names` gives a `_Deferred`, unless it was imported before."""
  placeholders = {name: _Deferred(name) for name in names if name not in sys.modules}
  sys.modules.update(placeholders)
  try:
    yield
  finally:
    for placeholder in placeholders.values():
      placeholder.step_aside()
