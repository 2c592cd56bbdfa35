"""Certified plans without a schedule: what their noise is chosen from, what they refuse, and whom `ask` lets in."""

import types

import numpy as np
import pytest

import quap_tff
from quap_tff.mechanisms.certified import weight_rules
from quap_tff.mechanisms.held import guarded_clients
from quap_tff.mechanisms.noise import correlation
from quap_tff.mechanisms.parts import layers
from quap_tff.mechanisms.parts import postprocessing
from tests.quap_tff import examples

N = 8
_RNG = np.random.default_rng(4)
# Client 0 comes often, and clients 6 and 7 never.
PAST = [np.flatnonzero(_RNG.random(N) < np.linspace(0.9, 0.1, N) * (np.arange(N) < 7)) for _ in range(12)]
_NUMBERS = dict(noise_multiplier=5.0, divisor=3.0, num_rounds=12, weights=weight_rules.UniformWeights())


def _config(**changes):
  return examples.guarantee(num_clients=N, **changes)


def _held(**changes):
  return _config(correlation=correlation.HeldNoise(0.5), **changes)


class TestNoise:
  @pytest.mark.slow
  @pytest.mark.parametrize('noise', [correlation.Independent(), correlation.Ar1(), correlation.Banded(3)])
  def test_it_is_that_of_the_same_cohorts_as_a_schedule(self, noise):
    config = _config(correlation=noise, weights=weight_rules.Online())
    planned, came = quap_tff.Plan.certified(config, PAST), quap_tff.Plan.certified(config, expected=PAST)
    assert came.mechanism == planned.mechanism and came.averaging == planned.averaging
    assert (planned.cohorts, came.cohorts) == ('planned', 'as they came') and came.schedule == []

  def test_rates_are_drawn_once(self):
    rates = np.tile(np.linspace(0.9, 0.1, N), [12, 1])
    plans = [quap_tff.Plan.certified(_config(), expected=rates) for _ in range(2)]
    assert plans[0].mechanism == plans[1].mechanism and plans[0].mechanism.config.num_rounds == 12
    random = np.random.default_rng(0)
    drawn = [np.flatnonzero(random.random(N) < one) for one in rates]
    assert plans[0].mechanism == quap_tff.Plan.certified(_config(), expected=drawn).mechanism

  def test_a_log_and_a_model_are_read(self, tmp_path):
    log, config = tmp_path / 'log.csv', _config(num_rounds=12)
    rows = [f'{t},{i}' for t, ids in enumerate(PAST, 1) for i in (ids if len(ids) else [''])]
    log.write_text('round,client\n' + '\n'.join(rows) + '\n')
    model = types.SimpleNamespace(cohort=lambda round_num: PAST[round_num - 1])
    expected = quap_tff.Plan.certified(config, expected=PAST).mechanism
    for one in (str(log), log, model):
      assert quap_tff.Plan.certified(config, expected=one).mechanism == expected

  def test_numbers_are_taken_as_they_are(self):
    plan = quap_tff.Plan.certified(_config(**_NUMBERS))
    assert (plan.mechanism.noise_multiplier, plan.mechanism.divisor, plan.mechanism.config.num_rounds) == (5.0, 3.0, 12)
    assert quap_tff.Plan.certified(plan.config).mechanism == plan.mechanism

  def test_held_noise_has_a_weight_for_everyone_and_any_cohort(self):
    planned = quap_tff.Plan.certified(_held(), PAST).mechanism
    came = quap_tff.Plan.certified(_held(), expected=PAST).mechanism
    weights, known = np.array(planned.planned_weights), np.isin(np.arange(N), np.concatenate(PAST))
    assert came.most_clients == N and not known[7] and (weights[~known] == 0).all()
    np.testing.assert_array_equal(came.planned_weights, np.where(known, weights, weights[known].min()))


@pytest.mark.parametrize(
  'make, words',
  [
    (lambda: quap_tff.Plan.certified(_config()), 'Without a schedule, noise_multiplier, divisor, num_rounds must be'),
    (lambda: quap_tff.Plan.certified(_config(**{**_NUMBERS, 'divisor': None})), 'Without a schedule, divisor must'),
    (
      lambda: quap_tff.Plan.certified(_config(**_NUMBERS, correlation=correlation.Ar1())),
      r'the numbers of correlation=Ar1\(decay=None\) must be known',
    ),
    (
      lambda: quap_tff.Plan.certified(
        examples.guarantee(
          num_clients=N,
          correlation=correlation.HeldNoise(0.5),
          **{name: value for name, value in _NUMBERS.items() if name != 'weights'},
        )
      ),
      "the clients' weights must be known",
    ),
    (
      lambda: quap_tff.Plan.certified(_config(**_NUMBERS), averaging=postprocessing.PlannedAverage()),
      'is chosen from who comes. Give `expected` or a schedule',
    ),
    (
      lambda: quap_tff.Plan.certified(_config(**{**_NUMBERS, 'noise_multiplier': 1e-3})),
      "noise_multiplier=0.001 is so small that nobody's budget pays for a round at epsilon=3",
    ),
    (
      lambda: quap_tff.Plan.certified(_config(), PAST, expected=PAST),
      'from a schedule or from what is expected, found',
    ),
    (lambda: quap_tff.Plan.certified(_config(), expected=[[0, 8]]), 'expected: Round 1 .*found 8. Its clients must be'),
    (lambda: quap_tff.Plan.certified(_config(), expected=[[0, 0]]), 'expected: Round 1 .*Its clients must be'),
    (lambda: quap_tff.Plan.certified(_config(), expected=np.full([3, N], 1.5)), r'must be rates in \[0, 1\]'),
    (
      lambda: quap_tff.Plan.certified(_config(), expected=np.full([3, 5], 0.5)),
      r'float\[T, 8\].*found float64\[3, 5\]',
    ),
    (
      lambda: quap_tff.Plan.certified(_config(), expected=types.SimpleNamespace(cohort=lambda t: PAST[t - 1])),
      'How many rounds of SimpleNamespace are expected. Give num_rounds',
    ),
    (
      lambda: quap_tff.Plan.certified(_config(num_rounds=5), expected=PAST),
      'expected has 12 rounds, and num_rounds=5. Give as many',
    ),
    (
      lambda: quap_tff.Plan.certified(_config(weights=weight_rules.SpendEvenly()), expected=PAST),
      'Weight rule SpendEvenly spreads each budget over the rounds .* so it needs a schedule',
    ),
    (
      lambda: quap_tff.Plan.certified(_config(correlation=correlation.Banded(3)), expected=PAST, min_separation=3),
      'min_separation=3 is a promise about rounds to come, so it needs a schedule',
    ),
    (lambda: quap_tff.Plan.certified(_held(), expected=PAST, colluders=[1]), 'no ε against colluders is stated'),
    (lambda: quap_tff.Plan.certified(_held(), expected=PAST, attendance=PAST), 'attendance needs rounds whose clients'),
    (
      lambda: quap_tff.Plan.certified(_config(num_rounds=20), PAST),
      'could get no certificate. Its schedule has 12 rounds, and num_rounds=20. .*certificate=False for a rehearsal',
    ),
  ],
)
def test_refused_before_training(make, words):
  with pytest.raises(ValueError, match=words):
    make()


def _recorded(plan, ledger, cohort):
  """The ledger with one more round, in which those come who have a weight."""
  weights = plan.ask(ledger, cohort)
  ledger.append(plan.core.cost(np.asarray(cohort), weights.astype(np.float64), 1.0, ledger.num_rounds + 1))
  return weights


class TestAsk:
  @pytest.mark.parametrize('noise', [correlation.Independent(), correlation.Ar1(0.9)])
  def test_it_says_what_a_gate_says(self, noise):
    values = dict(_NUMBERS, noise_multiplier=14.0 if noise.num_buffers else 3.0)
    plan = quap_tff.Plan.certified(_config(**values, correlation=noise))
    gate = quap_tff.Gate(N, values['noise_multiplier'], 3.0, 1e-5, 12, noise)
    ledger, lowered = plan.new_ledger(), 0
    for cohort in PAST:
      allowed = gate.ask(cohort)
      assert _recorded(plan, ledger, cohort).tobytes() == allowed.tobytes()
      gate.commit(cohort, allowed)
      lowered += np.count_nonzero(allowed < 1)
    assert lowered

  def test_it_charges_nobody(self):
    plan = quap_tff.Plan.certified(_config(**_NUMBERS))
    ledger = plan.new_ledger()
    assert (plan.ask(ledger, [0, 1]) == plan.ask(ledger, [0, 1])).all() and ledger.num_rounds == 0

  def test_after_the_last_round_it_says_what_to_do(self):
    plan = quap_tff.Plan.certified(_config(**{**_NUMBERS, 'num_rounds': 1}))
    ledger = plan.new_ledger()
    _recorded(plan, ledger, [0, 1])
    with pytest.raises(ValueError, match='Round 2 is not in the plan, .*num_rounds=1. .*Write the certificate of the'):
      plan.ask(ledger, [0])

  def test_a_client_that_is_not_planned_is_refused(self):
    plan = quap_tff.Plan.certified(_config(), [[0, 1], [2]])
    assert len(plan.ask(plan.new_ledger(), [0])) == 1
    with pytest.raises(ValueError, match='Client 2 is not planned for round 1. .*plan without a schedule'):
      plan.ask(plan.new_ledger(), [1, 2])

  def test_other_ledgers_and_plans_are_refused(self):
    plan, other = (quap_tff.Plan.certified(_config(**{**_NUMBERS, 'divisor': d})) for d in (3.0, 4.0))
    with pytest.raises(ValueError, match='ledger is of another plan'):
      plan.ask(other.new_ledger(), [0])
    documented = quap_tff.Plan(quap_tff.QuapConfig(num_clients=N))
    with pytest.raises(ValueError, match='Only certified plans limit'):
      documented.ask(documented.new_ledger(), [0])


class TestAskWhereClientsHoldTheNoise:
  """Cohorts that nobody expected: all of them small, so that their noise is little and budgets end soon."""

  def _plan(self):
    return quap_tff.Plan.certified(_held(), expected=PAST)

  def test_what_it_lets_in_is_released_and_within_every_limit(self):
    plan, rng, waited = self._plan(), np.random.default_rng(8), 0
    ledger = plan.new_ledger()
    guarded = guarded_clients.GuardedClients(plan, b'of the test')
    for round_num in range(1, 13):
      there = rng.permutation(N)[: rng.integers(1, N)]
      weights = plan.ask(ledger, there)
      waited += np.count_nonzero(weights == 0)
      came = there[weights > 0]
      # The guards of the clients compute the account by themselves.
      answers = guarded.answers(round_num, came)
      assert [float(answers[client]['weight']) for client in came] == weights[weights > 0].tolist()
      assert guarded.spent_max <= 1
      ledger.append(plan.core.cost(came, weights[weights > 0].astype(np.float64), 1.0, ledger.num_rounds + 1))
    assert 0 < waited < 12 * N and ledger.rounds.sum() > 12

  @pytest.mark.slow
  def test_it_is_the_largest_set_that_leaving_out_those_over_gives(self):
    """By brute force: with all of them somebody is over, and without those who are, nobody."""
    plan = self._plan()
    config, checked = plan.config, 0
    for seed in range(20):
      rng, ledger = np.random.default_rng(seed), plan.new_ledger()
      for _ in range(4):
        cohort = np.flatnonzero(rng.random(N) < 0.7)
        weights = plan.ask(ledger, cohort)
        kept = [one.weights for one in ledger.history]
        whole = plan.core.simulated([*(one.cohort for one in ledger.history), cohort], kept)[-1].weights
        assert whole.any() == bool((weights == np.asarray(config.planned_weights, np.float32)[cohort]).all())
        checked += not whole.any()
        came = cohort[weights > 0]
        ledger.append(plan.core.cost(came, weights[weights > 0].astype(np.float64), 1.0, ledger.num_rounds + 1))
    assert checked


class TestReport:
  def test_the_figures_are_the_limit_and_the_ledger_gives_a_reading(self):
    model = layers.ModelShape((layers.Layer('dense', (0,), True),), ((3, 2),))
    plan = quap_tff.Plan.certified(_config(**_NUMBERS), model=model)
    ledger = plan.new_ledger()
    empty = plan.report(ledger).formal
    _recorded(plan, ledger, [0, 3])
    report = plan.report(ledger)
    assert 2.99 < report.formal.epsilon.min() == report.formal.epsilon.max() <= 3
    assert report.formal.epsilon.tolist() == empty.epsilon.tolist()
    assert report.formal.reading.rounds == 1 and (report.formal.reading.epsilon > 0).tolist() == [
      i in (0, 3) for i in range(N)
    ]
    text = str(report)
    assert 'This is not a guarantee: who came, and when the run ended, may have followed what it released.' in text
    assert 'No amplification by sampling: cohorts are not planned, and nothing is assumed of how they come.' in text
