"""The configuration of local training, checked when it is made. Nothing here loads TensorFlow."""

import dataclasses
from typing import Optional

from quap_tff.common import checks
from quap_tff.training import malicious


@dataclasses.dataclass(frozen=True)
class ClientWorkConfig:
  """How a client trains.

  Attributes:
    local_epochs: Passes over the client's examples, at least 1.
    most_local_epochs: If given, each client makes a number of passes of its own in all rounds, drawn uniformly from
      local_epochs, ..., most_local_epochs. It follows from (seed, client id) alone, so it says nothing about data.
    batch_size: Examples in a step, at least 1; the last batch of an epoch holds what is left.
    learning_rate_decay: Factor of the optimizer's learning rate from one round to the next, in (0, 1].
    max_steps: The largest number of steps of one client in a round, at least 1; `None` for no bound.
    proximal_strength: FedProx's mu >= 0: adds mu/2·‖w - w_global‖² to the loss.
    seed: Seed of shuffles and dropout, a non-negative integer; `None` draws one from the operating system's entropy.
    attack: What malicious clients send instead of their updates.
    attackers: The ids of the malicious clients.
  """

  local_epochs: int = 1
  most_local_epochs: Optional[int] = None
  batch_size: int = 32
  learning_rate_decay: float = 1.0
  max_steps: Optional[int] = None
  proximal_strength: float = 0.0
  seed: Optional[int] = None
  attack: malicious.Attack = malicious.NoAttack()
  attackers: tuple[int, ...] = ()

  def __post_init__(self):
    checks.integer('local_epochs', self.local_epochs, at_least=1)
    if self.most_local_epochs is not None:
      checks.integer('most_local_epochs', self.most_local_epochs, at_least=self.local_epochs)
    checks.integer('batch_size', self.batch_size, at_least=1)
    checks.number('learning_rate_decay', self.learning_rate_decay, above=0.0, at_most=1.0)
    if self.max_steps is not None:
      checks.integer('max_steps', self.max_steps, at_least=1)
    checks.number('proximal_strength', self.proximal_strength, at_least=0.0)
    if self.seed is not None:
      checks.integer('client seed', self.seed, at_least=0)
