"""The training loop: rounds, tests, checkpoints."""

import collections
from collections.abc import Iterator, Mapping, Sequence
import contextlib
import datetime
import hashlib
import json
import sys
import time
from typing import Callable, Optional, Union

import numpy as np
import tensorflow as tf

import data
from experiments.command import interrupts
from experiments.folders import directory as run_directory
from experiments.folders import folder as run_folder
from experiments.running import outcome as outcomes
from experiments.running import progress as progress_lib
from experiments.running import setup
from quap_tff import plans
from quap_tff import runtime
from quap_tff.common import array_types
from quap_tff.common import json_types
from quap_tff.plans import built_process
from quap_tff.serving import engine as engines
from quap_tff.serving import server as servers

# Is called with the round's number, its metrics as in metrics.csv, and the server's state. In runs that withhold client
# metrics, the metrics hold none. The state holds the seed of the noise: a callback must keep it as secret as the data.
# An error in a callback ends the run; the round is kept.
Callback = Callable[[int, json_types.JsonObject, array_types.Structure], None]


def client_data(
  experiment: setup.Experiment,
  client: int,
  absent: Union[Sequence[int], np.ndarray] = (),
  answers: Optional[Mapping[int, array_types.Structure]] = None,
) -> built_process.ClientData:
  """One client's data as the learning process takes it.

  Args:
    experiment: The run.
    client: The client.
    absent: The clients that were drawn for the round and drop out. If the client is one of them, it has no examples in
      this round, so its update is zero.
    answers: The answers of the clients' guards, if clients hold the noise.
  """
  examples = RoundExamples(experiment, [client], absent)
  return built_process.client_data_of(experiment.plan, client, engines.Attendance(examples, absent, answers))


def element(examples: data.Examples) -> 'collections.OrderedDict[str, np.ndarray]':
  """Examples as the one element that has them all."""
  return collections.OrderedDict(x=examples.x, y=examples.y)


class RoundExamples(Mapping[int, array_types.Structure]):
  """The examples of each client of a round, made when they are asked for."""

  def __init__(self, experiment: setup.Experiment, cohort: Sequence[int], absent: Union[Sequence[int], np.ndarray]):
    self._clients, self._cohort, self._absent = experiment.federation.clients, cohort, absent

  def __getitem__(self, client: int) -> array_types.Structure:
    examples = self._clients[client]
    if client in self._absent:
      examples = data.Examples(examples.x[:0], examples.y[:0])
    return element(examples)

  def __iter__(self) -> Iterator[int]:
    return iter(self._cohort)

  def __len__(self) -> int:
    return len(self._cohort)


def train(
  experiment: setup.Experiment,
  built: plans.BuiltProcess,
  directory: Optional[run_directory.RunDirectory] = None,
  callbacks: Sequence[Callback] = (),
) -> outcomes.Outcome:
  """Runs the experiment to its last round, from its latest checkpoint if there is one.

  On KeyboardInterrupt the last finished round is kept and the result says so. With `interrupts.install` a round's
  model, log and checkpoint are never torn apart, and signals that come after the last round are ignored.

  Args:
    experiment: What to run; its runtime must be active (`runtime.activate`).
    built: From `experiment.build_process`.
    directory: Where to keep it; None keeps nothing.
    callbacks: Called after each round of this process, when the round is kept, see `Callback`.

  Raises:
    RunDirectoryError: If the latest checkpoint cannot be read or is of another configuration.
  """
  date = datetime.date.today()
  rounds = _Rounds(experiment, built, directory)
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
        callback(rounds.done, dict(rounds.row), rounds.server.state)
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
  weights = tf.nest.map_structure(np.asarray, rounds.server.weights)
  test, ledger = dict(rounds.current_test()), rounds.server.ledger
  assert ledger is not None  # A run of flags has a plan.
  return outcomes.Outcome(
    experiment,
    directory,
    built.leaving,
    round_num=rounds.done,
    rounds_run=rounds.done + 1 - first_round,
    weights=weights,
    test=test,
    ledger=ledger,
    date=date,
    seconds=seconds,
    interrupted=not rounds.is_finished(),
    non_finite=outcomes.NonFinite(*rounds.non_finite.tolist()),
  )


def _say_interrupted(done: int, directory: Optional[run_directory.RunDirectory]) -> None:
  """Answers at once, whatever progress is shown: what is kept takes a while to write."""
  when = f'after round {done}' if done else 'before a round was run'
  where = 'without --output_dir nothing is kept'
  if directory is not None:
    where = f'saving the run in {directory.path}, and the same command continues it'
  print(f'\nInterrupted {when}: {where}.', file=sys.stderr, flush=True)


class _Rounds:
  """The rounds of a run, with their rows. A round counts with everything that it changes, or not at all.

  Attributes:
    server: State, ledger and average after the rounds done.
    row: The metrics of the last one.
    non_finite: int64[3], a `outcomes.NonFinite`.
    began: When the row of the next round began to be made, on the monotonic clock.
  """

  def __init__(
    self, experiment: setup.Experiment, built: plans.BuiltProcess, directory: Optional[run_directory.RunDirectory]
  ) -> None:
    self._experiment, self._directory, self._schedule = experiment, directory, experiment.run.schedule
    self._evaluate = experiment.build_evaluation()
    self.began = 0.0
    self.row: json_types.JsonObject = {}
    self.non_finite = np.zeros(len(outcomes.NonFinite._fields), np.int64)
    self._test: Mapping[str, float] = {}
    self._tested_round: Optional[int] = None
    publication = experiment.run.publication
    store = directory.store if directory is not None else None
    with self._writing():
      self.server: servers.Server = servers.Server.of(
        built,
        shrinkage=publication.shrinkage,
        checkpoint_every=publication.checkpoint_every,
        client_secret=_secret_of_keys(experiment, directory),
        store=store,
      )
    if directory is not None and self.server.notes:
      self._restore(directory, self.server.notes)

  def _restore(self, directory: run_directory.RunDirectory, notes: servers.Notes) -> None:
    self.row = json.loads(np.asarray(notes['row'], np.uint8).tobytes())
    self.non_finite = np.asarray(notes['non_finite'], np.int64)
    directory.keep_rows(self.done, self.row)

  def _notes(self) -> servers.Notes:
    # The round's row as well: of a run that was cut off between checkpoint and log it would be lost.
    row = np.frombuffer(json.dumps(self.row).encode(), np.uint8)
    return {'row': row, 'non_finite': self.non_finite}

  @property
  def done(self) -> int:
    """Rounds done, those of earlier processes included."""
    return self.server.done

  def save(self) -> None:
    """Writes the state, if it is not written yet."""
    with self._writing():
      self.server.save()

  @contextlib.contextmanager
  def _writing(self) -> Iterator[None]:
    """A block that reads or writes the state: its errors become errors of the folder."""
    if self._directory is None:
      yield
      return
    try:
      with self._directory.writing():
        yield
    except ValueError as error:
      raise run_folder.RunDirectoryError(str(error)) from error

  def _tested(self, weights: array_types.Structure) -> Mapping[str, float]:
    test = self._experiment.federation.test
    return self._evaluate(weights, test.x, test.y)

  def current_test(self) -> Mapping[str, float]:
    """The test of the published weights."""
    if self._tested_round != self.done:
      self._test, self._tested_round = self._tested(self.server.weights), self.done
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
    experiment, server, round_num = self._experiment, self.server, self.done + 1
    cohort, absent = experiment.cohorts.cohort(round_num), experiment.cohorts.absent(round_num)
    if experiment.plan.secret is not None:
      # The run draws them by coins of its own, at the rates that its account is of.
      cohort = np.array(list(server.ask()), np.int64)
    examples = RoundExamples(experiment, cohort.tolist(), absent)
    with runtime.measure_traffic() as measured:
      computed = server.compute(examples, absent)
    is_tested = round_num % self._schedule.eval_every == 0 or round_num == experiment.run.last_round
    test = self._tested(server.weights_after(computed.state, computed.average)) if is_tested else None

    def notes() -> servers.Notes:
      self._add_row(computed, absent, measured.traffic, test)
      return self._notes()

    # The round counts as done or not at all.
    with interrupts.held_back():
      with self._writing():
        server.release(computed, notes)
      if self._directory is not None:
        self._directory.log(self.done, self.row)
      if not len(cohort) and not experiment.cohorts.secret:
        noises_empty = experiment.plan.mechanism.facts.noises_empty_rounds
        effect = 'only noise is added' if noises_empty else 'the model stays as it is'
        display.note(f'round {round_num}: nobody took part; {effect}.')
      display.update(round_num, self.row)

  def _add_row(
    self,
    computed: servers.ComputedRound,
    absent: np.ndarray,
    traffic: Optional[runtime.Traffic],
    test: Optional[Mapping[str, float]],
  ) -> None:
    """Makes the row of the round that the server has just taken as played."""
    experiment, ledger = self._experiment, self.server.ledger
    assert ledger is not None  # A run of flags has a plan.
    self.row = _row(experiment, computed, absent, traffic)
    if updates := self.row.get('non_finite_updates', 0):
      self.non_finite = np.where(self.non_finite, self.non_finite, [0, 0, self.done]) + [updates, 1, 0]
    if self.server.spent_max is not None:
      self.row['spent_max'] = self.server.spent_max
    if test is not None:
      self._test, self._tested_round = test, self.done
      self.row.update(test_accuracy=test['accuracy'], test_loss=test['loss'])
    if experiment.plan.has_nominal:
      self.row['nominal_epsilon_mean'] = float(ledger.epsilon.mean())
      self.row['nominal_epsilon_max'] = float(ledger.epsilon.max())
    if experiment.plan.client_metrics:
      # With all that was done since the row before: its writing, the checkpoint, callbacks, progress.
      now = time.monotonic()
      self.row['seconds'], self.began = now - self.began, now


def _secret_of_keys(experiment: setup.Experiment, directory: Optional[run_directory.RunDirectory]) -> Optional[bytes]:
  """The secret from which a simulation makes its clients' keys, where it is not drawn for this run alone."""
  if not experiment.plan.holds_noise:
    return None
  seed = experiment.plan.guarantee.config.noise_seed
  if seed is not None:
    return hashlib.sha256(b'public %d' % seed).digest()
  return directory.secret('client_keys') if directory is not None else None


def _row(
  experiment: setup.Experiment, computed: servers.ComputedRound, absent: np.ndarray, traffic: Optional[runtime.Traffic]
) -> json_types.JsonObject:
  """A round's metrics, flat: the names are the columns of metrics.csv."""
  metrics = computed.metrics
  row = {f'train_{name}': value for name, value in metrics['client_work'].get('train', {}).items()}
  row['cohort_size'] = len(computed.cohort)
  if experiment.cohorts.has_dropout:
    row['dropped_out'] = len(absent)
  row.update(experiment.plan.metrics(computed))
  row.update(metrics['finalizer'])
  if not experiment.plan.client_metrics:
    row = {name: value for name, value in row.items() if name in experiment.plan.public_metrics}
  # What is sent in a round where nobody comes is nothing.
  if traffic is not None and not experiment.cohorts.secret:
    row.update(down_bytes_per_client=traffic.down_bytes_per_client, up_bytes_per_client=traffic.up_bytes_per_client)
  return {name: np.asarray(value).item() for name, value in row.items()}
