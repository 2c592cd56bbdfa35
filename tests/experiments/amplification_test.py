"""Which runs get a figure with amplification by sampling: those whose noise and divisor tell nothing of who came."""

import pytest

from experiments import setup
from tests.experiments import harness

_BERNOULLI, _UNIFORM = '--participation=bernoulli:q=0.9', '--participation=uniform'


@pytest.mark.parametrize('arguments, amplification', [
    (['--algorithm=tff_dp_fedavg', _BERNOULLI], 'Poisson sampling'),
    (['--algorithm=tff_dp_fedavg', _UNIFORM], '3 of 8 clients, uniformly without replacement'),
    (['--algorithm=fixed_dp', _UNIFORM], '3 of 8 clients, uniformly without replacement'),
    # Divided by how many came.
    (['--algorithm=fixed_dp', _BERNOULLI], None),
    # The noise goes by the rates of who came.
    (['--algorithm=adaptive_budget', _UNIFORM], None),
    # Noise, divisor or both are calibrated on the run's own cohorts.
    (['--algorithm=tff_dp_fedavg', _BERNOULLI, '--calibration=exact'], None),
    (['--algorithm=fixed_dp', _UNIFORM, '--calibration=exact'], None),
    # Availability is no draw.
    (['--algorithm=tff_dp_fedavg', '--participation=beta:a=2,b=5'], None),
    # Exact metrics tell who took part.
    (['--algorithm=tff_dp_fedavg', _BERNOULLI, '--client_metrics'], None),
])
def test_amplification_is_counted_only_where_it_is_earned(arguments, amplification):
  with harness.parsed(*harness.TINY, '--noclient_metrics', *arguments) as values:
    experiment = setup.from_flags(values)
  # What a run of two rounds records; certified runs are in certified_test.
  ledger = experiment.plan.planned_ledger([experiment.cohorts.cohort(t) for t in (1, 2)])
  formal = experiment.plan.report(ledger).as_dict()['formal']
  found = {figure['amplification'].partition(';')[0].partition(',')[0] for figure in formal['figures']} - {'none'}
  assert found == ({amplification.partition(',')[0]} if amplification else set())
  assert bool(amplification) != any('No amplification' in note for note in formal['notes'])
