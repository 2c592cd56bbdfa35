"""Methods for clients that differ: they change local training and give the server a memory, around any mechanism."""

from quap_tff.common import lazy

__getattr__, __dir__ = lazy.exports(
  __name__,
  {
    'feddyn': ['FedDyn'],
    'fednova': ['FedNova'],
    'fedvarp': ['FedVarp'],
    'friends': ['FriendSubstitution'],
    'safari': ['Safari'],
    'scaffold': ['Scaffold'],
  },
)
