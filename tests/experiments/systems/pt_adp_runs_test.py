"""Budgets by transactions as a method: what it spends is what was given, and it claims nothing."""

import types

import numpy as np
import pytest

from experiments.systems import pt_adp
from quap_tff import accounting
from tests.experiments import harness

_ARGUMENTS = (*harness.TINY, '--algorithm=pt_adp:agreement_credit=0.4', '--epsilon=1.6')


def _experiment(*arguments):
  return harness.experiment(*_ARGUMENTS, *arguments)


class TestPtAdp:
  def test_configuration(self):
    config = _experiment('--critical_layers=all', '--warmup_rounds=5', '--seed=11').plan.config
    assert config.budget.client_rule == pt_adp.PtAdp(0.1, 0.4, seed=11)
    assert (config.budget.round_rule, config.participation.warmup_rounds) == ('each_own', 0)
    assert config.critical_layers == 'all'

  @pytest.mark.slow
  @pytest.mark.thorough
  def test_a_run_spends_what_was_given(self):
    experiment = _experiment('--noise_seed=1')
    result = harness.trained(experiment)
    state = result.ledger.state_dict()
    budgets, sizes = state['budgets'], np.diff(state['offsets'])
    np.testing.assert_allclose(np.add.reduceat(budgets, state['offsets'][:-1]), sizes * 0.2, rtol=1e-5)
    assert len(np.unique(budgets)) > len(sizes)
    per_round = np.split(budgets, state['offsets'][1:-1])
    z = [np.sqrt(np.sum(2 * np.log(1.25e5) / own**2)) for own in per_round]
    np.testing.assert_allclose(state['noise_multipliers'], z, rtol=1e-4)

  def test_claims_nothing(self):
    plan = _experiment('--noclient_metrics', '--critical_layers=all', '--clip=fixed').plan
    assert plan.protection.covers == accounting.COVERS[2] and not plan.protection.model_protected
    assert 'an interpretation' in plan.protection.text
    assert 'noise_multiplier' not in plan.public_metrics and 'clipping_norm' in plan.public_metrics

  def test_exact_calibration_is_refused(self):
    with pytest.raises(ValueError, match='--calibration=documents'):
      _experiment('--calibration=exact')

  def test_noise_at_the_clients_is_refused(self):
    with pytest.raises(ValueError, match='Noise at the clients needs budgets'):
      _experiment('--noise=client')

  def test_without_noise_budgets_are_infinite(self):
    plan = _experiment('--noise=none').plan
    state = types.SimpleNamespace(
      budget=dict(given=np.ones(8, np.float32)), participation=dict(counts=np.ones(8, np.int32))
    )
    measured = dict(noise_multiplier=0.0, clipping_norm=1.0, cohort_size=2)
    record = plan.recorded(state, measured, np.array([1, 4]))
    assert record.budgets.tolist() == [np.inf, np.inf]
