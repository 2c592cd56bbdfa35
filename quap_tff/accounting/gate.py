"""A gate: an exact account of each client, for a program that clips, sums and adds noise itself, without TensorFlow.

    gate = quap_tff.Gate(num_clients=1000, noise_multiplier=6.0, epsilon=3.0, delta=1e-5, num_rounds=200)
    weights = gate.ask(cohort)           # before a round: float32[M], the weights that these clients may have
    gate.commit(came, weights_of_them)   # when it is known who came, and before their sum leaves the program
    gate.epsilon()                       # float64[N]

    round = gate.reserve(cohort)         # in place of `ask`, where a round may begin before another one has ended
    gate.commit(came, weights, round)    # or gate.give_back(round), if it is not released

A gate is the filter of certified runs (`quap_tff.mechanisms.certified.privacy_filter`) with the same accounts: a
`Plan.certified` with these numbers gives the same weights and charges the same. A gate sees ids and weights, and never
an update. Clipping, sums and noise are the program's.

What holds: let every update be clipped to norm clip·weight, with the committed weights, and let noise of standard
deviation noise_multiplier·clip be added to each coordinate of the SUM, drawn anew in each round, or by `Gate.noise`
under correlated noise. Then the noised sums of all rounds, and everything that is computed from them alone, are (ε,
δ)-differentially private for each client, at its `Gate.epsilon`. Unit: one client with all of its data. Neighbours: the
client's whole data set is replaced by nothing, so that it adds zero wherever it takes part (zero-out); replacing it by
other data doubles μ. Who takes part may be known, and must not depend on clients' data. No amplification by sampling is
counted, so nothing is assumed of how cohorts are drawn.

What does not hold: nothing is said of a mean whose divisor depends on data, of losses, accuracies or norms that are
released without noise, or of noise that is smaller because fewer clients came than the program expected. Nor is the
rounding of the program's floats counted, or its source of random bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
import copy
import functools
import hashlib
import hmac
import io
import json
import os
from typing import Any, NamedTuple, Optional, Union

import numpy as np

from quap_tff.common import array_types
from quap_tff.common import checks
from quap_tff.common import durable
from quap_tff.common import files
from quap_tff.common import lazy
from quap_tff.common import registry
from quap_tff.common.numbers import tradeoff
from quap_tff.mechanisms import mechanism
from quap_tff.mechanisms.certified import config as certified_config
from quap_tff.mechanisms.certified import privacy_filter
from quap_tff.mechanisms.certified import spending as spendings
from quap_tff.mechanisms.certified import spent_before
from quap_tff.mechanisms.certified import weight_rules
from quap_tff.mechanisms.noise import correlation as correlations
from quap_tff.mechanisms.parts import clip_rules

spents = lazy.module('quap_tff.accounting.spent')
ciphers = lazy.module('cryptography.hazmat.primitives.ciphers')
special = lazy.module('scipy.special')

_KEY_BYTES, _DIGEST_BYTES = 32, 16
# A limit that nobody reaches.
_NO_LIMIT = 1e300


class Reservation(NamedTuple):
  """A round that `Gate.reserve` has begun. It is good for one `Gate.commit`, or for one `Gate.give_back`.

  Attributes:
    cohort: int64[M], the clients that may come.
    weights: float32[M], the weights that they may have.
    cost: float64[M], what is kept of their budgets, in μ².
  """

  cohort: np.ndarray
  weights: np.ndarray
  cost: np.ndarray


class Gate:
  """Says who may take part in the next round, and with what weight. See the module for what this guarantees.

  Attributes:
    config: The parameters, checked.
    digests: For each committed round, 16 bytes that follow from the gate's parameters, the round's number, who came
      with which weight, and whether the round released anything.
    spent_file: The file that says what clients have spent before, for the one that keeps the gate's state: nobody else
      may count from it. None if there is none, or the gate was loaded.
  """

  def __init__(
    self,
    num_clients: int,
    noise_multiplier: float,
    epsilon: float,
    delta: float,
    num_rounds: Optional[int] = None,
    correlation: correlations.Correlation = correlations.Independent(),
    own_epsilon: Optional[Sequence[float]] = None,
    spent: Any = None,
  ):
    """Opens the accounts.

    Args:
      num_clients: N. Clients are integers in [0, N).
      noise_multiplier: z, the standard deviation of the noise on the sum, divided by the clipping norm.
      epsilon: ε > 0 in nats, the bound that no client passes over all rounds.
      delta: The total δ in (0, 1).
      num_rounds: T; None for any number of rounds.
      correlation: The correlation of the noise, one of `quap_tff.mechanisms.noise.correlation`; not `HeldNoise`.
      own_epsilon: float[N], the bound that each client has chosen for itself, in (0, epsilon]; None: `epsilon` for all.
      spent: What clients have spent before: a file or an `accounting.SpentBefore`, as `accounting.read_spent` takes it.
        Budgets and figures count from there. None: nothing.

    Raises:
      ValueError: If a value is out of range, or a client has spent more before than its bound.
      TypeError: If the correlation is not one.
    """
    if noise_multiplier is None or not getattr(correlation, 'is_settled', True):
      raise ValueError(
        f'A gate needs the noise in numbers, found noise_multiplier={noise_multiplier!r} and {correlation!r}. Give '
        'them, or let Gate.calibrated(schedule, epsilon, delta) choose them.'
      )
    before = None if spent is None else spents.read_spent(spent, num_clients)
    self.config = certified_config.CertifiedConfig(
      num_clients,
      epsilon,
      delta,
      noise_multiplier,
      correlation=correlation,
      divisor=1.0,  # The other program divides.
      num_rounds=num_rounds,
      weights=weight_rules.UniformWeights(),
      clip=clip_rules.Fixed(1.0),  # Its unit.
      own_epsilon=own_epsilon,  # type: ignore[arg-type]  # It becomes a tuple.
      spent_before=before,
    )
    self.noise_multiplier = noise_multiplier
    self.spent_file = os.fspath(spent) if isinstance(spent, (str, os.PathLike)) else None
    self._prices = self.config.to_mechanism().prices
    self._spending = spendings.Spending(correlation, num_clients)
    self.digests: list[bytes] = []
    self._asked = np.zeros(num_clients, bool)
    self._open: list[Reservation] = []
    self._noised = 0  # The release whose noise was drawn last, counted from 1.
    self._buffers: list[np.ndarray] = []

  @classmethod
  def calibrated(
    cls,
    schedule: Iterable[array_types.Ids],
    epsilon: float,
    delta: float,
    num_clients: Optional[int] = None,
    **more: Any,
  ) -> Gate:
    """A gate whose noise is chosen from planned cohorts, and from no client's data.

    It has the best ratio of signal to noise in the last model, over the weights that budgets pay for
    (`quap_tff.mechanisms.certified.planning`). Budgets of the most frequent clients may end before the schedule does:
    see `planned`. The actual cohorts may be others. The bounds then hold all the same.

    Args:
      schedule: int[M_t], the clients of each of the T planned rounds.
      epsilon: As for a gate.
      delta: As for a gate.
      num_clients: N; None: one more than the largest id.
      **more: `correlation`, by default independent, which may leave its numbers open, `own_epsilon`, and `spent`.

    Raises:
      ValueError: If the schedule is empty, or no noise suits it.
    """
    cohorts = checks.schedule(schedule, num_clients)
    if num_clients is None:
      num_clients = 1 + max((int(cohort.max()) for cohort in cohorts if cohort.size), default=0)
    if (spent := more.pop('spent', None)) is not None:
      more['spent_before'] = spents.read_spent(spent, num_clients)
    more.setdefault('correlation', correlations.Independent())
    config = certified_config.CertifiedConfig(
      num_clients, epsilon, delta, weights=weight_rules.UniformWeights(), **more
    )
    settled = config.settled(cohorts).mechanism
    numbers = num_clients, settled.noise_multiplier, epsilon, delta, settled.config.num_rounds
    gate = cls(*numbers, settled.config.correlation, settled.config.own_epsilon, settled.config.spent_before)
    gate.spent_file = os.fspath(spent) if isinstance(spent, (str, os.PathLike)) else None
    return gate

  @property
  def num_clients(self) -> int:
    """N."""
    return self.config.num_clients

  @property
  def rounds(self) -> int:
    """How many rounds were committed."""
    return self._spending.num_rounds

  @property
  def releases(self) -> int:
    """How many of them have released something."""
    return self._spending.num_releases

  def ask(self, cohort: array_types.Ids, whole: bool = False) -> np.ndarray:
    """The weights that these clients may have in the next round; 0 for those that must stay out. It charges nobody.

    Args:
      cohort: int[M] distinct ids.
      whole: Whether a weight that is less than 1 becomes 0, for programs that clip everyone to one norm.

    Returns:
      float32[M] in [0, 1], in the order of the cohort. After the last planned round all are 0.

    Raises:
      ValueError: If an id is out of range or there twice; or if the noise is correlated and a round is reserved.
    """
    ids = checks.cohort(cohort, self.num_clients)
    self._check_no_other('asked for')
    weights = self._allowed(ids, np.ones(len(ids)))
    self._asked[ids] = True
    return (weights >= 1).astype(np.float32) if whole else weights

  def reserve(self, cohort: array_types.Ids, whole: bool = False) -> Reservation:
    """A round that begins now and is committed later, in any order. Until then nobody else spends what it may cost.

    End each by `commit`, which gives back what it does not charge, or by `give_back`. Reservations are not saved: a
    round that was not committed has released nothing. Under correlated noise the cost of a round depends on the one
    before, so one round at a time can be reserved, and no other one is asked for or committed meanwhile.

    Args:
      cohort: int[M] distinct ids of all who may come.
      whole: As for `ask`.

    Raises:
      ValueError: As for `ask`; or if the rounds that are planned are committed or reserved already.
    """
    ids = checks.cohort(cohort, self.num_clients)
    self._check_no_other('reserved')
    self._check_number('reserved')
    weights = self._allowed(ids, np.ones(len(ids)))
    if whole:
      weights = (weights >= 1).astype(np.float32)
    # As a filter without a limit charges it from 0: what was charged already plays no part under independent noise.
    nothing = privacy_filter.opened(len(ids), self.config.correlation.num_buffers)
    prices = self._prices._replace(limit=_NO_LIMIT)
    cost = privacy_filter.charged(prices, nothing, np.int64(0), 0, weights).spent
    reservation = Reservation(ids, weights, cost)
    self._open.append(reservation)
    return reservation

  def give_back(self, reservation: Reservation) -> None:
    """Ends a reserved round whose noise was not drawn, or whose sum was never added up. It charges nobody.

    A round whose sum was computed counts, even if it is then withheld: commit it. And why a round is given back must
    not depend on clients' data in another way than through what was released.

    Raises:
      ValueError: If the round is not reserved any more.
    """
    self._open.pop(self._place_of(reservation))

  def commit(
    self,
    cohort: array_types.Ids,
    weights: Union[float, np.ndarray, Sequence[float]] = 1.0,
    released: Optional[bool] = None,
    reservation: Optional[Reservation] = None,
  ) -> np.ndarray:
    """Charges the clients that came in a round. Call it before their sum leaves the program.

    Args:
      cohort: int[M] distinct ids, all of them asked for since the last commit; empty if nobody came.
      weights: float or float[M] in [0, 1], at most those that `ask` gives.
      reservation: From `reserve`, of whose clients and weights these are then a part.
      released: Whether the round releases anything, if only noise. By default it does if somebody has a weight, and a
        round in which nobody has one must release nothing. It counts as a planned round all the same.

    Returns:
      float32[M], the weights that were charged, for the log: those that were given, rounded up.

    Raises:
      ValueError: If anything is wrong, or a budget does not pay for its client's weight. Then nothing is charged.
    """
    ids = checks.cohort(cohort, self.num_clients)
    number = self.rounds + 1
    if released is not None and not isinstance(released, (bool, np.bool_)):
      raise ValueError(f'released must be True, False or None, found {released!r}. Nothing was charged.')
    released = None if released is None else bool(released)
    if reservation is None:
      self._check_no_other('committed')
      self._check_number('committed')
      most, known = None, self._asked
    else:
      place = self._place_of(reservation)
      most, known = np.zeros(self.num_clients, np.float32), np.zeros(self.num_clients, bool)
      most[reservation.cohort], known[reservation.cohort] = reservation.weights, True
    strangers = ids[~known[ids]]
    if len(strangers):
      raise ValueError(
        f'Client {strangers[0]} was not asked for before round {number}. Call ask(cohort) with everyone who may come, '
        'and then commit those who came. Nothing was charged.'
      )
    charged = _rounded_up(ids, weights)
    record = self._record(ids, charged, released)
    # Without `released`, a record releases something if anybody has a weight.
    if released is False and record._replace(released=None).releases:
      raise ValueError(
        f'Round {number} has clients with a weight, so it cannot be committed with released=False. Give them weight 0, '
        'or leave released out: then they are charged. Nothing was charged.'
      )
    paid_for = self._allowed(ids, charged) if most is None else most[ids]
    over = np.flatnonzero(paid_for < charged)
    if len(over):
      client = ids[over[0]]
      allowed = self._allowed(ids[over[:1]], np.ones(1))[0] if most is None else most[client]
      raise ValueError(
        f'Client {client} may have a weight of at most {allowed:.9g} in round {number}, found {charged[over[0]]:.9g}: '
        f'its budget pays for no more. {len(over)} of {len(ids)} clients are over. Commit the weights that ask gives, '
        'and leave out clients of weight 0. Nothing was charged.'
      )
    # Until here nothing has changed, so an error leaves the gate as it was.
    self._spending.add(record, self.config.rounds_left(number))
    self.digests.append(self.digest_of(number, record))
    if reservation is None:
      self._asked[:] = False
    else:
      self._open.pop(place)
    return charged

  def _place_of(self, reservation: Reservation) -> int:
    places = [place for place, one in enumerate(self._open) if one is reservation]
    if not places:
      raise ValueError(
        'This round is not reserved: it was committed or given back, or is of another gate. Reserve it anew. Nothing '
        'was charged.'
      )
    return places[0]

  def _check_no_other(self, done: str) -> None:
    """Raises `ValueError` where another round is open whose cost depends on whether this one comes before it."""
    if self._open and self.config.correlation.num_buffers:
      raise ValueError(
        f'No round can be {done} while another one is reserved: under correlated noise the cost of a round depends on '
        'the rounds before it, so it is not known which budget is left. Commit the reserved round or give it back '
        'first, or use independent noise. Nothing was charged.'
      )

  def _check_number(self, done: str) -> None:
    number, planned = self.rounds + len(self._open) + 1, self.config.num_rounds
    if planned is not None and number > planned:
      more = f' {len(self._open)} of them are reserved.' if self._open else ''
      raise ValueError(
        f'Round {number} cannot be {done}: num_rounds={planned}, and clients were charged for no more.{more} Stop '
        'here. More rounds need a new gate.'
      )

  def _record(self, ids: np.ndarray, weights: np.ndarray, released: Optional[bool]) -> mechanism.RoundRecord:
    return mechanism.RoundRecord(ids, None, weights, self.noise_multiplier, released=released)

  def digest_of(self, number: int, record: mechanism.RoundRecord) -> bytes:
    """The 16 bytes that `digests` has for a round, whatever the order of its clients.

    Args:
      number: The round's number, from 1.
      record: The round, with float32 weights.
    """
    order = np.argsort(record.cohort)
    ids, weights = np.asarray(record.cohort, np.int64)[order], np.asarray(record.weights, np.float32)[order]
    parts = self._parameters_text.encode(), b'%d %d' % (number, record.releases), ids.tobytes(), weights.tobytes()
    # Each part is hashed by itself, so that no byte can count for the part before or after it.
    return hashlib.sha256(b''.join(hashlib.sha256(part).digest() for part in parts)).digest()[:_DIGEST_BYTES]

  def _allowed(self, ids: np.ndarray, proposed: np.ndarray) -> np.ndarray:
    """float32[M], the weights up to `proposed` that budgets pay for in the next round."""
    # Reserved rounds count as committed ones, by their number and by what they may cost.
    accounts, left = self._spending.accounts_of(ids), self.config.rounds_left(self.rounds + len(self._open) + 1)
    if self._open:
      accounts = accounts._replace(spent=accounts.spent + self._held(ids))
    prices = privacy_filter.prices_of(self._prices, ids)
    return privacy_filter.spend(prices, accounts, np.int64(self.releases), left, proposed)[0]

  def _held(self, ids: np.ndarray) -> np.ndarray:
    """float64[M], what is kept of the clients' budgets for reserved rounds."""
    held = np.zeros(self.num_clients)
    for one in self._open:
      held[one.cohort] += one.cost
    return held[ids]

  def epsilon(self) -> np.ndarray:
    """float64[N], what each client has spent at `delta`, with what later releases will still show of it, rounded up.

    It counts from what was spent before. What is reserved is not in it.
    """
    return tradeoff.epsilon_of(np.sqrt(self.mu_squared), self.config.delta)

  @property
  def mu_squared(self) -> np.ndarray:
    """float64[N], the same as μ_i²."""
    counted, before = self._spending.mu_squared, self.config.spent_before
    return counted if before is None else counted + np.asarray(before.mu_squared)

  def planned(self, schedule: Iterable[array_types.Ids], whole: bool = False) -> np.ndarray:
    """When each client's budget ends, if these cohorts come next. It charges nobody.

    Args:
      schedule: int[M_t], the clients of each of the next rounds.
      whole: As for `ask`.

    Returns:
      int64[N], the round in which a client has no weight for the first time, counted from the gate's first round; 0 for
      a client whose budget pays for all of them.

    Raises:
      ValueError: If a cohort does not consist of distinct ids in [0, N).
    """
    # The trial shares nothing with the gate that a commit changes.
    trial, ends = copy.copy(self), np.zeros(self.num_clients, np.int64)
    trial._asked, trial._spending, trial.digests = np.zeros_like(self._asked), copy.deepcopy(self._spending), []
    left = self.config.rounds_left(self.rounds + len(self._open))
    for index, ids in enumerate(checks.schedule(schedule, self.num_clients)):
      weights = trial.ask(ids, whole)
      refused = ids[weights == 0]
      ends[refused[ends[refused] == 0]] = self.rounds + index + 1
      if index < left:
        trial.commit(ids, weights)
    return ends

  def noise(self, source: Union[np.random.Generator, bytes], shape: Sequence[int]) -> np.ndarray:
    """The noise of the round that was committed last, for a program that has no correlated noise of its own.

    Args:
      source: A NumPy generator; or a secret key of 32 bytes, from which ChaCha20 draws, by the key, the round and who
        came with which weight. The same round again then has the same noise: release only one sum with it.
      shape: The shape of the sum, the same in each round.

    Returns:
      float64 of this shape, in units of the clipping norm: add clip·noise to the sum.

    Raises:
      ValueError: If the round's noise was drawn already, no round was committed, or the noise of a release is missing
        that this one takes back.
    """
    last, correlation = self.releases, self.config.correlation
    if self._noised == last:
      raise ValueError(
        'There is no committed round without its noise. Commit a round in which somebody has a weight, then draw its '
        'noise, once.'
      )
    if correlation.num_buffers and self._noised != last - 1:
      raise ValueError(
        f'The noise of release {last} takes back a part of the noise of release {last - 1}, which was not drawn here. '
        'Draw the noise of every committed round by this function, or of none.'
      )
    drawn = self.noise_multiplier * self._standard_normal(source, tuple(shape))
    if not self._buffers:
      self._buffers = [np.zeros_like(drawn) for _ in range(correlation.num_buffers)]
    if any(one.shape != drawn.shape for one in self._buffers):
      raise ValueError(f'shape must be {list(self._buffers[0].shape)} as in the rounds before, found {list(shape)}.')
    for gain, buffer in zip(correlation.gains, self._buffers):
      drawn -= gain * buffer
    self._buffers = [np.array(one) for one in correlation.after(self._buffers, drawn)]
    self._noised = last
    return drawn

  def _standard_normal(self, source: Union[np.random.Generator, bytes], shape: tuple[int, ...]) -> np.ndarray:
    if isinstance(source, np.random.Generator):
      return source.standard_normal(shape)
    if not isinstance(source, bytes) or len(source) != _KEY_BYTES:
      raise ValueError(
        f'source must be a numpy.random.Generator or {_KEY_BYTES} secret bytes, such as os.urandom({_KEY_BYTES}), '
        f'found {type(source).__name__}.'
      )
    # The digest is that of the round and of who came: no other round, and no other gate of this key, has this noise.
    key = hmac.digest(source, self.digests[-1], 'sha256')
    stream = ciphers.Cipher(ciphers.algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    bits = np.frombuffer(stream.update(bytes(8 * int(np.prod(shape)))), np.uint64)
    # 52 random bits in the middle of (0, 1): neither end is reached.
    return special.ndtri(((bits >> np.uint64(12)) + 0.5) * 2.0**-52).reshape(shape)

  @property
  def parameters(self) -> dict[str, Any]:
    """The arguments with which the gate was made, as values that JSON can hold."""
    names = 'num_clients', 'noise_multiplier', 'epsilon', 'delta', 'num_rounds', 'own_epsilon'
    values = {name: getattr(self.config, name) for name in names}
    bounds, before, correlation = values['own_epsilon'], self.config.spent_before, self.config.correlation
    values.update(own_epsilon=bounds and list(bounds), correlation=correlations.spec_of(correlation))
    return values if before is None else {**values, 'spent': json.loads(json.dumps(registry.value_of(before)))}

  @functools.cached_property
  def _parameters_text(self) -> str:
    return json.dumps(self.parameters)

  def save(self, path: str) -> None:
    """Writes all of the gate's state, whole or not at all. Save it after each commit.

    A program that goes on from an older file charges nobody for what was released since, and nothing notices it here:
    `LogWriter` does. Under correlated noise the file also holds noise: keep it as secret as clients' data.
    """
    files.write_sealed(path, self.content)

  @property
  def content(self) -> bytes:
    """The content of the file that `save` writes."""
    arrays: dict[str, np.ndarray] = {
      'parameters': np.frombuffer(self._parameters_text.encode(), np.uint8),
      'digests': np.frombuffer(b''.join(self.digests), np.uint8),
      'noised': np.array(self._noised, np.int64),
      **self._spending.state_dict(),
      **{f'buffer{j}': one for j, one in enumerate(self._buffers)},
    }
    return files.npz(arrays)

  @classmethod
  def load(cls, path: str, **parameters: Any) -> Gate:
    """The gate that `save` or a `LogWriter` wrote, to go on from there.

    Args:
      path: The file.
      **parameters: Arguments of a gate. The file must have these values.

    Raises:
      OSError: If the file cannot be read.
      ValueError: If it is damaged, not a gate's, or has other parameters.
    """
    try:
      content = durable.content_of(path) if durable.is_state(path) else files.read_sealed(path)
      with np.load(io.BytesIO(content), allow_pickle=False) as kept:
        arrays = dict(kept)
      saved = json.loads(arrays['parameters'].tobytes())
      correlation = correlations.from_spec(saved['correlation'])
      made = {**saved, 'correlation': correlation}
      if 'spent' in saved:
        made['spent'] = spent_before.SpentBefore.from_value(saved['spent'])
      gate = cls(**made)
      gate._spending = spendings.Spending.restored(correlation, arrays)
      gate.digests = [one.tobytes() for one in arrays['digests'].reshape(gate.rounds, _DIGEST_BYTES)]
      gate._noised = int(arrays['noised'])
    except (ValueError, KeyError, TypeError) as error:
      raise ValueError(
        f'{path} is not a whole file of a gate ({error}). Go on from a copy, or charge the clients for all rounds that '
        'were released: a new gate knows of none of them.'
      ) from None
    expected = cls(**{**made, **parameters}).parameters if parameters else saved
    for name in {**saved, **expected}:
      if (value := expected.get(name)) != saved.get(name):
        raise ValueError(
          f'{path} is of a gate with {name}={_short(saved.get(name))}, expected {_short(value)}. Give the parameters '
          'of the gate that was saved. Other parameters need a new gate, and new clients.'
        )
    gate._buffers = [arrays[f'buffer{j}'] for j in range(len(arrays)) if f'buffer{j}' in arrays]
    return gate


def _rounded_up(ids: np.ndarray, weights: Union[float, np.ndarray, Sequence[float]]) -> np.ndarray:
  """float32[M], the weights rounded up; raises `ValueError` unless they are numbers in [0, 1], one for each client."""
  values = np.asarray(weights)
  if values.dtype.kind not in 'fiu' or values.shape not in ((), ids.shape):
    raise ValueError(
      f'weights must be a number, or one for each of the {len(ids)} clients, found {values.dtype}{list(values.shape)}. '
      'Nothing was charged.'
    )
  exact = np.broadcast_to(values.astype(np.float64), ids.shape)
  bad = np.flatnonzero(~((exact == 0) | ((exact >= privacy_filter.SMALLEST_WEIGHT) & (exact <= 1))))
  if len(bad):
    raise ValueError(
      f'The weight of client {ids[bad[0]]} must be 0, or at least {privacy_filter.SMALLEST_WEIGHT:g} and at most 1, '
      f'found {exact[bad[0]]:g}. Nothing was charged.'
    )
  given = exact.astype(np.float32)
  return np.where(given < exact, np.nextafter(given, np.float32(1)), given)


def _short(value: Any) -> str:
  text = str(value)
  return text if len(text) <= 60 else f'{text[:60]}…'
