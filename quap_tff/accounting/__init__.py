"""What a run spends, and what may be said about it.

Nominal figures (the documents' own) are `NominalLedger`; formal ones are `account` and `solve`, of a `History`.
"""

from quap_tff.accounting.accountants import account
from quap_tff.accounting.accountants import ACCOUNTANTS
from quap_tff.accounting.accountants import delta_of
from quap_tff.accounting.accountants import Figure
from quap_tff.accounting.accountants import NotApplicable
from quap_tff.accounting.accountants import NotApplicableError
from quap_tff.accounting.calibration import noise_factor
from quap_tff.accounting.calibration import Solution
from quap_tff.accounting.calibration import solve
from quap_tff.accounting.history import GaussianMechanism
from quap_tff.accounting.history import group
from quap_tff.accounting.history import History
from quap_tff.accounting.history import Population
from quap_tff.accounting.nominal import NominalLedger
from quap_tff.accounting.protection import describe_protection
from quap_tff.accounting.protection import Protection
from quap_tff.accounting.run_ledger import RoundRecord
from quap_tff.accounting.run_ledger import RunLedger
