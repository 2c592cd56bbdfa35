"""Runs one test file of TFF: `run_file.py CONTEXT FILE REPORT COUNTS`, for `run.py`.

CONTEXT is `tff` or `quap_tff`. REPORT is the XML report to write, COUNTS the file for how many computations came to
the runtime.
"""

from collections.abc import Sequence
import importlib.abc
import importlib.util
import json
import os
import pathlib
import runpy
import sys
from typing import Any, Optional

# Not the folder of this file: its modules are not those that TFF's tests import.
sys.path.pop(0)
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')


class HelpersOfTests(importlib.abc.MetaPathFinder):
  """Finds the modules of TFF that its wheel leaves out, because only tests need them, in the checkout.

  It is asked last, so that everything which is installed is what is tested.
  """

  def __init__(self, checkout: pathlib.Path):
    self._checkout = checkout

  def find_spec(self, fullname: str, path: Optional[Sequence[str]], target: Any = None) -> Any:
    """The module's specification; None if it is not TFF's."""
    del path, target
    if not fullname.startswith('tensorflow_federated.'):
      return None
    place = self._checkout.joinpath(*fullname.split('.'))
    for file in (place.with_suffix('.py'), place / '__init__.py'):
      if file.exists():
        return importlib.util.spec_from_file_location(fullname, file)
    return None


def main() -> None:
  """Runs the file as a program, and ends the process."""
  context, path, report, counts = sys.argv[1:]
  checkout = next(parent for parent in pathlib.Path(path).parents if parent.name == 'tensorflow_federated').parent
  sys.meta_path.append(HelpersOfTests(checkout))
  if context == 'quap_tff':
    _use_our_runtime(counts)
  sys.argv = [path, f'--xml_output_file={report}']
  status = 0
  try:
    runpy.run_path(path, run_name='__main__')
  except SystemExit as error:
    status = int(error.code or 0)
  # TFF's own context sometimes hangs when the interpreter ends. The report is written by now.
  os._exit(status)


def _use_our_runtime(counts: str) -> None:
  """Puts the in-process runtime in the place of each default context that TFF's tests ask for."""
  import tensorflow_federated as tff  # pylint: disable=import-outside-toplevel
  from tensorflow_federated.python.core.backends.native import execution_contexts as native
  from tensorflow_federated.python.core.backends.test import execution_contexts as test

  from quap_tff import runtime

  class Counted(runtime.InProcessContext):
    """Writes down how many computations came."""

    invocations = 0

    def invoke(self, comp: Any, arg: Any) -> Any:
      self.invocations += 1
      with open(counts, 'w', encoding='utf-8') as f:
        json.dump(self.invocations, f)
      return super().invoke(comp, arg)

  def set_ours(*_: Any, **__: Any) -> None:
    tff.framework.set_default_context(Counted(num_threads=1))

  places = (native, test, tff.backends.native, tff.backends.test)
  names = [name for name in dir(native) + dir(test) if name.startswith('set_sync_') and name.endswith('_context')]
  for place in places:
    for name in names:
      if hasattr(place, name):
        setattr(place, name, set_ours)
  set_ours()  # As TFF has a default context from the start.


if __name__ == '__main__':
  main()
