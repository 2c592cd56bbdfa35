"""The plan of a certified run: a guarantee for everything that is released, given a public schedule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

from quap_tff.common import checks
from quap_tff.mechanisms.certified import guarantee
from quap_tff.mechanisms.parts import postprocessing
from quap_tff.plans import plan as plans


def CertifiedPlan(
  config: guarantee.Guarantee,
  schedule: Sequence[Any],
  *,
  averaging: postprocessing.Averaging = postprocessing.LastIterate(),
  attendance: Optional[Sequence[Any]] = None,
  colluders: Sequence[int] = (),
  min_separation: Optional[int] = None,
  **options: Any,
) -> plans.Plan:
  """The plan of a certified run: its noise and divisor are chosen here, before training, from the planned cohorts.

  With a `quap_tff.HeldConfig`, each client draws its noise from a key of its own. One client's data are then
  `<client_id=int64*, answer=A*, examples=D*>`, with one answer of its `quap_tff.ClientGuard`.

  The account assumes that who comes is known. Noise that is calibrated on the cohorts depends on them, so sampling
  amplifies nothing. A run that ends early is bounded by what the filter lets each client spend.

  Args:
    config: The mechanism. What it leaves open is chosen from the schedule.
    schedule: int[M_t], distinct ids in [0, N), for each of the T planned rounds: the public schedule, or one drawn from
      a model of participation.
    averaging: The average of the iterates that is published. The noise is chosen for it; `postprocessing.Planned` is
      chosen together with the noise.
    attendance: int[M_t] for each planned round: who really comes of those who were drawn, if this is known. Only with a
      secure sum, in which a client that does not come takes its noise away. By default any of them may stay away.
    colluders: Numbers of clients that may tell the server their noise, with `attendance` only. A certificate gives ε
      for each.
    min_separation: How many rounds the sampler promises from one round of a client to its next; None if it promises
      nothing. The published choices of noise are made for it.
    **options: The options of every plan, see `quap_tff.Plan`. Exact functions of clients' data (`client_metrics`) are
      released only if they are asked for.

  Raises:
    ValueError: If a planned cohort is none, nobody takes part, nobody's budget pays for a round, or an extension uses
      more of clients than the noised sums.
  """
  cohorts = checks.schedule(schedule, config.num_clients)
  config, averaging = config.settled(cohorts, averaging, min_separation)
  colluders = tuple(checks.integer('colluders', k, at_least=1) for k in colluders)
  config.check_colluders(colluders, attendance is not None)
  if attendance is None and not config.holds_noise:
    attendance = cohorts
  return plans.Plan(
    config, schedule=cohorts, attendance=attendance, averaging=averaging, colluders=colluders, **options
  )
