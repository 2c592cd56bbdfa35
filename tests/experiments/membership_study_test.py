"""The membership study on a tiny setting: its findings, its files, and its members."""

import dataclasses
import json
import math
import types

import numpy as np
import pytest

import data
from experiments.attacking import membership_study
from experiments.attacking import shadow_models
from experiments.running import setup
from quap_tff import runtime
from tests.experiments import harness

# Ten clients of four examples each, all asked in each round, and a model that has more weights than they have pixels.
TINY = membership_study.MembershipSettings(
  num_clients=10,
  examples_per_client=4,
  model='logistic_regression',
  participation='full',
  cohort_size=None,
  rounds=3,
  local_epochs=10,
  client_optimizer='sgd:learning_rate=2',
  models=8,
  resamples=20,
  nominal_epsilon=0.03,
  methods=('fedavg', 'fixed_dp', 'certified'),
)


@pytest.fixture(scope='module')
def result():
  said = []
  return membership_study.run(TINY, said.append), said


def _row(result, **wanted):
  wanted = dict(level='client', group='all', attack='lira_online', compared_at='real') | wanted
  (row,) = (row for row in result[0].rows if all(row[key] == value for key, value in wanted.items()))
  return row


@pytest.mark.slow
@pytest.mark.thorough
class TestStudy:
  @pytest.mark.parametrize('level', shadow_models.LEVELS)
  def test_overfitted_federated_averaging_leaks_and_huge_noise_does_not(self, result, level):
    for attack in ('lira_online', 'lira_offline', 'loss_threshold'):
      row = _row(result, method='fedavg', level=level, attack=attack, compared_at='nominal')
      assert row['auc'] > 0.65 and row['auc_low'] > 0.52
      assert row['real_epsilon'] is row['nominal_epsilon'] is row['auc_bound'] is None
    for method in ('fixed_dp', 'certified:certificate=false'):
      # The standard deviation of a random AUC is 0.065 for 80 trials at client level. A client's examples depend on
      # each other, so it may be as large at example level.
      row = _row(result, method=method, level=level)
      assert abs(row['auc'] - 0.5) < 0.26
      assert row['auc_bound'] < 0.51 and 0 < row['real_epsilon'] < 0.02

  def test_certified_runs_are_rehearsals_at_the_real_epsilon_of_fixed_dp(self, result):
    fixed = _row(result, method='fixed_dp')['real_epsilon']
    certified = [row for row in result[0].rows if row['method'].startswith('certified')]
    assert {(row['method'], row['compared_at'], row['nominal_epsilon']) for row in certified} == {
      ('certified:certificate=false', 'real', None)
    }
    assert all(row['real_epsilon'] <= fixed * (1 + 1e-6) for row in certified)
    assert max(row['real_epsilon'] for row in certified) == pytest.approx(fixed, rel=1e-3)

  def test_the_nominal_figure_is_that_of_the_documents(self, result):
    row = _row(result, method='fixed_dp', compared_at='nominal')
    assert row['nominal_epsilon'] == pytest.approx(0.03)

  def test_there_is_a_row_for_everything(self, result):
    rows = result[0].rows
    keys = [(r['compared_at'], r['method'], r['level'], r['group'], r['attack']) for r in rows]
    # Both comparisons contain FedAvg and Fixed-DP.
    assert len(set(keys)) == len(keys) == (2 + 2 + 1) * 2 * 4 * 4
    json.dumps(rows, allow_nan=False)
    for row in rows:
      assert row['auc_low'] <= row['auc'] <= row['auc_high']
      assert (row['shadow_models'], row['diverged']) == (7, 0)
    whole = _row(result, method='fedavg')
    assert whole['members'] + whole['non_members'] == 10 * 8

  def test_progress_is_said(self, result):
    assert result[1][0].startswith(
      'membership: 10 clients with 40 examples, 7 shadow models; compared at nominal ε = 0.03'
    )
    assert len(result[1]) == 1 + 3 * 2

  def test_it_writes_a_table_and_pictures(self, result, tmp_path):
    pictures = result[0].write_files(str(tmp_path / 'new'))
    assert list(pictures) == ['membership_roc_client.png', 'membership_roc_example.png', 'membership_groups.png']
    table = harness.table(tmp_path / 'new' / 'membership.csv')
    assert len(table) == len(result[0].rows)
    assert (float(table[0]['auc']), table[0]['real_epsilon']) == (result[0].rows[0]['auc'], '')
    for name in pictures:
      assert (tmp_path / 'new' / name).read_bytes()[:8] == b'\x89PNG\r\n\x1a\n'


class TestSettings:
  @pytest.mark.parametrize(
    'change, message',
    [
      (dict(models=7), 'models must be an integer at least 8'),
      (dict(nominal_epsilon=0.0), 'nominal_epsilon must be a finite number greater than 0'),
      (dict(attacks=('guess',)), 'attacks must be distinct names of loss_threshold'),
      (dict(methods=('fedavg', 'fedavg')), 'methods must be distinct specs'),
      (dict(methods=('no_such',)), 'Unknown algorithm'),
      (dict(levels=()), 'levels must be distinct names of client, example'),
    ],
  )
  def test_bad_settings_are_errors(self, change, message):
    with pytest.raises(ValueError, match=message):
      dataclasses.replace(TINY, **change)


@pytest.mark.slow
class TestComparisons:
  @pytest.mark.thorough
  def test_another_real_epsilon_needs_noise_of_its_own(self):
    settings = dataclasses.replace(TINY, methods=('fedavg', 'fixed_dp', 'quap', 'certified:clip=0.5'), real_epsilon=2.0)
    found = list(membership_study.attacked_experiments(settings, 2.0))
    assert [(variant.spec, variant.calibration, variant.compared_at) for variant, _ in found] == [
      ('fedavg', 'documents', ('nominal', 'real')),
      ('fixed_dp', 'documents', ('nominal',)),
      ('fixed_dp', 'exact', ('real',)),
      # Its clipping norm is an exact quantile, so there is no real ε.
      ('quap', 'documents', ('nominal',)),
      ('certified:clip=0.5,certificate=false', 'documents', ('real',)),
    ]
    schedule = [np.arange(10)] * 3
    assert shadow_models.planned_epsilon(found[2][1], schedule) == pytest.approx(2.0, rel=1e-5)
    assert shadow_models.planned_epsilon(found[1][1], schedule) < 0.1


def _examples(labels):
  return data.Examples(np.arange(2 * len(labels), dtype=np.float32).reshape(-1, 2), np.array(labels, np.int32))


class TestWorlds:
  POOL = shadow_models.MemberPool(
    [_examples([0, 1, 2]) for _ in range(6)],
    # Client 5 is asked three times, clients 3 and 4 twice, 2 once, and 0 and 1 never.
    [[3, 5], [2, 3, 4, 5], [4, 5]],
  )

  def test_groups_are_thirds_by_participation(self):
    assert self.POOL.counts.tolist() == [0, 0, 1, 2, 2, 3]
    assert shadow_models.GROUPS == ('rare', 'middle', 'frequent')
    assert self.POOL.groups.tolist() == [0, 0, 1, 1, 2, 2]

  def test_a_client_is_a_member_of_about_half_of_the_models_and_independently(self):
    drawn = shadow_models.draw_worlds('client', self.POOL, 1000, seed=1)
    assert drawn.members is drawn.attends
    assert drawn.uses.all()
    shares = drawn.members.mean(axis=0)
    assert (abs(shares - 0.5) < 4 * 0.5 / math.sqrt(1000)).all()
    # Two clients agree half of the time: nobody's membership follows from another's.
    assert abs((drawn.members[:, 0] == drawn.members[:, 1]).mean() - 0.5) < 4 * 0.5 / math.sqrt(1000)
    # Nor is the number of members fixed.
    assert len(set(drawn.members.sum(axis=1))) > 3

  def test_half_of_each_clients_examples_are_used(self):
    drawn = shadow_models.draw_worlds('example', self.POOL, 400, seed=1)
    # One client of each group takes part, in every model.
    assert drawn.attends.all(axis=0).sum() == drawn.attends.any(axis=0).sum() == 3
    assert sorted(self.POOL.groups[drawn.attends[0]]) == [0, 1, 2]
    assert drawn.members.shape == (400, 9)
    assert (drawn.uses[:, drawn.rows] == drawn.members).all()
    assert drawn.uses.sum() == drawn.members.sum()
    assert abs(drawn.members.mean() - 0.5) < 4 * 0.5 / math.sqrt(3600)
    assert (self.POOL.owners[drawn.rows] == drawn.clients).all()

  @pytest.mark.parametrize('level', shadow_models.LEVELS)
  def test_each_target_has_shadow_models_of_both_kinds(self, level):
    for seed in range(20):
      counts = shadow_models.draw_worlds(level, self.POOL, 8, seed).members.sum(axis=0)
      assert counts.min() >= 2
      assert counts.max() <= 6

  def test_a_client_brings_only_the_examples_that_are_used(self):
    uses = np.zeros(18, bool)
    uses[[3, 5]] = True
    found = self.POOL.data_of(1, uses)
    assert [int(i) for i in found['client_id']] == [1]
    (batch,) = list(found['examples'])
    assert batch['y'].tolist() == [0, 2]
    assert batch['x'].tolist() == [[0, 1], [4, 5]]

  def test_few_examples(self):
    kept = shadow_models.few_examples([_examples(range(9)), _examples([7])], 3, seed=0)
    assert [len(client) for client in kept] == [3, 1]
    assert len(set(kept[0].y)) == 3


@pytest.mark.slow
class TestSubject:
  def _experiment(self, spec, **settings):
    variant = shadow_models.Variant(spec, 1.0, 'documents', ())
    return shadow_models.experiment_of(variant, dataclasses.replace(TINY, **settings).flags)

  def test_noise_that_clients_hold_is_refused(self):
    with pytest.raises(ValueError, match='experiments.audit'):
      self._experiment('certified:trust=secure_sum,noise=held', rounds=2)

  def test_only_members_train_and_the_noise_is_new_for_each_model(self):
    experiment = self._experiment('fixed_dp')
    pool = shadow_models.MemberPool(
      shadow_models.few_examples(experiment.federation.clients, 4, 42), [np.arange(10)] * 2
    )
    drawn = shadow_models.draw_worlds('client', pool, 8, seed=0)
    asked = []
    with runtime.activate(experiment.runtime):
      process = experiment.build_process().process

      class Watched:
        initialize, get_model_weights = process.initialize, process.get_model_weights

        @staticmethod
        def next(state, clients):
          asked.append(sorted(int(i) for client in clients for i in client['client_id']))
          return process.next(state, clients)

      weights = [shadow_models.train_shadow_model(Watched, pool, drawn, 3).trainable[0] for _ in range(2)]
    assert asked == [np.flatnonzero(drawn.members[3]).tolist()] * 4
    assert abs(weights[0] - weights[1]).max() > 0.1

  @pytest.mark.parametrize(
    'spec, rate', [('fedavg', 1.0), ('fixed_dp', 1.0), ('tff_dp_fedavg', 2.0), ('certified:certificate=false', 2.0)]
  )
  def test_steps_are_as_long_where_sums_are_divided_by_the_planned_number(self, monkeypatch, spec, rate):
    plan = types.SimpleNamespace(holds_noise=False)
    monkeypatch.setattr(setup, 'from_flags', lambda values: types.SimpleNamespace(plan=plan, values=values))
    assert self._experiment(spec).values['server_optimizer'] == f'sgd:learning_rate={rate}'

  def test_the_layers_without_noise_leave_no_real_epsilon(self):
    experiment = self._experiment('quap', model='digits_cnn')
    assert not experiment.plan.protection.model_protected
