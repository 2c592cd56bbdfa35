"""Choices of a run in one form: `beta`, `beta:b=5.0` and `beta:a=2,b=5` are the same participation."""

from typing import Any, Dict, Tuple

# Parameters that a spec may leave out. The choices themselves are not imported: they would load TensorFlow.
DEFAULTS = {
    'algorithm': {'certified': {'weights': 'participation'}},
    'participation': {
        'bernoulli': {'q': 0.3},
        'beta': {'a': 2.0, 'b': 5.0},
        'beta_bernoulli': {'a': 2.0, 'b': 5.0},
    },
    'partition': {'dirichlet': {'alpha': 0.5}},
}
_FLAGS = ('algorithm', 'participation', 'partition', 'clip', 'client_optimizer', 'server_optimizer')


def parse(spec: str) -> Tuple[str, Dict[str, str]]:
  """`name:key=value,…` as (name, parameters)."""
  name, _, arguments = spec.partition(':')
  return name, {key: value for key, _, value in (a.partition('=') for a in arguments.split(',') if a)}


def canonical(flag: str, value: Any) -> Any:
  """A flag's value, the same for every way to write it."""
  if isinstance(value, float) and value.is_integer():
    return int(value)
  if flag not in _FLAGS or not isinstance(value, str):
    return value
  name, parameters = parse(value)
  parameters = {**DEFAULTS.get(flag, {}).get(name, {}), **parameters}
  if not parameters:
    return name
  return f'{name}:' + ','.join(f'{key}={_shortest(parameters[key])}' for key in sorted(parameters))


def _shortest(value) -> str:
  try:
    return f'{float(value):g}'
  except ValueError:
    return value
