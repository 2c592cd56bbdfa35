"""Local privacy as a plan: every client noises all that it sends, and the account holds against the server, too.

Each message of client i is one Gaussian mechanism of μ_i(t) = 2·C/σ_i(t) = 1/z_i(t), in the client's whole data, under
replacement. Messages are adaptively composed, so μ_i² = Σ_t 1/z_i(t)² over the rounds that the client takes part in.
The ledger has one noise multiplier for each round. It gets the smallest z_i(t) of the cohort, and client i the weight
min_j z_j(t)/z_i(t), so that weight over multiplier is 1/z_i(t). Its clipping norm is 2·C, what a client's data move.
"""

from __future__ import annotations

import numpy as np

from quap_tff import accounting
from quap_tff.accounting import protection as protections
from quap_tff.common import lazy
from quap_tff.plans import quap

aggregation = lazy.module('quap_tff.federated.local_aggregation')
learning_process = lazy.module('quap_tff.federated.learning_process')

_STATEMENT = (
  'Every client noises all that it sends, so formal figures hold for everything that the server receives and '
  'releases, against the server itself (local model).'
)


class LocalPlan(quap.QuapPlan):
  """Local privacy under a `quap_tff.QuapConfig` with noise at the clients, a fixed clip, and all layers critical."""

  neighbours = accounting.REPLACE_ONE
  noise_note = (
    'The figures hold against the server itself if each client draws its own noise. In this simulation all noise '
    "follows from one seed in the server's state."
  )

  def __init__(self, config, draw=accounting.Sampler(), *, client_metrics=False, **options):
    """See `QuapPlan`.

    Raises:
      ValueError: If clients cannot clip and noise by themselves, or were to send training metrics.
    """
    if client_metrics:
      raise ValueError(
        '--client_metrics: under local privacy a client sends its noised update and nothing else. Leave this flag '
        'out.'
      )
    aggregation.check_config(config)
    super().__init__(config, draw, client_metrics=False, **options)

  @property
  def protection(self):
    found = super().protection
    if found.covers != protections.RELEASED_MODEL:
      return found
    return found._replace(text=found.text.replace(found.statement, _STATEMENT), statement=_STATEMENT)

  @property
  def aggregator(self):
    return self._sparsified(aggregation.LocalAggregationFactory(self.config))

  def _compose(self, model_fn, client_optimizer, server_optimizer, client_work):
    return learning_process.compose(
      model_fn, self.aggregator, client_optimizer, server_optimizer, client_work, client_metrics=False
    )

  def _record(self, cohort, own_budgets, noise_multiplier, clipping_norm):
    del noise_multiplier
    multipliers = np.asarray(aggregation.noise_multipliers(self.config, np.asarray(own_budgets, np.float64)))
    smallest = float(multipliers.min(initial=np.inf)) if len(cohort) else 0.0
    return accounting.RoundRecord(
      cohort=cohort,
      budgets=own_budgets,
      weights=smallest / multipliers,
      noise_multiplier=smallest,
      count_noise_multiplier=np.inf,
      clipping_norm=aggregation.SENSITIVITY * clipping_norm,
    )
