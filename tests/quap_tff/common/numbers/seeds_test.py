"""Tests of `quap_tff.common.numbers.seeds`."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from experiments import systems  # noqa: F401 (it has streams of its own)
from quap_tff.common.numbers import seeds


class TestInitialSeed:
  def test_a_given_seed_is_reproducible(self):
    first, second = seeds.initial_seed(42, 'mechanism'), seeds.initial_seed(42, 'mechanism')
    assert first.dtype == tf.int64 and first.shape == [2]
    np.testing.assert_array_equal(first, second)

  def test_seeds_and_streams_differ(self):
    made = {tuple(seeds.initial_seed(s, stream).numpy()) for s, stream in itertools.product(range(5), seeds.STREAMS)}
    assert len(made) == 5 * len(seeds.STREAMS)

  def test_the_largest_seed_fits(self):
    assert seeds.initial_seed(2**63 - 1, 'mechanism').numpy()[0] == 2**63 - 1

  def test_without_a_seed_each_call_differs_in_both_words(self):
    made = np.stack([seeds.initial_seed(None, 'mechanism') for _ in range(20)])
    assert len(set(made[:, 0])) == len(set(made[:, 1])) == 20

  def test_without_a_seed_each_run_of_one_graph_differs(self):
    draw = tf.function(lambda: seeds.initial_seed(None, 'mechanism'))
    assert len({tuple(draw().numpy()) for _ in range(10)}) == 10

  def test_without_a_seed_each_process_differs(self, monkeypatch):
    # TensorFlow's own entropy may be seeded alike; Python's must be in the seed too.
    monkeypatch.setattr(tf.raw_ops, 'NonDeterministicInts', lambda shape, dtype: tf.zeros(shape, dtype))
    made = np.stack([seeds.initial_seed(None, 'mechanism') for _ in range(20)])
    assert len(set(made[:, 0])) == len(set(made[:, 1])) == 20


class TestFoldIn:
  def test_is_a_pure_function(self):
    seed = tf.constant([3, 4], tf.int64)
    folded = seeds.fold_in(seed, 5, tf.constant(6, tf.int32))
    assert folded.dtype == tf.int64 and folded.shape == [2]
    np.testing.assert_array_equal(folded, tf.function(seeds.fold_in)(seed, 5, tf.constant(6, tf.int32)))

  def test_distinct_sequences_give_distinct_seeds(self):
    seed = tf.constant([0, 1], tf.int64)
    sequences = list(itertools.product(range(6), repeat=2)) + [(value,) for value in range(6)] + [()]
    assert len({tuple(seeds.fold_in(seed, *values).numpy()) for values in sequences}) == len(sequences)

  def test_neighbouring_seeds_and_values_do_not_cancel(self):
    # Adding the value to the seed would give [s, 1] + 1 = [s, 2] + 0.
    made = {
      tuple(seeds.fold_in(tf.constant([s0, s1], tf.int64), value).numpy())
      for s0, s1, value in itertools.product(range(4), range(4), range(4))
    }
    assert len(made) == 64

  def test_both_words_depend_on_the_seed(self):
    folded = np.stack([seeds.fold_in(tf.constant(s, tf.int64), 7) for s in ([0, 0], [0, 1], [1, 0], [1, 1])])
    assert len(set(folded[:, 0])) == len(set(folded[:, 1])) == 4


class TestDraws:
  @pytest.mark.parametrize('seed', [(0, 0), (-5, 2**62), (2**63 - 1, -(2**63))])
  @pytest.mark.parametrize('shape', [[], [7], [3, 500]])
  def test_are_those_of_tensorflows_own_functions(self, seed, shape):
    seed = tf.constant(seed, tf.int64)
    integers = tf.random.stateless_uniform(shape, seed, minval=None, maxval=None, dtype=tf.int64, alg='philox')
    normal = tf.random.stateless_normal(shape, seed, dtype=tf.float64, alg='philox')
    for found, expected in ((seeds.integers(seed, shape), integers), (seeds.normal(seed, shape), normal)):
      assert found.dtype == expected.dtype and found.shape == expected.shape
      assert found.numpy().tobytes() == expected.numpy().tobytes()
