"""The names that a person would say for methods, data, participation and flags, in every figure and table."""

from collections.abc import Iterable, Mapping, Sequence
import os

from experiments.reporting import runs
from quap_tff import methods

# Methods. One that is not listed is called by its name in --algorithm.
METHODS = {
  'quap': 'QuAP-FL',
  'certified': 'Certified QuAP-FL',
  'fedavg': 'FedAvg (no privacy)',
  'fixed_dp': 'Fixed-DP',
  'fixed_dp_layerwise': 'Fixed-DP, layer-wise',
  'adaptive_clip': 'Adaptive clipping (Andrew et al.)',
  'layerwise': 'Layer-wise, uniform budget',
  'quantile_clip': 'Quantile clip',
  'adaptive_budget': 'Adaptive budget',
  'adaptive_budget_clip': 'Adaptive budget and clip',
  'adaptive_budget_layerwise': 'Adaptive budget, layer-wise',
  'pt_adp': 'PT-ADP (an interpretation)',
  'dynamic_budget': 'Dynamic budget',
  'd2dp': 'D2DP (an interpretation)',
  'acdp': 'ACDP (an interpretation)',
  'fedapca': 'FedAPCA (an interpretation)',
  'lee_kifer': 'Lee and Kifer',
  'local_dp': 'Local DP',
  'fedbuff': 'FedBuff (asynchronous)',
  'tff_dp_fedavg': 'TFF DP-FedAvg',
  'tff_dp_fedavg_adaptive': 'TFF DP-FedAvg, adaptive clip',
  'tff_dp_ftrl': 'TFF DP-FTRL',
  'tff_layerwise_adaptive': 'TFF adaptive by layer',
  'scaffold': 'SCAFFOLD',
  'fednova': 'FedNova',
  'feddyn': 'FedDyn',
  'fedvarp': 'FedVARP',
  'fl_fdms': 'FL-FDMS',
  'safari': 'SAFARI (an interpretation)',
}
_DATASETS = {
  'digits': '8×8 digits',
  'glyphs': 'drawn glyphs',
  'things': 'drawn things',
  'mnist': 'MNIST',
  'mnist_writers': 'MNIST by writer',
  'unipen': 'UNIPEN',
  'cifar10': 'CIFAR-10',
  'cifar100': 'CIFAR-100',
  'femnist': 'FEMNIST',
  'femnist_digits': 'FEMNIST digits',
  'shakespeare': 'Shakespeare',
  'stackoverflow_words': 'Stack Overflow',
}
# Participation models, with their parameters.
_PARTICIPATION = {
  'uniform': 'uniform',
  'full': 'all clients in each round',
  'beta': 'Beta({a},{b})',
  'beta_bernoulli': 'Beta({a},{b}) coins',
  'bernoulli': 'by coins of {q}',
  'extreme_imbalance': 'extreme imbalance',
  'separated': 'cohorts {min_separation} rounds apart',
}
# Values of parameters and flags that say enough alone. Of the parameters in which specs of a method differ, a label has
# the first that tell them apart, in this order.
_VALUES = {
  'trust': {'server': 'trusted server', 'secure_sum': 'no trusted server'},
  'noise': {
    'independent': 'independent noise',
    'ar1': 'correlated noise',
    'banded': 'banded noise',
    'blt': 'BLT noise',
    'held': 'noise held by clients',
  },
  'weights': {
    'participation': 'weights by participation',
    'uniform': 'equal weights',
    'online': 'weights for the rounds to come',
    'spend_evenly': 'weights that spend evenly',
    'worst_case': 'noise for the worst case',
    'scale': 'scaled weights',
  },
  'averaging': {'none': 'no average of rounds', 'planned': 'planned average of rounds'},
  'cohort_seed': {'default': 'public cohorts', 'secret': 'secret cohorts'},
  'calibration': {'exact': 'noise by exact accounting', 'documents': "noise by the documents' formula"},
}
# Other flags and parameters; one that is not listed is called by its name with spaces.
_NAMES = {
  'epsilon': 'ε =',
  'delta': 'δ =',
  'alpha': 'α =',
  'beta': 'β =',
  'clip': 'clipping norm',
  'initial_clip': 'first clipping norm',
  'num_clients': 'number of clients',
}


def name_of(algorithm: str) -> str:
  """The name in print of the method that an --algorithm spec names."""
  name = algorithm.partition(':')[0]
  return METHODS.get(name, name)


def full(algorithm: str) -> str:
  """The name of the method, with the parameters of its spec that have other values than the defaults."""
  _, _, changed = runs.parse_choice('algorithm', algorithm)
  words = ', '.join(value(key, text) for key, text in changed.items())
  return name_of(algorithm) + (f' ({words})' if words else '')


def order(algorithm: str) -> tuple[int, str]:
  """Sorts --algorithm specs in the order in which methods are registered. Other methods come last."""
  name, names = algorithm.partition(':')[0], list(methods.METHODS)
  return (names.index(name) if name in names else len(names), algorithm)


def dataset(spec: str) -> str:
  """The name in print of a --dataset spec: of a file of one's own, its name. One that is not listed keeps its spec."""
  name = spec.partition(':')[0]
  if name == 'npz':
    return os.path.basename(runs.parse_choice('dataset', spec)[1]['path'])
  return _DATASETS.get(name, spec)


def participation(spec: str) -> str:
  """The words for a --participation spec. A model that is not listed keeps its spec, and so do rare parameters."""
  name, parameters, changed = runs.parse_choice('participation', spec)
  words = _PARTICIPATION.get(name, '')
  named = {key for key in parameters if f'{{{key}}}' in words}
  return words.format(**parameters) if words and not changed.keys() - named else spec


def value(name: str, text: object) -> str:
  """The words for a value of a flag, or of a parameter of a method."""
  known = _VALUES.get(name, {}).get(str(text))
  spoken = participation(str(text)) if name == 'participation' else _spoken(str(text))
  return known or f'{_NAMES.get(name, name.replace("_", " "))} {spoken}'


def _spoken(spec: str) -> str:
  """A spec `name:key=value,key=value` as it is spoken."""
  name, _, arguments = spec.partition(':')
  pairs = [argument.partition('=') for argument in arguments.split(',') if argument]
  return ', '.join([name, *(f'{key.replace("_", " ")} {text}'.strip() for key, _, text in pairs)])


def labels(algorithms: Sequence[str]) -> list[str]:
  """The methods' names, each with the fewest parameters that tell specs of one method apart."""
  return [label for label, _ in distinguished(algorithms)]


def distinguished(algorithms: Sequence[str]) -> list[tuple[str, str]]:
  """The label of each --algorithm spec, and the words for other parameters in which specs of its method differ."""
  parsed = [runs.parse_choice('algorithm', algorithm)[:2] for algorithm in algorithms]
  pairs = []
  for name, own in parsed:
    others = [parameters for other, parameters in parsed if other == name]
    differing = sorted((key for key in own if _differs(key, own, others)), key=_place_of_parameter)
    named = _telling(differing, others)
    label = METHODS.get(name, name)
    if named:
      label += f' ({_in_words(named, own)})'
    pairs.append((label, _in_words([key for key in differing if key not in named], own)))
  return pairs


def _differs(key: str, parameters: Mapping[str, str], others: Iterable[Mapping[str, str]]) -> bool:
  return any(other.get(key) != parameters[key] for other in others)


def _place_of_parameter(key: str) -> int:
  return list(_VALUES).index(key) if key in _VALUES else len(_VALUES)


def _in_words(keys: Iterable[str], parameters: Mapping[str, str]) -> str:
  return ', '.join(value(key, parameters[key]) for key in keys)


def _telling(keys: Sequence[str], specs: Sequence[Mapping[str, str]]) -> list[str]:
  """The first of these keys by which as many specs differ as by all of them."""

  def num_kinds(some: Sequence[str]) -> int:
    """How many specs there are by these parameters alone."""
    return len({tuple(map(spec.get, some)) for spec in specs})

  named: list[str] = []
  for key in keys:
    if num_kinds([*named, key]) > num_kinds(named):
      named.append(key)
  return named
