"""Fixed features in place of examples, by name. A new kind is a class in a file of this folder and a line below."""

import dataclasses
import os
import shutil
from typing import Callable

from data import federation as federation_lib
from data import unipen
from data.features import drawn
from data.features import maps
from data.features import store
from quap_tff.common import files
from quap_tff.common import registry

FEATURES: dict[str, type[maps.Features]] = {
  'none': maps.NoFeatures,
  'scattering': maps.Scattering,
  'pretrained': maps.Pretrained,
  'drawn': drawn.Drawn,
}


def parse(spec: str) -> maps.Features:
  """The features that `spec` names, e.g. `scattering:scales=2`."""
  return registry.parse_spec('features', spec, FEATURES)


def map_federation(
  spec: str, federation: federation_lib.Federation, progress: Callable[[int, int], None] = lambda done, total: None
) -> federation_lib.Federation:
  """The federation with features float32[d] of unit norm in place of its examples; labels and clients are the same.

  Calls `progress` with (done, total) as examples' features are computed.

  Raises:
    DataFileError: (a `ValueError`) For an extractor that is missing, damaged or another.
    ValueError: For an unknown spec, or features that examples of this shape do not have.
  """
  features = parse(spec)
  if isinstance(features, maps.NoFeatures):
    return federation
  features.check(federation.input_shape)
  _check_is_of_others(features, federation)
  # Features are computed once, so all of them are in memory, whether the examples were or not.
  auxiliary = () if federation.auxiliary is None else (federation.auxiliary,)
  everyone = (*federation.clients, federation.test, *auxiliary)
  rows = store.compute(features, [examples.x for examples in everyone], progress)
  found = [federation_lib.Examples(x, examples.y) for x, examples in zip(rows, everyone)]
  count = federation.num_clients
  mapped_auxiliary = found[-1] if auxiliary else None
  return dataclasses.replace(
    federation,
    clients=tuple(found[:count]),
    test=found[count],
    auxiliary=mapped_auxiliary,
    features=registry.format_spec(spec.partition(':')[0], features),
    public_data=features.public_data(),
  )


def _check_is_of_others(features: maps.Features, federation: federation_lib.Federation) -> None:
  """Refuses features that were learned from the data of the clients, which no account would cover."""
  if federation.name.partition(':')[0] == 'unipen' and unipen.PROVENANCE in features.public_data():
    raise ValueError(
      "These features were learned from UNIPEN's writers, who are the clients of --dataset=unipen, so no account would "
      'cover what was learned of them. Give features of other data, such as --public_data=glyphs makes.'
    )


# The subfolder of a run's folder in which the copy of its extractor lies, so that the folder needs no other.
COPIES = 'features'


def _copied(chosen: maps.Pretrained) -> maps.Pretrained:
  return dataclasses.replace(chosen, path=f'{COPIES}/{os.path.basename(os.path.normpath(chosen.path))}')


def portable(spec: str) -> str:
  """The spec as a run's folder names it: an extractor by the place of its copy in that folder (`keep_copy`)."""
  chosen = parse(spec)
  return registry.format_spec('pretrained', _copied(chosen)) if isinstance(chosen, maps.Pretrained) else spec


def located(spec: str, folder: str) -> str:
  """The spec as this process finds it: an extractor that lies in the folder of a run by its whole path."""
  chosen = parse(spec)
  if not isinstance(chosen, maps.Pretrained) or not os.path.isdir(os.path.join(folder, chosen.path)):
    return spec
  return registry.format_spec('pretrained', dataclasses.replace(chosen, path=os.path.join(folder, chosen.path)))


def keep_copy(spec: str, folder: str) -> None:
  """Copies an extractor into the folder of a run, where `portable` names it. Other features need no copy."""
  chosen = parse(spec)
  if not isinstance(chosen, maps.Pretrained):
    return
  target = os.path.join(folder, _copied(chosen).path)
  os.makedirs(target, exist_ok=True)
  for name in (maps.EXTRACTOR, maps.CARD):
    with files.replacing(os.path.join(target, name)) as unfinished:
      shutil.copyfile(os.path.join(chosen.path, name), unfinished)
