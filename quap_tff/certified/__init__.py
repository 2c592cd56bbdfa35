"""Certified QuAP-FL: participation-adaptive weights under a guarantee that covers the whole released model.

`quap_tff.CertifiedPlan` puts the parts together. docs/privacy.md has the mechanism's theorem and its proof.
"""

from quap_tff import lazy

__getattr__ = lazy.exports(
  __name__,
  {
    'aggregation': ['CertifiedAggregationFactory'],
    'certificate': [],
    'clip_split': [],
    'config': ['CertifiedConfig'],
    'learning_process': ['build_certified_fed_avg'],
    'planning': ['calibrated', 'planned_rounds'],
    'weight_rules': [],
  },
)
