"""Tests of the primitives of the secure sum: key agreement, shares, sealing, and masks between two nodes."""

import itertools

import numpy as np
import pytest

pytest.importorskip('Crypto', reason='The secure sum goes over Flower: make test-deploy sets it up.')
pytest.importorskip('flwr', reason='The secure sum goes over Flower: make test-deploy sets it up.')

from quap_tff.flower.secure_sum import agreement
from quap_tff.flower.secure_sum import masks
from quap_tff.flower.secure_sum import shares

SECRET = bytes(range(32))
PLAIN = shares.Shares(bytes(range(32)), bytes(range(32, 64)))


class TestAgreement:
  def test_both_ends_have_one_key_for_each_purpose(self):
    a, b = agreement.new_private_key(), agreement.new_private_key()
    found = {
      agreement.agreed(own, agreement.public_key(other), purpose)
      for own, other in ((a, b), (b, a))
      for purpose in (agreement.FOR_MASKS, agreement.FOR_SHARES)
    }
    assert len(found) == 2 and {len(key) for key in found} == {agreement.KEY_BYTES}

  @pytest.mark.parametrize('public', [bytes(32), bytes([1, *bytes(31)]), bytes(31), b''])
  def test_refuses_keys_by_which_anybody_knows_the_result(self, public):
    with pytest.raises(ValueError, match='of no small order'):
      agreement.check_public_key(public)


class TestShares:
  @pytest.mark.parametrize('threshold, count', [(2, 2), (2, 3), (3, 4), (4, 4), (7, 9)])
  def test_as_many_as_the_threshold_give_the_secret(self, threshold, count):
    split = dict(enumerate(shares.split(SECRET, threshold, count)))
    for some in itertools.islice(itertools.combinations(split, threshold), 5):
      assert shares.combined({position: split[position] for position in some}) == SECRET
    assert shares.combined(split) == SECRET

  def test_fewer_give_another_one(self):
    split = dict(enumerate(shares.split(SECRET, 3, 4)))
    assert shares.combined({0: split[0], 3: split[3]}) != SECRET

  def test_at_other_positions_give_another_one(self):
    split = dict(enumerate(shares.split(SECRET, 3, 4)))
    # At the points 1, 2 and 3 of this field, all three weights are 1, and nobody could tell.
    assert shares.combined({0: split[1], 1: split[0], 3: split[3]}) != SECRET

  def test_are_drawn_anew(self):
    assert not set(shares.split(SECRET, 3, 4)) & set(shares.split(SECRET, 3, 4))


class TestSealed:
  def test_opens_for_the_same_arguments_alone(self):
    key, session = bytes(32), b'session'
    text = shares.sealed(key, session, 1, 2, PLAIN)
    assert shares.opened(key, session, 1, 2, text) == PLAIN
    others = [
      (bytes([1, *bytes(31)]), session, 1, 2, text),
      (key, b'another', 1, 2, text),
      (key, session, 2, 1, text),
      (key, session, 1, 3, text),
      (key, session, 1, 2, text[:-1]),
      (key, session, 1, 2, text[:-1] + bytes([text[-1] ^ 1])),
      (key, session, 1, 2, b''),
    ]
    for arguments in others:
      with pytest.raises(ValueError, match='is said to be from node'):
        shares.opened(*arguments)

  def test_never_repeats_itself(self):
    one, other = (shares.sealed(bytes(32), b'session', 1, 2, PLAIN) for _ in range(2))
    assert one[:12] != other[:12] and one[12:] != other[12:]


class TestMasks:
  @pytest.mark.parametrize('count', [2, 3, 5])
  def test_between_nodes_cancel(self, count):
    nodes, size, rng = [900 - 7 * number for number in range(count)], 50, np.random.default_rng(0)
    x = {node: rng.integers(0, 2**32, size, dtype=np.uint32) for node in nodes}
    seeds = {node: rng.bytes(32) for node in nodes}
    secrets = {frozenset(pair): rng.bytes(32) for pair in itertools.combinations(nodes, 2)}
    masked = {
      node: masks.masked(
        b's', node, x[node], seeds[node], {other: secrets[frozenset((node, other))] for other in nodes if other != node}
      )
      for node in nodes
    }
    own = [masks.generated(b's', seeds[node], size) for node in nodes]
    np.testing.assert_array_equal(
      np.sum(list(masked.values()), 0, np.uint32) - np.sum(own, 0, np.uint32), sum(x.values())
    )
    # Without its seed, a node's vector is not open even when all others are.
    assert all((masked[node] != x[node]).mean() > 0.9 for node in nodes)

  def test_have_opposite_signs_at_both_ends(self):
    one, other = (masks.between(b's', *pair, SECRET, 4) for pair in ((1, 2), (2, 1)))
    np.testing.assert_array_equal(one + other, np.zeros(4, np.uint32))
    assert one.any()
