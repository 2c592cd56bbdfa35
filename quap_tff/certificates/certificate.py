"""The certificate of a run: the (ε_i, δ) that each client has spent, from its μ_i, and everything that this rests on.

A certificate is a pure function of the files of its folder (`quap_tff.certificates.folders.folder`). So to verify it,
it is made again and compared. docs/privacy.md has the theorem, and says what a certificate does not cover.
"""

from collections.abc import Iterator, Mapping
import hashlib
import json
import math
from typing import Any

import numpy as np

from quap_tff import accounting
from quap_tff.certificates import secret_sentences
from quap_tff.certificates import sentences
from quap_tff.certificates.folders import about as abouts
from quap_tff.certificates.folders import folder as folders
from quap_tff.certificates.folders import folder_files
from quap_tff.common import files
from quap_tff.common.numbers import rounding
from quap_tff.mechanisms.noise import correlation as correlations
from quap_tff.plans.accounts import run_account
from quap_tff.plans.accounts import secret_coins

# A relative tolerance: sums over rounds are rounded, here and in the filter that limits what clients spend.
TOLERANCE = 1e-9

_HISTOGRAM_BINS = 20
_QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)


def refusals(plan: run_account.RunAccount, ledger: accounting.RunLedger, about: abouts.About) -> list[str]:
  """The reasons why a run of a plan gets no certificate, a sentence each; empty if it gets one."""
  if plan.secret is not None:
    return secret_sentences.refusals(plan, about.tests, secret_coins.epsilons(plan.secret, plan.slack))
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
  if about.tests > ledger.num_rounds:
    reasons.append(f'The issuer states {about.tests} tests, but the run has {ledger.num_rounds} rounds.')
  if about.secure_sum and not plan.holds_noise:
    reasons.append(f'The issuer names a secure sum, {about.secure_sum}, and this plan trusts a server.')
  figures = sentences.Figures.of(plan, ledger, about)
  clients, at = np.arange(plan.num_clients), f' at δ = {sentences.whole(plan.delta)}'
  return reasons + overspent(clients, figures.epsilon, figures.bounds, TOLERANCE, at)


def overspent(clients: np.ndarray, epsilon: np.ndarray, bounds: np.ndarray, tolerance: float, at: str) -> list[str]:
  """A sentence on the clients that have spent more than their bound, if there are any. `at` says at which δ."""
  # Written so that NaN counts as over.
  over = np.flatnonzero(~(epsilon <= bounds * (1 + tolerance)))
  if not len(over):
    return []
  worst = int(over[np.argmax(epsilon[over] / bounds[over])])
  return [
    f'{len(over)} of {len(clients)} clients have spent more than their bound{at}. Client {clients[worst]} has spent '
    f'ε = {rounding.up(epsilon[worst], 6)}, and its bound is {sentences.whole(bounds[worst])}.'
  ]


def make(content: folders.Content) -> dict[str, Any]:
  """The certificate of a folder whose files agree (`evidence.run_problems`), made of values that JSON can hold.

  Raises:
    ValueError: If the run gets no certificate. The message gives every reason.
  """
  plan, ledger, about = content.plan, content.ledger, content.about
  reasons = refusals(plan, ledger, about)
  if reasons:
    raise ValueError(f'This run cannot be certified. {" ".join(reasons)}')
  config, up = plan.guarantee.config, sentences.up
  if plan.secret is not None:
    epsilon = secret_coins.epsilons(plan.secret, plan.slack)
    found = secret_sentences.parts(content, epsilon)
  else:
    figures = sentences.Figures.of(plan, ledger, about)
    epsilon = figures.epsilon
    found = _public_parts(figures)
  found['guarantee'].update(
    {
      'unit': accounting.UNIT,
      'epsilon': float(config.epsilon),
      'delta': float(config.delta),
      'trust': config.trust,
      'cohorts': plan.cohorts,
      # mechanism.json has each client's own bound.
      'own_bounds': [{'epsilon': bound, 'clients': clients} for bound, clients in sentences.own_bounds(config)],
    }
  )
  edges = np.linspace(0, config.epsilon, _HISTOGRAM_BINS + 1)
  counts, _ = np.histogram(np.minimum(epsilon, config.epsilon), edges)
  found['achieved'].update(
    {
      'epsilon_max': up(epsilon.max()),
      'epsilon_mean': up(epsilon.mean()),
      'epsilon_quantiles': {f'{q:g}': up(np.quantile(epsilon, q)) for q in _QUANTILES},
      'epsilon_histogram': {'edges': [round(edge, 9) for edge in edges.tolist()], 'clients': counts.tolist()},
    }
  )
  return sealed(
    {
      'version': folders.VERSION,
      **found,
      'leaves_clients': [{'by': by, 'value': value, 'type': kind} for by, value, kind in content.leaving],
      'facts': {
        'trained_weights': sum(plan.shape.sizes),
        'clipping': sentences.clipping(plan),
        'slack': {name: up(value) for name, value in plan.slack._asdict().items()},
        'noise_multiplier': config.noise_multiplier,
        'divisor': config.divisor,
        'correlation': correlations.spec_of(plan.correlation),
      },
      'issuer': about.as_dict(),
      'provenance': {'code': dict(content.code), 'files_sha256': folders.digests(content)},
    }
  )


def _public_parts(figures: sentences.Figures) -> dict[str, Any]:
  """The parts of a certificate on cohorts that are public."""
  ledger, config, up = figures.ledger, figures.plan.guarantee.config, sentences.up
  state = ledger.state_dict()
  idle = np.unique(state['clients'][state['weights'] == 0])
  return {
    'statement': sentences.statement(figures),
    'guarantee': {
      'neighbours': accounting.ZERO_OUT,
      'mu': up(figures.largest_mu),
      'accountant': sentences.accountant(ledger),
      'amplification': sentences.AMPLIFICATION,
      'colluders': sentences.against_colluders(figures),
      **sentences.spent_before(config),
    },
    'other_relations': sentences.other_relations(figures),
    'achieved': {
      'rounds': ledger.num_rounds,
      'planned_rounds': figures.planned_rounds,
      'clients': ledger.num_clients,
      'clients_that_took_part': int(np.count_nonzero(ledger.rounds)),
      'clients_with_a_weight_of_0': len(idle),
      'mu_max': up(figures.mu.whole.max()),
      'is_reading': figures.is_reading,
    },
    'releases': sentences.releases(figures),
    'withheld': list(sentences.WITHHELD),
    'assumptions': sentences.assumptions(figures),
  }


def sealed(value: Mapping[str, Any]) -> dict[str, Any]:
  """A JSON object with the SHA-256 of its canonical form: keys sorted, no spaces, UTF-8. An earlier one is replaced."""
  value = {name: part for name, part in value.items() if name != 'sha256'}
  canonical = json.dumps(value, sort_keys=True, separators=(',', ':'), ensure_ascii=False, allow_nan=False)
  return {**value, 'sha256': hashlib.sha256(canonical.encode()).hexdigest()}


def text_problems(path: str, given: Any, expected: Any) -> list[str]:
  """Where the certificate in a folder differs, in any character, from the one that its files give."""
  if folder_files.read_text(path, folders.CERTIFICATE) == files.json_text(expected):
    return []
  return list(differences(given, expected, tolerance=0.0)) or [
    f'{folders.CERTIFICATE} is written in another way than certificates are.'
  ]


def differences(given: Any, expected: Any, tolerance: float = TOLERANCE, path: str = '') -> Iterator[str]:
  """A sentence for each place where two JSON values differ by more than rounding.

  Args:
    given: The value in a file.
    expected: The value that it should have.
    tolerance: The relative tolerance of numbers that are not integers.
    path: Where the values lie in the file.
  """
  if isinstance(given, dict) and isinstance(expected, dict):
    for name in sorted({*given, *expected}):
      place = f'{path}.{name}' if path else name
      if name not in given:
        yield f'{place} is missing.'
      elif name not in expected:
        yield f'{place} does not belong there.'
      else:
        yield from differences(given[name], expected[name], tolerance, place)
  elif isinstance(given, list) and isinstance(expected, list) and len(given) == len(expected):
    for k, pair in enumerate(zip(given, expected)):
      yield from differences(*pair, tolerance, f'{path}[{k}]')
  elif not _same(given, expected, tolerance):
    yield f'{path or "it"}: it says {_shown(given)}, but the files give {_shown(expected)}.'


def _same(given: Any, expected: Any, tolerance: float) -> bool:
  if isinstance(expected, float) and type(given) is float:
    # Another version of a library may round the last bit differently.
    return math.isclose(given, expected, rel_tol=tolerance, abs_tol=0.0)
  return type(given) is type(expected) and given == expected


def _shown(value: Any) -> str:
  shown = repr(value)
  return shown if len(shown) <= 200 else f'{shown[:200]}…'
