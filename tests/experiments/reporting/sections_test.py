"""The sections: what their tables and figures have, and for which runs."""

import numpy as np
import pytest

from experiments.reporting import pages
from experiments.reporting import privacy
from experiments.reporting import published
from experiments.reporting import sections
from experiments.running import plots
from tests.experiments.reporting import factory
from tests.experiments.reporting import ticks

FULL = factory.FULL
IN_DOCUMENTS = 'accuracy (%) in the documents'


def _drawn(plot):
  return plots.drawn(*plot.titled)


class TestAccuracyAndPrivacy:
  def _rows(self, groups):
    return factory.table(sections.accuracy_and_privacy(groups), 'privacy_and_accuracy')

  def test_layerwise_noise_and_no_noise_have_no_finite_epsilon(self, groups_of):
    groups = groups_of(FULL, {'algorithm': 'fedavg', 'noise_norm': 0, **FULL})
    rows = self._rows(groups)
    assert [row['method'] for row in rows] == ['QuAP-FL', 'FedAvg (no privacy)']
    assert all(row['formal ε'] == privacy.NO_FINITE for row in rows)
    assert rows[1]['nominal ε, largest'] == '-'

  @pytest.mark.parametrize(
    'run, printed',
    [
      ({'epsilon': 6}, '93.30'),
      ({'epsilon': 3}, '94.8'),
      ({'epsilon': 3, 'participation': 'uniform'}, '97.1'),
      ({'epsilon': 6, 'algorithm': 'adaptive_budget'}, '91.12'),
      ({'epsilon': 3, 'algorithm': 'fedavg', 'noise_norm': 0}, '93.26'),
      ({'dataset': 'cifar10', 'alpha': 0.3}, '77.8'),
      ({'num_clients': 1000, 'cohort_size': 50}, '84.7'),
    ],
  )
  def test_figures_of_the_documents(self, groups_of, run, printed):
    (row,) = self._rows(groups_of({**FULL, **run}))
    assert row[IN_DOCUMENTS] == printed

  @pytest.mark.parametrize('run', [{}, {**FULL, 'critical_layers': 'all'}, {**FULL, 'calibration': 'exact'}])
  def test_other_settings_have_no_figure_of_the_documents(self, groups_of, run):
    blocks = sections.accuracy_and_privacy(groups_of(run))
    assert not [name for name in factory.table(blocks, 'privacy_and_accuracy')[0] if 'documents' in name]
    assert 'first document' not in factory.text(blocks)

  @pytest.mark.parametrize('run', [{'calibration': 'exact'}, {'algorithm': 'certified', 'certified_epsilon': 3.0}])
  def test_no_nominal_figure_of_noise_that_is_not_the_documents(self, groups_of, run):
    (row,) = self._rows(groups_of(run))
    assert not [name for name in row if name.startswith('nominal')]

  def test_nominal_figures(self, groups_of):
    groups = groups_of({'algorithm': 'fixed_dp'})
    (row,) = self._rows(groups)
    assert (row['nominal ε, mean'], row['nominal δ, largest']) == ('2.400', '0.0001')
    assert row['nominal ε, largest'] == f'{0.6 * groups[0].folders[0].counts.max():.3f}'

  def test_rounds_to_90(self, groups_of):
    curves = [[0.1, 0.9, 0.8], [0.1, 0.5, 0.95]]
    (row,) = self._rows(groups_of(*factory.seeds(1, 2, curve=curves, rounds_run=3, epsilon=3, **FULL)))
    assert (row['rounds to 90%'], row['rounds to 90% in the documents']) == ('2.5', '67')
    fixed = {'algorithm': 'fixed_dp', 'participation': 'extreme_imbalance', 'epsilon': 3, **FULL}
    (row,) = self._rows(groups_of(*factory.seeds(1, 2, curve=[[0.1, 0.9], [0.1, 0.89]], rounds_run=2, **fixed)))
    assert row['rounds to 90%'] == 'not reached in 1 of 2 seeds'
    assert row['rounds to 90% in the documents'] == 'not reached'

  def test_notes_are_for_runs_that_need_them(self, groups_of):
    text = factory.text(sections.accuracy_and_privacy(groups_of({'stop_at_accuracy': 0.9})))
    assert published.NOTES['layerwise'][0] in text and published.NOTES['early_stop'][0] in text
    text = factory.text(sections.accuracy_and_privacy(groups_of({'algorithm': 'fixed_dp'})))
    assert published.NOTES['layerwise'][0] not in text and published.NOTES['early_stop'][0] not in text


@pytest.mark.slow
class TestCertified:
  def _at(self, epsilons, **run):
    return [{'algorithm': 'certified', 'epsilon': e, 'certified_epsilon': e, **run} for e in epsilons]

  def test_only_what_holds_for_the_released_model(self, groups_of):
    groups = groups_of(
      *(
        {'algorithm': f'certified:weights={w}', 'epsilon': 3, 'certified_epsilon': 2.9}
        for w in ('spend_evenly', 'uniform')
      ),
      {'algorithm': 'tff_dp_fedavg', 'epsilon': 3, 'covers': 'released model', 'epsilon_max': 3.0},
      {'algorithm': 'quap', 'epsilon': 3},
    )
    blocks = sections.certified(groups)
    rows = factory.table(blocks, 'certified')
    assert [(row['method'], row['ε, largest of any client']) for row in rows] == [
      ('Certified QuAP-FL (weights that spend evenly)', '2.9'),
      ('Certified QuAP-FL (equal weights)', '2.9'),
      ('TFF DP-FedAvg', '3 †'),
    ]
    assert '† TFF DP-FedAvg: ' in factory.text(blocks)

  def test_none_without_certified_runs(self, groups_of):
    assert not sections.certified(groups_of({'algorithm': 'tff_dp_fedavg', 'covers': 'released model'}))

  def test_a_line_joins_runs_that_differ_in_epsilon_only(self, groups_of):
    groups = groups_of(
      *self._at((1, 3, 10), features='glyphs'), *self._at((3,), features='letters'), *self._at((3, 6), features='none')
    )
    *panels, shown = factory.drawings(sections.certified(groups))
    assert [panel.title for panel in panels] == ['Accuracy at a requested ε of 3 of the released model: MNIST']
    figure = _drawn(shown)
    joined = [np.asarray(line.get_xdata(), float) for line in figure.axes[0].get_lines() if len(line.get_xdata()) > 1]
    # All marks of a series are moved aside by one factor.
    ratios = [(x / x[0]).round(6).tolist() for x in joined]
    assert [1, 3, 10] in ratios and [1, 2] in ratios
    assert all(abs(np.log(x[0] / round(x[0]))) < 0.05 for x in joined)
    assert [text.get_text().replace('\n', ' ') for text in figure.legends[0].get_texts()] == [
      'Certified QuAP-FL, features glyphs',
      'Certified QuAP-FL, features none',
    ]

  def test_a_panel_without_a_line_has_all_marks(self, groups_of):
    other = {'algorithm': 'tff_dp_fedavg', 'epsilon': 3, 'covers': 'released model', 'epsilon_max': 3.0}
    there = {'participation': 'uniform'}
    groups = groups_of(*self._at((1, 3)), *self._at((3,), **there), {**other, **there})
    *_, shown = factory.drawings(sections.certified(groups))
    (legend,) = _drawn(shown).legends
    assert [text.get_text() for text in legend.get_texts()] == ['Certified QuAP-FL', 'TFF DP-FedAvg']

  def test_methods_of_one_requested_epsilon_have_a_panel_for_each_participation(self, groups_of):
    other = {'algorithm': 'tff_dp_fedavg', 'epsilon': 3, 'covers': 'released model', 'epsilon_max': 3.0}
    groups = groups_of(
      *self._at((3,)), {**other, 'accuracy': 0.8}, {**other, 'accuracy': 0.7, 'participation': 'uniform'}
    )
    (shown,) = factory.drawings(sections.certified(groups))
    beta, uniform = _drawn(shown).axes
    assert (beta.get_title('left'), uniform.get_title('left')) == ('Beta(2,5)', 'uniform')
    assert [label.get_text() for label in beta.get_yticklabels()] == ['Certified QuAP-FL', 'TFF DP-FedAvg']
    assert [text.get_text() for text in beta.texts] == ['90.00', '80.00']
    assert [text.get_text() for text in uniform.texts] == ['70.00']
    ticks.check(uniform.xaxis, 70, 90)

  def test_seeds_give_an_interval_and_a_paired_difference(self, groups_of):
    groups = groups_of(
      *factory.seeds(1, 2, 3, accuracy=[0.95, 0.96, 0.97], **self._at((3,), share_of_ceiling=0.791)[0]),
      *factory.seeds(
        1, 2, 3, 4, accuracy=[0.92, 0.93, 0.92, 0.5], algorithm='tff_dp_fedavg', epsilon=3, covers='released model'
      ),
    )
    certified, other = factory.table(sections.certified(groups), 'certified')
    # Student's quantile of 2 degrees of freedom is 4.303. The differences are -3, -3 and -5.
    assert certified['accuracy (%)'] == f'96.00 ± {4.3027 / 3**0.5:.2f}'
    assert (certified['minus reference'], certified['share of ceiling']) == ('the reference', '0.79 ± 0.00')
    assert other['minus reference'] == f'-3.67 ± {4.3027 * 1.1547 / 3**0.5:.2f}'
    assert other['share of ceiling'] == '-' and other['trust'] == certified['trust'] == 'server'

  def test_secret_cohorts_are_shown_with_uniform_ones_of_their_rate(self, groups_of):
    secret = {'algorithm': 'tff_dp_fedavg', 'epsilon': 3, 'covers': 'released model', 'cohort_seed': 'secret'}
    groups = groups_of(
      *self._at((3,), participation='uniform'),
      {**secret, 'participation': 'bernoulli:q=0.4'},
      {**secret, 'participation': 'bernoulli:q=0.5'},
    )
    apart, together = (block for block in sections.certified(groups) if isinstance(block, pages.Table))
    assert together.title == 'Accuracy at a formal ε of 3 of the released model: MNIST, participation uniform'
    rows = factory.table([together], 'certified')
    assert [(row['method'], row['trust']) for row in rows] == [
      ('Certified QuAP-FL', 'server'),
      ('TFF DP-FedAvg', 'server, cohorts secret'),
    ]
    (row,) = factory.table([apart], 'certified')
    assert (row['method'], row['trust']) == ('TFF DP-FedAvg', 'server, cohorts secret')

  def test_a_single_run_is_no_figure(self, groups_of):
    blocks = sections.certified(groups_of(*self._at((3,))))
    assert factory.table(blocks, 'certified') and not factory.drawings(blocks)

  def test_an_axis_of_nearly_equal_epsilons_shows_them(self, groups_of):
    (shown,) = factory.drawings(sections.certified(groups_of(*self._at((2.9999, 3.0001)))))
    ticks.check(_drawn(shown).axes[0].xaxis, 2.9999, 3.0001)


class TestClients:
  def test_equality_three_ways(self, groups_of):
    groups = groups_of({'algorithm': 'fixed_dp', **FULL}, {'spread': 2.0, **FULL})
    rows = factory.table(sections.clients(groups), 'clients')
    quap, fixed = factory.row(rows, method='QuAP-FL'), factory.row(rows, method='Fixed-DP')
    counts = groups[0].folders[0].counts
    of_counts = f'{counts.sum()**2 / (100 * (counts**2).sum()):.3f}'
    by_participation = "Jain's index of participation"
    assert quap[by_participation] == fixed[by_participation] == fixed['of nominal ε'] == of_counts
    spent = counts * (1 + 2 * np.arange(100) / 100)
    assert quap['of nominal ε'] == f'{spent.sum()**2 / (100 * (spent**2).sum()):.3f}'
    assert quap['of accuracy by client'] == '0.964'  # Of linspace(0.5, 1, 100).
    assert quap['of an unnamed quantity in the documents'] == '0.76'

  def test_rows_are_for_known_cohorts_and_notes_for_columns_that_are_there(self, tmp_path):
    secret = factory.write_run(tmp_path / '1', algorithm='tff_dp_fedavg', cohort_seed='secret')
    for name in ('ledger.npz', 'clients.csv'):
      (secret / name).unlink()
    factory.write_run(tmp_path / '0', algorithm='fedavg', clients={'test_accuracy': [''] * 10})
    blocks = sections.clients(factory.groups_of(tmp_path))
    (row,) = factory.table(blocks, 'clients')
    assert row['method'] == 'FedAvg (no privacy)'
    words = factory.text(blocks)
    assert 'Participation counts follow' in words and 'Accuracy by client' not in words


def test_noise_bytes_and_time(groups_of):
  fedavg = {'algorithm': 'fedavg', 'noise_norm': 0, 'up_bytes': 4000}
  runs = factory.seeds(1, 2, 3, seconds=[1.0, 2.0, 1.5], up_bytes=4012, noise_norm=3.0, **FULL)
  rows = factory.table(sections.cost(groups_of(*runs, {**fedavg, **FULL})), 'cost')
  found = factory.row(rows, method='QuAP-FL')
  assert (found['noise / signal'], found['cores']) == ('3.00 ± 0.00', '2')
  assert (found['bytes above FedAvg'], found['bytes above FedAvg in the documents']) == ('12 ± 0', '4')
  assert found['seconds a round (median)'] == f'1.50 ± {4.3027 * 0.5 / 3**0.5:.2f}'


def test_runs_without_any_such_figure_have_no_row_of_costs(tmp_path):
  folder = factory.write_run(tmp_path / 'run')
  (folder / 'metrics.csv').write_text('round,test_accuracy\n1,0.9\n')
  assert not sections.cost(factory.groups_of(tmp_path))


class TestByRound:
  def test_mean_over_the_rounds_that_all_seeds_tested(self, groups_of):
    (group,) = groups_of(*factory.seeds(1, 2, curve=[[0.1, np.nan, 0.3], [0.2, 0.2, 0.5]], rounds_run=3))
    rounds, values = sections.over_seeds(group, 'test_accuracy')
    assert rounds.tolist() == [1, 3]
    np.testing.assert_allclose(values, [[0.1, 0.3], [0.2, 0.5]])

  @pytest.mark.parametrize('curves', [[[np.nan, np.nan, 0.3]], [[0.1, np.nan, 0.3], [np.nan, 0.2, 0.5]]])
  def test_a_single_round_that_all_tested_is_no_curve(self, groups_of, curves):
    seeds = range(1, len(curves) + 1)
    assert not sections.by_round(groups_of(*factory.seeds(*seeds, curve=curves, rounds_run=3)))

  def test_a_figure_for_each_place(self, groups_of):
    groups = groups_of({}, {'algorithm': 'fixed_dp'}, {'participation': 'uniform'})
    assert [figure.title for figure in factory.drawings(sections.by_round(groups))] == [
      'Test accuracy by round: MNIST, participation Beta(2,5)',
      'Test accuracy by round: MNIST, participation uniform',
    ]

  def test_lines_are_the_means_in_percent(self, groups_of):
    groups = groups_of(
      *factory.seeds(1, 2, curve=[[0.1, 0.3], [0.2, 0.5]], accuracy=[0.3, 0.5], rounds_run=2),
      {'algorithm': 'fedavg', 'noise_norm': 0, 'curve': [0.5, 0.6], 'accuracy': 0.6, 'rounds_run': 2},
    )
    (shown,) = factory.drawings(sections.by_round(groups))
    lines = _drawn(shown).axes[0].get_lines()
    np.testing.assert_allclose([line.get_ydata() for line in lines], [[50, 60], [15, 40]])


class TestByFlag:
  def test_only_methods_with_several_values(self, groups_of):
    groups = groups_of({'epsilon': 3}, {'epsilon': 6}, {'algorithm': 'fixed_dp'})
    rows = factory.table(sections.by_flag(groups), 'by_epsilon')
    assert [(row['method'], row['epsilon']) for row in rows] == [('QuAP-FL', '3'), ('QuAP-FL', '6')]

  def test_texts_and_numbers(self, groups_of):
    groups = groups_of(
      {}, {'participation': 'beta:a=1,b=1'}, {'critical_layers': 'dense,dense_1'}, {'partition': 'dirichlet:alpha=1'}
    )
    blocks = sections.by_flag(groups)
    rows = factory.table(blocks, 'by_participation')
    assert [row['participation'] for row in rows] == ['Beta(1,1)', 'Beta(2,5)']
    assert [row['partition'] for row in factory.table(blocks, 'by_partition')] == [
      'dirichlet, alpha 0.5',
      'dirichlet, alpha 1',
    ]
    assert len(factory.drawings(blocks)) == 3

  def test_figures_of_the_documents_stand_alongside(self, groups_of):
    groups = groups_of(*({'dataset': 'cifar10', 'alpha': a, 'accuracy': a, **FULL} for a in (0.3, 0.7)))
    rows = factory.table(sections.by_flag(groups), 'by_alpha')
    assert [(row['alpha'], row['accuracy (%)'], row[IN_DOCUMENTS]) for row in rows] == [
      ('0.3', '30.00', '77.8'),
      ('0.7', '70.00', '80.6'),
    ]

  def test_what_the_section_on_certified_runs_compares_is_not_compared_again(self, groups_of):
    whole = {'algorithm': 'tff_dp_fedavg', 'calibration': 'exact', 'covers': 'released model'}
    runs = [
      {**whole, 'epsilon': e, 'epsilon_max': float(e), 'participation': p} for e in (1, 3) for p in ('uniform', 'beta')
    ]
    assert sections.by_flag(groups_of(*runs))
    certified = {'algorithm': 'certified', 'epsilon': 3, 'certified_epsilon': 3.0}
    assert not sections.by_flag(groups_of(*runs, certified))

  def test_two_families_get_a_table_and_a_figure_each(self, groups_of):
    blocks = sections.by_flag(groups_of(*({'epsilon': e, 'delta': d} for e in (3, 6) for d in (1e-5, 1e-6))))
    tables = [block.name for block in blocks if isinstance(block, pages.Table)]
    assert tables == ['by_epsilon', 'by_epsilon', 'by_delta', 'by_delta'] and len(factory.drawings(blocks)) == 4

  def test_what_another_flag_sets_apart_is_not_shown_twice(self, groups_of):
    # Fixed-DP at two values of ε is in a family with each α of QuAP-FL, which has one value of ε only.
    groups = groups_of(*({'algorithm': 'fixed_dp', 'epsilon': e} for e in (3, 6)), *({'alpha': a} for a in (0.3, 0.7)))
    names = [plot.name for plot in factory.drawings(sections.by_flag(groups))]
    assert sorted(names) == ['by_alpha', 'by_epsilon']

  @pytest.mark.slow
  def test_a_figure_of_many_lines_has_the_best(self, groups_of):
    runs = [
      {'algorithm': f'fixed_dp:clip={n}', 'epsilon': e, 'accuracy': 0.5 + n / 100} for n in range(1, 11) for e in (3, 6)
    ]
    (shown,) = factory.drawings(sections.by_flag(groups_of(*runs)))
    assert 'Of 10 lines, the figure has the 8 with the largest means.' in shown.caption
    assert 'clipping norm 10' in shown.shows and 'clipping norm 2)' not in shown.shows
