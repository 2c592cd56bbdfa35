"""Certificates of a gate's log: what they say, and that verification computes every figure again."""

import numpy as np
import pytest

import quap_tff
from quap_tff.certificates import certificate as certificate_lib
from quap_tff.certificates import gate_logs
from quap_tff.common import files
from quap_tff.mechanisms.noise import correlation as correlations
from tests.quap_tff.certificates import made

STATEMENTS = gate_logs.Statements(
  program='Flower 1.42.0',
  clipping='Flower clipped every update to norm 1 at the server.',
  noise="NumPy's generator drew it, with deviation 4, and the server added it to the sum.",
  cohorts='The server drew half of the nodes that the gate let in.',
  releases='Nothing else.',
  date='2026-11-25',
)


def _committed(tmp_path, **more):
  """A gate and the log of its rounds."""
  gate, lines = quap_tff.Gate(7, **{'noise_multiplier': 4.0, 'epsilon': 3.0, 'delta': 1e-5, **more}), []
  rng = np.random.default_rng(1)
  for number in range(12):
    cohort = np.flatnonzero(rng.random(7) < np.linspace(1, 0, 7))
    weights = gate.ask(cohort)
    gate.commit(cohort, weights)
    lines += [
      f'{number},{client},{weight!r}' for client, weight in zip(cohort.tolist(), weights.astype(float).tolist())
    ]
  (tmp_path / 'kept.csv').write_text('\n'.join(['round,client,weight', *lines]) + '\n')
  return gate, str(tmp_path / 'kept.csv')


def _folder(tmp_path, signing_key=None, **more):
  gate, log = _committed(tmp_path, **more)
  gate_logs.write_log(str(tmp_path / 'folder'), gate, log, STATEMENTS, signing_key)
  return gate, tmp_path / 'folder'


def _reseal(path):
  """Makes the certificate anew for what lies in the folder, as a forger can who has the program."""
  content = gate_logs.read(str(path))
  files.write_json(str(path / 'certificate.json'), gate_logs.make(str(path), content))


class TestWrite:
  def test_it_may_lie_in_the_folder_of_a_run_and_no_audit_is_of_a_log(self, tmp_path):
    _, path = _folder(tmp_path)
    (tmp_path / 'run').mkdir()
    path.rename(tmp_path / 'run' / 'certificate')
    made.put(tmp_path / 'run', 'notes.txt')
    assert not made.problems(tmp_path / 'run')
    made.put(tmp_path / 'run', 'audit.json', b'{}')
    [problem] = made.problems(tmp_path / 'run')
    assert problem.startswith('audit.json is not an audit')

  @pytest.mark.slow
  @pytest.mark.parametrize('num_rounds', [None, 12, 20])
  @pytest.mark.parametrize('correlation', [correlations.Independent(), correlations.Ar1(0.6)])
  def test_is_valid_and_has_the_figures_of_the_gate(self, correlation, num_rounds, tmp_path, capsys):
    gate, path = _folder(tmp_path, correlation=correlation, num_rounds=num_rounds)
    status, lines = made.answer(path, capsys)
    assert (status, lines[0]) == (0, 'VALID'), lines
    found = made.read(path, 'certificate.json')
    largest = float(gate.epsilon().max())
    assert largest <= found['achieved']['epsilon_max'] < largest * (1 + 1e-5)
    assert found['guarantee']['epsilon'] == 3 and found['guarantee']['epsilon_if_data_are_replaced_by_others'] > 6
    assert found['achieved']['clients_that_took_part'] == np.count_nonzero(gate.epsilon())
    assert (path / 'clients.csv').read_text().startswith('client,rounds,epsilon\n')

  def test_says_in_plain_words_what_it_takes_from_the_issuer(self, tmp_path, capsys):
    _, path = _folder(tmp_path)
    (said,) = made.answer(path, capsys)[1][1:]
    assert said == made.read(path, 'certificate.json')['statement']
    assert "Clipping, sums and noise were that program's, and are taken from the issuer's statement" in said
    for text in (STATEMENTS.program, STATEMENTS.clipping, STATEMENTS.noise, STATEMENTS.cohorts, STATEMENTS.releases):
      assert f'“{text}”' in said
    for words in ('with ε = 3 and δ = 1e-05', 'Neighbours', 'Amplification by sampling is not counted', 'readings'):
      assert words in said

  @pytest.mark.slow
  def test_own_bounds(self, tmp_path, capsys):
    _, path = _folder(tmp_path, own_epsilon=np.linspace(1, 3, 7))
    assert made.answer(path, capsys)[0] == 0
    assert 'bound of its own' in made.read(path, 'certificate.json')['statement']

  def test_the_log_of_rounds_that_another_gate_committed_is_refused(self, tmp_path):
    """Another gate may have other bounds, have been asked for nothing, or have committed more rounds or fewer."""
    gate, log = _committed(tmp_path)
    with pytest.raises(ValueError, match='is not the log of this gate: its round 1 is not the one .* 0 rounds'):
      gate_logs.write_log(str(tmp_path / 'folder'), quap_tff.Gate(7, 4.0, 3.0, 1e-5), log, STATEMENTS)
    (tmp_path / 'other').mkdir()
    other, _ = _committed(tmp_path / 'other', epsilon=2.9)
    with pytest.raises(ValueError, match='its round 8 is not the one that the gate committed'):
      gate_logs.write_log(str(tmp_path / 'folder'), other, log, STATEMENTS)
    lines = (tmp_path / 'kept.csv').read_text().splitlines(keepends=True)
    (tmp_path / 'short.csv').write_text(''.join(line for line in lines if line.partition(',')[0] not in ('10', '11')))
    with pytest.raises(ValueError, match='it has 10 rounds, and the gate committed 12'):
      gate_logs.write_log(str(tmp_path / 'folder'), gate, str(tmp_path / 'short.csv'), STATEMENTS)
    gate.commit([])
    with pytest.raises(ValueError, match='it has 12 rounds, and the gate committed 13'):
      gate_logs.write_log(str(tmp_path / 'folder'), gate, log, STATEMENTS)
    assert not (tmp_path / 'folder').exists()

  def test_the_log_is_written_in_one_form(self, tmp_path):
    """Other columns, another order and other digits are the program's own affair."""
    gate, log = _committed(tmp_path)
    gate_logs.write_log(str(tmp_path / 'one'), gate, log, STATEMENTS)
    header, *rows = (tmp_path / 'kept.csv').read_text().splitlines()
    rows.sort(key=lambda row: (int(row.split(',')[0]), -int(row.split(',')[1])))
    short = [','.join([*row.split(',')[:2], str(np.float32(row.split(',')[2])), 'seen']) for row in rows]
    (tmp_path / 'other.csv').write_text('\n'.join([f'{header},remark', *short]) + '\n')
    gate_logs.write_log(str(tmp_path / 'two'), gate, str(tmp_path / 'other.csv'), STATEMENTS)
    assert (tmp_path / 'one' / 'log.csv').read_bytes() == (tmp_path / 'two' / 'log.csv').read_bytes()
    assert b'seen' not in (tmp_path / 'two' / 'log.csv').read_bytes()

  @pytest.mark.parametrize('name', ['8', '07', 'ann', '-1', '٣'])
  def test_clients_must_be_ids_of_the_gate(self, name, tmp_path):
    (tmp_path / 'log.csv').write_text(f'round,client\n1,{name}\n', encoding='utf-8')
    with pytest.raises(ValueError, match=r'Clients must be ids in \[0, 7\)'):
      gate_logs.write_log(
        str(tmp_path / 'folder'), quap_tff.Gate(7, 4.0, 3.0, 1e-5), str(tmp_path / 'log.csv'), STATEMENTS
      )

  def test_a_folder_that_exists_is_refused(self, tmp_path):
    gate, path = _folder(tmp_path)
    with pytest.raises(ValueError, match='already exists'):
      gate_logs.write_log(str(path), gate, str(tmp_path / 'kept.csv'), STATEMENTS)

  @pytest.mark.parametrize('more', [{'program': ''}, {'noise': 'a\nb'}, {'releases': '“'}, {'date': 'today'}])
  def test_statements_are_plain_sentences(self, more):
    with pytest.raises(ValueError):
      gate_logs.Statements(**{'program': 'p', 'clipping': 'c', 'noise': 'n', 'cohorts': 'c', 'releases': 'r', **more})


class TestVerify:
  @pytest.mark.slow
  @pytest.mark.parametrize(
    'name, old, new, words',
    [
      ('log.csv', '\n3,0,1.0,yes', '', 'clients.csv does not say what log.csv gives'),
      ('log.csv', '\n3,0,1.0', '\n3,0,0.5', 'achieved.epsilon_mean: it says'),
      ('log.csv', '\n3,0,1.0', '\n3,0,1', 'log.csv is damaged: it is not written in the one form'),
      ('log.csv', 'released\n', 'released\n\n', 'log.csv is damaged: it is not written in the one form'),
      ('clients.csv', '0,9,', '0,8,', 'clients.csv does not say what log.csv gives'),
      ('gate.json', '"epsilon": 3.0', '"epsilon": 2.999', 'guarantee.epsilon: it says 3.0, but the files give 2.999'),
      ('gate.json', '"epsilon": 3.0', '"epsilon": 3', 'written in another way'),
      ('gate.json', '"noise_multiplier": 4.0', '"noise_multiplier": 4.5', 'clients.csv does not say'),
      ('gate.json', 'at the server', 'at the clients', 'issuer.clipping: it says'),
      ('gate.json', '"version"', '"more": 1, "version"', 'gate.json is damaged'),
      ('certificate.json', '"epsilon_max": ', '"epsilon_max": 1', 'achieved.epsilon_max: it says 1'),
      ('certificate.json', 'readings and not guarantees', 'guarantees', 'statement: it says'),
    ],
  )
  def test_a_change_of_any_file_is_found(self, name, old, new, words, tmp_path, capsys):
    _, path = _folder(tmp_path)
    text = (path / name).read_text(encoding='utf-8')
    assert old in text
    (path / name).write_text(text.replace(old, new, 1), encoding='utf-8')
    status, lines = made.answer(path, capsys)
    assert (status, lines[0]) == (1, 'INVALID') and any(words in line for line in lines), lines

  def test_a_log_that_is_over_cannot_be_resealed(self, tmp_path):
    _, path = _folder(tmp_path)
    with open(path / 'log.csv', 'a') as f:
      f.writelines(f'{number},0,1.0,yes\n' for number in range(13, 40))
    with pytest.raises(ValueError, match='have spent more than their bound'):
      _reseal(path)

  def test_a_resealed_certificate_still_has_the_figures_of_the_files(self, tmp_path, capsys):
    _, path = _folder(tmp_path)
    found = made.read(path, 'certificate.json')
    found['achieved']['epsilon_max'] = 0.1
    files.write_json(str(path / 'certificate.json'), certificate_lib.sealed(found))
    status, lines = made.answer(path, capsys)
    assert status == 1 and 'achieved.epsilon_max: it says 0.1' in lines[1]

  @pytest.mark.parametrize('name', ['more.txt', 'certificate.html', 'folder/log.csv'])
  def test_other_files_are_refused(self, name, tmp_path, capsys):
    _, path = _folder(tmp_path)
    made.put(path, name)
    assert f'{name} does not belong there' in made.answer(path, capsys)[1][1]

  def test_a_missing_file(self, tmp_path, capsys):
    _, path = _folder(tmp_path)
    (path / 'log.csv').unlink()
    status, lines = made.answer(path, capsys)
    assert status == 1 and 'log.csv is missing' in lines[1]

  def test_another_version_cannot_be_verified(self, tmp_path, capsys):
    _, path = _folder(tmp_path)
    text = (path / 'certificate.json').read_text(encoding='utf-8')
    (path / 'certificate.json').write_text(text.replace('"version": 12', '"version": 9'), encoding='utf-8')
    assert made.answer(path, capsys)[0] == 2

  def test_signatures(self, tmp_path, capsys):
    key, public = made.keys(tmp_path / 'keys')
    _, other = made.keys(tmp_path / 'other')
    _, path = _folder(tmp_path, signing_key=key)
    assert made.answer(path, capsys, f'--public_key={public}')[0] == 0
    assert made.answer(path, capsys, f'--public_key={other}')[0] == 1
    (path / 'certificate.sig').unlink()
    assert made.answer(path, capsys)[0] == 0
    assert made.answer(path, capsys, f'--public_key={public}')[0] == 1
