"""Folders of a program that puts files of its own there."""

import pytest

from quap_tff import certificates
from quap_tff.certificates.folders import folder as folders
from quap_tff.certificates.folders import folder_files
from quap_tff.certificates.folders import programs
from tests.quap_tff.certificates import made


class _Noted(programs.Program):
  """Puts notes there, which are short, and keeps a diary."""

  empty_folders = frozenset({'later'})
  unchecked = ('the truth of notes.txt',)

  def owns(self, name, about):
    return name == 'notes.txt' or self.keeps(name)

  def keeps(self, name):
    return name == 'diary.txt'

  def check(self, path, plan, ledger):
    if len(folder_files.read_text(path, 'notes.txt')) > 10 * ledger.num_rounds:
      raise folder_files.FolderError('notes.txt is too long.')

  def warnings(self, path, is_checked):
    return ['It may be untrue.']


@pytest.fixture(name='noted')
def _noted(tmp_path, monkeypatch):
  """A folder of such a program, which is registered."""
  monkeypatch.setitem(folders.PROGRAMS, 'noted', _Noted())
  path = made.folder(tmp_path / 'run')
  made.change(path, folders.MECHANISM, lambda value: value.update(made_by='noted'))
  made.put(path, 'notes.txt')
  made.put(path, 'diary.txt')
  (path / 'later').mkdir()
  certificates.issue(str(path))
  return path


@pytest.mark.slow
def test_is_valid_where_it_is_registered(noted):
  verdict = certificates.verify(str(noted))
  assert not verdict.problems and verdict.warnings == ['It may be untrue.']
  assert verdict.unchecked == ['the truth of notes.txt']
  digests = made.read(noted, folders.CERTIFICATE)['provenance']['files_sha256']
  assert 'notes.txt' in digests and 'diary.txt' not in digests


def test_is_refused_where_it_is_not(noted, monkeypatch):
  monkeypatch.delitem(folders.PROGRAMS, 'noted')
  [problem] = certificates.verify(str(noted)).problems
  assert "made_by must be 'quap_tff' or 'experiments.train', found 'noted'" in problem


@pytest.mark.slow
@pytest.mark.parametrize(
  'name, content, words',
  [
    ('notes.txt', b'x' * 41, 'notes.txt is too long.'),
    ('others.txt', b'x', 'others.txt does not belong there'),
    ('later/x', b'x', 'later/x does not belong there'),
  ],
)
def test_what_it_does_not_put_there_is_refused(name, content, words, noted):
  made.put(noted, name, content)
  made.reseal(noted)
  assert words in certificates.verify(str(noted)).problems[0]


def test_library_code_puts_nothing_else_there(tmp_path):
  path = made.folder(tmp_path / 'run')
  for name in ('notes.txt', '.lock', 'run.json', 'plot.png'):
    made.put(path, name)
    assert [one for one in certificates.verify(str(path)).problems if f'{name} does not belong there' in one]
    (path / name).unlink()
