"""The state that the server of a bundle's run keeps between rounds, in a simulation as in a deployment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

import numpy as np

from quap_tff.bundle import player
from quap_tff.bundle import structures
from quap_tff.mechanisms.parts import postprocessing


class Server:
  """The server's side of a run, before its first round.

  Attributes:
    bundle: The run.
    state: After the last round.
    ledger: The cost of each round; None without a plan.
    done: How many rounds were played.
  """

  def __init__(self, bundle: player.Bundle):
    self.bundle, self.state, self.done = bundle, bundle.initialize(), 0
    self.ledger = bundle.plan.new_ledger() if bundle.plan is not None else None
    self._average = bundle.rounds.averaging.initial(bundle.weights(self.state).trainable)

  def ask(self, cohort: np.ndarray) -> np.ndarray:
    """The weights that the account lets clients have in the next round; 0 for those that must stay out.

    Args:
      cohort: int64[M], the clients that would come.

    Returns:
      float32[M]; ones where no account says who may come.
    """
    plan = self.bundle.plan
    if plan is None or self.ledger is None or not plan.mechanism.facts.is_certified:
      return np.ones(len(cohort), np.float32)
    return plan.ask(self.ledger, cohort)

  def release(self, total: player.Sums, cohort: np.ndarray, announced: Optional[np.ndarray] = None) -> None:
    """Plays the server's part of the next round.

    Args:
      total: The sum over the clients.
      cohort: int64[M], who is in it.
      announced: int64[M'], where clients hold the noise: for whom the sum could have opened. Default: who is in it.
    """
    state, metrics = self.bundle.update(self.state, total)
    plan = self.bundle.plan
    if plan is not None and self.ledger is not None:
      record = self.bundle.record(state, metrics, cohort)
      if announced is not None and plan.held is not None:
        record = plan.held.cost_of_announced(announced, len(cohort) > 0, self.done + 1)
      self.ledger.append(record)
    self._average = self.bundle.rounds.averaging.update(self._average, self.bundle.weights(state).trainable)
    self.state, self.done = state, self.done + 1

  def published(self) -> Any:
    """The weights that are published if the run ends here: `trainable` and `non_trainable`."""
    rounds, weights = self.bundle.rounds, self.bundle.weights(self.state)
    trainable = rounds.averaging.value(self._average, weights.trainable)
    return type(weights)(weights, trainable=postprocessing.shrunk(trainable, rounds.shrinkage))

  def state_dict(self) -> dict[str, np.ndarray]:
    """Arrays for a checkpoint. They hold the key of the noise: keep them as secret as clients' data."""
    leaves = structures.flatten(self.bundle.state_type, self.state, 'state')
    ledger: Mapping[str, Any] = self.ledger.state_dict() if self.ledger is not None else {}
    return {
      'done': np.array(self.done, np.int64),
      **{f'state {index}': np.asarray(leaf) for index, leaf in enumerate(leaves)},
      **{f'ledger {name}': array for name, array in ledger.items()},
      **{f'average {name}': array for name, array in self._average.items()},
    }

  def load_state_dict(self, arrays: Mapping[str, np.ndarray]) -> None:
    """Goes on from what `state_dict` gave. Raises `ValueError` or `KeyError` if it is of another run."""
    part = lambda kind: {name[len(kind) :]: one for name, one in arrays.items() if name.startswith(kind)}
    leaves = part('state ')
    count = len(list(structures.types(self.bundle.state_type)))
    state = structures.pack(self.bundle.state_type, iter([leaves[str(index)] for index in range(count)]))
    structures.flatten(self.bundle.state_type, state, 'state')
    average = postprocessing.restored(self._average, part('average '))
    if self.ledger is not None:
      self.ledger.load_state_dict(part('ledger '))
    self.state, self._average, self.done = state, average, int(arrays['done'])


def checked_cohorts(bundle: player.Bundle, num_rounds: Optional[int] = None) -> list[np.ndarray]:
  """int64[M_t], the clients of each round, or of the first ones; raises `ValueError` if the bundle does not say it."""
  cohorts = list(bundle.rounds.cohorts[:num_rounds])
  if not cohorts:
    raise ValueError('This bundle does not say who takes part in which round. Export it with rounds.')
  return cohorts
