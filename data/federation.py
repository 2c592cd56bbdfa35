"""A federation: the examples of each client, and one test set that no client holds.

Clients' examples are in memory (a tuple of `Examples`), or are read or made when they are asked for (`OnDemand`).
"""

from collections.abc import Sequence
import dataclasses
import functools
import hashlib
from typing import Callable, Optional, TypeVar

import numpy as np

from quap_tff.common import checks

_T = TypeVar('_T')

# The label of a place in a sequence after which nothing follows. Losses and accuracies leave it out.
NO_LABEL = -1


@dataclasses.dataclass(frozen=True, eq=False)
class Examples:
  """Labelled examples as two contiguous, read-only arrays.

  Attributes:
    x: float32[n, ...]; images are scaled to [0, 1] and have their channel axis last. Or int32[n, length], sequences of
      tokens.
    y: int32[n], class labels from 0. For sequences int32[n, length], the token that follows each token, or `NO_LABEL`.
  """

  x: np.ndarray
  y: np.ndarray

  def __post_init__(self) -> None:
    for name, dtypes in (('x', (np.float32, np.int32)), ('y', (np.int32,))):
      value = getattr(self, name)
      if not isinstance(value, np.ndarray) or value.dtype not in dtypes:
        kind = f'an array of {value.dtype}' if isinstance(value, np.ndarray) else type(value).__name__
        raise ValueError(f'{name} must be an array of {np.dtype(dtypes[0]).name}, found {kind}.')
      # A new view, so that the caller's array stays writable and this one is not.
      view = np.ascontiguousarray(value).view()
      view.setflags(write=False)
      object.__setattr__(self, name, view)
    if self.is_sequences:
      if self.x.ndim != 2 or self.y.shape != self.x.shape:
        raise ValueError(
          f'Sequences x and their labels y must both be [n, length], found x {self.x.shape} and y {self.y.shape}.'
        )
      return
    if self.x.ndim < 2 or self.y.ndim != 1 or len(self.x) != len(self.y):
      raise ValueError(
        f'x must be [n, ...] with at least two axes and y [n], found x {self.x.shape} and y {self.y.shape}.'
      )
    # Minimum and maximum show NaN and infinity without a temporary array as large as the data.
    if self.x.size and not (np.isfinite(self.x.min()) and np.isfinite(self.x.max())):
      bad = int(np.flatnonzero(~np.isfinite(self.x.reshape(len(self.x), -1)).all(axis=1))[0])
      raise ValueError(f'x must be finite, found NaN or infinity in example {bad}.')

  def __len__(self) -> int:
    return len(self.y)

  @property
  def is_sequences(self) -> bool:
    """True if the examples are sequences of tokens."""
    return self.x.dtype == np.int32

  @property
  def labels(self) -> np.ndarray:
    """int32[k], all labels that say something: `y` without `NO_LABEL`, flat."""
    return self.y[self.y != NO_LABEL] if self.is_sequences else self.y


def together(parts: Sequence[Examples]) -> Examples:
  """The examples of all parts, one part after the other; at least one part."""
  x = np.concatenate([part.x for part in parts])
  return Examples(x, np.concatenate([part.y for part in parts]))


class _Numbered(Sequence[_T]):
  """One value for each of N clients, made each time it is asked for. None are kept."""

  def __init__(self, count: int, make: Callable[[int], _T]):
    self._count, self._make = checks.integer('clients', count, at_least=1), make

  def __len__(self) -> int:
    return self._count

  def __getitem__(self, index: int) -> _T:  # type: ignore[override]  # It has no slices.
    # A sequence ends with an IndexError, or a loop over it would never end.
    if not 0 <= index < self._count:
      raise IndexError(f'Clients are numbered from 0 to {self._count - 1}, found {index}.')
    return self._make(int(index))


class OnDemand(_Numbered[Examples]):
  """Clients whose examples are read or made each time they are asked for.

  Args:
    count: N.
    read: The examples of client i in [0, N), the same at each call; it may be called from several threads.
    digest: Identifies the examples by their source, because they are never all in memory to be hashed.
  """

  def __init__(self, count: int, read: Callable[[int], Examples], digest: bytes):
    super().__init__(count, read)
    self.digest = digest

  def checked(self, check: Callable[[int, Examples], None]) -> 'OnDemand':
    """A copy whose clients are checked as they are read."""

    def read(index: int) -> Examples:
      examples = self._make(index)
      check(index, examples)
      return examples

    return OnDemand(self._count, read, self.digest)


class NumberedIds(_Numbered[str]):
  """The ids of N clients without names, such as `client_0012`."""

  def __init__(self, count: int):
    digits = len(str(count - 1))
    super().__init__(count, lambda index: f'client_{index:0{digits}d}')


@dataclasses.dataclass(frozen=True, eq=False)
class Federation:
  """Clients with their training examples, and the test set.

  Attributes:
    name: The dataset, for reports.
    num_classes: Labels are in [0, num_classes).
    client_ids: One distinct name for each client; client i of the mechanism is `client_ids[i]`.
    clients: The training examples of each client, in the order of `client_ids`; none is empty. Those of an `OnDemand`
      are checked as they are read.
    test: The test examples.
    test_set: Whose examples the test set holds, a sentence.
    test_is_of_clients: Whether they are the clients' own, held back from training. Then a figure on the test set is an
      exact function of clients' data.
    partition: How the examples were given to the clients: a partition spec, or `natural`.
    features: What replaces the examples: a features spec, or `none` for the examples themselves.
    auxiliary: Examples of people who are not clients, which the server has; taken as public. None if there are none.
    public_data: Sentences on the data that the features were learned from, taken as public; '' if there are none.
  """

  name: str
  num_classes: int
  client_ids: Sequence[str]
  clients: Sequence[Examples]
  test: Examples
  partition: str = 'natural'
  features: str = 'none'
  auxiliary: Optional[Examples] = None
  public_data: str = ''
  test_set: str = 'Examples that no client holds.'
  test_is_of_clients: bool = False

  def __post_init__(self) -> None:
    numbered = isinstance(self.client_ids, NumberedIds)
    if not numbered:
      object.__setattr__(self, 'client_ids', tuple(self.client_ids))
    if not self.is_on_demand:
      object.__setattr__(self, 'clients', tuple(self.clients))
    checks.integer('num_classes', self.num_classes, at_least=1)
    if not self.clients:
      raise ValueError(f'{self.name}: a federation needs at least one client, found none.')
    if len(self.client_ids) != len(self.clients):
      raise ValueError(
        f'{self.name}: each client needs one id, found {len(self.client_ids)} ids and {len(self.clients)} clients.'
      )
    seen = set()
    for client_id in () if numbered else self.client_ids:
      if client_id in seen:
        raise ValueError(f'{self.name}: client ids must be distinct, found {client_id!r} twice.')
      seen.add(client_id)
    if isinstance(self.clients, OnDemand):
      # The first client is read, and kept, before a check that compares others with it runs at each read.
      self._check_client(0, self._first)
      object.__setattr__(self, 'clients', self.clients.checked(self._check_client))
    else:
      for index, examples in enumerate(self.clients):
        self._check_client(index, examples)
    self._check('the test set', self.test)
    if self.auxiliary is not None:
      self._check("the server's auxiliary set", self.auxiliary)

  def _check_client(self, index: int, examples: Examples) -> None:
    self._check(f'client {self.client_ids[index]!r} (index {index})', examples)

  def _check(self, whose: str, examples: Examples) -> None:
    if not len(examples):
      raise ValueError(f'{self.name}: {whose} has no examples; each client and the test set need at least one.')
    if examples.x.shape[1:] != self.input_shape:
      raise ValueError(
        f'{self.name}: all examples must have one shape; {whose} has {examples.x.shape[1:]}, the first client '
        f'{self.input_shape}.'
      )
    if examples.is_sequences != self.is_sequences:
      kinds = {True: 'sequences of tokens', False: 'numbers'}
      raise ValueError(
        f'{self.name}: all examples must be of one kind; {whose} has {kinds[examples.is_sequences]}, the first '
        f'client {kinds[self.is_sequences]}.'
      )
    if self.is_sequences and (examples.x.min() < 0 or examples.x.max() >= self.num_classes):
      raise ValueError(
        f'{self.name}: tokens must be in [0, {self.num_classes}); {whose} has tokens from {examples.x.min()} to '
        f'{examples.x.max()}.'
      )
    if examples.y.min() < (NO_LABEL if self.is_sequences else 0) or examples.y.max() >= self.num_classes:
      raise ValueError(
        f'{self.name}: labels must be in [0, {self.num_classes}); {whose} has labels from {examples.y.min()} to '
        f'{examples.y.max()}.'
      )

  @functools.cached_property
  def _first(self) -> Examples:
    return self.clients[0]

  @property
  def num_clients(self) -> int:
    return len(self.clients)

  @property
  def input_shape(self) -> tuple[int, ...]:
    """The shape of one example, without the batch axis."""
    return self._first.x.shape[1:]

  @property
  def is_sequences(self) -> bool:
    """True if the examples are sequences of tokens, of which `num_classes` is the vocabulary."""
    return self._first.is_sequences

  @property
  def is_on_demand(self) -> bool:
    """True if clients' examples are read when they are asked for."""
    return isinstance(self.clients, OnDemand)

  @property
  def num_examples(self) -> Optional[int]:
    """Number of training examples of all clients together; None if one would have to read them all to know."""
    return None if self.is_on_demand else sum(map(len, self.clients))

  def digest(self) -> bytes:
    """SHA-256 of all examples, client by client, and of the test set; an exact function of clients' data.

    For clients on demand, the digest of their source takes the place of their examples.
    """
    sha256 = hashlib.sha256()
    auxiliary = [] if self.auxiliary is None else [('', self.auxiliary)]
    clients = [] if isinstance(self.clients, OnDemand) else zip(self.client_ids, self.clients)
    if isinstance(self.clients, OnDemand):
      sha256.update(self.clients.digest)
    for name, examples in (*clients, ('', self.test), *auxiliary):
      sha256.update(f'{name}\0{examples.x.shape}\0'.encode())
      sha256.update(examples.x.data)
      sha256.update(examples.y.data)
    return sha256.digest()
