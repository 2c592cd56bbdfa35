"""The names of `__init__.py`, which imports them when they are first used, for type checkers."""

from quap_tff.auditing import canaries as canaries
from quap_tff.auditing import distinguisher as distinguisher
from quap_tff.auditing import inversion as inversion
from quap_tff.auditing import membership as membership
from quap_tff.auditing import roc as roc
from quap_tff.auditing.bounds import lower_bounds as lower_bounds
from quap_tff.auditing.bounds import one_run as one_run
from quap_tff.auditing.inversion import images as images
