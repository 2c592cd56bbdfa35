"""The run's ledger: what is recorded, kept and refused, and the histories that follow from it."""

import math

import numpy as np
import pytest

from quap_tff import accounting
from quap_tff.accounting import history

N = 7
INF = math.inf


def _ledger(**fields):
  return accounting.RunLedger(**{'num_clients': N, 'delta': 1e-3, 'fingerprint': 'a run', **fields})


def _record(cohort=(0, 2), budgets=None, weights=None, noise=5.0, count_noise=INF, clip=1.0):
  size = len(cohort)
  return accounting.RoundRecord(
    np.array(cohort, np.int64),
    np.full(size, 0.5) if budgets is None else budgets,
    np.ones(size) if weights is None else weights,
    noise,
    count_noise,
    clip,
  )


def _drawn(seed, rounds=12):
  """Records of rounds, some with nobody."""
  rng = np.random.default_rng(seed)
  records = []
  for p in rng.choice([0.0, 0.3, 1.0], rounds):
    cohort = rng.permutation(np.flatnonzero(rng.random(N) < p))
    records.append(
      _record(
        cohort,
        rng.uniform(0.1, 1, len(cohort)),
        rng.choice([0.0, 0.5, 1.0], len(cohort)),
        noise=rng.choice([2.0, 3.0]),
        count_noise=rng.choice([4.0, INF]),
        clip=rng.uniform(1, 2),
      )
    )
  return records


def _filled(records, **fields):
  ledger = _ledger(**fields)
  for record in records:
    ledger.append(record)
  return ledger


def _same(a, b):
  a, b = a.state_dict(), b.state_dict()
  return list(a) == list(b) and all(np.array_equal(a[key], b[key]) and a[key].dtype == b[key].dtype for key in a)


class TestRecord:
  @pytest.mark.parametrize('seed', range(3))
  def test_nominal_sums(self, seed):
    records = _drawn(seed)
    ledger = _filled(records)
    epsilon, rounds = np.zeros(N), np.zeros(N, np.int64)
    for record in records:
      for client, budget in zip(record.cohort, record.budgets):
        epsilon[client] += budget
        rounds[client] += 1
    assert ledger.epsilon.tolist() == epsilon.tolist() and ledger.rounds.tolist() == rounds.tolist()
    assert ledger.delta.tolist() == (rounds * 1e-3).tolist()
    assert ledger.num_rounds == 12 and ledger.num_clients == N

  def test_arrays(self):
    ledger = _filled([_record((4, 1), [0.25, 0.5], [1.0, 0.0], 5.0, 3.0, 1.5), _record(()), _record((4,), noise=0.0)])
    found = ledger.state_dict()
    expected = dict(
      offsets=np.array([0, 2, 2, 3]),
      clients=np.array([4, 1, 4], np.int32),
      budgets=np.array([0.25, 0.5, 0.5]),
      weights=np.array([1.0, 0.0, 1.0]),
      noise_multipliers=np.array([5.0, 5.0, 0.0]),
      count_noise_multipliers=np.array([3.0, INF, INF]),
      clipping_norms=np.array([1.5, 1.0, 1.0]),
      num_clients=np.array(N),
      delta=np.array(1e-3),
      released=np.array([True, False, True]),
      correlation=np.frombuffer(b'independent', np.uint8),
    )
    fingerprint = found.pop('fingerprint')
    assert fingerprint.dtype == np.uint8 and fingerprint.shape == (32,)
    assert set(found) == set(expected)
    for key, value in expected.items():
      assert found[key].dtype == value.dtype and found[key].tolist() == value.tolist(), key

  def test_a_round_without_noise_costs_everything(self):
    ledger = _filled([_record((1, 3), budgets=[INF, INF], noise=0.0), _record((0, 1))])
    assert ledger.epsilon.tolist() == [0.5, INF, 0, INF, 0, 0, 0]

  def test_delta_is_at_most_one(self):
    assert _filled([_record((0,))] * 3, delta=0.4).delta.tolist() == [1.0] + [0.0] * (N - 1)

  @pytest.mark.parametrize('record', [None, 5, {'cohort': [0]}, (0, 1)])
  def test_what_is_no_record(self, record):
    with pytest.raises(TypeError, match=r'takes a RoundRecord, as plan.record\(output, cohort\) makes it, found'):
      _filled([]).append(record)

  @pytest.mark.parametrize(
    'record, words',
    [
      (_record((0, N)), 'clients must be ids in .0, 7., found 7'),
      (_record((-1, 0)), 'found -1'),
      (_record((2, 0, 2)), 'found client 2 twice'),
      (_record((0, 2))._replace(cohort=np.array([0.0, 2.0])), 'cohort must be int'),
      (_record((0, 2))._replace(cohort=np.array([[0, 2]])), 'cohort must be int'),
      (_record(budgets=[0.5]), r'budgets must be float\[2\]'),
      (_record(budgets=[0.5, 0.0]), 'budgets must be greater than 0, found 0'),
      (_record(budgets=[0.5, math.nan]), 'budgets must be greater than 0, found nan'),
      (_record(weights=[0.5, 1.1]), 'weights must be at least 0 and at most 1, found 1.1'),
      (_record(weights=[-0.1, 1.0]), 'found -0.1'),
      (_record(weights=[math.nan, 1.0]), 'weights must be'),
      (_record(weights=[1.0] * 3), r'weights must be float\[2\]'),
      (_record(noise=-1.0), 'noise_multipliers must be finite and at least 0, found -1'),
      (_record(noise=INF), 'noise_multipliers must be finite'),
      (_record(noise=math.nan), 'noise_multipliers must be finite'),
      (_record(count_noise=-1.0), 'count_noise_multipliers must be at least 0'),
      (_record(clip=math.nan), 'clipping_norms must be at least 0'),
    ],
  )
  def test_bad_records_add_nothing(self, record, words):
    ledger, untouched = _filled(_drawn(1)), _filled(_drawn(1))
    with pytest.raises(ValueError, match=words):
      ledger.append(record)
    assert _same(ledger, untouched)
    assert ledger.epsilon.tolist() == untouched.epsilon.tolist()
    assert ledger.rounds.tolist() == untouched.rounds.tolist()

  @pytest.mark.parametrize(
    'fields, words', [(dict(num_clients=0), 'num_clients'), (dict(delta=0.0), 'delta'), (dict(delta=1.0), 'delta')]
  )
  def test_bad_ledgers(self, fields, words):
    with pytest.raises(ValueError, match=words):
      _ledger(**fields)

  def test_memory_grows_with_the_rounds_only(self):
    # A state for each of many rounds shares one buffer, but for the few times that it has grown.
    ledger = _ledger()
    kept = []
    for _ in range(300):
      ledger.append(_record())
      kept.append(ledger.state_dict()['budgets'])
    assert len({id(array.base) for array in kept}) < 12


class TestTruncated:
  @pytest.mark.parametrize('rounds', [0, 5, 12])
  def test_is_the_ledger_of_then(self, rounds):
    records = _drawn(3)
    whole, then = _filled(records), _filled(records[:rounds])
    cut = whole.truncated(rounds)
    assert _same(cut, then) and cut.epsilon.tolist() == then.epsilon.tolist()
    # The shorter ledger continues by itself, and the whole one does not change.
    for record in records[rounds:]:
      cut.append(record)
    cut.append(_record())
    assert _same(whole, _filled(records)) and cut.num_rounds == 13

  @pytest.mark.parametrize('rounds', [-1, 13, 1.0])
  def test_rounds_that_are_not_there(self, rounds):
    with pytest.raises(ValueError, match='num_rounds'):
      _filled(_drawn(3)).truncated(rounds)


class TestKeptState:
  def test_goes_on_bit_for_bit(self):
    records = _drawn(9, rounds=40)
    whole, resumed = _filled(records), _ledger()
    resumed.load_state_dict(_filled(records[:17]).state_dict())
    for record in records[17:]:
      resumed.append(record)
    assert _same(resumed, whole)
    assert resumed.epsilon.tolist() == whole.epsilon.tolist() and resumed.rounds.tolist() == whole.rounds.tolist()

  def test_what_was_kept_stays(self):
    ledger = _filled(_drawn(2))
    kept, nominal = ledger.state_dict(), ledger.epsilon
    before = {key: value.copy() for key, value in kept.items()}
    for _ in range(50):
      ledger.append(_record(range(N)))
    assert all(np.array_equal(kept[key], before[key]) for key in kept)
    assert nominal.tolist() == _filled(_drawn(2)).epsilon.tolist()
    with pytest.raises(ValueError, match='read-only'):
      kept['budgets'][0] = 0.01

  @pytest.mark.parametrize(
    'fields, words',
    [
      (dict(num_clients=N + 1), 'num_clients 7, this run has 8'),
      (dict(delta=1e-5), 'delta 0.001, this run has 1e-05'),
      (dict(fingerprint='another run'), 'fingerprint [0-9a-f]{12}…, this run has [0-9a-f]{12}'),
    ],
  )
  def test_of_another_run_is_refused(self, fields, words):
    ledger = _ledger(**fields)
    ledger.append(_record())
    before = ledger.state_dict()
    with pytest.raises(ValueError, match=f'belongs to another run: it has {words}'):
      ledger.load_state_dict(_filled(_drawn(1)).state_dict())
    assert all(np.array_equal(value, before[key]) for key, value in ledger.state_dict().items())
    assert ledger.epsilon[0] == 0.5 and ledger.rounds.sum() == 2

  @pytest.mark.parametrize(
    'damage, words',
    [
      (lambda s: s.pop('weights'), 'must hold'),
      (lambda s: s.update(more=np.zeros(1)), 'must hold'),
      (lambda s: s.update(weights=s['weights'].astype(np.float32)), r'weights must be float64\[n\], found float32'),
      (lambda s: s.update(clients=s['clients'][None]), 'clients must be int32'),
      (lambda s: s.update(fingerprint=s['fingerprint'][:31]), 'fingerprint must be uint8'),
      (lambda s: s.update(budgets=s['budgets'][:-1]), 'budgets must have'),
      (lambda s: s.update(offsets=s['offsets'][:-1]), 'must have'),
      (lambda s: s.update(offsets=s['offsets'][::-1]), 'offsets must ascend'),
      (lambda s: s.update(offsets=s['offsets'][:0]), 'offsets must ascend'),
      (lambda s: s.update(clipping_norms=s['clipping_norms'][:-1]), 'clipping_norms must have 12 values, found 11'),
      (lambda s: s['clients'].fill(0), 'client 0 twice'),
      (lambda s: s['clients'].__setitem__(0, N), 'clients must be ids'),
      (lambda s: s['weights'].fill(2.0), 'weights must be'),
      (lambda s: s['released'].fill(False), 'A round that released nothing has clients with a weight'),
      (lambda s: s.update(correlation=np.frombuffer(b'tree:depth=3', np.uint8)), "Unknown noise correlation 'tree'"),
      (lambda s: s.update(correlation=np.frombuffer(b'ar1:decay=0.50', np.uint8)), 'is not how a file writes ar1'),
      (lambda s: s['budgets'].__setitem__(0, -1.0), 'budgets must be'),
      (lambda s: s['noise_multipliers'].__setitem__(0, math.nan), 'noise_multipliers must be'),
      (lambda s: s.update(delta=np.array(0.0)), 'delta must be'),
      (lambda s: s.update(num_clients=np.array(0)), 'num_clients must be'),
    ],
  )
  def test_damaged_is_refused(self, damage, words):
    state = {key: value.copy() for key, value in _filled(_drawn(1)).state_dict().items()}
    damage(state)
    ledger = _filled(_drawn(4))
    with pytest.raises(ValueError, match=f'ledger.*{words}'):
      ledger.load_state_dict(state)
    assert _same(ledger, _filled(_drawn(4)))
    with pytest.raises(ValueError, match=words):
      accounting.RunLedger.from_state_dict(state)


class TestFile:
  def test_is_read_without_knowing_the_run(self, tmp_path):
    ledger = _filled(_drawn(5))
    np.savez(tmp_path / 'ledger.npz', **ledger.state_dict())
    found = accounting.RunLedger.load(tmp_path / 'ledger.npz')
    assert _same(found, ledger) and found.epsilon.tolist() == ledger.epsilon.tolist()
    # It is the same run's still.
    _ledger().load_state_dict(found.state_dict())

  def test_damaged(self, tmp_path):
    path = tmp_path / 'ledger.npz'
    np.savez(path, **_filled(_drawn(5)).state_dict())
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[whole.index(b'clients.npy') + 200] ^= 255
    for content in (b'', b'no archive', whole[: len(whole) // 2], bytes(flipped)):
      path.write_bytes(content)
      with pytest.raises(ValueError, match='ledger.npz holds no ledger that can be read'):
        accounting.RunLedger.load(path)
    with pytest.raises(FileNotFoundError):
      accounting.RunLedger.load(tmp_path / 'none.npz')


class TestHistories:
  def _by_hand(self, records):
    for i in range(N):
      releases = []
      for record in records:
        for client, weight in zip(record.cohort, record.weights):
          if client == i:
            noise = record.noise_multiplier / weight if weight else INF
            releases += [(history.GaussianMechanism(noise), 1)]
            # Who has no weight is not counted either.
            releases += [(history.GaussianMechanism(record.count_noise_multiplier), int(weight > 0))]
      yield history.History.of(releases)

  @pytest.mark.parametrize('seed', range(3))
  def test_each_round_is_a_gaussian_of_its_weight_and_the_count_another(self, seed):
    records = _drawn(seed, rounds=30)
    ledger = _filled(records)
    histories, index = accounting.histories(ledger)
    total = accounting.total_mu(ledger)
    merged, merged_index = accounting.merged_histories(total.whole)
    assert len(set(histories)) == len(histories)
    for i, expected in enumerate(self._by_hand(records)):
      found = histories[index[i]]
      assert [n for _, n in found.releases] == [n for _, n in expected.releases]
      np.testing.assert_allclose(
        [m.noise_multiplier for m, _ in found.releases], [m.noise_multiplier for m, _ in expected.releases]
      )
      assert expected.total_mu <= total.whole[i] <= expected.total_mu * (1 + 1e-12)
      assert merged[merged_index[i]].total_mu == pytest.approx(expected.total_mu, rel=1e-12)
      counts = history.History.of(
        (history.GaussianMechanism(r.count_noise_multiplier), 1)
        for r in records
        if i in r.cohort and r.weights[list(r.cohort).index(i)] > 0
      )
      assert total.counts[i] == pytest.approx(counts.total_mu, rel=1e-12)

  def test_equal_histories_are_one(self):
    ledger = _filled([_record(range(5), noise=z) for z in (2.0, 3.0, 2.0)])
    histories, index = accounting.histories(ledger)
    expected = history.History.of([(history.GaussianMechanism(2.0), 2), (history.GaussianMechanism(3.0), 1)])
    assert set(histories) == {expected, history.History(())}
    assert histories[index[4]] == expected and histories[index[5]] == history.History(())

  def test_no_noise(self):
    ledger = _filled([_record((0, 1), weights=[1.0, 0.0], noise=0.0), _record((2,), count_noise=0.0)])
    assert accounting.total_mu(ledger).whole.tolist()[:4] == [INF, 0, INF, 0]
    histories, index = accounting.histories(ledger)
    assert [histories[index[i]].total_mu for i in range(4)] == [INF, 0, INF, 0]

  def test_nothing_happened(self):
    for ledger in (_ledger(), _filled([_record(())])):
      assert accounting.total_mu(ledger).whole.tolist() == [0.0] * N
      assert accounting.histories(ledger).histories == [history.History(())]
      assert accounting.merged_histories(accounting.total_mu(ledger).whole).histories == [history.History(())]

  @pytest.mark.parametrize('weighted', [False, True])
  def test_many_noise_levels_are_rounded_to_the_side_of_more_loss(self, weighted):
    rng = np.random.default_rng(0)
    records = [
      _record(range(N), noise=z, weights=rng.uniform(0.5, 1, N) if weighted else None) for z in rng.uniform(20, 40, 400)
    ]
    ledger = _filled(records)
    histories, index = accounting.histories(ledger)
    assert len({m for h in histories for m, _ in h.releases}) <= 256
    exact = accounting.total_mu(ledger).whole
    found = np.array([histories[k].total_mu for k in index])
    assert (exact * (1 - 1e-12) <= found).all() and (found <= exact * 1.01).all() and (found > exact * 1.001).all()
    assert all(histories[k].count == 400 for k in index)
