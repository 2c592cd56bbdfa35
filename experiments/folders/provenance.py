"""Which code, versions and machine run the rounds of a run: the `stretches` of run.json, and the code of a certificate.

A stretch is {first_round, code, versions, machine}. It ends where the next one begins.
"""

from collections.abc import Mapping
import os
import platform
import sys
from typing import Any, Optional

import numpy as np

import quap_tff
from quap_tff.common import version
from quap_tff.common.lazy import tf
from quap_tff.common.lazy import tff

STRETCHES = 'stretches'
_PARTS = {'first_round', 'code', 'versions', 'machine'}

_FOLDERS = ('quap_tff', 'data', 'experiments')


def code() -> dict[str, str]:
  """The version of the program and the digest of its source."""
  return {'quap_tff': quap_tff.__version__, 'source_sha256': source_digest()}


def source_digest(root: Optional[str] = None) -> str:
  """SHA-256 of the program's source, see `version.source_digest`."""
  return version.source_digest(_FOLDERS, root)


def versions() -> dict[str, str]:
  """The versions of the program, of Python, and of the packages that compute. Loads TFF."""
  return {
    'quap_tff': quap_tff.__version__,
    'tensorflow_federated': tff.__version__,
    'tensorflow': tf.__version__,
    'numpy': np.__version__,
    'python': sys.version.split()[0],
  }


def machine() -> dict[str, Any]:
  """What this runs on. Loads TensorFlow."""
  return {
    'platform': platform.platform(),
    'cores': len(os.sched_getaffinity(0)),
    'gpus': len(tf.config.list_physical_devices('GPU')),
  }


def stretches(run: Mapping[str, Any], last_round: int) -> list[dict[str, Any]]:
  """The stretches of the rounds up to `last_round`, of run.json as a value.

  Stretches of later rounds are left out, because none of these rounds was kept.

  Raises:
    ValueError: If they are not stretches of these rounds.
  """
  found = run.get(STRETCHES)
  if not isinstance(found, list) or not all(map(_is_stretch, found)):
    raise ValueError(f'{STRETCHES} must be a list of objects with {", ".join(sorted(_PARTS))}')
  kept = [stretch for stretch in found if stretch['first_round'] <= last_round]
  firsts = [stretch['first_round'] for stretch in kept]
  if firsts[:1] != [1][:last_round] or firsts != sorted(set(firsts)):
    raise ValueError(f'the first rounds of {STRETCHES} must ascend from 1, found {firsts}')
  return kept


def _is_stretch(value):
  return (
    isinstance(value, dict)
    and value.keys() == _PARTS
    and type(value['first_round']) is int
    and isinstance(value['code'], dict)
    and value['code'].keys() == {'quap_tff', 'source_sha256'}
  )


def continued(run: Mapping[str, Any], first_round: int) -> list[dict[str, Any]]:
  """The stretches of a run that goes on here and now with `first_round`."""
  earlier = stretches(run, first_round - 1)
  now = {'code': code(), 'versions': versions(), 'machine': machine()}
  if earlier and {name: earlier[-1][name] for name in now} == now:
    return earlier
  return [*earlier, {'first_round': first_round, **now}]


def code_problem(run: Mapping[str, Any], last_round: int) -> Optional[str]:
  """Which other code ran the rounds up to `last_round`, and what to do; None if it was this code."""
  now = code()
  others = [stretch for stretch in stretches(run, last_round)[-1:] if stretch['code'] != now]
  if not others:
    return None
  named = lambda which: f'quap_tff {which["quap_tff"]} with the source digest {which["source_sha256"]}'
  return (
    f'its round {last_round} was run by other code: by {named(others[0]["code"])}. This is {named(now)}. Continue '
    'the run with the code that began it. Or give --allow_code_change: the run then goes on, and run.json says which '
    'code ran which rounds.'
  )
