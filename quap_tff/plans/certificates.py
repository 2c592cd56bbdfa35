"""Certificates of certified runs of library code: a folder that `python -m quap_tff.verify` accepts.

    mechanism.json      the mechanism, the model's shape, and the facts that were stated about the run
    schedule.npz        the public schedule: round t, from 1, has clients[offsets[t-1]:offsets[t]]
    ledger.npz          the cost of each round for each client
    clients.csv         the ε that each client has spent
    model.keras, .npz   the model that is released

The plan is made again from the first two, and everything else is compared with it, as docs/privacy.md says.
"""

from collections.abc import Mapping, Sequence
import csv
import dataclasses
import datetime
import functools
import os
import shutil
from typing import Any, NamedTuple, Optional, Union
import zipfile

import numpy as np

from quap_tff import accounting
from quap_tff.accounting import certificate as certificates
from quap_tff.accounting import certificate_evidence
from quap_tff.accounting import certificate_folder
from quap_tff.accounting import folder_files
from quap_tff.accounting.certificate_page import MECHANISM
from quap_tff.accounting.certificate_page import SCHEDULE
from quap_tff.common import files
from quap_tff.common import version
from quap_tff.mechanisms import banded
from quap_tff.mechanisms import certified_config
from quap_tff.mechanisms import clip_rules
from quap_tff.mechanisms import correlation
from quap_tff.mechanisms import layers as layers_lib
from quap_tff.mechanisms import participation
from quap_tff.mechanisms import sparsity
from quap_tff.mechanisms import weight_rules
from quap_tff.plans import certified

_KERAS, _ARRAYS = 'model.keras', 'model.npz'
# A larger plan would take too long to compute again.
_MOST_ROUNDS, _MOST_PARTICIPATIONS = 10**6, 10**8
# The parts of a mechanism. A file names a class, and objects of other classes are never made.
_CLASSES = {
  one.__name__: one
  for module in (banded, certified_config, clip_rules, correlation, participation, sparsity, weight_rules)
  for one in vars(module).values()
  if dataclasses.is_dataclass(one) and one.__module__ == module.__name__
}


class About(NamedTuple):
  """Facts that no file of a run shows. The issuer of the certificate states them, and the certificate repeats them.

  Attributes:
    dataset: Name of the dataset.
    cohorts: Where the schedule comes from, a sentence. It must be public, and must not depend on clients' data.
    tuning: How the constants of the run were chosen, a sentence.
    test_set: Whose examples the test set holds, a sentence.
    tests: How often loss and accuracy on the test set were released.
    test_accuracy: In [0, 1]; None if it is not published.
    public_data: Which other data the features of the examples were made from, in sentences; '' for none.
    post_processing: How the noised weights are changed before they are published, in sentences; '' if they are not.
    algorithm: Name of the method.
    model: Name of the model.
  """

  dataset: str
  cohorts: str
  tuning: str
  test_set: str
  tests: int = 0
  test_accuracy: Optional[float] = None
  public_data: str = ''
  post_processing: str = ''
  algorithm: str = 'certified'
  model: str = 'a model of its own'


def write_certificate(
  path: str,
  plan: certified.CertifiedPlan,
  ledger: accounting.RunLedger,
  model: Union[str, os.PathLike, Sequence[Any]],
  about: About,
  signing_key: Optional[str] = None,
) -> dict[str, Any]:
  """Writes a new folder with a certificate and all that it is bound to. It appears complete or not at all.

  Args:
    path: The folder, which must not exist.
    plan: The plan of the run. The shape of its model must be known, as it is after `build_process`.
    ledger: The run's ledger. A run may have ended before the last round of the plan's schedule.
    model: A Keras file (.keras) of the released model, or its weights: the trained tensors, as arrays.
    about: The facts that no file shows.
    signing_key: File with an Ed25519 private key (PEM) to sign the certificate with.

  Returns:
    The certificate.

  Raises:
    ValueError: If the folder exists, or the run gets no certificate. The message gives every reason.
  """
  if os.path.lexists(path):
    raise ValueError(f'{path} already exists: give a new folder.')
  if plan.model is None:
    raise ValueError("The shape of the plan's model is not known: build its process first, or give the plan a model.")
  problems = plan.ledger_problems(ledger)
  if plan.colluders:
    problems.append('A folder of library code does not say who was to come, on which colluders rest. Leave them out.')
  if problems:
    raise ValueError(f'This run cannot be certified. {" ".join(problems)}')
  unfinished = path.rstrip(os.sep) + files.UNFINISHED
  shutil.rmtree(unfinished, ignore_errors=True)
  os.makedirs(unfinished)
  try:
    _write_files(unfinished, plan, ledger, model, about)
    issued = certificate_folder.write(unfinished, read, signing_key)
    os.rename(unfinished, path)
  except BaseException:
    shutil.rmtree(unfinished, ignore_errors=True)
    raise
  return issued


def _write_files(path, plan, ledger, model, about):
  within = functools.partial(os.path.join, path)
  value = {
    'mechanism': _to_json(plan.config),
    'sparsity': _to_json(plan.sparsity),
    'sparsity_seed': plan._sparsity_seed,
    'client_metrics': plan.client_metrics,
    'test_is_of_clients': plan.test_is_of_clients,
    'layers': [layer._asdict() for layer in plan.model.layers],
    'sizes': list(plan.model.sizes),
    'about': {**about._asdict(), 'date': datetime.date.today().isoformat()},
  }
  files.write_json(within(MECHANISM), value)
  np.savez(
    within(SCHEDULE),
    offsets=np.cumsum([0, *map(len, plan.schedule)], dtype=np.int64),
    clients=np.concatenate([np.zeros(0, np.int64), *plan.schedule]),
  )
  np.savez(within(certificate_evidence.LEDGER), **ledger.state_dict())
  columns = certificate_evidence.client_columns(ledger, plan.report(ledger, plan.schedule).formal)
  with open(within(certificate_evidence.CLIENTS), 'w', newline='', encoding='utf-8') as f:
    writer = csv.writer(f)
    writer.writerow(columns)
    writer.writerows(zip(*columns.values()))
  if isinstance(model, (str, os.PathLike)):
    shutil.copyfile(model, within(_KERAS))
  else:
    np.savez(within(_ARRAYS), *(np.asarray(tensor) for tensor in model))


def read(path: str) -> certificate_evidence.Evidence:
  """The evidence in a folder that `write_certificate` has written.

  Raises:
    FolderError: If a file is missing or damaged. The message names the first one.
  """
  found = folder_files.entries(path)
  problems = certificate_evidence.entry_problems(path, found)
  value = folder_files.read_json(path, MECHANISM)
  plan, about = _plan(path, value)
  ledger = certificate_evidence.read_ledger(path, plan.num_clients)
  ledger_problems = plan.ledger_problems(ledger)
  if not ledger_problems:
    formal = plan.report(ledger, plan.schedule).formal
    problems += certificate_evidence.clients_problems(path, ledger, formal)
  model = _KERAS if _KERAS in found.files else _ARRAYS
  problems += ledger_problems + certificate_evidence.model_problems(path, model, tuple(value['sizes']), MECHANISM)
  told = ('algorithm', 'tuning', 'test_set', 'tests', 'public_data', 'post_processing')
  facts = plan.facts(**{name: about[name] for name in told})
  run = {name: about[name] for name in ('dataset', 'model', 'test_accuracy', 'date')}
  provenance = {
    'code': {'quap_tff': version.VERSION, 'source_sha256': version.source_digest()},
    'run': {**run, 'features': 'none'},
    'config_sha256': certificates.digest(value),
    'data_commitment': None,
    **certificate_evidence.provenance_of(plan, path, found.files, certificate_folder.OWN),
  }
  return certificate_evidence.Evidence(
    ledger, dataclasses.replace(facts, cohorts=about['cohorts']), provenance, problems, []
  )


def _plan(path, value) -> tuple[certified.CertifiedPlan, Mapping[str, Any]]:
  """The plan, and the stated facts, from mechanism.json as a value and schedule.npz."""
  whole = folder_files.check_archive(path, SCHEDULE)
  try:
    about = value['about']
    for name in (*About._fields, 'date'):
      if not isinstance(about[name], str) and name not in ('tests', 'test_accuracy'):
        raise ValueError(f'{name} is not text')
    if not isinstance(about['test_accuracy'], (float, type(None))):
      raise ValueError('test_accuracy is not a fraction')
    with np.load(whole, allow_pickle=False) as kept:
      offsets, clients = kept['offsets'], kept['clients']
    if not 0 < len(offsets) <= _MOST_ROUNDS + 1 or len(clients) > _MOST_PARTICIPATIONS:
      raise ValueError(f'a schedule has at most {_MOST_ROUNDS:,} rounds and {_MOST_PARTICIPATIONS:,} participations')
    schedule = np.split(clients, offsets[1:-1]) if len(offsets) > 1 else []
    model = layers_lib.ModelShape(
      tuple(layers_lib.Layer(one['name'], tuple(one['indices']), one['is_dense']) for one in value['layers']),
      tuple(value['sizes']),
    )
    mechanism = _from_json(value['mechanism'])
    certificate_evidence.check_population(mechanism.num_clients)
    plan = certified.CertifiedPlan(
      mechanism,
      schedule,
      model=model,
      sparsity=_from_json(value['sparsity']),
      sparsity_seed=value['sparsity_seed'],
      client_metrics=value['client_metrics'],
      test_is_of_clients=value['test_is_of_clients'],
    )
    return plan, about
  except folder_files.CannotTellError:
    raise
  except (OSError, EOFError, zipfile.BadZipFile, *certificate_evidence.DAMAGE) as error:
    raise folder_files.FolderError(f'{MECHANISM} or {SCHEDULE} is damaged: {error or type(error).__name__}') from None


def _to_json(value: Any) -> Any:
  """A tree of frozen dataclasses as a value that JSON can hold."""
  if dataclasses.is_dataclass(value):
    fields = {field.name: _to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return {'class': type(value).__name__, **fields}
  return list(map(_to_json, value)) if isinstance(value, (tuple, list)) else value


def _from_json(value: Any) -> Any:
  """The inverse of `_to_json`."""
  if isinstance(value, dict):
    fields = {name: _from_json(part) for name, part in value.items() if name != 'class'}
    if value['class'] == certified_config.CertifiedConfig.__name__:
      fields.setdefault('arithmetic', 'float')  # There was no other before.
    return _CLASSES[value['class']](**fields)
  return tuple(map(_from_json, value)) if isinstance(value, list) else value
