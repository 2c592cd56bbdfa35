"""Simulated malicious clients: the choice of the clients, and their updates.

A share of the clients attacks in every round that it is in. Which clients these are follows from the seed alone.
Attacks act on the update that a client would have sent, before it is clipped, or on its labels before training. They do
not get around the clip: a server that sees updates can clip them itself, so it is assumed to.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from quap_tff.common import array_types
from quap_tff.common import checks


class Attack(checks.Checked):
  """The behaviour of malicious clients. Subclasses are frozen dataclasses in `ATTACKS`.

  Attributes:
    share: The share of malicious clients, in [0, 1]: round(share·N) clients.
  """

  share: float = 0.0

  def changed_update(self, update: array_types.Structure) -> array_types.Structure:
    """The update that a malicious client sends instead of the one that training gave, of the same structure."""
    return update

  def changed_labels(self, labels: np.ndarray, num_classes: int) -> np.ndarray:
    """The labels, int32[n], that a malicious client trains on."""
    return labels

  @property
  def changes_updates(self) -> bool:
    """True if malicious clients send something else than training gave them."""
    return type(self).changed_update is not Attack.changed_update

  def clients(self, num_clients: int, seed: int) -> np.ndarray:
    """int64[round(share·N)], the malicious clients, ascending; a pure function of the seed."""
    count = int(np.floor(self.share * num_clients + 0.5))
    order = np.random.default_rng([seed, _STREAM]).permutation(num_clients)
    return np.sort(order[:count]).astype(np.int64)


# Folded into the seed: no other draw of a run uses it.
_STREAM = 0x6D616C6963


@dataclasses.dataclass(frozen=True)
class NoAttack(Attack):
  """Every client is honest."""


ATTACKS: dict[str, type[Attack]] = {'none': NoAttack}
