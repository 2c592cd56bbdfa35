"""The facts that a certificate needs in addition to a ledger, and the sentences that are made of both.

Verification makes these sentences again and compares them, so a change of any is a new version of certificates.
"""

from collections.abc import Mapping
import dataclasses
import math
from typing import Any

import numpy as np

from quap_tff import accounting
from quap_tff.accounting import ledger_histories
from quap_tff.common import checks
from quap_tff.common import rounding
from quap_tff.mechanisms import integer_noise
from quap_tff.mechanisms import slack as slacks
from quap_tff.mechanisms import tradeoff

AMPLIFICATION = 'none: sampling is not counted, and who takes part may be known'
WITHHELD = (
  'The training loss and training accuracy of clients.',
  'The norms of updates and their quantiles, the fraction of updates that were clipped, and the number of updates '
  'that were not finite.',
  'The norms of the signal and of the noise.',
  'The number of examples of each client, and the accuracy of each client.',
  'Running times, which depend on the numbers of examples: no file of the run holds one.',
  'The seed of the noise, and the checkpoints, which contain the seed.',
)
_IN_FLOATS = (
  "The seed of the noise came from the operating system's entropy. It stays secret, and so do the checkpoints "
  'that contain it. The noise generator, Philox, is not cryptographic: the guarantee holds against those who '
  'cannot tell its numbers from random ones.',
  'The statement is about real numbers. Clipping, sums and noise are computed in float64 numbers, which only '
  'approximate real numbers. The low bits of a noised sum can reveal the noise to someone who knows the exact '
  "values of everything except one client's update (Mironov 2012; Haney et al. 2022). That attack is outside the "
  'guarantee.',
)
_IN_INTEGERS = (
  "The key of the noise, 256 bits, came from the operating system's entropy. It stays secret, and so do the "
  'checkpoints that contain it. Given ideal random bits, the statement holds for the integers that are computed. The '
  'bits come from the stream cipher ChaCha20: the guarantee holds against those who cannot tell its stream from '
  'random bits.',
  'Clipping is checked in integers, and sums are exact. The noise is a rounded Gaussian whose probabilities have a '
  f'relative error of at most 2^{round(math.log2(integer_noise.RELATIVE_ERROR))}. The error is counted. The bound '
  "assumes that the processor's float64 operations are those of IEEE 754, and that its exponential function errs by "
  'at most 2^-50 of the result.',
)
_HELD = (
  "Each client draws its noise from a key of its own: 256 bits of its operating system's entropy, which nobody else "
  'has. It answers a round once. Given ideal random bits, the statement holds for the integers '
  'that are computed. The bits come from the stream cipher ChaCha20: the guarantee holds against those who cannot tell '
  'its stream from random bits. In a simulation, all keys are made by one operator.',
  _IN_INTEGERS[1].replace('rounded Gaussian', 'sum of discrete Gaussians'),
)
_TRUSTED = {
  'server': 'a trusted server',
  'secure_sum': 'a secure sum that reveals nothing but the sum of those who send, without trust in the server',
}
_ON_TRUST = {
  'server': (
    "The server is trusted: it sees the clients' updates, adds the noise, and releases only what is listed here.",
  ),
  'secure_sum': (
    'The server is not trusted with updates: it sees their secure sum, which holds noise from every client that sends. '
    'The protocol of the secure sum (such as Bonawitz et al. 2017) is assumed, and simulated here. So are clients that '
    'follow it, except for the colluders that a figure counts, and a server that announces the cohorts as they are.',
  ),
}
# How many clients may belong to one person or household, with several devices or accounts.
_GROUPS = (2, 3, 5)
_FROM_A_SEED = 'The cohorts follow from a public seed.'


@dataclasses.dataclass(frozen=True)
class Facts:
  """The facts of a run that its ledger does not hold. Texts are whole sentences and are printed as they are.

  Attributes:
    algorithm: The spec of the method.
    epsilon: ε_total in nats, which no client may exceed.
    delta: δ, in total over all rounds.
    planned_rounds: T. The ledger may hold fewer rounds.
    noised_weights: Number of trained weights that the noise covers.
    trained_weights: Number of weights that are trained on clients' data.
    clipping: How each client's part of each sum is bounded.
    tuning: How the constants of the run were chosen.
    test_set: Whose examples the test set holds.
    tests: How often loss and accuracy on the test set were released.
    public_data: Which other data the features of the examples were made from; '' for none.
    post_processing: How the noised weights are changed before they are published; '' if they are not.
    fixed_noise_seed: Whether the seed of the noise was given instead of being drawn.
    exact_clip: Whether a clipping norm is an un-noised function of clients' data.
    exact_metrics: The names of exact functions of clients' data that were released, such as losses and norms.
    own_epsilon: The bound that each client has chosen for itself, at most `epsilon`; empty if it is `epsilon` for all.
    cohorts: Where the cohorts come from.
    arithmetic: 'integer' or 'float'.
    slack: What rounding costs, which every ε here includes.
    trust: 'server', or 'secure_sum' if the server sees noised secure sums alone.
    colluders: (k, μ) for numbers k of clients that may tell the server their noise: the largest μ against the server
      and any k others, over all planned rounds.
  """

  algorithm: str
  epsilon: float
  delta: float
  planned_rounds: int
  noised_weights: int
  trained_weights: int
  clipping: str
  tuning: str
  test_set: str
  tests: int = 0
  public_data: str = ''
  post_processing: str = ''
  fixed_noise_seed: bool = False
  exact_clip: bool = False
  exact_metrics: tuple[str, ...] = ()
  own_epsilon: tuple[float, ...] = ()
  cohorts: str = _FROM_A_SEED
  arithmetic: str = 'float'
  slack: slacks.Slack = slacks.Slack()
  trust: str = 'server'
  colluders: tuple[tuple[int, float], ...] = ()

  def __post_init__(self):
    checks.number('epsilon', self.epsilon, above=0)
    checks.number('delta', self.delta, above=0, below=1)
    checks.integer('planned_rounds', self.planned_rounds, at_least=1)
    checks.integer('trained_weights', self.trained_weights, at_least=1)
    checks.integer('noised_weights', self.noised_weights, at_least=0, at_most=self.trained_weights)
    checks.integer('tests', self.tests, at_least=0)
    for name in ('algorithm', 'clipping', 'tuning', 'test_set', 'cohorts'):
      if not getattr(self, name) or not isinstance(getattr(self, name), str):
        raise ValueError(f'{name} must be a sentence, found {getattr(self, name)!r}.')
    object.__setattr__(self, 'exact_metrics', tuple(self.exact_metrics))
    for own in self.own_epsilon:
      checks.number('own_epsilon', own, above=0, at_most=self.epsilon)
    object.__setattr__(self, 'own_epsilon', tuple(map(float, self.own_epsilon)))

  def bounds(self, num_clients: int) -> np.ndarray:
    """float64[N], the ε that each client may spend."""
    return np.array(self.own_epsilon) if self.own_epsilon else np.full(num_clients, float(self.epsilon))

  @property
  def mu(self) -> float:
    """The largest μ that ε and δ allow, after what rounding costs."""
    return tradeoff.mu_at_most(self.epsilon - self.slack.epsilon, self.delta - self.slack.delta)

  def as_dict(self) -> dict[str, Any]:
    """For JSON. Earlier versions had cohorts from a seed and float arithmetic, and did not say so."""
    found = dataclasses.asdict(self)
    found.update(exact_metrics=list(self.exact_metrics), own_epsilon=list(self.own_epsilon))
    if self.arithmetic == 'float':
      del found['arithmetic'], found['slack']
    else:
      found['slack'] = self.slack._asdict()
    if self.trust == 'server':
      del found['trust'], found['colluders']
    else:
      found['colluders'] = [list(one) for one in self.colluders]
    return {name: value for name, value in found.items() if name != 'cohorts' or value != _FROM_A_SEED}


def statement(ledger: accounting.RunLedger, facts: Facts, epsilon_max: float, provenance: Mapping[str, Any]) -> str:
  """The guarantee, and what it does not say."""
  own = ''
  if facts.own_epsilon:
    counts = ', '.join(f'ε = {whole(bound)} for {clients:,}' for bound, clients in own_bounds(facts))
    own = (
      f' Each client has a bound of its own, which is at most this ε, and for it the same holds with that bound: '
      f'{counts}. The facts give the bound of each client.'
    )
  most = rounding.up(epsilon_max, 5)
  if ended_early(ledger, facts):
    spent = (
      f'The run ended after {ledger.num_rounds:,} of {facts.planned_rounds:,} planned rounds, and ε is the bound of '
      f'the whole plan. A reading of the account at that moment gives ε = {most} for the client that spent most. A '
      'reading is not a guarantee, because the moment may depend on what was released.'
    )
  else:
    spent = f'The client that spent most has spent ε ≤ {most}.'
  numbers, numbers_are, secret = '', 'real arithmetic', 'a seed that stays secret'
  if facts.arithmetic == 'integer':
    cost = rounding.up(facts.slack.epsilon, 3)
    numbers_are = 'integers'
    secret = 'keys of clients that stay secret' if facts.trust == 'secure_sum' else 'a key that stays secret'
    numbers = (
      f' Given ideal random bits, this holds for the integers that were computed, and ε includes {cost} for rounding. '
      'With the bits of ChaCha20 it holds computationally. Timing is not covered.'
    )
  stretches = len(provenance.get('stretches', ()))
  changed = f' Its rounds were run in {stretches} stretches by other code, other versions or other machines.'
  return (
    f'In {numbers_are}, with {_TRUSTED[facts.trust]}, public cohorts and constants, and {secret}, the '
    'noised sums and counts of this run, and everything that is computed from them alone, are (ε, δ)-differentially '
    f'private for each of the {ledger.num_clients:,} clients with ε = {whole(facts.epsilon)} and δ = '
    f'{whole(facts.delta)}, in total over all {facts.planned_rounds:,} planned rounds. Unit: {accounting.UNIT}. '
    f'Neighbours: {accounting.ZERO_OUT}. Amplification by sampling is not counted. {spent}{own}{numbers} The folder is '
    f'consistent with such a run. Nothing in it proves that the run took place.{changed if stretches > 1 else ""}'
  )


def ended_early(ledger: accounting.RunLedger, facts: Facts) -> bool:
  """Whether the run ended before its plan, at a moment that may depend on what it had released."""
  return ledger.num_rounds < facts.planned_rounds


def whole(value: float) -> str:
  """A given constant in all its digits."""
  return rounding.up(value, 15)


def own_bounds(facts: Facts) -> list[tuple[float, int]]:
  """The distinct bounds that clients have chosen, and how many clients have each."""
  bounds, clients = np.unique(np.asarray(facts.own_epsilon, np.float64), return_counts=True)
  return list(zip(bounds.tolist(), clients.tolist()))


def accountant(ledger: accounting.RunLedger) -> str:
  """How μ is added up."""
  sums, noise = 'Σ w²/z²', ''
  if ledger.correlation.num_buffers:
    sums = 'Σ_s (Σ_{t≤s} c_{s-t}·w_t)²/z²'
    noise = f' The noise is correlated with the coefficients c_0 = 1 and {ledger.correlation.formula}.'
  return (
    f'{accounting.ACCOUNTANTS["gaussian_exact"].method}, over all rounds: μ² = {sums} for the sums + Σ 1/c² '
    'for the counts. Here w is the client\'s weight in a round, z is the noise multiplier of the sums, and c is the '
    f'noise multiplier of the counts.{noise}'
  )


def other_relations(facts: Facts) -> list[dict[str, Any]]:
  """The same guarantee for other units and other neighbours. The bound for k clients together is k·μ."""
  rows = [
    ('add or remove one client whose place in the schedule is public', accounting.UNIT, 1),
    (accounting.REPLACE_ONE, accounting.UNIT, 2),
    *(
      (f'the data of {k} clients together against nothing in their places', f'{k} clients together', k) for k in _GROUPS
    ),
  ]
  return _stated(facts, [({'neighbours': neighbours, 'unit': unit}, k * facts.mu) for neighbours, unit, k in rows])


def against_colluders(facts: Facts) -> list[dict[str, Any]]:
  """For each number k of colluders, the largest ε against the server and any k others, over all planned rounds."""
  return _stated(facts, [({'clients': count}, mu) for count, mu in facts.colluders])


def _stated(facts, rows) -> list[dict[str, Any]]:
  """The rows with their μ and ε, but for those whose ε the slack does not cover."""
  # The ε of μ is rounded up by less than this tolerance.
  largest = max(facts.epsilon, slacks.LARGEST_EPSILON) * (1 + 1e-9) if facts.slack.delta else math.inf
  found = [{**row, 'epsilon': float(facts.slack.of(mu, facts.delta)), 'mu': mu} for row, mu in rows]
  return [row for row in found if row['epsilon'] <= largest]


def releases(ledger: accounting.RunLedger, facts: Facts, mu: ledger_histories.TotalMu) -> list[dict[str, Any]]:
  """Everything that leaves the server: what, in how many rounds, its share of the largest μ², and why it may."""
  state = ledger.state_dict()
  occupied = np.diff(state['offsets']) > 0
  sums = state['noise_multipliers'][occupied]
  counts = state['count_noise_multipliers'][occupied]
  counts = counts[np.isfinite(counts)]
  worst = int(np.argmax(mu.whole))
  share = lambda part: float((part[worst] / mu.whole[worst]) ** 2) if mu.whole[worst] else 0.0
  free = [
    (
      'who took part in which round, and with what weight',
      ledger.num_rounds,
      "public by the neighbouring relation, and not a function of clients' data",
    ),
    ('loss and accuracy on the test set', facts.tests, 'post-processing, because the test set is public'),
    ('published weights', 1, f'post-processing: {facts.post_processing or "the last noised weights as they are."}'),
  ]
  return [
    _release(
      f"sum of the clients' clipped updates, for all {facts.trained_weights:,} trained weights",
      len(sums),
      share(mu.updates),
      _noise(sums, _correlated(ledger)),
    ),
    _release(
      'number of update norms within the clipping norm, from which the next clipping norm is computed',
      len(counts),
      share(mu.counts),
      _noise(counts),
    ),
    *(_release(what, rounds, 0.0, how) for what, rounds, how in free),
  ]


def _correlated(ledger) -> str:
  if not ledger.correlation.num_buffers:
    return ', independent from round to round'
  return ', correlated from round to round: each round takes back part of the noise that earlier rounds added'


def _release(what, rounds, share, how):
  return {'what': what, 'rounds': rounds, 'share_of_worst_client': share, 'how': how}


def _noise(multipliers, more='') -> str:
  if not len(multipliers):
    return 'never released'
  ends = sorted({rounding.down(multipliers.min(), 6), rounding.down(multipliers.max(), 6)}, key=float)
  return f'Gaussian noise with noise multiplier {" to ".join(ends)}{more}'


def assumptions(facts: Facts) -> list[str]:
  """The assumptions of the statement."""
  features = 'The features of an example are a function of that example alone. No other data were used to make them.'
  if facts.public_data:
    features = f'Features: {facts.public_data} The data that they were made from are assumed to be public.'
  return [
    *_ON_TRUST[facts.trust],
    f'Whether a client takes part in a round does not depend on its data. {facts.cohorts}',
    f"Each client's part of a sum is bounded, and a client without data adds zero. {facts.clipping}",
    "Constants and hyper-parameters are public. It is assumed that their choice does not depend on clients' data. "
    f'How they were chosen: {facts.tuning}',
    *(
      ['The bound that a client has chosen for itself is public, and does not depend on its data.']
      if facts.own_epsilon
      else []
    ),
    features,
    f"The test set is public and contains no client's data: {facts.test_set}",
    *(_HELD if facts.trust == 'secure_sum' else _IN_INTEGERS if facts.arithmetic == 'integer' else _IN_FLOATS),
    'Running times depend on how much data clients have. They are outside the guarantee, and so is an observer who '
    "watches the program run or sees its operator's terminal, which shows progress.",
    'Verification recomputes what follows from the files of the run. It cannot tell whether the program that wrote '
    'them did what its code says, and not whether a file was left out that somebody had, such as an audit.',
    'The statement is about this run alone. Every other run on the same clients, for tuning or for comparison, adds '
    'to what they spend.',
  ]
