"""The sections' tables: measured values beside printed ones, and what is said where there are none."""

import numpy as np
import pytest

from experiments.reporting import documents
from experiments.reporting import sections
from experiments.reporting import study as study_lib
from experiments.reporting.sections import ablation
from experiments.reporting.sections import accuracy
from experiments.reporting.sections import alpha_beta
from experiments.reporting.sections import at_scale
from experiments.reporting.sections import budgets
from experiments.reporting.sections import certified
from experiments.reporting.sections import communication
from experiments.reporting.sections import convergence
from experiments.reporting.sections import cost
from experiments.reporting.sections import critical_layers
from experiments.reporting.sections import cumulative
from experiments.reporting.sections import curves
from experiments.reporting.sections import early_stop
from experiments.reporting.sections import epsilon
from experiments.reporting.sections import fairness
from experiments.reporting.sections import heterogeneity
from experiments.reporting.sections import noise
from experiments.reporting.sections import participation
from experiments.reporting.sections import privacy_and_accuracy
from tests.experiments.reporting import factory

# The documents' tables are of 100 clients.
FULL = {'num_clients': 100, 'cohort_size': 30}


def _row(rows, **cells):
  (found,) = [row for row in rows if all(row[name] == value for name, value in cells.items())]
  return found


@pytest.mark.parametrize('build', [b for b in sections.SECTIONS if b.__module__.split('.')[-1] not in ('hypotheses',)])
def test_a_section_without_runs_names_the_command(build):
  section = build(study_lib.Study((), {}))
  if build is not privacy_and_accuracy.build:
    assert '`python -m experiments.sweep' in factory.text(section)


class TestAccuracy:

  def test_beside_the_documents(self, tmp_path):
    study = factory.study_of(tmp_path, *factory.seeds(1, 2, accuracy=[0.93, 0.94], **FULL))
    rows = factory.table(accuracy.build(study), 'accuracy_epsilon_6')
    found = _row(rows, dataset='mnist', method='QuAP-FL')
    assert found['document: accuracy (%)'] == '93.30 ± 0.10'
    assert found['measured: accuracy (%)'] == '93.50 ± 0.71'
    assert found['difference'] == '+0.20'
    assert found['seeds'] == '2 (1, 2)'
    assert _row(rows, dataset='mnist', method='Fixed-DP')['measured: accuracy (%)'] == 'not run'
    assert len(rows) == 6

  def test_only_runs_of_the_tables_own_epsilon_and_scenario(self, tmp_path):
    study = factory.study_of(
        tmp_path, {'epsilon': 3, 'accuracy': 0.8, **FULL}, {'epsilon': 6, 'accuracy': 0.9, **FULL},
        {'epsilon': 3, 'accuracy': 0.7, 'participation': 'uniform', **FULL}
    )
    rows = factory.table(accuracy.build(study), 'accuracy_epsilon_3')
    measured = {row['participation']: row['measured: accuracy (%)'] for row in rows if row['method'] == 'QuAP-FL'
                and row['dataset'] == 'mnist'}
    assert measured == {'uniform': '70.00', 'heterogeneous, Beta(2,5)': '80.00'}

  def test_mixed_settings_split_the_row_and_are_named(self, tmp_path):
    study = factory.study_of(
        tmp_path, {'accuracy': 0.8, **FULL}, {'accuracy': 0.9, 'client_optimizer': 'sgd:learning_rate=0.1', **FULL}
    )
    section = accuracy.build(study)
    rows = [row for row in factory.table(section, 'accuracy_epsilon_6') if row['method'] == 'QuAP-FL'][:2]
    assert [(row['setting'], row['measured: accuracy (%)']) for row in rows] == [
        ('-', '80.00'), ('client_optimizer=sgd:learning_rate=0.1', '90.00')
    ]
    assert 'differ in more than the table\'s own columns: `client_optimizer`' in factory.text(section)

  def test_early_stop_is_named_beside_the_difference(self, tmp_path):
    study = factory.study_of(tmp_path, {'accuracy': 0.8, **FULL})
    assert 'stops training once the test accuracy reaches 93.2%' in factory.text(accuracy.build(study))

  def test_fedavg_at_any_epsilon(self, tmp_path):
    study = factory.study_of(tmp_path, {'algorithm': 'fedavg', 'epsilon': 3, 'noise_norm': 0, **FULL})
    rows = factory.table(accuracy.build(study), 'accuracy_epsilon_6')
    assert rows[0]['measured: accuracy (%)'] == '90.00'


def test_early_stop_beside_the_documents(tmp_path):
  study = factory.study_of(
      tmp_path, {},
      {'accuracy': 0.9321, 'rounds_run': 7, 'stop_at_accuracy': 0.932, 'participation': 'hybrid_reference'}
  )
  (row,) = factory.table(early_stop.build(study), 'early_stop')
  assert (row['document: accuracy (%)'], row['measured: accuracy (%)']) == ('93.30 ± 0.10', '93.21')
  assert row['rounds run of planned'] == '7 of 10 (stops at accuracy 0.932)'


def test_privacy_beside_accuracy(tmp_path):
  study = factory.study_of(
      tmp_path, {'algorithm': 'quap', **FULL}, {'algorithm': 'fedavg', 'noise_norm': 0, 'covers': 'nothing', **FULL}
  )
  rows = factory.table(privacy_and_accuracy.build(study), 'privacy_and_accuracy')
  assert [row['method'] for row in rows] == ['QuAP-FL', 'FedAvg (no privacy)']
  assert all('no finite ε for the released model' in row['formal figure and what it covers'] for row in rows)
  assert rows[1]['nominal ε, max over clients'] == '-'
  assert rows[0]['document: accuracy (%)'] == '93.30 ± 0.10'


@pytest.mark.parametrize('run', [
    {'calibration': 'exact'}, {'algorithm': 'certified', 'certified_epsilon': 3.0}
])
def test_no_nominal_figure_of_noise_that_is_not_the_documents(tmp_path, run):
  (row,) = factory.table(privacy_and_accuracy.build(factory.study_of(tmp_path, run)), 'privacy_and_accuracy')
  assert (row['nominal ε, max over clients'], row['nominal δ, max']) == ('-', '-')


class TestConvergence:

  def test_rounds_to_90(self, tmp_path):
    study = factory.study_of(tmp_path, *factory.seeds(
        1, 2, curve=[[0.1, 0.9, 0.8], [0.1, 0.5, 0.95]], rounds_run=3, **FULL
    ))
    rows = factory.table(convergence.build(study), 'rounds_to_90')
    found = _row(rows, participation='heterogeneous, Beta(2,5)', method='QuAP-FL')
    assert (found['document: rounds'], found['measured: rounds'], found['difference']) == ('67', '2.5 ± 0.7', '-64.5')
    assert _row(rows, participation='extreme imbalance', method='Fixed-DP')['document: rounds'] == 'not reached'

  def test_not_reached(self, tmp_path):
    study = factory.study_of(tmp_path, *factory.seeds(
        1, 2, curve=[[0.1, 0.9], [0.1, 0.89]], rounds_run=2, **FULL
    ))
    assert convergence.rounds_to_target(study.groups[0]) == 'not reached in 1 of 2 seeds in 2 rounds'
    study = factory.study_of(tmp_path / 'b', {'curve': [0.1, 0.2], 'rounds_run': 2})
    assert convergence.rounds_to_target(study.groups[0]) == 'not reached in 2 rounds'


class TestBudgets:

  def test_measured_by_rate(self, tmp_path):
    study = factory.study_of(tmp_path, {'spread': 0.5})
    (run,) = study.runs
    rates, ratios = budgets.measured(run)
    seen = np.flatnonzero(run.ledger.counts)
    np.testing.assert_allclose(rates, run.ledger.counts[seen] / 10)
    np.testing.assert_allclose(ratios, 1 + 0.5 * seen / 10)

  def test_printed_numbers_are_not_the_formulas(self, tmp_path):
    rows = factory.table(budgets.build(factory.study_of(tmp_path, {})), 'budget_by_rate')
    assert [(row['document: as printed'], row['document: its formula']) for row in rows] == [
        ('1.400', '1.409'), ('1.067', '1.184'), ('1.000', '1.083')
    ]

  def test_of_runs_with_adaptive_budgets_only(self, tmp_path):
    assert not budgets.build(factory.study_of(tmp_path, {'algorithm': 'fixed_dp'})).blocks


def test_fairness_three_ways(tmp_path):
  study = factory.study_of(tmp_path, {'algorithm': 'fixed_dp'}, {'spread': 2.0})
  rows = factory.table(fairness.build(study), 'fairness')
  quap, fixed = _row(rows, method='QuAP-FL'), _row(rows, method='Fixed-DP')
  counts = study.runs[0].ledger.counts
  of_counts = f'{counts.sum()**2 / (10 * (counts**2).sum()):.3f}'
  assert quap['measured: participation counts'] == fixed['measured: participation counts'] == of_counts
  assert fixed['measured: cumulative nominal ε'] == of_counts
  spent = counts * (1 + 2 * np.arange(10) / 10)
  assert quap['measured: cumulative nominal ε'] == f'{spent.sum()**2 / (10 * (spent**2).sum()):.3f}'
  assert quap['measured: test accuracy by client'] == '0.957'  # Of linspace(0.5, 1, 10).
  assert quap['document: over what, it does not say'] == '0.76'


def test_ablation_has_all_eight_rows(tmp_path):
  study = factory.study_of(
      tmp_path, *({'algorithm': name, 'accuracy': value, **FULL}
                  for name, value in [('quap', 0.9), ('fixed_dp', 0.8), ('layerwise', 0.85)])
  )
  rows = factory.table(ablation.build(study), 'ablation')
  assert len(rows) == 8
  parts = ('adaptive budget', 'adaptive clip', 'layer-wise noise')
  by_parts = {tuple(row[part] for part in parts): row for row in rows}
  full, none = by_parts['yes', 'yes', 'yes'], by_parts['no', 'no', 'no']
  assert (full['document: accuracy (%)'], full['measured: accuracy (%)']) == ('93.30', '90.00')
  assert (none['document: accuracy (%)'], none['measured: accuracy (%)']) == ('89.40', '80.00')
  assert by_parts['no', 'yes', 'yes']['measured: accuracy (%)'] == '85.00'
  assert by_parts['yes', 'yes', 'no']['measured: accuracy (%)'] == 'not run'


def test_alpha_beta_grid(tmp_path):
  study = factory.study_of(
      tmp_path, *({'dataset': 'cifar10', 'alpha': a, 'beta': 2, 'accuracy': a} for a in (0.3, 0.5))
  )
  rows = factory.table(alpha_beta.build(study), 'alpha_beta')
  assert len(rows) == 9
  found = _row(rows, **{'α': '0.5', 'β': '2'})
  assert (found['document: accuracy (%)'], found['measured: accuracy (%)']) == ('81.2', '50.00')
  assert _row(rows, **{'α': '0.7', 'β': '3'})['measured: accuracy (%)'] == 'not run'


class TestOneFlag:

  def test_dirichlet(self, tmp_path):
    study = factory.study_of(tmp_path, *(
        {'algorithm': method, 'partition': f'dirichlet:alpha={a}', 'accuracy': value, **FULL}
        for method, a, value in [('quap', 0.1, 0.9), ('quap', 10, 0.95), ('fixed_dp', 0.1, 0.8), ('fixed_dp', 10, 0.95)]
    ))
    section = heterogeneity.build(study)
    assert len(factory.table(section, 'dirichlet')) == 4
    gains = factory.table(section, 'dirichlet_gain')
    assert [(row['Dirichlet a'], row['measured: QuAP-FL less Fixed-DP (points)']) for row in gains] == [
        ('0.1', '10.00'), ('10', '0.00')
    ]
    assert gains[0]['document'] == 'more than 5 points'

  def test_only_methods_with_several_values(self, tmp_path):
    study = factory.study_of(tmp_path, {'epsilon': 3}, {'epsilon': 6}, {'algorithm': 'fixed_dp'})
    rows = factory.table(epsilon.build(study), 'epsilon_total')
    assert [(row['method'], row['nominal ε_total over the planned rounds']) for row in rows] == [
        ('QuAP-FL', '3'), ('QuAP-FL', '6')
    ]

  def test_certified_is_no_row_of_nominal_budgets(self, tmp_path):
    runs = [{'algorithm': 'certified', 'epsilon': e, 'certified_epsilon': e} for e in (1, 3)]
    assert not epsilon.build(factory.study_of(tmp_path, *runs)).blocks

  def test_exact_calibration_is_no_nominal_budget(self, tmp_path):
    runs = [{'epsilon': e, 'calibration': c} for e in (3, 6) for c in ('documents', 'exact')]
    section = epsilon.build(factory.study_of(tmp_path, *runs))
    assert len(factory.table(section, 'epsilon_total')) == 2
    column = 'formal ε_total, by exact accounting'
    assert [row[column] for row in factory.table(section, 'epsilon_exact')] == ['3', '6']

  def test_participation_and_critical_layers(self, tmp_path):
    study = factory.study_of(
        tmp_path, {}, {'participation': 'beta:a=1,b=1'}, {'critical_layers': 'all_dense'},
        {'critical_layers': 'dense,dense_1'}
    )
    rows = factory.table(participation.build(study), 'participation')
    assert [row['participation model'] for row in rows] == ['beta:a=1,b=1', 'beta:a=2,b=5']
    rows = factory.table(critical_layers.build(study), 'critical_layers')
    column = 'critical (clipped and noised) layers'
    assert [row[column] for row in rows] == ['final_dense', 'dense,dense_1', 'all_dense']

  def test_two_families_get_a_table_each(self, tmp_path):
    runs = [{'epsilon': e, 'delta': d} for e in (3, 6) for d in (1e-5, 1e-6)]
    tables = [b.name for b in epsilon.build(factory.study_of(tmp_path, *runs)).blocks if hasattr(b, 'columns')]
    assert tables == ['epsilon_total_1', 'epsilon_total_2']


def test_cumulative_privacy_of_top_and_bottom(tmp_path):
  study = factory.study_of(tmp_path, {'spread': 1.0}, {'algorithm': 'layerwise'})
  rows = factory.table(cumulative.build(study), 'cumulative_privacy')
  (run,) = study.select('layerwise')[0].runs
  counts = np.sort(run.ledger.counts)
  uniform = _row(rows, method='Layer-wise, uniform budget')
  assert uniform['measured: top 20%'] == f'{0.6 * counts[-2:].mean():.3f}'
  assert uniform['measured: bottom 20%'] == f'{0.6 * counts[:2].mean():.3f}'
  assert _row(rows, method='QuAP-FL')['document: top 20%'] == 'below ε_total'
  top, _ = cumulative.by_round(run)
  assert len(top) == 10 and np.all(np.diff(top) >= 0)


def test_a_thousand_clients(tmp_path):
  at = {'num_clients': documents.AT_SCALE_CLIENTS, 'cohort_size': documents.AT_SCALE_COHORT}
  study = factory.study_of(
      tmp_path, {'accuracy': 0.8, 'noise_norm': 1.0, **at}, {'algorithm': 'fixed_dp', 'noise_norm': 4.0, **at}, {}
  )
  section = at_scale.build(study)
  assert _row(factory.table(section, 'at_scale_accuracy'), method='QuAP-FL')['difference'] == '-4.70'
  noise_row = _row(factory.table(section, 'at_scale_noise'), method='QuAP-FL')
  assert noise_row['measured: noise norm over Fixed-DP\'s (%)'] == '25.0'


class TestCurves:

  def test_mean_over_the_rounds_that_all_seeds_tested(self, tmp_path):
    study = factory.study_of(tmp_path, *factory.seeds(1, 2, curve=[[0.1, np.nan, 0.3], [0.2, 0.2, 0.5]], rounds_run=3))
    rounds, values = curves.over_seeds(study.groups[0], 'test_accuracy')
    assert rounds.tolist() == [1, 3]
    np.testing.assert_allclose(values, [[0.1, 0.3], [0.2, 0.5]])

  def test_a_figure_for_each_place(self, tmp_path):
    study = factory.study_of(tmp_path, {}, {'algorithm': 'fixed_dp'}, {'participation': 'uniform'})
    names = [block.name for block in curves.build(study).blocks if hasattr(block, 'draw')]
    assert names == ['accuracy_1', 'accuracy_2']

  def test_methods_that_do_not_log_a_column_are_left_out(self, tmp_path):
    study = factory.study_of(tmp_path, {'noise_norm': 3.0}, {'algorithm': 'fedavg', 'noise_norm': 0})
    rows = factory.table(noise.build(study), 'noise_to_signal')
    assert [(row['method'], row['noise / signal']) for row in rows] == [('QuAP-FL', '3.00')]


def test_bytes_beside_fedavg(tmp_path):
  study = factory.study_of(
      tmp_path, {'up_bytes': 4012}, {'algorithm': 'fedavg', 'noise_norm': 0, 'up_bytes': 4000}
  )
  found = _row(factory.table(communication.build(study), 'communication'), method='QuAP-FL')
  assert found['document: bytes more than FedAvg'] == '4'
  assert found['measured: bytes more than FedAvg'] == '12'
  assert found['measured: upload over FedAvg\'s'] == '1.0030'


def test_cost(tmp_path):
  study = factory.study_of(tmp_path, *factory.seeds(1, 2, seconds=[1.0, 2.0]))
  (row,) = factory.table(cost.build(study), 'cost')
  assert row['seconds a round (median)'] == '1.50 ± 0.71'
  assert row['cores'] == '2'


class TestCertified:

  def test_only_what_holds_for_the_released_model(self, tmp_path):
    study = factory.study_of(
        tmp_path,
        *({'algorithm': f'certified:weights={w}', 'epsilon': 3, 'certified_epsilon': 2.9} for w in ('even', 'uniform')),
        {'algorithm': 'tff_dp_fedavg', 'epsilon': 3, 'covers': 'released model', 'epsilon_max': 3.0},
        {'algorithm': 'quap', 'epsilon': 3},
    )
    rows = factory.table(certified.build(study), 'certified')
    assert [(row['weights'], row['ε, max over clients']) for row in rows] == [
        ('-', '3.000'), ('even', '2.900'), ('uniform', '2.900')
    ]

  def test_none_without_certified_runs(self, tmp_path):
    study = factory.study_of(tmp_path, {'algorithm': 'tff_dp_fedavg', 'covers': 'released model'})
    assert not certified.build(study).blocks
