"""Certified runs with correlated noise: what is drawn, what it costs, and what a distinguisher can measure."""

import dataclasses
import functools
import math
import types

from hypothesis import assume
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import numpy as np
import pytest
import scipy.linalg

from data import cohorts as cohorts_lib
from quap_tff import accounting
from quap_tff import plans
from quap_tff.certificates.folders import evidence
from quap_tff.common.lazy import tf
from quap_tff.common.numbers import tradeoff
from quap_tff.mechanisms.certified import planning
from quap_tff.mechanisms.certified import rounds as certified
from quap_tff.mechanisms.certified import weight_rules
from quap_tff.mechanisms.noise import integer_noise
from quap_tff.mechanisms.noise.correlation import Ar1
from quap_tff.mechanisms.noise.correlation import Banded
from quap_tff.mechanisms.noise.correlation import Blt
from quap_tff.mechanisms.noise.correlation import Independent
from quap_tff.mechanisms.parts import clip_rules
from tests.quap_tff import examples
from tests.quap_tff import noise_checks
from tests.quap_tff import rounds

_FAMILIES = [Independent(), Ar1(0.9), Blt((0.6, 0.3), (0.9, 0.4)), Banded(3, (0.7, 0.4))]


_config = functools.partial(examples.noised, num_clients=6, epsilon=30.0, clip=clip_rules.Fixed(0.5))
_open = functools.partial(examples.certified, num_clients=6, epsilon=3.0, clip=clip_rules.Fixed(0.5))


def _rounds(config, cohorts, size=1, state=None):
  """Rounds in which everyone sends zeros: (state, result, measurements) after each."""
  process = rounds.Process(config, [tf.TensorSpec([size], tf.float64)])
  state = process.initialize() if state is None else state
  for cohort in cohorts:
    state, (result,), measurements = process.next(state, [[np.zeros(size)]] * len(cohort), [int(i) for i in cohort])
    yield state, result, measurements


class TestNoise:
  @pytest.mark.slow
  @pytest.mark.parametrize('correlation', _FAMILIES)
  def test_times_c_it_is_independent_and_of_the_stated_scale(self, correlation):
    config = _config(correlation=correlation, num_rounds=5)
    released = np.array([result for _, result, _ in _rounds(config, [[0], [1], [0, 2], [3], [0]], 4000)])
    drawn = scipy.linalg.toeplitz(correlation.coefficients(5), np.zeros(5)) @ released
    for one in drawn:
      noise_checks.assert_gaussian(one, 4.0 * 0.5 / 2.0)
    for s in range(1, 5):
      noise_checks.assert_uncorrelated(drawn[s - 1], drawn[s])
      noise_checks.assert_uncorrelated(drawn[0], drawn[s])

  @pytest.mark.slow
  def test_each_round_takes_back_what_the_one_before_added(self):
    released = [result for _, result, _ in _rounds(_config(correlation=Ar1(0.9), num_rounds=6), [[0]] * 6, 4000)]
    # Z_1, and Z_t - 0.9·Z_{t-1} from then on: the sum is Z_6 + 0.1·(Z_1 + … + Z_5).
    noise_checks.assert_gaussian(sum(released), math.sqrt(1 + 5 * 0.01))
    noise_checks.assert_gaussian(released[3], math.sqrt(1 + 0.81))

  @pytest.mark.slow
  def test_follows_a_clip_that_moves(self):
    """In units of its own round's clipping norm, the noise is that of a fixed one."""
    clip = clip_rules.PrivateQuantile(0.5, 0.5, learning_rate=2.0, count_stddev=20.0)
    config = _config(correlation=Ar1(0.9), clip=clip, epsilon=8.0, num_rounds=4)
    found = list(_rounds(config, [[0, 1]] * 4, 4000))
    clips = [float(measurements['clipping_norm']) for _, _, measurements in found]
    assert len(set(clips)) == 4
    scaled = [result / one for (_, result, _), one in zip(found, clips)]
    noise_checks.assert_gaussian(sum(scaled), 4.0 / 2.0 * math.sqrt(1 + 3 * 0.01))

  @pytest.mark.slow
  @pytest.mark.parametrize('correlation', _FAMILIES)
  def test_a_round_to_which_nobody_adds_is_no_step(self, correlation):
    config = _config(correlation=correlation, num_rounds=3)
    with_gap = list(_rounds(config, [[0], [], [1]], 100))
    without = list(_rounds(config, [[0], [1]], 100))
    np.testing.assert_array_equal(with_gap[1][1], np.zeros(100))
    np.testing.assert_array_equal(with_gap[2][1], without[1][1])
    for before, after in zip(with_gap[0][0].buffers, with_gap[1][0].buffers):
      np.testing.assert_array_equal(before, after)


def _separated(rounds, apart):
  """Every set of rounds that are at least so many apart."""
  found = [()]
  for t in range(rounds):
    found += [(*own, t) for own in found if not own or t - own[-1] >= apart]
  return [own for own in found if own]


def _pairs():
  """Each clip rule with one family of noise, and thoroughly with each."""
  rules = [clip_rules.Fixed(0.5), clip_rules.PrivateQuantile(count_stddev=3.0)]
  for number, correlation in enumerate(_FAMILIES):
    for rule in rules:
      first = (number, rule) in ((1, rules[1]), (2, rules[0]))
      yield pytest.param(correlation, rule, marks=() if first else pytest.mark.thorough)


@pytest.mark.slow
class TestAccount:
  @given(
    seed=st.integers(0, 2**32 - 1),
    correlation=st.sampled_from([*_FAMILIES, Ar1(0.5), Ar1(0.99)]),
    rule=st.sampled_from(
      [
        weight_rules.UniformWeights(),
        weight_rules.ParticipationWeights(4.0, 5.0),
        weight_rules.Online(),
        weight_rules.Online(0.5, 9.0),
        weight_rules.SpendEvenly(),
      ]
    ),
    clip=st.sampled_from([clip_rules.Fixed(1.0), clip_rules.PrivateQuantile(count_stddev=3.0)]),
    multiplier=st.sampled_from([0.6, 2.0, 8.0]),
    planned=st.integers(1, 40),
    more=st.integers(-3, 3),
  )
  @settings(max_examples=50)
  def test_no_history_passes_the_budget(self, seed, correlation, rule, clip, multiplier, planned, more):
    """Against ‖C·w_i‖ written out in full, for cohorts that come and go by chance, and runs of another length."""
    assume(not isinstance(correlation, Banded) or planned >= correlation.bands)
    rng = np.random.default_rng(seed)
    config = _config(
      epsilon=3.0,
      correlation=correlation,
      weights=rule,
      clip=clip,
      noise_multiplier=multiplier,
      num_rounds=planned,
      planned_rounds=[3] * 6 if rule.needs_plan else None,
    )
    rounds = max(planned + more, 1)
    rates = rng.beta(0.7, 0.7, 6)
    cohorts = [np.flatnonzero(rng.uniform(size=6) < rates) for _ in range(rounds)]
    weights = np.zeros([rounds, 6])
    for t, (cohort, found) in enumerate(zip(cohorts, config.simulated(cohorts))):
      weights[t, cohort] = found.weights
    assert not weights[planned:].any()
    releases = weights[weights.any(axis=1)]
    matrix = scipy.linalg.toeplitz(correlation.coefficients(len(releases)), np.zeros(len(releases)))
    mu = np.square(matrix @ releases).sum(axis=0) / multiplier**2
    mu += (weights > 0).sum(axis=0) * config.prices.count_cost
    assert (tradeoff.epsilon_of(np.sqrt(mu), config.config.delta) <= config.config.epsilon).all()

  @pytest.mark.usefixtures('undrawn')
  @pytest.mark.parametrize('correlation, clip', _pairs())
  def test_state_ledger_and_plan_agree(self, correlation, clip):
    rng = np.random.default_rng(2)
    cohorts = [np.flatnonzero(rng.uniform(size=6) < np.linspace(0.2, 0.9, 6)) for _ in range(15)]
    config = _config(epsilon=3.0, correlation=correlation, clip=clip, weights=weight_rules.Online(), num_rounds=15)
    plan = plans.Plan.certified(config.config, cohorts, certificate=False)
    ledger = plan.new_ledger()
    for (state, _, measurements), cohort, expected in zip(_rounds(config, cohorts), cohorts, config.simulated(cohorts)):
      np.testing.assert_allclose(state.weights[cohort], expected.weights, rtol=1e-6)
      assert float(measurements['spent_max']) == pytest.approx(expected.spent_max, rel=1e-6)
      ledger.append(plan.recorded(state, measurements, cohort))
    # All rounds have released, so what was charged for them is what they have cost.
    np.testing.assert_allclose(accounting.total_mu(ledger).whole ** 2, state.accounts.spent, rtol=1e-9)
    assert not evidence.ledger_problems(plan, ledger)
    again = accounting.RunLedger.from_state_dict(ledger.state_dict())
    np.testing.assert_array_equal(accounting.total_mu(again).whole, accounting.total_mu(ledger).whole)

  def test_last_bits_of_another_processor_make_no_other_run(self):
    """Where a budget is nearly spent, differences in last bits grow. So rounds are checked after those before them."""
    rng = np.random.default_rng(2)
    cohorts = [np.flatnonzero(rng.uniform(size=6) < 0.6) for _ in range(40)]
    config = _config(
      epsilon=3.0,
      correlation=Ar1(0.9),
      weights=weight_rules.ParticipationWeights(),
      num_rounds=40,
      noise_multiplier=24.0,
    )
    plan, kept = plans.Plan.certified(config.config, cohorts, certificate=False), []
    ledger = plan.new_ledger()
    for t, cohort in enumerate(cohorts):
      weights = config.simulated(cohorts[: t + 1], kept)[t].weights
      kept.append(np.float32(weights * (1 - 2e-7 * rng.uniform(size=len(cohort)))))
      all_weights = np.zeros(6, np.float32)
      all_weights[cohort] = kept[-1]
      state = types.SimpleNamespace(weights=all_weights, round=1)
      ledger.append(plan.recorded(state, dict(clipping_norm=0.5, cohort_size=len(cohort)), cohort))
    assert evidence.ledger_problems(plan, ledger) == []
    # Without the weights that there were, rounds near the end of a budget come out otherwise.
    alone = config.simulated(cohorts)
    assert not all(np.allclose(one.weights, given, rtol=1e-5, atol=0) for one, given in zip(alone, kept))

  def test_a_client_that_stays_away_is_charged_for_being_seen(self):
    """1 in release 1 and 0.9^k in the k-th after it: of 4, Σ 0.81^k = 2.8541."""
    config = _config(correlation=Ar1(0.9), num_rounds=4)
    (state, _, _), *rest = _rounds(config, [[0], [1], [1], [1]])
    assert float(state.accounts.spent[0]) == pytest.approx((1 + 0.81 + 0.81**2 + 0.81**3) / 16, rel=1e-9)
    assert float(rest[-1][0].accounts.spent[0]) == float(state.accounts.spent[0])


class TestPlanning:
  _COHORTS = [np.flatnonzero(np.random.default_rng(t).uniform(size=6) < 0.3) for t in range(40)]

  @pytest.mark.slow
  def test_a_decay_is_chosen_where_it_pays(self):
    from quap_tff.mechanisms.parts import postprocessing

    config = _open(correlation=Ar1(), weights=weight_rules.Online())
    chosen, averaging = config.settled(self._COHORTS, postprocessing.PlannedAverage())
    assert 0.5 < chosen.config.correlation.decay < 0.999
    assert averaging in postprocessing.PlannedAverage().candidates(40)
    # Everyone in every round: each participation overlaps with all the others, and independent noise is as good.
    everyone, _ = config.settled([np.arange(6)] * 10)
    assert everyone.config.correlation.decay < chosen.config.correlation.decay

  def test_the_published_accounting_asks_for_more_noise(self):
    config = _open(correlation=Ar1(0.9))
    exact, _ = config.settled(self._COHORTS)
    worst, _ = dataclasses.replace(config, weights=weight_rules.WorstCase()).settled(self._COHORTS)
    releases = [cohort for cohort in self._COHORTS if len(cohort)]
    most, apart = planning.participation_bounds(releases, 6)
    rounds = [np.flatnonzero([client in cohort for cohort in releases]) for client in range(6)]
    assert most == max(map(len, rounds)) and apart == min(np.diff(own).min() for own in rounds)
    norm = Ar1(0.9).worst_case(most, apart, len(releases))
    assert worst.noise_multiplier == pytest.approx(norm / math.sqrt(config.limit), rel=1e-6)
    assert worst.noise_multiplier > exact.noise_multiplier
    assert all((found.weights == 1).all() for found in worst.simulated(self._COHORTS))

  @pytest.mark.slow
  @pytest.mark.parametrize('noise', [Ar1(0.9), Blt(), Banded(3)])
  def test_noise_for_a_promised_separation_is_known_before_a_cohort_is_drawn(self, noise):
    config = _open(num_clients=30, correlation=noise, weights=weight_rules.WorstCase())
    drawn = []
    for seed in range(3):
      model = cohorts_lib.make('separated:min_separation=3', 30, 5, seed)
      schedule = [model.cohort(t) for t in range(1, 21)]
      planned = config.settled(schedule, min_separation=3).mechanism
      drawn.append((planned.noise_multiplier, planned.config.correlation))
      assert all((found.weights == 1).all() for found in planned.simulated(schedule))
    assert len(set(drawn)) == 1
    multiplier, settled = drawn[0]
    # The worst of all clients that the promise allows, by brute force: 20 rounds, at most 7 of them, 3 apart.
    matrix = scipy.linalg.toeplitz(settled.coefficients(20), np.zeros(20))
    worst = max(np.linalg.norm(matrix[:, list(rounds)].sum(axis=1)) for rounds in _separated(20, 3))
    assert multiplier == pytest.approx(worst / math.sqrt(config.limit), rel=1e-6)

  def test_a_schedule_that_breaks_its_promise_is_refused(self):
    config = _open(correlation=Ar1(0.9), weights=weight_rules.WorstCase())
    with pytest.raises(ValueError, match='at least 3 apart, by min_separation, .* comes again after 2'):
      config.settled([[0], [1], [0], [2]], min_separation=3)
    # Nobody comes twice.
    config.settled([[0], [1]], min_separation=3)
    for too_few in (0, -3):
      with pytest.raises(ValueError, match=f'min_separation must be an integer at least 1, found {too_few}'):
        config.settled([[0], [1]], min_separation=too_few)

  @pytest.mark.parametrize('rounds', [[[0]] * 3, [[0], [], [1], [0]]])
  def test_more_bands_than_rounds_are_refused(self, rounds):
    config = _open(correlation=Banded(4))
    with pytest.raises(ValueError, match='bands=4 needs at least as many planned rounds .*, found 3. Use fewer'):
      config.settled(rounds)
    with pytest.raises(ValueError, match='bands=4 needs at least'):
      _config(correlation=Banded(4, (0.5, 0.2, 0.1)), num_rounds=3)

  @pytest.mark.slow
  @pytest.mark.parametrize('noise', [Blt(), Banded(3)])
  @pytest.mark.parametrize(
    'rule',
    [
      weight_rules.WorstCase(),
      weight_rules.Online(),
      weight_rules.UniformWeights(),
      weight_rules.ParticipationWeights(),
    ],
  )
  def test_published_noise_with_every_account(self, noise, rule):
    """The client that spends most comes close to its budget and not over it, by ‖C·w_i‖ written out in full."""
    schedule = [np.sort(np.random.default_rng(t).choice(6, 2, replace=False)) for t in range(20)]
    config = _open(correlation=noise, weights=rule)
    planned = config.settled(schedule).mechanism
    assert type(planned.config.correlation) is type(noise)
    weights = np.zeros([20, 6])
    for t, (cohort, found) in enumerate(zip(schedule, planned.simulated(schedule))):
      weights[t, cohort] = found.weights
    matrix = scipy.linalg.toeplitz(planned.config.correlation.coefficients(20), np.zeros(20))
    spent = np.square(matrix @ weights).sum(axis=0) / planned.noise_multiplier**2
    assert spent.max() <= config.limit * (1 + 1e-9)
    # The worst case of the schedule's bounds is that of no client here.
    assert spent.max() > (0.5 if rule.takes_worst_case else 0.9) * config.limit

  def test_ten_thousand_clients_over_two_thousand_rounds(self):
    """That they are planned in time is measured by the benchmark; here, that memory does not hold N·T."""
    rng = np.random.default_rng(0)
    config = _open(num_clients=10_000, epsilon=30.0, correlation=Ar1(0.9))
    cohorts = [rng.choice(10_000, 100, replace=False) for _ in range(50)]
    chosen, _ = config.settled(cohorts)
    assert chosen.config.num_rounds == 50 and chosen.noise_multiplier > 0


@pytest.mark.slow
class TestDistinguisher:
  """An adversary who knows everything but one client's data, against the mechanism's own functions.

  The client pushes one way with all it may. The others answer every release, and the clipping norm moves by private
  counts, so that rounds depend on each other in every way that the proof allows. From each run the adversary takes the
  statistic that the proof says is best, S = Σ_s a_s·Y_s/(z·‖a‖); μ is how far its mean moves, in standard deviations.

  tests/quap_tff/auditing/distinguisher_test.py has every family and rule. What is particular here is that the clipping
  norm differs from run to run. So runs are drawn one by one, with a faster generator than that of the mechanism.
  """

  _COHORTS = [[0, 1], [1, 2], [0, 2], [0], [0, 1]]

  _CORRELATION = Ar1(0.9)

  @pytest.fixture(scope='class')
  def measured(self):
    """A function from (number of runs, scale of the noise in the sums) to what is measured over what is claimed."""
    scale = None  # While `runs` is traced, its tensor.

    def draw(sampler, key, count, shifts=0.0, stream=integer_noise.Stream()):
      noise = sampler.stddev * tf.random.stateless_normal([count], 2 * key[:2] + stream.use, dtype=tf.float64)
      # Counts have a stream of their own, and keep their noise.
      return tf.cast(tf.round((noise if stream.use else scale * noise) - shifts), tf.int64)

    config = _config(
      num_clients=3,
      noise_multiplier=1.6,
      divisor=1.5,
      correlation=self._CORRELATION,
      weights=weight_rules.UniformWeights(),
      epsilon=60.0,
      clip=clip_rules.PrivateQuantile(0.5, 0.5, learning_rate=0.5, count_stddev=5.0),
      num_rounds=5,
    )
    matrix = scipy.linalg.toeplitz(self._CORRELATION.coefficients(5), np.zeros(5))
    takes_part = np.array([0 in cohort for cohort in self._COHORTS], float)
    shifts = matrix @ takes_part
    claimed = np.linalg.norm(shifts) / config.noise_multiplier

    def run(seed, with_data):
      one = config.for_model([tf.TensorSpec([1], tf.float64)], [])
      state = one.initial_state()
      key = tf.concat([[seed, 1], state.noise.seed[2:]], axis=0)
      state = state._replace(noise=state.noise._replace(seed=key))
      model, seen = tf.zeros([1], tf.float64), []
      for cohort in self._COHORTS:
        sent = [
          tf.fill([1], 1e9 * tf.cast(with_data, tf.float64)) if client == 0 else tf.sin(3 * model) - 0.2 * model
          for client in cohort
        ]
        announced, ids = one.announce(state), tf.constant(cohort, tf.int64)
        reports = [one.report([update], dict(client_id=ids[k]), announced) for k, update in enumerate(sent)]
        # The others' norms are what moves the clip in both worlds: that count is an account of its own.
        norms = tf.where(tf.equal(cohort, 0), 0.0, tf.stack([report['norm'] for report in reports]))
        admitted = one.admit(state, announced, dict(client_id=ids, norm=norms))
        added = [one.contribution({0: update}, report, announced)[0] for update, report in zip(sent, reports)]
        others = tf.add_n([tf.zeros([1], one.sum_dtype)] + [a for a, client in zip(added, cohort) if client])
        after, (result,), _ = one.release(state, admitted, [tf.add_n(added)])
        # In units of the clipping norm, less what the others have added, which the adversary knows.
        noised = tf.cast(result, tf.float64) * config.divisor / tf.cast(state.clip, tf.float64)
        seen.append(noised - tf.cast(others, tf.float64) / one.grid.steps)
        model, state = model + tf.cast(result, tf.float64), after
      released = tf.concat(seen, axis=0)
      return tf.tensordot(tf.constant(shifts), tf.linalg.matvec(tf.constant(matrix), released), 1)

    # Traced once, with seeds, world and scale as arguments.
    specs = [tf.TensorSpec([None], tf.int64), tf.TensorSpec([], tf.float64), tf.TensorSpec([], tf.float64)]

    @tf.function(autograph=False, input_signature=specs)
    def runs(seeds, with_data, of_noise):
      nonlocal scale
      scale = of_noise
      return tf.map_fn(lambda seed: run(seed, with_data), seeds, fn_output_signature=tf.float64)

    def measure(num_runs, of_noise):
      outcomes = [runs(tf.range(num_runs, dtype=tf.int64), world, of_noise).numpy() for world in (0.0, 1.0)]
      deviation = math.sqrt(np.mean([outcome.var(ddof=1) for outcome in outcomes]))
      return (outcomes[1].mean() - outcomes[0].mean()) / deviation / claimed

    with pytest.MonkeyPatch.context() as monkeypatch:
      round_key = lambda self, noise, client_ids: noise.seed + tf.stack([0, noise.counter, 0, 0])
      monkeypatch.setattr(integer_noise.Sampler, 'draw', draw)
      monkeypatch.setattr(certified.CertifiedRounds, 'round_key', round_key)
      yield measure

  def test_measures_what_is_claimed(self, measured):
    assert measured(1000, 1.0) == pytest.approx(1, rel=0.05)

  @pytest.mark.parametrize('scale', [2 / 3, 3 / 2])
  def test_notices_wrong_noise(self, scale, measured):
    assert abs(measured(200, scale) - 1) > 0.25
