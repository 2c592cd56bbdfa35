"""The versions that both sides must share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import flwr

from quap_tff.common import version


def here() -> dict[str, str]:
  """Those of this process, by package."""
  return {'flwr': flwr.__version__, 'quap_tff': version.VERSION}


def check(found: Mapping[str, Any]) -> None:
  """Raises `ValueError` unless the other side has the same."""
  for name, own in here().items():
    if found.get(name) != own:
      raise ValueError(
        f'The server has {name} {found.get(name)}, and this node has {own}. Install one version on all machines: '
        f'pip install {name}=={found.get(name)}.'
      )
