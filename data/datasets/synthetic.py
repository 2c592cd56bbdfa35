"""Datasets that the program makes, nobody's data: drawings to choose constants on, and any number of clients."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from typing import Optional, Union

import numpy as np

from data import federation
from data.datasets import base
from data.features import characters
from data.features import leaves
from quap_tff.common import checks
from quap_tff.common.numbers import rng as rng_lib

DEFAULT_NUM_CLIENTS = 1000
TEST_EXAMPLES = 2000


@dataclasses.dataclass(frozen=True)
class Glyphs(base.PooledDataset):
  """Drawings of random glyphs by the program: nobody's data. Clipping norms and learning rates can be chosen on them.

  18,000 training and 3,000 test images by default, float32[side, side, 1], 1.0 = ink. `experiments.pretrain` learns
  from other glyphs.

  Attributes:
    classes: Number of glyphs, which are the labels.
    copies: Drawings of each, a seventh of them for the test.
    alphabet: Seed of the glyphs and of their drawings. It is not the run's, so that runs of all seeds share them.
    side: Pixels along a side.
  """

  title = 'drawn glyphs'

  classes: int = checks.integer_field('classes', 10, at_least=2)
  copies: int = checks.integer_field('copies', 2100, at_least=7)
  alphabet: int = checks.integer_field('alphabet', 0, at_least=0)
  side: int = checks.integer_field('glyphs side', 28, at_least=4)

  @property
  def image_shape(self) -> tuple[int, int, int]:  # type: ignore[override]  # The base class has a constant.
    return (self.side, self.side, 1)

  def read(self, data_dir: Optional[str]) -> base.Pool:
    del data_dir
    rng = rng_lib.generator(self.alphabet, 'glyphs')
    x, y = characters.draw(characters.random_glyphs(self.classes, rng), self.copies, self.side, rng)
    return _a_seventh_tests(x[..., np.newaxis], y, self)


@dataclasses.dataclass(frozen=True)
class Things(base.PooledDataset):
  """Drawings of random things by the program: nobody's data. They are to photographs as `Glyphs` are to digits.

  18,000 training and 3,000 test images by default, float32[32, 32, 3], RGB. `--features=drawn` learns from other
  things. See `data.features.leaves`.

  Attributes:
    classes: Number of labels.
    looks: Number of things that share a label, as many kinds of birds are birds. With one, a linear head finds it easy.
    copies: Drawings of each label, a seventh of them for the test.
    kinds: Seed of the things and of their drawings. It is not the run's, so that runs of all seeds share them.
  """

  title = 'drawn things'
  image_shape = (32, 32, 3)

  classes: int = checks.integer_field('classes', 10, at_least=2)
  looks: int = checks.integer_field('looks', 3, at_least=1)
  copies: int = checks.integer_field('copies', 2100, at_least=7)
  kinds: int = checks.integer_field('kinds', 0, at_least=0)

  def read(self, data_dir: Optional[str]) -> base.Pool:
    del data_dir
    rng = rng_lib.generator(self.kinds, 'things')
    things = leaves.things(self.classes * self.looks, rng)
    shown = np.arange(self.classes * self.copies) % len(things)
    x, y = leaves.views(things, shown, self.image_shape[:2], rng), shown % self.classes
    return _a_seventh_tests(x, y, self)


def _a_seventh_tests(x: np.ndarray, y: np.ndarray, drawn: Union[Glyphs, Things]) -> base.Pool:
  """A pool of drawings; they come in rounds over the labels, so that each label has the same share of both parts."""
  test = drawn.classes * (drawn.copies // 7)
  return base.Pool(x[test:], y[test:], x[:test], y[:test], white=drawn.white, num_classes=drawn.classes)


@dataclasses.dataclass(frozen=True)
class Synthetic(base.Dataset):
  """Clients that the program makes when they take part, 1,000 by default and any number by --num_clients.

  float32[features] of norm R. No data are read. Each test example is by a person of its own, who is not a client.

      x_k = R·u_k/‖u_k‖,   u_k = z_k + spread·m_i,   y_k = argmax_c (x_k·w_c)

  In a share `noise` of the examples, y_k is a random class. z_k, m_i and the public w_c are standard normal vectors;
  m_i is client i's own and makes clients differ. Everything of client i follows from (seed, i), so no client depends on
  another, and a million of them take no memory.

  Attributes:
    features: Numbers in an example.
    classes: Number of labels.
    examples: Examples of each client.
    spread: How much clients differ, at least 0; with 0 all examples are of one distribution.
    noise: The share of labels, in [0, 1], that are drawn at random.
    norm: R, the norm of each example.
  """

  has_own_clients = True
  default_num_clients = DEFAULT_NUM_CLIENTS
  auxiliary_source = 'They are those of others, made by the program by --seed, who are no clients.'

  features: int = checks.integer_field('synthetic features', 16, at_least=1)
  classes: int = checks.integer_field('synthetic classes', 4, at_least=2)
  examples: int = checks.integer_field('synthetic examples', 8, at_least=1)
  spread: float = checks.number_field('synthetic spread', 0.5, at_least=0)
  noise: float = checks.number_field('synthetic noise', 0.05, at_least=0, at_most=1)
  norm: float = checks.number_field('synthetic norm', 1.0, above=0)

  def load(self, request: base.Request) -> federation.Federation:
    num_clients = self.default_num_clients if request.num_clients is None else request.num_clients
    teacher = rng_lib.generator(request.seed, 'synthetic_teacher').standard_normal([self.features, self.classes])

    def drawn(rng: np.random.Generator, count: int, num_clients: int) -> federation.Examples:
      means = self.spread * rng.standard_normal([num_clients, self.features])
      x = rng.standard_normal([count, self.features]) + means
      x /= np.linalg.norm(x, axis=1, keepdims=True)
      x *= self.norm
      y = np.argmax(x @ teacher, axis=1)
      y = np.where(rng.random(count) < self.noise, rng.integers(0, self.classes, count), y)
      return federation.Examples(x.astype(np.float32), y.astype(np.int32))

    def read(index: int) -> federation.Examples:
      return drawn(rng_lib.generator(request.seed, 'synthetic_client', index), self.examples, 1)

    # People of their own, whatever the number of clients.
    helpers = math.ceil(request.auxiliary * num_clients)
    rng = rng_lib.generator(request.seed, 'auxiliary')
    parts = [drawn(rng, self.examples, 1) for _ in range(helpers)]
    auxiliary = federation.together(parts) if helpers else None
    source = f'{self}\0{request.seed}\0{num_clients}'
    return federation.Federation(
      name=request.name,
      num_classes=self.classes,
      client_ids=federation.NumberedIds(num_clients),
      clients=federation.OnDemand(num_clients, read, hashlib.sha256(source.encode()).digest()),
      test=drawn(rng_lib.generator(request.seed, 'synthetic_test'), TEST_EXAMPLES, TEST_EXAMPLES),
      auxiliary=auxiliary,
      test_set=f'{TEST_EXAMPLES:,} examples that no client holds.',
    )
