"""The certificate of a run: what each client has spent, (ε_i, δ) from μ_i, with all that the figure stands on.

A certificate is a pure function of the run's ledger, the `Facts` that no ledger tells, and digests of the files that it
speaks of. So to verify one is to make it again and to compare: `problems`. A run that released anything un-noised has
none: `issue` refuses it. docs/privacy.md has the theorem, and what a certificate does not cover.
"""

import dataclasses
import functools
import hashlib
import json
import math
from typing import Any, Dict, List, Mapping

import numpy as np

from quap_tff.accounting import accountants
from quap_tff.accounting import certificate_wording as wording
from quap_tff.accounting import gaussian_tradeoff
from quap_tff.accounting import history
from quap_tff.accounting import ledger_histories
from quap_tff.accounting import run_ledger
from quap_tff.accounting.certificate_wording import Facts

VERSION = 1
# Relative. Sums over rounds are rounded, here and in the filter that keeps clients within their budget.
TOLERANCE = 1e-9

_HISTOGRAM_BINS = 20
_QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)


def refusals(ledger: run_ledger.RunLedger, facts: Facts) -> List[str]:
  """Why there is no certificate for a run, a sentence each; empty if there is one."""
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
  if facts.noised_weights < facts.trained_weights:
    reasons.append(f'Noise covers {facts.noised_weights:,} of {facts.trained_weights:,} trained weights only.')
  if facts.exact_clip:
    reasons.append('The clipping norm is an un-noised function of clients\' data.')
  if facts.exact_metrics:
    reasons.append(f'Exact functions of clients\' data are released: {", ".join(facts.exact_metrics)}.')
  if facts.fixed_noise_seed:
    reasons.append('The seed of the noise is fixed: whoever knows it can subtract the noise.')
  mu = ledger_histories.total_mu(ledger).whole
  epsilon = gaussian_tradeoff.epsilon_of(mu, facts.delta)
  over = np.flatnonzero(epsilon > facts.epsilon * (1 + TOLERANCE))
  if len(over):
    worst = int(np.argmax(mu))
    reasons.append(
        f'{len(over)} of {ledger.num_clients} clients have spent more than ε = {facts.epsilon:g} at δ = '
        f'{facts.delta:g}, most of all client {worst} with ε = {epsilon[worst]:.6g}.'
    )
  return reasons


def issue(ledger: run_ledger.RunLedger, facts: Facts, provenance: Mapping[str, Any]) -> Dict[str, Any]:
  """The certificate of a run, of values that JSON holds.

  Args:
    ledger: All rounds.
    facts: All else that counts.
    provenance: Which run and which program it is about, of values that JSON holds; goes in as it is.

  Raises:
    ValueError: If the run has none; the message has every reason.
  """
  reasons = refusals(ledger, facts)
  if reasons:
    raise ValueError(f'This run cannot be certified. {" ".join(reasons)}')
  mu = ledger_histories.total_mu(ledger)
  epsilon = gaussian_tradeoff.epsilon_of(mu.whole, facts.delta)
  state = ledger.state_dict()
  idle = np.unique(state['clients'][state['weights'] == 0])
  edges = np.linspace(0, facts.epsilon, _HISTOGRAM_BINS + 1)
  counts, _ = np.histogram(np.minimum(epsilon, facts.epsilon), edges)
  certificate = {
      'version': VERSION,
      'statement': wording.statement(ledger, facts, float(epsilon.max())),
      'guarantee': {
          'unit': accountants.UNIT,
          'neighbours': history.ZERO_OUT,
          'epsilon': float(facts.epsilon),
          'delta': float(facts.delta),
          'mu': mu_at_most(facts.epsilon, facts.delta),
          'accountant': wording.ACCOUNTANT,
          'amplification': wording.AMPLIFICATION,
      },
      'achieved': {
          'rounds': ledger.num_rounds,
          'clients': ledger.num_clients,
          'clients_that_took_part': int(np.count_nonzero(ledger.rounds)),
          'clients_whose_budget_ran_out': len(idle),
          'epsilon_max': float(epsilon.max()),
          'epsilon_mean': float(epsilon.mean()),
          'epsilon_quantiles': {f'{q:g}': float(np.quantile(epsilon, q)) for q in _QUANTILES},
          'epsilon_histogram': {'edges': edges.tolist(), 'clients': counts.tolist()},
          'mu_max': float(mu.whole.max()),
      },
      'releases': wording.releases(ledger, facts, mu),
      'withheld': list(wording.WITHHELD),
      'assumptions': wording.assumptions(facts),
      'facts': {**dataclasses.asdict(facts), 'exact_metrics': list(facts.exact_metrics)},
      'provenance': dict(provenance),
  }
  return {**certificate, 'sha256': digest(certificate)}


def problems(
    certificate: Any, ledger: run_ledger.RunLedger, provenance: Mapping[str, Any], same_words: bool = True
) -> List[str]:
  """What is wrong with a certificate, a sentence each; empty if it is valid.

  Args:
    certificate: As read from JSON, without NaN and infinities.
    ledger: The run's.
    provenance: As found now, see `issue`.
    same_words: Whether its texts must be the ones that this program writes; another version may word them otherwise.
  """
  if not isinstance(certificate, dict) or not isinstance(certificate.get('facts'), dict):
    return ['The certificate is damaged: it holds no facts.']
  if certificate.get('version') != VERSION:
    return [f'The certificate is of version {certificate.get("version")!r}; this program knows version {VERSION}.']
  try:
    expected = issue(ledger, Facts(**certificate['facts']), provenance)
  except (TypeError, ValueError) as error:
    return [str(error)]
  compared = (certificate, expected) if same_words else map(_figures, (certificate, expected))
  found = list(_differences('', *compared))
  # Covers what the certificate alone tells: the texts among the facts.
  own = digest({name: value for name, value in certificate.items() if name != 'sha256'})
  if certificate.get('sha256') != own:
    found.append(f'sha256: the certificate\'s own digest is {own}, it says {certificate.get("sha256")!r}.')
  return found


@functools.lru_cache(maxsize=16)
def mu_at_most(epsilon: float, delta: float) -> float:
  """The largest μ with ε(μ, δ) <= ε, for ε > 0 and δ in (0, 1), to float64's last bits."""
  low, high = 0.0, 1.0
  while gaussian_tradeoff.epsilon_of(high, delta) <= epsilon:
    low, high = high, 2 * high
  while low < (middle := 0.5 * (low + high)) < high:
    low, high = (middle, high) if gaussian_tradeoff.epsilon_of(middle, delta) <= epsilon else (low, middle)
  return low


def digest(value: Any) -> str:
  """SHA-256, in hex, of a value's canonical JSON: keys sorted, no spaces, UTF-8."""
  text = json.dumps(value, sort_keys=True, separators=(',', ':'), ensure_ascii=False, allow_nan=False)
  return hashlib.sha256(text.encode()).hexdigest()


def _figures(certificate):
  """A certificate without the texts that the program writes into it."""
  if isinstance(certificate, dict):
    kept = {name: value for name, value in certificate.items() if name not in ('statement', 'withheld', 'assumptions')}
    return {name: value if name in ('facts', 'provenance') else _figures(value) for name, value in kept.items()}
  if isinstance(certificate, list):
    return [_figures(entry) for entry in certificate]
  return '' if isinstance(certificate, str) else certificate


def _differences(path, found, expected):
  """A sentence for each place where two JSON values differ by more than rounding, but for the certificate's digest."""
  if isinstance(found, dict) and isinstance(expected, dict):
    for name in sorted({*found, *expected} - ({'sha256'} if not path else set())):
      place = f'{path}.{name}' if path else name
      if name not in found:
        yield f'{place} is missing.'
      elif name not in expected:
        yield f'{place} does not belong there.'
      else:
        yield from _differences(place, found[name], expected[name])
  elif isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
    for k, pair in enumerate(zip(found, expected)):
      yield from _differences(f'{path}[{k}]', *pair)
  elif not _same(found, expected):
    yield f'{path}: the certificate says {_shown(found)}, the run gives {_shown(expected)}.'


def _same(found, expected) -> bool:
  if isinstance(expected, float) and type(found) in (int, float):
    # A library of another version may round the last bit another way.
    return math.isclose(found, expected, rel_tol=TOLERANCE, abs_tol=0.0)
  return type(found) is type(expected) and found == expected


def _shown(value) -> str:
  text = repr(value)
  return text if len(text) <= 200 else f'{text[:200]}…'
