"""Audits of a run: lower bounds on the privacy that it lost.

`canaries` puts clients whose updates an auditor has chosen into a run, and `one_run` turns their scores into lower
bounds on ε. `distinguisher` plays the game of differential privacy on a mechanism's own functions, and `lower_bounds`
turns its guesses into a lower bound.
"""

from quap_tff.common import lazy

__getattr__, __dir__ = lazy.exports(
  __name__, {'bounds.lower_bounds': [], 'bounds.one_run': [], 'canaries': [], 'distinguisher': []}
)
