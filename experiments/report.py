r"""The documents' tables and figures from run directories, measured beside printed.

    python -m experiments.report runs/ --output_dir=report

Reads every run (a folder with a run.json) at or below the folders given, and writes report.md, tables/*.csv,
figures/*.png, and index.html, which holds it all. What is damaged, missing or unfinished is named on standard error and
in the report; the rest is reported. Exit status: 0, or 1 for wrong arguments or if there is no usable run.
"""

import os
import shlex
import sys
from typing import List

from absl import flags

from experiments import command_line
from experiments.reporting import overview
from experiments.reporting import runs as runs_lib
from experiments.reporting import sections
from experiments.reporting import study as study_lib
from experiments.reporting import writing

_FLAGS = command_line.new_flags()
_OUTPUT_DIR = flags.DEFINE_string(
    'output_dir', None, 'Folder of the report: new, empty, or of an earlier report.', flag_values=_FLAGS
)

def main(argv: List[str]) -> int:
  """Reports on the folders in `argv[1:]`; returns the exit status."""
  roots = command_line.parse(_FLAGS, argv)
  if _FLAGS.help:
    print(command_line.help_text(__doc__, _FLAGS))
    return 0
  study, left_out = _read(roots)
  _check_output(_OUTPUT_DIR.value)
  command = shlex.join(['python', '-m', 'experiments.report', *argv[1:]])
  writing.write(_OUTPUT_DIR.value, [
      overview.header(study, command), *(build(study) for build in sections.SECTIONS), overview.left_out(left_out)
  ])
  print(f'{len(study.runs)} runs of {len(study.groups)} settings: {os.path.join(_OUTPUT_DIR.value, "report.md")}')
  return 0


def _check_output(folder):
  if not folder:
    raise ValueError('--output_dir is missing; give the folder of the report.')
  writing.check(folder)


def _read(roots):
  """The study and what it leaves out, which is named on standard error as well."""
  if not roots:
    raise ValueError('Give at least one folder of runs.')
  absent = [root for root in roots if not os.path.isdir(root)]
  if absent:
    raise ValueError(f'No such folder: {", ".join(absent)}.')
  paths = runs_lib.find(roots)
  loaded = [runs_lib.load(path) for path in paths]
  study, unused = study_lib.collect(run for run, _ in loaded if run is not None)
  empty = [runs_lib.LeftOut(root, 'no run.json at or below it') for root in roots if not runs_lib.find([root])]
  left_out = [*empty, *(item for _, items in loaded for item in items), *unused]
  for item in left_out:
    print(f'Warning: {item.path}: {item.reason}', file=sys.stderr)
  if not study.groups:
    raise ValueError(f'No usable run among {len(paths)} in {", ".join(roots)}.')
  return study, left_out


if __name__ == '__main__':
  command_line.run(main)
