"""QuAP-FL's mechanism as a plan, by itself, under local privacy, and on a buffer of updates."""

from __future__ import annotations

from typing import Any

from quap_tff.common import lazy
from quap_tff.common.numbers import samplers
from quap_tff.mechanisms.quap import buffered
from quap_tff.mechanisms.quap import config as configs
from quap_tff.mechanisms.quap import local
from quap_tff.mechanisms.quap import staleness as stalenesses
from quap_tff.plans import plan

aggregation = lazy.module('quap_tff.federated.aggregation')
client_update = lazy.module('quap_tff.training.client_update')


class QuapPlan(plan.Plan):
  """QuAP-FL under a configuration (a `quap_tff.QuapConfig`), and every method that is a setting of it."""

  _always_sends_metrics = True

  def _server_parts(self, model_fn, client_optimizer, server_optimizer, client_work):
    # Looked up only if updates are divided by the learning rate: not every optimizer has one.
    rate = lambda round_num: client_update.learning_rate_at(client_optimizer, client_work, round_num)
    return aggregation.AggregationFactory(self.mechanism, self.model.layers, rate), server_optimizer


class LocalPlan(plan.Plan):
  """Local privacy under a configuration with noise at the clients, a fixed clip, and all layers critical."""

  def __init__(
    self,
    config: configs.QuapConfig,
    draw: samplers.Sampler = samplers.Sampler(),
    *,
    client_metrics: bool = False,
    **options: Any,
  ):
    """See `quap_tff.plans.Plan`.

    Raises:
      ValueError: If clients cannot clip and noise by themselves, or were to send training metrics.
    """
    super().__init__(local.Local(config), draw, client_metrics=client_metrics, **options)


class FedBuffPlan(plan.Plan):
  """FedBuff with QuAP-FL's clip, budgets and noise under a configuration."""

  sends_one_update = False

  def __init__(
    self,
    config: configs.QuapConfig,
    size: int,
    staleness: stalenesses.Staleness,
    draw: samplers.Sampler = samplers.Sampler(),
    **options: Any,
  ):
    """Initializes the plan.

    Args:
      config: The mechanism.
      size: K, the updates that a release needs.
      staleness: How old the versions are that clients train on.
      draw: How the clients are drawn whose updates arrive. It amplifies nothing: who arrives follows from how slow
        clients are.
      **options: The options of every plan, see `quap_tff.plans.Plan`.
    """
    del draw
    never = samplers.Sampler(reason='who arrives follows from how slow clients are')
    super().__init__(buffered.Buffered(config, size, staleness), never, **options)
    self._staleness = staleness
