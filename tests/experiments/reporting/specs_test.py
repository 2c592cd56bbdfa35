"""One form for every way to write a choice."""

import dataclasses

import pytest

from data import cohorts
from data import partition
from experiments import methods
from experiments.reporting import specs


@pytest.mark.parametrize('flag, value, expected', [
    ('participation', 'beta', 'beta:a=2,b=5'),
    ('participation', 'beta:b=5.0', 'beta:a=2,b=5'),
    ('participation', 'uniform', 'uniform'),
    ('partition', 'dirichlet:alpha=0.50', 'dirichlet:alpha=0.5'),
    ('algorithm', 'fixed_dp:clip=1.0', 'fixed_dp:clip=1'),
    ('algorithm', 'certified:weights=uniform', 'certified:weights=uniform'),
    ('algorithm', 'certified:clip=0.50', 'certified:clip=0.5,weights=participation'),
    ('epsilon', 6.0, 6),
    ('epsilon', 0.5, 0.5),
    ('critical_layers', 'dense,dense_1', 'dense,dense_1'),
    ('seed', None, None),
])
def test_canonical(flag, value, expected):
  assert specs.canonical(flag, value) == expected


def test_defaults_are_those_of_the_choices():
  registries = {
      'algorithm': {'certified': methods.Certified}, 'participation': cohorts.PARTICIPATION_MODELS,
      'partition': partition.PARTITIONS
  }
  for flag, choices in specs.DEFAULTS.items():
    for name, defaults in choices.items():
      fields = {field.name: field.default for field in dataclasses.fields(registries[flag][name])}
      assert {key: fields[key] for key in defaults} == defaults
