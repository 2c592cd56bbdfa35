"""NaN, infinite, subnormal or empty inputs give no small ε: they are errors, or they cost at least as much."""

import dataclasses
from fractions import Fraction
import functools
import math

import dp_accounting
from hypothesis import example
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import numpy as np
import pytest

from experiments.systems import lee_kifer
from quap_tff import accounting
from quap_tff import plans
from quap_tff.accounting import formal
from quap_tff.accounting import history as histories
from quap_tff.accounting import protection as protections
from quap_tff.accounting import theorems
from quap_tff.certificates import certificate
from quap_tff.certificates.folders import about as abouts
from quap_tff.common.lazy import tf
from quap_tff.common.numbers import samplers
from quap_tff.common.numbers import tradeoff
from quap_tff.mechanisms.certified import privacy_filter
from quap_tff.mechanisms.noise import correlation as correlations
from quap_tff.mechanisms.noise import recursions
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.parts import layers
from tests.quap_tff import examples

_DELTA = 1e-5
_MODEL = layers.ModelShape((layers.Layer('w', (0,), False),), ((70,),))
_STRANGE = [math.nan, math.inf, -math.inf, -1.0, 0.0, -0.0, 5e-324, 1e-310, 1e-200, 1e200, 1.7e308]
_numbers = st.one_of(st.sampled_from(_STRANGE), st.floats(1e-3, 1e3))
_property = settings(max_examples=150)


@dataclasses.dataclass(frozen=True)
class _Broken(recursions.Exponentials):
  """A correlation whose price is NaN, as that of a tiny decay once was."""

  terms = ((0.5, 0.5),)

  def price(self, releases_left):
    return math.nan, [math.nan]


def _ledger(correlation=correlations.Independent(), noise=2.0, count=math.inf):
  ledger = accounting.RunLedger(3, _DELTA, 'a run', correlation)
  ledger.append(accounting.RoundRecord([0, 1], [1.0, 1.0], [1.0, 0.5], noise, count, 1.0))
  return ledger


_certified = functools.partial(examples.certified, num_clients=3)


def _refusals(ledger):
  plan = plans.Plan.certified(_certified(), [[0, 1, 2]] * 4, model=_MODEL)
  return certificate.refusals(plan, ledger, abouts.About('x', 'x', 'x', 'x'))


class TestTradeoff:
  @given(mu=_numbers, delta=_numbers)
  @_property
  @pytest.mark.filterwarnings('ignore::RuntimeWarning')
  def test_epsilon_of(self, mu, delta):
    if not (mu >= 0 and 0 < delta < 1):
      with pytest.raises(ValueError, match='must be a number'):
        tradeoff.epsilon_of(mu, delta)
      return
    epsilon = float(tradeoff.epsilon_of(mu, delta))
    assert epsilon >= 0
    # δ(0) = Φ(μ/2) - Φ(-μ/2), and ε ≈ μ²/2 for large μ.
    assert epsilon > 0 or math.erf(mu / math.sqrt(8)) <= delta * (1 + 1e-9)
    if mu > 1e3:
      assert epsilon > mu**2 / 2 + mu * -math.sqrt(-2 * math.log1p(-delta)) * 10 if mu < 1e150 else epsilon > 1e298

  @pytest.mark.parametrize('delta', [0.5, _DELTA, 1e-300])
  @pytest.mark.parametrize('mu', [1e8, 1e10, 1e50, 1e150])
  def test_a_huge_mu_is_not_understated(self, mu, delta):
    # ε is at least μ²/2 - μ·Φ⁻¹(δ), whose second part is not negative here; and at most zCDP's ε.
    epsilon = float(tradeoff.epsilon_of(mu, delta))
    assert mu / 2 * mu <= epsilon <= mu * (mu / 2 + math.sqrt(-2 * math.log(delta))) * (1 + 1e-11)

  @given(epsilon=_numbers, mu=_numbers)
  @_property
  @pytest.mark.filterwarnings('ignore::RuntimeWarning')
  def test_log_delta(self, epsilon, mu):
    if not (mu >= 0 and 0 <= epsilon < math.inf):
      with pytest.raises(ValueError, match='must be a number'):
        tradeoff.log_delta(epsilon, mu)
    else:
      found = float(tradeoff.log_delta(epsilon, mu))
      assert found <= 0 and (found > -math.inf or mu < max(epsilon, 1) / 1e150)

  @pytest.mark.parametrize('epsilon', [math.nan, math.inf, 0.0, -1.0])
  def test_mu_at_most(self, epsilon):
    with pytest.raises(ValueError, match='epsilon must be'):
      tradeoff.mu_at_most(epsilon, _DELTA)

  def test_one_bad_value_of_many(self):
    with pytest.raises(ValueError, match='mu must be a number at least 0, found nan'):
      tradeoff.epsilon_of(np.where(np.arange(20_000) == 7, math.nan, 1.0), _DELTA)


class TestHistories:
  @pytest.mark.slow
  @given(z=st.sampled_from([0.0, 5e-324, 1e-310, 1e-200, 1e-20, 1e-3, 1.0]), rounds=st.integers(1, 50))
  @settings(_property, max_examples=40)
  @pytest.mark.filterwarnings('ignore::RuntimeWarning')
  def test_little_noise_costs_much_by_every_accountant(self, z, rounds):
    history = accounting.History.gaussian(z, rounds)
    exact = accounting.account(history, _DELTA, ['gaussian_exact'])['gaussian_exact'].epsilon
    assert exact > 4 and (exact == math.inf or z > 1e-160)
    for name in accounting.ACCOUNTANTS:
      try:
        found = accounting.account(history, _DELTA, [name])[name]
      except (ArithmeticError, ValueError):
        continue
      if isinstance(found, accounting.Figure):
        assert found.epsilon >= exact * (1 - 1e-11), name

  def test_a_figure_is_a_number(self):
    with pytest.raises(ValueError, match='not a bound'):
      accounting.Figure('gaussian_exact', math.nan, _DELTA, '', '', '')
    with pytest.raises(ValueError, match='not a bound'):
      accounting.FormalFigure('gaussian_exact', '', '', 1.0, math.nan, 1.0)

  def test_an_accountant_that_fails_gives_no_figure(self, monkeypatch):
    class Failing(theorems.Accountant):
      method = 'none'

      def _epsilon(self, history, delta):
        return math.nan

    with pytest.raises(ValueError, match='not a bound'):
      Failing().epsilon(accounting.History.gaussian(1.0, 1), _DELTA)

  @pytest.mark.slow
  def test_a_divergence_that_is_no_number_bounds_nothing(self, monkeypatch):
    # The library takes the maximum of 0 and the ε that follows from it.
    monkeypatch.setattr(
      dp_accounting.rdp.RdpAccountant, 'rdp', property(lambda self: np.full(len(self.orders), math.nan))
    )
    theorems._rdp_of.cache_clear()  # pylint: disable=protected-access
    history = accounting.History.gaussian(1.0, 1, 0.5)
    assert theorems.Rdp()._epsilon(history, _DELTA) == math.inf  # pylint: disable=protected-access
    ledger = accounting.RunLedger(3, _DELTA, 'a run')
    ledger.append(accounting.RoundRecord([0], [1.0], [1.0], 2.0, math.inf, 1.0))
    found = formal.fixed_size_epsilon(ledger, samplers.CohortSampler('fixed_size', cohort_size=1), _DELTA)
    assert found == pytest.approx(float(tradeoff.epsilon_of(1.0, _DELTA)))
    theorems._rdp_of.cache_clear()  # pylint: disable=protected-access

  def test_rounding_up_keeps_nan(self):
    assert np.isnan(histories.rounded_up(np.array([math.nan, 1.0]), 0.1)[0])

  @pytest.mark.parametrize('rate', [math.nan, -0.1, 1.1])
  def test_rates_are_numbers(self, rate):
    with pytest.raises(ValueError, match='rates'):
      samplers.CohortSampler('bernoulli', rates=np.array([0.5, rate]))


class TestLedger:
  @pytest.mark.slow
  @given(weight=_numbers, noise=_numbers, count=_numbers, budget=_numbers, clip=_numbers)
  @example(weight=1.0, noise=0.0, count=math.inf, budget=1.0, clip=1.0)
  @example(weight=1.0, noise=2.0, count=0.0, budget=1.0, clip=1.0)
  @example(weight=1.0, noise=1e200, count=math.inf, budget=math.inf, clip=0.0)
  @_property
  @pytest.mark.filterwarnings('ignore::RuntimeWarning')
  def test_what_it_takes_is_never_understated(self, weight, noise, count, budget, clip):
    ledger = accounting.RunLedger(3, _DELTA, 'a run')
    record = accounting.RoundRecord([0, 1], [budget, 1.0], [weight, 1.0], noise, count, clip)
    try:
      ledger.append(record)
    except ValueError:
      assert ledger.num_rounds == 0
      return
    assert not any(math.isnan(value) for value in (weight, noise, count, budget, clip))
    mu = accounting.total_mu(ledger).whole
    assert mu[2] == 0 and not np.isnan(mu).any()
    inverse = lambda value: math.inf if value == 0 else 0 if value == math.inf else 1 / Fraction(value)
    for own, found in ((weight, mu[0]), (1.0, mu[1])):
      exact = 0 if own == 0 else [Fraction(own) * inverse(noise) if noise else math.inf, inverse(count)]
      if exact and math.inf not in exact:
        assert found == math.inf or Fraction(float(found)) + Fraction(1e-300) >= max(exact)
      elif exact:
        assert found == math.inf
    epsilon = accounting.epsilon_by_client(ledger, _DELTA)
    assert (epsilon >= 0).all() and (epsilon[mu == np.inf] == np.inf).all()

  def test_an_account_that_is_no_number_is_an_error_everywhere(self, monkeypatch):
    monkeypatch.setitem(correlations.FAMILIES, 'broken', _Broken)
    ledger = _ledger(_Broken())
    protection = protections.Protection(protections.RELEASED_MODEL, 'all', 'all')
    for use in (
      accounting.total_mu,
      accounting.histories,
      lambda one: accounting.epsilon_by_client(one, _DELTA),
      lambda one: accounting.formal_report(one, _DELTA, protection),
      lambda one: accounting.exact_scale(one, 1.0, _DELTA),
      _refusals,
    ):
      with pytest.raises(ValueError, match='account of client 0 is not a number'):
        use(ledger)

  def test_a_certificate_is_refused_to_an_epsilon_that_is_no_number(self, monkeypatch):
    monkeypatch.setattr(tradeoff, 'epsilon_of', lambda mu, delta: np.full(np.shape(mu), math.nan))
    with pytest.raises(ValueError, match='found NaN'):
      _refusals(_ledger())

  @pytest.mark.parametrize(
    'epsilon, delta', [(math.nan, _DELTA), (math.inf, _DELTA), (1.0, math.nan), (1.0, 0.0), (-1.0, _DELTA)]
  )
  def test_solving(self, epsilon, delta):
    with pytest.raises(ValueError):
      accounting.exact_scale(_ledger(), epsilon, delta)
    with pytest.raises(ValueError):
      accounting.noise_factor(accounting.History.gaussian(1.0, 2), epsilon, delta, 'gaussian_exact')
    with pytest.raises(ValueError):
      accounting.solve(epsilon=epsilon, delta=delta)

  def test_lee_and_kifer_with_a_release_without_noise(self):
    plan = plans.Plan(lee_kifer.LineSearchConfig(num_clients=3, epsilon=2.0, delta=_DELTA, planned_rounds=4))
    state = type('State', (), dict(weights=np.float32([1, 0, 0])))
    measured = dict(noise_multiplier=0.0, clipping_norm=1.0, cohort_size=2)
    record = plan.recorded(state, measured, [0, 1])
    assert record.budgets[0] == math.inf and record.budgets[1] < 1e-300


class TestFilter:
  @pytest.mark.slow
  @given(
    limit=_numbers,
    noise=_numbers,
    cost=_numbers,
    spent=_numbers,
    before=_numbers,
    proposed=_numbers,
    left=st.sampled_from([-1.0, 0.0, 5.0, math.inf, math.nan]),
    as_tensors=st.booleans(),
    correlation=st.sampled_from([correlations.Independent(), correlations.Ar1(0.5), _Broken()]),
  )
  @settings(_property, max_examples=400)
  @pytest.mark.filterwarnings('ignore::RuntimeWarning')
  def test_nobody_adds_anything_that_is_not_within_the_limit(
    self, limit, noise, cost, spent, before, proposed, left, as_tensors, correlation
  ):
    if noise < 0 or cost < 0 or before < 0 or spent < 0:
      return  # What is squared, or adds up what is not negative.
    prices = privacy_filter.Prices(limit, noise, cost, correlation)
    make = lambda values, dtype=np.float64: (tf.constant if as_tensors else np.array)(values, dtype)
    accounts = privacy_filter.Accounts(
      make([spent, 0.0]), [make([before, 0.0])] * correlation.num_buffers, make([0, 0], np.int64)
    )
    weights, after = privacy_filter.spend(prices, accounts, np.int64(1), left, make([proposed, 1.0]))
    for weight, own, begun in zip(np.asarray(weights), np.asarray(after.spent), (spent, 0.0)):
      if weight == 0:
        assert own == begun or math.isnan(begun)
      else:
        assert 0 < weight <= 1 and own <= limit * (1 + 1e-10)
        exact = (Fraction(float(weight)) / Fraction(noise)) ** 2 if 0 < noise < math.inf else None
        assert (
          exact is None or limit == math.inf or exact <= Fraction(limit) * (1 + Fraction(1, 10**9)) - Fraction(begun)
        )

  @pytest.mark.parametrize('wrong', [math.inf, 1.0])
  def test_a_weight_that_is_not_affordable_is_not_paid_for(self, wrong, monkeypatch):
    # Minima and maxima of NaN differ between libraries and processors. The account does not rest on them.
    monkeypatch.setattr(privacy_filter, 'weight_for', lambda room, unit, cross: np.full(np.shape(room), wrong))
    accounts = privacy_filter.Accounts(np.array([0.0, 0.9, math.nan]), [], np.zeros(3, np.int64))
    weights, after = privacy_filter.spend(privacy_filter.Prices(1.0, 2.0, 0.0), accounts, np.int64(1), 5.0, np.ones(3))
    assert weights.tolist() == [1.0, 0.0, 0.0] and after.spent[:2].tolist() == pytest.approx([0.25, 0.9])

  @pytest.mark.parametrize('stddev', [1e-200, 5e-324])
  def test_counts_with_next_to_no_noise(self, stddev):
    rule = clip_rules.PrivateQuantile(count_stddev=stddev)
    with pytest.raises(ValueError, match='must be in the range of noise in integers, 1/16 to 2\\^29'):
      _certified(clip=rule)

  def test_planning_under_a_correlation_without_a_price(self):
    with pytest.raises(ValueError):
      _certified(correlation=_Broken()).settled([[0, 1], [1, 2]])

  @pytest.mark.parametrize('most, apart, releases', [(0, 1, 5), (1, 0, 5), (1, 1, 0), (-1, 1, 5)])
  def test_a_worst_case_of_nobody(self, most, apart, releases):
    with pytest.raises(ValueError, match='must be an integer at least 1'):
      correlations.Ar1(0.5).worst_case(most, apart, releases)

  @pytest.mark.parametrize('cohorts', [[], [[]], [[], []]])
  def test_an_empty_plan(self, cohorts):
    with pytest.raises(ValueError, match='Nobody takes part'):
      _certified().settled(cohorts)
