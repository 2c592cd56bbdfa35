"""Runs of methods with a state of their own: in two parts, each is the run in one."""

import numpy as np
import pytest

from quap_tff import accounting
from tests.experiments import harness

# Noise of clients, a buffer with versions in flight, what was released so far, a clipping norm that is released,
# weights, an account, and control variates of clients who drop out. Other schedules follow from the round alone.
_METHODS = {
  'local_dp': ['--algorithm=local_dp'],
  'fedbuff': ['--algorithm=fedbuff:buffer=5,staleness=3', '--gaussian_calibration=analytic'],
  'sparse': [
    '--algorithm=fixed_dp',
    '--gaussian_calibration=analytic',
    '--sparsity=top_released:share=0.2',
    '--participation=energy',
  ],
  'acdp': ['--algorithm=acdp', '--epsilon=1.6', '--rounds=3', '--noclient_metrics'],
  'fedapca': ['--algorithm=fedapca', '--epsilon=1.6', '--rounds=3', '--noclient_metrics'],
  'lee_kifer': ['--algorithm=lee_kifer', '--epsilon=1.6', '--rounds=3', '--noclient_metrics'],
  'scaffold': [
    '--algorithm=scaffold:base=quap',
    '--dropout=bernoulli:rate=0.4',
    '--local_epochs=1..3',
    '--rounds=4',
    '--epsilon=2',
  ],
}

pytestmark = pytest.mark.slow


@pytest.mark.parametrize('name', _METHODS)
def test_a_run_in_two_parts_is_the_run_in_one(name, tmp_path):
  run = [*harness.TINY, *_METHODS[name], '--noise_seed=7', '--checkpoint_every=1', '--keep_checkpoints']
  for folder, stops in (('whole', [[]]), ('parts', [['--stop_after=2'], []])):
    for stop in stops:
      assert harness.main(*run, f'--output_dir={tmp_path / folder}', *stop) == 0
  rows = harness.rows(tmp_path / 'whole')
  assert harness.rows(tmp_path / 'parts') == rows and len(rows) > 2
  whole, parts = (
    accounting.RunLedger.load(tmp_path / folder / 'ledger.npz').state_dict() for folder in ('whole', 'parts')
  )
  for key, value in whole.items():
    np.testing.assert_array_equal(parts[key], value, key)
