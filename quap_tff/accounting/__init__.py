"""The privacy account of a run, and the statements that may be made about it.

A `RunLedger` records what happened and gives the documents' own, nominal figures. `formal_report` gives the formal
figures of a run; `account` and `solve` give those of any `History`.
"""

from quap_tff.accounting.accountants import account
from quap_tff.accounting.accountants import ACCOUNTANTS
from quap_tff.accounting.accountants import delta_of
from quap_tff.accounting.accountants import exact_scale
from quap_tff.accounting.accountants import Figure
from quap_tff.accounting.accountants import noise_factor
from quap_tff.accounting.accountants import NotApplicable
from quap_tff.accounting.accountants import NotApplicableError
from quap_tff.accounting.accountants import sampled_noise_multiplier
from quap_tff.accounting.accountants import Solution
from quap_tff.accounting.accountants import solve
from quap_tff.accounting.accountants import UNIT
from quap_tff.accounting.formal import formal_report
from quap_tff.accounting.formal import FormalFigure
from quap_tff.accounting.formal import FormalReport
from quap_tff.accounting.formal import no_amplification
from quap_tff.accounting.formal import Reading
from quap_tff.accounting.history import ADD_OR_REMOVE
from quap_tff.accounting.history import ClientHistories
from quap_tff.accounting.history import epsilon_by_client
from quap_tff.accounting.history import GaussianMechanism
from quap_tff.accounting.history import group
from quap_tff.accounting.history import histories
from quap_tff.accounting.history import History
from quap_tff.accounting.history import merged_histories
from quap_tff.accounting.history import REPLACE_ONE
from quap_tff.accounting.history import total_mu
from quap_tff.accounting.history import ZERO_OUT
from quap_tff.accounting.protection import COVERS
from quap_tff.accounting.protection import describe_protection
from quap_tff.accounting.protection import Protection
from quap_tff.accounting.run_ledger import completed
from quap_tff.accounting.run_ledger import ledger_of_limits
from quap_tff.accounting.run_ledger import NoBoundError
from quap_tff.accounting.run_ledger import RunLedger
from quap_tff.accounting.spent import read_spent
from quap_tff.mechanisms.certified.spent_before import SpentBefore
from quap_tff.mechanisms.mechanism import RoundRecord
