"""Descent with privately chosen steps and noise (`quap_tff.mechanisms.line_search`) as a plan, and its account."""

from __future__ import annotations

import numpy as np

from quap_tff import accounting
from quap_tff.accounting import protection as protections
from quap_tff.common import lazy
from quap_tff.common.numbers import rounding
from quap_tff.plans import plan

line_search_aggregation = lazy.module('quap_tff.federated.line_search_aggregation')


class LeeKiferPlan(plan.Plan):
  """Lee and Kifer's adaptive budget for each iteration, for whole clients.

  The ledger holds the cost of each round. But the noise of later rounds was chosen from the releases of earlier ones.
  So the sum of a run's costs is itself a release, and not a bound that held beforehand. The filter gives such a bound:
  in every run, no client exceeds μ_max²(ε, δ). So the report gives ε and ρ = μ_max²/2 for every client that took part.
  """

  def _of_mechanism(self):
    seeded = self.config.noise_seed is not None
    return protections.of_noise(protections.EVERY_LAYER, (), seeded, self.exact_logs)

  def _server_parts(self, model_fn, client_optimizer, server_optimizer, client_work):
    # The steps are chosen by the losses, so the server's optimizer has nothing to choose.
    factory = line_search_aggregation.LineSearchAggregationFactory(self.config, model_fn)
    return factory, line_search_aggregation.Subtraction()

  def _aggregator(self, rate):
    raise NotImplementedError("lee_kifer tests steps on the clients' losses: use build_process, not an aggregator.")

  def _formal(self, ledger):
    if not self.protection.model_protected:
      return super()._formal(ledger)
    spent = float(accounting.total_mu(ledger).whole.max()) ** 2
    return self._of_filter(
      ledger.rounds > 0, f' that took part, and not what rounds happened to cost (at most ρ = {rounding.up(spent / 2)})'
    )

  def _bound(self, ledger, cohorts):
    takes_part = np.zeros(self.num_clients, bool)
    takes_part[np.concatenate(cohorts).astype(np.int64)] = True
    return self._of_filter(takes_part, ' that was planned to take part')

  def _of_filter(self, clients, whom):
    """The figures of the filter, for each of the clients bool[N]."""
    note = (
      'The noise was chosen from noised releases. So the figures are those of the filter, '
      f'ρ = {rounding.up(self.config.limit / 2)} for each client{whom}.'
    )
    bound = accounting.of_limits(np.where(clients, np.sqrt(self.config.limit), 0.0), self.delta)
    return accounting.formal_report(bound, self.delta, self.protection, self.sampler, note)
