"""The run's ledger: who took part when, with what nominal budget, weight, clip and noise. All figures follow from it.

`epsilon` and `delta` are the documents' own, nominal account by basic composition, Σ ε_i(t) and k_i·δ (docs/method.md,
section 7.1). They speak of the noised layers only and take the clipping norm as given, even where it is an un-noised
quantile of the clients' norms. They hold only for noise by the documents' formula, and they guarantee nothing for the
released model. Guarantees come from `quap_tff.accounting.formal`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
import hashlib
import math
import os
from typing import Any, Optional, Union
import zipfile
import zlib

import numpy as np

from quap_tff.accounting import protection
from quap_tff.common import checks
from quap_tff.mechanisms import mechanism
from quap_tff.mechanisms.noise import correlation as correlations

# One value for each entry (a client in a round), for each round, and for the whole ledger, as in `state_dict`.
ENTRIES = {'clients': np.int32, 'budgets': np.float64, 'weights': np.float64}
ROUNDS = {
  'noise_multipliers': np.float64,
  'count_noise_multipliers': np.float64,
  'clipping_norms': np.float64,
  'released': np.bool_,
}
ARRAYS = {'offsets': np.int64, **ENTRIES, **ROUNDS}
# Shapes, None for one dimension of any length, and types. `correlation` is a spec (`correlations.spec_of`) in UTF-8.
IDENTITY = {
  'num_clients': ((), np.int64),
  'delta': ((), np.float64),
  'fingerprint': ((32,), np.uint8),
  'correlation': (None, np.uint8),
}
# Spent in the runs before, where there were any: float64[N], see `RunLedger`.
SPENT_BEFORE = 'spent_before'
# The conditions of the account in UTF-8, and, for each number of colluders in them, float64[N] μ².
CONDITIONS, AGAINST = 'conditions', 'against'
# Files list the clients of a larger population only if they took part.
LARGE_POPULATION = 10_000
# Relative, between noise and weights of a round in TensorFlow's arithmetic and in NumPy's.
_SAME = 1e-5


class NoBoundError(ValueError):
  """There is no bound for a run that has ended early. The message is a clause that says why."""


class _Growing:
  """An array that grows at its end, at a cost in proportion to the new part."""

  def __init__(self, values: np.ndarray):
    self._buffer, self._size = values.copy(), len(values)

  def extend(self, values: np.ndarray) -> None:
    """Adds values at the end."""
    end = self._size + len(values)
    if end > len(self._buffer):
      size = max(end, 2 * len(self._buffer), 16)
      grown = np.empty(size, self._buffer.dtype)
      grown[: self._size] = self._buffer[: self._size]
      self._buffer = grown
    self._buffer[self._size : end] = values
    self._size = end

  @property
  def values(self) -> np.ndarray:
    """Read-only, without a copy; what is added later leaves it as it is."""
    view = self._buffer[: self._size]
    view.flags.writeable = False
    return view


class _Records:
  """The rounds of a ledger as a sequence of records without their `counts`."""

  def __init__(self, arrays: Mapping[str, np.ndarray]):
    self._arrays = arrays

  def __iter__(self) -> Iterator[mechanism.RoundRecord]:
    cuts = self._arrays['offsets'][1:-1]
    entries = (np.split(self._arrays[name], cuts) for name in ENTRIES)
    rounds = (self._arrays[name].tolist() for name in ROUNDS)
    for cohort, budgets, weights, noise, count_noise, clip, released in zip(*entries, *rounds):
      yield mechanism.RoundRecord(cohort, budgets, weights, noise, count_noise, clip, released=released)


class RunLedger:
  """The rounds of a run with a fixed population, δ, configuration and correlation of the noise.

  Args:
    num_clients: N.
    delta: Nominal δ of one round, in (0, 1).
    fingerprint: Text that identifies the run; the ledger of another run is refused.
    correlation: How the noise of a round is correlated with that of earlier ones.
    spent_before: float[N], μ_i² of everything that was released about each client before this run. All accounts count
      from there. None: nothing was.
    conditions: What these μ² stand for, with those spent before. None: nobody says, and no later run can count from
      this ledger.
    against: float[K, N], for each number of colluders in the conditions the μ_i² of the whole run, and of the runs
      before, against the server and so many others.

  Raises:
    ValueError: If a value is out of range, or the correlation's family is not registered: a file could not name it.
  """

  def __init__(
    self,
    num_clients: int,
    delta: float,
    fingerprint: str,
    correlation: correlations.Correlation = correlations.Independent(),
    spent_before: Optional[Union[np.ndarray, Sequence[float]]] = None,
    conditions: Optional[protection.Conditions] = None,
    against: Union[np.ndarray, Sequence[np.ndarray]] = (),
  ):
    self._num_clients = int(checks.integer('num_clients', num_clients, at_least=1, at_most=2**31 - 1))
    self._delta = checks.number('delta', delta, above=0, below=1)
    self._digest = hashlib.sha256(fingerprint.encode()).digest()
    self._correlation = correlation
    self._spec = correlations.spec_of(correlation)
    self._before = None if spent_before is None else _checked_before(spent_before, self._num_clients)
    self._conditions = conditions
    colluders = () if conditions is None else conditions.colluders
    self._against = _checked_against(against, colluders, self._num_clients)
    empty = {name: np.zeros(0, dtype) for name, dtype in ARRAYS.items()}
    # Offsets begin with that of the first round.
    self._take({**empty, 'offsets': np.zeros(1, ARRAYS['offsets'])})

  def _take(self, arrays: Mapping[str, np.ndarray]) -> None:
    self._arrays = {name: _Growing(arrays[name]) for name in ARRAYS}
    clients = arrays['clients']
    self._rounds = np.bincount(clients, minlength=self._num_clients)
    # Adds in the order of the rounds, as `append` does, so that a resumed run has the same sums, bit for bit.
    self._epsilon = np.bincount(clients, arrays['budgets'], self._num_clients).astype(np.float64)

  @property
  def num_clients(self) -> int:
    return self._num_clients

  @property
  def correlation(self) -> correlations.Correlation:
    """How the noise of a round is correlated with that of earlier ones.

    Rounds in which nobody adds anything do not count as steps of it.
    """
    return self._correlation

  @property
  def history(self) -> Iterable[mechanism.RoundRecord]:
    """The rounds as records, for the account."""
    return _Records({name: self._arrays[name].values for name in ARRAYS})

  @property
  def num_rounds(self) -> int:
    """T, rounds recorded, those with an empty cohort included."""
    return len(self._arrays['noise_multipliers'].values)

  @property
  def rounds(self) -> np.ndarray:
    """int64[N], k_i, the rounds in which each client took part."""
    return self._rounds.copy()

  @property
  def spent_before(self) -> np.ndarray:
    """float64[N], μ_i² of everything that was released about each client before this run."""
    return np.zeros(self._num_clients) if self._before is None else self._before.copy()

  @property
  def conditions(self) -> Optional[protection.Conditions]:
    """The conditions under which the μ² of this ledger hold; None if nobody says."""
    return self._conditions

  @property
  def against(self) -> np.ndarray:
    """float64[K, N], μ_i² against the server and so many others, for each number of colluders in the conditions."""
    return self._against.copy()

  @property
  def listed(self) -> np.ndarray:
    """int64[K], ascending: the clients of whom a file lists each one.

    They are all clients, or in a population of more than `LARGE_POPULATION` those who took part in this run or before:
    the others have spent nothing.
    """
    if self._num_clients <= LARGE_POPULATION:
      return np.arange(self._num_clients)
    return np.flatnonzero((self._rounds > 0) | (self.spent_before > 0))

  @property
  def epsilon(self) -> np.ndarray:
    """float64[N], nominal Σ ε_i(t) in nats; +inf for a client that took part in a round without noise."""
    return self._epsilon.copy()

  @property
  def delta(self) -> np.ndarray:
    """float64[N], nominal k_i·δ, at most 1."""
    return np.minimum(self._rounds * self._delta, 1.0)

  def append(self, record: mechanism.RoundRecord) -> None:
    """Adds a round, in time and memory in proportion to its cohort. `truncated` can leave it out again.

    A record that is appended twice counts as two rounds: figures are then too large, and never too small.

    Raises:
      TypeError: If it is no record.
      ValueError: If the record is not as `RoundRecord` says, or if the aggregator counts other rounds of a client than
        the ledger holds. Nothing is added then.
    """
    if not isinstance(record, mechanism.RoundRecord):
      raise TypeError(f'A ledger takes a RoundRecord, as plan.record(output, cohort) makes it, found {record!r}.')
    cohort = checks.cohort(record.cohort, self._num_clients)
    if record.counts is not None:
      self._check_counts(cohort, np.asarray(record.counts))
    new = {
      'clients': cohort,
      'budgets': np.asarray(record.budgets, np.float64),
      'weights': np.asarray(record.weights, np.float64),
      'noise_multipliers': np.array([record.noise_multiplier], np.float64),
      'count_noise_multipliers': np.array([record.count_noise_multiplier], np.float64),
      'clipping_norms': np.array([record.clipping_norm], np.float64),
      'released': np.array([record.releases]),
    }
    for name in ('budgets', 'weights'):
      if new[name].shape != cohort.shape:
        raise ValueError(f'{name} must be float[{cohort.size}], one for each of the cohort, found {new[name].shape}.')
    new['offsets'] = self._arrays['offsets'].values[-1:] + cohort.size
    # All is checked before the first array grows, so that a refused record leaves no part of it.
    _check_values({**new, 'offsets': np.array([0, cohort.size])}, self._num_clients)
    for name, values in new.items():
      self._arrays[name].extend(values)
    self._rounds[cohort] += 1
    self._epsilon[cohort] += new['budgets']

  def _check_counts(self, cohort: np.ndarray, counts: np.ndarray) -> None:
    differs = self._rounds[cohort] + 1 != counts
    if differs.any():
      place = int(np.argmax(differs))
      client = cohort[place]
      raise ValueError(
        f"By the aggregator's count client {client} has been in {counts[place]} rounds, this one included, but the "
        f'ledger holds {self._rounds[client]} before it. Record every round, in order, with the clients that were in '
        'it.'
      )

  def truncated(self, num_rounds: int) -> 'RunLedger':
    """A new ledger of the first `num_rounds` rounds, in 0..T."""
    checks.integer('num_rounds', num_rounds, at_least=0, at_most=self.num_rounds)
    state = self.state_dict()
    for name, end in _ends(state['offsets'], num_rounds).items():
      state[name] = state[name][:end]
    return RunLedger.from_state_dict(state)

  def state_dict(self) -> dict[str, np.ndarray]:
    """The arrays that a checkpoint and `ledger.npz` keep: round t, from 1, holds clients[offsets[t-1]:offsets[t]].

    Returns:
      offsets int64[T+1]; clients int32[K], budgets and weights float64[K]; noise_multipliers, count_noise_multipliers
      and clipping_norms float64[T]; released bool[T]; num_clients int64[], delta float64[], fingerprint uint8[32]
      (SHA-256 of the text); correlation uint8[L], the spec of the noise's correlation in UTF-8; where something was
      spent before, spent_before float64[N]; and, where they are known, conditions uint8[L] (JSON of
      `protection.Conditions`) and against float64[K, N].
      The arrays are read-only and not copied; later rounds leave them as they are.
    """
    state = {name: self._arrays[name].values for name in ARRAYS}
    state['num_clients'] = np.array(self._num_clients, np.int64)
    state['delta'] = np.array(self._delta, np.float64)
    state['fingerprint'] = np.frombuffer(self._digest, np.uint8)
    state['correlation'] = np.frombuffer(self._spec.encode(), np.uint8)
    if self._before is not None:
      state[SPENT_BEFORE] = self._before
    if self._conditions is not None:
      state[CONDITIONS] = np.frombuffer(self._conditions.text.encode(), np.uint8)
      state[AGAINST] = self._against
    return state

  def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
    """Loads a saved state.

    Raises:
      ValueError: If the state is damaged, or belongs to another population, δ or fingerprint. Nothing is changed then.
    """
    arrays = _checked_state(state)
    expected = self.state_dict()
    differences = [
      f'{name} {_identity_text(name, arrays[name])}, this run has {_identity_text(name, expected[name])}'
      for name in IDENTITY
      if not np.array_equal(arrays[name], expected[name])
    ]
    saved = RunLedger.from_state_dict(arrays)
    if not np.array_equal(saved.spent_before, self.spent_before):
      differences.append(f'{SPENT_BEFORE}, which this run has otherwise')
    if saved.conditions != self.conditions:
      differences.append(f'conditions {saved.conditions}, this run has {self.conditions}')
    if differences:
      raise ValueError(f'The saved ledger belongs to another run: it has {"; ".join(differences)}.')
    self._take(arrays)

  @classmethod
  def from_state_dict(cls, state: Mapping[str, np.ndarray]) -> 'RunLedger':
    """The ledger of a saved state of any run; raises `ValueError` if it is damaged."""
    arrays = _checked_state(state)
    correlation = correlations.from_spec(_decoded_text(arrays['correlation']))
    numbers = int(arrays['num_clients']), float(arrays['delta'])
    conditions = None
    if CONDITIONS in arrays:
      conditions = protection.Conditions.of_text(_decoded_text(arrays[CONDITIONS]))
    ledger = cls(*numbers, '', correlation, arrays.get(SPENT_BEFORE), conditions, arrays.get(AGAINST, ()))
    # A state holds the digest of the run's text, not the text.
    ledger._digest = arrays['fingerprint'].tobytes()
    ledger._take(arrays)
    return ledger

  @classmethod
  def load(cls, path: Union[str, os.PathLike]) -> 'RunLedger':
    """The ledger of a `ledger.npz`.

    Raises:
      OSError: If the file cannot be opened.
      ValueError: If it is damaged.
    """
    try:
      with np.load(path, allow_pickle=False) as kept:
        return cls.from_state_dict(dict(kept))
    except (ValueError, TypeError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
      raise ValueError(f'{os.fspath(path)} holds no ledger that can be read: {error}') from error


def completed(ledger: RunLedger, planned: RunLedger) -> RunLedger:
  """The rounds of a ledger, and then those that were planned to follow.

  Args:
    ledger: The rounds that ran.
    planned: All planned rounds, of the same population. Its clipping norms are not used.

  Raises:
    NoBoundError: If a round that ran had other clients, other noise or other weights than planned. Then what later
      rounds would have cost is not known either.
  """
  rounds = ledger.num_rounds
  state = ledger.state_dict()
  expected = planned.truncated(min(rounds, planned.num_rounds)).state_dict()
  # A cohort's order is not planned.
  of_rounds, clients, weights = _sorted(state)
  expected_rounds, expected_clients, expected_weights = _sorted(expected)
  if not (np.array_equal(of_rounds, expected_rounds) and np.array_equal(clients, expected_clients)):
    raise NoBoundError('the rounds that ran had other clients than the schedule')
  if not np.array_equal(state['released'], expected['released']):
    raise NoBoundError('other rounds have released something than were planned to')
  pairs = [(weights, expected_weights)]
  for name in ('noise_multipliers', 'count_noise_multipliers'):
    pairs.append((state[name], expected[name]))
  if not all(np.allclose(ran, as_planned, rtol=_SAME, atol=0) for ran, as_planned in pairs):
    raise NoBoundError('the rounds that ran had other noise or other weights than were planned')
  rest = planned.state_dict()
  for name, begin in _ends(rest['offsets'], rounds).items():
    state[name] = np.concatenate([state[name], rest[name][begin:]])
  return RunLedger.from_state_dict(state)


def ledger_of_limits(
  mu: np.ndarray, delta: float, spent_before: Optional[Union[np.ndarray, Sequence[float]]] = None
) -> RunLedger:
  """A ledger of one round that costs each client all that it may spend: float64[N] μ, 0 for nothing."""
  clients = np.flatnonzero(mu)
  largest = float(mu.max()) or 1.0
  # Weights are at most 1: the client with the largest μ has this one.
  weights = mu[clients] / largest
  ledger = RunLedger(len(mu), delta, 'limits', spent_before=spent_before)
  ledger.append(mechanism.RoundRecord(clients, np.ones(len(clients)), weights, 1 / largest, math.inf, 1.0))
  return ledger


def _ends(offsets: np.ndarray, num_rounds: int) -> dict[str, int]:
  """Where the first rounds of a ledger end, in each of its arrays."""
  return {
    'offsets': num_rounds + 1,
    **dict.fromkeys(ENTRIES, int(offsets[num_rounds])),
    **dict.fromkeys(ROUNDS, num_rounds),
  }


def _sorted(state: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """The round, the client and the weight of each entry, by round and client."""
  sizes = np.diff(state['offsets'])
  rounds = np.repeat(np.arange(len(sizes)), sizes)
  order = np.lexsort([state['clients'], rounds])
  return rounds, state['clients'][order], state['weights'][order]


def _decoded_text(encoded: np.ndarray) -> str:
  return encoded.tobytes().decode()


def _identity_text(name: str, value: np.ndarray) -> str:
  if name == 'correlation':
    return repr(_decoded_text(value))
  if name == 'fingerprint':
    return f'{value.tobytes().hex()[:12]}…'
  return f'{value.item():g}'


def _checked_state(state: Mapping[str, Any]) -> dict[str, np.ndarray]:
  """The state's arrays. Raises `ValueError` if one is missing, or of another type or shape, or contradicts others."""
  # The shape of each array, None for one of any length, and its dtype.
  expected: dict[str, tuple[Optional[tuple[int, ...]], Any]] = {name: (None, dtype) for name, dtype in ARRAYS.items()}
  expected.update(IDENTITY)
  if SPENT_BEFORE in state:
    expected[SPENT_BEFORE] = (None, np.float64)
  if CONDITIONS in state:
    expected[CONDITIONS] = (None, np.uint8)
    expected[AGAINST] = (np.shape(state.get(AGAINST, ())), np.float64)  # Its shape is checked below.
  if set(state) != set(expected):
    raise ValueError(f'The saved ledger must hold {sorted(expected)}, found {sorted(state)}.')
  arrays = {name: np.asarray(value) for name, value in state.items()}
  for name, (shape, dtype) in expected.items():
    array = arrays[name]
    has_shape = array.ndim == 1 if shape is None else array.shape == shape
    if array.dtype != dtype or not has_shape:
      shown = '[n]' if shape is None else list(shape)
      raise ValueError(
        f'The saved ledger is damaged: {name} must be {np.dtype(dtype)}{shown}, found '
        f'{array.dtype}{list(array.shape)}.'
      )
  offsets = arrays['offsets']
  if not len(offsets) or offsets[0] != 0 or (np.diff(offsets) < 0).any():
    raise ValueError('The saved ledger is damaged: offsets must ascend from 0.')
  for name, length in _ends(offsets, len(offsets) - 1).items():
    if len(arrays[name]) != length:
      raise ValueError(f'The saved ledger is damaged: {name} must have {length} values, found {len(arrays[name])}.')
  try:
    num_clients = checks.integer('num_clients', int(arrays['num_clients']), at_least=1, at_most=2**31 - 1)
    checks.number('delta', float(arrays['delta']), above=0, below=1)
    _check_values(arrays, num_clients)
    _checked_before(arrays.get(SPENT_BEFORE, np.zeros(num_clients)), num_clients)
    correlations.from_spec(_decoded_text(arrays['correlation']))
    if CONDITIONS in arrays:
      conditions = protection.Conditions.of_text(_decoded_text(arrays[CONDITIONS]))
      _checked_against(arrays[AGAINST], conditions.colluders, num_clients)
  except ValueError as error:
    raise ValueError(f'The saved ledger is damaged: {error}') from None
  return arrays


def _checked_before(spent_before: Any, num_clients: int) -> np.ndarray:
  """float64[N], copied; raises `ValueError` unless each is at least 0."""
  before = checks.numbers_of_clients(SPENT_BEFORE, spent_before, num_clients)
  wrong = before[~(before >= 0)]  # NaN is not at least 0.
  if len(wrong):
    raise ValueError(f'{SPENT_BEFORE} must be at least 0 for each client, found {wrong[0]:g}.')
  return before


def _checked_against(against: Any, colluders: Sequence[int], num_clients: int) -> np.ndarray:
  """float64[K, N], copied; raises `ValueError` unless it is one of at least 0 for each number of colluders."""
  values = np.array(against, np.float64).reshape(-1, num_clients)
  if len(values) != len(colluders) or not (values >= 0).all():
    raise ValueError(f'{AGAINST} must be float[{len(colluders)}, {num_clients}] of at least 0, found {values.shape}.')
  return values


def _check_values(arrays: Mapping[str, np.ndarray], num_clients: int) -> None:
  """Raises `ValueError` unless the arrays, which fit each other, hold values that rounds can have."""
  clients = arrays['clients']
  checks.ids('clients', clients, num_clients)
  sizes = np.diff(arrays['offsets'])
  of_round = np.repeat(np.arange(len(sizes)), sizes)
  # One number for each round and client: equal ones are neighbours once they are sorted.
  places = np.sort(of_round * num_clients + clients)
  twice = places[1:][np.diff(places) == 0]
  if len(twice):
    raise ValueError(f'A client can be in a round only once, found client {twice[0] % num_clients} twice in one round.')
  bounds = {
    'budgets': (lambda v: v > 0, 'greater than 0'),
    'weights': (lambda v: (v >= 0) & (v <= 1), 'at least 0 and at most 1'),
    'noise_multipliers': (lambda v: (v >= 0) & (v < math.inf), 'finite and at least 0'),
    'count_noise_multipliers': (lambda v: v >= 0, 'at least 0'),
    'clipping_norms': (lambda v: v >= 0, 'at least 0'),
  }
  for name, (holds, words) in bounds.items():
    bad = arrays[name][~holds(arrays[name])]
    if len(bad):
      raise ValueError(f'{name} must be {words}, found {bad[0]:g}.')
  takers = np.bincount(of_round, arrays['weights'] > 0, len(arrays['released']))
  silent = np.flatnonzero((takers > 0) & ~arrays['released'])
  if len(silent):
    raise ValueError('A round that released nothing has clients with a weight. Give them weight 0.')
