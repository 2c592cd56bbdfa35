"""The account of a run: its mechanism, who takes part, what it may release, and what this spends. It trains nothing."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import functools
from typing import Optional, TypeVar

import numpy as np

from quap_tff import accounting
from quap_tff.accounting import protection as protections
from quap_tff.common import array_types
from quap_tff.common import checks
from quap_tff.common import json_types
from quap_tff.common.numbers import rounding
from quap_tff.common.numbers import samplers
from quap_tff.common.numbers import slack as slacks
from quap_tff.mechanisms import mechanism as mechanisms
from quap_tff.mechanisms import sparsity as sparsities
from quap_tff.mechanisms.certified import guarantee as guarantees
from quap_tff.mechanisms.certified import planning
from quap_tff.mechanisms.held import config as held_config
from quap_tff.mechanisms.noise import correlation as correlations
from quap_tff.mechanisms.noise import held_noise
from quap_tff.mechanisms.parts import layers as layers_lib
from quap_tff.mechanisms.parts import postprocessing
from quap_tff.mechanisms.secret_cohorts import config as secret_config
from quap_tff.plans.accounts import ahead
from quap_tff.plans.accounts import options as options_lib
from quap_tff.plans.accounts import report as reports
from quap_tff.plans.accounts import secret_coins
from quap_tff.plans.accounts import settling

_LOCAL_STATEMENT = (
  'Every client noises all that it sends, so formal figures hold for everything that the server receives and '
  'releases, against the server itself (local model).'
)
# Whether a certificate is for cohorts that were planned, for any that came, or for ones that stay secret.
PLANNED, AS_THEY_CAME, SECRET = 'planned', 'as they came', 'secret'
# Public metrics that follow from who took part.
_OF_COHORTS = mechanisms.PUBLIC_METRICS - {'noise_multiplier'}
# Of cohorts that were not planned.
_WHY = 'who came, and when the run ended, may have followed what it released'
_BOUND = "The figures above hold for any cohorts, if nobody chose them by looking into clients' data."

# (intrinsic, name, type) of each tensor that leaves clients.
Leaving = tuple[tuple[str, str, str], ...]

_Account = TypeVar('_Account', bound='RunAccount')


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class RunAccount(options_lib.PlanOptions):
  """A mechanism, ready to be accounted for. `quap_tff.Plan` is one that can also be run.

  The options of every plan are those of `options.PlanOptions`. `certified` makes the account of a certified run.

  Attributes:
    mechanism: The mechanism of its rounds, with the sparsity around it.
    draw: How the cohorts are drawn. By default nothing is known about it, and it amplifies nothing.
    schedule: int64[M_t] for each planned round, of a mechanism that was settled on it by `certified`, and so are the
      next two. None or empty: cohorts are not planned.
    attendance: Who comes of those who were drawn, int64[M_t] for each planned round; None if this is not known.
    colluders: Numbers of clients that may tell the server their noise.

  Raises:
    TypeError: If `draw` or `averaging` is of another type.
    ValueError: If the options do not go together, or not with the mechanism.
  """

  mechanism: mechanisms.Mechanism
  draw: samplers.CohortSampler = samplers.CohortSampler()
  schedule: Sequence[np.ndarray] = ()
  attendance: Optional[Sequence[np.ndarray]] = None
  colluders: Sequence[int] = ()

  @classmethod
  def certified(
    cls: type[_Account],
    config: guarantees.GuaranteeConfig,
    schedule: Optional[Sequence[array_types.Ids]] = None,
    *,
    expected: Optional[checks.Unchecked] = None,
    averaging: postprocessing.Averaging = postprocessing.LastIterate(),
    attendance: Optional[Sequence[np.ndarray]] = None,
    colluders: Sequence[int] = (),
    min_separation: Optional[int] = None,
    certificate: bool = True,
    spent: Optional[checks.Unchecked] = None,
    **options: checks.Unchecked,
  ) -> _Account:
    """The plan of a certified run: its noise and divisor are chosen here, before training, and from no client's data.

    They are chosen from one of three:

      * `schedule`, the public cohorts of all rounds. A certificate is then for these cohorts.
      * `expected`, cohorts such as those that will come: of a log of the past, or of a model. Other clients may come.
      * neither: `noise_multiplier`, `divisor` and `num_rounds` are given in the configuration.

    In the last two cases cohorts are certified as they come. The guarantee is then the limit that the filter keeps,
    for any cohorts, as long as nobody chooses them by looking into clients' data (docs/privacy.md, theorem 1).

    With a `SecretCohortsConfig` there is no schedule: `quap_tff.Server.ask` draws the cohorts by secret coins, and the
    account is that of theorem 6, for all planned rounds.

    With a `quap_tff.HeldConfig`, each client draws its noise from a key of its own. One client's data are then
    `<client_id=int64*, answer=A*, examples=D*>`, with one answer of its `quap_tff.ClientGuard`. Each client that is
    expected has one weight in all of its rounds. One that is not expected gets the smallest of these.

    The account assumes that who comes is known, so sampling amplifies nothing. A run that ends early is bounded by
    what the filter lets each client spend.

    Args:
      config: What is asked of the mechanism, or a mechanism.
      schedule: int[M_t], distinct ids in [0, N), for each of the T planned rounds.
      expected: int[M_t], as many as there are rounds; or the path of a log of participation, whose clients are ids
        (docs/gate.md has the format); or a model of `data.cohorts`; or rates, float[T, N] in [0, 1], from which one
        run is drawn by a fixed seed.
      averaging: The average of the iterates that is published. The noise is chosen for it, and together with
        `postprocessing.PlannedAverage`.
      attendance: int[M_t] for each planned round: who really comes of those who were drawn, if this is known. Only
        with a schedule and a secure sum, in which a client that does not come takes its noise away. By default any of
        them may stay away.
      colluders: Numbers of clients that may tell the server their noise, with `attendance` only. A certificate gives ε
        for each.
      min_separation: How many rounds the sampler promises from one round of a client to its next, with a schedule
        only; None if it promises nothing. The published choices of noise are made for it.
      certificate: Whether the run is to get a certificate. If so, everything is refused here that would prevent one.
        If not, the run is a rehearsal.
      spent: What clients have spent in earlier runs: a file or an `accounting.SpentBefore`, as `accounting.read_spent`
        takes it. Budgets and figures count from there. None: that of the configuration.
      **options: Those of every plan, see `options.PlanOptions`. Exact functions of clients' data (`client_metrics`) are
        released only if they are asked for.

    Raises:
      TypeError: If `config` or `averaging` is of another type.
      ValueError: If a cohort is invalid, nobody takes part, nobody's budget pays for a round, a choice needs a schedule
        that is not given, or the run cannot get a certificate. The message says what to change.
    """
    if not isinstance(config, guarantees.GuaranteeConfig):
      raise TypeError(
        'A certified plan begins with its configuration, a quap_tff.CertifiedConfig or quap_tff.HeldConfig, found '
        f'{type(config).__name__}: Plan.certified(config, schedule).'
      )
    _check_averaging(averaging)
    if spent is not None:
      config = dataclasses.replace(config, spent_before=accounting.read_spent(spent, config.num_clients))
    colluders = tuple(checks.integer('colluders', k, at_least=1) for k in colluders)
    cohorts: Sequence[np.ndarray] = ()
    if isinstance(config, secret_config.SecretCohortsConfig):
      if schedule is not None or expected is not None:
        raise ValueError(
          'Secret cohorts are drawn by coins when the run asks for them, so there is no schedule, and nothing to '
          'expect. Leave schedule and expected out, or use a CertifiedConfig for public cohorts.'
        )
      settling.check_needs_no_schedule(config, attendance, colluders, min_separation)
      settled = secret_coins.settled(config, averaging)
    elif schedule is None:
      settling.check_needs_no_schedule(config, attendance, colluders, min_separation)
      settled = settling.for_any_cohorts(config, expected, averaging)
    elif expected is not None:
      raise ValueError(
        'The noise follows from a schedule or from what is expected, found both. Leave `expected` out if the cohorts '
        'of all rounds are known, and `schedule` otherwise.'
      )
    else:
      cohorts = checks.schedule(schedule, config.num_clients)
      settled = config.settled(cohorts, averaging, min_separation)
      settled.mechanism.check_colluders(colluders, attendance is not None)
      settling.check_colluders_before(config, colluders)
      if attendance is None and not config.holds_noise:
        attendance = cohorts or None
    plan = cls(
      settled.mechanism,
      schedule=cohorts,
      attendance=attendance,
      averaging=settled.averaging,
      colluders=colluders,
      **options,
    )
    if certificate:
      ahead.check_certifiable(plan)
    return plan

  def __post_init__(self) -> None:
    _check_averaging(self.averaging)
    if not isinstance(self.mechanism, mechanisms.Mechanism):
      raise TypeError(
        f'A plan needs a configuration, such as quap_tff.QuapConfig(num_clients=100), found {self.mechanism!r}.'
      )
    if not isinstance(self.draw, samplers.CohortSampler):
      raise TypeError(
        f'draw must be a CohortSampler, found {type(self.draw).__name__}. A schedule is for quap_tff.certified.'
      )
    # Of a copy with other options, the mechanism is sparse already.
    mechanism = self.mechanism.inner if isinstance(self.mechanism, sparsities.Sparse) else self.mechanism
    extension, sparsity, facts = self.extension, self.sparsity, mechanism.facts
    if facts.is_certified and not self.schedule:
      settling.check_needs_no_schedule(mechanism, self.attendance, self.colluders)
    if facts.is_certified and extension is not None and extension.exact_releases:
      raise ValueError(
        f'A certified run releases noised sums alone, but with {extension.name} as configured '
        f'{" and ".join(extension.exact_releases)}: no certificate would hold.'
      )
    if facts.needs_secret_cohorts and extension is not None:
      raise ValueError(
        f'{extension.name} uses who came outside the noised sums, and the cohorts of this plan must stay '
        'secret. Use the base that the method is built around.'
      )
    if sparsity.is_sparse and facts.unsparse:
      raise ValueError(
        f'--sparsity: rounds cannot update a part of the weights only, because {facts.unsparse}. Use --sparsity=none, '
        'or a method that can: quap and its variants, fixed_dp, certified (with noise=independent), local_dp.'
      )
    if sparsity.is_sparse and extension is not None:
      raise ValueError(
        f'--sparsity: {extension.name} was not made for updates of a part of the weights. Use '
        '--sparsity=none, or the base that the method is built around.'
      )
    if self.client_metrics and facts.trust == 'client':
      raise ValueError(
        '--client_metrics: under local privacy a client sends its noised update and nothing else. Leave this flag '
        'out.'
      )
    shows_clients = not (facts.trust == 'client' or facts.is_certified)
    seed = checks.integer('sparsity seed', self.sparsity_seed, at_least=0, at_most=2**63 - 1)
    # What was given, in one form.
    values = {
      'mechanism': sparsities.Sparse(mechanism, sparsity, seed) if sparsity.is_sparse else self.mechanism,
      'schedule': list(self.schedule or ()),
      'colluders': tuple(self.colluders),
      'client_metrics': shows_clients if self.client_metrics is None else self.client_metrics,
      'sparsity_seed': seed,
    }
    for name, value in values.items():
      object.__setattr__(self, name, value)

  @property
  def config(self) -> mechanisms.Configuration:
    """The configuration of the mechanism, without what is around it."""
    return self.core.configuration

  @property
  def core(self) -> mechanisms.Mechanism:
    """The mechanism, without what chooses a part of each update."""
    return self.mechanism.core

  @property
  def guarantee(self) -> guarantees.Guarantee:
    """`core`, of a certified plan. Raises `ValueError` for another one."""
    core = self.core
    if not isinstance(core, guarantees.Guarantee):
      raise ValueError(f'Only a certified plan has a guarantee, and this one is of {type(core).__name__}.')
    return core

  @property
  def held(self) -> Optional[held_config.Held]:
    """`core`, if clients hold the noise; None otherwise."""
    return self.core if isinstance(self.core, held_config.Held) else None

  @property
  def secret(self) -> Optional[secret_config.SecretCohorts]:
    """`core`, if its cohorts are drawn by secret coins; None otherwise."""
    return self.core if isinstance(self.core, secret_config.SecretCohorts) else None

  @property
  def shape(self) -> layers_lib.ModelShape:
    """The model's shape. Raises `ValueError` before it is known."""
    if self.model is None:
      raise ValueError(
        'This plan does not know its model. Use the plan that plan.build_process(model_fn) returns with the process.'
      )
    return self.model

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
    names = self.mechanism.facts.public_metrics
    if self.model is not None and 'clipping_norm' in names:
      names |= {f'clipping_norm_{layer.name}' for layer in self.model.layers}
    return names - _OF_COHORTS if self.draw.secret else names

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
    """The cost of rounding, which the formal figures include. Before the model is known, all that is kept for it."""
    return self.core.kept_slack if self.model is None else self.core.slack(sum(self.model.sizes))

  @property
  def cohorts(self) -> str:
    """`PLANNED`, `AS_THEY_CAME` or `SECRET`: what a certified run knew of its cohorts beforehand."""
    if self.secret is not None:
      return SECRET
    return PLANNED if self.schedule else AS_THEY_CAME

  @property
  def expected(self) -> list[np.ndarray]:
    """int64[M_t], the clients of each planned round, as far as this is known: those who come, or those drawn.

    Of secret cohorts nobody is known.
    """
    if self.secret is not None:
      return [np.zeros(0, np.int64)] * self.secret.num_rounds
    known = self.schedule if self.attendance is None else self.attendance
    return list(known)

  @functools.cached_property
  def planned(self) -> list[guarantees.PlannedRound]:
    """The weights of each planned round of a certified run, if the `expected` clients come."""
    return self.guarantee.simulated(self.expected)

  @functools.cached_property
  def share_of_ceiling(self) -> Optional[float]:
    """`planning.share_of_ceiling` of a certified run; None if its cohorts came as they did."""
    if self.secret is not None:
      return secret_coins.share_of_ceiling(self.secret)
    if not self.schedule:
      return None
    return planning.share_of_ceiling(guarantees.Settled(self.guarantee, self.averaging), self.schedule)

  @property
  def sampler(self) -> samplers.CohortSampler:
    """How the cohorts are drawn and how this method uses them, which decides on amplification by sampling."""
    if self.extension is not None:
      return samplers.CohortSampler(reason=f'{self.extension.name} uses who came outside the noised sums')
    facts = self.mechanism.facts
    if facts.is_certified and self.cohorts == AS_THEY_CAME:
      return samplers.CohortSampler(reason='cohorts are not planned, and nothing is assumed of how they come')
    if facts.unamplified:
      return samplers.CohortSampler(reason=facts.unamplified)
    return dataclasses.replace(
      self.draw,
      constant_divisor=facts.divisor is not None or self.draw.kind == 'fixed_size',
      noise_follows=facts.noise_follows,
      noises_empty_rounds=facts.noises_empty_rounds,
    )

  @property
  def no_amplification(self) -> Optional[str]:
    """Why sampling amplifies nothing in runs of this plan, a clause; None if it does."""
    if self.secret is not None:
      return None  # By theorem 6, whose conditions the mechanism keeps.
    return accounting.no_amplification(self.new_ledger(), self.protection, self.sampler, self.neighbours)

  @property
  def neighbours(self) -> str:
    """The neighbouring relation of the formal figures."""
    return accounting.REPLACE_ONE if self.mechanism.facts.trust == 'client' else accounting.ZERO_OUT

  @property
  def protection(self) -> accounting.Protection:
    """The statement about the released model."""
    lines = [self.mechanism.facts.note, protections.large_delta(self.mechanism.facts, self.num_clients)]
    exact_uses = self.extension.exact_releases if self.extension is not None else ()
    protection = accounting.describe_protection(self.mechanism.facts, self.model, self.exact_logs, exact_uses)
    if self.mechanism.facts.trust == 'client' and protection.covers == protections.RELEASED_MODEL:
      protection = protection._replace(statement=_LOCAL_STATEMENT)
    if self.extension is not None:
      lines.insert(0, self.extension.statement)
    return protection._replace(notes=tuple(filter(None, [*lines, self.sparsity.sentence()])))

  @property
  def exact_logs(self) -> tuple[str, ...]:
    """Which exact functions of clients' data are released with the model, a clause each."""
    return (
      *([protections.TRAINING_METRICS] if self.client_metrics else []),
      *([protections.CLIENTS_TESTS] if self.test_is_of_clients else []),
    )

  def ask(self, ledger: accounting.RunLedger, cohort: array_types.Ids) -> np.ndarray:
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
      raise ValueError('Only certified plans limit what clients spend: `ask` is for those of quap_tff.certified.')
    self._check_ledger(ledger)
    ids, round_num = checks.cohort(cohort, self.num_clients), ledger.num_rounds + 1
    self.check_round(round_num)
    if self.schedule and len(strangers := np.setdiff1d(ids, self.schedule[round_num - 1])):
      raise ValueError(
        f'Client {strangers[0]} is not planned for round {round_num}. Ask for those of plan.schedule. Where nobody '
        'knows who will come, plan without a schedule: quap_tff.certified(expected=…).'
      )
    history = list(ledger.history)
    return self.guarantee.allowed([one.cohort for one in history], [one.weights for one in history], ids)

  def check_round(self, round_num: int) -> None:
    """Raises `ValueError` if a certified plan has no such round."""
    most = self.guarantee.config.num_rounds if self.mechanism.facts.is_certified else None
    if most is not None and round_num > most:
      raise ValueError(
        f'Round {round_num} is not in the plan, whose account is for num_rounds={most}. Nothing may be released in it. '
        'Write the certificate of the rounds before. More rounds need a new plan.'
      )

  def metrics(self, output: array_types.Structure) -> json_types.JsonObject:
    """The aggregator's measurements of a round as scalars by name, from the output of the learning process."""
    return self.mechanism.measured(output.metrics['aggregator'], self.model)

  def record(self, output: array_types.Structure, cohort: array_types.Ids) -> accounting.RoundRecord:
    """The cost of a round, for the ledger.

    Args:
      output: The output of the `next` of the `tff.learning.templates.LearningProcess`.
      cohort: int[M], distinct ids of the clients that took part, see `checked_cohort`.

    Raises:
      ValueError: If this is not the cohort of the round.
    """
    return self.recorded(output.state.aggregator, output.metrics['aggregator'], cohort)

  def recorded(
    self, state: array_types.Structure, measurements: array_types.Structure, cohort: array_types.Ids
  ) -> accounting.RoundRecord:
    """The cost of a round, from the state and the measurements of the aggregation process itself; see `record`."""
    round_num = int(measurements['round']) if 'round' in measurements else 1
    self.check_round(round_num)
    if self.secret is not None:
      # Neither state nor measurements say who came, so nothing is there to compare with.
      return self.secret.spent(state, measurements, checks.cohort(cohort, self.num_clients))
    cohort = reports.checked_cohort(cohort, self.num_clients, measurements, **self.mechanism.seen(state))
    return self.mechanism.spent(state, measurements, cohort)

  def new_ledger(self) -> accounting.RunLedger:
    """An empty ledger for a run of this plan."""
    account = self.num_clients, self.delta, self.fingerprint, self.correlation, self.core.spent_before
    return accounting.RunLedger(*account, self._conditions, list(self.mu_squared_against.values()))

  @property
  def _conditions(self) -> protections.Conditions:
    """The conditions under which the μ² of a ledger hold. It goes along to the next run."""
    facts = self.mechanism.facts
    before = self.guarantee.config.spent_before if facts.is_certified else None
    relation = protections.REPLACE_ONE if facts.trust == 'client' else protections.ZERO_OUT
    return protections.Conditions(
      trust=facts.trust,
      relation=relation,
      covers=self.protection.covers,
      is_ideal=bool(facts.noise_note) or (before is not None and before.is_ideal),
      colluders=tuple(self.mu_squared_against),
    )

  @functools.cached_property
  def mu_squared_against(self) -> dict[int, np.ndarray]:
    """For each number of colluders, ascending: float64[N], a bound on μ_i² against the server and any so many others.

    It is for all planned rounds, if those who are `expected` come, and for what was before. A run may end earlier.
    """
    held = self.held
    if held is None or not self.colluders:
      return {}
    account = held_noise.opened(self.num_clients, held.noise_multiplier, held.config.correlation.chosen)
    for ids, planned in zip(self.expected, self.planned):
      sends = planned.weights > 0
      account = account.after(np.asarray(ids)[sends], planned.weights[sends].astype(np.float64))
    found, before = dict[int, np.ndarray](), held.config.spent_before
    for count in sorted(set(self.colluders)):
      earlier = None if before is None else before.against_any(count)
      assert before is None or earlier is not None  # `certified` asks for it.
      own = np.square(held_noise.mu_against_any(account, count))
      found[count] = own if earlier is None else own + earlier
    return found

  def planned_ledger(
    self, cohorts: Sequence[array_types.Ids], released: Optional[Sequence[json_types.JsonView]] = None
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
        logged = tuple(int(released[index][name]) for name in ('round', 'cohort_size'))
        if logged != (index + 1, len(cohorts[index])):
          raise ValueError(
            f'Round {index + 1} has {len(cohorts[index])} clients, but the measurements are of round {logged[0]} with '
            f'{logged[1]}. Give those of each round, in order.'
          )
        spent = spent._replace(clipping_norm=float(released[index]['clipping_norm']))
      ledger.append(spent)
    return ledger

  def calibrated(self: _Account, cohorts: Sequence[array_types.Ids], epsilon: float) -> _Account:
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
    scale = accounting.exact_scale(self.planned_ledger(cohorts), epsilon, self.delta)
    return dataclasses.replace(self, mechanism=self.mechanism.scaled(scale))

  def report(self, ledger: accounting.RunLedger, cohorts: Optional[Sequence[array_types.Ids]] = None) -> reports.Report:
    """The statements about a run, given its ledger.

    Args:
      ledger: The cost of each round; a `ValueError` is raised for the ledger of another plan.
      cohorts: int[M_t] for each planned round, the public schedule. If the run has ended before the last of them, the
        formal figures are the bound of the plan, which is what all planned rounds cost, and the ledger gives only a
        reading. Without a schedule, the figures are those of the rounds in the ledger: a guarantee if their number was
        fixed beforehand, and otherwise a reading. Of a certified plan without a schedule, the figures are the limits
        that the filter keeps for any cohorts, and the ledger gives a reading. So they are if planned clients stayed
        away.
    """
    self._check_ledger(ledger)
    if self.secret is not None:
      formal = secret_coins.report(self.secret, self.protection, self.slack)
      return reports.Report(self.protection, formal, None, None, self.mechanism.facts.trust)
    nominal, protection = self.has_nominal, self.protection
    is_reading = self._came(ledger) or (cohorts is not None and ledger.num_rounds < len(cohorts))
    with_reading = is_reading and protection.model_protected
    planned = () if cohorts is None else cohorts
    formal = self._with_reading(ledger, planned) if with_reading else self._formal(ledger)
    epsilon, delta = (ledger.epsilon, ledger.delta) if nominal else (None, None)
    return reports.Report(
      protection=protection,
      formal=formal,
      nominal_epsilon=epsilon,
      nominal_delta=delta,
      trust=self.mechanism.facts.trust,
    )

  def _check_ledger(self, ledger: accounting.RunLedger) -> None:
    """Raises `ValueError` if the ledger is of another plan."""
    own, given = (one.state_dict()['fingerprint'] for one in (self.new_ledger(), ledger))
    if not np.array_equal(own, given):
      raise ValueError(
        'This ledger is of another plan, because their fingerprints differ. Give a ledger that new_ledger of this plan '
        'has made, or ask the plan of the run for the report.'
      )

  def stayed_away(self, ledger: accounting.RunLedger) -> bool:
    """Whether some clients that were planned for a round did not come, where the plan does not say who comes.

    Who was left out may have followed what was released, and then what was spent is a reading.
    """
    if not self.mechanism.facts.is_certified or self.attendance is not None:
      return False
    sizes = np.diff(ledger.state_dict()['offsets'])
    planned = np.array([len(ids) for ids in self.schedule[: len(sizes)]])
    return bool(self.schedule) and not np.array_equal(sizes, planned)

  def _came(self, ledger: accounting.RunLedger) -> bool:
    """Whether who came was not planned, or is only a part of the plan."""
    return self.mechanism.facts.is_certified and (self.cohorts == AS_THEY_CAME or self.stayed_away(ledger))

  def _formal(self, ledger: accounting.RunLedger) -> accounting.FormalReport:
    """The figures of a ledger."""
    facts = self.mechanism.facts
    if self.core.limit is not None and facts.unplannable and self.protection.model_protected:
      # What the rounds happened to cost is itself a release. The filter's limit held beforehand.
      spent = rounding.up(float(accounting.total_mu(ledger).whole.max()) ** 2 / 2)
      whom = f' that took part, and not what rounds happened to cost (at most ρ = {spent})'
      return self._filter_report(ledger.rounds > 0, whom)
    return self._figures(ledger, facts.trust_note)

  def _bound(self, ledger: accounting.RunLedger, cohorts: Sequence[array_types.Ids]) -> accounting.FormalReport:
    """The figures that hold for a run over these cohorts wherever it ends; raises `NoBoundError` if there are none."""
    limit = self.core.limit
    if limit is None:
      return self._formal(accounting.completed(ledger, self.planned_ledger(cohorts)))
    if self.mechanism.facts.unplannable:
      clients = np.isin(np.arange(self.num_clients), np.concatenate(cohorts))
      return self._filter_report(clients, ' that was planned to take part')
    limits = np.broadcast_to(np.sqrt(limit), [self.num_clients])
    return self._formal(accounting.ledger_of_limits(limits, self.delta, self.core.spent_before))

  def _filter_report(self, clients: np.ndarray, whom: str) -> accounting.FormalReport:
    """The figures of a filter for noise that follows releases, for each of the clients bool[N]."""
    limit = self.core.limit
    # Noise that follows releases has one filter, whose limit is one number.
    assert isinstance(limit, float)
    note = (
      'The noise was chosen from noised releases. So the figures are those of the filter, '
      f'ρ = {rounding.up(limit / 2)} for each client{whom}.'
    )
    return self._figures(accounting.ledger_of_limits(np.where(clients, np.sqrt(limit), 0.0), self.delta), note)

  def _with_reading(self, ledger: accounting.RunLedger, cohorts: Sequence[array_types.Ids]) -> accounting.FormalReport:
    """The bound that holds wherever the run ends, and what the ledger gives."""
    try:
      bound = self._bound(ledger, cohorts)
    except accounting.NoBoundError as error:
      covers, statement = self.protection.covers, self.protection.statement
      note = f'No formal figure: the run has ended early, and {error}.'
      bound = accounting.FormalReport(covers, statement, self.delta, accounting.UNIT, (), (note,), None)
    # By who came, or by public rates if that is secret.
    own = self._formal(ledger).epsilon if self.draw.secret else None
    mu = accounting.total_mu(ledger)
    epsilon = own if own is not None else self.slack.epsilon_of(mu.came, mu.whole, self.delta)
    said = dict(why=_WHY, bound=_BOUND) if self._came(ledger) else {}
    return dataclasses.replace(bound, reading=accounting.Reading(ledger.num_rounds, epsilon, **said))

  def _figures(self, ledger: accounting.RunLedger, note: str) -> accounting.FormalReport:
    """The figures of a ledger with another note."""
    noise_note = self.mechanism.facts.noise_note
    account = self.delta, self.protection, self.sampler, noise_note, self.neighbours, self.slack
    return accounting.formal_report(ledger, *account, note)


def _check_averaging(averaging: object) -> None:
  """Raises `TypeError` unless it is a value of `postprocessing`."""
  if not isinstance(averaging, postprocessing.Averaging):
    raise TypeError(
      f'averaging must be a value such as postprocessing.PlannedAverage(), found {averaging!r}. The names in '
      'postprocessing.AVERAGINGS are those of the flag --averaging.'
    )
