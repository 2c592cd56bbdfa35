"""What a certificate says in words, and the facts that its words are made of."""

import dataclasses
import math
from typing import Any, Dict, List, Tuple

import numpy as np

from quap_tff import checks
from quap_tff.accounting import accountants
from quap_tff.accounting import history
from quap_tff.accounting import ledger_histories
from quap_tff.accounting import run_ledger

ACCOUNTANT = f'{accountants.GaussianExact.method}, over all rounds: μ² = Σ w²/z² of the sums + Σ 1/c² of the counts'
AMPLIFICATION = 'none: no sampling is counted, and who takes part may be known'
WITHHELD = (
    'Training loss and training accuracy of clients.',
    'Norms of updates, their quantiles, the fraction that is clipped, the number of updates that are not finite.',
    'Norms of signal and noise.',
    'Number of examples of each client, and accuracy by client.',
    'The seed of the noise, and the checkpoints, which hold it.',
)


@dataclasses.dataclass(frozen=True)
class Facts:
  """What the ledger of a run does not tell. Texts are whole sentences, printed as they are.

  Attributes:
    algorithm: The spec of the method.
    epsilon: ε_total in nats, which no client may pass.
    delta: δ, in total over all rounds.
    noised_weights: Number of trained weights that the noise covers.
    trained_weights: Number of weights that are trained on clients' data.
    clipping: How each client's part of a sum is bounded.
    tuning: How the constants of the run were chosen.
    public_data: What the features of the examples have seen besides them; '' for nothing.
    post_processing: What is done to the noised weights before they are published; '' for nothing.
    fixed_noise_seed: Whether the seed of the noise was given instead of drawn.
    exact_clip: Whether a clipping norm is an un-noised function of clients' data.
    exact_metrics: Names of exact functions of clients' data that were released: losses, norms, ….
  """

  algorithm: str
  epsilon: float
  delta: float
  noised_weights: int
  trained_weights: int
  clipping: str
  tuning: str
  public_data: str = ''
  post_processing: str = ''
  fixed_noise_seed: bool = False
  exact_clip: bool = False
  exact_metrics: Tuple[str, ...] = ()

  def __post_init__(self):
    checks.number('epsilon', self.epsilon, above=0)
    checks.number('delta', self.delta, above=0, below=1)
    checks.integer('trained_weights', self.trained_weights, at_least=1)
    checks.integer('noised_weights', self.noised_weights, at_least=0, at_most=self.trained_weights)
    for name in ('algorithm', 'clipping', 'tuning'):
      if not getattr(self, name):
        raise ValueError(f'{name} must be said in words, found {getattr(self, name)!r}.')
    object.__setattr__(self, 'exact_metrics', tuple(self.exact_metrics))


def statement(ledger: run_ledger.RunLedger, facts: Facts, epsilon_max: float) -> str:
  """The guarantee in a paragraph."""
  return (
      f'For each of the {ledger.num_clients:,} clients, all that this run releases is (ε, δ)-differentially private '
      f'with ε = {facts.epsilon:g} and δ = {facts.delta:g}, in total over its {ledger.num_rounds:,} rounds. Unit: '
      f'{accountants.UNIT}. Neighbours: {history.ZERO_OUT}. No amplification by sampling is counted. The client that '
      f'spent most has spent ε = {_rounded_up(epsilon_max)}.'
  )


def releases(ledger: run_ledger.RunLedger, facts: Facts, mu: ledger_histories.TotalMu) -> List[Dict[str, Any]]:
  """All that leaves the server: what, in how many rounds, its share of the largest μ², and why it may."""
  state = ledger.state_dict()
  occupied = np.diff(state['offsets']) > 0
  sums = state['noise_multipliers'][occupied]
  counts = state['count_noise_multipliers'][occupied]
  counts = counts[np.isfinite(counts)]
  worst = int(np.argmax(mu.whole))
  share = lambda part: float((part[worst] / mu.whole[worst])**2) if mu.whole[worst] else 0.0
  free = [
      ('who took part in which round with what weight', ledger.num_rounds,
       'public by the neighbouring relation; no function of clients\' data'),
      ('loss and accuracy on the test set', ledger.num_rounds, 'post-processing: the test set is public'),
      ('published weights', 1, f'post-processing: {facts.post_processing or "the last noised weights as they are."}'),
  ]
  return [
      _release(
          f'sum of the clients\' clipped updates, all {facts.trained_weights:,} trained weights', len(sums),
          share(mu.updates), _noise(sums),
      ),
      _release('count of the norms within the clip, which moves it', len(counts), share(mu.counts), _noise(counts)),
      *(_release(what, rounds, 0.0, how) for what, rounds, how in free),
  ]


def _release(what, rounds, share, how):
  return {'what': what, 'rounds': rounds, 'share_of_worst_client': share, 'how': how}


def _noise(multipliers) -> str:
  if not len(multipliers):
    return 'never released'
  ends = sorted({f'{multipliers.min():.6g}', f'{multipliers.max():.6g}'}, key=float)
  return f'Gaussian noise, noise multiplier {" to ".join(ends)}'


def assumptions(facts: Facts) -> List[str]:
  """Without which the statement does not hold."""
  features = f'Features: {facts.public_data} This is taken as public.' if facts.public_data else (
      'Features are functions of the example alone: no data stand behind them.'
  )
  return [
      'The server is trusted: it sees the clients\' updates, adds the noise, and releases nothing but what is listed.',
      'Whether a client takes part in a round does not depend on its data.',
      f'Each client\'s part of a sum is bounded, and a client without data adds zero: {facts.clipping}',
      f'Constants and hyper-parameters are public and were chosen without clients\' data: {facts.tuning}',
      features,
      'The test set is public: no client\'s data.',
      'The seed of the noise came from the operating system\'s entropy and stays secret, with the checkpoints that '
      'hold it. The generator, Philox, is not a cryptographic one: the guarantee is against those who cannot tell its '
      'numbers from random ones.',
      'The statement is about real numbers; clipping, sums and noise are float32 approximations of them. The low bits '
      'of the noise can give it away to whoever knows everything but one client\'s update exactly (Mironov 2012; Haney '
      'et al. 2022): that is outside of the guarantee.',
      'Running times, which depend on how much data clients have, are outside of the guarantee.',
      'This run alone: every other run on the same clients, for tuning or for comparison, adds to what they spend.',
  ]


def _rounded_up(value: float) -> str:
  return f'{math.ceil(value * 1e4) / 1e4:g}'
