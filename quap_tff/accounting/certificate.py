"""The certificate of a run: the (ε_i, δ) that each client has spent, from its μ_i, and everything that this rests on.

A certificate is a pure function of the run's ledger, the `Facts` that no ledger holds, and a `provenance` that binds it
to its files. So to verify a certificate, `problems` makes it again and compares. A run that released anything un-noised
has no certificate: `issue` refuses it. docs/privacy.md has the theorem, and says what a certificate does not cover.
"""

from collections.abc import Collection, Iterator, Mapping
import hashlib
import json
import math
import re
from typing import Any

import numpy as np

from quap_tff import accounting
from quap_tff.accounting import certificate_facts as sentences
from quap_tff.accounting.certificate_facts import Facts
from quap_tff.common import rounding

# The version of the certificate's fields and words. Verification compares both: a change of either is a new version.
VERSION = 5
# Versions that are verified, too, and the fields that they have in other words or not at all.
_BEFORE_5 = ('guarantee.arithmetic', 'guarantee.trust', 'guarantee.colluders')
_EARLIER = {
  3: (
    'statement',
    'withheld',
    'assumptions',
    'achieved.is_reading',
    'releases.how',
    'provenance.stretches',
    *_BEFORE_5,
  ),
  4: _BEFORE_5,
}
VERSIONS = (*_EARLIER, VERSION)
# A relative tolerance: sums over rounds are rounded, here and in the filter that limits what clients spend.
TOLERANCE = 1e-9

_HISTOGRAM_BINS = 20
_QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)


def refusals(ledger: accounting.RunLedger, facts: Facts) -> list[str]:
  """The reasons why a run gets no certificate, a sentence each; empty if it gets one."""
  state = ledger.state_dict()
  occupied = np.diff(state['offsets']) > 0
  clips = state['clipping_norms']
  reasons = []
  for bad, said in (
    (state['noise_multipliers'] == 0, 'The noise multiplier is 0'),
    (state['count_noise_multipliers'] == 0, 'The count of the private quantile has no noise'),
    (~((clips > 0) & np.isfinite(clips)), 'There is no clipping norm'),
  ):
    rounds = np.flatnonzero(bad & occupied) + 1
    if len(rounds):
      reasons.append(f'{said} in {len(rounds)} of {ledger.num_rounds} rounds, first in round {rounds[0]}.')
  if ledger.num_rounds > facts.planned_rounds:
    reasons.append(f'The run has {ledger.num_rounds} rounds, but only {facts.planned_rounds} were planned.')
  if facts.noised_weights < facts.trained_weights:
    reasons.append(f'Noise covers only {facts.noised_weights:,} of {facts.trained_weights:,} trained weights.')
  if facts.exact_clip:
    reasons.append("The clipping norm is an un-noised function of clients' data.")
  if facts.exact_metrics:
    reasons.append(f'Exact functions of clients\' data are released: {", ".join(facts.exact_metrics)}.')
  if facts.fixed_noise_seed:
    reasons.append('The seed of the noise is fixed: anyone who knows it can subtract the noise.')
  mu = accounting.total_mu(ledger).whole
  epsilon = facts.slack.of(mu, facts.delta)
  bounds = facts.bounds(ledger.num_clients)
  if len(bounds) != ledger.num_clients:
    return reasons + [f'There are {len(bounds)} bounds of clients, but {ledger.num_clients} clients.']
  # Written so that NaN counts as over.
  over = np.flatnonzero(~(epsilon <= bounds * (1 + TOLERANCE)))
  many, delta = f'{len(over)} of {ledger.num_clients} clients have spent more than', sentences.whole(facts.delta)
  if len(over) and facts.own_epsilon:
    worst = int(over[np.argmax(epsilon[over] / bounds[over])])
    reasons.append(
      f'{many} their own ε at δ = {delta}. Client {worst} has spent ε = {rounding.up(epsilon[worst], 6)}, and its '
      f'bound is {sentences.whole(bounds[worst])}.'
    )
  elif len(over):
    worst = int(np.argmax(mu))
    reasons.append(
      f'{many} ε = {sentences.whole(facts.epsilon)} at δ = {delta}. The most was spent by client {worst} with ε = '
      f'{rounding.up(epsilon[worst], 6)}.'
    )
  return reasons


def issue(ledger: accounting.RunLedger, facts: Facts, provenance: Mapping[str, Any]) -> dict[str, Any]:
  """The certificate of a run, made of values that JSON can hold.

  Args:
    ledger: All rounds.
    facts: Everything else that the certificate depends on.
    provenance: The run, the program and the files to which the certificate is bound. It is made of values that JSON
      can hold, and is included unchanged.

  Raises:
    ValueError: If the run gets no certificate. The message gives every reason.
  """
  reasons = refusals(ledger, facts)
  if reasons:
    raise ValueError(f'This run cannot be certified. {" ".join(reasons)}')
  mu = accounting.total_mu(ledger)
  epsilon = facts.slack.of(mu.whole, facts.delta)
  state = ledger.state_dict()
  idle = np.unique(state['clients'][state['weights'] == 0])
  edges = np.linspace(0, facts.epsilon, _HISTOGRAM_BINS + 1)
  counts, _ = np.histogram(np.minimum(epsilon, facts.epsilon), edges)
  own = [{'epsilon': bound, 'clients': clients} for bound, clients in sentences.own_bounds(facts)]
  certificate = {
    'version': VERSION,
    'statement': sentences.statement(ledger, facts, float(epsilon.max()), provenance),
    'guarantee': {
      'unit': accounting.UNIT,
      'neighbours': accounting.ZERO_OUT,
      'epsilon': float(facts.epsilon),
      'delta': float(facts.delta),
      'mu': facts.mu,
      'accountant': sentences.accountant(ledger),
      'amplification': sentences.AMPLIFICATION,
      'arithmetic': facts.arithmetic,
      'trust': facts.trust,
      'colluders': sentences.against_colluders(facts),
      # Client i's own bound is facts.own_epsilon[i].
      'own_bounds': own,
    },
    'other_relations': sentences.other_relations(facts),
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
      'is_reading': sentences.ended_early(ledger, facts),
    },
    'releases': sentences.releases(ledger, facts, mu),
    'withheld': list(sentences.WITHHELD),
    'assumptions': sentences.assumptions(facts),
    'facts': facts.as_dict(),
    'provenance': dict(provenance),
  }
  return {**certificate, 'sha256': digest(certificate)}


def problems(certificate: Any, ledger: accounting.RunLedger, facts: Facts, provenance: Mapping[str, Any]) -> list[str]:
  """The problems of a certificate, a sentence each; empty if it is valid.

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


def differences(
  found: Any, expected: Any, skipped: Collection[str] = (), tolerance: float = TOLERANCE, path: str = ''
) -> Iterator[str]:
  """A sentence for each place where two JSON values differ by more than rounding.

  Args:
    found: The value in a file.
    expected: The value that it should have.
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
