"""QuAP-FL: participation-aware differential privacy for TensorFlow Federated.

    plan = quap_tff.Plan(quap_tff.QuapConfig(num_clients=100))
    process = plan.build_process(model_fn).process    # a tff.learning.templates.LearningProcess
    ledger = plan.new_ledger()
    ledger.append(plan.record(output, cohort))        # after each round
    print(plan.report(ledger))

`quap_fl.py` has the algorithm in NumPy, to be read first, and `certified_fl.py` a certified round. Everything is
imported when it is first used: what only reads flags or ledgers never loads TensorFlow.
"""

from quap_tff.common import lazy
from quap_tff.common.version import VERSION as __version__

__getattr__, __dir__ = lazy.exports(
  __name__,
  {
    'accounting': [],
    'auditing': [],
    'bundle.player': ['Bundle'],
    'certificates': [],
    'cohorts': [],
    'exporting.export': ['export'],
    'federated.aggregation': ['CertifiedAggregationFactory', 'QuapAggregationFactory'],
    'federated.client_ids': ['with_client_ids'],
    'federated.client_work': ['build_client_work'],
    'federated.learning_process': ['build_certified_fed_avg', 'build_quap_fed_avg'],
    'accounting.gate': ['Gate'],
    'mechanisms.parts.budgets': ['BudgetConfig'],
    'mechanisms.certified.config': ['Certified', 'CertifiedConfig'],
    'mechanisms.parts.clip_rules': [],
    'mechanisms.quap.config': ['NoiseConfig', 'QuapConfig'],
    'mechanisms.held.config': ['Held', 'HeldConfig'],
    'mechanisms.held.guard': ['ClientGuard'],
    'mechanisms.noise.correlation': [],
    'mechanisms.parts.participation': ['ParticipationConfig'],
    'mechanisms.parts.layers': [],
    'mechanisms.certified.planning': [],
    'mechanisms.parts.postprocessing': [],
    'mechanisms.parts.robust': [],
    'mechanisms.parts.schedules': [],
    'mechanisms.certified.weight_rules': [],
    'mechanisms.parts.weighting': [],
    'plans': ['certified_plan', 'Plan', 'stock_plan'],
    'runtime': [],
    'training.evaluation': [],
    'training.client_update': ['ClientWorkConfig'],
    'training.models': [],
  },
)
