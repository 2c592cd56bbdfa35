"""Certificates of a gate's log. Another program clipped, added up and added noise; the gate decided who took part.

    quap_tff.certificates.gate_logs.write_log(folder, gate, 'log.csv', statements)
    quap_tff.certificates.verify(folder)

    gate.json                           the gate's parameters, and what the issuer states of the other program
    log.csv                             who took part in which round, see `quap_tff.accounting.logs`, in one form
    clients.csv                         the ε that each client has spent
    certificate.json, certificate.sig   made of these files alone; and a signature of it, if a key was given

The log is written anew from the one that the program kept, and each of its rounds must be the one that the gate
committed. Every figure is computed again from log.csv. Nothing in the folder shows what the other program did.
"""

from collections.abc import Iterable, Iterator, Mapping
import dataclasses
import datetime
import math
import os
from typing import Any, NamedTuple, Optional

import numpy as np

from quap_tff import accounting
from quap_tff.accounting import log_report
from quap_tff.accounting import logs
from quap_tff.certificates import certificate as certificates
from quap_tff.certificates import sentences
from quap_tff.certificates.folders import about as abouts
from quap_tff.certificates.folders import folder as folders
from quap_tff.certificates.folders import folder_files
from quap_tff.certificates.folders import signatures
from quap_tff.common import files
from quap_tff.common import registry
from quap_tff.common.numbers import rounding
from quap_tff.common.numbers import tradeoff
from quap_tff.mechanisms.certified import config as certified_config
from quap_tff.mechanisms.certified import guarantee
from quap_tff.mechanisms.noise import correlation as correlations

GATE, LOG = 'gate.json', 'log.csv'
_FILES = {GATE, LOG, folders.CLIENTS, folders.CERTIFICATE, folders.SIGNATURE}
_MOST_BYTES = 2**32
_QUANTILES = (0.5, 0.9, 0.99, 1.0)
_NOT_COVERED = (
  'Clipping, sums and noise were another program’s. That they were as the issuer states is taken from the issuer.',
  'Not counted: the rounding of floats, the source of random bits, running times, and whatever else the program '
  'released or kept in other places.',
  'Verification computes the figures from log.csv. It cannot tell if the log is complete and true, nor if the bounds '
  'were fixed, and the gate was asked, before the rounds.',
  'The statement is about this log alone. Everything else that was computed from the data of the same clients adds to '
  'what they have spent.',
)


@dataclasses.dataclass(frozen=True)
class Statements:
  """The issuer's statements about the other program, in sentences. A certificate repeats them, in quotation marks.

  Attributes:
    program: The program that trained, with its version.
    clipping: How it clipped each client's update, and to which norm.
    noise: How it added noise to the sum, with which deviation and from which source.
    cohorts: Who could come in which round, and that this does not depend on clients' data.
    releases: What left the program, besides the noised sums and what follows from them.
    date: The day of the last round, as 2026-11-25; by default today.
  """

  program: str
  clipping: str
  noise: str
  cohorts: str
  releases: str
  date: str = dataclasses.field(default_factory=lambda: datetime.date.today().isoformat())

  def __post_init__(self) -> None:
    values = dataclasses.asdict(self)
    # The texts and the date obey the rules of every other certificate.
    abouts.About(values['program'], values['cohorts'], values['clipping'], values['noise'], date=self.date)
    abouts.About(values['releases'], 'a', 'a', 'a')


class _Content(NamedTuple):
  config: guarantee.GuaranteeConfig
  statements: Statements
  code: Mapping[str, str]
  account: logs.LogAccount
  epsilon: np.ndarray

  @property
  def clients_text(self) -> str:
    """clients.csv."""
    return log_report.clients_text(self.account.names, self.account.counts, {'epsilon': self.epsilon})


def write_log(
  path: str, gate: Any, log: str, statements: Statements, signing_key: Optional[str] = None
) -> dict[str, Any]:
  """Writes a new folder with the certificate of a log. It appears complete or not at all.

  Args:
    path: The folder, which must not exist.
    gate: The `quap_tff.Gate`.
    log: A CSV file of all committed rounds, whose clients are the gate's ids.
    statements: About the other program.
    signing_key: File with an Ed25519 private key (PEM).

  Returns:
    The certificate.

  Raises:
    ValueError: If the folder exists, the log cannot be read, or its rounds are not those that the gate committed.
  """
  if os.path.lexists(path):
    raise ValueError(f'{path} already exists: give a new folder.')
  key = signatures.read_private_key(signing_key) if signing_key is not None else None
  with files.new_folder(path) as unfinished:
    with open(os.path.join(unfinished, LOG), 'w', encoding='utf-8', newline='') as f:
      f.writelines(_lines(_committed(gate, log)))
    files.write(os.path.join(unfinished, GATE), _text(gate.config, statements, abouts.this_code()))
    content = read(unfinished)
    files.write(os.path.join(unfinished, folders.CLIENTS), content.clients_text)
    certificate = make(unfinished, content)
    files.write_json(os.path.join(unfinished, folders.CERTIFICATE), certificate)
    signatures.sign(unfinished, folders.CERTIFICATE, key)
  return certificate


def _committed(gate: Any, path: str) -> Iterator[accounting.RoundRecord]:
  """The rounds of a log, with the float32 weights that the gate charged.

  A program writes a weight with as many digits as it likes: it may stand for the nearest float32, or for the one above.
  """
  number = 0
  for number, record in enumerate(_rounds(path, gate.num_clients), 1):
    nearest = np.asarray(record.weights, np.float32)
    above = np.where(nearest < record.weights, np.nextafter(nearest, np.float32(2)), nearest)
    expected = gate.digests[number - 1] if number <= gate.rounds else None
    candidates = [record._replace(weights=one) for one in (nearest, above)]
    same = [one for one in candidates if gate.digest_of(number, one) == expected]
    if not same:
      found = f'{len(record.cohort)} clients'
      if not expected:
        found += f'; the gate committed {gate.rounds} rounds'
      raise ValueError(
        f'{path} is not the log of this gate: its round {number} is not the one that the gate committed ({found}). '
        'Give the log of all committed rounds, with the clients and the weights that `commit` returned.'
      )
    yield same[0]
  if number != gate.rounds:
    raise ValueError(
      f'{path} is not the log of this gate: it has {number} rounds, and the gate committed {gate.rounds}. Log every '
      'committed round; one to which nobody came has a row with an empty client.'
    )


def _rounds(path: str, num_clients: int) -> Iterator[accounting.RoundRecord]:
  """The rounds of a log whose clients are ids; raises `ValueError` for other names."""
  for one in logs.by_id(path, num_clients):
    yield accounting.RoundRecord(one.ids, None, one.weights, math.nan, released=one.released)


def _lines(rounds: Iterable[accounting.RoundRecord]) -> Iterator[str]:
  """log.csv, round by round."""
  yield logs.HEADER
  for number, record in enumerate(rounds, 1):
    yield ''.join(logs.row_texts(number, record))


def _has_one_form(path: str, num_clients: int) -> bool:
  """True if a log is as `write` writes it, to the last byte."""
  with open(path, encoding='utf-8', newline='') as f:
    return all(f.read(len(part)) == part for part in _lines(_rounds(path, num_clients))) and not f.read(1)


def _text(config: guarantee.GuaranteeConfig, statements: Statements, code: Mapping[str, Any]) -> str:
  return files.json_text(
    {
      'version': folders.VERSION,
      'code': dict(code),
      'gate': registry.value_of(config),
      'issuer': dataclasses.asdict(statements),
    }
  )


def read(path: str) -> _Content:
  """The files of a folder, and the accounts that follow from them.

  Raises:
    FolderError: If a file is missing or damaged, or holds anything beyond what is defined.
    CannotTellError: If it is of another version, or too large.
  """
  value = folder_files.read_json(path, GATE)
  folders.check_version(GATE, value)
  with folder_files.damage(GATE):
    abouts.check_text(GATE, value)
    abouts.check_code(value['code'])
    config = folders.read_config(certified_config.CertifiedConfig.trust, value['gate'])
    statements = Statements(**value['issuer'])
    if config.counts_norms:
      raise ValueError('it is not the mechanism of a gate')
    if _text(config, statements, value['code']) != folder_files.read_text(path, GATE):
      raise ValueError('it holds a key that is not defined, or a value that is written in another way')
  with folder_files.damage(LOG):
    planned = math.inf if config.num_rounds is None else config.num_rounds
    log = folder_files.check_regular(path, LOG, _MOST_BYTES)
    if not _has_one_form(log, config.num_clients):
      raise ValueError('it is not written in the one form of a log in a certificate')
    z = config.to_mechanism().noise_multiplier
    account = _from_before(logs.account(logs.Log(log), z, config.correlation, planned), config)
  epsilon = tradeoff.epsilon_of(np.sqrt(account.mu_squared), config.delta)
  return _Content(config, statements, value['code'], account, epsilon)


def _from_before(account: logs.LogAccount, config: guarantee.GuaranteeConfig) -> logs.LogAccount:
  """The account with what clients had spent before, also of those that are not in the log."""
  if config.spent_before is None:
    return account
  before, ids = np.asarray(config.spent_before.mu_squared), np.array(list(map(int, account.names)), np.int64)
  others = np.setdiff1d(np.flatnonzero(before), ids)
  return account._replace(
    names=[*account.names, *map(str, others.tolist())],
    mu_squared=np.append(account.mu_squared + before[ids], before[others]),
    counts=np.append(account.counts, np.zeros(len(others), np.int64)),
  )


def gate_problems(path: str, certificate: Any) -> list[str]:
  """The problems of a folder and of its certificate, a sentence each.

  Raises:
    FolderError: If a file is missing or damaged.
  """
  entries = folder_files.entries(path)
  names = set(entries.files).union(entries.empty, entries.special)
  strangers = sorted(names - _FILES)
  problems = [f'{name} does not belong there: a certificate does not name it.' for name in strangers]
  problems += [f'{name} is a {kind}.' for name, kind in entries.special.items() if name in _FILES]
  content = read(path)
  if folder_files.read_text(path, folders.CLIENTS) != content.clients_text:
    problems.append(f'{folders.CLIENTS} does not say what {LOG} gives.')
  try:
    expected = make(path, content)
  except ValueError as error:
    return [*problems, str(error)]
  return problems + certificates.text_problems(path, certificate, expected)


def make(path: str, content: _Content) -> dict[str, Any]:
  """The certificate of a folder. Raises `ValueError` if a client has spent more than its bound."""
  config, account, up = content.config, content.account, sentences.up
  ids = np.array(list(map(int, account.names)), np.int64)
  bounds = np.full(len(ids), config.epsilon) if config.own_epsilon is None else np.asarray(config.own_epsilon)[ids]
  if over := certificates.overspent(ids, content.epsilon, bounds, tolerance=0.0, at=''):
    raise ValueError(f'This log cannot be certified: {over[0]}')
  everyone = np.zeros(config.num_clients)
  everyone[ids] = content.epsilon
  quantiles = {f'{q:g}': up(float(np.quantile(everyone, q, method='higher'))) for q in _QUANTILES}
  clients_with_own_bounds = 0 if config.own_epsilon is None else config.num_clients
  # Other data are two steps away from a client's own: without it, and then with the others.
  if_replaced = tradeoff.epsilon_of(2 * tradeoff.mu_at_most(config.epsilon, config.delta), config.delta)
  return certificates.sealed(
    {
      'version': folders.VERSION,
      'kind': 'gate',
      'statement': _statement(content, float(everyone.max())),
      'guarantee': {
        'unit': accounting.UNIT,
        'neighbours': accounting.ZERO_OUT,
        'epsilon': config.epsilon,
        'delta': config.delta,
        'epsilon_if_data_are_replaced_by_others': up(float(if_replaced)),
        'accountant': accounting.ACCOUNTANTS['gaussian_exact'].method,
        'amplification': sentences.AMPLIFICATION,
        'clients_with_own_bounds': clients_with_own_bounds,
        **sentences.spent_before(config),
      },
      'achieved': {
        'rounds': account.num_rounds,
        'planned_rounds': config.num_rounds,
        'participations': int(account.counts.sum()),
        'clients': config.num_clients,
        'clients_that_took_part': int(np.count_nonzero(account.counts)),
        'epsilon_max': up(float(everyone.max())),
        'epsilon_mean': up(float(everyone.mean())),
        'epsilon_quantiles': quantiles,
      },
      'noise_multiplier': config.noise_multiplier,
      'correlation': correlations.spec_of(config.correlation),
      'not_covered': [*_NOT_COVERED, *sentences.assumptions_before(config, counts_rounding=False)],
      'issuer': dataclasses.asdict(content.statements),
      'provenance': {
        'code': dict(content.code),
        'files_sha256': {name: folder_files.digest(path, name) for name in (GATE, LOG, folders.CLIENTS)},
      },
    }
  )


def _statement(content: _Content, most: float) -> str:
  config, account, stated = content.config, content.account, content.statements
  noise, z = 'drawn anew in each round', float(config.to_mechanism().noise_multiplier)
  if config.correlation.num_buffers:
    noise = f'correlated from round to round with c_0 = 1 and {config.correlation.formula}'
  sentence = (
    ' Each client has a bound of its own, at most this ε, in gate.json.' if config.own_epsilon is not None else ''
  )
  sentence += sentences.statement_before(config, GATE)
  return (
    f'A gate let {np.count_nonzero(account.counts):,} of {config.num_clients:,} clients take part in '
    f'{account.num_rounds:,} rounds of another program, “{stated.program}”. Clipping, sums and noise were that '
    "program's, and are taken from the issuer's statement. If each client's update was clipped to its weight times one "
    f'norm, and Gaussian noise of {sentences.whole(z)} times that norm, {noise}, '
    'was added to each coordinate of every sum, then the noised sums of these rounds, and everything that is computed '
    'from them alone, are (ε, δ)-differentially private for each client with ε = '
    f'{sentences.whole(config.epsilon)} and δ = {sentences.whole(config.delta)}.{sentence} Unit: {accounting.UNIT}. '
    f"Neighbours: {accounting.ZERO_OUT}. It is assumed that who takes part does not depend on clients' data. "
    f'Amplification by sampling is not counted. The client that spent most has spent ε ≤ {rounding.up(most, 6)}; this '
    'figure, and those in clients.csv, are readings and not guarantees if the program stopped because of what it had '
    f'released. The issuer states, on clipping: “{stated.clipping}” On noise: “{stated.noise}” On who takes part: '
    f'“{stated.cohorts}” On other releases: “{stated.releases}”'
  )
