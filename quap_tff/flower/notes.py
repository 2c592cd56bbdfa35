"""What a node has been asked last. Nothing leaves the node before it is written down.

A node's folder is for one run, which goes forward. So a server whose state was removed, or put back, is not answered:
the difference of two answers to one round could be one client's own. The notes are durable (`quap_tff.common.durable`):
a node whose own notes were removed or put back does not answer either.
"""

from __future__ import annotations

import hashlib
import json
import os
from typing import NamedTuple, Optional

from quap_tff.common import durable
from quap_tff.flower import messages

# In the node's folder.
NOTES = 'asked'


class _Noted(NamedTuple):
  """The notes.

  Attributes:
    run: The identifier of the run.
    round_num: The last round that was asked for.
    digest: That of the messages of all rounds until then.
  """

  run: str
  round_num: int
  digest: str

  @classmethod
  def of(cls, content: Optional[bytes]) -> Optional[_Noted]:
    return cls(*json.loads(content)) if content is not None else None

  @property
  def content(self) -> bytes:
    return json.dumps(self).encode()


def take(folder: str, heading: messages.Heading) -> None:
  """Writes down that a round is asked for. The last one may be asked for again, with the same message.

  Args:
    folder: The node's folder.
    heading: That of the message, whose signature was checked.

  Raises:
    RefusedRoundError: If the round does not go on from the last one, or the notes are not the latest ones.
    OSError: If they cannot be read or written.
  """
  try:
    with durable.StateFile(os.path.join(folder, NOTES), waits=True) as state:
      last = _Noted.of(state.content)
      if last is not None:
        _check(last, heading)
      if last is None or heading.round_num > last.round_num:
        state.write(_Noted(heading.run, heading.round_num, _digest(heading, heading.round_num)).content)
  except durable.StateError as error:
    raise messages.RefusedRoundError(str(error)) from None


def _check(last: _Noted, heading: messages.Heading) -> None:
  if heading.run != last.run:
    raise messages.RefusedRoundError(
      f'This node has answered the run {last.run}, and is asked for the run {heading.run}. A folder of a node is for '
      'one run: put back the state of the server, or enrol a new folder, with which clients pay anew.'
    )
  if heading.round_num < last.round_num:
    raise messages.RefusedRoundError(
      f'Round {heading.round_num} was asked for after round {last.round_num}: the state of the server is older than it '
      'was. Put the latest state back.'
    )
  if _digest(heading, last.round_num) != last.digest:
    raise messages.RefusedRoundError(
      f'The server tells other messages of the rounds until {last.round_num} than before: its state is not the latest '
      'one, or two servers play this run. Put the latest state back.'
    )


def _digest(heading: messages.Heading, round_num: int) -> str:
  return hashlib.sha256(b''.join(heading.models[:round_num])).hexdigest()
