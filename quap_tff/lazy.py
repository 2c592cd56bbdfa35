"""TensorFlow and TFF, imported when they are first used: `from quap_tff.lazy import tf`.

Importing them takes 5 to 10 seconds. What only reads flags, ledgers and certificates never needs them, and answers at
once. Modules whose classes derive from theirs import them as usual; nothing that a binary needs for its help does.
"""

import importlib
from typing import Any


class module:  # pylint: disable=invalid-name
  """Stands in for the module of a name until an attribute of it is asked for."""

  def __init__(self, name: str):
    self._name = name

  def __getattr__(self, attribute: str) -> Any:
    return getattr(importlib.import_module(self._name), attribute)


tf = module('tensorflow')
tff = module('tensorflow_federated')


def load(name: str):
  """Imports a module now, and with it all that it imports."""
  importlib.import_module(name)


def exports(package: str, modules: dict) -> Any:
  """A package's `__getattr__` (PEP 562) that imports its public names when they are asked for.

  Args:
    package: The package's `__name__`.
    modules: For each submodule the public names that come from it; a submodule without names is itself public.
  """
  places = {name: module for module, names in modules.items() for name in names}

  def getattribute(name: str) -> Any:
    if name in places:
      return getattr(importlib.import_module(f'{package}.{places[name]}'), name)
    if name in modules:
      return importlib.import_module(f'{package}.{name}')
    raise AttributeError(f'module {package!r} has no attribute {name!r}')

  return getattribute
