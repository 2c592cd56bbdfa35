"""What is wrong with an experiment's flags, as far as one can tell without data and without TensorFlow.

The configurations check themselves when they are made. So here they are made, before anything is loaded, and what they
say of their fields is said of flags.
"""

from collections.abc import Iterator, Sequence
import contextlib
import re
from typing import Any, Optional

from data import cohorts
from data import datasets
from data import dropouts
from data import features
from data import partition
from experiments import methods
from experiments import optimizers
from quap_tff.common import checks
from quap_tff.common import registry
from quap_tff.mechanisms import clip_rules
from quap_tff.mechanisms import postprocessing
from quap_tff.mechanisms import robust
from quap_tff.mechanisms import sparsity
from quap_tff.training import malicious
from quap_tff.training import models

# Far above what a machine can do in months; a typing error should not plan for years.
MOST_ROUNDS = 10**6

# Flags that only one runtime uses.
_OF_RUNTIME = {
  'num_threads': 'in_process',
  'num_workers': 'workers',
  'worker_addresses': 'workers',
  'worker_credentials': 'workers',
  'worker_timeout': 'workers',
}
# Flags that say what is kept in --output_dir.
_OF_FOLDER = ('checkpoint_every', 'keep_checkpoints', 'signing_key')
# The flags that give fields of another name.
_FLAG_OF_FIELD = {
  'epsilon_total': 'epsilon',
  'num_rounds': 'rounds',
  'max_steps': 'max_local_steps',
  'learning_rate_decay': 'client_learning_rate_decay',
  'noise seed': 'noise_seed',
  'client seed': 'seed',
  'participation ema_weight': 'ema_weight',
}
# Fields whose names are flags wherever they appear; others, such as noise, are parameters of specs, too.
_ALWAYS_FLAGS = (
  'epsilon_total',
  'num_rounds',
  'max_steps',
  'num_clients',
  'cohort_size',
  'gaussian_calibration',
  'worker_addresses',
)
# The flags that give what `registry` calls by these words.
_FLAG_OF_KIND = {
  'noise placement': 'noise',
  'gaussian calibration': 'gaussian_calibration',
  'clip scope': 'clip_scope',
  'update scale': 'update_scale',
  'round budget rule': 'round_budget',
  'participation rate': 'participation_rate',
  'clip rule': 'clip',
  'runtime': 'runtime',
  'device': 'device',
}
# How to test on others than the clients themselves.
_OTHERS = {
  'femnist': '--dataset=femnist:test_writers=0.1.',
  'femnist_digits': '--dataset=femnist_digits:test_writers=0.1.',
  'shakespeare': '--dataset=shakespeare:test_roles=0.1.',
}


@contextlib.contextmanager
def naming_flags(values: Any) -> Iterator[None]:
  """Lets a `ValueError` about fields of configurations name the flags that they come from."""
  try:
    yield
  except ValueError as error:
    text = str(error)
    subject = re.match(r'([a-z]\w*(?: [a-z]\w*)?) (?:must|are|is) ', text)
    name = subject and _FLAG_OF_FIELD.get(subject[1], subject[1])
    if name in values:
      text = f'--{name}{text[subject.end(1):]}'
    kind = re.match(r'Unknown ([\w ]+) \'', text)
    if kind and kind[1] in _FLAG_OF_KIND:
      text = f'--{_FLAG_OF_KIND[kind[1]]}: {text}'
    text = re.sub(
      rf'(?<![\w-])({"|".join(_ALWAYS_FLAGS)})\b', lambda found: f'--{_FLAG_OF_FIELD.get(found[1], found[1])}', text
    )
    text = re.sub(r'(?:[Nn]oise )?placement "(\w+)"', r'--noise=\1', text)
    if text != str(error):
      error.args = (text,)
    raise


@contextlib.contextmanager
def _of(flag: str) -> Iterator[None]:
  """Puts the flag before an error about its value."""
  try:
    yield
  except ValueError as error:
    raise ValueError(f'--{flag}: {error}' if f'--{flag}' not in str(error) else str(error)) from error


def check(values: Any, given: Sequence[str] = ()) -> methods.Method:
  """Checks everything that can be checked from the flags alone.

  Args:
    values: The flags of `experiments.flags`.
    given: Names of flags that were given on the command line itself. Those that would have no effect are refused there.

  Returns:
    The method.

  Raises:
    ValueError: For a flag that is wrong, alone or together with others. The message names it.
  """
  with naming_flags(values):
    _check_numbers(values)
    _check_choices(values)
    method = methods.parse(values.algorithm)
    _check_data(values, method)
    _check_mechanism(values, method)
    _check_runtime(values, method)
    num_clients = _known_clients(values)
    if num_clients is not None:
      method.check_cohorts(methods.participation_of(values, num_clients), values.rounds)
  for name, reason in without_effect(values, given).items():
    raise ValueError(f'--{name}: {reason}')
  return method


def _check_numbers(values):
  checks.integer('rounds', values.rounds, at_least=1, at_most=MOST_ROUNDS)
  if values.stop_after is not None:
    checks.integer('stop_after', values.stop_after, at_least=1, at_most=values.rounds)
  if values.stop_at_accuracy is not None:
    checks.number('stop_at_accuracy', values.stop_at_accuracy, above=0, at_most=1)
  checks.integer('seed', values.seed, at_least=0, at_most=2**63 - 1)
  for name in ('num_clients', 'cohort_size', 'num_threads'):
    if getattr(values, name) is not None:
      checks.integer(name, getattr(values, name), at_least=1)
  checks.number('shrinkage', values.shrinkage, above=0, at_most=1)


def _check_choices(values):
  """The specs, each by itself."""
  with _of('algorithm'):
    methods.parse(values.algorithm)
  for flag, kind, choices in (
    ('dataset', 'dataset', datasets.DATASETS),
    ('participation', 'participation model', cohorts.PARTICIPATION_MODELS),
    ('dropout', 'dropout', dropouts.DROPOUTS),
    ('averaging', 'averaging', postprocessing.AVERAGINGS),
    ('features', 'features', features.FEATURES),
    # Also where a dataset with clients of its own does not use it.
    ('partition', 'partition', partition.PARTITIONS),
    ('client_optimizer', 'client optimizer', optimizers.OPTIMIZERS),
    ('server_optimizer', 'server optimizer', optimizers.OPTIMIZERS),
    ('malicious', 'attack', malicious.ATTACKS),
    ('sparsity', 'sparsity', sparsity.SPARSITIES),
    ('aggregator', 'aggregator', robust.AGGREGATORS),
  ):
    with _of(flag):
      registry.parse_spec(kind, getattr(values, flag), choices)
  with _of('model'):
    if values.model != 'auto':
      registry.lookup('model', values.model, models.MODELS)
  with _of('compute_dtype'):
    registry.lookup('compute dtype', values.compute_dtype, models.COMPUTE_DTYPES)


def _check_data(values, method):
  """What does not go together with the dataset."""
  dataset, name = _dataset(values), values.dataset.partition(':')[0]
  if values.model != 'auto' and dataset.is_sequences != (values.model in models.OF_SEQUENCES):
    kinds = {True: 'sequences of tokens', False: 'arrays of numbers'}
    fitting = sorted(model for model in models.MODELS if (model in models.OF_SEQUENCES) == dataset.is_sequences)
    raise ValueError(
      f'--model={values.model} does not take the examples of dataset {name!r}, which are '
      f'{kinds[dataset.is_sequences]}. Choose one that does: {", ".join(fitting)}.'
    )
  chosen = features.parse(values.features)
  if dataset.image_shape is not None and not chosen.needs_files:
    with _of('features'):
      chosen.check(dataset.image_shape)
  if dataset.tests_clients and method.gives_certificate:
    raise ValueError(
      f'--algorithm={values.algorithm}: models for dataset {name!r} are tested on examples of the clients '
      'themselves. So test figures are exact functions of clients\' data, and no certificate covers them. Test on '
      f'others instead: {_OTHERS.get(name, "choose another dataset.")}'
    )


def _check_mechanism(values, method):
  chosen = registry.parse_spec('participation model', values.participation, cohorts.PARTICIPATION_MODELS)
  dropout = registry.parse_spec('dropout', values.dropout, dropouts.DROPOUTS)
  if chosen.learns_from_dropout and dropout == dropouts.NoDropout():
    raise ValueError(
      f'--participation={values.participation} learns from clients that drop out, and with --dropout=none nobody '
      'does. Give a --dropout, such as markov, or choose another --participation.'
    )
  if method.gives_certificate and not values.tuning.strip():
    raise ValueError(
      '--tuning must be a sentence for the certificate, on how the constants of the run were chosen; it is empty. '
      'Write one, or leave this flag out.'
    )
  averaging = registry.parse_spec('averaging', values.averaging, postprocessing.AVERAGINGS)
  if isinstance(averaging, postprocessing.Planned) and not method.plans_averaging:
    raise ValueError(
      f'--averaging=planned: only certified runs choose the average together with the noise, and '
      f'{values.algorithm!r} is not certified. Choose an average yourself: --averaging=tail:start=….'
    )
  if method.noise_of_its_own or values.noise != 'none':
    checks.number('epsilon', values.epsilon, at_least=1e-6)
  is_sparse = registry.parse_spec('sparsity', values.sparsity, sparsity.SPARSITIES).is_sparse
  if is_sparse and not method.takes_sparsity:
    raise ValueError(
      f'--sparsity={values.sparsity}: --algorithm={values.algorithm} cannot update a part of the weights only. Use '
      '--sparsity=none, or a method that can: quap and its variants, certified, local_dp.'
    )
  if 'clip' not in method.unused:
    with _of('clip'):
      registry.parse_spec('clip rule', values.clip, clip_rules.RULES)
  methods.client_work_of(values)
  method.configure(values, 1)  # For any population.
  aggregator = registry.parse_spec('aggregator', values.aggregator, robust.AGGREGATORS)
  if aggregator.needs_each_update and not method.takes_aggregator:
    raise ValueError(
      f'--aggregator={values.aggregator}: algorithm {values.algorithm!r} adds up the updates, and its '
      'account is about that sum. One client can move a median or a trimmed mean much further than a mean, so no '
      'certificate and no formal figure would hold. Use --aggregator=mean, or another --algorithm (quap, fedavg, '
      'fixed_dp).'
    )


def _check_runtime(values, method):
  methods.runtime_of(values)
  if values.runtime == 'workers' and not method.aggregates_once(method.configure(values, 1)):
    raise ValueError(
      f'--runtime=workers can aggregate only once a round. Algorithm {values.algorithm!r} needs two aggregations '
      f"with clip rule {values.clip!r}, because this round's norms determine this round's clipping norm. Use "
      'quantile_ema with timing=previous and an initial_clip, another clip rule, or another runtime.'
    )


def _dataset(values):
  return registry.parse_spec('dataset', values.dataset, datasets.DATASETS)


def _known_clients(values) -> Optional[int]:
  """N; None if one has to read the data to know it."""
  return _dataset(values).default_num_clients if values.num_clients is None else values.num_clients


def without_effect(values: Any, given: Sequence[str]) -> dict[str, str]:
  """Which of the named flags have no effect together with the others, and why, a sentence or two each."""
  found = {}
  method, dataset = methods.parse(values.algorithm), _dataset(values)
  chosen = registry.parse_spec('participation model', values.participation, cohorts.PARTICIPATION_MODELS)
  averaging = registry.parse_spec('averaging', values.averaging, postprocessing.AVERAGINGS)
  for name in given:
    if name in method.unused:
      found[name] = (
        f'the method {values.algorithm.partition(":")[0]!r} does not use this flag. Leave it out, or choose another '
        '--algorithm.'
      )
    elif name in _OF_RUNTIME and values.runtime != _OF_RUNTIME[name]:
      found[name] = f'this flag is for --runtime={_OF_RUNTIME[name]} only, and this run uses {values.runtime!r}.'
    elif name in _OF_FOLDER and values.output_dir is None:
      found[name] = 'nothing is kept without a folder. Name one with --output_dir, or leave this flag out.'
    elif name == 'signing_key' and not method.gives_certificate:
      found[name] = f'this flag signs a certificate, and {values.algorithm!r} gives none. Leave it out.'
    elif name == 'ema_weight' and values.participation_rate != 'ema':
      found[name] = (
        f'it is the weight for --participation_rate=ema, and this run uses {values.participation_rate!r}. Leave it '
        'out, or choose that rate.'
      )
    elif name == 'partition' and dataset.has_own_clients:
      found[name] = f'the dataset {values.dataset!r} has clients of its own and is not shared out. Leave it out.'
    elif name == 'cohort_size' and chosen.ignores_cohort_size:
      found[name] = f'participation model {values.participation!r} sets the size of its cohorts itself. Leave it out.'
    elif name == 'warmup_rounds' and values.warmup_rounds >= values.rounds:
      found[name] = (
        f'must be less than --rounds={values.rounds}, found {values.warmup_rounds}. Otherwise budgets never follow '
        'participation.'
      )
    elif name == 'averaging' and getattr(averaging, 'start', 1) > values.rounds:
      found[name] = f'{values.averaging} starts after round {values.rounds}, the last one: nothing would be averaged.'
  return found
