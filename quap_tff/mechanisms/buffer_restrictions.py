"""What a buffer of updates cannot be combined with. Nothing here loads TensorFlow."""

import math

from quap_tff.mechanisms import config as configs


def check_config(config: configs.QuapConfig):
  """Raises `ValueError` unless all that is released is one noised sum for each buffer."""
  if config.noise.placement == 'client':
    raise ValueError(
      'FedBuff adds noise once to the sum of a buffer, at the server: use noise placement "server" or "none".'
    )
  if math.isfinite(config.clip.count_noise_multiplier):
    raise ValueError(
      'A private quantile releases a noised count in every round, and the account of FedBuff has one entry for each '
      'release of the buffer: use clip rule fixed, or quantile_ema for a run without a formal figure.'
    )
  if config.budget.rule.needs_cohort or config.budget.rule.observes_updates:
    raise ValueError(
      f'FedBuff needs budgets that follow from participation rates alone, found {type(config.budget.rule).__name__}.'
    )
  if config.update_scale != 'delta':
    raise ValueError(
      'A buffer holds updates of several rounds, which may have different learning rates: use update_scale="delta".'
    )
