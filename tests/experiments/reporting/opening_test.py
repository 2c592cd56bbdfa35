"""The finding: the best method at an equal guarantee, whether it is ahead, and who wins elsewhere."""

import pytest

from experiments.reporting import naming
from experiments.reporting import opening
from tests.experiments.reporting import factory

_TFF = {'algorithm': 'tff_dp_fedavg', 'epsilon': 3, 'covers': 'released model', 'epsilon_max': 3.0}
_OURS = {'algorithm': 'certified', 'epsilon': 3, 'certified_epsilon': 3.0}


def _found(folder, *runs):
  words, blocks = opening.finding(factory.groups_of(folder, *runs))
  return words, factory.table(blocks, 'finding'), factory.text(blocks)


def test_methods_at_an_equal_guarantee_and_where_another_wins(tmp_path):
  words, rows, notes = _found(
    tmp_path,
    *factory.seeds(1, 2, 3, accuracy=[0.9, 0.91, 0.92], **_OURS),
    *factory.seeds(1, 2, 3, accuracy=[0.7, 0.71, 0.73], **_TFF),
    *factory.seeds(1, 2, 3, accuracy=[0.8, 0.8, 0.8], **{**_OURS, 'epsilon': 1}),
    *factory.seeds(1, 2, 3, accuracy=[0.85, 0.85, 0.85], **{**_TFF, 'epsilon': 1}),
    {'algorithm': 'quap', 'accuracy': 0.99},
  )
  assert words == (
    'At a formal ε of 3 for the whole released model, on MNIST with participation Beta(2,5), Certified QuAP-FL is '
    'ahead of TFF DP-FedAvg, with 91.0 ± 1.0% against 71.3 ± 1.5%; of all 2 combinations of ε and participation, the '
    'best mean is that of Certified QuAP-FL in 1, TFF DP-FedAvg in 1.'
  )
  assert [(row['method'], row['ε = 1'], row['ε = 3']) for row in rows] == [
    ('Certified QuAP-FL', '80.0 ± 0.0', '91.0 ± 1.0'),
    ('TFF DP-FedAvg †', '85.0 ± 0.0', '71.3 ± 1.5'),
  ]
  assert notes.startswith('† These figures hold for ideal Gaussian noise.')


@pytest.mark.parametrize('others, is_clear', [([0.5, 0.51, 0.9], False), ([0.5, 0.51, 0.52], True)])
def test_a_lead_within_the_interval_is_said_to_be_unclear(tmp_path, others, is_clear):
  words, _, _ = _found(
    tmp_path, *factory.seeds(1, 2, 3, accuracy=0.9, **_OURS), *factory.seeds(1, 2, 3, accuracy=others, **_TFF)
  )
  assert 'Certified QuAP-FL is ahead of TFF DP-FedAvg' in words
  assert ('a lead that the seeds do not tell from chance' in words) is not is_clear


def test_without_equal_guarantees_it_is_about_accuracy(tmp_path):
  words, (row,), _ = _found(tmp_path, {'dataset': 'digits', 'accuracy': 0.876})
  assert (
    words == 'On 8×8 digits with participation Beta(2,5), QuAP-FL reaches 87.6%; no released model here has a finite ε.'
  )
  assert row['formal ε'] == 'no finite ε for the released model'


def test_the_words_of_flags():
  assert naming.participation('beta:a=2,b=5') == 'Beta(2,5)'
  assert naming.participation('extreme_imbalance:rare_rate=0.01') == 'extreme_imbalance:rare_rate=0.01'
  assert naming.value('client_optimizer', 'sgd:learning_rate=1') == 'client optimizer sgd, learning rate 1'
  assert naming.value('epsilon', 3) == 'ε = 3' and naming.dataset('npz:path=x') == 'npz:path=x'


def test_secret_cohorts_are_always_named(tmp_path):
  secret = {**_TFF, 'cohort_seed': 'secret', 'participation': 'bernoulli:q=0.4', 'accuracy': 0.95}
  words, rows, _ = _found(
    tmp_path, {**_OURS, 'participation': 'uniform'}, {**secret, 'algorithm': 'tff_dp_fedavg:clip=0.2'}
  )
  assert 'TFF DP-FedAvg with secret cohorts is ahead of Certified QuAP-FL' in words and 'participation uniform' in words
  assert [row['method'] for row in rows] == ['TFF DP-FedAvg with secret cohorts †', 'Certified QuAP-FL']


def test_of_many_methods_the_table_has_the_best(tmp_path):
  ours = [{**_OURS, 'algorithm': f'certified:clip={n}', 'accuracy': n / 20} for n in range(1, 12)]
  _, rows, _ = _found(tmp_path, *ours, _TFF)
  assert len(rows) == 8 and rows[0]['method'] == 'TFF DP-FedAvg †' and rows[1]['ε = 3'] == '55.0'
