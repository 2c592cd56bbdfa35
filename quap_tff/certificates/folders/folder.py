"""The files of a certificate: what a verifier needs, and nothing else, the same for every run of every program.

A run's folder holds them in its subfolder `certificate`:

    mechanism.json           the settled mechanism, the model's shape, what leaves clients, and what the issuer states
    schedule.npz             of planned cohorts, the public schedule: round t, from 1, has
                             clients[offsets[t-1]:offsets[t]]; `comes` says who of them really comes, where this is
                             known before the run
    ledger.npz               the cost of each round for each client; none of secret cohorts, which it would name
    clients.csv              the ε that each client has spent; of secret cohorts, its rate, its weight and its ε
    final_model.npz          the model that is released: its trained tensors arr_0, arr_1, …, in the order of `shapes`
    certificate.json, .html  made of these files alone
    certificate.sig          an Ed25519 signature of certificate.json, if a key was given

Any other file there is refused. Alongside this subfolder, `audit.json` and `audit.sig` are what an audit measured and a
signature of it. Whatever else a program keeps alongside it is not covered by the certificate, and nobody compares it.
"""

from collections.abc import Mapping, Sequence
import functools
import json
import os
from typing import Any, NamedTuple, Optional

import numpy as np

from quap_tff import accounting
from quap_tff.accounting import log_report
from quap_tff.certificates.folders import about as abouts
from quap_tff.certificates.folders import folder_files
from quap_tff.certificates.folders import shapes
from quap_tff.certificates.folders.folder_files import FolderError
from quap_tff.common import files
from quap_tff.common import registry
from quap_tff.mechanisms import sparsity as sparsities
from quap_tff.mechanisms.certified import config as certified_config
from quap_tff.mechanisms.certified import guarantee
from quap_tff.mechanisms.held import config as held_config
from quap_tff.mechanisms.parts import participation as participations
from quap_tff.mechanisms.secret_cohorts import config as secret_config
from quap_tff.plans.accounts import ahead
from quap_tff.plans.accounts import leaving as leavings
from quap_tff.plans.accounts import run_account
from quap_tff.plans.accounts import secret_coins
from quap_tff.plans.accounts.run_account import AS_THEY_CAME
from quap_tff.plans.accounts.run_account import PLANNED
from quap_tff.plans.accounts.run_account import SECRET

# The version of the folder's files and of the certificate's fields and words. A change of any is a new version.
VERSION = 12

MECHANISM, SCHEDULE, LEDGER, CLIENTS = 'mechanism.json', 'schedule.npz', 'ledger.npz', 'clients.csv'
MODEL = 'final_model.npz'
CERTIFICATE, PAGE, SIGNATURE = 'certificate.json', 'certificate.html', 'certificate.sig'
# Files that are made from the certificate. It holds no digest of them.
OWN = (CERTIFICATE, PAGE, SIGNATURE)
# In the folder of a run: the subfolder with these files, and what lies alongside it.
SUBFOLDER, AUDIT, AUDIT_SIGNATURE = 'certificate', 'audit.json', 'audit.sig'

# In mechanism.json, where a program of the issuer's own computed the updates.
_OWN_UPDATES = {'updates': "of the issuer's own program"}
# An ordinary machine's memory holds this many. A larger plan would take too long to compute again.
_MOST_CLIENTS, _MOST_ROUNDS, _MOST_PARTICIPATIONS = 10**7, 10**6, 10**8
# The configurations that a folder may name: each of ours by its trust, but for the one with secret cohorts. One of a
# user's own program has another name.
MECHANISMS: dict[str, type[guarantee.GuaranteeConfig]] = {
  certified_config.CertifiedConfig.trust: certified_config.CertifiedConfig,
  held_config.HeldConfig.trust: held_config.HeldConfig,
  'secret_cohorts': secret_config.SecretCohortsConfig,
}


class Content(NamedTuple):
  """The content of a folder.

  Attributes:
    path: The folder.
    entries: What lies in it.
    plan: The plan of the run. Its noise is chosen, and its model's shape is known.
    ledger: The cost of each round. Of secret cohorts, the one that every run of the plan has.
    about: The statements of the issuer.
    leaving: What leaves clients in a round, see `quap_tff.plans.BuiltProcess`.
    code: The version of the program that wrote the folder, and the digest of its source.
  """

  path: str
  entries: folder_files.Entries
  plan: run_account.RunAccount
  ledger: accounting.RunLedger
  about: abouts.About
  leaving: Sequence[tuple[str, str, str]]
  code: Mapping[str, str]


def certificate_folder(path: str) -> str:
  """The folder with the certificate: the subfolder of a run's folder, or this one.

  Raises:
    FolderError: If the subfolder is a link, which may lead to another run.
  """
  subfolder = os.path.join(path, SUBFOLDER)
  if os.path.lexists(os.path.join(path, CERTIFICATE)) or not os.path.lexists(subfolder):
    return path
  if os.path.islink(subfolder):
    raise FolderError(f'{SUBFOLDER} in {path} is a link. A certificate covers regular files only.')
  return subfolder


def write_files(
  path: str,
  plan: run_account.RunAccount,
  leaving: run_account.Leaving,
  ledger: accounting.RunLedger,
  trainable: Sequence[Any],
  about: abouts.About,
) -> None:
  """Writes mechanism.json, schedule.npz, ledger.npz, clients.csv and final_model.npz, each whole or not at all.

  Raises:
    ValueError: If the plan does not know its model, or is a rehearsal, which gets no certificate.
  """
  if reasons := ahead.refusals(plan):
    raise ValueError(f'This run cannot be certified. {" ".join(reasons)}')
  within = functools.partial(os.path.join, path)
  files.write(within(MECHANISM), mechanism_text(plan, leaving, about, abouts.this_code()))
  if plan.schedule:
    files.write(within(SCHEDULE), files.npz(_schedule_arrays(plan)))
  if plan.secret is None:
    files.write(within(LEDGER), files.npz(ledger.state_dict()))
  files.write(within(CLIENTS), clients_text(plan, ledger))
  arrays = {f'arr_{index}': np.asarray(tensor) for index, tensor in enumerate(trainable)}
  files.write(within(MODEL), files.npz(arrays))


def mechanism_text(
  plan: run_account.RunAccount, leaving: Sequence[Sequence[str]], about: abouts.About, code: Mapping[str, str]
) -> str:
  """mechanism.json."""
  name = registry.name_of(plan.guarantee.config, MECHANISMS)
  value = {
    'version': VERSION,
    'code': dict(code),
    'trust': plan.guarantee.config.trust,
    **({} if name == plan.guarantee.config.trust else {'kind': name}),
    'cohorts': plan.cohorts,
    **(_OWN_UPDATES if plan.own_updates else {}),
    'mechanism': registry.value_of(plan.guarantee.config),
    'sparsity': registry.format_spec(registry.name_of(plan.sparsity, sparsities.SPARSITIES), plan.sparsity),
    'sparsity_seed': plan.sparsity_seed,
    'colluders': list(plan.colluders),
    'layers': [layer._asdict() for layer in plan.shape.layers],
    'shapes': [list(shape) for shape in plan.shape.shapes],
    'leaves_clients': [list(one) for one in leaving],
    'issuer': about.as_dict(),
  }
  return json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + '\n'


def _schedule_arrays(plan: run_account.RunAccount) -> dict[str, np.ndarray]:
  arrays = {
    'offsets': np.cumsum([0, *map(len, plan.schedule)], dtype=np.int64),
    'clients': np.concatenate([np.zeros(0, np.int64), *plan.schedule]),
  }
  if plan.holds_noise and plan.attendance is not None:
    comes = [np.isin(drawn, came) for drawn, came in zip(plan.schedule, plan.attendance)]
    arrays['comes'] = np.concatenate([np.zeros(0, bool), *comes])
  return arrays


def clients_text(plan: run_account.RunAccount, ledger: accounting.RunLedger) -> str:
  """clients.csv: a row for each client that the ledger lists; of secret cohorts, a row for everyone."""
  if plan.secret is not None:
    return secret_coins.clients_text(plan.secret, plan.slack)
  formal, listed = plan.report(ledger, plan.schedule).formal, ledger.listed
  epsilons = {
    'formal_epsilon': formal.epsilon,
    'formal_epsilon_reading': formal.reading.epsilon if formal.reading is not None else None,
  }
  known = {name: values[listed] for name, values in epsilons.items() if values is not None}
  return log_report.clients_text(listed.tolist(), ledger.rounds[listed], known)


def read(path: str) -> Content:
  """The content of a folder with mechanism.json.

  Raises:
    FolderError: If a file is missing or damaged, or holds anything beyond what is defined. The message names the file.
    CannotTellError: If there is no such folder, it is of another version, or the run is too large to be verified here.
  """
  entries = folder_files.entries(path)
  value = folder_files.read_json(path, MECHANISM)
  check_version(MECHANISM, value)
  with folder_files.damage(MECHANISM):
    registry.lookup('trust', value['trust'], dict.fromkeys(one.trust for one in MECHANISMS.values()))
    config, model = read_config(value.get('kind', value['trust']), value['mechanism']), shapes.model_shape(value)
    about = abouts.About(**{**value['issuer'], 'stretches': tuple(value['issuer']['stretches'])})
    code = value['code']
    abouts.check_code(code)
    registry.lookup('cohorts', value['cohorts'], dict.fromkeys([PLANNED, AS_THEY_CAME, SECRET]))
  schedule, attendance = _schedule(path, config) if value['cohorts'] == PLANNED else (None, None)
  with folder_files.damage(f'{MECHANISM} or {SCHEDULE}'):
    plan = run_account.RunAccount.certified(
      config,
      schedule,
      attendance=attendance,
      colluders=value['colluders'],
      model=model,
      sparsity=registry.parse_spec('sparsity', value['sparsity'], sparsities.SPARSITIES),
      sparsity_seed=value['sparsity_seed'],
      own_updates='updates' in value,
    )
    plan.slack  # noqa: B018  # Refuses what integers cannot hold, and what ε and δ do not pay for.
    leaving = [tuple(one) for one in value['leaves_clients']]
    leavings.check_leaving(leaving, plan)
    abouts.check_text(MECHANISM, value)
    # Whatever is not defined, or is written in another way, is not in this text.
    if mechanism_text(plan, leaving, about, code) != folder_files.read_text(path, MECHANISM):
      raise ValueError('it holds a key that is not defined, or a value that is written in another way')
  return Content(path, entries, plan, _ledger(path, plan), about, leaving, code)


def check_version(name: str, value: Any) -> None:
  """Raises `CannotTellError` for a file of another version than this one, and `FolderError` for one of none."""
  version = value.get('version') if isinstance(value, dict) else None
  if type(version) is not int:
    raise FolderError(f'{name} is damaged: it is not a JSON object with a version.')
  if version != VERSION:
    raise folder_files.CannotTellError(f'{name} has version {version}, and this program knows only version {VERSION}.')


def read_config(name: str, value: Mapping[str, Any]) -> guarantee.GuaranteeConfig:
  """The configuration of `MECHANISMS` whose fields `registry.value_of` wrote. Raises any error for other fields."""
  if name not in MECHANISMS:
    raise registry.UnknownChoiceError(str(registry.unknown_name_error('mechanism', name, list(MECHANISMS))))
  make = MECHANISMS[name]
  # JSON has no tuples, of which a configuration is made.
  parts = dict(value)
  for name, part in value.items():
    if isinstance(part, list):
      parts[name] = tuple(part)
  for name, (kind, choices) in ahead.CHOICES.items():
    if name in parts:
      if not isinstance(parts[name], str):
        raise ValueError(f'the {kind} must be a text, found {parts[name]!r}')
      parts[name] = registry.parse_spec(kind, parts[name], choices)
  if 'spent_before' in parts:
    parts['spent_before'] = accounting.SpentBefore.from_value(parts['spent_before'])
  if 'participation' in parts:
    parts['participation'] = participations.ParticipationConfig(**parts['participation'])
  config = make(**parts)
  config.to_mechanism()  # Refuses what is left open.
  if config.num_clients > _MOST_CLIENTS:
    raise folder_files.CannotTellError(
      f'the run has {config.num_clients:,} clients, and this program verifies runs of at most {_MOST_CLIENTS:,}.'
    )
  return config


def _schedule(path: str, config: guarantee.GuaranteeConfig) -> tuple[list[np.ndarray], Optional[list[np.ndarray]]]:
  """The drawn clients of each round, and those who come, if this is known before the run."""
  planned = {'offsets': np.int64, 'clients': np.int64}
  with_attendance = {**planned, 'comes': bool}
  arrays = folder_files.read_arrays(path, SCHEDULE, [planned, with_attendance])
  with folder_files.damage(SCHEDULE):
    for name, array in arrays.items():
      if array.dtype != with_attendance[name] or array.ndim != 1:
        raise ValueError('offsets and clients must be int64[n], and comes bool[n]')
    offsets, clients = arrays['offsets'], arrays['clients']
    if not 1 < len(offsets) <= _MOST_ROUNDS + 1 or len(clients) > _MOST_PARTICIPATIONS:
      raise ValueError(
        f'a schedule has 1 to {_MOST_ROUNDS:,} rounds and at most {_MOST_PARTICIPATIONS:,} participations'
      )
    if offsets[0] != 0 or offsets[-1] != len(clients) or (np.diff(offsets) < 0).any():
      raise ValueError('offsets must ascend from 0 to the number of clients')
    if len(offsets) - 1 != config.num_rounds:
      raise ValueError(f'it has {len(offsets) - 1} rounds, and the mechanism plans {config.num_rounds}')
    cohorts = np.split(clients, offsets[1:-1])
    if 'comes' not in arrays:
      return cohorts, None
    if not config.holds_noise or len(arrays['comes']) != len(clients):
      raise ValueError('comes must be bool, one for each client, and only where clients hold the noise')
    comes = np.split(arrays['comes'], offsets[1:-1])
    return cohorts, [cohort[here] for cohort, here in zip(cohorts, comes)]


def _ledger(path: str, plan: run_account.RunAccount) -> accounting.RunLedger:
  if plan.secret is not None:
    return plan.planned_ledger([()] * plan.secret.num_rounds)
  with folder_files.damage(LEDGER):
    expected = plan.new_ledger().state_dict()
    arrays = folder_files.read_arrays(path, LEDGER, [expected])
    # Before the arrays of a population are made.
    if arrays['num_clients'].shape or int(arrays['num_clients']) != plan.num_clients:
      raise ValueError(f'it must be of {plan.num_clients:,} clients')
    return accounting.RunLedger.from_state_dict(arrays)


def digests(content: Content) -> dict[str, str]:
  """SHA-256 of each file by name, of those that are not made from the certificate."""
  return {name: folder_files.digest(content.path, name) for name in content.entries.files if name not in OWN}
