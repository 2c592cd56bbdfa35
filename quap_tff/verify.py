"""Verifies certificates, from the folders that they are in. TensorFlow is not needed.

    python -m quap_tff.verify FOLDER...
    python -m quap_tff.verify FOLDER --public_key=operator.pem

Prints one of three answers for each folder: VALID, with the guarantee; INVALID, with everything that is wrong; CANNOT
BE VERIFIED, with the reason. Exit status 0: every folder is VALID. Exit status 1: one is INVALID. Exit status 2:
otherwise, or for an error in the command.

A folder that `quap_tff.plans.write_certificate` has written is verified in full: cohorts, weights, noise and divisor
are computed again from the mechanism and the public schedule in it. A run of experiments.train has them in its flags,
and only `python -m experiments.verify` computes them again. Of such a folder this program says what is wrong in it, but
never that it is VALID. An audit in it is not looked at.
"""

import argparse
from collections.abc import Sequence
import functools
import sys
from typing import Optional

from quap_tff.accounting import certificate as certificates
from quap_tff.accounting import certificate_evidence as evidence
from quap_tff.accounting import certificate_folder as folders
from quap_tff.accounting import folder_files
from quap_tff.accounting.certificate_page import MECHANISM
from quap_tff.plans import certificates as of_library

_RUN = 'run.json'
_MISSING = (
  'The files agree with the digests in the certificate, and ledger.npz with its figures. But this is a run of '
  'experiments.train: its cohorts, weights, noise and facts follow from its flags, and python -m experiments.verify '
  'computes them again.'
)


def verify(path: str, public_key: Optional[str] = None) -> folders.Verdict:
  """Verifies the certificate in a folder, see `certificate_folder.verify`."""
  try:
    return folders.verify(path, _read, lambda folder, certificate: None, public_key)
  except folder_files.CannotTellError:
    raise
  except evidence.DAMAGE as error:  # Of a run's certificate, whose provenance is not made again.
    problem = f'{folders.CERTIFICATE} is damaged: {type(error).__name__}: {error}'
    return folders.Verdict([problem], [], [], '')


def _read(path, certificate) -> evidence.Evidence:
  found = folder_files.entries(path, without=folders.CHECKPOINTS)
  if MECHANISM in found.files or _RUN not in found.files:
    return of_library.read(path)
  return _of_run(path, found, certificate)


def _of_run(path, found, certificate) -> evidence.Evidence:
  """The evidence for a run of experiments.train, as far as it follows from its certificate and its ledger."""
  facts = certificates.Facts(**certificate['facts'])
  evidence.check_population(certificate['achieved']['clients'])
  ledger = evidence.read_ledger(path, certificate['achieved']['clients'])
  provenance = dict(certificate['provenance'])
  provenance.update(
    correlation={'gains': ledger.correlation.gains.tolist(), 'decays': ledger.correlation.decays.tolist()},
    files_sha256=evidence.digests(path, found.files, folders.OWN),
  )
  multipliers = ledger.state_dict()['noise_multipliers']
  if len(multipliers):
    provenance['noise_multiplier'] = float(multipliers.min())
  return evidence.Evidence(ledger, facts, provenance, evidence.entry_problems(path, found), [], _MISSING)


def main(argv: Sequence[str]) -> int:
  """Verifies the folders that the arguments name, and returns the exit status."""
  parser = argparse.ArgumentParser(
    'python -m quap_tff.verify', description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('folders', nargs='+', metavar='FOLDER', help='a folder with a certificate')
  parser.add_argument('--public_key', help='file with the Ed25519 public key (PEM) that the certificates must fit')
  arguments = parser.parse_args(argv)
  statuses = set()
  for path in arguments.folders:
    if len(arguments.folders) > 1:
      print(f'{path}:')
    statuses.add(folders.answer(functools.partial(verify, path, arguments.public_key)))
  return folders.INVALID if folders.INVALID in statuses else max(statuses)


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
