"""Gradient inversion: training images from an observer's view of a round.

A new attack is a class and a line in `ATTACKS`.

The attacker knows the model and its weights before the round, the learning rate, the local steps, how many examples the
update holds, and which tensors have noise. Where some tensors have none, it looks at those alone. It does not know the
examples, their labels, or the noise.
"""

import abc
from collections.abc import Sequence
import dataclasses
from typing import Callable, ClassVar, NamedTuple

import numpy as np
import tensorflow as tf

from quap_tff.auditing.inversion import closed_form
from quap_tff.auditing.inversion import labels as inversion_labels
from quap_tff.auditing.inversion import matching as inversion_matching
from quap_tff.auditing.inversion import model as inversion_model
from quap_tff.common import checks


class Problem(NamedTuple):
  """The attacker's knowledge.

  Attributes:
    model: The model and its weights before the round.
    learning_rate: The clients' learning rate.
    steps: Their local steps, each on all of a client's examples.
    examples: How many examples an update holds: B, or B for each client of an aggregate.
    observed: float[T, …] for each tensor, for T targets: w_global - w_local, or the cohort's mean of it.
    noised: Positions of the tensors that have noise.
  """

  model: inversion_model.StackedModel
  learning_rate: float
  steps: int
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
    """Whether the final layer has noise while others have none: iDLG's rule then reads noise."""
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


class Attack(checks.Checked, abc.ABC):
  """A way to invert. Subclasses are frozen dataclasses of its parameters.

  Attributes:
    needs_scale: Whether a constant factor on the update changes the result.
    is_iterative: Whether it simulates local training many times, which costs most.
  """

  needs_scale: ClassVar[bool] = False
  is_iterative: ClassVar[bool] = True

  @abc.abstractmethod
  def build(self, model: inversion_model.StackedModel, learning_rate: float, steps: int) -> Callable[..., Recovered]:
    """A function (problem, seed) -> `Recovered` for problems of this model, rate and number of steps."""


def idlg_labels(problem: Problem) -> np.ndarray:
  """Labels int64[T, examples] by iDLG's rule, whatever noise the final layer has."""
  model = problem.model
  blank = tf.random.stateless_uniform([1, 64, *model.input_shape], [0, 0])
  mean = tf.reduce_mean(tf.nn.softmax(model.logits(model.stacked(1), blank)), axis=[0, 1])
  return inversion_labels.from_scores(
    inversion_labels.class_scores(model, problem.observed), problem.examples, mean.numpy()
  )


@dataclasses.dataclass(frozen=True)
class ClosedForm(Attack):
  """The quotients of the first Dense layer's gradients. Several local steps are taken for one gradient, their sum."""

  is_iterative = False

  def build(self, model: inversion_model.StackedModel, learning_rate: float, steps: int) -> Callable[..., Recovered]:
    if model.first_dense is None:
      raise ValueError(
        "The closed form divides by the gradient of the first Dense layer's bias, and this model's has no bias. "
        'Choose another model or attack.'
      )
    kernel, bias = model.first_dense
    upper = 1.0 if model.reads_images else None

    def recover(problem, seed):
      del seed
      codes = np.stack(
        [
          closed_form.choose(*closed_form.dense_inputs(k, b), problem.examples, upper)
          for k, b in zip(problem.observed[kernel], problem.observed[bias])
        ]
      )
      return Recovered(codes, model.reads_images, idlg_labels(problem))

    return recover


@dataclasses.dataclass(frozen=True)
class Matching(Attack):
  """Images whose simulated local training gives the update that was seen (`inversion_matching`).

  Attributes:
    iterations: Steps of Adam, at least 1.
    learning_rate: Of Adam, in units of pixels.
    distance: 'l2' or 'cosine'.
    signed: Whether Adam takes the signs of the derivatives.
    smoothness: Weight of the total variation.
    learns_labels: Whether labels are optimised with the images.
  """

  iterations: int = checks.integer_field('iterations', 300, at_least=1)
  learning_rate: float = checks.number_field('learning_rate', 0.05, above=0)

  distance: ClassVar[str] = 'l2'
  signed: ClassVar[bool] = False
  smoothness: ClassVar[float] = 0.0
  learns_labels: ClassVar[bool] = False

  def build(self, model: inversion_model.StackedModel, learning_rate: float, steps: int) -> Callable[..., Recovered]:
    run = inversion_matching.build(model, self, learning_rate, steps)

    def recover(problem, seed):
      learns = self.learns_labels or problem.labels_are_hidden
      targets, classes = len(problem.observed[0]), model.num_classes
      if learns:
        # Not all alike: examples of one update must be able to part.
        start = np.random.default_rng(seed).dirichlet(np.full(classes, 100.0), [targets, problem.examples])
      else:
        start = np.eye(classes)[idlg_labels(problem)]
      images, labels = run(problem.observed, problem.visible, start, learns, seed)
      return Recovered(images.reshape([targets, problem.examples, -1]), True, labels.argmax(axis=-1))

    return recover


@dataclasses.dataclass(frozen=True)
class Dlg(Matching):
  """Zhu, Liu and Han 2019: L2 distance; labels are optimised with the images. An interpretation: Adam, not L-BFGS."""

  needs_scale = True
  learns_labels = True


@dataclasses.dataclass(frozen=True)
class Idlg(Matching):
  """Zhao, Mopuri and Bilen 2020: DLG with the labels of iDLG's rule (learned if only that layer has noise)."""

  needs_scale = True


@dataclasses.dataclass(frozen=True)
class Geiping(Matching):
  """Geiping et al. 2020: cosine distance and total variation, minimised by Adam on the signs of the derivatives."""

  distance = 'cosine'
  signed = True
  smoothness = 1e-2


ATTACKS: dict[str, type[Attack]] = {'closed_form': ClosedForm, 'dlg': Dlg, 'idlg': Idlg, 'geiping': Geiping}


def same_problem(first: Problem, second: Problem, up_to_scale: bool) -> bool:
  """Whether two problems give the attacker the same, except for a positive factor if `up_to_scale`."""
  if first.visible != second.visible:
    return False
  seen = [i for i, visible in enumerate(first.visible) if visible]
  sizes = [_norms([problem.observed[i] for i in seen]) for problem in (first, second)]
  if not up_to_scale and not np.allclose(sizes[0], sizes[1], rtol=1e-4):
    return False
  scale = sizes[0] / np.maximum(sizes[1], 1e-30)
  apart = _norms(
    [first.observed[i] - second.observed[i] * scale.reshape([-1] + [1] * (second.observed[i].ndim - 1)) for i in seen]
  )
  return bool((apart <= 1e-4 * sizes[0]).all())


def _norms(tensors):
  """The norm of each target's entries, float64[T]."""
  return np.sqrt(sum(np.square(t.reshape([len(t), -1])).sum(axis=1, dtype=np.float64) for t in tensors))
