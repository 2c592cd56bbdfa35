r"""Draws the characters of UNIPEN's public release, for --dataset=unipen and for the features of experiments.pretrain.

    python -m experiments.convert_unipen --release=train_r01_v07 --output=DIR/unipen62.npz

--release is the unpacked folder, with data and include: pen strokes of isolated digits and letters (categories 1a, 1b
and 1c). The file holds x, uint8[n, 28, 28] with 255 for ink, y in the order of EMNIST's ByClass, and writer, the number
of the person who wrote. Names of writers are not in it. Exit status: 0, or 1 for wrong input.
"""

import os

from absl import flags
import numpy as np

from data import unipen
from data import unipen_release
from experiments.command import command_line
from quap_tff.common import files

_FLAGS = command_line.new_flags()
_RELEASE = flags.DEFINE_string('release', None, "The folder of UNIPEN's release train_r01_v07.", flag_values=_FLAGS)
_OUTPUT = flags.DEFINE_string(
  'output', None, f'File to write, named {unipen.FILENAME}. It replaces one of this name.', flag_values=_FLAGS
)


def main(argv: list[str]) -> int:
  """Converts the release as `argv[1:]` says; returns the exit status."""
  command_line.refuse_arguments(command_line.parse(_FLAGS, argv, __doc__))
  for name in ('release', 'output'):
    if not _FLAGS[name].value:
      raise ValueError(f'--{name} is missing. {_FLAGS[name].help}')
  # Before the minutes that drawing takes.
  os.makedirs(os.path.dirname(os.path.abspath(_OUTPUT.value)), exist_ok=True)
  file = unipen_release.drawn(unipen_release.read_release(_RELEASE.value))
  files.write(_OUTPUT.value, files.npz(file._asdict()))
  print(f'{_OUTPUT.value}: {len(file.y):,} characters of {len(np.unique(file.writer))} writers. {unipen.PROVENANCE}')
  return 0


if __name__ == '__main__':
  command_line.run(main)
