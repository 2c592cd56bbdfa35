"""The names that a person would say for methods, data, participation and flags, in every figure and table."""

from collections.abc import Iterable, Mapping, Sequence

from experiments.reporting import runs
from quap_tff import methods

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
  return getattr(methods.METHODS.get(name), 'title', '') or name


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
  """The name in print of a --dataset spec; the spec itself where the dataset has no title."""
  return _titled('dataset', spec)


def participation(spec: str) -> str:
  """The words for a --participation spec. A model without a title keeps its spec, and so do rare parameters."""
  return _titled('participation', spec)


def _titled(flag: str, spec: str) -> str:
  """The title of a choice with its parameters; its spec if it has no title, or if the title hides what was changed."""
  name, parameters, changed = runs.parse_choice(flag, spec)
  title = getattr(runs.CHOICES[flag].get(name), 'title', '')
  hidden = [key for key in changed if f'{{{key}}}' not in title]
  return title.format(**parameters) if title and not hidden else spec


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
    label = name_of(name)
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
