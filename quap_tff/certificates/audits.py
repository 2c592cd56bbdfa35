"""audit.json: the result of an audit of a finished run, bound to the run's certificate by its digest.

It lies in the run's folder, alongside the folder of the certificate, which does not cover it.

An audit makes one or two tests of one claim: the canaries, and the distinguishing game where there is one. Either may
refute the claim. So that both together err as seldom as the confidence says, they share the error: a game has so many
draws that a tenth of it costs the game little. Where cohorts are secret there are no canaries, because they are scored
by the rounds that they are in. The game is the only test, and has the whole error.
"""

from collections.abc import Mapping
import math
import os
from typing import Any, NamedTuple, Optional

from quap_tff.auditing.bounds import lower_bounds
from quap_tff.auditing.bounds import one_run
from quap_tff.certificates import certificate as certificates
from quap_tff.certificates.folders import about as abouts
from quap_tff.certificates.folders import folder_files
from quap_tff.certificates.folders.folder import AUDIT
from quap_tff.certificates.folders.folder import AUDIT_SIGNATURE
from quap_tff.common import checks
from quap_tff.common import files
from quap_tff.common.numbers import rounding
from quap_tff.plans.accounts import run_account

_CLOSE = 1e-9
# The part of the error that the game gets.
_SHARE_OF_GAME = 0.1
# As many scores of directions that nobody added as a record may have.
_MOST_UNSEEN = 10**9
_BOUNDS = frozenset(
  'mu_lower_bound epsilon_lower_bound epsilon_lower_bound_by_gaussian_dp epsilon_lower_bound_by_any_dp'.split()
)
_KEYS = (
  _BOUNDS
  | frozenset(one_run.CanaryScores._fields)
  | frozenset(
    'certificate_sha256 sha256 assumptions claimed_epsilon claim delta canaries canary_clients confidence repeats part '
    'algorithm dataset game groups seconds refuted'.split()
  )
)
_GROUP_KEYS = frozenset(
  'group fewest_rounds most_rounds coins inserted inserted_mean mu_lower_bound epsilon_lower_bound'.split()
)
_GAME_KEYS = frozenset(lower_bounds.Guesses._fields) | frozenset(
  'true_positive_rate_at_least false_positive_rate_at_most mu_lower_bound epsilon_lower_bound '
  'epsilon_lower_bound_if_trials_are_independent claimed_mu draws mu_estimate'.split()
)
# The same where cohorts are secret.
_SECRET_KEYS = frozenset(
  'certificate_sha256 sha256 assumptions claimed_epsilon claim delta epsilon_lower_bound confidence algorithm dataset '
  'game seconds refuted'.split()
)
_SECRET_GAME_KEYS = frozenset(lower_bounds.Guesses._fields) | frozenset(
  'true_positive_rate_at_least false_positive_rate_at_most epsilon_lower_bound rate weight claimed_epsilon '
  'draws'.split()
)
# The assumptions of the figures in audit.json; kept there, so that nobody reads more into them.
_ASSUMPTIONS = {
  'epsilon_lower_bound': 'Gaussian noise that is independent in orthogonal directions',
  'epsilon_lower_bound_by_gaussian_dp': 'a Gaussian trade-off curve, and no independence of scores',
  'epsilon_lower_bound_by_any_dp': 'none but the fair coins',
}
_SECRET_ASSUMPTIONS = {
  'epsilon_lower_bound': 'independent draws of the game, which plays the coins at the rates of the certificate itself'
}


class Confidences(NamedTuple):
  """The confidence of each test, so that all hold together with that of the audit."""

  canaries: float
  game: float


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


def confidences(confidence: float, has_game: bool) -> Confidences:
  """The confidence that each test needs, so that all of them hold together with this confidence."""
  of_game = _SHARE_OF_GAME * (1 - confidence) if has_game else 0.0
  return Confidences(confidence + of_game, 1 - of_game)


def write_audit(path: str, measured: Mapping[str, Any], certificate: Mapping[str, Any]) -> None:
  """Writes the measured figures into a run's folder, with the digest of the certificate and their own."""
  assumptions = _ASSUMPTIONS if _has_canaries(measured) else _SECRET_ASSUMPTIONS
  record = {'certificate_sha256': certificate['sha256'], **measured, 'assumptions': assumptions}
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
      # The certificate of a gate's log says nothing of cohorts: those are the other program's.
      is_secret = certificate['guarantee'].get('cohorts') == run_account.SECRET
      own_keys, game_keys = _KEYS, _GAME_KEYS
      if is_secret:
        own_keys, game_keys = _SECRET_KEYS, _SECRET_GAME_KEYS
      parts: list[tuple[frozenset[str], Any]] = [(own_keys, record)]
      if is_secret or game is not None:
        parts.append((game_keys, game))
      for keys, part in parts:
        if not isinstance(part, dict) or set(part) != keys:
          given = sorted(part) if isinstance(part, dict) else f'{part!r:.40}'
          return [f'{AUDIT} is not an audit: it must have {sorted(keys)}, found {given}.']
      abouts.check_text(AUDIT, record)
      if is_secret:
        expected = _expected_of_secret(record, certificate)
      else:
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
  _check_float('confidence', record['confidence'], at_least=0.5, below=1)
  _check_scores(record)
  if not isinstance(clients, list) or len(clients) != record['canaries']:
    raise ValueError(f'canary_clients must be a list of {record["canaries"]} clients, found {clients!r}')
  checks.cohort(clients, certificate['achieved']['clients'])
  if game is not None:
    _check_draws(game)
    _check_float('mu_estimate', game['mu_estimate'])
    # A game is about one client, and every client's μ is at most that of the guarantee.
    _check_float("the game's μ", game['claimed_mu'], at_least=0, at_most=mu)


def _check_draws(game: Mapping[str, Any]) -> None:
  if not checks.integer('draws', game['draws'], at_least=1) == game['inserted'] == game['unseen']:
    raise ValueError(f'draws must be those of each world, found {game["draws"]!r}')


def _check_float(name: str, value: Any, **limits: float) -> None:
  """Raises `ValueError` unless it is a number that JSON has as a float, as audits write it."""
  if type(value) is not float:
    raise ValueError(f'{name} must be a finite number that is written like 2.0, found {value!r}')
  checks.number(name, value, **limits)


def _check_scores(record: Mapping[str, Any]) -> None:
  """Raises `ValueError` for figures of scores that no canaries have."""
  coins = record['coins']
  checks.integer('coins', coins, at_least=1, at_most=one_run.MOST_COINS)
  if coins != record['canaries'] * record['repeats']:
    raise ValueError(f'coins must be canaries times repeats, found {coins!r}')
  checks.integer('inserted', record['inserted'], at_least=0, at_most=coins)
  checks.integer('unseen', record['unseen'], at_least=1, at_most=_MOST_UNSEEN)
  directions = record['unseen'] - (coins - record['inserted'])
  if directions < 0 or directions % record['repeats']:
    raise ValueError(f'unseen must be the coins that fell tails and a multiple of repeats, found {record["unseen"]!r}')
  checks.integer('guesses', record['guesses'], at_least=1, at_most=coins)
  checks.integer('correct', record['correct'], at_least=0, at_most=record['guesses'])
  _check_float('inserted_mean', record['inserted_mean'])
  _check_float('unseen_rms', record['unseen_rms'], above=0)
  if record['groups'] != []:
    _check_groups(record)


def _check_groups(record: Mapping[str, Any]) -> None:
  """Raises `ValueError` unless the groups are parts of the canaries, in order of their participation."""
  groups, found = record['groups'], 'groups must be what the canaries are in thirds'
  if not isinstance(groups, list) or not all(isinstance(one, dict) and set(one) == _GROUP_KEYS for one in groups):
    raise ValueError(f'{found}, found {groups!r:.80}')
  if [one['group'] for one in groups] != list(one_run.GROUPS[: len(groups)]):
    raise ValueError(f'{found}, named {", ".join(one_run.GROUPS)}')
  rounds = 1
  for one in groups:
    rounds = checks.integer('fewest_rounds', one['fewest_rounds'], at_least=rounds)
    rounds = checks.integer('most_rounds', one['most_rounds'], at_least=rounds)
    checks.integer('coins of a group', one['coins'], at_least=1, at_most=record['coins'])
    checks.integer('inserted of a group', one['inserted'], at_least=0, at_most=one['coins'])
    _check_float('inserted_mean of a group', one['inserted_mean'])
  for name in ('coins', 'inserted'):
    if sum(one[name] for one in groups) != record[name]:
      raise ValueError(f'{name} of all groups must add up to {record[name]}')
  total = math.fsum(one['inserted'] * one['inserted_mean'] for one in groups)
  if not math.isclose(total, record['inserted'] * record['inserted_mean'], rel_tol=_CLOSE, abs_tol=_CLOSE):
    raise ValueError(f'inserted_mean must be that of all groups, found {record["inserted_mean"]!r}')


def _expected(record: Mapping[str, Any], certificate: Mapping[str, Any]) -> dict[str, Any]:
  """The record with what follows from the certificate and from the counts."""
  game = record['game']
  each = confidences(record['confidence'], game is not None)
  scores = one_run.CanaryScores(*(record[name] for name in one_run.CanaryScores._fields))
  expected = {
    **record,
    **one_run.as_dict(scores, record['delta'], each.canaries, is_gaussian=True),
    'game': None if game is None else {**game, **_bounds_of_game(game, record['delta'], each.game)},
    'groups': [_expected_group(one, scores, record['delta'], each.canaries) for one in record['groups']],
    # All layers of a certified run are noised.
    'part': 'noised' if record['part'] == 'noised' else 'all',
    'assumptions': _ASSUMPTIONS,
  }
  return {**expected, **_of_certificate(record, certificate)}


def _of_certificate(record: Mapping[str, Any], certificate: Mapping[str, Any]) -> dict[str, Any]:
  """The facts that an audit repeats of its certificate, and its own verdict and digest."""
  guarantee, issuer = certificate['guarantee'], certificate['issuer']
  return {
    'certificate_sha256': certificate['sha256'],
    'claim': 'certified',
    'claimed_epsilon': guarantee['epsilon'],
    'delta': guarantee['delta'],
    'algorithm': issuer['algorithm'],
    'dataset': issuer['dataset'],
    'seconds': None,
    'refuted': refutes(record),
    'sha256': certificates.sealed(record)['sha256'],
  }


def _expected_of_secret(record: Mapping[str, Any], certificate: Mapping[str, Any]) -> dict[str, Any]:
  """The same where cohorts are secret. Raises `ValueError` for a figure that no game of the certified run has."""
  game = record['game']
  _check_float('confidence', record['confidence'], at_least=0.5, below=1)
  _check_draws(game)
  kinds = {(one['rate'], one['weight']): one for one in certificate['achieved']['rates']}
  kind = kinds.get((game['rate'], game['weight']))
  if kind is None:
    raise ValueError(
      f'rate and weight must be those of a client in the certificate, found {game["rate"]!r} and {game["weight"]!r}'
    )
  guesses = lower_bounds.Guesses(*(game[name] for name in lower_bounds.Guesses._fields))
  of_client = kind['rate'], kind['weight'], kind['epsilon']
  expected_game = secret_game(*of_client, guesses, certificate['guarantee']['delta'], record['confidence'])
  return {
    **record,
    'game': expected_game,
    'epsilon_lower_bound': expected_game['epsilon_lower_bound'],
    'assumptions': _SECRET_ASSUMPTIONS,
    **_of_certificate(record, certificate),
  }


def secret_game(
  rate: float, weight: float, claimed: float, guesses: lower_bounds.Guesses, delta: float, confidence: float
) -> dict[str, Any]:
  """The game of a run with secret cohorts, for JSON.

  Args:
    rate: q_i of the client that is there or not.
    weight: w_i.
    claimed: ε_i, which is claimed for this client.
    guesses: The counted trials; as many of each world.
    delta: δ.
    confidence: The confidence of the bound.
  """
  found = lower_bounds.bound(guesses, delta, confidence)
  return {
    'rate': rate,
    'weight': weight,
    'claimed_epsilon': claimed,
    'draws': guesses.inserted,
    **guesses._asdict(),
    'true_positive_rate_at_least': found.true_positive_rate,
    'false_positive_rate_at_most': found.false_positive_rate,
    # No μ bounds a mechanism with secret coins.
    'epsilon_lower_bound': found.epsilon_if_independent,
  }


def _expected_group(
  group: Mapping[str, Any], scores: one_run.CanaryScores, delta: float, confidence: float
) -> dict[str, Any]:
  measured = (group['coins'], group['inserted'], group['inserted_mean'])
  return {**group, **one_run.of_group(scores, *measured, delta, confidence)}


def _bounds_of_game(game: Mapping[str, Any], delta: float, confidence: float) -> dict[str, Any]:
  guesses = lower_bounds.Guesses(*(game[name] for name in lower_bounds.Guesses._fields))
  return lower_bounds.as_dict(guesses, lower_bounds.bound(guesses, delta, confidence))


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
    again = 'repeat the audit with another --canary_seed' if _has_canaries(measured) else 'repeat the audit'
    return (
      f'{text} More is proved than {", and than ".join(refuted)}. The claim does not hold for this program, or this '
      f'is one of the audits that err, as the confidence allows. An error by chance does not come back: {again}.'
    )
  if claimed is None:
    return f'{text} Nothing is claimed of this method.'
  return f'{text} The {kind} ε is {rounding.up(claimed)}, which this audit does not refute.'


def rows(measured: Mapping[str, Any]) -> list[list[str]]:
  """(what, figure) for a table."""
  if not _has_canaries(measured):
    return _rows_of_secret(measured)
  claimed, game = measured['claimed_epsilon'], measured['game']
  confidence = f'{_percent(measured["confidence"])} that all bounds hold'
  if game is not None:
    each = confidences(measured['confidence'], True)
    confidence += f', {_percent(each.canaries)} for the canaries and {_percent(each.game)} for the game'
  table = [['Claimed', f'ε = {rounding.up(claimed)} ({measured["claim"]})' if claimed is not None else 'nothing']]
  if measured['mu_lower_bound'] is not None:
    bound = rounding.down(measured['epsilon_lower_bound'])
    table.append(['Measured', f'ε ≥ {bound}, for Gaussian noise that is independent in orthogonal directions'])
    bound = rounding.down(measured['epsilon_lower_bound_by_gaussian_dp'])
    table.append(['For every μ-GDP mechanism', f'ε ≥ {bound}, whatever scores have in common'])
  table += [
    ['For every (ε, δ)-DP mechanism', f'ε ≥ {rounding.down(measured["epsilon_lower_bound_by_any_dp"])}'],
    [
      'Canaries',
      f'{measured["canaries"]:,} clients in each of {measured["repeats"]:,} runs; {measured["inserted"]:,} of '
      f'{measured["coins"]:,} coins fell heads; {measured["correct"]:,} of {measured["guesses"]:,} guesses are right',
    ],
    ['Scores', f'{measured["inserted_mean"]:.4g} on average with heads; {measured["unseen_rms"]:.4g} without (RMS)'],
  ]
  for one in measured['groups']:
    rounds = f'{one["fewest_rounds"]:,} to {one["most_rounds"]:,} rounds'
    bound = rounding.down(one['epsilon_lower_bound'])
    text = f'ε ≥ {bound}, from {one["inserted"]:,} of {one["coins"]:,} coins'
    table.append([f'{one["group"].capitalize()}, {rounds}', text])
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


def _rows_of_secret(measured: Mapping[str, Any]) -> list[list[str]]:
  game = measured['game']
  return [
    ['Claimed', f'ε = {rounding.up(measured["claimed_epsilon"])} ({measured["claim"]})'],
    [
      'Distinguishing game',
      f'ε ≥ {rounding.down(game["epsilon_lower_bound"])} for any trade-off curve, from {game["draws"]:,} draws of each '
      f'world. For its client, which comes at {game["rate"]:g}, ε = {rounding.up(game["claimed_epsilon"])} is claimed',
    ],
    ['Confidence', _percent(measured['confidence'])],
  ]


def _has_canaries(measured: Mapping[str, Any]) -> bool:
  """Whether clients of a run of its own were canaries; not where cohorts are secret."""
  return 'canaries' in measured


def _tests(measured: Mapping[str, Any]) -> list[_Test]:
  if not _has_canaries(measured):
    return [_test_of_secret(measured['game'])]
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


def _test_of_secret(game: Mapping[str, Any]) -> _Test:
  bound, claimed = game['epsilon_lower_bound'], game['claimed_epsilon']
  return _Test(
    bound,
    claimed,
    f'the distinguishing game proves ε ≥ {rounding.down(bound)} for a client that is drawn at {game["rate"]:g}',
    f'the ε = {rounding.up(claimed)} that is claimed for this client',
  )


def _percent(confidence: float) -> str:
  return f'{100 * float(rounding.down(confidence)):.4g}%'
