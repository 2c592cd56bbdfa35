"""Gradient inversion: training images from an observer's view of a round.

A new attack is an entry of `ATTACKS`.

The attacker knows the model and its weights before the round, the learning rate, the local steps, how many examples the
update holds, and which tensors have noise. Where some tensors have none, it looks only at those. It does not know the
examples, their labels, or the noise.
"""

import abc
from collections.abc import Sequence
import dataclasses
from typing import Callable, ClassVar, NamedTuple

import numpy as np
import tensorflow as tf

from experiments.attacking.inversion import closed_form
from experiments.attacking.inversion import model as inversion_model
from quap_tff.common import checks
from quap_tff.common import registry

# The learning rate of Adam, in units of pixels.
_LEARNING_RATE = 0.05
# The learning rate falls to a tenth after these shares of the iterations, as in Geiping et al.'s code.
_DROPS = (3 / 8, 5 / 8, 7 / 8)
# Iterations in one call: an interrupt waits for no more than these.
_CHUNK = 50


class Problem(NamedTuple):
  """The attacker's knowledge.

  Attributes:
    model: The model and its weights before the round.
    examples: How many examples an update holds: B, or B for each client of an aggregate.
    observed: float[T, …] for each tensor, for T targets: w_global - w_local, or the cohort's mean of it.
    noised: Positions of the tensors that have noise.
  """

  model: inversion_model.StackedModel
  examples: int
  observed: Sequence[np.ndarray]
  noised: frozenset[int] = frozenset()

  @property
  def visible(self) -> tuple[bool, ...]:
    """Which tensors the attack looks at: those without noise, or all if each has noise."""
    clean = tuple(i not in self.noised for i in range(len(self.observed)))
    return clean if any(clean) else (True,) * len(clean)

  @property
  def labels_are_hidden(self) -> bool:
    """True if the final layer has noise while others have none: iDLG's rule then reads noise."""
    return not self.visible[self.model.final_dense[-1]]


class Recovered(NamedTuple):
  """The result of an attack.

  Attributes:
    codes: float[T, examples, d]: flattened images, or the input of the first Dense layer for each example.
    are_images: Whether the codes are images.
    labels: int64[T, examples]. Only matching says which label belongs to which code.
  """

  codes: np.ndarray
  are_images: bool
  labels: np.ndarray


class InversionAttack(abc.ABC):
  """A way to invert.

  Attributes:
    is_iterative: Whether it simulates local training many times, which costs most.
  """

  is_iterative: ClassVar[bool]

  @property
  @abc.abstractmethod
  def needs_scale(self) -> bool:
    """True if a constant factor on the update changes the result."""

  @abc.abstractmethod
  def build(
    self, model: inversion_model.StackedModel, learning_rate: float, steps: int, iterations: int
  ) -> Callable[[Problem, int], Recovered]:
    """A function (problem, seed) -> `Recovered` for problems of this model, rate and number of steps.

    Args:
      model: The model and its weights before the round.
      learning_rate: The clients' learning rate.
      steps: Their local steps, each on all of a client's examples.
      iterations: Iterations of an iterative attack, at least 1.
    """


class ClosedForm(InversionAttack):
  """The quotients of the first Dense layer's gradients. Several local steps are taken for one gradient, their sum."""

  needs_scale = False
  is_iterative = False

  def build(
    self, model: inversion_model.StackedModel, learning_rate: float, steps: int, iterations: int
  ) -> Callable[[Problem, int], Recovered]:
    if model.first_dense is None:
      raise ValueError(
        "The closed form divides by the gradient of the first Dense layer's bias, and this model's has no bias. "
        'Choose another model or attack.'
      )
    kernel, bias = model.first_dense
    upper = 1.0 if model.reads_images else None

    def recover(problem: Problem, seed: int) -> Recovered:
      del seed
      codes = [
        closed_form.choose(*closed_form.dense_inputs(k, b), problem.examples, upper)
        for k, b in zip(problem.observed[kernel], problem.observed[bias])
      ]
      labels = closed_form.labels(model, problem.observed, problem.examples)
      return Recovered(np.stack(codes), model.reads_images, labels)

    return recover


@dataclasses.dataclass(frozen=True)
class Matching(checks.Checked, InversionAttack):
  """Images whose simulated local training gives the update that was seen, by Adam.

  The whole local training of the images, all steps of it, is simulated, so that several local steps are not taken for
  one gradient. Tensors with noise can be left out.

  Attributes:
    distance: 'l2' or 'cosine', see `distances`.
    signed: Whether Adam takes the signs of the derivatives.
    smoothness: Weight of the total variation.
    learns_labels: Whether labels are optimised with the images. They also are where noise hides them.
  """

  distance: str = registry.name_field('distance', 'l2', ('l2', 'cosine'))
  signed: bool = False
  smoothness: float = checks.number_field('smoothness', 0.0, at_least=0)
  learns_labels: bool = False

  is_iterative = True

  @property
  def needs_scale(self) -> bool:
    return self.distance == 'l2'

  def build(
    self, model: inversion_model.StackedModel, learning_rate: float, steps: int, iterations: int
  ) -> Callable[[Problem, int], Recovered]:
    checks.integer('iterations', iterations, at_least=1)

    @tf.function(autograph=False)
    def advance(
      observed: Sequence[tf.Tensor],
      visible: tf.Tensor,
      label_rate: tf.Tensor,
      begin: tf.Tensor,
      end: tf.Tensor,
      state: tuple[tf.Tensor, ...],
    ) -> tuple[tf.Tensor, ...]:
      weights = model.stacked(observed[0].shape[0])

      def step(
        k: tf.Tensor, x: tf.Tensor, x1: tf.Tensor, x2: tf.Tensor, z: tf.Tensor, z1: tf.Tensor, z2: tf.Tensor
      ) -> tuple[tf.Tensor, ...]:
        with tf.GradientTape() as tape:
          tape.watch([x, z])
          update = inversion_model.local_update(model, weights, x, tf.nn.softmax(z), learning_rate, steps)
          distance = distances(self.distance, update, observed, visible)
          prior = self.smoothness * tf.reduce_mean(closed_form.total_variation(x), axis=1)
          loss = tf.reduce_sum(distance + prior)
        by_x, by_z = tape.gradient(loss, [x, z])
        if self.signed:
          by_x = tf.sign(by_x)
        passed = [tf.cast(tf.cast(k, tf.float32) >= share * iterations, tf.float32) for share in _DROPS]
        rate = _LEARNING_RATE * tf.pow(0.1, tf.add_n(passed))
        x, x1, x2 = closed_form.adam_step(x, by_x, x1, x2, k, rate)
        z, z1, z2 = closed_form.adam_step(z, by_z, z1, z2, k, label_rate * rate)
        return k + 1, tf.clip_by_value(x, 0.0, 1.0), x1, x2, z, z1, z2

      return tf.while_loop(lambda k, *_: k < end, step, (begin, *state))[1:]

    def recover(problem: Problem, seed: int) -> Recovered:
      learns_labels = self.learns_labels or problem.labels_are_hidden
      shape = [len(problem.observed[0]), problem.examples]
      if learns_labels:
        # Not all alike: examples of one update must be able to part.
        start = np.random.default_rng(seed).dirichlet(np.full(model.num_classes, 100.0), shape)
      else:
        start = np.eye(model.num_classes)[closed_form.labels(model, problem.observed, problem.examples)]
      x = tf.random.stateless_uniform([*shape, *model.input_shape], [seed, 0], 0.3, 0.7)
      z = tf.math.log(tf.constant(start, tf.float32) + 1e-9)
      state = (x, *[tf.zeros_like(x)] * 2, z, *[tf.zeros_like(z)] * 2)
      observed = [tf.constant(o, tf.float32) for o in problem.observed]
      visible = tf.constant(np.asarray(problem.visible, np.float32))
      # At rate 0 the labels stay those of the closed form.
      label_rate = tf.constant(float(learns_labels))
      for begin in range(0, iterations, _CHUNK):
        end = min(begin + _CHUNK, iterations)
        state = advance(observed, visible, label_rate, tf.constant(begin), tf.constant(end), state)
      return Recovered(state[0].numpy().reshape([*shape, -1]), True, tf.nn.softmax(state[3]).numpy().argmax(axis=-1))

    return recover


def distances(kind: str, recovered: Sequence[tf.Tensor], wanted: Sequence[tf.Tensor], visible: tf.Tensor) -> tf.Tensor:
  """The distance of each target's simulated update g(x) from the one that was seen, g, float32[T].

  Args:
    kind: 'l2', Σ ‖g(x) - g‖²/‖g‖², or 'cosine', 1 - <g(x), g>/(‖g(x)‖·‖g‖).
    recovered: float32[T, …] for each tensor.
    wanted: The same shapes.
    visible: float32 for each tensor: 1 if the attack looks at it, else 0.
  """

  def inner(left: Sequence[tf.Tensor], right: Sequence[tf.Tensor]) -> tf.Tensor:
    """The inner product of what the attack looks at, for each target."""
    products = []
    for i, (a, b) in enumerate(zip(left, right)):
      product = tf.reduce_sum(tf.reshape(a * b, [a.shape[0], -1]), axis=1)
      products.append(visible[i] * product)
    return tf.add_n(products)

  size = tf.maximum(inner(wanted, wanted), 1e-30)
  if kind == 'l2':
    apart = [a - b for a, b in zip(recovered, wanted)]
    return inner(apart, apart) / size
  return 1 - inner(recovered, wanted) / tf.sqrt(size * tf.maximum(inner(recovered, recovered), 1e-30))


ATTACKS: dict[str, InversionAttack] = {
  'closed_form': ClosedForm(),
  # Zhu, Liu and Han 2019. An interpretation: Adam, not L-BFGS.
  'dlg': Matching(learns_labels=True),
  # Zhao, Mopuri and Bilen 2020: DLG with the labels of iDLG's rule.
  'idlg': Matching(),
  # Geiping et al. 2020.
  'geiping': Matching('cosine', signed=True, smoothness=1e-2),
}


def same_problem(first: Problem, second: Problem, up_to_scale: bool) -> bool:
  """True if two problems give the attacker the same, except for a positive factor if `up_to_scale`."""
  if first.visible != second.visible:
    return False
  seen = [i for i, visible in enumerate(first.visible) if visible]
  size = _norms([first.observed[i] for i in seen])
  other_size = _norms([second.observed[i] for i in seen])
  if not up_to_scale and not np.allclose(size, other_size, rtol=1e-4):
    return False
  scale = size / np.maximum(other_size, 1e-30)
  apart = []
  for i in seen:
    other = second.observed[i]
    apart.append(first.observed[i] - other * scale.reshape([-1] + [1] * (other.ndim - 1)))
  return bool((_norms(apart) <= 1e-4 * size).all())


def _norms(tensors: Sequence[np.ndarray]) -> np.ndarray:
  """The norm of each target's entries, float64[T]."""
  return np.sqrt(sum(np.square(t.reshape([len(t), -1])).sum(axis=1, dtype=np.float64) for t in tensors))
