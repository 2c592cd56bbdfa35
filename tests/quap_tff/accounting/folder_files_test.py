"""A folder that somebody else has made is looked at before anything in it is opened."""

import json
import os
import zipfile

import pytest

from quap_tff.accounting import folder_files


class TestEntries:
  def test_lists_files_empty_folders_and_everything_else(self, tmp_path):
    (tmp_path / 'deep' / 'er').mkdir(parents=True)
    (tmp_path / 'deep' / 'file').write_text('x')
    (tmp_path / 'skipped').mkdir()
    (tmp_path / 'skipped' / 'file').write_text('x')
    (tmp_path / 'empty').mkdir()
    os.mkfifo(tmp_path / 'deep' / 'pipe')
    (tmp_path / 'link').symlink_to('deep/file')
    (tmp_path / 'folder_link').symlink_to('deep')
    (tmp_path / 'dangling').symlink_to('nothing')
    found = folder_files.entries(str(tmp_path), without='skipped')
    assert found.files == ['deep/file'] and found.empty == ['deep/er', 'empty']
    assert found.special == {'deep/pipe': 'pipe', 'link': 'link', 'folder_link': 'link', 'dangling': 'link'}

  def test_what_is_no_folder(self, tmp_path):
    (tmp_path / 'file').write_text('x')
    with pytest.raises(folder_files.CannotTellError, match='file is not a folder'):
      folder_files.entries(str(tmp_path / 'file'))
    with pytest.raises(folder_files.CannotTellError, match='nowhere does not exist'):
      folder_files.entries(str(tmp_path / 'nowhere'))


@pytest.mark.parametrize(
  'read', [folder_files.read_json, folder_files.read_rows, folder_files.digest, folder_files.check_archive]
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

  def test_one_that_is_damaged(self, tmp_path):
    (tmp_path / 'it').write_bytes(b'PK?')
    with pytest.raises(folder_files.FolderError, match='it cannot be read'):
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
