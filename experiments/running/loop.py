"""The training loop: rounds, tests, checkpoints."""

import collections
from collections.abc import Mapping, Sequence
import datetime
import hashlib
import json
import secrets
import sys
import time
from typing import Any, Callable, NamedTuple, Optional, Union

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import data
from experiments.command import interrupts
from experiments.folders import directory as run_directory
from experiments.folders import folder as run_folder
from experiments.running import progress as progress_lib
from experiments.running import setup
from quap_tff import accounting
from quap_tff import runtime
from quap_tff.mechanisms.held import guarded_clients
from quap_tff.mechanisms.parts import postprocessing

# Is called with the round's number, its metrics as in metrics.csv, and the server's state. In runs that withhold client
# metrics, the metrics hold none. The state holds the seed of the noise: a callback must keep it as secret as the data.
# An error in a callback ends the run; the round is kept.
Callback = Callable[[int, dict[str, Any], Any], None]


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


class TrainingProgress(NamedTuple):
  """How far a run has come.

  Attributes:
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

  round_num: int
  rounds_run: int
  weights: Any
  test: dict[str, float]
  ledger: accounting.RunLedger
  date: datetime.date
  seconds: Optional[float]
  interrupted: bool
  non_finite: NonFinite


def client_data(
  experiment: setup.Experiment,
  client: int,
  absent: Union[Sequence[int], np.ndarray] = (),
  answers: Optional[Mapping[int, Any]] = None,
) -> 'collections.OrderedDict[str, list[Any]]':
  """One client's data as the learning process takes it.

  Args:
    experiment: The run.
    client: The client.
    absent: The clients that were drawn for the round and drop out. If the client is one of them, it has no examples in
      this round, so its update is zero.
    answers: The answers of the clients' guards, if clients hold the noise.
  """
  examples, extension = experiment.federation.clients[client], experiment.plan.extension
  if client in absent:
    examples = data.Examples(examples.x[:0], examples.y[:0])
  takes_absent = extension is not None and extension.takes_absent
  answer = answers[client] if answers is not None else None
  return as_client_data(client, examples, absent if takes_absent else None, answer)


def as_client_data(
  client: int, examples: data.Examples, absent: Union[Sequence[int], np.ndarray, None] = None, answer: Any = None
) -> 'collections.OrderedDict[str, list[Any]]':
  """A client's id and these examples, all as one element; who is absent, and the guard's answer, if it is needed."""
  # TFF takes lists of elements where it takes datasets. Making a dataset costs more than a small client's arithmetic.
  parts: collections.OrderedDict[str, list[Any]] = collections.OrderedDict(client_id=[np.int64(client)])
  if absent is not None:
    parts['absent'] = [np.int64(other) for other in absent]
  if answer is not None:
    parts['answer'] = [answer]
  parts['examples'] = [collections.OrderedDict(x=examples.x, y=examples.y)]
  return parts


def train(
  experiment: setup.Experiment,
  process: tff.learning.templates.LearningProcess,
  directory: Optional[run_directory.RunDirectory] = None,
  callbacks: Sequence[Callback] = (),
) -> TrainingProgress:
  """Runs the experiment to its last round, from its latest checkpoint if there is one.

  On KeyboardInterrupt the last finished round is kept and the result says so. With `interrupts.install` a round's
  model, log and checkpoint are never torn apart, and signals that come after the last round are ignored.

  Args:
    experiment: What to run; its runtime must be active (`runtime.activate`).
    process: That of `experiment.build_process`.
    directory: Where to keep it; None keeps nothing.
    callbacks: Called after each round of this process, when the round is kept, see `Callback`.

  Raises:
    RunDirectoryError: If the latest checkpoint cannot be read or is of another configuration.
  """
  date = datetime.date.today()
  rounds = _Rounds(experiment, process, directory)
  first_round = rounds.done + 1
  if directory is not None and not rounds.is_finished():
    directory.begin_stretch(first_round)
  epsilon = progress_lib.epsilon_of(experiment.plan)
  display = progress_lib.make(experiment.run.publication.progress, first_round, experiment.run.last_round, epsilon)
  begin = rounds.began = time.monotonic()
  try:
    while not rounds.is_finished():
      rounds.run_next(display)
      for callback in callbacks:
        callback(rounds.done, dict(rounds.row), rounds.state)
    interrupts.ignore_from_now_on()
  except run_folder.RunDirectoryError:
    raise
  except (Exception, KeyboardInterrupt) as error:  # pylint: disable=broad-except
    if not interrupts.is_interrupt(error):
      raise
    interrupts.caught()
    display.close()
    _say_interrupted(rounds.done, directory)
  finally:
    display.close()
  # A run takes as long as its clients' data are large.
  seconds = time.monotonic() - begin if experiment.plan.client_metrics else None
  rounds.save()
  weights = tf.nest.map_structure(np.asarray, rounds.published())
  test = dict(rounds.current_test())
  return TrainingProgress(
    rounds.done,
    rounds.done + 1 - first_round,
    weights,
    test,
    rounds.ledger,
    date,
    seconds,
    not rounds.is_finished(),
    NonFinite(*rounds.non_finite.tolist()),
  )


def _say_interrupted(done: int, directory: Optional[run_directory.RunDirectory]) -> None:
  """Answers at once, whatever progress is shown: what is kept takes a while to write."""
  when = f'after round {done}' if done else 'before a round was run'
  where = 'without --output_dir nothing is kept'
  if directory is not None:
    where = f'saving the run in {directory.path}, and the same command continues it'
  print(f'\nInterrupted {when}: {where}.', file=sys.stderr, flush=True)


class _Rounds:
  """The rounds of a run. A round counts with everything that it changes, or not at all.

  Attributes:
    done: Rounds done, those of earlier processes included.
    state: The server's state after them.
    ledger: The record of each round's cost.
    row: The metrics of the last one.
    non_finite: int64[3], a `NonFinite`.
    began: When the row of the next round began to be made, on the monotonic clock.
  """

  def __init__(
    self,
    experiment: setup.Experiment,
    process: tff.learning.templates.LearningProcess,
    directory: Optional[run_directory.RunDirectory],
  ) -> None:
    self._experiment, self._process, self._directory = experiment, process, directory
    self._schedule = experiment.run.schedule
    evaluate, test = experiment.build_evaluation(), experiment.federation.test
    self._tested = lambda weights: evaluate(weights, test.x, test.y)
    self.done, self.ledger, self.began = 0, experiment.plan.new_ledger(), 0.0
    self.row: dict[str, Any] = {}
    self.non_finite = np.zeros(len(NonFinite._fields), np.int64)
    self.state = process.initialize()
    self._average = experiment.plan.averaging.initial(process.get_model_weights(self.state).trainable)
    self._test: Mapping[str, float] = {}
    self._tested_round: Optional[int] = None
    self._guarded: Optional[guarded_clients.GuardedClients] = None
    if experiment.plan.holds_noise:
      self._guarded = guarded_clients.GuardedClients(experiment.plan, _secret_of_keys(experiment, directory))
    if directory is not None:
      self._restore(directory)

  def _restore(self, directory: run_directory.RunDirectory) -> None:
    kept = directory.restore(self.state, self._records())
    if kept is None:
      # The seed of the noise is in the state: a run cut off before its next checkpoint draws the same noise again.
      self.save()
      return
    self.done, self.state, records = kept
    of = lambda group: {name[len(group) :]: value for name, value in records.items() if name.startswith(group)}
    try:
      self.ledger.load_state_dict(of('ledger/'))
      self._average = postprocessing.restored(self._average, of('average/'))
      self.row = json.loads(np.asarray(records['row/json'], np.uint8).tobytes())
      self.non_finite = np.asarray(records['row/non_finite'], np.int64)
    except ValueError as error:
      path = directory.path
      raise run_folder.RunDirectoryError(f'The checkpoint in {path} does not fit: {error}') from error
    if self._guarded is not None:
      self._guarded.resume(self.ledger)
    directory.keep_rows(self.done, self.row)

  def _records(self) -> dict[str, Any]:
    # The round's row as well: of a run that was cut off between checkpoint and log it would be lost.
    row = np.frombuffer(json.dumps(self.row).encode(), np.uint8)
    rows = {'json': row, 'non_finite': self.non_finite}
    groups: dict[str, Mapping[str, Any]] = {'ledger': self.ledger.state_dict(), 'average': self._average, 'row': rows}
    return {f'{group}/{name}': value for group, values in groups.items() for name, value in values.items()}

  def save(self) -> None:
    """Writes a checkpoint, if anything is kept."""
    if self._directory is not None:
      self._directory.save(self.done, self.state, self._records())

  def published(self) -> Any:
    """The published weights after the rounds done."""
    return self._averaged_weights(self._process.get_model_weights(self.state), self._average)

  def _averaged_weights(
    self, weights: tff.learning.models.ModelWeights, average: Any
  ) -> tff.learning.models.ModelWeights:
    """The weights that are published after a round: `weights` are those of the round, and `average` its average."""
    trainable = self._experiment.plan.averaging.value(average, weights.trainable)
    shrinkage = self._experiment.run.publication.shrinkage
    if shrinkage != 1:
      trainable = postprocessing.shrunk(trainable, shrinkage)
    return tff.learning.models.ModelWeights(trainable=trainable, non_trainable=weights.non_trainable)

  def current_test(self) -> Mapping[str, float]:
    """The test of the published weights."""
    if self._tested_round != self.done:
      self._test, self._tested_round = self._tested(self.published()), self.done
    return self._test

  def is_finished(self) -> bool:
    """True if no round is left to run."""
    # A test that a resumed run makes outside the schedule must not end it where an uninterrupted one goes on.
    on_schedule = self.done > 0 and self.done % self._schedule.eval_every == 0
    enough = self._schedule.stop_at_accuracy
    if enough is not None and on_schedule and self.current_test()['accuracy'] >= enough:
      return True
    return self.done >= self._experiment.run.last_round

  def run_next(self, display: progress_lib.Progress) -> None:
    """Runs a round, and keeps and shows it."""
    experiment, plan, round_num = self._experiment, self._experiment.plan, self.done + 1
    cohort, absent = experiment.cohorts.cohort(round_num), experiment.cohorts.absent(round_num)
    answers = self._guarded.answers(round_num, cohort) if self._guarded is not None else None
    values = runtime.client_values(lambda client: client_data(experiment, client, absent, answers), cohort)
    with runtime.measure_traffic() as measured:
      output = self._process.next(self.state, values)
    record = plan.record(output, cohort)
    weights = self._process.get_model_weights(output.state)
    average = experiment.plan.averaging.update(self._average, weights.trainable)
    is_tested = round_num % self._schedule.eval_every == 0 or round_num == experiment.run.last_round
    test = self._tested(self._averaged_weights(weights, average)) if is_tested else None
    # The round counts as done or not at all.
    with interrupts.held_back():
      self.ledger.append(record)
      self.state, self._average, self.done = output.state, average, round_num
      self.row = _row(experiment, output, cohort, absent, measured.traffic)
      if updates := self.row.get('non_finite_updates', 0):
        self.non_finite = np.where(self.non_finite, self.non_finite, [0, 0, round_num]) + [updates, 1, 0]
      if self._guarded is not None:
        self.row['spent_max'] = self._guarded.spent_max
      if test is not None:
        self._test, self._tested_round = test, round_num
        self.row.update(test_accuracy=test['accuracy'], test_loss=test['loss'])
      if plan.has_nominal:
        self.row['nominal_epsilon_mean'] = float(self.ledger.epsilon.mean())
        self.row['nominal_epsilon_max'] = float(self.ledger.epsilon.max())
      if experiment.plan.client_metrics:
        # With all that was done since the row before: its writing, the checkpoint, callbacks, progress.
        now = time.monotonic()
        self.row['seconds'], self.began = now - self.began, now
      self._keep()
      if not len(cohort) and not experiment.cohorts.secret:
        effect = 'only noise is added' if plan.mechanism.facts.noises_empty_rounds else 'the model stays as it is'
        display.note(f'round {round_num}: nobody took part; {effect}.')
      display.update(round_num, self.row)

  def _keep(self) -> None:
    if self._directory is None:
      return
    if self._experiment.plan.mechanism.facts.is_saved_before_release:
      self.save()
    self._directory.log(self.done, self.row)
    if self.done % self._experiment.run.publication.checkpoint_every == 0:
      self.save()


def _secret_of_keys(experiment: setup.Experiment, directory: Optional[run_directory.RunDirectory]) -> bytes:
  """The secret from which a simulation makes its clients' keys, kept for a run that is continued."""
  seed = experiment.plan.guarantee.config.noise_seed
  if seed is not None:
    return hashlib.sha256(b'public %d' % seed).digest()
  return directory.secret('client_keys') if directory is not None else secrets.token_bytes(32)


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
  if not experiment.plan.client_metrics:
    row = {name: value for name, value in row.items() if name in experiment.plan.public_metrics}
  # What is sent in a round where nobody comes is nothing.
  if traffic is not None and not experiment.cohorts.secret:
    row.update(down_bytes_per_client=traffic.down_bytes_per_client, up_bytes_per_client=traffic.up_bytes_per_client)
  return {name: np.asarray(value).item() for name, value in row.items()}
