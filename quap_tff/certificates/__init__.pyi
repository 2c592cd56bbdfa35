"""The names of `__init__.py`, which imports them when they are first used, for type checkers."""

from quap_tff.certificates import gate_logs as gate_logs
from quap_tff.certificates.folders import folder as folder
from quap_tff.certificates.folders.about import About as About
from quap_tff.certificates.folders.about import SECAGG as SECAGG
from quap_tff.certificates.verifying import remove as remove
from quap_tff.certificates.verifying import Verdict as Verdict
from quap_tff.certificates.verifying import verify as verify
from quap_tff.certificates.verifying import write_run as write_run
