"""The gate: it is the filter of certified runs, charges nobody by mistake, and goes on where it was saved."""

import os
import sys

import numpy as np
import pytest

import quap_tff
from quap_tff.common.lazy import tf
from quap_tff.common.numbers import arrays
from quap_tff.common.numbers import tradeoff
from quap_tff.mechanisms import mechanism
from quap_tff.mechanisms.certified import privacy_filter
from quap_tff.mechanisms.certified import spending
from quap_tff.mechanisms.certified import weight_rules
from quap_tff.mechanisms.certified.config import CertifiedConfig
from quap_tff.mechanisms.noise import correlation as correlations
from quap_tff.mechanisms.noise import integers
from quap_tff.mechanisms.parts import clip_rules
from tests import processes

CORRELATIONS = {
  'independent': correlations.Independent(),
  'ar1': correlations.Ar1(0.9),
  'banded': correlations.Banded(4, (0.7, 0.5, 0.3)),
  'blt': correlations.Blt((0.5, 0.2, 0.1), (0.95, 0.6, 0.2)),
}
# A client's budget pays for some of 30 rounds, and then for a part of one.
MULTIPLIERS = {'independent': 3.0, 'ar1': 14.0, 'banded': 6.0, 'blt': 12.0}
NUM_CLIENTS, NUM_ROUNDS = 9, 30


def _schedule():
  """Cohorts of all sizes, some of them empty; client 0 comes in nearly all rounds."""
  rng = np.random.default_rng(5)
  cohorts = []
  for round_num in range(NUM_ROUNDS):
    ids = np.flatnonzero(rng.random(NUM_CLIENTS) < np.linspace(0.95, 0.1, NUM_CLIENTS))
    cohorts.append(rng.permutation(ids) if round_num % 7 != 4 else ids[:0])
  return cohorts


def _gate(name='independent', **more):
  values = dict(noise_multiplier=MULTIPLIERS[name], epsilon=3.0, delta=1e-5, correlation=CORRELATIONS[name])
  return quap_tff.Gate(NUM_CLIENTS, **{**values, **more})


def _config(name, rule, **more):
  return CertifiedConfig(
    num_clients=NUM_CLIENTS,
    epsilon=3.0,
    delta=1e-5,
    noise_multiplier=MULTIPLIERS[name],
    correlation=CORRELATIONS[name],
    clip=clip_rules.Fixed(1.0),
    divisor=2.0,
    num_rounds=NUM_ROUNDS,
    weights=rule,
    **more,
  ).to_mechanism()


def _bits(accounts):
  return [np.asarray(one).tobytes() for one in (accounts.spent, accounts.latest, *accounts.sums)]


def _marked():
  """Each correlation and each rule once or more; the rest is thorough."""
  uniform, participation, online = weight_rules.UniformWeights, weight_rules.ParticipationWeights, weight_rules.Online
  first = {('independent', uniform), ('blt', uniform), ('banded', participation), ('ar1', online)}
  for rule in (uniform, participation, online):
    for name in CORRELATIONS:
      marks = () if (name, rule) in first else pytest.mark.thorough
      yield pytest.param(name, rule(), marks=marks, id=f'{name}-{rule.__name__}')


class TestIsTheFilterOfCertifiedRuns:
  @pytest.mark.slow
  @pytest.mark.parametrize('name, rule', _marked())
  def test_weights_and_accounts_have_the_same_bits(self, name, rule, undrawn):
    """The run is of TensorFlow's functions, the gate and the account of a history of NumPy's."""
    from tests.quap_tff import rounds

    process, gate = rounds.Process(_config(name, rule), [(2,)]), _gate(name, num_rounds=NUM_ROUNDS)
    state, lowered, records = process.initialize(), 0, []
    # What clients add changes no account.
    process.rounds.contribution = lambda *_: [tf.zeros([2], process.rounds.sum_dtype)]
    for cohort in _schedule():
      state = process.next(state, [[np.ones(2)]] * len(cohort), cohort).state
      weights = state.weights[cohort]
      allowed = gate.ask(cohort)
      if isinstance(rule, weight_rules.UniformWeights):
        assert allowed.tobytes() == weights.tobytes()
        lowered += np.count_nonzero((allowed > 0) & (allowed < 1))
      gate.commit(cohort, weights)
      assert _bits(state.accounts) == _bits(gate._spending._accounts)
      records.append(mechanism.RoundRecord(cohort, None, weights, MULTIPLIERS[name]))
      account = spending.spending(records, CORRELATIONS[name], NUM_CLIENTS, NUM_ROUNDS)
      assert account.mu_squared.tobytes() == np.asarray(state.accounts.spent).tobytes()
      assert (state.round, state.noise.counter) == (gate.rounds, gate.releases)
    assert (gate.ask(range(NUM_CLIENTS)) == 0).all()  # After the last planned round.
    assert not isinstance(rule, weight_rules.UniformWeights) or lowered

  @pytest.mark.slow
  @pytest.mark.parametrize('name', CORRELATIONS)
  @pytest.mark.parametrize('own', [None, np.linspace(0.5, 3, NUM_CLIENTS)])
  def test_as_verification_computes_them(self, name, own):
    config = _config(name, weight_rules.UniformWeights(), own_epsilon=None if own is None else tuple(own.tolist()))
    gate = _gate(name, num_rounds=NUM_ROUNDS, own_epsilon=own)
    for cohort, planned in zip(_schedule(), config.simulated(_schedule())):
      weights = gate.ask(cohort)
      assert weights.tobytes() == planned.weights.tobytes()
      gate.commit(cohort, weights)
    bound = np.full(NUM_CLIENTS, 3.0) if own is None else own
    assert (gate.epsilon() <= bound).all() and gate.epsilon()[0] > 0.98 * bound[0]


@pytest.mark.parametrize('base', [1e-6, 0.4, 0.999])
def test_powers_of_decays_are_powers(base):
  exponents = np.array([0, 1, 2, 1023, 1024, 1025, 5000, 700_000, 1e6, 3e9, np.inf, np.nan])
  np.testing.assert_allclose(arrays.whole_power(base, exponents), base**exponents, rtol=1e-12, atol=1e-300)


class TestAccount:
  def test_epsilon_is_that_of_the_rounds_rounded_up(self):
    gate = quap_tff.Gate(4, 6.0, 3.0, 1e-5)
    for _ in range(9):
      gate.ask([0, 2, 3])
      gate.commit([0])
    exact = tradeoff.epsilon_of(3 / 6, 1e-5)
    assert exact <= gate.epsilon()[0] < exact * (1 + 1e-9)
    assert gate.epsilon().tolist()[1:] == [0, 0, 0] and gate.epsilon().dtype == np.float64

  def test_asking_changes_nothing(self):
    gate, twin = _gate(), _gate()
    for cohort in _schedule():
      for _ in range(3):
        gate.ask(range(NUM_CLIENTS))
      weights = twin.ask(cohort)
      assert gate.ask(cohort).tobytes() == weights.tobytes()
      gate.commit(cohort, weights)
      twin.commit(cohort, weights)
    assert _bits(gate._spending._accounts) == _bits(twin._spending._accounts)

  def test_whole_weights_are_0_or_1(self):
    gate, seen = _gate(), set()
    for _ in range(20):
      parts, weights = gate.ask([0]), gate.ask([0], whole=True)
      assert weights.dtype == np.float32 and weights[0] == (parts[0] == 1)
      seen.add((float(parts[0]) not in (0, 1), float(weights[0])))
      gate.commit([0], weights)
    assert {(False, 1.0), (True, 0.0)} <= seen

  def test_a_weight_that_no_float32_holds_is_charged_in_full(self):
    gate = quap_tff.Gate(1, 2.0, 3.0, 1e-5)
    gate.ask([0])
    gate.commit([0], 0.7)
    assert float(np.float32(0.7)) < 0.7 and gate._spending._accounts.spent[0] >= (0.7 / 2.0) ** 2

  def test_nobody_passes_the_bound_whatever_is_committed(self):
    gate, refused = quap_tff.Gate(3, 2.0, 1.0, 1e-5), 0
    rng = np.random.default_rng(0)
    for _ in range(200):
      cohort = np.flatnonzero(rng.random(3) < 0.7)
      gate.ask(cohort)
      try:
        gate.commit(cohort, rng.choice([0.0, 0.1, 0.5, 1.0], len(cohort)))
      except ValueError:
        refused += 1
    assert refused > 50 and gate.epsilon().max() <= 1.0
    assert gate.epsilon().max() > 0.98

  @pytest.mark.parametrize('name', CORRELATIONS)
  @pytest.mark.parametrize('whole', [False, True])
  def test_planned_says_when_budgets_end(self, name, whole):
    gate, schedule = _gate(name, num_rounds=NUM_ROUNDS), _schedule()
    weights = gate.ask(schedule[0], whole)
    gate.commit(schedule[0], weights)
    before = _bits(gate._spending._accounts)
    ends = gate.planned(schedule[1:], whole)
    assert _bits(gate._spending._accounts) == before and gate.rounds == 1
    first = np.zeros(NUM_CLIENTS, np.int64)
    for number, cohort in enumerate(schedule[1:], 2):
      weights = gate.ask(cohort, whole)
      for client in cohort[weights == 0]:
        first[client] = first[client] or number
      gate.commit(cohort, weights)
    assert ends.tolist() == first.tolist() and first[0] and not first.all()

  def test_planned_refuses_rounds_that_are_not_planned(self):
    gate = quap_tff.Gate(2, 9.0, 3.0, 1e-5, num_rounds=2)
    assert gate.planned([[0], [0], [0], [0, 1]]).tolist() == [3, 4]

  @pytest.mark.slow
  @pytest.mark.parametrize('name', ['independent', 'ar1', 'blt'])
  def test_calibrated_is_the_plan_of_a_certified_run(self, name):
    of = {'independent': correlations.Independent(), 'ar1': correlations.Ar1(), 'blt': correlations.Blt()}[name]
    gate = quap_tff.Gate.calibrated(_schedule(), 3.0, 1e-5, correlation=of)
    config = CertifiedConfig(NUM_CLIENTS, 3.0, 1e-5, correlation=of, weights=weight_rules.UniformWeights())
    found = config.settled(_schedule()).mechanism
    assert (
      gate.config.noise_multiplier == found.noise_multiplier and gate.config.correlation == found.config.correlation
    )
    assert gate.num_clients == NUM_CLIENTS and gate.config.num_rounds == NUM_ROUNDS

  def test_keeps_a_part_of_the_budget_as_certified_runs_do(self):
    kept = 1 - integers.RESERVE
    assert _gate()._prices.limit == privacy_filter.limit_of(3.0 * kept, 1e-5 * kept)


class TestRefusals:
  def _refused(self, words, call, gate):
    before = _bits(gate._spending._accounts), gate.rounds, gate.releases
    with pytest.raises(ValueError, match=words) as caught:
      call(gate)
    assert (_bits(gate._spending._accounts), gate.rounds, gate.releases) == before
    return str(caught.value)

  @pytest.mark.parametrize(
    'words, call',
    [
      (r'clients must be ids in \[0, 9\), found 9', lambda gate: gate.ask([0, 9])),
      (r'found -1', lambda gate: gate.commit([-1])),
      ('found client 3 twice in one round', lambda gate: gate.ask([3, 1, 3])),
      ('found client 1 twice', lambda gate: gate.commit([1, 1])),
      (r'cohort must be int\[clients\], found float64', lambda gate: gate.ask([0.5])),
      (r'cohort must be int\[clients\], found <U1\[0\]', lambda gate: gate.ask(np.array([], str))),
      (r'found \{1\}. Give the ids as a list', lambda gate: gate.ask({1})),
      (r'found None. Give the ids as a list', lambda gate: gate.ask(None)),
      ('Client 4 was not asked for before round 3.*ask', lambda gate: gate.commit([1, 4])),
      ('weight of client 1 must be 0, or at least .* found nan', lambda gate: gate.commit([0, 1], [1.0, np.nan])),
      ('weight of client 0 .* found 1.5', lambda gate: gate.commit([0, 1], 1.5)),
      ('weight of client 0 .* found -0.5', lambda gate: gate.commit([0, 1], -0.5)),
      ('weight of client 0 .* found 1e-09', lambda gate: gate.commit([0, 1], 1e-9)),
      ('one for each of the 2 clients, found', lambda gate: gate.commit([0, 1], [1.0, 1.0, 1.0])),
      ('one for each of the 2 clients, found', lambda gate: gate.commit([0, 1], 'much')),
      (r'one for each of the 2 clients, found <U3\[\]', lambda gate: gate.commit([0, 1], '0.5')),
      ('cannot be committed with released=False', lambda gate: gate.commit([0, 1], released=False)),
      ('no committed round without its noise', lambda gate: gate.noise(np.random.default_rng(0), [2])),
    ],
  )
  def test_a_sentence_that_names_the_value(self, words, call):
    gate = _gate()
    for _ in range(2):
      gate.ask(range(3))
      gate.commit([0, 2])
    gate.noise(np.random.default_rng(0), [2])
    gate.ask([0, 1])
    message = self._refused(words, call, gate)
    assert message.endswith('.')
    gate.commit([0, 1])  # The round is still open.

  @pytest.mark.parametrize(
    'words, schedule',
    [
      ("sequence with int.*, found 'abc'", 'abc'),
      ('sequence with int.*, found None', None),
      (r'sequence with int.*, found \{1, 2\}', {1, 2}),
      (r'Round 1 of the schedule: .*found \{1\}', [{1}]),
      (r'Round 2 of the schedule: .*found <U1\[1\]', [[0], ['a']]),
      (r'Round 1 of the schedule: .*found float64\[1\]', [[np.nan]]),
      ('Round 1 of the schedule: .*found None', [None]),
      ('Round 1 of the schedule: .*at least 0, found -1', [[-1]]),
    ],
  )
  def test_a_schedule_that_is_none(self, words, schedule):
    with pytest.raises(ValueError, match=words):
      quap_tff.Gate.calibrated(schedule, 3.0, 1e-5)

  def test_weights_above_those_that_are_allowed(self):
    gate = quap_tff.Gate(2, 2.0, 1.0, 1e-5)
    most = gate.ask([1, 0])[0]
    assert 0 < most < 1
    message = self._refused('Client 1 may have a weight of at most', lambda gate: gate.commit([1]), gate)
    assert f'{most:.9g} in round 1, found 1:' in message and '1 of 1 clients are over' in message
    up = np.nextafter(most, np.float32(1))
    self._refused('may have a weight', lambda gate: gate.commit([1], up), gate)
    gate.commit([1], most)

  def test_an_ask_is_for_one_round(self):
    gate = _gate()
    gate.ask([0, 1])
    gate.commit([0])
    self._refused('Client 1 was not asked for before round 2', lambda gate: gate.commit([1]), gate)

  def test_a_round_after_the_last(self):
    gate = _gate(num_rounds=1)
    gate.ask([0])
    gate.commit([0])
    assert gate.ask([0, 1]).tolist() == [0, 0]
    self._refused('Round 2 cannot be committed: num_rounds=1', lambda gate: gate.commit([1]), gate)
    self._refused('Round 2 cannot be committed', lambda gate: gate.commit([]), gate)

  @pytest.mark.parametrize(
    'more, words',
    [
      ({'noise_multiplier': 0}, 'noise_multiplier must be'),
      ({'noise_multiplier': None}, 'needs the noise in numbers'),
      ({'correlation': correlations.Ar1()}, 'needs the noise in numbers'),
      ({'correlation': correlations.HeldNoise(0.5)}, 'A trusted server adds'),
      ({'epsilon': -1}, 'epsilon must be'),
      ({'delta': 1.0}, 'delta must be'),
      ({'num_rounds': 0}, 'num_rounds must be'),
      ({'own_epsilon': [1.0]}, r'own_epsilon must be float\[9\]'),
      ({'own_epsilon': [4.0] * 9}, 'at most epsilon=3'),
      ({'own_epsilon': ['1'] * 9}, 'found text'),
    ],
  )
  def test_parameters_out_of_range(self, more, words):
    with pytest.raises(ValueError, match=words):
      _gate(**more)


class TestSave:
  @pytest.mark.slow
  @pytest.mark.parametrize('name', CORRELATIONS)
  def test_goes_on_with_the_same_bits(self, name, tmp_path):
    path = str(tmp_path / 'gate')
    gate = _gate(name, num_rounds=NUM_ROUNDS, own_epsilon=np.linspace(1, 3, NUM_CLIENTS))
    for number, cohort in enumerate(_schedule()):
      weights = gate.ask(cohort)
      gate.commit(cohort, weights)
      if weights.any():
        gate.noise(np.random.default_rng(number), [2, 3])
      gate.save(path)
      again = quap_tff.Gate.load(path)
      assert _bits(again._spending._accounts) == _bits(gate._spending._accounts) and again.parameters == gate.parameters
      if number == 20:
        gate = again
    assert [one.tobytes() for one in again._buffers] == [one.tobytes() for one in gate._buffers]
    assert gate.rounds == NUM_ROUNDS and len(os.listdir(tmp_path)) == 1

  def test_is_refused_for_other_parameters(self, tmp_path):
    path = str(tmp_path / 'gate')
    _gate().save(path)
    assert quap_tff.Gate.load(path, epsilon=3, delta=1e-5, num_clients=NUM_CLIENTS).rounds == 0
    for name, value in [('epsilon', 2.0), ('noise_multiplier', 4.0), ('num_clients', 10), ('num_rounds', 3)]:
      with pytest.raises(ValueError, match=f'is of a gate with {name}=.*, expected {value}'):
        quap_tff.Gate.load(path, **{name: value})

  @pytest.mark.parametrize('damage', [lambda whole: whole[: len(whole) // 2], lambda whole: whole[:-1], lambda _: b''])
  def test_half_a_file_is_refused(self, damage, tmp_path):
    path = tmp_path / 'gate'
    _gate().save(str(path))
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match='is not a whole file of a gate'):
      quap_tff.Gate.load(str(path))

  def test_a_crash_leaves_the_file_as_it_was(self, tmp_path, monkeypatch):
    path = tmp_path / 'gate'
    gate = _gate()
    gate.save(str(path))
    before = path.read_bytes()
    gate.ask([0])
    gate.commit([0])
    monkeypatch.setattr(os, 'replace', lambda *_: (_ for _ in ()).throw(OSError('full')))
    with pytest.raises(OSError, match='full'):
      gate.save(str(path))
    assert path.read_bytes() == before and os.listdir(tmp_path) == ['gate']


class TestNoise:
  def _draw(self, gate, source, shape=(4,), cohort=(0,)):
    gate.ask(cohort)
    gate.commit(cohort)
    return gate.noise(source, shape)

  @pytest.mark.parametrize('name', CORRELATIONS)
  def test_has_the_covariance_of_the_account(self, name):
    """C·Ẑ is independent noise of standard deviation z: rejects 0.97 and 1.03 times the noise."""
    gate = _gate(name, epsilon=90.0)
    rng = np.random.default_rng(1)
    drawn = np.array([self._draw(gate, rng, [100, 200]) for _ in range(6)]).reshape(6, -1)
    column = gate.config.correlation.coefficients(6)
    white = np.array([sum(column[s - t] * drawn[t] for t in range(s + 1)) for s in range(6)])
    covariance = white @ white.T / white.shape[1] / MULTIPLIERS[name] ** 2
    np.testing.assert_allclose(covariance, np.eye(6), atol=0.04)

  def test_of_a_key_is_normal_and_follows_from_key_and_round(self):
    key, draw = bytes(range(32)), lambda key, **more: self._draw(_gate(epsilon=90.0), key, **more)
    first = draw(key, shape=[200_000]) / MULTIPLIERS['independent']
    assert abs(first.mean()) < 0.01 and abs(first.std() - 1) < 0.01 and abs((np.abs(first) > 2).mean() - 0.0455) < 0.003
    assert (draw(key) == draw(key)).all()
    assert (draw(key) != draw(key, cohort=[1])).all() and (draw(key) != draw(bytes(32))).all()
    gate = _gate(epsilon=90.0)
    assert (self._draw(gate, key) != self._draw(gate, key)).all()

  def test_gates_with_one_key_and_other_parameters_draw_other_noise(self):
    """Noise that is equal up to a factor would leave the difference of two sums without any."""
    drawn = []
    for more in ({}, {}, {'noise_multiplier': 6.0}, {'delta': 1e-6}, {'num_rounds': 7}):
      gate = _gate(**more)
      gate.ask([0, 1])
      gate.commit([0, 1])
      drawn.append(gate.noise(bytes(32), [100]) / gate.config.noise_multiplier)
    assert (drawn[0] == drawn[1]).all()
    for other in drawn[2:]:
      assert abs(np.corrcoef(drawn[0], other)[0, 1]) < 0.4

  def test_once_for_each_release(self):
    gate, rng = _gate('ar1'), np.random.default_rng(0)
    with pytest.raises(ValueError, match='no committed round without its noise'):
      gate.noise(rng, [4])
    self._draw(gate, rng)
    gate.commit([])  # It releases nothing.
    with pytest.raises(ValueError, match='no committed round without its noise'):
      gate.noise(rng, [4])
    with pytest.raises(ValueError, match=r'shape must be \[4\] as in the rounds before, found \[5\]'):
      self._draw(gate, rng, [5])
    gate.noise(rng, [4])
    gate.ask([1])
    gate.commit([1])
    with pytest.raises(ValueError, match='noise of release 3, which was not drawn'):
      self._draw(gate, rng)

  @pytest.mark.parametrize('source', [None, 7, b'short'])
  def test_needs_a_generator_or_a_key(self, source):
    with pytest.raises(ValueError, match='source must be a numpy.random.Generator or 32 secret bytes'):
      self._draw(_gate(), source)


@pytest.mark.slow
def test_is_imported_with_numpy_alone():
  """Without TensorFlow, SciPy and other packages that take seconds."""
  code = (
    'import sys; sys.modules.update(tensorflow=None); import quap_tff; quap_tff.Gate\n'
    'found = {name.partition(".")[0] for name, one in sys.modules.items() if "-packages" in str(one)}\n'
    'quap_tff.Gate(9, 3.0, 3.0, 1e-5).ask([1]); print(*sorted(found))'
  )
  done = processes.run([sys.executable, '-c', code])
  assert done.returncode == 0, done.stderr
  assert {name for name in done.stdout.split() if not name.startswith('_')} - {'quap_tff'} == {'numpy'}
