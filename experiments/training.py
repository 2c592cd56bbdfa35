"""The training loop: rounds, tests, checkpoints."""

import collections
from collections.abc import Mapping, Sequence
import datetime
import json
import time
from typing import Any, NamedTuple, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import data
from experiments import interrupts
from experiments import progress as progress_lib
from experiments import run_directory
from experiments import setup
from quap_tff import accounting
from quap_tff import runtime
from quap_tff.mechanisms import postprocessing


class Result(NamedTuple):
  """How far a run has come.

  Attributes:
    round_num: Rounds done, those of earlier processes included.
    rounds_run: Rounds done by this process.
    weights: The published weights, `tff.learning.models.ModelWeights` of arrays.
    test: `loss` and `accuracy` on the test set, of these weights.
    ledger: What the rounds spent.
    date: The day on which this process began.
    seconds: Of this process, from the first round on; None where client metrics are withheld.
    interrupted: Whether the run was cut off by the user.
  """

  round_num: int
  rounds_run: int
  weights: Any
  test: dict[str, float]
  ledger: accounting.RunLedger
  date: datetime.date
  seconds: Optional[float]
  interrupted: bool


def client_data(
  experiment: setup.Experiment, client: int, absent: Sequence[int] = ()
) -> 'collections.OrderedDict[str, list[Any]]':
  """One client's data as the learning process takes it.

  Args:
    experiment: The run.
    client: The client.
    absent: The clients that were drawn for the round and drop out. If the client is one of them, it has no examples in
      this round, so its update is zero.
  """
  examples, extension = experiment.federation.clients[client], experiment.plan.extension
  if client in absent:
    examples = data.Examples(examples.x[:0], examples.y[:0])
  takes_absent = extension is not None and extension.takes_absent
  return as_client_data(client, examples, absent if takes_absent else None)


def as_client_data(
  client: int, examples: data.Examples, absent: Optional[Sequence[int]] = None
) -> 'collections.OrderedDict[str, list[Any]]':
  """A client's id and these examples, all as one element; and who is absent, for a method that must know it."""
  # TFF takes lists of elements where it takes datasets. Making a dataset costs more than a small client's arithmetic.
  parts = collections.OrderedDict(client_id=[np.int64(client)])
  if absent is not None:
    parts['absent'] = [np.int64(other) for other in absent]
  parts['examples'] = [collections.OrderedDict(x=examples.x, y=examples.y)]
  return parts


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
  date = datetime.date.today()
  test_set = experiment.federation.test
  evaluate = experiment.build_evaluation()
  plan = experiment.plan
  ledger = plan.new_ledger()
  state = process.initialize()
  average = experiment.averaging.initial(process.get_model_weights(state).trainable)
  round_num, row = 0, {}

  def records():
    # The round's row, too: of a run that was cut off between checkpoint and log it would be lost.
    return _prefixed(ledger=ledger.state_dict(), average=average, row={'json': _as_bytes(row)})

  if directory is not None:
    kept = directory.restore(state, records())
    if kept is None:
      # The seed of the noise is in the state: a run cut off before its next checkpoint draws the same noise again.
      directory.save(0, state, records())
    else:
      round_num, state, kept_records = kept
      try:
        ledger.load_state_dict(_with_prefix('ledger', kept_records))
        average = postprocessing.restored(average, _with_prefix('average', kept_records))
      except ValueError as error:
        raise run_directory.RunDirectoryError(f'The checkpoint in {directory.path} does not fit: {error}') from error
      row = _from_bytes(kept_records['row/json'])
      directory.keep_rows(round_num, row)

  test, tested_round = None, None

  def published(learning_state, its_average):
    return _published(experiment, process.get_model_weights(learning_state), its_average)

  def tested(learning_state, its_average):
    return evaluate(published(learning_state, its_average), test_set.x, test_set.y)

  def current_test():
    nonlocal test, tested_round
    if tested_round != round_num:
      test, tested_round = tested(state, average), round_num
    return test

  def is_finished():
    # A test that a resumed run makes beside the schedule must not end it where an uninterrupted one goes on.
    on_schedule = round_num > 0 and round_num % eval_every == 0
    if stop_at_accuracy is not None and on_schedule and current_test()['accuracy'] >= stop_at_accuracy:
      return True
    return round_num >= experiment.last_round

  first_round = round_num + 1
  if directory is not None and not is_finished():
    directory.begin_stretch(first_round)
  display = progress_lib.make(progress, first_round, experiment.last_round)
  begin = time.monotonic()
  try:
    while not is_finished():
      round_begin = time.monotonic()
      next_round = round_num + 1
      cohort, absent = experiment.cohorts.cohort(next_round), experiment.cohorts.absent(next_round)
      with runtime.measure_traffic() as measured:
        output = process.next(
          state, runtime.client_values(lambda client: client_data(experiment, client, absent), cohort)
        )
      record = plan.record(output, cohort)
      next_average = experiment.averaging.update(average, process.get_model_weights(output.state).trainable)
      is_tested = next_round % eval_every == 0 or next_round == experiment.last_round
      next_test = tested(output.state, next_average) if is_tested else None
      # The round counts as done or not at all.
      with interrupts.held_back():
        ledger.append(record)
        state, average, round_num = output.state, next_average, next_round
        row = _row(experiment, output, cohort, absent, measured.traffic)
        if is_tested:
          test, tested_round = next_test, round_num
          row.update(test_accuracy=test['accuracy'], test_loss=test['loss'])
        if plan.has_nominal:
          row['nominal_epsilon_mean'] = float(ledger.epsilon.mean())
          row['nominal_epsilon_max'] = float(ledger.epsilon.max())
        if experiment.client_metrics:
          row['seconds'] = time.monotonic() - round_begin
        if directory is not None:
          if plan.is_saved_before_release:
            directory.save(round_num, state, records())
          directory.log(round_num, row)
          if round_num % checkpoint_every == 0:
            directory.save(round_num, state, records())
        if not len(cohort):
          effect = 'only noise is added' if plan.noises_empty_rounds else 'the model stays as it is'
          display.note(f'round {round_num}: nobody took part; {effect}.')
        display.update(round_num, row)
    interrupts.ignore_from_now_on()
  except KeyboardInterrupt:
    interrupts.caught()
  except run_directory.RunDirectoryError:
    raise
  except Exception:  # pylint: disable=broad-except
    if not interrupts.is_on_its_way():
      raise
    interrupts.caught()
  finally:
    display.close()
  # A run takes as long as its clients' data are large.
  seconds = time.monotonic() - begin if experiment.client_metrics else None
  if directory is not None:
    directory.save(round_num, state, records())
  weights = tf.nest.map_structure(np.asarray, published(state, average))
  test = dict(current_test())
  return Result(
    round_num, round_num + 1 - first_round, weights, test, ledger, date, seconds, interrupted=not is_finished()
  )


def _published(experiment: setup.Experiment, weights: Any, average: postprocessing.State) -> Any:
  """The weights that are tested and published, of `tff.learning.models.ModelWeights` after a round."""
  trainable = experiment.averaging.value(average, weights.trainable)
  if experiment.shrinkage != 1:
    trainable = postprocessing.shrunk(trainable, experiment.shrinkage)
  return tff.learning.models.ModelWeights(trainable=trainable, non_trainable=weights.non_trainable)


def _prefixed(**groups: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  return {f'{group}/{name}': value for group, values in groups.items() for name, value in values.items()}


def _as_bytes(row: Mapping[str, Any]) -> np.ndarray:
  return np.frombuffer(json.dumps(dict(row)).encode(), np.uint8)


def _from_bytes(kept: np.ndarray) -> dict[str, Any]:
  return json.loads(np.asarray(kept, np.uint8).tobytes())


def _with_prefix(group: str, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  return {name[len(group) + 1 :]: value for name, value in values.items() if name.startswith(f'{group}/')}


def _row(
  experiment: setup.Experiment, output: Any, cohort: np.ndarray, absent: np.ndarray, traffic: Optional[runtime.Traffic]
) -> dict[str, Any]:
  """A round's metrics, flat: the names are the columns of metrics.csv."""
  row = {f'train_{name}': value for name, value in output.metrics['client_work'].get('train', {}).items()}
  row['cohort_size'] = len(cohort)
  if experiment.cohorts.has_dropout:
    row['dropped_out'] = len(absent)
  row.update(experiment.plan.metrics(output))
  row.update(output.metrics['finalizer'])
  if not len(cohort) and row.keys() >= {'train_loss'}:
    # Nobody has neither loss nor accuracy; Keras' means over nothing are 0.
    row.update(train_loss=np.nan, train_accuracy=np.nan)
  if not experiment.client_metrics:
    row = {name: value for name, value in row.items() if name in experiment.plan.public_metrics}
  if traffic is not None:
    row.update(down_bytes_per_client=traffic.down_bytes_per_client, up_bytes_per_client=traffic.up_bytes_per_client)
  return {name: np.asarray(value).item() for name, value in row.items()}
