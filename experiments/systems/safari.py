"""SAFARI: server-assisted federated averaging (Yang et al., ICML 2024, arXiv:2405.02745).

Some clients never take part, so the server has an auxiliary dataset D_s. In each round, with probability q, clients
train as in federated averaging; otherwise, the server makes K_s steps on D_s:

    x <- x - η_s·∇L(x; batch of D_s),   K_s times

D_s holds examples of people who are not clients. So in a server round, to which nobody is drawn, clients release
nothing, and nothing is charged. A round to which nobody comes by chance is also a server round.

Only the abstract and descriptions of the paper could be read, not its algorithm. The choices that these leave open are
an interpretation: plain SGD at the server, from the first weights on, in batches that are drawn anew in each round.
(The other SAFARI, Mao et al., arXiv:2204.02321, compresses models and is not about memory or data at the server.)
"""

from __future__ import annotations

import collections
import dataclasses
from typing import Optional

from quap_tff import methods
from quap_tff.common import array_types
from quap_tff.common import checks
from quap_tff.methods import extended
from quap_tff.training import client_update
from quap_tff.training import extension as extensions


@dataclasses.dataclass(frozen=True)
class Safari(extensions.Extension):
  """Server rounds on auxiliary examples.

  Attributes:
    server_steps: K_s >= 1.
    server_learning_rate: η_s > 0.
    server_batch_size: Examples in a step.
    examples: D_s, a struct of arrays as clients' examples are. It is attached once data are read.
  """

  server_steps: int = checks.integer_field('safari server_steps', 10, at_least=1)
  server_learning_rate: float = checks.number_field('safari server_learning_rate', 0.05, above=0)
  server_batch_size: int = checks.integer_field('safari server_batch_size', 32, at_least=1)
  examples: Optional[array_types.Structure] = dataclasses.field(default=None, compare=False, repr=False)

  @property
  def statement(self) -> str:
    return (
      'SAFARI trains at the server on examples of people who are no clients. They are taken as public: no figure '
      'covers them.'
    )

  def with_examples(self, examples: array_types.Structure) -> Safari:
    """A copy of it with D_s, which has arrays `x` and `y`."""
    return dataclasses.replace(self, examples=collections.OrderedDict(x=examples.x, y=examples.y))

  def server_training(self) -> extensions.ServerTraining:
    if self.examples is None:
      raise ValueError('safari has no examples to train on at the server. Attach some by with_examples.')
    num_examples = len(next(iter(self.examples.values())))
    steps_of_epoch = max(1, -(-num_examples // self.server_batch_size))
    config = client_update.ClientWorkConfig(
      local_epochs=-(-self.server_steps // steps_of_epoch),
      max_steps=self.server_steps,
      batch_size=self.server_batch_size,
    )
    return extensions.ServerTraining(self.examples, config, self.server_learning_rate)


@dataclasses.dataclass(frozen=True)
class SafariMethod(extended.ExtendedMethod):
  """SAFARI (Yang et al. 2024), an interpretation, with rounds in which the server trains: see
  `experiments.systems.safari`.

  Attributes:
    q: The probability that a round is one of the clients; otherwise the server trains. In (0, 1).
    auxiliary: How many examples the server has, a share in (0, 1): of the pool, before it is dealt out to clients; or
      those of as many others of a dataset's own clients, as a share of the number of clients. They are taken as public.
    server_steps: The server's steps in one of its rounds.
    server_learning_rate: The length of one of these steps, over the gradient.
  """

  title = 'SAFARI (an interpretation)'
  interpretation = 'safari is an interpretation: of the paper only the abstract and descriptions could be read.'

  q: float = checks.number_field('safari q', 0.8, above=0, below=1)
  auxiliary: float = checks.number_field('safari auxiliary', 0.1, above=0, below=1)
  server_steps: int = 10
  server_learning_rate: float = 0.05

  def extension(self, mean_epochs: Optional[float]) -> Safari:
    return Safari(self.server_steps, self.server_learning_rate)

  @property
  def client_round_share(self) -> float:
    return self.q

  @property
  def auxiliary_share(self) -> float:
    return self.auxiliary


methods.METHODS['safari'] = SafariMethod
