"""A dataset of any number of clients that are made when they are asked for, to measure how runs scale.

    x_k = u_k/‖u_k‖,   u_k = z_k + spread·m_i,   y_k = argmax_c (x_k·w_c), in a share `noise` of examples a random class

z_k, m_i and the public w_c are standard normal vectors; m_i is client i's own and makes clients differ. Everything of
client i follows from (seed, i), so no client depends on another, and a million of them take no memory.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math

import numpy as np

from data import federation
from data import rng as rng_lib
from data.datasets import base
from quap_tff.common import checks

DEFAULT_NUM_CLIENTS = 1000
TEST_EXAMPLES = 2000


@dataclasses.dataclass(frozen=True)
class Synthetic(base.Dataset):
  """Clients that the program makes when they take part, 1,000 by default and any number by --num_clients.

  float32[features] of unit norm. No data are read. Each test example is by a person of its own, who is not a client.

  Attributes:
    features: Numbers in an example.
    classes: Number of labels.
    examples: Examples of each client.
    spread: How much clients differ, at least 0; with 0 all examples are of one distribution.
    noise: The share of labels, in [0, 1], that are drawn at random.
  """

  has_own_clients = True
  default_num_clients = DEFAULT_NUM_CLIENTS
  auxiliary_source = 'They are those of others, made by the program by --seed, who are no clients.'

  features: int = checks.integer_field('synthetic features', 16, at_least=1)
  classes: int = checks.integer_field('synthetic classes', 4, at_least=2)
  examples: int = checks.integer_field('synthetic examples', 8, at_least=1)
  spread: float = checks.number_field('synthetic spread', 0.5, at_least=0)
  noise: float = checks.number_field('synthetic noise', 0.05, at_least=0, at_most=1)

  def load(self, request: base.Request) -> federation.Federation:
    num_clients = self.default_num_clients if request.num_clients is None else request.num_clients
    teacher = rng_lib.generator(request.seed, 'synthetic_teacher').standard_normal([self.features, self.classes])

    def drawn(rng, count, num_clients):
      means = self.spread * rng.standard_normal([num_clients, self.features])
      x = rng.standard_normal([count, self.features]) + means
      x /= np.linalg.norm(x, axis=1, keepdims=True)
      y = np.argmax(x @ teacher, axis=1)
      y = np.where(rng.random(count) < self.noise, rng.integers(0, self.classes, count), y)
      return federation.Examples(x.astype(np.float32), y.astype(np.int32))

    def read(index):
      return drawn(rng_lib.generator(request.seed, 'synthetic_client', index), self.examples, 1)

    # People of their own, whatever the number of clients.
    helpers = math.ceil(request.auxiliary * num_clients)
    rng = rng_lib.generator(request.seed, 'auxiliary')
    auxiliary = [drawn(rng, self.examples, 1) for _ in range(helpers)]
    source = f'{self}\0{request.seed}\0{num_clients}'
    return federation.Federation(
      name=request.name,
      num_classes=self.classes,
      client_ids=federation.NumberedIds(num_clients),
      clients=federation.OnDemand(num_clients, read, hashlib.sha256(source.encode()).digest()),
      test=drawn(rng_lib.generator(request.seed, 'synthetic_test'), TEST_EXAMPLES, TEST_EXAMPLES),
      auxiliary=federation.together(auxiliary) if helpers else None,
      test_set=f'{TEST_EXAMPLES:,} examples that no client holds.',
    )
