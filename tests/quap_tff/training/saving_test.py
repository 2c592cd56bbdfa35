"""Keras files: equal models give equal bytes, and no time is in them."""

import datetime
import time
import zipfile

import numpy as np
import tensorflow as tf

from quap_tff.training import models
from quap_tff.training import saving


def _model(seed=1):
  return models.build_keras_model('digits_cnn', (8, 8, 1), 10, seed=seed)


def test_the_time_of_saving_does_not_count(tmp_path, monkeypatch):
  saving.save_model(_model(), str(tmp_path / 'one.keras'))
  monkeypatch.setattr(time, 'time', lambda: 2e9)

  class Later(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
      return cls(2033, 5, 18)

  monkeypatch.setattr(datetime, 'datetime', Later)
  saving.save_model(_model(), str(tmp_path / 'two.keras'))
  assert (tmp_path / 'one.keras').read_bytes() == (tmp_path / 'two.keras').read_bytes()


def test_archive_holds_no_date(tmp_path):
  saving.save_model(_model(), str(tmp_path / 'model.keras'))
  with zipfile.ZipFile(tmp_path / 'model.keras') as archive:
    assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    assert b'date' not in archive.read('metadata.json')


def test_keras_loads_the_file(tmp_path):
  model = _model()
  saving.save_model(model, str(tmp_path / 'model.keras'))
  x = np.random.default_rng(0).random((3, 8, 8, 1), np.float32)
  loaded = tf.keras.models.load_model(tmp_path / 'model.keras', compile=False)
  np.testing.assert_array_equal(loaded(x), model(x))


def test_other_weights_give_other_bytes(tmp_path):
  for seed in (1, 2):
    saving.save_model(_model(seed), str(tmp_path / f'{seed}.keras'))
  assert (tmp_path / '1.keras').read_bytes() != (tmp_path / '2.keras').read_bytes()
