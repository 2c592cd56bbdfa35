"""The sections on what is spent: privacy, who bears it, noise, bytes and time."""

import re

import numpy as np
import pytest

from experiments.reporting import pages
from experiments.reporting.sections import privacy
from experiments.reporting.sections import spending
from experiments.running import plots
from tests.experiments.reporting import factory
from tests.experiments.reporting import ticks

FULL = factory.FULL


class TestBesideAccuracy:
  def test_layerwise_noise_and_no_noise_have_no_finite_epsilon(self, groups_of):
    groups = groups_of(FULL, {'algorithm': 'fedavg', 'noise_norm': 0, **FULL})
    rows = factory.table(spending.with_accuracy(groups), 'privacy_and_accuracy')
    assert [row['method'] for row in rows] == ['QuAP-FL', 'FedAvg (no privacy)']
    assert all(row['formal ε'] == privacy.NO_FINITE for row in rows)
    assert rows[1]['nominal ε, largest'] == '-'
    assert rows[0]['document: accuracy (%)'] == '93.30 ± 0.10'

  @pytest.mark.parametrize('run', [{'calibration': 'exact'}, {'algorithm': 'certified', 'certified_epsilon': 3.0}])
  def test_no_nominal_figure_of_noise_that_is_not_the_documents(self, groups_of, run):
    (row,) = factory.table(spending.with_accuracy(groups_of(run)), 'privacy_and_accuracy')
    assert not [name for name in row if name.startswith('nominal')]

  def test_nominal_figures(self, groups_of):
    groups = groups_of({'algorithm': 'fixed_dp'})
    (row,) = factory.table(spending.with_accuracy(groups), 'privacy_and_accuracy')
    assert (row['nominal ε, mean'], row['nominal δ, largest']) == ('2.400', '0.0001')
    assert row['nominal ε, largest'] == f'{0.6 * groups[0].runs[0].counts.max():.3f}'

  def test_participation_groups_of_runs_without_a_whole_guarantee(self, groups_of):
    groups = groups_of({}, {'algorithm': 'certified', 'certified_epsilon': 3.0})
    blocks = spending.with_accuracy(groups)
    (row,) = factory.table(blocks, 'participation_groups')
    assert row['method'] == 'QuAP-FL' and 'rounds taken part in: rare' in row
    (row,) = factory.table(blocks, 'participation_groups_results')
    assert row['method'] == 'QuAP-FL' and 'nominal ε: rare' in row
    rows = factory.table(spending.certified(groups), 'certified_groups')
    assert [row['method'] for row in rows] == ['Certified QuAP-FL']


@pytest.mark.slow
class TestCertified:
  def _at(self, epsilons, **run):
    return [{'algorithm': 'certified', 'epsilon': e, 'certified_epsilon': e, **run} for e in epsilons]

  def _lines(self, groups):
    shown = factory.drawings(spending.certified(groups))[-1]
    return plots.drawn(*shown.titled).axes[0].get_lines()

  def test_only_what_holds_for_the_released_model(self, groups_of):
    groups = groups_of(
      *(
        {'algorithm': f'certified:weights={w}', 'epsilon': 3, 'certified_epsilon': 2.9}
        for w in ('spend_evenly', 'uniform')
      ),
      {'algorithm': 'tff_dp_fedavg', 'epsilon': 3, 'covers': 'released model', 'epsilon_max': 3.0},
      {'algorithm': 'quap', 'epsilon': 3},
    )
    blocks = spending.certified(groups)
    rows = factory.table(blocks, 'certified')
    assert [(row['method'], row['ε, largest of any client']) for row in rows] == [
      ('Certified QuAP-FL (weights that spend evenly)', '2.900'),
      ('Certified QuAP-FL (equal weights)', '2.900'),
      ('TFF DP-FedAvg', '3.000'),
    ]
    assert rows[2]['formal ε'] == 'released model: ε = 3 (exact accounting)†'
    assert '† TFF DP-FedAvg: ' in factory.text(blocks)

  def test_none_without_certified_runs(self, groups_of):
    groups = groups_of({'algorithm': 'tff_dp_fedavg', 'covers': 'released model'})
    assert not spending.certified(groups)

  def test_a_line_joins_runs_that_differ_in_epsilon_only(self, groups_of):
    groups = groups_of(
      *self._at((1, 3, 10), features='glyphs'), *self._at((3,), features='letters'), *self._at((3, 6), features='none')
    )
    joined = [np.asarray(line.get_xdata(), float) for line in self._lines(groups) if len(line.get_xdata()) > 1]
    # All marks of a series are moved aside by one factor.
    ratios = [(x / x[0]).round(6).tolist() for x in joined]
    assert [1, 3, 10] in ratios and [1, 2] in ratios
    assert all(abs(np.log(x[0] / round(x[0]))) < 0.05 for x in joined)
    *panels, shown = factory.drawings(spending.certified(groups))
    assert [panel.title for panel in panels] == ['Accuracy at a requested ε of 3 of the released model: MNIST']
    (legend,) = plots.drawn(*shown.titled).legends
    assert [text.get_text().replace('\n', ' ') for text in legend.get_texts()] == [
      'Certified QuAP-FL, features glyphs',
      'Certified QuAP-FL, features none',
    ]

  def test_a_panel_without_a_line_has_all_marks(self, groups_of):
    other = {'algorithm': 'tff_dp_fedavg', 'epsilon': 3, 'covers': 'released model', 'epsilon_max': 3.0}
    there = {'participation': 'uniform'}
    groups = groups_of(*self._at((1, 3)), *self._at((3,), **there), {**other, **there})
    *_, shown = factory.drawings(spending.certified(groups))
    (legend,) = plots.drawn(*shown.titled).legends
    assert [text.get_text() for text in legend.get_texts()] == ['Certified QuAP-FL', 'TFF DP-FedAvg']

  def test_methods_of_one_requested_epsilon_have_a_panel_for_each_participation(self, groups_of):
    other = {'algorithm': 'tff_dp_fedavg', 'epsilon': 3, 'covers': 'released model', 'epsilon_max': 3.0}
    groups = groups_of(
      *self._at((3,)), {**other, 'accuracy': 0.8}, {**other, 'accuracy': 0.7, 'participation': 'uniform'}
    )
    (shown,) = factory.drawings(spending.certified(groups))
    assert shown.title == 'Accuracy at a requested ε of 3 of the released model: MNIST'
    beta, uniform = plots.drawn(*shown.titled).axes
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
    certified, other = factory.table(spending.certified(groups), 'certified')
    # Student's quantile of 2 degrees of freedom is 4.303. The differences are -3, -3 and -5.
    assert (certified['accuracy (%)'], certified['accuracy (%), 95% ±']) == ('96.00', f'{4.3027 / 3**0.5:.2f}')
    assert (certified['minus reference'], certified['share of ceiling']) == ('the reference', '0.79 ± 0.00')
    assert (other['minus reference'], other['minus reference, 95% ±']) == ('-3.67', f'{4.3027 * 1.1547 / 3**0.5:.2f}')
    assert other['share of ceiling'] == '-' and other['trust'] == certified['trust'] == 'server'

  def test_a_table_for_each_participation_and_epsilon(self, groups_of):
    groups = groups_of(*self._at((1, 3)), *self._at((3,), participation='uniform'))
    tables = [block for block in spending.certified(groups) if isinstance(block, pages.Table)]
    titles = [table.for_readers()[0] for table in tables if table.name == 'certified']
    settings = [title.partition('Setting: ')[2].partition('; total')[0] for title in titles]
    assert settings == [
      'participation Beta(2,5); ε = 1',
      'participation Beta(2,5); ε = 3',
      'participation uniform; ε = 3',
    ]

  def test_secret_cohorts_are_shown_with_uniform_ones_of_their_rate(self, groups_of):
    secret = {'algorithm': 'tff_dp_fedavg', 'epsilon': 3, 'covers': 'released model', 'cohort_seed': 'secret'}
    groups = groups_of(
      *self._at((3,), participation='uniform'),
      {**secret, 'participation': 'bernoulli:q=0.4'},
      {**secret, 'participation': 'bernoulli:q=0.5'},
    )
    tables = [block for block in spending.certified(groups) if isinstance(block, pages.Table)]
    apart, together = (
      [(row['method'], row['trust']) for row in factory.table([table], 'certified')] for table in tables[:2]
    )
    assert together == [('Certified QuAP-FL', 'server'), ('TFF DP-FedAvg', 'server, cohorts secret')]
    assert apart == [('TFF DP-FedAvg', 'server, cohorts secret')]

  def test_a_single_run_is_no_figure(self, groups_of):
    blocks = spending.certified(groups_of(*self._at((3,))))
    assert factory.table(blocks, 'certified') and not factory.drawings(blocks)

  def test_an_axis_of_nearly_equal_epsilons_shows_them(self, groups_of):
    groups = groups_of(*self._at((2.9999, 3.0001)))
    (shown,) = factory.drawings(spending.certified(groups))
    ticks.check(plots.drawn(*shown.titled).axes[0].xaxis, 2.9999, 3.0001)


class TestBudgets:
  def test_measured_by_rate(self, groups_of):
    (group,) = groups_of({'spread': 0.5})
    (run,) = group.runs
    rates, ratios = spending.measured_budgets(run)
    seen = np.flatnonzero(run.counts)
    np.testing.assert_allclose(rates, run.counts[seen] / 10)
    np.testing.assert_allclose(ratios, 1 + 0.5 * seen / 10)

  def test_printed_numbers_are_not_the_formulas(self, groups_of):
    rows = factory.table(spending.budgets(groups_of(FULL)), 'budget_by_rate')
    assert [(row['document: as printed'], row['formula']) for row in rows] == [
      ('1.400', '1.409'),
      ('1.067', '1.184'),
      ('1.000', '1.083'),
    ]

  def test_of_runs_with_adaptive_budgets_only(self, groups_of):
    assert not spending.budgets(groups_of({'algorithm': 'fixed_dp'}))


def test_cumulative_privacy_of_top_and_bottom(groups_of):
  groups = groups_of({'spread': 1.0, **FULL}, {'algorithm': 'layerwise', **FULL})
  rows = factory.table(spending.cumulative(groups), 'cumulative_privacy')
  (run,) = groups[1].runs
  counts = np.sort(run.counts)
  uniform = factory.row(rows, method='Layer-wise, uniform budget')
  assert uniform['measured: top 20%'] == f'{0.6 * counts[-20:].mean():.3f}'
  assert uniform['measured: bottom 20%'] == f'{0.6 * counts[:20].mean():.3f}'
  assert factory.row(rows, method='QuAP-FL')['document: top 20%'] == 'below ε_total'
  top, _ = spending.top_and_bottom(run)
  assert len(top) == 10 and np.all(np.diff(top) >= 0)


def test_fairness_three_ways(groups_of):
  groups = groups_of({'algorithm': 'fixed_dp', **FULL}, {'spread': 2.0, **FULL})
  rows = factory.table(spending.fairness(groups), 'fairness')
  quap, fixed = factory.row(rows, method='QuAP-FL'), factory.row(rows, method='Fixed-DP')
  counts = groups[0].runs[0].counts
  of_counts = f'{counts.sum()**2 / (100 * (counts**2).sum()):.3f}'
  assert quap['measured: participation counts'] == fixed['measured: participation counts'] == of_counts
  assert fixed['measured: cumulative nominal ε'] == of_counts
  spent = counts * (1 + 2 * np.arange(100) / 100)
  assert quap['measured: cumulative nominal ε'] == f'{spent.sum()**2 / (100 * (spent**2).sum()):.3f}'
  assert quap['measured: test accuracy by client'] == '0.964'  # Of linspace(0.5, 1, 100).
  assert quap['document: of an unnamed quantity'] == '0.76'


def test_fairness_has_rows_for_known_cohorts_and_notes_for_its_columns(tmp_path):
  secret = factory.write_run(tmp_path / '1', algorithm='tff_dp_fedavg', cohort_seed='secret')
  for name in ('ledger.npz', 'clients.csv'):
    (secret / name).unlink()
  factory.write_run(tmp_path / '0', algorithm='fedavg', clients={'test_accuracy': [''] * 10})
  blocks = spending.fairness(factory.groups_of(tmp_path))
  (row,) = factory.table(blocks, 'fairness')
  assert row['method'] == 'FedAvg (no privacy)' and 'participation counts' in row
  words = factory.text(blocks)
  assert 'Participation counts follow' in words and 'Test accuracy by client' not in words


def test_noise_of_methods_that_have_it(groups_of):
  groups = groups_of({'noise_norm': 3.0}, {'algorithm': 'fedavg', 'noise_norm': 0})
  rows = factory.table(spending.noise(groups), 'noise_to_signal')
  assert [(row['method'], row['noise / signal']) for row in rows] == [('QuAP-FL', '3.00')]


def test_bytes_beside_fedavg(groups_of):
  fedavg = {'algorithm': 'fedavg', 'noise_norm': 0, 'up_bytes': 4000}
  groups = groups_of({'up_bytes': 4012, **FULL}, {**fedavg, **FULL})
  found = factory.row(factory.table(spending.communication(groups), 'communication'), method='QuAP-FL')
  assert found['document: bytes above FedAvg'] == '4'
  assert found['measured: bytes above FedAvg'] == '12'
  assert found["measured: upload / FedAvg's"] == '1.0030'


def test_figures_of_the_documents_are_shown_for_their_settings_alone(groups_of):
  groups = groups_of({'up_bytes': 4012}, {'algorithm': 'fedavg', 'noise_norm': 0, 'up_bytes': 4000})
  for build in (spending.with_accuracy, spending.cumulative, spending.fairness, spending.communication):
    blocks = build(groups)
    columns = [name for block in blocks if isinstance(block, pages.Table) for name in block.frame]
    assert columns and not [name for name in columns if name.startswith(('document', 'measured'))]
    titles = [block.title for block in blocks if not isinstance(block, str)]
    assert not [text for text in [*titles, factory.text(blocks)] if re.search(r"document's|\((first|Nov)", text)]


def test_cost(groups_of):
  groups = groups_of(*factory.seeds(1, 2, seconds=[1.0, 2.0]))
  (row,) = factory.table(spending.cost(groups), 'cost')
  assert row['seconds a round (median)'] == '1.50 ± 0.71'
  assert row['cores'] == '2'
