"""A plan with the process that it built: the engine of a run in this process."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
import dataclasses
from typing import Optional, TYPE_CHECKING

import numpy as np

from quap_tff.common import array_types
from quap_tff.common import lazy
from quap_tff.common.lazy import tf
from quap_tff.common.lazy import tff
from quap_tff.plans.accounts import run_account
from quap_tff.serving import engine as engines

if TYPE_CHECKING:
  from quap_tff.plans.plan import Plan
  from quap_tff.training.model_functions import ModelFn

runtime = lazy.module('quap_tff.runtime')

ClientData = collections.OrderedDict[str, list[array_types.Structure]]


@dataclasses.dataclass(frozen=True, eq=False)
class BuiltProcess:
  """A plan with the process that it built, and with what is known only then. It is an `engine.Engine`.

  Attributes:
    plan: The plan with the shape of the model that is trained.
    process: The `tff.learning.templates.LearningProcess`.
    model_fn: Makes the model of the process; None if clients bring their updates.
    leaving: What leaves clients in a round, (intrinsic, name, type) of each tensor, read off the process of a certified
      plan. Of another plan it is empty.
  """

  plan: Plan
  process: tff.learning.templates.LearningProcess
  model_fn: Optional[ModelFn]
  leaving: run_account.Leaving

  def initialize(self) -> array_types.Structure:
    """See `engine.Engine`."""
    return self.process.initialize()

  def play(
    self, state: array_types.Structure, attendance: engines.Attendance
  ) -> tuple[array_types.Structure, array_types.Structure]:
    """See `engine.Engine`. Examples are a dataset, a list of elements, or one element that has them all.

    Where clients bring their updates, a client's update is in their place: a list of one tuple, or of none.
    """

    def data_of(client: int) -> ClientData:
      return client_data_of(self.plan, client, attendance)

    output = self.process.next(state, runtime.client_values(data_of, list(attendance.examples)))
    return output.state, output.metrics

  def weights(self, state: array_types.Structure) -> array_types.Structure:
    """See `engine.Engine`: `tff.learning.models.ModelWeights`."""
    return self.process.get_model_weights(state)

  def with_trainable(self, weights: array_types.Structure, trainable: Sequence[np.ndarray]) -> array_types.Structure:
    """See `engine.Engine`."""
    return tff.learning.models.ModelWeights(trainable=trainable, non_trainable=weights.non_trainable)

  def leaves(self, state: array_types.Structure) -> list[array_types.Array]:
    """See `engine.Engine`."""
    return tf.nest.flatten(state)

  def state_of(self, state: array_types.Structure, leaves: Sequence[array_types.Array]) -> array_types.Structure:
    """See `engine.Engine`."""
    return tf.nest.pack_sequence_as(state, leaves)


def client_data_of(plan: Plan, client: int, attendance: engines.Attendance) -> ClientData:
  """The data of a client of a round, as the process of a plan takes it."""
  extension, answers = plan.extension, attendance.answers
  takes_absent = extension is not None and extension.takes_absent
  absent = attendance.absent if takes_absent else None
  answer = answers[client] if answers is not None else None
  brought = 'update' if plan.own_updates else 'examples'
  return client_data(client, attendance.examples[client], absent, answer, brought)


def client_data(
  client: int,
  examples: array_types.Structure,
  absent: Optional[array_types.Ids] = None,
  answer: Optional[array_types.Structure] = None,
  brought: str = 'examples',
) -> ClientData:
  """One client's data as a learning process with client ids takes it.

  Args:
    client: The client.
    examples: Its examples: a dataset, a list of elements, or one element that has them all.
    absent: The clients that drop out; None for a process whose clients are not told.
    answer: The answer of the client's guard, if clients hold the noise.
    brought: The name of what the client itself brings: `examples`, or its `update`.
  """
  # TFF takes lists of elements where it takes datasets. Making a dataset costs more than a small client's arithmetic.
  parts: ClientData = collections.OrderedDict(client_id=[np.int64(client)])
  if absent is not None:
    parts['absent'] = [np.int64(other) for other in absent]
  if answer is not None:
    parts['answer'] = [answer]
  parts[brought] = [examples] if isinstance(examples, Mapping) else examples
  return parts
