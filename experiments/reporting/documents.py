"""Every number that the QuAP-FL documents print, with the place where they do; the only module that has them.

`000…` is version 1.1.2, `001…` the theory, `002…` the document of November 2025.
"""

from typing import Dict, NamedTuple, Optional, Tuple

from experiments.reporting import quantities

# What the documents' tables have in common, as flags of a run.
COMMON = {'num_clients': 100, 'partition': 'dirichlet:alpha=0.5', 'alpha': 0.5, 'beta': 2}
EPSILON_FIRST, EPSILON_2025 = 3, 6

SCENARIOS = {'uniform': 'uniform', 'heterogeneous': 'heterogeneous, Beta(2,5)', 'extreme': 'extreme imbalance'}
NOT_REACHED = 'not reached'


def _percent(mean: float, deviation: Optional[float] = None, digits: int = 1) -> quantities.Quantity:
  return quantities.Quantity(mean, deviation, None, digits)


# `000…` table 1: final test accuracy in percent at ε = 3, by (dataset, scenario, method).
ACCURACY_FIRST: Dict[Tuple[str, str, str], quantities.Quantity] = {
    ('mnist', 'uniform', 'fixed_dp'): _percent(84.2, 1.3),
    ('mnist', 'uniform', 'adaptive_clip'): _percent(89.6, 0.9),
    ('mnist', 'uniform', 'pt_adp'): _percent(91.2, 0.8),
    ('mnist', 'uniform', 'quap'): _percent(97.1, 0.5),
    ('mnist', 'heterogeneous', 'fixed_dp'): _percent(79.8, 2.1),
    ('mnist', 'heterogeneous', 'adaptive_clip'): _percent(85.3, 1.6),
    ('mnist', 'heterogeneous', 'pt_adp'): _percent(88.1, 1.2),
    ('mnist', 'heterogeneous', 'quap'): _percent(94.8, 0.7),
    ('cifar10', 'uniform', 'fixed_dp'): _percent(62.3, 1.8),
    ('cifar10', 'uniform', 'adaptive_clip'): _percent(68.7, 1.5),
    ('cifar10', 'uniform', 'pt_adp'): _percent(71.4, 1.3),
    ('cifar10', 'uniform', 'quap'): _percent(81.2, 0.9),
    ('cifar10', 'heterogeneous', 'fixed_dp'): _percent(57.6, 2.4),
    ('cifar10', 'heterogeneous', 'adaptive_clip'): _percent(64.2, 1.9),
    ('cifar10', 'heterogeneous', 'pt_adp'): _percent(68.9, 1.6),
    ('cifar10', 'heterogeneous', 'quap'): _percent(78.6, 1.1),
}

# `002…` table 2: final test accuracy in percent at ε = 6 under Beta(2,5), 200 rounds, by (dataset, method).
ACCURACY_2025: Dict[Tuple[str, str], quantities.Quantity] = {
    ('mnist', 'fedavg'): _percent(93.26, 0.12, 2),
    ('mnist', 'fixed_dp'): _percent(93.76, 0.15, 2),
    ('mnist', 'quap'): _percent(93.30, 0.10, 2),
    ('cifar10', 'fedavg'): _percent(76.54, 0.31, 2),
    ('cifar10', 'fixed_dp'): _percent(75.80, 0.42, 2),
    ('cifar10', 'quap'): _percent(76.82, 0.28, 2),
}

# `000…` table 2: rounds to 90% test accuracy on MNIST, by (scenario, method); None: not reached.
ROUNDS_TO_90: Dict[Tuple[str, str], Optional[int]] = {
    ('uniform', 'fixed_dp'): 142,
    ('uniform', 'adaptive_clip'): 98,
    ('uniform', 'pt_adp'): 85,
    ('uniform', 'quap'): 52,
    ('heterogeneous', 'fixed_dp'): 178,
    ('heterogeneous', 'adaptive_clip'): 124,
    ('heterogeneous', 'pt_adp'): 106,
    ('heterogeneous', 'quap'): 67,
    ('extreme', 'fixed_dp'): None,
    ('extreme', 'adaptive_clip'): 156,
    ('extreme', 'pt_adp'): 132,
    ('extreme', 'quap'): 89,
}

# `000…` section 5.3, figure 2: the budget of a round at ε_base = 0.015, by participation rate.
BUDGET_BASE = 0.015
BUDGET_BY_RATE = {0.1: 0.021, 0.5: 0.016, 0.9: 0.015}

# `000…` table 3: Jain's index, by (scenario, method). Over what, it does not say.
JAIN: Dict[Tuple[str, str], float] = {
    ('uniform', 'fixed_dp'): 0.42,
    ('heterogeneous', 'fixed_dp'): 0.31,
    ('extreme', 'fixed_dp'): 0.18,
    ('uniform', 'quap'): 0.89,
    ('heterogeneous', 'quap'): 0.76,
    ('extreme', 'quap'): 0.61,
}

# `000…` figure 3: accuracy in percent on CIFAR-10, by (α, β).
ALPHA_BETA: Dict[Tuple[float, float], quantities.Quantity] = {
    (0.3, 1): _percent(76.2), (0.3, 2): _percent(77.8), (0.3, 3): _percent(77.1),
    (0.5, 1): _percent(78.4), (0.5, 2): _percent(81.2), (0.5, 3): _percent(80.3),
    (0.7, 1): _percent(79.1), (0.7, 2): _percent(80.6), (0.7, 3): _percent(78.9),
}


class AtScale(NamedTuple):
  """`000…` table 5: accuracy in percent, rounds to convergence, noise in percent of Vanilla DP-FL's."""

  accuracy: quantities.Quantity
  rounds: int
  noise: quantities.Quantity


AT_SCALE_CLIENTS, AT_SCALE_COHORT = 1000, 50
AT_SCALE = {
    'fixed_dp': AtScale(_percent(71.3), 450, _percent(100, digits=0)),
    'quap': AtScale(_percent(84.7), 280, _percent(72, digits=0)),
}

# `002…` table 1: upload of a client in a round for ResNet-18, MB and ratio to FedAvg's; QuAP-FL sends 4 bytes more.
UPLOAD_MB, UPLOAD_RATIO, UPLOAD_EXTRA_BYTES = 44.6, 1.0, {'fedavg': 0, 'fixed_dp': 0, 'quap': 4}

# `002…` table 3: accuracy in percent on MNIST, by (adaptive budget, adaptive clip, layer-wise noise).
ABLATION: Dict[Tuple[bool, bool, bool], quantities.Quantity] = {
    (False, False, False): _percent(89.40, digits=2),
    (True, False, False): _percent(91.12, digits=2),
    (False, True, False): _percent(90.55, digits=2),
    (False, False, True): _percent(92.10, digits=2),
    (True, True, True): _percent(93.30, digits=2),
}

# `002…` section 5.3.3, figure 4: QuAP-FL's accuracy less Fixed-DP's, in words, by Dirichlet a.
DIRICHLET_GAIN = {0.1: 'more than 5 points', 10: 'hardly any'}

# Test accuracy in percent at which the documents' reference program stops.
STOPS_AT = {'mnist': 93.2, 'cifar10': 76.8}

# `001…` sections 5.3.1 and 7.
SNR_GAIN = 930
SEEDS = (42, 123, 999)
EPSILONS = (3, 6, 10)
MODEL_WEIGHTS, FINAL_LAYER_WEIGHTS = 1_199_882, 1_290


def accuracy(dataset: str, scenario: Optional[str], method: str, epsilon: float) -> Optional[quantities.Quantity]:
  """The final accuracy in percent that a document prints for a run of this kind, or None; without noise at any ε."""
  if scenario == 'heterogeneous' and (epsilon == EPSILON_2025 or method == 'fedavg'):
    return ACCURACY_2025.get((dataset, method))
  return ACCURACY_FIRST.get((dataset, scenario, method)) if epsilon == EPSILON_FIRST else None
