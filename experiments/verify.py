r"""Verifies the certificate of a certified run: makes it again from the run's folder, and compares the two.

    python -m experiments.verify runs/mnist_certified
    python -m experiments.verify runs/mnist_certified --public_key=operator.pem
    python -m experiments.verify runs/mnist_certified --publish=handed_out

Prints one of four answers. Exit status 0: VALID, with the guarantee. Exit status 1: INVALID, with what is wrong; or
REFUTED, if all is consistent, but the audit in the folder refutes the claim. Exit status 2: CANNOT BE VERIFIED, with
the reason (no certificate there, a package is missing, …), or an error in the command or on standard output. 130:
interrupted. 141: nobody read the answer to its end.

Everything is checked that python -m quap_tff.verify checks: each client's weights are computed again from the mechanism
and the schedule, and every figure from the ledger. In a run of experiments.train, the flags must also give this
mechanism and this schedule, the figures in metrics.csv must agree with the ledger, and summary.json is made again.

VALID means that the folder is consistent with a run that has this guarantee. It does not prove that the run took place,
or that the program did what its code says. Digests reveal mistakes and changes to some of the files. Only a signature
(--signing_key of experiments.train, --public_key here) says who made the folder. Without a signature, somebody could
make the whole folder anew, and nobody would notice. docs/certificates.md says how to read one.
"""

import os
import shutil
import sys
from typing import Optional, TYPE_CHECKING

from absl import flags

from experiments.command import command_line
from quap_tff.common import console
from quap_tff.common import files
from quap_tff.common import lazy

if TYPE_CHECKING:
  from quap_tff.certificates.verifying import Verdict

# They need packages, and a package that is missing is one of the answers.
evidence = lazy.module('experiments.running.evidence')
folders = lazy.module('quap_tff.certificates.folders.folder')
folder_files = lazy.module('quap_tff.certificates.folders.folder_files')
verifying = lazy.module('quap_tff.certificates.verifying')

_FLAGS = command_line.new_flags()
_PUBLIC_KEY = flags.DEFINE_string(
  'public_key',
  None,
  'File with an Ed25519 public key (PEM). The certificate, and the audit if there is one, must have signatures that '
  'fit this key.',
  flag_values=_FLAGS,
)
_IMPORT = flags.DEFINE_multi_string(
  'import',
  [],
  "Module that registers a choice of the issuer's own program, such as a weight rule, which the folder names. This "
  'runs the code of the module, which could do anything here: read it first. May be given several times.',
  flag_values=_FLAGS,
)
_PUBLISH = flags.DEFINE_string(
  'publish',
  None,
  'New folder for a copy of the files that may be handed out, which the certificate names. An audit is not copied, '
  'because the guarantee does not cover it. Nothing is copied if the certificate is invalid or refuted.',
  flag_values=_FLAGS,
)


def verify(path: str, public_key: Optional[str] = None) -> 'Verdict':
  """Verifies the certificate in a folder, and what only a run of experiments.train has (`evidence.check`)."""
  return verifying.verify(path, public_key, evidence.check)


def publish(path: str, target: str) -> None:
  """Copies what may be handed out from a folder whose certificate is valid into a new folder.

  The guarantee does not cover an audit, which trained on the same clients again. So it stays where it is, and the page
  in the new folder does not show it.

  Raises:
    ValueError: If `target` already exists, or lies in the folder itself.
  """
  if os.path.lexists(target):
    raise ValueError(f'--publish={target} already exists: give a new folder.')
  source, place = os.path.realpath(path), os.path.realpath(target)
  if os.path.commonpath([source, place]) == source:
    raise ValueError(f"--publish={target} lies in the run's own folder. Give a new folder outside {path}.")
  certificate = folder_files.read_json(path, folders.CERTIFICATE)
  with files.new_folder(target) as unfinished:
    for name in [*certificate['provenance']['files_sha256'], folders.CERTIFICATE, folders.SIGNATURE]:
      if os.path.exists(os.path.join(path, name)):
        os.makedirs(os.path.dirname(os.path.join(unfinished, name)), exist_ok=True)
        shutil.copyfile(os.path.join(path, name), os.path.join(unfinished, name))
    verifying.write_page(unfinished, certificate, None)


def main(argv: list[str]) -> int:
  """Verifies the folder that `argv[1:]` names, and returns the exit status."""
  try:
    paths = command_line.parse(_FLAGS, argv, __doc__)
    if len(paths) != 1:
      raise ValueError(
        f'Give exactly one folder to verify, found {len(paths)}. Usage: python -m experiments.verify DIR'
      )
    status = _answer(paths[0])
    sys.stdout.flush()
    if status == 0 and _PUBLISH.value is not None:
      publish(paths[0], _PUBLISH.value)
      if os.path.exists(os.path.join(paths[0], folders.AUDIT)):
        print(f'{folders.AUDIT} was not copied: the guarantee does not cover it.', file=sys.stderr)
      print(f'Published: {_PUBLISH.value}', file=sys.stderr)
    return status
  except BrokenPipeError:
    return console.NOT_READ
  except (ValueError, OSError) as error:
    print(f'Error: {command_line.error_text(error)}', file=sys.stderr)
    return 2


def _answer(path: str) -> int:
  try:
    answer = verifying.answer
  except ImportError as error:  # A package is missing that every answer needs.
    print(f'CANNOT BE VERIFIED\n  {error}')
    return 2
  return answer(lambda: verify(path, _PUBLIC_KEY.value), _IMPORT.value)


if __name__ == '__main__':
  command_line.run(main)
