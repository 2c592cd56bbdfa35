"""One look for each method in all figures of a report; lines, names and ticks that say what is so."""

import itertools

import numpy as np
import pytest

from experiments.reporting import figures
from experiments.reporting import naming
from experiments.reporting import pages
from experiments.reporting import published
from experiments.running import plots
from quap_tff import methods
from quap_tff.common import flag_fields
from tests.experiments.reporting import ticks


def _point(place, label='', at=1, mean=90.0, deviation=0.5):
  return figures.Point(place, label or f'method {place}', at, pages.Quantity(mean, deviation))


def _many(count):
  rng = np.random.default_rng(0)
  y = rng.uniform(8, 12, (count, 3, 60))
  totals = [pages.Quantity(10 + 0.1 * i, 0.5) for i in range(count)]
  return [figures.Series(i, f'method {i}', np.arange(1, 61), y[i], totals[i]) for i in range(count)]


class TestLooks:
  def test_as_many_labels_as_a_figure_may_have_differ_in_colour_and_in_marker(self):
    found = figures.looks([_point(place) for place in (0, 8, 16, 3, 4, 5, 6, 7)])
    for field in ('color', 'marker'):
      assert len({look[field] for look in found.values()}) == figures.MOST_LABELS == 8

  def test_neighbours_differ_in_dash(self):
    found = list(figures.looks([_point(place) for place in range(8)]).values())
    assert all(a['linestyle'] != b['linestyle'] for a, b in zip(found, found[1:]))

  def test_a_figure_of_many_labels_has_the_best(self):
    totals = {f'method {i}': [pages.Quantity(80.0 - i, None)] for i in range(11)}
    kept, words = figures.most(totals)
    assert kept == [f'method {i}' for i in range(8)] and 'Of 11 lines' in words
    assert figures.most({'one': [None]}) == (['one'], '')

  def test_a_place_has_its_look_whatever_else_is_shown(self):
    alone = figures.looks([_point(5)])['method 5']
    assert figures.looks([_point(place) for place in (8, 5, 2)])['method 5'] == alone

  def test_settings_of_one_method_have_colours_of_their_own(self):
    shown = [_point(0), _point(1, 'a'), _point(1, 'b'), _point(1, 'c')]
    found = figures.looks(shown)
    assert len({look['color'] for look in found.values()}) == len({look['marker'] for look in found.values()}) == 4
    assert found == figures.looks(shown[::-1])
    assert found['method 0'] == figures.looks([_point(0)])['method 0']

  def test_the_ablation_has_the_parts_of_the_methods(self):
    assert len(published.BY_PARTS) == 8
    for name, parts in published.PARTS.items():
      method = methods.METHODS[name]
      assert parts == tuple(flag in flag_fields.flags_of(method) for flag in ('alpha', 'clip', 'critical_layers'))

  def test_every_method_has_a_title_of_its_own(self):
    titles = [naming.name_of(name) for name in methods.METHODS]
    assert len(set(titles)) == len(titles) and not set(titles) & set(methods.METHODS)
    assert naming.name_of('brand_new:a=1') == 'brand_new'

  def test_the_words_of_flags(self):
    assert naming.participation('beta:a=2,b=5') == 'Beta(2,5)'
    assert naming.participation('beta_bernoulli:a=2,b=5') == 'Beta(2,5) by coins'
    assert naming.participation('extreme_imbalance:rare_rate=0.01') == 'extreme_imbalance:rare_rate=0.01'
    assert naming.value('client_optimizer', 'sgd:learning_rate=1') == 'client optimizer sgd, learning rate 1'
    assert naming.value('epsilon', 3) == 'ε = 3'

  def test_data_of_ones_own_have_the_name_of_their_file(self):
    assert naming.dataset('npz:path=tab.npz,test_share=0.2,test_of_clients=False,classes=0') == 'tab.npz'
    assert naming.dataset('of_another_version:a=1') == 'of_another_version:a=1'

  def test_labels_name_only_what_differs(self):
    participation = 'certified:clip=0.5,weights=participation'
    specs = [participation, 'certified:clip=0.5,weights=uniform', 'quap', 'fixed_dp:clip=0.5']
    assert naming.labels(specs) == [
      'Certified QuAP-FL (weights by participation)',
      'Certified QuAP-FL (equal weights)',
      'QuAP-FL',
      'Fixed-DP',
    ]

  def test_labels_have_the_fewest_parameters_that_tell_specs_apart(self):
    held = 'certified:trust=secure_sum'
    specs = ['certified:weights=participation,noise=independent', held, f'{held},noise=independent']
    assert naming.distinguished(specs) == [
      ('Certified QuAP-FL (trusted server, independent noise)', 'weights by participation'),
      ('Certified QuAP-FL (no trusted server, noise held by clients)', 'weights that spend evenly'),
      ('Certified QuAP-FL (no trusted server, independent noise)', 'weights that spend evenly'),
    ]
    assert naming.labels(specs[:2]) == ['Certified QuAP-FL (trusted server)', 'Certified QuAP-FL (no trusted server)']


@pytest.mark.slow
def test_a_method_has_its_colour_in_every_kind_of_figure():
  shown, points = _many(2), [_point(0), _point(1)]
  for drawing in (
    figures.by_round(shown, 'accuracy', 'final'),
    figures.panels({'a': points, 'b': points}, 'final'),
    figures.lines(points, 'ε', 'accuracy'),
  ):
    for axes in plots.drawn(*drawing).axes:
      found = {line.get_color() for line in axes.get_lines()}
      assert found == {look['color'] for look in figures.looks(points).values()}


@pytest.mark.slow
class TestPanels:
  """Each of the places has a panel, and each panel the same rows, the best on top."""

  @pytest.fixture(scope='class')
  def figure(self):
    means = {'uniform': (80, 90, 70), 'beta': (60, 90, None), 'markov': (20, 30, 10), 'hybrid': (50, None, None)}
    shown = {
      place: [_point(i, f'method {"abc"[i]}', place, mean, 1.0) for i, mean in enumerate(own) if mean]
      for place, own in means.items()
    }
    return plots.drawn(*figures.panels(shown, 'accuracy'))

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
    shown = {place: [_point(0, 'quap', place, mean)] for place, mean in (('x', 5.0), ('y', 7.0))}
    (axes,) = plots.drawn(*figures.panels(shown, 'accuracy')).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ['x', 'y']
    assert len({line.get_color() for line in axes.get_lines()}) == 1


@pytest.mark.slow
def test_of_twelve_methods_by_round_each_has_a_row_and_the_best_is_on_top():
  figure = plots.drawn(*figures.by_round(_many(12), 'accuracy', 'final'))
  curves, panel = figure.axes
  boxes = [label.get_window_extent() for label in panel.get_yticklabels()]
  assert len(boxes) == 12
  assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
  assert all(figure.bbox.x1 >= box.x1 and box.x0 > curves.get_window_extent().x1 for box in boxes)
  labels = [label.get_text() for label in panel.get_yticklabels()]
  assert labels[0].startswith('11.10 ± 0.50 ') and labels[-1].startswith('10.00 ± 0.50 ')
  bottom, top = panel.get_ylim()
  assert bottom > top


def test_curves_have_whole_rounds():
  series = [figures.Series(0, 'method', np.arange(1, 4), np.array([[10.0, 20, 30]]))]
  figure = plots.drawn(*figures.by_round(series, 'accuracy', 'final'))
  assert ticks.numbers(figure.axes[0].xaxis) == [1, 2, 3]


class TestLines:
  def test_nearly_equal_epsilons_are_drawn_at_their_value(self):
    points = [_point(0, at=2.9999, mean=92.0), _point(1, at=3.0001, mean=87.0)]
    figure = plots.drawn(*figures.lines(points, 'ε', 'accuracy'))
    ticks.check(figure.axes[0].xaxis, 2.9999, 3.0001)
    ticks.check(figure.axes[0].yaxis, 86.5, 92.5)

  def test_an_accuracy_axis_shows_the_data_and_no_more_than_100(self):
    points = [_point(0, at=1, mean=97.0), _point(0, at=3, mean=98.0)]
    points += [_point(1, at=1, mean=99.5, deviation=None), _point(1, at=3, mean=100, deviation=None)]
    axes = plots.drawn(*figures.lines(points, 'ε', 'accuracy')).axes[0]
    low, high = axes.get_ylim()
    assert 95 < low < 96.5 and 100 < high <= 101.5

  def test_the_legend_is_outside_the_axes(self):
    points = [_point(0), _point(1, 'Fixed-DP, ' + 'a=1, ' * 20)]
    figure = plots.drawn(*figures.lines(points, 'ε', 'accuracy'))
    (axes,) = figure.axes
    box = axes.get_legend().get_window_extent()
    assert box.x0 >= axes.get_window_extent().x1 and box.x1 <= figure.bbox.x1
