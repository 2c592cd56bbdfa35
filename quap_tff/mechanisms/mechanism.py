"""The interface of mechanisms: the steps of a round with the clients' updates, without TFF.

A `Mechanism` is one frozen value that a fingerprint can name. Given the tensors of an update, `for_model` makes its
`Rounds`: pure functions of TensorFlow tensors. Round t is

    server  announced = announce(state)                        the server's message
    client  update = prepared(update, announced)               the part of an update that the round is about: often all
            report = report(update, own, announced)            scalars, among them `client_id`
            contribution(update, report, announced, clip)      its bounded part of the sums
    server  admitted = admit(state, announced, reports)        who takes part with which weight, clip and noise
            release(state, admitted, total)                    the result, the state after the round, measurements

The documents clip a round by the norms of that round. Then clients wait for the clipping norm that follows from the
reports of all: `clips_by_this_round`. In all other rounds nobody waits, and there is one level of aggregation.

`quap_tff.federated.aggregation` lifts any of them to TFF. `quap_tff.mechanisms.playing` has the same round as a plain
function, for tests and audits. Afterwards `Mechanism.spent` gives the ledger's record of a round.
"""

from __future__ import annotations

import abc
import collections
from collections.abc import Callable, Mapping, Sequence
import json
import math
from typing import Any, ClassVar, NamedTuple, Optional, Protocol, TYPE_CHECKING, Union

import numpy as np

from quap_tff.common import array_types
from quap_tff.common import checks
from quap_tff.common import json_types
from quap_tff.common import registry
from quap_tff.common.lazy import tf
from quap_tff.common.numbers import seeds
from quap_tff.common.numbers import slack as slacks
from quap_tff.mechanisms.facts import Facts
from quap_tff.mechanisms.parts import layers as layers_lib
from quap_tff.mechanisms.parts import participation as participations

Struct = Mapping[str, 'tf.Tensor']
# The tensors of an update by their position in it: all of them, or those that go one way.
Parts = dict[int, 'tf.Tensor']
# The server's state, the same containers in each round: each mechanism's own `NamedTuple`.
State = array_types.Structure
# The measurements of a finished round, by name.
Measurements = Mapping[str, array_types.Numbers]
# The state's evidence of who was in a round, by name: `counts` or `weights` of all clients.
Evidence = dict[str, np.ndarray]
# TFF's things, which this room passes on and does not import: a function that makes a
# `tff.learning.models.VariableModel`, a `tff.aggregators.WeightedAggregationFactory`, and the server's optimizer.
ModelFn = Callable[[], Any]
AggregationFactory = Any
Optimizer = Any
# The arguments of `Mechanism.for_model`.
Specs = Sequence['tf.TensorSpec']
Layers = Sequence[layers_lib.Layer]
LearningRateFn = Optional[Callable[['tf.Tensor'], 'tf.Tensor']]
# The modulus of the number of clients, which goes into every secure sum. A power of two: TFF's plain bodies are exact
# with it in any case. Those of all other sums are odd, so that nothing else has it.
COUNT_MODULUS = 2**62


# Measurements that are public for every mechanism, and those that are public where the clipping norm is.
PUBLIC_METRICS = frozenset(
  'cohort_size dropped_out epsilon noise_multiplier participation_mean participation_stddev participation_min '
  'participation_max participation_never_seen update_rejected'.split()
)
PUBLIC_NORMS = frozenset({'clipping_norm', 'sigma'})


class NoiseState(NamedTuple):
  """The source of the next noise. Anyone who has it can compute the noise.

  Attributes:
    seed: int64[2].
    counter: int64 scalar, how many rounds have drawn noise.
  """

  seed: tf.Tensor
  counter: tf.Tensor


class AdmittedRound(NamedTuple):
  """Everything that a round decides before it sums updates.

  Attributes:
    client_ids: int64[M], the cohort, checked.
    weights: float32[M], how much each client counts: its part of the sum has norm at most weight·C.
    clip: float32 scalar, C_t.
    noise_multiplier: Scalar, σ of the noise on the sum over C_t; 0 if there is none.
    sigma: Scalar, the standard deviation of the noise that is drawn for each noised entry of the result.
    after: The state after the round, but for what follows from the sum.
    metrics: Measurements that are known by now, scalars by name.
  """

  client_ids: tf.Tensor
  weights: tf.Tensor
  clip: tf.Tensor
  noise_multiplier: tf.Tensor
  sigma: tf.Tensor
  after: State
  metrics: Struct


class HasParticipation(Protocol):
  """A mechanism that counts participation."""

  @property
  def num_clients(self) -> int: ...

  @property
  def participation(self) -> participations.ParticipationConfig: ...


class RoundRecord(NamedTuple):
  """One round of a history: what it cost, and what the ledger keeps of it.

  Attributes:
    cohort: int[M], distinct ids in [0, N).
    budgets: float[M], the clients' nominal ε_i(t) > 0 in nats; +inf in a round without noise. None: another program's.
    weights: float[M] in [0, 1]: client i's part of the sum has norm at most weights[i]·C_t.
    noise_multiplier: Standard deviation of the noise on the sum, over C_t; 0: no noise.
    count_noise_multiplier: For the noised count that a private quantile releases: its standard deviation over the most
      that one client adds to the count. Clients of weight 0 add nothing. +inf: no such release.
    clipping_norm: C_t; +inf without clipping. None as for `budgets`.
    counts: int[M], the rounds that each of the cohort has been in by the aggregator's own count, this one included.
      None: unknown.
    released: Whether the round released anything, if only noise. None: it did if somebody has a weight above 0.
  """

  cohort: np.ndarray
  budgets: Optional[np.ndarray]
  weights: np.ndarray
  noise_multiplier: float
  count_noise_multiplier: float = math.inf
  clipping_norm: Optional[float] = None
  counts: Optional[np.ndarray] = None
  released: Optional[bool] = None

  @property
  def releases(self) -> bool:
    """True if the round released anything, as `released` says it."""
    return bool((np.asarray(self.weights) > 0).any()) if self.released is None else self.released


class Configuration(checks.Checked, abc.ABC):
  """A mechanism before its noise is chosen. Subclasses are frozen dataclasses.

  Attributes:
    num_clients: N, the population. Client ids are integers in [0, N).
  """

  if TYPE_CHECKING:  # At run time a dataclass would take a property of its base as the default of its field.

    @property
    def num_clients(self) -> int: ...

  @property
  @abc.abstractmethod
  def facts(self) -> Facts:
    """See `Facts`."""

  @property
  def configuration(self) -> Configuration:
    """The configuration inside all that is around it."""
    return self


class Mechanism(Configuration):
  """A mechanism as one value, in which nothing is left to be chosen.

  Attributes:
    choices: The registries of the choices among its fields.
  """

  choices: ClassVar[Sequence[Mapping[str, object]]] = ()

  @property
  def core(self) -> Mechanism:
    """The mechanism that gets whole updates: without what chooses a part of each."""
    return self

  @property
  def fingerprint(self) -> str:
    """Text that names everything on which the account depends: JSON of the fields, without the seed of the noise."""
    return json.dumps(registry.value_of(self))

  @property
  def limit(self) -> Optional[Union[float, np.ndarray]]:
    """The most μ² that a filter lets each client spend, a number or float64[N]; None without a filter."""
    return None

  @property
  def spent_before(self) -> Optional[Sequence[float]]:
    """float[N], μ² of what was released about each client before; None if nothing was."""
    return None

  @property
  def kept_slack(self) -> slacks.Slack:
    """The loss that the account keeps for rounding: no less than the slack of any model."""
    return slacks.Slack()

  def slack(self, num_weights: int) -> slacks.Slack:
    """The cost of rounding over all releases of a model with `num_weights` weights.

    Raises:
      ValueError: If integers could overflow, or ε and δ do not pay for rounding.
    """
    del num_weights
    return self.kept_slack

  def check_before_training(self) -> None:  # noqa: B027 (most mechanisms have nothing to check)
    """Raises `ValueError` for what only TensorFlow can show before the first round."""

  def server_parts(
    self, model_fn: Optional[ModelFn], model: Optional[layers_lib.ModelShape], server_optimizer: Optimizer
  ) -> Optional[tuple[AggregationFactory, Optimizer]]:
    """A mechanism's own TFF computation: (aggregation factory, server optimizer). None: `for_model` gives its rounds.

    Args:
      model_fn: Makes the model; None for an aggregator alone.
      model: The model's shape, if it is known.
      server_optimizer: The optimizer that was asked for.
    """
    del model_fn, model, server_optimizer
    return None

  def measured(self, measurements: Measurements, model: Optional[layers_lib.ModelShape]) -> json_types.JsonObject:
    """The aggregator's measurements of a round as scalars by name."""
    del model
    return {name: value for name, value in measurements.items() if name != 'round'}

  def for_model(self, specs: Specs, layers: Layers, learning_rate_fn: LearningRateFn = None) -> Rounds:
    """The functions of a round.

    Args:
      specs: A `tf.TensorSpec` for each tensor of an update.
      layers: The model's layers, in the order of `specs`.
      learning_rate_fn: A function from a round (int32 scalar, from 1) to the clients' learning rate (float32 scalar),
        for a mechanism that clips in units of it.

    Raises:
      ValueError: If the layers are not those that the mechanism names, or the learning rate is missing.
      TypeError: If the tensors are of a dtype that it cannot bound.
      NotImplementedError: If a round needs more of a client than its update.
    """
    raise NotImplementedError(f"{type(self).__name__} needs more than updates: use its plan's build_process.")

  @abc.abstractmethod
  def seen(self, state: State) -> Evidence:
    """The state's evidence of who was in the round: `counts` or `weights` of `quap_tff.plans.checked_cohort`."""

  @abc.abstractmethod
  def spent(self, state: State, metrics: Measurements, cohort: np.ndarray) -> RoundRecord:
    """The cost of a finished round.

    Args:
      state: The state after the round.
      metrics: The round's measurements.
      cohort: int64[M], the checked ids of who was there.
    """

  def planned(self, cohorts: Sequence[np.ndarray]) -> list[RoundRecord]:
    """The cost of each round if these cohorts come, int64[M_t] for each. Not for an `unplannable` mechanism."""
    raise NotImplementedError

  def scaled(self, factor: float) -> Mechanism:
    """The mechanism with `factor` as the scale of its noise, which an accountant has chosen."""
    raise NotImplementedError


class Configured(Mechanism):
  """A mechanism around a configuration, which has the clients. Subclasses add what else the rounds need.

  Attributes:
    config: The configuration.
  """

  config: Configuration

  @property
  def num_clients(self) -> int:
    """N."""
    return self.config.num_clients

  @property
  def configuration(self) -> Configuration:
    return self.config


class Rounds(abc.ABC):
  """A mechanism's functions for updates of known tensors. All are pure.

  Attributes:
    specs: A `tf.TensorSpec` for each tensor of an update.
    prepares: Whether the round is about something other than the update itself, see `prepared`.
    own_fields: The names of the fields that must come with an update in addition to the id, with the words of errors.
    kept_fields: Names in a report that the client keeps to itself. Only its own `contribution` sees them.
    secure_bounds: For each of the sums the largest absolute value of a client's int64 entries, if they go into a secure
      sum; None for a plain one.
    most_clients: The size of the largest cohort, for a secure sum.
    needs_each_update: Whether `combined` takes the place of the sum.
    reports_by_sum: Whether reports, which are scalars, go by a sum in which each client of a small population has a
      place, so that TFF compiles the round to every form.
    sum_dtype: The dtype in which contributions are summed; None for their own.
    clips_by_this_round: Whether the clipping norm follows the norms of this very round, as in the documents. Clients
      then wait for it, and a round has two levels of aggregation.
    waiting: Positions of the tensors that wait for it; None if all go together.
  """

  specs: Specs
  prepares: bool = False
  own_fields: dict[str, str] = {}
  kept_fields: Sequence[str] = ()
  secure_bounds: Optional[Sequence[int]] = None
  most_clients: int = 0
  needs_each_update: bool = False
  reports_by_sum: bool = False
  sum_dtype: Optional[tf.DType] = None
  clips_by_this_round: bool = False
  waiting: Optional[Sequence[int]] = None

  @abc.abstractmethod
  def initial_state(self) -> State:
    """The server's state before round 1. It is enough to compute the noise: keep it as secret as clients' data."""

  def initial_noise(self, seed: Optional[int]) -> NoiseState:
    """The noise state before round 1 with another seed, for a mechanism whose server draws noise."""
    return initial_noise(seed)

  def sum_unit(self, clip: float) -> float:
    """The unit of contributions and sums at a clipping norm, in units of updates."""
    del clip
    return 1.0

  def announce(self, state: State) -> Struct:
    """The server's message to every client before the round; may be empty."""
    del state
    return collections.OrderedDict()

  def prepared(self, update: list[tf.Tensor], announced: Struct) -> list[tf.Tensor]:
    """The part of a client's update that the round is about, as many tensors. All that follows gets this."""
    del announced
    return update

  @abc.abstractmethod
  def report(self, update: list[tf.Tensor], own: Struct, announced: Struct) -> Struct:
    """A client's report: scalars by name, among them `client_id`.

    Args:
      update: Its float tensors.
      own: Its `client_id`, int64 scalar, and what `own_fields` names.
      announced: From `announce`.
    """

  @abc.abstractmethod
  def admit(self, state: State, announced: Struct, reports: Struct) -> AdmittedRound:
    """Everything that the round decides before it sums updates.

    Args:
      state: The state before the round.
      announced: From `announce`.
      reports: The cohort's reports, an array [M] for each scalar, possibly of nobody. In TFF they come in the order of
        the ids, so that a round is the same to the last bit in whatever order clients come.

    Raises:
      tf.errors.InvalidArgumentError: When run, if an id is outside [0, N) or appears twice.
    """

  def early(self, update: Parts, report: Struct) -> Parts:
    """A client's part of the sums of the tensors that are not `waiting`."""
    raise NotImplementedError

  @abc.abstractmethod
  def contribution(
    self, update: Parts, report: Struct, announced: Struct, clip: Optional[tf.Tensor] = None
  ) -> list[tf.Tensor]:
    """A client's bounded part of each sum: a tensor for each one of `update`, and then any others to be summed.

    Args:
      update: The waiting tensors of its update.
      report: Its own report.
      announced: From `announce`.
      clip: float32 scalar, the clipping norm of a round that `clips_by_this_round`.
    """

  def combined(self, contributions: list[tf.Tensor], weights: tf.Tensor) -> list[tf.Tensor]:
    """The replacement of the sum for a mechanism with `needs_each_update`.

    Args:
      contributions: float[M, *S] for each tensor, in the order of the reports.
      weights: float32[M], from `admit`.
    """
    raise NotImplementedError

  @abc.abstractmethod
  def release(
    self, state: State, admitted: AdmittedRound, total: list[tf.Tensor]
  ) -> tuple[State, list[tf.Tensor], Struct]:
    """The state after the round, the result and measurements (`round`, `cohort_size`, `clipping_norm` and others).

    Args:
      state: The state before the round.
      admitted: From `admit`.
      total: The sums: a tensor for each one of the update, and then the others of `contribution`.

    Returns:
      (state, float tensors as in an update, scalars by name).
    """


def checked_ids(num_clients: int, client_ids: tf.Tensor) -> tf.Tensor:
  """int64[M] `client_ids`, checked.

  Raises:
    tf.errors.InvalidArgumentError: When run, if an id is outside [0, num_clients) or appears twice.
  """
  ordered = tf.sort(client_ids)
  checks = [
    tf.debugging.assert_non_negative(
      client_ids, f'Client ids must lie in [0, {num_clients}) (-1: not exactly one id); found'
    ),
    tf.debugging.assert_less(
      client_ids,
      tf.constant(num_clients, tf.int64),
      f'Client ids must lie in [0, {num_clients}), the configured population; found',
    ),
    tf.debugging.assert_greater(
      ordered[1:], ordered[:-1], 'A client appears twice in the cohort (each client takes part at most once a round);'
    ),
  ]
  # In eager mode a failed check has already raised, and there is nothing to depend on.
  with tf.control_dependencies([check for check in checks if check is not None]):
    return tf.identity(client_ids)


def initial_noise(seed: Optional[int]) -> NoiseState:
  """The noise state before round 1. Without a given seed, the seed comes from the operating system's entropy."""
  return NoiseState(seed=seeds.initial_seed(seed, 'mechanism'), counter=tf.constant(0, tf.int64))


def initial_participation(mechanism: HasParticipation) -> array_types.Structure:
  """The participation state before round 1, as tensors that are not constants in the graph."""
  state = participations.initial_state(mechanism.participation, mechanism.num_clients)
  return tf.nest.map_structure(lambda zeros: tf.zeros(zeros.shape, zeros.dtype), state)


def participation_metrics(mechanism: HasParticipation, state: array_types.Structure, round_num: tf.Tensor) -> Struct:
  """Statistics of the participation rates, `participation_*`."""
  statistics = participations.statistics(mechanism.participation, state, round_num)
  return collections.OrderedDict((f'participation_{name}', value) for name, value in statistics.items())
