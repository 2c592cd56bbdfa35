"""The parts of a run. Their fields are flags, and their docstrings are the help of the flags."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple, Optional

from data import cohorts
from data import datasets
from data import features as features_lib
from data import partition as partitions
from data.cohorts import dropouts
from data.features import maps
from experiments import systems  # noqa: F401 (it registers choices, which the flags list)
from quap_tff import methods
from quap_tff.common import checks
from quap_tff.common import flag_fields
from quap_tff.common.flag_fields import flag
from quap_tff.mechanisms.parts import postprocessing
from quap_tff.runtime import config as runtime_config
from quap_tff.training import malicious as malicious_lib
from quap_tff.training import models
from quap_tff.training import optimizers

# Far above what a machine can do in months; a typing error should not plan for years.
_MOST_ROUNDS = 10**6
_MOST_THREADS = 1024
SECRET = 'secret'


class Epochs(NamedTuple):
  """Local epochs: all clients' number, or the fewest and the most of a range."""

  fewest: int
  most: Optional[int] = None

  @classmethod
  def parse(cls, written: Any) -> Epochs:
    """Reads a number, such as 3, or a range, such as 1..5."""
    fewest, dots, most = str(written).partition('..')
    try:
      upper = checks.parsed_number(most, int) if dots else None
      epochs = cls(checks.parsed_number(fewest, int), upper)
    except ValueError:
      raise ValueError(
        f'--local_epochs must be a number, such as 3, or a range, such as 1..5, found {written!r}.'
      ) from None
    if epochs.most is not None and epochs.most <= epochs.fewest:
      raise ValueError(
        f'--local_epochs: a range must grow, found {written!r}. Give the smaller number first, as in 1..5.'
      )
    return epochs

  @property
  def mean(self) -> Optional[float]:
    """The public mean of the clients' epochs, or None if all have the same number."""
    return None if self.most is None else (self.fewest + self.most) / 2


def _cohort_seed(written: Optional[str]) -> Optional[str]:
  if written in (None, SECRET):
    return written
  raise ValueError(
    f'--cohort_seed must be {SECRET}, found {written!r}. Cohorts from a seed that is given are public, and follow from '
    '--seed. Leave this flag out for those.'
  )


@dataclasses.dataclass(frozen=True)
class Data:
  """The clients' data.

  Attributes:
    dataset: Dataset. npz is a file of your own, with the arrays x and y and, if you like, client, x_test and y_test;
      data/datasets/npz.py says what they hold.
    data_dir: Folder with the dataset's file (mnist.npz, cifar10.npz, …). Default: the download cache.
    num_clients: Number of clients, N. Default: 100, or all clients of a dataset that has its own.
    partition: How examples are shared out among clients.
    features: Fixed features that replace the examples. They are computed once and kept. Default: none, except with
      certified and fedavg, where a public rule chooses them (docs/usage.md, "Choosing constants").
  """

  dataset: Any = flag('digits', kind='dataset', choices=datasets.DATASETS)
  data_dir: Optional[str] = flag(is_control=True)
  num_clients: Optional[int] = flag()
  partition: partitions.Partition = flag('dirichlet:alpha=0.5', kind='partition', choices=partitions.PARTITIONS)
  features: maps.Features = flag('none', kind='features', choices=features_lib.FEATURES, differs=True)


@dataclasses.dataclass(frozen=True)
class Cohorts:
  """Who takes part.

  Attributes:
    participation: Who takes part. flpadpm and client_selection learn from --dropout. Both are interpretations: the
      paper on FLPADPM predicts which students drop out of a course, and the paper on client selection leaves its
      utility open. energy (also an interpretation): by batteries and charging.
    dropout: Who drops out in mid-round, after being drawn. The update of such a client never arrives. It is neither
      counted nor charged, except with certified and trust=server, which charges every client that was drawn.
    cohort_size: Clients in a round, M, for cohorts of fixed size. Default: 30% of the clients, at most 30.
    cohort_seed: Where cohorts come from. secret: independent coins from the operating system's entropy, so that
      sampling amplifies privacy as long as nobody learns who came. Nothing that follows from who came is kept, then,
      and no client metrics. This is for certified, where each client has an account by its own rate, and for
      tff_dp_fedavg. Default: public cohorts from --seed.
  """

  participation: Any = flag('uniform', kind='participation model', choices=cohorts.PARTICIPATION_MODELS)
  dropout: Any = flag('none', kind='dropout', choices=dropouts.DROPOUTS)
  cohort_size: Optional[int] = flag()
  cohort_seed: Optional[str] = flag(words=(SECRET,), parse=_cohort_seed)

  def __post_init__(self) -> None:
    if self.cohort_size is not None:
      checks.integer('cohort_size', self.cohort_size, at_least=1)

  @property
  def are_secret(self) -> bool:
    """True if cohorts come from a secret seed."""
    return self.cohort_seed == SECRET


@dataclasses.dataclass(frozen=True)
class Schedule:
  """Rounds and seed.

  Attributes:
    rounds: Planned rounds, T. The budget is spread over them.
    stop_after: Stop after this round. Budget and guarantee stay those of --rounds.
    stop_at_accuracy: Stop at the first evaluation that reaches this test accuracy, as the reference program does. The
      guarantee stays that of --rounds.
    eval_every: Number of rounds between tests. The last round is always tested.
    seed: Seed of the partition, the cohorts, the initial weights, shuffles and dropout.
  """

  rounds: int = flag(200)
  stop_after: Optional[int] = flag(is_control=True)
  stop_at_accuracy: Optional[float] = flag(is_control=True)
  eval_every: int = flag(1, lower=1, is_control=True)
  seed: int = flag(42)

  def __post_init__(self) -> None:
    checks.integer('rounds', self.rounds, at_least=1, at_most=_MOST_ROUNDS)
    if self.stop_after is not None:
      checks.integer('stop_after', self.stop_after, at_least=1, at_most=self.rounds)
    if self.stop_at_accuracy is not None:
      checks.number('stop_at_accuracy', self.stop_at_accuracy, above=0, at_most=1)
    checks.integer('seed', self.seed, at_least=0, at_most=2**63 - 1)


@dataclasses.dataclass(frozen=True)
class LocalTraining:
  """Model and local training.

  Attributes:
    model: Model. auto chooses one by the shape of the examples. With certified and fedavg it is linear.
    compute_dtype: Arithmetic. Weights are float32 either way. A CPU without instructions for bfloat16 emulates it, and
      is many times slower than with float32.
    local_epochs: Passes over a client's examples in a round: a number, or a range such as 1..5. From a range, each
      client has a number of its own, drawn once from the seed. Default: 1, or by the public rule.
    batch_size: Examples in a local step. Default: 32, or by the public rule.
    max_local_steps: The most local steps that a client takes in a round.
    client_optimizer: Local optimizer. Default: SGD with learning rate 0.05, or by the public rule.
    client_learning_rate_decay: Factor on the local learning rate after each round.
    proximal_strength: FedProx: weight of the pull toward the global model.
    malicious: How malicious clients attack, and their share of the clients. Who they are follows from --seed.
  """

  model: str = flag('auto', kind='model', names=('auto', *models.MODELS))
  compute_dtype: str = flag('float32', kind='compute dtype', names=models.COMPUTE_DTYPES)
  local_epochs: Epochs = flag(1, parse=Epochs.parse, differs=True)
  batch_size: int = flag(32, differs=True)
  max_local_steps: Optional[int] = flag()
  client_optimizer: Any = flag(
    'sgd:learning_rate=0.05', kind='client optimizer', choices=optimizers.OPTIMIZERS, differs=True
  )
  client_learning_rate_decay: float = flag(1.0)
  proximal_strength: float = flag(0.0)
  malicious: malicious_lib.Attack = flag('none', kind='attack', choices=malicious_lib.ATTACKS)


@dataclasses.dataclass(frozen=True)
class Publication:
  """Publication and files.

  Attributes:
    averaging: How weights are averaged over rounds before they are tested and published.
    shrinkage: Factor in (0, 1] on the weights that are tested and published.
    client_metrics: Whether training loss, training accuracy, norms, running times and the like are logged. They are
      exact functions of clients' data, so a release that includes them has no finite ε. Default: yes, except with
      certified.
    output_dir: Folder of the run. If it holds an unfinished run, that run is continued. Default: nothing is saved.
    checkpoint_every: Number of rounds between checkpoints.
    keep_checkpoints: Keep the checkpoints of a run that has finished its planned rounds. They hold the seed of its
      noise.
    signing_key: File with an Ed25519 private key (PEM) that signs the certificate of a certified run.
    allow_code_change: Continue a certified run although other code ran its earlier rounds. run.json names the code of
      each stretch of rounds. Other runs need no permission.
    progress: How progress is shown. auto shows a bar on a terminal.
  """

  averaging: postprocessing.Averaging = flag('none', kind='averaging', choices=postprocessing.AVERAGINGS)
  shrinkage: float = flag(1.0)
  client_metrics: Optional[bool] = flag()
  output_dir: Optional[str] = flag(is_control=True)
  checkpoint_every: int = flag(10, lower=1, is_control=True)
  keep_checkpoints: bool = flag(False, is_control=True)
  signing_key: Optional[str] = flag(is_control=True)
  allow_code_change: bool = flag(False, is_control=True)
  progress: str = flag('auto', one_of=('auto', 'bar', 'lines', 'none'), is_control=True)

  def __post_init__(self) -> None:
    checks.number('shrinkage', self.shrinkage, above=0, at_most=1)


@dataclasses.dataclass(frozen=True)
class Runtime:
  """Where TFF computations run.

  Attributes:
    runtime: Where TFF computations run.
    device: Device. auto uses GPUs if there are any (docs/runtimes.md says what was tried on one).
    num_threads: Number of clients that train at once with --runtime=in_process. Default: one for each core.
    num_workers: Number of workers that --runtime=workers starts.
  """

  runtime: str = flag('in_process', kind='runtime', names=runtime_config.KINDS)
  device: str = flag('auto', kind='device', names=runtime_config.DEVICES)
  num_threads: Optional[int] = flag(upper=_MOST_THREADS, is_control=True)
  num_workers: int = flag(2, upper=_MOST_THREADS)

  @property
  def config(self) -> runtime_config.RuntimeConfig:
    """The runtime's own configuration."""
    fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
    return runtime_config.RuntimeConfig(fields.pop('runtime'), **fields)


@dataclasses.dataclass(frozen=True)
class MechanismChoice:
  """The method, and the parts of its mechanism.

  A flag that a method does not use is refused on the command line. pt_adp, d2dp, acdp, fedapca and safari are
  interpretations: the documents name them but do not specify them.

  Attributes:
    algorithm: Method, by its name and parameters, from the table. The other flags of this group set those parts that
      a method leaves open. scaffold, fednova, feddyn, fedvarp, fl_fdms and safari are built around a base, which keeps
      its clipping norm, noise and account, with parameters, as in scaffold:base=fixed_dp:clip=0.5. How stale updates
      are in fedbuff is a choice of this project. For private statistics of clients by randomised response, use
      experiments.survey. In certified runs with noise ar1 or blt, each round takes back a part of the noise of earlier
      rounds, so less noise is left in an average (--averaging=planned). The noise multiplier, the decay of ar1 and the
      planned average are chosen before training, from the planned cohorts alone. They maximise the signal over the
      noise that is left in the published model. Of the rules that need no schedule in advance, weights=online with
      noise=ar1, the default, was the most accurate on MNIST, where 30 of 100 clients take part in each round.
  """

  algorithm: Any = flag('quap', kind='algorithm', choices=methods.METHODS)


PARTS = (Data, Cohorts, Schedule, MechanismChoice, *methods.PARTS, LocalTraining, Publication, Runtime)
# Every flag, in the order of the parts.
FLAGS: dict[str, flag_fields.Flag] = {
  name: definition for part in PARTS for name, definition in flag_fields.flags_of(part).items()
}
