"""SCAFFOLD: stochastic controlled averaging (Karimireddy et al., ICML 2020, algorithm 1).

    y_i <- y_i - η_l·(g_i(y_i) - c_i + c)                                                   local step, equation (3)
    c_i+ = g_i(x)                                        (option I)                         equation (4)
    c_i+ = c_i - c + (x - y_i)/(K_i·η_l)                 (option II)                        equation (4)
    x <- x + (η_g/|S|)·Σ_{i in S} (y_i - x),    c <- c + (1/N)·Σ_{i in S} (c_i+ - c_i)      equation (5)

η_g is the server optimizer's. The paper sends c_i+ - c_i to the server: a second release for each client, without noise
(`server_control='sum'`). With `server_control='released'`, controls are sums of gradients over a round, s = K·c, and

    y_i <- y_i - η_l·(g_i(y_i) + (s - s_i)/K_i),    s_i+ = s_i - s + (x - y_i)/η_l   or   K_i·g_i(x)              (R)
    s <- s + (|S|/N)·(ĝ/η_l - s)

with ĝ the noised mean of the clipped updates. Under option II this is the paper's algorithm where all clients take
K steps and nothing is clipped: Σ(s_i+ - s_i) = Σ((x - y_i)/η_l - s). s is then a function of the released means,
of constants and of the cohorts. No number of steps leaves a client.

SCAFFOLD is not orthogonal to noise. ĝ contains the correction s - s_i itself. So s follows the mean of the s_i, but
never comes back to it once it is off: each round's noise stays in s, which becomes a random walk, and all clients
follow it. docs/results.md has measurements.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
import dataclasses
from typing import Optional

from quap_tff import methods
from quap_tff.common import array_types
from quap_tff.common import registry
from quap_tff.common.lazy import tf
from quap_tff.methods import extended
from quap_tff.training import extension as extensions


@dataclasses.dataclass(frozen=True)
class Scaffold(extensions.Extension):
  """Control variates. A client's control c_i is its own. Only `server_control='sum'` uses it elsewhere.

  Memory: `control`, c, float32 tensors of the model's shapes. A client's own vector is c_i.

  Attributes:
    option: 1 or 2, the paper's options I and II for c_i. Option I computes one more gradient over all examples.
    server_control: 'sum', equation (5), exact and without noise; or 'released', equations (R).
  """

  option: int = 2
  server_control: str = registry.name_field('scaffold server_control', 'sum', ('sum', 'released'))

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.option not in (1, 2):
      raise ValueError(f"scaffold option must be 1 or 2, the paper's options I and II, found {self.option!r}.")

  @property
  def exact_releases(self) -> tuple[str, ...]:
    if self.server_control == 'released':
      return ()
    return ("the server sums the changes of the clients' controls without noise",)

  @property
  def statement(self) -> str:
    if self.server_control == 'sum':
      return "SCAFFOLD gives the server a second sum, of the changes of the clients' controls, without noise."
    return (
      "SCAFFOLD releases nothing more: the server's control follows from the released means. A client's control is not "
      'released: in this simulation, the server keeps it for the client.'
    )

  def initial_memory(self, num_clients: int, shapes: Sequence[tf.TensorShape]) -> extensions.NamedTensors:
    return collections.OrderedDict(control=extensions.zeros(shapes))

  def message(self, memory: extensions.Memory) -> extensions.NamedTensors:
    return collections.OrderedDict(control=memory['control'])

  def correction(
    self, message: extensions.NamedTensors, own: extensions.OwnVector, steps: tf.Tensor
  ) -> extensions.Tensors:
    return [
      (tf.cast(c, mine.dtype) - mine) / tf.cast(self._unit(steps), mine.dtype)
      for c, mine in zip(message['control'], own)
    ]

  def _unit(self, steps: tf.Tensor) -> tf.Tensor:
    """A control over this number is a gradient: K_i where controls are sums over a round."""
    return tf.cast(tf.maximum(steps, 1), tf.float32) if self.server_control == 'released' else tf.constant(1.0)

  def kept(
    self, message: extensions.NamedTensors, own: extensions.OwnVector, local: extensions.LocalKnowledge
  ) -> tf.Tensor:
    return extensions.flat(self._next_control(message, own, local))

  def report(
    self, message: extensions.NamedTensors, own: extensions.OwnVector, local: extensions.LocalKnowledge
  ) -> extensions.NamedTensors:
    if self.server_control == 'released':
      return collections.OrderedDict()
    return collections.OrderedDict(change=self.kept(message, own, local) - extensions.flat(own))

  def _next_control(
    self, message: array_types.Structure, own: extensions.OwnVector, local: extensions.LocalKnowledge
  ) -> extensions.Tensors:
    """c_i+."""
    unit = self._unit(local.steps)
    if self.option == 1:
      new = [g * tf.cast(unit, g.dtype) for g in local.gradient()]
    else:
      rate = unit / (tf.cast(tf.maximum(local.steps, 1), tf.float32) * local.learning_rate())
      new = [
        mine - tf.cast(c, mine.dtype) + g * tf.cast(rate, g.dtype)
        for mine, c, g in zip(own, message['control'], local.update)
      ]
    # A client that took no step has learned nothing, and an update that is not finite never arrives.
    return extensions.choose(tf.logical_and(local.steps > 0, extensions.are_finite(new)), new, own)

  def server_step(
    self, memory: extensions.Memory, mean: extensions.Tensors, cohort: extensions.Cohort
  ) -> extensions.Step:
    control = memory['control']
    if self.server_control == 'sum':
      change = tf.reduce_sum(cohort.reports['change'], axis=0) / tf.cast(cohort.num_clients, tf.float32)
      moved = [c + d for c, d in zip(control, extensions.unflat(change, control))]
    else:
      came = extensions.share(tf.size(cohort.client_ids), cohort.num_clients)
      moved = [c + came * (tf.cast(g, c.dtype) / cohort.learning_rate() - c) for c, g in zip(control, mean)]
    return mean, collections.OrderedDict(control=moved)


@dataclasses.dataclass(frozen=True)
class ScaffoldMethod(extended.ExtendedMethod):
  """SCAFFOLD (Karimireddy et al. 2020), against the drift of clients that differ: see
  `experiments.systems.scaffold` for the equations.

  Attributes:
    option: The paper's option 1 or 2 for the clients' controls.
  """

  title = 'SCAFFOLD'
  needs_plain_sgd = True

  option: int = 2

  def extension(self, mean_epochs: Optional[float]) -> Scaffold:
    # With noise, a sum of the changes of the clients' controls would be a second release, and an exact one.
    server_control = 'released' if self.is_noised else 'sum'
    return Scaffold(self.option, server_control)


methods.METHODS['scaffold'] = ScaffoldMethod
