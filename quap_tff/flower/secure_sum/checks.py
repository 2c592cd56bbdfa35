"""Checks of stages and parties, as the server tells them, by what a node has kept and the terms of the round."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from quap_tff.flower import messages
from quap_tff.flower.secure_sum import records
from quap_tff.flower.secure_sum import terms


def check_order(kept: records.Kept, heading: messages.Heading, stage: Any) -> None:
  """Raises `RefusedRoundError` unless this is the next stage of the round in which this node is."""
  if kept.setup.round_num != heading.round_num:
    raise messages.RefusedRoundError(
      f'The server goes on with round {heading.round_num}, and round {kept.setup.round_num} was set up here. Begin it '
      'with its setup.'
    )
  done = records.STAGES.index(kept.stage) + 1 if kept.stage else 0
  # No stage follows the last one.
  if stage not in records.STAGES[done:][:1]:
    raise messages.RefusedRoundError(
      f'The server asks for the stage {stage} after {kept.stage or "nothing"}. The stages are '
      f'{", ".join(records.STAGES)}, in this order and each once.'
    )


def present(kept: records.Kept, agreed: terms.Terms, sealed: Collection[int], node_id: int) -> list[int]:
  """The nodes whose shares this one has: between them are masks; raises `RefusedRoundError` if a sum may not open.

  Args:
    kept: What the node has kept.
    agreed: The terms of the round.
    sealed: The nodes whose shares the server has sent.
    node_id: This node.
  """
  # The server sends the shares of the others only.
  parties = [node_id, *sealed]
  strangers = set(parties) - set(kept.parties)
  if strangers:
    raise messages.RefusedRoundError(f'Node {min(strangers)} sends shares, and no keys were exchanged with it.')
  check_parties(agreed, parties, node_id)
  return parties


def check_parties(agreed: terms.Terms, parties: Collection[int], node_id: int) -> None:
  """Raises `RefusedRoundError` unless a sum of these nodes may open, and this node is one of them."""
  strangers = set(parties) - set(agreed.nodes)
  if strangers:
    raise messages.RefusedRoundError(f'Node {min(strangers)} was not announced for this round.')
  if node_id not in parties or len(set(parties)) != len(parties):
    raise messages.RefusedRoundError('This node must be among the parties of the sum, and each of them once.')
  _check_enough(agreed, parties)


def _check_enough(agreed: terms.Terms, parties: Collection[int]) -> None:
  shortfall = agreed.shortfall(parties)
  if shortfall:
    raise messages.RefusedRoundError(f'{shortfall}.')


def check_opening(kept: records.Kept, agreed: terms.Terms, active: list[int], dead: list[int], node_id: int) -> None:
  """Raises `RefusedRoundError` for lists that would open more than one sum, or show one node's."""
  both = set(active) & set(dead)
  if both:
    raise messages.RefusedRoundError(
      f'Node {min(both)} is in both lists, of those who are in the sum and of those who dropped out. Both of its '
      'secrets would show its own sum.'
    )
  strangers = (set(active) | set(dead)) - set(agreed.nodes)
  if strangers:
    raise messages.RefusedRoundError(f'Node {min(strangers)} was not announced for this round.')
  # As lists, not as sets: a node that is named twice would count twice towards the threshold.
  if sorted(active + dead) != sorted(kept.parties):
    raise messages.RefusedRoundError(
      f'The lists name the nodes {sorted(active + dead)}, and those who have answered are {sorted(kept.parties)}.'
    )
  if node_id not in active:
    raise messages.RefusedRoundError('This node has answered, and is said to have dropped out.')
  # Of those in the sum alone: the dead have no noise in it.
  _check_enough(agreed, active)
