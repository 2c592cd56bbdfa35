"""The training loop: rounds, tests, checkpoints."""

import collections
import time
from typing import Any, Dict, NamedTuple, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from experiments import interrupts
from experiments import progress as progress_lib
from experiments import run_directory
from experiments import setup
from quap_tff import accounting


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


def client_data(
    experiment: setup.Experiment, client: int
) -> 'collections.OrderedDict[str, tf.data.Dataset]':
  """One client's data as the learning process takes it: its id, and all its examples as one element."""
  examples = experiment.federation.clients[client]
  return collections.OrderedDict(
      client_id=tf.data.Dataset.from_tensors(np.int64(client)),
      examples=tf.data.Dataset.from_tensors(collections.OrderedDict(x=examples.x, y=examples.y)),
  )


def train(
    experiment: setup.Experiment,
    process: tff.learning.templates.LearningProcess,
    directory: Optional[run_directory.RunDirectory],
    *,
    checkpoint_every: int,
    eval_every: int,
    stop_at_accuracy: Optional[float],
    progress: str,
) -> Result:
  """Runs the experiment to its last round, from its latest checkpoint if there is one.

  On KeyboardInterrupt the last finished round is kept and the result says so. With `interrupts.install` a round's
  model, log and checkpoint are never torn apart, and signals that come after the last round are ignored.

  Args:
    experiment: What to run; its runtime must be active (`runtime.activate`).
    process: From `experiment.build_process`.
    directory: Where to keep it; None keeps nothing.
    checkpoint_every: Rounds from one checkpoint to the next.
    eval_every: Rounds from one test to the next.
    stop_at_accuracy: Test accuracy at which to stop, where a test is due.
    progress: 'auto', 'bar', 'lines' or 'none'.

  Raises:
    RunDirectoryError: If the latest checkpoint cannot be read or is of another configuration.
  """
  test_set = experiment.federation.test
  evaluate = experiment.build_evaluation()
  ledger = accounting.NominalLedger(experiment.config)
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

  test, tested_round = None, None

  def tested(learning_state):
    return evaluate(process.get_model_weights(learning_state), test_set.x, test_set.y)

  def current_test():
    nonlocal test, tested_round
    if tested_round != round_num:
      test, tested_round = tested(state), round_num
    return test

  def is_finished():
    # A test that a resumed run makes beside the schedule must not end it where an uninterrupted one goes on.
    on_schedule = round_num > 0 and round_num % eval_every == 0
    if stop_at_accuracy is not None and on_schedule and current_test()['accuracy'] >= stop_at_accuracy:
      return True
    return round_num >= experiment.last_round

  first_round = round_num + 1
  display = progress_lib.make(progress, first_round, experiment.last_round)
  begin = time.monotonic()
  try:
    while not is_finished():
      round_begin = time.monotonic()
      next_round = round_num + 1
      cohort = experiment.cohorts.cohort(next_round)
      output = process.next(state, [client_data(experiment, client) for client in cohort])
      next_ledger = _recorded(ledger, experiment, output.state, cohort)
      row = _row(output.metrics, cohort)
      is_tested = next_round % eval_every == 0 or next_round == experiment.last_round
      if is_tested:
        next_test = tested(output.state)
        row.update(test_accuracy=next_test['accuracy'], test_loss=next_test['loss'])
      row['nominal_epsilon_mean'] = float(next_ledger.epsilon.mean())
      row['nominal_epsilon_max'] = float(next_ledger.epsilon.max())
      row['seconds'] = time.monotonic() - round_begin
      # The round counts as done or not at all.
      with interrupts.held_back():
        state, ledger, round_num = output.state, next_ledger, next_round
        if is_tested:
          test, tested_round = next_test, round_num
        if directory is not None:
          directory.log(round_num, row)
          if round_num % checkpoint_every == 0:
            directory.save(round_num, state, ledger.state_dict())
        if not len(cohort):
          display.note(f'round {round_num}: nobody took part; the model stays as it is.')
        display.update(round_num, row)
    interrupts.ignore_from_now_on()
  except KeyboardInterrupt:
    pass
  finally:
    display.close()
  seconds = time.monotonic() - begin
  if directory is not None:
    directory.save(round_num, state, ledger.state_dict())
  weights = tf.nest.map_structure(np.asarray, process.get_model_weights(state))
  test = dict(current_test())
  return Result(
      round_num, round_num + 1 - first_round, weights, test, ledger, seconds, interrupted=not is_finished()
  )


def _recorded(ledger, experiment, learning_state, cohort):
  recorded = accounting.NominalLedger(experiment.config)
  recorded.load_state_dict(ledger.state_dict())
  recorded.record(learning_state.aggregator, cohort)
  return recorded


def _row(metrics: Any, cohort: np.ndarray) -> Dict[str, Any]:
  """A round's metrics, flat: the names are the columns of metrics.csv."""
  row = {f'train_{name}': value for name, value in metrics['client_work']['train'].items()}
  row.update((name, value) for name, value in metrics['aggregator'].items() if name != 'round')
  row.update(metrics['finalizer'])
  if not len(cohort):
    # Nobody has neither loss nor accuracy; Keras' means over nothing are 0.
    row.update(train_loss=np.nan, train_accuracy=np.nan)
  return {name: np.asarray(value).item() for name, value in row.items()}
