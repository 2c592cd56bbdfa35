"""Methods for clients that differ, around any mechanism: what a client adds to training, what the server remembers."""

from quap_tff.common import lazy

__getattr__, __dir__ = lazy.exports(
  __name__,
  {
    'extension': ['Extension'],
    'feddyn': ['FedDyn'],
    'fednova': ['FedNova'],
    'fedvarp': ['FedVarp'],
    'friends': ['FriendSubstitution'],
    'safari': ['Safari'],
    'scaffold': ['Scaffold'],
  },
)
