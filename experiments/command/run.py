"""One run: a tree of frozen dataclasses, whose fields are the flags of `experiments.train`.

    run = Run.from_flags(values)         # Parsed flags, or a dict of them.
    run = Run.from_json(run_json)        # run.json of a run's folder.
    run.recorded(), run.identity()       # The run, for run.json.

Each flag is read once, here. A spec such as `certified:weights=online` is a value after that: `run.method.weights`. The
texts that the user wrote are kept in `run.flags`, for run.json and for messages. TensorFlow is not loaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import functools
import hashlib
import secrets
from typing import Optional, TypedDict

from data import cohorts
from data import datasets
from data import features
from data.cohorts import dropouts
from data.cohorts import ParticipationChoice
from data.cohorts import ParticipationModel
from experiments.command import public_rule
from experiments.command import run_choices
from quap_tff import methods
from quap_tff import plans
from quap_tff.cohorts import default_cohort_size
from quap_tff.common import checks
from quap_tff.common import flag_fields
from quap_tff.common import json_types
from quap_tff.common import registry
from quap_tff.common.numbers import rng
from quap_tff.mechanisms import facts as facts_lib
from quap_tff.mechanisms.parts import layers as layers_lib
from quap_tff.mechanisms.parts import postprocessing
from quap_tff.training import client_update
from quap_tff.training import malicious as malicious_lib
from quap_tff.training import models

_COHORT_SEED_BITS = 256
# How run.json names a file that it does not keep.
_DIGEST = 'sha256:'
# How to test on others than the clients themselves.
_OTHERS = {
  'femnist': '--dataset=femnist:test_writers=0.1.',
  'femnist_digits': '--dataset=femnist_digits:test_writers=0.1.',
  'shakespeare': '--dataset=shakespeare:test_roles=0.1.',
  'npz': 'a file without x_test, of whose clients a share only tests, or one whose x_test is of others.',
}


class AttackFacts(TypedDict):
  """How many clients are malicious, and the spec of their attack."""

  clients: int
  attack: str


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
    by_rule: The flags among these that nobody gave and that a public rule chose, see `public_rule`.
  """

  data: run_choices.Data
  cohorts: run_choices.Cohorts
  schedule: run_choices.Schedule
  method: methods.Method
  local: run_choices.LocalTraining
  publication: run_choices.Publication
  runtime: run_choices.Runtime
  flags: json_types.JsonView
  by_rule: json_types.JsonView = dataclasses.field(default_factory=dict)

  @classmethod
  def from_flags(cls, values: json_types.JsonView) -> Run:
    """The run that flags describe.

    Args:
      values: The flags by name: a mapping, or absl's `FlagValues`. Flags that are left out have their defaults, which
        may be those of the method, or what a public rule chooses.

    Raises:
      ValueError: For a value that a flag does not take. The message names the flag.
    """
    if not isinstance(values, Mapping):
      values = values.flag_values_dict()
    algorithm = run_choices.FLAGS['algorithm']
    try:
      method = algorithm.value(values.get('algorithm', algorithm.default))
    except ValueError as error:
      raise ValueError(f'--algorithm: {error}') from error
    own = flag_fields.flags_of(method)
    written = {name: own.get(name, definition).default for name, definition in run_choices.FLAGS.items()}
    given = {name: values[name] for name in written if values.get(name) is not None}
    written.update(given)
    by_rule = _by_rule(method, written, given)
    written.update(by_rule)
    return cls(
      data=flag_fields.decoded(run_choices.Data(), written),
      cohorts=flag_fields.decoded(run_choices.Cohorts(), written),
      schedule=flag_fields.decoded(run_choices.Schedule(), written),
      method=flag_fields.decoded(method, written),
      local=flag_fields.decoded(run_choices.LocalTraining(), written),
      publication=flag_fields.decoded(run_choices.Publication(), written),
      runtime=flag_fields.decoded(run_choices.Runtime(), written),
      flags=written,
      by_rule=by_rule,
    )

  @classmethod
  def from_json(cls, run_json: json_types.JsonView, folder: Optional[str] = None) -> Run:
    """The run that run.json describes.

    Args:
      run_json: The whole of run.json.
      folder: The folder of the run, for features whose extractor it holds.

    Raises:
      KeyError, TypeError, ValueError: If it is damaged, or of another version.
    """
    written = {**run_json['flags'], **run_json['identity']}
    if unknown := run_json['identity'].keys() - run_choices.FLAGS.keys():
      raise ValueError(f'unknown flags {sorted(unknown)}')
    if folder is not None:
      written['features'] = features.located(written.get('features', 'none'), folder)
    return cls.from_flags(written)

  def recorded(self) -> json_types.JsonObject:
    """Every flag as run.json keeps it."""
    portable = self._portable()
    return {**self.flags, 'features': portable['features'], 'spent': portable['spent']}

  def identity(self) -> json_types.JsonObject:
    """The flags that determine what is computed. They must be the same for a run to be resumed.

    Flags that the method does not use are left out.
    """
    values = {**self.flags, **self._portable()}
    unused = unused_flags(self.method)
    return {
      name: value for name, value in values.items() if not run_choices.FLAGS[name].is_control and name not in unused
    }

  def _portable(self) -> json_types.JsonObject:
    """The flags whose values name files, without the places of these files on this machine."""
    kept = {
      'dataset': datasets.portable,
      'features': features.portable,
      'participation': cohorts.portable,
      'spent': _digest_of,
    }
    return {name: portable(self.flags[name]) for name, portable in kept.items()}

  @property
  def needs_same_code(self) -> bool:
    """True if the run may not be continued by other code than ran its latest round."""
    return self.method.gives_certificate and not self.publication.allow_code_change

  def check(self) -> None:
    """Refuses flags that are wrong, alone or together with others, as far as the flags alone tell.

    Values refuse what is wrong with them when they are made. So they are made here, before anything is loaded.

    Raises:
      ValueError: The message names the flag.
    """
    _check_data(self)
    self.cohorts.participation.check_rounds(self.schedule.rounds)
    _check_mechanism(self)
    if self.cohorts.are_secret:
      _check_secret_cohorts(self)
    if self.runtime.config.kind == 'workers' and self.facts.waits:
      raise ValueError(
        f'--runtime=workers can aggregate only once a round, and with --algorithm={self.flags["algorithm"]} clients '
        f'wait for others in mid-round: {self.facts.waits}. Use --runtime=in_process or --runtime=native.'
      )
    asked, default = self.data.num_clients, self.data.dataset.default_num_clients
    num_clients = default if asked is None else asked
    if num_clients is not None:  # Otherwise one has to read the data to know it.
      self.method.check_cohorts(self.setting(num_clients, self.participation(num_clients)))

  @property
  def last_round(self) -> int:
    """The round after which the run ends, at most T."""
    return self.schedule.rounds if self.schedule.stop_after is None else self.schedule.stop_after

  @functools.cached_property
  def facts(self) -> facts_lib.Facts:
    """The facts about the mechanism, as far as they are the same for any population."""
    return self.method.facts(self.setting(1))

  @property
  def logs_client_metrics(self) -> bool:
    """True if exact functions of clients' data are kept."""
    withheld = self.facts.is_certified or self.facts.trust != 'server' or self.cohorts.are_secret
    asked = self.publication.client_metrics
    return asked if asked is not None else not withheld

  def participation(self, num_clients: int, cohort_seed: Optional[int] = None) -> ParticipationModel:
    """The model of who takes part in which round.

    Args:
      num_clients: N.
      cohort_seed: The seed of secret cohorts; None draws another one from the operating system's
        entropy.
    """
    if self.cohorts.are_secret and cohort_seed is None:
      cohort_seed = secrets.randbits(_COHORT_SEED_BITS)
    cohort_size, seed = self.cohorts.cohort_size, self.schedule.seed
    if cohort_size is None:
      cohort_size = default_cohort_size(num_clients)
    dropout = dropouts.make(self.cohorts.dropout, num_clients, seed)
    model = self.cohorts.participation.over(cohorts.Population(num_clients, cohort_size, seed, dropout, cohort_seed))
    if dropout is not None:
      # A trusted server's noise was chosen for the planned cohorts, and the certificate speaks of them: a client that
      # is drawn and drops out is charged as if it had come. A client that holds noise takes it away.
      charges_absent = self.facts.is_certified and self.facts.trust == 'server'
      model = dropouts.WithDropout(model, dropout, charges_absent)
    share = self.method.client_round_share
    return model if share == 1 else dropouts.WithServerRounds(model, share)

  def with_cohorts(self, choice: ParticipationChoice) -> Run:
    """The run with another choice of who takes part. Its flags stay."""
    return dataclasses.replace(self, cohorts=dataclasses.replace(self.cohorts, participation=choice))

  def attackers(self, num_clients: int) -> tuple[int, ...]:
    """The malicious clients of N, ascending."""
    return tuple(self.local.malicious.clients(num_clients, self.schedule.seed).tolist())

  def attack(self, num_clients: int) -> Optional[AttackFacts]:
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

  def setting(
    self,
    num_clients: int,
    participation: Optional[ParticipationModel] = None,
    options: plans.PlanOptions = plans.PlanOptions(),
  ) -> methods.Setting:
    """The facts about the run that its method uses. `options` are those of the plan."""
    return methods.Setting(
      num_clients=num_clients,
      rounds=self.schedule.rounds,
      seed=self.schedule.seed,
      participation=participation,
      has_secret_cohorts=self.cohorts.are_secret,
      has_dropout=self.cohorts.dropout != dropouts.NoDropout(),
      order=lambda: rng.generator(self.schedule.seed, 'own_budgets').permutation(num_clients),
      client_optimizer=self.local.client_optimizer,
      mean_epochs=self.local.local_epochs.mean,
      asks_client_metrics=bool(self.publication.client_metrics),
      options=options,
      reseeded=lambda seed: self.participation(num_clients, seed),
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
      plans.PlanOptions(
        averaging=self.publication.averaging,
        client_metrics=self.logs_client_metrics,
        test_is_of_clients=test_is_of_clients,
        model=model,
        sparsity=self.method.sparsity,
        sparsity_seed=self.schedule.seed,
      ),
    )
    self.method.check_cohorts(setting)
    plan = self.method.plan(setting)
    if self.cohorts.are_secret and (reason := plan.no_amplification):
      raise ValueError(
        f'--cohort_seed={run_choices.SECRET}: with these flags, secret cohorts amplify nothing: {reason}. Leave this '
        'flag out, or use --algorithm=certified or tff_dp_fedavg.'
      )
    return plan

  def post_processing(self, plan: plans.Plan) -> str:
    """How the noised weights are processed before they are published, in sentences."""
    averaging, shrinkage = plan.averaging, self.publication.shrinkage
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


def _digest_of(path: Optional[str]) -> Optional[str]:
  """A file as run.json names it, by its SHA-256; None for none."""
  if path is None or path.startswith(_DIGEST):
    return path
  try:
    with open(path, 'rb') as f:
      return f'{_DIGEST}{hashlib.sha256(f.read()).hexdigest()}'
  except OSError as error:
    raise ValueError(f'--spent={path} cannot be read: {error.strerror or error}.') from error


def _by_rule(method: methods.Method, written: json_types.JsonView, given: json_types.JsonView) -> json_types.JsonObject:
  """The flags that a public rule chooses, and the sentence of the certificate on it, unless there is another."""
  dataset = flag_fields.decoded(run_choices.Data(), {'dataset': written['dataset']}).dataset
  rounds = flag_fields.decoded(run_choices.Schedule(), {'rounds': written['rounds']}).rounds
  name = written['dataset'].partition(':')[0]
  chosen = public_rule.chosen_flags(method, dataset, name, rounds, given)
  if chosen and 'tuning' in method.flag_names() and 'tuning' not in given:
    chosen['tuning'] = public_rule.sentence(chosen, method.clip_follows_rounds)
  return chosen


def unused_flags(method: methods.Method) -> frozenset[str]:
  """The flags of mechanisms that a method does not have, except those whose defaults ask for nothing."""
  theirs = {name for name, definition in methods.FLAGS.items() if not definition.is_neutral}
  return frozenset(theirs) - method.flag_names()


def _check_data(run: Run) -> None:
  dataset, model, features = run.data.dataset, run.local.model, run.data.features
  if run.data.num_clients is not None:
    checks.integer('--num_clients', run.data.num_clients, at_least=1)
  name = run.flags['dataset'].partition(':')[0]
  if model != 'auto' and dataset.is_sequences != (model in models.OF_SEQUENCES):
    kinds = {True: 'sequences of tokens', False: 'arrays of numbers'}
    fitting = sorted(one for one in models.MODELS if (one in models.OF_SEQUENCES) == dataset.is_sequences)
    raise ValueError(
      f'--model={model} does not take the examples of dataset {name!r}, which are {kinds[dataset.is_sequences]}. '
      f'Choose one that does: {", ".join(fitting)}.'
    )
  if dataset.image_shape is not None and not features.needs_files:
    try:
      features.check(dataset.image_shape)
    except ValueError as error:
      raise ValueError(f'--features: {error}') from error
  if dataset.tests_clients and run.method.gives_certificate:
    raise ValueError(
      f'--algorithm={run.flags["algorithm"]}: models for dataset {name!r} are tested on examples of the clients '
      'themselves. So test figures are exact functions of clients\' data, and no certificate covers them. Test on '
      f'others instead: {_OTHERS.get(name, "choose another dataset.")}'
    )


def _check_mechanism(run: Run) -> None:
  written, uses = run.flags, run.method.flag_names()
  if 'epsilon' in uses:
    checks.number('epsilon', written['epsilon'], at_least=1e-6)
  # They are decoded for every method, so that a wrong spec is found.
  sparsity, aggregator = (methods.FLAGS[name].value(written[name]) for name in ('sparsity', 'aggregator'))
  if sparsity.is_sparse and 'sparsity' not in uses:
    raise ValueError(
      f'--sparsity={written["sparsity"]}: --algorithm={written["algorithm"]} cannot update a part of the weights only. '
      'Use --sparsity=none, or a method that can: quap and its variants, certified, local_dp.'
    )
  run.client_work()
  is_certified = run.facts.is_certified  # Whatever the mechanism refuses for any population, it refuses here.
  if run.publication.averaging == postprocessing.PlannedAverage() and not is_certified:
    raise ValueError(
      f'--averaging=planned: only certified runs choose the average together with the noise, and '
      f'{written["algorithm"]!r} is not certified. Choose an average yourself: --averaging=tail:start=….'
    )
  if aggregator.needs_each_update and 'aggregator' not in uses:
    raise ValueError(
      f'--aggregator={written["aggregator"]}: algorithm {written["algorithm"]!r} adds up the updates, and its account '
      'is about that sum. One client can move a median or a trimmed mean much further than a mean, so no certificate '
      'and no formal figure would hold. Use --aggregator=mean, or another --algorithm (quap, fedavg, fixed_dp).'
    )


def _check_secret_cohorts(run: Run) -> None:
  """Refuses secret cohorts where something that is public says who comes, or where the account has no use for them."""
  written, method, refused = run.flags, run.method, f'--cohort_seed={run_choices.SECRET}'
  if not (method.divides_by_planned_cohort and run.facts.adds_noise):
    reason = (
      'divides sums by the number of clients that came, which reveals something about who came'
      if run.facts.adds_noise
      else 'adds no noise that could hide who came'
    )
    raise ValueError(
      f'{refused}: --algorithm={written["algorithm"]} {reason}. Use --algorithm=certified or tff_dp_fedavg.'
    )
  if run.cohorts.dropout != dropouts.NoDropout():
    raise ValueError(
      f'{refused}: who drops out follows from --seed, which is public, and says who did not come. Use --dropout=none, '
      f'found {written["dropout"]}.'
    )
  # The kind of draw is the same for any population.
  if run.participation(run.cohorts.cohort_size or 1).sampler.kind != 'bernoulli':
    raise ValueError(
      f'{refused} is for clients that come by independent coins: --participation=bernoulli, beta_bernoulli or '
      f'extreme_imbalance, found {written["participation"]}.'
    )
  if run.publication.client_metrics:
    raise ValueError(
      f'{refused}: client metrics are exact, and they reveal who came. Leave --client_metrics out; they are withheld.'
    )
  if run.data.dataset.tests_clients:
    raise ValueError(
      f'{refused}: models for this dataset are tested on examples of the clients themselves, and exact figures reveal '
      f'who came. Test on others: {_OTHERS.get(written["dataset"].partition(":")[0], "choose another dataset.")}'
    )
