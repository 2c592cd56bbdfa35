"""Which flags a public rule chooses where nobody gives them. It depends on other flags, and on no data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Optional

from data.datasets import base as datasets_base
import quap_tff
from quap_tff import methods

# The models whose rows have the norm that the rule takes for granted.
SCALED_MODELS = ('linear_features', 'scaled_linear')
_OF_UNIT_NORM = ('synthetic',)
# Up to so many pixels along a side, scattering features are cheap. Those of small images are over two pixels.
_MOST_PIXELS, _SMALL = 32, 16
_NAMES = {
  'features': 'features',
  'model': 'model',
  'client_optimizer': 'learning rate',
  'local_epochs': 'local epochs',
  'batch_size': 'batch size',
}


def features_of(shape: Optional[Sequence[int]]) -> str:
  """The features for examples of a shape: scattering of small images, and none of others, or if it is not known."""
  if shape is None or len(shape) != 3 or max(shape) > _MOST_PIXELS:
    return 'none'
  return 'scattering:scales=1' if shape[0] < _SMALL else 'scattering'


def chosen_flags(
  method: methods.Method, dataset: datasets_base.Dataset, name: str, num_rounds: int, given: Mapping[str, Any]
) -> dict[str, Any]:
  """The flags that the rule chooses, by name; none for a method or a model that it does not speak of.

  Args:
    method: The method.
    dataset: The dataset.
    name: Its name.
    num_rounds: T.
    given: The flags that were given, by name. They stay as they are.
  """
  if not method.follows_public_rule or dataset.is_sequences:
    return {}
  chosen = {}
  model = given.get('model', 'auto')
  if model == 'auto':
    features = given.get('features', features_of(dataset.image_shape))
    model = 'scaled_linear' if features == 'none' and name not in _OF_UNIT_NORM else 'linear_features'
    chosen = {'features': features, 'model': model}
  if model not in SCALED_MODELS:
    return {}
  constants = quap_tff.public_constants(num_rounds)
  chosen['client_optimizer'] = f'sgd:learning_rate={constants.learning_rate:g}'
  chosen['local_epochs'], chosen['batch_size'] = constants.local_epochs, constants.batch_size
  return {flag: value for flag, value in chosen.items() if given.get(flag, 'auto') == 'auto'}


def sentence(chosen: Mapping[str, Any], chooses_clip: bool) -> str:
  """How the constants were chosen, for the certificate."""
  names = [_NAMES[flag] for flag in chosen] + ['clipping norm'] * chooses_clip
  return (
    f"Chosen by a public rule, which looks at no data: {', '.join(names)}. How the other constants were chosen is not "
    "stated. The guarantee is that of this run, if they were chosen without these clients' data."
  )
