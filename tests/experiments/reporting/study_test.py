"""Runs in groups: like with like, nothing averaged that differs, and tables that say how their rows differ."""

import pytest

from experiments.reporting import study
from tests.experiments.reporting import factory

VALUE = study.Measure('value', lambda group: 1)


def _methods(families):
  return [[group.method for group in family.groups] for family in families]


class TestGroups:
  def test_seeds_of_one_setting_are_a_group(self, groups_of):
    (group,) = groups_of(*factory.seeds(42, 123, 999, accuracy=[0.9, 0.8, 0.7], noise_seed=[1, 2, None]))
    assert group.origin == {'seeds': '3 (42, 123, 999)', 'rounds': '10 of 10'}
    assert str(group.accuracy()) == '80.00 ± 24.84'  # 4.303·10/√3

  def test_ways_to_write_a_flag_are_one_setting(self, groups_of):
    groups = groups_of(
      {'participation': 'beta', 'epsilon': 6, 'seed': 1}, {'participation': 'beta:b=5,a=2.0', 'epsilon': 6.0, 'seed': 2}
    )
    assert len(groups) == 1

  @pytest.mark.parametrize(
    'flag, other',
    [
      ('epsilon', 3),
      ('client_optimizer', 'sgd:learning_rate=0.1'),
      ('stop_at_accuracy', 0.9),
      ('algorithm', 'fixed_dp:clip=0.5'),
    ],
  )
  def test_another_flag_is_another_group(self, groups_of, flag, other):
    groups = groups_of({'seed': 1}, {'seed': 2}, {'seed': 2, flag: other})
    assert [len(group.runs) for group in groups] == [2, 1]

  def test_a_flag_that_the_method_does_not_read_makes_no_other_setting(self, groups_of):
    runs = [dict(algorithm='fedavg', noise_norm=0, epsilon=e, seed=s) for s, e in ((1, 3), (2, 6))]
    assert len(groups_of(*runs)) == 1

  def test_a_flag_that_an_older_version_did_not_have_makes_another_setting(self, groups_of):
    groups = groups_of({'seed': 1}, {'seed': 2, 'new_flag': 1})
    assert [group.setting['new_flag'] for group in groups] == ['absent', 1]
    assert len(study.families(groups, 'algorithm')) == 2

  def test_a_second_run_of_a_seed_is_left_out(self, tmp_path):
    groups, left_out = factory.collected(tmp_path, {'accuracy': 0.8}, {'accuracy': 0.9})
    assert groups[0].accuracy().mean == pytest.approx(80)
    assert left_out[0].path.endswith('1') and 'same setting and seed as' in left_out[0].reason

  def test_runs_of_fewer_rounds_are_left_out(self, tmp_path):
    (group,), left_out = factory.collected(tmp_path, {'seed': 1, 'rounds_run': 4}, {'seed': 2, 'rounds_run': 6})
    assert list(group.runs['seed']) == [2]
    assert group.origin['rounds'] == '6 of 10 (stopped early)'
    assert left_out[0].reason.startswith('4 rounds, others of its setting 6')

  def test_runs_that_stop_at_an_accuracy_may_differ_in_length(self, tmp_path):
    (group,), left_out = factory.collected(tmp_path, *factory.seeds(1, 2, rounds_run=[4, 6], stop_at_accuracy=0.9))
    assert not left_out
    assert group.origin['rounds'] == '4, 6 of 10 (stops at accuracy 0.9)'

  def test_an_unfinished_run_is_marked(self, tmp_path):
    (factory.write_run(tmp_path / 'run', rounds_run=3) / 'summary.json').unlink()
    (group,) = factory.groups_of(tmp_path)
    assert group.origin['rounds'] == '3 of 10 (unfinished)'

  @pytest.mark.parametrize(
    'participation, scenario',
    [
      ('uniform', 'uniform'),
      ('bernoulli:q=0.3', 'uniform'),
      ('beta', 'heterogeneous'),
      ('beta_bernoulli:a=2,b=5', 'heterogeneous'),
      ('beta:a=1,b=1', None),
      ('extreme_imbalance', 'extreme'),
      ('markov', None),
    ],
  )
  def test_the_documents_scenarios(self, groups_of, participation, scenario):
    assert groups_of({'participation': participation})[0].scenario == scenario


class TestFamilies:
  def test_share_all_but_the_axes(self, groups_of):
    groups = groups_of({'algorithm': 'quap'}, {'algorithm': 'fixed_dp'}, {'algorithm': 'quap', 'epsilon': 3})
    families = study.families(groups, 'algorithm')
    assert _methods(families) == [['quap', 'fixed_dp'], ['quap']]
    assert [family.title for family in families] == ['MNIST, ε = 6', 'MNIST, ε = 3']
    assert len(study.families(groups, 'algorithm', at_least=2)) == 1

  def test_a_method_is_beside_all_that_differ_in_flags_it_does_not_read(self, groups_of):
    groups = groups_of(
      {'algorithm': 'fedavg', 'noise_norm': 0},
      *({'epsilon': e, 'algorithm': a} for e in (3, 6) for a in ('quap', 'fixed_dp')),
    )
    assert _methods(study.families(groups, 'algorithm')) == [['quap', 'fedavg', 'fixed_dp']] * 2

  def test_no_family_holds_two_settings_of_a_method(self, groups_of):
    # Fixed-DP reads neither α nor β, and agrees with both settings of QuAP-FL.
    groups = groups_of({'alpha': 0.3}, {'alpha': 0.7}, {'algorithm': 'fixed_dp'})
    assert _methods(study.families(groups, 'algorithm')) == [['quap', 'fixed_dp']] * 2

  def test_a_place_shows_the_setting_with_most_methods(self, groups_of):
    groups = groups_of({'epsilon': 3}, {}, {'algorithm': 'fixed_dp'}, {'participation': 'uniform'})
    assert _methods(study.places(groups)) == [['quap', 'fixed_dp'], ['quap']]


class TestTables:
  def test_a_setting_names_what_differs_from_most_rows(self, groups_of):
    groups = groups_of({}, {'seed': 1, 'epsilon': 3}, {'algorithm': 'fixed_dp'})
    blocks = study.by_dataset('t', 'A table', groups, [VALUE])
    assert [(row['method'], row['setting']) for row in factory.table(blocks, 't')] == [
      ('QuAP-FL', '-'),
      ('QuAP-FL', 'ε = 3'),
      ('Fixed-DP', '-'),
    ]
    assert 'Unless its setting says otherwise, a row has ε = 6.' in factory.text(blocks)

  def test_without_a_majority_every_row_says_its_value(self, groups_of):
    blocks = study.by_dataset('t', '', groups_of({}, {'epsilon': 3}), [VALUE])
    assert [row['setting'] for row in factory.table(blocks, 't')] == ['ε = 6', 'ε = 3']

  def test_a_flag_that_another_cell_states_is_no_setting(self, groups_of):
    groups = groups_of({'epsilon': 10}, {'epsilon': 3})
    rows = factory.table(study.by_dataset('t', '', groups, [VALUE], 'epsilon'), 't')
    assert 'setting' not in rows[0]

  def test_parameters_of_a_method_are_named_where_they_differ(self, groups_of):
    groups = groups_of(
      *(
        {'algorithm': f'certified:clip=0.5,weights={w}', 'certified_epsilon': 3.0} for w in ('uniform', 'participation')
      )
    )
    rows = factory.table(study.by_dataset('t', '', groups, []), 't')
    assert [row['method'] for row in rows] == [
      'Certified QuAP-FL (weights by participation)',
      'Certified QuAP-FL (equal weights)',
    ]

  def test_unequal_rounds_are_named(self, groups_of):
    groups = groups_of({'rounds_run': 5}, {'algorithm': 'fixed_dp'})
    assert 'compare only rows with equal rounds' in factory.text(study.by_dataset('t', '', groups, []))

  def test_secret_cohorts_do_not_have_the_weights_of_public_ones(self, groups_of):
    secret = {'cohort_seed': 'secret', 'participation': 'bernoulli:q=0.4'}
    groups = groups_of(
      {'algorithm': 'certified', **secret},
      *({'algorithm': f'certified:weights={w},noise=independent'} for w in ('online', 'uniform')),
    )
    rows = factory.table(study.by_dataset('t', '', groups, []), 't')
    assert {row['method'] for row in rows if 'secret' in row['setting']} == {
      'Certified QuAP-FL (weights by the rates of the coins)'
    }

  def test_a_printed_figure_stands_alongside_the_measured_one(self, groups_of):
    measure = study.Measure('accuracy', 'accuracy', 1, printed=lambda group: 93.3)
    (row,) = factory.table(study.by_dataset('t', '', groups_of({'accuracy': 0.8}), [measure]), 't')
    assert (row['accuracy'], row['accuracy in the documents']) == ('80.0', '93.3')


class TestDifferences:
  def test_differences_are_of_one_seed_each_also_where_a_method_has_no_run_of_it(self, groups_of):
    ours = [dict(seed=seed, accuracy=accuracy) for seed, accuracy in ((1, 0.5), (2, 0.6), (3, 0.8), (4, 0.9))]
    theirs = [{**one, 'algorithm': 'fixed_dp', 'accuracy': one['accuracy'] - 0.1} for one in ours[1:]]
    group, reference = groups_of(*ours, *theirs)
    assert (group.method, reference.method) == ('quap', 'fixed_dp')
    difference = study.minus(group, reference)
    assert (difference.mean, difference.count) == (pytest.approx(10), 3)
    assert difference.half == pytest.approx(0, abs=1e-9)
