"""Makes the plans that most people want, from the numbers that they know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import inspect
from typing import Callable, Optional

from quap_tff.common import array_types
from quap_tff.common import checks
from quap_tff.common import registry
from quap_tff.mechanisms.certified import config as certified_config
from quap_tff.mechanisms.certified import guarantee
from quap_tff.mechanisms.held import config as held_config
from quap_tff.mechanisms.parts import budgets
from quap_tff.mechanisms.quap import config as quap_config
from quap_tff.mechanisms.secret_cohorts import config as secret_config
from quap_tff.plans.plan import Plan

# Options by name.
_Options = dict[str, checks.Unchecked]
_TRUSTS: Mapping[str, type[guarantee.GuaranteeConfig]] = {
  certified_config.CertifiedConfig.trust: certified_config.CertifiedConfig,
  held_config.HeldConfig.trust: held_config.HeldConfig,
}


def quap(*, num_clients: int, rounds: int, epsilon: float, delta: float = 1e-5, **options: checks.Unchecked) -> Plan:
  """A plan of QuAP-FL as its documents have it: noise on the final layer, by budgets that follow participation.

  Its figures are nominal. **It guarantees nothing about the released model** (docs/errata.md); `certified` does.

  Args:
    num_clients: N. Client ids are integers in [0, N).
    rounds: T, the planned rounds.
    epsilon: The documents' total ε > 0, spread over the rounds.
    delta: δ of one round.
    **options: Other fields of a `QuapConfig`, such as `clip`, and options of a `Plan`, such as `draw`. For other
      budgets or noise, make the configuration yourself: `Plan(QuapConfig(…))`.

  Raises:
    TypeError: For an option that does not exist.
    ValueError: For a value that is out of range.
  """
  own, of_plan = _split('quap', options, quap_config.QuapConfig, Plan)
  config = quap_config.QuapConfig(
    num_clients=num_clients,
    budget=budgets.BudgetConfig(epsilon, rounds),
    noise=quap_config.NoiseConfig(delta=delta),
    **own,
  )
  return Plan(config, **of_plan)


def certified(
  *,
  num_clients: int,
  epsilon: float,
  delta: float,
  schedule: Optional[Sequence[array_types.Ids]] = None,
  expected: Optional[checks.Unchecked] = None,
  rates: Optional[Sequence[float]] = None,
  trust: str = 'server',
  **options: checks.Unchecked,
) -> Plan:
  """A plan whose released model is (ε, δ)-differentially private for each client, over all rounds together.

  Args:
    num_clients: N. Client ids are integers in [0, N).
    epsilon: ε > 0, in nats.
    delta: The total δ, in (0, 1). It should be far below 1/N.
    schedule: int[M_t], the public cohort of each planned round.
    expected: Where nobody knows who will come: cohorts such as those that will, see `Plan.certified`.
    rates: float[N] in (0, 1], in place of both. Cohorts are then drawn by secret coins of these public rates, and each
      client has an account of its own rate. Give num_rounds, too. `quap_tff.Server.ask` draws the cohorts, which must
      stay secret (docs/proofs.md, theorem 6).
    trust: 'server', which sees updates and adds the noise; or 'secure_sum': clients hold the noise, and the server sees
      their sum alone.
    **options: Other fields of a `CertifiedConfig`, of a `HeldConfig` with trust='secure_sum', or of a
      `SecretCohortsConfig` with rates, such as `clip`; and options of `Plan.certified`, such as `averaging`.

  Raises:
    TypeError: For an option that does not exist.
    ValueError: For a value that is out of range, or a run that could get no certificate.
  """
  kind = registry.lookup('trust', trust, _TRUSTS)
  if rates is not None:
    if trust != secret_config.SecretCohortsConfig.trust:
      raise ValueError(
        f'trust={trust!r}: clients see who is announced, so no cohort is secret from them. Leave rates out, or use '
        f"trust='{secret_config.SecretCohortsConfig.trust}'."
      )
    kind, options = secret_config.SecretCohortsConfig, {'rates': tuple(rates), **options}
  own, of_plan = _split('certified', options, kind, Plan.certified)
  config = kind(num_clients=num_clients, epsilon=epsilon, delta=delta, **own)
  return Plan.certified(config, schedule, expected=expected, **of_plan)


def _split(function: str, options: _Options, kind: type, plan: Callable[..., Plan]) -> tuple[_Options, _Options]:
  """The options that are fields of a configuration, and those that a plan takes."""
  # `quap` makes these two.
  fields = {field.name for field in dataclasses.fields(kind)} - {'budget', 'noise'}
  of_plan = {*inspect.signature(plan).parameters, *inspect.signature(Plan).parameters}
  of_plan -= {'config', 'mechanism', 'options'}
  for name in options:
    if name not in fields | of_plan:
      message = registry.unknown_name_error(f'option of quap_tff.{function}', name, sorted(fields | of_plan))
      raise TypeError(str(message))
  own = {name: value for name, value in options.items() if name in fields}
  return own, {name: value for name, value in options.items() if name not in fields}
