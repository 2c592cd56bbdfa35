"""The flags of an experiment. Presets are `.flags` files of them, in `experiments/presets`.

A flag that takes a spec (`name` or `name:key=value,…`) lists its choices from the registry that it is parsed with.
Nothing here loads TensorFlow: `--help`, and most wrong flags, are answered at once.
"""

from collections.abc import Collection, Iterator, Sequence
import contextlib
from typing import Any

from absl import flags

from data import cohorts
from data import datasets
from data import dropouts
from data import features
from data import partition
from experiments import command_line
from experiments import flag_checks
from experiments import methods
from experiments import optimizers
from quap_tff.common import checks
from quap_tff.common import registry
from quap_tff.mechanisms import budgets
from quap_tff.mechanisms import clip_rules
from quap_tff.mechanisms import config
from quap_tff.mechanisms import correlation
from quap_tff.mechanisms import gaussian
from quap_tff.mechanisms import layers
from quap_tff.mechanisms import participation
from quap_tff.mechanisms import postprocessing
from quap_tff.mechanisms import robust
from quap_tff.mechanisms import sparsity
from quap_tff.mechanisms import weight_rules
from quap_tff.runtime import config as runtime_config
from quap_tff.training import malicious
from quap_tff.training import models

VALUES = command_line.new_flags()

MOST_ROUNDS, _MOST_THREADS = flag_checks.MOST_ROUNDS, 1024


class _NumberOrRange(flags.ArgumentParser):
  """Reads 3 as a number, and leaves everything else, such as 1..5, to `check`."""

  def parse(self, argument):
    try:
      return checks.parsed_number(str(argument), int)
    except ValueError:
      return argument


def _names(choices) -> str:
  return ', '.join(choices)


def _define(kind: str, name: str, *args, **kwargs):
  getattr(flags, f'DEFINE_{kind}')(name, *args, flag_values=VALUES, **kwargs)


_define('string', 'dataset', 'digits', f'Dataset: {registry.describe(datasets.DATASETS)}.')
_define(
  'string', 'data_dir', None, "Folder with the dataset's file (mnist.npz, cifar10.npz, …). Default: the download cache."
)
_define(
  'integer', 'num_clients', None, 'Number of clients, N. Default: 100, or all clients of a dataset that has its own.'
)
_define(
  'string',
  'partition',
  'dirichlet:alpha=0.5',
  f'How examples are shared out among clients: {registry.describe(partition.PARTITIONS)}.',
)
_define(
  'string',
  'features',
  'none',
  f'Fixed features that replace the examples: {registry.describe(features.FEATURES)}. They are computed once and '
  'kept.',
)
_define('string', 'model', 'auto', f'Model: {_names(models.MODELS)}. auto chooses one by the shape of the examples.')
_define(
  'string',
  'compute_dtype',
  'float32',
  f'Arithmetic: {" or ".join(models.COMPUTE_DTYPES)}. Weights are float32 either way.',
)

_define(
  'string',
  'participation',
  'uniform',
  f'Who takes part: {registry.describe(cohorts.PARTICIPATION_MODELS)}. flpadpm and client_selection learn from '
  '--dropout. Both are interpretations: the paper on FLPADPM predicts which students drop out of a course, and that '
  'on client selection leaves its utility open. energy (an interpretation, too): by batteries and charging.',
)
_define(
  'string',
  'dropout',
  'none',
  f'Who drops out in mid-round, after being drawn: {registry.describe(dropouts.DROPOUTS)}. The update of such a '
  'client never arrives. It is neither counted nor charged, except with certified, which charges whoever was drawn.',
)
_define(
  'integer',
  'cohort_size',
  None,
  'Clients in a round, M, for cohorts of fixed size. Default: 30% of the clients, at most 30.',
)
_define('integer', 'rounds', 200, 'Planned rounds, T. The budget is spread over them.')
_define('integer', 'stop_after', None, 'Stop after this round. Budget and guarantee stay those of --rounds.')
_define(
  'float',
  'stop_at_accuracy',
  None,
  'Stop at the first evaluation that reaches this test accuracy, as the reference program does. The guarantee stays '
  'that of --rounds.',
)

_define(
  'string',
  'algorithm',
  'quap',
  f'Method: {registry.describe(methods.METHODS)}. The flags of the mechanism below set those parts that a method '
  'leaves open. A flag that a method does not use is refused on the command line. (pt_adp, d2dp, acdp and fedapca '
  'are interpretations: the documents name them but do not specify them. safari is one, too, of Yang et al. 2024.) '
  'scaffold, fednova, feddyn, fedvarp, fl_fdms and safari are built around a base, which keeps its clip, noise and '
  f'account: {_names(methods.BASES)}, with parameters, as in scaffold:base=fixed_dp:clip=0.5. '
  'How stale updates are in fedbuff is our choice. For private statistics of clients by randomised response, use '
  'experiments.survey. '
  f'For certified, the choices of weights are {registry.describe(weight_rules.RULES)}. The choices of noise are '
  f'{registry.describe(correlation.FAMILIES)}. Under ar1 and blt, each round takes back a part of the noise of '
  'earlier rounds, so less noise is left in an average (--averaging=planned). The noise multiplier, the decay of ar1 '
  'and the planned average are chosen before training, from the planned cohorts alone. They maximise the signal over '
  'the noise that is left in what is published. Of the rules that need no schedule in advance, weights=online with '
  'noise=ar1 was the most accurate on MNIST, where 30 of 100 clients take part in each round.',
)
_define('float', 'epsilon', 6.0, 'Total budget ε_total, spread over --rounds.')
_define('float', 'delta', 1e-5, 'δ of one round in nominal figures, and total δ in formal ones.')
_define(
  'enum',
  'calibration',
  'documents',
  methods.CALIBRATIONS,
  "How much noise is added. documents: as much as the documents' formula gives for each round's budget. exact: "
  'that noise is scaled until the client that spends most spends --epsilon at a total δ of --delta, by exact '
  'accounting. This is only for methods that add noise to every layer.',
)
_define('float', 'alpha', 0.5, 'α: the extra budget of a client that never takes part, in units of ε_base.')
_define('float', 'beta', 2.0, 'β: how fast that extra budget falls as the participation rate grows.')
_define('string', 'round_budget', 'cohort_mean_rate', f'Budget of a round: {_names(budgets.ROUND_RULES)}.')
_define(
  'string', 'participation_rate', 'cumulative', f'How participation rates are computed: {_names(participation.RATES)}.'
)
_define('float', 'ema_weight', 0.1, 'η: weight of the newest round, for --participation_rate=ema.')
_define('integer', 'warmup_rounds', 5, 'T_warm: number of rounds at the start in which every budget is ε_base.')
_define('bool', 'count_during_warmup', True, 'Whether warm-up rounds count as participation.')
_define(
  'string',
  'clip',
  'quantile_ema',
  f'Rule for the clipping norm: {registry.describe(clip_rules.RULES)}. timing is current or previous.',
)
_define('string', 'clip_scope', 'critical', f'Layers that are clipped: {_names(config.CLIP_SCOPES)}.')
_define('string', 'noise', 'server', f'Where Gaussian noise is added: {_names(config.PLACEMENTS)}.')
_define(
  'string',
  'gaussian_calibration',
  'classic',
  f"Formula for the noise of (ε, δ): {_names(gaussian.CALIBRATIONS)}. classic is valid only if a round's ε is at "
  'most 1.',
)
_define(
  'string',
  'critical_layers',
  'final_dense',
  f'Layers that are clipped and noised: {_names(layers.SELECTIONS)}, or layer names with wildcards.',
)
_define('float', 'max_agg_norm', None, 'Bound on the norm of the noised mean update.')
_define(
  'string',
  'update_scale',
  'delta',
  f'Unit in which updates are clipped: {_names(config.UPDATE_SCALES)} (divided by the client learning rate).',
)
_define(
  'string',
  'sparsity',
  'none',
  "Which part of each layer's weights a round updates, clips and noises, while the others stay as they are: "
  f'{registry.describe(sparsity.SPARSITIES)}. random: a new part in each round, from the public --seed. top_released '
  '(an interpretation): those that earlier releases moved the most, and a share of random others (explore).',
)

_define(
  'string',
  'aggregator',
  'mean',
  f'What replaces the mean of the clipped updates: {registry.describe(robust.AGGREGATORS)}. All but the mean need '
  "each client's update at the server, so that no secure aggregation is possible, and no privacy figure survives.",
)
_define(
  'string',
  'malicious',
  'none',
  f'What malicious clients do, and their share of the clients: {registry.describe(malicious.ATTACKS)}. Who they are '
  'follows from --seed.',
)

flags.DEFINE(
  _NumberOrRange(),
  'local_epochs',
  1,
  "Passes over a client's examples in a round: a number, or a range such as 1..5. From a range, each client has a "
  'number of its own, drawn once from the seed.',
  flag_values=VALUES,
)
_define('integer', 'batch_size', 32, 'Examples in a local step.')
_define('integer', 'max_local_steps', None, 'The most local steps that a client takes in a round.')
_define(
  'string',
  'client_optimizer',
  'sgd:learning_rate=0.05',
  f'Local optimizer: {registry.describe(optimizers.OPTIMIZERS)}.',
)
_define('float', 'client_learning_rate_decay', 1.0, 'Factor on the local learning rate after each round.')
_define('float', 'proximal_strength', 0.0, 'FedProx: weight of the pull toward the global model.')
_define(
  'string', 'server_optimizer', 'sgd:learning_rate=1.0', 'Server optimizer, with the choices of --client_optimizer.'
)

_define(
  'string',
  'averaging',
  'none',
  'How weights are averaged over rounds before they are tested and published: '
  f'{registry.describe(postprocessing.AVERAGINGS)}.',
)
_define('float', 'shrinkage', 1.0, 'Factor in (0, 1] on the weights that are tested and published.')
_define(
  'bool',
  'client_metrics',
  None,
  'Whether training loss, training accuracy, norms, running times and the like are logged. They are exact functions '
  "of clients' data, so a release that includes them has no finite ε. Default: yes, except with certified.",
)
_define(
  'string',
  'tuning',
  "Not stated. The guarantee is that of this run, if its constants were chosen without these clients' data.",
  'A sentence for the certificate. It says how the constants of the run were chosen.',
)

_define('integer', 'seed', 42, 'Seed of the partition, the cohorts, the initial weights, shuffles and dropout.')
_define(
  'integer',
  'noise_seed',
  None,
  'Seed of the noise, for reproducible experiments only: whoever knows it can subtract the noise. Default: drawn '
  "from the operating system's entropy.",
)

_define('string', 'runtime', 'in_process', f'Where TFF computations run: {_names(runtime_config.KINDS)}.')
_define(
  'string',
  'device',
  'auto',
  f'Device: {_names(runtime_config.DEVICES)}. auto uses GPUs if there are any. GPUs have not been tried yet.',
)

# Flags that only control how a run is watched and kept. A resumed run may change these.
_CONTROL_NAMES = (
  'help',
  'data_dir',
  'stop_after',
  'stop_at_accuracy',
  'output_dir',
  'checkpoint_every',
  'keep_checkpoints',
  'signing_key',
  'allow_code_change',
  'eval_every',
  'num_threads',
  'worker_addresses',
  'worker_credentials',
  'worker_timeout',
  'progress',
)
_PATHS = ('data_dir', 'output_dir', 'signing_key', 'worker_addresses', 'worker_credentials')
_define(
  'string',
  'output_dir',
  None,
  'Folder of the run. If it holds an unfinished run, that run is continued. Default: nothing is saved.',
)
_define('integer', 'checkpoint_every', 10, 'Number of rounds between checkpoints.', lower_bound=1)
_define(
  'bool',
  'keep_checkpoints',
  False,
  'Keep the checkpoints of a run that has finished its planned rounds. They hold the seed of its noise.',
)
_define(
  'string', 'signing_key', None, 'File with an Ed25519 private key (PEM) that signs the certificate of a certified run.'
)
_define(
  'bool',
  'allow_code_change',
  False,
  'Continue a certified run although other code ran its earlier rounds. run.json names the code of each stretch of '
  'rounds. Other runs need no permission.',
)
_define('integer', 'eval_every', 1, 'Number of rounds between tests. The last round is always tested.', lower_bound=1)
_define(
  'integer',
  'num_threads',
  None,
  'Number of clients that train at once with --runtime=in_process. Default: one for each core.',
  upper_bound=_MOST_THREADS,
)
_define('integer', 'num_workers', 2, 'Number of workers that --runtime=workers starts.', upper_bound=_MOST_THREADS)
_define(
  'list',
  'worker_addresses',
  [],
  'host:port of running workers (experiments.worker), for --runtime=workers. See docs/distributed.md.',
)
_define(
  'string',
  'worker_credentials',
  None,
  'Folder with authority.pem, certificate.pem and key.pem, for workers behind TLS. Default: no TLS.',
)
_define(
  'float',
  'worker_timeout',
  20.0,
  'Seconds without a sign of life after which --runtime=workers gives a worker up and has the others do its part.',
  lower_bound=1,
)
_define(
  'enum', 'progress', 'auto', ['auto', 'bar', 'lines', 'none'], 'How progress is shown. auto shows a bar on a terminal.'
)


def parse(argv: Sequence[str]) -> list[str]:
  """Sets the flags from `argv[1:]`; see `command_line.parse`."""
  return command_line.parse(VALUES, argv)


@contextlib.contextmanager
def parsed(arguments: Sequence[str]) -> Iterator[flags.FlagValues]:
  """The flags as a command line with these arguments would set them. Afterwards they have their defaults again.

  Raises:
    ValueError: For an unknown flag, a value of the wrong type, or an argument that is no flag.
  """
  try:
    command_line.refuse_arguments(parse(['train', *arguments]))
    yield VALUES
  finally:
    for name in VALUES:
      VALUES[name].unparse()


def all_values() -> dict[str, Any]:
  """Every flag of an experiment and its value, by name."""
  return {name: value for name, value in VALUES.flag_values_dict().items() if name not in ('help', 'h')}


def recorded() -> dict[str, Any]:
  """Every flag and its value, as a run's folder keeps them.

  The folder of a certified run is made to be handed out. So it does not say where its operator keeps data and keys.
  """
  withheld = _PATHS if methods.parse(VALUES.algorithm).gives_certificate else ()
  values = {name: None if name in withheld else value for name, value in all_values().items()}
  return {**values, 'features': features.portable(VALUES.features)}


def identity() -> dict[str, Any]:
  """The flags that determine what is computed. They must be the same for a run to be resumed.

  Flags that the method does not use are left out.
  """
  values = {**all_values(), 'features': features.portable(VALUES.features)}
  # Sums are merged worker by worker: their number, not where they are, is part of the result.
  values['num_workers'] = len(values['worker_addresses']) or values['num_workers']
  unused = methods.parse(VALUES.algorithm).unused
  return {name: value for name, value in values.items() if name not in _CONTROL_NAMES and name not in unused}


def check(given: Sequence[str] = ()) -> methods.Method:
  """`flag_checks.check` of these flags."""
  return flag_checks.check(VALUES, [_flag_of(name) for name in given])


def without_effect(given: Sequence[str]) -> dict[str, str]:
  """`flag_checks.without_effect` of these flags."""
  return flag_checks.without_effect(VALUES, [_flag_of(name) for name in given])


def _flag_of(name: str) -> str:
  """The flag that `name` or `noname` sets."""
  return name[2:] if name not in VALUES and name.startswith('no') else name


def without(arguments: Sequence[str], names: Collection[str]) -> list[str]:
  """Command-line arguments without the flags of these names."""
  kept, index = [], 0
  while index < len(arguments):
    argument = arguments[index]
    name, equals, _ = argument.lstrip('-').partition('=')
    flag = _flag_of(name)
    # `--name value`, unless the flag is a switch.
    takes_next = not equals and flag in VALUES and not VALUES[flag].boolean
    width = 2 if takes_next else 1
    if not (argument.startswith('-') and flag in names):
      kept += arguments[index : index + width]
    index += width
  return kept
