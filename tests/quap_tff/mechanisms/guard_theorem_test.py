"""The theorem on servers that lie (docs/proofs.md), by brute force: random servers against real guards.

What a server has seen follows from the guards' answers alone. Its noise is R = A·z with independent z, so each client's
exact loss is w_iᵀ·(A·Aᵀ)⁻¹·w_i. It must be at most what the client's guard has counted, and at most its limit.
"""

import dataclasses

import numpy as np
import pytest

from quap_tff.mechanisms.held import guard
from quap_tff.mechanisms.noise import held_noise


def _plan(rng, clients, rounds, decay, threshold):
  scale = rng.uniform(0.5, 3)
  weights = np.float32(rng.uniform(0.1, 1.0, clients) * (rng.random(clients) < 0.9)).astype(np.float64)
  limit = rng.choice([1e9, rng.uniform(0.02, 1.0) * rounds / scale**2]) * rng.uniform(0.3, 1, clients)
  opened = held_noise.opened(clients, scale, decay)
  return guard.PublicPlan(weights, limit, rounds, clients, threshold, int(rng.integers(2**62)), opened)


def _guards(plan):
  return [guard.ClientGuard(plan, client, bytes(32)) for client in range(len(plan.weights))]


def _exact(plan, answers, sums):
  """float64[N], μ_i² of the sums: pairs of a round and its members. `answers` are last rounds, by round and client."""
  clients, decay, rows, weights = len(plan.weights), plan.opened.decay, [], []
  for round_num, members in sums:
    # Noise of V, W, and the noise that replaces W in a new chain.
    row = np.zeros([3, clients, plan.num_rounds + 1])
    for client in members:
      last = answers[round_num, client]
      row[0, client, round_num] = 1 - decay
      row[1, client, round_num] = decay**0.5
      if last:
        row[2 if last == guard.NEW_CHAIN else 1, client, round_num if last == guard.NEW_CHAIN else last] = -(decay**0.5)
    rows.append(row.ravel() * plan.opened.noise_multiplier / (plan.threshold or 1.0) ** 0.5)
    weights.append(plan.weights * np.isin(np.arange(clients), members))
  noise, moved = np.array(rows), np.array(weights)
  return np.einsum('tj,tj->j', moved, np.linalg.solve(noise @ noise.T, moved))


def _counted(guards):
  """float64[N], the larger of a guard's two accounts of its client."""
  standings = [(client, one._standing) for client, one in enumerate(guards)]
  return np.array([max(s.chain.account.spent[i], s.charged.spent[i] if s.charged else 0.0) for i, s in standings])


def _play(rng, threshold=None, gives_up=0.2, victim=None):
  """A random server, which may say to all that a victim was absent that came.

  Returns the exact losses, those counted, their limits, all last rounds, and how many refused.
  """
  clients, rounds = int(rng.integers(2, 5)), int(rng.integers(4, 7))
  plan = _plan(rng, clients, rounds, 0.0 if threshold else rng.choice([0.0, rng.uniform(0.05, 0.99)]), threshold)
  if not gives_up:
    plan = dataclasses.replace(plan, limit=1e9)
  guards, answers, sums, refused = _guards(plan), {}, [], 0
  said = [np.zeros(0, np.int64)] * clients
  for round_num in range(1, rounds + 1):
    cohort = np.flatnonzero(rng.random(clients) < 0.7)
    sends, heard = plan.sends(cohort), []
    for client, one in enumerate(guards):
      if threshold and client not in cohort and rng.random() < 0.5:
        continue  # The round is hidden from it.
      heard.append(client)
      try:
        if client in sends:
          answers[round_num, client] = int(one.answer(round_num, cohort, said[client])['last_round'])
          continue
      except guard.RefusedError as error:
        assert 'past its bound' in str(error)
        refused += 1
      one.follow(round_num, cohort, said[client])
    came = np.array([client for client in sends if (round_num, client) in answers], np.int64)
    if threshold:
      drawn = lambda ids: ids[rng.random(len(ids)) < 0.7]
      kept = drawn(came)
      came = kept if len(kept) >= threshold * len(sends) else kept[:0]
    elif len(came) < len(sends) or rng.random() < gives_up:
      came = came[:0]  # The round is given up.
    sums += [(round_num, came)] if len(came) else []
    if victim in came and rng.random() < 0.5:
      came = came[came != victim]
    for client in heard:
      # Those without a weight send nothing, whatever is said of them.
      said[client] = np.union1d(came, np.setdiff1d(cohort, sends)) if len(came) else came
      if threshold:
        lie = drawn(sends if (round_num, client) in answers else sends[sends != client])
        said[client] = lie if len(lie) >= threshold * len(sends) else lie[:0]
  for client, one in enumerate(guards):
    one.follow(rounds + 1, [], said[client])
  lasts = list(answers.values())
  exact = _exact(plan, answers, sums) if sums else np.zeros(clients)
  return exact, _counted(guards), plan.limit, lasts, refused


@pytest.mark.slow
@pytest.mark.parametrize('runs', [40, pytest.param(100, marks=pytest.mark.thorough)])
@pytest.mark.parametrize('threshold', [None, 0.5, 2 / 3])
def test_no_client_loses_more_than_its_guard_has_counted(threshold, runs):
  rng, anew, refusals = np.random.default_rng(0), 0, 0
  for _ in range(runs):
    exact, counted, limit, lasts, refused = _play(rng, threshold)
    assert (exact <= counted * (1 + 1e-12)).all() and (exact <= limit * (1 + 1e-12)).all()
    anew += guard.NEW_CHAIN in lasts
    refusals += refused
  assert anew > 0.3 * runs and refusals > 0.3 * runs


@pytest.mark.slow
def test_a_server_that_tells_the_truth_gets_exactly_what_is_counted():
  rng = np.random.default_rng(1)
  for _ in range(50):
    exact, counted, *_ = _play(rng, gives_up=0.0)
    np.testing.assert_allclose(exact, counted, rtol=1e-9)


@pytest.mark.slow
def test_of_a_client_that_is_said_to_be_absent_its_own_account_alone_holds():
  rng, above = np.random.default_rng(2), 0
  for _ in range(100):
    exact, counted, *_ = _play(rng, victim=0)
    assert exact[0] <= counted[0] * (1 + 1e-12)
    above += (exact[1:] > counted[1:] * (1 + 1e-9)).any()
  assert above > 0


def test_a_server_that_hides_rounds_is_seen_by_digests_alone():
  """Clients hear only of their own rounds: one loses 1.35 times as much as any guard has counted, as the page says."""
  weights, opened = np.ones(4), held_noise.opened(4, 1.0, 0.93)
  plan = guard.PublicPlan(weights, 1e9, 5, 4, None, 1, opened)
  guards, answers, sums, counted = _guards(plan), {}, [], 0.0
  said = [[] for _ in range(4)]
  for round_num, cohort in enumerate([[0, 2], [2, 3], [1, 2], [0, 3], [0, 1]], 1):
    for client in cohort:
      answers[round_num, client] = int(guards[client].answer(round_num, cohort, said[client])['last_round'])
      said[client] = cohort
      chain = guards[client]._standing.chain
      counted = max(counted, plan.after(chain.account, chain.cohort).spent.max())
    sums.append((round_num, cohort))
  assert 1.35 <= np.sqrt(_exact(plan, answers, sums).max() / counted) < 1.36
  assert len({one.digest for one in guards}) == 4
