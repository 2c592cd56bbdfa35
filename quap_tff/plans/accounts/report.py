"""The statements about a run, and the check of who was in a round."""

from __future__ import annotations

import dataclasses
from typing import Optional

import numpy as np

from quap_tff import accounting
from quap_tff.common import array_types
from quap_tff.common import checks
from quap_tff.common import json_types
from quap_tff.common.numbers import rounding


def checked_cohort(
  cohort: array_types.Ids,
  num_clients: int,
  measurements: array_types.Structure,
  counts: Optional[array_types.Array] = None,
  weights: Optional[array_types.Array] = None,
) -> np.ndarray:
  """The cohort of a finished round as int64[M], compared with the aggregator's own evidence.

  The size is compared with the one that the aggregator measured. With `weights`, another client can take only the place
  of one that added nothing. With `counts`, each client must have been in some round; whether it was in this one shows
  when the ledger compares the counts with its own (`RoundRecord.counts`). Without both, as for TFF's own aggregators,
  nothing shows that one client was given in place of another.

  Args:
    cohort: int[M].
    num_clients: N.
    measurements: The aggregator's, with `cohort_size`.
    counts: int[N], how often each client has taken part, after the round.
    weights: float[N], each client's weight in the round; 0 for those who were not in it.

  Raises:
    ValueError: If these are not distinct ids in [0, N), or not those of the round.
  """
  ids = checks.cohort(cohort, num_clients)
  size = int(measurements['cohort_size'])
  strangers: array_types.Ids = [] if counts is None else ids[np.asarray(counts)[ids] < 1]
  missing: array_types.Ids = [] if weights is None else np.setdiff1d(np.flatnonzero(np.asarray(weights)), ids)
  if len(ids) != size:
    problem = f'the aggregator counted {size} clients in the round, and the cohort has {len(ids)}'
  elif len(strangers):
    problem = f'the aggregator has never seen client {strangers[0]}'
  elif len(missing):
    problem = f'client {missing[0]} was in the round, and is not in the cohort'
  else:
    return ids
  raise ValueError(
    f'This is not the cohort of the round: {problem}. Give the ids of all clients whose data `next` got.'
  )


@dataclasses.dataclass(frozen=True, eq=False)
class Report:
  """The statements about a run: nominal figures, formal figures, and what is protected.

  Attributes:
    protection: The coverage of the noise, in words.
    formal: The formal figures; it has none where the released model has no finite ε.
    nominal_epsilon: float64[N], Σ ε_i(t) of each client in nats, by basic composition (docs/method.md, section 7.1).
      None for a method whose noise does not follow such budgets, and for one without noise.
    nominal_delta: float64[N], k_i·δ, or None.
    trust: Who is trusted, see `quap_tff.mechanisms.mechanism.Facts`.
  """

  protection: accounting.Protection
  formal: accounting.FormalReport
  nominal_epsilon: Optional[np.ndarray]
  nominal_delta: Optional[np.ndarray]
  trust: str = 'server'

  def as_dict(self) -> json_types.JsonObject:
    """For JSON. Figures that a method does not have are null."""
    nominal = self.nominal_epsilon
    return {
      'nominal_epsilon_max': float(nominal.max()) if nominal is not None else None,
      'nominal_epsilon_mean': float(nominal.mean()) if nominal is not None else None,
      'nominal_delta_max': float(self.nominal_delta.max()) if self.nominal_delta is not None else None,
      'trust': self.trust,
      'model_protected': self.protection.model_protected,
      'protection': self.protection.statement,
      'formal': self.formal.as_dict(),
    }

  def __str__(self) -> str:
    lines = []
    if self.nominal_epsilon is not None and self.nominal_delta is not None:
      lines.append(
        f'Nominal ε per client: mean {rounding.up(self.nominal_epsilon.mean())}, max '
        f'{rounding.up(self.nominal_epsilon.max())}, with total δ up to {rounding.up(self.nominal_delta.max())}: '
        "basic composition of the noised layers' rounds (unit: one client's whole data), no amplification by "
        'sampling, clipping norms taken as given.'
      )
    return '\n'.join(lines + [self.protection._replace(statement=self.formal.text).text])
