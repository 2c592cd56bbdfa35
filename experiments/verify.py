r"""Verifies the certificate of a certified run: makes it again from the folder's ledger, and compares.

    python -m experiments.verify runs/mnist_certified

Prints VALID and what is guaranteed, or INVALID and all that is wrong. Exit status: 0 if valid, else 1.

Everything that follows from the ledger is computed again: each client's μ and ε, that no client has passed its budget,
that every round had noise. Digests bind the certificate to the run's flags, ledger and model. They are no signature:
who makes the whole folder anew, ledger included, is not found out. docs/privacy.md says how to read a certificate.
"""

import os

# Importing the package loads TensorFlow: keeps its start-up chatter out. An own choice in the environment stands.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import sys
from typing import List, NamedTuple

from experiments import certificates as folders
from quap_tff.accounting import certificate as certificates

_FAILED = 1


class Verdict(NamedTuple):
  """Of a folder.

  Attributes:
    problems: What is wrong, a sentence each; empty if the certificate is valid.
    warnings: What does not make it invalid.
    statement: The guarantee, '' if there is none.
  """

  problems: List[str]
  warnings: List[str]
  statement: str


def verify(path: str) -> Verdict:
  """Verifies the certificate in a run's folder; reads only."""
  try:
    evidence = folders.read_evidence(path)
    certificate = folders.read_json(path, folders.CERTIFICATE)
  except folders.FolderError as error:
    return Verdict([str(error)], [], '')
  warnings, provenance = [], dict(evidence.provenance)
  try:
    code, facts = certificate['provenance']['code'], certificates.Facts(**certificate['facts'])
  except (KeyError, TypeError, ValueError) as error:
    return Verdict([f'{folders.CERTIFICATE} is damaged: {error!r}.'], [], '')
  if code != provenance['code']:
    warnings.append(
        f'The run was made by other code: {code}; this is {provenance["code"]}. Its figures are verified, not its '
        'words.'
    )
    provenance['code'] = code
  problems = certificates.problems(certificate, evidence.ledger, provenance, same_words=not warnings)
  problems += folders.folder_problems(evidence, facts)
  # Another version may write the same certificate as another page.
  if not problems and not warnings and folders.page_differs(path, certificate):
    problems.append(f'{folders.PAGE} is not the page of {folders.CERTIFICATE}.')
  if problems:
    return Verdict(problems, warnings, '')
  # In this program's words, whatever the certificate's are.
  return Verdict([], warnings, certificates.issue(evidence.ledger, facts, provenance)['statement'])


def main(argv: List[str]) -> int:
  """Verifies the folder `argv[1]`; returns the exit status."""
  # An ε that the terminal's encoding lacks must not end in a traceback.
  sys.stdout.reconfigure(errors='backslashreplace')
  if argv[1:] in (['-h'], ['--help']):
    print(__doc__)
    return 0
  if len(argv) != 2:
    print('Usage: python -m experiments.verify DIR', file=sys.stderr)
    return _FAILED
  verdict = verify(argv[1])
  for warning in verdict.warnings:
    print(f'Warning: {warning}', file=sys.stderr)
  if verdict.problems:
    print('INVALID')
    for problem in verdict.problems:
      print(f'  {problem}')
    return _FAILED
  print(f'VALID\n{verdict.statement}')
  return 0


if __name__ == '__main__':
  sys.exit(main(sys.argv))
