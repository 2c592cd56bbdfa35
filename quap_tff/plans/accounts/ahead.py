"""Checks that refuse a certified run before it begins, because its certificate would be refused after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from quap_tff.common import array_types
from quap_tff.common import registry
from quap_tff.mechanisms.certified import guarantee as guarantees
from quap_tff.mechanisms.certified import weight_rules
from quap_tff.mechanisms.noise import correlation as correlations
from quap_tff.mechanisms.parts import clip_rules

# The parts of a mechanism that are named choices, and the choices.
CHOICES: Mapping[str, tuple[str, registry.Registry]] = {
  'correlation': ('noise correlation', correlations.FAMILIES),
  'weights': ('weight rule', weight_rules.RULES),
  'clip': ('clip rule', clip_rules.RULES),
}


class CertifiedAccount(Protocol):
  """The plan that is checked here, a `run_account.RunAccount` of a certified mechanism."""

  @property
  def guarantee(self) -> guarantees.Guarantee: ...

  @property
  def exact_logs(self) -> tuple[str, ...]: ...

  @property
  def schedule(self) -> Sequence[array_types.Ids]: ...


def refusals(plan: CertifiedAccount) -> list[str]:
  """The reasons why no run of a certified plan could get a certificate, a sentence each."""
  config, reasons = plan.guarantee.config, []
  if plan.exact_logs:
    reasons.append(f'It releases {" and ".join(plan.exact_logs)}.')
  if config.noise_seed is not None:
    reasons.append('Its noise has a seed that was given: who knows it can subtract it.')
  for name, (kind, choices) in CHOICES.items():
    if hasattr(config, name):
      try:
        registry.name_of(getattr(config, name), choices)  # Whoever reads the folder must know the choice.
      except (ValueError, LookupError) as error:
        reasons.append(f'Its {kind} cannot be named in a file: {error}')
  if config.num_rounds is None:
    reasons.append('It has no number of rounds: give num_rounds, the most that may be run.')
  elif plan.schedule and config.num_rounds != len(plan.schedule):
    reasons.append(f'Its schedule has {len(plan.schedule):,} rounds, and num_rounds={config.num_rounds:,}.')
  return reasons


def check_certifiable(plan: CertifiedAccount) -> None:
  """Raises `ValueError` if no run of a certified plan could get a certificate."""
  if reasons := refusals(plan):
    raise ValueError(
      f'This run could get no certificate. {" ".join(reasons)} Change this, or give certificate=False for a rehearsal.'
    )
