"""The clients of a simulation that hold noise: a guard for each, and the program that announces rounds to them."""

from __future__ import annotations

from collections.abc import Mapping
import hashlib
from typing import Protocol, Union

import numpy as np

from quap_tff.common import array_types
from quap_tff.mechanisms.certified import privacy_filter
from quap_tff.mechanisms.held import config as configs
from quap_tff.mechanisms.held import guard


class Ledger(Protocol):
  """A `quap_tff.accounting.RunLedger`."""

  @property
  def num_rounds(self) -> int: ...

  def state_dict(self) -> Mapping[str, np.ndarray]: ...


class GuardedClients:
  """All clients of a run, in one process. One operator makes all keys, from one secret.

  What is simulated is what a deployment runs: each client answers by its own `guard.ClientGuard`.
  """

  def __init__(self, plan: Union[guard.HasCore, configs.Held, None], secret: bytes):
    """Starts before the first round.

    Args:
      plan: A certified plan of a `quap_tff.HeldConfig`.
      secret: From which the clients' keys are made; as secret as they are.
    """
    self._plan, self._secret = guard.PublicPlan.of(plan), secret
    self._chain, self._came = guard.Chain(self._plan), np.zeros(0, np.int64)
    self._guards: dict[int, guard.ClientGuard] = {}

  @property
  def spent_max(self) -> float:
    """The largest share of its limit that any client has spent, with the latest round."""
    account = self._plan.after(self._chain.account, self._came)
    return float(privacy_filter.share_of(self._plan.limit, account.spent).max())

  def resume(self, ledger: Ledger) -> None:
    """Goes on after the rounds of a ledger: every client that came answers them once more, for nobody."""
    state = ledger.state_dict()
    for index in range(ledger.num_rounds):
      entries = slice(state['offsets'][index], state['offsets'][index + 1])
      self.answers(index + 1, state['clients'][entries])

  def answers(self, round_num: int, cohort: array_types.Ids) -> dict[int, guard.Answer]:
    """The answers of the clients of a round, by client, see `guard.ClientGuard.answer`.

    If somebody's budget does not pay for the round, or a client has no weight, an answer says that nothing is sent.

    Args:
      round_num: t, the round after the last one.
      cohort: int[M], the clients that come.
    """
    chain = self._chain = self._chain.then(round_num, cohort, self._came)
    self._came = sends = self._plan.sends(chain.cohort) if chain.pays else chain.cohort[:0]
    answers = dict.fromkeys(chain.cohort.tolist(), guard.silence(self._plan, round_num))
    answers.update((client, self._guard(client).answer_at(chain)) for client in sends.tolist())
    return answers

  def _guard(self, client: int) -> guard.ClientGuard:
    if client not in self._guards:
      key = hashlib.sha256(self._secret + b' client %d' % client).digest()
      self._guards[client] = guard.ClientGuard(self._plan, client, key)
    return self._guards[client]
