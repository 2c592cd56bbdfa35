"""Accountants against numbers of other origin: long decimals, published values, closed forms, drawn privacy losses."""

import decimal
import math

import hypothesis
from hypothesis import strategies
import numpy as np
import pytest

from quap_tff.accounting import accountants
from quap_tff.accounting import history
from quap_tff.accounting import theorems
from quap_tff.common.lazy import tf
from quap_tff.common.numbers import tradeoff
from quap_tff.mechanisms.noise import gaussian

_settings = hypothesis.settings(max_examples=60)
D = decimal.Decimal


def _epsilon(name, h, delta):
  return accountants.get(name).epsilon(h, delta)


# δ(ε) of a Gaussian to hundreds of digits, with nothing but Python's decimals.


def _pi():
  """Machin's formula."""

  def arctan_inverse(n):
    total = power = D(1) / n
    smallest = D(10) ** -decimal.getcontext().prec
    k = 1
    while abs(power) > smallest:
      power /= -n * n
      k += 2
      total += power / k
    return total

  return 4 * (4 * arctan_inverse(5) - arctan_inverse(239))


def _normal_cdf(t, pi):
  """Φ(t) = 1/2 + φ(t)·(t + t³/3 + t⁵/15 + …)."""
  term = total = t
  n, smallest = 1, D(10) ** -decimal.getcontext().prec
  while abs(term) > smallest:
    n += 2
    term *= t * t / n
    total += term
  return D('0.5') + (-t * t / 2).exp() / (2 * pi).sqrt() * total


def exact_log_delta(epsilon, mu):
  """ln δ(ε), right in every digit of a float."""
  with decimal.localcontext() as context:
    # Terms of the series reach e^(t²/2), and their sum is as small as e^(-t²/2).
    furthest = epsilon / mu + mu / 2
    context.prec = min(80 + int(0.45 * furthest**2), 1200)
    epsilon, mu, pi = D(epsilon), D(mu), _pi()
    x = epsilon / mu
    return float((_normal_cdf(mu / 2 - x, pi) - epsilon.exp() * _normal_cdf(-mu / 2 - x, pi)).ln())


class TestGaussianTradeoff:
  @pytest.mark.slow
  @pytest.mark.parametrize('mu', [1e-6, 1e-3, 0.1, 1.0, 9.0, 30.0])
  @pytest.mark.parametrize('deviations', [-0.4, 0.0, 1.0, 5.0, 20.0])
  def test_delta_against_long_decimals(self, mu, deviations):
    epsilon = max(0.0, mu * mu / 2 + deviations * mu)
    exact = exact_log_delta(epsilon, mu)
    found = float(tradeoff.log_delta(epsilon, mu))
    # The allowance for rounding is one of δ, relative to a term that is larger by 1/μ.
    assert exact - 1e-12 * abs(exact) <= found <= exact + 1e-9 + 1e-12 / mu

  @pytest.mark.slow
  @pytest.mark.parametrize('mu', [1e-3, 0.1, 1.0, 9.0, 30.0])
  @pytest.mark.parametrize('delta', [0.3, 1e-5, 1e-30, 1e-200])
  def test_epsilon_is_enough_and_hardly_more(self, mu, delta):
    epsilon = float(tradeoff.epsilon_of(mu, delta))
    if epsilon == 0:
      assert exact_log_delta(0.0, mu) <= math.log(delta)
    else:
      assert exact_log_delta(epsilon, mu) <= math.log(delta) < exact_log_delta(epsilon * (1 - 1e-9), mu)

  def test_is_the_formula_of_the_noise(self):
    for epsilon, z in [(0.1, 3.0), (1.0, 1.0), (6.0, 0.7)]:
      delta = float(gaussian.delta_of(tf.constant(epsilon, tf.float64), tf.constant(z, tf.float64)))
      assert math.exp(tradeoff.log_delta(epsilon, 1 / z)) == pytest.approx(delta, rel=1e-12)

  def test_many_deltas_at_once(self):
    found = tradeoff.epsilon_of([[0.1], [2.0]], [1e-5, 1e-9])
    by_hand = [[float(tradeoff.epsilon_of(mu, delta)) for delta in (1e-5, 1e-9)] for mu in (0.1, 2.0)]
    np.testing.assert_allclose(found, by_hand, rtol=1e-12)

  def test_ends(self):
    assert tradeoff.log_delta(1.0, [0.0, math.inf]).tolist() == [-math.inf, 0.0]
    assert tradeoff.epsilon_of([0.0, math.inf], 1e-5).tolist() == [0.0, math.inf]

  @pytest.mark.slow
  @hypothesis.settings(_settings, max_examples=25)
  @hypothesis.given(
    strategies.floats(1e-6, 1e6),
    strategies.floats(1e-6, 1e6),
    strategies.floats(1e-290, 0.9),
    strategies.floats(1e-290, 0.9),
  )
  def test_monotone(self, mu, other_mu, delta, other_delta):
    small, large = sorted([mu, other_mu])
    at = tradeoff.epsilon_of
    assert at(small, delta) <= at(large, delta) * (1 + 1e-9) + 1e-300
    tiny, big = sorted([delta, other_delta])
    assert at(mu, big) <= at(mu, tiny) * (1 + 1e-9) + 1e-300


class TestHistory:
  def test_order_and_splitting_do_not_matter(self):
    a, b = history.GaussianMechanism(2.0), history.GaussianMechanism(3.0, 0.1)
    assert history.History.of([(a, 1), (b, 5), (a, 2)]) == history.History.of([(b, 5), (a, 3)])
    assert hash(history.History.of([(a, 3)])) == hash(history.History.gaussian(2.0, 3))

  def test_what_tells_nothing_is_left_out(self):
    silent = history.GaussianMechanism(math.inf)
    assert history.History.of([(silent, 3), (history.GaussianMechanism(1.0), 0)]) == history.History(())

  def test_gaussians_without_sampling_are_one(self):
    parts = [(history.GaussianMechanism(3.0), 1), (history.GaussianMechanism(4.0), 2)]
    sampled = (history.GaussianMechanism(5.0, 0.1), 7)
    merged = history.History.of(parts + [sampled]).merged()
    assert merged.releases[1] == sampled
    assert merged.releases[0][0].mu == pytest.approx(math.sqrt(1 / 9 + 2 / 16), rel=1e-14)
    assert not history.History.of(parts).is_sampled and merged.is_sampled and merged.sampling_rates == (0.1,)

  def test_very_large_and_small_noise(self):
    assert history.History.gaussian(1e-200, 4).total_mu == pytest.approx(2e200, rel=1e-14)
    assert history.History.gaussian(1e200, 4).total_mu == pytest.approx(2e-200, rel=1e-14)
    assert history.History.gaussian(0.0, 4).total_mu == math.inf

  @pytest.mark.slow
  def test_coarser_is_fewer_and_never_less(self):
    rng = np.random.default_rng(0)
    drawn = [history.GaussianMechanism(z, q) for z, q in zip(rng.uniform(1, 1.2, 500), rng.uniform(0.1, 0.12, 500))]
    coarse = [h.releases[0][0] for h in history.coarsened([history.History.of([(m, 1)]) for m in drawn], 0.01)]
    assert len(set(coarse)) <= 20 * 20
    for fine, rough in zip(drawn, coarse):
      assert fine.noise_multiplier / 1.0101 <= rough.noise_multiplier <= fine.noise_multiplier * (1 + 1e-15)
      assert fine.sampling_rate <= rough.sampling_rate <= fine.sampling_rate * 1.0101
    assert max(m.mu for m in coarse) == pytest.approx(max(m.mu for m in drawn), rel=1e-15)
    assert max(m.sampling_rate for m in coarse) == max(m.sampling_rate for m in drawn)
    whole = history.History.of((m, 1) for m in drawn[:3])
    (rough,) = history.coarsened([whole], 0.05)
    assert _epsilon('rdp', whole, 1e-5) <= _epsilon('rdp', rough, 1e-5)

  def test_coarser_leaves_the_ends(self):
    silent, unnoised = history.History(()), history.History.gaussian(0.0, 2)
    assert history.coarsened([silent, unnoised, history.History.gaussian(2.0, 1)], 0.1) == [
      silent,
      unnoised,
      history.History.gaussian(2.0, 1),
    ]

  @pytest.mark.parametrize(
    'noise_multiplier, sampling_rate',
    [(-1.0, 1.0), (-math.inf, 1.0), (math.nan, 1.0), ('1', 1.0), (1.0, 0.0), (1.0, 1.1), (1.0, math.nan)],
  )
  def test_bad_mechanism(self, noise_multiplier, sampling_rate):
    with pytest.raises(ValueError, match='noise_multiplier|sampling_rate'):
      history.GaussianMechanism(noise_multiplier, sampling_rate)

  def test_bad_count(self):
    with pytest.raises(ValueError, match='count must be an integer at least 0, found -1'):
      history.History.gaussian(1.0, -1)


class TestGroup:
  def test_against_one_by_one(self):
    rng = np.random.default_rng(1)
    mechanisms = [history.GaussianMechanism(z) for z in (3.0, 2.0, math.inf, 5.0)]
    # Many entries for few clients and few entries for many: counted in different ways.
    for num_clients, entries in [(5, 300), (500, 60)]:
      clients, kinds = rng.integers(num_clients - 1, size=entries), rng.integers(4, size=entries)
      population = history.group(clients, kinds, mechanisms, num_clients)
      assert len(set(population.histories)) == len(population.histories)
      for i in range(num_clients):
        by_hand = history.History.of((mechanisms[k], 1) for k in kinds[clients == i])
        assert population.histories[population.index[i]] == by_hand

  def test_equal_histories_in_another_order_are_one(self):
    mechanisms = [history.GaussianMechanism(z) for z in (3.0, 2.0)]
    population = history.group([0, 1, 1, 0], [0, 1, 0, 1], mechanisms, 3)
    assert population.histories == [history.History.of([(m, 1) for m in mechanisms]), history.History(())]
    assert population.index.tolist() == [0, 0, 1]

  def test_nobody(self):
    assert history.group([], [], [], 2) == ([history.History(())], pytest.approx([0, 0]))


class TestManyHistories:
  @pytest.mark.parametrize('name', ['zcdp', 'rdp', 'pld'])
  def test_each_distinct_history_is_accounted_once(self, name, monkeypatch):
    kinds = [history.History.gaussian(z, 3) for z in (5.0, 6.0, 7.0)]
    accountant, calls = accountants.get(name), []
    monkeypatch.setattr(type(accountant), '_epsilon', lambda self, h, delta: calls.append(h) or 1.0)
    assert accountant.epsilons(kinds * 100, 1e-5).tolist() == [1.0] * 300
    assert len(calls) == 3

  @pytest.mark.slow
  @pytest.mark.parametrize('name, rate', [('rdp', 1.0), ('pld', 1.0), ('pld', 0.2)])
  def test_too_many_are_rounded_up_but_for_the_largest(self, name, rate, monkeypatch):
    monkeypatch.setattr(theorems, '_MOST_HISTORIES', 12)
    noise = np.random.default_rng(2).uniform(10, 30, 300)
    drawn = [history.History.gaussian(z, 10, rate) for z in noise]
    accountant, calls = accountants.get(name), []
    epsilon = type(accountant)._epsilon
    monkeypatch.setattr(type(accountant), '_epsilon', lambda *args: calls.append(args) or epsilon(*args))
    found = accountant.epsilons(drawn, 1e-5)
    assert len(calls) <= 12
    assert found.max() == pytest.approx(accountant.epsilon(drawn[int(np.argmin(noise))], 1e-5), rel=1e-9)
    for i in range(0, 300, 100):
      exact = accountant.epsilon(drawn[i], 1e-5)
      assert exact * (1 - 1e-9) <= found[i] <= 1.2 * exact

  def test_histories_that_no_rounding_makes_alike(self, monkeypatch):
    monkeypatch.setattr(theorems.Rdp, '_epsilon', lambda self, h, delta: float(h.count))
    drawn = [history.History.gaussian(0.02, n, 0.1) for n in range(1, 80)]
    assert accountants.get('rdp').epsilons(drawn, 1e-5).tolist() == list(range(1, 80))

  @pytest.mark.parametrize('name', accountants.ACCOUNTANTS)
  def test_many_at_once_are_as_one_by_one(self, name):
    many = [history.History.gaussian(z, n) for z, n in [(20.0, 100), (10.0, 30), (20.0, 100), (50.0, 1)]]
    many.append(history.History(()))
    found = accountants.get(name).epsilons(many, 1e-5)
    single = np.array([_epsilon(name, h, 1e-5) for h in many])
    assert np.all(found >= single * (1 - 1e-12))
    assert np.allclose(found, single, rtol=1e-12, atol=0)


class TestAccountants:
  @pytest.mark.parametrize('name', ['gaussian_exact', 'pld'])
  def test_published_value_of_three_gaussians(self, name):
    # dp-accounting, pld_privacy_accountant_test.test_gaussian_basic.
    h = history.History.gaussian(math.sqrt(3), 3)
    assert _epsilon(name, h, 0.126936) == pytest.approx(1, abs=1e-4)
    assert accountants.delta_of(h, 1.0, name) == pytest.approx(0.126936, abs=1e-5)

  @pytest.mark.slow
  def test_published_value_of_three_sampled_gaussians(self):
    # test_poisson_subsampled_gaussian of the same.
    h = history.History.gaussian(0.5, 3, 0.2)
    assert _epsilon('pld', h, 0.15594) == pytest.approx(1, abs=1e-3)
    assert accountants.delta_of(h, 1.0, 'pld') == pytest.approx(0.15594, abs=1e-4)

  @pytest.mark.parametrize('name', ['zcdp', 'rdp'])
  def test_published_value_of_conversion(self, name):
    # dp-accounting, rdp_privacy_accountant_test.test_compute_epsilon_delta_gaussian.
    assert _epsilon(name, history.History.gaussian(4.530877117, 1), 1e-6) == pytest.approx(1, abs=1e-4)

  def test_moments_accountant_of_deep_learning(self):
    # Abadi et al. 2016, section 3.2: q = 0.01, σ = 4, 10,000 steps, δ = 1e-5: ε = 1.26. Conversions are tighter now.
    h = history.History.gaussian(4.0, 10_000, 0.01)
    assert 0.8 < _epsilon('pld', h, 1e-5) < _epsilon('rdp', h, 1e-5) < 1.26

  def test_the_documents_noise(self):
    assert _epsilon('gaussian_exact', history.History.gaussian(127.0, 200), 1e-5) == pytest.approx(0.38, abs=0.005)
    assert _epsilon('gaussian_exact', history.History.gaussian(10.8, 200), 1e-5) == pytest.approx(6, abs=0.005)

  @pytest.mark.slow
  @pytest.mark.parametrize('z, rounds', [(127.0, 200), (10.8, 200), (1.0, 1), (0.3, 1), (50.0, 10_000), (4000.0, 3)])
  @pytest.mark.parametrize('delta', [0.01, 1e-5, 1e-9])
  def test_bounds_lie_above_the_exact_figure_in_their_order(self, z, rounds, delta):
    h = history.History.gaussian(z, rounds)
    found = {name: _epsilon(name, h, delta) for name in accountants.ACCOUNTANTS}
    exact = found['gaussian_exact']
    # The margin of PLD is 1e-12 in δ: a thousandth at 1e-9.
    assert exact <= found['pld'] <= exact * (1 + 1e-3) + 1e-9
    assert exact <= found['zcdp'] <= found['rdp'] * (1 + 1e-9) + 1e-300
    assert found['rdp'] <= found['zcdp'] * 1.01 + 1e-9
    assert exact <= found['advanced'] <= found['basic']

  def test_every_accountant_over_changing_noise(self):
    h = history.History.of([(history.GaussianMechanism(z), 2) for z in np.linspace(20, 60, 30)])
    exact = tradeoff.epsilon_of(math.sqrt(sum(2 / z**2 for z in np.linspace(20, 60, 30))), 1e-5)
    found = {name: _epsilon(name, h, 1e-5) for name in accountants.ACCOUNTANTS}
    assert found['gaussian_exact'] == pytest.approx(exact, rel=1e-11)
    assert found['pld'] == pytest.approx(exact, rel=1e-4)
    assert exact < found['zcdp'] <= found['rdp'] < 1.2 * exact < found['advanced'] < found['basic']

  def test_zcdp_is_its_conversion(self):
    for z, rounds, delta in [(10.8, 200, 1e-5), (127.0, 200, 1e-5), (0.5, 3, 1e-12)]:
      rho, epsilon = rounds / z**2 / 2, _epsilon('zcdp', history.History.gaussian(z, rounds), delta)
      alpha = 1 + np.exp(np.linspace(-8, 8, 200_001))
      log_deltas = (alpha - 1) * (alpha * rho - epsilon) - np.log(alpha - 1) + alpha * np.log1p(-1 / alpha)
      assert log_deltas.min() == pytest.approx(math.log(delta), abs=1e-6)
      assert epsilon < rho + 2 * math.sqrt(rho * math.log(1 / delta))

  def test_basic_is_the_sum_of_the_rounds(self):
    zs, delta = np.linspace(20, 60, 30), 1e-5
    h = history.History.of([(history.GaussianMechanism(z), 2) for z in zs])
    found = _epsilon('basic', h, delta)
    for z in (zs[0], zs[-1]):
      one = _epsilon('gaussian_exact', history.History.gaussian(z, 1), delta / 60)
      one = tf.constant(one, tf.float64)
      assert float(gaussian.noise_multiplier('analytic', one, delta / 60)) == pytest.approx(z, rel=1e-9)
    assert found == pytest.approx(
      sum(2 * _epsilon('gaussian_exact', history.History.gaussian(z, 1), delta / 60) for z in zs), rel=1e-10
    )
    assert found < sum(2 * math.sqrt(2 * math.log(1.25 * 60 / delta)) / z for z in zs)

  def test_advanced_by_hand(self):
    z, rounds, delta = 500.0, 2000, 1e-5
    one = _epsilon('gaussian_exact', history.History.gaussian(z, 1), delta / 2 / rounds)
    mean = rounds * one * (math.exp(one) - 1) / (math.exp(one) + 1)
    with_slack = mean + one * math.sqrt(2 * rounds * math.log(2 / delta))
    better = mean + one * math.sqrt(2 * rounds * math.log(math.e + math.sqrt(rounds) * one / (delta / 2)))
    found = _epsilon('advanced', history.History.gaussian(z, rounds), delta)
    assert found == pytest.approx(min(with_slack, better), rel=1e-9)
    assert found < 0.2 * _epsilon('basic', history.History.gaussian(z, rounds), delta)

  @pytest.mark.parametrize('name', accountants.ACCOUNTANTS)
  def test_nothing_spends_nothing_and_no_noise_everything(self, name):
    assert _epsilon(name, history.History(()), 1e-5) == 0
    unnoised = (history.GaussianMechanism(0.0), 1)
    assert _epsilon(name, history.History.of([(history.GaussianMechanism(5.0), 9), unnoised]), 1e-5) == math.inf
    if accountants.get(name).supports_sampling:
      sampled = (history.GaussianMechanism(0.0, 0.1), 1)
      assert _epsilon(name, history.History.of([sampled]), 1e-5) == math.inf

  @pytest.mark.slow
  @_settings
  @hypothesis.given(
    strategies.sampled_from(sorted(set(accountants.ACCOUNTANTS) - {'pld'})),
    strategies.floats(0.05, 1e5),
    strategies.integers(1, 10_000),
    strategies.floats(1e-12, 0.5),
  )
  def test_monotone_in_noise_rounds_and_delta(self, name, z, rounds, delta):
    at = lambda z, rounds, delta: _epsilon(name, history.History.gaussian(z, rounds), delta)
    here = at(z, rounds, delta)
    slack = 1 + 1e-9
    assert at(1.3 * z, rounds, delta) <= here * slack and here <= at(z, 2 * rounds, delta) * slack
    assert at(z, rounds, min(0.9, 2 * delta)) <= here * slack

  @pytest.mark.parametrize('delta', [0.0, 1.0, -0.1, math.nan, '1e-5'])
  def test_bad_delta(self, delta):
    with pytest.raises(ValueError, match='delta must be a finite number greater than 0 and less than 1'):
      accountants.account(history.History.gaussian(1.0, 1), delta)

  def test_unknown_name(self):
    with pytest.raises(ValueError, match="Did you mean 'zcdp'"):
      accountants.get('zcpd')


@pytest.mark.slow
class TestSampling:
  def test_amplifies_and_less_so_at_higher_rates(self):
    without = _epsilon('gaussian_exact', history.History.gaussian(5.0, 100), 1e-5)
    for name in ('rdp', 'pld'):
      found = [_epsilon(name, history.History.gaussian(5.0, 100, q), 1e-5) for q in (0.01, 0.1, 0.5)]
      assert found == sorted(found) and found[0] < 0.2 * without and found[-1] < without
    assert history.History.gaussian(5.0, 100, 1.0) == history.History.gaussian(5.0, 100)
    nearly = _epsilon('pld', history.History.gaussian(5.0, 100, 1 - 1e-6), 1e-5)
    assert nearly == pytest.approx(without, rel=1e-3)

  @pytest.mark.parametrize('z, q', [(1.0, 0.1), (5.0, 0.5), pytest.param(0.5, 0.01, marks=pytest.mark.thorough)])
  def test_one_round_in_closed_form(self, z, q):
    # Removing the client: H(e^ε; (1-q)P + qQ, P) = q·H(1 + (e^ε - 1)/q; Q, P). Adding it is less (Zhu et al. 2022).
    epsilon = _epsilon('pld', history.History.gaussian(z, 1, q), 1e-5)
    shifted = math.log1p(math.expm1(epsilon) / q)
    assert q * math.exp(tradeoff.log_delta(shifted, 1 / z)) == pytest.approx(1e-5, rel=2e-3)

  @pytest.mark.parametrize('z, q, rounds', [(1.0, 0.01, 1000), (10.8, 0.3, 200), (10.0, 1e-4, 1000), (0.6, 0.05, 20)])
  def test_distributions_are_below_renyi_and_not_by_much(self, z, q, rounds):
    h = history.History.gaussian(z, rounds, q)
    tight, loose = _epsilon('pld', h, 1e-5), _epsilon('rdp', h, 1e-5)
    assert loose / 10 < tight < loose

  def test_who_cannot_count_it_says_so(self):
    found = accountants.account(history.History.gaussian(2.0, 10, 0.1), 1e-5)
    assert [name for name, f in found.items() if isinstance(f, accountants.Figure)] == ['rdp', 'pld']
    assert found['zcdp'].reason == 'cannot count amplification by sampling'
    with pytest.raises(accountants.NotApplicableError):
      accountants.get('gaussian_exact').epsilons([history.History.gaussian(2.0, 10, 0.1)], 1e-5)

  def test_sampled_and_other_rounds_together(self):
    sampled, plain = (history.GaussianMechanism(2.0, 0.1), 20), (history.GaussianMechanism(5.0), 3)
    for name in ('rdp', 'pld'):
      both, either = (
        _epsilon(name, history.History.of([sampled, plain]), 1e-5),
        [_epsilon(name, history.History.of([one]), 1e-5) for one in (sampled, plain)],
      )
      assert max(either) < both < sum(either) * 1.01

  def test_drawn_privacy_losses(self):
    """δ is the mean of (1 - e^(ε-L))⁺ over drawn losses L, to 4 standard errors; 2/3 and 3/2 of the noise miss it."""
    z, q, rounds, n = 1.0, 0.3, 3, 400_000
    epsilon = 1.0
    rng = np.random.default_rng(20251121)
    drawn = rng.random((n, rounds)) < q
    noise = rng.normal(size=(n, rounds))
    log_ratio = lambda sums: np.log1p(q * np.expm1((sums - 0.5) / z**2)).sum(1)
    removed = log_ratio(drawn + z * noise)  # The client is among those drawn from.
    added = -log_ratio(z * noise)
    gains = [np.maximum(0, -np.expm1(epsilon - losses)) for losses in (removed, added)]
    means = [g.mean() for g in gains]
    worst = gains[int(np.argmax(means))]
    estimate, error = worst.mean(), worst.std() / math.sqrt(n)
    assert error < 0.01 * estimate
    at = lambda factor, delta, name='pld': _epsilon(name, history.History.gaussian(factor * z, rounds, q), delta)
    assert at(1, estimate + 4 * error) < epsilon < at(1, estimate - 4 * error)
    assert at(2 / 3, estimate + 4 * error) > epsilon > at(3 / 2, estimate - 4 * error)
    # Only a bound, but one of the right size.
    assert epsilon < at(1, estimate, 'rdp') < 2 * epsilon


@pytest.mark.slow
class TestGridOfDistributions:
  """The step follows from the largest loss, and bounds that cost less spare its divergences without changing it."""

  # By the loss without sampling, by divergences at orders that are integers, and by those at all orders.
  @pytest.mark.parametrize('z, q, rounds', [(2.0, 0.3, 20), (0.7, 0.01, 1000), (0.5, 0.9, 3000)])
  def test_the_step_is_that_of_the_largest_loss(self, z, q, rounds):
    of = history.History.gaussian(z, rounds, q)
    loss = max(_epsilon('rdp', of, 1e-15), (1 / z) * (1 / z / 2 + 10))
    fine_enough = min(1e-3, min(1, 1 / z) * q / 50)
    assert theorems._discretization(of) == max(fine_enough, loss / 2e5)

  def test_few_losses_need_no_divergences(self, monkeypatch):
    monkeypatch.delattr(theorems, '_rdp_of')
    assert _epsilon('pld', history.History.gaussian(3.0, 15, 0.25), 1e-5) > 0


@pytest.mark.slow
class TestWhereDistributionsEnd:
  def test_refusals_have_reasons(self):
    found = accountants.account(history.History.gaussian(1.0, 1), 1e-11, ['pld'])['pld']
    assert 'δ = 1e-11' in found.reason
    found = accountants.account(history.History.gaussian(1e-4, 1), 1e-5, ['pld'])['pld']
    assert 'grid' in found.reason

  @pytest.mark.parametrize(
    'z, rounds, q',
    [
      *((0.02, 1, 1.0), (1e9, 1, 1.0), (1.0, 100_000, 1.0), (0.1, 10, 0.5), (100.0, 100_000, 1e-6)),
      pytest.param(0.3, 200, 1e-3, marks=pytest.mark.thorough),
    ],
  )
  def test_extremes_are_computed_or_refused_never_too_small(self, z, rounds, q):
    h = history.History.gaussian(z, rounds, q)
    found = accountants.account(h, 1e-5)
    if not isinstance(found['pld'], accountants.Figure):
      return
    if q == 1:
      assert found['gaussian_exact'].epsilon <= found['pld'].epsilon <= found['gaussian_exact'].epsilon * 1.05 + 1e-6
    else:
      assert found['pld'].epsilon <= found['rdp'].epsilon * 1.001


class TestFigures:
  @pytest.mark.slow
  def test_says_what_it_stands_for(self):
    plain = accountants.account(history.History.gaussian(10.8, 200), 1e-5)['gaussian_exact']
    assert str(plain).startswith('ε = 6 at δ = 1e-05 (gaussian_exact: ')
    for words in ('one client with all of its data', 'zero-out', 'no amplification by sampling'):
      assert words in str(plain)
    sampled = accountants.account(history.History.gaussian(10.8, 200, 0.3), 1e-5)['rdp']
    for words in ('add or remove one client', 'Poisson sampling, q = 0.3', 'stays secret'):
      assert words in str(sampled) and words not in str(plain)

  def test_named_ones_only(self):
    assert list(accountants.account(history.History.gaussian(1.0, 1), 1e-5, ['zcdp', 'basic'])) == ['zcdp', 'basic']

  def test_is_rounded_up(self):
    assert str(accountants.Figure('pld', 0.22521, 1e-5, 'm', 'a', 'n')).startswith('ε = 0.2253 at')


class TestSolve:
  @pytest.mark.slow
  @pytest.mark.parametrize('name', accountants.ACCOUNTANTS)
  @pytest.mark.parametrize(
    'epsilon, delta, rounds',
    [
      (6.0, 1e-5, 200),
      pytest.param(0.1, 1e-3, 7, marks=pytest.mark.thorough),
      pytest.param(50.0, 1e-8, 1, marks=pytest.mark.thorough),
    ],
  )
  def test_noise_is_enough_and_hardly_more(self, name, epsilon, delta, rounds):
    solution = accountants.solve(epsilon=epsilon, delta=delta, rounds=rounds, accountant=name)
    z = solution.noise_multiplier
    assert _epsilon(name, history.History.gaussian(z, rounds), delta) <= epsilon
    tolerance = 1e-5 if name == 'pld' else 1e-8
    assert _epsilon(name, history.History.gaussian(z * (1 - tolerance), rounds), delta) > epsilon
    assert solution[1:4] == (epsilon, delta, name)

  def test_noise_of_the_documents(self):
    assert accountants.solve(epsilon=6.0, delta=1e-5, rounds=200).noise_multiplier == pytest.approx(10.8, abs=0.005)

  @pytest.mark.slow
  @pytest.mark.parametrize('name', ['rdp', 'pld'])
  def test_noise_with_sampling(self, name):
    solution = accountants.solve(epsilon=1.0, delta=1e-6, rounds=100, sampling_rate=0.05, accountant=name)
    at = lambda factor: _epsilon(name, history.History.gaussian(solution.noise_multiplier * factor, 100, 0.05), 1e-6)
    assert at(1) <= 1.0 < at(1 - 1e-3)

  @pytest.mark.parametrize('name', accountants.ACCOUNTANTS)
  def test_delta_is_enough_and_hardly_more(self, name):
    # Basic composition proves no ε below 23 here, however large δ.
    epsilon = 60.0 if name in ('basic', 'advanced') else 6.0
    solution = accountants.solve(epsilon=epsilon, noise_multiplier=10.8, rounds=200, accountant=name)
    h = history.History.gaussian(10.8, 200)
    assert _epsilon(name, h, solution.delta) <= epsilon < _epsilon(name, h, solution.delta * 0.999)

  @pytest.mark.thorough
  @pytest.mark.slow
  @hypothesis.settings(_settings, max_examples=20)
  @hypothesis.given(strategies.floats(-6, 6), strategies.floats(-290, -0.05), strategies.integers(1, 10_000))
  @hypothesis.example(-5.0, -0.25, 6)
  def test_wide_ranges(self, log_epsilon, log_delta, rounds):
    epsilon, delta = 10.0**log_epsilon, 10.0**log_delta
    solution = accountants.solve(epsilon=epsilon, delta=delta, rounds=rounds)
    found = _epsilon('gaussian_exact', solution.history, delta)
    assert found <= epsilon and found == pytest.approx(epsilon, rel=1e-6, abs=1e-9)
    back = accountants.solve(epsilon=epsilon, noise_multiplier=solution.noise_multiplier, rounds=rounds)
    assert math.log(back.delta) == pytest.approx(math.log(delta), rel=1e-5, abs=1e-4)

  def test_a_common_factor_for_a_schedule(self):
    h = history.History.of([(history.GaussianMechanism(z), 1) for z in (10.0, 20.0, 40.0)])
    factor = accountants.noise_factor(h, 1.0, 1e-5, 'gaussian_exact')
    assert h.scaled(factor).total_mu == pytest.approx(h.total_mu / factor)
    assert _epsilon('gaussian_exact', h.scaled(factor), 1e-5) == pytest.approx(1.0, rel=1e-8)

  @pytest.mark.slow
  def test_default_accountants(self):
    assert accountants.solve(epsilon=1.0, delta=1e-5).accountant == 'gaussian_exact'
    sampled = dict(noise_multiplier=2.0, sampling_rate=0.1)
    assert accountants.solve(delta=1e-5, **sampled).accountant == 'pld'
    assert accountants.solve(delta=1e-12, **sampled).accountant == 'rdp'

  @pytest.mark.parametrize(
    'given, words',
    [
      (dict(epsilon=1.0), 'must be given, and the third is solved for; found epsilon'),
      (dict(epsilon=1.0, delta=0.1, noise_multiplier=1.0), 'found epsilon, delta, noise_multiplier'),
      (dict(), 'found none of them'),
      (dict(epsilon=-1.0, delta=0.1), 'epsilon must be'),
      (dict(epsilon=math.nan, delta=0.1), 'epsilon must be'),
      (dict(epsilon=1.0, delta=1.0), 'delta must be'),
      (dict(epsilon=1.0, noise_multiplier=0.0), 'noise_multiplier must be'),
      (dict(epsilon=1.0, noise_multiplier=math.inf), 'noise_multiplier must be'),
      (dict(epsilon=1.0, delta=0.1, rounds=0), 'rounds must be'),
      (dict(epsilon=1.0, delta=0.1, sampling_rate=0.0), 'sampling_rate must be'),
      (dict(epsilon=1.0, delta=0.1, accountant='exact'), 'Unknown accountant'),
      (dict(epsilon=1.0, delta=0.1, accountant='zcdp', sampling_rate=0.5), 'zcdp has no figure for this: cannot'),
      (dict(epsilon=1.0, delta=1e-12, accountant='pld'), 'pld has no figure for this: rounding'),
      (dict(epsilon=1.0, noise_multiplier=1e-5), 'no delta below 1'),
      (dict(epsilon=0.0, delta=1e-15), 'out of reach'),
    ],
  )
  def test_impossible(self, given, words):
    with pytest.raises(ValueError, match=words):
      accountants.solve(**given)

  def test_no_factor_makes_noise_of_none(self):
    with pytest.raises(ValueError, match='without noise'):
      accountants.noise_factor(history.History.gaussian(0.0, 1), 1.0, 1e-5, 'zcdp')
