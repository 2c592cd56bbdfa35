"""The sections on accuracy: measured values beside printed ones, curves, and the values of one flag."""

import numpy as np

from experiments.reporting import pages
from experiments.reporting import published
from experiments.reporting.sections import accuracy
from experiments.running import plots
from tests.experiments.reporting import factory

FULL = factory.FULL


class TestFinal:
  def test_beside_the_documents(self, groups_of):
    groups = groups_of(*factory.seeds(1, 2, accuracy=[0.93, 0.94], **FULL))
    rows = factory.table(accuracy.final(groups), 'accuracy_epsilon_6')
    found = factory.row(rows, dataset='MNIST', method='QuAP-FL')
    assert found['document: accuracy (%)'] == '93.30 ± 0.10'
    assert found['measured: accuracy (%)'] == '93.50 ± 0.71'
    assert (found['difference'], found['seeds']) == ('+0.20', '2 (1, 2)')
    assert factory.row(rows, dataset='MNIST', method='Fixed-DP')['measured: accuracy (%)'] == 'not run'
    assert len(rows) == 6

  def test_only_runs_of_the_tables_own_epsilon_and_scenario(self, groups_of):
    groups = groups_of(
      {'epsilon': 3, 'accuracy': 0.8, **FULL},
      {'epsilon': 6, 'accuracy': 0.9, **FULL},
      {'epsilon': 3, 'accuracy': 0.7, 'participation': 'uniform', **FULL},
    )
    rows = factory.table(accuracy.final(groups), 'accuracy_epsilon_3')
    measured = {
      row['participation']: row['measured: accuracy (%)']
      for row in rows
      if row['method'] == 'QuAP-FL' and row['dataset'] == 'MNIST'
    }
    assert measured == {'uniform': '70.00', 'heterogeneous, Beta(2,5)': '80.00'}

  def test_other_settings_split_the_row(self, groups_of):
    groups = groups_of(
      {'accuracy': 0.8, **FULL}, {'accuracy': 0.9, 'client_optimizer': 'sgd:learning_rate=0.1', **FULL}
    )
    rows = [row for row in factory.table(accuracy.final(groups), 'accuracy_epsilon_6') if row['method'] == 'QuAP-FL']
    assert [(row['setting'], row['measured: accuracy (%)']) for row in rows[:2]] == [
      ('client optimizer sgd, learning rate 0.005', '80.00'),
      ('client optimizer sgd, learning rate 0.1', '90.00'),
    ]

  def test_accuracy_of_models_without_a_finite_epsilon_is_called_that(self, groups_of):
    assert published.NOTES['layerwise'][0] in accuracy.final(groups_of(FULL))

  def test_fedavg_at_any_epsilon(self, groups_of):
    groups = groups_of({'algorithm': 'fedavg', 'epsilon': 3, 'noise_norm': 0, **FULL})
    rows = factory.table(accuracy.final(groups), 'accuracy_epsilon_6')
    assert rows[0]['measured: accuracy (%)'] == '90.00'


def test_early_stop_beside_the_documents(groups_of):
  groups = groups_of({}, {'accuracy': 0.9321, 'rounds_run': 7, 'stop_at_accuracy': 0.932, **FULL})
  blocks = accuracy.early_stop(groups)
  (row,) = factory.table(blocks, 'early_stop')
  assert '(November 2025, table 2)' in blocks[0].title
  assert (row['document: accuracy (%)'], row['measured: accuracy (%)']) == ('93.30 ± 0.10', '93.21')
  assert row['rounds'] == '7 of 10 (stops at accuracy 0.932)'


class TestConvergence:
  def test_rounds_to_90(self, groups_of):
    groups = groups_of(*factory.seeds(1, 2, curve=[[0.1, 0.9, 0.8], [0.1, 0.5, 0.95]], rounds_run=3, **FULL))
    rows = factory.table(accuracy.convergence(groups), 'rounds_to_90')
    found = factory.row(rows, participation='heterogeneous, Beta(2,5)', method='QuAP-FL')
    assert (found['document: rounds'], found['measured: rounds'], found['difference']) == ('67', '2.5 ± 0.7', '-64.5')
    assert factory.row(rows, participation='extreme imbalance', method='Fixed-DP')['document: rounds'] == 'not reached'

  def test_not_reached(self, groups_of):
    (group,) = groups_of(*factory.seeds(1, 2, curve=[[0.1, 0.9], [0.1, 0.89]], rounds_run=2))
    assert accuracy.rounds_to_90(group) == 'not reached in 1 of 2 seeds in 2 rounds'
    (group,) = groups_of({'curve': [0.1, 0.2], 'rounds_run': 2})
    assert accuracy.rounds_to_90(group) == 'not reached in 2 rounds'


def test_ablation_has_all_eight_rows(groups_of):
  groups = groups_of(
    *(
      {'algorithm': name, 'accuracy': value, **FULL}
      for name, value in [('quap', 0.9), ('fixed_dp', 0.8), ('layerwise', 0.85)]
    )
  )
  rows = factory.table(accuracy.ablation(groups), 'ablation')
  assert len(rows) == 8
  parts = ('adaptive budget', 'adaptive clip', 'layer-wise noise')
  by_parts = {tuple(row[part] for part in parts): row for row in rows}
  full, none = by_parts['yes', 'yes', 'yes'], by_parts['no', 'no', 'no']
  assert (full['document: accuracy (%)'], full['measured: accuracy (%)']) == ('93.30', '90.00')
  assert (none['document: accuracy (%)'], none['measured: accuracy (%)']) == ('89.40', '80.00')
  assert by_parts['no', 'yes', 'yes']['measured: accuracy (%)'] == '85.00'
  assert by_parts['yes', 'yes', 'no']['measured: accuracy (%)'] == 'not run'
  assert full['formal ε'] == 'no finite ε for the released model'


def test_alpha_beta_grid(groups_of):
  groups = groups_of(
    *({'dataset': 'cifar10', 'alpha': a, 'beta': 2, 'accuracy': a, **FULL} for a in (0.3, 0.5)),
    {'dataset': 'cifar10', 'alpha': 0.7},
  )
  rows = factory.table(accuracy.alpha_beta(groups), 'alpha_beta')
  found = factory.row(rows, **{'α and β': 'α = 0.5, β = 2'})
  assert (found['document: accuracy (%)'], found['measured: accuracy (%)']) == ('81.2', '50.00')
  assert len(rows) == 2


class TestOverFlags:
  def test_dirichlet(self, groups_of):
    groups = groups_of(
      *(
        {'algorithm': method, 'partition': f'dirichlet:alpha={a}', 'accuracy': value, **FULL}
        for method, a, value in [('quap', 0.1, 0.9), ('quap', 10, 0.95), ('fixed_dp', 0.1, 0.8), ('fixed_dp', 10, 0.95)]
      )
    )
    blocks = accuracy.heterogeneity(groups)
    assert len(factory.table(blocks, 'dirichlet')) == 4
    gains = factory.table(blocks, 'dirichlet_gain')
    assert [(row['runs'], row['QuAP-FL minus Fixed-DP (points)']) for row in gains] == [
      ('MNIST, partition dirichlet, alpha 0.1', '10.00'),
      ('MNIST, partition dirichlet, alpha 10', '0.00'),
    ]
    assert gains[0]['document'] == 'more than 5 points'

  def test_only_methods_with_several_values(self, groups_of):
    groups = groups_of({'epsilon': 3}, {'epsilon': 6}, {'algorithm': 'fixed_dp'})
    rows = factory.table(accuracy.epsilon(groups), 'epsilon_total')
    assert [(row['method'], row['nominal ε_total']) for row in rows] == [('QuAP-FL', '3'), ('QuAP-FL', '6')]

  def test_certified_is_no_row_of_nominal_budgets(self, groups_of):
    runs = [{'algorithm': 'certified', 'epsilon': e, 'certified_epsilon': e} for e in (1, 3)]
    assert not accuracy.epsilon(groups_of(*runs))

  def test_what_the_section_on_certified_runs_compares_is_not_compared_again(self, groups_of):
    whole = {'algorithm': 'tff_dp_fedavg', 'calibration': 'exact', 'covers': 'released model'}
    runs = [
      {**whole, 'epsilon': e, 'epsilon_max': float(e), 'participation': p} for e in (1, 3) for p in ('uniform', 'beta')
    ]
    alone = groups_of(*runs)
    assert accuracy.epsilon(alone) and accuracy.participation(alone)
    certified = {'algorithm': 'certified', 'epsilon': 3, 'certified_epsilon': 3.0}
    both = groups_of(*runs, certified)
    assert not accuracy.epsilon(both) and not accuracy.participation(both)

  def test_the_note_on_layer_wise_noise_needs_such_noise(self, groups_of):
    runs = lambda method: [{'algorithm': method, 'epsilon': e} for e in (3, 6)]
    note = published.NOTES['layerwise'][0]
    assert note in accuracy.epsilon(groups_of(*runs('quap')))
    assert note not in accuracy.epsilon(groups_of(*runs('fixed_dp')))

  def test_exact_calibration_is_no_nominal_budget(self, groups_of):
    runs = [{'epsilon': e, 'calibration': c} for e in (3, 6) for c in ('documents', 'exact')]
    blocks = accuracy.epsilon(groups_of(*runs))
    assert len(factory.table(blocks, 'epsilon_total')) == 2
    assert [row['ε_total, exact accounting'] for row in factory.table(blocks, 'epsilon_exact')] == ['3', '6']

  def test_participation_and_critical_layers(self, groups_of):
    groups = groups_of(
      {}, {'participation': 'beta:a=1,b=1'}, {'critical_layers': 'all_dense'}, {'critical_layers': 'dense,dense_1'}
    )
    rows = factory.table(accuracy.participation(groups), 'participation')
    assert [row['participation model'] for row in rows] == ['Beta(1,1)', 'Beta(2,5)']
    rows = factory.table(accuracy.critical_layers(groups), 'critical_layers')
    column = 'critical (clipped and noised) layers'
    assert [row[column] for row in rows] == ['final_dense', 'dense,dense_1', 'all_dense']

  def test_two_families_get_a_table_and_a_figure_each(self, groups_of):
    runs = [{'epsilon': e, 'delta': d} for e in (3, 6) for d in (1e-5, 1e-6)]
    blocks = accuracy.epsilon(groups_of(*runs))
    assert sum(isinstance(block, pages.Table) for block in blocks) == len(factory.drawings(blocks)) == 2

  def test_what_another_flag_sets_apart_is_not_shown_twice(self, groups_of):
    # Fixed-DP at two values of ε is beside each α of QuAP-FL, which has one value of ε only.
    groups = groups_of(*({'algorithm': 'fixed_dp', 'epsilon': e} for e in (3, 6)), *({'alpha': a} for a in (0.3, 0.7)))
    assert len(factory.drawings(accuracy.epsilon(groups))) == 1


def test_a_thousand_clients(groups_of):
  at = published.AT_SCALE_FLAGS
  groups = groups_of({'accuracy': 0.8, 'noise_norm': 1.0, **at}, {'algorithm': 'fixed_dp', 'noise_norm': 4.0, **at}, {})
  found = [
    factory.row(block.rows, method='QuAP-FL') for block in accuracy.at_scale(groups) if isinstance(block, pages.Table)
  ]
  assert found[0]['difference'] == '-4.70'
  assert str(found[2]["measured: noise norm over Fixed-DP's (%)"]) == '25.0'


class TestCurves:
  def test_mean_over_the_rounds_that_all_seeds_tested(self, groups_of):
    (group,) = groups_of(*factory.seeds(1, 2, curve=[[0.1, np.nan, 0.3], [0.2, 0.2, 0.5]], rounds_run=3))
    rounds, values = accuracy.over_seeds(group, 'test_accuracy')
    assert rounds.tolist() == [1, 3]
    np.testing.assert_allclose(values, [[0.1, 0.3], [0.2, 0.5]])

  def test_a_run_that_was_tested_once_has_no_curve(self, groups_of):
    groups = groups_of(*factory.seeds(1, curve=[[np.nan, np.nan, 0.3]], rounds_run=3))
    assert not factory.drawings(accuracy.curves(groups))

  def test_seeds_that_share_a_single_round_have_no_curve(self, groups_of):
    curves = [[0.1, np.nan, 0.3], [np.nan, 0.2, 0.5]]
    groups = groups_of(*factory.seeds(1, 2, curve=curves, rounds_run=3))
    assert not factory.drawings(accuracy.curves(groups))

  def test_a_figure_for_each_place(self, groups_of):
    groups = groups_of({}, {'algorithm': 'fixed_dp'}, {'participation': 'uniform'})
    drawings = factory.drawings(accuracy.curves(groups))
    assert [figure.title for figure in drawings] == ['Test accuracy by round: MNIST'] * 2
    settings = ['Setting: participation Beta(2,5).', 'Setting: participation uniform.']
    assert all(figure.caption.endswith(setting) for figure, setting in zip(drawings, settings))

  def test_lines_are_the_means_in_percent(self, groups_of):
    groups = groups_of(
      *factory.seeds(1, 2, curve=[[0.1, 0.3], [0.2, 0.5]], rounds_run=2),
      {'algorithm': 'fedavg', 'noise_norm': 0, 'curve': [0.5, 0.6], 'rounds_run': 2},
    )
    (shown,) = factory.drawings(accuracy.curves(groups))
    lines = plots.drawn(*shown.titled).axes[0].get_lines()
    np.testing.assert_allclose([line.get_ydata() for line in lines], [[15, 40], [50, 60]])
