"""Runs of a method with canaries among its clients, and what their scores prove.

The audited run has the flags, and so the cohorts, the weights, the noise and the divisor, of the run under audit. Only
the data of some clients are replaced by canaries. Its model is thrown away.
"""

from collections.abc import Sequence
import dataclasses
import secrets
from typing import Any, Callable, NamedTuple, Optional

import numpy as np
import tensorflow as tf

from experiments.running import loop
from experiments.running import setup
from quap_tff import accounting
from quap_tff import plans
from quap_tff.auditing import canaries as canary_lib
from quap_tff.auditing.bounds import one_run
from quap_tff.mechanisms.held import guarded_clients
from quap_tff.mechanisms.parts import layers as layers_lib

# The norm of canaries where clipping norms follow the clients' norms, or where nothing clips: a usual norm.
_ORDINARY_NORM = 1.0


@dataclasses.dataclass(frozen=True)
class Settings:
  """How a run is audited.

  Attributes:
    canaries: K, how many clients are canaries: those that are planned to spend most.
    unseen: How many further directions nobody adds. Scores on these show what chance gives.
    repeats: How many runs are made. Their scores are counted together.
    confidence: The confidence of each lower bound.
    part: Where the canaries' directions live: in 'all' layers, only in the 'noised' ones, or only in the 'unnoised'.
    seed: The seed of the canaries' directions and coins.
  """

  canaries: int = 100
  unseen: int = 1000
  repeats: int = 1
  confidence: float = 0.95
  part: str = 'all'
  seed: int = 1


class Claim(NamedTuple):
  """The claim about a run.

  Attributes:
    epsilon: In nats; None where nothing is claimed.
    delta: δ.
    kind: 'certified', 'formal', 'nominal' or 'none'.
  """

  epsilon: Optional[float]
  delta: float
  kind: str


class AuditResult(NamedTuple):
  """The result of an audit.

  Attributes:
    claim: The claim.
    canaries: The clients that were canaries.
    scores: float64[K·R], the scores of all canaries.
    heads: bool[K·R], their coins.
    unseen: float64[U'·R], scores of directions that nobody added.
    found: What the scores say.
    bounds: The bounds that they prove, as JSON has them.
    groups: The same for each third of the canaries by participation, as JSON has them; none if all take part equally.
  """

  claim: Claim
  canaries: tuple[int, ...]
  scores: np.ndarray
  heads: np.ndarray
  unseen: np.ndarray
  found: one_run.CanaryScores
  bounds: dict[str, Any]
  groups: list[dict[str, Any]]

  def as_dict(self) -> dict[str, Any]:
    """The values for JSON."""
    return {
      'claimed_epsilon': self.claim.epsilon,
      'claim': self.claim.kind,
      'delta': self.claim.delta,
      'canaries': len(self.canaries),
      'canary_clients': list(self.canaries),
      **self.bounds,
      'groups': self.groups,
    }


def audit_run(
  experiment: setup.Experiment, settings: Settings, say: Callable[[str, bool], None] = lambda text, ends_run: None
) -> AuditResult:
  """Audits an experiment by runs of its own. The experiment's runtime must be active.

  Args:
    experiment: The run under audit.
    settings: How it is audited.
    say: Called with a line on the progress, and whether a run begins or ends with it.

  Raises:
    ValueError: If the audit does not fit the run: too many canaries, or layers that do not exist.
  """
  plan = experiment.plan
  if unaudited := plan.mechanism.facts.unaudited:
    raise ValueError(f'There is no audit for this method: {unaudited}. Audit another --algorithm.')
  planned = experiment.schedule
  schedule = planned[: experiment.run.last_round]
  clients = _canary_clients(plan, schedule, settings.canaries)
  canaries = canary_lib.Canaries(
    clients, settings.unseen, _tensors(plan, settings.part), _norm(plan, settings.part), _clipped(plan)
  )
  canaries.places(plan.shape.sizes)
  say(f'building a run with {len(clients)} canaries and {settings.unseen:,} unseen directions', True)
  process = experiment.build_audited_process(lambda inner: canary_lib.CanaryAggregationFactory(inner, canaries))
  ledger, of_repeats, coins = plan.new_ledger(), [], []
  for repeat in range(settings.repeats):
    seed = [settings.seed, repeat]
    state = canary_lib.with_directions(process.initialize(), seed)
    coins.append(canary_lib.coins(tf.constant(seed, tf.int64), canaries.count).numpy()[: len(clients)])
    ledger, rounds = plan.new_ledger(), []
    guarded = guarded_clients.GuardedClients(plan, secrets.token_bytes(32)) if plan.holds_noise else None
    for round_num, cohort in enumerate(schedule, 1):
      answers = guarded.answers(round_num, cohort) if guarded is not None else None
      output = process.next(state, [loop.client_data(experiment, client, answers=answers) for client in cohort])
      state = output.state
      canary_round = canary_lib.read_round(output)
      ledger.append(plan.recorded(canary_round.output.state, canary_round.output.measurements, cohort))
      rounds.append(canary_round)
      say(f'run {repeat + 1}/{settings.repeats}, round {round_num}/{len(schedule)}', round_num == len(schedule))
    of_repeats.append(_scores(plan, ledger, rounds, canaries, settings.part))
  claim = claim_of(plan, ledger, planned)
  counts = np.bincount(np.concatenate(schedule), minlength=plan.num_clients)[list(clients)]
  return _result(claim, clients, of_repeats, coins, counts, settings)


def _result(
  claim: Claim,
  clients: tuple[int, ...],
  of_repeats: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]],
  coins: Sequence[np.ndarray],
  counts: np.ndarray,
  settings: Settings,
) -> AuditResult:
  """The bounds that all runs prove together; `counts` has the number of rounds that each canary is in."""
  scores = np.concatenate([one[0] for one in of_repeats])
  unseen = np.concatenate([one[1] for one in of_repeats])
  heads, mu = np.concatenate(coins), np.concatenate([one[2] for one in of_repeats])
  guesses = one_run.planned_guesses(float(np.median(mu)), len(scores), 1 - settings.confidence)
  found = one_run.found(scores, heads, unseen, mu, guesses)
  # A formal figure exists only where noise covers everything that is trained.
  is_gaussian = claim.kind in ('certified', 'formal') or settings.part == 'noised' and claim.kind == 'nominal'
  bounds = one_run.as_dict(found, claim.delta, settings.confidence, is_gaussian)
  groups = []
  if is_gaussian and counts.min() < counts.max():
    groups = _groups(found, scores, heads, counts, claim.delta, settings.confidence)
  return AuditResult(claim, clients, scores, heads, unseen, found, bounds, groups)


def _groups(
  found: one_run.CanaryScores,
  scores: np.ndarray,
  heads: np.ndarray,
  counts: np.ndarray,
  delta: float,
  confidence: float,
) -> list[dict[str, Any]]:
  """The bounds that each third of the canaries by participation proves; ties are ordered by id."""
  groups = []
  for name, members in zip(one_run.GROUPS, np.array_split(np.argsort(counts, kind='stable'), len(one_run.GROUPS))):
    if not members.size:
      continue
    of_repeats = scores.reshape(-1, len(counts))[:, members], heads.reshape(-1, len(counts))[:, members]
    inserted = of_repeats[0][of_repeats[1]]
    mean = float(inserted.mean()) if inserted.size else 0.0
    bounds = one_run.of_group(found, of_repeats[1].size, inserted.size, mean, delta, confidence)
    rounds = counts[members]
    groups.append({'group': name, 'fewest_rounds': int(rounds.min()), 'most_rounds': int(rounds.max()), **bounds})
  return groups


def claim_of(plan: plans.Plan, ledger: accounting.RunLedger, planned: Sequence[np.ndarray]) -> Claim:
  """The claim about a run with this ledger: its certificate, else a formal ε, else the documents' nominal one.

  Args:
    plan: The run's plan.
    ledger: The rounds that ran.
    planned: int[M_t], the cohorts of all planned rounds.
  """
  if plan.mechanism.facts.is_certified:
    return Claim(plan.guarantee.config.epsilon, plan.delta, 'certified')
  report = plan.report(ledger, planned)
  if report.formal.epsilon is not None and np.isfinite(report.formal.epsilon).all():
    return Claim(float(np.max(report.formal.epsilon)), plan.delta, 'formal')
  if report.nominal_epsilon is not None and np.isfinite(report.nominal_epsilon).all():
    return Claim(float(report.nominal_epsilon.max()), plan.delta, 'nominal')
  return Claim(None, plan.delta, 'none')


def _canary_clients(plan: plans.Plan, schedule: Sequence[np.ndarray], count: int) -> tuple[int, ...]:
  """The clients that are planned to spend most; who takes part when is public."""
  if plan.mechanism.facts.is_certified:
    spent = accounting.total_mu(plan.planned_ledger(schedule)).updates
  else:
    spent = np.bincount(np.concatenate(schedule), minlength=plan.num_clients)
  takers = int((spent > 0).sum())
  if count > takers:
    raise ValueError(
      f'--canaries={count}: only {takers} of the {plan.num_clients} clients take part in this run. Ask for at most '
      f'{takers} (--canaries={takers}).'
    )
  return tuple(sorted(np.argsort(-spent, kind='stable')[:count].tolist()))


def _tensors(plan: plans.Plan, part: str) -> Optional[tuple[int, ...]]:
  if part == 'all':
    return None
  noised = tuple(layers_lib.critical_indices(plan.shape.layers, plan.mechanism.facts.noised_layers))
  tensors = noised if part == 'noised' else tuple(set(range(len(plan.shape.sizes))) - set(noised))
  if not tensors:
    raise ValueError(f'--part={part}: every layer of this run has noise. Use --part=all.')
  return tensors


def _clipped(plan: plans.Plan) -> Optional[tuple[int, ...]]:
  """The tensors whose joint norm is clipped; None for all."""
  selection = plan.mechanism.facts.clipped_layers
  return None if selection == layers_lib.ALL else tuple(layers_lib.critical_indices(plan.shape.layers, selection))


def _norm(plan: plans.Plan, part: str) -> float:
  config: Any = plan.config  # Whatever is audited has a clip rule.
  clip = config.clip
  bounded = not clip.releases_exact_norms and np.isfinite(clip.initial_norm)
  return canary_lib.NORM if bounded and part != 'unnoised' else _ORDINARY_NORM


def _scores(
  plan: plans.Plan,
  ledger: accounting.RunLedger,
  rounds: Sequence[canary_lib.CanaryRound],
  canaries: canary_lib.Canaries,
  part: str,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """The scores of one run: of the canaries, of unseen directions; and what μ the former should have with heads."""
  rows: list[tuple[np.ndarray, np.ndarray, Optional[float]]] = []
  released = []
  state = ledger.state_dict()
  for index, canary_round in enumerate(rounds):
    entries = slice(state['offsets'][index], state['offsets'][index + 1])
    cohort, weights = state['clients'][entries], state['weights'][entries]
    clip, divisor, multiplier = _units(plan, canary_round, cohort)
    if divisor is None:
      continue  # The round released nothing.
    bounds = np.zeros(plan.num_clients)
    bounds[cohort] = clip
    if plan.mechanism.facts.is_certified:
      bounds[cohort] = weights * clip
    elif part == 'unnoised':
      bounds[cohort] = np.inf if canaries.clipped is not None else clip
    others = canary_round.sum_of_others(bounds[canary_round.client_ids])
    moved = np.minimum(bounds, canaries.norm)[list(canaries.clients)] / clip
    released.append(cohort[weights > 0])
    rows.append(((canary_round.projections * divisor - others) / clip, moved, multiplier))
  observed = np.array([row[0] for row in rows])
  moved = np.array([row[1] for row in rows])
  noise = [multiplier for *_, multiplier in rows if multiplier]
  count = len(canaries.clients)
  of_canaries, unseen = observed[:, :count], observed[:, count:]
  # An unseen direction is scored as if one of the canaries had added it.
  templates = moved[:, np.arange(unseen.shape[1]) % count]
  if len(noise) < len(rows) or part == 'unnoised':
    # The noise is not known in closed form: every other unseen direction shows it, and is not counted.
    covariance = canary_lib.estimated_covariance(unseen[:, ::2])
    unseen, templates = unseen[:, 1::2], templates[:, 1::2]
  else:
    covariance = plan.correlation.covariance(released, noise)
  matched = canary_lib.matched_filter(moved, covariance)
  return matched.scores(of_canaries), canary_lib.matched_filter(templates, covariance).scores(unseen), matched.mu


def _units(
  plan: plans.Plan, canary_round: canary_lib.CanaryRound, cohort: np.ndarray
) -> tuple[float, Optional[float], Optional[float]]:
  """(C_t, what the sum was divided by, noise multiplier) of a round; None for what is not known or not there."""
  facts, row = plan.mechanism.facts, plan.mechanism.measured(canary_round.output.measurements, plan.model)
  clip, multiplier = float(row['clipping_norm']), float(row['noise_multiplier'])
  released = multiplier or not facts.adds_noise
  divisor = facts.divisor or len(cohort) or None
  # Without one σ for all entries, the noise multiplier says nothing about a direction.
  return clip if np.isfinite(clip) else 1.0, divisor if released else None, multiplier if 'sigma' in row else None
