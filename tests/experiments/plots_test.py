"""The plot of a run: drawn from whatever metrics.csv holds, without a warning."""

import warnings

import numpy as np
import pytest

from experiments import plots

NAMES = ('train_accuracy', 'epsilon', 'clipping_norm', 'norm_p10', 'norm_p90', 'noise_to_signal')


def _write(path, rows, names=NAMES + ('test_accuracy',)):
  lines = [','.join(('round',) + names)]
  lines += [','.join([str(t)] + [str(row.get(name, '')) for name in names]) for t, row in enumerate(rows, 1)]
  path.write_text('\n'.join(lines) + '\n')
  return str(path)


ROW = dict(zip(NAMES, (0.5, 0.03, 0.4, 0.1, 0.4, 12.0)), test_accuracy=0.6)
EMPTY = dict(ROW, train_accuracy='nan', norm_p10='nan', norm_p90='nan', noise_to_signal='nan')


class TestReadMetrics:

  def test_columns_as_floats_and_blanks_as_nan(self, tmp_path):
    path = _write(tmp_path / 'm.csv', [ROW, {**ROW, 'test_accuracy': ''}, EMPTY])
    metrics = plots.read_metrics(path)
    assert metrics['round'].tolist() == [1, 2, 3]
    np.testing.assert_array_equal(metrics['test_accuracy'], [0.6, np.nan, 0.6])
    np.testing.assert_array_equal(metrics['noise_to_signal'], [12, 12, np.nan])

  def test_no_rows(self, tmp_path):
    assert plots.read_metrics(_write(tmp_path / 'm.csv', [])) == {}


class TestPlotRun:

  @pytest.mark.parametrize('rows', [
      [ROW] * 5,
      [ROW],
      [EMPTY, ROW, EMPTY],
      [EMPTY],
      [dict(ROW, noise_to_signal=0.0)] * 3,
      [dict(ROW, noise_to_signal='inf'), ROW],
      [dict(ROW, clipping_norm='inf', noise_to_signal=0.0)] * 3,
      [dict(ROW, test_accuracy='')] * 3,
  ], ids=['plain', 'one', 'some empty', 'all empty', 'no noise', 'no signal', 'no clip', 'never tested'])
  def test_draws(self, rows, tmp_path):
    path = tmp_path / 'plot.png'
    with warnings.catch_warnings():
      warnings.simplefilter('error')
      plots.plot_run(_write(tmp_path / 'm.csv', rows), str(path), 'a run')
    assert path.read_bytes()[:8] == b'\x89PNG\r\n\x1a\n'

  def test_cut_off_before_the_first_test(self, tmp_path):
    path = tmp_path / 'plot.png'
    plots.plot_run(_write(tmp_path / 'm.csv', [ROW] * 2, NAMES), str(path), 'a run')
    assert path.stat().st_size > 1000
