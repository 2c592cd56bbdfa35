"""Features on disk: computed once, again if the file is damaged, and safe with several processes and killed ones."""

import fcntl
import os
import threading

import numpy as np
import pytest

from data.features import store
from tests import processes


@pytest.fixture(name='folder')
def fixture_folder(tmp_path, monkeypatch):
  """The folder of kept features, which is there."""
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
  folder = tmp_path / 'quap_tff' / 'features'
  folder.mkdir(parents=True)
  return folder


def images(n, seed=0):
  return np.random.default_rng(seed).random((n, 8, 8, 1), np.float32)


class CountingFeatures:
  """The sum of an example and its first entry; counts the examples that it is asked for."""

  def __init__(self, version=''):
    self.version, self.batches = version, 0

  def fingerprint(self):
    return f'counting {self.version}'

  def extractor(self, input_shape):
    def extract(x):
      self.batches += 1
      x = x.reshape(len(x), -1)
      return np.stack([x.sum(axis=1), x[:, 0]], axis=1)

    return extract


def compute(chosen, parts, progress=lambda done, total: None):
  return store.compute(chosen, parts, progress)


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path, monkeypatch):
  (tmp_path / 'quap_tff').write_text('')
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
  assert store.kept('f', lambda: dict(a=np.zeros(2)))['a'].shape == (2,)
  (z,) = compute(CountingFeatures(), [images(5)])
  assert z.shape == (5, 2)


class TestKept:
  def test_made_once_and_again_if_the_file_is_damaged(self, folder):
    made = []

    def make():
      made.append(1)
      return dict(a=np.arange(3), b=np.ones((2, 2), np.float32))

    get = lambda fingerprint='f': store.kept(fingerprint, make)
    for arrays in (get(), get()):
      np.testing.assert_array_equal(arrays['a'], [0, 1, 2])
      assert set(arrays) == {'a', 'b'} and arrays['b'].dtype == np.float32
    assert len(made) == 1
    path = folder / os.listdir(folder)[0]
    whole = path.read_bytes()
    for damaged in (b'', whole[:-1], whole[:100] + bytes([whole[100] ^ 1]) + whole[101:]):
      path.write_bytes(damaged)
      np.testing.assert_array_equal(get()['a'], [0, 1, 2])
      assert path.read_bytes() == whole
    assert len(made) == 4
    get('g')
    assert len(made) == 5 and len(os.listdir(folder)) == 2

  def test_another_that_begins_meanwhile_waits_for_the_file(self, folder, monkeypatch):
    made, waits, lock = [], threading.Event(), fcntl.flock

    def asked(file, operation):
      if len(made) == 1 and operation == fcntl.LOCK_EX:
        waits.set()
      lock(file, operation)

    def make():
      made.append(1)
      if len(made) == 1:
        monkeypatch.setattr(store.fcntl, 'flock', asked)
        other.start()
        assert waits.wait(processes.DEADLINE_SECONDS)
      return dict(a=np.zeros(2))

    other = threading.Thread(target=lambda: store.kept('f', make))
    store.kept('f', make)
    other.join()
    assert len(made) == 1 and len(os.listdir(folder)) == 1


@pytest.mark.usefixtures('folder')
class TestStore:
  def test_rows_come_back_to_their_examples_duplicates_included(self):
    parts = [images(70), images(3, seed=1), images(70)[60:61]]
    for _ in range(2):  # Computed, and read.
      for part, z in zip(parts, compute(CountingFeatures(), parts)):
        flat = part.reshape(len(part), -1)
        np.testing.assert_allclose(z, np.stack([flat.sum(axis=1), flat[:, 0]], axis=1), rtol=1e-6)

  def test_computed_once_however_the_examples_are_shared_out(self, folder):
    x = images(70)
    first, second = CountingFeatures(), CountingFeatures()
    compute(first, [x[:20], x[20:]])
    a, b = compute(second, [x[50:], x[:50]])
    assert (first.batches, second.batches) == (2, 0)
    np.testing.assert_allclose(np.concatenate([b, a])[:, 1], x[:, 0, 0, 0], rtol=1e-6)
    assert len(os.listdir(folder)) == 1

  @pytest.mark.parametrize('change', ['example', 'fingerprint', 'one fewer'])
  def test_other_examples_or_another_map_are_computed(self, change):
    x = images(5)
    compute(CountingFeatures(), [x])
    chosen = CountingFeatures('2' if change == 'fingerprint' else '')
    other = x[:4] if change == 'one fewer' else x.copy()
    if change == 'example':
      other[2, 0, 0, 0] += 1e-3
    compute(chosen, [other])
    assert chosen.batches == 1

  @pytest.mark.parametrize(
    'damage',
    [
      lambda content: b'',
      lambda content: content[:-1],
      lambda content: content[:40],
      lambda content: content[:150] + bytes([content[150] ^ 1]) + content[151:],
    ],
  )
  def test_a_damaged_file_is_computed_again_and_replaced(self, folder, damage):
    x = images(5)
    compute(CountingFeatures(), [x])
    path = folder / os.listdir(folder)[0]
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    again = CountingFeatures()
    compute(again, [x])
    assert again.batches == 1 and path.read_bytes() == whole

  def test_a_failure_leaves_no_file(self, folder, monkeypatch):
    def full(*args, **kwargs):
      raise KeyboardInterrupt

    monkeypatch.setattr(np.lib.format, 'write_array', full)
    with pytest.raises(KeyboardInterrupt):
      compute(CountingFeatures(), [images(5)])
    assert not os.listdir(folder)

  def test_progress_counts_distinct_examples(self):
    seen = []
    x = images(120)
    compute(CountingFeatures(), [x, x[:10]], lambda done, total: seen.append((done, total)))
    assert seen == [(50, 120), (100, 120), (120, 120)]

  def test_an_error_in_a_later_batch_is_raised(self):
    class Failing(CountingFeatures):
      def extractor(self, input_shape):
        def extract(x):
          if not x[-1].any():  # The last batch, which is padded.
            raise RuntimeError('broken')
          return x.reshape(len(x), -1)

        return extract

    with pytest.raises(RuntimeError, match='broken'):
      compute(Failing(), [images(70)])

  def test_what_a_killed_process_left_goes_and_what_is_being_written_stays(self, folder):
    left, written, other = folder / 'unfinished_left', folder / 'unfinished_written', folder / 'notes'
    for path in (left, written, other):
      path.write_bytes(b'half')
    with open(written, 'rb') as held:
      fcntl.flock(held, fcntl.LOCK_EX)
      compute(CountingFeatures(), [images(5)])
    assert not left.exists() and written.exists() and other.exists()
    assert len(list(folder.glob('*.npy'))) == 1

  def test_the_file_is_held_while_it_is_written(self, folder, monkeypatch):
    held, digest = [], store._digest

    def sealed(f, size):
      for path in folder.glob('unfinished_*'):
        with open(path, 'rb') as other, pytest.raises(OSError):
          fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        held.append(path)
      return digest(f, size)

    monkeypatch.setattr(store, '_digest', sealed)
    compute(CountingFeatures(), [images(5)])
    assert len(held) == 1 and not list(folder.glob('unfinished_*'))
