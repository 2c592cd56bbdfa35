"""One form for each setting, and the words that a person would say for it, in every figure and table.

Methods, datasets and participation models have a `title` of their own. Here are the words for flags and parameters.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from data import cohorts
from data import datasets
from data import partition
from quap_tff import methods
from quap_tff.common import json_types
from quap_tff.common import registry
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.training import optimizers

# The flags whose values are choices with parameters. Then the choices whose parameters are always written out.
_CHOICES: dict[str, registry.Registry] = {
  'algorithm': methods.METHODS,
  'dataset': datasets.DATASETS,
  'participation': cohorts.PARTICIPATION_MODELS,
  'partition': partition.PARTITIONS,
  'clip': clip_rules.RULES,
  'client_optimizer': optimizers.OPTIMIZERS,
  'server_optimizer': optimizers.OPTIMIZERS,
}
_WRITTEN_OUT = ('bernoulli', 'beta', 'beta_bernoulli', 'dirichlet')

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
    'auto': 'weights by the rates of the coins',  # Of secret cohorts. Other runs have the weights that auto stands for.
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


def parse_choice(flag: str, spec: str, write_out: bool = False) -> tuple[str, dict[str, str], dict[str, str]]:
  """A choice `name:key=value,…` as its name, its parameters, and those parameters that differ from the defaults.

  If this version does not know the choice, or the choice now has other parameters, the parameters stay as written.

  Args:
    flag: The flag whose value it is.
    spec: The choice.
    write_out: Whether a method has what suits its other parameters in place of auto.
  """
  name, _, arguments = spec.partition(':')
  try:
    choice = registry.parse_spec(flag, spec, _CHOICES[flag])
  except ValueError:
    given = dict(argument.partition('=')[::2] for argument in arguments.split(',') if argument)
    return name, given, given
  if write_out:
    choice = choice.written_out
  values, fields = registry.parameter_values(choice), registry.parameters(choice)
  shortest = {}
  for key, value in values.items():
    shortest[key] = f'{value:g}' if isinstance(value, float) else registry.text_of(value, fields[key])
  return name, shortest, {key: text for key, text in shortest.items() if values[key] != fields[key].default}


def canonical(flag: str, value: json_types.Json, write_out: bool = False) -> json_types.Json:
  """A flag's value in one form, however it is written: `beta`, `beta:b=5.0` and `beta:a=2,b=5` are the same model."""
  if value is None:
    return 'default'
  if isinstance(value, float) and value.is_integer():
    return int(value)
  if flag not in _CHOICES or not isinstance(value, str):
    return value
  name, parameters, changed = parse_choice(flag, value, write_out)
  shown = parameters if name in _WRITTEN_OUT else changed
  return ':'.join(filter(None, [name, ','.join(f'{key}={shown[key]}' for key in sorted(shown))]))


def canonical_algorithm(spec: str, is_secret: bool = False) -> str:
  """An --algorithm spec in one form, with what suits its other parameters in place of auto.

  Secret cohorts have independent noise, and weights that follow from the rates of the coins: they stay auto.
  """
  name, _, given = spec.partition(':')
  if is_secret and name == 'certified' and 'noise=' not in given:
    spec = f'{name}:{",".join(filter(None, [given, "noise=independent"]))}'
  return str(canonical('algorithm', spec, write_out=not is_secret))


def method_of(algorithm: str) -> str:
  """The name of the method in an --algorithm spec."""
  return algorithm.partition(':')[0]


def title_of(algorithm: str) -> str:
  """The name in print of the method that an --algorithm spec names."""
  name = method_of(algorithm)
  return getattr(methods.METHODS.get(name), 'title', '') or name


def order(algorithm: str) -> tuple[int, str]:
  """Sorts --algorithm specs in the order in which methods are registered. Other methods come last."""
  name, names = method_of(algorithm), list(methods.METHODS)
  return (names.index(name) if name in names else len(names), algorithm)


def dataset(spec: str) -> str:
  """The name in print of a --dataset spec; the spec itself where the dataset has no title."""
  return _titled('dataset', spec)


def participation(spec: str) -> str:
  """The words for a --participation spec. A model without a title keeps its spec, and so do rare parameters."""
  return _titled('participation', spec)


def _titled(flag: str, spec: str) -> str:
  """The title of a choice with its parameters; its spec if it has no title, or if the title hides what was changed."""
  name, parameters, changed = parse_choice(flag, spec)
  title = getattr(_CHOICES[flag].get(name), 'title', '')
  hidden = [key for key in changed if f'{{{key}}}' not in title]
  return title.format(**parameters) if title and not hidden else spec


def value(name: str, found: object) -> str:
  """The words for a value of a flag, or of a parameter of a method."""
  known = _VALUES.get(name, {}).get(str(found))
  return known or f'{_NAMES.get(name, name.replace("_", " "))} {spoken(name, found)}'


def spoken(flag: str, found: object) -> str:
  """A value of a flag as it is spoken: a spec `name:key=value,key=value` without its signs."""
  if flag == 'participation':
    return participation(str(found))
  name, _, arguments = str(found).partition(':')
  pairs = [argument.partition('=') for argument in arguments.split(',') if argument]
  return ', '.join([name, *(f'{key.replace("_", " ")} {text}'.strip() for key, _, text in pairs)])


def labels(algorithms: Sequence[str]) -> list[str]:
  """The names of --algorithm specs, each with the fewest parameters that tell specs of one method apart."""
  return [label for label, _ in distinguished(list(map(canonical_algorithm, algorithms)))]


def distinguished(algorithms: Sequence[str]) -> list[tuple[str, str]]:
  """The label of each canonical spec, and the words for other parameters in which specs of its method differ."""
  parsed = [parse_choice('algorithm', algorithm)[:2] for algorithm in algorithms]
  places = list(_VALUES)
  pairs = []
  for name, parameters in parsed:
    specs = [other for method, other in parsed if method == name]
    differing = []
    for key in parameters:
      if len({spec.get(key) for spec in specs}) > 1:
        differing.append(key)
    differing.sort(key=lambda key: places.index(key) if key in places else len(places))
    telling = _telling(differing, specs)
    label, more = title_of(name), [key for key in differing if key not in telling]
    if telling:
      label += f' ({_in_words(telling, parameters)})'
    pairs.append((label, _in_words(more, parameters)))
  return pairs


def _in_words(keys: Iterable[str], parameters: dict[str, Any]) -> str:
  return ', '.join(value(key, parameters[key]) for key in keys)


def _telling(keys: Sequence[str], specs: Sequence[dict[str, str]]) -> list[str]:
  """The first of these keys by which as many specs differ as by all of them."""
  named: list[str] = []
  kinds = 1
  for key in keys:
    found = len({tuple(map(spec.get, [*named, key])) for spec in specs})
    if found > kinds:
      named.append(key)
      kinds = found
  return named
