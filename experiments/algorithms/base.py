"""What a method of --algorithm must provide.

An `Algorithm` is a frozen dataclass of the method's own parameters, parsed from a spec. `configure` applies it to the
mechanism that the flags describe; `method` then makes the `Method` of a run: its learning process, what each round
spends, and what may be said about the released model. All of these come from one configuration, so they cannot drift
apart.
"""

import abc
import dataclasses
from typing import Any, Callable, Dict, FrozenSet, NamedTuple, Optional, Tuple

import numpy as np
import tensorflow_federated as tff

from data import cohorts
from experiments import public_metrics
import quap_tff
from quap_tff import accounting
from quap_tff import layers as layers_lib
from quap_tff.accounting import certificate as certificates


CALIBRATIONS = ('documents', 'exact')


PUBLIC_METRICS = public_metrics.OF_ROUND


class Setting(NamedTuple):
  """What methods are built from, the same for all that are compared.

  Attributes:
    mechanism: The mechanism's configuration after `Algorithm.configure`.
    cohorts: Who takes part in which round.
    rounds: T, the planned rounds.
    model_fn: Makes the model anew on each call.
    layers: The model's layers.
    sizes: Number of entries of each trainable tensor.
    client_optimizer: Local optimizer.
    server_optimizer: Applied to the aggregate.
    client_work: Local epochs, batch size and the like.
    client_metrics: Whether exact functions of clients' data (training loss, norms) are kept beside the model.
    calibration: One of `CALIBRATIONS`. 'documents': each round's noise by the documents' formula. 'exact': the same
      noise scaled by one factor, so that the client that spends most spends ε_total at a total δ by exact accounting.
    spec: The method's spec, as `--algorithm` has it.
    public_data: What the features of the examples have seen besides them, in words; '' for nothing.
    post_processing: What is done to the noised weights before they are published, in words.
    tuning: How the constants of the run were chosen, in words.
  """

  mechanism: quap_tff.QuapConfig
  cohorts: cohorts.ParticipationModel
  rounds: int
  model_fn: Callable[[], tff.learning.models.VariableModel]
  layers: Tuple[layers_lib.Layer, ...]
  sizes: Tuple[int, ...]
  client_optimizer: tff.learning.optimizers.Optimizer
  server_optimizer: tff.learning.optimizers.Optimizer
  client_work: quap_tff.ClientWorkConfig
  client_metrics: bool = True
  calibration: str = 'documents'
  spec: str = ''
  public_data: str = ''
  post_processing: str = ''
  tuning: str = ''

  @property
  def epsilon(self) -> float:
    """ε_total."""
    return self.mechanism.budget.epsilon_total

  @property
  def delta(self) -> float:
    """δ: of one round for nominal figures, in total for formal ones."""
    return self.mechanism.noise.delta


class Method(abc.ABC):
  """A method, ready to run.

  Attributes:
    fingerprint: Text that names everything which the account depends on; a ledger of another one is refused.
    protection: What may be said about the released model.
    has_nominal: Whether the noise is that of the budgets, by the documents' formula: only then do their sums, the
      nominal figures, mean anything.
    public_metrics: Names of the round's metrics that are no exact functions of clients' data: what is kept with
      --noclient_metrics.
    is_saved_before_release: Whether each round is kept in a checkpoint before anything of it is written elsewhere.
    certificate: What a certificate of the run says besides its ledger; None for a method that has none.
    constant_divisor: Whether sums are divided by a public constant whoever comes, and
    constant_noise_multiplier: whether the noise on them is as large, over the clipping norm, whoever comes: both
      settled without a look at the cohorts of the run. Amplification by sampling asks for both, and for
    noises_empty_rounds: whether a round that nobody comes to releases the same noise as any other.
    noise_note: How the noise that is really added differs from ideal noise, where there is something to say.
  """

  fingerprint: str
  protection: accounting.Protection
  has_nominal = True
  public_metrics: FrozenSet[str] = PUBLIC_METRICS
  is_saved_before_release = False
  certificate: Optional[certificates.Facts] = None
  constant_divisor = False
  constant_noise_multiplier = False
  noises_empty_rounds = False
  noise_note = ''

  @abc.abstractmethod
  def build_process(self) -> tff.learning.templates.LearningProcess:
    """The learning process; seconds, as it traces TensorFlow. The runtime must be active."""

  def round_metrics(self, aggregator_state: Any, metrics: Any) -> Dict[str, Any]:
    """The aggregator's measurements of a round as columns of metrics.csv: scalars by name."""
    del aggregator_state
    return {name: value for name, value in metrics.items() if name != 'round'}

  @abc.abstractmethod
  def round_record(self, aggregator_state: Any, metrics: Any, cohort: np.ndarray) -> accounting.RoundRecord:
    """What a round spent.

    Args:
      aggregator_state: The aggregator's state after the round.
      metrics: The aggregator's measurements of the round.
      cohort: int64[M], distinct ids of the clients that took part.
    """


@dataclasses.dataclass(frozen=True)
class Algorithm(abc.ABC):
  """A choice of --algorithm and its parameters.

  Attributes:
    withholds_client_metrics: Whether exact functions of clients' data are kept only if that is asked for.
    noise_of_its_own: Whether the mechanism's noise is not used: `configure` is then given a mechanism without.
  """

  withholds_client_metrics = False
  noise_of_its_own = False

  def configure(self, mechanism: quap_tff.QuapConfig) -> quap_tff.QuapConfig:
    """The mechanism's flags as this method takes them; cheap, called before data are read.

    Raises:
      ValueError: If the method cannot run with these flags.
    """
    return mechanism

  def aggregates_once(self, mechanism: quap_tff.QuapConfig) -> bool:
    """Whether a round takes one level of aggregation, which is what several workers can run."""
    return not mechanism.clip.uses_current_norms

  @abc.abstractmethod
  def method(self, setting: Setting) -> Method:
    """The method in a setting."""
