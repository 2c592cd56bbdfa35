"""Tests of `experiments.systems.malicious`: who attacks, and what is sent."""

import numpy as np
import pytest

from experiments.systems import malicious
from quap_tff.common.lazy import tf
from quap_tff.training import malicious as malicious_lib

_ALL = (malicious.SignFlip(), malicious.Scaling(), malicious.LabelFlip())


class TestClients:
  @pytest.mark.parametrize('share, count', [(0.0, 0), (0.2, 2), (0.25, 3), (0.04, 0), (1.0, 10)])
  def test_the_share_is_rounded_to_a_number_of_clients(self, share, count):
    found = malicious.SignFlip(share).clients(10, 7)
    assert len(found) == count and len(set(found.tolist())) == count
    assert ((found >= 0) & (found < 10)).all() and (np.sort(found) == found).all()

  def test_it_follows_from_the_seed_alone(self):
    first, again, other = (malicious.SignFlip(0.3).clients(100, seed) for seed in (5, 5, 6))
    np.testing.assert_array_equal(first, again)
    assert first.tolist() != other.tolist()
    np.testing.assert_array_equal(malicious.LabelFlip(0.3).clients(100, 5), first)

  def test_a_larger_share_contains_a_smaller_one(self):
    small, large = (set(malicious.SignFlip(share).clients(50, 1).tolist()) for share in (0.1, 0.4))
    assert small < large

  def test_nobody_by_default(self):
    assert not len(malicious_lib.NoAttack().clients(100, 5))


class TestAttacks:
  def test_sign_flip(self):
    update = [tf.constant([1.0, -2.0]), tf.constant(3.0)]
    found = malicious.SignFlip(factor=2.0).changed_update(update)
    assert found[0].numpy().tolist() == [-2, 4] and float(found[1]) == -6

  def test_scaling(self):
    assert malicious.Scaling(factor=10.0).changed_update([tf.constant([1.0, -2.0])])[0].numpy().tolist() == [10, -20]

  def test_label_flip(self):
    found = malicious.LabelFlip().changed_labels(np.array([0, 3, 9], np.int32), 10)
    assert found.tolist() == [9, 6, 0] and found.dtype == np.int32

  def test_what_each_changes(self):
    assert [attack.changes_updates for attack in _ALL] == [True, True, False]
    labels = np.array([1, 2], np.int32)
    assert [attack.changed_labels(labels, 3) is labels for attack in _ALL] == [True, True, False]

  @pytest.mark.parametrize(
    'make, message',
    [
      (lambda: malicious.SignFlip(1.5), 'share of malicious clients'),
      (lambda: malicious.LabelFlip(-0.1), 'share of malicious clients'),
      (lambda: malicious.SignFlip(factor=0.0), 'factor of sign_flip'),
      (lambda: malicious.Scaling(factor=float('inf')), 'factor of scaling'),
    ],
  )
  def test_bad_parameters(self, make, message):
    with pytest.raises(ValueError, match=message):
      make()
