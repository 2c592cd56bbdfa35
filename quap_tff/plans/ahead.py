"""What is refused before a certified run begins, because its certificate would be refused after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Optional, TYPE_CHECKING

from quap_tff.common import registry
from quap_tff.mechanisms.certified import weight_rules
from quap_tff.mechanisms.noise import correlation as correlations
from quap_tff.mechanisms.parts import clip_rules

if TYPE_CHECKING:
  from quap_tff.plans import plan as plans

# The parts of a mechanism that are named choices, and the choices.
CHOICES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
  'correlation': ('noise correlation', correlations.FAMILIES),
  'weights': ('weight rule', weight_rules.RULES),
  'clip': ('clip rule', clip_rules.RULES),
}


def refusals(plan: plans.Plan) -> list[str]:
  """The reasons why no run of a certified plan could get a certificate, a sentence each."""
  config, reasons = plan.config, []
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


def check_needs_no_schedule(
  config: object,
  attendance: Optional[Sequence[Any]] = None,
  colluders: Sequence[int] = (),
  min_separation: Optional[int] = None,
) -> None:
  """Raises `ValueError` for what cannot be had where nobody knows who will come."""
  weights = getattr(config, 'weights', None)
  if weights is not None and weights.needs_plan:
    raise ValueError(
      f'Weight rule {type(weights).__name__} spreads each budget over the rounds in which its client will take part, '
      'so it needs a schedule. Give one, or use a rule that needs none, such as weight_rules.Online().'
    )
  if min_separation is not None:
    raise ValueError(
      f'min_separation={min_separation} is a promise about rounds to come, so it needs a schedule. Give one, or leave '
      'min_separation out: the noise is then chosen for the separation that is expected.'
    )
  if attendance is not None or colluders:
    raise ValueError(
      f'{"attendance" if attendance is not None else "colluders"} needs rounds whose clients are known before the run. '
      'Give a schedule, or leave it out: no ε against colluders is stated for cohorts as they come.'
    )
