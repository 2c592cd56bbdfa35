r"""Makes the documents' tables and figures from run folders, with measured and printed values side by side.

    python -m experiments.report runs/ --output_dir=report

Reads every run (a folder with a run.json) at or below the given folders. Writes runs.csv with a row for each run,
report.md, figures/*.png, and index.html, which has text and figures. Standard error and the report name everything that
is damaged, missing or unfinished. The rest is reported. Exit status: 0, or 1 for wrong arguments or no usable run.
"""

from collections.abc import Sequence
import os
import shlex
import sys

from absl import flags

from experiments.command import command_line
from experiments.reporting import finding
from experiments.reporting import pages
from experiments.reporting import runs as runs_lib
from experiments.reporting import sections
from experiments.reporting import study

_FLAGS = command_line.new_flags()
_OUTPUT_DIR = flags.DEFINE_string(
  'output_dir', None, 'Folder of the report. It must be new or empty, or hold an earlier report.', flag_values=_FLAGS
)


def main(argv: list[str]) -> int:
  """Reports on the folders in `argv[1:]`; returns the exit status."""
  roots = command_line.parse(_FLAGS, argv)
  if _FLAGS.help:
    print(command_line.help_text(__doc__, _FLAGS))
    print('\nThe sections, and the sweeps that make the runs for them:')
    for section in sections.SECTIONS:
      print(f'\n  {section.title}')
      print('\n'.join(command_line.filled(section.command, '    ', '        ', ' \\')))
    return 0
  if not _OUTPUT_DIR.value:
    raise ValueError('--output_dir is missing; give the folder of the report.')
  groups, _ = write_report(roots, _OUTPUT_DIR.value, shlex.join(['python', '-m', 'experiments.report', *argv[1:]]))
  print(f'{finding.count(groups)}: {os.path.join(_OUTPUT_DIR.value, "report.md")}')
  return 0


def write_report(roots: Sequence[str], folder: str, command: str) -> tuple[list[study.StudyGroup], list[pages.Section]]:
  """Writes the report on the runs in `roots` into a folder; returns their groups and its sections.

  Args:
    roots: Folders of runs.
    folder: New or empty, or with an earlier report.
    command: The command that makes it.

  Raises:
    ValueError: See `read` and `pages.check_folder`.
  """
  pages.check_folder(folder)
  groups, left_out = read_groups(roots)
  built = finding.build(groups, left_out, command)
  pages.write_page(folder, built, study.runs_table(groups))
  return groups, built


def read_groups(roots: Sequence[str]) -> tuple[list[study.StudyGroup], list[runs_lib.LeftOut]]:
  """The groups of runs and a list of what is left out, which standard error names as well.

  Raises:
    ValueError: If no folder is given, one does not exist, or no run in them can be used.
  """
  if not roots:
    raise ValueError('Give at least one folder of runs.')
  absent = [root for root in roots if not os.path.isdir(root)]
  if absent:
    raise ValueError(f'No such folder: {", ".join(absent)}.')
  loaded = [runs_lib.load_run(path) for path in runs_lib.find(roots)]
  groups, unused = study.collect([run for run, _ in loaded if run is not None])
  left_out = [runs_lib.LeftOut(root, 'no run.json at or below it') for root in roots if not runs_lib.find([root])]
  left_out += [*(item for _, items in loaded for item in items), *unused]
  for item in left_out:
    print(f'Warning: {item.path}: {item.reason}', file=sys.stderr)
  if not loaded:
    raise ValueError(
      f'No folder at or below {", ".join(roots)} has a run.json. Give the --output_dir of runs or of a sweep.'
    )
  if not groups:
    raise ValueError(f'No usable run among {len(loaded)} in {", ".join(roots)}.')
  return groups, left_out


if __name__ == '__main__':
  command_line.run(main)
