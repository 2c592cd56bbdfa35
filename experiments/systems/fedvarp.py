"""FedVARP: the server remembers each client's last update (Jhunjhunwala et al., UAI 2022, algorithm 2).

    v = (1/|S|)·Σ_{i in S} (Δ_i - y_i) + (1/N)·Σ_j y_j,    x <- x - η·v,    y_i <- Δ_i for i in S

Δ_i = x - x_i is the update of client i, and y_j the last update of client j, 0 before it has come. η is the server
optimizer's.

The server stores updates one by one and uses them again in rounds in which their clients do not take part. With noise,
that is a release that no account includes. So there are two memories:

  clients    y_i is the client's own update, as in the paper; only for mechanisms without noise;
  released   y_i <- ĝ_t for i in S_t, the noised mean of the last round that the client was in. With that,
             v = ĝ - (1/|S|)·Σ_{i in S} y_i + (1/N)·Σ_j y_j is a function of the released means and of the cohorts.

The second is an interpretation. It is near to the paper's ClusterFedVARP, in which clients share surrogates.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import Optional

from quap_tff import methods
from quap_tff.common import registry
from quap_tff.common.lazy import tf
from quap_tff.methods import extended
from quap_tff.training import extension as extensions


@dataclasses.dataclass(frozen=True)
class FedVarp(extensions.WithVectors):
  """Variance reduction at the server.

  Memory: `table`, float32[N, d], the y_i.

  Attributes:
    memory: 'clients' or 'released', see the module's docstring.
  """

  memory: str = registry.name_field('fedvarp memory', 'clients', ('clients', 'released'))

  @property
  def exact_releases(self) -> tuple[str, ...]:
    if self.memory == 'released':
      return ()
    return ("the server stores the clients' updates one by one and uses them again without noise",)

  @property
  def statement(self) -> str:
    if self.memory == 'clients':
      return "FedVARP stores each client's update at the server and uses it again in rounds without that client."
    return 'FedVARP releases nothing more: the server remembers released means, and who was in which round.'

  def report(
    self, message: extensions.NamedTensors, own: extensions.OwnVector, local: extensions.LocalKnowledge
  ) -> extensions.NamedTensors:
    if self.memory == 'released':
      return collections.OrderedDict()
    return collections.OrderedDict(kept=extensions.finite_update(local))

  def server_step(
    self, memory: extensions.Memory, mean: extensions.Tensors, cohort: extensions.Cohort
  ) -> extensions.Step:
    table, ids = memory['table'], cohort.client_ids
    came = tf.size(ids)
    before = tf.math.divide_no_nan(tf.reduce_sum(tf.gather(table, ids), axis=0), tf.cast(came, tf.float32))
    # A round with nobody leaves the model as it is, as in the mechanism.
    shift = tf.where(came > 0, tf.reduce_mean(table, axis=0) - before, tf.zeros_like(before))
    direction = [g + s for g, s in zip(mean, extensions.unflat(shift, mean))]
    shared = tf.tile(extensions.flat(mean)[tf.newaxis], [came, 1]) if self.memory == 'released' else None
    return direction, self.with_vectors(memory, cohort, cohort.reports.get('kept', shared))


@dataclasses.dataclass(frozen=True)
class FedVarpMethod(extended.ExtendedMethod):
  """FedVARP (Jhunjhunwala et al. 2022), with a memory of earlier updates: see
  `experiments.systems.fedvarp` for the equations.

  Attributes:
    memory: 'clients': each client's own last update, as in the paper, for base=fedavg only. 'released': the noised mean
      of the round that it was last in. 'auto': the former for fedavg, and the latter for all others.
  """

  title = 'FedVARP'

  memory: str = 'auto'

  def extension(self, mean_epochs: Optional[float]) -> FedVarp:
    if self.memory == 'auto':
      memory = 'released' if self.is_noised else 'clients'
      return FedVarp(memory)
    if self.memory == 'clients' and self.is_noised:
      raise ValueError(
        f'fedvarp:base={self.base_name},memory=clients: the server would store single updates and use them again '
        'without noise, in rounds that their clients are not in and do not pay for. Use memory=released, or '
        'base=fedavg.'
      )
    return FedVarp(self.memory)


methods.METHODS['fedvarp'] = FedVarpMethod
