"""Tests of `quap_tff.plans.accounts.secret_coins`: each client spends its own ε, at the weight of its own rate."""

import numpy as np
import pytest

import quap_tff
from quap_tff import accounting
from quap_tff.accounting import own_rates
from quap_tff.common.numbers import slack
from quap_tff.common.numbers import tradeoff
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.parts import layers
from quap_tff.mechanisms.parts import postprocessing
from quap_tff.plans.accounts import secret_coins

_MODEL = layers.ModelShape((layers.Layer('dense', (0,), True),), ((4,),))
_ROUNDS, _DELTA = 20, 1e-5


def _plan(rates=(0.6, 0.6, 0.2, 0.2, 0.2), **options):
  given = dict(num_clients=len(rates), epsilon=3.0, delta=_DELTA, rates=rates, num_rounds=_ROUNDS, model=_MODEL)
  return quap_tff.certified(**{**given, **options})


@pytest.fixture(scope='module', name='plan')
def _shared():
  return _plan()


def _epsilon(plan, client):
  """ε of a client at the total δ, by the library and without what rounding costs."""
  weight = float(plan.config.planned_weights[client])
  history = accounting.History.gaussian(plan.config.noise_multiplier / weight, _ROUNDS, plan.config.rates[client])
  return accounting.account(history, _DELTA, ['pld'])['pld'].epsilon


def test_each_client_spends_its_own_epsilon(plan):
  found = plan.report(plan.new_ledger()).formal
  assert found.epsilon.shape == (5,) and len(found.figures) == 1
  for client in (0, 2):
    assert _epsilon(plan, client) == pytest.approx(found.epsilon[client], rel=1e-3)
  # A client of weight 1 may keep something: the noise is for all.
  spends_all = np.array(plan.config.planned_weights) < 1
  assert spends_all.any() and (found.epsilon[spends_all] > 2.99).all() and (found.epsilon <= 3).all()
  assert found.figures[0].epsilon_max == found.epsilon.max()


def test_a_report_names_relation_amplification_and_what_is_left_if_coins_become_known(plan):
  text = str(plan.report(plan.new_ledger()))
  known = max(plan.config.planned_weights) * np.sqrt(_ROUNDS) / plan.config.noise_multiplier
  assert 'neighbours: add or remove one client' in text and 'each client by its own rate' in text
  left = secret_coins.epsilon_if_known(plan.secret, plan.slack)
  assert left == pytest.approx(tradeoff.epsilon_of(known, _DELTA), rel=1e-3) and left > 3


def test_what_rounding_costs_is_taken_off_delta_and_added_to_epsilon(plan):
  found = secret_coins.epsilons(plan.secret, slack.Slack(0.25, _DELTA / 2))
  expected = own_rates.epsilons(plan.secret.rates, plan.secret.own_multipliers, _ROUNDS, _DELTA / 2) + 0.25
  np.testing.assert_array_equal(found, expected)


def test_the_report_is_that_of_all_planned_rounds_wherever_a_run_ends(plan):
  ledger = plan.new_ledger()
  ledger.append(plan.mechanism.planned([()])[0])
  reports = [
    plan.report(one, cohorts).formal for one in (plan.new_ledger(), ledger) for cohorts in (None, [()] * _ROUNDS)
  ]
  assert all(np.array_equal(one.epsilon, reports[0].epsilon) and one.reading is None for one in reports)


def test_the_noise_keeps_nearly_all_of_the_best_ratio_and_gives_the_largest_weights(plan):
  least = plan.config.noise_multiplier / np.array(plan.config.planned_weights)
  rates = np.array(plan.config.rates)
  limited = np.array(plan.config.planned_weights) < 1
  least[~limited] = accounting.sampled_noise_multiplier(rates[~limited], _ROUNDS, 3.0, _DELTA)
  best = (rates / least).sum()
  ratio = (rates / np.maximum(plan.config.noise_multiplier, least)).sum()
  assert 0.979 < ratio / best < 0.982
  assert plan.share_of_ceiling == pytest.approx(
    np.sqrt(_ROUNDS) * ratio / (5 * tradeoff.mu_at_most(3.0, _DELTA)), rel=1e-3
  )


def test_equal_rates_have_the_weight_one_and_the_least_noise():
  config = _plan((0.3,) * 4).config
  assert set(config.planned_weights) == {1.0} and config.clip == clip_rules.Fixed(clip_rules.public_norm(_ROUNDS))
  least = accounting.sampled_noise_multiplier(np.array([0.3]), _ROUNDS, 3.0, _DELTA)
  assert least < config.noise_multiplier < least * 1.002  # With what is kept for rounding.
  assert config.divisor == pytest.approx(1.2)


def test_weights_that_are_too_large_are_lowered_in_few_steps(plan, monkeypatch):
  least_noise, calls, epsilons = own_rates.least_noise, [], own_rates.epsilons
  monkeypatch.setattr(own_rates, 'least_noise', lambda *given: least_noise(*given) / 1.05)
  monkeypatch.setattr(own_rates, 'epsilons', lambda *given: calls.append(given) or epsilons(*given))
  weights = np.array(_plan().config.planned_weights)
  assert len(calls) < 20
  assert 0.9 < (weights / plan.config.planned_weights).min() < 1.01


def test_one_rare_client_does_not_make_other_weights_small():
  # The least noise of the rare one alone would leave a third.
  config = _plan((0.3,) * 40 + (0.02,)).config
  assert config.planned_weights[0] > 0.9 and config.planned_weights[-1] == 1


def test_the_norm_is_that_of_a_client_of_mean_weight(plan):
  config = _plan(clip=clip_rules.Fixed(0.5)).config
  rates, weights = np.array(config.rates), np.array(config.planned_weights)
  assert config.clip.initial_norm * (rates @ weights) / rates.sum() == pytest.approx(0.5)
  assert plan.config.divisor == pytest.approx(rates.sum())


def test_bounds_of_their_own_are_kept():
  plan = _plan((0.3,) * 3, own_epsilon=(3.0, 1.0, 3.0))
  epsilon = plan.report(plan.new_ledger()).formal.epsilon
  assert 0.99 < epsilon[1] <= 1 < 2.9 < epsilon[0] <= 3
  assert plan.config.planned_weights[1] < plan.config.planned_weights[0]


def test_noised_counts_are_in_the_account_of_each_client(plan):
  rule, without = clip_rules.PrivateQuantile(0.5, initial_clip=0.5, count_stddev=10.0), plan.config
  plan = _plan(clip=rule)
  rates, weights = np.array(plan.config.rates), np.array(plan.config.planned_weights)
  assert plan.config.clip.initial_clip * (rates @ weights) / rates.sum() == pytest.approx(0.5)
  epsilon = plan.report(plan.new_ledger()).formal.epsilon
  for client in (0, 2):
    # A client moves the count by 1/2.
    share = (weights[client] / plan.config.noise_multiplier) ** 2 + (0.5 / rule.count_stddev) ** 2
    history = accounting.History.gaussian(share**-0.5, _ROUNDS, rates[client])
    assert accounting.account(history, _DELTA, ['pld'])['pld'].epsilon == pytest.approx(epsilon[client], rel=1e-3)
  assert (epsilon[weights < 1] > 2.99).all() and (epsilon <= 3).all()
  assert (weights / plan.config.noise_multiplier)[0] < (1 / without.noise_multiplier)


def test_counts_that_spend_everything_are_refused():
  least = accounting.sampled_noise_multiplier(np.array([0.6]), _ROUNDS, 3.0, _DELTA)
  rule = clip_rules.PrivateQuantile(0.5, count_stddev=least / 2)
  with pytest.raises(ValueError, match='noised counts alone spend more than the ε of client 0, which comes at 0.6'):
    _plan(clip=rule)


def test_an_average_is_chosen_for_equal_rounds():
  plan = _plan((0.3,) * 3, averaging=postprocessing.PlannedAverage())
  assert plan.averaging in postprocessing.PlannedAverage().candidates(_ROUNDS)
  assert plan.averaging != postprocessing.LastIterate()


def test_records_name_nobody(plan):
  [record] = plan.mechanism.planned([np.array([1, 2])])
  assert not len(record.cohort) and record.releases and record.noise_multiplier == plan.config.noise_multiplier


@pytest.mark.parametrize(
  'options, words',
  [
    (dict(schedule=[[0]] * _ROUNDS), 'Leave schedule and expected out'),
    (dict(expected=[[0]] * _ROUNDS), 'Leave schedule and expected out'),
    (dict(trust='secure_sum'), 'clients see who is announced'),
    (dict(num_rounds=None), 'needs num_rounds'),
    (dict(colluders=(1,)), 'colluders needs rounds whose clients are known'),
    (dict(spent=accounting.SpentBefore((0.1,) * 5, 'server')), 'spent_before cannot be counted'),
    (dict(client_metrics=True), 'could get no certificate'),
    (dict(noise_seed=1), 'could get no certificate'),
    (dict(rates=(0.5, 0.0, 0.1, 0.1, 0.1)), 'found 0 for client 1'),
    (dict(rates=(0.5,), num_clients=5), r'rates must be float\[5\]'),
  ],
)
def test_what_has_no_proof_is_refused_in_a_sentence(options, words):
  with pytest.raises(ValueError, match=words):
    _plan(**options)
