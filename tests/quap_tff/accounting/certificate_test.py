"""Tests of `quap_tff.accounting.certificate`: figures by hand, what is refused, and that no field can be changed."""

import copy
import json
import math
import re

import numpy as np
import pytest

from quap_tff.accounting import certificate as certificates
from quap_tff.accounting import run_ledger
from quap_tff.mechanisms import slack as slacks
from quap_tff.mechanisms import tradeoff

_FACTS = dict(
  algorithm='certified',
  epsilon=3.0,
  delta=1e-5,
  planned_rounds=4,
  noised_weights=70,
  trained_weights=70,
  clipping='One L2 norm.',
  tuning='By theory.',
  test_set='Forty pictures.',
  tests=2,
  public_data='EMNIST letters.',
  post_processing='Mean of the last five.',
)
_PROVENANCE = {'code': {'quap_tff': '1'}, 'config_sha256': 'c', 'files_sha256': {'ledger.npz': 'l'}}


def _ledger(**changes):
  """Five clients; 0 in both rounds, with 1 and then 2, whose budget is spent; the last two in none."""
  rounds = [
    dict(cohort=[0, 1], weights=[1.0, 0.5], noise_multiplier=2.0, count_noise_multiplier=4.0),
    dict(cohort=[0, 2], weights=[0.5, 0.0], noise_multiplier=2.5, count_noise_multiplier=math.inf),
    dict(cohort=[], weights=[], noise_multiplier=0.0, count_noise_multiplier=math.inf),
  ]
  if changes:
    rounds[1] = {**rounds[1], **changes}
  ledger = run_ledger.RunLedger(5, 1e-5, 'a run')
  for record in rounds:
    budgets = np.full(len(record['cohort']), 0.1)
    record = {'clipping_norm': 1.0, **record, 'budgets': budgets, 'cohort': np.array(record['cohort'], np.int64)}
    ledger.append(run_ledger.RoundRecord(**record))
  return ledger


def _issue(ledger=None, **changes):
  facts = certificates.Facts(**{**_FACTS, **changes})
  return json.loads(json.dumps(certificates.issue(ledger or _ledger(), facts, _PROVENANCE)))


def _problems(certificate, ledger=None, **changes):
  facts = certificates.Facts(**{**_FACTS, **changes})
  return certificates.problems(certificate, ledger or _ledger(), facts, _PROVENANCE)


def _sealed(certificate):
  """With its own digest made anew, as one who tampers would."""
  content = {name: value for name, value in certificate.items() if name != 'sha256'}
  return {**content, 'sha256': certificates.digest(content)}


def _leaves(value, path=()):
  if isinstance(value, (dict, list)) and value:
    for key in value if isinstance(value, dict) else range(len(value)):
      yield from _leaves(value[key], (*path, key))
  else:
    yield path


def _changed(value):
  if isinstance(value, bool):
    return not value
  if isinstance(value, (int, float)):
    return value * 1.001 if isinstance(value, float) and value else value + 1
  return value + ['x'] if isinstance(value, list) else value + 'x'


def _with(certificate, path, change):
  """A copy with `change(value)` in the place of the value at `path`, or added there."""
  result = copy.deepcopy(certificate)
  holder = result
  for key in path[:-1]:
    holder = holder[key]
  holder[path[-1]] = change(holder[path[-1]] if isinstance(holder, list) or path[-1] in holder else None)
  return result


def _without(certificate, path):
  result = copy.deepcopy(certificate)
  holder = result
  for key in path[:-1]:
    holder = holder[key]
  del holder[path[-1]]
  return result


_LEAVES = list(_leaves(_issue()))


class TestFigures:
  def test_by_hand(self):
    # μ² of client 0: (1/2)² + (0.5/2.5)² of the sums, (1/4)² of the count; of client 1: (0.5/2)² + (1/4)².
    mu = [math.sqrt(0.25 + 0.04 + 0.0625), math.sqrt(0.125), 0, 0, 0]
    epsilon = tradeoff.epsilon_of(np.array(mu), 1e-5)
    achieved = _issue()['achieved']
    assert achieved['mu_max'] == pytest.approx(mu[0], rel=1e-9)
    assert achieved['epsilon_max'] == pytest.approx(epsilon[0], rel=1e-9)
    assert achieved['epsilon_mean'] == pytest.approx(epsilon.sum() / 5, rel=1e-9)
    assert achieved['epsilon_quantiles']['0.75'] == pytest.approx(epsilon[1], rel=1e-9)
    assert achieved['epsilon_quantiles']['0.5'] == 0
    assert (achieved['rounds'], achieved['clients'], achieved['clients_that_took_part']) == (3, 5, 3)
    assert achieved['clients_with_a_weight_of_0'] == 1

  def test_each_client_has_its_own_bound(self):
    epsilon = _issue()['achieved']['epsilon_max']
    own = (3.0, 2.9, 0.5, 1.0, 1.0)
    certificate = _issue(own_epsilon=own)
    assert certificate['guarantee']['own_bounds'] == [
      {'epsilon': 0.5, 'clients': 1},
      {'epsilon': 1.0, 'clients': 2},
      {'epsilon': 2.9, 'clients': 1},
      {'epsilon': 3.0, 'clients': 1},
    ]
    assert certificate['guarantee']['epsilon'] == 3 and certificate['facts']['own_epsilon'] == list(own)
    assert 'ε = 0.5 for 1, ε = 1 for 2' in certificate['statement']
    assert any('has chosen for itself is public' in text for text in certificate['assumptions'])
    assert not _problems(certificate, own_epsilon=own)
    # The largest bound alone says nothing about the others.
    with pytest.raises(ValueError, match=f'1 of 5 clients.*Client 0 has spent ε = {epsilon:.4g}.*its bound is 2'):
      _issue(own_epsilon=(2.0, 3.0, 3.0, 3.0, 3.0))
    assert _problems(certificate, own_epsilon=(2.0, 3.0, 3.0, 3.0, 3.0))
    # A certificate cannot give a client another bound than the flags do.
    assert _problems(certificate, own_epsilon=(3.0, 2.9, 0.5, 1.0, 1.1))
    assert _problems(_issue(), own_epsilon=own)

  def test_bounds_of_another_population_are_refused(self):
    with pytest.raises(ValueError, match='4 bounds of clients, but 5 clients'):
      _issue(own_epsilon=(3.0, 2.0, 1.0, 1.0))
    with pytest.raises(ValueError, match='own_epsilon'):
      _issue(own_epsilon=(3.5,) * 5)

  def test_the_histogram_holds_every_client_up_to_the_bound(self):
    histogram = _issue()['achieved']['epsilon_histogram']
    assert histogram['edges'][0] == 0 and histogram['edges'][-1] == 3
    assert histogram['clients'][0] == 3 and sum(histogram['clients']) == 5

  def test_shares_are_of_the_client_that_spent_most(self):
    releases = _issue()['releases']
    assert releases[0]['share_of_worst_client'] == pytest.approx(0.29 / 0.3525, rel=1e-9)
    assert releases[1]['share_of_worst_client'] == pytest.approx(0.0625 / 0.3525, rel=1e-9)
    assert [release['rounds'] for release in releases[:2]] == [2, 1]
    assert sum(release['share_of_worst_client'] for release in releases) == pytest.approx(1)

  def test_the_bound_on_mu_is_the_largest_that_keeps_epsilon(self):
    mu = tradeoff.mu_at_most(3.0, 1e-5)
    assert mu == _issue()['guarantee']['mu']
    assert tradeoff.epsilon_of(mu, 1e-5) <= 3 < tradeoff.epsilon_of(mu * (1 + 1e-11), 1e-5)

  def test_the_statement_rounds_up(self):
    certificate = _issue()
    said = float(re.search(r'gives ε = (\S+) for the client that spent most', certificate['statement'])[1])
    assert 0 <= said - certificate['achieved']['epsilon_max'] < 1e-4

  def test_a_constant_is_not_shortened(self):
    assert 'δ = 1.0000004e-05' in _issue(delta=1.0000004e-5)['statement']

  def test_only_a_run_that_reached_its_plan_states_what_was_spent(self):
    stopped = _issue()
    assert stopped['achieved']['is_reading'] and 'over all 4 planned rounds' in stopped['statement']
    assert 'A reading is not a guarantee' in stopped['statement'] and 'has spent' not in stopped['statement']
    whole = _issue(planned_rounds=3)
    assert not whole['achieved']['is_reading'] and 'The client that spent most has spent ε ≤ ' in whole['statement']
    assert 'reading' not in whole['statement']

  def test_words_name_what_it_stands_on(self):
    text = json.dumps(_issue(), ensure_ascii=False)
    for words in (
      'EMNIST letters.',
      'One L2 norm.',
      'By theory.',
      'Mean of the last five.',
      'zero-out',
      'Philox',
      'Forty pictures.',
      'float64 numbers',
      'ended after 3 of 4 planned rounds',
    ):
      assert words in text

  def test_tests_are_counted(self):
    [row] = [row for row in _issue()['releases'] if row['what'] == 'loss and accuracy on the test set']
    assert row['rounds'] == 2

  def test_other_relations_and_groups(self):
    mu = tradeoff.mu_at_most(3.0, 1e-5)
    rows = _issue()['other_relations']
    assert [row['mu'] for row in rows] == [mu, 2 * mu, 2 * mu, 3 * mu, 5 * mu]
    assert [round(row['epsilon'], 2) for row in rows] == [3.0, 6.71, 6.71, 10.98, 21.14]
    assert 'replace' in rows[1]['neighbours'] and '5 clients together' in rows[4]['unit']

  def test_an_epsilon_that_the_slack_does_not_cover_is_left_out(self):
    rows = _issue(epsilon=10.0, slack=slacks.Slack(1e-3, 1e-9))['other_relations']
    assert [round(row['epsilon']) for row in rows] == [10, 24, 24, 43]  # Five clients together have more.
    assert 60 < _issue(epsilon=10.0)['other_relations'][-1]['epsilon'] < 110
    # With ε = 100 for one client, that of several has an exponential that is no float.
    rows = _issue(epsilon=100.0, slack=slacks.Slack(1e-3, 1e-9))['other_relations']
    assert [round(row['epsilon'], 6) for row in rows] == [100.0]

  def test_a_run_of_no_rounds(self):
    certificate = _issue(run_ledger.RunLedger(5, 1e-5, 'a run'))
    assert certificate['achieved']['epsilon_max'] == 0


class TestRefusals:
  @pytest.mark.parametrize(
    'changes, reason',
    [
      (dict(noise_multiplier=0.0), 'noise multiplier is 0 in 1 of 3 rounds, first in round 2'),
      (dict(count_noise_multiplier=0.0), 'count of the private quantile has no noise'),
      (dict(clipping_norm=math.inf), 'no clipping norm'),
      (dict(clipping_norm=0.0), 'no clipping norm'),
      (dict(noise_multiplier=0.5), r'1 of 5 clients have spent more than ε = 3 .* client 0 with ε = '),
    ],
  )
  def test_of_rounds(self, changes, reason):
    with pytest.raises(ValueError, match=reason):
      _issue(_ledger(**changes))

  @pytest.mark.parametrize(
    'changes, reason',
    [
      (dict(noised_weights=69), '69 of 70 trained weights'),
      (dict(exact_clip=True), 'clipping norm is an un-noised function'),
      (dict(exact_metrics=('train_loss', 'norm_p50')), 'train_loss, norm_p50'),
      (dict(fixed_noise_seed=True), 'seed of the noise is fixed'),
      (dict(epsilon=2.0), r'spent more than ε = 2'),
      (dict(planned_rounds=2), r'has 3 rounds, but only 2 were planned'),
    ],
  )
  def test_of_facts(self, changes, reason):
    with pytest.raises(ValueError, match=reason):
      _issue(**changes)

  def test_all_reasons_are_named_at_once(self):
    with pytest.raises(ValueError, match='noise multiplier is 0.*seed of the noise is fixed'):
      _issue(_ledger(noise_multiplier=0.0), fixed_noise_seed=True)

  @pytest.mark.parametrize(
    'changes', [dict(epsilon=0.0), dict(epsilon=math.inf), dict(delta=1.0), dict(noised_weights=71), dict(tuning='')]
  )
  def test_facts_out_of_range(self, changes):
    with pytest.raises(ValueError, match=list(changes)[0]):
      certificates.Facts(**{**_FACTS, **changes})

  def test_a_budget_that_is_met_exactly_is_no_excess(self):
    ledger = run_ledger.RunLedger(1, 1e-5, 'a run')
    weight = tradeoff.mu_at_most(3.0, 1e-5) / math.sqrt(1000)
    for _ in range(1000):
      ledger.append(run_ledger.RoundRecord([0], [0.1], [weight], 1.0, math.inf, 1.0))
    certificate = _issue(ledger, planned_rounds=1000)
    assert certificate['achieved']['epsilon_histogram']['clients'][-1] == 1
    assert not _problems(certificate, ledger, planned_rounds=1000)


class TestProblems:
  def test_a_good_one_has_none(self):
    assert not _problems(_issue())
    assert not _problems(_sealed(_issue()))

  @pytest.mark.slow
  @pytest.mark.parametrize('path', _LEAVES, ids=lambda path: '.'.join(map(str, path)))
  def test_a_changed_field(self, path):
    changed = _with(_issue(), path, _changed)
    assert _problems(changed)
    if path != ('sha256',):
      assert _problems(_sealed(changed))

  @pytest.mark.parametrize('path', [p for p in _LEAVES if isinstance(p[-1], str)], ids=lambda p: '.'.join(map(str, p)))
  def test_a_field_that_is_missing(self, path):
    assert _problems(_without(_issue(), path))

  @pytest.mark.parametrize('name', ['assumptions', 'withheld', 'releases'])
  def test_an_entry_of_a_list_that_is_missing(self, name):
    assert _problems(_sealed(_with(_issue(), (name,), lambda entries: entries[:-1])))

  def test_fields_that_do_not_belong(self):
    for name in ('guarantee', 'achieved', 'facts', 'provenance'):
      assert _problems(_sealed(_with(_issue(), (name, 'other'), lambda _: 1)))
    assert _problems(_sealed({**_issue(), 'other': 1})) == ['other does not belong there.']

  def test_differences_say_where_and_what(self):
    changed = _sealed(_with(_issue(), ('achieved', 'clients'), lambda _: 4))
    assert _problems(changed) == ['achieved.clients: it says 4, but the run gives 5.']

  @pytest.mark.parametrize(
    'changes',
    [
      dict(weights=[0.4, 0.0]),
      dict(weights=[0.5, 0.1]),
      dict(cohort=[1, 2]),
      dict(cohort=[0, 3, 2], weights=[0.5, 0.1, 0.0]),
      dict(cohort=[], weights=[]),
      dict(noise_multiplier=2.4),
      dict(noise_multiplier=0.0),
      dict(count_noise_multiplier=9.0),
      dict(clipping_norm=math.inf),
    ],
  )
  def test_another_ledger(self, changes):
    assert _problems(_issue(), _ledger(**changes))

  def test_a_round_more_or_less(self):
    assert _problems(_issue(), _ledger().truncated(2))
    longer = _ledger()
    longer.append(run_ledger.RoundRecord([4], [0.1], [0.01], 100.0, math.inf, 1.0))
    assert _problems(_issue(), longer)

  @pytest.mark.parametrize('damaged', [None, [], {}, {'facts': []}, {'version': 1, 'facts': {}}, 'text'])
  def test_what_is_no_certificate(self, damaged):
    assert len(_problems(damaged)) == 1

  def test_another_version(self):
    for version in (1, 2, 6, '5', True, [5]):
      assert f'has version {version!r}' in _problems(_sealed({**_issue(), 'version': version}))[0]
