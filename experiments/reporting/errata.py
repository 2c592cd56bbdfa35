"""Why a measured figure differs from a document's, where docs/errata.md knows; one sentence or two each."""

EARLY_STOP = (
    'Where measured and document differ: the documents\' reference program stops training once the test accuracy '
    'reaches 93.2% (MNIST) or 76.8% (CIFAR-10), which puts its methods within half a point of each other; these runs '
    'go on unless a row says where they stop (`--stop_at_accuracy` stops as it does).'
)
ALL_DENSE = (
    'The reference program also noises every fully connected layer, 98% of the MNIST model\'s weights, not the 1-2% '
    'that the documents state; these runs noise what `--critical_layers` says.'
)
BUDGET_NOT_SPENT = (
    'ε_total is not what a client spends: the nominal sums are of the rounds that it took part in, and a method with '
    'an adaptive budget gives every round more than ε_base. Equal ε_total is not equal nominal ε, and neither is equal '
    'protection.'
)
PRINTED_BUDGETS = (
    'The document\'s printed budgets are not those of its own formula: at ε_base = 0.015 it prints 0.016 for p = 0.5 '
    'and 0.015 for p = 0.9, the formula gives 0.0178 and 0.0162; at p = 1 the budget is 1.068·ε_base.'
)
BASIC_COMPOSITION = (
    'The noise of the documents\' calibration is about twelve times what its nominal ε needs by exact accounting, so a '
    'method that noises every layer pays for protection that its nominal ε does not show.'
)
TABLES_DISAGREE = (
    'The documents disagree with themselves: the ablation\'s baseline without any part (uniform ε, fixed C, noise '
    'everywhere) has 89.40%, the Fixed-DP of `002…` table 2 has 93.76% on the same data.'
)
NOISE_GAIN = (
    '`001…` 5.3.1 gives the gain in signal to noise as 930; that is d/d_c, the ratio of squared norms. The norm grows '
    'as √d: √(1,199,882 / 1,290) = 30.5 for the MNIST model.'
)
LAYERWISE = (
    'Layer-wise noise leaves the other layers un-noised: such a model has no finite ε for the released model, so its '
    'accuracy is not bought with the same protection as that of a method that noises everything.'
)
