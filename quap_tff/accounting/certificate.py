"""The certificate of a run: the (ε_i, δ) that each client has spent, from its μ_i, and everything that this rests on.

A certificate is a pure function of the run's ledger, the `Facts` that no ledger holds, and a `provenance` that binds it
to its files. So to verify a certificate, `problems` makes it again and compares. A run that released anything un-noised
has no certificate: `issue` refuses it. docs/privacy.md has the theorem, and says what a certificate does not cover.
"""

from collections.abc import Collection, Iterator, Mapping
import dataclasses
import hashlib
import json
import math
import re
from typing import Any

import numpy as np

from quap_tff import accounting
from quap_tff.common import checks
from quap_tff.common import rounding
from quap_tff.mechanisms import tradeoff

# The version of the certificate's fields and words. Verification compares both, so a change of either is a new version.
VERSION = 4
# Versions that are verified, too, and the fields that they have in other words or not at all.
_EARLIER = {3: ('statement', 'withheld', 'assumptions', 'achieved.is_reading', 'releases.how', 'provenance.stretches')}
VERSIONS = (*_EARLIER, VERSION)
# A relative tolerance: sums over rounds are rounded, here and in the filter that limits what clients spend.
TOLERANCE = 1e-9

_AMPLIFICATION = 'none: sampling is not counted, and who takes part may be known'
_WITHHELD = (
  'The training loss and training accuracy of clients.',
  'The norms of updates and their quantiles, the fraction of updates that were clipped, and the number of updates '
  'that were not finite.',
  'The norms of the signal and of the noise.',
  'The number of examples of each client, and the accuracy of each client.',
  'Running times, which depend on the numbers of examples: no file of the run holds one.',
  'The seed of the noise, and the checkpoints, which contain the seed.',
)
# How many clients may belong to one person or household, with several devices or accounts.
_GROUPS = (2, 3, 5)
_HISTOGRAM_BINS = 20
_QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)


@dataclasses.dataclass(frozen=True)
class Facts:
  """What the ledger of a run does not hold. Texts are whole sentences and are printed as they are.

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
    post_processing: What is done to the noised weights before they are published; '' for nothing.
    fixed_noise_seed: Whether the seed of the noise was given instead of being drawn.
    exact_clip: Whether a clipping norm is an un-noised function of clients' data.
    exact_metrics: The names of exact functions of clients' data that were released, such as losses and norms.
    own_epsilon: The bound that each client has chosen for itself, at most `epsilon`; empty if it is `epsilon` for all.
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

  def __post_init__(self):
    checks.number('epsilon', self.epsilon, above=0)
    checks.number('delta', self.delta, above=0, below=1)
    checks.integer('planned_rounds', self.planned_rounds, at_least=1)
    checks.integer('trained_weights', self.trained_weights, at_least=1)
    checks.integer('noised_weights', self.noised_weights, at_least=0, at_most=self.trained_weights)
    checks.integer('tests', self.tests, at_least=0)
    for name in ('algorithm', 'clipping', 'tuning', 'test_set'):
      if not getattr(self, name) or not isinstance(getattr(self, name), str):
        raise ValueError(f'{name} must be a sentence, found {getattr(self, name)!r}.')
    object.__setattr__(self, 'exact_metrics', tuple(self.exact_metrics))
    for own in self.own_epsilon:
      checks.number('own_epsilon', own, above=0, at_most=self.epsilon)
    object.__setattr__(self, 'own_epsilon', tuple(map(float, self.own_epsilon)))

  def bounds(self, num_clients: int) -> np.ndarray:
    """float64[N], the ε that each client may spend."""
    return np.array(self.own_epsilon) if self.own_epsilon else np.full(num_clients, float(self.epsilon))


def refusals(ledger: accounting.RunLedger, facts: Facts) -> list[str]:
  """The reasons why a run gets no certificate, a sentence each; empty if it gets one."""
  state = ledger.state_dict()
  occupied = np.diff(state['offsets']) > 0
  clips = state['clipping_norms']
  reasons = []
  for bad, words in (
    (state['noise_multipliers'] == 0, 'The noise multiplier is 0'),
    (state['count_noise_multipliers'] == 0, 'The count of the private quantile has no noise'),
    (~((clips > 0) & np.isfinite(clips)), 'There is no clipping norm'),
  ):
    rounds = np.flatnonzero(bad & occupied) + 1
    if len(rounds):
      reasons.append(f'{words} in {len(rounds)} of {ledger.num_rounds} rounds, first in round {rounds[0]}.')
  if ledger.num_rounds > facts.planned_rounds:
    reasons.append(f'The run has {ledger.num_rounds} rounds, but only {facts.planned_rounds} were planned.')
  if facts.noised_weights < facts.trained_weights:
    reasons.append(f'Noise covers only {facts.noised_weights:,} of {facts.trained_weights:,} trained weights.')
  if facts.exact_clip:
    reasons.append("The clipping norm is an un-noised function of clients' data.")
  if facts.exact_metrics:
    reasons.append(f'Exact functions of clients\' data are released: {", ".join(facts.exact_metrics)}.')
  if facts.fixed_noise_seed:
    reasons.append('The seed of the noise is fixed: whoever knows it can subtract the noise.')
  mu = accounting.total_mu(ledger).whole
  epsilon = tradeoff.epsilon_of(mu, facts.delta)
  bounds = facts.bounds(ledger.num_clients)
  if len(bounds) != ledger.num_clients:
    return reasons + [f'There are {len(bounds)} bounds of clients, but {ledger.num_clients} clients.']
  # Written so that NaN counts as over.
  over = np.flatnonzero(~(epsilon <= bounds * (1 + TOLERANCE)))
  if len(over) and facts.own_epsilon:
    worst = int(over[np.argmax(epsilon[over] / bounds[over])])
    reasons.append(
      f'{len(over)} of {ledger.num_clients} clients have spent more than their own ε at δ = {_whole(facts.delta)}. '
      f'Client {worst} has spent ε = {rounding.up(epsilon[worst], 6)}, and its bound is {_whole(bounds[worst])}.'
    )
  elif len(over):
    worst = int(np.argmax(mu))
    reasons.append(
      f'{len(over)} of {ledger.num_clients} clients have spent more than ε = {_whole(facts.epsilon)} at δ = '
      f'{_whole(facts.delta)}. The most was spent by client {worst} with ε = {rounding.up(epsilon[worst], 6)}.'
    )
  return reasons


def issue(ledger: accounting.RunLedger, facts: Facts, provenance: Mapping[str, Any]) -> dict[str, Any]:
  """The certificate of a run, made of values that JSON can hold.

  Args:
    ledger: All rounds.
    facts: Everything else that the certificate depends on.
    provenance: What the certificate is bound to: the run, the program and the files. It is made of values that JSON can
      hold, and is included unchanged.

  Raises:
    ValueError: If the run gets no certificate. The message gives every reason.
  """
  reasons = refusals(ledger, facts)
  if reasons:
    raise ValueError(f'This run cannot be certified. {" ".join(reasons)}')
  mu = accounting.total_mu(ledger)
  epsilon = tradeoff.epsilon_of(mu.whole, facts.delta)
  state = ledger.state_dict()
  idle = np.unique(state['clients'][state['weights'] == 0])
  edges = np.linspace(0, facts.epsilon, _HISTOGRAM_BINS + 1)
  counts, _ = np.histogram(np.minimum(epsilon, facts.epsilon), edges)
  own = [{'epsilon': bound, 'clients': clients} for bound, clients in _own_bounds(facts)]
  certificate = {
    'version': VERSION,
    'statement': _statement(ledger, facts, float(epsilon.max()), provenance),
    'guarantee': {
      'unit': accounting.UNIT,
      'neighbours': accounting.ZERO_OUT,
      'epsilon': float(facts.epsilon),
      'delta': float(facts.delta),
      'mu': tradeoff.mu_at_most(facts.epsilon, facts.delta),
      'accountant': _accountant(ledger),
      'amplification': _AMPLIFICATION,
      # Client i's own bound is facts.own_epsilon[i].
      'own_bounds': own,
    },
    'other_relations': _other_relations(facts),
    'achieved': {
      'rounds': ledger.num_rounds,
      'planned_rounds': facts.planned_rounds,
      'clients': ledger.num_clients,
      'clients_that_took_part': int(np.count_nonzero(ledger.rounds)),
      'clients_with_a_weight_of_0': len(idle),
      'epsilon_max': float(epsilon.max()),
      'epsilon_mean': float(epsilon.mean()),
      'epsilon_quantiles': {f'{q:g}': float(np.quantile(epsilon, q)) for q in _QUANTILES},
      'epsilon_histogram': {'edges': edges.tolist(), 'clients': counts.tolist()},
      'mu_max': float(mu.whole.max()),
      # Whether the run ended before its plan, at a moment that may depend on what it had released.
      'is_reading': _ended_early(ledger, facts),
    },
    'releases': _releases(ledger, facts, mu),
    'withheld': list(_WITHHELD),
    'assumptions': _assumptions(facts),
    'facts': {
      **dataclasses.asdict(facts),
      'exact_metrics': list(facts.exact_metrics),
      'own_epsilon': list(facts.own_epsilon),
    },
    'provenance': dict(provenance),
  }
  return {**certificate, 'sha256': digest(certificate)}


def problems(certificate: Any, ledger: accounting.RunLedger, facts: Facts, provenance: Mapping[str, Any]) -> list[str]:
  """What is wrong with a certificate, a sentence each; empty if it is valid.

  Args:
    certificate: The certificate as read from JSON, without NaN and infinities.
    ledger: The run's ledger.
    facts: The facts that follow from the run's flags and files now. Those in the certificate are compared with them.
    provenance: The provenance as found now, see `issue`.
  """
  if not isinstance(certificate, dict):
    return ['The certificate is damaged: it is not a JSON object.']
  version = certificate.get('version')
  if type(version) is not int or version not in VERSIONS:
    known = ' and '.join(map(str, VERSIONS))
    return [f'The certificate has version {version!r}, and this program verifies the versions {known}.']
  try:
    expected = {**issue(ledger, facts, provenance), 'version': version}
  except ValueError as error:
    return [str(error)]
  found = list(differences(certificate, expected, {'sha256', *_EARLIER.get(version, ())}))
  own = digest({name: value for name, value in certificate.items() if name != 'sha256'})
  if certificate.get('sha256') != own:
    found.append(f'sha256: the digest of the certificate is {own}, but it says {certificate.get("sha256")!r}.')
  return found


def digest(value: Any) -> str:
  """SHA-256, in hex, of a value's canonical JSON: keys sorted, no spaces, UTF-8."""
  text = json.dumps(value, sort_keys=True, separators=(',', ':'), ensure_ascii=False, allow_nan=False)
  return hashlib.sha256(text.encode()).hexdigest()


def _ended_early(ledger, facts) -> bool:
  return ledger.num_rounds < facts.planned_rounds


def _statement(ledger, facts, epsilon_max, provenance) -> str:
  own = ''
  if facts.own_epsilon:
    counts = ', '.join(f'ε = {_whole(bound)} for {clients:,}' for bound, clients in _own_bounds(facts))
    own = (
      f' Each client has a bound of its own, which is at most this ε, and for it the same holds with that bound: '
      f'{counts}. The facts give the bound of each client.'
    )
  most = rounding.up(epsilon_max, 5)
  if _ended_early(ledger, facts):
    spent = (
      f'The run ended after {ledger.num_rounds:,} of {facts.planned_rounds:,} planned rounds, and ε is the bound of '
      f'the whole plan. A reading of the account at that moment gives ε = {most} for the client that spent most. A '
      'reading is not a guarantee, because the moment may depend on what was released.'
    )
  else:
    spent = f'The client that spent most has spent ε ≤ {most}.'
  stretches = len(provenance.get('stretches', ()))
  changed = f' Its rounds were run in {stretches} stretches by other code, other versions or other machines.'
  return (
    'In real arithmetic, with a trusted server, public cohorts and constants, and a seed that stays secret, the '
    'noised sums and counts of this run, and everything that is computed from them alone, are (ε, δ)-differentially private '
    f'for each of the {ledger.num_clients:,} clients with ε = {_whole(facts.epsilon)} and δ = {_whole(facts.delta)}, '
    f'in total over all {facts.planned_rounds:,} planned rounds. Unit: {accounting.UNIT}. Neighbours: '
    f'{accounting.ZERO_OUT}. Amplification by sampling is not counted. {spent}{own} The folder is consistent with '
    f'such a run. Nothing in it proves that the run took place.{changed if stretches > 1 else ""}'
  )


def _whole(value: float) -> str:
  """A given constant in all its digits."""
  return rounding.up(value, 15)


def _own_bounds(facts) -> list[tuple[float, int]]:
  """The distinct bounds that clients have chosen, and how many clients have each."""
  bounds, clients = np.unique(np.asarray(facts.own_epsilon, np.float64), return_counts=True)
  return list(zip(bounds.tolist(), clients.tolist()))


def _accountant(ledger) -> str:
  """How μ is added up."""
  sums, noise = 'Σ w²/z²', ''
  if ledger.correlation.num_buffers:
    sums = 'Σ_s (Σ_{t≤s} c_{s-t}·w_t)²/z²'
    terms = ' + '.join(f'{gain:.6g}·{decay:.6g}^(k-1)' for gain, decay in ledger.correlation.terms)
    noise = f' The noise is correlated with the coefficients c_0 = 1 and c_k = {terms}.'
  return (
    f'{accounting.ACCOUNTANTS["gaussian_exact"].method}, over all rounds: μ² = {sums} for the sums + Σ 1/c² '
    'for the counts. Here w is the client\'s weight in a round, z is the noise multiplier of the sums, and c is the '
    f'noise multiplier of the counts.{noise}'
  )


def _other_relations(facts) -> list[dict[str, Any]]:
  """The same guarantee for other units and other neighbours. The bound for k clients together is k·μ."""
  mu = tradeoff.mu_at_most(facts.epsilon, facts.delta)
  rows = [
    ('add or remove one client whose place in the schedule is public', accounting.UNIT, 1),
    (accounting.REPLACE_ONE, accounting.UNIT, 2),
    *(
      (f'the data of {k} clients together against nothing in their places', f'{k} clients together', k) for k in _GROUPS
    ),
  ]
  return [
    {'neighbours': neighbours, 'unit': unit, 'epsilon': float(tradeoff.epsilon_of(k * mu, facts.delta)), 'mu': k * mu}
    for neighbours, unit, k in rows
  ]


def _releases(ledger, facts, mu) -> list[dict[str, Any]]:
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


def _assumptions(facts) -> list[str]:
  """What must be true for the statement to hold."""
  features = 'The features of an example are a function of that example alone. No other data were used to make them.'
  if facts.public_data:
    features = f'Features: {facts.public_data} The data that they were made from are assumed to be public.'
  return [
    "The server is trusted: it sees the clients' updates, adds the noise, and releases only what is listed here.",
    'Whether a client takes part in a round does not depend on its data. The cohorts follow from a public seed.',
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
    "The seed of the noise came from the operating system's entropy. It stays secret, and so do the checkpoints "
    'that contain it. The noise generator, Philox, is not cryptographic: the guarantee holds against those who '
    'cannot tell its numbers from random ones.',
    'The statement is about real numbers. Clipping, sums and noise are computed in float64 numbers, which only '
    'approximate real numbers. The low bits of a noised sum can reveal the noise to someone who knows the exact '
    "values of everything except one client's update (Mironov 2012; Haney et al. 2022). That attack is outside the "
    'guarantee.',
    'Running times depend on how much data clients have. They are outside the guarantee, and so is an observer who '
    "watches the program run or sees its operator's terminal, which shows progress.",
    'Verification recomputes what follows from the files of the run. It cannot tell whether the program that wrote '
    'them did what its code says, and not whether a file was left out that somebody had, such as an audit.',
    'The statement is about this run alone. Every other run on the same clients, for tuning or for comparison, adds '
    'to what they spend.',
  ]


def differences(
  found: Any, expected: Any, skipped: Collection[str] = (), tolerance: float = TOLERANCE, path: str = ''
) -> Iterator[str]:
  """A sentence for each place where two JSON values differ by more than rounding.

  Args:
    found: What a file says.
    expected: What it should say.
    skipped: Places that are not compared, such as `releases.how` (in every item of a list).
    tolerance: The relative tolerance of numbers that are not integers.
    path: Where the values lie in the file.
  """
  if isinstance(found, dict) and isinstance(expected, dict):
    for name in sorted({*found, *expected}):
      place = f'{path}.{name}' if path else name
      if re.sub(r'\[\d+\]', '', place) in skipped:
        continue
      if name not in found:
        yield f'{place} is missing.'
      elif name not in expected:
        yield f'{place} does not belong there.'
      else:
        yield from differences(found[name], expected[name], skipped, tolerance, place)
  elif isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
    for k, pair in enumerate(zip(found, expected)):
      yield from differences(*pair, skipped, tolerance, f'{path}[{k}]')
  elif not _same(found, expected, tolerance):
    yield f'{path}: it says {_shown(found)}, but the run gives {_shown(expected)}.'


def _same(found, expected, tolerance) -> bool:
  if isinstance(expected, float) and type(found) in (int, float):
    # Another version of a library may round the last bit differently.
    return math.isclose(found, expected, rel_tol=tolerance, abs_tol=0.0)
  return type(found) is type(expected) and found == expected


def _shown(value) -> str:
  text = repr(value)
  return text if len(text) <= 200 else f'{text[:200]}…'
