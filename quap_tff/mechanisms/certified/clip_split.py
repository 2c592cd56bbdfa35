"""How the clipping norm is divided among layers: ‖u_l‖ <= r_l·w·C with Σ r_l² = 1.

Whatever the ratios are, the norm of a whole update is at most √Σ(r_l·w·C)² = w·C. So the same noise N(0, (z·C)²) on
every entry costs μ = w/z under every split. A split decides what is clipped, not what is spent. (If each layer had its
own noise σ_l, the cost would be μ² = Σ (r_l·w·C/σ_l)². With σ_l = z·C for all layers, this is (w/z)²·Σ r_l² again.)
"""

from collections.abc import Sequence
import math
from typing import NamedTuple, Optional

from quap_tff.mechanisms.parts import layers as layers_lib

# r_l² is proportional to this power of the layer's number of weights. None: one norm over all layers.
SPLITS = {'joint': None, 'equal': 0.0, 'sqrt_size': 0.5, 'size': 1.0}


class ClipGroup(NamedTuple):
  """Tensors that are clipped together, by their joint norm.

  Attributes:
    indices: Positions in the flat list of trained weights.
    ratio: r_l, the group's share of the clipping norm.
  """

  indices: tuple[int, ...]
  ratio: float


def clip_groups(
  split: str, sizes: Sequence[int], layers: Optional[Sequence[layers_lib.Layer]] = None
) -> tuple[ClipGroup, ...]:
  """The groups of a split. Each trained tensor is in exactly one group.

  Args:
    split: One of `SPLITS`.
    sizes: The number of entries of each trained tensor.
    layers: The model's layers. They are needed unless the split is 'joint'.

  Raises:
    ValueError: If layers are needed but not given, or if they do not hold each tensor exactly once.
  """
  power = SPLITS[split]
  if power is None:
    return (ClipGroup(tuple(range(len(sizes))), 1.0),)
  if layers is None:
    raise ValueError(f"clip_split={split!r} needs the model's layers. Pass layers, as build_certified_fed_avg does.")
  if sorted(index for layer in layers for index in layer.indices) != list(range(len(sizes))):
    raise ValueError(
      f'The layers must hold each of the {len(sizes)} trained tensors once, found '
      f'{[(layer.name, layer.indices) for layer in layers]}.'
    )
  shares = [sum(sizes[i] for i in layer.indices) ** power for layer in layers]
  return tuple(ClipGroup(layer.indices, math.sqrt(share / sum(shares))) for layer, share in zip(layers, shares))
