"""What `experiments.verify` answers for runs of `experiments.train`: whether flags, tables and summary fit the rest.

The folders of certificates in general are tested in tests/quap_tff/certificates.
"""

import csv
import os
import shutil
import sys

import pytest

from experiments import verify
from experiments.folders import folder as run_folder
from experiments.running import evidence
from quap_tff import accounting
from quap_tff import certificates
from quap_tff import verify as library_verify
from quap_tff.certificates import verifying
from quap_tff.certificates.folders import folder as folders
from quap_tff.certificates.folders import train_runs
from quap_tff.mechanisms.certified import weight_rules
from tests import processes
from tests.experiments import harness
from tests.quap_tff.certificates import made

pytestmark = pytest.mark.slow

_METHOD = 'certified:weights=participation,noise=independent,clip={}'
# Runs of the library: of 6 rounds; stopped, with own bounds; without a trusted server, and clients who drop out.
_PLAIN, _STOPPED, _HELD = 'certified', 'certified_stopped', 'held'
_RUN, _SUMMARY, _METRICS = run_folder.RUN, run_folder.SUMMARY, run_folder.METRICS


@pytest.fixture(name='certified')
def _certified(library, tmp_path):
  return library.copy(_PLAIN, tmp_path / 'certified')


@pytest.fixture(name='stopped')
def _stopped(library, tmp_path):
  return library.copy(_STOPPED, tmp_path / 'stopped')


def _problems(path):
  return verify.verify(str(path)).problems


def _answer(path, capsys, *arguments):
  """Exit status, and the lines of standard output."""
  status = verify.main(['verify', str(path), *arguments])
  return status, capsys.readouterr().out.splitlines()


def _change_csv(path, name, change):
  rows = harness.table(path / name)
  rows = change(rows) or rows
  with open(path / name, 'w', newline='', encoding='utf-8') as f:
    writer = csv.DictWriter(f, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)


# Of the statement, by the name of a run.
_STATEMENTS = {
  _PLAIN: ('In integers, with a trusted server', 'that the run took place.'),
  _HELD: ('If each secure sum opens for all clients', 'simulated by one operator, who had all keys.'),
}


class TestValid:
  @pytest.mark.parametrize('name', [_PLAIN, _HELD])
  def test_a_run_is_valid_for_both_verifiers(self, name, library, capsys):
    path = str(library.run(name).path)
    assert verify.main(['verify', path]) == 0
    out, err = capsys.readouterr()
    said, (begins, ends) = out.partition('\n')[2], _STATEMENTS[name]
    assert out.startswith('VALID\n') and said.startswith(begins) and not err
    assert 'for each of the 8 clients with ε = 4 and δ = 1e-05' in out
    assert out.endswith(
      f'{ends}\nNot checked, and not covered by this statement: all of plot.png; final_model.keras, '
      'except that its tensors have the stated shapes and finite numbers; the machine, the versions, and flags without '
      'effect on the results in run.json.\n'
    )
    assert library_verify.main([path]) == 0
    again, err = capsys.readouterr()
    assert again == out and 'metrics.csv say in addition was not compared. python -m experiments.verify does' in err

  def test_a_run_that_was_stopped_says_how_far_it_came(self, stopped, capsys):
    assert verify.main(['verify', str(stopped)]) == 0
    out, err = capsys.readouterr()
    assert 'in total over all 8 planned rounds' in out and 'has spent ε' not in out
    assert 'The run ended after 5 of 8 planned rounds' in out and 'ε = 2 for 4, ε = 4 for 4' in out
    assert 'A reading of the account at that moment gives ε = ' in out and 'A reading is not a guarantee' in out
    # Its checkpoints are kept.
    assert 'checkpoints holds the state of the run, which contains the key of the noise' in err
    assert library_verify.main([str(stopped)]) == 0

  def test_a_folder_is_issued_from_its_files_alone(self, certified):
    before = {name: (certified / name).read_bytes() for name in (folders.CERTIFICATE, folders.PAGE)}
    certificates.issue(str(certified))
    assert {name: (certified / name).read_bytes() for name in before} == before

  def test_what_the_run_states(self, certified):
    stated = made.read(certified, folders.MECHANISM)['issuer']
    assert (stated['algorithm'], stated['dataset'], stated['model']) == (
      _METHOD.format(0.5),
      'digits',
      'logistic_regression',
    )
    assert stated['tests'] == 3 and stated['test_accuracy'] == harness.summary(certified)['test_accuracy']
    assert stated['data_commitment'] == made.read(certified, _RUN)['resolved']['data_commitment']
    [stretch] = stated['stretches']
    assert (stretch['first_round'], stretch['last_round']) == (1, 6)

  def test_what_left_clients_was_read_off_the_computation(self, library):
    leaves = [made.read(library.run(name).path, folders.MECHANISM)['leaves_clients'] for name in (_PLAIN, _HELD)]
    assert leaves[0] == [
      ['federated_sum', 'client_id', 'int32[9]'],
      ['federated_sum', '', 'int32[64,10]'],
      ['federated_sum', '', 'int32[10]'],
    ]
    assert [by for by, *_ in leaves[1]] == ['federated_sum'] * 4 + ['federated_secure_modular_sum'] * 3

  def test_loads_no_tensorflow(self, certified):
    code = (
      'import sys\nfrom experiments import verify\n'
      f'assert verify.main(["verify", {str(certified)!r}]) == 0\n'
      'assert not [name for name in sys.modules if name.startswith(("tensorflow", "jax"))]\n'
    )
    done = processes.run([sys.executable, '-c', code])
    assert done.returncode == 0, done.stderr

  @pytest.mark.thorough
  def test_as_a_command(self, certified):
    (certified / 'final_model.keras').write_bytes(b'another model')
    command = [sys.executable, '-m', 'experiments.verify', str(certified)]
    done = processes.run(command, env={**os.environ, 'PYTHONIOENCODING': 'ascii'})
    assert done.returncode == 1 and done.stdout.startswith('INVALID\n  final_model.keras cannot be read')


class TestCannotBeVerified:
  def test_a_folder_that_is_not_there(self, tmp_path, capsys):
    assert _answer(tmp_path / 'nowhere', capsys) == made.answer(tmp_path / 'nowhere', capsys)
    assert _answer(tmp_path / 'nowhere', capsys)[0] == 2

  def test_a_package_that_every_answer_needs(self, certified):
    code = (
      f'import sys\nsys.modules["scipy"] = None\nfrom experiments import verify\n'
      f'sys.exit(verify.main(["verify", {str(certified)!r}]))\n'
    )
    done = processes.run([sys.executable, '-c', code])
    assert done.returncode == 2 and 'Traceback' not in done.stderr, done.stderr
    assert done.stdout.startswith('CANNOT BE VERIFIED') and 'scipy' in done.stdout

  @pytest.mark.parametrize('arguments', [[], ['a', 'b'], ['--unknown=1', 'a']])
  def test_wrong_arguments(self, arguments, capsys):
    assert verify.main(['verify', *arguments]) == 2
    assert capsys.readouterr().err.startswith('Error: ')


def _run(*place, value):
  """Changes a value in run.json."""

  def change(path):
    def how(run):
      for key in place[:-1]:
        run = run[key]
      run[place[-1]] = value

    made.change(path, _RUN, how)

  return change


def _flag(name, value):
  """Another value of a flag, wherever run.json has it."""

  def change(path):
    for part in ('identity', 'flags'):
      _run(part, name, value=value)(path)

  return change


def _summary(**changes):
  return lambda path: made.change(path, _SUMMARY, lambda value: {**value, **changes})


def _cell(column, text, row=2):
  return lambda path: _change_csv(path, _METRICS, lambda rows: rows[row].update({column: text}))


def _cut_ledger(path):
  ledger = accounting.RunLedger.load(path / folders.LEDGER).truncated(3)
  made.write_arrays(path / folders.LEDGER, ledger.state_dict())
  plan = folders.read(str(path)).plan
  (path / folders.CLIENTS).write_text(folders.clients_text(plan, ledger))


_CODE = {'quap_tff': '0.0.9', 'source_sha256': '0' * 64}
_PLATFORM = {'platform': 'x', 'cores': 1, 'gpus': 0}
_STRETCH = {'first_round': 1, 'code': _CODE, 'versions': {}, 'machine': _PLATFORM}

# What a forger changes and seals again, and a word of the answer. Both verifiers see it: it is of another form.
_FORMS = {
  'a key in run.json': (_run('more', value=1), 'it must have the keys'),
  'a key in resolved': (_run('resolved', 'more', value=1), 'resolved must have the keys'),
  'a key in machine': (_run('machine', 'more', value=1), 'machine must have the keys'),
  'a key in a layer': (_run('resolved', 'layers', 0, 'more', value=1), 'run.json is damaged'),
  'layers that cover less': (_run('resolved', 'layers', 0, 'indices', value=[0]), 'do not hold each of the 2 tensors'),
  'a struct as a flag': (_run('flags', 'progress', value={'client 7': 3}), 'must be a text, a number or a list'),
  'a struct in a flag': (_run('flags', 'progress', value=[{'client 7': 3}]), 'must be a text, a number or a list'),
  'a struct as a fact': (
    _run('resolved', 'test_examples', value={'client 7': 3}),
    'must be a text, a number or a list',
  ),
  'two values of a flag': (_run('flags', 'epsilon', value=1.0), 'identity and flags have two values of epsilon'),
  'a flag that is none': (_run('identity', 'more', value=1), 'run.json is damaged'),
  'versions in words': (_run('versions', 'numpy', value='a version without faults'), 'versions must be versions'),
  'a platform that is none': (_run('machine', 'platform', value={'client 7': 3}), 'platform must be a text'),
  'cores that are none': (_run('machine', 'cores', value='many'), 'cores must be an integer'),
  'a hidden character': (_run('resolved', 'test_set', value='Not of clients\u202e.'), 'U+202E'),
  'no run.json': (lambda path: (path / _RUN).unlink(), 'run.json is missing'),
  'a list as run.json': (lambda path: (path / _RUN).write_text('[]'), 'run.json is damaged'),
  'a key twice': (
    lambda path: (path / _RUN).write_text(
      (path / _RUN).read_text(encoding='utf-8').replace('"identity": {', '"identity": {"seed": 1,', 1), encoding='utf-8'
    ),
    'a key appears twice',
  ),
  **{
    f'stretches {number}': (_run('stretches', value=value), 'does not say which code ran which rounds')
    for number, value in enumerate(
      [None, [], 'x', [{}], [{'first_round': 2}], [{**_STRETCH, 'more': 1}], [{**_STRETCH, 'first_round': 2}]]
      + [[{**_STRETCH, 'first_round': '1'}], [{**_STRETCH, 'first_round': True}], [_STRETCH, _STRETCH], ['abc'], [1]]
      + [[{**_STRETCH, 'code': None}], [{**_STRETCH, 'machine': None}], [{**_STRETCH, 'versions': {'a': {'b': 1}}}]]
      + [[_STRETCH, {**_STRETCH, 'first_round': 99, 'machine': {'client 7': 3}}]]
    )
  },
  'no summary.json': (lambda path: (path / _SUMMARY).unlink(), 'summary.json is missing'),
  'a key in summary.json': (_summary(more=1), 'it must have the keys'),
  'a key in its figures': (
    lambda path: made.change(path, _SUMMARY, lambda v: v['formal'].update(more=1)),
    'formal must have the keys',
  ),
  'a key in a figure': (
    lambda path: made.change(path, _SUMMARY, lambda v: v['formal']['figures'][0].update(more=1)),
    'figures must have the keys',
  ),
  'a struct in summary.json': (_summary(test_loss={'client 7': 3}), 'test_loss must be a text, a number'),
  'attackers that are none': (_summary(malicious={'client 7': 3}), 'malicious must have the keys'),
  'no metrics.csv': (lambda path: (path / _METRICS).unlink(), 'metrics.csv is missing'),
  'a column of losses': (
    lambda path: _change_csv(path, _METRICS, lambda rows: [row.update(train_loss='0.5') for row in rows] and None),
    'metrics.csv: train_loss is an exact function',
  ),
  'a row less': (lambda path: _change_csv(path, _METRICS, lambda rows: rows[:-1]), 'one row for each'),
  'a row twice': (lambda path: _change_csv(path, _METRICS, lambda rows: [*rows, rows[-1]]), 'one row for each'),
  'words in a cell': (_cell('up_bytes_per_client', 'client 7 has the label 3'), 'must be a number, found'),
  'digits of another script': (_cell('test_loss', '١'), 'must be a number, found'),
  'a column twice': (
    lambda path: (path / _METRICS).write_text((path / _METRICS).read_text().replace('test_loss', 'test_accuracy', 1)),
    'two of its columns have one name',
  ),
  'an impossible accuracy': (_cell('test_accuracy', '1.5', row=1), 'which is not between 0 and 1'),
  'an accuracy that is none': (_cell('test_accuracy', 'nan', row=1), 'which is not between 0 and 1'),
  'a file of losses': (lambda path: (path / 'losses.csv').write_text('client,loss\n0,0.3\n'), 'losses.csv does not'),
  'TensorBoard, which holds times': (lambda path: made.put(path, 'tensorboard/events'), 'does not belong there'),
  'a lock with a text': (lambda path: (path / '.lock').write_text('client 7'), '.lock must be empty'),
  'a secret that is none': (lambda path: made.put(path, 'checkpoints/losses'), 'checkpoints/losses does not belong'),
  'a checkpoint of more': (lambda path: made.put(path, 'checkpoints/round_3/losses'), 'losses does not belong there'),
  'deeper checkpoints': (lambda path: made.put(path, 'features/checkpoints/x'), 'features/checkpoints/x does not'),
  'an extractor with a hidden name': (
    lambda path: made.put(path, 'features/a\nb/card.json'),
    'features/a\\nb/card.json does not belong there',
  ),
  'features of a run that has none': (
    lambda path: made.put(path, 'features/glyphs/card.json'),
    'features/glyphs/card.json does not belong there',
  ),
  **{
    f'another way of writing {name}': (
      lambda path, name=name: (path / name).write_text((path / name).read_text(encoding='utf-8') + ' ', 'utf-8'),
      f'{name} is damaged: it is written in another way',
    )
    for name in (_RUN, _SUMMARY)
  },
  'another way of writing metrics.csv': (
    lambda path: (path / _METRICS).write_bytes((path / _METRICS).read_bytes().replace(b'\r\n', b'\n')),
    'metrics.csv is damaged: it is written in another way',
  ),
  'a model in arrays': (lambda path: made.put(path, 'final_model.npz'), 'final_model.npz does not belong there'),
}
# Only the flags, the rounds and the summary say that this is false.
_CONTRADICTIONS = {
  **{
    f'flag {name}': (_flag(name, value), word)
    for name, value, word in (
      ('client_metrics', True, 'run.json'),
      ('noise_seed', 7, 'run.json'),
      ('seed', 43, 'schedule'),
      ('epsilon', 3.0, 'mechanism.epsilon'),
      ('delta', 1e-6, 'mechanism.delta'),
      ('warmup_rounds', 0, 'mechanism.participation.warmup_rounds'),
      ('rounds', 7, 'rounds is 7, and mechanism.json says 6'),
      ('cohort_size', 4, 'mechanism'),
      ('participation', 'full', 'mechanism'),
      ('algorithm', _METHOD.format(0.4), 'mechanism.clip'),
      ('dataset', 'mnist', 'issuer.dataset'),
      ('tuning', 'By luck.', 'issuer.tuning'),
      ('features', 'scattering', 'issuer.features'),
      ('server_optimizer', 'sgd:learning_rate=2.0', 'issuer.post_processing'),
    )
  },
  **{f'rounds of {value!r}': (_flag('rounds', value), 'run.json') for value in (10**9, 6.0, True, '6', -1, None)},
  **{
    f'fact {name}': (_run('resolved', name, value=value), word)
    for name, value, word in (
      ('num_clients', 2**31 - 1, 'num_clients is 2147483647, and mechanism.json says 8'),
      ('test_set', 'None.', 'issuer.test_set'),
      ('public_data', 'None.', 'issuer.public_data'),
      ('model', 'mlp', 'issuer.model'),
      ('data_commitment', '0' * 64, 'issuer.data_commitment'),
      ('test_is_of_clients', True, 'It releases figures on test examples of the clients'),
      ('shapes', [[10, 64], [10]], 'by the flags: shapes'),
    )
  },
  'another method': (_flag('algorithm', 'quap'), 'a run of --algorithm=quap has no certificate'),
  'a flag less': (
    lambda path: made.change(path, _RUN, lambda run: run['flags'].pop('progress') and None),
    'flags must be the',
  ),
  'other code': (_run('stretches', 0, 'code', value=_CODE), 'issuer.stretches'),
  'the rounds are cut': (_cut_ledger, 'summary.json is damaged: reading must have the keys'),
  **{
    f'metrics {column}': (_cell(column, '0.123'), f'metrics.csv: {column} of round 3 is 0.123')
    for column in (
      *('cohort_size', 'clipping_norm', 'noise_multiplier', 'sigma', 'weight_mean', 'weight_min', 'spent_max'),
      *('exhausted_clients', 'participation_mean', 'participation_never_seen'),
    )
  },
  'an accuracy': (_cell('test_accuracy', '0.99', row=5), 'summary.json: test_accuracy'),
  'a test that was not made': (_cell('test_accuracy', '0.5', row=0), 'issuer.tests'),
  'a test that is left out': (_cell('test_accuracy', '', row=1), 'issuer.tests'),
  **{
    f'summary {name}': (_summary(**{name: value}), word)
    for name, value, word in (
      ('test_accuracy', 0.99, 'issuer.test_accuracy'),
      ('rounds', 3, 'summary.json: rounds'),
      ('planned_rounds', 7, 'summary.json: planned_rounds'),
      ('date', '2020-01-01', 'issuer.date'),
      ('model_protected', False, 'summary.json: model_protected'),
      ('trust', 'secure_sum', 'summary.json: trust'),
      ('seconds', 3.5, 'summary.json: seconds'),
      ('finished', False, 'summary.json: finished'),
      ('diverged', True, 'summary.json: diverged'),
      ('output_dir', '/home/me', 'summary.json: output_dir'),
      ('share_of_ceiling', 1.5, 'summary.json: share_of_ceiling'),
    )
  },
  'a figure of the summary that is slightly too small': (
    lambda path: made.change(
      path,
      _SUMMARY,
      lambda v: v['formal']['figures'][0].update(epsilon_max=v['formal']['figures'][0]['epsilon_max'] * (1 - 9e-6)),
    ),
    'summary.json: formal.figures[0].epsilon_max',
  ),
}


# Those of which others are of the same kind.
_EXAMPLES = (
  *('a key in run.json', 'two values of a flag', 'a hidden character', 'no run.json', 'a key twice', 'stretches 9'),
  *('a key in a figure', 'a column of losses', 'a row less', 'a file of losses', 'a checkpoint of more'),
  *('another way of writing metrics.csv', 'flag noise_seed', 'flag seed', 'flag epsilon', 'flag algorithm'),
  *('rounds of True', 'fact data_commitment', 'other code', 'the rounds are cut', 'metrics sigma', 'an accuracy'),
  *('summary test_accuracy', 'summary trust', 'a figure of the summary that is slightly too small'),
)


def _with_marks(forgeries):
  marks = lambda name: [] if name in _EXAMPLES else [pytest.mark.thorough]
  return [pytest.param(name, marks=marks(name)) for name in forgeries]


class TestForgeries:
  @pytest.mark.parametrize('name', _with_marks(_FORMS))
  def test_another_form_is_found_out_by_both(self, name, certified, capsys):
    forge, words = _FORMS[name]
    forge(certified)
    made.reseal(certified)
    status, lines = _answer(certified, capsys)
    assert status == 1 and words in '\n'.join(lines), lines
    assert made.answer(certified, capsys)[0] == 1

  @pytest.mark.parametrize('name', _with_marks(_CONTRADICTIONS))
  def test_a_contradiction_is_found_out_here(self, name, certified, capsys):
    forge, words = _CONTRADICTIONS[name]
    forge(certified)
    made.reseal(certified)
    status, lines = _answer(certified, capsys)
    assert status == 1 and words in '\n'.join(lines), lines

  def test_a_forger_who_changes_nothing_is_not_found_out(self, certified):
    made.reseal(certified)
    assert not _problems(certified)

  def test_a_plan_of_more_participations_than_memory_holds(self, certified, monkeypatch):
    from quap_tff.methods import base

    monkeypatch.setattr(base, '_MOST_PARTICIPATIONS', 10)
    assert 'more than 10 participations' in _problems(certified)[0]

  @pytest.mark.parametrize('kind', ['link', 'pipe'])
  @pytest.mark.parametrize(
    'name',
    [_RUN, *(pytest.param(name, marks=pytest.mark.thorough) for name in (_SUMMARY, _METRICS, 'plot.png', '.lock'))],
  )
  def test_what_is_no_file(self, name, kind, certified, tmp_path, capsys):
    if (certified / name).exists():
      (certified / name).rename(tmp_path / 'elsewhere')
    (certified / name).symlink_to(tmp_path / 'elsewhere') if kind == 'link' else os.mkfifo(certified / name)
    status, lines = _answer(certified, capsys)
    assert status == 1 and [line for line in lines[1:] if name in line]
    assert made.answer(certified, capsys)[0] == 1

  def test_a_plot_that_was_changed(self, certified):
    (certified / 'plot.png').write_bytes(b'another')
    assert _problems(certified)[0].startswith('provenance.files_sha256.plot.png: it says')


class TestSameVerdict:
  """A folder of library code is one for this verifier, too."""

  def test_of_library_code(self, tmp_path, capsys):
    path = made.folder(tmp_path / 'library')
    assert _answer(path, capsys) == made.answer(path, capsys) and _answer(path, capsys)[0] == 0
    (path / 'run.json').write_text('{}')
    assert _answer(path, capsys) == made.answer(path, capsys) and _answer(path, capsys)[0] == 1

  def test_of_a_rule_of_somebodys_program(self, tmp_path, monkeypatch, capsys):
    (tmp_path / 'their_rule.py').write_text(
      'from quap_tff.mechanisms.certified import weight_rules\n'
      'weight_rules.RULES["theirs"] = weight_rules.UniformWeights\n'
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(weight_rules.RULES, 'uniform')
    monkeypatch.setitem(weight_rules.RULES, 'theirs', weight_rules.UniformWeights)
    path = made.folder(tmp_path / 'library', made.plan(weights=weight_rules.UniformWeights()))
    for more, status in (([], 2), (['--import=nowhere'], 2), (['--import=their_rule'], 0)):
      answers = []
      for answer in (_answer, made.answer):
        weight_rules.RULES.pop('theirs', None)
        sys.modules.pop('their_rule', None)
        answers.append(answer(path, capsys, *more))
      assert answers[0] == answers[1] and answers[0][0] == status

  def test_of_a_run_that_says_that_it_is_of_library_code(self, certified, capsys):
    made.change(certified, folders.MECHANISM, lambda value: value.update(made_by=folders.LIBRARY))
    made.reseal(certified)
    assert _answer(certified, capsys) == made.answer(certified, capsys)
    status, lines = _answer(certified, capsys)
    assert status == 1 and [line for line in lines if 'run.json does not belong there' in line]


class TestStretches:
  def test_rounds_by_other_code_are_named_first(self, certified, capsys):
    def change(run):
      (first,) = run['stretches']
      run['stretches'] = [first, {**first, 'first_round': 6, 'code': _CODE}]

    made.change(certified, _RUN, change)
    stretches = train_runs.stated_stretches(made.read(certified, _RUN), 6)
    made.change(certified, folders.MECHANISM, lambda value: value['issuer'].update(stretches=stretches))
    made.reseal(certified)
    status, lines = _answer(certified, capsys)
    assert status == 0 and lines[0] == 'VALID' and lines[1].startswith('The rounds were run by different code.')
    assert lines[2].startswith('  rounds 1 to 5: quap_tff') and lines[3].endswith('0' * 64)
    assert 'rounds 6 to 6' in lines[3] and 'run in 2 stretches' in lines[4]

  def test_a_process_that_ended_before_its_first_round_was_kept(self, stopped):
    run = made.read(stopped, _RUN)
    run['stretches'].append({**run['stretches'][0], 'first_round': 6})
    made.change(stopped, _RUN, lambda _: run)
    made.reseal(stopped)
    assert not _problems(stopped)


def test_a_signed_run(certified, tmp_path, capsys):
  key, public = harness.keys(tmp_path / 'keys')
  [problem] = verify.verify(str(certified), public).problems
  assert 'is not signed' in problem
  verifying.issue(str(certified), key, evidence.check)
  assert verify.main(['verify', str(certified), f'--public_key={public}']) == 0
  assert not capsys.readouterr().err
  assert verify.main(['verify', str(certified)]) == 0
  assert 'was not checked' in capsys.readouterr().err


class TestPublish:
  def test_is_what_may_be_handed_out(self, stopped, tmp_path, capsys):
    published = tmp_path / 'published'
    assert verify.main(['verify', str(stopped), f'--publish={published}']) == 0
    capsys.readouterr()
    names = {str(file.relative_to(published)) for file in published.rglob('*')}
    assert names == {file.name for file in stopped.iterdir()} - {'checkpoints', '.lock'} and len(names) == 11
    assert verify.main(['verify', str(published)]) == 0
    assert 'checkpoints' not in capsys.readouterr().err
    assert verify.main(['verify', str(stopped), f'--publish={published}']) == 2
    assert 'already exists: give a new folder' in capsys.readouterr().err

  def test_an_invalid_folder_is_not_published(self, certified, tmp_path):
    (certified / 'losses.csv').write_text('x')
    assert verify.main(['verify', str(certified), f'--publish={tmp_path / "published"}']) == 1
    assert not (tmp_path / 'published').exists()

  @pytest.mark.parametrize('place', ['.', 'inside', 'checkpoints/inside', '../certified/inside'])
  def test_into_the_folder_itself(self, place, certified, capsys):
    before = harness.files(certified)
    assert verify.main(['verify', str(certified), f'--publish={certified / place}']) == 2
    assert 'publish' in capsys.readouterr().err and harness.files(certified) == before

  def test_a_failure_leaves_nothing(self, certified, tmp_path, monkeypatch, capsys):
    def fail(source, target):
      raise OSError(28, 'No space left on device')

    monkeypatch.setattr(shutil, 'copyfile', fail)
    assert verify.main(['verify', str(certified), f'--publish={tmp_path / "published"}']) == 2
    assert 'No space left' in capsys.readouterr().err
    assert sorted(os.listdir(tmp_path)) == ['certified']


def test_refusals_leave_no_certificate(certified):
  (certified / _METRICS).write_text('round,train_loss\n1,0.5\n')
  with pytest.raises(ValueError, match='train_loss'):
    verifying.issue(str(certified), None, evidence.check)
  assert not [name for name in os.listdir(certified) if name.startswith('certificate')]


def test_every_file_that_a_run_writes_is_known(library):
  """And nothing else is."""
  for name in (_PLAIN, _STOPPED, _HELD):
    names = {one.name for one in library.run(name).path.iterdir()}
    assert {folders.MECHANISM, folders.SCHEDULE, folders.LEDGER, folders.CLIENTS, folders.KERAS_MODEL} <= names
    assert {folders.CERTIFICATE, folders.PAGE, _RUN, _SUMMARY, _METRICS} <= names
