"""The folder of a run: no state is read that is not whole, rows never double, nothing else is touched."""

import contextlib
import gc
import json
import math
import resource
import shutil
import sys

import numpy as np
import pytest
import tensorflow as tf

from experiments.command import command_line
from experiments.folders import directory as run_directory
from experiments.folders import folder as run_folder
from tests.experiments import harness

IDENTITY = {'rounds': 8, 'epsilon': 6.0, 'levels': [], 'seed': None}


def _save(directory, round_num):
  """Writes a state of no tensors."""
  directory.store.write({'done': np.array(round_num)})


@contextlib.contextmanager
def _opened(path, identity=None, all_flags=None, **options):
  directory = run_directory.RunDirectory(
    str(path), all_flags or IDENTITY, IDENTITY if identity is None else identity, {'num_clients': 2}, b'data', **options
  )
  with contextlib.closing(directory):
    if directory.is_new:
      directory.begin_stretch(1)
    yield directory


class TestCheck:
  def test_new_and_empty_folders_are_new_and_stay_as_they_are(self, tmp_path):
    assert run_folder.check(str(tmp_path / 'new'), IDENTITY).is_new
    assert run_folder.check(str(tmp_path), IDENTITY).is_new
    assert not list(tmp_path.iterdir())

  def test_a_run_of_the_same_flags_is_gone_on_with_once_it_has_begun(self, tmp_path):
    secrets = []
    for is_new in (True, True, False):
      with _opened(tmp_path) as directory:
        assert directory.is_new == is_new
        secrets.append((directory.secret('a'), directory.secret('b')))
        if len(secrets) == 2:
          _save(directory, 0)
    # Of a run without a checkpoint, nothing depends on the secret.
    assert secrets[0] != secrets[1] == secrets[2] and len({*secrets[0], *secrets[1]}) == 4
    assert (tmp_path / 'checkpoints' / 'secret').stat().st_mode & 0o077 == 0

  def test_a_tuple_is_the_list_that_json_makes_of_it(self, tmp_path):
    with _opened(tmp_path, {'levels': ('a', 'b')}):
      pass
    run_folder.check(str(tmp_path), {'levels': ('a', 'b')})
    with pytest.raises(run_folder.RunDirectoryError, match='--levels'):
      run_folder.check(str(tmp_path), {'levels': ('a',)})

  def test_a_flag_that_an_older_version_did_not_know_differs(self, tmp_path):
    with _opened(tmp_path):
      pass
    with pytest.raises(run_folder.RunDirectoryError, match='--new_flag: None there, 3 now'):
      run_folder.check(str(tmp_path), {**IDENTITY, 'new_flag': 3})

  def test_what_a_kill_left_before_run_json_is_new(self, tmp_path):
    (tmp_path / '.lock').touch()
    (tmp_path / 'run.json.part').write_text('{"iden')
    with _opened(tmp_path) as directory:
      assert directory.is_new

  def test_two_at_once(self, tmp_path):
    with _opened(tmp_path):
      with pytest.raises(run_folder.RunDirectoryError, match='Another process'):
        with _opened(tmp_path):
          pass
    with _opened(tmp_path):
      pass

  def test_run_json_holds_flags_and_versions(self, tmp_path):
    with _opened(tmp_path, all_flags={**IDENTITY, 'progress': 'bar'}):
      pass
    run = harness.strict_json((tmp_path / 'run.json').read_text())
    assert run['flags'] == {**IDENTITY, 'progress': 'bar'}
    assert run['identity'] == IDENTITY
    assert set(run['versions']) >= {'quap_tff', 'tensorflow', 'tensorflow_federated', 'numpy', 'python'}

  def test_a_folder_that_cannot_be_made_is_found_out_at_once(self, tmp_path):
    (tmp_path / 'file').touch()
    for path in (tmp_path / 'file' / 'below' / 'it', tmp_path / ('long' * 100), f'{tmp_path}/\0'):
      with pytest.raises(run_folder.RunDirectoryError, match='cannot be used: .* Give another folder'):
        run_folder.check(str(path), IDENTITY)
    with pytest.raises(run_folder.RunDirectoryError) as raised:
      run_folder.check('/proc/new/below', IDENTITY)
    said = 'output_dir /proc/new/below cannot be made in /proc: it takes no new folders. Give another folder.'
    assert str(raised.value) == said
    assert run_folder.check(str(tmp_path / 'new' / 'below'), IDENTITY).is_new


_DAMAGED_SECRETS = {
  'flipped': lambda content: bytes([content[0] ^ 1]) + content[1:],
  'halved': lambda content: content[: len(content) // 2],
  'only the secret': lambda content: content[:32],
  'emptied': lambda content: b'',
  'removed': None,
}


class TestSecret:
  @pytest.mark.parametrize('damage', _DAMAGED_SECRETS.values(), ids=_DAMAGED_SECRETS)
  def test_a_run_does_not_go_on_with_another(self, damage, tmp_path):
    with _opened(tmp_path) as directory:
      _save(directory, 0)
    path = tmp_path / 'checkpoints' / 'secret'
    content = path.read_bytes()
    if damage is None:
      path.unlink()
    else:
      path.write_bytes(damage(content))
    before = harness.files(tmp_path)
    problem = 'is missing' if damage is None else 'cannot be read'
    match = f'checkpoints/secret {problem}.* Put it back from a copy to continue the run, or give another folder'
    with pytest.raises(run_folder.RunDirectoryError, match=match):
      run_folder.check(str(tmp_path), IDENTITY)
    with pytest.raises(run_folder.RunDirectoryError, match=match):
      with _opened(tmp_path):
        pass
    assert harness.files(tmp_path) == before
    path.write_bytes(content)
    with _opened(tmp_path) as directory:
      assert not directory.is_new

  def test_of_another_run(self, tmp_path):
    for name in ('one', 'other'):
      with _opened(tmp_path / name) as directory:
        _save(directory, 0)
    shutil.copy(tmp_path / 'one' / 'checkpoints' / 'secret', tmp_path / 'other' / 'checkpoints' / 'secret')
    with pytest.raises(run_folder.RunDirectoryError, match='other data.*, or .*checkpoints is of another run'):
      with _opened(tmp_path / 'other'):
        pass


class TestState:
  def test_a_folder_in_its_place(self, tmp_path):
    with _opened(tmp_path):
      pass
    (tmp_path / 'checkpoints' / 'state').mkdir()
    with pytest.raises(run_folder.RunDirectoryError, match='checkpoints/state cannot be read.* Put the latest'):
      run_folder.check(str(tmp_path), IDENTITY)

  @pytest.mark.slow
  def test_a_damaged_one_is_named_and_left(self, tmp_path):
    with _opened(tmp_path) as directory:
      _save(directory, 4)
    path = tmp_path / 'checkpoints' / 'state'
    content = path.read_bytes()
    places = np.random.default_rng(5).choice(len(content), 200, replace=False)
    flipped = [content[:i] + bytes([content[i] ^ 4]) + content[i + 1 :] for i in places]
    for damaged in [*flipped, content[: len(content) // 2], content[:-1], b'', b'foreign']:
      path.write_bytes(damaged)
      before = harness.files(tmp_path / 'checkpoints')
      with pytest.raises(run_folder.RunDirectoryError, match='checkpoints/state cannot be read .* Put the latest copy'):
        with _opened(tmp_path):
          pass
      assert harness.files(tmp_path / 'checkpoints') == before

  def test_leftovers_of_a_kill_go_and_foreign_names_stay(self, tmp_path):
    with _opened(tmp_path) as directory:
      _save(directory, 4)
    for name in ('state.part', 'secret.part', 'notes'):
      (tmp_path / 'checkpoints' / name).write_bytes(b'half')
    with _opened(tmp_path) as directory:
      assert directory.store.read()['done'] == 4
    assert sorted(path.name for path in (tmp_path / 'checkpoints').iterdir()) == ['notes', 'secret', 'state']


class TestCertificate:
  def test_goes_with_its_audit_when_another_round_begins(self, tmp_path):
    with _opened(tmp_path) as directory:
      for name in ('certificate/certificate.json', 'certificate/ledger.npz', 'audit.json', 'audit.sig', 'plot.png'):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('x')
      directory.begin_stretch(1)
      left = {entry.name for entry in tmp_path.iterdir()}
    assert 'plot.png' in left and not left & {'certificate', 'certificate.part', 'audit.json', 'audit.sig'}

  def test_a_run_whose_checkpoints_are_gone_is_not_trained_again(self, tmp_path):
    with _opened(tmp_path):
      pass
    shutil.rmtree(tmp_path / 'checkpoints')
    (tmp_path / 'certificate').mkdir()
    with pytest.raises(run_folder.RunDirectoryError, match='holds certificate of a run that has not reached'):
      run_folder.check(str(tmp_path), IDENTITY)


class TestLog:
  def test_rows_of_later_rounds_go(self, tmp_path):
    for rounds in ([1, 2, 3, 4], [3, 4, 5]):
      with _opened(tmp_path) as directory:
        _save(directory, 0)
        for t in rounds:
          directory.log(t, {'loss': t + rounds[0] / 10})
    assert harness.rows(tmp_path) == [
      {'round': str(t), 'loss': loss} for t, loss in enumerate(['1.1', '2.1', '3.3', '4.3', '5.3'], 1)
    ]

  def test_columns_may_come_later_and_values_may_be_nothing(self, tmp_path):
    with _opened(tmp_path) as directory:
      directory.log(1, {'loss': math.nan, 'count': 3})
      directory.log(2, {'loss': 0.1 + 0.2, 'count': 0, 'accuracy': 0.5})
      directory.log(3, {'count': 1})
    expected = 'round,loss,count,accuracy\r\n1,nan,3,\r\n2,0.30000000000000004,0,0.5\r\n3,,1,\r\n'
    assert (tmp_path / 'metrics.csv').read_bytes() == expected.encode()
    assert list((tmp_path / 'tensorboard').iterdir())

  def test_a_row_is_appended(self, tmp_path):
    with _opened(tmp_path) as directory:
      directory.log(1, {'loss': 1.0})
      file, size = (tmp_path / 'metrics.csv').stat().st_ino, (tmp_path / 'metrics.csv').stat().st_size
      for t in range(2, 10):
        directory.log(t, {'loss': 1.0})
      after = (tmp_path / 'metrics.csv').stat()
    assert (after.st_ino, after.st_size) == (file, size + 8 * len('2,1.0\r\n'))

  @pytest.mark.parametrize('columns', [pytest.param({}, marks=pytest.mark.thorough), {'test': 0.5}])
  @pytest.mark.parametrize('after', [1, 9])
  @pytest.mark.slow
  def test_a_run_that_was_killed_in_the_middle_of_a_row_has_each_row_once(self, columns, after, tmp_path):
    rows = {t: {'loss': t / 4, **(columns if t == 10 else {})} for t in range(1, 12)}
    with _opened(tmp_path / 'whole') as directory:
      for t, row in rows.items():
        directory.log(t, row)
    whole = (tmp_path / 'whole' / 'metrics.csv').read_bytes()
    # After each byte of the file, from the row after the checkpoint on.
    for size in range(whole.index(b'%d,' % (after + 1)), len(whole) + 1):
      path = tmp_path / str(size)
      with _opened(path) as directory:
        _save(directory, after)
      (path / 'metrics.csv').write_bytes(whole[:size])
      with _opened(path) as directory:
        directory.keep_rows(after, rows[after])
        for t in range(after + 1, 12):
          directory.log(t, rows[t])
      assert (path / 'metrics.csv').read_bytes() == whole

  def test_tensorboard_has_each_step_once_after_a_kill(self, tmp_path):
    with _opened(tmp_path) as directory:
      _save(directory, 0)
      for t in (1, 2, 3):
        directory.log(t, {'loss': float(t)})
        if t == 2:
          _save(directory, 2)
    with _opened(tmp_path) as directory:
      before = harness.files(tmp_path)
      directory.keep_rows(2, {'loss': 2.0})
      assert harness.files(tmp_path) == before
      directory.log(3, {'loss': 3.5, 'nothing': math.nan})
    steps = [
      (event.step, value.tag, value.simple_value)
      for file in sorted((tmp_path / 'tensorboard').glob('events*'))
      for event in tf.compat.v1.train.summary_iterator(str(file))
      for value in event.summary.value
    ]
    assert sorted(steps) == [(1, 'loss', 1.0), (2, 'loss', 2.0), (3, 'loss', 3.5)]

  def test_no_tensorboard_where_times_are_not_kept(self, tmp_path):
    with _opened(tmp_path, keeps_times=False) as directory:
      directory.log(1, {'loss': 1.0})
    assert len(harness.rows(tmp_path)) == 1 and not (tmp_path / 'tensorboard').exists()

  def test_the_row_of_a_checkpoint_that_came_before_its_log_is_written(self, tmp_path):
    with _opened(tmp_path) as directory:
      _save(directory, 0)
      directory.log(1, {'loss': 1.0})
      _save(directory, 2)
    with _opened(tmp_path) as directory:
      directory.keep_rows(2, {'loss': 2.0})
    assert harness.rows(tmp_path) == [{'round': '1', 'loss': '1.0'}, {'round': '2', 'loss': '2.0'}]

  @pytest.mark.parametrize('rounds', [[], [2], [1, 3]])
  def test_rows_that_are_missing(self, rounds, tmp_path):
    with _opened(tmp_path) as directory:
      _save(directory, 0)
      for t in rounds:
        directory.log(t, {'loss': 1.0})
      with pytest.raises(run_folder.RunDirectoryError, match='one row for each of the first 3 rounds'):
        directory.keep_rows(3, {'loss': 3.0})


@contextlib.contextmanager
def _full(most):
  """No file can become longer than these bytes."""
  soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
  try:
    yield
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class TestFullDisk:
  @pytest.mark.slow
  def test_is_one_error_of_the_folder_and_no_second_one(self, tmp_path, monkeypatch):
    second = []
    monkeypatch.setattr(sys, 'unraisablehook', second.append)
    with _opened(tmp_path, keeps_times=False) as directory:
      directory.log(1, {'loss': 1.0})
      written = (tmp_path / 'metrics.csv').read_bytes()
      for step in (lambda: directory.log(2, {'loss': 2.0}), lambda: directory.write_summary({'text': 100 * 'x'})):
        with (
          _full(len(written) + 3),
          pytest.raises(run_folder.RunDirectoryError, match='cannot be written: ') as raised,
        ):
          step()
        text = command_line.error_text(raised.value)
        assert 'Make room and give the same command again' in text and '\n' not in text
      assert (tmp_path / 'metrics.csv').read_bytes() in (written, written + b'2,2')
      assert list((tmp_path / 'checkpoints').iterdir()) == [tmp_path / 'checkpoints' / 'secret']
    gc.collect()
    assert not second

  def test_tensorflow_s_own_error_is_reported_in_plain_words(self, tmp_path):
    with _opened(tmp_path) as directory:
      with pytest.raises(run_folder.RunDirectoryError) as raised:
        with directory.replacing('plot.png'):
          raise tf.errors.ResourceExhaustedError(
            None, None, '{{function_node __wrapped__SaveV2}} a/file; No space left on device [Op:SaveV2]'
          )
    assert str(raised.value) == f'{tmp_path} cannot be written: a/file; No space left on device'
    assert 'Make room' in command_line.error_text(raised.value)


class TestResults:
  def test_a_summary_is_strict_json(self, tmp_path):
    with _opened(tmp_path) as directory:
      assert run_folder.read_summary(directory.path) is None
      with pytest.raises(ValueError):
        directory.write_summary({'loss': math.nan})
      assert run_folder.read_summary(directory.path) is None
      directory.write_summary({'loss': None})
      assert run_folder.read_summary(directory.path) == {'loss': None}
    assert json.loads((tmp_path / 'summary.json').read_text()) == {'loss': None}

  def test_a_file_is_replaced_whole(self, tmp_path):
    (tmp_path / 'run').mkdir()
    with _opened(tmp_path / 'run') as directory:
      with directory.replacing('plot.png') as path:
        assert path.endswith('.png')
        with open(path, 'w') as f:
          f.write('first')
      with pytest.raises(RuntimeError):
        with directory.replacing('plot.png') as path:
          with open(path, 'w') as f:
            f.write('half')
          raise RuntimeError
    assert (tmp_path / 'run' / 'plot.png').read_text() == 'first'
