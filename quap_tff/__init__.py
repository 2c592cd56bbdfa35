"""QuAP-FL: participation-aware differential privacy for TensorFlow Federated.

    plan = quap_tff.certified(num_clients=100, epsilon=3.0, delta=1e-5, schedule=cohorts)
    process = plan.build_process(model_fn).process                          # a TFF LearningProcess
    output = process.next(state, quap_tff.with_ids(cohort, datasets))       # a round

`quap_fl.py` has the algorithm in NumPy, to be read first, and `certified_fl.py` a certified round. Everything is
imported when it is first used: what only reads flags or ledgers never loads TensorFlow.
"""

from quap_tff.common import lazy
from quap_tff.common.version import VERSION as __version__

# `__init__.pyi` says the same to type checkers.
__getattr__, __dir__ = lazy.exports(
  __name__,
  {
    'bundle.player': ['Bundle'],
    'certificates': [],
    'accounting.gate': ['Gate'],
    'exporting.export': ['export'],
    'federated.client_ids': ['with_ids'],
    'mechanisms.certified.config': ['CertifiedConfig'],
    'mechanisms.held.config': ['HeldConfig'],
    'mechanisms.held.guard': ['ClientGuard'],
    'mechanisms.quap.config': ['QuapConfig'],
    'plans.front_door': ['certified', 'quap'],
    'plans.plan': ['Plan'],
    'plans.public_rule': ['public_constants'],
    'runtime': [],
    'serving.server': ['Server'],
    'training.client_update': ['ClientWorkConfig'],
    'training.models': [],
  },
)
