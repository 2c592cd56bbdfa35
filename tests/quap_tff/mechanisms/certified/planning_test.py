"""Tests of `mechanisms.certified.planning`: noise and weights from a schedule, and rounds as the ledger has them."""

import math
from typing import NamedTuple

import numpy as np
import pytest
import scipy.linalg

from quap_tff import accounting
from quap_tff import plans
from quap_tff.common.numbers import tradeoff
from quap_tff.mechanisms.certified import planning
from quap_tff.mechanisms.certified import privacy_filter
from quap_tff.mechanisms.certified import weight_rules
from quap_tff.mechanisms.noise import correlation as correlations
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.parts import postprocessing
from quap_tff.mechanisms.parts.participation import ParticipationConfig
from tests.quap_tff import examples
from tests.quap_tff import rounds

# The part of ε and δ that is not kept for what rounding costs, and the largest μ at (3, 1e-5).
_KEPT = 1 - 2.0**-11
_MU = tradeoff.mu_at_most(3.0 * _KEPT, 1e-5 * _KEPT)


def _config(num_clients=10, **changes):
  return examples.certified(num_clients=num_clients, noise_seed=0, **changes)


class _State(NamedTuple):
  weights: np.ndarray
  round: int = 1


def _run(config, cohorts):
  """The state after rounds of these cohorts, and their ledger."""
  plan_of_run = plans.Plan.certified(config.config, [], certificate=False)
  ledger = plan_of_run.new_ledger()
  process = rounds.Process(config, [[1]])
  state = process.initialize()
  for cohort in cohorts:
    state, _, measurements = process.next(state, [[[0.0]]] * len(cohort), [int(i) for i in cohort])
    ledger.append(plan_of_run.recorded(state, measurements, np.asarray(cohort, np.int64)))
  return state, ledger


def _calibrated(config, cohorts):
  return config.settled(cohorts).mechanism


class TestCalibrated:
  @pytest.mark.slow
  @pytest.mark.parametrize('rounds', [1, 7, pytest.param(20, marks=pytest.mark.thorough)])
  def test_everyone_in_every_round(self, rounds):
    config = _calibrated(_config(), [np.arange(10)] * rounds)
    assert config.noise_multiplier == pytest.approx(math.sqrt(rounds) / _MU, rel=1e-8)
    assert config.divisor == 10.0
    state, _ = _run(config, [np.arange(10)] * rounds)
    np.testing.assert_array_equal(state.weights, np.ones(10))
    np.testing.assert_allclose(state.accounts.spent, _MU**2, rtol=1e-8)

  def test_two_groups_by_hand(self):
    # a clients in all of 16 rounds, b in the last 4. With v_t = 0.8^(16-t), J·√Σv²/μ is (4.859·a + 2.952·b)/4 at
    # z = 4/μ, where all budgets last; and (0.203·a + 2.952·b)/2 at z = 2/μ, where a's are spent after four rounds.
    def chosen(a, b):
      cohorts = [np.arange(a)] * 12 + [np.arange(a + b)] * 4
      return _calibrated(_config(), cohorts).noise_multiplier * _MU

    assert chosen(3, 3) == pytest.approx(4.0, rel=1e-8)
    assert chosen(2, 8) == pytest.approx(2.0, rel=1e-8)
    assert chosen(4, 6) == pytest.approx(4.0, rel=1e-8)
    assert chosen(3, 6) == pytest.approx(2.0, rel=1e-8)

  def test_no_other_noise_is_better(self):
    rng = np.random.default_rng(0)
    cohorts = [np.flatnonzero(rng.uniform(size=10) < np.linspace(0.1, 0.9, 10)) for _ in range(30)]
    config = _config(weights=weight_rules.ParticipationWeights())
    best = _calibrated(config, cohorts)

    multipliers = best.noise_multiplier * np.append(np.geomspace(0.2, 3.0, 25), 1.0)
    kept = (1 - postprocessing.PULL) ** np.arange(30)[::-1]
    objective = planning._weight_sums(best, multipliers, cohorts) @ kept / multipliers
    assert (objective <= objective[-1] * (1 + 1e-3)).all()
    assert objective[0] < 0.9 * objective[-1]

  def test_adaptive_weights_need_less_noise(self):
    cohorts = [np.arange(10)] * 20
    rule = weight_rules.ParticipationWeights(0.5, 2.0)
    config = _calibrated(_config(weights=rule), cohorts)
    weight = (1 + 0.5 * math.exp(-2)) / 1.5
    assert config.noise_multiplier == pytest.approx(weight * math.sqrt(20) / _MU, rel=1e-6)
    assert config.divisor == pytest.approx(10 * weight, rel=1e-6)

  def test_even_spending_gives_the_rarest_client_the_whole_clip(self):
    # J is the same at any noise up to √K_min/μ, and falls beyond.
    cohorts = [np.arange(10)] * 4 + [np.arange(5, 10)] * 12
    config = _calibrated(_config(weights=weight_rules.SpendEvenly()), cohorts)
    assert config.noise_multiplier == pytest.approx(2 / _MU, rel=1e-8)

  def test_counts_take_their_share(self):
    clip = clip_rules.PrivateQuantile(count_stddev=10.0)
    config = _calibrated(_config(clip=clip), [np.arange(10)] * 20)
    assert config.noise_multiplier == pytest.approx(math.sqrt(20 / (_MU**2 - 20 / 400)), rel=1e-8)

  def test_a_given_divisor_gets_its_noise(self):
    cohorts = [np.arange(10)] * 7
    free, given = _calibrated(_config(), cohorts), _calibrated(_config(divisor=3.0), cohorts)
    assert (given.noise_multiplier, given.divisor) == (free.noise_multiplier, 3.0)

  def test_even_spending_plans_what_correlated_noise_costs(self):
    cohorts = [[0, 1], [0], [0], [2]]
    config = _config(num_clients=3, weights=weight_rules.SpendEvenly(), correlation=correlations.Ar1(0.5))
    mechanism = _calibrated(config, cohorts)
    weights = np.array([[1, 1, 0], [1, 0, 0], [1, 0, 0], [0, 0, 1]])
    matrix = scipy.linalg.toeplitz(correlations.Ar1(0.5).coefficients(4), np.zeros(4))
    assert mechanism.config.planned_rounds == (3, 1, 1)
    np.testing.assert_allclose(mechanism.config.planned_costs, np.square(matrix @ weights).sum(axis=0), rtol=1e-9)
    assert _calibrated(mechanism.config, [[0, 1, 2]] * 4) == mechanism

  def test_a_given_noise_multiplier_gets_its_divisor(self):
    # z = 2/μ pays for 4 of 8 rounds; the mean is over rounds in which something is added.
    given = 2.0 / _MU * (1 + 1e-8)
    config = _calibrated(_config(noise_multiplier=given), [np.arange(10)] * 8 + [[]])
    assert config.noise_multiplier == given and config.divisor == 10.0

  @pytest.mark.parametrize('cohorts', [[], [[], []]])
  @pytest.mark.parametrize('given', [None, 2.0])
  def test_nobody(self, cohorts, given):
    with pytest.raises(ValueError, match='Nobody takes part in any of the planned rounds'):
      _calibrated(_config(noise_multiplier=given), cohorts)

  def test_noise_that_nobody_can_pay_for(self):
    with pytest.raises(ValueError, match="noise_multiplier=0.01 is so small that nobody's budget pays for a round"):
      _calibrated(_config(noise_multiplier=0.01), [np.arange(10)] * 3)

  def test_counts_alone_cost_too_much(self):
    config = _config(clip=clip_rules.PrivateQuantile(count_stddev=1.0))
    with pytest.raises(ValueError, match='Give the counts more noise'):
      _calibrated(config, [np.arange(10)] * 20)


class TestRoundRecord:
  @pytest.mark.slow
  @pytest.mark.usefixtures('undrawn')
  @pytest.mark.parametrize(
    'rule, clip',
    [
      (weight_rules.UniformWeights(), clip_rules.PrivateQuantile(count_stddev=3.0)),
      (weight_rules.ParticipationWeights(), clip_rules.Fixed(0.5)),
      pytest.param(weight_rules.UniformWeights(), clip_rules.Fixed(0.5), marks=pytest.mark.thorough),
      pytest.param(
        weight_rules.ParticipationWeights(), clip_rules.PrivateQuantile(count_stddev=3.0), marks=pytest.mark.thorough
      ),
    ],
  )
  def test_the_ledgers_exact_account_is_what_the_filter_has_spent(self, clip, rule):
    rng = np.random.default_rng(1)
    cohorts = [np.flatnonzero(rng.uniform(size=10) < np.linspace(0.1, 1.0, 10)) for _ in range(25)]
    config = examples.noised(clip=clip, weights=rule, divisor=1.0, noise_seed=0)
    state, ledger = _run(config, cohorts)
    assert np.any(np.asarray(state.weights)[cohorts[-1]] == 0), 'No client has run out.'
    mu = accounting.total_mu(ledger).whole
    np.testing.assert_allclose(mu**2, state.accounts.spent, rtol=1e-9)
    assert (tradeoff.epsilon_of(mu, config.config.delta) <= config.config.epsilon).all()
    # Basic composition is looser, and never says less than is so.
    assert (ledger.epsilon[mu > 0] >= tradeoff.epsilon_of(mu, 25 * config.config.delta)[mu > 0]).all()

  def test_by_hand(self):
    config = _config(clip=clip_rules.PrivateQuantile(count_stddev=3.0), noise_multiplier=4.0, divisor=1.0)
    output = _State(np.float32([0, 1, 0.5, 0])), dict(clipping_norm=0.25, cohort_size=2)
    record = plans.Plan.certified(config, [], certificate=False).recorded(*output, np.array([2, 1]))
    np.testing.assert_array_equal(record.cohort, [2, 1])
    np.testing.assert_array_equal(record.weights, [0.5, 1.0])
    assert (record.noise_multiplier, record.count_noise_multiplier, record.clipping_norm) == (4.0, 6.0, 0.25)
    expected = tradeoff.epsilon_of(np.sqrt([1 / 64 + 1 / 36, 1 / 16 + 1 / 36]), 1e-5)
    np.testing.assert_allclose(record.budgets, expected, rtol=1e-12)

  @pytest.mark.parametrize('clip', [clip_rules.Fixed(1.0), clip_rules.PrivateQuantile(count_stddev=3.0)])
  def test_a_client_that_adds_nothing_stays_on_record_and_spends_nothing(self, clip):
    config = _config(clip=clip, noise_multiplier=1.0, divisor=1.0)
    output = _State(np.float32([1, 0])), dict(clipping_norm=1.0, cohort_size=2)
    record = plans.Plan.certified(config, [], certificate=False).recorded(*output, np.array([0, 1]))
    np.testing.assert_array_equal(record.cohort, [0, 1])
    assert record.weights[1] == 0 and 0 < record.budgets[1] < 1e-300
    assert record.count_noise_multiplier == clip.count_noise_multiplier
    ledger = accounting.RunLedger(config.num_clients, config.delta, '')
    ledger.append(record)
    assert accounting.total_mu(ledger).whole[1] == 0 < accounting.total_mu(ledger).whole[0]


class TestPopulation:
  """Clients that never take part change nothing, and cost nothing."""

  RULES = [
    (weight_rules.Online(), correlations.Ar1(None)),
    (weight_rules.UniformWeights(), correlations.Blt()),
    (weight_rules.ParticipationWeights(), correlations.Independent()),
  ]

  def schedule(self, num_clients, rounds=12, size=8, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.choice(num_clients, size, replace=False) for _ in range(rounds)]

  @pytest.mark.thorough
  @pytest.mark.slow
  @pytest.mark.parametrize('weights, correlation', RULES)
  @pytest.mark.parametrize('rate', ['cumulative', 'ema'])
  def test_others_change_nothing(self, weights, correlation, rate):
    cohorts = self.schedule(30)
    # The same clients, far apart among many.
    places = np.sort(np.random.default_rng(1).choice(5000, 30, replace=False))
    results = []
    for count, schedule in ((30, cohorts), (5000, [places[cohort] for cohort in cohorts])):
      config = _config(
        count,
        weights=weights,
        correlation=correlation,
        num_rounds=12,
        participation=ParticipationConfig(rate=rate, warmup_rounds=2),
      )
      planned = config.settled(schedule).mechanism
      rounds = planned.simulated(schedule)
      results.append((planned.noise_multiplier, planned.divisor, planned.config.correlation, rounds))
    assert results[0][:3] == results[1][:3]
    for few, many in zip(results[0][3], results[1][3]):
      np.testing.assert_array_equal(few.weights, many.weights)
      assert few.spent_max == many.spent_max

  def test_accounts_are_as_many_as_take_part(self, monkeypatch):
    opened = []
    original = privacy_filter.opened
    monkeypatch.setattr(
      planning.privacy_filter, 'opened', lambda count, *args: opened.append(count) or original(count, *args)
    )
    cohorts = self.schedule(10**6, rounds=20, size=50)
    config = _config(10**6, weights=weight_rules.Online(), correlation=correlations.Ar1(0.5), num_rounds=20)
    planned = config.settled(cohorts).mechanism
    planned.simulated(cohorts)
    assert set(opened) == {len(np.unique(np.concatenate(cohorts)))} and max(opened) <= 1000

  @pytest.mark.slow
  @pytest.mark.parametrize('weights, correlation', RULES)
  def test_accounts_that_are_kept_at_once_are_limited_and_change_nothing(self, monkeypatch, weights, correlation):
    config = _config(30, weights=weights, correlation=correlation, num_rounds=12)
    opened = []
    original = privacy_filter.opened
    monkeypatch.setattr(
      planning.privacy_filter,
      'opened',
      lambda count, buffers, leading=(): opened.append(count * math.prod(leading)) or original(count, buffers, leading),
    )
    together = config.settled(self.schedule(30))
    largest = max(opened)
    opened.clear()
    monkeypatch.setattr(planning, '_MOST_ACCOUNTS', 100)
    assert config.settled(self.schedule(30)) == together
    assert max(opened) <= 100 < largest

  @pytest.mark.slow
  def test_planned_and_real_weights_agree(self):
    cohorts = self.schedule(40)
    config = _calibrated(
      _config(40, weights=weight_rules.Online(), correlation=correlations.Ar1(0.5), num_rounds=12), cohorts
    )
    state, ledger = _run(config, cohorts)
    for index, planned in enumerate(config.simulated(cohorts)):
      entries = slice(*ledger.state_dict()['offsets'][index : index + 2])
      np.testing.assert_allclose(ledger.state_dict()['weights'][entries], planned.weights, rtol=1e-6)
    assert planned.spent_max == pytest.approx(float(np.max(state.accounts.spent)) / config.prices.limit, rel=1e-6)


class TestOpenClip:
  @pytest.mark.parametrize('trust', ['server', 'secure_sum'])
  @pytest.mark.parametrize('rounds, norm', [(4, 1.0), (10, 1.0), (40, 0.25)])
  def test_follows_from_the_number_of_rounds(self, trust, rounds, norm):
    fields = dict(correlation=correlations.HeldNoise()) if trust == 'secure_sum' else {}
    config = examples.guarantee(clip=None, **fields)
    assert config.settled([[0, 1], [2, 3]] * (rounds // 2)).mechanism.clip == clip_rules.Fixed(norm)

  def test_of_a_given_number_of_rounds_or_a_given_norm(self):
    settled = lambda **fields: examples.guarantee(**fields).settled([[0, 1], [2, 3]]).mechanism.clip.norm
    assert (settled(clip=None, num_rounds=100), settled(clip=clip_rules.Fixed(0.3))) == (0.1, 0.3)

  def test_a_mechanism_without_one_is_refused(self):
    config = examples.certified(clip=None, noise_multiplier=2.0, divisor=1.0)
    with pytest.raises(ValueError, match='found clip=None. Give clip, such as .*or num_rounds'):
      config.settled([])


class TestShareOfCeiling:
  def test_everyone_in_one_round_reaches_it(self):
    config = examples.certified(num_clients=4)
    planned = config.settled([range(4)])
    assert planning.share_of_ceiling(planned, [range(4)]) == pytest.approx(1, rel=1e-6)

  def test_independent_noise_of_a_last_iterate(self):
    # Every round has a new client alone, so each spends its limit at once: T·μ/√T of T·μ.
    config = examples.certified(num_clients=4)
    cohorts = [[0], [1], [2], [3]]
    assert planning.share_of_ceiling(config.settled(cohorts), cohorts) == pytest.approx(0.5, rel=1e-6)

  @pytest.mark.slow
  @pytest.mark.parametrize('trust', ['server', 'secure_sum'])
  def test_correlated_noise_comes_nearer_and_does_not_pass_it(self, trust):
    rng = np.random.default_rng(0)
    cohorts = [np.sort(rng.choice(20, 8, replace=False)) for _ in range(30)]
    shares = []
    for decay in (0.0, None):
      noise = correlations.Ar1(decay) if trust == 'server' else correlations.HeldNoise(decay)
      rule = dict(weights=weight_rules.SpendEvenly()) if trust == 'server' else {}
      config = examples.guarantee(num_clients=20, correlation=noise, **rule)
      shares.append(planning.share_of_ceiling(config.settled(cohorts, postprocessing.PlannedAverage()), cohorts))
    assert 1.2 * shares[0] < shares[1] <= 1
