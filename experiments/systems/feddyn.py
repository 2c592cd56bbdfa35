"""FedDyn: dynamic regularization (Acar et al., ICLR 2021, algorithm 1).

    θ_i = argmin_θ L_i(θ) - <∇L_i(θ_i^{t-1}), θ> + (α/2)·‖θ - x‖²
    h_i <- h_i - α·(θ_i - x),                          where h_i = ∇L_i(θ_i) at the minimum
    h <- h - (α/N)·Σ_{i in S} (θ_i - x),    x <- (1/|S|)·Σ_{i in S} θ_i - h/α

A client takes its usual local steps instead of finding the minimum: -h_i is added to each gradient, and the pull toward
x is FedProx's term with strength α. h_i is the client's own. The server uses ĝ, the (noised) mean of x - θ_i:

    h <- h + α·(|S|/N)·ĝ,    direction ĝ + h/α

so h is a function of the released means and of the cohorts.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
import dataclasses
from typing import Optional

from quap_tff import methods
from quap_tff.common import checks
from quap_tff.common.lazy import tf
from quap_tff.methods import extended
from quap_tff.training import client_update
from quap_tff.training import extension as extensions


@dataclasses.dataclass(frozen=True)
class FedDyn(extensions.Extension):
  """Dynamic regularization. Memory: `drift`, h, in the model's shapes. A client's own vector is h_i.

  Attributes:
    alpha: α > 0.
  """

  alpha: float = checks.number_field('feddyn alpha', 0.1, above=0)

  @property
  def statement(self) -> str:
    return (
      "FedDyn releases nothing more: the server's correction follows from the released means. A client's own is not "
      'released: in this simulation, the server keeps it for the client.'
    )

  def client_work(self, config: client_update.ClientWorkConfig) -> client_update.ClientWorkConfig:
    return dataclasses.replace(config, proximal_strength=config.proximal_strength + self.alpha)

  def initial_memory(self, num_clients: int, shapes: Sequence[tf.TensorShape]) -> extensions.NamedTensors:
    return collections.OrderedDict(drift=extensions.zeros(shapes))

  def correction(
    self, message: extensions.NamedTensors, own: extensions.OwnVector, steps: tf.Tensor
  ) -> extensions.Tensors:
    return [-mine for mine in own]

  def kept(
    self, message: extensions.NamedTensors, own: extensions.OwnVector, local: extensions.LocalKnowledge
  ) -> tf.Tensor:
    moved = [mine + self.alpha * g for mine, g in zip(own, local.update)]
    return extensions.flat(extensions.choose(extensions.are_finite(local.update), moved, own))

  def server_step(
    self, memory: extensions.Memory, mean: extensions.Tensors, cohort: extensions.Cohort
  ) -> extensions.Step:
    came = tf.size(cohort.client_ids)
    moved = self.alpha * extensions.share(came, cohort.num_clients)
    drift = [h + moved * tf.cast(g, h.dtype) for h, g in zip(memory['drift'], mean)]
    # A round with nobody leaves the model as it is, as in the mechanism.
    factor = tf.where(came > 0, 1.0 / self.alpha, 0.0)
    direction = [g + tf.cast(factor * h, g.dtype) for g, h in zip(mean, drift)]
    return direction, collections.OrderedDict(drift=drift)


@dataclasses.dataclass(frozen=True)
class FedDynMethod(extended.ExtendedMethod):
  """FedDyn (Acar et al. 2021), with a dynamic regulariser at each client: see
  `experiments.systems.feddyn` for the equations.

  Attributes:
    alpha: α > 0, the strength of the regulariser.
  """

  title = 'FedDyn'
  needs_plain_sgd = True

  alpha: float = 0.1

  def extension(self, mean_epochs: Optional[float]) -> FedDyn:
    return FedDyn(self.alpha)


methods.METHODS['feddyn'] = FedDynMethod
