"""QuAP-FL: participation-aware differential privacy for TensorFlow Federated.

    plan = quap_tff.QuapPlan(quap_tff.QuapConfig(num_clients=100))
    process = plan.build_process(model_fn)            # a tff.learning.templates.LearningProcess
    ledger = plan.new_ledger()
    ledger.append(plan.record(output, cohort))        # after each round
    print(plan.report(ledger))

Everything is imported when it is first used: what only reads flags or ledgers never loads TensorFlow.
"""

from quap_tff import lazy

__version__ = '0.1.0'

__getattr__ = lazy.exports(
  __name__,
  {
    'accounting': [],
    'aggregation': ['QuapAggregationFactory'],
    'auditing': [],
    'budgets': ['BudgetConfig'],
    'certified': ['CertifiedConfig'],
    'clip_rules': [],
    'client_ids': ['with_client_ids'],
    'client_work': ['build_client_work'],
    'config': ['NoiseConfig', 'QuapConfig'],
    'evaluation': [],
    'layers': [],
    'learning_process': ['build_quap_fed_avg'],
    'local_training': ['ClientWorkConfig'],
    'models': [],
    'participation': ['ParticipationConfig'],
    'plans': ['CertifiedPlan', 'QuapPlan', 'StockPlan'],
    'postprocessing': [],
    'robust': [],
    'runtime': [],
    'schedules': [],
    'weighting': [],
  },
)
