"""The training loop: rounds, tests, checkpoints."""

import collections
import time
from typing import Any, Dict, NamedTuple, Optional

import numpy as np
import tensorflow as tf

from experiments import progress as progress_lib
from experiments import run_directory
from experiments import setup
from quap_tff import accounting
from quap_tff import runtime


class Result(NamedTuple):
  """Where a run stands.

  Attributes:
    round_num: Rounds done, those of earlier processes included.
    rounds_run: Rounds done by this process.
    weights: `tff.learning.models.ModelWeights` of arrays.
    test: `loss` and `accuracy` on the test set, of these weights.
    ledger: What each client has spent, nominally.
    seconds: Of this process, from the first round on.
    interrupted: Whether the run was cut off by the user.
  """

  round_num: int
  rounds_run: int
  weights: Any
  test: Dict[str, float]
  ledger: accounting.NominalLedger
  seconds: float
  interrupted: bool


def client_data(experiment: setup.Experiment, client: int) -> 'collections.OrderedDict[str, tf.data.Dataset]':
  """One client's data as the learning process takes it: its id, and all its examples as one element."""
  examples = experiment.federation.clients[client]
  return collections.OrderedDict(
      client_id=tf.data.Dataset.from_tensors(np.int64(client)),
      examples=tf.data.Dataset.from_tensors(collections.OrderedDict(x=examples.x, y=examples.y)),
  )


def train(
    experiment: setup.Experiment,
    directory: Optional[run_directory.RunDirectory],
    *,
    checkpoint_every: int,
    eval_every: int,
    stop_at_accuracy: Optional[float],
    progress: str,
) -> Result:
  """Runs the experiment to its last round, from its latest checkpoint if there is one.

  On Ctrl-C (or SIGTERM, which the binary turns into it) the last finished round is kept and the result says so.

  Args:
    experiment: What to run.
    directory: Where to keep it; None keeps nothing.
    checkpoint_every: Rounds from one checkpoint to the next.
    eval_every: Rounds from one test to the next.
    stop_at_accuracy: Test accuracy at which to stop.
    progress: 'auto', 'bar', 'lines' or 'none'.
  """
  test_set = experiment.federation.test
  ledger = accounting.NominalLedger(experiment.config)
  with runtime.activate(experiment.runtime):
    process = experiment.build_process()
    state = process.initialize()
    round_num = 0
    if directory is not None:
      kept = directory.restore(state, ledger.state_dict())
      if kept is None:
        # The seed of the noise is in the state: a run cut off before its next checkpoint draws the same noise again.
        directory.save(0, state, ledger.state_dict())
      else:
        round_num, state, kept_ledger = kept
        ledger.load_state_dict(kept_ledger)

    test = experiment.evaluate(process.get_model_weights(state), test_set.x, test_set.y)
    tested_round = round_num
    first_round = round_num + 1
    display = progress_lib.make(progress, first_round, experiment.last_round)
    begin = time.monotonic()
    interrupted = False
    try:
      while round_num < experiment.last_round and not _reached(test, stop_at_accuracy):
        round_begin = time.monotonic()
        cohort = experiment.cohorts.cohort(round_num + 1)
        output = process.next(state, [client_data(experiment, client) for client in cohort])
        next_ledger = _recorded(ledger, experiment, output.state, cohort)
        # From here to the end of this block the round counts as done or not at all.
        state, ledger, round_num = output.state, next_ledger, round_num + 1
        row = _row(output.metrics)
        if round_num % eval_every == 0 or round_num == experiment.last_round:
          test = experiment.evaluate(process.get_model_weights(state), test_set.x, test_set.y)
          tested_round = round_num
          row.update(test_accuracy=test['accuracy'], test_loss=test['loss'])
        row['nominal_epsilon_mean'], row['nominal_epsilon_max'] = ledger.epsilon.mean(), ledger.epsilon.max()
        row['seconds'] = time.monotonic() - round_begin
        if directory is not None:
          directory.log(round_num, row)
          if round_num % checkpoint_every == 0:
            directory.save(round_num, state, ledger.state_dict())
        if not len(cohort):
          display.note(f'round {round_num}: nobody took part; the model stays as it is.')
        display.update(round_num, row)
    except KeyboardInterrupt:
      interrupted = True
    finally:
      display.close()
    seconds = time.monotonic() - begin
    if directory is not None:
      directory.save(round_num, state, ledger.state_dict())
    weights = tf.nest.map_structure(np.asarray, process.get_model_weights(state))
    if tested_round != round_num:
      test = experiment.evaluate(weights, test_set.x, test_set.y)
  return Result(round_num, round_num + 1 - first_round, weights, dict(test), ledger, seconds, interrupted)


def _reached(test, accuracy) -> bool:
  return accuracy is not None and test['accuracy'] >= accuracy


def _recorded(ledger, experiment, learning_state, cohort):
  recorded = accounting.NominalLedger(experiment.config)
  recorded.load_state_dict(ledger.state_dict())
  recorded.record(learning_state.aggregator, cohort)
  return recorded


def _row(metrics: Any) -> Dict[str, float]:
  """A round's metrics, flat: the names are the columns of metrics.csv."""
  row = {f'train_{name}': float(value) for name, value in metrics['client_work']['train'].items()}
  row.update((name, float(value)) for name, value in metrics['aggregator'].items() if name != 'round')
  row.update((name, float(value)) for name, value in metrics['finalizer'].items())
  return row
