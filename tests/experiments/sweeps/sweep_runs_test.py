"""Grids: what combinations they mean, how these are named and put beside base flags, and what is wrong with a plan."""

import pytest

from experiments.sweeps import sweep_runs


def test_axes_are_multiplied_and_the_last_varies_fastest():
  assert sweep_runs.combinations(['algorithm=fedavg|quap', 'seed=42|7']) == [
    {'algorithm': 'fedavg', 'seed': '42'},
    {'algorithm': 'fedavg', 'seed': '7'},
    {'algorithm': 'quap', 'seed': '42'},
    {'algorithm': 'quap', 'seed': '7'},
  ]


def test_values_may_hold_commas_colons_and_equals_signs():
  clip = 'quantile_ema:quantile=0.8,max_clip=1.0'
  assert sweep_runs.combinations([f'clip={clip}|fixed:norm=2']) == [{'clip': clip}, {'clip': 'fixed:norm=2'}]


def test_flags_of_one_axis_go_together():
  assert sweep_runs.combinations(['dataset=mnist|cifar10;flagfile=a.flags|b.flags', 'seed=1|2']) == [
    {'dataset': 'mnist', 'flagfile': 'a.flags', 'seed': '1'},
    {'dataset': 'mnist', 'flagfile': 'a.flags', 'seed': '2'},
    {'dataset': 'cifar10', 'flagfile': 'b.flags', 'seed': '1'},
    {'dataset': 'cifar10', 'flagfile': 'b.flags', 'seed': '2'},
  ]


@pytest.mark.parametrize(
  'axes, message',
  [
    (['algoritm=quap'], "Unknown flag 'algoritm'. Did you mean 'algorithm'"),
    (['--seed=1'], "Did you mean 'seed'"),
    (['seed'], 'expected name=value|value'),
    (['=1'], 'expected name=value|value'),
    (['seed='], 'empty value'),
    (['seed=1||2'], 'empty value'),
    (['seed=1|2|1'], '--seed=1 appears 2 times'),
    (['seed=1|2', 'algorithm=quap', 'seed=3'], '--seed appears 2 times in the grid'),
    (['seed=1;seed=2'], "'seed' appears twice"),
    (['dataset=mnist|cifar10;seed=1|2|3'], "'dataset' has 2, 'seed' has 3"),
    (['output_dir=a|b'], 'gives each run its own --output_dir'),
  ],
)
def test_a_wrong_grid_is_named(axes, message):
  with pytest.raises(ValueError) as caught:
    sweep_runs.combinations(axes)
  assert message in str(caught.value)


def test_names_are_readable_and_depend_on_the_combination_only():
  combination = {'seed': '42', 'clip': 'quantile_ema:quantile=0.8,max_clip=1.0', 'flagfile': 'presets/mnist_2025.flags'}
  name = 'clip=quantile_ema-quantile=0.8-max_clip=1.0,flagfile=mnist_2025,seed=42'
  assert sweep_runs.directory_name(combination) == name
  assert sweep_runs.directory_name(dict(reversed(combination.items()))) == name


@pytest.mark.parametrize('value', ['..', '../..', '/', '*', 'a b', '-rf'])
def test_no_value_makes_a_name_that_leads_elsewhere(value):
  name = sweep_runs.directory_name({'data_dir': value})
  assert name.startswith('data_dir=') and '/' not in name and ' ' not in name and '*' not in name


def test_the_grid_overrides_the_base_and_the_base_a_flag_file_of_the_grid():
  found = sweep_runs.arguments_of(['--rounds=5', '--seed=1'], {'seed': '2', 'flagfile': 'a.flags'})
  assert found == ['--flagfile=a.flags', '--rounds=5', '--seed=1', '--seed=2']
