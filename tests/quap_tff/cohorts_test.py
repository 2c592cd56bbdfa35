"""Participation models: who is drawn how often, in what order rounds are asked for, and what the draw earns."""

import numpy as np
import pytest

from data import cohorts
from data.cohorts import dropouts
from quap_tff.cohorts import base
from quap_tff.cohorts import stateful
from quap_tff.cohorts import static
from quap_tff.common.numbers import rng as rng_lib

FIXED_SIZE = ['uniform', 'separated:min_separation=1', 'beta', 'hybrid', 'hybrid:normalize=true', 'hybrid_reference']
RANDOM_SIZE = ['bernoulli', 'beta_bernoulli', 'extreme_imbalance', 'markov', 'full', 'energy']
LEARNING = ['flpadpm', 'client_selection']
EVERY = FIXED_SIZE + RANDOM_SIZE


def make(spec, num_clients, cohort_size, seed):
  """A model; one that learns from dropout has some to learn from."""
  dropout = dropouts.make('beta', num_clients, seed) if spec in LEARNING else None
  return cohorts.make(spec, num_clients, cohort_size, seed, dropout)


def shares(drawn, size):
  """How often each of `size` is in one of the sets `drawn`."""
  return np.bincount(np.concatenate(drawn), minlength=size) / len(drawn)


def frequencies(model, rounds):
  return shares([model.cohort(t) for t in rounds], model.population.num_clients)


def rejected(found, expected, trials):
  """Whether means of `trials` coins of rates `expected` would differ so much less than once in 10^6 times, each."""
  return np.abs(found - expected) > 5 * np.sqrt(expected * (1 - expected) / trials)


@pytest.mark.parametrize('spec', [s for s in EVERY + LEARNING if s != 'full'])
def test_rounds_and_seeds_give_different_cohorts(spec):
  draw = lambda seed, t: make(spec, 200, 50, seed).cohort(t).tolist()
  assert draw(0, 1) != draw(0, 3)
  assert draw(0, 1) != draw(1, 1)


@pytest.mark.parametrize('spec', EVERY + LEARNING)
def test_amplification_is_claimed_only_where_it_is_earned(spec):
  earned = dict(uniform='fixed_size', bernoulli='bernoulli', beta_bernoulli='bernoulli', extreme_imbalance='bernoulli')
  model = make(spec, 50, 10, 0)
  assert model.sampler.kind == earned.get(spec, 'none')
  assert (model.sampler.rates is not None) == (model.sampler.kind == 'bernoulli')
  assert model.sampler.cohort_size == (10 if spec == 'uniform' else None)
  # Nor is a separation promised by others than the model that keeps one.
  assert (model.min_separation is None) == (not spec.startswith('separated'))


@pytest.mark.parametrize('spec', EVERY)
def test_only_independent_coins_from_a_seed_of_their_own_are_secret(spec):
  is_bernoulli = make(spec, 50, 10, 0).sampler.kind == 'bernoulli'
  assert cohorts.make(spec, 50, 10, 0, cohort_seed=2**255 + 1).sampler.secret == is_bernoulli
  assert not make(spec, 50, 10, 0).sampler.secret


@pytest.mark.parametrize('spec', ['bernoulli', 'beta_bernoulli', 'extreme_imbalance'])
def test_a_secret_seed_decides_on_cohorts_alone(spec):
  public, one, other = (cohorts.make(spec, 200, None, 3, cohort_seed=seed) for seed in (None, 2**255, 2**255 + 1))
  drawn = [[model.cohort(t).tolist() for t in range(1, 6)] for model in (public, one, other)]
  assert all(a != b for found in zip(*drawn) for a, b in zip(found, found[1:])) and drawn[0] != drawn[2]
  for model in (one, other):
    np.testing.assert_array_equal(model.sampler.rates, public.sampler.rates)
  assert str(2**255) not in repr(one.population)


@pytest.mark.slow
def test_uniform_includes_everyone_equally_often():
  rounds = range(1, 4001)
  found = frequencies(cohorts.make('uniform', 10, 3, 1), rounds)
  for wrong in (0.2, 0.45):
    assert rejected(found, wrong, len(rounds)).all()
  assert not rejected(found, 0.3, len(rounds)).any()


@pytest.mark.slow
@pytest.mark.parametrize('num_clients, size, apart', [(100, 30, 3), (12, 3, 4), (13, 3, 4), (10, 5, 2), (7, 7, 1)])
def test_separated_keeps_its_promise_and_leaves_nobody_out(num_clients, size, apart):
  for seed in range(60):
    model, rounds = cohorts.make(f'separated:min_separation={apart}', num_clients, size, seed), 20 * apart
    assert model.min_separation == apart and model.mean_cohort_size == size
    came = {client: [] for client in range(num_clients)}
    for t in range(1, rounds + 1):
      cohort = model.cohort(t)
      assert len(cohort) == size
      for client in cohort.tolist():
        came[client].append(t)
    assert all(rounds_of and len(rounds_of) <= rounds / apart for rounds_of in came.values())
    assert all((np.diff(rounds_of) >= apart).all() for rounds_of in came.values())


@pytest.mark.slow
def test_separated_includes_everyone_of_a_group_equally_often():
  model, rounds = cohorts.make('separated:min_separation=3', 24, 4, 1), range(1, 3 * 3000 + 1)
  found = frequencies(model, rounds) * 3
  assert not rejected(found, 4 / 8, 3000).any()
  for wrong in (0.4, 0.6):
    assert rejected(found, wrong, 3000).all()
  # The seed decides who is in a group, not the id.
  groups = {frozenset(np.concatenate([model.cohort(t) for t in range(r, 90, 3)]).tolist()) for r in (1, 2, 3)}
  assert groups != {frozenset(range(r, r + 8)) for r in (0, 8, 16)} and set().union(*groups) == set(range(24))


@pytest.mark.parametrize('num_clients, size, apart, most', [(89, 30, 3, 2), (10, 6, 2, 1), (5, 2, 6, 2)])
def test_separated_refuses_a_population_that_is_too_small(num_clients, size, apart, most):
  message = f'min_separation={apart} with cohort_size={size} needs at least {size * apart} clients.* at most {most}, '
  with pytest.raises(ValueError, match=message):
    cohorts.make(f'separated:min_separation={apart}', num_clients, size, 0)


def test_dropout_keeps_a_promise_only_if_the_absent_are_counted():
  drawn = cohorts.make('separated', 20, 5, 0)
  dropout = dropouts.make('beta', 20, 0)
  assert dropouts.WithDropout(drawn, dropout, charges_absent=True).min_separation == 3
  # A round to which nobody comes is not a release, and releases are what a promise is about.
  assert dropouts.WithDropout(drawn, dropout, charges_absent=False).min_separation is None
  assert dropouts.WithServerRounds(drawn, 0.5).min_separation is None


def test_uniform_includes_every_pair_equally_often():
  # A fixed block of clients that rotates would pass the test of single clients.
  model = cohorts.make('uniform', 6, 2, 2)
  counts = np.zeros([6, 6])
  for t in range(1, 3001):
    i, j = model.cohort(t)
    counts[i, j] += 1
  pairs = counts[np.triu_indices(6, 1)] / 3000
  assert not rejected(pairs, 1 / 15, 3000).any()


@pytest.mark.slow
@pytest.mark.parametrize('spec', ['bernoulli:q=0.3', 'beta_bernoulli', 'extreme_imbalance'])
def test_bernoulli_clients_join_at_the_rates_that_the_model_states(spec):
  model = cohorts.make(spec, 40, None, 5)
  rounds = range(1, 4001)
  found = frequencies(model, rounds)
  assert not rejected(found, model.sampler.rates, len(rounds)).any()
  moderate = (model.sampler.rates > 0.05) & (model.sampler.rates < 0.6)
  for factor in (2 / 3, 3 / 2):
    assert rejected(found[moderate], model.sampler.rates[moderate] * factor, len(rounds)).all()


@pytest.mark.slow
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
  rates = cohorts.make('beta_bernoulli:a=2,b=5', 20000, None, 0).sampler.rates
  assert rates.mean() == pytest.approx(2 / 7, abs=0.005)
  assert rates.var() == pytest.approx(2 * 5 / (7**2 * 8), rel=0.05)


def test_extreme_imbalance_has_the_stated_number_of_frequent_clients_anywhere_among_the_ids():
  rates = cohorts.make('extreme_imbalance:frequent_fraction=0.2,frequent_rate=0.8,rare_rate=0.1', 100, None, 0)
  rates = rates.sampler.rates
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
  trials, rng = 3000, np.random.default_rng(0)
  found = shares([base.weighted_without_replacement(rng, weights, 2) for _ in range(trials)], 4)
  expected = successive_sampling_rates(weights, 2)
  assert not rejected(found, expected, trials).any()
  # Rates in proportion to the weights, as another kind of sampler would have them, are noticed.
  proportional = np.minimum(2 * weights / weights.sum(), 0.999)
  assert rejected(found, proportional, trials).any()


@pytest.mark.parametrize('batches', [20, 0])
def test_the_draw_for_large_populations_has_the_same_inclusion_rates(batches, monkeypatch):
  # Without a batch, all are drawn as those are who are left when repetitions take over.
  monkeypatch.setattr(base, '_MOST_BATCHES', batches)
  weights = np.array([1.0, 0.0, 2.0, 3.0, 6.0])
  trials, rng = 3000, np.random.default_rng(1)
  drawn = [base.few_weighted_without_replacement(rng, weights, np.cumsum(weights), 2) for _ in range(trials)]
  assert all(len(set(one.tolist())) == 2 for one in drawn)
  found, expected = shares(drawn, 5), successive_sampling_rates(weights, 2)
  assert found[1] == expected[1] == 0
  assert not rejected(found, expected, trials).any()


def test_a_draw_goes_on_with_those_left_when_almost_all_weight_is_of_one_client():
  weights = np.full(1000, 1e-9)
  weights[7] = 1.0
  rng = np.random.default_rng(0)
  drawn = base.few_weighted_without_replacement(rng, weights, np.cumsum(weights), 30)
  assert len(set(drawn.tolist())) == 30 and drawn[0] == 7
  later = [base.few_weighted_without_replacement(rng, weights, np.cumsum(weights), 2)[1] for _ in range(300)]
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


@pytest.mark.slow
def test_large_populations_come_as_often_as_their_rates_say(monkeypatch):
  # The draws for large populations, at a size where each client comes often.
  monkeypatch.setattr(base, 'LARGE_POPULATION', 1)
  trials = 2000
  model = cohorts.make('bernoulli:q=0.2', 30, None, 0)
  joined = np.array([np.isin(np.arange(30), model.cohort(t)) for t in range(1, trials + 1)])
  assert not rejected(joined.mean(axis=0), 0.2, trials).any()
  # A sampler of fixed size would make any two come together less often.
  both = np.mean(joined[:, ::2] & joined[:, 1::2])
  assert not rejected(both, 0.04, trials * 15)
  assert np.var(joined.sum(axis=1)) == pytest.approx(30 * 0.2 * 0.8, rel=0.15)
  monkeypatch.setattr(base, '_FEW', 2)
  found = frequencies(cohorts.make('beta:a=2,b=5', 30, 10, 0), range(1, trials + 1))
  monkeypatch.setattr(base, 'LARGE_POPULATION', 10**5)
  expected = frequencies(cohorts.make('beta:a=2,b=5', 30, 10, 0), range(1, trials + 1))
  # Two samples of one rate each, so √2 of one sample's deviation.
  share = (found + expected) / 2
  assert (np.abs(found - expected) / np.sqrt(2 * share * (1 - share) / trials)).max() < 4.5


def test_a_shortfall_is_filled_uniformly():
  weights = np.array([0.0, 5.0, 0.0, 0.0, 1e-300])
  rng = np.random.default_rng(0)
  drawn = [base.weighted_without_replacement(rng, weights, 3) for _ in range(3000)]
  assert all(len(set(one)) == 3 for one in drawn)
  found = shares(drawn, 5)
  assert found[1] == found[4] == 1
  assert not rejected(found[[0, 2, 3]], 1 / 3, 3000).any()


@pytest.mark.parametrize('size', [0, 2, 5])
def test_weighted_sampling_of_any_size(size):
  assert len(base.weighted_without_replacement(np.random.default_rng(0), np.ones(5), size)) == size


@pytest.mark.slow
def test_beta_cohorts_follow_weights_that_are_drawn_once():
  model = cohorts.make('beta:a=2,b=5', 5, 2, 3)
  rounds = range(1, 4001)
  found = frequencies(model, rounds)
  expected = successive_sampling_rates(model.population.beta_weights(2, 5), 2)
  assert not rejected(found, expected, len(rounds)).any()
  assert rejected(found, 2 / 5, len(rounds)).any()


def test_hybrid_weights_are_the_documents():
  population = cohorts.Population(100, 30, 7)
  drawn = population.beta_weights(2, 5)
  odd, even = static.Hybrid().weights(population)
  np.testing.assert_allclose(odd, (1 - 0.8) * drawn + 0.8 / 100)
  np.testing.assert_allclose(even, odd * np.exp(-0.01 * np.arange(100)))
  odd, _ = static.Hybrid(normalize=True, gamma=0.25).weights(population)
  np.testing.assert_allclose(odd, 0.75 * drawn / drawn.sum() + 0.25 / 100)


def test_hybrid_with_gamma_one_is_uniform_in_odd_rounds_and_favours_low_ids_in_even_ones():
  model = cohorts.make('hybrid:gamma=1', 300, 30, 7)
  odd = np.concatenate([model.cohort(t) for t in range(1, 400, 2)])
  even = np.concatenate([model.cohort(t) for t in range(2, 401, 2)])
  assert abs(odd.mean() - 149.5) < 5
  assert even.mean() < 110


@pytest.mark.slow
@pytest.mark.parametrize('gamma', [1, 0, 0.5])
def test_hybrid_reference_draws_its_uniform_part_uniformly_and_the_rest_by_weight(gamma):
  model = cohorts.make(f'hybrid_reference:gamma={gamma}', 6, 2, 0)
  weights, trials = model.population.beta_weights(2, 5), 2000
  expected = {1: np.full(6, 1 / 3), 0: successive_sampling_rates(weights, 2), 0.5: np.full(6, 1 / 6)}[gamma]
  if gamma == 0.5:
    # Of a cohort of two, one uniformly, the other by weight among the five left.
    for first in range(6):
      left = np.delete(np.arange(6), first)
      expected[left] += weights[left] / weights[left].sum() / 6
  found = frequencies(model, range(1, trials + 1))
  assert not rejected(found, expected, trials).any()


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


@pytest.mark.slow
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
  assert not rejected(frequencies(few, rounds), 1 / 3, len(rounds)).any()


def test_markov_may_find_nobody():
  model = cohorts.make('markov:arrive=0.01,leave=1', 3, 2, 0)
  assert any(len(model.cohort(t)) == 0 for t in range(1, 20))


def test_full_takes_everyone():
  np.testing.assert_array_equal(cohorts.make('full', 4, None, 0).cohort(3), np.arange(4))


@pytest.mark.parametrize('spec', FIXED_SIZE + LEARNING)
def test_a_model_of_fixed_size_needs_one(spec):
  with pytest.raises(ValueError, match='cohort_size is missing'):
    make(spec, 10, None, 0)


@pytest.mark.parametrize('spec', EVERY)
def test_a_cohort_larger_than_the_population_is_an_error_with_both_numbers(spec):
  with pytest.raises(ValueError, match='cohort_size=31 and num_clients=30'):
    cohorts.make(spec, 30, 31, 0)


@pytest.mark.parametrize(
  'spec',
  'bernoulli:q=0 bernoulli:q=1.1 bernoulli:q=nan beta:a=0 beta:b=nan beta:b=inf beta:a=-1 beta_bernoulli:a=0 '
  'beta_bernoulli:b=nan extreme_imbalance:frequent_fraction=1.5 extreme_imbalance:frequent_rate=nan '
  'extreme_imbalance:rare_rate=-0.1 hybrid:gamma=1.01 hybrid:gamma=nan hybrid:a=0 hybrid:id_decay=-1 '
  'hybrid_reference:gamma=-0.1 hybrid_reference:gamma=nan markov:arrive=0 markov:leave=nan markov:leave=2 '
  'energy:charge=1.5 energy:idle=-0.1 energy:train=nan energy:reserve=1 energy:plug=0 energy:unplug=2 '
  'separated:min_separation=0 separated:min_separation=-3 '
  'flpadpm:length=0 flpadpm:length=9 flpadpm:strength=0 client_selection:explore=2 client_selection:share=-1'.split(),
)
def test_a_bad_parameter_is_an_error_that_names_it(spec):
  with pytest.raises(ValueError, match=f'^{spec.partition("=")[0].replace(":", " ")} must be'):
    cohorts.make(spec, 10, 3, 0)


@pytest.mark.parametrize(
  'spec, message',
  [
    ('bernouli', "Unknown participation model 'bernouli'. Did you mean 'bernoulli'"),
    ('uniform:q=1', "'uniform' takes no parameters, found 'q=1'"),
    ('bernoulli:q=often', "q must be of type float, found 'often'"),
    ('hybrid:normalize=yes', 'normalize must be true or false'),
    ('flpadpm', '--dropout=none nobody'),
    ('client_selection', '--dropout=none nobody'),
  ],
)
def test_a_bad_spec_is_an_error(spec, message):
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


class TestEnergy:
  def test_a_round_by_hand(self):
    before = stateful.Batteries(np.array([0.5, 0.5, 0.5, 0.5, 0.9, 0.05]), np.array([1, 0, 1, 0, 1, 0], bool))
    energy = stateful.Energy(charge=0.25, idle=0.125, train=0.5)
    found = energy.after(np.random.default_rng(0), before, np.array([2, 3]))
    np.testing.assert_allclose(found.charge, [0.75, 0.375, 0.25, 0.0, 1.0, 0.0])

  def test_rates_by_hand(self):
    batteries = stateful.Batteries(np.array([0.0, 0.2, 0.1, 0.6, 1.0]), np.array([True, False, False, False, False]))
    np.testing.assert_allclose(stateful.Energy(reserve=0.2).rates(batteries), [1.0, 0.0, 0.0, 0.5, 1.0])

  def test_clients_are_plugged_in_at_the_stated_rates(self):
    energy, rng = stateful.Energy(plug=0.1, unplug=0.3), np.random.default_rng(0)
    batteries = energy.start(rng, 20_000)
    assert batteries.plugged.mean() == pytest.approx(0.25, abs=0.02)
    after = energy.after(rng, batteries, np.zeros(0, np.int64))
    assert after.plugged[~batteries.plugged].mean() == pytest.approx(0.1, abs=0.01)
    assert after.plugged[batteries.plugged].mean() == pytest.approx(0.7, abs=0.02)

  def test_a_cohort_is_of_those_above_the_reserve_or_plugged_in_and_pays_for_the_next_round(self):
    energy = stateful.Energy(charge=0.0, idle=0.0, reserve=0.5, train=0.3, plug=0.01, unplug=1)
    model, sizes = energy.over(cohorts.Population(200, 100, 1)), []
    batteries = energy.start(rng_lib.generator(1, 'battery', 0), 200)
    for t in range(1, 7):
      cohort, able = model.cohort(t), batteries.plugged | (batteries.charge > 0.5)
      assert able[cohort].all() and len(cohort) == min(100, able.sum())
      sizes.append(len(cohort))
      batteries = energy.after(rng_lib.generator(1, 'battery', t), batteries, cohort)
    assert sizes[-1] < sizes[0]

  def test_empty_batteries_are_an_empty_cohort(self):
    model = cohorts.make('energy:charge=0,train=1,plug=1e-9,unplug=1', 5, 5, 0)
    assert [len(model.cohort(t)) for t in (2, 3)] == [0, 0]

  def test_fuller_batteries_come_more_often(self):
    # Without a cohort size each comes with its own rate: of 5,000 unplugged clients in round 1, (b - 0.2)/0.8.
    energy, population = stateful.Energy(plug=1e-9, unplug=1), cohorts.Population(5000, None, 0)
    charge = energy.start(rng_lib.generator(0, 'battery', 0), 5000).charge
    came = np.isin(np.arange(5000), energy.over(population).cohort(1))
    for low, high, rate in ((0, 0.2, 0), (0.55, 0.65, 0.5), (0.9, 1, 0.9375)):
      inside = (charge >= low) & (charge < high)
      assert came[inside].mean() == pytest.approx(rate, abs=0.06)


class TestLearned:
  def test_patterns_by_hand(self):
    # Clients 0 and 1 of four, patterns of one invitation. Round 1: 0 drops out. Round 2: 0 drops out again.
    choice = stateful.FlPadpm(length=1, strength=2.0)
    state = choice.start(cohorts.Population(4, 2, 1))
    np.testing.assert_allclose(choice.predicted(state), 0.1)
    for _ in range(2):
      state = choice.learned(state, np.array([0, 1]), np.array([True, False]))
    # Common rate (2 + 1)/(4 + 10). After a drop: one invitation, one drop. After an arrival: one, none. Else: two, one.
    common = 3 / 14
    expected = [(2 * common + 1) / 3, 2 * common / 3, (2 * common + 1) / 4, (2 * common + 1) / 4]
    np.testing.assert_allclose(choice.predicted(state), expected)

  def test_invites_as_many_as_it_takes(self):
    came = {}
    for spec in ('flpadpm', 'uniform'):
      dropout = dropouts.make('markov:fail=0.2,recover=0.2', 200, 3)
      model = dropouts.WithDropout(cohorts.make(spec, 200, 50, 3, dropout), dropout, False)
      came[spec] = np.mean([len(model.cohort(t)) for t in range(21, 101)])
    assert came['flpadpm'] == pytest.approx(50, abs=2) and came['uniform'] < 35

  def test_selection_prefers_the_reliable_and_the_fast(self):
    dropout = dropouts.make('beta:a=1,b=2', 40, 1)
    for share, wanted in ((1, -dropout.rates), (0, cohorts.Population(40, 10, 1).beta_weights(2, 5))):
      model = cohorts.make(f'client_selection:share={share},explore=0.5', 40, 10, 1, dropout)
      times = np.bincount(np.concatenate([model.cohort(t) for t in range(1, 201)]), minlength=40)
      assert (times > 0).all() and np.corrcoef(times, wanted)[0, 1] > 0.4
