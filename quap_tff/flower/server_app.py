"""The ServerApp: plays the rounds of a bundle with the nodes that are there.

Its configuration is in the folder that `python -m quap_tff.flower app` makes:

    bundle        folder of the bundle
    enrolment     folder with the JSON file of each node, see `enrolment`
    output        folder of the run; if it has a checkpoint, the run goes on from there
    test          an .npz file with x_test and y_test, for the accuracy; '' for none
    signing-key   file with an Ed25519 private key (PEM) to sign the certificate with; '' for none
    seconds       how long a round waits for answers, and a server for nodes
    quorum        share of the planned clients without whom a round does not begin; with a trusted server, it is tried
                  again if fewer answer

The first round after a start waits for all clients that may come, as long as `seconds`: nodes come one after another,
and again after a server was lost. Where the plan has no schedule, all enrolled clients count as planned.
"""

from __future__ import annotations

from collections.abc import Mapping
import logging
import time
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid
from flwr.serverapp import ServerApp
import numpy as np

from quap_tff.bundle import player
from quap_tff.bundle import simulation
from quap_tff.flower import enrolment
from quap_tff.flower import server_run
from quap_tff.flower import sums
from quap_tff.flower.secure_sum import server as secure_sum

_LOG = logging.getLogger('flwr')
# How often a round is tried before the run stops.
_TRIES = 3
_SECONDS_BETWEEN_LOOKS = 1.0
_NOBODY = np.zeros(0, np.int64)

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
  """Plays a run to its end, or from where it stopped."""
  config = context.run_config
  run = server_run.ServerRun(player.Bundle(str(config['bundle'])), str(config['output']))
  protocol = secure_sum.SECURE if run.holds_noise else sums.TRUSTED
  play(run, grid, config, protocol)
  test = simulation.read_clients(str(config['test']))[1] if config['test'] else None
  summary = run.write_run(test, str(config['signing-key']) or None, protocol.name)
  reason = summary.get('no_certificate')
  _LOG.info('The run is in %s. %s', config['output'], f'It has no certificate. {reason}' if reason else '')


def play(run: server_run.ServerRun, grid: Grid, config: Mapping[str, Any], protocol: sums.Sum) -> None:
  """Plays the rounds that are left.

  Raises:
    ValueError: If not enough clients came, or their sum cannot be obtained. The run can go on when this is mended.
  """
  seconds, quorum, tries, awaited = float(config['seconds']), float(config['quorum']), 0, 1.0
  while not run.is_over:
    began, number = time.monotonic(), run.round_num
    nodes, least = _present(run, grid, config, awaited)
    awaited = quorum
    protocol.check(run.bundle, nodes)
    announced = run.announce(np.sort(np.concatenate([_NOBODY, *nodes.values()])), least, seconds)
    if announced is None:
      run.give_up()
      _LOG.info('Round %d: the account lets nobody come.', number)
      continue
    cohort = announced.cohort
    summed = protocol.obtain(grid, enrolment.those_of(nodes, cohort), announced)
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
    taken = time.monotonic() - began
    _LOG.info('Round %d: %d of %d clients came, %.1f seconds.', number, len(summed.came), len(cohort), taken)


def _present(
  run: server_run.ServerRun, grid: Grid, config: Mapping[str, Any], awaited: float
) -> tuple[Mapping[int, np.ndarray], int]:
  """Waits for a share of the clients that may come in the next round, and goes on with a quorum when time is over.

  Returns:
    int64[M_k] by node id: the clients that are there; and how many a quorum are.
  """
  seconds, quorum = float(config['seconds']), float(config['quorum'])
  ends = time.monotonic() + seconds
  while True:
    enrolled = enrolment.Enrolled(str(config['enrolment']))
    allowed = run.allowed(enrolled.everybody)
    nodes = enrolled.present(grid.get_nodes(), allowed)
    there, least, is_late = sum(map(len, nodes.values())), int(np.ceil(quorum * len(allowed))), time.monotonic() > ends
    if there >= awaited * len(allowed) or (is_late and there >= least):
      return nodes, least
    if is_late:
      raise ValueError(
        f'{there} of {len(allowed)} clients of round {run.round_num} are there, after {seconds:g} seconds. Start their '
        'nodes, or lower quorum, and run this again: it goes on.'
      )
    time.sleep(_SECONDS_BETWEEN_LOOKS)
