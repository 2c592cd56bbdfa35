"""Rounds in flight: whatever is reserved, committed and given back, in any order, nobody passes the bound."""

from collections.abc import Iterator
import copy

import numpy as np
import pytest

import quap_tff
from quap_tff import accounting
from quap_tff.accounting import gate as gates
from quap_tff.accounting import log_writer
from quap_tff.accounting import logs
from quap_tff.mechanisms.noise import correlation as correlations

_Z, _EPSILON, _DELTA = 2.0, 3.0, 1e-5


def _gate(num_clients=2, **more):
  return quap_tff.Gate(num_clients, _Z, _EPSILON, _DELTA, **more)


def _spent(*mu_squared):
  return accounting.SpentBefore(mu_squared, trust='server')


def _next(gate: quap_tff.Gate, committed: list[float]) -> Iterator[tuple[quap_tff.Gate, list[float]]]:
  """All that may happen to client 0 next, and the weights that it had until then."""
  if len(gate._open) < 3:
    after = copy.deepcopy(gate)
    after.reserve([0, 1])
    yield after, committed
  after = copy.deepcopy(gate)
  weight = after.ask([0])
  after.commit([0], weight)
  yield after, [*committed, float(weight[0])]
  for place in range(len(gate._open)):
    for share in (0.0, 0.5, 1.0):
      after = copy.deepcopy(gate)
      one = after._open[place]
      weights = np.float32(share) * one.weights[:1]
      after.commit([0], weights, reservation=one)  # Never refused.
      yield after, [*committed, float(weights[0])]
    after = copy.deepcopy(gate)
    after.give_back(after._open[place])
    yield after, committed


def _largest(gate: quap_tff.Gate, committed: list[float], depth: int) -> float:
  """The largest μ² of client 0 on any path of `depth` steps."""
  spent = float(np.sum(np.square(committed)) / _Z**2)
  return max([spent, *(_largest(*one, depth - 1) for one in _next(gate, committed))] if depth else [spent])


@pytest.mark.slow
def test_on_every_path_of_steps_the_budget_is_kept(monkeypatch):
  gate = _gate(spent=_spent(0.27, 0.0))
  limit, depth = gate.config.limit[0], 5
  assert limit / 1.0 * _Z**2 < 1.05  # It pays for one round, nearly.
  largest = _largest(gate, [], depth)
  assert 0.95 * limit < largest <= limit
  monkeypatch.setattr(gates.Gate, '_held', lambda self, ids: np.zeros(len(ids)))
  assert _largest(gate, [], depth) > 1.5 * limit


class TestReserve:
  def test_two_rounds_never_have_the_same_budget(self):
    gate, alone = _gate(), _gate()
    first, second, third = (gate.reserve([0, 1]) for _ in range(3))
    for one in (first, second, third):
      weights = alone.ask([0, 1])
      assert weights.tobytes() == one.weights.tobytes()
      alone.commit([0, 1], weights)
    assert 0 < third.weights[0] < 1 and not gate.epsilon().any()
    gate.commit([1], third.weights[1:], reservation=third)
    gate.commit([0, 1], second.weights, reservation=second)
    gate.commit([1], first.weights[:1], reservation=first)
    np.testing.assert_allclose(gate.epsilon()[1], alone.epsilon()[1], rtol=1e-12)
    assert gate.epsilon()[0] < gate.epsilon()[1] <= _EPSILON and gate.rounds == 3
    assert gate.ask([0])[0] == 1  # What it did not spend is there again.

  def test_giving_back(self):
    gate = _gate()
    rounds = [gate.reserve([0]) for _ in range(3)]
    assert gate.ask([0])[0] == 0
    gate.give_back(rounds[1])
    assert gate.ask([0])[0] == 1
    for one, what in ((rounds[1], gate.give_back), (rounds[1], lambda r: gate.commit([0], reservation=r))):
      with pytest.raises(ValueError, match='not reserved any more|This round is not reserved'):
        what(one)
    with pytest.raises(ValueError, match='This round is not reserved'):
      _gate().give_back(rounds[0])

  def test_whole_weights(self):
    gate = _gate()
    assert [gate.reserve([0], whole=True).weights[0] for _ in range(4)] == [1, 1, 0, 0]

  def test_no_more_than_was_reserved(self):
    gate = _gate()
    one = gate.reserve([0], whole=True)
    for cohort, weights, said in (([1], 1.0, 'Client 1 was not asked for'), ([0], 0.5, None)):
      if said:
        with pytest.raises(ValueError, match=said):
          gate.commit(cohort, weights, reservation=one)
      else:
        gate.commit(cohort, weights, reservation=one)
    less = _gate(spent=_spent(0.5, 0)).reserve([0])
    gate = _gate(spent=_spent(0.5, 0))
    less = gate.reserve([0])
    assert 0 < less.weights[0] < 1
    with pytest.raises(ValueError, match='may have a weight of at most'):
      gate.commit([0], 1.0, reservation=less)
    gate.commit([0], less.weights, reservation=less)

  def test_planned_rounds_are_reserved_too(self):
    gate = _gate(num_rounds=2)
    one, two = gate.reserve([0]), gate.reserve([1])
    with pytest.raises(ValueError, match='Round 3 cannot be reserved: num_rounds=2.* 2 of them are reserved'):
      gate.reserve([0])
    assert gate.ask([0])[0] == 0
    with pytest.raises(ValueError, match='Round 3 cannot be committed'):
      gate.commit([])
    gate.give_back(one)
    gate.ask([0])
    gate.commit([0])
    gate.commit([1], two.weights, reservation=two)
    assert gate.rounds == 2

  def test_asking_goes_on_meanwhile(self):
    gate = _gate()
    one = gate.reserve([0])
    gate.ask([1])
    gate.commit([0], one.weights, reservation=one)
    gate.commit([1])
    assert gate.rounds == 2

  def test_under_correlated_noise_one_round_at_a_time(self):
    gate, alone = (_gate(correlation=correlations.Ar1(0.5), num_rounds=9) for _ in range(2))
    one = gate.reserve([0])
    for what in (gate.reserve, gate.ask, gate.commit):
      with pytest.raises(ValueError, match='under correlated noise the cost of a round depends on the rounds before'):
        what([0])
    gate.give_back(one)
    one = gate.reserve([0])
    gate.commit([0], one.weights, reservation=one)
    alone.ask([0])
    alone.commit([0])
    assert gate.mu_squared.tobytes() == alone.mu_squared.tobytes()

  def test_is_not_saved(self, tmp_path):
    gate = _gate()
    gate.reserve([0])
    gate.save(str(tmp_path / 'state'))
    assert quap_tff.Gate.load(str(tmp_path / 'state')).ask([0])[0] == 1

  def test_a_log_has_rounds_in_the_order_in_which_they_ended(self, tmp_path):
    gate = _gate()
    writer = log_writer.LogWriter(gate, str(tmp_path / 'log.csv'), str(tmp_path / 'gate.state'))
    one, two = gate.reserve([0, 1]), gate.reserve([0, 1])
    writer.commit([1], two.weights[:1], reservation=two)
    writer.commit([0], one.weights[:1], reservation=one)
    assert [list(r.ids) for r in logs.Log(str(tmp_path / 'log.csv')).rounds()] == [[0], [1]]  # Places of names.
    assert (tmp_path / 'log.csv').read_text().splitlines()[1:] == ['1,1,1.0,yes', '2,0,1.0,yes']
