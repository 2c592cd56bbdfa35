"""Attacks on the releases of a run, and the privacy loss that their success proves.

`inversion` recovers images from updates, and `membership` tells whose data a model was trained on. `lower_bounds` turns
guesses into a lower bound on ε: `canaries` puts clients whose updates an auditor has chosen into a run, and
`distinguisher` plays the game of differential privacy on a mechanism's own functions.
"""

from quap_tff.common import lazy

__getattr__, __dir__ = lazy.exports(
  __name__,
  {
    'bounds.lower_bounds': [],
    'canaries': [],
    'distinguisher': [],
    'inversion.images': [],
    'inversion': [],
    'membership': [],
    'roc': [],
  },
)
