"""Whether a run could get a certificate, asked before its first round: nobody should train in vain.

The planned rounds are taken for those that were run. What then ends in "no certificate" would do so after training,
too.
"""

import dataclasses
from typing import Any

import numpy as np

from experiments import methods
from experiments import setup
from quap_tff import accounting
from quap_tff import plans
from quap_tff.accounting import certificate as certificates
from quap_tff.mechanisms import planning


def check_before(experiment: setup.Experiment, values: Any):
  """Raises a `ValueError` that gives every reason why the run could get no certificate, if there is one.

  Args:
    experiment: The run. One of a method that gives no certificate is not looked at.
    values: Its flags.
  """
  if not methods.parse(values.algorithm).gives_certificate:
    return
  plan, federation = experiment.plan, experiment.federation
  ledger = planned_ledger(plan)
  facts = plan.facts(
    algorithm=values.algorithm,
    tuning=values.tuning,
    test_set=federation.test_set,
    tests=0,
    public_data=federation.public_data,
    post_processing=methods.post_processing(values, plan),
  )
  reasons = plan.ledger_problems(ledger) + certificates.refusals(ledger, facts)
  try:
    certificates.digest(dataclasses.asdict(facts))
  except ValueError as error:  # Bytes of the command line that are no text.
    reasons.append(f'A flag is not text that a file can hold: {error}.')
  if reasons:
    raise ValueError(
      f'No certificate could be issued for this run, so it was not begun. {" ".join(reasons)} Change these flags, or '
      'mark the run as a rehearsal: --algorithm=certified:certificate=false.'
    )


def planned_ledger(plan: plans.CertifiedPlan) -> accounting.RunLedger:
  """The ledger of the planned rounds. Its nominal budgets say nothing, and its clipping norms are the first."""
  config, ledger = plan.config, plan.new_ledger()
  for cohort, planned in zip(plan.schedule, planning.planned_rounds(config, plan.schedule)):
    ledger.append(
      accounting.RoundRecord(
        cohort=cohort,
        budgets=np.ones(len(cohort)),
        weights=np.asarray(planned.weights, np.float64),
        noise_multiplier=config.noise_multiplier,
        count_noise_multiplier=config.clip.count_noise_multiplier,
        clipping_norm=float(np.float32(config.clip.initial_norm)),
      )
    )
  return ledger
