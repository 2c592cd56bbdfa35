"""Local privacy, asynchronous rounds, batteries and sparsified updates as runs: flags, and what they say."""

import pytest

from quap_tff import accounting
from tests.experiments import harness


def _experiment(*arguments):
  return harness.experiment(*harness.TINY, *arguments)


class TestFlags:
  def test_names_are_in_the_help(self, capsys):
    assert harness.main('--help') == 0
    shown = capsys.readouterr().out
    for name in ('local_dp', 'fedbuff', 'energy', 'top_released', 'experiments.survey'):
      assert name in shown

  @pytest.mark.parametrize(
    'arguments, message',
    [
      (['--algorithm=local_dp', '--client_metrics'], '--client_metrics: under local_dp'),
      (['--algorithm=local_dp:budget=adaptive'], "Unknown local budget 'adaptive'"),
      (['--algorithm=local_dp:clip=0'], 'clipping norm'),
      (['--algorithm=local_dp', '--clip=fixed'], "'local_dp' does not use this flag"),
      (['--algorithm=local_dp:budget=uniform', '--alpha=0.1'], 'does not use this flag'),
      (['--algorithm=fedbuff:buffer=0'], 'fedbuff buffer'),
      (['--algorithm=fedbuff:staleness=-1'], 'staleness scale'),
      (['--algorithm=fedbuff', '--noise=client', '--gaussian_calibration=analytic'], 'noise=client: FedBuff'),
      (['--algorithm=fedbuff', '--gaussian_calibration=analytic', '--clip=private_quantile'], 'count in every round'),
      (['--algorithm=fedbuff', '--sparsity=random', '--gaussian_calibration=analytic'], 'cannot update a part'),
      (['--algorithm=tff_dp_fedavg', '--sparsity=random', '--gaussian_calibration=analytic'], 'cannot update a part'),
      (['--algorithm=certified:noise=ar1', '--sparsity=random'], 'noise of other weights'),
      (['--sparsity=random:share=2', '--gaussian_calibration=analytic'], 'sparsity share'),
      (['--participation=energy:train=2', '--gaussian_calibration=analytic'], 'energy train'),
    ],
  )
  def test_bad_flags_are_refused_before_data_are_read(self, arguments, message):
    assert message in harness.refusal(*harness.TINY, *arguments)


class TestAccounts:
  def test_local_budgets_follow_quap(self):
    plan = _experiment('--algorithm=local_dp', '--alpha=1', '--warmup_rounds=0').plan
    assert plan.mechanism.facts.trust == 'client' and plan.config.budget.alpha == 1
    uniform = harness.configured(*harness.TINY, '--algorithm=local_dp:budget=uniform')
    assert uniform.budget.round_rule == 'uniform'

  @pytest.mark.slow
  @pytest.mark.parametrize(
    'arguments',
    [
      ['--algorithm=local_dp'],
      [
        '--algorithm=fedbuff:buffer=4',
        '--critical_layers=all',
        '--clip=fixed',
        '--gaussian_calibration=analytic',
        '--noclient_metrics',
      ],
    ],
  )
  @pytest.mark.thorough
  def test_calibrated_exactly_a_run_spends_epsilon(self, arguments, tmp_path, capsys):
    assert harness.main(*harness.TINY, *arguments, '--calibration=exact', f'--output_dir={tmp_path / "run"}') == 0
    capsys.readouterr()
    formal = harness.summary(tmp_path / 'run')['formal']
    assert formal['covers'] == 'released model'
    (exact,) = (figure for figure in formal['figures'] if figure['accountant'] == 'gaussian_exact')
    assert exact['epsilon_max'] == pytest.approx(4.0, rel=1e-3) and exact['epsilon_max'] <= 4.0
    wanted = accounting.REPLACE_ONE if 'local_dp' in arguments[0] else accounting.ZERO_OUT
    assert exact['neighbours'] == wanted

  def test_fedbuff_with_layer_wise_noise_has_no_finite_epsilon(self):
    plan = _experiment('--algorithm=fedbuff', '--gaussian_calibration=analytic', '--model=digits_cnn').plan
    assert not plan.protection.model_protected
