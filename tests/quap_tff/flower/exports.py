"""Bundles for tests over Flower, which are made where TFF is, once for all processes of the tests."""

import os
import pathlib
import shutil
import subprocess

import filelock

from tests import processes

ROOT = pathlib.Path(__file__).absolute().parents[3]


def made(tmp_path_factory, name, kinds):
  """The folder with a bundle of each kind, and of each with KIND.npz, its clients.

  Args:
    tmp_path_factory: Pytest's fixture.
    name: Of the folder.
    kinds: The flags of `experiments.export` by kind.
  """
  base = tmp_path_factory.getbasetemp()
  folder = (base.parent if 'PYTEST_XDIST_WORKER' in os.environ else base) / name
  with filelock.FileLock(f'{folder}.lock'):
    if not (folder / 'done').exists():
      shutil.rmtree(folder, ignore_errors=True)
      folder.mkdir()
      _export({folder / kind: flags for kind, flags in kinds.items()})
      (folder / 'done').touch()
  return folder


def _export(flags):
  """Makes all of them at once."""
  running = []
  for path, own in flags.items():
    own = [*own, f'--output={path}', f'--clients={path}.npz']
    command = [ROOT / '.venv/bin/python', '-m', 'experiments.export', *own]
    running.append(subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True))
  for process in running:
    _, said = processes.finish(process)
    assert not process.returncode, said
