"""Plans: one object for each method that gives its process, its account and its statements."""

from quap_tff.common import lazy

__getattr__, __dir__ = lazy.exports(
  __name__,
  {
    'base': ['aggregation_of', 'Plan', 'Report'],
    'certificates': ['About', 'write_certificate'],
    'certified': ['CertifiedPlan'],
    'fedbuff': ['FedBuffPlan'],
    'lee_kifer': ['LeeKiferPlan'],
    'local': ['LocalPlan'],
    'pt_adp': ['PtAdp', 'PtAdpPlan'],
    'quap': ['QuapPlan'],
    'stock_tff': ['DpFedAvg', 'DpFedAvgAdaptive', 'DpFtrl', 'LayerwiseAdaptive', 'StockPlan'],
  },
)
