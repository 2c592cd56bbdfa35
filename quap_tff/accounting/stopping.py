"""Runs that end before their last planned round: the cost of their rounds, and their bounds.

A run can end because of what it has released: at an accuracy, or when somebody who looked at it stops it. Then the
number of its rounds is chosen by the releases, and the ε of the rounds that ran is the reading of an odometer. At that
ε, the real δ can be many times the stated one. An account of all planned rounds over the public schedule is a constant,
and so it bounds a run wherever it ends: the releases that are left out are post-processing.
"""

import dataclasses
import math
from typing import Any, Optional

import numpy as np

from quap_tff.accounting import run_ledger

# Relative, between noise and weights of a round in TensorFlow's arithmetic and in NumPy's.
_SAME = 1e-5


class NoBoundError(ValueError):
  """There is no bound for a run that has ended early. The message is a clause that says why."""


@dataclasses.dataclass(frozen=True, eq=False)
class Reading:
  """The cost of the rounds of a run that ended early. It guarantees nothing.

  Attributes:
    rounds: The rounds that ran.
    epsilon: float64[N], ε of each client by the exact composition of Gaussians, as if their number had been planned. If
      the cohorts are secret, it follows from the client's rate.
  """

  rounds: int
  epsilon: np.ndarray

  def as_dict(self) -> dict[str, Any]:
    """For JSON. An ε that is not finite becomes None."""
    # The mean of equal numbers can round to a value above them.
    largest = float(self.epsilon.max())
    finite: dict[str, Optional[float]] = {
      name: value if math.isfinite(value) else None
      for name, value in (('epsilon_max', largest), ('epsilon_mean', min(float(self.epsilon.mean()), largest)))
    }
    return {'rounds': self.rounds, **finite}


def completed(ledger: run_ledger.RunLedger, planned: run_ledger.RunLedger) -> run_ledger.RunLedger:
  """The rounds of a ledger, and then those that were planned to follow.

  Args:
    ledger: The rounds that ran.
    planned: All planned rounds, of the same population. Its clipping norms are not used.

  Raises:
    NoBoundError: If a round that ran had other clients, other noise or other weights than planned. Then what later
      rounds would have cost is not known either.
  """
  rounds = ledger.num_rounds
  found, expected = ledger.state_dict(), planned.truncated(min(rounds, planned.num_rounds)).state_dict()
  (of_rounds, clients, weights), (expected_rounds, expected_clients, expected_weights) = map(_sorted, (found, expected))
  if not (np.array_equal(of_rounds, expected_rounds) and np.array_equal(clients, expected_clients)):
    raise NoBoundError('the rounds that ran had other clients than the schedule')
  pairs = [(found[name], expected[name]) for name in ('noise_multipliers', 'count_noise_multipliers')]
  if not all(np.allclose(one, other, rtol=_SAME, atol=0) for one, other in [*pairs, (weights, expected_weights)]):
    raise NoBoundError('the rounds that ran had other noise or other weights than were planned')
  rest = planned.state_dict()
  begin = rest['offsets'][rounds]
  return run_ledger.RunLedger.from_state_dict(
    {
      **found,
      'offsets': np.concatenate([found['offsets'], rest['offsets'][rounds + 1 :]]),
      **{name: np.concatenate([found[name], rest[name][begin:]]) for name in run_ledger.ENTRIES},
      **{name: np.concatenate([found[name], rest[name][rounds:]]) for name in run_ledger.ROUNDS},
    }
  )


def of_limits(mu: np.ndarray, delta: float) -> run_ledger.RunLedger:
  """A ledger of one round that costs each client all that it may spend: float64[N] μ, 0 for nothing."""
  clients, largest = np.flatnonzero(mu), float(mu.max()) or 1.0
  ledger = run_ledger.RunLedger(len(mu), delta, 'limits')
  ledger.append(
    run_ledger.RoundRecord(clients, np.ones(len(clients)), mu[clients] / largest, 1 / largest, math.inf, 1.0)
  )
  return ledger


def _sorted(state):
  """The round, the client and the weight of each entry, by round and client."""
  rounds = np.repeat(np.arange(len(state['offsets']) - 1), np.diff(state['offsets']))
  order = np.lexsort([state['clients'], rounds])
  return rounds, state['clients'][order], state['weights'][order]
