"""Runs put in groups: like with like, and nothing averaged that differs."""

import pytest

from experiments.reporting import runs as runs_lib
from experiments.reporting import study as study_lib
from tests.experiments.reporting import factory


def _collect(tmp_path, *runs):
  for number, arguments in enumerate(runs):
    factory.write_run(tmp_path / str(number), **arguments)
  return study_lib.collect(runs_lib.load(path)[0] for path in runs_lib.find([str(tmp_path)]))


def test_seeds_of_one_setting_are_a_group(tmp_path):
  study = factory.study_of(tmp_path, *factory.seeds(42, 123, 999, accuracy=[0.9, 0.8, 0.7], noise_seed=[1, 2, None]))
  (group,) = study.groups
  assert group.seeds_text == '3 (42, 123, 999)'
  assert str(group.accuracy()) == '80.00 ± 10.00'
  assert group.rounds_text == '10 of 10'


def test_ways_to_write_a_flag_are_one_setting(tmp_path):
  study = factory.study_of(
      tmp_path, {'participation': 'beta', 'epsilon': 6, 'seed': 1},
      {'participation': 'beta:b=5,a=2.0', 'epsilon': 6.0, 'num_clients': 10, 'seed': 2}
  )
  assert len(study.groups) == 1


@pytest.mark.parametrize('flag, other', [
    ('epsilon', 3), ('client_optimizer', 'sgd:learning_rate=0.1'), ('stop_at_accuracy', 0.9),
    ('algorithm', 'fixed_dp:clip=0.5'),
])
def test_another_flag_is_another_group(tmp_path, flag, other):
  study = factory.study_of(tmp_path, {'seed': 1}, {'seed': 2}, {'seed': 2, flag: other})
  assert [len(group.runs) for group in study.groups] == [2, 1]
  assert dict(study.groups[1].departures) == {flag: other}
  assert study.groups[0].departures == {}
  assert study.groups[1].label() == f'{flag}={other}'
  assert study.groups[1].label(flag) == ''


def test_departures_are_of_the_same_dataset(tmp_path):
  study = factory.study_of(tmp_path, {'seed': 1}, {'seed': 2, 'epsilon': 3}, {'dataset': 'digits', 'epsilon': 10})
  assert study.groups[-1].departures == {}


def test_a_second_run_of_a_seed_is_left_out(tmp_path):
  study, left_out = _collect(tmp_path, {'accuracy': 0.8}, {'accuracy': 0.9})
  assert study.groups[0].accuracy().mean == pytest.approx(80)
  assert left_out[0].path.endswith('1') and 'setting and seed of' in left_out[0].reason


def test_runs_that_went_less_far_are_left_out(tmp_path):
  study, left_out = _collect(tmp_path, {'seed': 1, 'rounds_run': 4}, {'seed': 2, 'rounds_run': 6})
  assert [run.seed for run in study.runs] == [2]
  assert study.groups[0].rounds_text == '6 of 10 (stopped early)'
  assert left_out[0].reason.startswith('4 rounds, others of its setting 6')


def test_runs_that_stop_at_an_accuracy_may_differ_in_length(tmp_path):
  study, left_out = _collect(
      tmp_path, *factory.seeds(1, 2, rounds_run=[4, 6], stop_at_accuracy=0.9)
  )
  assert not left_out
  assert study.groups[0].rounds_text == '4, 6 of 10 (stops at accuracy 0.9)'


def test_an_unfinished_run_is_marked(tmp_path):
  folder = factory.write_run(tmp_path / 'run', rounds_run=3)
  (folder / 'summary.json').unlink()
  study, _ = study_lib.collect([runs_lib.load(str(folder))[0]])
  assert study.groups[0].rounds_text == '3 of 10 (unfinished)'


def test_families_share_all_but_the_axes(tmp_path):
  study = factory.study_of(
      tmp_path, {'algorithm': 'quap'}, {'algorithm': 'fixed_dp'}, {'algorithm': 'quap', 'epsilon': 3}
  )
  families = study.families(('algorithm',))
  assert [[group.method for group in family.groups] for family in families] == [['quap', 'fixed_dp'], ['quap']]
  assert families[1].title == 'mnist, epsilon=3'
  assert len(study.families(('algorithm',), at_least=2)) == 1


def test_a_place_shows_the_setting_with_most_methods(tmp_path):
  study = factory.study_of(
      tmp_path, {'epsilon': 3}, {}, {'algorithm': 'fixed_dp'}, {'participation': 'uniform'}
  )
  assert [len(family.groups) for family in study.places(study.groups)] == [2, 1]


@pytest.mark.parametrize('participation, scenario', [
    ('uniform', 'uniform'), ('bernoulli:q=0.3', 'uniform'), ('beta', 'heterogeneous'),
    ('beta_bernoulli:a=2,b=5', 'heterogeneous'), ('beta:a=1,b=1', None), ('extreme_imbalance', 'extreme'),
    ('markov', None),
])
def test_the_documents_scenarios(tmp_path, participation, scenario):
  assert factory.study_of(tmp_path, {'participation': participation}).groups[0].scenario == scenario
