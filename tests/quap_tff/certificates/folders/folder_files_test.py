"""A folder that somebody else has made is looked at before anything in it is opened."""

import json
import os
import zipfile
import zlib

import pytest

from quap_tff.certificates.folders import folder_files


class TestEntries:
  def test_lists_files_empty_folders_and_everything_else(self, tmp_path):
    (tmp_path / 'deep' / 'er').mkdir(parents=True)
    (tmp_path / 'deep' / 'file').write_text('x')
    (tmp_path / 'empty').mkdir()
    os.mkfifo(tmp_path / 'deep' / 'pipe')
    (tmp_path / 'link').symlink_to('deep/file')
    (tmp_path / 'folder_link').symlink_to('deep')
    (tmp_path / 'dangling').symlink_to('nothing')
    found = folder_files.entries(str(tmp_path))
    assert found.files == ['deep/file'] and found.empty == ['deep/er', 'empty']
    assert found.special == {'deep/pipe': 'pipe', 'link': 'link', 'folder_link': 'link', 'dangling': 'link'}

  def test_a_name_may_be_any_bytes(self, tmp_path):
    with open(os.path.join(os.fsencode(tmp_path), b'\xff'), 'w'):
      pass
    assert folder_files.entries(str(tmp_path)).files == ['\udcff']

  @pytest.mark.slow
  def test_folders_may_lie_as_deep_as_they_like(self, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(1500):
      os.mkdir('d')
      os.chdir('d')
    found = folder_files.entries(str(tmp_path))
    assert [name.count('/') for name in found.empty] == [1499] and not found.files
    os.chdir(tmp_path)
    # pytest removes a folder by recursion.
    while os.path.exists('d/d'):
      os.rename('d/d', 'next')
      os.rmdir('d')
      os.rename('next', 'd')

  @pytest.mark.parametrize('name', ['one', 'folder'])
  def test_another_programs_file_vanishes_meanwhile(self, name, tmp_path, monkeypatch):
    (tmp_path / 'kept').write_text('x')
    (tmp_path / 'folder').mkdir()
    listed = os.listdir

    def list_then_remove(path):
      if os.path.basename(path) == 'folder' and name == 'folder':
        raise FileNotFoundError(2, 'No such file or directory', path)
      return [*listed(path), 'one']

    monkeypatch.setattr(os, 'listdir', list_then_remove)
    found = folder_files.entries(str(tmp_path))
    assert found.files == ['kept']

  def test_a_folder_that_vanishes_or_may_not_be_read(self, tmp_path, monkeypatch):
    for error in (FileNotFoundError(2, 'gone'), PermissionError(13, 'Permission denied'), OSError(5, 'Input error')):
      monkeypatch.setattr(os, 'listdir', lambda _, error=error: (_ for _ in ()).throw(error))
      with pytest.raises(folder_files.CannotTellError, match='cannot be read'):
        folder_files.entries(str(tmp_path))

  def test_what_is_no_folder(self, tmp_path):
    (tmp_path / 'file').write_text('x')
    with pytest.raises(folder_files.CannotTellError, match='file is not a folder'):
      folder_files.entries(str(tmp_path / 'file'))
    with pytest.raises(folder_files.CannotTellError, match='nowhere does not exist'):
      folder_files.entries(str(tmp_path / 'nowhere'))


@pytest.mark.parametrize(
  'read', [folder_files.read_json, folder_files.read_text, folder_files.digest, folder_files.check_archive]
)
class TestOpening:
  def test_a_pipe_is_not_waited_for(self, read, tmp_path):
    os.mkfifo(tmp_path / 'it')
    with pytest.raises(folder_files.FolderError, match='it is not a regular file'):
      read(str(tmp_path), 'it')

  def test_a_link_is_not_followed(self, read, tmp_path):
    (tmp_path / 'other').write_text('{}')
    (tmp_path / 'it').symlink_to('other')
    with pytest.raises(folder_files.FolderError, match='it is not a regular file'):
      read(str(tmp_path), 'it')

  def test_a_file_that_is_missing(self, read, tmp_path):
    with pytest.raises(folder_files.FolderError, match='it is missing in'):
      read(str(tmp_path), 'it')

  def test_a_file_in_a_folder_that_is_a_file(self, read, tmp_path):
    (tmp_path / 'it').write_text('x')
    with pytest.raises(folder_files.FolderError, match='it/more is missing in'):
      read(str(tmp_path), 'it/more')

  def test_a_file_that_may_not_be_read_is_not_damaged(self, read, tmp_path, monkeypatch):
    (tmp_path / 'it').write_bytes(b'PK')

    def refuse(*_, **__):
      raise PermissionError(13, 'Permission denied')

    monkeypatch.setattr('builtins.open', refuse)
    with pytest.raises(folder_files.CannotTellError, match='it may not be read here: Permission denied'):
      read(str(tmp_path), 'it')
    monkeypatch.setattr(os, 'lstat', refuse)
    with pytest.raises(folder_files.CannotTellError, match='it cannot be read'):
      read(str(tmp_path), 'it')

  def test_a_file_that_is_too_large(self, read, tmp_path):
    with open(tmp_path / 'it', 'wb') as f:
      f.truncate(3 << 30)  # Sparse: it takes no room.
    with pytest.raises(folder_files.FolderError, match='has 3,221,225,472 bytes. At most .* are read'):
      read(str(tmp_path), 'it')


class TestArchive:
  def test_one_that_unpacks_to_more_than_memory_holds(self, tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / 'it', 'w', zipfile.ZIP_DEFLATED) as archive:
      archive.writestr('zeros', bytes(1000))
    assert folder_files.check_archive(str(tmp_path), 'it') == str(tmp_path / 'it')
    monkeypatch.setattr(folder_files, '_MOST_UNPACKED', 999)
    with pytest.raises(folder_files.FolderError, match='unpacks to 1,000 bytes'):
      folder_files.check_archive(str(tmp_path), 'it')

  @pytest.mark.parametrize('content', [b'', b'PK?', b'PK\x05\x06' + bytes(18), b'PK\x03\x04' * 9])
  def test_one_that_is_damaged(self, content, tmp_path):
    (tmp_path / 'it').write_bytes(content)
    with pytest.raises(folder_files.FolderError, match='it cannot be read'):
      folder_files.check_archive(str(tmp_path), 'it')

  @pytest.mark.parametrize('place', ['before', 'after', 'comment'])
  def test_one_with_a_text_that_no_reader_sees(self, place, tmp_path):
    with zipfile.ZipFile(tmp_path / 'it', 'w') as archive:
      archive.writestr('name', 'x')
      archive.comment = b'hidden' if place == 'comment' else b''
    content = (tmp_path / 'it').read_bytes()
    (tmp_path / 'it').write_bytes(b'hidden' * (place == 'before') + content + b'hidden' * (place == 'after'))
    assert zipfile.ZipFile(tmp_path / 'it').namelist() == ['name']
    with pytest.raises(folder_files.FolderError, match='it holds more than an archive'):
      folder_files.check_archive(str(tmp_path), 'it')


class TestJson:
  def test_reads_numbers_that_are_finite(self, tmp_path):
    value = {'a': [1.5, 2**63 - 1, 'ε', None, True]}
    (tmp_path / 'it').write_text(json.dumps(value))
    assert folder_files.read_json(str(tmp_path), 'it') == value

  @pytest.mark.parametrize(
    'text, words',
    [
      ('NaN', 'not a finite number'),
      ('1e999', 'not a finite number'),
      ('9' * 5000, 'too many digits'),
      ('{"a": 1, "a": 2}', 'a key appears twice'),
      ('[' * 99999, 'is damaged'),
      ('', 'is damaged'),
    ],
  )
  def test_everything_else_is_damage(self, text, words, tmp_path):
    (tmp_path / 'it').write_text(text)
    with pytest.raises(folder_files.FolderError, match=words):
      folder_files.read_json(str(tmp_path), 'it')


@pytest.mark.parametrize(
  'error', [KeyError('x'), zlib.error('x'), RecursionError('x'), MemoryError(), RuntimeError('x')]
)
def test_whatever_a_reader_raises_is_damage(error):
  with pytest.raises(folder_files.FolderError, match='it is damaged: .+'), folder_files.damage('it'):
    raise error


@pytest.mark.parametrize('error', [folder_files.CannotTellError('x'), ImportError('x'), KeyboardInterrupt()])
def test_but_not_what_lies_outside_of_the_file(error):
  with pytest.raises(type(error)), folder_files.damage('it'):
    raise error
