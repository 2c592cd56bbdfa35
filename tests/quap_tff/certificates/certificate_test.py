"""The figures and sentences of a certificate: by hand, and on the safe side."""

import copy
import dataclasses
import json
import math
import re

import numpy as np
import pytest

from quap_tff import accounting
from quap_tff import certificates as certificates_of_runs
from quap_tff.certificates import certificate as certificates
from quap_tff.certificates.folders import folder as folders
from quap_tff.common.numbers import rounding
from quap_tff.common.numbers import tradeoff
from quap_tff.mechanisms.certified import weight_rules
from quap_tff.mechanisms.noise import correlation
from quap_tff.mechanisms.noise import held_noise
from quap_tff.mechanisms.noise import integers
from quap_tff.mechanisms.parts import clip_rules
from tests.quap_tff.certificates import made

_SCHEDULE = ([0, 1], [0, 2], [], [1])
_COUNTED = {'clip': clip_rules.PrivateQuantile(count_stddev=2.0)}


def _plan(epsilon=3.0, options=(), **config):
  return made.plan(options, _SCHEDULE, num_clients=5, epsilon=epsilon, **{**_COUNTED, **config})


def _ledger(plan, **changes):
  """Five clients; 0 in both rounds, with 1 and then 2, whose budget is spent; the last two in none."""
  rounds = [
    dict(cohort=[0, 1], weights=[1.0, 0.5], noise_multiplier=2.0, count_noise_multiplier=4.0),
    dict(cohort=[0, 2], weights=[0.5, 0.0], noise_multiplier=2.5, count_noise_multiplier=math.inf),
    dict(cohort=[], weights=[], noise_multiplier=0.0, count_noise_multiplier=math.inf),
  ]
  rounds[1] = {**rounds[1], **changes}
  ledger = plan.new_ledger()
  for record in rounds:
    budgets = np.full(len(record['cohort']), 0.1)
    record = {'clipping_norm': 1.0, **record, 'budgets': budgets, 'cohort': np.array(record['cohort'], np.int64)}
    ledger.append(accounting.RoundRecord(**record))
  return ledger


def _content(path, plan=None, ledger=None, **about):
  """The content of a folder, with another plan and ledger in it."""
  plan = _plan() if plan is None else plan
  ledger = _ledger(plan) if ledger is None else ledger
  stated = dataclasses.replace(made.ABOUT, **{'tests': 2, **about})
  return folders.read(str(path))._replace(plan=plan, ledger=ledger, about=stated, leaving=made.leaving(plan))


@pytest.fixture(name='make')
def _make(originals):
  def make(plan=None, ledger=None, **about):
    return json.loads(json.dumps(certificates.make(_content(originals / 'server', plan, ledger, **about))))

  return make


def _up(value):
  return float(rounding.up(value, 6))


class TestFigures:
  @pytest.mark.slow
  def test_by_hand(self, make):
    plan = _plan()
    # μ² of client 0: (1/2)² + (0.5/2.5)² of the sums, (1/4)² of the count; of client 1: (0.5/2)² + (1/4)².
    mu = [math.sqrt(0.25 + 0.04 + 0.0625), math.sqrt(0.125), 0, 0, 0]
    slack = plan.core.slack(8)
    epsilon = tradeoff.epsilon_of(np.array(mu), 1e-5 - slack.delta) + slack.epsilon * (np.array(mu) > 0)
    achieved = make(plan)['achieved']
    assert achieved['mu_max'] == _up(mu[0]) and achieved['epsilon_max'] == _up(epsilon[0])
    assert achieved['epsilon_mean'] == _up(epsilon.sum() / 5)
    assert achieved['epsilon_quantiles']['0.75'] == _up(epsilon[1]) and achieved['epsilon_quantiles']['0.5'] == 0
    assert (achieved['rounds'], achieved['clients'], achieved['clients_that_took_part']) == (3, 5, 3)
    assert achieved['clients_with_a_weight_of_0'] == 1

  def test_every_figure_has_six_digits_on_the_safe_side(self, make):
    found = make()
    for figure in (*(found['achieved'][f'epsilon_{name}'] for name in ('max', 'mean')), found['guarantee']['mu']):
      assert float(f'{figure:.6g}') == figure
    for row in found['other_relations']:
      assert float(f'{row["epsilon"]:.6g}') == row['epsilon'] and float(f'{row["mu"]:.6g}') == row['mu']
    for value in found['facts']['slack'].values():
      assert float(f'{value:.6g}') == value > 0

  @pytest.mark.slow
  def test_each_client_has_its_own_bound(self, make):
    own = (3.0, 2.9, 0.5, 1.0, 1.0)
    plan = _plan(own_epsilon=own, weights=weight_rules.ScaledWeights())
    found = make(plan)
    assert found['guarantee']['own_bounds'] == [
      {'epsilon': 0.5, 'clients': 1},
      {'epsilon': 1.0, 'clients': 2},
      {'epsilon': 2.9, 'clients': 1},
      {'epsilon': 3.0, 'clients': 1},
    ]
    assert found['guarantee']['epsilon'] == 3 and 'ε = 0.5 for 1, ε = 1 for 2' in found['statement']
    assert any('has chosen for itself is public' in text for text in found['assumptions'])
    # The largest bound alone says nothing about the others.
    spent = found['achieved']['epsilon_max']
    lower = _plan(own_epsilon=(2.0, 3.0, 3.0, 3.0, 3.0), weights=weight_rules.ScaledWeights())
    with pytest.raises(ValueError, match=f'1 of 5 clients.*Client 0 has spent ε = {spent}, and its bound is 2'):
      make(lower)

  def test_the_histogram_holds_every_client_up_to_the_bound(self, make):
    histogram = make()['achieved']['epsilon_histogram']
    assert histogram['edges'][0] == 0 and histogram['edges'][-1] == 3 and len(histogram['edges']) == 21
    assert histogram['clients'][0] == 3 and sum(histogram['clients']) == 5

  def test_shares_are_of_the_client_that_spent_most(self, make):
    releases = make()['releases']
    assert releases[0]['share_of_worst_client'] == round(0.29 / 0.3525, 6)
    assert releases[1]['share_of_worst_client'] == round(0.0625 / 0.3525, 6)
    assert [release['rounds'] for release in releases[:2]] == [2, 1]
    assert sum(release['share_of_worst_client'] for release in releases) == pytest.approx(1)
    assert releases[0]['how'].startswith('Gaussian noise with noise multiplier 2 to 2.5, independent')
    assert 'all 8 trained weights' in releases[0]['what']

  def test_the_bound_on_mu_is_the_largest_that_keeps_epsilon(self, make):
    plan = _plan()
    slack = plan.core.slack(8)
    assert make(plan)['guarantee']['mu'] == _up(tradeoff.mu_at_most(3.0 - slack.epsilon, 1e-5 - slack.delta))

  def test_the_statement_rounds_up(self, make):
    found = make()
    said = float(re.search(r'gives ε = (\S+) for the client that spent most', found['statement'])[1])
    assert said == found['achieved']['epsilon_max']

  @pytest.mark.slow
  def test_a_constant_is_not_shortened(self, make):
    assert 'δ = 1.0000004e-05' in make(_plan(delta=1.0000004e-5))['statement']

  def test_only_a_run_that_reached_its_plan_states_what_was_spent(self, make):
    stopped = make()
    assert stopped['achieved']['is_reading'] and 'over all 4 planned rounds' in stopped['statement']
    assert 'ended after 3 of 4 planned rounds' in stopped['statement']
    assert 'A reading is not a guarantee' in stopped['statement'] and 'has spent' not in stopped['statement']
    plan = _plan()
    ledger = _ledger(plan)
    ledger.append(accounting.RoundRecord([1], [0.1], [0.1], 2.0, math.inf, 1.0))
    whole = make(plan, ledger)
    assert not whole['achieved']['is_reading'] and 'The client that spent most has spent ε ≤ ' in whole['statement']
    assert 'reading' not in whole['statement']

  def test_tests_are_counted(self, make):
    [row] = [row for row in make()['releases'] if row['what'] == 'loss and accuracy on the test set']
    assert row['rounds'] == 2

  def test_other_relations_and_groups(self, make):
    plan = _plan()
    slack = plan.core.slack(8)
    mu = tradeoff.mu_at_most(3.0 - slack.epsilon, 1e-5 - slack.delta)
    rows = make(plan)['other_relations']
    assert [row['mu'] for row in rows] == [_up(k * mu) for k in (1, 2, 2, 3, 5)]
    assert [round(row['epsilon'], 2) for row in rows] == [3.0, 6.71, 6.71, 10.98, 21.14]
    assert 'replace' in rows[1]['neighbours'] and '5 clients together' in rows[4]['unit']

  @pytest.mark.slow
  def test_an_epsilon_that_the_slack_does_not_cover_is_left_out(self, make):
    rows = make(_plan(10.0))['other_relations']
    assert [round(row['epsilon']) for row in rows] == [10, 24, 24, 43]  # Five clients together have more.
    # With ε = 100 for one client, that of several has an exponential that is no float.
    assert [round(row['epsilon'], 6) for row in make(_plan(100.0))['other_relations']] == [100.0]

  @pytest.mark.slow
  def test_colluders(self, originals):
    cohorts = [[0, 1, 2, 3], [1, 2, 3], [0, 1, 2, 3]]
    plan = made.plan(dict(attendance=cohorts, colluders=[1, 2]), cohorts, num_clients=4, **made.HELD)
    content = _content(originals / 'held', plan, made.ledger(plan))
    rows = certificates.make(content)['guarantee']['colluders']
    assert [row['clients'] for row in rows] == [1, 2]
    account = held_noise.opened(4, plan.config.noise_multiplier, 0.5)
    for ids in cohorts:
      account = account.after(np.array(ids), np.asarray(plan.core.planned_weights)[ids])
    assert [row['mu'] for row in rows] == [_up(held_noise.mu_against_any(account, k).max()) for k in (1, 2)]
    assert certificates.make(content)['achieved']['mu_max'] < rows[0]['mu'] < rows[1]['mu']

  def test_an_early_end_does_not_lower_the_figures_against_colluders(self, originals):
    content = folders.read(str(originals / 'held'))
    content = content._replace(about=dataclasses.replace(content.about, tests=0))
    whole = certificates.make(content)
    stopped = certificates.make(content._replace(ledger=content.ledger.truncated(1)))
    assert stopped['achieved']['is_reading'] and stopped['achieved']['epsilon_max'] < whole['achieved']['epsilon_max']
    assert stopped['guarantee'] == whole['guarantee'] and whole['guarantee']['colluders']

  @pytest.mark.slow
  def test_a_part_of_the_planned_clients_gives_a_reading(self, tmp_path, capsys):
    """A server may have chosen by its releases who stays away. The bound is that of the plan."""
    plan = made.plan(**made.HELD)
    came = [np.array(ids) for ids in ([0, 3], [1, 2], [], [4, 2, 0])]
    ledger, clip = plan.new_ledger(), float(np.float32(plan.config.clip.initial_norm))
    for number, (ids, one) in enumerate(zip(came, plan.core.simulated(came)), 1):
      ledger.append(plan.core.cost(ids, one.weights.astype(np.float64), clip, number))
    certificates_of_runs.write_run(str(tmp_path / 'part'), plan, made.leaving(plan), ledger, made.WEIGHTS, made.ABOUT)
    status, lines = made.answer(tmp_path / 'part', capsys)
    assert (status, lines[0]) == (0, 'VALID'), lines
    assert 'Not all planned clients came' in lines[1] and 'a reading is not a guarantee' in lines[1].lower()
    assert 'those of public cohorts who came' in lines[1] and 'has spent ε' not in lines[1]
    certificate = made.read(tmp_path / 'part', 'certificate.json')
    assert certificate['achieved']['is_reading'] and certificate['achieved']['rounds'] == 4
    assert any('Given what was released before, whether a client takes' in one for one in certificate['assumptions'])
    report = plan.report(ledger)
    assert 'who came' in report.formal.reading.why and report.formal.epsilon.max() > 2.99
    assert plan.report(made.ledger(plan)).formal.reading is None

  def test_a_run_of_no_rounds(self, make):
    plan = _plan()
    assert make(plan, plan.new_ledger(), tests=0)['achieved']['epsilon_max'] == 0


class TestWords:
  def test_what_it_rests_on(self, make):
    text = json.dumps(make(public_data='EMNIST letters.', post_processing='Mean of the last five.'), ensure_ascii=False)
    for words in (
      *('zero-out', 'ChaCha20', 'All layers are clipped by their joint norm.', 'exponential function errs by'),
      *('Amplification by sampling is not counted', 'follows a quantile', 'Timing is not covered'),
    ):
      assert words in text

  def test_what_the_issuer_states_is_quoted(self, make):
    found = make(public_data='EMNIST letters.', post_processing='Mean of the last five.')
    said = ' '.join([*found['assumptions'], *(release['how'] for release in found['releases'])])
    stated = (*(getattr(made.ABOUT, name) for name in ('cohorts', 'tuning', 'test_set')), 'EMNIST letters.')
    for text in (*stated, 'Mean of the last five.'):
      assert f'The issuer states: “{text}”' in said
    # Elsewhere it is not repeated.
    for name, part in found.items():
      if name not in ('assumptions', 'releases', 'issuer'):
        assert not [text for text in stated if text in json.dumps(part, ensure_ascii=False)], name

  def test_whom_to_trust(self, originals):
    server, held = (made.read(originals / name, folders.CERTIFICATE) for name in ('server', 'held'))
    assert 'with a trusted server' in server['statement'] and server['guarantee']['trust'] == 'server'
    assert held['statement'].startswith(
      'If each secure sum opens for all clients with a weight that were announced for it, or for nobody, and the '
      'server tells all clients the truth about every round and about who is in its sum: in integers, with a server '
      'that sees these sums and who takes part, public cohorts'
    )
    assert server['statement'].startswith('In integers, with a trusted server, public cohorts')
    assert 'trusted server' not in held['statement'] and held['guarantee']['trust'] == 'secure_sum'
    said = ' '.join(held['assumptions'])
    for words in (
      'through a guard of its own',
      'found out when they compare the digests',
      'is trusted to tell all clients who is in it',
      'If the protocol opens its sum with a share of the announced clients, a threshold in the plan pays for that.',
    ):
      assert words in said and words not in ' '.join(server['assumptions'])

  @pytest.mark.slow
  def test_with_a_threshold_the_server_may_say_anything(self, tmp_path):
    of = made.plan(correlation=correlation.HeldNoise(0.0), threshold=0.75)
    found = made.read(made.folder(tmp_path / 'run', of), folders.CERTIFICATE)
    assert found['statement'].startswith(
      'If each secure sum opens for at least a share of 0.75 of the clients with a weight that were announced for it, '
      'or for nobody, and all who are in it were told the same cohort: in integers, with a server that sees these sums'
    )
    said = ' '.join(found['assumptions'])
    assert 'whatever the server says about who is in the sum' in said and 'is trusted to tell' not in said

  def test_what_leaves_clients(self, held):
    assert made.read(held, folders.CERTIFICATE)['leaves_clients'] == [
      {'by': 'federated_aggregate', 'value': 'client_id', 'type': 'int64'},
      *(
        {'by': 'federated_secure_modular_sum', 'value': '', 'type': kind}
        for kind in ('int64[3,2]', 'int64[2]', 'int64')
      ),
    ]

  def test_stretches(self, make):
    code = {'quap_tff': '1', 'source_sha256': '0' * 64}
    one = {'first_round': 1, 'last_round': 2, 'code': code, 'versions': {}}
    other = {**one, 'first_round': 3, 'last_round': 3}
    assert 'run in 2 stretches' in make(stretches=[one, other])['statement']
    assert 'stretches' not in make(stretches=[one])['statement']


class TestRefusals:
  @pytest.mark.parametrize(
    'changes, reason',
    [
      (dict(noise_multiplier=0.0), 'noise multiplier is 0 in 1 of 3 rounds, first in round 2'),
      (dict(count_noise_multiplier=0.0), 'count of the private quantile has no noise in 1 of 3 rounds'),
      (dict(clipping_norm=math.inf), 'no clipping norm in 1 of 3 rounds'),
      (dict(clipping_norm=0.0), 'no clipping norm'),
      (dict(noise_multiplier=0.5), r'1 of 5 clients have spent more than their bound .* Client 0 has spent ε = '),
    ],
  )
  def test_of_rounds(self, changes, reason, make):
    plan = _plan()
    with pytest.raises(ValueError, match=reason):
      make(plan, _ledger(plan, **changes))

  def test_all_reasons_are_named_at_once(self, make):
    plan = _plan()
    with pytest.raises(ValueError, match='noise multiplier is 0.*issuer states 9 tests.*more than their bound'):
      make(plan, _ledger(plan, noise_multiplier=0.0), tests=9)

  @pytest.mark.slow
  def test_a_budget_that_is_met_exactly_is_no_excess(self, make):
    plan = made.plan(schedule=[[0]] * 1000, num_clients=1)
    slack = plan.core.slack(8)
    weight = tradeoff.mu_at_most(3.0 - slack.epsilon, 1e-5 - slack.delta) / math.sqrt(1000)
    ledger = plan.new_ledger()
    for _ in range(1000):
      ledger.append(accounting.RoundRecord([0], [0.1], [weight], 1.0, math.inf, 1.0))
    assert make(plan, ledger)['achieved']['epsilon_histogram']['clients'][-1] == 1

  def test_what_is_kept_for_rounding_is_spent_on_nothing_else(self, certified):
    spent = made.read(certified, folders.CERTIFICATE)['achieved']['epsilon_max']
    kept = 1 - integers.RESERVE
    assert spent == pytest.approx(3 * kept, rel=1e-4) and spent < 3


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
    return value * 1.00001 if isinstance(value, float) and value else value + 1
  return value + ['x'] if isinstance(value, list) else (value or '') + 'x'


def _with(found, path, change):
  result = copy.deepcopy(found)
  holder = result
  for key in path[:-1]:
    holder = holder[key]
  holder[path[-1]] = change(holder[path[-1]])
  return result


class TestDifferences:
  def test_none(self, make):
    assert not list(certificates.differences(make(), make(), 0.0))

  def test_every_changed_field_is_named(self, make):
    found = make()
    paths = list(_leaves(found))
    assert len(paths) > 100
    for path in paths:
      place = ''.join(f'[{key}]' if isinstance(key, int) else f'.{key}' for key in path)[1:]
      [difference] = certificates.differences(_with(found, path, _changed), found, 0.0)
      assert difference.startswith(f'{place}: it says '), (path, difference)

  def test_every_field_that_is_missing_or_more_is_named(self, make):
    found = make()
    for path in _leaves(found):
      if isinstance(path[-1], str):
        less = _with(found, path, lambda value: value)
        holder = less
        for key in path[:-1]:
          holder = holder[key]
        del holder[path[-1]]
        assert [one for one in certificates.differences(less, found) if one.endswith('is missing.')], path
        assert [one for one in certificates.differences(found, less) if one.endswith('does not belong there.')], path

  @pytest.mark.parametrize(
    'one, other',
    [(1, True), (True, 1), (1, '1'), (1, 1.5), (None, 0), ({}, []), ([1], [1, 2]), ('a', 'b'), (float('nan'), 1.0)],
  )
  def test_values_of_other_types(self, one, other):
    assert list(certificates.differences({'a': one}, {'a': other}))

  def test_rounding_is_none_within_a_tolerance(self):
    assert not list(certificates.differences({'a': [1.0]}, {'a': [1.0 + 1e-12]}))
    assert list(certificates.differences({'a': [1.0]}, {'a': [1.0 + 1e-12]}, 0.0))
    assert list(certificates.differences({'a': [1]}, {'a': [2]}, 1.0))  # Integers are exact.
