"""One look for each method in every figure; lines, names and ticks that say what is so."""

import itertools

from matplotlib import colors
import numpy as np
import pytest

from experiments import methods
from experiments import plots
from experiments.reporting import figures
from experiments.reporting import pages
from tests.experiments.reporting import ticks


def _series(algorithm, x=(1, 3), mean=90.0, **changes):
  y = [pages.Quantity(mean + i, 0.5) for i in range(len(x))]
  return figures.Series(algorithm, figures.of(algorithm).label, x, y, y[-1])._replace(**changes)


class TestLooks:
  def test_every_method_has_one(self):
    assert set(figures.LOOKS) == set(methods.METHODS)

  @pytest.mark.parametrize('field', ['marker', 'colour', 'label'])
  def test_no_two_methods_share_it(self, field):
    assert len({getattr(look, field) for look in figures.LOOKS.values()}) == len(figures.LOOKS)

  def test_lines_of_one_dash_differ_in_grey(self):
    luminance = lambda look: sum(w * v for w, v in zip((0.2126, 0.7152, 0.0722), colors.to_rgb(look.colour)))
    for a, b in itertools.combinations(figures.LOOKS.values(), 2):
      assert a.dash != b.dash or abs(luminance(a) - luminance(b)) > 0.1, f'{a.label}, {b.label}'

  def test_the_ablation_has_all_eight(self):
    assert len(figures.BY_PARTS) == 8
    assert figures.BY_PARTS[True, True, True] == 'quap'
    assert figures.BY_PARTS[False, False, False] == 'fixed_dp'

  def test_parts_are_those_of_the_methods(self):
    for parts, name in figures.BY_PARTS.items():
      method = methods.METHODS[name]
      has_fixed_clip = any(field == 'clip' for field in method.__dataclass_fields__)
      assert parts == (method.adaptive_budget, not has_fixed_clip, method.layerwise)

  def test_an_unknown_method_is_drawn_under_its_name(self):
    assert figures.of('brand_new:a=1').label == 'brand_new'

  def test_labels_name_only_what_differs(self):
    specs = ['certified:clip=0.5', 'certified:clip=0.5,weights=uniform', 'quap', 'fixed_dp:clip=0.5']
    assert figures.labels(specs) == [
      'Certified QuAP-FL (weights=participation)',
      'Certified QuAP-FL (weights=uniform)',
      'QuAP-FL',
      'Fixed-DP',
    ]

  def test_a_method_has_its_colour_in_every_kind_of_figure(self):
    shown = [_series(name, y=np.full((2, 2), 90.0 + i)) for i, name in enumerate(('quap', 'fixed_dp'))]
    points = [_series('quap'), _series('fixed_dp')]
    for draw in (
      lambda figure: figures.by_round(figure, shown, 'accuracy', 'final'),
      lambda figure: figures.rows(figure.subplots(), points, 'final'),
      lambda figure: figures.lines(figure.subplots(), points, 'ε', 'accuracy'),
    ):
      for axes in plots.drawn(draw, (8, 4)).axes:
        found = {line.get_color() for line in axes.get_lines()}
        assert found == {figures.LOOKS['quap'].colour, figures.LOOKS['fixed_dp'].colour}

  def test_settings_of_one_method_differ_in_the_fill(self):
    shown = [_series('quap'), _series('certified', label='a'), _series('certified', label='b')]
    assert [style['fillstyle'] for _, style in figures.styled(shown)] == ['full', 'full', 'none']
    assert [style['fillstyle'] for _, style in figures.styled(shown[::-1])] == ['none', 'full', 'full']
    same = [_series('quap', label=label, variant='quap') for label in 'ab']
    assert [style['fillstyle'] for _, style in figures.styled(same)] == ['full', 'full']


class TestDrawing:
  def _twelve(self):
    rng = np.random.default_rng(0)
    return [
      figures.Series(
        name, figures.of(name).label, np.arange(1, 61), rng.uniform(8, 12, (3, 60)), pages.Quantity(10 + 0.1 * i, 0.5)
      )
      for i, name in enumerate(list(figures.LOOKS)[:12])
    ]

  def test_of_twelve_methods_each_has_a_row_and_no_two_overlap(self):
    figure = plots.drawn(lambda f: figures.by_round(f, self._twelve(), 'accuracy', 'final'), (9, 4.8))
    curves, panel = figure.axes
    boxes = [label.get_window_extent() for label in panel.get_yticklabels()]
    assert len(boxes) == 12
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
    assert all(figure.bbox.x1 >= box.x1 and box.x0 > curves.get_window_extent().x1 for box in boxes)

  def test_the_best_is_on_top(self):
    figure = plots.drawn(lambda f: figures.by_round(f, self._twelve(), 'accuracy', 'final'), (9, 4.8))
    labels = [label.get_text() for label in figure.axes[1].get_yticklabels()]
    assert labels[0].startswith('11.10 ± 0.50 ') and labels[-1].startswith('10.00 ± 0.50 ')
    bottom, top = figure.axes[1].get_ylim()
    assert bottom > top

  def test_curves_have_whole_rounds(self):
    series = [_series('quap', np.arange(1, 4), y=np.array([[10.0, 20, 30]]))]
    figure = plots.drawn(lambda f: figures.by_round(f, series, 'accuracy', 'final'), (6, 4))
    assert ticks.numbers(figure.axes[0].xaxis) == [1, 2, 3]

  def test_nearly_equal_epsilons_are_drawn_at_their_value(self):
    series = [_series('certified', (2.9999,), 92.0), _series('tff_dp_fedavg', (3.0001,), 87.0)]
    figure = plots.drawn(lambda f: figures.lines(f.subplots(), series, 'ε', 'accuracy'), (8, 4))
    ticks.check(figure.axes[0].xaxis, 2.9999, 3.0001)
    ticks.check(figure.axes[0].yaxis, 86.5, 92.5)

  def test_an_accuracy_axis_shows_the_data_and_no_more_than_100(self):
    series = [_series('quap', mean=97.0), _series('fixed_dp', mean=99.5, y=[pages.Quantity(99.5), pages.Quantity(100)])]
    axes = plots.drawn(lambda f: figures.lines(f.subplots(), series, 'ε', 'accuracy'), (8, 4)).axes[0]
    low, high = axes.get_ylim()
    assert 95 < low < 96.5 and 100 < high <= 101.5

  def test_the_legend_is_beside_the_axes(self):
    series = [_series('quap'), _series('fixed_dp', label='Fixed-DP, ' + 'a=1, ' * 20)]
    figure = plots.drawn(lambda f: figures.lines(f.subplots(), series, 'ε', 'accuracy'), (9, 4))
    (axes,) = figure.axes
    box = axes.get_legend().get_window_extent()
    assert box.x0 >= axes.get_window_extent().x1 and box.x1 <= figure.bbox.x1
