"""The certificate of a run whose cohorts stay secret: of public constants alone, and of nothing that says who came.

It rests on theorem 6 (docs/proofs.md): rates, weights, noise and the planned number of rounds. How many rounds were
run, when, and who was in them plays no part in it. Everything is computed again from mechanism.json.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from quap_tff import accounting
from quap_tff.accounting import own_rates
from quap_tff.certificates import sentences
from quap_tff.certificates.folders import folder as folders
from quap_tff.common.numbers import rounding
from quap_tff.mechanisms.secret_cohorts import config as configs
from quap_tff.plans.accounts import run_account
from quap_tff.plans.accounts import secret_coins

_AMPLIFICATION = (
  'secret coins: each client is drawn in each round by a coin of its own public rate, and its account is of this rate. '
  'It is counted only because nobody learns who was drawn'
)
_COINS = (
  'In each round, each client is drawn by a coin of its rate in clients.csv, independently of all other coins, of all '
  'data and of the noise. The coins come from a key of 256 bits by the stream cipher ChaCha20. The server draws the '
  'key from the entropy of its operating system each time it starts, and the key has no other use.'
)
# By whether norms are counted.
_MULTIPLIER = {False: 'z/w', True: '1/√(w²/z² + 1/c²), where c is that of the counts,'}
_SECRECY = (
  'The coins stay secret. The server knows them. A client that is drawn knows it of itself. Anyone who watches the '
  'traffic sees whom the server calls. If one of them tells others, the protection that this secrecy gives is gone, '
  'and the statement says what remains. Nothing in the program can enforce the secrecy.'
)
_NOTHING_FOLLOWS = (
  'Nothing but what is noised follows from who was drawn. Every round releases, also if nobody was drawn. Divisors, '
  'weights and noise are constants, and so is the clipping norm, unless it follows from noised counts. A drawn client '
  'that does not come, whatever the reason, adds zero. No second try follows from it, and no decision to stop the run.'
)
_UPDATES = (
  'The update of a client may follow from its data, from earlier releases and from what it keeps for itself, such as '
  'the rounds that it was in. No state of the server that an update follows from depends on who was drawn, except '
  'through releases.'
)


def statement(plan: run_account.RunAccount, epsilon: np.ndarray) -> str:
  """The guarantee, and what it does not say."""
  mechanism = _mechanism(plan)
  config, slack = mechanism.config, plan.slack
  known = rounding.up(secret_coins.epsilon_if_known(mechanism, slack), 6)
  own = ' Each client has a bound of its own, in mechanism.json, which is at most this ε.' if config.own_epsilon else ''
  own_updates = sentences.own_updates(plan)
  what = 'noised sums and counts' if config.counts_norms else 'noised sums'
  most, words = rounding.up(float(epsilon.max()), 6), sentences.OF_TRUST[config.trust]
  return (
    f'In integers, with {words.against}, cohorts that are drawn by coins of public rates and stay secret, public '
    f'constants, and {words.secret}, the {what} of this run, and everything that is computed from them alone, are '
    f'(ε, δ)-differentially private for each of the {config.num_clients:,} clients with ε = '
    f'{sentences.whole(config.epsilon)} and δ = {sentences.whole(config.delta)}, in total over all '
    f'{mechanism.num_rounds:,} planned rounds, wherever the run ended. Unit: {accounting.UNIT}. Neighbours: '
    f'{accounting.ADD_OR_REMOVE}. Amplification by the secret coins is counted, for each client by its own rate. The '
    f'largest ε of a client is {most}.{own} The coins must stay secret from everyone against whom this is to hold: the '
    'server knows them, a drawn client knows of itself, and the network sees whom the server calls. Nothing enforces '
    f'this secrecy. Against those who learn the coins, ε ≤ {known} is left (zero-out). Given ideal random bits, the '
    f'statement holds for the integers that were computed, and ε includes {rounding.up(slack.epsilon, 3)} for '
    'rounding. With the bits of ChaCha20, of the coins and of the noise, it holds computationally. Timing is not '
    f'covered. The folder is consistent with such a run. Nothing in it proves that the run took place.{own_updates}'
  )


def refusals(plan: run_account.RunAccount, tests: int, epsilon: np.ndarray) -> list[str]:
  """The reasons why a run of a plan gets no certificate, a sentence each; empty if it gets one."""
  mechanism = _mechanism(plan)
  reasons = []
  if tests > mechanism.num_rounds:
    reasons.append(f'The issuer states {tests} tests, but {mechanism.num_rounds} rounds are planned.')
  bounds = np.broadcast_to(mechanism.config.own_epsilon or mechanism.config.epsilon, epsilon.shape)
  over = np.flatnonzero(~(epsilon <= bounds))
  if len(over):
    client = int(over[np.argmax(epsilon[over] / bounds[over])])
    reasons.append(
      f'{len(over)} of {len(epsilon)} clients would spend more than their bound at δ = {sentences.whole(plan.delta)}. '
      f'Client {client} would spend ε = {rounding.up(float(epsilon[client]), 6)}, and its bound is '
      f'{sentences.whole(float(bounds[client]))}.'
    )
  return reasons


def parts(content: folders.Content, epsilon: np.ndarray) -> dict[str, Any]:
  """What a certificate of secret cohorts says in place of that of public ones: values that JSON can hold, by name."""
  plan, about, up = content.plan, content.about, sentences.up
  mechanism = _mechanism(plan)
  distance = own_rates.total_variations(mechanism.rates, mechanism.own_multipliers, mechanism.num_rounds).max()
  published = sentences.stated(about.post_processing) if about.post_processing else 'the noised weights as they are.'
  multiplier = rounding.down(mechanism.noise_multiplier, 6)
  trained = sum(plan.shape.sizes)
  of_counts = _share_of_counts(mechanism, epsilon)
  releases = [
    (
      f"sum of the clients' clipped updates, for all {trained:,} trained weights",
      mechanism.num_rounds,
      1.0 - of_counts,
      f'Gaussian noise with noise multiplier {multiplier}, independent from round to round',
    ),
    *_counts(mechanism, of_counts),
    ('loss and accuracy on the test set', about.tests, 0.0, 'post-processing, because the test set is public'),
    ('published weights', 1, 0.0, f'post-processing: {published}'),
  ]
  return {
    'statement': statement(plan, epsilon),
    'guarantee': {
      'neighbours': accounting.ADD_OR_REMOVE,
      'accountant': f'{accounting.ACCOUNTANTS["pld"].method}, over all planned rounds, of the Poisson-subsampled '
      f'Gaussian with the rate q and the noise multiplier {_MULTIPLIER[mechanism.config.counts_norms]} of each client',
      'amplification': _AMPLIFICATION,
      'total_variation': up(float(distance)),
      'epsilon_if_coins_become_known': up(secret_coins.epsilon_if_known(mechanism, plan.slack)),
    },
    'other_relations': [
      {
        'neighbours': f'{accounting.ZERO_OUT}, as long as nobody learns who was drawn',
        'unit': accounting.UNIT,
        'epsilon': up(float(epsilon.max())),
      }
    ],
    'achieved': {
      'planned_rounds': mechanism.num_rounds,
      'clients': mechanism.num_clients,
      'rates': by_rate(mechanism, epsilon),
      'is_reading': False,
    },
    'releases': [dict(zip(('what', 'rounds', 'share_of_worst_client', 'how'), row)) for row in releases],
    'withheld': [
      'Who was drawn in which round, who came, how many they were, and whatever follows from it: ledgers, sizes of '
      'cohorts and messages, running times, and how many rounds were run when.',
      *sentences.WITHHELD,
    ],
    'assumptions': [
      *sentences.OF_TRUST[mechanism.config.trust].assumptions,
      _COINS,
      _SECRECY,
      f'{_NOTHING_FOLLOWS} {sentences.stated(about.cohorts)}',
      _UPDATES,
      *sentences.common_assumptions(plan, about),
    ],
  }


def _share_of_counts(mechanism: configs.SecretCohorts, epsilon: np.ndarray) -> float:
  """The part of noised counts in 1/z_i² of the client that spends most."""
  multiplier = float(mechanism.own_multipliers[np.argmax(epsilon)])
  return round((multiplier / mechanism.clip.count_noise_multiplier) ** 2, 6)


def _counts(mechanism: configs.SecretCohorts, share: float) -> list[tuple[str, int, float, str]]:
  if not mechanism.config.counts_norms:
    return []
  noise = rounding.down(mechanism.clip.count_noise_multiplier, 6)
  how = f'Gaussian noise with noise multiplier {noise}, divided by the expected number of clients'
  what = 'number of update norms within the clipping norm, from which the next clipping norm is computed'
  return [(what, mechanism.num_rounds, share, how)]


def by_rate(mechanism: configs.SecretCohorts, epsilon: np.ndarray) -> list[dict[str, Any]]:
  """The distinct accounts: rate, weight and ε, and how many clients have each."""
  rows = np.stack([mechanism.rates, mechanism.planned_weights.astype(np.float64), epsilon])
  distinct, counts = np.unique(rows, axis=1, return_counts=True)
  found = []
  for (rate, weight, spent), clients in zip(distinct.T.tolist(), counts.tolist()):
    found.append({'rate': rate, 'weight': weight, 'epsilon': sentences.up(spent), 'clients': clients})
  return found


def _mechanism(plan: run_account.RunAccount) -> configs.SecretCohorts:
  mechanism = plan.secret
  assert mechanism is not None  # Callers ask for secret cohorts alone.
  return mechanism
