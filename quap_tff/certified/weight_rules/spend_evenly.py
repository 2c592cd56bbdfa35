"""w_i = min(1, μ_max·z/√K_i): each client spends its budget evenly over the K_i rounds that it is planned to be in."""

import dataclasses

from quap_tff.certified import privacy_filter
from quap_tff.certified.weight_rules import base


@dataclasses.dataclass(frozen=True)
class SpendEvenly(base.WeightRule):
  """For a schedule that is public before the run. With a private quantile, μ_max²/K_i less what its count costs."""

  needs_plan = True

  def weights(self, prices, rates, in_warmup, planned):
    return privacy_filter.even_weight(prices, planned)
