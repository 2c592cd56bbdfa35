"""Rules for the clients' budgets, by name. A new rule is its own file and one line here."""

from quap_tff.budget_rules.base import ClientBudgetRule
from quap_tff.budget_rules.participation import Participation
from quap_tff.budget_rules.pt_adp import PtAdp
from quap_tff.budget_rules.uniform import Uniform

RULES = {
    'participation': Participation,
    'uniform': Uniform,
    'pt_adp': PtAdp,
}
