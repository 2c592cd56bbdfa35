"""w_i(t) = 1 for everyone, until the filter binds."""

import dataclasses

import tensorflow as tf

from quap_tff.certified.weight_rules import base


@dataclasses.dataclass(frozen=True)
class Uniform(base.WeightRule):
  """The same for everyone; the filter alone caps what a client spends."""

  def weights(self, prices, rates, in_warmup, planned):
    return tf.ones_like(rates)
