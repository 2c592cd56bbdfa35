"""Runs whose noise is chosen from other rounds: their certificates are for cohorts as they came."""

import json

import numpy as np
import pytest

from experiments import verify
from quap_tff import accounting
from tests.experiments import harness
from tests.quap_tff.certificates import made

_CAME = ('--participation=beta:a=2,b=5', '--cohort_size=3', '--rounds=4')


def _certified(path, *flags, spec='certified:expected=5,weights=online,noise=ar1'):
  arguments = [*harness.TINY, *_CAME, f'--algorithm={spec}', *flags, f'--output_dir={path}']
  assert harness.main(*arguments) == 0
  return path


@pytest.mark.slow
@pytest.mark.parametrize('spec', ['certified:expected=5', 'certified:expected=5,trust=secure_sum'])
@pytest.mark.parametrize('dropout', ['none', 'bernoulli:rate=0.3'])
def test_a_run_has_a_certificate_for_cohorts_as_they_came(spec, dropout, tmp_path, capsys):
  path = _certified(tmp_path / 'run', f'--dropout={dropout}', spec=spec)
  summary = harness.last_line(capsys.readouterr().out)
  assert summary['formal']['reading']['why'].startswith('who came, and when') and summary['share_of_ceiling'] is None
  certificate = json.loads((path / 'certificate.json').read_text())
  assert certificate['guarantee']['cohorts'] == 'as they came' and not (path / 'schedule.npz').exists()
  assert verify.main(['verify', str(path)]) == 0
  experiment = harness.experiment(*harness.TINY, *_CAME, f'--algorithm={spec}', f'--dropout={dropout}')
  came = [one.cohort.tolist() for one in accounting.RunLedger.load(path / 'ledger.npz').history]
  assert came == [np.asarray(cohort).tolist() for cohort in experiment.schedule]


@pytest.mark.slow
def test_the_noise_follows_other_rounds_of_the_same_clients():
  found = {}
  for spec in ('certified', 'certified:expected=5', 'certified:expected=6'):
    plan = harness.experiment(*harness.TINY, *_CAME, f'--algorithm={spec}').plan
    found[spec] = plan.config.noise_multiplier
    assert plan.cohorts == ('planned' if spec == 'certified' else 'as they came')
  assert len(set(found.values())) > 1


@pytest.mark.slow
def test_other_clients_than_the_flags_give_are_found(tmp_path, capsys):
  path = _certified(tmp_path / 'run')

  def swapped(kept):
    clients = kept['clients'][: kept['offsets'][1]]
    clients[0] = np.setdiff1d(np.arange(8), clients)[0]

  made.change_arrays(path, 'ledger.npz', swapped)
  capsys.readouterr()
  assert verify.main(['verify', str(path)]) == 1


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
