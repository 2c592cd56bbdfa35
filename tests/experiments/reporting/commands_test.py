"""The commands that a report names are commands."""

import shlex

import pytest

from experiments import flags as experiment_flags
from experiments.reporting import sections
from experiments.reporting import study as study_lib
from experiments.sweeps import grid

COMMANDS = [build(study_lib.Study((), {})).command for build in sections.SECTIONS]


@pytest.mark.parametrize('command', filter(None, COMMANDS))
def test_a_command_is_a_grid_over_a_preset(command):
  words = shlex.split(command)
  assert words[:3] == ['python', '-m', 'experiments.sweep']
  axes = [word[len('--vary='):] for word in words if word.startswith('--vary=')]
  assert axes and grid.combinations(axes, list(experiment_flags.all_values()))
  assert words[-2] == '--' and words[-1].startswith('--flagfile=experiments/presets/')
