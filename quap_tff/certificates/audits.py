"""audit.json: the result of an audit of a finished run, bound to the run's certificate by its digest.

It lies in the run's folder, alongside the folder of the certificate, which does not cover it.

An audit makes one or two tests of one claim: the canaries, and the distinguishing game where there is one. Either may
refute the claim. So that all of it errs as seldom as its confidence says, each test gets an equal part of the error.
"""

from collections.abc import Mapping
import math
import os
from typing import Any, NamedTuple, Optional

from quap_tff.auditing.bounds import lower_bounds
from quap_tff.certificates import certificate as certificates
from quap_tff.certificates.folders import about as abouts
from quap_tff.certificates.folders import folder_files
from quap_tff.certificates.folders.folder import AUDIT
from quap_tff.certificates.folders.folder import AUDIT_SIGNATURE
from quap_tff.common import checks
from quap_tff.common import files
from quap_tff.common.numbers import rounding

_CLOSE = 1e-9
_BOUNDS = frozenset(
  [
    *lower_bounds.Guesses._fields,
    *('true_positive_rate_at_least', 'false_positive_rate_at_most', 'mu_lower_bound', 'epsilon_lower_bound'),
    'epsilon_lower_bound_if_trials_are_independent',
  ]
)
_KEYS = _BOUNDS | frozenset(
  'certificate_sha256 sha256 assumptions claimed_epsilon claim delta canaries canary_clients threshold '
  'is_gaussian inserted_mean unseen_mean unseen_stddev confidence tests repeats part algorithm dataset game seconds '
  'refuted'.split()
)
_GAME_KEYS = _BOUNDS | {'claimed_mu', 'draws', 'mu_estimate'}
# The assumptions of the figures in audit.json; kept there, so that nobody reads more into them.
_ASSUMPTIONS = {
  'epsilon_lower_bound': 'Gaussian noise that is independent in orthogonal directions',
  'epsilon_lower_bound_if_trials_are_independent': 'independent trials. No noise is assumed, but nothing '
  'guarantees independence without assuming a noise: the canaries of one run share the run',
}


class Audit(NamedTuple):
  """An audit of a certificate.

  Attributes:
    problems: Its problems, a sentence each.
    refutes: Whether it refutes the claim of the certificate.
    verdict: The measured bounds and the claim, in sentences.
  """

  problems: list[str]
  refutes: bool = False
  verdict: str = ''


class _Test(NamedTuple):
  """One test of the claim, which it refutes if the bound is larger than the claimed figure."""

  bound: float
  claimed: Optional[float]
  proves: str
  claim: str

  @property
  def refutes(self) -> bool:
    return self.claimed is not None and self.bound > self.claimed


def number_of_tests(has_game: bool) -> int:
  """How many tests share the confidence."""
  return 1 + has_game


def write_audit(path: str, measured: Mapping[str, Any], certificate: Mapping[str, Any]) -> None:
  """Writes the measured figures into a run's folder, with the digest of the certificate and their own."""
  record = {'certificate_sha256': certificate['sha256'], **measured, 'assumptions': _ASSUMPTIONS}
  files.write_json(os.path.join(path, AUDIT), certificates.sealed(record))


def read(path: str, certificate: Mapping[str, Any]) -> Optional[Audit]:
  """The audit in the folder of a run with this certificate; None without an audit.

  Raises:
    FolderError: If its file cannot be read.
  """
  if not os.path.lexists(os.path.join(path, AUDIT)):
    is_signed = os.path.lexists(os.path.join(path, AUDIT_SIGNATURE))
    return Audit([f'{AUDIT_SIGNATURE} is the signature of an audit that is not there.']) if is_signed else None
  record = folder_files.read_json(path, AUDIT)
  problems = audit_problems(record, certificate)
  if not problems and folder_files.read_text(path, AUDIT) != files.json_text(record):
    problems = [f'{AUDIT} is written in another way than audits are.']
  return Audit(problems) if problems else Audit([], refutes(record), verdict(record))


def audit_problems(record: Any, certificate: Mapping[str, Any]) -> list[str]:
  """The faults of a record, a sentence each: of another certificate, changed, or with wrong arithmetic."""
  try:
    with folder_files.damage(AUDIT):
      if not isinstance(record, dict):
        return [f'{AUDIT} is not an audit: it must be an object, found {record!r:.40}.']
      game = record.get('game')
      for keys, part in ((_KEYS, record), *([(_GAME_KEYS, game)] if game is not None else [])):
        if not isinstance(part, dict) or set(part) != keys:
          given = sorted(part) if isinstance(part, dict) else f'{part!r:.40}'
          return [f'{AUDIT} is not an audit: it must have {sorted(keys)}, found {given}.']
      abouts.check_text(AUDIT, record)
      _check_figures(record, certificate)
      expected = _expected(record, certificate)
      return [f'{AUDIT}: {one}' for one in certificates.differences(record, expected, tolerance=_CLOSE)]
  except folder_files.FolderError as error:
    return [str(error)]


def _check_figures(record: Mapping[str, Any], certificate: Mapping[str, Any]) -> None:
  """Raises `ValueError` for a measured figure that no audit of the certified run measures."""
  game, clients = record['game'], record['canary_clients']
  for name in ('canaries', 'repeats'):
    checks.integer(name, record[name], at_least=1)
  mu = certificate['guarantee']['mu'] * (1 + _CLOSE)
  for name in ('inserted_mean', 'unseen_mean'):
    _check_float(name, record[name])
  _check_float('unseen_stddev', record['unseen_stddev'], at_least=0)
  _check_float('threshold', record['threshold'], **dict(zip(('at_least', 'at_most'), lower_bounds.thresholds(mu))))
  _check_float('confidence', record['confidence'], at_least=0.5, below=1)
  _check_share('unseen', record, record['unseen_stddev'])
  _check_share('inserted', record, math.inf)
  if record['unseen'] % record['repeats']:
    raise ValueError(f'unseen must be a multiple of repeats, found {record["unseen"]!r}')
  if not isinstance(clients, list) or len(clients) != record['canaries']:
    raise ValueError(f'canary_clients must be a list of {record["canaries"]} clients, found {clients!r}')
  checks.cohort(clients, certificate['achieved']['clients'])
  if record['inserted'] != record['canaries'] * record['repeats']:
    raise ValueError(f'inserted must be canaries times repeats, found {record["inserted"]!r}')
  if game is not None:
    if not checks.integer('draws', game['draws'], at_least=1) == game['inserted'] == game['unseen']:
      raise ValueError(f'draws must be those of each world, found {game["draws"]!r}')
    _check_float('mu_estimate', game['mu_estimate'])
    # A game is about one client, and every client's μ is at most that of the guarantee.
    _check_float("the game's μ", game['claimed_mu'], at_least=0, at_most=mu)


def _check_float(name: str, value: Any, **limits: float) -> None:
  """Raises `ValueError` unless it is a number that JSON has as a float, as audits write it."""
  if type(value) is not float:
    raise ValueError(f'{name} must be a finite number that is written like 2.0, found {value!r}')
  checks.number(name, value, **limits)


def _check_share(kind: str, record: Mapping[str, Any], stddev: float) -> None:
  """Raises `ValueError` if the scores above the threshold contradict the scores' mean and deviation (Cantelli)."""
  positives = {'unseen': 'false_positives', 'inserted': 'true_positives'}[kind]
  share, gap = record[positives] / record[kind], record['threshold'] - record[f'{kind}_mean']
  # The part of the scores on the other side of the threshold than their mean.
  other = share if gap >= 0 else 1 - share
  is_above = share == 1 and gap >= 0 or share == 0 and gap < 0
  if is_above or (other < 1 and other * gap**2 > (1 - other) * stddev**2 * (1 + _CLOSE)):
    raise ValueError(f'{positives} of {record[positives]!r} contradicts {kind}_mean, found {record[f"{kind}_mean"]!r}')


def _expected(record: Mapping[str, Any], certificate: Mapping[str, Any]) -> dict[str, Any]:
  """The record with what follows from the certificate and from the counts."""
  guarantee, issuer, game = certificate['guarantee'], certificate['issuer'], record['game']
  tests = number_of_tests(game is not None)
  expected = {
    **record,
    **_bounds(record, record, tests),
    'game': None if game is None else {**game, **_bounds(game, record, tests)},
    'certificate_sha256': certificate['sha256'],
    'claim': 'certified',
    'claimed_epsilon': guarantee['epsilon'],
    'delta': guarantee['delta'],
    'is_gaussian': True,
    'tests': tests,
    # All layers of a certified run are noised.
    'part': 'noised' if record['part'] == 'noised' else 'all',
    'algorithm': issuer['algorithm'],
    'dataset': issuer['dataset'],
    'seconds': None,
    'assumptions': _ASSUMPTIONS,
    'refuted': refutes(record),
  }
  return {**expected, 'sha256': certificates.sealed(record)['sha256']}


def _bounds(part: Mapping[str, Any], record: Mapping[str, Any], tests: int) -> dict[str, Any]:
  guesses = lower_bounds.Guesses(*(part[name] for name in lower_bounds.Guesses._fields))
  bound = lower_bounds.bound(guesses, record['delta'], lower_bounds.each(record['confidence'], tests))
  return lower_bounds.as_dict(guesses, bound)


def refutes(measured: Mapping[str, Any]) -> bool:
  """True if any of an audit's tests proves more than is claimed."""
  return any(test.refutes for test in _tests(measured))


def verdict(measured: Mapping[str, Any]) -> str:
  """The measured figures and the claimed ones, in sentences. The strongest of all tests decides."""
  tests, claimed, kind = _tests(measured), measured['claimed_epsilon'], measured['claim']
  together = 'Both hold' if len(tests) > 1 else 'This holds'
  text = (
    f'At δ = {measured["delta"]!r}, {", and ".join(test.proves for test in tests)}. '
    f'{together} with {_percent(measured["confidence"])} confidence.'
  )
  refuted = [test.claim for test in tests if test.refutes]
  if refuted:
    return (
      f'{text} More is proved than {", and than ".join(refuted)}. The claim does not hold for this program, or this '
      'is one of the audits that err, as the confidence allows. An error by chance does not come back: repeat the '
      'audit with another --canary_seed.'
    )
  if claimed is None:
    return f'{text} Nothing is claimed of this method.'
  return f'{text} The {kind} ε is {rounding.up(claimed)}, which this audit does not refute.'


def rows(measured: Mapping[str, Any]) -> list[list[str]]:
  """(what, figure) for a table."""
  claimed, game = measured['claimed_epsilon'], measured['game']
  independent = measured['epsilon_lower_bound_if_trials_are_independent']
  confidence = f'{_percent(measured["confidence"])} that all bounds hold'
  if game is not None:
    each = lower_bounds.each(measured['confidence'], measured['tests'])
    confidence += f', {_percent(each)} for each of the two tests'
  table = [['Claimed', f'ε = {rounding.up(claimed)} ({measured["claim"]})' if claimed is not None else 'nothing']]
  if measured['is_gaussian']:
    bound = rounding.down(measured['epsilon_lower_bound'])
    table.append(['Measured', f'ε ≥ {bound}, for Gaussian noise that is independent in orthogonal directions'])
  table += [
    ['If trials are independent', f'ε ≥ {rounding.down(independent)}, whatever the noise is'],
    [
      'Canaries',
      f'{measured["canaries"]:,} clients in each of {measured["repeats"]:,} runs; '
      f'{measured["true_positives"]:,} of {measured["inserted"]:,} found',
    ],
    ['Directions that nobody added', f'{measured["false_positives"]:,} of {measured["unseen"]:,} taken for canaries'],
  ]
  if game is not None:
    table.append(
      [
        'Distinguishing game',
        f'μ ≥ {rounding.down(game["mu_lower_bound"])} (ε ≥ {rounding.down(game["epsilon_lower_bound"])}), from '
        f'{game["draws"]:,} draws of each world. For its client, the one that spends most, μ = '
        f'{rounding.up(game["claimed_mu"])} is claimed',
      ]
    )
  return table + [['Confidence', confidence]]


def _tests(measured: Mapping[str, Any]) -> list[_Test]:
  bound, claimed, game = measured['epsilon_lower_bound'], measured['claimed_epsilon'], measured['game']
  claim = f'the {measured["claim"]} ε = {rounding.up(claimed)}' if claimed is not None else ''
  tests = [_Test(bound, claimed, f'the canaries prove ε ≥ {rounding.down(bound)}', claim)]
  if game is not None:
    bound, claimed = game['mu_lower_bound'], game['claimed_mu']
    tests.append(
      _Test(
        bound,
        claimed,
        f'the distinguishing game proves μ ≥ {rounding.down(bound)}, which is '
        f'ε ≥ {rounding.down(game["epsilon_lower_bound"])}, for the client that spends most',
        f'the μ = {rounding.up(claimed)} that is claimed for this client',
      )
    )
  return tests


def _percent(confidence: float) -> str:
  return f'{100 * float(rounding.down(confidence)):.4g}%'
