"""What a privacy figure may be called, and what participation groups have spent."""

import json

import numpy as np
import pytest

from experiments.reporting import privacy
from experiments.reporting import sections
from experiments.reporting import study
from tests.experiments.reporting import factory

NOTE = factory.IDEAL


def _footnotes(groups):
  return privacy.footnotes(study.runs_table(groups))


class TestFormal:
  @pytest.mark.parametrize('covers', ['nothing', None, 'noised weights', 'weights without the logs', 'something new'])
  def test_only_a_run_that_says_so_itself_has_an_epsilon_of_the_model(self, groups_of, covers):
    (group,) = groups_of({'covers': covers})
    figure_of_the_weights = covers == 'weights without the logs'
    assert (privacy.formal_text(group.runs) == privacy.NO_FINITE) != figure_of_the_weights
    assert not group.is_whole

  @pytest.mark.parametrize(
    'change',
    [lambda found: [{**f, 'epsilon_max': None} for f in found], lambda found: found[2:]],
    ids=['null', 'amplified'],
  )
  def test_figures_that_are_null_or_amplified_alone(self, change, tmp_path):
    folder = factory.write_run(tmp_path / 'run', covers='released model')
    formal = json.loads((folder / 'summary.json').read_text())['formal']
    factory.change_json(folder / 'summary.json', formal={**formal, 'figures': change(formal['figures'])})
    assert privacy.formal_text(factory.groups_of(tmp_path)[0].runs) == privacy.NO_FINITE

  def test_a_summary_that_contradicts_itself_claims_nothing(self, tmp_path):
    folder = factory.write_run(tmp_path / 'run', covers='released model')
    factory.change_json(folder / 'summary.json', model_protected=False)
    assert privacy.formal_text(factory.groups_of(tmp_path)[0].runs) == privacy.NO_FINITE

  @pytest.mark.parametrize(
    'epsilon, text',
    [(0.5, '0.5 (exact accounting)'), (0.22522370438424397, '0.2253 (exact accounting)')],
    ids=['noise everywhere alongside logged metrics', 'rounded up'],
  )
  def test_of_the_weights(self, groups_of, epsilon, text):
    (group,) = groups_of({'covers': 'weights without the logs', 'epsilon_max': epsilon})
    assert privacy.formal_text(group.runs) == f'weights only, if the logs stay secret: ε = {text}'

  def test_an_amplified_figure_counts_where_cohorts_are_secret(self, groups_of):
    (group,) = groups_of({'covers': 'released model', 'epsilon_max': 3.0, 'cohort_seed': 'secret'})
    assert privacy.formal_text(group.runs) == 'released model: ε = 0.3 (RDP, cohorts secret)'
    assert privacy.footnotes(group.runs)[0].endswith('Amplification by sampling: by Poisson sampling.')

  def test_the_figure_without_amplification_and_the_worst_seed(self, groups_of):
    (group,) = groups_of(*factory.seeds(1, 2, covers='released model', epsilon_max=[2.0, 2.5]))
    assert privacy.formal_text(group.runs) == 'released model: ε = 2.5 (exact accounting)'
    assert list(group.runs['formal_epsilon']) == [2.0, 2.5]

  def test_one_seed_without_a_claim_spoils_it(self, groups_of):
    (group,) = groups_of(*factory.seeds(1, 2, covers=['released model', None]))
    assert privacy.formal_text(group.runs) == privacy.NO_FINITE

  def test_a_certificate(self, groups_of):
    (group,) = groups_of({'algorithm': 'certified', 'certified_epsilon': 2.97})
    assert privacy.formal_text(group.runs) == 'released model: ε = 2.97 (certificate.json)'
    assert list(group.runs['formal_epsilon']) == [2.97]

  def test_a_damaged_certificate_claims_nothing(self, tmp_path):
    folder = factory.write_run(tmp_path / 'run', algorithm='certified', certified_epsilon=3.0, covers='released model')
    factory.write_json(folder / 'certificate' / 'certificate.json', {'achieved': 'all'})
    assert privacy.formal_text(factory.groups_of(tmp_path)[0].runs) == privacy.NO_FINITE


class TestStoppedEarly:
  """The bound of the plan is shown, and what the rounds cost is called a reading."""

  def test_the_largest_bound_and_the_largest_reading_of_the_seeds(self, groups_of):
    (group,) = groups_of(
      *factory.seeds(1, 2, covers='released model', rounds_run=4, epsilon_max=[2.0, 2.5], reading=[0.61, 0.5])
    )
    assert privacy.formal_text(group.runs) == (
      'released model: ε = 2.5 (exact accounting), for all planned rounds; reading of those that ran, no guarantee: '
      '0.61'
    )
    assert list(group.runs['formal_epsilon']) == [2.0, 2.5]

  def test_a_certificate(self, groups_of):
    (group,) = groups_of(
      dict(
        algorithm='certified', covers='released model', rounds_run=4, epsilon=3.0, certified_epsilon=0.9, reading=0.9
      )
    )
    assert privacy.formal_text(group.runs) == (
      'released model: ε = 3 (certificate.json), for all planned rounds; reading of those that ran, no guarantee: '
      '0.9'
    )


class TestFootnotes:
  def test_name_unit_relation_delta_and_amplification(self, groups_of):
    assert _footnotes(groups_of({'covers': 'released model'})) == [
      'Formal figures hold for one client. Neighbouring datasets: zero out one client. Total δ: 1e-05. '
      'Amplification by sampling: none.'
    ]
    assert _footnotes(groups_of({})) == ['No run has a formal figure.']

  @pytest.mark.parametrize(
    'algorithm, noise_note, marked',
    [('tff_dp_fedavg', NOTE, True), ('tff_dp_fedavg', '', False), ('fixed_dp', '', False), ('fixed_dp', NOTE, True)],
  )
  def test_figures_for_ideal_noise_are_marked(self, groups_of, algorithm, noise_note, marked):
    more = {'notes': ['For ideal Gaussian noise, by another sentence.'], 'noise_note': noise_note}
    groups = groups_of({'algorithm': algorithm, 'covers': 'released model', **more})
    assert privacy.formal_text(groups[0].runs).endswith(privacy.IDEAL) == marked
    found = [note for note in _footnotes(groups) if note.startswith(privacy.IDEAL)]
    assert len(found) == marked and all('ideal Gaussian noise' in note for note in found)


def _tables(groups):
  """The rows of the table of what clients did, and of the one of what they spent."""
  blocks = sections.clients(groups)
  return factory.table(blocks, 'thirds_did'), factory.table(blocks, 'thirds_spent')


class TestParticipationGroups:
  def test_two_tables_say_what_clients_did_and_what_they_spent(self, groups_of):
    groups = groups_of(
      {'algorithm': 'certified', 'covers': 'released model', 'certified_epsilon': 3.0, 'num_clients': 9}
    )
    (did,), (spent,) = _tables(groups)
    assert {name.partition(':')[0] for name in did if ':' in name} == {'rounds', 'weight'}
    assert {name.partition(':')[0] for name in spent if ':' in name} == {'formal ε', 'accuracy (%)'}

  def test_thirds_by_rounds_taken_part_in(self, groups_of):
    groups = groups_of({'algorithm': 'fixed_dp', 'num_clients': 9})
    did, results = _tables(groups)
    counts = np.sort(groups[0].folders[0].counts)
    for which, third in zip(('rare', 'middle', 'frequent'), np.split(counts, 3)):
      assert did[0][f'rounds: {which}'] == f'{third.mean():.1f}'
      found, expected = results[0][f'nominal ε: {which}'], 0.6 * third.mean()
      assert len(found.partition('.')[2]) == 2 and expected - 1e-9 <= float(found) < expected + 0.0101
    assert not [name for name in did[0] if name.startswith(('weight', 'examples'))]
    assert not [name for name in results[0] if name.startswith('formal')]

  def test_columns_of_the_clients_file_appear_if_they_are_there(self, groups_of):
    more = {'examples': range(100, 109), 'test_accuracy': [0.5] * 4 + [''] * 2 + [0.9] * 3}
    groups = groups_of({'num_clients': 9, 'clients': more})
    (did,), (results,) = _tables(groups)
    order = np.argsort(groups[0].folders[0].counts, kind='stable')
    known = np.array([0.5] * 4 + [np.nan] * 2 + [0.9] * 3)
    assert did['examples: rare'] == f'{100 + order[:3].mean():.0f}'
    assert results['accuracy (%): frequent'] == f'{100 * np.nanmean(known[order[6:]]):.1f}'

  def test_what_certified_clients_contributed(self, groups_of):
    groups = groups_of({'algorithm': 'certified:weights=uniform', 'num_clients': 9})
    (row,), _ = _tables(groups)
    (run,) = groups[0].folders
    state = run.ledger.state_dict()
    total = sum(float(row[f'weight: {third}']) for third in ('rare', 'middle', 'frequent'))
    assert 3 * total == pytest.approx(state['weights'].sum(), abs=0.5) and total > 0
    own = state['weights'][np.isin(state['clients'], np.argsort(run.counts, kind='stable')[:3])].sum()
    assert float(row['weight: rare']) == pytest.approx(own / 3, abs=0.051)

  def test_the_formal_epsilon_is_the_released_models_or_none(self, groups_of):
    groups = groups_of(
      *(
        {'algorithm': a, 'covers': c, 'epsilon_max': 3.0, 'num_clients': 9, 'calibration': 'exact'}
        for a, c in (('tff_dp_fedavg', 'released model'), ('fixed_dp', 'weights without the logs'))
      )
    )
    _, results = _tables(groups)
    rows = {row['method']: row for row in results}
    order = np.argsort(groups[0].folders[0].counts, kind='stable')
    assert rows['TFF DP-FedAvg']['formal ε: rare'] == f'{np.linspace(0, 3, 9)[order[:3]].mean():.2f}'
    assert rows['Fixed-DP']['formal ε: rare'] == '-'

  def test_a_client_without_a_finite_epsilon_leaves_its_run_without_figures(self, tmp_path):
    folder = factory.write_run(tmp_path / 'run', algorithm='tff_dp_fedavg', covers='released model', num_clients=9)
    lines = (folder / 'clients.csv').read_text().splitlines()
    (folder / 'clients.csv').write_text('\n'.join([*lines[:-1], lines[-1].rpartition(',')[0] + ',']) + '\n')
    _, (row,) = _tables(factory.groups_of(tmp_path))
    assert not any(name.startswith('formal ε:') for name in row)

  def test_where_everyone_takes_part_equally_often_there_are_no_groups(self, groups_of):
    names = [block.name for block in sections.clients(groups_of({'cohort_size': 10})) if not isinstance(block, str)]
    assert names == ['clients']
