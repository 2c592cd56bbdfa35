"""The flags of an experiment. Presets are `.flags` files of them, in `experiments/presets`.

A flag that takes a spec (`name` or `name:key=value,…`) lists its choices from the registry that it is parsed with.
"""

from typing import Any, Dict

from absl import flags

from data import cohorts
from data import datasets
from data import features
from data import partition
from experiments import algorithms
from experiments import optimizers
from quap_tff import budget
from quap_tff import clip_rules
from quap_tff import config
from quap_tff import gaussian
from quap_tff import layers
from quap_tff import models
from quap_tff import participation
from quap_tff import postprocessing
from quap_tff import registry
from quap_tff.runtime import config as runtime_config


def _names(choices) -> str:
  return ', '.join(choices)


flags.DEFINE_string('dataset', 'digits', f'Dataset: {registry.describe(datasets.DATASETS)}.')
flags.DEFINE_string(
    'data_dir', None, 'Folder with the dataset\'s file (mnist.npz, cifar10.npz, …); without it, the download cache.'
)
flags.DEFINE_integer('num_clients', None, 'Clients N. Default: 100, or all of a dataset with clients of its own.')
flags.DEFINE_string(
    'partition', 'dirichlet:alpha=0.5', f'How examples are shared out: {registry.describe(partition.PARTITIONS)}.'
)
flags.DEFINE_string(
    'features',
    'none',
    f'Fixed features in place of examples: {registry.describe(features.FEATURES)}. Computed once and kept.',
)
flags.DEFINE_string('model', 'auto', f'Model: {_names(models.MODELS)}; auto picks by the examples.')
flags.DEFINE_string('compute_dtype', 'float32', 'float32 or bfloat16 arithmetic; weights are float32 either way.')

flags.DEFINE_string(
    'participation',
    'uniform',
    f'Who takes part: {registry.describe(cohorts.PARTICIPATION_MODELS)}.',
)
flags.DEFINE_integer(
    'cohort_size', None, 'Clients a round M, for models of fixed size. Default: 30% of the clients, at most 30.'
)
flags.DEFINE_integer('rounds', 200, 'Planned rounds T: the budget is spread over them.')
flags.DEFINE_integer('stop_after', None, 'Stop after this round; the budget is still that of --rounds.')
flags.DEFINE_float(
    'stop_at_accuracy', None, 'Stop at the first evaluation with this test accuracy, as the reference program does.'
)

flags.DEFINE_string(
    'algorithm',
    'quap',
    f'Method: {registry.describe(algorithms.ALGORITHMS)}. The flags of the mechanism below set the parts that a method '
    'has; the rest of it is fixed. (pt_adp is an interpretation: the documents name PT-ADP and do not specify it.)',
)
flags.DEFINE_float('epsilon', 6.0, 'Total budget ε_total, over --rounds.')
flags.DEFINE_float('delta', 1e-5, 'δ: of one round in nominal figures, in total in formal ones.')
flags.DEFINE_enum(
    'calibration',
    'documents',
    algorithms.CALIBRATIONS,
    'Noise: as the documents\' formula has it for each round\'s budget; or exact, the same scaled down until the '
    'client that spends most spends ε_total at a total δ by exact accounting.',
)
flags.DEFINE_float('alpha', 0.5, 'α: how much more budget a client that is never there gets.')
flags.DEFINE_float('beta', 2.0, 'β: how fast that fades with the participation rate.')
flags.DEFINE_string(
    'round_budget', 'cohort_mean_rate', f'Budget of a round: {_names(budget.ROUND_RULES)}.'
)
flags.DEFINE_string('participation_rate', 'cumulative', f'Participation rates: {_names(participation.RATES)}.')
flags.DEFINE_float('ema_weight', 0.1, 'η: weight of the newest round in EMA rates.')
flags.DEFINE_integer('warmup_rounds', 5, 'T_warm: rounds with the plain base budget.')
flags.DEFINE_bool('count_during_warmup', True, 'Whether warm-up rounds count as participation.')
flags.DEFINE_string(
    'clip',
    'quantile_ema',
    f'Rule for the clipping norm: {registry.describe(clip_rules.RULES)}. (timing: current, previous.)',
)
flags.DEFINE_string('clip_scope', 'critical', f'What is clipped: {_names(config.CLIP_SCOPES)}.')
flags.DEFINE_string('noise', 'server', f'Where Gaussian noise is added: {_names(config.PLACEMENTS)}.')
flags.DEFINE_string(
    'gaussian_calibration',
    'classic',
    f'Noise for (ε, δ): {_names(gaussian.CALIBRATIONS)}; classic holds for a round\'s ε up to 1 only.',
)
flags.DEFINE_string(
    'critical_layers',
    'final_dense',
    f'Clipped and noised layers: {_names(layers.SELECTIONS)}, or names with wildcards.',
)
flags.DEFINE_float('max_agg_norm', None, 'Bound on the norm of the noised mean update.')
flags.DEFINE_string(
    'update_scale', 'delta', f'Units of updates: {_names(config.UPDATE_SCALES)} (divided by the client learning rate).'
)

flags.DEFINE_integer('local_epochs', 1, 'Passes over a client\'s examples in a round.')
flags.DEFINE_integer('batch_size', 32, 'Examples in a local step.')
flags.DEFINE_integer('max_local_steps', None, 'Most local steps of a client in a round.')
flags.DEFINE_string(
    'client_optimizer', 'sgd:learning_rate=0.05', f'Local optimizer: {registry.describe(optimizers.OPTIMIZERS)}.'
)
flags.DEFINE_float('client_learning_rate_decay', 1.0, 'Factor of the local learning rate from round to round.')
flags.DEFINE_float('proximal_strength', 0.0, 'FedProx: weight of the pull toward the global model.')
flags.DEFINE_string('server_optimizer', 'sgd:learning_rate=1.0', 'Server optimizer; the same choices.')

flags.DEFINE_string(
    'averaging',
    'none',
    'The weights that are tested and published, out of those of all rounds: '
    f'{registry.describe(postprocessing.AVERAGINGS)}.',
)
flags.DEFINE_float('shrinkage', 1.0, 'Factor in (0, 1] on the weights that are tested and published.')
flags.DEFINE_bool(
    'client_metrics',
    None,
    'Whether training loss and accuracy, norms and the like are logged. They are exact functions of clients\' data: '
    'logged beside a model, they leave the release without a finite ε. Default: yes, except with certified, which with '
    'them is not certified.',
)
flags.DEFINE_string(
    'tuning',
    'Not stated. The guarantee is that of this run, if its constants were chosen without these clients\' data.',
    'How the constants of a certified run were chosen, a sentence for its certificate.',
)

flags.DEFINE_integer('seed', 42, 'Of partition, cohorts, initial weights, shuffles and dropout.')
flags.DEFINE_integer('noise_seed', None, 'Of the noise, for reproducible runs; without it, from the operating system.')

flags.DEFINE_string('runtime', 'in_process', f'Where TFF computations run: {_names(runtime_config.KINDS)}.')
flags.DEFINE_string('device', 'auto', f'{_names(runtime_config.DEVICES)}; auto: GPUs if there are any.')

# What only says how a run is watched and kept: a resumed run may change these.
_CONTROL_NAMES = (
    'data_dir', 'stop_after', 'stop_at_accuracy', 'output_dir', 'checkpoint_every', 'eval_every', 'num_threads',
    'worker_addresses', 'progress',
)
flags.DEFINE_string(
    'output_dir', None, 'Folder of the run; an unfinished run in it is taken up. Default: nothing kept.'
)
flags.DEFINE_integer('checkpoint_every', 10, 'Rounds from one checkpoint to the next.', lower_bound=1)
flags.DEFINE_integer(
    'eval_every', 1, 'Rounds from one test to the next; the last round is always tested.', lower_bound=1
)
flags.DEFINE_integer('num_threads', None, 'Clients that run at once in process. Default: one for each core.')
flags.DEFINE_integer('num_workers', 2, 'Workers to start with --runtime=workers.')
flags.DEFINE_list('worker_addresses', [], 'host:port of running workers, for --runtime=workers.')
flags.DEFINE_enum(
    'progress', 'auto', ['auto', 'bar', 'lines', 'none'], 'How progress is shown; auto: a bar on a terminal.'
)


def all_values() -> Dict[str, Any]:
  """Every flag of an experiment and its value, by name."""
  module_flags = flags.FLAGS.flags_by_module_dict()[__name__]
  return {flag.name: flag.value for flag in module_flags}


def identity() -> Dict[str, Any]:
  """The flags that say what is computed: they must be the same for a run to be resumed."""
  values = all_values()
  # Sums are merged worker by worker: their number, not where they are, is part of the result.
  values['num_workers'] = len(values['worker_addresses']) or values['num_workers']
  return {name: value for name, value in values.items() if name not in _CONTROL_NAMES}
