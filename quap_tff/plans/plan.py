"""A plan: one object for a run of a mechanism that gives its process, its account and its statements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import copy
import dataclasses
import functools
from typing import Any, Callable, final, Optional

import numpy as np

from quap_tff import accounting
from quap_tff.accounting import protection as protections
from quap_tff.common import checks
from quap_tff.common import lazy
from quap_tff.common.lazy import tff
from quap_tff.common.numbers import samplers
from quap_tff.common.numbers import slack as slacks
from quap_tff.mechanisms import mechanism as mechanisms
from quap_tff.mechanisms import sparsity as sparsities
from quap_tff.mechanisms.certified import guarantee
from quap_tff.mechanisms.certified import planning
from quap_tff.mechanisms.noise import correlation as correlations
from quap_tff.mechanisms.parts import layers as layers_lib
from quap_tff.mechanisms.parts import postprocessing
from quap_tff.plans import ahead
from quap_tff.plans import leaving as leavings
from quap_tff.plans import report as reports
from quap_tff.training import extension as extensions

aggregation = lazy.module('quap_tff.federated.aggregation')
client_update = lazy.module('quap_tff.training.client_update')
learning_process = lazy.module('quap_tff.federated.learning_process')
model_functions = lazy.module('quap_tff.training.model_functions')

_LOCAL_STATEMENT = (
  'Every client noises all that it sends, so formal figures hold for everything that the server receives and '
  'releases, against the server itself (local model).'
)
# Whether a certificate is for cohorts that were planned, or for any that came.
PLANNED, AS_THEY_CAME = 'planned', 'as they came'
# Public metrics that follow from who took part.
_OF_COHORTS = mechanisms.PUBLIC_METRICS - {'noise_multiplier'}


@final
class Plan:
  """A mechanism, ready to run and to be accounted for.

      process = plan.build_process(model_fn)          # or plan.aggregator, for a process of your own
      ledger = plan.new_ledger()
      ledger.append(plan.record(output, cohort))      # after each round
      print(plan.report(ledger))

  The arguments are attributes of the same names.

  Attributes:
    mechanism: The mechanism of its rounds, with the sparsity around it.
    model: The model's shape, once it is known.
    leaving: What leaves clients in a round of a certified run, as (intrinsic, name, type) for each tensor, read off the
      process that `build_process` made; None before.
    process: The process that `build_process` made last without anything `around` it; None before.
    model_fn: Makes the model of that process.
  """

  def __init__(
    self,
    mechanism: mechanisms.Mechanism,
    draw: samplers.Sampler = samplers.Sampler(),
    *,
    schedule: Optional[Sequence[np.ndarray]] = None,
    attendance: Optional[Sequence[np.ndarray]] = None,
    averaging: Optional[postprocessing.Averaging] = None,
    colluders: Sequence[int] = (),
    client_metrics: Optional[bool] = None,
    test_is_of_clients: bool = False,
    model: Optional[layers_lib.ModelShape] = None,
    extension: Optional[extensions.Extension] = None,
    sparsity: sparsities.Sparsity = sparsities.NotSparse(),
    sparsity_seed: int = 0,
  ):
    """Initializes the plan.

    Args:
      mechanism: The mechanism of its rounds.
      draw: How the cohorts are drawn. By default nothing is known about it, and it amplifies nothing.
      schedule: int64[M_t] for each planned round, of a mechanism that was settled on it: see `certified_plan`, which
        makes it, and the next three. None or empty: cohorts are not planned.
      attendance: Who comes of those who were drawn, int64[M_t] for each planned round; None if this is not known.
      averaging: The average of the iterates that is published, if the noise was chosen for one.
      colluders: Numbers of clients that may tell the server their noise.
      client_metrics: Whether exact functions of clients' data (training loss, norms) are released with the model. By
        default they are, unless the run is certified, or each client noises all that it sends.
      test_is_of_clients: Whether models are tested on examples of the clients themselves, and the figures released.
      model: The model's shape, if it is known before `build_process`.
      extension: A method of `quap_tff.training.heterogeneity` around the mechanism; by default none.
      sparsity: Which part of the weights a round updates.
      sparsity_seed: The public seed of that choice.

    Raises:
      TypeError: If `draw` is of another type.
      ValueError: If the options do not go together, or not with the mechanism.
    """
    if not isinstance(draw, samplers.Sampler):
      raise TypeError(
        f'draw must be a Sampler, found {type(draw).__name__}. A schedule is for quap_tff.certified_plan.'
      )
    facts = mechanism.facts
    if facts.is_certified and not schedule:
      ahead.check_needs_no_schedule(mechanism, attendance, colluders)
    if facts.is_certified and extension is not None and extension.exact_releases:
      raise ValueError(
        f'A certified run releases noised sums alone, but with {type(extension).__name__} as configured '
        f'{" and ".join(extension.exact_releases)}: no certificate would hold.'
      )
    if sparsity.is_sparse and facts.unsparse:
      raise ValueError(
        f'--sparsity: rounds cannot update a part of the weights only, because {facts.unsparse}. Use --sparsity=none, '
        'or a method that can: quap and its variants, fixed_dp, certified (with noise=independent), local_dp.'
      )
    if sparsity.is_sparse and extension is not None:
      raise ValueError(
        f'--sparsity: {type(extension).__name__} was not made for updates of a part of the weights. Use '
        '--sparsity=none, or the base that the method is built around.'
      )
    if client_metrics and facts.trust == 'client':
      raise ValueError(
        '--client_metrics: under local privacy a client sends its noised update and nothing else. Leave this flag '
        'out.'
      )
    self.mechanism = sparsities.Sparse(mechanism, sparsity, sparsity_seed) if sparsity.is_sparse else mechanism
    self.schedule, self.attendance, self.averaging = list(schedule or ()), attendance, averaging
    self.colluders = tuple(colluders)
    self.leaving: Optional[leavings.Leaving] = None
    self.process: Any = None
    self.model_fn: Optional[Callable[[], Any]] = None
    shows_clients = not (facts.trust == 'client' or facts.is_certified)
    self.client_metrics = shows_clients if client_metrics is None else client_metrics
    self.test_is_of_clients = test_is_of_clients
    self.sparsity, self.extension = sparsity, extension
    self.draw, self.model = draw, model
    self.sparsity_seed = checks.integer('sparsity seed', sparsity_seed, at_least=0, at_most=2**63 - 1)

  @property
  def config(self) -> Any:
    """The configuration of the mechanism, without what is around it."""
    return self.mechanism.core

  @property
  def num_clients(self) -> int:
    """N, the population."""
    return self.mechanism.num_clients

  @property
  def delta(self) -> float:
    """δ of one round in nominal figures, and total δ in formal ones."""
    return self.mechanism.facts.delta

  @property
  def has_nominal(self) -> bool:
    """Whether the sums of the budgets, the nominal figures, mean anything. They follow from who took part."""
    return self.mechanism.facts.has_nominal and not self.draw.secret

  @property
  def public_metrics(self) -> frozenset[str]:
    """Names of the round's metrics that are not exact functions of clients' data, nor of cohorts that are secret."""
    found = self.mechanism.facts.public_metrics
    if self.model is not None and 'clipping_norm' in found:
      found |= {f'clipping_norm_{layer.name}' for layer in self.model.layers}
    return found - _OF_COHORTS if self.draw.secret else found

  @property
  def correlation(self) -> correlations.Correlation:
    """How the noise of a round is correlated with that of earlier ones."""
    return self.mechanism.facts.correlation

  @property
  def fingerprint(self) -> str:
    """Text that names everything on which the account depends. A ledger with another fingerprint is refused."""
    return self.mechanism.fingerprint

  @property
  def holds_noise(self) -> bool:
    """Whether clients draw the noise from keys of their own, which come with their data."""
    return self.mechanism.facts.trust == 'secure_sum'

  @property
  def slack(self) -> slacks.Slack:
    """What rounding costs, which the formal figures include. Before the model is known, all that is kept for it."""
    core = self.mechanism.core
    return core.kept_slack if self.model is None else core.slack(sum(self.model.sizes))

  @property
  def cohorts(self) -> str:
    """Of a certified run whether its cohorts are `PLANNED`, or certified `AS_THEY_CAME`."""
    return PLANNED if self.schedule else AS_THEY_CAME

  @property
  def expected(self) -> list[np.ndarray]:
    """int64[M_t], the clients of each planned round, as far as this is known: those who come, or those drawn."""
    return list(self.schedule if self.attendance is None else self.attendance)

  @functools.cached_property
  def planned(self) -> list[guarantee.PlannedRound]:
    """Of a certified run the weights of each planned round, if those who are `expected` come."""
    return self.config.simulated(self.expected)

  @functools.cached_property
  def share_of_ceiling(self) -> Optional[float]:
    """Of a certified run, see `planning.share_of_ceiling`; None if its cohorts are not planned."""
    if not self.schedule:
      return None
    assert self.averaging is not None
    return planning.share_of_ceiling(guarantee.Planned(self.config, self.averaging), self.schedule)

  @property
  def sampler(self) -> samplers.Sampler:
    """How the cohorts are drawn and how this method uses them, which decides on amplification by sampling."""
    if self.extension is not None:
      return samplers.Sampler(reason=f'{type(self.extension).__name__} uses who came outside the noised sums')
    facts = self.mechanism.facts
    if facts.is_certified and not self.schedule:
      return samplers.Sampler(reason='cohorts are not planned, and nothing is assumed of how they come')
    if facts.unamplified:
      return samplers.Sampler(reason=facts.unamplified)
    return dataclasses.replace(
      self.draw,
      constant_divisor=facts.divisor is not None or self.draw.kind == 'fixed_size',
      noise_follows=facts.noise_follows,
      noises_empty_rounds=facts.noises_empty_rounds,
    )

  @property
  def no_amplification(self) -> Optional[str]:
    """Why sampling amplifies nothing in runs of this plan, a clause; None if it does."""
    return accounting.no_amplification(self.new_ledger(), self.protection, self.sampler, self.neighbours)

  @property
  def neighbours(self) -> str:
    """The neighbouring relation of the formal figures."""
    return accounting.REPLACE_ONE if self.mechanism.facts.trust == 'client' else accounting.ZERO_OUT

  @property
  def protection(self) -> accounting.Protection:
    """What may be said about the released model."""
    lines = [self.mechanism.facts.note, protections.large_delta(self.mechanism.facts, self.num_clients)]
    exact_uses = self.extension.exact_releases if self.extension is not None else ()
    found = accounting.describe_protection(self.mechanism.facts, self.model, self.exact_logs, exact_uses)
    if self.mechanism.facts.trust == 'client' and found.covers == protections.RELEASED_MODEL:
      found = found._replace(text=found.text.replace(found.statement, _LOCAL_STATEMENT), statement=_LOCAL_STATEMENT)
    if self.extension is not None:
      lines.insert(0, self.extension.statement)
    return found._replace(text='\n'.join(filter(None, [found.text, *lines, self.sparsity.sentence()])))

  @property
  def exact_logs(self) -> tuple[str, ...]:
    """Which exact functions of clients' data are released with the model, a clause each."""
    return (
      *([protections.TRAINING_METRICS] if self.client_metrics else []),
      *([protections.CLIENTS_TESTS] if self.test_is_of_clients else []),
    )

  @property
  def aggregator(self) -> Any:
    """The method's `tff.aggregators.WeightedAggregationFactory`, whose weights carry client ids."""
    own = self.mechanism.server_parts(None, self.model, None)
    return own[0] if own is not None else self._lifted()

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
        No account covers the results of such a process.

    Raises:
      ValueError: If the server is not trusted, and would get anything but secure sums and public values.
    """
    if around is not None and self.extension is not None:
      raise ValueError(
        'This method keeps state outside its aggregator, and an audit replaces updates only. Audit the base that the '
        'method is built around.'
      )
    model_fn = model_functions.of(model_fn)
    self.model = layers_lib.of_model(model_fn)
    sgd = tff.learning.optimizers.build_sgdm
    client_optimizer = client_optimizer if client_optimizer is not None else sgd(0.05)
    server_optimizer = server_optimizer if server_optimizer is not None else sgd(1.0)
    client_work = client_work if client_work is not None else client_update.ClientWorkConfig()
    # Looked up only if updates are divided by the learning rate: not every optimizer has one.
    rate = lambda round_num: client_update.learning_rate_at(client_optimizer, client_work, round_num)
    self.mechanism.core.check_before_training()
    own = self.mechanism.server_parts(model_fn, self.model, server_optimizer)
    aggregator, server_optimizer = own if own is not None else (self._lifted(rate), server_optimizer)
    process = learning_process.compose(
      model_fn,
      aggregator if around is None else around(aggregator),
      client_optimizer,
      server_optimizer,
      client_work,
      extension=self.extension,
      num_clients=self.num_clients,
      staleness=self.mechanism.facts.staleness,
      client_metrics=self.client_metrics,
      with_answers=self.holds_noise,
    )
    if around is None:
      self.process, self.model_fn = process, model_fn
    if around is None and self.mechanism.facts.is_certified:
      self.leaving = leavings.of_process(process)
      leavings.check(self.leaving, self)
    return process

  def _lifted(self, rate=None):
    layers = self.model.layers if self.model is not None else None
    return aggregation.AggregationFactory(self.mechanism, layers, rate)

  def ask(self, ledger: accounting.RunLedger, cohort: Any) -> np.ndarray:
    """The weights that these clients would have in the next round of a certified run. It charges nobody.

    The round itself computes the same weights again, so a client that is let in without being asked for gets no more.
    Where clients hold the noise, a round is released as a whole or not at all. So run it with those alone that have a
    weight here.

    Args:
      ledger: The rounds so far.
      cohort: int[M], distinct ids of those who could come.

    Returns:
      float32[M] in [0, 1], in the order of the cohort; 0 for a client whose budget pays for nothing more.

    Raises:
      ValueError: If the plan is not certified, all of its rounds are over, or other clients are planned for this one.
    """
    if not self.mechanism.facts.is_certified:
      raise ValueError('Only certified plans limit what clients spend: `ask` is for those of quap_tff.certified_plan.')
    reports.check_ledger(self, ledger)
    ids, round_num = checks.cohort(cohort, self.num_clients), ledger.num_rounds + 1
    self._check_round(round_num)
    if self.schedule and len(strangers := np.setdiff1d(ids, self.schedule[round_num - 1])):
      raise ValueError(
        f'Client {strangers[0]} is not planned for round {round_num}. Ask for those of plan.schedule. Where nobody '
        'knows who will come, plan without a schedule: certified_plan(config, expected=…).'
      )
    history = list(ledger.history)
    return self.config.allowed([one.cohort for one in history], [one.weights for one in history], ids)

  def _check_round(self, round_num: int) -> None:
    most = self.config.num_rounds if self.mechanism.facts.is_certified else None
    if most is not None and round_num > most:
      raise ValueError(
        f'Round {round_num} is not in the plan, whose account is for num_rounds={most}. Nothing may be released in it. '
        'Write the certificate of the rounds before. More rounds need a new plan.'
      )

  def metrics(self, output: Any) -> dict[str, Any]:
    """The aggregator's measurements of a round as scalars by name, from the output of the learning process."""
    return self.mechanism.measured(output.metrics['aggregator'], self.model)

  def record(self, output: Any, cohort: Any) -> accounting.RoundRecord:
    """The cost of a round, for the ledger.

    Args:
      output: The output of the `next` of the `tff.learning.templates.LearningProcess`.
      cohort: int[M], distinct ids of the clients that took part, see `checked_cohort`.

    Raises:
      ValueError: If this is not the cohort of the round.
    """
    return self.recorded(output.state.aggregator, output.metrics['aggregator'], cohort)

  def recorded(self, state: Any, measurements: Any, cohort: Any) -> accounting.RoundRecord:
    """As `record`, from the state and the measurements of the aggregation process itself."""
    self._check_round(int(measurements['round']) if 'round' in measurements else 1)
    cohort = reports.checked_cohort(cohort, self.num_clients, measurements, **self.mechanism.seen(state))
    return self.mechanism.spent(state, measurements, cohort)

  def new_ledger(self) -> accounting.RunLedger:
    """An empty ledger for a run of this plan."""
    before = self.mechanism.core.spent_before
    return accounting.RunLedger(self.num_clients, self.delta, self.fingerprint, self.correlation, before)

  def planned_ledger(
    self, cohorts: Sequence[Any], released: Optional[Sequence[Mapping[str, Any]]] = None
  ) -> accounting.RunLedger:
    """The ledger that a run over these cohorts will have, or has.

    Args:
      cohorts: int[M_t] for each round.
      released: The aggregator's measurements of each round, if a program has run them that releases no state.

    Raises:
      ValueError: If a cohort is none, or not the one of the measurements; the message names the round.
      accounting.NoBoundError: If this is not known before the rounds have run.
    """
    if self.mechanism.facts.unplannable:
      raise accounting.NoBoundError(self.mechanism.facts.unplannable)
    ledger, cohorts = self.new_ledger(), checks.schedule(cohorts, self.num_clients)
    for index, spent in enumerate(self.mechanism.planned(cohorts)):
      if released is not None:
        found = tuple(int(released[index][name]) for name in ('round', 'cohort_size'))
        if found != (index + 1, len(cohorts[index])):
          raise ValueError(
            f'Round {index + 1} has {len(cohorts[index])} clients, but the measurements are of round {found[0]} with '
            f'{found[1]}. Give those of each round, in order.'
          )
        spent = spent._replace(clipping_norm=float(released[index]['clipping_norm']))
      ledger.append(spent)
    return ledger

  def calibrated(self, cohorts: Sequence[Any], epsilon: float) -> Plan:
    """The plan with the least noise under which nobody's exact account exceeds ε at δ over these cohorts.

    Args:
      cohorts: int[M_t] for each planned round.
      epsilon: ε > 0 in nats; δ is the plan's, in total.

    Raises:
      ValueError: If the released model has no formal ε to calibrate, or the noise is not known beforehand.
    """
    facts = self.mechanism.facts
    if facts.is_certified:
      raise ValueError('This plan has chosen its noise from its schedule already. Make another one for other cohorts.')
    if facts.unplannable:
      raise ValueError(
        f"--calibration=exact plans a run's noise before it begins, but {facts.unplannable}: use "
        '--calibration=documents.'
      )
    seeded = facts.noise_seed is not None
    if facts.needs_each_update or not (self.protection.model_protected or seeded):
      raise ValueError(
        f'--calibration=exact chooses the noise by a formal ε, but this run has none. {self.protection.statement} '
        'Use --calibration=documents, or a method that noises every layer and clips to a fixed norm (fixed_dp).'
      )
    found = copy.copy(self)
    scale = accounting.exact_scale(self.planned_ledger(cohorts), epsilon, self.delta)
    found.mechanism = self.mechanism.scaled(scale)
    return found

  def report(self, ledger: accounting.RunLedger, cohorts: Optional[Sequence[Any]] = None) -> reports.Report:
    """What may be said about a run, given its ledger.

    Args:
      ledger: The cost of each round; a `ValueError` is raised for the ledger of another plan.
      cohorts: int[M_t] for each planned round, the public schedule. If the run has ended before the last of them, the
        formal figures are the bound of the plan, which is what all planned rounds cost, and the ledger gives only a
        reading. Without a schedule, the figures are those of the rounds in the ledger: a guarantee if their number was
        fixed beforehand, and otherwise a reading. Of a certified plan without a schedule, the figures are the limits
        that the filter keeps for any cohorts, and the ledger gives a reading.
    """
    reports.check_ledger(self, ledger)
    return reports.of_run(self, ledger, cohorts)
