"""Dropout in mid-round: pure draws, and what they leave of a cohort and of its sampling."""

import numpy as np
import pytest

from data import cohorts
from data import dropouts


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
    np.testing.assert_array_equal(absent, drawn[dropout.fails(4)[drawn]])
    assert 0 < len(absent) < 30

  def test_where_the_drawn_are_charged_the_cohort_is_whole(self):
    model, _ = _with('uniform', 'bernoulli:rate=0.3', charges_absent=True)
    np.testing.assert_array_equal(model.cohort(4), cohorts.make('uniform', 200, 50, 3).cohort(4))
    assert len(model.absent(4)) and model.sampling == 'fixed_size'

  def test_two_coins_are_one(self):
    model, _ = _with('bernoulli:q=0.5', 'bernoulli:rate=0.2')
    assert model.sampling == 'bernoulli'
    np.testing.assert_allclose(model.sampler.rates, 0.4)
    came = np.mean([len(model.cohort(t)) for t in range(1, 201)])
    assert came == pytest.approx(80, abs=5 * np.sqrt(200 * 0.24 / 200))

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


class TestLearnedParticipation:
  def test_patterns_by_hand(self):
    # Clients 0 and 1 of four, patterns of one invitation. Round 1: 0 drops out. Round 2: 0 drops out again.
    dropout = dropouts.make('bernoulli', 4, 1)
    model = cohorts.make('flpadpm:length=1,strength=2', 4, 2, 1, dropout)
    np.testing.assert_allclose(model.predicted(), 0.1)
    for _ in range(2):
      model._learn(np.array([0, 1]), np.array([True, False]))
    # Common rate (2 + 1)/(4 + 10). After a drop: one invitation, one drop. After an arrival: one, none. Else: two, one.
    common = 3 / 14
    expected = [(2 * common + 1) / 3, 2 * common / 3, (2 * common + 1) / 4, (2 * common + 1) / 4]
    np.testing.assert_allclose(model.predicted(), expected)

  def test_invites_as_many_as_it_takes(self):
    model, _ = _with('flpadpm', 'markov:fail=0.2,recover=0.2')
    came = np.array([len(model.cohort(t)) for t in range(1, 101)])
    fixed = np.array([len(_with('uniform', 'markov:fail=0.2,recover=0.2')[0].cohort(t)) for t in (50, 100)])
    assert came[20:].mean() == pytest.approx(50, abs=2) and fixed.mean() < 35

  def test_selection_prefers_the_reliable_and_the_fast(self):
    dropout = dropouts.make('beta:a=1,b=2', 40, 1)
    model = cohorts.make('client_selection:share=1,explore=0.5', 40, 10, 1, dropout)
    drawn = np.concatenate([model.cohort(t) for t in range(1, 201)])
    times = np.bincount(drawn, minlength=40)
    assert (times > 0).all() and np.corrcoef(times, dropout.rates)[0, 1] < -0.4

  @pytest.mark.parametrize('spec', ['flpadpm', 'client_selection'])
  def test_rounds_may_be_asked_for_in_any_order(self, spec):
    one, other = _with(spec, 'beta')[0], _with(spec, 'beta')[0]
    later = one.cohort(9)
    np.testing.assert_array_equal(one.cohort(2), other.cohort(2))
    np.testing.assert_array_equal(other.cohort(9), later)

  @pytest.mark.parametrize('spec', ['flpadpm', 'client_selection'])
  def test_without_dropout_there_is_nothing_to_learn(self, spec):
    with pytest.raises(ValueError, match='--dropout=none nobody'):
      cohorts.make(spec, 10, 3, 1)

  @pytest.mark.parametrize(
    'spec, message', [('flpadpm:length=0', 'at least 1'), ('client_selection:explore=2', 'at most 1')]
  )
  def test_bad_parameters(self, spec, message):
    with pytest.raises(ValueError, match=message):
      cohorts.make(spec, 10, 3, 1, dropouts.make('beta', 10, 1))
