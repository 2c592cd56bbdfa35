"""The sentences and figures of a certificate, from a plan, its ledger and the statements of the issuer.

Verification makes them again and compares them, so a change of any is a new version of certificates. Figures are
rounded to six digits on the safe side: so any machine, with any version of the libraries, makes the same text.
"""

from collections.abc import Iterable, Mapping, Sequence
import math
from typing import Any, NamedTuple

import numpy as np

from quap_tff import accounting
from quap_tff.accounting import history as histories_lib
from quap_tff.certificates.folders import about as abouts
from quap_tff.common.numbers import rounding
from quap_tff.common.numbers import slack as slacks
from quap_tff.common.numbers import tradeoff
from quap_tff.mechanisms.certified import guarantee
from quap_tff.mechanisms.noise import correlation as correlations
from quap_tff.mechanisms.noise import integer_noise
from quap_tff.plans.accounts import run_account

AMPLIFICATION = 'none: sampling is not counted, and who takes part may be known'
WITHHELD = (
  'The training loss and training accuracy of clients.',
  'The norms of updates and their quantiles, the fraction of updates that were clipped, and the number of updates '
  'that were not finite.',
  'The norms of the signal and of the noise.',
  'The number of examples of each client, and the accuracy of each client.',
  'Running times, which depend on the numbers of examples: no file of the run holds one.',
  'The keys of the noise, and the checkpoints, which contain them.',
)
_INTEGERS = (
  'Clipping is checked in integers, and sums are exact. The noise is a {noise} whose probabilities have a '
  f'relative error of at most 2^{round(math.log2(integer_noise.RELATIVE_ERROR))}. The error is counted. The bound '
  "assumes that the processor's float64 operations are those of IEEE 754, and that its exponential function errs by "
  'at most 2^-50 of the result.'
)
_BITS = (
  'Given ideal random bits, the statement holds for the integers that are computed. The bits come from the stream '
  'cipher ChaCha20: the guarantee holds against those who cannot tell its stream from random bits.'
)
_CLIPPING = {
  False: "A client's part of each sum is clipped to its weight times a fixed norm.",
  True: "A client's part of each sum is clipped to its weight times a norm that follows a quantile of the updates' "
  'norms, known from noised counts alone.',
}
_SPLIT = {True: 'All layers are clipped by their joint norm.', False: 'Each layer is clipped by a norm of its own.'}


class OfTrust(NamedTuple):
  """The sentences of a certificate on whom to trust.

  Attributes:
    against: Against whom the guarantee holds, for the statement.
    secret: What must stay secret, for the statement.
    short: A cell of a table.
    in_short: For a reader who knows nothing about the protocol.
    assumptions: Sentences.
  """

  against: str
  secret: str
  short: str
  in_short: str
  assumptions: Sequence[str]


OF_TRUST = {
  'server': OfTrust(
    against='a trusted server',
    secret='a key that stays secret',
    short='the server sees updates',
    in_short='There is no protection against the server that trained the model: it sees the updates of clients.',
    assumptions=(
      "The server is trusted: it sees the clients' updates, adds the noise, and releases only what is listed here.",
      "The key of the noise, 256 bits, came from the operating system's entropy. It stays secret, and so do the "
      f'checkpoints that contain it. {_BITS}',
      _INTEGERS.format(noise='rounded Gaussian'),
    ),
  ),
  'secure_sum': OfTrust(
    against='a server that sees these sums and who takes part',
    secret='keys of clients that stay secret',
    short='the server sees secure sums alone, and each opens for enough clients',
    in_short='This includes the server, as long as it sees the sum of the updates of a round alone, and the sum opens '
    'as the plan assumes. The statement says when it may open, and which secure sum it was. The table below has the '
    'figures for a server that some clients help. In a simulation, the operator who makes all keys must be trusted.',
    assumptions=(
      'The server is not trusted with updates. It sees their secure sum, which holds noise from every client in it. '
      'Each client answers through a guard of its own (quap_tff.ClientGuard), which takes weight, clipping norm '
      'and the number of rounds from the plan. Alone, it refuses a round that it has answered or an earlier one, an '
      'announcement that contradicts an earlier one, and a round that could take a client past its bound. It takes no '
      'noise back twice. A server that tells two clients different things, or hides a round from one, is found out '
      'when they compare the digests of their guards. No client finds it out alone.',
      '{secure_sum} It reveals one sum a round. {opens} It is assumed that the announced clients exist and follow the '
      'protocol, except for the colluders that a figure counts. Such a figure is about a server that keeps to the '
      'planned cohorts.',
      "Each client draws its noise from a key of its own: 256 bits of its operating system's entropy, which nobody "
      f'else has, and which is for this run alone. {_BITS} {{keys}}',
      _INTEGERS.format(noise='sum of discrete Gaussians'),
    ),
  ),
}


class OfSecureSum(NamedTuple):
  """The sentences of a certificate on the secure sum of a run.

  Attributes:
    in_statement: A sentence of the statement.
    assumption: What is trusted in it, in sentences.
    keys: Who has made the clients' keys, a sentence.
  """

  in_statement: str
  assumption: str
  keys: str


OF_SECURE_SUM = {
  '': OfSecureSum(
    in_statement='The secure sum was simulated by one operator, who had all keys.',
    assumption='The protocol of the secure sum (such as Bonawitz et al. 2017) is assumed, and was simulated.',
    keys='In a simulation, all keys are made by one operator.',
  ),
  abouts.SECAGG: OfSecureSum(
    in_statement='The secure sum was SecAgg+ over Flower, between nodes none of which may help the server.',
    assumption='The secure sum was SecAgg+ (Bell et al. 2020) over Flower, between the nodes that hold the '
    "clients' data. Each mask is the stream of ChaCha20 under a whole shared secret, and each node signs its public "
    'keys of a round with its key of enrolment. Trusted in it are these: no node tells the server its secrets or its '
    "shares; the nodes' list of each other's keys of enrolment did not come from the server; each client trusts its "
    'node; and the cryptography and the code do what they say.',
    keys='Each node draws one secret, from which the keys of its clients follow.',
  ),
}
# Where clients train, and where nothing is known of how updates follow from data.
_FEATURES = 'The features of an example are a function of that example alone. No other data were used to make them.'
_OWN_UPDATES = (
  "The clients' updates came from a program of the issuer's own. It is assumed that each of them follows from the data "
  'of its own client and from releases alone.'
)
_OWN_UPDATES_MEAN = (
  "Nothing in the folder shows how updates were computed: a program of the issuer's own did it. It is assumed that "
  "what this program returned for a client followed from that client's data, from releases, and from constants and "
  "random draws that do not depend on any client's data. The first weights are assumed not to depend on them either. "
  'A model object, an optimizer, a cache or a file that is used for one client after another carries the data of one '
  'into the update of another. Then no figure here holds.'
)
# When a secure sum opens, without a threshold and with one.
_OPENS = (
  'The server is trusted to tell all clients who is in it, and that these are all the clients that it announced: with '
  'fewer, there would be less noise, and the statement would not hold. If the protocol opens its sum with a share of '
  'the announced clients, a threshold in the plan pays for that.',
  'It opens only with a share of at least {threshold} of the announced clients that have a weight, and its members '
  'were told the same cohort. The noise of such a share is what is counted, whatever the server says about who is in '
  'the sum.',
)
# Whether cohorts are certified as they came, or clients stayed away, and what is assumed of who comes.
_WHO_COMES = {
  False: 'Whether a client takes part in a round does not depend on its data.',
  True: 'Given what was released before, whether a client takes part in a round, and whether there is another round, '
  "does not depend on the client's data. A device that decides by its own data whether it comes is not covered.",
}
# Whom clients trusted in the runs before, for a statement.
_TRUST_BEFORE = {
  'server': 'in runs of which at least one trusted its server with updates',
  'secure_sum': 'in runs whose servers saw secure sums alone, if these opened as the plans of those runs assume',
}
# How many clients may belong to one person or household, with several devices or accounts.
_GROUPS = (2, 3, 5)


class Figures(NamedTuple):
  """The figures of a run on which its certificate rests.

  Attributes:
    plan: The plan of the run.
    ledger: The cost of each round.
    about: The statements of the issuer.
    mu: What each client has spent.
    epsilon: The same as ε, float64[N], with what rounding costs.
    largest_mu: The largest μ that ε and δ allow, after what rounding costs.
  """

  plan: run_account.RunAccount
  ledger: accounting.RunLedger
  about: abouts.About
  mu: histories_lib.TotalMu
  epsilon: np.ndarray
  largest_mu: float

  @classmethod
  def of(cls, plan: run_account.RunAccount, ledger: accounting.RunLedger, about: abouts.About) -> 'Figures':
    """The figures of a plan, of which the model's shape is known, and a ledger."""
    mu, slack, config = accounting.total_mu(ledger), plan.slack, plan.guarantee.config
    largest = tradeoff.mu_at_most(config.epsilon - slack.epsilon, config.delta - slack.delta)
    return cls(plan, ledger, about, mu, slack.epsilon_of(mu.came, mu.whole, config.delta), largest)

  @property
  def ended_early(self) -> bool:
    """True if the run ended before its plan, at a moment that may depend on what it had released."""
    return self.ledger.num_rounds < self.planned_rounds

  @property
  def came(self) -> bool:
    """True if the cohorts are certified as they came."""
    return self.plan.cohorts == run_account.AS_THEY_CAME

  @property
  def is_reading(self) -> bool:
    """True if what clients have spent is a reading, because it may depend on what was released."""
    return self.came or self.stayed_away or self.ended_early

  @property
  def stayed_away(self) -> bool:
    """True if some of the planned clients did not come. A server may have chosen them by what was released."""
    return self.plan.stayed_away(self.ledger)

  @property
  def planned_rounds(self) -> int:
    """T; without a schedule the most rounds that the plan allows."""
    most = self.plan.guarantee.config.num_rounds
    assert most is not None  # `plans.accounts.ahead` asks for it.
    return most

  @property
  def trained_weights(self) -> int:
    """The number of weights that are trained on clients' data, all of which get noise."""
    return sum(self.plan.shape.sizes)

  @property
  def bounds(self) -> np.ndarray:
    """float64[N], the ε that each client may spend."""
    config = self.plan.guarantee.config
    return np.array(config.own_epsilon or [config.epsilon] * config.num_clients, np.float64)


def chance(certificate: Mapping[str, Any]) -> str:
  """How often a guess is right whether the data of one client were used, if both were equally likely, in words.

  This is Φ(μ/2), the best test between two normal distributions at distance μ, and what rounding adds. Of secret
  cohorts, a total variation takes the place of 2·Φ(μ/2) - 1.
  """
  guarantee, slack = certificate['guarantee'], certificate['facts']['slack']
  distance = guarantee.get('total_variation')
  if distance is None:
    distance = math.erf(guarantee['mu'] / math.sqrt(8))
  right = 0.5 + 0.5 * distance + math.expm1(slack['epsilon']) + slack['delta']
  for decimals in range(1, 7):
    percent = rounding.up_fixed(100 * right, decimals)
    if float(percent) < 100:
      return f'at most {percent}% of the time'
  return 'perhaps always: the guarantee does not exclude that'


def up(value: float) -> float:
  """An upper bound as a certificate has it, in six digits."""
  return float(rounding.up(value, 6))


def whole(value: float) -> str:
  """A given constant in all its digits."""
  return rounding.up(value, 15)


def stated(text: str) -> str:
  """A statement of the issuer, which nothing in the folder shows."""
  return f'The issuer states: “{text}”'


def statement(figures: Figures) -> str:
  """The guarantee, and what it does not say."""
  config, ledger = figures.plan.guarantee.config, figures.ledger
  bounds = ''
  if config.own_epsilon:
    counts = ', '.join(f'ε = {whole(bound)} for {clients:,}' for bound, clients in own_bounds(config))
    bounds = (
      f' Each client has a bound of its own, which is at most this ε, and for it the same holds with that bound: '
      f'{counts}. mechanism.json has the bound of each client.'
    )
  bounds += statement_before(config, 'mechanism.json')
  most = rounding.up(float(figures.epsilon.max()), 6)
  if figures.came:
    spent = (
      'There is one condition on who comes, and on when the run ends: given what was released before, nobody decides '
      f'this by the data of the client. {stated(figures.about.cohorts)} After {ledger.num_rounds:,} rounds, a reading '
      f'of the account gives ε = {most} for the client that spent most. A reading is not a guarantee, because who came '
      'may depend on what was released.'
    )
  elif figures.stayed_away:
    spent = (
      'Not all planned clients came to each round, and ε is the bound of the plan, whichever of them come. There is '
      'one condition on who stays away: given what was released before, nobody decides this by the data of the client. '
      f'After {ledger.num_rounds:,} of {figures.planned_rounds:,} planned rounds, a reading of the account gives ε = '
      f'{most} for the client that spent most. A reading is not a guarantee, because who came may depend on what was '
      'released.'
    )
  elif figures.ended_early:
    spent = (
      f'The run ended after {ledger.num_rounds:,} of {figures.planned_rounds:,} planned rounds, and ε is the bound of '
      f'the whole plan. A reading of the account at that moment gives ε = {most} for the client that spent most. A '
      'reading is not a guarantee, because the moment may depend on what was released.'
    )
  else:
    spent = f'The client that spent most has spent ε ≤ {most}.'
  words, stretches = OF_TRUST[config.trust], len(figures.about.stretches)
  changed = ''
  if stretches > 1:
    changed = f' Its rounds were run in {stretches} stretches by other code, other versions or other machines.'
  held = figures.plan.held
  secure_sum = f' {OF_SECURE_SUM[figures.about.secure_sum].in_statement}' if held is not None else ''
  given = f'If {held.config.sums_condition}: in' if held is not None else 'In'
  cohorts = 'public cohorts and constants'
  if figures.stayed_away:
    cohorts = 'those of public cohorts who came, public constants'
  if figures.came:
    cohorts = 'cohorts as they came, public constants'
  rounds = f'in total over at most {figures.planned_rounds:,} rounds, for any cohorts and any end'
  if not figures.came:
    rounds = f'in total over all {figures.planned_rounds:,} planned rounds'
  return (
    f'{given} integers, with {words.against}, {cohorts}, and {words.secret}, the noised sums and '
    'counts of this run, and everything that is computed from them alone, are (ε, δ)-differentially private for each '
    f'of the {ledger.num_clients:,} clients with ε = {whole(config.epsilon)} and δ = {whole(config.delta)}, '
    f'{rounds}. '
    f'Unit: {accounting.UNIT}. Neighbours: {accounting.ZERO_OUT}. '
    f'Amplification by sampling is not counted. {spent}{bounds} Given ideal random bits, this holds for the integers '
    f'that were computed, and ε includes {rounding.up(figures.plan.slack.epsilon, 3)} for rounding. With the bits of '
    'ChaCha20 it holds computationally. Timing is not covered. The folder is consistent with such a run. Nothing in it '
    f'proves that the run took place.{own_updates(figures.plan)}{secure_sum}{changed}'
  )


def own_updates(plan: run_account.RunAccount) -> str:
  """The part of a statement on updates that a program of the issuer's own has computed; '' if there are none."""
  return f' {_OWN_UPDATES}' if plan.own_updates else ''


def own_bounds(config: guarantee.GuaranteeConfig) -> list[tuple[float, int]]:
  """The distinct bounds that clients have chosen, and how many clients have each."""
  bounds, clients = np.unique(np.asarray(config.own_epsilon or (), np.float64), return_counts=True)
  return list(zip(bounds.tolist(), clients.tolist()))


def spent_before(config: guarantee.GuaranteeConfig) -> dict[str, Any]:
  """How many clients had spent something before, the most that one had, and its conditions; empty if none had."""
  before = config.spent_before
  if before is None:
    return {}
  mu_squared = np.asarray(before.mu_squared)
  most = tradeoff.epsilon_of(np.sqrt(mu_squared.max()), config.delta)
  return {
    'spent_before': {
      'clients': int(np.count_nonzero(mu_squared)),
      'epsilon_max': up(float(most)),
      'trust': before.trust,
      'noise_is_ideal': before.is_ideal,
      'colluders': [count for count, _ in before.against],
      'files_sha256': list(before.files),
    }
  }


def statement_before(config: guarantee.GuaranteeConfig, file: str) -> str:
  """The part of a statement on budgets that were spent before; '' if none were."""
  for before in spent_before(config).values():
    ideal = ' Noise of those runs is counted as ideal.' if before['noise_is_ideal'] else ''
    return (
      f' The account does not begin at 0: {before["clients"]:,} clients had spent something before, at most ε = '
      f'{rounding.up(before["epsilon_max"], 6)} at this δ, {_TRUST_BEFORE[before["trust"]]}. '
      f'{file} has the μ² of each. The guarantee is about all that was released then and now, together.{ideal} '
      "What was spent before, and under which conditions, is the issuer's word: this folder does not hold the files "
      'that it was read from.'
    )
  return ''


def assumptions_before(config: guarantee.GuaranteeConfig, counts_rounding: bool = True) -> list[str]:
  """The assumptions on budgets that were spent before."""
  if config.spent_before is None:
    return []
  kept = config.slack_before
  result = [
    'What clients had spent before, and what those runs protected, is taken from the issuer. It is assumed that '
    "nothing else was released about them, that each client's bound was fixed before the first of these releases, and "
    'that no earlier run had a larger one. If a bound was raised because of what was '
    'released, the figures are readings and not guarantees.'
  ]
  if config.holds_noise:
    result.append('No guard checks it: a client that has spent something before must compare it with the plan.')
  if counts_rounding:
    result.append(
      f'It is assumed that rounding in all earlier runs costs at most {rounding.down(kept.epsilon, 3)} in ε and '
      f'{rounding.down(kept.delta, 3)} in δ. So much is counted for every client that took part in this run.'
    )
  return result


def accountant(ledger: accounting.RunLedger) -> str:
  """How μ is added up."""
  if isinstance(ledger.correlation, correlations.HeldNoise):
    return (
      f'{accounting.ACCOUNTANTS["gaussian_exact"].method}, over all rounds: μ² = wᵀ·Σ⁻¹·w/s². Here w holds the '
      "client's weight in each round, s is the noise multiplier, and s²·Σ is the covariance of the clients' noise in "
      f'the sums, with λ = {ledger.correlation.chosen:g}.'
    )
  sums, noise = 'Σ w²/z²', ''
  if ledger.correlation.num_buffers:
    sums = 'Σ_s (Σ_{t≤s} c_{s-t}·w_t)²/z²'
    noise = f' The noise is correlated with the coefficients c_0 = 1 and {ledger.correlation.formula}.'
  return (
    f'{accounting.ACCOUNTANTS["gaussian_exact"].method}, over all rounds: μ² = {sums} for the sums + Σ 1/c² '
    'for the counts. Here w is the client\'s weight in a round, z is the noise multiplier of the sums, and c is the '
    f'noise multiplier of the counts.{noise}'
  )


def other_relations(figures: Figures) -> list[dict[str, Any]]:
  """The same guarantee for other units and other neighbours. The bound for k clients together is k·μ."""
  place = 'rounds are' if figures.came else 'place in the schedule is'
  rows = [
    (f'add or remove one client whose {place} public', accounting.UNIT, 1),
    (accounting.REPLACE_ONE, accounting.UNIT, 2),
    *(
      (f'the data of {k} clients together against nothing in their places', f'{k} clients together', k) for k in _GROUPS
    ),
  ]
  return _with_epsilon(
    figures, [({'neighbours': neighbours, 'unit': unit}, k * figures.largest_mu) for neighbours, unit, k in rows]
  )


def against_colluders(figures: Figures) -> list[dict[str, Any]]:
  """For each number k of colluders, the largest ε against the server and any k others.

  The figures are for all planned rounds: a run may end before them.
  """
  plan = figures.plan
  largest = [(count, float(np.sqrt(plan.mu_squared_against[count].max()))) for count in plan.colluders]
  return _with_epsilon(figures, [({'clients': count}, mu) for count, mu in largest])


def _with_epsilon(figures: Figures, rows: Iterable[tuple[dict[str, Any], float]]) -> list[dict[str, Any]]:
  """The rows with their μ and ε, except those whose ε the slack does not cover."""
  config, slack = figures.plan.guarantee.config, figures.plan.slack
  # The ε of μ is rounded up by less than this tolerance.
  largest = max(config.epsilon, slacks.LARGEST_EPSILON) * (1 + 1e-9)
  rated = [(row, float(slack.of(mu, config.delta)), mu) for row, mu in rows]
  return [{**row, 'epsilon': up(epsilon), 'mu': up(mu)} for row, epsilon, mu in rated if epsilon <= largest]


def releases(figures: Figures) -> list[dict[str, Any]]:
  """Everything that leaves the server: what, in how many rounds, its share of the largest μ², and why it may."""
  ledger, mu, about = figures.ledger, figures.mu, figures.about
  state = ledger.state_dict()
  occupied = np.diff(state['offsets']) > 0
  sums = state['noise_multipliers'][occupied]
  counts = state['count_noise_multipliers'][occupied]
  counts = counts[np.isfinite(counts)]
  worst = int(np.argmax(np.where(mu.came, mu.whole, -1.0)))
  share_of_updates = _share(mu.updates[worst], mu.whole[worst])
  share_of_counts = _share(mu.counts[worst], mu.whole[worst])
  published = stated(about.post_processing) if about.post_processing else 'the last noised weights as they are.'
  correlated = ', correlated from round to round: each round takes back part of the noise that earlier rounds added'
  between_rounds = correlated if ledger.correlation.num_buffers else ', independent from round to round'
  rows = [
    (
      f"sum of the clients' clipped updates, for all {figures.trained_weights:,} trained weights",
      len(sums),
      share_of_updates,
      _noise(sums, between_rounds),
    ),
    (
      'number of update norms within the clipping norm, from which the next clipping norm is computed',
      len(counts),
      share_of_counts,
      _noise(counts),
    ),
    (
      'who took part in which round, and with what weight',
      ledger.num_rounds,
      0.0,
      "public by the neighbouring relation, and not a function of clients' data",
    ),
    ('loss and accuracy on the test set', about.tests, 0.0, 'post-processing, because the test set is public'),
    ('published weights', 1, 0.0, f'post-processing: {published}'),
  ]
  if spent_before(figures.plan.guarantee.config):
    share_before = 1 - share_of_updates - share_of_counts
    rows.insert(2, ('what was released about the clients before this run', 0, share_before, 'counted'))
  return [dict(zip(('what', 'rounds', 'share_of_worst_client', 'how'), row)) for row in rows]


def _share(part: float, whole: float) -> float:
  """The share of a part of μ in the square of the whole, 0 of nothing."""
  return round(float((part / whole) ** 2), 6) if whole else 0.0


def _noise(multipliers: np.ndarray, more: str = '') -> str:
  if not len(multipliers):
    return 'never released'
  ends = sorted({rounding.down(multipliers.min(), 6), rounding.down(multipliers.max(), 6)}, key=float)
  return f'Gaussian noise with noise multiplier {" to ".join(ends)}{more}'


def clipping(plan: run_account.RunAccount) -> str:
  """How each client's part of each sum is bounded."""
  return f'{_CLIPPING[plan.guarantee.config.counts_norms]} {_SPLIT[plan.guarantee.config.clip_split == "joint"]}'


def assumptions(figures: Figures) -> list[str]:
  """The assumptions of the statement."""
  about, config = figures.about, figures.plan.guarantee.config
  held = figures.plan.held
  threshold = held.config.threshold if held is not None else None
  opens = _OPENS[threshold is not None].format(threshold=threshold)
  secure_sum = OF_SECURE_SUM[about.secure_sum]
  of_trust = dict(opens=opens, secure_sum=secure_sum.assumption, keys=secure_sum.keys)
  return [
    *(one.format(**of_trust) for one in OF_TRUST[config.trust].assumptions),
    f'{_WHO_COMES[figures.came or figures.stayed_away]} {stated(about.cohorts)}',
    *common_assumptions(figures.plan, about),
  ]


def common_assumptions(plan: run_account.RunAccount, about: abouts.About) -> list[str]:
  """The assumptions of every certificate."""
  config = plan.guarantee.config
  inputs = [_OWN_UPDATES_MEAN] if plan.own_updates else []
  if about.public_data:
    inputs.append(f'The data that features were made from are assumed to be public. {stated(about.public_data)}')
  own_bounds = []
  if config.own_epsilon:
    own_bounds.append('The bound that a client has chosen for itself is public, and does not depend on its data.')
  own_bounds_and_inputs = own_bounds + (inputs or [_FEATURES])
  covers = 'The statement is about this run alone. Every other run on the same clients, for tuning or for comparison, '
  covers += 'adds to what they spend.'
  if config.spent_before is not None:
    covers = (
      'The statement is about this run and what is counted from before. Every other run on the same clients adds '
    )
    covers += 'to what they spend.'
  return [
    f"Each client's part of a sum is bounded, and a client without data adds zero. {clipping(plan)}",
    "Constants and hyper-parameters are public. It is assumed that their choice does not depend on clients' data. "
    f'{stated(about.tuning)}',
    *own_bounds_and_inputs,
    f"The test set is public and contains no client's data. {stated(about.test_set)}",
    *assumptions_before(config),
    'Running times depend on how much data clients have. They are outside the guarantee, and so is an observer who '
    "watches the program run or sees its operator's terminal, which shows progress.",
    'Verification recomputes what follows from the files of the run. It cannot tell whether the program that wrote '
    'them did what its code says, and not whether a file was left out that somebody had, such as an audit.',
    covers,
  ]
