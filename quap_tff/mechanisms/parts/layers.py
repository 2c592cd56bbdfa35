"""The layers of a model: which are critical (clipped and noised), and how the clipping norm is divided among them.

A model's trainable weights are a flat list of tensors. `Layer` groups them; `critical_indices` turns a selection into
the positions in that list that the mechanism treats, and `clip_groups` a split into tensors that are clipped together.

Selections:
  * 'final_dense' (default): the last Dense layer, found from the model;
  * 'all_dense': every Dense layer, as the documents' reference program does;
  * 'all': every layer;
  * a comma-separated list of layer names, with shell wildcards ('dense_1,head', 'dense*').

Splits: ‖u_l‖ <= r_l·w·C with Σ r_l² = 1. Whatever the ratios are, the norm of a whole update is at most
√Σ(r_l·w·C)² = w·C. So the same noise N(0, (z·C)²) on every entry costs μ = w/z under every split. A split decides what
is clipped, not what is spent. (If each layer had its own noise σ_l, the cost would be μ² = Σ (r_l·w·C/σ_l)². With
σ_l = z·C for all layers, this is (w/z)²·Σ r_l² again.)
"""

from collections.abc import Sequence
import fnmatch
import math
from typing import Callable, NamedTuple, Optional, Protocol

from quap_tff.common import registry
from quap_tff.common.lazy import tf

FINAL_DENSE = 'final_dense'
ALL_DENSE = 'all_dense'
ALL = 'all'
SELECTIONS = (FINAL_DENSE, ALL_DENSE, ALL)
# r_l² is proportional to this power of the layer's number of weights. None: one norm over all layers.
CLIP_SPLITS = {'joint': None, 'equal': 0.0, 'sqrt_size': 0.5, 'size': 1.0}


class Layer(NamedTuple):
  """One layer of a model.

  Attributes:
    name: The layer's name in the model.
    indices: Positions of its tensors in the flat list of trainable weights.
    is_dense: Whether it is a Dense layer: a kernel of rank 2 and at most a bias of rank 1.
  """

  name: str
  indices: tuple[int, ...]
  is_dense: bool


def from_variables(variables: Sequence) -> tuple[Layer, ...]:
  """Layers of a model from its trainable variables, in the model's order.

  Keras names them 'dense_1/kernel:0'. See `from_names`.
  """
  return from_names([v.name.split(':')[0] for v in variables], [tuple(v.shape) for v in variables])


def from_names(names: Sequence[str], shapes: Sequence[Sequence[int]]) -> tuple[Layer, ...]:
  """Layers of a model from the names of its weights.

  Weights are grouped by the part of their name before the last '/'. If the names are of no use (a functional model's
  variables have none), shapes decide, see `from_shapes`.
  """
  if len(set(names)) < len(names) or not all('/' in name for name in names):
    return from_shapes(shapes)
  return _group(names, shapes)


def from_shapes(shapes: Sequence[Sequence[int]]) -> tuple[Layer, ...]:
  """Layers of a model for which only the shapes of the weights are known, named by their position ('layer_0', …).

  A tensor of rank 1 belongs to the tensor before it if its size is that tensor's last dimension (a bias).
  """
  names: list[str] = []
  for index, shape in enumerate(shapes):
    is_bias = len(shape) == 1 and index > 0 and len(shapes[index - 1]) > 1 and shapes[index - 1][-1] == shape[0]
    if is_bias:
      names.append(names[-1].replace('kernel', 'bias'))
    else:
      kind = 'kernel' if len(shape) > 1 else 'weight'
      names.append(f'layer_{len({n.split("/")[0] for n in names})}/{kind}')
  return _group(names, shapes)


def from_leaves(paths: Sequence[Sequence], shapes: Sequence[Sequence[int]]) -> tuple[Layer, ...]:
  """Layers of a structure of weights: by name if every key is a string (`{'dense': {'kernel': …}}`), else by shape."""
  if all(map(_is_named, paths)):
    return _group(['/'.join(path) for path in paths], shapes)
  return from_shapes(shapes)


def _is_named(path: Sequence) -> bool:
  return bool(path) and all(isinstance(key, str) for key in path)


def _group(names: Sequence[str], shapes: Sequence[Sequence[int]]) -> tuple[Layer, ...]:
  members: dict[str, list[int]] = {}
  for index, name in enumerate(names):
    members.setdefault(name.rpartition('/')[0] or name, []).append(index)
  layers = []
  for layer, indices in members.items():
    weights = [(names[i].rpartition('/'), shapes[i]) for i in indices]
    layers.append(Layer(layer, tuple(indices), _is_dense(weights)))
  return tuple(layers)


def _is_dense(weights: Sequence[tuple[tuple[str, str, str], Sequence[int]]]) -> bool:
  # A bare 'kernel' belongs to no named layer: its bias, if any, could not be distinguished from other layers' biases.
  named = [(name, shape) for (layer, _, name), shape in weights if layer]
  ranks = {name: len(shape) for name, shape in named}
  return len(ranks) == len(named) and ranks in ({'kernel': 2}, {'kernel': 2, 'bias': 1})


def critical_layers(layers: Sequence[Layer], selection: str) -> tuple[Layer, ...]:
  """The layers that `selection` names, in the model's order.

  Raises:
    ValueError: If nothing is selected, a name matches nothing, or names match every layer (use 'all' for that).
  """
  if selection == ALL:
    return tuple(layers)
  dense = tuple(layer for layer in layers if layer.is_dense)
  if selection in (FINAL_DENSE, ALL_DENSE):
    if not dense:
      raise ValueError(
        f'critical_layers={selection!r}: the model has no Dense layer. Its layers: {_names(layers)}. '
        f'Name the critical ones, or use {ALL!r}.'
      )
    return dense[-1:] if selection == FINAL_DENSE else dense
  chosen = set()
  for pattern in (p.strip() for p in selection.split(',')):
    matches = [layer.name for layer in layers if fnmatch.fnmatchcase(layer.name, pattern)]
    if not matches:
      raise registry.unknown_name_error('critical layer', pattern, [layer.name for layer in layers] + list(SELECTIONS))
    chosen.update(matches)
  if len(chosen) == len(layers):
    raise ValueError(
      f'critical_layers={selection!r} matches every layer of the model: {_names(layers)}. '
      f'If that is what you want, use {ALL!r}.'
    )
  return tuple(layer for layer in layers if layer.name in chosen)


def critical_indices(layers: Sequence[Layer], selection: str) -> tuple[int, ...]:
  """Positions of the critical layers' tensors in the flat list of trainable weights, ascending; errors as above."""
  return tuple(sorted(index for layer in critical_layers(layers, selection) for index in layer.indices))


def _names(layers: Sequence[Layer]) -> str:
  return ', '.join(layer.name for layer in layers)


class ClipGroup(NamedTuple):
  """Tensors that are clipped together, by their joint norm.

  Attributes:
    indices: Positions in the flat list of trained weights.
    ratio: r_l, the group's share of the clipping norm.
  """

  indices: tuple[int, ...]
  ratio: float


def clip_groups(split: str, sizes: Sequence[int], layers: Optional[Sequence[Layer]] = None) -> tuple[ClipGroup, ...]:
  """The groups of a split. Each trained tensor is in exactly one group.

  Args:
    split: One of `CLIP_SPLITS`.
    sizes: The number of entries of each trained tensor.
    layers: The model's layers. They are needed unless the split is 'joint'.

  Raises:
    ValueError: If layers are needed but not given, or if they do not hold each tensor exactly once.
  """
  power = CLIP_SPLITS[split]
  if power is None:
    return (ClipGroup(tuple(range(len(sizes))), 1.0),)
  if layers is None:
    raise ValueError(f"clip_split={split!r} needs the model's layers. Pass layers, as Plan.build_process does.")
  if sorted(index for layer in layers for index in layer.indices) != list(range(len(sizes))):
    raise ValueError(
      f'The layers must hold each of the {len(sizes)} trained tensors once, found '
      f'{[(layer.name, layer.indices) for layer in layers]}.'
    )
  layer_sizes = [sum(map(sizes.__getitem__, layer.indices)) for layer in layers]
  shares = [size**power for size in layer_sizes]
  return tuple(ClipGroup(layer.indices, math.sqrt(share / sum(shares))) for layer, share in zip(layers, shares))


class ModelShape(NamedTuple):
  """The facts about a model that say what is protected.

  Attributes:
    layers: Its layers.
    shapes: The shape of each trainable tensor, in the order of the layers' indices.
  """

  layers: tuple[Layer, ...]
  shapes: tuple[tuple[int, ...], ...]

  @property
  def sizes(self) -> tuple[int, ...]:
    """The number of entries of each tensor."""
    return tuple(map(math.prod, self.shapes))


class TrainableModel(Protocol):
  """A model whose shape can be read off: a `tff.learning.models.VariableModel` is one."""

  @property
  def trainable_variables(self) -> Sequence['tf.Variable']: ...


def model_shape(model_fn: Callable[[], TrainableModel]) -> ModelShape:
  """The shape of the model that `model_fn` makes."""
  with tf.Graph().as_default():
    variables = model_fn().trainable_variables
    return ModelShape(from_variables(variables), tuple(tuple(v.shape) for v in variables))
