"""A client's side of the mechanism without a trusted server, in NumPy alone: what it answers, and what it refuses.

    guard = quap_tff.ClientGuard(plan, client_id, key, memory)
    answer = guard.answer(round_num, cohort, came)       # goes into the client's data; raises `RefusedError`

The server announces the cohort of each round, and then who came: who is in the secure sum, as the sum agreed on it with
its clients. Both are public. A guard keeps them as a chain, each link with the digest of the one before, so that two
clients that compare digests see a server that told them different things. From the chain follows everyone's exact
account (`held_noise.Account`). The weight, the clipping norm and the number of rounds are the plan's, and never the
server's. docs/trust.md says what this earns, and what is left to trust.

A client must not draw the same noise twice. So it answers only rounds after the last one that it answered, and writes
that down before it answers. Three things that a server may say need more than this:

* A client that answered and is said not to have come has sent its data all the same. It charges itself for the round.
* It takes back the noise of its last round only if it did not answer since then. Otherwise it would take back one W
  twice: it begins a new chain, in which noise that nobody takes back replaces W. The account stays a bound.
* If all but one are said to drop out, that one has its own noise alone. A plan with a `threshold` has noise for the
  smallest share of the announced clients with which the secure sum opens, and the guard holds the server to it. All who
  were announced are charged then, so that the account does not depend on who drops out.
"""

from __future__ import annotations

import base64
import collections
from collections.abc import Iterator, Sequence
import contextlib
import dataclasses
import functools
import hashlib
import hmac
from typing import NamedTuple, Optional, Protocol, Union

import numpy as np

from quap_tff.common import array_types
from quap_tff.common import checks
from quap_tff.mechanisms import mechanism
from quap_tff.mechanisms.held import config as configs
from quap_tff.mechanisms.held import guard_memory
from quap_tff.mechanisms.noise import held_noise

# In place of the number of a client's last round: it takes nothing back.
NEW_CHAIN = -1
# What a client sends of its own, see `ClientGuard.answer`.
Answer = collections.OrderedDict[str, Union[np.ndarray, np.int64, np.float32]]
_NOBODY = np.zeros(0, np.int64)


class RefusedError(ValueError):
  """A guard does not answer. Nothing that depends on the client's data has left it."""


def plan_number(fingerprint: str) -> int:
  """A number of 62 bits that names a plan, by the fingerprint of its mechanism."""
  return int.from_bytes(hashlib.sha256(f'plan {fingerprint}'.encode()).digest()[:8], 'big') >> 2


def silence(plan: PublicPlan, round_num: int) -> Answer:
  """The answer of a client that is in a round and sends nothing."""
  return collections.OrderedDict(
    plan=np.int64(plan.number),
    round=np.int64(round_num),
    last_round=np.int64(0),
    weight=np.float32(0),
    noise_key=np.zeros(4, np.int64),
  )


class HasCore(Protocol):
  """A plan of a mechanism: `quap_tff.plans.Plan`."""

  @property
  def core(self) -> mechanism.Mechanism: ...


@dataclasses.dataclass(frozen=True, eq=False)
class PublicPlan:
  """The part of a plan that a guard uses. It is public.

  Attributes:
    weights: float64[N], w_i of each client in each of its rounds: float32 numbers, as the answers have them.
    limit: The largest μ_i²: a number, or float64[N].
    num_rounds: T.
    most_clients: The size of the largest cohort. The account of rounding covers no larger one.
    threshold: The smallest share of the announced clients with a weight with which the secure sum opens; None if any
      number may come.
    number: From `plan_number`.
    opened: The account before the first round.
  """

  weights: np.ndarray
  limit: Union[float, np.ndarray]
  num_rounds: int
  most_clients: int
  threshold: Optional[float]
  number: int
  opened: held_noise.Account

  @classmethod
  def of(cls, plan: Union[HasCore, configs.Held, None]) -> PublicPlan:
    """The public part of a certified plan in which clients hold the noise, or of its mechanism."""
    held = getattr(plan, 'core', plan)
    if not isinstance(held, configs.Held):
      raise ValueError(
        'A guard is for a plan in which clients hold the noise: quap_tff.Plan.certified of a HeldConfig.'
      )
    config = held.config
    return cls(
      weights=held.planned_weights.astype(np.float64),
      limit=config.limit,
      num_rounds=config.most_releases,
      most_clients=held.most_clients,
      threshold=config.threshold,
      number=plan_number(held.fingerprint),
      opened=held_noise.opened(config.num_clients, held.noise_multiplier, config.correlation.chosen),
    )

  def sends(self, clients: np.ndarray) -> np.ndarray:
    """The clients among these that have a weight. The others send nothing, and add no noise."""
    return clients[self.weights[clients] > 0]

  def charged(self, cohort: np.ndarray, came: np.ndarray) -> np.ndarray:
    """The clients that a round charges: those who came. With a threshold, all who were announced, if anybody came.

    Then the noise of the threshold's share of the cohort is counted, and a sum that opens has at least as much.
    """
    return came if self.threshold is None or not len(came) else cohort

  def after(self, account: held_noise.Account, clients: np.ndarray) -> held_noise.Account:
    """The account after a release of those of the clients that have a weight."""
    sends = self.sends(clients)
    return account.after(sends, self.weights[sends])


class Chain:
  """All that was announced up to a round, and what follows from it. A value: `then` gives the next one.

  Attributes:
    plan: The plan.
    before: The chain without this link; None for the empty one.
    round_num: t; 0 for the empty chain.
    cohort: int64[M], ascending, the clients that were announced for round t.
    came: int64[M'], ascending, those who came in the round of the link before.
    digest: 32 bytes that follow from all that was announced.
  """

  def __init__(
    self,
    plan: PublicPlan,
    before: Optional[Chain] = None,
    round_num: int = 0,
    cohort: np.ndarray = _NOBODY,
    came: np.ndarray = _NOBODY,
  ):
    self.plan, self.before, self.round_num, self.cohort, self.came = plan, before, round_num, cohort, came
    parts = [plan.number.to_bytes(8, 'big') if before is None else before.digest]
    parts += [f' {round_num} {len(came)} {len(cohort)} '.encode(), came.tobytes(), cohort.tobytes()]
    self.digest: bytes = hashlib.sha256(b''.join(parts)).digest()
    # Of the account, an array [T, T] is the largest part. So only the newest links keep theirs.
    self._account = plan.opened if before is None else None
    self._if_all_come: Optional[held_noise.Account] = None

  @property
  def account(self) -> held_noise.Account:
    """Everyone's account of the rounds before t."""
    missing: list[Chain] = []
    link = self
    while link._account is None:
      missing.append(link)
      assert link.before is not None  # The empty chain has an account.
      link = link.before
    for after in reversed(missing):
      charged = self.plan.charged(link.cohort, after.came)
      is_known = np.array_equal(charged, link.cohort) and link._if_all_come is not None
      after._account = link._if_all_come if is_known else self.plan.after(link.account, charged)
      if link.before is not None:
        link._account = link._if_all_come = None
      link = after
    assert self._account is not None
    return self._account

  @functools.cached_property
  def pays(self) -> bool:
    """Whether everyone's limit pays for the announced round, if all come."""
    self._if_all_come = self.plan.after(self.account, self.cohort)
    return self.round_num <= self.plan.num_rounds and self._if_all_come.is_within(self.plan.limit)

  def then(self, round_num: int, cohort: array_types.Ids, came: array_types.Ids) -> Chain:
    """The chain with one more link.

    Args:
      round_num: The round, after this chain's.
      cohort: int[M], the clients that are announced for it.
      came: int[M'], those who came in this chain's round, a part of its cohort.

    Raises:
      ValueError: If these cannot be announced.
    """
    num_clients, most = len(self.plan.weights), self.plan.most_clients
    checks.integer('round_num', round_num, at_least=1)
    cohort, came = (np.sort(checks.cohort(one, num_clients)) for one in (cohort, came))
    if round_num <= self.round_num:
      raise RefusedError(f'Round {round_num} is not after round {self.round_num}, which was announced before.')
    if len(cohort) > most:
      raise RefusedError(f'{len(cohort)} clients are announced for round {round_num}. The plan has at most {most}.')
    if not np.isin(came, self.cohort).all():
      raise RefusedError(
        f'Client {np.setdiff1d(came, self.cohort)[0]} is said to have come in round {self.round_num}, for which it was '
        'not announced. If another round lies in between, tell the guard of it first: follow(round_num, cohort, came), '
        'with its number, the clients that were announced for it, and those who came in the round before it.'
      )
    threshold, sent, could = self.plan.threshold, len(self.plan.sends(came)), len(self.plan.sends(self.cohort))
    if threshold is not None and len(came) and sent < threshold * could:
      raise RefusedError(
        f'{sent} of {could} clients are said to have come in round {self.round_num}. The secure sum of '
        f'this plan opens with a share of at least {threshold:g}.'
      )
    return Chain(self.plan, self, round_num, cohort, came)

  def links_since(self, earlier: Chain) -> list[Chain]:
    """The links that follow `earlier`, oldest first; raises `RefusedError` if this chain does not go on from it."""
    links: list[Chain] = []
    link: Optional[Chain] = self
    while link is not None and link.digest != earlier.digest:
      links.append(link)
      link = link.before
    if link is None:
      raise RefusedError('The server tells another history than before: the digests of the chain differ.')
    return links[::-1]


class ClientGuard:
  """One client's guard. Keep its memory as safe as its key.

  A guard without a memory remembers only as long as it lives: it is for simulations.
  """

  def __init__(
    self,
    plan: Union[HasCore, configs.Held, PublicPlan],
    client_id: int,
    key: Union[bytes, np.ndarray],
    memory: Optional[str] = None,
    counters: Optional[str] = None,
  ):
    """Goes on where its memory ends.

    Args:
      plan: A certified plan of a `quap_tff.HeldConfig`, or its `PublicPlan`.
      client_id: The client.
      key: The client's own secret: 32 bytes, or int64[4]. The key of its noise follows from it, the plan and the
        client, so that another plan has other noise. A second run of one plan needs another secret.
      memory: The path of the client's memory, see `guard_memory`. It is made with the first answer.
      counters: The folder, outside that of the memory, of the counter that tells the latest memory from an older copy.
        None: in the user's state folder, see `quap_tff.common.durable`.

    Raises:
      RefusedError: If the memory is damaged, missing, older than it was, or of another plan or client.
      ValueError: If the plan, the client or the key is of another kind.
    """
    self.plan = plan if isinstance(plan, PublicPlan) else PublicPlan.of(plan)
    self.client_id = int(checks.integer('client_id', client_id, at_least=0, at_most=len(self.plan.weights) - 1))
    secret = np.frombuffer(key, np.int64) if isinstance(key, bytes) else np.asarray(key)
    if secret.shape != (4,) or secret.dtype != np.int64:
      raise ValueError(f'key must be 32 bytes, or int64[4], found {secret.dtype}{list(secret.shape)}.')
    use = f'noise {self.plan.number} {self.client_id}'.encode()
    self._key = np.frombuffer(hmac.digest(secret.tobytes(), use, 'sha256'), np.int64)
    self._standing = _Standing(Chain(self.plan))
    owner = f'{self.plan.number} {client_id}'
    self._memory = guard_memory.Memory(memory, owner, counters) if memory is not None else None
    self._lines: list[str] = []
    if self._memory is not None:
      with self._remembering():
        pass

  @property
  def digest(self) -> str:
    """The digest of all that the server has announced. Two clients of one run must have the same."""
    return self._standing.chain.digest.hex()

  def answer(self, round_num: int, cohort: array_types.Ids, came: array_types.Ids) -> Answer:
    """The `answer` that goes into the client's data for a round.

    Args:
      round_num: The round t, from 1.
      cohort: int[M], the clients that are announced for it, this one among them.
      came: int[M'], those who came in the round that was announced before; nobody for the first one.

    Returns:
      `plan` and `round` int64; `last_round` int64, whose noise is taken back, 0 if there was none, and -1 in a new
      chain; `weight` float32; `noise_key` int64[4].

    Raises:
      RefusedError: If the client must not answer, with the reason.
      ValueError: If these are not clients of the plan, or not a round.
    """
    with self._remembering():
      return self._taken(self._standing.chain.then(round_num, cohort, came), answers=True)

  def follow(self, round_num: int, cohort: array_types.Ids, came: array_types.Ids) -> None:
    """Notes a round in which the client has no part. Rounds of which it hears nothing are rounds of nobody."""
    with self._remembering():
      self._taken(self._standing.chain.then(round_num, cohort, came), answers=False)

  def answer_at(self, chain: Chain) -> Answer:
    """The answer to the last link of a chain that goes on from the client's own, as `answer` gives it."""
    with self._remembering():
      return self._taken(chain, answers=True)

  def _taken(self, chain: Chain, answers: bool) -> Answer:
    standing, lines = self._standing, list(self._lines)
    for link in chain.links_since(standing.chain):
      standing = standing.after(link, self.client_id)
      lines.append(_line(link, answers and link is chain))
    answer: Answer = collections.OrderedDict()
    if answers:
      standing, answer = self._answered(standing)
    if self._memory is not None:
      self._memory.store(lines)
    self._standing, self._lines = standing, lines
    return answer

  def _answered(self, standing: _Standing) -> tuple[_Standing, Answer]:
    chain, own, plan = standing.chain, self.client_id, self.plan
    if own not in chain.cohort:
      raise RefusedError(f'Client {own} is not announced for round {chain.round_num}.')
    if chain.round_num <= standing.last_answered:
      raise RefusedError(f'Round {chain.round_num} was answered already. A second answer would repeat its noise.')
    if chain.round_num > plan.num_rounds:
      raise RefusedError(f'The plan has {plan.num_rounds} rounds, and this would be round {chain.round_num}.')
    if not plan.weights[own] > 0:
      raise RefusedError(f'Client {own} has no weight in this plan, which expects it in no round.')
    if not chain.pays or not standing.pays(own):
      raise RefusedError(f'Round {chain.round_num} could take a client past its bound. Its budget pays for no more.')
    # Noise of an answer that reached no sum is in no release, so nothing of it can be taken back.
    takes_back = standing.last_answered == standing.last_sent
    last_round = standing.last_sent if takes_back else NEW_CHAIN
    return standing._replace(last_answered=chain.round_num), collections.OrderedDict(
      plan=np.int64(plan.number),
      round=np.int64(chain.round_num),
      last_round=np.int64(last_round),
      weight=np.float32(plan.weights[own]),
      noise_key=self._key,
    )

  @contextlib.contextmanager
  def _remembering(self) -> Iterator[None]:
    """Locks the guard's memory for a block, at whose begin the guard learns all that its memory knows."""
    if self._memory is None:
      yield
      return
    try:
      with self._memory.locked():
        lines = self._memory.read(self._lines)
        if lines is not None:
          self._standing, self._lines = self._replayed(lines), lines
        yield
    except guard_memory.DamagedMemoryError as error:
      raise RefusedError(str(error)) from None

  def _replayed(self, lines: Sequence[str]) -> _Standing:
    standing = _Standing(Chain(self.plan))
    for line in lines:
      round_num, answered, *lists = line.split(' ')
      cohort, came = (np.frombuffer(base64.b64decode(one), np.int32) for one in lists)
      standing = standing.after(standing.chain.then(int(round_num), cohort, came), self.client_id)
      if answered == '1':
        standing = standing._replace(last_answered=int(round_num))
    return standing


class _Standing(NamedTuple):
  """The knowledge of a guard.

  Attributes:
    chain: All that was announced.
    last_sent: The last round in whose sum the client is; 0 if there was none.
    last_answered: The last round that it answered; 0 if there was none.
    charged: The account that has the client in every round that it answered, if it is said not to have come in one;
      None if that of the chain has.
  """

  chain: Chain
  last_sent: int = 0
  last_answered: int = 0
  charged: Optional[held_noise.Account] = None

  def after(self, link: Chain, own: int) -> _Standing:
    """The knowledge after the next link, which says who came in the round before."""
    before, plan, charged = self.chain, link.plan, self.charged
    answered = before.round_num == self.last_answered > 0
    in_sum = own in link.came
    if in_sum and not answered and plan.weights[own] > 0:
      raise RefusedError(
        f'Client {own} is said to have come in round {before.round_num}, which it did not answer. Somebody uses its '
        'name.'
      )
    if charged is not None or (answered and not in_sum):
      # If nothing was opened, the client charges itself as if all had come.
      clients = before.cohort if answered and not len(link.came) else plan.charged(before.cohort, link.came)
      clients = np.union1d(clients, [own]) if answered else clients
      account = charged if charged is not None else before.account
      charged = plan.after(account, clients)
    last_sent = before.round_num if in_sum else self.last_sent
    return _Standing(link, last_sent, self.last_answered, charged)

  def pays(self, own: int) -> bool:
    """Whether the client's own limit pays for the announced round by the account that has all its answers."""
    if self.charged is None:
      return True
    limit = np.broadcast_to(self.chain.plan.limit, self.chain.plan.weights.shape)[own]
    return bool(self.chain.plan.after(self.charged, self.chain.cohort).spent[own] <= limit)


def _line(link: Chain, answered: bool) -> str:
  lists = (base64.b64encode(ids.astype(np.int32).tobytes()).decode() for ids in (link.cohort, link.came))
  return ' '.join([str(link.round_num), str(int(answered)), *lists])
