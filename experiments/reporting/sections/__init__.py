"""The report's sections in order. A new one is a file here with `build(study) -> document.Section` and one line."""

from experiments.reporting.sections import ablation
from experiments.reporting.sections import accuracy
from experiments.reporting.sections import alpha_beta
from experiments.reporting.sections import at_scale
from experiments.reporting.sections import budgets
from experiments.reporting.sections import certified
from experiments.reporting.sections import communication
from experiments.reporting.sections import convergence
from experiments.reporting.sections import cost
from experiments.reporting.sections import critical_layers
from experiments.reporting.sections import cumulative
from experiments.reporting.sections import curves
from experiments.reporting.sections import early_stop
from experiments.reporting.sections import epsilon
from experiments.reporting.sections import fairness
from experiments.reporting.sections import heterogeneity
from experiments.reporting.sections import hypotheses
from experiments.reporting.sections import noise
from experiments.reporting.sections import participation
from experiments.reporting.sections import privacy_and_accuracy

SECTIONS = (
    privacy_and_accuracy.build,
    accuracy.build,
    early_stop.build,
    hypotheses.build,
    curves.build,
    convergence.build,
    ablation.build,
    budgets.build,
    cumulative.build,
    fairness.build,
    noise.build,
    alpha_beta.build,
    heterogeneity.build,
    epsilon.build,
    participation.build,
    critical_layers.build,
    at_scale.build,
    certified.build,
    communication.build,
    cost.build,
)
