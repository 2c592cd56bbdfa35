"""The style of all figures, and the plot of a run: drawn from whatever metrics.csv holds, without a warning."""

import warnings

import numpy as np
import pytest

from experiments.running import plots
from experiments.running import results
from quap_tff import accounting
from quap_tff.mechanisms.noise import correlation as correlations
from tests.experiments.reporting import ticks

NAMES = ('train_accuracy', 'epsilon', 'clipping_norm', 'norm_p10', 'norm_p90', 'noise_to_signal')


def _metrics(folder, rows, names=NAMES + ('test_accuracy',)):
  """The columns of a metrics.csv with these rows."""
  lines = [','.join(('round',) + names)]
  lines += [','.join([str(t)] + [str(row.get(name, '')) for name in names]) for t, row in enumerate(rows, 1)]
  (folder / 'metrics.csv').write_text('\n'.join(lines) + '\n')
  return plots.read_metrics(str(folder / 'metrics.csv'))


ROW = dict(zip(NAMES, (0.5, 0.03, 0.4, 0.1, 0.4, 12.0)), test_accuracy=0.6)
EMPTY = dict(ROW, train_accuracy='nan', norm_p10='nan', norm_p90='nan', noise_to_signal='nan')


class TestTicks:
  @pytest.mark.slow
  @pytest.mark.parametrize(
    'low, high', [(2.9999, 3.0001), (2.9999966, 2.999999995), (5_900_000.0, 5_900_010.0), (1e-7, 3e-7), (1e8, 9e8)]
  )
  def test_labels_are_the_numbers_themselves(self, low, high):
    figure = plots.drawn(lambda f: f.subplots().plot([low, high], [low, high]), (9, 4))
    ticks.check(figure.axes[0].xaxis, low, high)
    ticks.check(figure.axes[0].yaxis, low, high)

  def test_widened_axes_of_nearly_equal_values(self):
    def draw(figure):
      axes = figure.subplots()
      axes.plot([2.9999966, 2.999999995], [1, 9])
      plots.widen(axes.xaxis, 0.05)
      plots.widen(axes.yaxis, 0.05)

    axes = plots.drawn(draw, (6, 4)).axes[0]
    ticks.check(axes.xaxis, 2.86, 3.14)
    assert axes.get_ylim() == pytest.approx((0.6, 9.4))

  @pytest.mark.parametrize(
    'values, expected',
    [
      ([60, 900], ['100', '200', '500', '1000']),
      ([6000, 90_000], ['10k', '20k', '50k', '100k']),  # Large numbers are short.
      ([70, 105], ['70', '80', '90', '100']),  # Within a decade there are several numbers.
    ],
  )
  def test_logarithmic_axes_have_plain_numbers(self, values, expected):
    def draw(figure):
      axes = figure.subplots()
      axes.plot([1, 2], values)
      plots.plain_log(axes.yaxis)

    axis = plots.drawn(draw, (6, 4)).axes[0].yaxis
    low, high = axis.get_view_interval()
    shown = [label.get_text() for label in axis.get_ticklabels() if low <= label.get_position()[1] <= high]
    assert shown == expected

  @pytest.mark.slow
  @pytest.mark.parametrize('rounds', [1, 2, 3, 12, 200])
  def test_rounds_are_whole(self, rounds):
    def draw(figure):
      axes = figure.subplots()
      axes.plot(np.arange(1, rounds + 1), np.ones(rounds))
      plots.whole_rounds(axes)

    shown = ticks.numbers(plots.drawn(draw, (5, 4)).axes[0].xaxis)
    assert shown and all(number.is_integer() for number in shown) and len(set(shown)) == len(shown)


class TestReadMetrics:
  def test_columns_as_floats_and_blanks_as_nan(self, tmp_path):
    metrics = _metrics(tmp_path, [ROW, {**ROW, 'test_accuracy': ''}, EMPTY])
    assert metrics['round'].tolist() == [1, 2, 3]
    np.testing.assert_array_equal(metrics['test_accuracy'], [0.6, np.nan, 0.6])
    np.testing.assert_array_equal(metrics['noise_to_signal'], [12, 12, np.nan])

  def test_no_rows(self, tmp_path):
    assert _metrics(tmp_path, []) == {}


@pytest.mark.slow
@pytest.mark.usefixtures('drawn')
class TestPlotRun:
  @pytest.mark.parametrize(
    'rows',
    [
      [ROW] * 5,
      [EMPTY, ROW, EMPTY],
      pytest.param([dict(ROW, noise_to_signal=0.0)] * 3, marks=pytest.mark.thorough),
      pytest.param([dict(ROW, noise_to_signal='inf'), ROW, ROW], marks=pytest.mark.thorough),
      [dict(ROW, clipping_norm='inf', noise_to_signal=0.0)] * 3,
      pytest.param([dict(ROW, clipping_norm='inf', norm_p10='nan', norm_p90='nan')] * 3, marks=pytest.mark.thorough),
      pytest.param([dict(ROW, test_accuracy='')] * 3, marks=pytest.mark.thorough),
      None,
    ],
    ids=['plain', 'some empty', 'no noise', 'no signal', 'no clip', 'no norms', 'never tested', 'interrupted before'],
  )
  def test_draws(self, rows, tmp_path):
    path = tmp_path / 'plot.png'
    names = NAMES if rows is None else (*NAMES, 'test_accuracy')  # The first test adds its column.
    with warnings.catch_warnings():
      warnings.simplefilter('error')
      plots.plot_run(_metrics(tmp_path, rows or [ROW] * 2, names), str(path), 'a run')
    assert path.read_bytes()[:8] == b'\x89PNG\r\n\x1a\n'

  def test_its_title_its_whole_rounds_and_its_epsilons(self, tmp_path):
    rows = [dict(ROW, epsilon=3 + 1e-9 * t) for t in range(4)]
    metrics = _metrics(tmp_path, rows)
    figure = plots.drawn(*plots.run_figure(metrics, 'digits, quap'))
    assert figure.get_suptitle() == 'digits, quap'
    assert [axes.get_title('left') for axes in figure.axes] == ['Accuracy', 'Budget of the round', 'Norms', 'Noise']
    for axes in figure.axes:
      assert ticks.numbers(axes.xaxis) == [1, 2, 3, 4]
    ticks.check(figure.axes[1].yaxis, 3, 3 + 3e-9)

  @pytest.mark.parametrize(
    'row, panels',
    [
      (dict(ROW, epsilon='inf', clipping_norm='inf', noise_to_signal=0.0), ['Accuracy', 'Norms']),
      (dict(EMPTY, clipping_norm='inf', epsilon='nan'), ['Accuracy']),
    ],
  )
  def test_what_a_run_does_not_have_is_no_panel(self, tmp_path, row, panels):
    metrics = _metrics(tmp_path, [row] * 2)
    assert [axes.get_title('left') for axes in plots.drawn(*plots.run_figure(metrics, '')).axes] == panels

  @pytest.mark.parametrize(
    'rows, panels',
    [
      ([ROW], 0),
      ([EMPTY], 0),
      ([ROW, ROW], 4),
      ([ROW, dict(ROW, noise_to_signal='nan', test_accuracy='')], 3),
      ([dict(EMPTY, test_accuracy=''), dict(EMPTY, epsilon='nan')], 1),
    ],
  )
  def test_a_single_value_is_no_panel(self, tmp_path, rows, panels):
    assert len(plots.panels_of(_metrics(tmp_path, rows))) == panels

  def test_a_run_without_rounds_has_no_panel(self):
    assert not plots.panels_of({})

  @pytest.mark.parametrize(
    'norms, panels', [((0.5, 0.5), ['Accuracy', 'Spent so far']), ((0.5, 0.6), ['Accuracy', 'Spent so far', 'Norms'])]
  )
  def test_what_clients_have_spent_is_shown_in_place_of_a_constant_clipping_norm(self, norms, panels):
    accuracy = {'round': np.arange(1, 3), 'test_accuracy': np.array([0.5, 0.6]), 'clipping_norm': np.array(norms)}
    metrics = {**accuracy, plots.SPENT: np.array([1.0, 2.5])}
    figure = plots.drawn(*plots.run_figure(metrics, ''))
    assert [axes.get_title('left') for axes in figure.axes] == panels
    assert figure.axes[1].get_lines()[0].get_ydata().tolist() == [1.0, 2.5] and figure.axes[1].get_ylim()[0] == 0
    assert plots.panels_of(accuracy)[-1] is plots.panels_of({**accuracy, 'norm_p10': accuracy['round']})[-1]

  @pytest.mark.parametrize('correlation', [correlations.Independent(), correlations.Blt((0.4,), (0.5,))])
  def test_the_spent_epsilon_is_that_of_the_account_up_to_each_round(self, correlation):
    ledger, rounds = accounting.RunLedger(3, 1e-5, 'a run', correlation), 100
    for t in range(rounds):
      ledger.append(
        accounting.RoundRecord(np.array([0, 1 + t % 2]), np.ones(2), np.array([1.0, 0.5]), 9.0, np.inf, 1.0)
      )
    found = results.spent_by_round(ledger, 1e-5)
    known = np.flatnonzero(np.isfinite(found))
    assert 20 < len(known) <= 40 and np.all(np.diff(found[known]) > 0)
    assert (known[0], known[-1]) == (0, rounds - 1)
    for t in known[[0, 7, -1]]:
      assert found[t] == accounting.epsilon_by_client(ledger.truncated(t + 1), 1e-5)[0]

  def test_the_accuracy_axis_shows_the_data(self, tmp_path):
    rows = [dict(ROW, train_accuracy=0.93 + 0.02 * t, test_accuracy=0.94 + 0.02 * t) for t in range(3)]
    metrics = _metrics(tmp_path, rows)
    low, high = plots.drawn(*plots.run_figure(metrics, '')).axes[0].get_ylim()
    assert 92 < low < 93 and 98 < high < 100

  def test_legends_are_above_the_data(self, tmp_path):
    metrics = _metrics(tmp_path, [ROW] * 3)
    for axes in plots.drawn(*plots.run_figure(metrics, '')).axes:
      if axes.get_legend() is not None:
        box = axes.get_legend().get_window_extent()
        assert box.y0 >= axes.get_window_extent().y1
        assert not box.overlaps(axes._left_title.get_window_extent())
