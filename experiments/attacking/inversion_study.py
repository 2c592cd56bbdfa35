"""Gradient inversion of every method: settings, the study itself, and its rows."""

import csv
import dataclasses
import os
from typing import Any, Callable, NamedTuple, Optional

import numpy as np

from experiments.attacking import inversion_pages as pages
from experiments.attacking import inversion_setting as setting_lib
from quap_tff.common import checks
from quap_tff.common import lazy
from quap_tff.common import registry
from quap_tff.common.lazy import tf
from quap_tff.training import models as models_lib

closed_form = lazy.module('quap_tff.auditing.inversion_closed_form')
images_lib = lazy.module('quap_tff.auditing.images')
inversion = lazy.module('quap_tff.auditing.inversion')
inversion_labels = lazy.module('quap_tff.auditing.inversion_labels')
stats = lazy.module('scipy.stats')

ATTACKS = ('closed_form', 'dlg', 'idlg', 'geiping')
OBSERVERS = ('client_update', 'aggregate')
# An image counts as recovered from this PSNR on: the mean squared error is then a hundredth.
RECOVERED_PSNR = 20.0
_CONFIDENCE = 0.95


@dataclasses.dataclass(frozen=True)
class InversionSettings:
  """What is attacked, and how.

  Attributes:
    dataset: A key of `inversion_setting.PRESETS`.
    data_dir: The folder of the dataset's file, or None.
    models: Names of models; () for the dataset's CNN and `mlp`.
    methods: Keys of `inversion_setting.METHODS`.
    observers: Who looks: `OBSERVERS`.
    attacks: Of `ATTACKS`.
    batches: Examples of each client.
    steps: Local steps of each client, each on all its examples.
    targets: How many clients are attacked.
    cohort: Clients in a round, for the aggregate.
    measured: The most images of a target that are reconstructed and measured.
    iterations: Of matching attacks.
    feature_iterations: Of the search for an image with given features.
    feature_learning_rate: Of that search, in units of pixels.
    feature_smoothness: Weight of the total variation in that search.
    matching_images: Matching attacks run only up to this number of simulated images for each target: examples in the
      update times local steps.
    seed: Seed of the federation, initial weights, cohorts, batches, noise and starting points.
  """

  dataset: str = 'digits'
  data_dir: Optional[str] = None
  models: tuple[str, ...] = ()
  methods: tuple[str, ...] = tuple(setting_lib.METHODS)
  observers: tuple[str, ...] = OBSERVERS
  attacks: tuple[str, ...] = ATTACKS
  batches: tuple[int, ...] = (1, 4)
  steps: tuple[int, ...] = (1, 4)
  targets: int = 10
  cohort: int = 3
  measured: int = 4
  iterations: int = 300
  feature_iterations: int = 200
  feature_learning_rate: float = 0.05
  feature_smoothness: float = 1e-3
  matching_images: int = 4
  seed: int = 42

  def __post_init__(self):
    presets = setting_lib.presets_of(self.dataset)
    if not self.models:
      object.__setattr__(self, 'models', (presets.model, setting_lib.DENSE_MODEL))
    for kind, names, known in (
      ('model', self.models, models_lib.MODELS),
      ('attacked method', self.methods, setting_lib.METHODS),
      ('observer', self.observers, OBSERVERS),
      ('attack', self.attacks, ATTACKS),
    ):
      if not names:
        raise ValueError(f'Give at least one {kind}; choices: {", ".join(known)}.')
      for name in names:
        if name not in known:
          raise registry.unknown_name_error(kind, name, list(known))
    for name in ('batches', 'steps'):
      if not getattr(self, name):
        raise ValueError(f'--{name} is empty: give at least one number, such as --{name}=1,4.')
      for value in getattr(self, name):
        checks.integer(name, value, at_least=1)
    checks.integer('targets', self.targets, at_least=2)
    for name in ('cohort', 'measured', 'iterations', 'feature_iterations'):
      checks.integer(name, getattr(self, name), at_least=1)
    checks.number('feature_learning_rate', self.feature_learning_rate, above=0)
    checks.number('feature_smoothness', self.feature_smoothness, at_least=0)
    for name in ('matching_images', 'seed'):
      checks.integer(name, getattr(self, name), at_least=0)


class Attempt(NamedTuple):
  """One attack on all targets: true and recovered images float32[T, n, …], the share of labels found, float64[T]."""

  true: np.ndarray
  recovered: np.ndarray
  labels: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class InversionResult:
  """What the study found.

  Attributes:
    rows: A dict for each attack on each setting, for JSON.
    pictures: PNG files by name.
    captions: What each picture shows, by its name.
    notes: Paragraphs on how to read the figures.
  """

  rows: list[dict[str, Any]]
  pictures: dict[str, bytes]
  captions: dict[str, str]
  notes: tuple[str, ...]

  def write(self, folder: str):
    """Writes inversion.csv and the pictures into a folder that exists."""
    with open(os.path.join(folder, 'inversion.csv'), 'w', newline='', encoding='utf-8') as f:
      writer = csv.DictWriter(f, list(self.rows[0]) if self.rows else [], lineterminator='\n')
      writer.writeheader()
      writer.writerows(self.rows)
    for name, content in self.pictures.items():
      with open(os.path.join(folder, name), 'wb') as f:
        f.write(content)


def run(settings: InversionSettings, say: Callable[[str], None]) -> InversionResult:
  """Attacks as the settings say.

  Args:
    settings: What and how.
    say: Called with a line on each step.

  Raises:
    ValueError: If data are missing, or a model does not fit an attack.
  """
  setting = setting_lib.setting_of(settings.dataset, settings.data_dir, settings.seed)
  federation = setting.federation
  say(
    f'{federation.name}: {settings.targets} targets, a cohort of {settings.cohort}, learning rate '
    f'{setting.learning_rate:g}.'
  )
  batches = setting_lib.batches_of(federation, settings.targets, settings.cohort, max(settings.batches), settings.seed)
  blind = federation.test.x.mean(axis=0)
  rows, pictures = [], {}
  for name in settings.models:
    model = setting_lib.AttackedModel(
      settings.dataset, name, federation.input_shape, federation.num_classes, settings.seed
    )
    invert = closed_form.build_feature_inversion(
      model.stacked, settings.feature_iterations, settings.feature_smoothness, settings.feature_learning_rate
    )
    for steps in settings.steps:
      attacks = {
        kind: _attack(kind, settings).build(model.stacked, setting.learning_rate, steps) for kind in settings.attacks
      }
      for batch in settings.batches:
        study = _Case(settings, model, setting.learning_rate, batches.first(batch), steps, attacks, invert)
        for row, attempt in study.run(say):
          rows.append({**row, **_against_blind(attempt.true, blind)})
          pictures.setdefault((name, row['method']), []).append((row, attempt))
  drawn, captions = pages.pictures(pictures, settings.steps[0])
  return InversionResult(rows, drawn, captions, pages.notes(settings.cohort, settings.matching_images))


def _attack(kind, settings):
  options = {} if kind == 'closed_form' else {'iterations': settings.iterations}
  return inversion.ATTACKS[kind](**options)


class _Case:
  """All methods, observers and attacks on one model, number of steps and batch."""

  def __init__(self, settings, model, learning_rate, batches, steps, attacks, invert):
    self._settings, self._model, self._learning_rate = settings, model, learning_rate
    self._batches, self._steps, self._attacks, self._invert = batches, steps, attacks, invert
    self._batch = batches.x.shape[2]
    self._solved = []

  def run(self, say):
    """Pairs of a row and the attempt that it is about."""
    settings = self._settings
    updates = self._model.updates(self._batches, self._learning_rate, self._steps)
    for method in settings.methods:
      seen = self._model.seen(method, updates, self._batch, self._learning_rate, self._steps, settings.seed)
      for observer in settings.observers:
        for kind in settings.attacks:
          one = seen[observer]
          simulated = one.problem.examples * self._steps
          if inversion.ATTACKS[kind].is_iterative and simulated > settings.matching_images:
            continue
          attempt, same_as = self._attempt(kind, method, observer, one.problem)
          row = self._row(method, observer, kind, one, attempt, same_as)
          say(
            f'{self._model.name} {method} {observer} batch {self._batch} steps {self._steps} {kind}: PSNR '
            f'{row["psnr_mean"]:.1f} dB, SSIM {row["ssim_mean"]:.2f}, labels {row["label_accuracy"]:.0%}'
            + (f' (as {same_as})' if same_as else '')
          )
          yield row, attempt

  def _attempt(self, kind, method, observer, problem):
    up_to_scale = not inversion.ATTACKS[kind].needs_scale
    for other_kind, other_observer, other_method, other, attempt in self._solved:
      if (kind, observer) == (other_kind, other_observer) and inversion.same_problem(problem, other, up_to_scale):
        return attempt, other_method
    attempt = self._solve(kind, observer, problem)
    self._solved.append((kind, observer, method, problem, attempt))
    return attempt, ''

  def _solve(self, kind, observer, problem):
    x, y = self._batches
    found = self._attacks[kind](problem, self._settings.seed)
    shape, targets = x.shape[3:], len(x)
    true, n = x[:, 0], min(self._batch, self._settings.measured)
    codes = true.reshape([targets, self._batch, -1])
    if not found.are_images:
      model = self._model.stacked
      flat = tf.constant(true.reshape([1, -1, *shape]))
      features = model.features([w[tf.newaxis] for w in model.initial_weights], flat).numpy()
      codes = features.reshape([targets, self._batch, -1])
    # The comparison, not the attacker, knows which code is nearest to which example. Only those are made into images.
    chosen = np.stack([found.codes[t][images_lib.nearest(codes[t], found.codes[t])[:n]] for t in range(targets)])
    flat = chosen.reshape([targets * n, -1]).astype(np.float32)
    recovered = flat.reshape([-1, *shape]) if found.are_images else self._invert(flat)
    labels = y[:, 0] if observer == 'client_update' else y.reshape([targets, -1])
    return Attempt(
      true[:, :n],
      np.clip(recovered, 0, 1).reshape([targets, n, *shape]),
      inversion_labels.accuracy(labels, found.labels),
    )

  def _row(self, method, observer, kind, seen, attempt, same_as):
    psnr, ssim = _measures(attempt.true, attempt.recovered)
    row = {
      'dataset': self._settings.dataset,
      'model': self._model.name,
      'method': method,
      'observer': observer,
      'attack': kind,
      'batch': self._batch,
      'steps': self._steps,
      'cohort': 1 if observer == 'client_update' else self._settings.cohort,
      'targets': len(psnr),
      'images': int(psnr.size),
    }
    for name, values, low, high in (
      ('psnr', psnr.mean(axis=1), -np.inf, np.inf),
      ('ssim', ssim.mean(axis=1), -1, 1),
      ('label_accuracy', attempt.labels, 0, 1),
    ):
      mean, lower, upper = interval(values, low, high)
      row[name if name == 'label_accuracy' else f'{name}_mean'] = mean
      row[f'{name}_low'], row[f'{name}_high'] = lower, upper
    return {
      **row,
      'recovered': float(np.mean(psnr >= RECOVERED_PSNR)),
      'looked_at': 'all layers' if all(seen.problem.visible) else 'layers without noise',
      'clipping_norm': seen.clip,
      'update_norm': seen.norm,
      'noise_stddev': seen.noise,
      'same_as': same_as,
    }


def interval(values: np.ndarray, low: float, high: float) -> tuple[float, Optional[float], Optional[float]]:
  """(mean, lower, upper): Student's 95% interval of the mean over targets, within [low, high].

  The ends are None for fewer than `inversion_pages.FEWEST_TARGETS`: such intervals reach further than any image.
  """
  mean, count = float(np.mean(values)), len(values)
  if count < pages.FEWEST_TARGETS:
    return mean, None, None
  reach = float(stats.t.ppf((1 + _CONFIDENCE) / 2, count - 1) * np.std(values, ddof=1) / np.sqrt(count))
  return mean, max(mean - reach, low), min(mean + reach, high)


def _measures(true, recovered):
  """(PSNR, SSIM), float64[T, n]."""
  flat = [v.reshape([-1, *v.shape[2:]]) for v in (true, recovered)]
  return images_lib.psnr(*flat).reshape(true.shape[:2]), images_lib.ssim(*flat).reshape(true.shape[:2])


def _against_blind(true, blind):
  psnr, ssim = _measures(true, np.broadcast_to(blind, true.shape).astype(np.float32))
  return {'psnr_blind': float(psnr.mean()), 'ssim_blind': float(ssim.mean())}
