"""The methods by name. A new one is its own file here and one line in `ALGORITHMS`."""

from typing import Dict, Type

from experiments.algorithms import adaptive_clip
from experiments.algorithms import certified
from experiments.algorithms import combinations
from experiments.algorithms import fedavg
from experiments.algorithms import pt_adp
from experiments.algorithms import stock_tff
from experiments.algorithms import tff_ftrl
from experiments.algorithms.base import Algorithm
from experiments.algorithms.base import CALIBRATIONS
from experiments.algorithms.base import Method
from experiments.algorithms.base import Setting
from quap_tff import registry

ALGORITHMS: Dict[str, Type[Algorithm]] = {
    'quap': combinations.Quap,
    'certified': certified.Certified,
    'fedavg': fedavg.FedAvg,
    'fixed_dp': combinations.FixedDp,
    'fixed_dp_layerwise': combinations.FixedDpLayerwise,
    'quantile_clip': combinations.QuantileClip,
    'layerwise': combinations.Layerwise,
    'adaptive_budget': combinations.AdaptiveBudget,
    'adaptive_budget_layerwise': combinations.AdaptiveBudgetLayerwise,
    'adaptive_budget_clip': combinations.AdaptiveBudgetClip,
    'adaptive_clip': adaptive_clip.AdaptiveClip,
    # An interpretation: the documents name PT-ADP and do not specify it.
    'pt_adp': pt_adp.PtAdp,
    'tff_dp_fedavg': stock_tff.TffDpFedAvg,
    'tff_dp_fedavg_adaptive': stock_tff.TffDpFedAvgAdaptive,
    'tff_layerwise_adaptive': stock_tff.TffLayerwiseAdaptive,
    'tff_dp_ftrl': tff_ftrl.TffDpFtrl,
}


def parse(spec: str) -> Algorithm:
  """The method that `spec` names, e.g. `fixed_dp:clip=0.5`; raises `ValueError` for an unknown one."""
  return registry.parse_spec('algorithm', spec, ALGORITHMS)
