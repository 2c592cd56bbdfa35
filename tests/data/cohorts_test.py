import math

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

from data import cohorts
from data import rng as rng_lib

SETTINGS = hypothesis.settings(derandomize=True, deadline=None, max_examples=50)
FIXED_SIZE = ['uniform', 'beta', 'hybrid', 'hybrid:normalize=true', 'hybrid_reference']
RANDOM_SIZE = ['bernoulli', 'beta_bernoulli', 'extreme_imbalance', 'markov', 'full', 'energy']
EVERY = FIXED_SIZE + RANDOM_SIZE


def frequencies(model, rounds):
  counts = np.zeros(model.population.num_clients)
  for t in rounds:
    counts[model.cohort(t)] += 1
  return counts / len(rounds)


def rejected(found, expected, trials):
  """Whether a mean of `trials` coins of rate `expected` would differ so much less than once in 10^6 times."""
  return abs(found - expected) > 5 * math.sqrt(expected * (1 - expected) / trials)


def test_every_model_is_tested():
  # Those that learn from dropout are in dropouts_test.
  learning = {name for name, choice in cohorts.PARTICIPATION_MODELS.items() if choice.learns_from_dropout}
  assert {spec.partition(':')[0] for spec in EVERY} == set(cohorts.PARTICIPATION_MODELS) - learning


@SETTINGS
@hypothesis.given(st.sampled_from(EVERY), st.integers(1, 60), st.data(), st.integers(0, 2**64), st.integers(1, 40))
def test_a_cohort_is_sorted_distinct_and_in_range(spec, num_clients, data, seed, round_num):
  cohort_size = data.draw(st.integers(1, num_clients))
  cohort = cohorts.make(spec, num_clients, cohort_size, seed).cohort(round_num)
  assert cohort.dtype == np.int64 and cohort.ndim == 1
  assert (np.diff(cohort) > 0).all()
  assert not len(cohort) or (cohort[0] >= 0 and cohort[-1] < num_clients)
  if spec in FIXED_SIZE:
    assert len(cohort) == cohort_size


@SETTINGS
@hypothesis.given(st.sampled_from(EVERY), st.lists(st.integers(1, 30), min_size=1, max_size=8), st.integers(0, 2**64))
def test_a_cohort_depends_on_seed_and_round_and_on_no_earlier_call(spec, rounds, seed):
  model = cohorts.make(spec, 20, 6, seed)
  for t in rounds:
    np.random.seed(t)
    fresh = cohorts.make(spec, 20, 6, seed)
    np.testing.assert_array_equal(model.cohort(t), fresh.cohort(t))


@pytest.mark.parametrize('spec', [s for s in EVERY if s != 'full'])
def test_rounds_and_seeds_give_different_cohorts(spec):
  draw = lambda seed, t: cohorts.make(spec, 200, 50, seed).cohort(t).tolist()
  assert draw(0, 1) != draw(0, 3)
  assert draw(0, 1) != draw(1, 1)


@pytest.mark.parametrize(
  'spec, sampling',
  [
    ('uniform', 'fixed_size'),
    ('bernoulli', 'bernoulli'),
    ('beta_bernoulli', 'bernoulli'),
    ('extreme_imbalance', 'bernoulli'),
    ('beta', 'none'),
    ('hybrid', 'none'),
    ('hybrid_reference', 'none'),
    ('markov', 'none'),
    ('full', 'none'),
    ('energy', 'none'),
  ],
)
def test_amplification_is_claimed_only_where_it_is_earned(spec, sampling):
  model = cohorts.make(spec, 50, 10, 0)
  assert model.sampling == sampling
  assert (model.inclusion_rates is not None) == (sampling == 'bernoulli')


def test_uniform_includes_everyone_equally_often():
  rounds = range(1, 4001)
  found = frequencies(cohorts.make('uniform', 10, 3, 1), rounds)
  for wrong in (0.2, 0.45):
    assert all(rejected(f, wrong, len(rounds)) for f in found)
  assert not any(rejected(f, 0.3, len(rounds)) for f in found)


def test_uniform_includes_every_pair_equally_often():
  # A fixed block of clients that rotates would pass the test of single clients.
  model = cohorts.make('uniform', 6, 2, 2)
  counts = np.zeros([6, 6])
  for t in range(1, 3001):
    i, j = model.cohort(t)
    counts[i, j] += 1
  pairs = counts[np.triu_indices(6, 1)] / 3000
  assert not any(rejected(p, 1 / 15, 3000) for p in pairs)


@pytest.mark.parametrize('spec', ['bernoulli:q=0.3', 'beta_bernoulli', 'extreme_imbalance'])
def test_bernoulli_clients_join_at_the_rates_that_the_model_states(spec):
  model = cohorts.make(spec, 40, None, 5)
  rounds = range(1, 4001)
  found = frequencies(model, rounds)
  assert not any(rejected(f, r, len(rounds)) for f, r in zip(found, model.inclusion_rates))
  moderate = (model.inclusion_rates > 0.05) & (model.inclusion_rates < 0.6)
  for factor in (2 / 3, 3 / 2):
    assert all(rejected(f, r * factor, len(rounds)) for f, r in zip(found[moderate], model.inclusion_rates[moderate]))


def test_bernoulli_clients_join_independently_of_each_other_and_of_the_last_round():
  model = cohorts.make('bernoulli:q=0.3', 2, None, 0)
  joined = np.array([np.isin([0, 1], model.cohort(t)) for t in range(1, 4001)])
  assert not rejected(np.mean(joined[:, 0] & joined[:, 1]), 0.09, len(joined))
  assert not rejected(np.mean(joined[1:, 0] & joined[:-1, 0]), 0.09, len(joined) - 1)


def test_bernoulli_cohorts_vary_and_may_be_empty():
  sizes = {len(cohorts.make('bernoulli:q=0.2', 5, None, 0).cohort(t)) for t in range(1, 200)}
  assert 0 in sizes and len(sizes) > 3
  assert len(cohorts.make('bernoulli:q=1', 5, None, 0).cohort(1)) == 5


def test_mean_cohort_sizes():
  assert cohorts.make('bernoulli:q=0.25', 200, None, 0).mean_cohort_size == pytest.approx(50)
  assert cohorts.make('extreme_imbalance', 100, None, 0).mean_cohort_size == pytest.approx(24)
  assert cohorts.make('uniform', 100, 30, 0).mean_cohort_size == 30
  assert cohorts.make('markov', 100, 30, 0).mean_cohort_size is None


def test_beta_rates_have_the_mean_and_deviation_of_the_distribution():
  rates = cohorts.make('beta_bernoulli:a=2,b=5', 20000, None, 0).inclusion_rates
  assert rates.mean() == pytest.approx(2 / 7, abs=0.005)
  assert rates.var() == pytest.approx(2 * 5 / (7**2 * 8), rel=0.05)


def test_extreme_imbalance_has_the_stated_number_of_frequent_clients_anywhere_among_the_ids():
  rates = cohorts.make('extreme_imbalance:frequent_fraction=0.2,frequent_rate=0.8,rare_rate=0.1', 100, None, 0)
  rates = rates.inclusion_rates
  assert (np.sum(rates == 0.8), np.sum(rates == 0.1)) == (20, 80)
  assert 5 < np.mean(np.flatnonzero(rates == 0.8)) - 20 < 55


def successive_sampling_rates(weights, size):
  """Exact inclusion rates of drawing one after the other without replacement, by going through all orders."""
  rates = np.zeros(len(weights))

  def draw(left, probability, taken):
    if len(taken) == size:
      rates[list(taken)] += probability
      return
    total = sum(weights[i] for i in left)
    for i in left:
      draw([j for j in left if j != i], probability * weights[i] / total, taken + (i,))

  draw(list(range(len(weights))), 1.0, ())
  return rates


def test_weighted_sampling_has_the_exact_inclusion_rates():
  weights = np.array([1.0, 2.0, 3.0, 6.0])
  trials = 6000
  rng = np.random.default_rng(0)
  counts = np.zeros(4)
  for _ in range(trials):
    counts[cohorts.weighted_without_replacement(rng, weights, 2)] += 1
  found = counts / trials
  expected = successive_sampling_rates(weights, 2)
  assert not any(rejected(f, e, trials) for f, e in zip(found, expected))
  # Rates in proportion to the weights, as another kind of sampler would have them, are noticed.
  proportional = np.minimum(2 * weights / weights.sum(), 0.999)
  assert any(rejected(f, p, trials) for f, p in zip(found, proportional))


@pytest.mark.parametrize('batches', [20, 0])
def test_the_draw_for_large_populations_has_the_same_inclusion_rates(batches, monkeypatch):
  # Without a batch, all are drawn as those are who are left when repetitions take over.
  monkeypatch.setattr(cohorts, '_MOST_BATCHES', batches)
  weights = np.array([1.0, 0.0, 2.0, 3.0, 6.0])
  trials = 6000
  rng = np.random.default_rng(1)
  counts = np.zeros(5)
  for _ in range(trials):
    drawn = cohorts.few_weighted_without_replacement(rng, weights, np.cumsum(weights), 2)
    assert len(set(drawn.tolist())) == 2
    counts[drawn] += 1
  found = counts / trials
  expected = successive_sampling_rates(weights, 2)
  assert found[1] == expected[1] == 0
  assert not any(rejected(f, e, trials) for f, e in zip(found[[0, 2, 3, 4]], expected[[0, 2, 3, 4]]))


def test_a_draw_goes_on_with_those_left_when_almost_all_weight_is_of_one_client():
  weights = np.full(1000, 1e-9)
  weights[7] = 1.0
  rng = np.random.default_rng(0)
  drawn = cohorts.few_weighted_without_replacement(rng, weights, np.cumsum(weights), 30)
  assert len(set(drawn.tolist())) == 30 and drawn[0] == 7
  later = [cohorts.few_weighted_without_replacement(rng, weights, np.cumsum(weights), 2)[1] for _ in range(300)]
  assert 400 < np.mean(later) < 600


class _CountingGenerator:
  """A generator that counts the numbers drawn from it."""

  def __init__(self, rng):
    self._rng, self.drawn = rng, 0

  def __getattr__(self, name):
    def call(*args, **kwargs):
      found = getattr(self._rng, name)(*args, **kwargs)
      self.drawn += np.size(found)
      return found

    return call


@pytest.mark.parametrize('spec', ['uniform', 'beta:a=2,b=5', 'bernoulli:q=0.001', 'hybrid:id_decay=0'])
def test_a_cohort_of_a_million_is_drawn_with_numbers_of_its_own_size(spec, monkeypatch):
  model = cohorts.make(spec, 10**6, 1000, 5)
  counters = []

  def round_rng(population, round_num):
    counters.append(_CountingGenerator(rng_lib.generator(population.seed, 'cohort', round_num)))
    return counters[-1]

  monkeypatch.setattr(cohorts.Population, 'round_rng', round_rng)
  first, again, second = model.cohort(1), model.cohort(1), model.cohort(2)
  assert all(counter.drawn <= 4000 for counter in counters)
  np.testing.assert_array_equal(first, again)
  assert len(np.intersect1d(first, second)) < 20 and len(np.unique(first)) == len(first)
  assert 850 < len(first) < 1150 and first.max() > 900_000 and first.min() < 100_000


def test_large_populations_come_as_often_as_their_rates_say(monkeypatch):
  # The draws for large populations, at a size where each client comes often.
  monkeypatch.setattr(cohorts, 'LARGE_POPULATION', 1)
  trials = 2000
  model = cohorts.make('bernoulli:q=0.2', 30, None, 0)
  joined = np.array([np.isin(np.arange(30), model.cohort(t)) for t in range(1, trials + 1)])
  assert not any(rejected(rate, 0.2, trials) for rate in joined.mean(axis=0))
  # A sampler of fixed size would make any two come together less often.
  both = np.mean(joined[:, ::2] & joined[:, 1::2])
  assert not rejected(both, 0.04, trials * 15)
  assert np.var(joined.sum(axis=1)) == pytest.approx(30 * 0.2 * 0.8, rel=0.15)
  monkeypatch.setattr(cohorts, '_FEW', 2)
  weighted = cohorts.make('beta:a=2,b=5', 30, 10, 0)
  counts = np.bincount(np.concatenate([weighted.cohort(t) for t in range(1, trials + 1)]), minlength=30)
  monkeypatch.setattr(cohorts, 'LARGE_POPULATION', 10**5)
  small = cohorts.make('beta:a=2,b=5', 30, 10, 0)
  expected = np.bincount(np.concatenate([small.cohort(t) for t in range(1, trials + 1)]), minlength=30)
  # Two samples of one rate each, so √2 of one sample's deviation.
  share = (counts + expected) / (2 * trials)
  deviations = np.abs(counts - expected) / np.sqrt(2 * trials * share * (1 - share))
  assert deviations.max() < 4.5


def test_a_shortfall_is_filled_uniformly():
  weights = np.array([0.0, 5.0, 0.0, 0.0, 1e-300])
  rng = np.random.default_rng(0)
  counts = np.zeros(5)
  for _ in range(3000):
    drawn = cohorts.weighted_without_replacement(rng, weights, 3)
    assert len(set(drawn)) == 3
    counts[drawn] += 1
  assert counts[1] == counts[4] == 3000
  assert not any(rejected(c / 3000, 1 / 3, 3000) for c in counts[[0, 2, 3]])


@pytest.mark.parametrize('size', [0, 2, 5])
def test_weighted_sampling_of_any_size(size):
  assert len(cohorts.weighted_without_replacement(np.random.default_rng(0), np.ones(5), size)) == size


def test_beta_cohorts_follow_weights_that_are_drawn_once():
  model = cohorts.make('beta:a=2,b=5', 5, 2, 3)
  weights = cohorts._client_weights(model.population, 2, 5)
  np.testing.assert_array_equal(model.weights(1), weights)
  np.testing.assert_array_equal(model.weights(9), weights)
  rounds = range(1, 4001)
  found = frequencies(model, rounds)
  assert not any(rejected(f, e, len(rounds)) for f, e in zip(found, successive_sampling_rates(weights, 2)))
  assert any(rejected(f, 2 / 5, len(rounds)) for f in found)


def test_hybrid_weights_are_the_documents():
  model = cohorts.make('hybrid', 100, 30, 7)
  drawn = cohorts._client_weights(model.population, 2, 5)
  odd = (1 - 0.8) * drawn + 0.8 / 100
  np.testing.assert_allclose(model.weights(1), odd)
  np.testing.assert_allclose(model.weights(2), odd * np.exp(-0.01 * np.arange(100)))
  np.testing.assert_array_equal(model.weights(3), model.weights(1))


def test_hybrid_normalised_gives_the_uniform_part_its_share():
  model = cohorts.make('hybrid:normalize=true,gamma=0.25', 100, 30, 7)
  drawn = cohorts._client_weights(model.population, 2, 5)
  np.testing.assert_allclose(model.weights(1), 0.75 * drawn / drawn.sum() + 0.25 / 100)


def test_hybrid_with_gamma_one_is_uniform_in_odd_rounds_and_favours_low_ids_in_even_ones():
  model = cohorts.make('hybrid:gamma=1', 300, 30, 7)
  odd = np.concatenate([model.cohort(t) for t in range(1, 400, 2)])
  even = np.concatenate([model.cohort(t) for t in range(2, 401, 2)])
  assert abs(odd.mean() - 149.5) < 5
  assert even.mean() < 110


def test_hybrid_reference_draws_its_uniform_part_uniformly_and_the_rest_by_weight():
  model = cohorts.make('hybrid_reference:gamma=1', 6, 2, 0)
  rounds = range(1, 3001)
  assert not any(rejected(f, 1 / 3, len(rounds)) for f in frequencies(model, rounds))
  model = cohorts.make('hybrid_reference:gamma=0', 6, 2, 0)
  expected = successive_sampling_rates(cohorts._client_weights(model.population, 2, 5), 2)
  found = frequencies(model, rounds)
  assert not any(rejected(f, e, len(rounds)) for f, e in zip(found, expected))
  # Half of each: of a cohort of two, one uniformly, the other by weight among the five left.
  model = cohorts.make('hybrid_reference:gamma=0.5', 6, 2, 0)
  weights = cohorts._client_weights(model.population, 2, 5)
  expected = np.full(6, 1 / 6)
  for first in range(6):
    left = np.delete(np.arange(6), first)
    expected[left] += weights[left] / weights[left].sum() / 6
  found = frequencies(model, rounds)
  assert not any(rejected(f, e, len(rounds)) for f, e in zip(found, expected))


def test_markov_clients_come_and_go_at_the_stated_rates():
  model = cohorts.make('markov:arrive=0.1,leave=0.3', 400, None, 0)
  present = np.array([np.isin(np.arange(400), model.cohort(t)) for t in range(1, 101)])
  assert not rejected(present[0].mean(), 0.25, 400)
  before, after = present[:-1], present[1:]
  arrived, left = after[~before].mean(), (~after)[before].mean()
  assert not rejected(arrived, 0.1, np.sum(~before))
  assert not rejected(left, 0.3, np.sum(before))
  for factor in (2 / 3, 3 / 2):
    assert rejected(arrived, 0.1 * factor, np.sum(~before))
    assert rejected(left, 0.3 * factor, np.sum(before))


def test_markov_takes_a_uniform_choice_of_those_present():
  everyone = cohorts.make('markov', 50, None, 4)
  some = cohorts.make('markov', 50, 10, 4)
  for t in range(1, 30):
    present, cohort = everyone.cohort(t), some.cohort(t)
    assert len(cohort) == min(10, len(present))
    assert set(cohort) <= set(present)
  # If all always stay once there, the choice among them is uniform.
  few = cohorts.make('markov:arrive=1,leave=1e-12', 6, 2, 0)
  rounds = range(1, 3001)
  assert not any(rejected(f, 1 / 3, len(rounds)) for f in frequencies(few, rounds))


def test_markov_may_find_nobody():
  model = cohorts.make('markov:arrive=0.01,leave=1', 3, 2, 0)
  assert any(len(model.cohort(t)) == 0 for t in range(1, 20))


def test_full_takes_everyone():
  np.testing.assert_array_equal(cohorts.make('full', 4, None, 0).cohort(3), np.arange(4))


@pytest.mark.parametrize('spec', ['uniform', 'beta', 'hybrid', 'hybrid_reference'])
def test_a_model_of_fixed_size_needs_one(spec):
  with pytest.raises(ValueError, match='cohort_size is missing'):
    cohorts.make(spec, 10, None, 0)


@pytest.mark.parametrize('spec', EVERY)
def test_a_cohort_larger_than_the_population_is_an_error_with_both_numbers(spec):
  with pytest.raises(ValueError, match='cohort_size=31 and num_clients=30'):
    cohorts.make(spec, 30, 31, 0)


@pytest.mark.parametrize(
  'spec, message',
  [
    ('bernoulli:q=0', 'bernoulli q'),
    ('bernoulli:q=1.1', 'bernoulli q'),
    ('bernoulli:q=nan', 'bernoulli q'),
    ('beta:a=0', 'beta a'),
    ('beta:b=nan', 'beta b'),
    ('beta:b=inf', 'beta b'),
    ('beta:a=-1', 'beta a'),
    ('beta_bernoulli:a=0', 'beta_bernoulli a'),
    ('beta_bernoulli:b=nan', 'beta_bernoulli b'),
    ('extreme_imbalance:frequent_fraction=1.5', 'extreme_imbalance frequent_fraction'),
    ('extreme_imbalance:frequent_rate=nan', 'extreme_imbalance frequent_rate'),
    ('extreme_imbalance:rare_rate=-0.1', 'extreme_imbalance rare_rate'),
    ('hybrid:gamma=1.01', 'hybrid gamma'),
    ('hybrid:gamma=nan', 'hybrid gamma'),
    ('hybrid:a=0', 'hybrid a'),
    ('hybrid:id_decay=-1', 'hybrid id_decay'),
    ('hybrid:normalize=yes', 'normalize must be true or false'),
    ('hybrid_reference:gamma=-0.1', 'hybrid_reference gamma'),
    ('hybrid_reference:gamma=nan', 'hybrid_reference gamma'),
    ('markov:arrive=0', 'markov arrive'),
    ('markov:leave=nan', 'markov leave'),
    ('markov:leave=2', 'markov leave'),
    ('bernouli', "Unknown participation model 'bernouli'. Did you mean 'bernoulli'"),
    ('uniform:q=1', "'uniform' takes no parameters, found 'q=1'"),
    ('bernoulli:q=often', "q must be of type float, found 'often'"),
  ],
)
def test_a_bad_parameter_is_an_error_that_names_it(spec, message):
  with pytest.raises(ValueError, match=message):
    cohorts.make(spec, 10, 3, 0)


@pytest.mark.parametrize(
  'arguments, message',
  [
    (dict(num_clients=0), 'num_clients must be an integer at least 1'),
    (dict(cohort_size=0), 'cohort_size must be an integer at least 1'),
    (dict(cohort_size=2.5), 'cohort_size must be an integer'),
    (dict(seed=-1), 'seed must be an integer at least 0'),
  ],
)
def test_a_bad_population_is_an_error(arguments, message):
  with pytest.raises(ValueError, match=message):
    cohorts.make('uniform', **{**dict(num_clients=10, cohort_size=3, seed=0), **arguments})


@pytest.mark.parametrize('round_num', [0, -1, 1.0, True])
def test_rounds_count_from_one(round_num):
  with pytest.raises(ValueError, match='round_num must be an integer at least 1'):
    cohorts.make('uniform', 10, 3, 0).cohort(round_num)


def test_a_uniform_cohort_costs_nothing_for_those_who_are_not_in_it():
  assert len(cohorts.make('uniform', 10**9, 30, 0).cohort(1)) == 30  # A draw over the population would take 8 GB.
