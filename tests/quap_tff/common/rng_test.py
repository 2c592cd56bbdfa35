import itertools

import pytest

from quap_tff.common.numbers import rng


def test_each_seed_stream_and_index_has_numbers_of_its_own():
  draws = [
    rng.generator(seed, stream, index).integers(2**63)
    for seed, stream, index in itertools.product([0, 1, 2**32, 2**64], rng.STREAMS, range(3))
  ]
  assert len(set(draws)) == len(draws)


def test_the_numbers_depend_on_nothing_else():
  first = rng.generator(7, 'cohort', 3).random(4)
  rng.generator(7, 'cohort', 2).random(100)
  assert (rng.generator(7, 'cohort', 3).random(4) == first).all()


def test_no_two_streams_share_a_number():
  assert len(set(rng.STREAMS.values())) == len(rng.STREAMS)


@pytest.mark.parametrize('seed', [-1, 0.5, None])
def test_a_bad_seed_is_an_error(seed):
  with pytest.raises(ValueError, match='seed must be an integer at least 0'):
    rng.generator(seed, 'cohort')


def test_an_unknown_stream_is_an_error():
  with pytest.raises(KeyError):
    rng.generator(0, 'noise')
