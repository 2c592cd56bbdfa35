"""The game of a run with secret cohorts: the client is there or not, and nobody knows when it was drawn."""

import dataclasses

import pytest

import quap_tff
from quap_tff.auditing import distinguisher

pytestmark = pytest.mark.slow

_DELTA, _DRAWS = 1e-5, 20_000


@pytest.fixture(scope='module', name='core')
def _core():
  options = dict(num_clients=5, epsilon=3.0, delta=_DELTA, rates=(0.8, 0.8, 0.1, 0.1, 0.1), num_rounds=10)
  return quap_tff.certified(**options).core


def _proved(core, target, **changes):
  changed = dataclasses.replace(core.config, **changes).to_mechanism()
  game = distinguisher.secret_cohorts(changed, target, seed=5)
  return distinguisher.play(game, _DRAWS, _DELTA, is_gaussian=False).bound.epsilon_if_independent


@pytest.mark.parametrize('target', [0, pytest.param(4, marks=pytest.mark.thorough)])
def test_much_of_the_claim_is_proved_and_no_more(core, target):
  assert 0.8 < _proved(core, target) <= 3


def test_less_noise_than_is_claimed_is_refuted(core):
  assert _proved(core, 0, noise_multiplier=core.noise_multiplier / 3) > 3


def test_a_larger_weight_than_is_claimed_is_refuted(core):
  assert _proved(core, 0, planned_weights=(1.0,) * 5) > 3


def test_a_client_that_adds_nothing_proves_nothing(core):
  weights = (*core.config.planned_weights[:4], 1e-6)
  assert _proved(core, 4, planned_weights=weights) < 0.1
