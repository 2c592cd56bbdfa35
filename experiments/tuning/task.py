"""A run whose constants are chosen: what it was given, its twin on made data, and the flag file of the choice."""

from collections.abc import Iterator, Mapping, Sequence
import math
from typing import NamedTuple, Optional

from experiments.command import flags as experiment_flags
from experiments.command import public_rule
from experiments.command import run as run_lib
from quap_tff.plans import public_rule as constants_lib
from quap_tff.training import models

_DEFAULT_ROUNDS = 20
_METHODS = ('certified', 'fedavg')
_MODELS = ('auto', 'logistic_regression', *public_rule.SCALED_MODELS)
# Flags of the run that its made twin does not have: data, files, and what the program itself sets.
_NOT_OF_TWIN = frozenset(
  'dataset data_dir output_dir signing_key tuning algorithm seed rounds eval_every model features batch_size '
  'client_optimizer local_epochs averaging num_clients progress checkpoint_every stop_after stop_at_accuracy '
  'num_threads partition'.split()
)


class Stated(NamedTuple):
  """What the user states as public, besides the flags of the run.

  Attributes:
    shape: The shape of an example, as --shape has it; None for that of a known dataset.
    classes: The number of classes; None for that of a known dataset.
    examples: The examples of a client.
    row_norm: The norm of a row of a table; None for √columns.
  """

  shape: Optional[Sequence[str]]
  classes: Optional[int]
  examples: int
  row_norm: Optional[float]


class Constants(NamedTuple):
  """What is chosen. `clip` is None for a method that does not clip."""

  rate: float
  epochs: int
  clip: Optional[float]
  rounds: int
  averaging: str = 'none'


class Task(NamedTuple):
  """A run whose constants are chosen.

  Attributes:
    given: The run's flags as they were given, each as an argument, by name.
    made: The dataset that is made in place of its own.
    model: The model.
    features: The features.
    algorithm: The method's spec as it was given.
    certified: Whether it is certified.
    num_clients: N.
    free: The names among `Constants` that are chosen.
    start: Where the search begins. What is not free stays as it is here.
  """

  given: Mapping[str, str]
  made: str
  model: str
  features: str
  algorithm: str
  certified: bool
  num_clients: int
  free: frozenset[str]
  start: Constants


def task_of(arguments: Sequence[str], stated: Stated) -> Task:
  """The task that the run's flags, and what is stated, describe. No file of data is opened.

  Raises:
    ValueError: For wrong flags, a method or a model that is not tuned, no stated shape, or nothing to choose.
  """
  with experiment_flags.parsed(arguments) as values:
    given = {name: f'--{name}={value}' for name, value in experiment_flags.all_values().items() if values[name].present}
    run = run_lib.Run.from_flags(values)
  written, method = run.flags, run.method
  kind = written['algorithm'].partition(':')[0]
  if kind not in _METHODS:
    raise ValueError(f'--algorithm={kind} is not tuned: expected one of {", ".join(_METHODS)}.')
  given_model = given.get('model', '=auto').partition('=')[2]
  if given_model not in _MODELS:
    raise ValueError(
      f'--model={given_model} is not tuned: leave it out, or give one of {", ".join(_MODELS[1:])}. A private run '
      'of few rounds learns little with more weights.'
    )
  shape, classes, num_clients = _stated(run, stated)
  if written['participation'].startswith('log') and 'rounds' not in given:
    raise ValueError('--participation=log has its rounds: give --rounds.')
  features = written['features'] if 'features' in given else public_rule.features_of(shape)
  auto = 'logistic_regression' if features == 'none' else 'linear_features'
  model = auto if given_model == 'auto' else given_model
  row_norm = stated.row_norm or models.row_norm(shape) if features == 'none' else 1.0
  certified = kind == 'certified'
  free = {'client_optimizer': 'rate', 'local_epochs': 'epochs', 'rounds': 'rounds', 'averaging': 'averaging'}
  chosen = {name for flag, name in free.items() if flag not in given}
  chosen -= set() if certified else {'averaging'}
  chosen |= {'clip'} if method.clip_follows_rounds else set()
  if not chosen:
    raise ValueError(
      'There is nothing to choose: leave out --client_optimizer, --local_epochs, --rounds or --averaging, or clip in '
      '--algorithm.'
    )
  rounds = run.schedule.rounds if 'rounds' in given else _DEFAULT_ROUNDS
  rule = constants_lib.public_constants(rounds, row_norm * _scale(model, shape))
  clip = three_digits(rule.clip) if method.clip_follows_rounds else None
  start = Constants(three_digits(rule.learning_rate), rule.local_epochs, clip, rounds, written['averaging'])
  made = _made(shape, classes, num_clients, stated.examples, row_norm)
  return Task(given, made, model, features, written['algorithm'], certified, num_clients, frozenset(chosen), start)


def _stated(run: run_lib.Run, stated: Stated) -> tuple[tuple[int, ...], int, int]:
  """The shape of an example, the number of classes and that of clients, as the user states them."""
  name, dataset = run.flags['dataset'].partition(':')[0], run.data.dataset
  shape: Optional[tuple[int, ...]] = dataset.image_shape
  if stated.shape is not None:
    try:
      shape = tuple(int(size) for size in stated.shape)
    except ValueError:
      shape = ()
    if len(shape) not in (1, 3) or min(shape) < 1:
      raise ValueError(
        f'--shape must be a number of columns, or height,width,channels, found {",".join(stated.shape)}.'
      )
  classes = stated.classes or dataset.num_classes or getattr(dataset, 'classes', None)
  num_clients = run.data.num_clients
  if num_clients is None and dataset.num_classes:
    num_clients = dataset.default_num_clients
  needed = {'--shape': shape, '--classes': classes, '--num_clients': num_clients}
  missing = [flag for flag, value in needed.items() if not value]
  if missing:
    raise ValueError(
      f'{", ".join(missing)}: give what you can state as public about {name!r}. This program does not open the data. '
      'For example: --shape=12 --classes=3 --num_clients=64.'
    )
  assert shape is not None and classes is not None and num_clients is not None
  return shape, classes, num_clients


def _scale(model: str, shape: Sequence[int]) -> float:
  """By how much the model multiplies its rows."""
  scales = {'linear_features': models.LOGIT_SCALE, 'scaled_linear': models.LOGIT_SCALE / models.row_norm(shape)}
  return scales.get(model, 1.0)


def _made(shape: Sequence[int], classes: int, num_clients: int, examples: int, row_norm: float) -> str:
  """The dataset that the program makes."""
  if len(shape) == 1:
    return f'synthetic:features={shape[0]},classes={classes},examples={examples},norm={row_norm:.4g}'
  # A seventh of the drawings tests.
  copies = max(7, math.ceil(num_clients * examples / classes * 7 / 6))
  height, width, channels = shape
  if height == width and channels == 1:
    return f'glyphs:classes={classes},copies={copies},side={height}'
  if tuple(shape) == (32, 32, 3):
    return f'things:classes={classes},copies={copies}'
  raise ValueError(
    f'--shape={",".join(map(str, shape))}: the program draws square grey images and 32,32,3. Give --shape=COLUMNS for '
    'examples that are rows.'
  )


def three_digits(value: float) -> float:
  """Three digits of a number, so that the flag file has what ran."""
  return float(f'{value:.3g}')


def flags_of(task: Task, constants: Constants, is_rehearsal: bool = False) -> dict[str, str]:
  """The values of the flags that the constants set. A rehearsal writes no certificate, and claims no --spent."""
  added = []
  if 'clip' in task.free:
    added.append(f'clip={constants.clip:.3g}')
  if is_rehearsal and task.certified and 'certificate=' not in task.algorithm:
    added.append('certificate=false')
  glue = ',' if ':' in task.algorithm else ':'
  found = {'algorithm': glue.join([task.algorithm, ','.join(added)]) if added else task.algorithm}
  found['client_optimizer'] = f'sgd:learning_rate={constants.rate:.3g}'
  found['local_epochs'], found['rounds'] = str(constants.epochs), str(constants.rounds)
  found['averaging'] = constants.averaging
  for flag, name in (('client_optimizer', 'rate'), ('local_epochs', 'epochs')):
    if name not in task.free:
      found[flag] = task.given[flag].partition('=')[2]
  if is_rehearsal:
    found['eval_every'] = found['rounds']
  return found


def base_flags(task: Task) -> list[str]:
  """The flags of all runs of the search."""
  kept = [argument for name, argument in task.given.items() if name not in _NOT_OF_TWIN]
  if 'partition' in task.given and not task.made.startswith('synthetic'):
    kept.append(task.given['partition'])
  made = [f'--dataset={task.made}', *_model_flags(task), '--checkpoint_every=1000', '--progress=none']
  return [*kept, *made]


def _model_flags(task: Task) -> list[str]:
  batch = task.given.get('batch_size', f'--batch_size={constants_lib.FULL_BATCH}')
  return [f'--num_clients={task.num_clients}', f'--model={task.model}', f'--features={task.features}', batch]


def sentence(task: Task) -> str:
  """How the constants were chosen, for the certificate. What the user gave is not claimed."""
  names = {'rate': 'learning rate', 'epochs': 'local epochs', 'clip': 'clipping norm', 'averaging': 'average'}
  chosen = [names.get(name, name) for name in Constants._fields if name in task.free]
  given = [names.get(name, name) for name in Constants._fields if name not in task.free]
  text = (
    f'Chosen by experiments.tune on data that it makes ({task.made}), and on no data of clients: {", ".join(chosen)}. '
    'Stated by the user as public: the shape of an example, the numbers of classes, of clients and of examples of a '
    f'client, and the cohorts. Given by the user, who says how: {", ".join([*given, "budget"])}.'
  )
  own = task.given.get('tuning', '').partition('=')[2]
  return f'{text} {own}' if own else text


def flag_file(task: Task, chosen: Constants) -> Iterator[str]:
  """The lines of the flag file: the run's own flags, then the choice."""
  values = flags_of(task, chosen)
  ours = {*values, 'output_dir', 'tuning', 'num_clients', 'model', 'features', 'batch_size'}
  yield f'# {sentence(task)}'
  yield from (argument for name, argument in task.given.items() if name not in ours)
  yield from _model_flags(task)
  yield from (f'--{name}={value}' for name, value in values.items())
  if task.certified:
    yield f'--tuning={sentence(task)}'
