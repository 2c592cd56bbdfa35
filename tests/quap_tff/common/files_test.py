"""Tests of `quap_tff.common.files`."""

import hashlib
import io
import json
import os
import stat

import numpy as np
import pytest

from quap_tff.common import files


def test_a_file_has_its_old_content_until_the_block_ends(tmp_path):
  path = tmp_path / 'a.txt'
  files.write(str(path), 'old')
  with files.replacing(str(path)) as unfinished:
    with open(unfinished, 'w') as f:
      f.write('new')
    assert path.read_text() == 'old'
    assert os.path.dirname(unfinished) == str(tmp_path)
  assert path.read_text() == 'new'
  assert os.listdir(tmp_path) == ['a.txt']


@pytest.mark.parametrize('writes', [True, False])
def test_after_an_error_the_old_file_is_alone(tmp_path, writes):
  path = tmp_path / 'a.txt'
  files.write(str(path), b'old')
  with pytest.raises(KeyError):
    with files.replacing(str(path)) as unfinished:
      if writes:
        open(unfinished, 'w').close()
      raise KeyError
  assert path.read_text() == 'old'
  assert os.listdir(tmp_path) == ['a.txt']


def test_what_a_killed_process_left_is_replaced(tmp_path):
  (tmp_path / f'a.txt{files.UNFINISHED}').write_text('much of an earlier one')
  files.write(str(tmp_path / 'a.txt'), 'ü')
  assert (tmp_path / 'a.txt').read_bytes() == 'ü'.encode()
  assert os.listdir(tmp_path) == ['a.txt']


@pytest.mark.parametrize('write', [files.write, files.write_sealed])
def test_a_link_stays_and_its_file_is_written(write, tmp_path):
  (tmp_path / 'elsewhere').mkdir()
  for name, content in (('old', b'an earlier one'), ('new', None)):
    link, file = tmp_path / name, tmp_path / 'elsewhere' / name
    link.symlink_to(os.path.join('elsewhere', name))
    if content is not None:
      file.write_bytes(content)
    write(str(link), b'a')
    assert link.is_symlink() and not file.is_symlink() and file.read_bytes().startswith(b'a')
  assert sorted(os.listdir(tmp_path / 'elsewhere')) == ['new', 'old']


def test_a_link_to_a_folder_stays(tmp_path):
  (tmp_path / 'elsewhere').mkdir()
  (tmp_path / 'link').symlink_to('elsewhere')
  with files.new_folder(str(tmp_path / 'link')) as unfinished:
    files.write(os.path.join(unfinished, 'b'), 'c')
  assert (tmp_path / 'link').is_symlink() and os.listdir(tmp_path / 'elsewhere') == ['b']


def test_no_device_or_pipe_is_replaced(tmp_path):
  pipe, link = tmp_path / 'pipe', tmp_path / 'link'
  os.mkfifo(pipe)
  link.symlink_to('pipe')
  for path in (pipe, link):
    with pytest.raises(OSError, match='it is a device, a pipe or a socket; give the path of a file'):
      files.write(str(path), 'a')
  assert stat.S_ISFIFO(os.stat(pipe).st_mode) and sorted(os.listdir(tmp_path)) == ['link', 'pipe']
  with pytest.raises(OSError, match='it is a device'), files.replacing('/dev/null'):
    raise AssertionError('The block begins.')


def test_a_new_folder_is_whole_or_not_there(tmp_path):
  path = tmp_path / 'deep' / 'a'
  (tmp_path / 'deep' / f'a{files.UNFINISHED}').mkdir(parents=True)
  (tmp_path / 'deep' / f'a{files.UNFINISHED}' / 'old').write_text('of a killed process')
  with pytest.raises(KeyError):
    with files.new_folder(str(path)) as unfinished:
      files.write(os.path.join(unfinished, 'b'), 'c')
      raise KeyError
  assert not os.listdir(tmp_path / 'deep')
  with files.new_folder(str(path)) as unfinished:
    files.write(os.path.join(unfinished, 'b'), 'c')
  assert os.listdir(tmp_path / 'deep') == ['a'] and os.listdir(path) == ['b']


@pytest.mark.parametrize('keep_suffix, expected', [(True, 'plot.part.png'), (False, 'plot.png.part')])
def test_the_other_name(tmp_path, keep_suffix, expected):
  with pytest.raises(FileNotFoundError):  # Nothing was written.
    with files.replacing(str(tmp_path / 'plot.png'), keep_suffix) as unfinished:
      assert os.path.basename(unfinished) == expected


def test_every_other_bit_in_a_sealed_file_is_found(tmp_path):
  path = tmp_path / 'secret'
  files.write_sealed(str(path), b'ab')
  assert files.read_sealed(str(path)) == b'ab'
  sealed = path.read_bytes()
  flipped = [
    bytes(b ^ (1 << bit) * (i == place) for i, b in enumerate(sealed)) for place in range(34) for bit in (0, 7)
  ]
  for damaged in [*flipped, b'', sealed[:-1], sealed[:2], sealed[:32], sealed[1:], sealed + b'\n']:
    path.write_bytes(damaged)
    with pytest.raises(ValueError, match='^its digest is not that of its content$'):
      files.read_sealed(str(path))


def test_an_npz_file_holds_the_arrays_by_name():
  with np.load(io.BytesIO(files.npz({'a/b': np.arange(2), 'c': np.float32(3)}))) as found:
    assert found['a/b'].tolist() == [0, 1] and found['c'] == 3 and found['c'].dtype == np.float32


def test_an_npz_file_depends_on_its_arrays_alone():
  arrays = {
    'numbers': np.arange(6.0).reshape(2, 3).T,
    'none': np.zeros((0, 3), np.int32),
    'one': np.float16(3),
    'other_order': np.arange(3, dtype='>i8'),
    'texts': np.array(['é', 'ab']),
    'truths': np.array([True, False]),
  }
  content = files.npz(arrays)
  with np.load(io.BytesIO(content)) as found:
    again = dict(found)
  for name, array in arrays.items():
    assert again[name].dtype == array.dtype and again[name].shape == array.shape and (again[name] == array).all()
  assert files.npz(again) == content
  # The same on every machine.
  assert hashlib.sha256(content).hexdigest() == '07ce566f8f1b5b5a07342c36f7ad838ff8b8bc6479a86a4cd1400781f8d8ae2d'
  other = {**arrays, 'truths': np.frombuffer(b'A\0', bool)}
  assert other['truths'].tobytes() != arrays['truths'].tobytes() and files.npz(other) == content
  with pytest.raises(ValueError, match='texts must be an array of numbers or texts, found one of objects'):
    files.npz({'texts': np.array([{}])})


def test_what_is_sealed_is_its_owners_from_the_start(tmp_path, monkeypatch):
  path, before, moved = tmp_path / 'secret', os.umask(0), os.replace
  modes = []
  monkeypatch.setattr(os, 'replace', lambda *names: modes.append(os.stat(names[0]).st_mode) or moved(*names))
  try:
    path.write_bytes(b'earlier')
    (tmp_path / 'secret.part').write_bytes(b'left by a process that was killed')
    with open(tmp_path / 'secret.part', 'rb') as spy:
      files.write_sealed(str(path), b'ab')
      assert spy.read() == b'left by a process that was killed'
  finally:
    os.umask(before)
  assert stat.S_IMODE(path.stat().st_mode) == 0o600 and [stat.S_IMODE(mode) for mode in modes] == [0o600]


def test_json(tmp_path):
  path = tmp_path / 'a.json'
  files.write_json(str(path), {'ε': [1]})
  assert json.loads(path.read_text()) == {'ε': [1]}
  assert path.read_text().endswith('}\n') and 'ε' in path.read_text()
  with pytest.raises(ValueError):
    files.write_json(str(path), float('nan'))
  assert json.loads(path.read_text()) == {'ε': [1]}
