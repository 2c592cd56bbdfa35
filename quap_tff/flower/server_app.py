"""The ServerApp: plays the rounds of a bundle with the nodes that are there.

Its configuration is in the folder that `python -m quap_tff.flower app` makes:

    bundle        folder of the bundle
    enrolment     folder with the JSON file of each node, see `enrolment`
    operator      folder with the operator's key, which signs each message to a node, see `operators`
    output        folder of the run; if it has a state, the run goes on from there
    test          an .npz file with x_test and y_test, for the accuracy; '' for none, or with `evaluate_by`
    signing-key   file with an Ed25519 private key (PEM) to sign the certificate with; '' for none
    seconds       how long a round waits for answers, and a server for nodes; 0 for what a round takes, see `Patience`
    quorum        share of the planned clients without whom a round does not begin; with a trusted server, it is tried
                  again if fewer answer

The first round after a start waits for all clients that may come, as long as `seconds`: nodes come one after another,
and again after a server was lost. Where the plan has no schedule, all enrolled clients count as planned.

A run that cannot go on ends with a sentence that says why. It is continued by running it again.
"""

from __future__ import annotations

from collections.abc import Mapping
import logging
import os
import time
from typing import Any, NamedTuple, Optional

from flwr.app import Context
from flwr.app.exception import AppExitException
from flwr.serverapp import Grid
from flwr.serverapp import ServerApp
from flwr.supercore.exit import ExitCode
import numpy as np

from quap_tff.bundle import player
from quap_tff.bundle import simulation
from quap_tff.flower import enrolment
from quap_tff.flower import logs
from quap_tff.flower import operators
from quap_tff.flower import own_program
from quap_tff.flower import server_run
from quap_tff.flower import sums
from quap_tff.flower.secure_sum import server as secure_sum

_LOG = logging.getLogger('flwr')
# How often a round is tried before the run stops; and how many rounds in a row may be of nobody.
_TRIES = 3
_SECONDS_BETWEEN_LOOKS = 1.0
_NOBODY = np.zeros(0, np.int64)

app = ServerApp()


# By whom the weights are tested, if not by the bundle, see `evaluate_by`.
_evaluate: Optional[own_program.OwnFunction] = None


def evaluate_by(function: own_program.OwnFunction) -> None:
  """Tests the weights of runs by this function from now on."""
  global _evaluate
  _evaluate = function


class StoppedError(AppExitException):
  """A run that stops before its end. The message is for its operator, who can continue it."""

  exit_code = ExitCode.SUCCESS  # Flower adds a page of its own to every other one.


class _Present(NamedTuple):
  """The clients of a round.

  Attributes:
    allowed: int64[N], those who may come by the plan and by the account.
    nodes: int64[M_k] by node id: those of them who are connected.
    names: The names of these nodes.
    away: The number of clients by name of each node that is not connected.
    least: How many clients are a quorum.
  """

  allowed: np.ndarray
  nodes: Mapping[int, np.ndarray]
  names: Mapping[int, str]
  away: Mapping[str, int]
  least: int

  @property
  def clients(self) -> np.ndarray:
    """int64[M], ascending: those who are connected."""
    return np.sort(np.concatenate([_NOBODY, *self.nodes.values()]))

  def missing(self, announced: np.ndarray, came: np.ndarray) -> dict[str, int]:
    """The number of clients by name of each node that is not connected, or was asked and did not come."""
    lost = np.setdiff1d(announced, came)
    silent = {self.names[node]: len(np.intersect1d(own, lost)) for node, own in self.nodes.items()}
    return {**self.away, **{name: count for name, count in silent.items() if count}}


class Patience:
  """How long a round waits for answers.

  Where the configuration does not say it, this is `FIRST` seconds, and after a round in which everybody answered
  `FACTOR` times what the longest such round took, between `LEAST` and `FIRST` seconds.
  """

  FIRST, LEAST, FACTOR = 600.0, 60.0, 5.0

  def __init__(self, seconds: float):
    """Waits as long as the configuration says; 0 for what a round takes."""
    self._fixed, self._longest = seconds, 0.0

  @property
  def seconds(self) -> float:
    """How long the next round waits."""
    if self._fixed:
      return self._fixed
    if not self._longest:
      return self.FIRST
    return min(self.FIRST, max(self.LEAST, self.FACTOR * self._longest))

  def heed(self, taken: float) -> None:
    """Learns how long a round took in which everybody answered."""
    self._longest = max(self._longest, taken)


def _without_traceback(record: logging.LogRecord) -> bool:
  """Has the sentence of a `StoppedError` logged alone: Flower would log a traceback."""
  if record.exc_info and isinstance(record.exc_info[1], StoppedError):
    record.msg, record.args, record.exc_info = str(record.exc_info[1]), (), None
  return True


@app.main()
def main(grid: Grid, context: Context) -> None:
  """Plays a run to its end, or from where it stopped.

  Raises:
    StoppedError: If it cannot begin, go on or end.
  """
  os.umask(0o077)  # What is written here is for the owner of the run.
  _LOG.addFilter(_without_traceback)
  try:
    _play_to_the_end(grid, context.run_config)
  except (ValueError, OSError) as error:
    raise StoppedError(' '.join(str(error).split())) from None


def _play_to_the_end(grid: Grid, config: Mapping[str, Any]) -> None:
  run = server_run.ServerRun(player.Bundle(str(config['bundle'])), str(config['output']))
  run.check_is_new()
  key = operators.private_key(str(config['operator']))
  protocol = secure_sum.SECURE if run.holds_noise else sums.TRUSTED
  evaluate = evaluation(run.bundle, str(config['test']))
  if evaluate is not None:
    evaluate(run.server.weights)  # Nobody should train in vain.
  play(run, operators.SigningGrid(grid, key), config, protocol)
  summary = run.write_run(evaluate, str(config['signing-key']) or None, protocol.name)
  trained = sum(len(came) > 0 for _, came in run.rounds)
  _LOG.info('Somebody came in %d of %d rounds. The run is in %s.', trained, len(run.cohorts), config['output'])
  if summary.get('no_certificate'):
    _LOG.warning('The run has no certificate. %s', summary['no_certificate'])


def evaluation(bundle: player.Bundle, test: str) -> Optional[simulation.Evaluate]:
  """Tests weights on examples of a file, or by the operator's own function; None if there is neither."""
  function = _evaluate
  if function is None:
    examples = simulation.read_clients(test)[1] if test else None
    return simulation.evaluation(bundle, examples)
  if test:
    raise ValueError(f'Both the file {test} and {function.name} are to test the weights. Leave one of the two out.')

  def evaluate(weights: Any) -> dict[str, float]:
    result = function([np.asarray(one) for one in weights.trainable])
    found = result[0] if len(result) == 1 else np.zeros(0)
    if found.shape or found.dtype.kind != 'f' or not 0 <= found <= 1:
      raise ValueError(f'{function.name} must give the accuracy of weights, a number in [0, 1], found {found}.')
    return {'accuracy': float(found)}

  return evaluate


def play(run: server_run.ServerRun, grid: Grid, config: Mapping[str, Any], protocol: sums.Sum) -> None:
  """Plays the rounds that are left, or those before the account lets nobody come any more.

  Raises:
    ValueError: If not enough clients came, or their sum cannot be obtained. The run can go on when this is mended.
  """
  patience, quorum = Patience(float(config['seconds'])), float(config['quorum'])
  tries, unpaid, empty, awaited = 0, 0, 0, 1.0
  if run.needs_everybody and not run.is_over:
    _LOG.info(
      'Cohorts are planned, and clients hold the noise: the run gets a certificate only if the nodes of all planned '
      'clients are connected when a round begins. For nodes that come and go, export a plan with expected=….'
    )
  while not run.is_over:
    number, planned = run.round_num, len(run.cohorts)
    if unpaid == _TRIES or not run.may_go_on(enrolment.Enrolled(str(config['enrolment'])).everybody):
      _LOG.warning(
        'The account lets nobody come any more: budgets are spent. The run ends after round %d of %d, with what there '
        'is.',
        number - 1,
        planned,
      )
      return
    if empty == _TRIES:
      raise ValueError(
        f'Nobody came in {empty} rounds, the last of which is round {number - 1}: the lines above say why. Mend that, '
        'and run this again: it goes on.'
      )
    began = time.monotonic()
    logs.enter_round(run.run_id, number, planned)
    present = _present(run, grid, config, awaited, patience.seconds)
    awaited = quorum
    if not len(present.allowed):
      run.give_up()
      unpaid += 1
      _LOG.info('Round %d of %d: the account lets nobody of its cohort come.', number, planned)
      continue
    unpaid = 0
    if run.needs_everybody and len(present.clients) < len(present.allowed):
      missing = _listed(present.away) or 'clients that are not enrolled'
      _LOG.warning('Round %d begins without %s: the run gets no certificate.', number, missing)
    protocol.check(run.bundle, present.nodes)
    announced = run.announce(present.clients, present.least, patience.seconds)
    if announced is None:
      run.give_up()
      empty += 1
      _LOG.info('Round %d of %d: the account lets nobody come of those who are there.', number, planned)
      continue
    announced = announced._replace(names=present.names)
    cohort = announced.cohort
    asked = enrolment.those_of(present.nodes, cohort)
    _LOG.info(
      'Round %d of %d: asks %d clients at %s, and waits at most %.0f seconds for their answers.',
      number,
      planned,
      len(cohort),
      _listed({present.names[node]: len(own) for node, own in asked.items()}),
      announced.seconds,
    )
    asked_at = time.monotonic()
    summed = protocol.obtain(grid, asked, announced, run.open)
    if len(summed.came) == len(cohort):
      patience.heed(time.monotonic() - asked_at)
    if len(summed.came) < announced.least and not run.holds_noise:
      tries += 1
      if tries < _TRIES:
        continue
      raise ValueError(
        f'Too few clients came in round {number}: less than a share of {quorum:g} of those who are planned, {tries} '
        'times. Nothing was released. Start their nodes, or lower quorum, and run this again: it goes on.'
      )
    tries = 0
    run.release(summed)
    _say_ended(run, summed.came, present, cohort, time.monotonic() - began)
    empty = 0 if len(summed.came) else empty + 1


def _say_ended(
  run: server_run.ServerRun, came: np.ndarray, present: _Present, announced: np.ndarray, seconds: float
) -> None:
  """Logs what a round was that is over."""
  spent, expected = run.spent(), len(present.allowed)
  said = logs.facts(
    event=logs.ROUND,
    came=len(came),
    expected=expected,
    epsilon_reading=spent.reading,
    epsilon_left=spent.left,
    seconds=round(seconds, 1),
  )
  _LOG.info(
    'Round %d of %d: %d of %d clients came, %.1f seconds%s.%s',
    run.server.done,
    len(run.cohorts),
    len(came),
    expected,
    seconds,
    spent.said,
    _said_missing(present.missing(announced, came)),
    extra=said,
  )


def _present(
  run: server_run.ServerRun, grid: Grid, config: Mapping[str, Any], awaited: float, seconds: float
) -> _Present:
  """Waits for a share of the clients that may come in the next round, and goes on with a quorum when time is over."""
  quorum, ends, said = float(config['quorum']), time.monotonic() + seconds, ''
  while True:
    enrolled = enrolment.Enrolled(str(config['enrolment']))
    allowed = run.allowed(enrolled.everybody)
    connected = list(grid.get_nodes())
    nodes = enrolled.present(connected, allowed)
    names = enrolled.names_at(connected)
    away = enrolled.away(connected, allowed)
    there, least = sum(map(len, nodes.values())), int(np.ceil(quorum * len(allowed)))
    is_late = time.monotonic() > ends
    if there >= awaited * len(allowed) or (is_late and there >= least):
      return _Present(allowed, nodes, names, away, least)
    state = f'{there} of {len(allowed)} clients of round {run.round_num} are there'
    missing = f'Not connected: {_listed(away)}.' if away else 'No node is enrolled for the others.'
    if is_late:
      raise ValueError(
        f'{state}, after {seconds:.0f} seconds. {missing} Start their nodes, or lower quorum, and run this again: it '
        'goes on.'
      )
    if state != said:
      _LOG.info('%s. %s It waits for them at most %.0f seconds.', state, missing, ends - time.monotonic())
      said = state
    time.sleep(_SECONDS_BETWEEN_LOOKS)


def _listed(nodes: Mapping[str, int]) -> str:
  """Nodes by name, each with the number of its clients."""
  return ', '.join(f'{name} ({count})' for name, count in sorted(nodes.items()))


def _said_missing(nodes: Mapping[str, int]) -> str:
  return f' Missing: {_listed(nodes)}.' if nodes else ''
