"""A log of who took part in which round, and what each client has spent. It needs memory for the clients, not the rows.

    round,client,weight,released
    1,alice,1,yes
    1,bob,0.5,yes
    2,,,yes
    3,alice,1,yes

A client is any text. A row without a client stands for nobody, and is the only row of its round. `weight` and
`released` may be left out, and other columns are not read. Without `weight` each client has the weight 1. `released`
is yes or no, and the same in all rows of a round. Without it, a round has released something if somebody has a weight.
Rounds are numbered from 0 or 1, without a gap, in their order: every round that released noise has a number.
A file whose name ends in .gz is gzipped.
"""

import collections
from collections.abc import Iterator, Sequence
import contextlib
import csv
import gzip
import itertools
import re
from typing import Any, NamedTuple, NoReturn, Optional
import unicodedata
import zlib

import numpy as np

from quap_tff.common import characters
from quap_tff.common import checks
from quap_tff.mechanisms import mechanism
from quap_tff.mechanisms.certified import spending as spendings
from quap_tff.mechanisms.noise import correlation as correlations

# Rows that are read at once. More take longer, because memory is slower than a processor's caches.
_CHUNK = 2**10
_DIGITS = 18
# Texts of the column `released`; '' if there is no such column.
_RELEASED = {'yes': 1, 'no': 0, '': -1}
# A name that is a number, which a spreadsheet may write in another way. A large one gets E and a sign;
# without a sign, as in 1e5, the name may be hexadecimal.
_NUMBER = re.compile(r'([+-]?)([0-9]*)(?:\.([0-9]*))?(?:e([+-][0-9]{1,3}))?')
# So many spellings of a client does an error show.
_SHOWN = 8


# The first line of a log that the project writes. `row_texts` gives the others.
HEADER = 'round,client,weight,released\n'


def row_texts(number: int, record: mechanism.RoundRecord) -> list[str]:
  """The rows of a round, by client, with all digits of the weights.

  Args:
    number: The round's number.
    record: The round, whose clients are ids.
  """
  says = 'yes' if record.releases else 'no'
  order = np.argsort(record.cohort)
  ids = np.asarray(record.cohort)[order].tolist()
  weights = np.asarray(record.weights, np.float64)[order].tolist()
  rows = [f'{number},{client},{weight!r},{says}\n' for client, weight in zip(ids, weights)]
  # A round to which nobody came has a row, too: rounds have no gaps.
  return rows or [f'{number},,,{says}\n']


class AmbiguousNameError(Exception):
  """A name that cannot be told from another one: (the cell, the other name), or (the cell, None) without any other."""


class Places(dict[str, int]):
  """The place of each client by what a cell says, spaces around it included; -1 for nobody.

  No two names can be taken for each other: one that could raises `AmbiguousNameError`.

  Attributes:
    names: The clients, stripped, by place.
  """

  def __init__(self) -> None:
    super().__init__({'': -1})
    self.names: list[str] = []
    # The places of names that are not their own keys.
    self._keys: dict[str, int] = {}

  def __missing__(self, text: str) -> int:
    name = text.strip()
    if name != text:
      self[text] = place = self[name]
      return place
    folded = _folded(name)
    if not folded:
      raise AmbiguousNameError(text, None)
    same = self._keys.get(folded, self.get(folded))
    if same is not None:
      raise AmbiguousNameError(text, self.names[same])
    place = self[name] = len(self.names)
    self.names.append(name)
    if folded != name:
      self._keys[folded] = place
    return place


def _folded(name: str) -> str:
  """The name without case, spaces and invisible characters, in one form of Unicode, and numbers written in one way."""
  if name.isascii():
    folded = name.lower()
    if ' ' in name or not name.isprintable():
      folded = _visible(folded)
  else:
    folded = unicodedata.normalize('NFKC', _visible(name)).casefold()
    folded = _visible(unicodedata.normalize('NFKC', folded))
  return _plain_number(folded)


def _visible(text: str) -> str:
  return ''.join(c for c in text if unicodedata.category(c) != 'Zs' and not characters.is_unseen(c))


def _plain_number(name: str) -> str:
  """A number as `7` or `-0.5`: 007, 07, 7.0 and +7 are 7. Other names as they are."""
  if name.isdecimal() and name[0] != '0':  # Most names that are numbers are written so.
    return name
  match = _NUMBER.fullmatch(name)
  if match is None or not (match[2] or match[3]):
    return name
  whole, fraction = match[2], match[3] or ''
  digits = (whole + fraction).rstrip('0')
  num_zeros = len(digits) - len(digits.lstrip('0'))
  # The number is 0.digits times a power of ten.
  power = len(whole) + int(match[4] or 0) - num_zeros
  digits = digits.lstrip('0')
  if not digits:
    return '0'
  before = digits[: max(power, 0)].ljust(power, '0') or '0'
  after = '0' * -power + digits[max(power, 0) :]
  sign = '-' if match[1] == '-' else ''
  return f'{sign}{before}.{after}'.rstrip('.')


class LogError(ValueError):
  """A log that cannot be read. The message names the line."""


class LoggedRound(NamedTuple):
  """A round of a log.

  Attributes:
    ids: int64[M], the places of its clients in `Log.names`.
    weights: float64[M] in [0, 1].
    released: Whether the round released anything: noise alone counts.
  """

  ids: np.ndarray
  weights: np.ndarray
  released: bool


class _Rows(NamedTuple):
  """Rows of one round: int64[M] places of clients, -1 for nobody; float64[M] weights; int8[M], see `_RELEASED`."""

  ids: np.ndarray
  weights: np.ndarray
  released: np.ndarray


class Log:
  """A log in a CSV file.

  Attributes:
    path: The file.
    names: The clients that were read so far, in the order in which they came first.
  """

  def __init__(self, path: str):
    self.path = path
    self._places = Places()

  @property
  def has_released(self) -> bool:
    """True if there is a column `released`."""
    with self._opened() as (_, rows):
      return 'released' in self._columns(next(rows, []))

  @property
  def names(self) -> Sequence[str]:
    return list(self._places.names)

  @property
  def num_clients(self) -> int:
    """How many clients were read so far."""
    return len(self._places.names)

  def rounds(self) -> Iterator[LoggedRound]:
    """The rounds, from the first line on; each call reads the file anew.

    Raises:
      LogError: For a row that cannot be read, a gap between rounds, a client twice in a round or under two spellings, a
        round that contradicts itself, or a file without rows.
      OSError: If the file cannot be read.
    """
    self._places = Places()
    number: Optional[int] = None
    parts: list[_Rows] = []
    row = 0
    for texts, rows in self._blocks():
      starts = [0, *(np.flatnonzero(texts[1:] != texts[:-1]) + 1).tolist()]
      ends = [*starts[1:], len(texts)]
      for begin, end in zip(starts, ends):
        current = self._number(texts[begin], row + begin)
        # The same round may go on from the block before, or be written in another way, such as 1 and 01.
        if current != number:
          if number is not None:
            yield self._round(parts, row + begin)
          self._check_follows(number, current, row + begin)
          number, parts = current, []
        parts.append(_Rows(*(column[begin:end] for column in rows)))
      row += len(texts)
    if number is None:
      raise LogError(f'{self.path} has no rows. It must have one row for each client in each round.')
    yield self._round(parts, row)

  def _blocks(self) -> Iterator[tuple[np.ndarray, _Rows]]:
    """Blocks of rows: the texts of rounds, and the rest."""
    with self._opened() as (_, rows):
      header, row = next(rows, []), 0
      columns = self._columns(header)
      while block := list(itertools.islice(rows, _CHUNK)):
        lengths = list(map(len, block))
        if set(lengths) != {len(header)}:
          wrong = next(index for index, length in enumerate(lengths) if length != len(header))
          self._fail(row + wrong, f'it must have {len(header)} cells as the header has, found {lengths[wrong]}.')
        cells = list(zip(*block))
        numbers = cells[columns['round']]
        # An array of texts has room for the longest in each of its entries.
        if max(map(len, numbers)) > _DIGITS:
          longest = max(numbers, key=len)
          self._number(longest, row + numbers.index(longest))
        places = self._placed(cells[columns['client']], row)
        weight_texts = cells[columns['weight']] if 'weight' in columns else None
        weights = self._weights(weight_texts, places, row)
        released = np.full(len(block), _RELEASED[''], np.int8)
        if 'released' in columns:
          released = self._released(cells[columns['released']], row)
        yield np.array(numbers), _Rows(places, weights, released)
        row += len(block)

  def _columns(self, header: Sequence[str]) -> dict[str, int]:
    """The place of each column by its name."""
    names = list(map(_folded, header))
    for place, name in enumerate(names):
      if name and name in names[:place]:
        raise LogError(
          f'{self.path}, line 1: the header names a column twice, {header[names.index(name)]!a} and '
          f'{header[place]!a}. Remove one of them, or give it another name.'
        )
    if not {'round', 'client'} <= set(names):
      raise LogError(
        f'{self.path}, line 1: the header must name the columns round and client, and weight if there are weights, '
        f'found {",".join(header)[:200]!r}.'
      )
    return {name: place for place, name in enumerate(names)}

  def _placed(self, names: Sequence[str], row: int) -> np.ndarray:
    try:
      return np.fromiter(map(self._places.__getitem__, names), np.int64, len(names))
    except AmbiguousNameError as error:
      text, other = error.args
    stripped = text.strip()
    wrong = row + [name.strip() for name in names].index(stripped)
    if other is None:
      self._fail(wrong, f'its client {text!a} has no visible character. Leave the cell empty if nobody came.')
    spellings = self._spellings(stripped)
    self._fail(
      wrong,
      f'its client {stripped!a} and the client {other!a} of line {self._line_of(other)} differ only by case, spaces, '
      'invisible characters, a form of Unicode, or zeros of a number, which a spreadsheet strips. The log has '
      f'{", ".join(map(ascii, spellings))}. If they are one client, write it in one way; if not, give them names that '
      'differ by more.',
    )

  def _spellings(self, name: str) -> list[str]:
    """The names in the whole file that can be taken for this one, the first few of them."""
    found: dict[str, None] = {}
    folded = _folded(name)
    with self._opened() as (_, rows):
      place = self._columns(next(rows))['client']
      for cells in rows:
        spelling = cells[place].strip() if len(cells) > place else ''
        if spelling not in found and _folded(spelling) == folded:
          found[spelling] = None
    return list(found)[:_SHOWN]

  def _weights(self, texts: Optional[Sequence[str]], places: np.ndarray, row: int) -> np.ndarray:
    nobody = places < 0
    if texts is None:
      return np.where(nobody, 0.0, 1.0)
    weights = np.array(list(map(_weight, texts)))
    # Python would read 0_1 and Arabic digits as numbers. To look at all texts at once is faster, and mostly enough.
    together = ''.join(texts)
    if '_' in together or not together.isascii():
      weights[['_' in text or not text.isascii() for text in texts]] = np.nan
    if nobody.any():
      weights[nobody & [not text.strip() for text in texts]] = 0.0
      if (weights[nobody] > 0).any():
        wrong = int(np.flatnonzero(nobody & (weights > 0))[0])
        self._fail(
          row + wrong,
          f'it has a weight of {texts[wrong].strip()}, but no client. Name the client, or leave both empty.',
        )
    if not (weights >= 0).all():  # NaN is not.
      wrong = int(np.argmin(weights >= 0))
      self._fail(row + wrong, f'a weight must be a number from 0 to 1, found {texts[wrong][:100]!r}.')
    return weights

  def _released(self, texts: Sequence[str], row: int) -> np.ndarray:
    known = {text: _RELEASED.get(text.strip().lower()) for text in set(texts)}
    for text, value in known.items():
      if value is None or value == _RELEASED['']:
        self._fail(row + texts.index(text), f'released must be yes or no, found {text[:100]!r}.')
    return np.fromiter(map(known.__getitem__, texts), np.int8, len(texts))

  def _number(self, text: Any, row: int) -> int:
    try:
      return checks.integer('round', checks.parsed_number(str(text), int), at_least=0, at_most=10**_DIGITS)
    except ValueError:
      self._fail(row, f'a round must be a number such as 1, found {str(text)[:100]!r}.')

  def _check_follows(self, before: Optional[int], number: int, row: int) -> None:
    if before is None and number > 1:
      self._fail(row, f'the first round must have the number 0 or 1, found {number}. Give the log from its beginning.')
    if before is not None and number != before + 1:
      self._fail(
        row,
        f'round {before + 1} must follow round {before}, found round {number}. Sort the rows by round, and number all '
        'rounds without a gap. A round to which nobody came has a row with an empty client.',
      )

  def _round(self, parts: Sequence[_Rows], end: int) -> LoggedRound:
    ids, weights, released = parts[0] if len(parts) == 1 else map(np.concatenate, zip(*parts))
    begin = end - len(ids)
    ordered = np.sort(ids)
    if ordered[0] < 0 and len(ids) > 1:
      self._fail(
        begin + int(np.argmin(ids)),
        'it names no client, but its round has other rows. A row without a client stands for nobody, and must be the '
        'only row of its round. Name the client, or leave the row out.',
      )
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(twice):
      self._fail(
        begin + int(np.flatnonzero(ids == twice[0])[1]),
        f'client {self._places.names[twice[0]]!r} is in this round already. A client can be in a round only once.',
      )
    if (released != released[0]).any():
      self._fail(
        begin + int(np.argmax(released != released[0])),
        'its cell released is not that of the first row of its round. A round has released something, or has not: '
        'write the same in all of its rows.',
      )
    somebody = weights > 0
    if released[0] == _RELEASED['no'] and somebody.any():
      self._fail(
        begin + int(np.argmax(somebody)),
        'its client has a weight in a round that released nothing. Write yes if anything was released. Otherwise write '
        'a weight of 0 for each client of the round.',
      )
    is_released = bool(somebody.any())
    if released[0] != _RELEASED['']:
      is_released = bool(released[0])
    if ids[0] < 0:  # The row of a round to which nobody came.
      ids, weights = ids[:0], weights[:0]
    return LoggedRound(ids, weights, is_released)

  def _line_of(self, name: str) -> int:
    """The line of a client's first row. The file is read again."""
    with self._opened() as (reader, rows):
      place = self._columns(next(rows))['client']
      next(cells for cells in rows if cells[place].strip() == name)
      return reader.line_num

  def _fail(self, row: int, problem: str) -> NoReturn:
    """Raises the error of a row, counted from 0. Its line is found by reading the file again."""
    with self._opened() as (reader, rows):
      collections.deque(itertools.islice(rows, int(row) + 2), 0)
      raise LogError(f'{self.path}, line {reader.line_num}: {problem}')

  @contextlib.contextmanager
  def _opened(self) -> Iterator[tuple[Any, Iterator[list[str]]]]:
    """A reader of the file, and its rows with the header, but without empty lines."""
    with _open(self.path, encoding='utf-8-sig') as f:
      reader = csv.reader(f, strict=True)
      try:
        yield reader, filter(None, reader)
      except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise LogError(f'{self.path} is not a whole gzip file ({error}).') from None
      except UnicodeDecodeError as error:
        raise LogError(f'{self.path}, line {self._undecodable()}: it is not text in UTF-8 ({error.reason}).') from None
      except csv.Error as error:
        raise LogError(f'{self.path}, line {reader.line_num}: it is not a row of a CSV file ({error}).') from None

  def _undecodable(self) -> int:
    """The first line that is not UTF-8. The decoder reads ahead of the lines."""
    with _open(self.path, encoding='utf-8', errors='surrogateescape') as f:
      for number, line in enumerate(f, 1):
        if not line.isascii() and _has_surrogates(line):
          return number
    raise AssertionError('A file that cannot be decoded has a line that cannot.')


def by_id(path: str, num_clients: int) -> Iterator[LoggedRound]:
  """The rounds of a log whose clients are ids in [0, num_clients): `ids` of each round are these.

  Raises:
    LogError: As `Log.rounds`, and for a client with another name.
    OSError: If the file cannot be read.
  """
  log, ids = Log(path), np.zeros(0, np.int64)
  for one in log.rounds():
    if log.num_clients > len(ids):
      names = log.names[len(ids) :]
      strangers = [name for name in names if not _is_id(name, num_clients)]
      if strangers:
        raise LogError(f'{path}: Clients must be ids in [0, {num_clients}), found {strangers[0]!r}.')
      ids = np.append(ids, np.array(names, np.int64))
    yield one._replace(ids=ids[one.ids])


def _is_id(name: str, num_clients: int) -> bool:
  return name.isascii() and name.isdigit() and str(int(name[:20])) == name and int(name) < num_clients


def _open(path: str, **how: Any) -> Any:
  opened: Any = gzip.open if path.endswith('.gz') else open
  return opened(path, 'rt', newline='', **how)


def _has_surrogates(text: str) -> bool:
  return any('\ud800' <= c <= '\udfff' for c in text)


def _weight(text: str) -> float:
  """A number in [0, 1], or NaN."""
  try:
    weight = float(text)
  except ValueError:
    return np.nan
  return weight if 0 <= weight <= 1 else np.nan


class LogAccount(NamedTuple):
  """The account of the clients of a log.

  Attributes:
    names: The N clients.
    mu_squared: float64[N], μ_i² of all releases, rounded up.
    counts: int64[N], in how many rounds each client had a weight.
    num_rounds: T, the rounds in the log.
    is_whole: Whether all weights are 1.
  """

  names: Sequence[str]
  mu_squared: np.ndarray
  counts: np.ndarray
  num_rounds: int
  is_whole: bool


def account(
  log: Log,
  noise_multiplier: float,
  correlation: correlations.Correlation = correlations.Independent(),
  num_rounds: Optional[float] = None,
) -> LogAccount:
  """The account of each client (`quap_tff.mechanisms.certified.spending`); no bound is enforced.

  Args:
    log: The log.
    noise_multiplier: z of each round.
    correlation: The correlation of the noise, with all its numbers.
    num_rounds: The planned rounds, +inf for any number. Under correlated noise a client is charged for what they may
      still show of it. None: the log has all rounds.

  Raises:
    LogError: If the log cannot be read, or has more rounds than are planned.
  """
  if correlation.num_buffers and num_rounds is None and not log.has_released:
    # A round in which nobody had a weight may have released noise: it counts among those that show earlier ones.
    num_rounds = sum(1 for _ in log.rounds())
  history = _History(log, checks.number('noise_multiplier', noise_multiplier, above=0))
  try:
    spending = spendings.spending(history, correlation, num_rounds=num_rounds)
  except LogError:
    raise
  except ValueError as error:
    raise LogError(f'{log.path}: {error}') from None
  squares, counts = np.zeros(log.num_clients), np.zeros(log.num_clients, np.int64)
  # The account has room for more clients, and may lack those that never had a weight.
  num_known = min(len(spending.counts), log.num_clients)
  squares[:num_known] = spending.mu_squared[:num_known]
  counts[:num_known] = spending.counts[:num_known]
  return LogAccount(log.names, squares, counts, spending.num_rounds, history.is_whole)


class _History:
  """The rounds of a log as records, read anew by each iteration. `is_whole`: whether all weights were 1."""

  def __init__(self, log: Log, noise_multiplier: float):
    self._log, self._noise_multiplier, self.is_whole = log, noise_multiplier, True

  def __iter__(self) -> Iterator[mechanism.RoundRecord]:
    for ids, weights, released in self._log.rounds():
      self.is_whole = self.is_whole and bool((weights == 1).all())
      yield mechanism.RoundRecord(ids, None, weights, self._noise_multiplier, released=released)
