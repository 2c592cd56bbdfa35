"""The first minute: QuAP-FL as its documents describe it, then with a guarantee, whose certificate it verifies.

    python -m experiments.demo

Both learn scikit-learn's 8x8 digits, in seconds and without a download. For each, standard output says what was
learned, what is guaranteed, and what that is worth. Progress goes to standard error, and the runs to runs/demo, where
they replace those of an earlier demo. Exit status: 0, 1 for a failure, 130 when interrupted.
"""

import contextlib
import io
import os
import shutil

from absl import flags

from experiments import train
from experiments.command import command_line
from experiments.folders import folder as run_folder
from experiments.running import final_summary
from quap_tff import certificates
from quap_tff.certificates import sentences
from quap_tff.certificates.folders import folder as folders
from quap_tff.common import files

_PRESETS = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'presets')

_FLAGS = command_line.new_flags()
_OUTPUT_DIR = flags.DEFINE_string('output_dir', 'runs/demo', 'Folder of the two runs.', flag_values=_FLAGS)


def main(argv: list[str]) -> int:
  """Shows both runs; returns the exit status."""
  command_line.refuse_arguments(command_line.parse(_FLAGS, argv, __doc__))
  for number, preset, words in (
    (1, 'demo', 'QuAP-FL as its documents describe it'),
    (2, 'digits_certified', 'Certified QuAP-FL on the same digits'),
  ):
    path = os.path.join(_OUTPUT_DIR.value, preset)
    if os.path.exists(os.path.join(path, run_folder.RUN)):
      shutil.rmtree(path)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
      status = train.main(['train', f'--flagfile={os.path.join(_PRESETS, preset)}.flags', f'--output_dir={path}'])
    if status:
      print(said.getvalue())
      return status
    summary = files.read_json(os.path.join(path, run_folder.SUMMARY))
    print(f'\n{number}. {words}: {summary["rounds"]} rounds')
    _say(f'Learned: the model reads {summary["test_accuracy"]:.1%} of the digits that it has not seen.')
    _say(final_summary.guarantee(summary))
    if number == 1:
      _say('Worth: a comparison with the documents. Nothing bounds what the model tells about a client.')
    else:
      _say(_verified(path))
  print("\nNext, in two to four minutes, TFF's own methods at the same guarantee:\n    make compare")
  return 0


def _verified(path: str) -> str:
  verdict = certificates.verify(path)
  if verdict.problems:
    raise ValueError(f'The certificate in {path} is invalid: {" ".join(verdict.problems)}')
  folder = os.path.join(path, folders.SUBFOLDER)
  certificate = files.read_json(os.path.join(folder, folders.CERTIFICATE))
  return (
    'Worth: someone who guesses from the model whether the data of one client were used is right '
    f'{sentences.chance(certificate)}, where a coin is right 50% of the time. The server must be trusted. The '
    f'certificate was made again from its files, and is VALID: {os.path.join(folder, folders.PAGE)}'
  )


def _say(text: str) -> None:
  print('\n'.join(command_line.filled(text, '   ', '   ')), flush=True)


if __name__ == '__main__':
  command_line.run(main)
