"""Text as sequences of tokens: the same as TFF's own preprocessing, and labels where something follows."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated.python.simulation.baselines.shakespeare import char_prediction_preprocessing
from tensorflow_federated.python.simulation.baselines.stackoverflow import word_prediction_preprocessing

from data.datasets import sequences

_SPEECHES = [b'To be,', b'x', b'or not \xe2 to be: that is']


def _of_tff(preprocess, features, length):
  dataset = preprocess(tf.data.Dataset.from_tensor_slices(features))
  batches = list(dataset.as_numpy_iterator())
  x, y = (np.concatenate([batch[i] for batch in batches]) for i in range(2))
  assert x.shape[1] == length
  return x, y


def _spec():
  return tff.simulation.baselines.ClientSpec(num_epochs=1, batch_size=4, shuffle_buffer_size=1)


@pytest.mark.parametrize('length', [3, 80])
def test_speeches_are_cut_as_by_tff(length):
  preprocess = char_prediction_preprocessing.create_preprocess_fn(_spec(), length)
  x, y = _of_tff(preprocess, {'snippets': _SPEECHES}, length)
  found = sequences.of_speeches(_SPEECHES, length)
  assert (found.x.dtype, found.y.dtype) == (np.int32, np.int32)
  np.testing.assert_array_equal(found.y == -1, y == sequences.PADDING)
  assert (found.y == -1).any()
  # The order of TFF's vocabulary is another: one token follows from the other, both ways.
  theirs, own = (np.concatenate([a.ravel(), b.ravel()]) for a, b in ((x, y), (found.x, found.y * (found.y >= 0))))
  same = dict(zip(theirs.tolist(), own.tolist()))
  np.testing.assert_array_equal([same[token] for token in theirs], own)
  assert len(set(same.values())) == len(same)


def test_the_vocabulary_is_that_of_tff_s_baseline():
  assert set(sequences.CHARACTERS) == set(char_prediction_preprocessing.CHAR_VOCAB)
  assert sequences.CHARACTER_TOKENS == tff.simulation.baselines.shakespeare.VOCAB_LENGTH == 90


def test_a_label_is_the_next_character():
  found = sequences.of_speeches([b'abcde'], 3)
  a, b, c, d, e = (sequences.CHARACTERS.index(letter) + 1 for letter in 'abcde')
  start, end = 88, 89
  # Start a b c | d e end, padding: the last of four is a label only.
  np.testing.assert_array_equal(found.x, [[start, a, b], [d, e, end]])
  np.testing.assert_array_equal(found.y, [[a, b, c], [e, end, -1]])


def test_an_unknown_character_has_a_token_of_its_own():
  assert sequences.of_speeches([b'\xe2'], 3).x[0, 1] == 87


def test_no_speech():
  assert sequences.of_speeches([], 5).x.shape == (0, 5)


@pytest.mark.parametrize('length', [1, 6])
def test_sentences_are_cut_as_by_tff(length):
  sentences = [b'the code is the code', b'unheard of', b'is']
  preprocess = word_prediction_preprocessing.create_preprocess_fn(_spec(), ['the', 'is', 'code'], length)
  x, y = _of_tff(preprocess, {'tokens': sentences}, length)
  vocabulary = sequences.Vocabulary(['the', 'is', 'code'])
  found = sequences.of_sentences(sentences, vocabulary, length)
  np.testing.assert_array_equal(found.x, x)
  np.testing.assert_array_equal(found.y, np.where(y == 0, -1, y))
  assert vocabulary.num_tokens == 7
