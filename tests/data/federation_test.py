import numpy as np
import pytest

from data import federation


def examples(n=3, shape=(2, 2, 1), label=0):
  return federation.Examples(np.full((n,) + shape, 0.5, np.float32), np.full(n, label, np.int32))


def make(**changes):
  arguments = dict(
      name='toy', num_classes=2, client_ids=('a', 'b'), clients=(examples(2), examples(3)), test=examples(1)
  )
  arguments.update(changes)
  return federation.Federation(**arguments)


def test_a_federation_knows_its_size_and_shape():
  fed = make()
  assert (fed.num_clients, fed.num_examples, fed.input_shape) == (2, 5, (2, 2, 1))


def test_arrays_are_contiguous_and_read_only_and_the_callers_stays_writable():
  x = np.zeros([4, 2, 2], np.float32)[::2]
  made = federation.Examples(x, np.zeros(2, np.int32))
  assert made.x.flags.c_contiguous and made.y.flags.c_contiguous
  with pytest.raises(ValueError, match='read-only'):
    made.x[0] = 1
  y = np.zeros(2, np.int32)
  federation.Examples(np.zeros([2, 1], np.float32), y)
  y[0] = 1


@pytest.mark.parametrize('value', [np.nan, np.inf, -np.inf])
def test_a_pixel_that_is_not_finite_is_an_error_naming_the_example(value):
  x = np.zeros([3, 2, 2, 1], np.float32)
  x[1, 1, 0, 0] = value
  with pytest.raises(ValueError, match='NaN or infinity in example 1'):
    federation.Examples(x, np.zeros(3, np.int32))


@pytest.mark.parametrize('x, y, message', [
    (np.zeros([2, 2]), np.zeros(2, np.int32), 'x must be an array of float32, found an array of float64'),
    (np.zeros([2, 2], np.float32), np.zeros(2, np.int64), 'y must be an array of int32, found an array of int64'),
    ([[0.0]], np.zeros(1, np.int32), 'x must be an array of float32, found list'),
    (np.zeros([2, 2], np.float32), np.zeros(3, np.int32), r'x \(2, 2\) and y \(3,\)'),
    (np.zeros([2], np.float32), np.zeros(2, np.int32), 'at least two axes'),
    (np.zeros([2, 2], np.float32), np.zeros([2, 1], np.int32), r'y \(2, 1\)'),
])
def test_examples_of_the_wrong_type_or_shape(x, y, message):
  with pytest.raises(ValueError, match=message):
    federation.Examples(x, y)


@pytest.mark.parametrize('changes, message', [
    (dict(clients=(examples(2), examples(0))), r"client 'b' \(index 1\) has no examples"),
    (dict(test=examples(0)), 'the test set has no examples'),
    (dict(client_ids=(), clients=()), 'at least one client'),
    (dict(client_ids=('a',)), 'found 1 ids and 2 clients'),
    (dict(client_ids=('a', 'a')), "'a' twice"),
    (dict(clients=(examples(2), examples(2, shape=(3, 2, 1)))), r"client 'b' \(index 1\) has \(3, 2, 1\)"),
    (dict(test=examples(2, shape=(4,))), r'the test set has \(4,\)'),
    (dict(clients=(examples(2), examples(2, label=2))), r"\[0, 2\); client 'b' \(index 1\) has labels from 2 to 2"),
    (dict(test=examples(1, label=-1)), 'the test set has labels from -1 to -1'),
    (dict(num_classes=0), 'num_classes must be an integer at least 1'),
])
def test_a_bad_federation_is_an_error_that_names_the_place(changes, message):
  with pytest.raises(ValueError, match=message):
    make(**changes)
