"""A state is written whole and used once: a second user, an older copy and a removed file are refused."""

import multiprocessing
import os
import pathlib
import shutil
import stat

import pytest

from quap_tff import states
from quap_tff.common import durable
from tests import processes


@pytest.fixture(name='path')
def _path(tmp_path):
  (tmp_path / 'run').mkdir()
  return tmp_path / 'run' / 'state'


@pytest.fixture(name='counters', autouse=True)
def _counters(tmp_path, monkeypatch):
  monkeypatch.setenv('XDG_STATE_HOME', str(tmp_path / 'home'))
  return tmp_path / 'home' / 'quap_tff'


def _write(path, *contents, counters=None):
  with durable.StateFile(str(path), counters) as state:
    for content in contents:
      state.write(content)


def _content(path, counters=None):
  with durable.StateFile(str(path), counters) as state:
    return state.content


def _refused(path, match, counters=None):
  with pytest.raises(durable.StateError, match=match):
    durable.StateFile(str(path), counters)


class TestWriting:
  def test_it_goes_on_where_it_ended(self, path):
    assert _content(path) is None
    _write(path, b'one', b'two\nlines')
    assert _content(path) == b'two\nlines' == durable.content_of(str(path))
    _write(path, b'')
    assert _content(path) == b''

  def test_only_the_owner_reads_it(self, path, counters):
    before = os.umask(0)
    try:
      _write(path, b'one')
    finally:
      os.umask(before)
    made = [path, *(one for one in counters.rglob('*'))]
    assert {stat.S_IMODE(one.stat().st_mode) for one in made if one.is_file()} == {0o600}
    assert {stat.S_IMODE(one.stat().st_mode) for one in [counters, *made] if one.is_dir()} == {0o700}

  def test_it_is_on_disk_before_it_counts(self, path, counters, monkeypatch):
    done, synced, replaced = [], os.fsync, os.replace
    with durable.StateFile(str(path)) as state:
      state.write(b'one')
      counter = os.stat(next((counters / 'states').iterdir())).st_ino
      names = {counter: 'counter', os.stat(path.parent).st_ino: 'folder'}
      monkeypatch.setattr(os, 'fsync', lambda fd: done.append(names.get(os.fstat(fd).st_ino, 'file')) or synced(fd))
      monkeypatch.setattr(os, 'replace', lambda *ends: done.append('rename') or replaced(*ends))
      state.write(b'two')
    assert done == ['file', 'rename', 'folder', 'counter']

  def test_a_link_is_followed(self, path, tmp_path):
    _write(path, b'one')
    (tmp_path / 'link').symlink_to(path)
    _write(tmp_path / 'link', b'two')
    assert (tmp_path / 'link').is_symlink() and _content(path) == b'two'

  def test_after_a_failed_write_it_is_opened_again(self, path, monkeypatch):
    state = durable.StateFile(str(path))
    state.write(b'one')
    monkeypatch.setattr(os, 'replace', lambda *_: (_ for _ in ()).throw(OSError('full')))
    with pytest.raises(OSError, match='full'):
      state.write(b'two')
    monkeypatch.undo()
    with pytest.raises(durable.StateError, match='is not open in this process'):
      state.write(b'three')


class TestTwice:
  def test_a_second_object_is_refused_at_once(self, path):
    with durable.StateFile(str(path)) as state:
      _refused(path, 'is in use')  # Before there is a file.
      state.write(b'one')
      _refused(path, 'is in use')
    assert _content(path) == b'one'

  def test_a_copy_is_the_same_state(self, path, tmp_path):
    with durable.StateFile(str(path)) as state:
      state.write(b'one')
      shutil.copytree(path.parent, tmp_path / 'copy')
      _refused(tmp_path / 'copy' / 'state', 'is in use')
    _write(tmp_path / 'copy' / 'state', b'two')
    _refused(path, 'is not the latest copy: it is version 1, and version 2 was written')

  def test_a_process_that_was_forked_does_not_write(self, path):
    with durable.StateFile(str(path)) as state:
      state.write(b'one')
      child = multiprocessing.get_context('fork').Process(target=state.write, args=(b'of the child',))
      child.start()
      child.join(processes.DEADLINE_SECONDS)
      assert child.exitcode == 1
      state.write(b'two')
    assert _content(path) == b'two'


class TestPutBack:
  @pytest.mark.parametrize('whole_folder', [False, True])
  def test_an_older_copy_is_refused(self, path, tmp_path, whole_folder):
    _write(path, b'one')
    shutil.copytree(path.parent, tmp_path / 'older')
    _write(path, b'two')
    if whole_folder:
      shutil.rmtree(path.parent)
      shutil.move(tmp_path / 'older', path.parent)
    else:
      shutil.copy(tmp_path / 'older' / 'state', path)
    _refused(path, 'is not the latest copy: it is version 1, and version 2 was written')

  @pytest.mark.parametrize('whole_folder', [False, True])
  def test_a_removed_one_is_refused_until_it_is_forgotten(self, path, whole_folder, capsys):
    _write(path, b'one')
    if whole_folder:
      shutil.rmtree(path.parent)
      path.parent.mkdir()
    else:
      path.unlink()
    _refused(path, f'is gone.*python -m quap_tff.states forget {path}$')
    assert states.main(['forget', str(path.parent)]) == 0 and str(path) in capsys.readouterr().out
    _write(path, b'new')
    assert _content(path) == b'new'

  def test_another_state_in_its_place_is_refused(self, path, tmp_path):
    _write(path, b'one')
    _write(tmp_path / 'other', b'two')
    (tmp_path / 'other').replace(path)
    _refused(path, 'is another one than was there before')

  def test_what_was_forgotten_is_refused_when_a_new_one_is_there(self, path, tmp_path):
    _write(path, b'one')
    shutil.copy(path, tmp_path / 'older')
    path.unlink()
    assert states.main(['forget', str(path)]) == 0
    _write(path, b'new')
    shutil.copy(tmp_path / 'older', path)
    _refused(path, 'is another one than was there before')

  @pytest.mark.parametrize('place', [0, 20, -1])
  def test_a_damaged_one_is_refused(self, path, place):
    _write(path, b'one')
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    _refused(path, 'is damaged')
    with pytest.raises(ValueError):
      durable.content_of(str(path))

  @pytest.mark.parametrize('content', [b'', b'\n', b'quap_tff-state \n', b'quap_tff-state a b c d\n'])
  def test_what_is_no_state_is_refused(self, path, content):
    path.write_bytes(content)
    _refused(path, 'does not begin as a state does')

  def test_its_folder_must_be_there(self, path):
    with pytest.raises(FileNotFoundError):
      durable.StateFile(str(path.parent / 'nothing' / 'state'))

  def test_a_folder_is_refused(self, path):
    path.mkdir()
    _refused(path, 'not a regular file')


class TestMoved:
  def test_a_folder_that_was_renamed_goes_on(self, path, tmp_path):
    _write(path, b'one')
    path.parent.rename(tmp_path / 'renamed')
    _write(tmp_path / 'renamed' / 'state', b'two')
    path.parent.mkdir()
    _write(path, b'another one')  # The old place is free.
    assert _content(tmp_path / 'renamed' / 'state') == b'two'

  def test_another_machine_asks_once(self, path, counters, capsys):
    _write(path, b'one', b'two')
    shutil.rmtree(counters)
    _refused(path, f'budgets are spent twice.*python -m quap_tff.states adopt {path.parent}$')
    assert states.main(['adopt', str(path.parent)]) == 0
    assert f'These states go on from here: {path}.' in capsys.readouterr().out
    assert _content(path) == b'two'

  def test_an_older_copy_is_not_adopted(self, path, tmp_path, capsys):
    _write(path, b'one')
    shutil.copy(path, tmp_path / 'older')
    _write(path, b'two', b'three')
    shutil.copy(tmp_path / 'older', path)
    assert states.main(['adopt', str(path)]) == 0
    assert 'All states were known already.' in capsys.readouterr().out
    _refused(path, 'is not the latest copy')

  def test_counters_that_were_put_back_are_noticed(self, path, counters, tmp_path):
    _write(path, b'one')
    shutil.copytree(counters, tmp_path / 'older')
    _write(path, b'two', b'three')
    shutil.rmtree(counters)
    shutil.move(tmp_path / 'older', counters)
    _refused(path, 'or the counters are older than it or lost')

  def test_counters_elsewhere(self, path, tmp_path, counters):
    own = str(tmp_path / 'own')
    _write(path, b'one', counters=own)
    assert not counters.exists() and _content(path, own) == b'one'
    _refused(path, 'adopt')
    path.unlink()
    _refused(path, f'--counters={own}$', own)

  @pytest.mark.parametrize('command', ['adopt', 'forget'])
  def test_a_wrong_path_is_an_error(self, command, tmp_path, capsys):
    (tmp_path / 'text').write_text('quap')
    for name in ('text', 'nothing', '.'):
      assert states.main([command, str(tmp_path / name)]) == 1
      assert capsys.readouterr().err.startswith('Error: ')


class _Crash(BaseException):
  pass


class TestCrashes:
  """Wherever a process ends, the state goes on from a version from which nothing was released."""

  @pytest.mark.slow
  @pytest.mark.parametrize('first', [True, False])
  @pytest.mark.parametrize('step', range(12))
  def test_none_locks_out_and_none_is_lost(self, path, monkeypatch, step, first):
    """`step` counts what a write asks of the disk."""
    if not first:
      _write(path, b'one')
    state, asked = durable.StateFile(str(path)), []

    def crashing(real):
      def function(*arguments, **more):
        asked.append(real)
        if len(asked) == step + 1:
          raise _Crash
        return real(*arguments, **more)

      return function

    ended = False
    with monkeypatch.context() as patch:
      for name in ('fsync', 'replace', 'pwrite', 'ftruncate'):
        patch.setattr(os, name, crashing(getattr(os, name)))
      try:
        state.write(b'two')
        ended = True
      except _Crash:
        pass
    state.close()
    found = _content(path)
    assert found == b'two' if ended else found in (None if first else b'one', b'two')
    _write(path, b'three')
    assert _content(path) == b'three'

  def test_half_a_line_of_a_counter_is_not_read(self, path, counters):
    _write(path, b'one')
    counter = next((counters / 'states').iterdir())
    with open(counter, 'ab') as f:
      f.write(b'2 0123')
    _write(path, b'two')
    assert _content(path) == b'two' and counter.read_bytes().count(b'\n') == 3

  def test_of_two_versions_after_a_crash_the_released_one_stays(self, path, tmp_path, monkeypatch):
    _write(path, b'one')
    shutil.copy(path, tmp_path / 'one')
    with monkeypatch.context() as patch, durable.StateFile(str(path)) as state, pytest.raises(_Crash):
      patch.setattr(durable._Log, 'append', lambda *_: (_ for _ in ()).throw(_Crash))
      state.write(b'two')
    shutil.copy(path, tmp_path / 'two')
    shutil.copy(tmp_path / 'one', path)  # Nothing was released from the other one.
    _write(path, b'another two')
    for name in ('one', 'two'):
      shutil.copy(tmp_path / name, path)
      _refused(path, 'is not the latest copy')


def _append_in_process(path, results):
  for _ in range(5):
    with durable.StateFile(path, waits=True) as state:
      state.write((state.content or b'') + b'x')
  results.put(True)


@pytest.mark.slow
def test_those_who_wait_take_turns(path):
  context = multiprocessing.get_context('fork')
  results = context.Queue()
  both = [context.Process(target=_append_in_process, args=(str(path), results)) for _ in range(2)]
  for process in both:
    process.start()
  for _ in both:
    assert results.get(timeout=processes.DEADLINE_SECONDS)
  for process in both:
    process.join()
  assert _content(path) == b'x' * 10


class TestHeirs:
  def test_one_run_counts_from_a_file(self, tmp_path):
    first, second = (durable.Heir(name, f'runs/{name}') for name in ('first', 'second'))
    source = str(tmp_path / 'ledger.npz')
    durable.claim(source, ['a', 'b'], first)
    durable.claim(source, ['b'], first)  # It goes on after a restart.
    for keys in (['a'], ['b', 'c']):
      with pytest.raises(durable.StateError, match=f'runs/first counts from it already.*states unclaim {source}$'):
        durable.claim(source, keys, second)
    assert durable.heir_of('c') is None and durable.heir_of('a') == first
    durable.unclaim(['a', 'b'])
    durable.claim(source, ['a'], second)
    assert durable.heir_of('a') == second


def test_the_users_folder_is_the_default(monkeypatch, tmp_path):
  monkeypatch.delenv('XDG_STATE_HOME')
  monkeypatch.setenv('HOME', str(tmp_path))
  assert pathlib.Path(durable.counters_folder()) == tmp_path / '.local' / 'state' / 'quap_tff'


def test_counters_that_cannot_be_kept_are_named_with_the_remedy(tmp_path, monkeypatch):
  (tmp_path / 'home').touch()
  monkeypatch.setenv('XDG_STATE_HOME', str(tmp_path / 'home'))
  with pytest.raises(durable.StateError, match='home/quap_tff: Not a directory.* Set XDG_STATE_HOME to a folder'):
    durable.StateFile(str(tmp_path / 'state'))
