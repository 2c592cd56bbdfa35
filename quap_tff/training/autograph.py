"""What needs AutoGraph, which rewrites Python code so that its `if` and `while` may depend on tensors.

`tf.function` has all code rewritten that it calls, which takes longer than tracing it. Nothing in this package needs
it, and nor do TFF's SGD and Adam. Users' models and optimizers may.
"""

import copy
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff


def is_needed(model: tff.learning.models.VariableModel, *optimizers: tff.learning.optimizers.Optimizer) -> bool:
  """Whether the model or an optimizer may need AutoGraph. A model without need has `needs_autograph = False`."""
  return getattr(model, 'needs_autograph', True) or not all(map(_is_plain, optimizers))


def spared(optimizer: tff.learning.optimizers.Optimizer) -> tff.learning.optimizers.Optimizer:
  """The optimizer, which AutoGraph leaves as it is unless it may be needed."""
  if not _is_plain(optimizer):
    return optimizer
  optimizer = copy.copy(optimizer)
  optimizer.next = tf.autograph.experimental.do_not_convert(optimizer.next)
  return optimizer


def _is_plain(optimizer: Any) -> bool:
  plain = [type(build(1.0)) for build in (tff.learning.optimizers.build_sgdm, tff.learning.optimizers.build_adam)]
  return type(optimizer) in plain
