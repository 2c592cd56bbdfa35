"""Plans: one object for each method that gives its process, its account and its statements."""

from quap_tff.common import lazy

__getattr__, __dir__ = lazy.exports(
  __name__,
  {
    'accounts.options': ['PlanOptions'],
    'accounts.report': ['Report', 'checked_cohort'],
    'accounts.run_account': ['RunAccount'],
    'built_process': ['BuiltProcess'],
    'plan': ['Plan'],
    'scheduled': ['stock_plan'],
  },
)
