"""The files of a bundle, written and read.

    manifest.json     versions, and SHA-256 of each other file
    graphs.json       the bindings of each graph, see `graphs`: the types of a client's data among them
    NAME.pb           the graphs: initialize, prepare, work, zero, accumulate, merge, report, update, …, evaluate
    plan.json         the plan, which keeps the account; null without one
    run.json          who takes part in which round, and what is published
    mechanism.json    of a certified plan, as certificates write it

A run of a bundle draws the key of its noise itself, by the graph `initialize`. So no two runs have the same, and the
bundle holds no secret, unless the plan has a given seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import hashlib
import importlib
import importlib.util
import json
from typing import Any, NamedTuple, Optional

import numpy as np

from quap_tff.certificates.folders import about as abouts
from quap_tff.certificates.folders import folder as folders
from quap_tff.certificates.folders import folder_files
from quap_tff.common import files
from quap_tff.common.lazy import tf
from quap_tff.mechanisms import sparsity as sparsities
from quap_tff.plans.accounts import options
from quap_tff.plans.accounts import run_account

# A change of the files, or of what a graph takes and gives, is a new version.
VERSION = 3

MANIFEST, GRAPHS, PLAN, RUN = 'manifest.json', 'graphs.json', 'plan.json', 'run.json'
# Only classes of these packages are made from a file. A program adds its own, also where its bundles are played.
PACKAGES = ['quap_tff']
_UNSTATED = abouts.About('not stated', 'not stated', 'not stated', 'not stated')


@dataclasses.dataclass(frozen=True)
class PlannedRounds:
  """The rounds that a simulation plays.

  Attributes:
    cohorts: int64[M_t], the clients of each round.
    absent: int64[A_t], those of them that drop out, and send an update of zero.
    shrinkage: The factor in (0, 1] on the weights that are published.
  """

  cohorts: Sequence[np.ndarray] = ()
  absent: Sequence[np.ndarray] = ()
  shrinkage: float = 1.0


class BundleContent(NamedTuple):
  """The content of a bundle.

  Attributes:
    graphs: Serialized graphs by name.
    bindings: Their bindings by name.
    plan: The plan, or None.
    leaving: What leaves clients in a round of a certified plan; otherwise empty.
    rounds: What a simulation plays.
    about: The statements of the issuer of a certificate.
    versions: Those of Python, TensorFlow and TFF by which it was exported.
    digest: The SHA-256 of the manifest, in hex.
  """

  graphs: Mapping[str, bytes]
  bindings: Mapping[str, Any]
  plan: Optional[run_account.RunAccount]
  leaving: run_account.Leaving
  rounds: PlannedRounds
  about: abouts.About
  versions: Mapping[str, str]
  digest: str


def texts(
  bindings: Mapping[str, Any],
  plan: Optional[run_account.RunAccount],
  leaving: run_account.Leaving,
  rounds: PlannedRounds,
  about: Optional[abouts.About],
) -> dict[str, str]:
  """All files but graphs and manifest, by name. Raises `ValueError` if the plan can't be written."""
  contents = {GRAPHS: json.dumps(bindings), PLAN: json.dumps(_plan_facts(plan)), RUN: json.dumps(_encoded(rounds))}
  if plan is not None and plan.mechanism.facts.is_certified:
    about = _UNSTATED if about is None else about
    contents[folders.MECHANISM] = folders.mechanism_text(plan, leaving, about, abouts.this_code())
  return contents


def _plan_facts(plan: Optional[run_account.RunAccount]) -> Optional[dict[str, Any]]:
  if plan is None:
    return None
  arguments = {field.name: getattr(plan, field.name) for field in dataclasses.fields(run_account.RunAccount)}
  mechanism = plan.mechanism.inner if isinstance(plan.mechanism, sparsities.Sparse) else plan.mechanism
  # An account needs what an extension states alone, and its class may be of a program that is not where bundles play.
  extension = options.StatedExtension.of(plan.extension)
  arguments.update(mechanism=mechanism, schedule=plan.schedule or None, extension=extension)
  try:
    value = {'arguments': _encoded(arguments), 'fingerprint': plan.fingerprint}
    _plan(value)
  except ValueError as error:
    raise ValueError(
      f'The plan cannot be written: {error}. A bundle is for plans of the classes of {_packages()}. A '
      'learning process alone is exported without an account.'
    ) from None
  return value


def _plan(value: Mapping[str, Any]) -> run_account.RunAccount:
  plan = run_account.RunAccount(**_decoded(value['arguments']))
  if plan.fingerprint != value['fingerprint']:
    raise ValueError('its parts give another plan than the one that was exported')
  return plan


def manifest(versions: Mapping[str, str], content: Mapping[str, bytes]) -> str:
  """manifest.json of files by name."""
  digests = {name: hashlib.sha256(one).hexdigest() for name, one in sorted(content.items())}
  value = {'version': VERSION, 'code': abouts.this_code(), 'versions': dict(versions), 'files': digests}
  return files.json_text(value)


def read(path: str) -> BundleContent:
  """The content of the bundle in a folder, checked.

  Raises:
    FolderError: If a file is missing, damaged or changed. The message names it, and says what to do.
    CannotTellError: If there is no such folder, or the bundle is of another version, or TensorFlow is missing or too
      old.
  """
  folder_files.entries(path)
  if importlib.util.find_spec('tensorflow') is None:
    raise folder_files.CannotTellError('TensorFlow plays bundles, and is not installed here: pip install tensorflow.')
  value = folder_files.read_json(path, MANIFEST)
  with folder_files.damage(MANIFEST):
    version, code = value['version'], value['code']['quap_tff']
    digests, versions = dict(value['files']), dict(value['versions'])
  if version != VERSION:
    raise folder_files.CannotTellError(
      f'{path} is a bundle of version {version}, and this quap_tff plays only version {VERSION}. Export the run again '
      f'with this quap_tff, or install the one that exported it, {code}.'
    )
  if _minor(tf.__version__) < _minor(versions['tensorflow']):
    raise folder_files.CannotTellError(
      f'{path} was exported by TensorFlow {versions["tensorflow"]}, and this is {tf.__version__}, which is older. '
      f'Install a newer one: pip install "tensorflow>={versions["tensorflow"]}".'
    )
  content = {name: _checked(path, name, digest) for name, digest in digests.items()}
  words = f'cannot be read by this quap_tff. Export the run again, or install the one that exported it, {code}'
  with folder_files.damage(f'The bundle in {path}', words):
    plan_json, rounds = json.loads(content[PLAN]), _decoded(json.loads(content[RUN]))
    about = _UNSTATED
    leaving: run_account.Leaving = ()
    if folders.MECHANISM in content:
      mechanism = json.loads(content[folders.MECHANISM])
      issuer, leaving = mechanism['issuer'], tuple(tuple(one) for one in mechanism['leaves_clients'])
      about = abouts.About(**{**issuer, 'stretches': tuple(issuer['stretches'])})
    graphs = {name[:-3]: one for name, one in content.items() if name.endswith('.pb')}
    plan = None if plan_json is None else _plan(plan_json)
    return BundleContent(
      graphs, json.loads(content[GRAPHS]), plan, leaving, rounds, about, versions, folder_files.digest(path, MANIFEST)
    )


def _minor(version: str) -> tuple[int, ...]:
  return tuple(map(int, version.split('.')[:2]))


def _checked(path: str, name: str, digest: str) -> bytes:
  """A file with this digest."""
  with open(folder_files.check_regular(path, name), 'rb') as f:
    content = f.read()
  if hashlib.sha256(content).hexdigest() != digest:
    raise folder_files.FolderError(
      f'{name} in {path} is not the file that was exported: its SHA-256 is not in {MANIFEST}. Copy the bundle '
      'again, or export the run again.'
    )
  return content


def _encoded(value: Any) -> Any:
  """The value as JSON: frozen dataclasses and named tuples of `PACKAGES` with all of their fields, and what these hold.

  Raises `ValueError` if it holds anything but data, or a class of another package.
  """
  if value is None or isinstance(value, (bool, int, float, str)):
    return value
  if isinstance(value, np.generic):
    return value.item()
  if isinstance(value, np.ndarray) and value.dtype.kind in 'biuf':
    return {'array': value.tolist(), 'dtype': value.dtype.name, 'shape': list(value.shape)}
  if isinstance(value, dict):
    return {'dict': [[_encoded(key), _encoded(part)] for key, part in value.items()]}
  if isinstance(value, frozenset):
    return {'frozenset': [_encoded(part) for part in sorted(value)]}
  names = _fields(type(value))
  if names is not None:
    fields = {name: _encoded(getattr(value, name)) for name in names}
    return {'class': f'{type(value).__module__}:{type(value).__qualname__}', 'fields': fields}
  if isinstance(value, (tuple, list)):
    return {type(value).__name__: [_encoded(part) for part in value]}
  raise ValueError(f'{type(value).__name__} is not made only of numbers, texts and the classes of {_packages()}')


def _decoded(value: Any) -> Any:
  """The value that `_encoded` wrote. Raises any error if it wrote another one."""
  if not isinstance(value, dict):
    return value
  if 'class' in value:
    module, _, name = value['class'].partition(':')
    cls = getattr(importlib.import_module(module), name) if _is_ours(module) else None
    if not isinstance(cls, type) or _fields(cls) is None:
      raise ValueError(f'{value["class"]} is not a class of plans')
    return cls(**{key: _decoded(part) for key, part in value['fields'].items()})
  if 'array' in value:
    return np.array(value['array'], value['dtype']).reshape(value['shape'])
  if 'dict' in value:
    return {_decoded(key): _decoded(part) for key, part in value['dict']}
  ((kind, parts),) = value.items()
  return {'tuple': tuple, 'list': list, 'frozenset': frozenset}[kind](map(_decoded, parts))


def _is_ours(module: str) -> bool:
  return module.startswith(tuple(f'{package}.' for package in PACKAGES))


def _packages() -> str:
  return ' and '.join(PACKAGES)


def _fields(kind: type[Any]) -> Any:
  """The names of the fields that make a value of a class; None if it is not one that is written."""
  if not _is_ours(kind.__module__):
    return None
  if dataclasses.is_dataclass(kind):
    return [field.name for field in dataclasses.fields(kind) if field.init]
  return getattr(kind, '_fields', None) if issubclass(kind, tuple) else None
