"""Plans of certified runs: their noise is chosen before training, from cohorts that are planned or expected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

from quap_tff.mechanisms.certified import guarantee
from quap_tff.mechanisms.parts import postprocessing
from quap_tff.plans import plan as plans
from quap_tff.plans.accounts import ahead
from quap_tff.plans.accounts import settling


def certified_plan(
  config: guarantee.GuaranteeConfig,
  schedule: Optional[Sequence[Any]] = None,
  *,
  expected: Optional[Any] = None,
  averaging: postprocessing.Averaging = postprocessing.LastIterate(),
  attendance: Optional[Sequence[Any]] = None,
  colluders: Sequence[int] = (),
  min_separation: Optional[int] = None,
  certificate: bool = True,
  spent: Any = None,
  **options: Any,
) -> plans.Plan:
  """The plan of a certified run: its noise and divisor are chosen here, before training, and from no client's data.

  They are chosen from one of three:

    * `schedule`, the public cohorts of all rounds. A certificate is then for these cohorts.
    * `expected`, cohorts such as those that will come: of a log of the past, or of a model. Other clients may come.
    * neither: `noise_multiplier`, `divisor` and `num_rounds` are given in the configuration.

  In the last two cases cohorts are certified as they come. The guarantee is then the limit that the filter keeps,
  for any cohorts, as long as nobody chooses them by looking into clients' data (docs/privacy.md, theorem 1).

  With a `quap_tff.HeldConfig`, each client draws its noise from a key of its own. One client's data are then
  `<client_id=int64*, answer=A*, examples=D*>`, with one answer of its `quap_tff.ClientGuard`. Each client that is
  expected has one weight in all of its rounds. One that is not expected gets the smallest of these.

  The account assumes that who comes is known, so sampling amplifies nothing. A run that ends early is bounded by what
  the filter lets each client spend.

  Args:
    config: What is asked of the mechanism, or a mechanism.
    schedule: int[M_t], distinct ids in [0, N), for each of the T planned rounds.
    expected: int[M_t], as many as there are rounds; or the path of a log of participation, whose clients are ids
      (docs/gate.md has the format); or a model of `data.cohorts`; or rates, float[T, N] in [0, 1], from which one run
      is drawn by a fixed seed.
    averaging: The average of the iterates that is published. The noise is chosen for it, and together with
      `postprocessing.PlannedAverage`.
    attendance: int[M_t] for each planned round: who really comes of those who were drawn, if this is known. Only with a
      schedule and a secure sum, in which a client that does not come takes its noise away. By default any of them may
      stay away.
    colluders: Numbers of clients that may tell the server their noise, with `attendance` only. A certificate gives ε
      for each.
    min_separation: How many rounds the sampler promises from one round of a client to its next, with a schedule only;
      None if it promises nothing. The published choices of noise are made for it.
    certificate: Whether the run is to get a certificate. If so, everything is refused here that would prevent one. If
      not, the run is a rehearsal.
    spent: What clients have spent in earlier runs: a file or an `accounting.SpentBefore`, as `accounting.read_spent`
      takes it. Budgets and figures count from there. None: that of the configuration.
    **options: The options of every plan, see `quap_tff.Plan`. Exact functions of clients' data (`client_metrics`) are
      released only if they are asked for.

  Raises:
    TypeError: If `config` or `averaging` is of another type.
    ValueError: If a cohort is invalid, nobody takes part, nobody's budget pays for a round, a choice needs a schedule
      that is not given, or the run cannot get a certificate. The message says what to change.
  """
  settled = settling.settled(
    config,
    schedule,
    expected=expected,
    averaging=averaging,
    attendance=attendance,
    colluders=colluders,
    min_separation=min_separation,
    spent=spent,
  )
  plan = plans.Plan(**settled._asdict(), **options)
  if certificate:
    ahead.check(plan)
  return plan
