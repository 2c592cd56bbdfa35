"""An example of a weight rule of certified runs."""

import dataclasses

import numpy as np

from quap_tff.mechanisms.certified import weight_rules


@dataclasses.dataclass(frozen=True)
class Half(weight_rules.WeightRule):
  """Every client counts half until its budget is spent."""

  def weights(self, view: weight_rules.RoundView) -> np.float32:
    return np.float32(0.5)


weight_rules.RULES['half'] = Half
