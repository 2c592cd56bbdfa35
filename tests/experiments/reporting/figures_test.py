"""One look for each method in all figures of a report; lines, names and ticks that say what is so."""

import itertools

import numpy as np
import pytest

from experiments.reporting import figures
from experiments.reporting import quantity
from experiments.running import plots
from tests.experiments.reporting import ticks


def _point(place, label='', at=1.0, mean=90.0, half=0.5, panel=''):
  return figures.Point(place, label or f'method {place}', quantity.Quantity(mean, half), panel, at)


def _many(count):
  rng = np.random.default_rng(0)
  y = rng.uniform(8, 12, (count, 3, 60))
  totals = [quantity.Quantity(10 + 0.1 * i, 0.5) for i in range(count)]
  return [figures.Series(i, f'method {i}', np.arange(1, 61), y[i], totals[i]) for i in range(count)]


class TestLooks:
  def test_as_many_labels_as_a_figure_may_have_differ_in_colour_and_in_marker(self):
    found = figures.looks([_point(place) for place in (0, 8, 16, 3, 4, 5, 6, 7)])
    for field in ('color', 'marker'):
      assert len({look[field] for look in found.values()}) == figures.MOST_LABELS == 8

  def test_neighbours_differ_in_dash(self):
    found = list(figures.looks([_point(place) for place in range(8)]).values())
    assert all(a['linestyle'] != b['linestyle'] for a, b in zip(found, found[1:]))

  def test_a_place_has_its_look_whatever_else_is_shown(self):
    alone = figures.looks([_point(5)])['method 5']
    assert figures.looks([_point(place) for place in (8, 5, 2)])['method 5'] == alone

  def test_settings_of_one_method_have_colours_of_their_own(self):
    shown = [_point(0), _point(1, 'a'), _point(1, 'b'), _point(1, 'c')]
    found = figures.looks(shown)
    assert len({look['color'] for look in found.values()}) == len({look['marker'] for look in found.values()}) == 4
    assert found == figures.looks(shown[::-1])
    assert found['method 0'] == figures.looks([_point(0)])['method 0']


@pytest.mark.slow
def test_a_method_has_its_colour_in_every_kind_of_figure():
  shown, points = _many(2), [_point(0), _point(1)]
  in_two = [point._replace(panel=panel) for panel in 'ab' for point in points]
  for drawing in (
    figures.curves(shown, 'accuracy'),
    figures.rows(in_two, 'final'),
    figures.lines(points, 'ε', 'accuracy'),
  ):
    for axes in plots.drawn(*drawing[:2]).axes:
      found = {line.get_color() for line in axes.get_lines()}
      assert found == {look['color'] for look in figures.looks(points).values()}


@pytest.mark.slow
class TestPanels:
  """Each of the places has a panel, and each panel the same rows, the best on top."""

  @pytest.fixture(scope='class')
  def figure(self):
    means = {'uniform': (80, 90, 70), 'beta': (60, 90, None), 'markov': (20, 30, 10), 'hybrid': (50, None, None)}
    shown = []
    for place, own in means.items():
      for i, mean in enumerate(own):
        if mean:
          shown.append(_point(i, f'method {"abc"[i]}', mean=mean, half=1.0, panel=place))
    return plots.drawn(*figures.rows(shown, 'accuracy')[:2])

  def test_titles_and_rows(self, figure):
    shown = [axes for axes in figure.axes if axes.axison]
    assert [axes.get_title('left') for axes in shown] == ['uniform', 'markov', 'beta', 'hybrid']
    names = [label.get_text() for label in shown[0].get_yticklabels()]
    assert names == ['method b', 'method a', 'method c']
    bottom, top = shown[0].get_ylim()
    assert bottom > top

  def test_marks_numbers_and_the_common_axis(self, figure):
    uniform, _, beta, *_ = figure.axes
    assert [line.get_xdata()[0] for line in uniform.get_lines() if line.get_marker() in 'osD'] == [90, 80, 70]
    assert [text.get_text() for text in beta.texts] == ['90.00 ± 1.00', '60.00 ± 1.00']
    assert all(axes.get_xlim() == uniform.get_xlim() for axes in figure.axes)
    ticks.check(uniform.xaxis, 9, 91)

  def test_nothing_overlaps(self, figure):
    shown = [axes for axes in figure.axes if axes.axison]
    boxes = [text.get_window_extent() for axes in shown for text in axes.texts]
    boxes += [label.get_window_extent() for label in shown[0].get_yticklabels()]
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
    assert all(box.x0 >= 0 and box.x1 <= figure.bbox.x1 for box in boxes)

  def test_of_one_method_the_places_are_the_rows(self):
    shown = [_point(0, 'quap', mean=mean, panel=place) for place, mean in (('x', 5.0), ('y', 7.0))]
    (axes,) = plots.drawn(*figures.rows(shown, 'accuracy')[:2]).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ['x', 'y']
    assert len({line.get_color() for line in axes.get_lines()}) == 1


@pytest.mark.slow
def test_the_legend_of_curves_has_the_totals_the_best_on_top_and_is_outside():
  figure = plots.drawn(*figures.curves(_many(8), 'accuracy')[:2])
  (axes,) = figure.axes
  legend = axes.get_legend()
  texts = [text.get_text() for text in legend.get_texts()]
  assert texts[0] == '10.70 ± 0.50  method 7' and texts[-1] == '10.00 ± 0.50  method 0'
  box = legend.get_window_extent()
  assert box.x0 >= axes.get_window_extent().x1 and box.x1 <= figure.bbox.x1


def test_curves_have_whole_rounds():
  total = quantity.Quantity(30.0)
  series = [figures.Series(0, 'method', np.arange(1, 4), np.array([[10.0, 20, 30]]), total)]
  figure = plots.drawn(*figures.curves(series, 'accuracy')[:2])
  assert ticks.numbers(figure.axes[0].xaxis) == [1, 2, 3]


def test_a_figure_says_in_words_what_it_shows():
  points = [_point(0, at=3.0, panel='uniform'), _point(1, panel='beta'), _point(0, at=6.0, panel='uniform')]
  assert figures.lines(points, 'ε', 'accuracy').shows == (
    'uniform: method 0 at 3: 90.00 ± 0.50; method 0 at 6: 90.00 ± 0.50. beta: method 1 at 1: 90.00 ± 0.50'
  )


class TestLines:
  def test_nearly_equal_epsilons_are_drawn_at_their_value(self):
    points = [_point(0, at=2.9999, mean=92.0), _point(1, at=3.0001, mean=87.0)]
    figure = plots.drawn(*figures.lines(points, 'ε', 'accuracy')[:2])
    ticks.check(figure.axes[0].xaxis, 2.9999, 3.0001)
    ticks.check(figure.axes[0].yaxis, 86.5, 92.5)

  def test_an_accuracy_axis_shows_the_means_and_no_more_than_100(self):
    points = [_point(0, at=1, mean=97.0), _point(0, at=3, mean=98.0), _point(1, at=3, mean=99.5, half=None)]
    axes = plots.drawn(*figures.lines(points, 'ε', 'accuracy')[:2]).axes[0]
    low, high = axes.get_ylim()
    assert 95 < low < 97 and 99.5 < high < 100

  def test_the_legend_hides_nothing(self):
    points = [_point(0), _point(1, 'Fixed-DP, ' + 'a=1, ' * 20)]
    figure = plots.drawn(*figures.lines(points, 'ε', 'accuracy')[:2])
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert box.y1 <= figure.axes[0].get_window_extent().y0 and box.x1 <= figure.bbox.x1
