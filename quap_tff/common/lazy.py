"""TensorFlow and TFF, imported when they are first used: `from quap_tff.common.lazy import tf`.

Importing them takes 5 to 10 seconds. Code that only reads flags, ledgers and certificates never needs them and answers
at once. Modules whose classes derive from TensorFlow's import it as usual; no binary needs such a module for its help.
SciPy's modules also wait (`lazy.module('scipy.special')`), or a binary's help would take twice as long.
"""

from collections.abc import Sequence
import gc
import importlib
import os
import platform
import sys
import types
from typing import Any, Callable, Optional, TYPE_CHECKING

# Keeps TensorFlow's start-up messages out. It reads this when it is loaded. A value that the user set is kept.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
# TensorFlow turns its oneDNN kernels on by itself only where a processor has AVX512_VNNI, AVX512_BF16 or AMX. Elsewhere
# convolutions are slower without them (docs/runtimes.md). It reads this when it is loaded, too.
ONEDNN_VARIABLE = 'TF_ENABLE_ONEDNN_OPTS'
# The value that the user set; None without one.
ONEDNN_BEFORE = os.environ.get(ONEDNN_VARIABLE)
os.environ.setdefault(ONEDNN_VARIABLE, '1')

# Where the name of a package in the index is not the name of its module.
_PACKAGES = {
  'PIL': 'pillow',
  'absl': 'absl-py',
  'attr': 'attrs',
  'dp_accounting': 'dp-accounting',
  'google': 'protobuf',
  'grpc': 'grpcio',
  'pkg_resources': 'setuptools<80',
  'sklearn': 'scikit-learn',
  'tensorflow_federated': 'tensorflow-federated',
  'tensorflow_privacy': 'tensorflow-privacy',
  'tree': 'dm-tree',
}

# What training alone needs, and the newest Python that has all of it (`training` in pyproject.toml).
_OF_TRAINING = ('attr', 'grpc', 'tensorflow', 'tensorflow_federated', 'tensorflow_privacy', 'tree')
_NEWEST_PYTHON = (3, 11)


def environment_before() -> dict[str, str]:
  """The environment as the user gave it: without the value for oneDNN, if the user gave none."""
  environment = dict(os.environ)
  if ONEDNN_BEFORE is None:
    environment.pop(ONEDNN_VARIABLE, None)
  return environment


class MissingPackageError(Exception):
  """A package that quap_tff needs is not installed; the message says how to install it."""


# Python does not let one class be both.
class _MissingModuleError(MissingPackageError, ModuleNotFoundError):
  """Raised by an import."""


class _MissingAttributeError(MissingPackageError, AttributeError):
  """Raised by `package.name`. For `hasattr` and `inspect`, the package then has no such name."""


class module:  # pylint: disable=invalid-name
  """Represents a module by name, and imports it when one of its attributes is first used."""

  def __init__(self, name: str):
    self._name = name
    self._module: Optional[types.ModuleType] = None

  def __getattr__(self, attribute: str) -> Any:
    # No module has these, and pytest, `inspect` and others ask every object for them.
    if attribute in ('__bases__', '__wrapped__'):
      raise AttributeError(attribute)
    if self._module is None or sys.modules.get(self._name) is not self._module:
      self._module = load(self._name)
    return getattr(self._module, attribute)


if TYPE_CHECKING:  # A type checker needs modules in annotations such as tf.Tensor.
  import tensorflow as tf
  import tensorflow_federated as tff
else:
  tf = module('tensorflow')
  tff = module('tensorflow_federated')


def exports(package: str, modules: dict[str, Sequence[str]]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
  """A package's `__getattr__` and `__dir__` (PEP 562). Its public names are imported when they are asked for.

  Args:
    package: The package's `__name__`.
    modules: For each submodule, by its path in the package, the public names that it provides. A submodule is public
      itself, under the last part of its path.
  """
  own_names = {path: path.rpartition('.')[2] for path in modules}
  places: dict[str, tuple[str, Optional[str]]] = {own_names[path]: (path, None) for path in modules}
  places.update({name: (path, name) for path, names in modules.items() for name in names})

  def getattribute(name: str) -> Any:
    if name not in places:
      raise AttributeError(f'module {package!r} has no attribute {name!r}')
    path, attribute = places[name]
    try:
      loaded = load(f'{package}.{path}')
    except MissingPackageError as error:
      # `from package import name` looks for the name first. After an AttributeError it would say "cannot import name"
      # in place of the remedy.
      if sys._getframe(1).f_globals['__name__'] == 'importlib._bootstrap':
        raise
      raise _MissingAttributeError(str(error)) from None
    return getattr(loaded, attribute) if attribute else loaded

  listed = {name for path, names in modules.items() for name in names or [own_names[path]]}
  return getattribute, lambda: sorted(listed)


def load(name: str) -> types.ModuleType:
  """Imports a module now, with everything that it imports, and returns it.

  Raises:
    MissingPackageError: If it, or a module that it imports, comes from a package that is not installed.
  """
  # Imports make objects that stay. Looking for garbage among them would be a quarter of TFF's import.
  collects = gc.isenabled()
  gc.disable()
  try:
    return importlib.import_module(name)
  except MissingPackageError:
    raise
  except ModuleNotFoundError as error:
    top = (error.name or '').partition('.')[0]
    if not top or top == __name__.partition('.')[0]:
      raise
    if top in _OF_TRAINING and sys.version_info[:2] > _NEWEST_PYTHON:
      raise _MissingModuleError(
        f'quap_tff needs the package {_PACKAGES.get(top, top)}, which is not installed ({error}). This is Python '
        f'{platform.python_version()}, and training needs Python 3.10 or 3.11, because TensorFlow Federated 0.87 runs '
        'on no later one: make an environment with one of them, and install the pinned packages there (pip install '
        '--no-deps -r requirements.txt). On this Python, gates, plans, accounts and verification work as they are, and '
        'bundles with the extra "bundle".',
        name=error.name,
        path=error.path,
      ) from None
    raise _MissingModuleError(
      f'quap_tff needs the package {_PACKAGES.get(top, top)}, which is not installed ({error}). pip cannot resolve '
      'the dependencies of TensorFlow Federated 0.87, because it requires jaxlib 0.4.14, which the package index no '
      'longer has. Install the complete, pinned environment instead (Python 3.10 or 3.11, x86-64 Linux), from the '
      "folder that holds quap_tff's pyproject.toml: pip install --no-deps -r requirements.txt",
      name=error.name,
      path=error.path,
    ) from None
  finally:
    if collects:
      gc.enable()
