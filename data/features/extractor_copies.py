"""The copy of an extractor in the folder of a run, so that the folder needs no other."""

import dataclasses
import os
import shutil

from data.features import maps as features
from quap_tff.common import files
from quap_tff.common import registry

# The subfolder of a run's folder in which the copy lies.
FOLDER = 'features'


def portable(spec: str) -> str:
  """The spec as a run's folder names it: an extractor by the place of its copy in that folder (`keep_copy`)."""
  chosen = features.parse(spec)
  if not isinstance(chosen, features.Pretrained):
    return spec
  return registry.format_spec('pretrained', _copied(chosen))


def _copied(chosen: features.Pretrained) -> features.Pretrained:
  return dataclasses.replace(chosen, path=f'{FOLDER}/{os.path.basename(os.path.normpath(chosen.path))}')


def located(spec: str, folder: str) -> str:
  """The spec as this process finds it: an extractor that lies in the folder of a run by its whole path."""
  chosen = features.parse(spec)
  if not isinstance(chosen, features.Pretrained) or not os.path.isdir(os.path.join(folder, chosen.path)):
    return spec
  return registry.format_spec('pretrained', dataclasses.replace(chosen, path=os.path.join(folder, chosen.path)))


def keep_copy(spec: str, folder: str) -> None:
  """Copies an extractor into the folder of a run, where `portable` names it. Other features need no copy."""
  chosen = features.parse(spec)
  if not isinstance(chosen, features.Pretrained):
    return
  target = os.path.join(folder, _copied(chosen).path)
  os.makedirs(target, exist_ok=True)
  for name in (features.EXTRACTOR, features.CARD):
    with files.replacing(os.path.join(target, name)) as unfinished:
      shutil.copyfile(os.path.join(chosen.path, name), unfinished)
