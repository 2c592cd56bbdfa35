"""Fixed features in place of examples, by name. A new kind is its own file here and one line in `FEATURES`."""

import dataclasses
from typing import Callable, Dict, Optional, Type

from data import federation as federation_lib
from data.features import base
from data.features import pretrained
from data.features import scattering
from data.features import store
from quap_tff import registry


@dataclasses.dataclass(frozen=True)
class NoFeatures(base.Features):
  """The examples themselves."""

  def check(self, input_shape):
    del input_shape

  def fingerprint(self):
    return 'none'

  def extractor(self, input_shape):
    del input_shape
    return lambda x: x


FEATURES: Dict[str, Type[base.Features]] = {
    'none': NoFeatures,
    'scattering': scattering.Scattering,
    'pretrained': pretrained.Pretrained,
}


def parse(spec: str) -> base.Features:
  """The features that `spec` names, e.g. `scattering:scales=2`."""
  return registry.parse_spec('features', spec, FEATURES)


def of_federation(
    spec: str,
    federation: federation_lib.Federation,
    *,
    folder: Optional[str] = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> federation_lib.Federation:
  """The federation with features float32[d] of unit norm in place of its examples; labels and clients are the same.

  Args:
    spec: A key of `FEATURES` with parameters.
    federation: Clients' examples and the test set.
    folder: Where features are kept; `None`: `store.default_folder()`.
    progress: Called with (done, total) as examples' features are computed.

  Raises:
    DataFileError: (a `ValueError`) For an extractor that is missing, damaged or another.
    ValueError: For an unknown spec, or features that examples of this shape do not have.
  """
  features = parse(spec)
  if isinstance(features, NoFeatures):
    return federation
  features.check(federation.input_shape)
  everyone = federation.clients + (federation.test,)
  rows = store.compute(features, [examples.x for examples in everyone], folder, progress)
  *clients, test = (federation_lib.Examples(x, examples.y) for x, examples in zip(rows, everyone))
  return dataclasses.replace(
      federation,
      clients=tuple(clients),
      test=test,
      features=registry.format_spec(spec.partition(':')[0], features),
      public_data=features.public_data(),
  )
