"""audit.json: what it may say, that it is one certificate's, and that it refutes what it proves wrong."""

import copy
import json
import re
import shutil
from typing import Any, NamedTuple

import pytest

import quap_tff
from quap_tff import certificates
from quap_tff.auditing.bounds import lower_bounds
from quap_tff.auditing.bounds import one_run
from quap_tff.certificates import audits
from quap_tff.certificates import certificate as certificate_lib
from quap_tff.certificates.folders import folder as folders
from quap_tff.certificates.folders import signatures
from quap_tff.common import files
from quap_tff.common.numbers import rounding
from tests.quap_tff.certificates import made

# Six canaries of two runs, and three hundred directions that nobody added; and the game.
_CANARIES = one_run.CanaryScores(12, 7, 305, 1.07, 0.93, 12, 9)
_GAME = lower_bounds.Guesses(2495, 5000, 1171, 5000)
# A game that nobody can lose so often if the claim holds.
_REFUTING = lower_bounds.Guesses(4900, 5000, 100, 5000)


def _groups(canaries, delta, confidence):
  """The six canaries in thirds, of which the rare ones have no heads."""
  heads, means = (0, 3, canaries.inserted - 3), (0.0, 0.5, 0.0)
  rest = (canaries.inserted * canaries.inserted_mean - 1.5) / heads[2]
  groups = []
  for index, mean in enumerate((*means[:2], rest)):
    bounds = one_run.of_group(canaries, 4, heads[index], mean, delta, confidence)
    rounds = {'fewest_rounds': 1 + index, 'most_rounds': 2 + index}
    groups.append({'group': one_run.GROUPS[index], **rounds, **bounds})
  return groups


def _measured(certificate, canaries=_CANARIES, game=_GAME):
  """What an audit of the run measures."""
  guarantee = certificate['guarantee']
  each = audits.confidences(0.95, game is not None)
  found = {
    'claimed_epsilon': guarantee['epsilon'],
    'claim': 'certified',
    'delta': guarantee['delta'],
    'canaries': 6,
    'canary_clients': [0, 1, 2, 3, 4, 5],
    **one_run.as_dict(canaries, guarantee['delta'], each.canaries, is_gaussian=True),
    'confidence': 0.95,
    'repeats': 2,
    'part': 'all',
    'algorithm': certificate['issuer']['algorithm'],
    'dataset': certificate['issuer']['dataset'],
    'game': None,
    'groups': _groups(canaries, guarantee['delta'], each.canaries),
    'seconds': None,
  }
  if game is not None:
    bounds = lower_bounds.as_dict(game, lower_bounds.bound(game, guarantee['delta'], each.game))
    found['game'] = {'claimed_mu': 0.7, 'draws': 5000, 'mu_estimate': 0.71, **bounds}
  return {**found, 'refuted': audits.refutes(found)}


def _measured_in_secret(certificate, game=_GAME):
  """What an audit measures of a run with secret cohorts, all of whose clients have one rate."""
  guarantee, [kind] = certificate['guarantee'], certificate['achieved']['rates']
  played = audits.secret_game(kind['rate'], kind['weight'], kind['epsilon'], game, guarantee['delta'], 0.95)
  found = {
    'claimed_epsilon': guarantee['epsilon'],
    'claim': 'certified',
    'delta': guarantee['delta'],
    'epsilon_lower_bound': played['epsilon_lower_bound'],
    'confidence': 0.95,
    'algorithm': certificate['issuer']['algorithm'],
    'dataset': certificate['issuer']['dataset'],
    'game': played,
    'seconds': None,
  }
  return {**found, 'refuted': audits.refutes(found)}


def _certificate(path):
  """The certificate of the run in a folder."""
  return made.read(path / folders.SUBFOLDER, folders.CERTIFICATE)


def _audit(path, **guesses):
  """Writes an audit of the run in a folder."""
  certificate = _certificate(path)
  audits.write_audit(str(path), _measured(certificate, **guesses), certificate)
  return made.read(path, folders.AUDIT)


def _problems(audit, record):
  """What is found wrong with another record of an audit, once it is sealed; as its file would be read."""
  forged = json.loads(files.json_text(certificate_lib.sealed(record)))
  return audits.audit_problems(forged, audit.certificate)


@pytest.fixture(name='run')
def _run(originals, tmp_path):
  """A run's folder, with a certificate and files that it does not cover."""
  path = tmp_path / 'run'
  shutil.copytree(originals / 'server', path / folders.SUBFOLDER)
  made.put(path, 'metrics.csv')
  return path


@pytest.fixture(name='audited')
def _audited(run):
  _audit(run)
  return run


class _Audit(NamedTuple):
  """The record of an audit, and the certificate of the run that it is of."""

  record: dict[str, Any]
  certificate: dict[str, Any]


@pytest.fixture(scope='module', name='audit')
def _of_canaries(originals, tmp_path_factory):
  path = tmp_path_factory.mktemp('audit') / 'run'
  shutil.copytree(originals / 'server', path / folders.SUBFOLDER)
  return _Audit(_audit(path), _certificate(path))


@pytest.mark.slow
def test_an_audit_that_agrees_is_read_with_the_run(audited):
  verdict = certificates.verify(str(audited))
  assert not verdict.problems and not verdict.refutation and verdict.statement
  record = made.read(audited, folders.AUDIT)
  assert verdict.scope.startswith('Only certificate/ was checked, and audit.json alongside it, whose figures the ')
  for lower in (record['epsilon_lower_bound'], record['game']['epsilon_lower_bound']):
    assert f'ε ≥ {rounding.down(lower)}' in verdict.scope
  assert 'does not refute' in verdict.scope


def test_no_audit_is_there_or_none_was_looked_for(run):
  assert 'There is no audit alongside it' in certificates.verify(str(run)).scope
  assert certificates.verify(str(run / folders.SUBFOLDER)).scope.startswith('No audit was looked for.')


def test_an_audit_is_not_among_the_files_of_the_certificate(audited):
  page = (audited / folders.SUBFOLDER / folders.PAGE).read_text(encoding='utf-8')
  digests = _certificate(audited)['provenance']['files_sha256']
  assert 'What an audit measured' not in page and folders.AUDIT not in digests
  (audited / folders.AUDIT).rename(audited / folders.SUBFOLDER / folders.AUDIT)
  assert made.problems(audited) == ['audit.json does not belong there: a certificate does not name it.']


def test_the_rows_of_a_table_say_what_is_assumed(audited):
  rows = dict(audits.rows(made.read(audited, folders.AUDIT)))
  assert 'Gaussian noise that is independent' in rows['Measured']
  assert rows['For every μ-GDP mechanism'].endswith('whatever scores have in common')
  record = made.read(audited, folders.AUDIT)
  bound = rounding.down(record['groups'][2]['epsilon_lower_bound'])
  assert rows['Frequent, 3 to 4 rounds'] == f'ε ≥ {bound}, from 4 of 4 coins'
  assert rows['Rare, 1 to 2 rounds'].startswith('ε ≥ 0, from 0 of 4')
  assert rows['Confidence'] == '95% that all bounds hold, 95.5% for the canaries and 99.5% for the game'


def test_canaries_and_game_share_the_error(run):
  both, alone = audits.confidences(0.95, True), audits.confidences(0.95, False)
  assert (1 - both.canaries) + (1 - both.game) == pytest.approx(0.05)
  assert alone == (0.95, 1)
  record = _audit(run, game=None)
  assert record['mu_lower_bound'] == one_run.gaussian_mu(_CANARIES, 1 - 0.95) and not made.problems(run)


@pytest.mark.slow
@pytest.mark.parametrize(
  'epsilon, guesses',
  [(3.0, dict(game=_REFUTING)), (0.5, dict(canaries=_CANARIES._replace(inserted_mean=3.0), game=None))],
)
def test_one_that_refutes_is_what_verification_says(epsilon, guesses, tmp_path, capsys):
  path = tmp_path / 'run'
  certificate = made.folder(path / folders.SUBFOLDER, made.plan(epsilon=epsilon))
  record = _audit(path, **guesses)
  assert record['refuted'] and not made.problems(path)
  status, lines = made.answer(path, capsys)
  assert status == 1 and lines[0] == 'REFUTED: an audit refutes the claim of this certificate.'
  assert 'More is proved than' in lines[1] and 'does not refute' not in lines[1] and len(lines) == 2
  assert 'The claim does not hold for this program' in lines[1]
  # Alone, the certificate does not know of it.
  assert made.answer(certificate, capsys)[0] == 0


# What somebody may write there, sealed again, and a word of the answer.
_CHANGES = {
  'another bound': (dict(mu_lower_bound=0.5), 'mu_lower_bound: it says 0.5, but the files give'),
  'another claim': (dict(claimed_epsilon=5.0), 'claimed_epsilon: it says 5.0, but the files give 3.0'),
  'another delta': (dict(delta=1e-3), 'delta'),
  'a nominal claim': (dict(claim='nominal'), "claim: it says 'nominal'"),
  'another certificate': (dict(certificate_sha256='0' * 64), 'certificate_sha256'),
  'impossible counts': (dict(correct=-1), 'is damaged'),
  'counts of no integer': (dict(correct=9.0), 'is damaged'),
  'more coins than there may be': (dict(coins=10**19), 'is damaged'),
  'more heads than coins': (dict(inserted=13), 'inserted must be'),
  'more guesses than coins': (dict(guesses=14), 'guesses must be'),
  'no guesses': (dict(guesses=0), 'guesses must be'),
  'more right guesses than guesses': (dict(correct=13), 'correct must be'),
  'refuted': (dict(refuted=True), 'refuted'),
  'refuted by 0': (dict(refuted=0), 'refuted'),
  'not Gaussian': (dict(mu_lower_bound=None), 'mu_lower_bound'),
  'a bound that needs less': (dict(epsilon_lower_bound_by_any_dp=1.0), 'epsilon_lower_bound_by_any_dp'),
  'less confidence': (dict(confidence=0.5), 'mu_lower_bound'),
  'no confidence': (dict(confidence=0.0), 'confidence must be'),
  'other assumptions': (dict(assumptions={'epsilon_lower_bound': 'none'}), 'assumptions'),
  'seconds, which depend on data': (dict(seconds=3.5), 'seconds'),
  'another algorithm': (dict(algorithm='quap'), 'algorithm'),
  'another dataset': (dict(dataset='client 7 has the label 3'), 'dataset'),
  'a part without noise': (dict(part='unnoised'), 'part'),
  'a text as a figure': (dict(unseen_rms='client 7 has the label 3'), 'unseen_rms must be a finite number'),
  'a mean that is none': (dict(inserted_mean=None), 'inserted_mean must be'),
  'a struct as a figure': (dict(unseen_rms={'client 7': 3}), 'unseen_rms must be'),
  'other canaries': (dict(canary_clients=['client 7', 1, 2, 3, 4, 5]), 'is damaged'),
  'strangers as canaries': (dict(canary_clients=[0, 1, 2, 3, 4, 6]), 'must be ids in'),
  'a canary twice': (dict(canary_clients=[0, 1, 2, 3, 4, 4]), 'only once'),
  'a canary less': (dict(canary_clients=[0, 1, 2, 3, 4]), 'canary_clients must be a list of 6'),
  'more canaries': (dict(canaries=7), 'coins must be canaries times repeats'),
  'more repeats': (dict(repeats=3), 'coins must be canaries times repeats'),
  'a key more': (dict(more=1), 'is not an audit'),
  'a hidden character': (dict(part='a\u202ell'), 'U+202E'),
  'a claim as an integer': (dict(claimed_epsilon=3), 'claimed_epsilon: it says 3, but the files give 3.0'),
  'a mean as an integer': (dict(inserted_mean=1), 'inserted_mean must be a finite number that is written like 2.0'),
  'another mean': (dict(inserted_mean=1.2, groups=[]), 'mu_lower_bound: it says'),
  'a deviation below zero': (dict(unseen_rms=-0.93), 'unseen_rms must be a finite number greater than 0'),
  'a deviation of nothing': (dict(unseen_rms=0.0), 'unseen_rms must be'),
  'runs of different sizes': (dict(unseen=306), 'unseen must be the coins that fell tails and a multiple of repeats'),
  'fewer scores than tails': (dict(unseen=3), 'unseen must be'),
}
_OF_GAME = {
  'a claim that nobody makes': (dict(claimed_mu=9.0), "the game's μ must be"),
  'a negative claim': (dict(claimed_mu=-1.0), "the game's μ must be"),
  'other draws': (dict(draws=6000), 'draws must be those of each world'),
  'a text': (dict(mu_estimate='client 7'), 'mu_estimate must be'),
  'another bound': (dict(mu_lower_bound=0.1), 'game.mu_lower_bound'),
  'a key more': (dict(more=1), 'is not an audit'),
}


# What somebody may write of the second group.
_OF_GROUP = {
  'another bound': (dict(mu_lower_bound=0.01), 'groups'),
  'another mean': (dict(inserted_mean=0.7), 'inserted_mean must be that of all groups'),
  'more coins': (dict(coins=5), 'coins of all groups must add up to 12'),
  'more heads': (dict(inserted=4), 'inserted of all groups must add up to 7'),
  'a name': (dict(group='client 7'), 'named rare, middle, frequent'),
  'rounds out of order': (dict(fewest_rounds=1), 'fewest_rounds must be'),
  'a key more': (dict(more=1), 'groups must be'),
}


class TestForgeries:
  @pytest.mark.slow
  def test_verification_reads_it(self, audited):
    forged = {**made.read(audited, folders.AUDIT), 'mu_lower_bound': 0.5}
    files.write_json(str(audited / folders.AUDIT), certificate_lib.sealed(forged))
    [problem] = made.problems(audited)
    assert problem.startswith('audit.json: mu_lower_bound: it says 0.5, but the files give')

  @pytest.mark.slow
  @pytest.mark.parametrize('name', _CHANGES)
  def test_of_the_canaries(self, name, audit):
    changes, words = _CHANGES[name]
    found = _problems(audit, {**audit.record, **changes})
    assert [one for one in found if one.startswith('audit.json') and words in one], found

  @pytest.mark.slow
  @pytest.mark.parametrize('name', _OF_GAME)
  def test_of_the_game(self, name, audit):
    changes, words = _OF_GAME[name]
    found = _problems(audit, {**audit.record, 'game': {**audit.record['game'], **changes}})
    assert [one for one in found if one.startswith('audit.json') and words in one], found

  @pytest.mark.slow
  @pytest.mark.parametrize('name', _OF_GROUP)
  def test_of_a_group(self, name, audit):
    changes, words = _OF_GROUP[name]
    first, second, third = audit.record['groups']
    found = _problems(audit, {**audit.record, 'groups': [first, {**second, **changes}, third]})
    assert [one for one in found if one.startswith('audit.json') and words in one], found

  @pytest.mark.slow
  def test_a_key_that_is_missing(self, audit):
    for holder, names in ((None, list(audit.record)), ('game', list(audit.record['game']))):
      for name in names:
        less = copy.deepcopy(audit.record)
        del (less if holder is None else less[holder])[name]
        sealed = certificate_lib.sealed(less) if name != 'sha256' else less
        assert audits.audit_problems(sealed, audit.certificate), name

  @pytest.mark.slow
  @pytest.mark.parametrize('game', [[], 'x', 5, True, {}])
  def test_a_game_that_is_none(self, game, audit):
    assert _problems(audit, {**audit.record, 'game': game})

  @pytest.mark.slow
  @pytest.mark.parametrize('value', [2.3, True, 'x', [2.3], {'a': 2.3}, None])
  def test_any_other_value_in_any_place(self, value, audit):
    record, certificate = copy.deepcopy(audit.record), audit.certificate
    assert not audits.audit_problems(record, certificate)
    for holder in (record, record['game']):
      for name, kept in list(holder.items()):
        # Some numbers are measured, and follow from no others.
        if name in ('sha256', 'mu_estimate') and value == 2.3:
          continue
        if (name, value) == ('seconds', None) or (holder is record and name == 'sha256'):
          continue
        if name == 'game' and value is None:
          continue  # Its tests are counted, and so are its bounds.
        holder[name] = value
        assert audits.audit_problems(certificate_lib.sealed(record), certificate), name
        holder[name] = kept

  @pytest.mark.slow
  @pytest.mark.parametrize(
    'text', ['2.3', '2.3\n', '{}', '[]', 'null', '5', '"x"', '', '{"game": null}', '[' * 99999, 'NaN']
  )
  def test_a_file_that_is_none(self, text, run):
    (run / folders.AUDIT).write_text(text)
    [problem] = made.problems(run)
    assert problem.startswith('audit.json is')

  def test_an_edited_one(self, audited):
    text = (audited / folders.AUDIT).read_text(encoding='utf-8')
    (audited / folders.AUDIT).write_text(text.replace('"unseen_rms": 0.93', '"unseen_rms": 0.9'), encoding='utf-8')
    assert [one for one in made.problems(audited) if 'sha256: it says' in one]

  def test_one_that_is_written_in_another_way(self, audited):
    text = (audited / folders.AUDIT).read_text(encoding='utf-8')
    (audited / folders.AUDIT).write_text(re.sub('  "', ' "', text), encoding='utf-8')
    assert 'audit.json is written in another way than audits are.' in made.problems(audited)

  @pytest.mark.slow
  @pytest.mark.parametrize('kind', ['folder', 'link'])
  def test_one_that_is_no_file(self, kind, audited):
    (audited / folders.AUDIT).rename(audited / 'elsewhere')
    if kind == 'folder':
      (audited / folders.AUDIT).mkdir()
    else:
      (audited / folders.AUDIT).symlink_to(audited / 'elsewhere')
    assert made.problems(audited) == ['audit.json is not a regular file.']


class TestSignature:
  @pytest.fixture(name='signed')
  def _signed(self, tmp_path):
    private, public = made.keys(tmp_path / 'keys')
    path = tmp_path / 'run'
    made.folder(path / folders.SUBFOLDER, signing_key=private)
    _audit(path)
    signatures.sign(str(path), folders.AUDIT, signatures.read_private_key(private))
    return path, public

  @pytest.mark.slow
  def test_of_both(self, signed):
    path, public = signed
    assert not made.problems(path, public)
    assert [one.partition(' ')[0] for one in certificates.verify(str(path)).warnings] == [
      'certificate.sig',
      'audit.sig',
    ]

  @pytest.mark.slow
  def test_an_invented_audit(self, signed):
    path, public = signed
    _audit(path, canaries=_CANARIES._replace(correct=5))
    assert not made.problems(path)  # Without the key, nobody can tell.
    assert made.problems(path, public) == [f'audit.sig is not a signature of audit.json with the key of {public}.']
    (path / folders.AUDIT_SIGNATURE).unlink()
    [problem] = made.problems(path, public)
    assert problem.endswith('audit.json is not signed.')

  @pytest.mark.slow
  def test_a_signature_whose_audit_is_gone(self, signed):
    path, public = signed
    (path / folders.AUDIT).unlink()
    for found in (made.problems(path), made.problems(path, public)):
      assert 'audit.sig is the signature of an audit that is not there.' in found

  @pytest.mark.slow
  def test_junk_is_refused_without_a_key_too(self, signed):
    path, _ = signed
    with open(path / folders.AUDIT_SIGNATURE, 'a') as f:
      f.write('client 7 has the label 3\n')
    [problem] = made.problems(path)
    assert problem.startswith('audit.sig')


@pytest.fixture(scope='module', name='secret_original')
def _secret_original(tmp_path_factory):
  path = tmp_path_factory.mktemp('secret') / 'run'
  rates = (0.3,) * made.NUM_CLIENTS
  options = dict(num_clients=made.NUM_CLIENTS, epsilon=3.0, delta=1e-5, rates=rates, num_rounds=4, model=made.MODEL)
  plan = quap_tff.certified(**options)
  leaving = made.leaving(plan)
  certificates.write_run(str(path / folders.SUBFOLDER), plan, leaving, plan.new_ledger(), made.WEIGHTS, made.ABOUT)
  return path


@pytest.fixture(scope='module', name='secret_audit')
def _secret_audit(secret_original, tmp_path_factory):
  certificate, path = _certificate(secret_original), tmp_path_factory.mktemp('audit')
  audits.write_audit(str(path), _measured_in_secret(certificate), certificate)
  return _Audit(made.read(path, folders.AUDIT), certificate)


@pytest.fixture(name='secret')
def _secret(secret_original, secret_audit, tmp_path):
  """The folder of a run with secret cohorts, and its audit."""
  path = shutil.copytree(secret_original, tmp_path / 'secret')
  files.write_json(str(path / folders.AUDIT), secret_audit.record)
  return path


_OF_SECRET = {
  'another bound': (dict(epsilon_lower_bound=0.1), 'epsilon_lower_bound: it says 0.1, but the files give'),
  'another claim': (dict(claimed_epsilon=5.0), 'claimed_epsilon: it says 5.0, but the files give 3.0'),
  'less confidence': (dict(confidence=0.5), 'epsilon_lower_bound'),
  'canaries': (dict(canaries=6), 'is not an audit'),
  'no game': (dict(game=None), 'is not an audit'),
  'other assumptions': (dict(assumptions={'epsilon_lower_bound': 'none'}), 'assumptions'),
  'another certificate': (dict(certificate_sha256='0' * 64), 'certificate_sha256'),
  'refuted': (dict(refuted=True), 'refuted'),
  'seconds, which depend on data': (dict(seconds=3.5), 'seconds'),
}
_OF_SECRET_GAME = {
  'another bound': (dict(epsilon_lower_bound=0.1), 'epsilon_lower_bound: it says 0.1'),
  'another rate': (dict(rate=0.4), 'rate and weight must be those of a client'),
  'another weight': (dict(weight=0.5), 'rate and weight must be those of a client'),
  'a larger claim': (dict(claimed_epsilon=4.0), 'claimed_epsilon: it says 4.0'),
  'more draws': (dict(draws=6000), 'draws must be those of each world'),
  'more hits': (dict(true_positives=3000), 'epsilon_lower_bound'),
  'a claim of μ': (dict(claimed_mu=0.7), 'is not an audit'),
}


@pytest.mark.slow
class TestOfSecretCohorts:
  def test_the_game_is_read_with_the_run(self, secret):
    verdict, record = certificates.verify(str(secret)), made.read(secret, folders.AUDIT)
    assert not verdict.problems and 0 < record['epsilon_lower_bound'] < 3
    proved = rounding.down(record['epsilon_lower_bound'])
    assert f'the distinguishing game proves ε ≥ {proved} for a client that is drawn at 0.3.' in verdict.scope
    assert 'This holds with 95% confidence.' in verdict.scope and 'does not refute' in verdict.scope
    rows = dict(audits.rows(record))
    assert f'ε ≥ {proved} for any trade-off curve' in rows['Distinguishing game'] and rows['Confidence'] == '95%'

  def test_one_that_refutes_is_what_verification_says(self, secret, capsys):
    certificate = _certificate(secret)
    audits.write_audit(str(secret), _measured_in_secret(certificate, _REFUTING), certificate)
    status, lines = made.answer(secret, capsys)
    assert status == 1 and lines[0] == 'REFUTED: an audit refutes the claim of this certificate.'
    assert 'that is claimed for this client' in lines[1]

  @pytest.mark.parametrize('name', _OF_SECRET)
  def test_forgeries(self, name, secret_audit):
    changes, words = _OF_SECRET[name]
    found = _problems(secret_audit, {**secret_audit.record, **changes})
    assert [one for one in found if one.startswith('audit.json') and words in one], found

  @pytest.mark.parametrize('name', _OF_SECRET_GAME)
  def test_forgeries_of_the_game(self, name, secret_audit):
    changes, words = _OF_SECRET_GAME[name]
    record = secret_audit.record
    found = _problems(secret_audit, {**record, 'game': {**record['game'], **changes}})
    assert [one for one in found if one.startswith('audit.json') and words in one], found

  @pytest.mark.parametrize('value', [2.3, True, 'x', [2.3], {'a': 2.3}, None])
  def test_any_other_value_in_any_place(self, value, secret_audit):
    record, certificate = copy.deepcopy(secret_audit.record), secret_audit.certificate
    assert not audits.audit_problems(record, certificate)
    for holder in (record, record['game']):
      for name, kept in list(holder.items()):
        if (name, value) == ('seconds', None) or (holder is record and name == 'sha256'):
          continue
        holder[name] = value
        assert audits.audit_problems(certificate_lib.sealed(record), certificate), name
        holder[name] = kept

  def test_an_audit_of_canaries(self, secret):
    forged = {**made.read(secret, folders.AUDIT), 'canaries': 6, 'canary_clients': list(range(6)), 'game': None}
    files.write_json(str(secret / folders.AUDIT), certificate_lib.sealed(forged))
    assert [one for one in made.problems(secret) if 'is not an audit' in one]
