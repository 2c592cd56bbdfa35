"""The certificate in a run's folder: issued from the files there at the end of a run, read again to verify it.

    certificate.json, certificate.html    issued from and bound to
    ledger.npz, run.json, final_model.keras    by their SHA-256; and to
    metrics.csv, clients.csv    which, where they stand, hold nothing but what the certificate covers

Imports no TensorFlow of its own: to verify takes no model.
"""

import csv
import hashlib
import json
import math
import os
import pathlib
from typing import Any, Dict, List, Mapping, NamedTuple, Optional

import quap_tff
from experiments import certificate_page
from experiments import public_metrics
from quap_tff.accounting import certificate as certificates
from quap_tff.accounting import run_ledger

CERTIFICATE, PAGE = 'certificate.json', 'certificate.html'
_RUN, _LEDGER, _MODEL = 'run.json', 'ledger.npz', 'final_model.keras'
_SOURCES = ('quap_tff', 'data', 'experiments')

PUBLIC_COLUMNS = {
    'metrics.csv': public_metrics.OF_ROUND | public_metrics.OF_CLIP | public_metrics.OF_LOOP,
    'clients.csv': public_metrics.OF_CLIENTS,
}


class FolderError(ValueError):
  """A folder lacks what a certificate needs, or it cannot be read."""


class Evidence(NamedTuple):
  """What a run's folder holds for its certificate.

  Attributes:
    ledger: From ledger.npz.
    identity: The flags that say what was computed, from run.json.
    provenance: Digests of the files, of the flags, and of this program: see `certificate.issue`.
    exact_columns: `file: column` for each column that no certificate covers.
  """

  ledger: run_ledger.RunLedger
  identity: Dict[str, Any]
  provenance: Dict[str, Any]
  exact_columns: List[str]


def read_evidence(path: str) -> Evidence:
  """Reads a run's folder; raises `FolderError` that names the first file that lacks or is damaged."""
  if not os.path.isdir(path):
    raise FolderError(f'{path} is not a folder.')
  files = {name: file_digest(path, name) for name in (_RUN, _LEDGER, _MODEL)}
  run = read_json(path, _RUN)
  if not isinstance(run, dict) or not isinstance(run.get('identity'), dict):
    raise FolderError(f'{_RUN} is damaged: it holds no identity.')
  try:
    ledger = run_ledger.RunLedger.load(os.path.join(path, _LEDGER))
  except (OSError, ValueError) as error:
    raise FolderError(f'{_LEDGER} is damaged: {error}') from None
  provenance = {
      'code': {'quap_tff': quap_tff.__version__, 'source_sha256': source_digest()},
      'config_sha256': certificates.digest(run['identity']),
      'files_sha256': files,
  }
  return Evidence(ledger, run['identity'], provenance, _exact_columns(path))


def write(path: str, facts: certificates.Facts) -> Dict[str, Any]:
  """Issues the certificate of a run that has ended and writes it, the page first.

  Args:
    path: The run's folder, with its other files in place.
    facts: What they do not tell.

  Returns:
    The certificate.

  Raises:
    ValueError: If the run has none; nothing is written then. `FolderError` if a file lacks.
  """
  evidence = read_evidence(path)
  problems = folder_problems(evidence, facts)
  if problems:
    raise ValueError(f'This run cannot be certified. {" ".join(problems)}')
  certificate = certificates.issue(evidence.ledger, facts, evidence.provenance)
  text = json.dumps(certificate, indent=2, ensure_ascii=False, allow_nan=False) + '\n'
  for name, content in ((PAGE, certificate_page.render(certificate)), (CERTIFICATE, text)):
    unfinished = os.path.join(path, name + '.part')
    with open(unfinished, 'w', encoding='utf-8') as f:
      f.write(content)
    os.replace(unfinished, os.path.join(path, name))
  return certificate


def remove(path: str):
  """Removes the certificate and its page, of a run that has gone on since."""
  for name in (CERTIFICATE, PAGE):
    if os.path.exists(os.path.join(path, name)):
      os.remove(os.path.join(path, name))


def folder_problems(evidence: Evidence, facts: certificates.Facts) -> List[str]:
  """Where the folder's other files contradict the facts, a sentence each."""
  found = [f'{name} is an exact function of clients\' data, or not known not to be.' for name in evidence.exact_columns]
  for name in ('algorithm', 'epsilon', 'delta'):
    flag = evidence.identity.get(name)
    if flag != getattr(facts, name):
      found.append(f'{_RUN}: --{name} is {flag!r}, the certificate is for {getattr(facts, name)!r}.')
  if evidence.identity.get('noise_seed') is not None:
    found.append(f'{_RUN}: --noise_seed is given; a seed that is known takes the noise away.')
  return found


def page_differs(path: str, certificate: Mapping[str, Any]) -> bool:
  """Whether the folder's page is another than that of the certificate; a folder may be without one."""
  try:
    with open(os.path.join(path, PAGE), encoding='utf-8', newline='') as f:
      return f.read() != certificate_page.render(certificate)
  except FileNotFoundError:
    return False
  except (OSError, ValueError):
    return True


def read_json(path: str, name: str) -> Any:
  """A JSON file in the folder; `FolderError` if it lacks or is damaged, or holds a number that is not finite."""
  def finite(text):
    if not math.isfinite(float(text)):
      raise ValueError(f'{text} is no finite number')
    return float(text)

  try:
    with open(os.path.join(path, name), encoding='utf-8') as f:
      return json.load(f, parse_float=finite, parse_constant=finite)
  except FileNotFoundError:
    raise FolderError(f'{path} holds no {name}.') from None
  except (OSError, ValueError, RecursionError) as error:
    raise FolderError(f'{name} is damaged: {error}') from None


def file_digest(path: str, name: str) -> str:
  """SHA-256 of a file in the folder, in hex; `FolderError` if it cannot be read."""
  found = hashlib.sha256()
  try:
    with open(os.path.join(path, name), 'rb') as f:
      for block in iter(lambda: f.read(1 << 20), b''):
        found.update(block)
  except FileNotFoundError:
    raise FolderError(f'{path} holds no {name}.') from None
  except OSError as error:
    raise FolderError(f'{name} cannot be read: {error}') from None
  return found.hexdigest()


def source_digest(root: Optional[str] = None) -> str:
  """SHA-256 over path and content of every Python file of the program, in the order of their paths."""
  base = pathlib.Path(root) if root is not None else pathlib.Path(quap_tff.__file__).resolve().parents[1]
  found = hashlib.sha256()
  for path in sorted(p.relative_to(base).as_posix() for name in _SOURCES for p in (base / name).rglob('*.py')):
    content = hashlib.sha256((base / path).read_bytes()).hexdigest()
    found.update(f'{content}  {path}\n'.encode())
  return found.hexdigest()


def _exact_columns(path) -> List[str]:
  found = []
  for name, public in PUBLIC_COLUMNS.items():
    try:
      with open(os.path.join(path, name), newline='', encoding='utf-8') as f:
        found += [f'{name}: {column}' for column in next(csv.reader(f), []) if column not in public]
    except FileNotFoundError:
      pass
    except (OSError, ValueError, csv.Error) as error:
      raise FolderError(f'{name} is damaged: {error}') from None
  return found
