"""H1 to H3: verdicts follow the numbers."""

import pytest

from experiments.reporting import hypotheses
from experiments.reporting import published
from tests.experiments.reporting import factory

SEEDS = (1, 2, 3)


def _verdicts(groups, name):
  return [row['verdict'] for row in factory.table(hypotheses.build(groups), name)]


def _accuracies(tmp_path, quap, fixed, **flags):
  return factory.groups_of(
    tmp_path,
    *factory.seeds(*SEEDS[: len(quap)], accuracy=quap, **flags),
    *factory.seeds(*SEEDS[: len(fixed)], accuracy=fixed, algorithm='fixed_dp'),
  )


@pytest.mark.parametrize(
  'quap, fixed, verdict',
  [
    ([0.90, 0.92, 0.91], [0.80, 0.81, 0.82], 'confirmed'),
    ([0.80, 0.81, 0.82], [0.90, 0.92, 0.91], 'not confirmed'),
    ([0.90, 0.70, 0.85], [0.80, 0.81, 0.82], 'not confirmed'),
    ([0.90, 0.91], [0.80, 0.82], 'not enough runs'),
  ],
)
def test_h1_flips_with_the_accuracies(tmp_path, quap, fixed, verdict):
  groups = _accuracies(tmp_path, quap, fixed)
  assert _verdicts(groups, 'h1') == [verdict]
  claim = 'H1: QuAP-FL is more accurate than uniform DP-FedAvg at equal ε_total'
  assert f'**{claim}: {verdict}.**' in factory.text(hypotheses.build(groups))


def test_the_difference_has_the_interval_that_decides(tmp_path):
  (row,) = factory.table(hypotheses.build(_accuracies(tmp_path, [0.9, 0.91, 0.95], [0.8, 0.8, 0.8])), 'h1')
  # The differences are 10, 11 and 15; their deviation is 2.646.
  assert row['difference'] == f'12.00 ± {4.302653 * 2.645751 / 3**0.5:.2f}'


def test_pairs_are_of_one_seed_and_length(groups_of):
  groups = groups_of(
    *factory.seeds(1, 2, 3, accuracy=[0.9, 0.91, 0.92]),
    *factory.seeds(2, 3, 4, accuracy=[0.8, 0.82, 0.83], algorithm='fixed_dp'),
  )
  (row,) = factory.table(hypotheses.build(groups), 'h1')
  assert (row['pairs'], row['QuAP-FL']) == ('2', '91.50')
  groups = groups_of(*factory.seeds(1, 2, rounds_run=5), *factory.seeds(1, 2, algorithm='fixed_dp'))
  assert not hypotheses.build(groups)


def test_runs_of_other_settings_are_no_pair(tmp_path):
  assert not hypotheses.build(_accuracies(tmp_path, [0.9, 0.91], [0.8, 0.82], epsilon=3))


@pytest.mark.parametrize('spread, verdict', [(-0.5, 'confirmed'), (0.5, 'not confirmed')])
def test_h2_flips_with_the_budgets(groups_of, spread, verdict):
  # Client 9 takes part most: a budget that falls with the client's number evens the sums out.
  groups = groups_of(*factory.seeds(*SEEDS, spread=spread), *factory.seeds(*SEEDS, algorithm='layerwise'))
  assert _verdicts(groups, 'h2') == [verdict] * 2


def test_h2_needs_the_deviation_itself_to_fall(groups_of):
  # Larger budgets for all, a little less so for the frequent: the coefficient falls, the deviation grows.
  groups = groups_of(*factory.seeds(*SEEDS, spread=-0.2, scale=2), *factory.seeds(*SEEDS, algorithm='layerwise'))
  deviation, coefficient = factory.table(hypotheses.build(groups), 'h2')
  assert (deviation['measured'], coefficient['measured']) == ('deviation', 'deviation / mean')
  assert float(coefficient['difference'].split()[0]) < 0 < float(deviation['difference'].split()[0])
  assert deviation['verdict'] == coefficient['verdict'] == 'not confirmed'


@pytest.mark.parametrize('layerwise, verdict', [([1.0, 1.1, 1.2], 'confirmed'), ([40.0, 41.5, 42.0], 'not confirmed')])
def test_h3_flips_with_the_noise(groups_of, layerwise, verdict):
  groups = groups_of(
    *factory.seeds(*SEEDS, noise_norm=layerwise, sigma=0.1),
    *factory.seeds(*SEEDS, noise_norm=[30.0, 30.5, 31.0], sigma=0.1, algorithm='adaptive_budget_clip'),
  )
  assert _verdicts(groups, 'h3') == [verdict]


def test_h3_separates_the_dimension_from_the_deviation(groups_of):
  groups = groups_of(
    *factory.seeds(*SEEDS, noise_norm=1.0, sigma=0.05),
    *factory.seeds(*SEEDS, noise_norm=30.0, sigma=0.1, algorithm='adaptive_budget_clip'),
  )
  (row,) = factory.table(hypotheses.build(groups), 'h3')
  assert (row['full / layer-wise'], row['of which √(d/d_c)']) == ('30.0 ± 0.0', '15.0 ± 0.0')
  assert published.NOTES['layerwise'][0] in hypotheses.build(groups)


def test_a_hypothesis_without_pairs_says_so_beside_the_others(tmp_path):
  text = factory.text(hypotheses.build(_accuracies(tmp_path, [0.9, 0.91, 0.92], [0.8, 0.82, 0.81])))
  assert text.count(': not enough runs.**') == 2
