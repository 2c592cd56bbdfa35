"""Dropout in mid-round: pure draws, and what they leave of a cohort and of its sampling."""

import numpy as np
import pytest

from data import cohorts
from data.cohorts import dropouts


def _with(participation, dropout, charges_absent=False, n=200, size=50, seed=3):
  model = dropouts.make(dropout, n, seed)
  return dropouts.WithDropout(cohorts.make(participation, n, size, seed, model), model, charges_absent), model


class TestModels:
  def test_none(self):
    assert dropouts.make('none', 10, 1) is None

  @pytest.mark.parametrize('spec', ['bernoulli:rate=0.3', 'beta', 'markov'])
  def test_a_pure_function_of_seed_and_round(self, spec):
    one, other = dropouts.make(spec, 50, 1), dropouts.make(spec, 50, 1)
    later = one.fails(7)
    np.testing.assert_array_equal(one.fails(2), other.fails(2))
    np.testing.assert_array_equal(later, other.fails(7))
    assert (dropouts.make(spec, 50, 2).fails(7) != later).any()

  def test_rates(self):
    model = dropouts.make('beta:a=1,b=4', 300, 1)
    failed = np.mean([model.fails(t) for t in range(1, 801)], axis=0)
    np.testing.assert_allclose(failed, model.rates, atol=5 * 0.5 / np.sqrt(800))
    assert model.rates.std() > 0.1  # Clients differ.

  def test_outages_last(self):
    model = dropouts.make('markov:fail=0.05,recover=0.25', 500, 1)
    failed = np.array([model.fails(t) for t in range(1, 201)])
    assert failed.mean() == pytest.approx(0.05 / 0.3, abs=0.02)
    assert failed[1:][failed[:-1]].mean() == pytest.approx(0.75, abs=0.02)

  @pytest.mark.parametrize(
    'spec, message',
    [
      ('bernoulli:rate=1', 'less than 1'),
      ('beta:a=0', 'at least 0.01'),
      ('markov:recover=0', 'greater than 0'),
      ('bernouli', "Did you mean 'bernoulli'"),
    ],
  )
  def test_bad_specs(self, spec, message):
    with pytest.raises(ValueError, match=message):
      dropouts.make(spec, 10, 1)


class TestWithDropout:
  def test_who_came_and_who_did_not_are_the_drawn(self):
    model, dropout = _with('uniform', 'bernoulli:rate=0.3')
    drawn = cohorts.make('uniform', 200, 50, 3).cohort(4)
    came, absent = model.cohort(4), model.absent(4)
    np.testing.assert_array_equal(np.sort(np.concatenate([came, absent])), drawn)
    np.testing.assert_array_equal(model.drawn(4), drawn)
    np.testing.assert_array_equal(absent, drawn[dropout.fails(4)[drawn]])
    assert 0 < len(absent) < 30

  def test_where_the_drawn_are_charged_the_cohort_is_whole(self):
    model, _ = _with('uniform', 'bernoulli:rate=0.3', charges_absent=True)
    np.testing.assert_array_equal(model.cohort(4), cohorts.make('uniform', 200, 50, 3).cohort(4))
    assert len(model.absent(4)) and model.sampler.kind == 'fixed_size'

  @pytest.mark.parametrize('charges_absent', [False, True])
  def test_cohorts_from_which_clients_drop_out_are_not_secret(self, charges_absent):
    dropout = dropouts.make('bernoulli:rate=0.3', 200, 3)
    drawn = cohorts.make('bernoulli:q=0.5', 200, None, 3, dropout, cohort_seed=2**200)
    assert drawn.secret and not dropouts.WithDropout(drawn, dropout, charges_absent).secret

  def test_two_coins_are_one(self):
    model, _ = _with('bernoulli:q=0.5', 'bernoulli:rate=0.2')
    assert model.sampler.kind == 'bernoulli'
    np.testing.assert_allclose(model.sampler.rates, 0.4)
    came = np.mean([len(model.cohort(t)) for t in range(1, 201)])
    assert came == pytest.approx(80, abs=5 * np.sqrt(200 * 0.24 / 200))

  @pytest.mark.parametrize('charges_absent, mean', [(False, 35.0), (True, 50.0)])
  def test_the_mean_cohort_size_is_of_those_who_are_in_it(self, charges_absent, mean):
    model, _ = _with('uniform', 'bernoulli:rate=0.3', charges_absent)
    assert model.mean_cohort_size == pytest.approx(mean)

  @pytest.mark.parametrize(
    'participation, dropout', [('uniform', 'bernoulli'), ('bernoulli', 'markov'), ('beta', 'bernoulli')]
  )
  def test_other_draws_earn_nothing(self, participation, dropout):
    assert _with(participation, dropout)[0].sampler.kind == 'none'


class TestServerRounds:
  def test_a_share_of_the_rounds_is_left(self):
    drawn = cohorts.make('bernoulli:q=1', 5, None, 3)
    model = dropouts.WithServerRounds(drawn, 0.7)
    sizes = np.array([len(model.cohort(t)) for t in range(1, 401)])
    assert set(sizes) == {0, 5} and (sizes == 5).mean() == pytest.approx(0.7, abs=5 * np.sqrt(0.21 / 400))
    assert model.sampler.kind == 'none'
