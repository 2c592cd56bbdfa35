"""The outcome of a run, and the statements about it."""

import dataclasses
import datetime
import functools
import math
from typing import NamedTuple, Optional

from data import datasets
from experiments.folders import directory as run_directory
from experiments.running import final_summary
from experiments.running import setup
from quap_tff import accounting
from quap_tff import plans
from quap_tff.common import array_types
from quap_tff.common import json_types
from quap_tff.plans.accounts import run_account


class NonFinite(NamedTuple):
  """Clients' updates with NaN or infinity, which count as zero; none in a run that withholds client metrics.

  Attributes:
    updates: How many there were.
    rounds: In how many rounds.
    first_round: The first of these rounds; 0 if there was none.
  """

  updates: int
  rounds: int
  first_round: int


@dataclasses.dataclass(frozen=True, eq=False)
class Outcome:
  """How far a run has come, and what may be said about it.

  Attributes:
    experiment: The run.
    directory: Its folder; None keeps nothing.
    leaving: What leaves clients in a round.
    round_num: Rounds done, those of earlier processes included.
    rounds_run: Rounds done by this process.
    weights: The published weights, `tff.learning.models.ModelWeights` of arrays.
    test: `loss` and `accuracy` on the test set, of these weights.
    ledger: The record of each round's cost.
    date: The day on which this process began.
    seconds: Seconds of this process, from the first round on; None where client metrics are withheld.
    interrupted: Whether the run was cut off by the user.
    non_finite: Updates that were left out.
  """

  experiment: setup.Experiment
  directory: Optional[run_directory.RunDirectory]
  leaving: run_account.Leaving
  round_num: int
  rounds_run: int
  weights: array_types.Structure
  test: dict[str, float]
  ledger: accounting.RunLedger
  date: datetime.date
  seconds: Optional[float]
  interrupted: bool
  non_finite: NonFinite

  @functools.cached_property
  def report(self) -> plans.Report:
    """The statements about the run: of one that ended before its last planned round, the bound of its plan."""
    is_stopped = self.round_num < self.experiment.run.schedule.rounds
    schedule = self.experiment.schedule if is_stopped else None
    return self.experiment.plan.report(self.ledger, schedule)

  @functools.cached_property
  def summary(self) -> json_types.JsonObject:
    """The content of summary.json and of the last line of standard output."""
    run, plan, loss = self.experiment.run, self.experiment.plan, self.test['loss']
    planned_rounds = run.schedule.rounds
    is_certified = plan.mechanism.facts.is_certified
    # Of the published weights and the public test set, so in a certified run this is post-processing.
    weights = [*self.weights.trainable, *self.weights.non_trainable]
    return {
      'dataset': datasets.portable(run.flags['dataset']),
      'algorithm': run.flags['algorithm'],
      'malicious': run.attack(self.experiment.federation.num_clients),
      'rounds': self.round_num,
      'planned_rounds': planned_rounds,
      'finished': self.round_num >= planned_rounds,
      'test_accuracy': self.test['accuracy'],
      # JSON has neither NaN nor infinity.
      'test_loss': loss if math.isfinite(loss) else None,
      'diverged': final_summary.has_diverged(weights, loss),
      'share_of_ceiling': plan.share_of_ceiling if is_certified else None,
      **self.report.as_dict(),
      'interrupted': self.interrupted,
      'seconds': round(self.seconds, 3) if self.seconds is not None else None,
      'date': self.date.isoformat(),
      'output_dir': self.directory.path if self.directory is not None else None,
    }
