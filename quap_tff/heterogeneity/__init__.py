"""Methods for clients that differ, around any mechanism: what a client adds to training, what the server remembers."""

from quap_tff import lazy

__getattr__ = lazy.exports(
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
