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


@pytest.mark.parametrize(
  'x, y, message',
  [
    (np.zeros([2, 2]), np.zeros(2, np.int32), 'x must be an array of float32, found an array of float64'),
    (np.zeros([2, 2], np.float32), np.zeros(2, np.int64), 'y must be an array of int32, found an array of int64'),
    ([[0.0]], np.zeros(1, np.int32), 'x must be an array of float32, found list'),
    (np.zeros([2, 2], np.float32), np.zeros(3, np.int32), r'x \(2, 2\) and y \(3,\)'),
    (np.zeros([2], np.float32), np.zeros(2, np.int32), 'at least two axes'),
    (np.zeros([2, 2], np.float32), np.zeros([2, 1], np.int32), r'y \(2, 1\)'),
  ],
)
def test_examples_of_the_wrong_type_or_shape(x, y, message):
  with pytest.raises(ValueError, match=message):
    federation.Examples(x, y)


@pytest.mark.parametrize(
  'changes, message',
  [
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
  ],
)
def test_a_bad_federation_is_an_error_that_names_the_place(changes, message):
  with pytest.raises(ValueError, match=message):
    make(**changes)


def sequence(n, length=3, token=1, label=2):
  return federation.Examples(np.full((n, length), token, np.int32), np.full((n, length), label, np.int32))


class TestSequences:
  def test_are_recognised_by_their_type(self):
    fed = make(clients=(sequence(2), sequence(1)), test=sequence(1), num_classes=3)
    assert fed.is_sequences and fed.input_shape == (3,) and not make().is_sequences

  def test_labels_leave_out_padding(self):
    y = np.array([[1, 2, -1], [0, -1, -1]], np.int32)
    np.testing.assert_array_equal(federation.Examples(np.zeros((2, 3), np.int32), y).labels, [1, 2, 0])

  @pytest.mark.parametrize(
    'clients, words',
    [
      ((sequence(1), sequence(1, token=3)), r'tokens must be in \[0, 3\); client .b. .* from 3 to 3'),
      ((sequence(1), sequence(1, label=3)), r'labels must be in \[0, 3\); client .b. .* from 3 to 3'),
      ((sequence(1), sequence(1, label=-2)), r'labels must be in \[0, 3\)'),
      ((sequence(1), sequence(1, length=4)), r'all examples must have one shape'),
    ],
  )
  def test_errors(self, clients, words):
    with pytest.raises(ValueError, match=words):
      make(clients=clients, test=sequence(1), num_classes=3)

  def test_kinds_are_not_mixed(self):
    numbers = federation.Examples(np.zeros((1, 3), np.float32), np.zeros(1, np.int32))
    with pytest.raises(ValueError, match=r"client 'b' .* has numbers, the first client sequences"):
      make(clients=(sequence(1), numbers), test=sequence(1), num_classes=3)

  def test_labels_of_another_shape(self):
    with pytest.raises(ValueError, match=r'both be \[n, length\], found x \(1, 3\) and y \(1,\)'):
      federation.Examples(np.zeros((1, 3), np.int32), np.zeros(1, np.int32))


class TestOnDemand:
  def on_demand(self, read, count=2, digest=b'source'):
    return make(clients=federation.OnDemand(count, read, digest))

  def test_reads_a_client_each_time_and_only_when_asked(self):
    read = []
    fed = self.on_demand(lambda i: read.append(i) or examples(i + 1))
    assert read == [0]  # For the shape of an example.
    assert [len(client) for client in fed.clients] == [1, 2] and len(fed.clients[1]) == 2
    assert read == [0, 0, 1, 1] and fed.num_examples is None

  def test_a_bad_client_is_found_when_it_is_read(self):
    fed = self.on_demand(lambda i: examples(1 - i))
    with pytest.raises(ValueError, match=r"client 'b' \(index 1\) has no examples"):
      fed.clients[1]

  def test_there_are_no_clients_beyond(self):
    fed = self.on_demand(lambda i: examples(1))
    for index in (2, -1):
      with pytest.raises(IndexError, match='numbered from 0 to 1'):
        fed.clients[index]

  def test_the_digest_is_of_the_source(self):
    one = lambda source: self.on_demand(lambda i: examples(1), digest=source).digest()
    assert one(b'a') == one(b'a') != one(b'b')


@pytest.mark.parametrize(
  'changes',
  [
    dict(clients=(examples(2), examples(3, label=1))),
    dict(clients=(examples(3), examples(2))),
    dict(client_ids=('a', 'c')),
    dict(test=examples(1, label=1)),
    dict(auxiliary=examples(1)),
    dict(clients=(examples(2), federation.Examples(np.full((3, 2, 2, 1), 0.25, np.float32), np.zeros(3, np.int32)))),
  ],
  ids=['labels', 'who has what', 'names', "the test's labels", "the server's examples", 'inputs'],
)
def test_whatever_is_trained_or_tested_on_changes_the_digest(changes):
  assert make().digest() == make().digest() != make(**changes).digest()


def test_numbered_ids():
  ids = federation.NumberedIds(11)
  assert (ids[0], ids[10], len(ids)) == ('client_00', 'client_10', 11)
  with pytest.raises(IndexError):
    ids[11]
