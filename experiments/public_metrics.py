"""Columns of metrics.csv that are no exact functions of clients' data; all others are withheld or refuse a certificate.

They follow from who takes part, from constants, from noised releases and from the public test set alone.
"""

# What a round of any method may report.
OF_ROUND = frozenset({
    'cohort_size', 'epsilon', 'noise_multiplier', 'participation_mean', 'participation_stddev', 'participation_min',
    'participation_max', 'participation_never_seen', 'update_rejected', 'exhausted_clients', 'weight_mean',
    'weight_min', 'spent_max',
})
# Public where the clipping norm is fixed, or tracked by a noised count.
OF_CLIP = frozenset({'clipping_norm', 'sigma'})
# What the training loop adds.
OF_LOOP = frozenset({
    'round', 'test_accuracy', 'test_loss', 'nominal_epsilon_mean', 'nominal_epsilon_max', 'seconds',
    'down_bytes_per_client', 'up_bytes_per_client',
})
OF_CLIENTS = frozenset({'client', 'rounds', 'nominal_epsilon', 'nominal_delta', 'formal_epsilon'})
