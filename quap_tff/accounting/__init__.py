"""The privacy account of a run, and the statements that may be made about it.

A `RunLedger` records what happened and gives the documents' own, nominal figures. `formal_report` gives the formal
figures of a run; `account` and `solve` give those of any `History`.
"""

from quap_tff.accounting.accountants.history import ADD_OR_REMOVE
from quap_tff.accounting.accountants.history import GaussianMechanism
from quap_tff.accounting.accountants.history import group
from quap_tff.accounting.accountants.history import History
from quap_tff.accounting.accountants.history import Population
from quap_tff.accounting.accountants.history import REPLACE_ONE
from quap_tff.accounting.accountants.history import ZERO_OUT
from quap_tff.accounting.accountants.named import account
from quap_tff.accounting.accountants.named import ACCOUNTANTS
from quap_tff.accounting.accountants.named import delta_of
from quap_tff.accounting.accountants.named import Figure
from quap_tff.accounting.accountants.named import NotApplicable
from quap_tff.accounting.accountants.named import NotApplicableError
from quap_tff.accounting.accountants.named import UNIT
from quap_tff.accounting.calibration import exact_scale
from quap_tff.accounting.calibration import noise_factor
from quap_tff.accounting.calibration import sampled_noise_multiplier
from quap_tff.accounting.calibration import Solution
from quap_tff.accounting.calibration import solve
from quap_tff.accounting.formal import formal_report
from quap_tff.accounting.formal import FormalFigure
from quap_tff.accounting.formal import FormalReport
from quap_tff.accounting.formal import no_amplification
from quap_tff.accounting.ledger_histories import epsilon_by_client
from quap_tff.accounting.ledger_histories import histories
from quap_tff.accounting.ledger_histories import merged_histories
from quap_tff.accounting.ledger_histories import total_mu
from quap_tff.accounting.protection import COVERS
from quap_tff.accounting.protection import describe_protection
from quap_tff.accounting.protection import Protection
from quap_tff.accounting.run_ledger import RoundRecord
from quap_tff.accounting.run_ledger import RunLedger
from quap_tff.accounting.stopping import completed
from quap_tff.accounting.stopping import NoBoundError
from quap_tff.accounting.stopping import of_limits
from quap_tff.accounting.stopping import Reading
