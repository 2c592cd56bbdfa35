"""A run's formal figures: by hand for small ledgers, what they cover, amplification and where it is not earned."""

import json
import math
import re

import dp_accounting
from dp_accounting import pld as dp_pld
import numpy as np
import pytest
from scipy import integrate
from scipy import stats

from quap_tff import accounting
from quap_tff import plans
from quap_tff.accounting import accountants
from quap_tff.accounting import formal
from quap_tff.accounting import history
from quap_tff.accounting import protection
from quap_tff.accounting import theorems
from quap_tff.common.numbers import rounding
from quap_tff.common.numbers import samplers
from quap_tff.common.numbers import slack as slacks
from quap_tff.mechanisms.parts import budgets
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.quap import config as configs

DELTA = 1e-5
INF = math.inf
N = 6
_HALF = [0.5] * N
WHOLE = protection.Protection('released model', 'All is noised.', 'All is noised.')
PART = protection.Protection('weights without the logs', 'Logs are exact.', 'Logs are exact.')
NONE = protection.Protection('nothing', 'Nothing is noised.', 'Nothing is noised.')


def _ledger(cohorts, noise=8.0, weights=None, count_noise=INF, num_clients=N):
  ledger = accounting.RunLedger(num_clients, 1e-3, 'a run')
  noise = np.broadcast_to(noise, len(cohorts))
  for cohort, z in zip(cohorts, noise):
    own = np.ones(len(cohort)) if weights is None else np.asarray(weights)[cohort]
    ledger.append(
      accounting.RoundRecord(np.asarray(cohort, np.int64), np.full(len(cohort), 0.1), own, float(z), count_noise, 1.0)
    )
  return ledger


def _bernoulli(rates, **fields):
  constant = dict(constant_divisor=True, noise_follows='nothing', noises_empty_rounds=True, secret=True)
  return samplers.CohortSampler('bernoulli', rates=np.asarray(rates, float), **{**constant, **fields})


def _fixed_size(size, **fields):
  constant = dict(constant_divisor=True, noise_follows='nothing', secret=True)
  return samplers.CohortSampler('fixed_size', cohort_size=size, **{**constant, **fields})


def _exact(z, rounds=1, delta=DELTA):
  return accountants.get('gaussian_exact').epsilon(history.History.gaussian(z, rounds), delta)


_COHORTS = [[0, 1], [1, 2, 3], [1], [], [1, 3]]


class TestWithoutAmplification:
  @pytest.mark.parametrize('num_clients', [N, 20_000])
  def test_rounding_costs_those_who_took_part_and_nobody_else(self, num_clients):
    ledger = _ledger([[0, 1], [1]], num_clients=num_clients)
    report = accounting.formal_report(ledger, DELTA, WHOLE, slack=slacks.Slack(0.25, DELTA / 2))
    ideal = accounting.formal_report(ledger, DELTA / 2, WHOLE)
    assert report.epsilon - ideal.epsilon == pytest.approx([0.25, 0.25] + [0] * (num_clients - 2))
    assert [f.epsilon_max for f in report.figures] == pytest.approx([f.epsilon_max + 0.25 for f in ideal.figures])

  @pytest.mark.parametrize('covers', [WHOLE, PART])
  def test_each_client_by_hand(self, covers):
    ledger = _ledger(_COHORTS[:3] + _COHORTS[4:], noise=8.0, weights=[1, 1, 0.5, 1, 1, 1])
    report = accounting.formal_report(ledger, DELTA, covers)
    by_hand = [_exact(8.0), _exact(8.0, 4), _exact(16.0), _exact(8.0, 2), 0, 0]
    assert report.epsilon == pytest.approx(by_hand, rel=1e-10)
    figures = {figure.accountant: figure for figure in report.figures}
    assert list(figures) == list(accountants.ACCOUNTANTS)
    for figure in report.figures:
      assert figure.amplification == 'none' and 'zero-out' in figure.neighbours
    exact = figures['gaussian_exact']
    assert exact.epsilon_max == report.epsilon.max() and exact.epsilon_mean == report.epsilon.mean()
    assert exact.epsilon_median == np.median(report.epsilon)

  def test_every_accountant_is_fed_the_same_history(self):
    ledger = _ledger([[0, 1], [1, 2], [1]], noise=[8.0, 9.0, 10.0], weights=[1, 0.7, 1, 1, 1, 1], count_noise=20.0)
    counts = [(history.GaussianMechanism(20.0), 3)]
    most = history.History.of([(history.GaussianMechanism(z / 0.7), 1) for z in (8.0, 9.0, 10.0)] + counts)
    for figure in accounting.formal_report(ledger, DELTA, WHOLE).figures:
      expected = accountants.get(figure.accountant).epsilon(most, DELTA)
      assert figure.epsilon_max == pytest.approx(expected, rel=1e-9), figure.accountant

  def test_a_round_without_noise(self):
    report = accounting.formal_report(_ledger([[0, 1], [1, 2]], noise=[8.0, 0.0]), DELTA, PART)
    assert report.epsilon.tolist() == pytest.approx([_exact(8.0), INF, INF, 0, 0, 0])
    kept = json.loads(json.dumps(report.as_dict(), allow_nan=False))
    for figure in kept['figures']:
      assert figure['epsilon_max'] is None and figure['epsilon_mean'] is None
      assert 0 < figure['epsilon_median'] < INF

  def test_nothing_happened(self):
    report = accounting.formal_report(_ledger([]), DELTA, WHOLE, _bernoulli(_HALF))
    assert report.epsilon.tolist() == [0.0] * N and {f.epsilon_max for f in report.figures} == {0.0}

  def test_an_accountant_without_a_figure_says_why(self):
    report = accounting.formal_report(_ledger(_COHORTS[:3]), 1e-12, WHOLE)
    assert 'pld' not in {figure.accountant for figure in report.figures} and len(report.figures) == 5
    assert any(note.startswith('No figure by pld: ') for note in report.notes)

  @pytest.mark.parametrize('delta', [0.0, 1.0, math.nan])
  def test_bad_delta(self, delta):
    with pytest.raises(ValueError, match='delta must be'):
      accounting.formal_report(_ledger(_COHORTS), delta, WHOLE)


class TestReport:
  def test_nothing_is_covered(self):
    report = accounting.formal_report(_ledger(_COHORTS), DELTA, NONE, _bernoulli(_HALF))
    assert report.epsilon is None and report.figures == () and report.text == 'Nothing is noised.'
    # In a summary: no formal figure at all.
    assert report.as_dict() is None

  def test_text_names_what_each_figure_stands_for(self):
    ledger = _ledger([[0, 1]] * 3)
    text = accounting.formal_report(ledger, DELTA, WHOLE, _bernoulli([0.25] * N)).text
    for words in (
      'All is noised.',
      'Formal ε of the released model at total δ = 1e-05',
      'one client with all of its data',
      'zero-out',
      'add or remove one client',
      'q = 0.25',
      'cohorts, their sizes and their seed stay secret',
      'pld',
    ):
      assert words in text
    assert 'Formal ε of the weights without the logs' in accounting.formal_report(ledger, DELTA, PART).text

  def test_no_printed_figure_is_too_small(self):
    report = accounting.formal_report(_ledger([[0, 1]] * 3), DELTA, WHOLE, _bernoulli([0.25] * N))
    printed = [float(number) for number in re.findall(r' max (\S+)', report.text)]
    real = [figure.epsilon_max for figure in report.figures]
    assert len(printed) == len(real) and any(float(f'{epsilon:.4g}') < epsilon for epsilon in real)
    assert all(shown >= epsilon * (1 - 1e-8) for shown, epsilon in zip(printed, real))

  def test_fields_of_a_figure(self):
    kept = accounting.formal_report(_ledger(_COHORTS[:3]), DELTA, PART).as_dict()
    assert set(kept) == {'covers', 'statement', 'delta', 'unit', 'figures', 'notes', 'noise_note', 'reading'}
    assert set(kept['figures'][0]) == {
      'accountant',
      'neighbours',
      'amplification',
      'epsilon_max',
      'epsilon_mean',
      'epsilon_median',
    }


class TestPoisson:
  @pytest.mark.slow
  def test_every_round_counts_for_everyone_at_its_rate(self):
    rates = [0.05, 0.05, 0.1, 0.2, 0.2, 0.0]
    report = accounting.formal_report(_ledger([[0, 1]] * 20), DELTA, WHOLE, _bernoulli(rates))
    # Figures without amplification would give away who came.
    assert [figure.accountant for figure in report.figures] == ['rdp', 'pld']
    for figure in report.figures:
      by_hand = [
        accountants.get(figure.accountant).epsilon(history.History.gaussian(8.0, 20, q), DELTA) if q else 0.0
        for q in rates
      ]
      assert figure.epsilon_max == pytest.approx(max(by_hand), rel=1e-9)
      assert figure.epsilon_mean == pytest.approx(np.mean(by_hand), rel=1e-9)
      assert figure.neighbours == 'add or remove one client'
      assert 'Poisson sampling, q = 0.05 to 0.2' in figure.amplification and 'secret' in figure.amplification
    pld = [accountants.get('pld').epsilon(history.History.gaussian(8.0, 20, q), DELTA) if q else 0.0 for q in rates]
    assert report.epsilon == pytest.approx(pld, rel=1e-9)
    # A client in every round, if the secret were out.
    assert f'every round would have ε = {rounding.up(_exact(8.0, 20))} (zero-out)' in report.notes[0]

  @pytest.mark.slow
  def test_nothing_in_the_report_follows_from_who_came(self):
    one, other = (
      accounting.formal_report(_ledger(cohorts), DELTA, WHOLE, _bernoulli(_HALF))
      for cohorts in ([[0, 1]] * 3, [[], range(N), [2]])
    )
    assert one.as_dict() == other.as_dict() and one.text == other.text
    np.testing.assert_array_equal(one.epsilon, other.epsilon)

  def test_of_another_population(self):
    with pytest.raises(ValueError, match='6 clients, found rates of 2'):
      accounting.formal_report(_ledger([[0, 1]]), DELTA, WHOLE, _bernoulli([0.5] * 2))


@pytest.mark.slow
class TestFixedSize:
  def _epsilon(self, size, noise, rounds=1, delta=DELTA, num_clients=N, count_noise=INF):
    ledger = _ledger([range(size)] * rounds, noise, num_clients=num_clients, count_noise=count_noise)
    report = accounting.formal_report(ledger, delta, WHOLE, _fixed_size(size))
    (figure,) = report.figures
    assert figure.accountant == 'rdp' and figure.neighbours == "replace one client's data by another's"
    assert f'{size} of {num_clients} clients' in figure.amplification and 'secret' in figure.amplification
    assert figure.epsilon_max == pytest.approx(figure.epsilon_mean, rel=1e-12) and figure.epsilon_median
    return figure.epsilon_max

  @pytest.mark.parametrize('noise, size, delta', [(4.0, 5, 1e-5), (2.0, 3, 1e-3), (1.0, 1, 1e-2)])
  def test_is_no_less_than_the_loss_of_one_round(self, noise, size, delta):
    """δ(ε) of the two mixtures that a round is if the replaced update points the other way, integrated."""
    q = size / N
    epsilon = self._epsilon(size, noise, delta=delta)
    at = lambda sign: lambda x: (1 - q) * stats.norm.pdf(x, 0, noise) + q * stats.norm.pdf(x, sign, noise)
    above = lambda bound: integrate.quad(
      lambda x: max(0.0, at(1)(x) - math.exp(bound) * at(-1)(x)), -12 * noise, 12 * noise, limit=500
    )[0]
    # Enough, and not by twice as much where most clients come; noise over C instead of 2C would not be.
    assert above(epsilon) <= delta
    if size == 5:
      assert above(epsilon / 2) > delta

  @pytest.mark.parametrize('size', [N, N - 1])
  def test_is_never_above_a_client_that_is_always_in(self, size):
    # Half the noise beside a move of 2C. The sampling bound alone would be larger: by 2% if everyone comes.
    expected = _exact(4.0, 20)
    assert self._epsilon(size, 8.0, rounds=20) == pytest.approx(expected, rel=1e-9)

  def test_the_noised_count_is_of_the_same_draw(self):
    together = 1 / math.hypot(1 / 80.0, 1 / 60.0)
    expected = self._epsilon(2, together, rounds=10, num_clients=100)
    found = self._epsilon(2, 80.0, rounds=10, count_noise=60.0, num_clients=100)
    assert found == pytest.approx(expected, rel=1e-9) and found < 0.5 * _exact(together / 2, 10)

  def test_amplifies(self):
    found = [self._epsilon(size, 20.0, rounds=50, num_clients=200) for size in (2, 20, 100)]
    assert found == sorted(found) and found[0] < 0.2 * found[-1]


_SEED = 'the cohorts follow from a seed that is not secret'
_PLANNED = 'the noise was chosen on the planned cohorts'
# The ledger's cohorts, weights or noise, and why sampling amplifies nothing.
_NOT_EARNED = [
  (_bernoulli(_HALF, noise_follows='cohorts'), {}, 'the noise depends on who came'),
  (_bernoulli(_HALF), dict(noise=[8.0, 8.0, 0.0]), 'the noise depends on who came'),
  # Though somebody came to each of these rounds.
  (
    _bernoulli(_HALF, noises_empty_rounds=False),
    {},
    'a round that nobody comes to releases nothing, which reveals that nobody came',
  ),
  *(
    (sampler, {}, 'sums are divided by the size of the cohort, which reveals something about who came')
    for sampler in (_bernoulli(_HALF, constant_divisor=False), _fixed_size(2, constant_divisor=False))
  ),
  (_bernoulli(_HALF), dict(weights=[1, 0.5, 1, 1, 1, 1]), "the clients' weights depend on how often they came"),
  (
    _bernoulli(_HALF),
    dict(count_noise=9.0),
    "the private quantile's count is divided by the size of the cohort, which reveals something about who came",
  ),
  (_fixed_size(2, noise_follows='cohorts'), {}, 'the noise depends on who came'),
  (_fixed_size(2), dict(cohorts=[[0, 1], [0]]), 'not every cohort has 2 of 6 clients'),
  (_fixed_size(3), {}, 'not every cohort has 3 of 6 clients'),
  (_fixed_size(N + 1), dict(cohorts=[range(N)]), 'not every cohort has 7 of 6 clients'),
]
# The reason is the one that would remain, whatever is covered.
_NEVER_EARNED = [
  (samplers.CohortSampler(), 'nothing is known of how the cohorts are drawn'),
  # With the seed at hand, whatever else is wrong does not matter.
  (_bernoulli(_HALF, secret=False), _SEED),
  (_fixed_size(2, secret=False, constant_divisor=False), _SEED),
  # No seed could help here.
  (_fixed_size(2, secret=False, noise_follows='plan'), _PLANNED),
  (samplers.CohortSampler(noise_follows='plan'), _PLANNED),
  (samplers.CohortSampler(reason='everyone comes'), 'everyone comes'),
  (samplers.CohortSampler(reason='everyone comes', secret=True), 'everyone comes'),
]


@pytest.mark.slow
@pytest.mark.parametrize(
  'protected, sampler, ledger, reason',
  [
    *((WHOLE, *case) for case in _NOT_EARNED),
    *((protected, sampler, {}, reason) for sampler, reason in _NEVER_EARNED for protected in (WHOLE, PART)),
    (PART, _bernoulli(_HALF), {}, 'un-noised values are released, and they reveal who took part'),
  ],
)
def test_amplification_is_not_earned(protected, sampler, ledger, reason):
  report = accounting.formal_report(_ledger(**{'cohorts': [[0, 1]] * 3, **ledger}), DELTA, protected, sampler)
  assert {figure.amplification for figure in report.figures} == {'none'}
  assert report.notes == (f'No amplification by sampling: {reason}.',)


def _reason(sampler):
  return accounting.no_amplification(_ledger([[0]]), WHOLE, sampler)


class TestSampler:
  @pytest.mark.parametrize(
    'fields, words',
    [
      (dict(kind='poisson'), 'Unknown sampler'),
      (dict(kind='bernoulli'), 'needs rates'),
      (dict(kind='fixed_size'), 'needs a cohort_size'),
      (dict(kind='none', rates=np.ones(2)), 'takes no rates'),
      (dict(kind='none', cohort_size=2), 'takes no cohort_size'),
      (dict(kind='bernoulli', rates=np.array([0.5, 1.1])), 'rates must be'),
      (dict(kind='bernoulli', rates=np.array([math.nan])), 'rates must be'),
      (dict(kind='bernoulli', rates=np.array(0.5)), 'rates must be'),
      (dict(kind='fixed_size', cohort_size=0), 'cohort_size must be'),
    ],
  )
  def test_bad(self, fields, words):
    with pytest.raises(ValueError, match=words):
      samplers.CohortSampler(**fields)

  @pytest.mark.parametrize(
    'rule, scale, secret, reason',
    [
      ('uniform', 1, True, None),
      ('uniform', 1, False, 'the cohorts follow from a seed that is not secret'),
      ('cohort_mean_rate', 1, True, 'the noise depends on who came'),
      ('uniform', 0.5, True, 'the noise was chosen on the planned cohorts'),
    ],
  )
  def test_what_quap_plans_earn(self, rule, scale, secret, reason):
    config = configs.QuapConfig(
      num_clients=N,
      critical_layers='all',
      budget=budgets.BudgetConfig(num_rounds=2, epsilon_total=1, round_rule=rule),
      clip=clip_rules.Fixed(1.0),
      noise=configs.NoiseConfig(scale=scale),
    )
    plan = plans.Plan(config, samplers.CohortSampler('fixed_size', cohort_size=2, secret=secret))
    assert accounting.no_amplification(_ledger([[0, 1]] * 2), WHOLE, plan.sampler) == reason

  def test_amplifies_nothing_unless_said(self):
    assert _reason(samplers.CohortSampler('bernoulli', rates=np.full(N, 0.5)))
    assert not _reason(_bernoulli(_HALF))

  def test_a_cohort_that_cannot_be_empty_needs_no_noise_for_that(self):
    assert not _reason(_bernoulli([0.5] * (N - 2) + [1.0] * 2, noises_empty_rounds=False))
    # Without the one client that always comes, nobody may come.
    assert 'nobody came' in _reason(_bernoulli([0.5] * (N - 1) + [1.0], noises_empty_rounds=False))


@pytest.mark.slow
class TestExactScale:
  def _scaled(self, cohorts, noise, factor, **fields):
    return accounting.formal_report(_ledger(cohorts, np.asarray(noise) * factor, **fields), DELTA, WHOLE).epsilon

  @pytest.mark.parametrize('epsilon', [0.1, 1.0, 8.0])
  @pytest.mark.parametrize('count_noise', [INF, 100.0])
  def test_the_most_exposed_client_spends_it(self, epsilon, count_noise):
    cohorts = _COHORTS[:3] + [[0, 1, 2]] * 5
    noise, fields = np.linspace(20, 90, 8), dict(weights=[1, 0.4, 0.9, 1, 1, 1], count_noise=count_noise)
    if epsilon == 0.1:
      fields['count_noise'] *= 10
    factor = accounting.exact_scale(_ledger(cohorts, noise, **fields), epsilon, DELTA)
    found = self._scaled(cohorts, noise, factor, **fields)
    assert epsilon * (1 - 1e-4) <= found.max() <= epsilon
    # And so it does if the multipliers are of single precision.
    found = self._scaled(cohorts, np.float32(noise) * np.float32(factor), 1.0, **fields)
    assert found.max() <= epsilon
    assert self._scaled(cohorts, noise, factor * (1 - 1e-4), **fields).max() > epsilon

  def test_the_documents_schedule(self):
    # N = 100, M = 30, everyone always in at z = 127: a twelfth is enough for ε = 6.
    factor = accounting.exact_scale(_ledger([range(3)] * 200, noise=127.0), 6.0, DELTA)
    assert 127.0 * factor == pytest.approx(10.8, abs=0.005)

  @pytest.mark.parametrize(
    'ledger, words',
    [
      (dict(cohorts=[[0], [1]], noise=[5.0, 0.0]), 'without noise'),
      (dict(cohorts=[[], []]), 'no client takes part'),
      (dict(cohorts=[[0]] * 4, count_noise=0.5), 'noised counts alone spend .* at delta=1e-05'),
    ],
  )
  def test_impossible(self, ledger, words):
    with pytest.raises(ValueError, match=words):
      accounting.exact_scale(_ledger(**ledger), 1.0, DELTA)

  def test_epsilon_must_be_above_zero(self):
    with pytest.raises(ValueError, match='epsilon must be'):
      accounting.exact_scale(_ledger([[0]]), 0.0, DELTA)


class TestSampledNoise:
  @pytest.mark.slow
  @pytest.mark.parametrize(
    'epsilon, rate, rounds, delta',
    [
      (1.0, 0.3, 60, 1e-5),
      pytest.param(3.0, 0.3, 20, 1e-5, marks=pytest.mark.thorough),
      pytest.param(6.0, 0.05, 200, 1e-6, marks=pytest.mark.thorough),
      (2, 1, 5, 1e-5),
    ],
  )
  def test_is_the_least_for_the_largest_rate(self, epsilon, rate, rounds, delta):
    """By dp-accounting itself, and not by this package's accountants."""

    def of_library(noise_multiplier):
      event = dp_accounting.GaussianDpEvent(noise_multiplier)
      sampled = dp_accounting.PoissonSampledDpEvent(rate, event) if rate < 1 else event
      accountant = dp_pld.PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE, 1e-3)
      return accountant.compose(sampled, rounds).get_epsilon(delta)

    z = accounting.sampled_noise_multiplier(np.array([0.01, rate, 0.0]), rounds, epsilon, delta)
    assert epsilon * (1 - 1e-3) <= of_library(z) <= epsilon * (1 + 1e-4)
    assert of_library(0.98 * z) > epsilon * 1.005
    found = accountants.get('pld').epsilon(history.History.gaussian(z, rounds, rate), delta)
    assert epsilon * (1 - 1e-4) < found <= epsilon

  def test_impossible(self):
    with pytest.raises(ValueError, match='all participation rates are 0'):
      accounting.sampled_noise_multiplier(np.zeros(3), 5, 1.0, DELTA)
    with pytest.raises(ValueError, match='epsilon must be'):
      accounting.sampled_noise_multiplier(np.ones(3), 5, 0.0, DELTA)


class TestCost:
  @pytest.mark.slow
  def test_distinct_histories_of_many_clients_are_few_for_slow_accountants(self, monkeypatch):
    """Of 1,000 clients of different histories, what takes milliseconds each is asked for a few dozen."""
    rng = np.random.default_rng(0)
    cohorts = [rng.permutation(1000)[:300] for _ in range(40)]
    ledger = _ledger(cohorts, noise=rng.uniform(20, 30, 40), num_clients=1000)
    assert len(accounting.merged_histories(accounting.total_mu(ledger).whole).histories) > 900
    calls = []
    for kind in (theorems.Pld, theorems.Rdp):
      monkeypatch.setattr(kind, '_epsilon', lambda self, h, delta: calls.append(h) or 1.0)
    report = formal.formal_report(ledger, DELTA, PART)
    assert len(report.figures) == 6 and len(calls) <= 2 * 64
