"""The ServerApp with a grid that waits for answers, and not for time to pass.

Flower's grid looks for answers every three seconds, and waits for a silent node until its time-out. A
test knows which nodes do not answer in which round. It names them in a file, and this grid waits for all the others,
however long they take.

`python -m tests.quap_tff.flower.waiting` is `python -m quap_tff.flower` with this ServerApp.
"""

import json
import pathlib
import sys

from flwr.serverapp import ServerApp

from quap_tff.flower import __main__ as programs
from quap_tff.flower import enrolment
from quap_tff.flower import server_app
from tests import processes

# In the folder of a federation: the names of the nodes that do not answer, by round.
SILENT = 'silent.json'
_SECONDS_BETWEEN_LOOKS = 0.3

app = ServerApp()
# Before it is replaced.
_PLAYED = server_app.app


class Grid:
  """Flower's grid with other waits.

  Attributes:
    config: The configuration of the run.
  """

  def __init__(self, grid, config):
    self._grid, self.config = grid, config

  def __getattr__(self, name):
    return getattr(self._grid, name)

  def send_and_receive(self, sent, *, timeout=None):
    """The answers of all but the nodes that are named."""
    del timeout
    self._grid.push_messages(sent)
    waiting, found = {message.metadata.message_id: message.metadata.dst_node_id for message in sent}, []

    def look():
      for reply in self._grid.pull_messages(list(waiting)):
        del waiting[reply.metadata.reply_to_message_id]
        found.append(reply)
      return not waiting or set(waiting.values()) <= self._silent(sent[0].metadata.group_id)

    processes.until(look, seconds=_SECONDS_BETWEEN_LOOKS)
    return found

  def _silent(self, round_num):
    path = pathlib.Path(self.config['output']).parent / SILENT
    silent = json.loads(path.read_text()).get(round_num, '') if path.exists() else ''
    names = enrolment.Enrolled(self.config['enrolment']).names_at(self._grid.get_nodes())
    return {node for node, name in names.items() if name in silent}


@app.main()
def main(grid, context):
  _PLAYED(Grid(grid, context.run_config), context)


if __name__ == '__main__':
  server_app.app = app
  sys.exit(programs.main(sys.argv[1:]))
