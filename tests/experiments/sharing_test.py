"""That runs of one process share what they build. If they did not, nothing else would fail, only take twice as long."""

import pytest

from quap_tff import plans
from tests.experiments import harness


@pytest.mark.slow
def test_runs_with_the_same_flags_build_one_process(monkeypatch, tmp_path):
  built, build_process = [], plans.Plan.build_process
  monkeypatch.setattr(plans.Plan, 'build_process', lambda *given: built.append(given) or build_process(*given))
  for seed, folder, count in ((75, 'one', 1), (75, 'other', 1), (76, 'third', 2)):
    arguments = ['--algorithm=fedavg', '--rounds=1', f'--seed={seed}', f'--output_dir={tmp_path / folder}']
    assert harness.main(*harness.TINY, *arguments) == 0
    assert len(built) == count
