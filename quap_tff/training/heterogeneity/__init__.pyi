"""The names of `__init__.py`, which imports them when they are first used, for type checkers."""

from quap_tff.training.heterogeneity.feddyn import FedDyn as FedDyn
from quap_tff.training.heterogeneity.fednova import FedNova as FedNova
from quap_tff.training.heterogeneity.fedvarp import FedVarp as FedVarp
from quap_tff.training.heterogeneity.friends import FriendSubstitution as FriendSubstitution
from quap_tff.training.heterogeneity.safari import Safari as Safari
from quap_tff.training.heterogeneity.scaffold import Scaffold as Scaffold
