"""The certified mechanism as a plan: a guarantee for everything that is released, given a public schedule."""

from __future__ import annotations

from collections.abc import Sequence
import math
from typing import Any, Optional

import numpy as np

from quap_tff import accounting
from quap_tff.accounting import certificate
from quap_tff.accounting import protection as protections
from quap_tff.common import checks
from quap_tff.mechanisms import certified_config as configs
from quap_tff.mechanisms import held_noise
from quap_tff.mechanisms import planning
from quap_tff.mechanisms import postprocessing
from quap_tff.mechanisms import slack as slacks
from quap_tff.plans import plan

# Relative, between weights in TensorFlow's arithmetic and in NumPy's: some units in the last place of float32.
_SAME_WEIGHT = 1e-5

_CLIPPING = {
  False: "A client's part of each sum is clipped to its weight times a fixed norm.",
  True: "A client's part of each sum is clipped to its weight times a norm that follows a quantile of the updates' "
  'norms, known from noised counts alone.',
}
_SPLIT = {True: 'All layers are clipped by their joint norm.', False: 'Each layer is clipped by a norm of its own.'}


class CertifiedPlan(plan.Plan):
  """A certified run: its noise and divisor are chosen here, before training, from the planned cohorts.

  With `trust='secure_sum'`, each client draws its noise from a key of its own, four numbers of 64 random bits. One
  client's data are then `<client_id=int64*, noise_key=int64*, examples=D*>`.

  The account assumes that who comes is known. Noise that is calibrated on the cohorts depends on them, so sampling
  amplifies nothing. A run that ends early is bounded by what the filter lets each client spend.
  """

  is_certified = True
  is_saved_before_release = True
  noise_note = ''

  def __init__(
    self,
    config: configs.CertifiedConfig,
    schedule: Sequence[Any],
    *,
    averaging: postprocessing.Averaging = postprocessing.LastIterate(),
    client_metrics: bool = False,
    attendance: Optional[Sequence[Any]] = None,
    colluders: Sequence[int] = (),
    min_separation: Optional[int] = None,
    **options,
  ):
    """Initializes the plan.

    Args:
      config: The mechanism. What it leaves open is chosen from the schedule.
      schedule: int[M_t], distinct ids in [0, N), for each of the T planned rounds: the public schedule, or one drawn
        from a model of participation.
      averaging: The average of the iterates that is published. The noise is chosen for it; `postprocessing.Planned` is
        chosen together with the noise.
      client_metrics: Whether exact functions of clients' data (training loss) are released with the model.
      attendance: int[M_t] for each planned round: who really comes of those who were drawn, if this is known. Only with
        a secure sum, in which a client that does not come takes its noise away. By default any of them may stay away.
      colluders: Numbers of clients that may tell the server their noise, with `attendance` only. A certificate gives ε
        for each.
      min_separation: How many rounds the sampler promises from one round of a client to its next; None if it promises
        nothing. The published choices of noise are made for it.
      **options: The options of every plan, see `quap_tff.plans.Plan`.

    Raises:
      ValueError: If a planned cohort is none, nobody takes part, nobody's budget pays for a round, or an extension uses
        more of clients than the noised sums.
    """
    self.schedule: list[np.ndarray] = checks.schedule(schedule, config.num_clients)
    planned = planning.calibrated(config, self.schedule, averaging, min_separation)
    super().__init__(planned.config, client_metrics=client_metrics, **options)
    if self.extension is not None and self.extension.exact_releases:
      raise ValueError(
        f'A certified run releases noised sums alone, but with {type(self.extension).__name__} as configured '
        f'{" and ".join(self.extension.exact_releases)}: no certificate would hold.'
      )
    self.averaging = planned.averaging
    self._attendance = self.schedule if attendance is None and not config.holds_noise else attendance
    self.colluders = tuple(checks.integer('colluders', k, at_least=1) for k in colluders)
    if self.colluders and not config.holds_noise:
      raise ValueError('Colluders are clients that hold noise: give them with trust="secure_sum" only.')
    if self.colluders and max(self.colluders) >= config.num_clients:
      raise ValueError(
        f'There are {config.num_clients:,} clients, so at most {config.num_clients - 1:,} can collude against one of '
        f'them, found {max(self.colluders):,}.'
      )
    if self.colluders and attendance is None:
      raise ValueError(
        'An ε against colluders needs rounds whose clients are known before the run. Give attendance, or leave '
        'colluders out.'
      )

  @property
  def expected(self) -> list[np.ndarray]:
    """int64[M_t], the clients of each planned round, as far as this is known: those who come, or those drawn."""
    return list(self.schedule if self._attendance is None else self._attendance)

  def _comes(self, index: int, clients: np.ndarray) -> bool:
    """Whether these may be the clients of a round."""
    if self._attendance is None:
      return bool(np.isin(clients, self.schedule[index]).all())
    return np.array_equal(np.sort(clients), np.sort(self._attendance[index]))

  def _cohorts_of(self, ledger: accounting.RunLedger) -> list[np.ndarray]:
    """The cohort of each round of a ledger, in the plan's order where that is known."""
    if self._attendance is not None:
      return list(self._attendance[: ledger.num_rounds])
    state = ledger.state_dict()
    return np.split(state['clients'].astype(np.int64), state['offsets'][1:-1]) if ledger.num_rounds else []

  @property
  def slack(self) -> slacks.Slack:
    """What rounding costs. Before the model's shape is known, all that is kept for it."""
    if self.model is None:
      return self.config.kept_slack
    return self.config.slack(sum(self.model.sizes))

  def _of_mechanism(self):
    covered = protections.EVERY_LAYER
    if self.model is not None:
      covered = f'Noise covers every layer: all {sum(self.model.sizes):,} trained weights.'
    return protections.of_noise(covered, (), self.config.noise_seed is not None, self._exact_logs)

  def _bound(self, ledger, cohorts):
    limits = np.broadcast_to(np.sqrt(self.config.prices.limit), [self.num_clients])
    return self._formal(accounting.of_limits(limits, self.delta))

  def rounds_of(self, ledger: accounting.RunLedger) -> list[planning.PlannedRound]:
    """What each round of a ledger must have given, after the weights that the ledger has for the rounds before it."""
    state, kept, cohorts = ledger.state_dict(), [], self._cohorts_of(ledger)
    for index, planned in enumerate(cohorts):
      entries = slice(state['offsets'][index], state['offsets'][index + 1])
      clients, weights = state['clients'][entries], None
      if np.array_equal(np.sort(clients), np.sort(planned)):
        weights = np.empty(len(planned))
        weights[_places(planned, clients)] = state['weights'][entries]
      kept.append(weights)
    return planning.planned_rounds(self.config, cohorts, kept)

  def ledger_problems(self, ledger: accounting.RunLedger) -> list[str]:
    """Where a ledger differs from that of a run of this plan over its schedule, a sentence each.

    A run may have stopped early, but each of its rounds must have the planned cohort, the weights that follow from the
    cohorts, and the planned noise.
    """
    config, state = self.config, ledger.state_dict()
    expected = self.new_ledger().state_dict()
    found = [
      f"The ledger's {name} is not that of the flags."
      for name in ('num_clients', 'delta', 'fingerprint', 'gains', 'decays')
      if not np.array_equal(state[name], expected[name])
    ]
    rounds = ledger.num_rounds
    if found:
      return found
    if rounds > len(self.schedule):
      return [f'The ledger has {rounds} rounds, and the flags plan {len(self.schedule)}.']
    planned, cohorts = self.rounds_of(ledger), self._cohorts_of(ledger)
    for index in range(rounds):
      entries = slice(state['offsets'][index], state['offsets'][index + 1])
      number = index + 1
      if not self._comes(index, state['clients'][entries]):
        found.append(f'Round {number} of the ledger has other clients than the flags plan.')
        continue
      places = _places(cohorts[index], state['clients'][entries])
      if not np.allclose(state['weights'][entries], planned[index].weights[places], rtol=_SAME_WEIGHT, atol=0):
        found.append(f'Round {number} of the ledger has other weights than follow from the cohorts.')
      for name, value in (
        ('noise_multipliers', config.noise_multiplier),
        ('count_noise_multipliers', config.clip.count_noise_multiplier),
      ):
        if not _close(state[name][index], value):
          found.append(f'Round {number} of the ledger has {name} {state[name][index]:g}, the flags give {value:g}.')
      if not config.counts_norms and not _close(
        state['clipping_norms'][index], float(np.float32(config.clip.initial_norm))
      ):
        found.append(
          f'Round {number} of the ledger has the clipping norm {state["clipping_norms"][index]:g}, the flags give '
          f'{config.clip.initial_norm:g}.'
        )
    return found

  def facts(
    self, *, algorithm: str, tuning: str, test_set: str, tests: int, public_data: str, post_processing: str
  ) -> certificate.Facts:
    """What a certificate of such a run says beyond the ledger. The model's shape must be known.

    Args:
      algorithm: The spec of the method.
      tuning: How the constants of the run were chosen, a sentence.
      test_set: Whose examples the test set holds, a sentence.
      tests: How often loss and accuracy on the test set were released.
      public_data: Which other data the features were learned from, in sentences; '' for none.
      post_processing: What is done to the noised weights before they are published, in sentences.
    """
    if self.model is None:
      raise ValueError('A certificate says how many weights were trained. Build the process first, or give model.')
    trained = sum(self.model.sizes)
    return certificate.Facts(
      algorithm=algorithm,
      epsilon=self.config.epsilon,
      delta=self.config.delta,
      planned_rounds=len(self.schedule),
      noised_weights=trained,
      trained_weights=trained,
      clipping=f'{_CLIPPING[self.config.counts_norms]} {_SPLIT[self.config.clip_split == "joint"]}',
      tuning=tuning,
      test_set=test_set,
      tests=tests,
      public_data=public_data,
      post_processing=post_processing,
      fixed_noise_seed=self.config.noise_seed is not None,
      exact_metrics=self._exact_logs,
      own_epsilon=self.config.own_epsilon or (),
      slack=self.slack,
      trust=self.config.trust,
      colluders=self._against_colluders(),
    )

  def _against_colluders(self) -> tuple[tuple[int, float], ...]:
    """(k, the largest μ against the server and any k others), over all planned rounds: a run may end before them."""
    if not self.colluders:
      return ()
    account = held_noise.opened(self.num_clients, self.config.noise_multiplier, self.config.correlation.decay)
    for ids, planned in zip(self.expected, planning.planned_rounds(self.config, self.expected)):
      sends = planned.weights > 0
      account = account.after(np.asarray(ids)[sends], planned.weights[sends].astype(np.float64))
    return tuple((count, float(held_noise.mu_against_any(account, count).max())) for count in self.colluders)


def _places(planned: np.ndarray, clients: np.ndarray) -> np.ndarray:
  """Where each of a round's clients is in the planned cohort, which has the same ids in another order."""
  return np.argsort(planned)[np.argsort(np.argsort(clients))]


def _close(found: float, expected: float) -> bool:
  return found == expected or math.isclose(found, expected, rel_tol=1e-9)
