"""What a rule for the weights w_i(t) must provide."""

import abc
from typing import Any, Optional

import tensorflow as tf

from quap_tff.certified import privacy_filter


class WeightRule(abc.ABC):
  """How much of the clipping norm the clients of a cohort get. Subclasses are frozen dataclasses in `RULES`.

  The filter has the last word: whatever a rule asks for, nobody passes the budget.

  Attributes:
    needs_plan: Whether weights go by how often each client is planned to take part.
  """

  needs_plan: bool = False

  @abc.abstractmethod
  def weights(
      self, prices: privacy_filter.Prices, rates: tf.Tensor, in_warmup: Any, planned: Optional[tf.Tensor]
  ) -> tf.Tensor:
    """w_i(t) in [0, 1] before the filter: functions of who takes part when, and of constants, never of data.

    Args:
      prices: What taking part costs; its noise multiplier may be a column of several, [Z, 1].
      rates: float32[M], p_i(t) of the cohort.
      in_warmup: Whether t is a warm-up round of the participation rates.
      planned: int[M], in how many rounds each of the cohort is planned to take part; given to rules of `needs_plan`.

    Returns:
      A float tensor that broadcasts to [M], or to [Z, M].
    """
