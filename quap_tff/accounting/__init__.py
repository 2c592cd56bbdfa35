"""What a run spends, and what may be said about it."""

from quap_tff.accounting.nominal import NominalLedger
from quap_tff.accounting.protection import describe_protection
from quap_tff.accounting.protection import Protection
