"""Tests of `data.battery` and of the participation model `energy`."""

import numpy as np
import pytest

from data import battery
from data import cohorts


def _after(dynamics, charge, plugged, cohort=()):
  before = battery.Batteries(np.array(charge, np.float64), np.array(plugged, bool))
  return dynamics.after(np.random.default_rng(0), before, np.array(cohort, np.int64))


class TestDynamics:
  def test_a_round_by_hand(self):
    dynamics = battery.Dynamics(charge=0.25, idle=0.125, train=0.5)
    found = _after(dynamics, [0.5, 0.5, 0.5, 0.5, 0.9, 0.05], [1, 0, 1, 0, 1, 0], cohort=[2, 3])
    np.testing.assert_allclose(found.charge, [0.75, 0.375, 0.25, 0.0, 1.0, 0.0])

  def test_rates_by_hand(self):
    found = battery.Dynamics(reserve=0.2).rates(
      battery.Batteries(np.array([0.0, 0.2, 0.1, 0.6, 1.0]), np.array([True, False, False, False, False]))
    )
    np.testing.assert_allclose(found, [1.0, 0.0, 0.0, 0.5, 1.0])

  def test_clients_are_plugged_in_at_the_stated_rates(self):
    dynamics = battery.Dynamics(plug=0.1, unplug=0.3)
    rng = np.random.default_rng(0)
    batteries = dynamics.start(rng, 20_000)
    assert batteries.plugged.mean() == pytest.approx(0.25, abs=0.02)
    after = dynamics.after(rng, batteries, np.zeros(0, np.int64))
    assert after.plugged[~batteries.plugged].mean() == pytest.approx(0.1, abs=0.01)
    assert after.plugged[batteries.plugged].mean() == pytest.approx(0.7, abs=0.02)

  @pytest.mark.parametrize(
    'name, value',
    [('charge', 1.5), ('idle', -0.1), ('train', float('nan')), ('reserve', 1.0), ('plug', 0.0), ('unplug', 2.0)],
  )
  def test_bad_parameters(self, name, value):
    with pytest.raises(ValueError, match=f'energy {name}'):
      cohorts.make(f'energy:{name}={value}', 10, None, 0)


class TestEnergy:
  def test_is_pure_in_seed_and_round(self):
    forward = [cohorts.make('energy', 60, 20, 3).cohort(t) for t in range(1, 9)]
    model = cohorts.make('energy', 60, 20, 3)
    backward = [model.cohort(t) for t in range(8, 0, -1)][::-1]
    for one, other in zip(forward, backward):
      np.testing.assert_array_equal(one, other)
    assert any(
      not np.array_equal(a, b)
      for a, b in zip(forward, [cohorts.make('energy', 60, 20, 4).cohort(t) for t in range(1, 9)])
    )

  def test_taking_part_costs_charge(self):
    model = cohorts.make('energy:charge=0,idle=0,train=0.25', 40, 10, 0)
    before, cohort, after = model.batteries(1), model.cohort(1), model.batteries(2)
    expected = before.charge.copy()
    expected[cohort] = np.maximum(expected[cohort] - 0.25, 0)
    np.testing.assert_allclose(after.charge, expected)

  def test_nobody_takes_part_below_the_reserve(self):
    model = cohorts.make('energy:reserve=0.5,train=0.3,plug=0.01,unplug=1', 200, 100, 1)
    for round_num in range(1, 6):
      batteries, cohort = model.batteries(round_num), model.cohort(round_num)
      assert (batteries.plugged[cohort] | (batteries.charge[cohort] > 0.5)).all()
      assert len(cohort) == min(100, (batteries.plugged | (batteries.charge > 0.5)).sum())

  def test_empty_batteries_are_an_empty_cohort(self):
    model = cohorts.make('energy:charge=0,train=1,plug=1e-9,unplug=1', 5, 5, 0)
    assert [len(model.cohort(t)) for t in (2, 3)] == [0, 0]

  def test_fuller_batteries_come_more_often(self):
    # Without a cohort size each comes with its own rate: of 5,000 unplugged clients in round 1, (b - 0.2)/0.8.
    model = cohorts.make('energy:plug=1e-9,unplug=1', 5000, None, 0)
    charge, came = model.batteries(1).charge, np.isin(np.arange(5000), model.cohort(1))
    for low, high, rate in ((0, 0.2, 0), (0.55, 0.65, 0.5), (0.9, 1, 0.9375)):
      inside = (charge >= low) & (charge < high)
      assert came[inside].mean() == pytest.approx(rate, abs=0.06)

  def test_earns_no_amplification(self):
    assert cohorts.make('energy', 10, 5, 0).sampler.kind == 'none'
