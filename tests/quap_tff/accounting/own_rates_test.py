"""Tests of `quap_tff.accounting.own_rates` and of the program that prints it: each rate has a noise of its own."""

import json
import pathlib

import numpy as np
import pytest

from quap_tff import accounting
from quap_tff.account import __main__ as program
from quap_tff.accounting import accountants
from quap_tff.accounting import own_rates
from quap_tff.common.numbers import rounding

_DELTA, _ROUNDS = 1e-5, 60
_COINS = ['coins', '--num_clients=10', f'--rounds={_ROUNDS}', '--epsilon=3', f'--delta={_DELTA}']


def test_many_rates_become_few_and_none_is_lowered():
  rates = np.random.default_rng(0).beta(2, 5, 5000)
  found = own_rates.accounted_rates(rates)
  assert len(np.unique(found)) <= 32 and (found >= rates).all()
  assert found.max() == rates.max() and np.mean(found / rates) < 1.25


def test_few_rates_stay():
  np.testing.assert_array_equal(own_rates.accounted_rates(np.array([0.1, 0.8, 1.0])), [0.1, 0.8, 1.0])


@pytest.mark.parametrize('rate', [0.0, 1.01, float('nan')])
def test_a_rate_that_is_no_probability_of_a_client_that_comes_is_refused(rate):
  with pytest.raises(ValueError, match='above 0 and at most 1, found .* for client 1'):
    own_rates.accounted_rates(np.array([0.5, rate]))


def test_each_client_spends_its_epsilon_at_the_weight_of_its_own_rate():
  rates, noise = np.array([0.1, 0.8, 0.1]), 1.2
  least = own_rates.least_noise(rates, _ROUNDS, 3.0, _DELTA)
  weights = np.minimum(1, noise / least)
  for rate, weight in zip(rates[:2].tolist(), weights[:2].tolist()):
    history = accounting.History.gaussian(noise / weight, _ROUNDS, rate)
    epsilon = accounting.account(history, _DELTA, ['pld'])['pld'].epsilon
    assert 2.999 < epsilon <= 3
  assert least[0] == least[2]


@pytest.mark.parametrize('guess', [(1.42, -1.3), (1.42, -1.0), (1.0, -1.0)])
def test_a_guess_changes_the_time_and_not_the_noise(guess):
  least = accounting.sampled_noise_multiplier(np.array([0.1]), 60, 3.0, _DELTA)
  found = accountants.near(accountants.PlaceOnCurve(*guess), 0.1, 60, 3.0, _DELTA)
  assert abs(found.noise_multiplier / least - 1) < 3e-6
  history = accounting.History.gaussian(found.noise_multiplier, 60, 0.1)
  assert accounting.account(history, _DELTA, ['pld'])['pld'].epsilon <= 3


@pytest.mark.parametrize('noise', [50.0, 1e-3])
def test_a_guess_that_is_far_off_finds_nothing(noise):
  assert accountants.near(accountants.PlaceOnCurve(noise), 0.1, 60, 3.0, _DELTA) is None


@pytest.mark.slow
def test_the_table_of_the_theorem():
  rates = np.array([0.02, 0.05, 0.1, 0.2, 0.3, 0.5])
  shown = ' | '.join(rounding.up(z) for z in own_rates.least_noise(rates, _ROUNDS, 3.0, _DELTA).tolist())
  page = pathlib.Path(__file__).parents[3] / 'docs' / 'proofs.md'
  assert f'| σ(q) | {shown} |' in page.read_text(encoding='utf-8')


def test_the_program_prints_noise_weights_and_shares(capsys):
  assert program.main([*_COINS, '--participation=extreme_imbalance']) == 0
  out = capsys.readouterr().out
  found = json.loads(out.splitlines()[-1])
  assert [(one['rate'], one['clients']) for one in found['rates']] == [(0.1, 8), (0.8, 2)]
  least = [one['least_noise'] for one in found['rates']]
  first, last = found['noises']
  assert (first['noise_multiplier'], last['noise_multiplier']) == tuple(least)
  assert first['mean_weight'] == pytest.approx((8 + 2 * least[0] / least[1]) / 10) and last['smallest_weight'] == 1
  # √60·Σ q·w/z over N·μ, by hand.
  signal = 60**0.5 * (8 * 0.1 + 2 * 0.8 * least[0] / least[1]) / least[0]
  assert first['share'] == pytest.approx(signal / (10 * 0.7191), rel=1e-3)
  assert 'nobody learns whose coins showed heads' in out


def test_a_model_without_coins_is_refused(capsys):
  assert program.main([*_COINS, '--participation=uniform']) == 2
  assert 'its clients do not come by independent coins' in capsys.readouterr().err
