"""Engines: they compute a round, and keep nothing. A `server.Server` keeps the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Optional, Protocol

import numpy as np

from quap_tff.common import array_types
from quap_tff.plans.accounts import run_account


class Attendance(NamedTuple):
  """The clients of a round, with all that an engine needs of them.

  Attributes:
    examples: The examples of each client of the cohort, in the cohort's order. They may be made anew each
      time that they are asked for.
    absent: Clients of the cohort that drop out. The caller gives them no examples, so their updates are zero.
    answers: The answer of each client's guard, where clients hold the noise.
  """

  examples: Mapping[int, array_types.Structure]
  absent: array_types.Ids = ()
  answers: Optional[Mapping[int, array_types.Structure]] = None


class Engine(Protocol):
  """Computes rounds: TFF's process in this process, or a bundle.

  A state holds the key of the noise. It has `aggregator`, the state of the aggregation, and so have the metrics.

  Attributes:
    plan: The plan of the run, which knows the shape of the model; None for rounds without an account.
    leaving: What leaves clients in a round, see `quap_tff.plans.accounts.run_account`.
  """

  @property
  def plan(self) -> Optional[run_account.RunAccount]: ...

  @property
  def leaving(self) -> run_account.Leaving: ...

  def initialize(self) -> array_types.Structure:
    """A state before the first round. Without a given seed, the key of its noise is new with each call."""

  def play(
    self, state: array_types.Structure, attendance: Attendance
  ) -> tuple[array_types.Structure, array_types.Structure]:
    """The state after a round, and its metrics."""

  def weights(self, state: array_types.Structure) -> array_types.Structure:
    """The model's weights, `trainable` and `non_trainable`, lists of arrays."""

  def with_trainable(self, weights: array_types.Structure, trainable: Sequence[np.ndarray]) -> array_types.Structure:
    """Weights with other trainable tensors."""

  def leaves(self, state: array_types.Structure) -> list[array_types.Array]:
    """The tensors of a state, in order."""

  def state_of(self, state: array_types.Structure, leaves: Sequence[array_types.Array]) -> array_types.Structure:
    """A state with other tensors."""


def with_key_of(engine: Engine, state: array_types.Structure, other: array_types.Structure) -> array_types.Structure:
  """A state with the key of another one's noise.

  Args:
    engine: The engine of both.
    state: The state. If its aggregation draws no noise from a key of ours, it is returned as it is.
    other: A first state.
  """
  key = _key(state)
  if key is None:
    return state
  leaves = engine.leaves(state)
  # By identity: other tensors may be equal to the key.
  place = next(index for index, leaf in enumerate(leaves) if leaf is key)
  leaves[place] = engine.leaves(other)[place]
  return engine.state_of(state, leaves)


def _key(state: array_types.Structure) -> array_types.Structure:
  """The key of a state's noise, a `mechanisms.mechanism.NoiseState.seed`; None if no noise is drawn from one."""
  aggregator = getattr(state, 'aggregator', None)
  mechanism = getattr(aggregator, 'mechanism', aggregator)  # Around an inner sum it is a part of the state.
  noise = getattr(mechanism, 'noise', None)
  return getattr(noise, 'seed', None)
