"""Verifies certificates, from the folders that they are in. TensorFlow is not needed.

    python -m quap_tff.verify RUN...
    python -m quap_tff.verify RUN/certificate --public_key=operator.pem
    python -m quap_tff.verify RUN --import=their_weight_rule

RUN is the folder of a run, which holds its certificate in `certificate/`. Nothing but that folder is covered. It may be
given alone; then no audit is looked for, which would lie alongside it.

Prints one of four answers for each folder: VALID, with the guarantee; INVALID, with what is wrong; REFUTED, if all is
consistent, but the audit alongside it refutes the claim; CANNOT BE VERIFIED, with the reason. Exit status 0:
every folder is VALID. Exit status 1: one is INVALID or REFUTED. Exit status 2: otherwise, or for an error in the
command, or if standard output cannot be written. 130: interrupted. 141: nobody read the answer to its end.

Each client's weights are computed again from the mechanism and the public schedule, and every figure from the ledger;
for a gate's log (`quap_tff.Gate`), every figure from the log.

VALID means that the folder is consistent with a run that has this guarantee. It does not prove that the run took place,
or that the program did what its code says. Digests reveal mistakes and changes to some of the files. Only a signature
says who made the folder: without one, somebody could make the whole folder anew, and nobody would notice.
"""

import argparse
from collections.abc import Sequence
import functools

from quap_tff.common import console
from quap_tff.common import lazy


def main(argv: Sequence[str]) -> int:
  """Verifies the folders that the arguments name, and returns the exit status."""
  parser = argparse.ArgumentParser(
    'python -m quap_tff.verify', description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('folders', nargs='+', metavar='RUN', help='the folder of a run, or of its certificate')
  parser.add_argument('--public_key', help='file with the Ed25519 public key (PEM) that the certificates must fit')
  parser.add_argument(
    '--import',
    dest='modules',
    action='append',
    default=[],
    metavar='MODULE',
    help="module that registers a choice of the issuer's own program, such as a weight rule, which the folder names. "
    'This runs the code of the module, which could do anything here: read it first. May be given several times',
  )
  arguments = parser.parse_args(argv)
  try:
    verifying = lazy.load('quap_tff.certificates.verifying')
  except ImportError as error:  # A package is missing that every answer needs.
    print(f'CANNOT BE VERIFIED\n  {error}')
    return 2
  statuses = set()
  for path in arguments.folders:
    if len(arguments.folders) > 1:
      verifying.say([f'{path}:'])
    statuses.add(verifying.answer(functools.partial(verifying.verify, path, arguments.public_key), arguments.modules))
  return verifying.INVALID if verifying.INVALID in statuses else max(statuses)


if __name__ == '__main__':
  console.run(main)
