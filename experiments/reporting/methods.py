"""How each method is called and drawn: one colour, dash and marker everywhere, distinct in grey too."""

import collections
from typing import Any, Dict, NamedTuple, Optional, Sequence, Tuple

from experiments.reporting import specs


class Method(NamedTuple):
  """Attributes:
    label: Its name in print.
    colour: Of lines and markers; the colours' luminances spread.
    dash: matplotlib's line style.
    marker: matplotlib's marker; no two methods have the same.
    ablation: Which parts it has, (adaptive budget, adaptive clip, layer-wise noise), if it is one of the ablation.
  """

  label: str
  colour: str
  dash: Any
  marker: str
  ablation: Optional[Tuple[bool, bool, bool]] = None


_DOTS, _DASHES, _DASH_DOT = (0, (1, 1.5)), (0, (5, 2)), (0, (5, 1.5, 1, 1.5))
_LONG, _DASH_DOT_DOT, _LONG_SHORT = (0, (10, 2)), (0, (5, 1.5, 1, 1.5, 1, 1.5)), (0, (10, 1.5, 3, 1.5))
_DASH_DASH_DOT = (0, (5, 1.5, 5, 1.5, 1, 1.5))

METHODS: Dict[str, Method] = {
    'quap': Method('QuAP-FL', '#b2182b', '-', 'o', (True, True, True)),
    'fedavg': Method('FedAvg (no privacy)', '#000000', _DOTS, 'x'),
    'fixed_dp': Method('Fixed-DP', '#4393c3', _DASHES, 's', (False, False, False)),
    'fixed_dp_layerwise': Method('Fixed-DP, layer-wise', '#92c5de', _DASHES, 'D', (False, False, True)),
    'adaptive_clip': Method('Adaptive clipping (Andrew et al.)', '#1b7837', _DASH_DOT, '^'),
    'layerwise': Method('Layer-wise, uniform budget', '#f4a582', _LONG, 'v', (False, True, True)),
    'quantile_clip': Method('Quantile clip', '#762a83', _DOTS, 'P', (False, True, False)),
    'adaptive_budget': Method('Adaptive budget', '#01665e', _DASH_DOT_DOT, '<', (True, False, False)),
    'adaptive_budget_clip': Method('Adaptive budget and clip', '#35978f', _LONG, '>', (True, True, False)),
    'adaptive_budget_layerwise': Method(
        'Adaptive budget, layer-wise', '#d8b365', _DASH_DOT_DOT, 'p', (True, False, True)
    ),
    'pt_adp': Method('PT-ADP (an interpretation)', '#8c510a', _DASH_DASH_DOT, '1'),
    'tff_dp_fedavg': Method('TFF DP-FedAvg', '#4d4d4d', _DASHES, '*'),
    'tff_dp_fedavg_adaptive': Method('TFF DP-FedAvg, adaptive clip', '#5a5a5a', _LONG, 'X'),
    'tff_dp_ftrl': Method('TFF DP-FTRL', '#8f8f8f', _DASH_DOT, '+'),
    'tff_layerwise_adaptive': Method('TFF adaptive by layer', '#adadad', _DOTS, '2'),
    'certified': Method('Certified QuAP-FL', '#40004b', _LONG_SHORT, 'd'),
}
_OTHER = Method('', '#333333', _DASH_DOT_DOT, '|')

# The ablation's methods by the parts they have.
BY_PARTS = {method.ablation: name for name, method in METHODS.items() if method.ablation is not None}


def of(algorithm: str) -> Method:
  """The method that an --algorithm spec names, its parameters in the label."""
  name, parameters = specs.parse(algorithm)
  method = METHODS.get(name, _OTHER._replace(label=name))
  if not parameters:
    return method
  return method._replace(label=f'{method.label} ({", ".join(f"{k}={v}" for k, v in parameters.items())})')


def order(algorithm: str) -> Tuple[int, str]:
  """Sorts specs as the registry lists their methods."""
  names = list(METHODS)
  name = specs.parse(algorithm)[0]
  return (names.index(name) if name in names else len(names), algorithm)


def fills(algorithms: Sequence[str]) -> Dict[str, str]:
  """matplotlib's fill style of each spec's marker: specs of one method share all else, and are told apart by it."""
  seen, result = collections.Counter(), {}
  for algorithm in algorithms:
    name = specs.parse(algorithm)[0]
    result[algorithm] = ('full', 'none', 'left', 'top', 'right', 'bottom')[seen[name] % 6]
    seen[name] += 1
  return result
