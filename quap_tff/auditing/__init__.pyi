"""The names of `__init__.py`, which imports them when they are first used, for type checkers."""

from quap_tff.auditing import canaries as canaries
from quap_tff.auditing import distinguisher as distinguisher
from quap_tff.auditing.bounds import lower_bounds as lower_bounds
from quap_tff.auditing.bounds import one_run as one_run
