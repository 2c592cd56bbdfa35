"""The names of `__init__.py`, which imports them when they are first used, for type checkers."""

from quap_tff.plans.accounts.options import PlanOptions as PlanOptions
from quap_tff.plans.accounts.report import checked_cohort as checked_cohort
from quap_tff.plans.accounts.report import Report as Report
from quap_tff.plans.accounts.run_account import RunAccount as RunAccount
from quap_tff.plans.built_process import BuiltProcess as BuiltProcess
from quap_tff.plans.plan import Plan as Plan
from quap_tff.plans.scheduled import stock_plan as stock_plan
