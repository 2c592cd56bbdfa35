"""Tests of `quap_tff.common.numbers.secret_coins`: their stream, their thresholds, and keys."""

import numpy as np
import pytest

from quap_tff.common.numbers import chacha20
from quap_tff.common.numbers import secret_coins

_KEY, _ROUND = 2**255 + 12345, 2**32 + 7


def _words(count):
  """The same stream by TensorFlow, uint64[count]."""
  key = np.frombuffer(_KEY.to_bytes(32, 'little'), np.int64)
  nonce = chacha20.nonce(0, _ROUND % 2**32, _ROUND // 2**32)
  return chacha20.integers(key, nonce[np.newaxis], count)[0].numpy().view(np.uint64)


def test_a_client_comes_if_its_word_of_the_stream_is_below_its_rate():
  rates = np.random.default_rng(1).random(1000)
  expected = [i for i, word in enumerate(_words(1000).tolist()) if word < int(rates[i] * 2**64)]
  assert secret_coins.heads(_KEY, _ROUND, rates).tolist() == expected


def test_a_rate_just_below_a_word_does_not_reach_it_and_one_just_above_does():
  # Without its last 11 bits a word is a float64.
  below = np.array([float(word - word % 2**11) for word in _words(200).tolist()]) / 2**64
  assert not len(secret_coins.heads(_KEY, _ROUND, below))
  assert len(secret_coins.heads(_KEY, _ROUND, below + 2.0**-53)) == 200


def test_rates_of_0_and_1():
  assert secret_coins.heads(_KEY, _ROUND, np.array([0.0, 1.0] * 50)).tolist() == list(range(1, 100, 2))


def test_rounds_and_keys_have_coins_of_their_own():
  rates = np.full(300, 0.5)
  drawn = [secret_coins.heads(key, number, rates).tolist() for key, number in ((_KEY, 1), (_KEY, 2), (_KEY + 1, 1))]
  assert len({tuple(one) for one in drawn}) == 3


def _deviations(counts, trials, rate):
  return abs(counts - trials * rate) / np.sqrt(trials * rate * (1 - rate))


@pytest.mark.parametrize('wrong', [0.28, 0.32])
def test_other_rates_are_rejected(wrong):
  rates, rounds = np.full(2000, 0.3), 50
  counts = sum(len(secret_coins.heads(_KEY, number, rates)) for number in range(rounds))
  trials = len(rates) * rounds
  assert _deviations(counts, trials, 0.3) < 4 < _deviations(counts, trials, wrong)


@pytest.mark.parametrize('key', [-1, 2**256])
def test_a_key_that_is_out_of_range_is_refused(key):
  with pytest.raises(ValueError, match='key of secret coins'):
    secret_coins.heads(key, 1, np.array([0.5]))
