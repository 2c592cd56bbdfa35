"""Tests of `quap_tff.common.numbers.chacha20`: the vectors of RFC 8439, the order of the words, and keys."""

import numpy as np
import pytest
import tensorflow as tf

from quap_tff.common.numbers import chacha20

_SEQUENCE = bytes(range(32))
_ZEROS = bytes(32)


@pytest.fixture(scope='module', autouse=True)
def loops():
  """Here the function itself is the claim: it stays as it is."""


def _key(octets):
  return tf.constant(np.frombuffer(octets, '<i8'))


def _nonce(octets):
  return tf.constant(np.frombuffer(octets, '<u4'))


def _distinct(keys):
  return len({tuple(np.asarray(key).tolist()) for key in keys})


# Key, nonce, counter of the first block, and the block as RFC 8439 serialises it.
_VECTORS = {
  'section 2.3.2': (
    _SEQUENCE,
    '000000090000004a00000000',
    1,
    '10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e'
    'd2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e',
  ),
  'A.1, 1': (
    _ZEROS,
    '00' * 12,
    0,
    '76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7'
    'da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586',
  ),
  'A.1, 2': (
    _ZEROS,
    '00' * 12,
    1,
    '9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed'
    '29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f',
  ),
  'A.1, 3': (
    bytes(31) + b'\x01',
    '00' * 12,
    1,
    '3aeb5224ecf849929b9d828db1ced4dd832025e8018b8160b82284f3c949aa5a'
    '8eca00bbb4a73bdad192b5c42f73f2fd4e273644c8b36125a64addeb006c13a0',
  ),
  'A.1, 4': (
    b'\x00\xff' + bytes(30),
    '00' * 12,
    2,
    '72d54dfbf12ec44b362692df94137f328fea8da73990265ec1bbbea1ae9af0ca'
    '13b25aa26cb4a648cb9b9d1be65b2c0924a66c54d545ec1b7374f4872e99f096',
  ),
  'A.1, 5': (
    _ZEROS,
    '00' * 11 + '02',
    0,
    'c2c64d378cd536374ae204b9ef933fcd1a8b2288b3dfa49672ab765b54ee27c7'
    '8a970e0e955c14f3a88e741b97c286f75f8fc299e8148362fa198a39531bed6d',
  ),
}


class TestBlocks:
  @pytest.mark.parametrize('name', _VECTORS)
  def test_vectors_of_the_rfc(self, name):
    key, nonce, first, expected = _VECTORS[name]
    found = chacha20.blocks(_key(key), _nonce(bytes.fromhex(nonce))[tf.newaxis], 1, first)
    assert found.dtype == tf.uint32 and found.shape == [1, 1, 16]
    assert found.numpy().astype('<u4').tobytes().hex() == expected

  def test_the_counter_goes_up_from_block_to_block(self):
    found = chacha20.blocks(_key(_ZEROS), _nonce(bytes(12))[tf.newaxis], 2).numpy().astype('<u4').tobytes().hex()
    assert found == _VECTORS['A.1, 1'][3] + _VECTORS['A.1, 2'][3]


class TestIntegers:
  @pytest.mark.slow
  @pytest.mark.parametrize('count', [0, 1, 7, 8, 9, 16, 21])
  def test_are_the_words_of_the_stream_in_order(self, count):
    key, nonce = _key(_SEQUENCE), chacha20.nonce(1, 2, 3)
    stream = chacha20.blocks(key, nonce[tf.newaxis], 3).numpy().astype('<u4').tobytes()
    found = chacha20.integers(key, nonce[tf.newaxis], count)[0]
    assert found.dtype == tf.int64
    np.testing.assert_array_equal(found, np.frombuffer(stream, '<i8')[:count])

  @pytest.mark.slow
  @pytest.mark.parametrize('count', [3, 16])
  def test_several_streams_at_once_are_those_of_one_call_each(self, count):
    key, nonces = _key(_SEQUENCE), [chacha20.nonce(1), chacha20.nonce(2, 5), chacha20.nonce(0, 0, 9)]
    found = chacha20.integers(key, tf.stack(nonces), count)
    for own, nonce in zip(found, nonces):
      np.testing.assert_array_equal(own, chacha20.integers(key, nonce[tf.newaxis], count)[0])

  @pytest.mark.slow
  def test_in_a_graph_of_unknown_count(self):
    key, nonce = _key(_SEQUENCE), chacha20.nonce(5)
    traced = tf.function(chacha20.integers, input_signature=[
      tf.TensorSpec([4], tf.int64), tf.TensorSpec([1, 3], tf.uint32), tf.TensorSpec([], tf.int64)
    ])  # fmt: skip
    for count in (0, 3, 40):
      np.testing.assert_array_equal(
        traced(key, nonce[tf.newaxis], count)[0], chacha20.integers(key, nonce[tf.newaxis], count)[0]
      )

  @pytest.mark.slow
  def test_a_stream_for_each_key_and_each_part_of_the_nonce(self):
    nonces = [chacha20.nonce(*parts) for parts in ((), (1,), (0, 1), (0, 0, 1), (2**32 - 1,))]
    keys = [_key(_ZEROS)] + [tf.one_hot(i, 4, dtype=tf.int64) for i in range(4)]
    streams = [chacha20.integers(key, nonce[tf.newaxis], 4)[0] for key in keys for nonce in nonces]
    assert _distinct(streams) == len(streams)

  def test_nonces_by_hand(self):
    np.testing.assert_array_equal(chacha20.nonce(7), np.uint32([7, 0, 0]))
    np.testing.assert_array_equal(chacha20.nonce(tf.constant(2**32 - 1, tf.int64), 1, 2), np.uint32([2**32 - 1, 1, 2]))

  def test_every_bit_is_fair(self):
    words = chacha20.integers(_key(_SEQUENCE), chacha20.nonce()[tf.newaxis], 2**14)[0].numpy()
    ones = np.unpackbits(words.view(np.uint8).reshape(-1, 8), axis=1).sum(axis=0, dtype=np.int64)
    # Each is within five standard deviations, √(n)/2.
    assert (np.abs(ones - 2**13) < 5 * 2**6).all()


class TestKeys:
  @pytest.mark.slow
  def test_derived_keys_differ_by_nonce_and_key(self):
    nonces = [chacha20.nonce(*parts) for parts in ((0,), (1,), (0, 1), (0, 0, 1))]
    keys = [_key(_ZEROS), _key(_SEQUENCE)]
    assert _distinct([*keys, *(chacha20.derived_key(key, nonce) for key in keys for nonce in nonces)]) == 10

  def test_a_derived_key_is_the_first_half_of_a_block(self):
    found = chacha20.derived_key(_key(_ZEROS), chacha20.nonce())
    assert found.numpy().astype('<i8').tobytes().hex() == _VECTORS['A.1, 1'][3][:64]

  def test_a_seed_makes_a_key_reproducible(self):
    first, again = chacha20.initial_key(2**63 - 1, 1), chacha20.initial_key(2**63 - 1, 1)
    assert first.dtype == tf.int64 and first.shape == [4]
    np.testing.assert_array_equal(first, again)
    assert _distinct([first, chacha20.initial_key(5, 1), chacha20.initial_key(5, 2)]) == 3

  @pytest.mark.slow
  def test_without_a_seed_no_two_keys_are_equal(self):
    traced = tf.function(lambda: chacha20.initial_key(None, 1))
    # The graph is traced once: what comes from the operating system then is the same in both runs.
    keys = [chacha20.initial_key(None, 1), chacha20.initial_key(None, 1), traced(), traced()]
    assert _distinct(keys) == 4
    assert all((np.asarray(key) != 0).all() for key in keys)

  def test_two_graphs_do_not_share_the_entropy_of_the_operating_system(self, monkeypatch):
    monkeypatch.setattr(tf.raw_ops, 'NonDeterministicInts', lambda shape, dtype: tf.zeros(shape, dtype))
    assert _distinct([chacha20.initial_key(None, 1) for _ in range(3)]) == 3
