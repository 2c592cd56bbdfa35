"""The nominal ledger against numpy over random histories, and what is said of a configuration."""

import collections

import numpy as np
import pytest

from quap_tff import accounting
from quap_tff import budget
from quap_tff import clip_rules
from quap_tff import config
from quap_tff import layers
from quap_tff import participation

N, ROUNDS = 7, 12
LAYERS = (
    layers.Layer('conv', (0, 1), False), layers.Layer('dense', (2, 3), True), layers.Layer('logits', (4, 5), True)
)
SIZES = (50, 5, 100, 10, 30, 5)


def _config(placement='server', delta=1e-3, rule='cohort_mean_rate', **rates):
  return config.QuapConfig(
      num_clients=N,
      budget=budget.BudgetConfig(epsilon_total=3.0, num_rounds=ROUNDS, alpha=0.7, beta=1.5, round_rule=rule),
      participation=participation.ParticipationConfig(**{'warmup_rounds': 0, **rates}),
      noise=config.NoiseConfig(placement=placement, delta=delta),
  )


def _history(seed):
  rng = np.random.default_rng(seed)
  # Some rounds with nobody, some with everybody.
  return [np.flatnonzero(rng.random(N) < p) for p in rng.choice([0.0, 0.2, 0.5, 1.0], ROUNDS)]


def _replay(cfg, cohorts):
  """The ledger as a run fills it: states from the mechanism's own arithmetic."""
  ledger = accounting.NominalLedger(cfg)
  state = participation.initial_state(cfg.participation, N)
  for t, cohort in enumerate(cohorts, 1):
    state = participation.next_state(cfg.participation, state, cohort, t)
    ledger.record(collections.OrderedDict(round=np.int32(t), participation=state), cohort)
  return ledger


def _by_hand(cohorts, warmup=0, counts_warmup=True, ema=None, uniform=False):
  """Σ ε_i and k_i, straight from the documents' equations."""
  base = 3.0 / ROUNDS
  epsilon, taken, counts, rates = np.zeros(N), np.zeros(N, int), np.zeros(N), np.zeros(N)
  for t, cohort in enumerate(cohorts, 1):
    here = np.isin(np.arange(N), cohort)
    counted = counts_warmup or t > warmup
    if counted:
      counts += here
      if ema is not None and len(cohort):
        rates = ema * here + (1 - ema) * rates
    p = rates if ema is not None else counts / (t if counts_warmup else max(t - warmup, 1))
    budgets = base * (1 + 0.7 * np.exp(-1.5 * p)) if t > warmup and not uniform else np.full(N, base)
    epsilon += here * budgets
    taken += here
  return epsilon, taken


CASES = [
    ({}, {}),
    (dict(warmup_rounds=4), dict(warmup=4)),
    (dict(warmup_rounds=4, count_during_warmup=False), dict(warmup=4, counts_warmup=False)),
    (dict(rate='ema', ema_weight=0.3), dict(ema=0.3)),
    (dict(rate='ema', ema_weight=0.3, warmup_rounds=3, count_during_warmup=False),
     dict(ema=0.3, warmup=3, counts_warmup=False)),
    (dict(rule='uniform'), dict(uniform=True)),
    (dict(rule='cohort_min'), {}),
    (dict(rule='cohort_mean_budget', warmup_rounds=4), dict(warmup=4)),
    (dict(placement='client'), {}),
]


class TestNominalLedger:

  @pytest.mark.parametrize('seed', range(4))
  @pytest.mark.parametrize('choices, by_hand', CASES, ids=lambda value: '-'.join(map(str, value.values())))
  def test_sums_of_budgets(self, choices, by_hand, seed):
    cohorts = _history(seed)
    ledger = _replay(_config(**choices), cohorts)
    epsilon, taken = _by_hand(cohorts, **by_hand)
    np.testing.assert_allclose(ledger.epsilon, epsilon, rtol=2e-6)
    assert ledger.rounds.tolist() == taken.tolist()
    np.testing.assert_allclose(ledger.delta, taken * 1e-3, rtol=1e-12)

  def test_nobody_spends_nothing(self):
    ledger = _replay(_config(), [np.array([], np.int64)] * ROUNDS)
    assert not ledger.epsilon.any() and not ledger.rounds.any() and not ledger.delta.any()

  def test_everyone_always_spends_the_documents_sum(self):
    cfg = config.QuapConfig(num_clients=N, participation=participation.ParticipationConfig(warmup_rounds=0))
    ledger = accounting.NominalLedger(cfg)
    everyone = np.arange(N)
    for t in range(1, 201):
      ledger.record({'round': t, 'participation': {'counts': np.full(N, t, np.int32)}}, everyone)
    # ε_total·(1 + α·e^-β), above ε_total = 6: DESIGN 3's erratum, without the warm-up.
    np.testing.assert_allclose(ledger.epsilon, 6 * (1 + 0.5 * np.exp(-2)), rtol=1e-6)
    np.testing.assert_allclose(ledger.delta, 0.002)

  def test_delta_is_at_most_one(self):
    assert _replay(_config(delta=0.4), [np.arange(N)] * 5).delta.tolist() == [1.0] * N

  def test_without_noise_a_round_costs_everything(self):
    ledger = _replay(_config(placement='none'), [np.array([1, 3])])
    assert ledger.epsilon.tolist() == [0, np.inf, 0, np.inf, 0, 0, 0]
    assert ledger.rounds.tolist() == [0, 1, 0, 1, 0, 0, 0]

  def test_a_kept_state_goes_on(self):
    cohorts = _history(9)
    whole = _replay(_config(), cohorts)
    half = _replay(_config(), cohorts[:6])
    kept = half.state_dict()
    resumed = accounting.NominalLedger(_config())
    resumed.load_state_dict(kept)
    state = participation.initial_state(_config().participation, N)
    for t, cohort in enumerate(cohorts, 1):
      state = participation.next_state(_config().participation, state, cohort, t)
      if t > 6:
        resumed.record({'round': t, 'participation': state}, cohort)
    assert resumed.epsilon.tolist() == whole.epsilon.tolist()
    # What was kept is a copy: the run that goes on does not change it.
    assert kept['epsilon'].tolist() == half.epsilon.tolist() and kept['rounds'].tolist() == half.rounds.tolist()

  @pytest.mark.parametrize('state', [
      {'epsilon': np.zeros(N + 1), 'rounds': np.zeros(N + 1, int)},
      {'epsilon': np.zeros(N), 'rounds': np.zeros(N - 1, int)},
      {'epsilon': np.zeros([]), 'rounds': np.zeros(N, int)},
      {'epsilon': np.zeros(N)},
  ])
  def test_a_state_of_another_population_is_refused(self, state):
    ledger = _replay(_config(), _history(1))
    before = ledger.state_dict()
    with pytest.raises(ValueError, match='ledger'):
      ledger.load_state_dict(state)
    # Refused as a whole.
    assert ledger.epsilon.tolist() == before['epsilon'].tolist()
    assert ledger.rounds.tolist() == before['rounds'].tolist()


class TestDescribeProtection:

  def _describe(self, **fields):
    noise = config.NoiseConfig(placement=fields.pop('placement', 'server'), seed=fields.pop('seed', None))
    options = {key: fields.pop(key) for key in ('client_metrics_logged', 'budgets_depend_on_data') if key in fields}
    fields = {'critical_layers': 'all', 'clip': clip_rules.Fixed(1.0), **fields}
    described = accounting.describe_protection(
        config.QuapConfig(num_clients=N, noise=noise, **fields), LAYERS, SIZES,
        **{'client_metrics_logged': False, **options},
    )
    assert described.statement in described.text and described.covers in accounting.COVERS
    return described

  @pytest.mark.parametrize('metrics', [True, False])
  def test_layer_wise(self, metrics):
    found = self._describe(
        critical_layers='final_dense', clip=clip_rules.QuantileEma(), client_metrics_logged=metrics
    )
    assert not found.model_protected and found.covers == 'noised weights'
    assert 'layer logits only: 35 of 200 trained weights (17.50%)' in found.text
    for words in ('no finite ε for the released model', 'taken as given', 'other layers come from un-noised averages'):
      assert words in found.statement
    assert 'un-noised function of the clients\' update norms' in found.statement and 'Nominal' in found.text
    assert ('--noclient_metrics' in found.statement) == metrics

  def test_several_layers(self):
    found = self._describe(critical_layers='all_dense')
    assert not found.model_protected and found.covers == 'noised weights'
    assert 'dense, logits only: 145 of 200' in found.text and 'no finite ε for the released model' in found.statement
    assert 'update norms' not in found.statement

  @pytest.mark.parametrize('placement', ['server', 'client'])
  def test_everything_that_is_released_is_noised(self, placement):
    found = self._describe(placement=placement)
    assert found.model_protected and found.covers == 'released model'
    assert 'every layer: 200 of 200' in found.text
    assert 'no finite' not in found.text and 'seed' not in found.text and 'exact' not in found.text

  def test_every_layer_under_an_exact_quantile(self):
    found = self._describe(clip=clip_rules.QuantileEma())
    assert not found.model_protected and found.covers == 'noised weights'
    for words in ('no finite ε for the released model', 'clipping norm', 'taken as given'):
      assert words in found.statement
    assert 'averages' not in found.statement and 'metrics' not in found.statement

  @pytest.mark.parametrize('stddev, expected', [(1.0, 'released model'), (0.0, 'noised weights')])
  def test_every_layer_under_a_private_quantile(self, stddev, expected):
    found = self._describe(clip=clip_rules.PrivateQuantile(count_stddev=stddev))
    assert found.covers == expected and found.model_protected == (stddev > 0)

  def test_exact_metrics_beside_a_noised_model(self):
    found = self._describe(client_metrics_logged=True)
    assert found.covers == 'noised weights'
    for words in ('no finite ε for the release as a whole', 'metrics', '--noclient_metrics'):
      assert words in found.statement
    assert 'clipping norm' not in found.statement and 'taken as given' not in found.statement
    assert 'exact and not protected' in found.text
    # The model is trained on nothing but noised values all the same.
    assert found.model_protected

  def test_metrics_are_taken_to_be_logged_unless_said_otherwise(self):
    described = accounting.describe_protection(
        config.QuapConfig(num_clients=N, clip=clip_rules.Fixed(1.0), critical_layers='all'), LAYERS, SIZES
    )
    assert described.covers == 'noised weights'

  @pytest.mark.parametrize('critical', ['all', 'final_dense'])
  def test_noise_that_goes_by_the_data(self, critical):
    found = self._describe(critical_layers=critical, budgets_depend_on_data=True)
    assert found.covers == 'nothing' and not found.model_protected
    assert 'un-noised release' in found.statement and 'no finite ε for the released model' in found.statement

  def test_no_noise(self):
    found = self._describe(placement='none')
    assert found.covers == 'nothing' and not found.model_protected
    assert 'nothing is protected' in found.text and 'no finite ε for the released model' in found.statement

  def test_a_noise_seed_is_named(self):
    assert 'noise seed' in self._describe(seed=3).statement
    assert 'noise seed' in self._describe(seed=3, critical_layers='final_dense').statement
