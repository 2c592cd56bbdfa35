"""Says of a state what its counters cannot know: that it was moved to this machine, or is to begin anew.

    python -m quap_tff.states adopt PATH     # a state, or a folder of states, that was moved here from another machine
    python -m quap_tff.states forget PATH    # begins anew where a state was removed
    python -m quap_tff.states unclaim FILE   # lets another run count from what FILE says was spent

A state is what must not be used twice or put back: that of a gate, of a guard, of a node (`quap_tff.common.durable`).
Its counters lie in $XDG_STATE_HOME/quap_tff, or ~/.local/state/quap_tff, or in the folder of --counters.

What is at stake: if a copy of the state went on elsewhere, or what was forgotten had answered, budgets are spent twice
and noise repeats, and no account shows it. Exit status: 0; 1 for an error.
"""

import argparse
from collections.abc import Sequence
import sys
from typing import Optional

from quap_tff.common import console
from quap_tff.common import durable
from quap_tff.common import lazy

spent = lazy.module('quap_tff.accounting.spent')


def main(argv: Sequence[str]) -> int:
  """Does what the arguments say, and returns the exit status."""
  parser = argparse.ArgumentParser(
    'python -m quap_tff.states', description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('command', choices=_COMMANDS)
  parser.add_argument('path', metavar='PATH', help='a file, or a folder')
  parser.add_argument('--counters', metavar='DIR', help="the folder of the counters (default: the user's own)")
  arguments = parser.parse_args(argv)
  try:
    print(_COMMANDS[arguments.command](arguments.path, arguments.counters))
    return 0
  except (OSError, ValueError) as error:
    print(f'Error: {error}', file=sys.stderr)
  return 1


def _adopt(path: str, counters: Optional[str]) -> str:
  adopted = durable.adopt(path, counters)
  return f'These states go on from here: {", ".join(adopted)}.' if adopted else 'All states were known already.'


def _forget(path: str, counters: Optional[str]) -> str:
  return f'These states may begin anew: {", ".join(durable.forget(path, counters))}.'


def _unclaim(path: str, counters: Optional[str]) -> str:
  durable.unclaim(spent.keys_of(path), counters)
  return f'Another run may count from {path}.'


_COMMANDS = {'adopt': _adopt, 'forget': _forget, 'unclaim': _unclaim}

if __name__ == '__main__':
  console.run(main)
