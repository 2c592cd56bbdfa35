"""FedNova: normalized averaging for clients that take different numbers of steps (Wang et al., NeurIPS 2020).

    x <- x - τ_eff·Σ_i p_i·η·d_i,    η·d_i = (x - y_i)/τ_i,    τ_eff = Σ_i p_i·τ_i           equation (6), section 4

For plain SGD the paper's ‖a_i‖_1 is τ_i, the number of local steps. p_i is 1/|S| here, since all members of a cohort
count the same. The update that client i sends is

    u_i = (τ_eff/τ_i)·(x - y_i)                                                                                  (N)

Normalization comes before clipping, for two reasons: the same vectors are clipped and averaged, so one clipping norm
fits clients of few and of many steps; and clipping first, then dividing, would let a client with many steps use only a
part of the norm that it pays for.

τ_eff is a public constant, or the mean of τ_i over the cohort, as in the paper. That mean is an exact function of the
sizes of the clients' data; it is applied after the mean, and u_i then has τ_eff = 1. Numbers of steps are private, but
numbers of epochs e_i are not (`--local_epochs`). With `mean_epochs`, e_i takes the place of τ_i: the documents say of
FedNova that it is for clients with different numbers of epochs.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import Optional

from quap_tff import methods
from quap_tff.common import checks
from quap_tff.common.lazy import tf
from quap_tff.methods import extended
from quap_tff.training import extension as extensions


@dataclasses.dataclass(frozen=True)
class FedNova(extensions.Extension):
  """Normalized averaging.

  Attributes:
    effective_steps: τ_eff > 0, a public constant. None for the mean of the cohort's steps.
    mean_epochs: If given, clients are normalized by their epochs, and this public constant takes the place of τ_eff.
  """

  effective_steps: Optional[float] = None
  mean_epochs: Optional[float] = None

  def __post_init__(self) -> None:
    if self.effective_steps is not None:
      checks.number('fednova effective_steps', self.effective_steps, above=0)
    if self.mean_epochs is not None:
      checks.number('fednova mean_epochs', self.mean_epochs, above=0)
      if self.effective_steps is not None:
        raise ValueError('fednova normalizes by steps (effective_steps) or by epochs (mean_epochs), found both.')

  @property
  def _counts_steps(self) -> bool:
    return self.effective_steps is None and self.mean_epochs is None

  @property
  def exact_releases(self) -> tuple[str, ...]:
    if not self._counts_steps:
      return ()
    return ('the mean number of local steps of a cohort is used without noise',)

  @property
  def statement(self) -> str:
    if self._counts_steps:
      return 'FedNova uses the mean number of local steps of each cohort, an exact function of the sizes of their data.'
    return 'FedNova releases nothing more: clients normalize their updates before they are clipped.'

  def sent(self, local: extensions.LocalKnowledge) -> extensions.Tensors:
    taken = local.steps if self.mean_epochs is None else local.epochs
    factor = (self.effective_steps or self.mean_epochs or 1.0) / tf.cast(tf.maximum(taken, 1), tf.float32)
    return [g * tf.cast(factor, g.dtype) for g in local.update]

  def report(
    self, message: extensions.NamedTensors, own: extensions.OwnVector, local: extensions.LocalKnowledge
  ) -> extensions.NamedTensors:
    if not self._counts_steps:
      return collections.OrderedDict()
    return collections.OrderedDict(steps=tf.cast(local.steps, tf.float32))

  def server_step(
    self, memory: extensions.Memory, mean: extensions.Tensors, cohort: extensions.Cohort
  ) -> extensions.Step:
    if not self._counts_steps:
      return mean, memory
    steps = cohort.reports['steps']
    steps = extensions.share(tf.reduce_sum(steps), tf.size(steps))
    return [g * tf.cast(steps, g.dtype) for g in mean], memory


@dataclasses.dataclass(frozen=True)
class FedNovaMethod(extended.ExtendedMethod):
  """FedNova (Wang et al. 2020), for clients that take different numbers of steps: see
  `experiments.systems.fednova` for the equations.

  Attributes:
    effective_steps: The public constant τ_eff. None: the mean of the cohort's steps, or, with a base that adds noise,
      the mean of --local_epochs, with clients normalized by their epochs.
  """

  title = 'FedNova'
  needs_plain_sgd = True

  effective_steps: Optional[float] = None

  def extension(self, mean_epochs: Optional[float]) -> FedNova:
    if self.effective_steps is not None or not self.is_noised:
      return FedNova(self.effective_steps)
    if mean_epochs is None:
      raise ValueError(
        f'fednova:base={self.base_name} normalizes clients by their public numbers of epochs, which are all the same: '
        'it would change nothing. Give a range, such as --local_epochs=1..5, or a public number of steps, such as '
        'fednova:effective_steps=10, to normalize by steps.'
      )
    return FedNova(mean_epochs=mean_epochs)


methods.METHODS['fednova'] = FedNovaMethod
