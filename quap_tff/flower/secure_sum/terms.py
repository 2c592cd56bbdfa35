"""The terms of the secure sum of a round, on which both ends agree, from the plan and the nodes that are announced.

Nodes are the parties of SecAgg+: all clients of a node are in a sum, or none. Let n nodes be announced, with W clients
that have a weight. Each secret is split into n shares, of which t open it. Each node gives one share of each other
node, of one of its two secrets; which one follows from the list of live and dead nodes that it is told, once a round.

**Lists that differ.** Nodes do not compare these lists, so a server may tell each node another one. A node accepts
only a set of parties, and of live ones among them, with t nodes and a share φ of the W clients. As 2t > n, the server
opens at most one secret of each node. Let U be the nodes in a sum that opens, and i one of them. A node that is
not in U was kept from i's parties, which hold a share φ at least, or t nodes were told that it is dead. Together, all
nodes are told that at most n·(1-φ)·W clients are dead. So those who are not in U have at most (1-φ)·(1 + n/t)·W
clients, and U has a share θ if

    φ ≥ (θ + n/t) / (1 + n/t).

This is also the share of honest nodes alone: it holds if no node colludes with the server. t is chosen for φ ≈ t/n, the
positive root of x² + (1-θ)·x - 1. So a plan with θ = 1/2 survives the loss of 22% of its clients in a round, and with
θ = 2/3 that of 15%. A plan without a threshold has θ = 1, so t = n: the sum opens for all, or for nobody.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
import dataclasses
import hashlib
import math

import numpy as np

from quap_tff.bundle import player
from quap_tff.flower.secure_sum import integers
from quap_tff.flower.secure_sum import masks
from quap_tff.mechanisms.held import guard

# The round-off of φ, which must not refuse everybody.
_ROUND_OFF = 1e-9


@dataclasses.dataclass(frozen=True, eq=False)
class Terms:
  """The terms of a round.

  Attributes:
    nodes: int64[M_k] by node id: the clients of each announced node. Together they are the cohort.
    counts: How many clients with a weight each node has.
    threshold: t, how many shares open a secret.
    share: φ, the smallest share of the clients with a weight.
  """

  nodes: Mapping[int, np.ndarray]
  counts: Mapping[int, int]
  threshold: int
  share: float

  @classmethod
  def of(cls, bundle: player.Bundle, nodes: Mapping[int, np.ndarray]) -> Terms:
    """The terms of a round.

    Raises:
      ValueError: If the sum could not be secure, or not exact.
    """
    plan = guard.PublicPlan.of(bundle.plan)
    clients = np.concatenate([np.zeros(0, np.int64), *nodes.values()])
    if len(nodes) < 2 or len(np.unique(clients)) != len(clients):
      raise ValueError(
        f'A secure sum needs at least two nodes, and each client at one of them, found {len(nodes)} nodes '
        f'with {len(clients)} clients, of whom {len(np.unique(clients))} differ. Start more nodes, or enrol each '
        'client once.'
      )
    if not (clients >= 0).all() or not (clients < len(plan.weights)).all():
      raise ValueError(f'The plan has the clients 0 to {len(plan.weights) - 1}. Announce no others.')
    integers.check_fits(bundle, plan.most_clients)
    least, count = 1.0 if plan.threshold is None else plan.threshold, len(nodes)
    root = (math.sqrt((1 - least) ** 2 + 4) - (1 - least)) / 2
    # With one share a single node could open all secrets.
    threshold = max(2, math.ceil(root * count - _ROUND_OFF))
    share = (least + count / threshold) / (1 + count / threshold)
    return cls(nodes, {node: len(plan.sends(own)) for node, own in nodes.items()}, threshold, share)

  @property
  def cohort(self) -> np.ndarray:
    """int64[M], ascending."""
    return np.sort(np.concatenate(list(self.nodes.values())))

  def clients(self, nodes: Collection[int]) -> np.ndarray:
    """int64[M'], ascending: the clients of some nodes."""
    return np.sort(np.concatenate([np.zeros(0, np.int64), *(self.nodes[node] for node in nodes)]))

  def shortfall(self, nodes: Collection[int]) -> str:
    """Why a sum does not open for these of the nodes; '' if it does."""
    sent, could = sum(self.counts[node] for node in nodes), sum(self.counts.values())
    if len(nodes) >= self.threshold and sent >= (self.share - _ROUND_OFF) * could:
      return ''
    return (
      f'{len(nodes)} of {len(self.nodes)} nodes with {sent} of {could} clients are fewer than the threshold: the '
      f'secure sum of this plan takes {self.threshold} nodes, and a share of {self.share:.3f} of the clients'
    )

  @property
  def settings(self) -> dict[str, int]:
    """The numbers that a server must not choose, by name."""
    return {'threshold': self.threshold, 'modulus': masks.MODULUS}

  def position(self, node: int) -> int:
    """The position of an announced node, by which it has its share of each secret."""
    return sorted(self.nodes).index(node)


def session_of(run: str, round_num: int, digest: str, nodes: Mapping[int, np.ndarray]) -> bytes:
  """What all nodes of a round agree on, 32 bytes: each signs it, and seals its shares with it.

  Args:
    run: The identifier of the run.
    round_num: t.
    digest: That of the history, in hex.
    nodes: int64[M_k] by node id: the clients of each announced node.
  """
  announced = [f'{node}: {np.sort(nodes[node]).tolist()}' for node in sorted(nodes)]
  return hashlib.sha256('\n'.join([masks.NAME, run, str(round_num), digest, *announced]).encode()).digest()


def masked_session(session: bytes, parties: Collection[int]) -> bytes:
  """The context of all masks of a round: also the nodes between which there are masks."""
  return session + ' '.join(map(str, sorted(parties))).encode()
