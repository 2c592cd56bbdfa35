"""Why a measured figure differs from a document's, where docs/errata.md knows; one sentence or two each."""

from experiments.reporting import documents

EARLY_STOP = (
    'Where measured and document differ: the documents\' reference program stops training once the test accuracy '
    f'reaches {documents.STOPS_AT["mnist"]}% (MNIST) or {documents.STOPS_AT["cifar10"]}% (CIFAR-10), which puts its '
    'methods within half a point of each other; these runs go on unless a row says where they stop '
    '(`--stop_at_accuracy` stops as it does).'
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
    f'The document\'s printed budgets are not those of its own formula: at ε_base = {documents.BUDGET_BASE} it prints '
    f'{documents.BUDGET_BY_RATE[0.5]} for p = 0.5 and {documents.BUDGET_BY_RATE[0.9]} for p = 0.9, the formula gives '
    '0.0178 and 0.0162; at p = 1 the budget is 1.068·ε_base.'
)
BASIC_COMPOSITION = (
    'The noise of the documents\' calibration is about twelve times what its nominal ε needs by exact accounting, so a '
    'method that noises every layer pays for protection that its nominal ε does not show.'
)
TABLES_DISAGREE = (
    'The documents disagree with themselves: the ablation\'s baseline without any part (uniform ε, fixed C, noise '
    f'everywhere) has {documents.ABLATION[False, False, False]}%, the Fixed-DP of `002…` table 2 has '
    f'{documents.ACCURACY_2025["mnist", "fixed_dp"].mean}% on the same data.'
)
NOISE_GAIN = (
    f'`001…` 5.3.1 gives the gain in signal to noise as {documents.SNR_GAIN}; that is d/d_c, the ratio of squared '
    f'norms. The norm grows as √d: √({documents.MODEL_WEIGHTS:,} / {documents.FINAL_LAYER_WEIGHTS:,}) = '
    f'{(documents.MODEL_WEIGHTS / documents.FINAL_LAYER_WEIGHTS)**0.5:.1f} for the MNIST model.'
)
LAYERWISE = (
    'Layer-wise noise leaves the other layers un-noised: such a model has no finite ε for the released model, so its '
    'accuracy is not bought with the same protection as that of a method that noises everything.'
)
