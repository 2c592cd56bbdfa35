"""The interface of plans: one object for a method that gives its process, its account and its statements."""

from __future__ import annotations

import abc
from collections.abc import Sequence
import dataclasses
from typing import Any, Callable, NamedTuple, Optional

import numpy as np

from quap_tff import accounting
from quap_tff.accounting import protection as protections
from quap_tff.common import checks
from quap_tff.common import lazy
from quap_tff.common import rounding
from quap_tff.common.lazy import tff
from quap_tff.mechanisms import correlation as correlations
from quap_tff.mechanisms import layers as layers_lib
from quap_tff.mechanisms import sparsity as sparsities
from quap_tff.training.heterogeneity import extension as extensions

learning_process = lazy.module('quap_tff.federated.learning_process')
model_functions = lazy.module('quap_tff.training.model_functions')
sparse_aggregation = lazy.module('quap_tff.federated.sparse_aggregation')

# Measurements of a round that are not exact functions of clients' data: they follow from who takes part, from
# constants and from noised releases. Plans add to them.
PUBLIC_METRICS = frozenset(
  {
    'cohort_size',
    'dropped_out',
    'epsilon',
    'noise_multiplier',
    'participation_mean',
    'participation_stddev',
    'participation_min',
    'participation_max',
    'participation_never_seen',
    'update_rejected',
  }
)
# Public where the clipping norm is fixed, or tracked by a noised count.
PUBLIC_NORMS = frozenset({'clipping_norm', 'sigma'})


class Aggregation(NamedTuple):
  """What an aggregation process returned: its state after a round, and the round's measurements."""

  state: Any
  measurements: Any


def aggregation_of(output: Any) -> Aggregation:
  """The aggregation's part of what a process' `next` returned.

  Args:
    output: From a `tff.learning.templates.LearningProcess` or a `tff.templates.AggregationProcess`.
  """
  if hasattr(output, 'metrics'):
    return Aggregation(output.state.aggregator, output.metrics['aggregator'])
  return Aggregation(output.state, output.measurements)


def checked_cohort(
  cohort: Any, num_clients: int, measurements: Any, counts: Optional[Any] = None, weights: Optional[Any] = None
) -> np.ndarray:
  """The cohort of a finished round as int64[M], compared with what the aggregator says of the round.

  The size is compared with the one that the aggregator measured. With `weights`, another client can take only the place
  of one that added nothing. With `counts`, each client must have been in some round; whether it was in this one shows
  when the ledger compares the counts with its own (`RoundRecord.counts`). Without both, as for TFF's own aggregators,
  nothing shows that one client was given in place of another.

  Args:
    cohort: int[M].
    num_clients: N.
    measurements: The aggregator's, with `cohort_size`.
    counts: int[N], how often each client has taken part, after the round.
    weights: float[N], each client's weight in the round; 0 for those who were not in it.

  Raises:
    ValueError: If these are not distinct ids in [0, N), or not those of the round.
  """
  ids = checks.cohort(cohort, num_clients)
  size = int(measurements['cohort_size'])
  strangers = [] if counts is None else ids[np.asarray(counts)[ids] < 1]
  missing = [] if weights is None else np.setdiff1d(np.flatnonzero(np.asarray(weights)), ids)
  if len(ids) != size:
    problem = f'the aggregator counted {size} clients in the round, and the cohort has {len(ids)}'
  elif len(strangers):
    problem = f'the aggregator has never seen client {strangers[0]}'
  elif len(missing):
    problem = f'client {missing[0]} was in the round, and is not in the cohort'
  else:
    return ids
  raise ValueError(
    f'This is not the cohort of the round: {problem}. Give the ids of all clients whose data `next` got.'
  )


@dataclasses.dataclass(frozen=True, eq=False)
class Report:
  """What may be said about a run: nominal figures, formal figures, and what is protected.

  Attributes:
    protection: What noise covers, in words.
    formal: The formal figures; it has none where the released model has no finite ε.
    nominal_epsilon: float64[N], Σ ε_i(t) of each client in nats, by basic composition (docs/method.md, section 7.1).
      None for a method whose noise does not follow such budgets, and for one without noise.
    nominal_delta: float64[N], k_i·δ, or None.
  """

  protection: accounting.Protection
  formal: accounting.FormalReport
  nominal_epsilon: Optional[np.ndarray]
  nominal_delta: Optional[np.ndarray]

  def as_dict(self) -> dict[str, Any]:
    """For JSON. Figures that a method does not have are null."""
    nominal = self.nominal_epsilon
    return {
      'nominal_epsilon_max': float(nominal.max()) if nominal is not None else None,
      'nominal_epsilon_mean': float(nominal.mean()) if nominal is not None else None,
      'nominal_delta_max': float(self.nominal_delta.max()) if nominal is not None else None,
      'model_protected': self.protection.model_protected,
      'protection': self.protection.statement,
      'formal': self.formal.as_dict(),
    }

  def __str__(self) -> str:
    lines = []
    if self.nominal_epsilon is not None:
      lines.append(
        f'Nominal ε per client: mean {rounding.up(self.nominal_epsilon.mean())}, max '
        f'{rounding.up(self.nominal_epsilon.max())}, with total δ up to {rounding.up(self.nominal_delta.max())}: '
        "basic composition of the noised layers' rounds (unit: one client's whole data), no amplification by "
        'sampling, clipping norms taken as given.'
      )
    return '\n'.join(lines + [self.protection.text.replace(self.protection.statement, self.formal.text)])


class Plan(abc.ABC):
  """A method, ready to run and to be accounted for.

      process = plan.build_process(model_fn)          # or plan.aggregator, for a process of your own
      ledger = plan.new_ledger()
      ledger.append(plan.record(output, cohort))      # after each round
      print(plan.report(ledger))

  Attributes:
    num_clients: N, the population.
    delta: δ of one round in nominal figures, and total δ in formal ones.
    client_metrics: Whether exact functions of clients' data (training loss, norms) are released with the model.
    test_is_of_clients: Whether models are tested on examples of the clients themselves, and the figures released.
    has_nominal: Whether the noise follows the budgets by the documents' formula. Only then do the sums of the budgets,
      the nominal figures, mean anything.
    public_metrics: Names of the round's metrics that are not exact functions of clients' data.
    is_saved_before_release: Whether each round must be saved in a checkpoint before anything of it is released. A round
      that is run again with another outcome would be a second release that no account includes.
    noises_empty_rounds: Whether a round that nobody comes to releases the same noise as any other.
    correlation: How the noise of a round is correlated with that of earlier ones.
    extension: A method around the mechanism, or None.
    noise_note: How the real noise differs from ideal noise; '' if it does not.
    neighbours: The neighbouring relation of the formal figures.
    takes_sparsity: Whether rounds can update a part of the weights only.
  """

  has_nominal: bool = True
  public_metrics: frozenset[str] = PUBLIC_METRICS
  is_saved_before_release: bool = False
  noises_empty_rounds: bool = False
  correlation: correlations.Correlation = correlations.Independent()
  noise_note: str = ''
  neighbours: str = accounting.ZERO_OUT
  takes_sparsity: bool = False

  def __init__(
    self,
    num_clients: int,
    delta: float,
    draw: accounting.Sampler = accounting.Sampler(),
    *,
    client_metrics: bool = True,
    test_is_of_clients: bool = False,
    model: Optional[layers_lib.ModelShape] = None,
    extension: Optional[extensions.Extension] = None,
    sparsity: sparsities.Sparsity = sparsities.NotSparse(),
    sparsity_seed: int = 0,
  ):
    """Initializes what all plans have in common.

    Args:
      num_clients: N.
      delta: δ.
      draw: How the cohorts are drawn. By default nothing is known about it, and it amplifies nothing.
      client_metrics: Whether exact functions of clients' data (training loss, norms) are released with the model.
      test_is_of_clients: Whether models are tested on examples of the clients themselves, and the figures released.
      model: The model's shape, if it is known before `build_process`.
      extension: A method of `quap_tff.training.heterogeneity` around the mechanism; by default none.
      sparsity: Which part of the weights a round updates.
      sparsity_seed: The public seed of that choice.

    Raises:
      ValueError: If the method's rounds cannot update a part of the weights only.
    """
    if sparsity.is_sparse and not self.takes_sparsity:
      raise ValueError(
        f'--sparsity: {type(self).__name__} cannot update a part of the weights only. Use --sparsity=none, or a '
        'method that can: quap and its variants, fixed_dp, certified, local_dp.'
      )
    if sparsity.is_sparse and extension is not None:
      raise ValueError(
        f'--sparsity: {type(extension).__name__} was not made for updates of a part of the weights. Use '
        '--sparsity=none, or the base that the method is built around.'
      )
    self.sparsity, self._sparsity_seed = sparsity, sparsity_seed
    self.num_clients, self.delta, self.client_metrics = num_clients, delta, client_metrics
    self.test_is_of_clients, self._draw, self._model = test_is_of_clients, draw, model
    self.extension = extension

  @property
  def _exact_logs(self):
    """Which exact functions of clients' data are released with the model, a clause each."""
    return (
      *([protections.TRAINING_METRICS] if self.client_metrics else []),
      *([protections.CLIENTS_TESTS] if self.test_is_of_clients else []),
    )

  def _with_extension(self, protection):
    """A statement about the mechanism, and what the extension adds to it."""
    if self.extension is None:
      return protection
    return protection._replace(text=f'{protection.text}\n{self.extension.statement}')

  @property
  def _options(self):
    """The keyword arguments of the constructor that made this plan."""
    return dict(
      client_metrics=self.client_metrics,
      test_is_of_clients=self.test_is_of_clients,
      model=self._model,
      extension=self.extension,
      sparsity=self.sparsity,
      sparsity_seed=self._sparsity_seed,
    )

  def _sparsified(self, aggregator: Any) -> Any:
    """The aggregator for the part of the weights that a round updates."""
    if not self.sparsity.is_sparse:
      return aggregator
    return sparse_aggregation.SparseAggregationFactory(aggregator, self.sparsity, self._sparsity_seed)

  @property
  def _sparsity_text(self) -> str:
    """What the fingerprint says of it; '' if every weight is updated."""
    return f', {self.sparsity!r}, sparsity_seed={self._sparsity_seed}' if self.sparsity.is_sparse else ''

  @property
  @abc.abstractmethod
  def fingerprint(self) -> str:
    """Text that names everything on which the account depends. A ledger with another fingerprint is refused."""

  @property
  def model(self) -> Optional[layers_lib.ModelShape]:
    """The model's shape, once it is known."""
    return self._model

  @property
  @abc.abstractmethod
  def protection(self) -> accounting.Protection:
    """What may be said about the released model."""

  @property
  def sampler(self) -> accounting.Sampler:
    """How the cohorts are drawn and how this method uses them, which decides on amplification by sampling."""
    return dataclasses.replace(
      self._draw,
      constant_divisor=self._has_constant_divisor or self._draw.kind == 'fixed_size',
      constant_noise_multiplier=self._has_constant_noise_multiplier,
      noises_empty_rounds=self.noises_empty_rounds,
      noise_is_planned=self._noise_is_planned,
    )

  # Whether sums are divided by a public constant whoever comes, and whether the noise multiplier is the same whoever
  # comes. Both must be settled without looking at the cohorts of the run. Then whether the noise was chosen on them.
  _has_constant_divisor = False
  _has_constant_noise_multiplier = False
  _noise_is_planned = False

  @property
  @abc.abstractmethod
  def aggregator(self) -> Any:
    """The method's `tff.aggregators.WeightedAggregationFactory`, whose weights carry client ids."""

  def build_process(
    self,
    model_fn: Callable[[], Any],
    client_optimizer: Any = None,
    server_optimizer: Any = None,
    client_work: Any = None,
    around: Optional[Callable[[Any], Any]] = None,
  ) -> Any:
    """The `tff.learning.templates.LearningProcess`; takes seconds, as it traces TensorFlow.

    Args:
      model_fn: Makes the model anew on each call. A `tff.learning.models.FunctionalModel`, or a function that returns
        one, is taken, too.
      client_optimizer: Local optimizer; default: SGD with learning rate 0.05.
      server_optimizer: Applied to the aggregate; default: SGD with learning rate 1, which is federated averaging.
      client_work: A `quap_tff.ClientWorkConfig`; default: one local epoch in batches of 32.
      around: A function from the method's aggregator to one around it, as audits need (`quap_tff.auditing.canaries`).
        What such a process returns is covered by no account.
    """
    model_fn = model_functions.of(model_fn)
    self._model = layers_lib.of_model(model_fn)
    sgd = tff.learning.optimizers.build_sgdm
    client_optimizer = client_optimizer if client_optimizer is not None else sgd(0.05)
    server_optimizer = server_optimizer if server_optimizer is not None else sgd(1.0)
    if around is None:
      return self._compose(model_fn, client_optimizer, server_optimizer, client_work)
    if self.extension is not None:
      raise ValueError(
        'This method keeps state beside its aggregator, and an audit replaces updates only. Audit the base that the '
        'method is built around.'
      )
    return learning_process.compose(model_fn, around(self.aggregator), client_optimizer, server_optimizer, client_work)

  @abc.abstractmethod
  def _compose(self, model_fn, client_optimizer, server_optimizer, client_work) -> Any:
    """The learning process; `self.model` is known."""

  def metrics(self, output: Any) -> dict[str, Any]:
    """The aggregator's measurements of a round as scalars by name."""
    return {name: value for name, value in aggregation_of(output).measurements.items() if name != 'round'}

  @abc.abstractmethod
  def record(self, output: Any, cohort: Any) -> accounting.RoundRecord:
    """What a round spent, for the ledger.

    Args:
      output: What the process' `next` returned, see `aggregation_of`.
      cohort: int[M], distinct ids of the clients that took part, see `checked_cohort`.

    Raises:
      ValueError: If this is not the cohort of the round.
    """

  def new_ledger(self) -> accounting.RunLedger:
    """An empty ledger for a run of this plan."""
    return accounting.RunLedger(self.num_clients, self.delta, self.fingerprint, self.correlation)

  def planned_ledger(self, cohorts: Sequence[Any]) -> accounting.RunLedger:
    """The ledger that a run over these cohorts will have, int[M_t] for each planned round.

    Raises:
      accounting.NoBoundError: If this is not known before the rounds have run.
    """
    raise accounting.NoBoundError('what the rounds of this method cost is not known before they have run')

  def report(self, ledger: accounting.RunLedger, cohorts: Optional[Sequence[Any]] = None) -> Report:
    """What may be said about a run, given its ledger.

    Args:
      ledger: What the rounds cost.
      cohorts: int[M_t] for each planned round, the public schedule. If the run has ended before the last of them, the
        formal figures are the bound of the plan, which is what all planned rounds cost, and the ledger gives only a
        reading. Without a schedule, the figures are those of the rounds in the ledger: a guarantee if their number was
        fixed beforehand, and otherwise a reading.
    """
    nominal = self.has_nominal
    stopped = cohorts is not None and ledger.num_rounds < len(cohorts) and self.protection.model_protected
    return Report(
      protection=self.protection,
      formal=self._of_stopped(ledger, cohorts) if stopped else self._formal(ledger),
      nominal_epsilon=ledger.epsilon if nominal else None,
      nominal_delta=ledger.delta if nominal else None,
    )

  def _formal(self, ledger):
    """The figures of a ledger."""
    return accounting.formal_report(ledger, self.delta, self.protection, self.sampler, self.noise_note, self.neighbours)

  def _bound(self, ledger, cohorts):
    """The figures that hold for a run over these cohorts wherever it ends; raises `NoBoundError` if there are none."""
    return self._formal(accounting.completed(ledger, self.planned_ledger(cohorts)))

  def _of_stopped(self, ledger, cohorts):
    try:
      bound = self._bound(ledger, cohorts)
    except accounting.NoBoundError as error:
      covers, statement, _ = self.protection
      note = f'No formal figure: the run has ended early, and {error}.'
      bound = accounting.FormalReport(covers, statement, self.delta, accounting.UNIT, (), (note,), None)
    reading = accounting.Reading(ledger.num_rounds, accounting.epsilon_by_client(ledger, self.delta))
    return dataclasses.replace(bound, reading=reading)


def planned_ledger(plan: Any, cohorts: Any, record: Callable[[int, np.ndarray], Any]) -> accounting.RunLedger:
  """The ledger that a run over known cohorts will have.

  Args:
    plan: It has `num_clients` and `delta`.
    cohorts: int[M_t], distinct ids in [0, N), for each round.
    record: A function from (round number, cohort) to the round's record.

  Raises:
    ValueError: If a cohort is none; the message names the round.
  """
  ledger = accounting.RunLedger(plan.num_clients, plan.delta, 'planned')
  for round_num, cohort in enumerate(checks.schedule(cohorts, plan.num_clients), 1):
    ledger.append(record(round_num, cohort))
  return ledger
