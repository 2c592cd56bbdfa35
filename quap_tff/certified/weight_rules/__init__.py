"""Rules for the clients' weights, by name. A new rule is its own file and one line here.

'Cap only', weights of 1 until a client's budget is spent, is `uniform`: the filter stands behind every rule.
"""

from quap_tff.certified.weight_rules.base import WeightRule
from quap_tff.certified.weight_rules.participation import Participation
from quap_tff.certified.weight_rules.spend_evenly import SpendEvenly
from quap_tff.certified.weight_rules.uniform import Uniform

RULES = {
    'participation': Participation,
    'uniform': Uniform,
    'spend_evenly': SpendEvenly,
}
