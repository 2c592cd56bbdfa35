"""Plans: one object for each method, from which its process, its account and its statements all come."""

from quap_tff import lazy

__getattr__ = lazy.exports(__name__, {
    'base': ['aggregation_of', 'Plan', 'Report'],
    'certified': ['CertifiedPlan'],
    'pt_adp': ['PtAdp', 'PtAdpPlan'],
    'quap': ['QuapPlan'],
    'stock_tff': ['DpFedAvg', 'DpFedAvgAdaptive', 'DpFtrl', 'LayerwiseAdaptive', 'StockPlan'],
})
