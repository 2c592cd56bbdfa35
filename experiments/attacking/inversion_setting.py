"""The setting of gradient inversion: plans of the presets, batches of clients, and the views of observers."""

import dataclasses
import functools
import os
from typing import Any, NamedTuple

import numpy as np

import data
import experiments
from experiments.command import flags as experiment_flags
from experiments.command import run as run_lib
from quap_tff import plans
from quap_tff.common import lazy
from quap_tff.common import registry
from quap_tff.common.lazy import tf
from quap_tff.mechanisms.parts import layers as layers_lib

inversion = lazy.module('experiments.attacking.inversion.attack')
inversion_model = lazy.module('experiments.attacking.inversion.model')
models = lazy.module('quap_tff.training.models')
views = lazy.module('experiments.attacking.inversion.views')


class Presets(NamedTuple):
  """The presets of a dataset, and its CNN.

  Attributes:
    documents: The documents' setting. All methods here have its learning rate.
    certified: The certified setting. Its ε, δ, rounds, cohorts and clipping norm are used. Its fixed features are not:
      the attacked model is the same for all methods.
    model: The CNN.
  """

  documents: str
  certified: str
  model: str


PRESETS = {
  'digits': Presets('demo', 'digits_certified', 'digits_cnn'),
  'mnist': Presets('mnist_2025', 'mnist_certified', 'mnist_cnn'),
  'cifar10': Presets('cifar10_2025', 'cifar10_certified', 'cifar10_cnn'),
}
# Without convolutions: its first Dense layer takes in the image itself.
DENSE_MODEL = 'mlp'


@dataclasses.dataclass(frozen=True)
class AttackedMethod:
  """A method as flags of `experiments.train`.

  Attributes:
    about: The views of observers, in a sentence or two.
    flags: What is added to the preset.
    is_certified: Whether it takes the certified preset.
  """

  about: str
  flags: tuple[str, ...] = ()
  is_certified: bool = False


METHODS = {
  'fedavg': AttackedMethod('No clipping and no noise anywhere.', ('--algorithm=fedavg',)),
  'quap': AttackedMethod(
    "QuAP-FL. A client's update has no noise. The aggregate has noise only on the final Dense layer, so the "
    'attack looks at the other layers.'
  ),
  'fixed_dp': AttackedMethod(
    "Fixed-DP. A client's update is clipped and has no noise. The aggregate has noise on every layer.",
    ('--algorithm=fixed_dp',),
  ),
  'local_noise': AttackedMethod(
    "The first document's noise: each client adds its own, to every layer, before it sends anything.",
    ('--noise=client', '--critical_layers=all'),
  ),
  'certified': AttackedMethod(
    "A client's update is clipped and has no noise: the certificate is about the released model. The aggregate "
    'has noise on every layer.',
    is_certified=True,
  ),
}


def presets_of(dataset: str) -> Presets:
  """The presets of a dataset; `ValueError` with the known ones for another."""
  return registry.lookup('dataset of attacks', dataset, PRESETS)


def _arguments(preset: str) -> str:
  return f'--flagfile={os.path.join(os.path.dirname(experiments.__file__), "presets", preset)}.flags'


@functools.cache
def plan_of(dataset: str, method: str, model: layers_lib.ModelShape) -> plans.Plan:
  """The plan of a method with the parameters of the dataset's preset."""
  presets, chosen = presets_of(dataset), METHODS[method]
  preset = presets.certified if chosen.is_certified else presets.documents
  with experiment_flags.parsed([_arguments(preset), *chosen.flags]) as values:
    return run_lib.Run.from_flags(values).plan(values.num_clients, model)


def setting_of(dataset: str, data_dir: Any, seed: int) -> tuple[data.Federation, float]:
  """The clients of a dataset's preset, and their learning rate.

  Raises:
    ValueError: If the data are missing.
  """
  with experiment_flags.parsed([_arguments(presets_of(dataset).documents)]) as values:
    run = run_lib.Run.from_flags(values)
  kept = dict(num_clients=run.data.num_clients, partition=run.flags['partition'], seed=seed)
  return data.load(dataset, data_dir=data_dir, **kept), run.local.client_optimizer.learning_rate


def batches_of(
  federation: data.Federation, targets: int, cohort: int, batch: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
  """Draws cohorts and their batches. Each target is another client, as far as there are enough.

  Returns:
    x float32[T, M, B, …] and y int32[T, M, B]. The first client of a cohort is the target.

  Raises:
    ValueError: If fewer clients than `cohort` have `batch` examples.
  """
  eligible = [i for i, examples in enumerate(federation.clients) if len(examples) >= batch]
  if len(eligible) < cohort:
    raise ValueError(
      f'--cohort={cohort}: only {len(eligible)} clients of {federation.name} have {batch} examples or more. Give a '
      'smaller --cohort or smaller --batches.'
    )
  rng = np.random.default_rng([seed, 12])
  order, x, y = rng.permutation(eligible), [], []
  for target in range(targets):
    first = order[target % len(order)]
    others = rng.permutation([i for i in eligible if i != first])[: cohort - 1]
    for client in (first, *others):
      rows = rng.choice(len(federation.clients[client]), batch, replace=False)
      x.append(federation.clients[client].x[rows])
      y.append(federation.clients[client].y[rows])
  return np.reshape(x, [targets, cohort, batch, *federation.input_shape]), np.reshape(y, [targets, cohort, batch])


class AttackedModel:
  """A model whose clients are attacked.

  Args:
    name: The model.
    dataset: Whose presets its methods have.
    federation: The clients.
    learning_rate: Theirs.
    seed: The seed of the initial weights and of the noise.
  """

  def __init__(self, name: str, dataset: str, federation: data.Federation, learning_rate: float, seed: int):
    keras = models.build_keras_model(name, federation.input_shape, federation.num_classes, seed=seed)
    self.name, self.stacked = name, inversion_model.StackedModel(keras)
    shapes = tuple(tuple(v.shape) for v in keras.trainable_variables)
    self._shape = layers_lib.ModelShape(layers_lib.from_variables(keras.trainable_variables), shapes)
    self._dataset, self._learning_rate, self._seed = dataset, learning_rate, seed

  def updates(self, x: np.ndarray, y: np.ndarray, steps: int) -> list[list[np.ndarray]]:
    """The updates of the cohorts' clients before clipping: for each place in a cohort, float32[T, …] tensors."""
    weights = self.stacked.stacked(len(x))
    updates = []
    for m in range(x.shape[1]):
      images, labels = tf.constant(x[:, m]), tf.one_hot(y[:, m], self.stacked.num_classes)
      update = inversion_model.local_update(self.stacked, weights, images, labels, self._learning_rate, steps)
      updates.append([u.numpy() for u in update])
    return updates

  def seen(self, method: str, updates: list[list[np.ndarray]], batch: int) -> dict[str, tuple[Any, Any]]:
    """The knowledge of each observer about these updates under a method: an `inversion.Problem` and its `View`."""
    plan = plan_of(self._dataset, method, self._shape)
    examples = {'client_update': batch, 'aggregate': batch * len(updates)}
    pairs = {}
    for observer, view in views.observe(plan, self._shape.layers, updates, self._seed).items():
      observed = [tensor.astype(np.float32) for tensor in view.update]
      pairs[observer] = inversion.Problem(self.stacked, examples[observer], observed, view.noised), view
    return pairs
