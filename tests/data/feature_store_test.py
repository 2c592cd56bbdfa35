"""Features on disk: what a killed process left unfinished is removed, and what another is writing is not."""

import fcntl

import numpy as np

from data import feature_store


class _Doubled:
  """A feature map: twice each pixel."""

  def fingerprint(self):
    return 'doubled'

  def extractor(self, shape):
    del shape
    return lambda x: 2 * x.reshape(len(x), -1)


def _compute(folder):
  parts = [np.arange(12, dtype=np.float32).reshape(3, 2, 2)]
  return feature_store.compute(_Doubled(), parts, str(folder))[0]


def test_what_a_killed_process_left_goes_and_what_is_being_written_stays(tmp_path):
  left, written, other = tmp_path / 'unfinished_left', tmp_path / 'unfinished_written', tmp_path / 'notes'
  for path in (left, written, other):
    path.write_bytes(b'half')
  with open(written, 'rb') as held:
    fcntl.flock(held, fcntl.LOCK_EX)
    np.testing.assert_array_equal(_compute(tmp_path)[:, 3], [6, 14, 22])
  assert not left.exists() and written.exists() and other.exists()
  assert len(list(tmp_path.glob('*.npy'))) == 1


def test_the_file_is_held_while_it_is_written_and_found_again(tmp_path, monkeypatch):
  free = []
  seal = feature_store._Sealing.seal

  def sealed(self):
    [path] = tmp_path.glob('unfinished_*')
    with open(path, 'rb') as f:
      try:
        fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        free.append(path)
      except OSError:
        pass
    seal(self)

  monkeypatch.setattr(feature_store._Sealing, 'seal', sealed)
  first = _compute(tmp_path)
  assert not free and not list(tmp_path.glob('unfinished_*'))
  monkeypatch.setattr(_Doubled, 'extractor', None)  # What is kept is not computed again.
  np.testing.assert_array_equal(_compute(tmp_path), first)
