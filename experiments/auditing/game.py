"""The distinguishing game for the mechanism of a run (`quap_tff.auditing.distinguisher`)."""

from collections.abc import Sequence
import dataclasses
from typing import Any, NamedTuple, Optional

import numpy as np
import tensorflow_federated as tff

from quap_tff import accounting
from quap_tff import plans
from quap_tff.auditing import distinguisher
from quap_tff.auditing.bounds import lower_bounds
from quap_tff.certificates import audits
from quap_tff.certificates import secret_sentences
from quap_tff.common.numbers import tradeoff
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.plans.accounts import secret_coins


class Game(NamedTuple):
  """The game for one mechanism, which has not been played yet.

  Attributes:
    claimed_mu: The μ that is claimed for the target over the whole run.
    simulate: The mechanism.
  """

  claimed_mu: float
  simulate: distinguisher.Simulate


def play_secret(plan: plans.Plan, draws: int, confidence: float, seed: Optional[int] = None) -> dict[str, Any]:
  """Plays the game of a run with secret cohorts, for JSON, see `audits.secret_game`. It draws the coins itself.

  Its client is one of those that spend most, with the largest rate among them.

  Args:
    plan: The run's plan.
    draws: Simulations of each world that are counted.
    confidence: The confidence of the bound.
    seed: For reproducible noise and coins.
  """
  core = plan.secret
  assert core is not None  # Callers ask for secret cohorts alone.
  kinds = secret_sentences.by_rate(core, secret_coins.epsilons(core, plan.slack))
  most = max(kinds, key=lambda one: (one['epsilon'], one['rate']))
  is_of_kind = (core.rates == most['rate']) & (core.planned_weights.astype(np.float64) == most['weight'])
  simulate = distinguisher.secret_cohorts(core, int(np.flatnonzero(is_of_kind)[0]), seed)
  outcome = distinguisher.play(simulate, draws, plan.delta, confidence, is_gaussian=False)
  return audits.secret_game(most['rate'], most['weight'], most['epsilon'], outcome.guesses, plan.delta, confidence)


def play(game: Game, draws: int, delta: float, confidence: float) -> dict[str, Any]:
  """Plays a game with `draws` counted simulations of each world, for JSON; `confidence` is that of the bounds."""
  verdict = distinguisher.play(game.simulate, draws, delta, confidence)
  return {
    'claimed_mu': game.claimed_mu,
    'draws': draws,
    'mu_estimate': verdict.mu_estimate,
    **lower_bounds.as_dict(verdict.guesses, verdict.bound),
  }


def game_for(
  plan: plans.Plan, schedule: Sequence[np.ndarray], draws: int, seed: Optional[int] = None
) -> Optional[Game]:
  """The game for the client that spends most. None for a mechanism for which there is no game here.

  For secret cohorts, see `play_secret`.

  Args:
    plan: The run's plan.
    schedule: int[M_t], its cohorts.
    draws: Simulations of each world that are counted.
    seed: For reproducible noise, where the mechanism takes a seed.
  """
  make = _GAMES.get(plan.mechanism.facts.game)
  return make(plan, schedule, draws, seed) if make is not None else None


def _certified_game(plan: plans.Plan, schedule: Sequence[np.ndarray], draws: int, seed: Optional[int]) -> Game:
  # A private quantile's noised counts are a second mechanism, which this game leaves alone.
  mu = accounting.total_mu(plan.planned_ledger(schedule)).updates
  simulate: Any = distinguisher.held if plan.holds_noise else distinguisher.certified
  return Game(float(mu.max()), simulate(plan.core, schedule, int(mu.argmax()), seed))


def _stock_game(plan: plans.Plan, schedule: Sequence[np.ndarray], draws: int, seed: Optional[int]) -> Optional[Game]:
  mechanism: Any = plan.mechanism  # One of TFF's, as its facts say.
  stock = mechanism.aggregator_of(plan.model)
  if stock.clip is None:
    return None  # Adaptive clipping also releases counts.
  query = stock.query(tff.to_type([(np.float32, [draws])]))
  mu = _formal_mu(plan, plan.planned_ledger(schedule))
  target = int(mu.argmax())
  taken = [index for index, cohort in enumerate(schedule) if target in cohort]
  simulate = distinguisher.query(query, len(schedule), taken, stock.clip, stock.clients_per_round)
  return Game(float(mu.max()), simulate)


def _quap_game(plan: plans.Plan, schedule: Sequence[np.ndarray], draws: int, seed: Optional[int]) -> Game:
  # The game is for a fixed clipping norm; a norm that follows the clients' norms gives away even more.
  config: Any = plan.config  # A `QuapConfig`, as its facts say.
  config = dataclasses.replace(config, clip=clip_rules.Fixed(1.0), max_agg_norm=None)
  mu = _formal_mu(plan, plan.planned_ledger(schedule))
  simulate = distinguisher.quap(config, schedule, int(mu.argmax()), seed)
  return Game(float(mu.max()), simulate)


# By `Facts.game`.
_GAMES = {'certified': _certified_game, 'stock': _stock_game, 'quap': _quap_game}


def _formal_mu(plan: plans.Plan, ledger: accounting.RunLedger) -> np.ndarray:
  """The privacy loss of each client from the noised layers alone, as μ, float64[N]."""
  epsilon = accounting.epsilon_by_client(ledger, plan.delta)
  mu = np.zeros(len(epsilon))
  # No μ fits a client that is not protected: it counts as 0, so that the game is played with another one.
  for client in np.flatnonzero((epsilon > 0) & np.isfinite(epsilon)):
    mu[client] = tradeoff.mu_at_most(float(epsilon[client]), plan.delta)
  return mu
