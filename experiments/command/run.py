"""One run: a tree of frozen dataclasses, whose fields are the flags of `experiments.train`.

    run = Run.from_flags(values)         # Parsed flags, or a dict of them.
    run = Run.from_json(run_json)        # run.json of a run's folder.
    run.recorded(), run.identity()       # Of a run, for run.json.

Each flag is read once, here. A spec such as `certified:weights=online` is a value after that: `run.method.weights`. The
texts that the user wrote are kept in `run.flags`, for run.json and for messages. TensorFlow is not loaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import secrets
from typing import Any, Optional

from data import cohorts
from data import rng
from data.cohorts import dropouts
from data.cohorts import ParticipationModel
from data.datasets import named as datasets
from data.features import extractor_copies
from experiments.command import parts
from quap_tff import methods
from quap_tff import plans
from quap_tff.common import flag_fields
from quap_tff.common import registry
from quap_tff.mechanisms.parts import layers as layers_lib
from quap_tff.mechanisms.parts import postprocessing
from quap_tff.training import client_update
from quap_tff.training import malicious as malicious_lib

_DEFAULT_COHORT_SHARE, _DEFAULT_COHORT_LIMIT = 0.3, 30
_COHORT_SEED_BITS = 256


@dataclasses.dataclass(frozen=True)
class Run:
  """One run: everything that is computed, and how the run is watched and kept.

  Attributes:
    data: The clients' data.
    cohorts: Who takes part.
    schedule: Rounds and seed.
    method: The method with its parameters and with the flags that it uses, see `quap_tff.methods`.
    local: Model and local training.
    publication: The published model, and the files that are kept.
    runtime: Where TFF computations run.
    flags: Every flag as it was written, by name, those that the method does not use among them.
  """

  data: parts.Data
  cohorts: parts.Cohorts
  schedule: parts.Schedule
  method: methods.Method
  local: parts.LocalTraining
  publication: parts.Publication
  runtime: parts.Runtime
  flags: Mapping[str, Any]

  @classmethod
  def from_flags(cls, values: Any) -> Run:
    """The run that flags describe.

    Args:
      values: The flags by name: a mapping, absl's `FlagValues`, or an object with attributes. Flags that are left out
        have their defaults, which may be those of the method. A run is returned as it is.

    Raises:
      ValueError: For a value that a flag does not take. The message names the flag.
    """
    if isinstance(values, cls):
      return values
    if not isinstance(values, Mapping):
      values = values.flag_values_dict() if hasattr(values, 'flag_values_dict') else vars(values)
    try:
      method = registry.parse_spec('algorithm', values.get('algorithm', parts.Mechanism.algorithm), methods.METHODS)
    except ValueError as error:
      raise ValueError(f'--algorithm: {error}') from error
    own = flag_fields.flags_of(method)
    defaults = {name: own.get(name, found).default for name, found in parts.FLAGS.items()}
    written = {name: default if values.get(name) is None else values[name] for name, default in defaults.items()}
    written['worker_addresses'] = list(written['worker_addresses'])
    before, after = (parts.Data, parts.Cohorts, parts.Schedule), (parts.LocalTraining, parts.Publication, parts.Runtime)
    decoded: list[Any] = [
      flag_fields.decoded(one, written) for one in (*(p() for p in before), method, *(p() for p in after))
    ]
    return cls(*(*decoded, written))

  @classmethod
  def from_json(cls, run_json: Mapping[str, Any], folder: Optional[str] = None) -> Run:
    """The run that run.json describes.

    Args:
      run_json: The whole of run.json.
      folder: The folder of the run, for features whose extractor it holds.

    Raises:
      KeyError, TypeError, ValueError: If it is damaged, or of another version.
    """
    written = {**run_json['flags'], **run_json['identity']}
    if unknown := run_json['identity'].keys() - parts.FLAGS.keys():
      raise ValueError(f'unknown flags {sorted(unknown)}')
    if folder is not None:
      written['features'] = extractor_copies.located(written.get('features', 'none'), folder)
    return cls.from_flags(written)

  def recorded(self) -> dict[str, Any]:
    """Every flag as run.json keeps it.

    The folder of a certified run is made to be handed out. So it does not say where its operator keeps data and keys.
    """
    withheld = {name for name, found in parts.FLAGS.items() if found.is_path and self.method.gives_certificate}
    values = {name: None if name in withheld else value for name, value in self.flags.items()}
    return {**values, **self._portable(), **({} if withheld else {'dataset': self.flags['dataset']})}

  def identity(self) -> dict[str, Any]:
    """The flags that determine what is computed. They must be the same for a run to be resumed.

    Flags that the method does not use are left out.
    """
    values = {**self.flags, **self._portable()}
    # Sums are merged worker by worker: their number, not where they are, is part of the result.
    values['num_workers'] = len(self.runtime.worker_addresses) or self.runtime.num_workers
    unused = self.unused()
    return {name: value for name, value in values.items() if not parts.FLAGS[name].is_control and name not in unused}

  def _portable(self) -> dict[str, str]:
    """The flags whose values name files, without the places of these files on this machine."""
    return {
      'dataset': datasets.portable(self.flags['dataset']),
      'features': extractor_copies.portable(self.flags['features']),
    }

  def unused(self) -> frozenset[str]:
    """The flags of mechanisms that this method does not have."""
    return unused_flags(self.method)

  @property
  def name(self) -> str:
    """The method's name."""
    return self.flags['algorithm'].partition(':')[0]

  @property
  def last_round(self) -> int:
    """The round after which the run ends, at most T."""
    return self.schedule.rounds if self.schedule.stop_after is None else self.schedule.stop_after

  @property
  def logs_client_metrics(self) -> bool:
    """Whether exact functions of clients' data are kept."""
    asked, withheld = self.publication.client_metrics, self.method.withholds_client_metrics or self.cohorts.are_secret
    return asked if asked is not None else not withheld

  def participation(self, num_clients: int, cohort_seed: Optional[int] = None) -> ParticipationModel:
    """Who takes part in which round.

    Args:
      num_clients: N.
      cohort_seed: Of a run whose cohorts are secret, their seed; None draws another one from the operating system's
        entropy.
    """
    if self.cohorts.are_secret and cohort_seed is None:
      cohort_seed = secrets.randbits(_COHORT_SEED_BITS)
    cohort_size, seed = self.cohorts.cohort_size, self.schedule.seed
    if cohort_size is None:
      cohort_size = max(1, min(_DEFAULT_COHORT_LIMIT, round(_DEFAULT_COHORT_SHARE * num_clients)))
    dropout = dropouts.make(self.cohorts.dropout, num_clients, seed)
    model = cohorts.make(self.cohorts.participation, num_clients, cohort_size, seed, dropout, cohort_seed)
    if dropout is not None:
      model = dropouts.WithDropout(model, dropout, self.method.charges_absent)
    share = self.method.client_round_share
    return model if share == 1 else dropouts.WithServerRounds(model, share)

  def attackers(self, num_clients: int) -> tuple[int, ...]:
    """The malicious clients of N, ascending."""
    return tuple(self.local.malicious.clients(num_clients, self.schedule.seed).tolist())

  def attack(self, num_clients: int) -> Optional[dict[str, Any]]:
    """How many clients are malicious, and how they attack, as JSON values; None if everyone is honest."""
    attackers, attack = self.attackers(num_clients), self.local.malicious
    if not attackers:
      return None
    spec = registry.format_spec(registry.name_of(attack, malicious_lib.ATTACKS), attack)
    return {'clients': len(attackers), 'attack': spec}

  def client_work(self, attackers: Sequence[int] = ()) -> client_update.ClientWorkConfig:
    """How clients train."""
    local = self.local
    return client_update.ClientWorkConfig(
      local_epochs=local.local_epochs.fewest,
      most_local_epochs=local.local_epochs.most,
      batch_size=local.batch_size,
      learning_rate_decay=local.client_learning_rate_decay,
      max_steps=local.max_local_steps,
      proximal_strength=local.proximal_strength,
      seed=self.schedule.seed,
      attack=local.malicious,
      attackers=tuple(attackers),
    )

  def setting(self, num_clients: int, participation: Any = None, **options: Any) -> methods.Setting:
    """The facts about the run that its method uses. `options` are those of the plan."""
    seed = self.schedule.seed
    return methods.Setting(
      num_clients=num_clients,
      rounds=self.schedule.rounds,
      seed=seed,
      participation=participation,
      has_dropout=self.cohorts.dropout != dropouts.NoDropout(),
      order=lambda: rng.generator(seed, 'own_budgets').permutation(num_clients),
      averaging=self.publication.averaging,
      client_optimizer=self.local.client_optimizer,
      mean_epochs=self.local.local_epochs.mean,
      asks_client_metrics=bool(self.publication.client_metrics),
      options=options,
    )

  def plan(self, num_clients: int, model: layers_lib.ModelShape, test_is_of_clients: bool = False) -> plans.Plan:
    """The plan of the run. It depends only on the flags, the number of clients and the model's shape.

    Args:
      num_clients: N.
      model: The model's shape.
      test_is_of_clients: Whether the test set holds examples of the clients themselves.

    Raises:
      ValueError: For flags that do not go together.
    """
    setting = self.setting(
      num_clients,
      self.participation(num_clients),
      client_metrics=self.logs_client_metrics,
      test_is_of_clients=test_is_of_clients,
      model=model,
      sparsity=self.method.sparsity,
      sparsity_seed=self.schedule.seed,
    )
    self.method.check_cohorts(setting)
    plan = self.method.plan(setting)
    if self.cohorts.are_secret and (reason := plan.no_amplification):
      raise ValueError(
        f'--cohort_seed={parts.SECRET}: with these flags, secret cohorts amplify nothing: {reason}. Leave this flag '
        'out, or use --algorithm=tff_dp_fedavg.'
      )
    return plan

  def averaging(self, plan: plans.Plan) -> postprocessing.Averaging:
    """The average that is published. Some plans choose it together with their noise."""
    return plan.averaging if self.method.plans_averaging else self.publication.averaging

  def post_processing(self, plan: plans.Plan) -> str:
    """How the noised weights are processed before they are published, in sentences."""
    averaging, shrinkage = self.averaging(plan), self.publication.shrinkage
    text = f'The server optimizer {self.flags["server_optimizer"]} is applied to the noised sums.'
    if averaging != postprocessing.LastIterate():
      spec = registry.format_spec(registry.name_of(averaging, postprocessing.AVERAGINGS), averaging)
      text += f' An average of the weights over the rounds is published: {spec}.'
    if plan.extension is not None:
      text += f' {plan.extension.statement}'
    if self.method.auxiliary_share:
      text += f' {self.data.dataset.auxiliary_source}'
    if plan.sparsity.is_sparse:
      text += f' {plan.sparsity.sentence()}'
    if shrinkage != 1:
      text += f' The weights are multiplied by {shrinkage:g}.'
    return text


def unused_flags(method: methods.Method) -> frozenset[str]:
  """The flags of mechanisms that a method does not have, except those whose defaults ask for nothing."""
  theirs = {name for name, found in methods.FLAGS.items() if not found.is_neutral}
  return frozenset(theirs) - method.flag_names()
