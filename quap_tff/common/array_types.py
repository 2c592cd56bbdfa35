"""Names for what TensorFlow does not type, in one place.

TensorFlow and TFF have no types, so a type checker takes `Structure` and `tf.Tensor` for anything. The names tell a
reader what there is, and a change of their types changes them everywhere.
"""

from collections.abc import Sequence
from typing import Any, Union

import numpy as np

from quap_tff.common.lazy import tf

# NumPy's array, or TensorFlow's tensor: inside a graph the one, from a schedule or after a round the other.
Array = Union[np.ndarray, 'tf.Tensor']
# One number or an array of them, each of which broadcasts with the other.
Numbers = Union[float, np.ndarray, 'tf.Tensor']
# Whether something is so, or for each entry.
Booleans = Union[bool, np.ndarray, 'tf.Tensor']
# Clients by number, int[M].
Ids = Union[Sequence[int], np.ndarray]
# Tensors or arrays in containers with names, such as `tf.nest` takes: a state, a message, a model's weights, examples.
Structure = Any
# A `tf.TensorSpec` for each of the tensors of a `Structure`, in the same containers.
StructureSpec = Any
