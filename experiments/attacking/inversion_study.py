"""Gradient inversion of every method: settings, the study itself, and its rows."""

import collections
from collections.abc import Iterable, Iterator, Mapping, Sequence
import dataclasses
import functools
from typing import Any, Callable, NamedTuple, Optional, TYPE_CHECKING

import numpy as np

from experiments.attacking import inversion_setting as setting_lib
from experiments.attacking import result as results
from experiments.running import plots
from quap_tff.common import checks
from quap_tff.common import json_types
from quap_tff.common import lazy
from quap_tff.common import registry
from quap_tff.common.lazy import tf
from quap_tff.training import models as models_lib

if TYPE_CHECKING:
  from experiments.attacking.inversion.attack import Problem

closed_form = lazy.module('experiments.attacking.inversion.closed_form')
images_lib = lazy.module('experiments.attacking.inversion.images')
inversion = lazy.module('experiments.attacking.inversion.attack')
stats = lazy.module('scipy.stats')

ATTACKS = ('closed_form', 'dlg', 'idlg', 'geiping')
OBSERVERS = ('client_update', 'aggregate')
# An image counts as recovered from this PSNR on: the mean squared error is then a hundredth.
RECOVERED_PSNR = 20.0
# Fewer targets give no interval.
FEWEST_TARGETS = 5
_MOST_IMAGES = 10


@dataclasses.dataclass(frozen=True)
class InversionSettings(checks.Checked):
  """The attacked setting and the attacks: each field is a flag of `experiments.attack`, with its description as help.

  Attributes:
    dataset: Dataset: digits, mnist, cifar10.
    data_dir: Folder with the dataset's file (mnist.npz, cifar10.npz). Default: the download cache.
    models: Attacked models. Default: the dataset's CNN and mlp.
    methods: Attacked methods: fedavg, quap, fixed_dp, local_noise, certified.
    observers: Who looks: client_update, aggregate.
    attacks: Inversions: closed_form, dlg, idlg, geiping.
    batches: Examples of a client.
    steps: Local steps of a client, each on all its examples.
    targets: Clients that are attacked, at least 2. Fewer than 5 give no intervals.
    cohort: Clients in an aggregate.
    measured: The most images of a target that are reconstructed and measured.
    iterations: Iterations of dlg, idlg and geiping.
    feature_iterations: Iterations of the search for an image with the features that closed_form finds behind
      convolutions.
    feature_learning_rate: Learning rate of that search, in units of pixels.
    feature_smoothness: Weight of the total variation in that search.
    matching_images: dlg, idlg and geiping run only where an update holds at most this many simulated images: examples
      times local steps.
    seed: Seed of data, models, cohorts, noise and attacks.
  """

  dataset: str = 'digits'
  data_dir: Optional[str] = None
  models: tuple[str, ...] = ()
  methods: tuple[str, ...] = tuple(setting_lib.METHODS)
  observers: tuple[str, ...] = OBSERVERS
  attacks: tuple[str, ...] = ATTACKS
  batches: tuple[int, ...] = (1, 4)
  steps: tuple[int, ...] = (1, 4)
  targets: int = checks.integer_field('--targets', 10, at_least=2)
  cohort: int = checks.integer_field('cohort', 3, at_least=1)
  measured: int = checks.integer_field('measured', 4, at_least=1)
  iterations: int = checks.integer_field('iterations', 300, at_least=1)
  feature_iterations: int = checks.integer_field('feature_iterations', 200, at_least=1)
  feature_learning_rate: float = checks.number_field('feature_learning_rate', 0.05, above=0)
  feature_smoothness: float = checks.number_field('feature_smoothness', 1e-3, at_least=0)
  matching_images: int = checks.integer_field('matching_images', 4, at_least=0)
  seed: int = checks.integer_field('seed', 42, at_least=0)

  def __post_init__(self) -> None:
    super().__post_init__()
    presets = setting_lib.presets_of(self.dataset)
    if not self.models:
      object.__setattr__(self, 'models', (presets.model, setting_lib.DENSE_MODEL))
    named: tuple[tuple[str, Sequence[str], Iterable[str]], ...] = (
      ('model', self.models, models_lib.MODELS),
      ('attacked method', self.methods, setting_lib.METHODS),
      ('observer', self.observers, OBSERVERS),
      ('attack', self.attacks, ATTACKS),
    )
    for kind, names, known in named:
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


class Attempt(NamedTuple):
  """One attack on all targets.

  Attributes:
    row: Its figures, for JSON.
    true: float32[T, n, …], images.
    recovered: The same shape.
  """

  row: json_types.JsonObject
  true: np.ndarray
  recovered: np.ndarray


def run(settings: InversionSettings, say: Callable[[str], None]) -> results.StudyResult:
  """Attacks as the settings say.

  Args:
    settings: What and how.
    say: Called with a line on each step.

  Raises:
    ValueError: If data are missing, or a model does not fit an attack.
  """
  federation, learning_rate = setting_lib.setting_of(settings.dataset, settings.data_dir, settings.seed)
  say(f'{federation.name}: {settings.targets} targets, a cohort of {settings.cohort}, learning rate {learning_rate:g}.')
  x, y = setting_lib.batches_of(federation, settings.targets, settings.cohort, max(settings.batches), settings.seed)
  blind = federation.test.x.mean(axis=0)
  attempts = []
  for name in settings.models:
    model = setting_lib.AttackedModel(name, settings.dataset, federation, learning_rate, settings.seed)
    invert = closed_form.build_feature_inversion(
      model.stacked, settings.feature_iterations, settings.feature_smoothness, settings.feature_learning_rate
    )
    for steps in settings.steps:
      attacks = {
        kind: inversion.ATTACKS[kind].build(model.stacked, learning_rate, steps, settings.iterations)
        for kind in settings.attacks
      }
      for batch in settings.batches:
        case = _Case(settings, model, x[:, :, :batch], y[:, :, :batch], batch, steps, attacks, invert, blind)
        for attempt in case.attempts():
          attempts.append(attempt)
          say(_line(attempt.row))
  of_first_steps = [one for one in attempts if one.row['steps'] == settings.steps[0]]
  captions = {
    _picture(one.row): f'{one.row["model"]}, {one.row["method"]}: true images above, recovered ones below, the best '
    f'attack for each observer and batch. {setting_lib.METHODS[one.row["method"]].about}'
    for one in of_first_steps
  }
  return results.StudyResult(
    'inversion',
    [attempt.row for attempt in attempts],
    lambda: _pictures(of_first_steps),
    captions,
    notes(settings.cohort, settings.matching_images),
  )


@dataclasses.dataclass(eq=False)
class _Case:
  """All methods, observers and attacks on one model, number of steps and batch."""

  settings: InversionSettings
  model: setting_lib.AttackedModel
  x: np.ndarray
  y: np.ndarray
  batch: int
  steps: int
  attacks: Mapping[str, Callable[..., Any]]
  invert: Callable[[np.ndarray], np.ndarray]
  blind: np.ndarray

  def attempts(self) -> Iterator[Attempt]:
    settings = self.settings
    solved: collections.defaultdict[tuple[str, str], list[Any]] = collections.defaultdict(list)
    updates = self.model.updates(self.x, self.y, self.steps)
    squares = [np.square(tensor).reshape([len(self.x), -1]).sum(axis=1) for tensor in updates[0]]
    norms = np.sqrt(sum(squares))
    for method in settings.methods:
      seen = self.model.seen(method, updates, self.batch)
      for observer in settings.observers:
        problem, view = seen[observer]
        for kind in settings.attacks:
          attack = inversion.ATTACKS[kind]
          if attack.is_iterative and problem.examples * self.steps > settings.matching_images:
            continue
          before = solved[kind, observer]
          known = next((one for one in before if inversion.same_problem(problem, one[0], not attack.needs_scale)), None)
          _, solution, same_as = known or (problem, self._solved(kind, observer, problem), '')
          if known is None:
            before.append((problem, solution, method))
          names = {'method': method, 'observer': observer, 'attack': kind}
          facts = {
            'looked_at': 'all layers' if all(problem.visible) else 'layers without noise',
            'clipping_norm': view.clip if np.isfinite(view.clip) else None,
            'update_norm': float(np.mean(norms)),
            'noise_stddev': view.noise,
            'same_as': same_as,
          }
          true, recovered, labels = solution
          yield Attempt(self._row(names, facts, true, recovered, labels), true, recovered)

  def _solved(self, kind: str, observer: str, problem: 'Problem') -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(true images, recovered images, the share of each target's labels that were found)."""
    solution = self.attacks[kind](problem, self.settings.seed)
    shape, targets = self.x.shape[3:], len(self.x)
    true, n = self.x[:, 0], min(self.batch, self.settings.measured)
    codes = true.reshape([targets, self.batch, -1])
    if not solution.are_images:
      model = self.model.stacked
      flat = tf.constant(true.reshape([1, -1, *shape]))
      codes = model.features([w[tf.newaxis] for w in model.initial_weights], flat).numpy()
      codes = codes.reshape([targets, self.batch, -1])
    # The comparison, not the attacker, knows which code is nearest to which example. Only those are made into images.
    chosen = np.stack([solution.codes[t][images_lib.nearest(codes[t], solution.codes[t])[:n]] for t in range(targets)])
    flat = chosen.reshape([targets * n, -1]).astype(np.float32)
    recovered = flat.reshape([-1, *shape]) if solution.are_images else self.invert(flat)
    labels = self.y[:, 0] if observer == 'client_update' else self.y.reshape([targets, -1])
    recovered = np.clip(recovered, 0, 1).reshape([targets, n, *shape])
    return true[:, :n], recovered, images_lib.label_accuracy(labels, solution.labels)

  def _row(
    self,
    names: json_types.JsonView,
    facts: json_types.JsonView,
    true: np.ndarray,
    recovered: np.ndarray,
    labels: np.ndarray,
  ) -> json_types.JsonObject:
    psnr, ssim = _measures(true, recovered)
    blind_psnr, blind_ssim = _measures(true, np.broadcast_to(self.blind, true.shape).astype(np.float32))
    row = {
      'dataset': self.settings.dataset,
      'model': self.model.name,
      **names,
      'batch': self.batch,
      'steps': self.steps,
      'cohort': 1 if names['observer'] == 'client_update' else self.settings.cohort,
      'targets': len(psnr),
      'images': int(psnr.size),
    }
    for name, mean_name, values, low, high in (
      ('psnr', 'psnr_mean', psnr.mean(axis=1), -np.inf, np.inf),
      ('ssim', 'ssim_mean', ssim.mean(axis=1), -1, 1),
      ('label_accuracy', 'label_accuracy', labels, 0, 1),
    ):
      row[mean_name], row[f'{name}_low'], row[f'{name}_high'] = interval(values, low, high)
    return {
      **row,
      'recovered': float(np.mean(psnr >= RECOVERED_PSNR)),
      **facts,
      'psnr_blind': float(blind_psnr.mean()),
      'ssim_blind': float(blind_ssim.mean()),
    }


def _line(row: json_types.JsonView) -> str:
  return (
    f'{row["model"]} {row["method"]} {row["observer"]} batch {row["batch"]} steps {row["steps"]} {row["attack"]}: PSNR '
    f'{row["psnr_mean"]:.1f} dB, SSIM {row["ssim_mean"]:.2f}, labels {row["label_accuracy"]:.0%}'
    + (f' (as {row["same_as"]})' if row['same_as'] else '')
  )


def interval(values: np.ndarray, low: float, high: float) -> tuple[float, Optional[float], Optional[float]]:
  """(mean, lower, upper): Student's 95% interval of the mean over targets, within [low, high].

  The ends are None for fewer than `FEWEST_TARGETS`: such intervals reach further than any image.
  """
  mean, count = float(np.mean(values)), len(values)
  if count < FEWEST_TARGETS:
    return mean, None, None
  reach = float(stats.t.ppf(0.975, count - 1) * np.std(values, ddof=1) / np.sqrt(count))
  return mean, max(mean - reach, low), min(mean + reach, high)


def _measures(true: np.ndarray, recovered: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """(PSNR, SSIM), float64[T, n]."""
  flat = [v.reshape([-1, *v.shape[2:]]) for v in (true, recovered)]
  return images_lib.psnr(*flat).reshape(true.shape[:2]), images_lib.ssim(*flat).reshape(true.shape[:2])


def _picture(row: json_types.JsonView) -> str:
  return f'inversion_{row["model"]}_{row["method"]}.png'


def _pictures(attempts: Sequence[Attempt]) -> dict[str, bytes]:
  """PNG files by name: for each model and method, the best attack on each observer and batch."""
  best: dict[str, dict[Any, Attempt]] = {}
  for attempt in attempts:
    row, chosen = attempt.row, best.setdefault(_picture(attempt.row), {})
    key = row['observer'], row['batch']
    if key not in chosen or row['psnr_mean'] > chosen[key].row['psnr_mean']:
      chosen[key] = attempt
  return {
    name: plots.png(functools.partial(_draw, chosen=tuple(chosen.values())), (9, 2.1 * len(chosen)))
    for name, chosen in best.items()
  }


def _draw(figure: 'plots.Figure', chosen: Sequence[Attempt]) -> None:
  for axes, attempt in zip(np.atleast_1d(figure.subplots(len(chosen), 1)), chosen):
    row = attempt.row
    flat = [v.reshape([-1, *v.shape[2:]])[:_MOST_IMAGES] for v in (attempt.true, attempt.recovered)]
    axes.imshow(images_lib.grid(*flat), interpolation='nearest')
    axes.set_axis_off()
    axes.set_title(
      f'{row["observer"]}, batch {row["batch"]}, {row["attack"]}: PSNR {row["psnr_mean"]:.1f} dB, SSIM '
      f'{row["ssim_mean"]:.2f}',
      loc='left',
      fontsize=9,
    )


def notes(cohort: int, matching_images: int) -> tuple[str, ...]:
  """Paragraphs on how to read the rows."""
  return (
    'The observer `client_update` sees what one client sends. Under noise at the server this is the clipped update '
    "without any noise, whatever the method. Under noise at the clients it has the client's own noise. With secure "
    'aggregation nobody sees it.',
    f'The observer `aggregate` sees what a round of {cohort} clients releases. One of them is the target; '
    'the attacker looks for the examples of all.',
    "PSNR and SSIM compare each of the target's images with the recovered image that is assigned to it; 60 dB is "
    'the most that is counted. `recovered` is the share of images with a PSNR of 20 dB or more. `psnr_blind` and '
    '`ssim_blind` are what the mean of the test images reaches, so figures near them mean that nothing was found. '
    'Intervals are 95% intervals of the mean over targets. A dash means that there is no such figure: fewer than '
    f'{FEWEST_TARGETS} targets give no interval.',
    'Clients train without dropout here, and the model has its initial weights. Both help the attacker. Clipping and '
    "noise come from the mechanism's own functions, with the parameters of the dataset's presets. At the same "
    'clipping norm, noise at the server is as large on the sum of a small cohort as on that of a large one.',
    'Matching attacks ran only where an update holds few enough simulated images '
    f'(examples times steps at most {matching_images}). `same_as` names the method whose update was the '
    'same, up to a factor that the attack does not see, so that it was not attacked again.',
  )
