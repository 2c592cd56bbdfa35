"""The documents' own account: Σ ε_i(t) over the rounds in which client i takes part, Σ δ = k_i·δ (basic composition).

These figures are nominal. They speak of the noised layers only, take the clipping norm as given even where it is an
un-noised quantile of the clients' norms, and are no differential-privacy guarantee for the released model.
"""

from typing import Any, Dict

import numpy as np

from quap_tff import budget as budgets
from quap_tff import config as configs
from quap_tff import participation as participations


class NominalLedger:
  """Cumulative nominal (ε, δ) of every client.

  Attributes:
    epsilon: float64[N], Σ ε_i(t); +inf for a client that took part in a round without noise.
    rounds: int64[N], k_i, the rounds in which the client took part, warm-up included.
  """

  def __init__(self, config: configs.QuapConfig):
    self._config = config
    self.epsilon = np.zeros(config.num_clients, np.float64)
    self.rounds = np.zeros(config.num_clients, np.int64)

  def record(self, aggregator_state: Any, cohort: np.ndarray):
    """Adds one round.

    Args:
      aggregator_state: The state of `QuapAggregationFactory`'s process after that round.
      cohort: int[M], distinct ids of the clients that took part.
    """
    if not len(cohort):
      return
    self.rounds[cohort] += 1
    if self._config.noise.placement == 'none':
      self.epsilon[cohort] = np.inf
      return
    round_num = int(aggregator_state['round'])
    of_cohort = {key: np.asarray(value)[cohort] for key, value in aggregator_state['participation'].items()}
    rates = participations.rates(self._config.participation, of_cohort, round_num)
    in_warmup = participations.in_warmup(self._config.participation, round_num)
    self.epsilon[cohort] += np.asarray(budgets.client_budgets(self._config.budget, rates, in_warmup), np.float64)

  @property
  def delta(self) -> np.ndarray:
    """float64[N], k_i·δ, at most 1."""
    return np.minimum(self.rounds * self._config.noise.delta, 1.0)

  def state_dict(self) -> Dict[str, np.ndarray]:
    """What a checkpoint keeps."""
    return {'epsilon': self.epsilon.copy(), 'rounds': self.rounds.copy()}

  def load_state_dict(self, state: Dict[str, np.ndarray]):
    """Takes up a kept state; raises `ValueError` and changes nothing if it is of another population."""
    own = self.state_dict()
    shapes = {key: np.shape(value) for key, value in state.items()}
    expected = {key: value.shape for key, value in own.items()}
    if shapes != expected:
      raise ValueError(f'The kept ledger is of another run: it holds {shapes}, the configuration asks for {expected}.')
    for key, value in own.items():
      setattr(self, key, np.array(state[key], value.dtype))
