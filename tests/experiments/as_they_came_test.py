"""Runs whose noise is chosen from other rounds: their certificates are for cohorts as they came."""

import json

import numpy as np
import pytest

from quap_tff import accounting
from quap_tff import verify
from tests.experiments import harness
from tests.quap_tff.certificates import made

_CAME = ('--participation=beta:a=2,b=5', '--cohort_size=3', '--rounds=4')


@pytest.mark.slow
@pytest.mark.parametrize(
  'spec, dropout',
  [
    ('certified:expected=5', 'none'),
    pytest.param('certified:expected=5,trust=secure_sum', 'bernoulli:rate=0.3', marks=pytest.mark.thorough),
  ],
)
def test_a_run_has_a_certificate_for_cohorts_as_they_came_and_for_no_others(spec, dropout, tmp_path, capsys):
  path = tmp_path / 'run'
  flags = [*harness.TINY, *_CAME, f'--algorithm={spec}', f'--dropout={dropout}', f'--output_dir={path}']
  assert harness.main(*flags) == 0
  summary = harness.last_line(capsys.readouterr().out)
  assert summary['formal']['reading']['why'].startswith('who came, and when') and summary['share_of_ceiling'] is None
  certificate = json.loads((path / 'certificate' / 'certificate.json').read_text())
  assert certificate['guarantee']['cohorts'] == 'as they came' and not (path / 'certificate' / 'schedule.npz').exists()
  assert verify.main([str(path)]) == 0
  experiment = harness.experiment(*harness.TINY, *_CAME, f'--algorithm={spec}', f'--dropout={dropout}')
  came = [one.cohort.tolist() for one in accounting.RunLedger.load(path / 'certificate' / 'ledger.npz').history]
  assert came == [np.asarray(cohort).tolist() for cohort in experiment.schedule]

  def swapped(kept):
    clients = kept['clients'][: kept['offsets'][1]]
    clients[0] = np.setdiff1d(np.arange(8), clients)[0]

  made.change_arrays(path / 'certificate', 'ledger.npz', swapped)
  assert verify.main([str(path)]) == 1


@pytest.mark.slow
def test_the_noise_follows_other_rounds_of_the_same_clients():
  found = {}
  for spec in ('certified', 'certified:expected=5', 'certified:expected=6'):
    plan = harness.experiment(*harness.TINY, *_CAME, f'--algorithm={spec}').plan
    found[spec] = plan.config.noise_multiplier
    assert plan.cohorts == ('planned' if spec == 'certified' else 'as they came')
  assert len(set(found.values())) > 1


@pytest.mark.parametrize(
  'flags, words',
  [
    (['--algorithm=certified:expected=-1'], 'expected must be an integer at least 0'),
    (['--algorithm=certified:expected=1.5'], 'expected must be an integer'),
    (
      ['--algorithm=certified:expected=1,trust=secure_sum,colluders=2'],
      'no ε against them is stated for cohorts as they come',
    ),
    (['--algorithm=certified:expected=1,weights=spend_evenly', '--participation=uniform'], 'so it needs a schedule'),
  ],
)
def test_refused(flags, words):
  assert words in harness.refusal(*harness.TINY, *flags)
