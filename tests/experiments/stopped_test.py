"""Runs that end before their last planned round, and go on; and why sampling amplifies nothing in any run."""

import numpy as np
import pytest

from experiments.auditing import canary_run
from quap_tff import accounting
from quap_tff.common.numbers import rounding
from tests.experiments import harness

pytestmark = pytest.mark.slow

_FIXED_DP = ('--algorithm=fixed_dp', '--noclient_metrics', '--calibration=exact', '--epsilon=3')


def _experiment(*arguments):
  return harness.experiment(*harness.TINY, *arguments)


def _exact(summary):
  (figure,) = (figure for figure in summary['formal']['figures'] if figure['accountant'] == 'gaussian_exact')
  return figure


def _column(folder, name):
  return np.array([float(row[name]) for row in harness.table(folder / 'clients.csv')])


class TestRun:
  def test_a_stopped_run_has_the_bound_of_its_plan_and_a_finished_one_its_ledgers(self, tmp_path, capsys):
    folder = tmp_path / 'run'
    arguments = [*harness.TINY, *_FIXED_DP, f'--output_dir={folder}']
    assert harness.main(*arguments, '--stop_at_accuracy=0.001', '--eval_every=3') == 0
    out = ' '.join(capsys.readouterr().out.splitlines())
    stopped, bounds, readings = (
      harness.summary(folder),
      *(_column(folder, name) for name in ('formal_epsilon', 'formal_epsilon_reading')),
    )
    reading = stopped['formal']['reading']
    assert (stopped['rounds'], stopped['finished'], reading['rounds']) == (3, False, 3)
    spent = accounting.epsilon_by_client(accounting.RunLedger.load(folder / 'ledger.npz'), 1e-5)
    np.testing.assert_allclose(readings, spent, rtol=1e-12)
    assert (reading['epsilon_max'], reading['epsilon_mean']) == (spent.max(), spent.mean())
    assert 2.99 < _exact(stopped)['epsilon_max'] <= 3 and (bounds >= readings).all()
    assert 'ε ≤ 3 (zero-out)' in out and 'over all 8 planned rounds.' in out
    assert 'Reading after 3 of 8 rounds' in out and '(not a guarantee: ' in out
    assert harness.last_line(out.replace('{"dataset"', '\n{"dataset"'))['formal']['reading'] == reading

    assert harness.main(*arguments, '--stop_at_accuracy=1') == 0
    out = capsys.readouterr().out
    finished = harness.summary(folder)
    assert finished['finished'] and finished['formal']['reading'] is None and 'eading after' not in out
    assert 'formal_epsilon_reading' not in harness.table(folder / 'clients.csv')[0]
    # What was said of the stopped run was not below what the rounds that followed cost.
    np.testing.assert_allclose(_column(folder, 'formal_epsilon'), bounds, rtol=1e-6)
    for name in ('epsilon_max', 'epsilon_mean', 'epsilon_median'):
      assert _exact(finished)[name] == pytest.approx(_exact(stopped)[name], rel=1e-6)

  def test_a_stopped_certified_run_verifies(self, library):
    path, out, _ = library.run('certified_stopped')
    folder = path / 'certificate'
    kept = 1 - 2.0**-11  # Of each bound, 1/2048 is kept for rounding, which costs next to nothing here.
    assert 'over all 8 planned' in ' '.join(out.split())
    summary = harness.summary(path)
    assert _exact(summary)['epsilon_max'] == pytest.approx(4 * kept, rel=1e-8) and _exact(summary)['epsilon_max'] <= 4
    stated = [float(rounding.up(kept * bound, 6)) for bound in [2] * 4 + [4] * 4]
    assert sorted(_column(folder, 'formal_epsilon')) == stated
    most = float(rounding.up(summary['formal']['reading']['epsilon_max'], 6))
    assert 0 < _column(folder, 'formal_epsilon_reading').max() == most < 3.999

  @pytest.mark.parametrize(
    'arguments',
    [['--algorithm=fixed_dp', '--dropout=markov', '--participation=bernoulli:q=0.3']],
    ids=lambda arguments: arguments[0],
  )
  @pytest.mark.thorough
  def test_the_rounds_that_ran_are_the_planned_ones(self, arguments, capsys):
    assert harness.main(*harness.TINY, '--noclient_metrics', '--stop_after=3', '--epsilon=1', *arguments) == 0
    out = capsys.readouterr().out
    summary = harness.last_line(out)
    experiment = _experiment('--noclient_metrics', '--epsilon=1', *arguments)
    whole = experiment.plan.report(experiment.plan.planned_ledger(experiment.schedule)).formal
    assert _exact(summary)['epsilon_max'] == pytest.approx(whole.epsilon.max(), rel=1e-5)
    assert summary['formal']['reading']['epsilon_max'] < _exact(summary)['epsilon_max']


# Noise of clients, a buffer with versions in flight, what was released so far, a clipping norm that is released,
# weights, an account, and control variates of clients who drop out. Other schedules follow from the round alone.
_WITH_STATE = {
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


@pytest.mark.thorough
@pytest.mark.parametrize('name', _WITH_STATE)
def test_a_run_in_two_parts_is_the_run_in_one(name, tmp_path):
  run = [*harness.TINY, *_WITH_STATE[name], '--noise_seed=7', '--checkpoint_every=1', '--keep_checkpoints']
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


def test_an_audit_of_a_run_that_stops_early_is_of_the_bound():
  experiment = _experiment(*_FIXED_DP)
  plan, schedule = experiment.plan, experiment.schedule
  claim = canary_run.claim_of(plan, plan.planned_ledger(schedule).truncated(2), schedule)
  assert claim.kind == 'formal' and 2.99 < claim.epsilon <= 3


_PLANNED = 'the noise was chosen on the planned cohorts'
_SEED = 'the cohorts follow from a seed that is not secret'


@pytest.mark.parametrize(
  'arguments, reason',
  [
    (['--algorithm=certified', '--participation=uniform'], _PLANNED),
    (['--algorithm=certified', '--participation=full'], _PLANNED),
    (['--algorithm=certified', '--participation=beta:a=2,b=5'], _PLANNED),
    (['--algorithm=fixed_dp', '--calibration=exact'], _PLANNED),
    (['--algorithm=tff_dp_fedavg', '--participation=bernoulli:q=0.9'], _PLANNED),
    (
      ['--algorithm=fixed_dp', '--participation=beta:a=2,b=5'],
      'no amplification is proven for cohorts drawn by weight or availability',
    ),
    (['--algorithm=fixed_dp', '--participation=full'], 'everyone takes part in every round'),
    (['--algorithm=fixed_dp', '--participation=uniform'], _SEED),
    (['--algorithm=fixed_dp', '--participation=bernoulli:q=0.9'], _SEED),
    (['--algorithm=tff_dp_fedavg', '--participation=bernoulli:q=0.9', '--calibration=documents'], _SEED),
    (['--algorithm=tff_dp_fedavg', '--calibration=documents', '--client_metrics'], _SEED),
    (
      ['--algorithm=fixed_dp', '--dropout=bernoulli:rate=0.1'],
      'no amplification is proven for cohorts from which clients drop out',
    ),
    (['--algorithm=local_dp'], "the server sees every client's message and whose it is"),
    (['--algorithm=lee_kifer'], 'the noise of a round was chosen from what earlier rounds released'),
    (
      ['--algorithm=fedbuff', '--critical_layers=all', '--clip=fixed:norm=1'],
      'who arrives follows from how slow clients are',
    ),
  ],
  ids=lambda value: ' '.join(value) if isinstance(value, list) else '',
)
def test_the_reason_why_sampling_amplifies_nothing_is_the_true_one(arguments, reason):
  plan = _experiment('--noclient_metrics', '--epsilon=1', *arguments).plan
  formal = plan.report(plan.new_ledger()).as_dict()['formal']
  assert [note for note in formal['notes'] if 'amplification' in note] == [f'No amplification by sampling: {reason}.']
  assert {figure['amplification'] for figure in formal['figures']} == {'none'}
