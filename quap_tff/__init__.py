"""QuAP-FL: participation-aware differential privacy for TensorFlow Federated.

    process = quap_tff.build_quap_fed_avg(model_fn, config)   # a tff.learning.templates.LearningProcess
    aggregator = quap_tff.QuapAggregationFactory(config)      # for a process of your own
"""

from quap_tff import clip_rules
from quap_tff.aggregation import QuapAggregationFactory
from quap_tff.budget import BudgetConfig
from quap_tff.client_work import build_client_work
from quap_tff.client_work import ClientWorkConfig
from quap_tff.config import NoiseConfig
from quap_tff.config import QuapConfig
from quap_tff.learning_process import build_quap_fed_avg
from quap_tff.participation import ParticipationConfig

__version__ = '0.1.0'
