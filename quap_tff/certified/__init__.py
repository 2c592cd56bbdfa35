"""Certified QuAP-FL: participation-adaptive weights under a guarantee that covers the whole released model.

    config = certified.calibrated(certified.CertifiedConfig(...), cohorts)   # noise and divisor from the schedule
    process = certified.build_certified_fed_avg(model_fn, config)            # a tff.learning.templates.LearningProcess
    ledger.record(certified.round_record(config, aggregator_state, clipping_norm, cohort))   # what a round has spent
"""

from quap_tff.certified import weight_rules
from quap_tff.certified.aggregation import CertifiedAggregationFactory
from quap_tff.certified.calibration import calibrated
from quap_tff.certified.config import CertifiedConfig
from quap_tff.certified.learning_process import build_certified_fed_avg
from quap_tff.certified.records import round_record
