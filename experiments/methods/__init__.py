"""The methods that --algorithm can name. A new method is a class in a file here and a line in `METHODS`.

A method is a frozen dataclass of its own parameters, parsed from a spec. `configure` makes its mechanism from the
flags. `plan` then makes the plan of a run: a `quap_tff.plans.Plan`, which gives the learning process, the account and
the statements.
"""

from collections.abc import Sequence
from typing import Any, Dict, Optional, Tuple, Type

from data import cohorts
from data import datasets
from data import dropouts
from experiments.methods import adaptive_privacy
from experiments.methods import asynchronous
from experiments.methods import base
from experiments.methods import heterogeneity
from experiments.methods import local
from experiments.methods import settings
from experiments.methods import stock
from quap_tff import plans
from quap_tff.common import registry
from quap_tff.mechanisms import layers as layers_lib
from quap_tff.mechanisms import postprocessing
from quap_tff.runtime import config as runtime_config
from quap_tff.training import client_update
from quap_tff.training import malicious

BASES = heterogeneity.BASES
local_epochs_of = base.local_epochs_of
CALIBRATIONS = base.CALIBRATIONS
Method = base.Method

METHODS: dict[str, type[Method]] = {
  # Methods that others can be built around.
  **heterogeneity.BASES,
  # An interpretation: the documents name PT-ADP but do not specify it.
  'pt_adp': settings.PtAdp,
  'dynamic_budget': adaptive_privacy.DynamicBudget,
  # Interpretations: the documents name them, and no paper says enough.
  'd2dp': adaptive_privacy.D2dp,
  'acdp': adaptive_privacy.Acdp,
  'fedapca': adaptive_privacy.FedApca,
  'lee_kifer': adaptive_privacy.LeeKifer,
  'local_dp': local.LocalDp,
  'fedbuff': asynchronous.FedBuff,
  'tff_dp_fedavg': stock.TffDpFedAvg,
  'tff_dp_fedavg_adaptive': stock.TffDpFedAvgAdaptive,
  'tff_layerwise_adaptive': stock.TffLayerwiseAdaptive,
  'tff_dp_ftrl': stock.TffDpFtrl,
  'scaffold': heterogeneity.Scaffold,
  'fednova': heterogeneity.FedNova,
  'feddyn': heterogeneity.FedDyn,
  'fedvarp': heterogeneity.FedVarp,
  'fl_fdms': heterogeneity.FlFdms,
  # An interpretation: only descriptions of the paper could be read.
  'safari': heterogeneity.Safari,
}


def parse(spec: str) -> Method:
  """The method that `spec` names, e.g. `fixed_dp:clip=0.5`. Raises `ValueError` for an unknown name."""
  return registry.parse_spec('algorithm', spec, METHODS)


_DEFAULT_COHORT_SHARE, _DEFAULT_COHORT_LIMIT = 0.3, 30


def participation_of(values: Any, num_clients: int) -> cohorts.ParticipationModel:
  """Who takes part in which round, by the flags."""
  cohort_size = values.cohort_size
  if cohort_size is None:
    cohort_size = max(1, min(_DEFAULT_COHORT_LIMIT, round(_DEFAULT_COHORT_SHARE * num_clients)))
  method = parse(values.algorithm)
  dropout = dropouts.make(values.dropout, num_clients, values.seed)
  drawn = cohorts.make(values.participation, num_clients, cohort_size, values.seed, dropout)
  model = drawn if dropout is None else dropouts.WithDropout(drawn, dropout, method.charges_absent)
  return method.participation(model)


def attackers_of(values: Any, num_clients: int) -> tuple[int, ...]:
  """The malicious clients, ascending, by the flags."""
  return tuple(_attack(values).clients(num_clients, values.seed).tolist())


def malicious_of(values: Any, num_clients: int) -> Optional[dict[str, Any]]:
  """How many clients are malicious and what they do, as JSON values; None if everyone is honest."""
  attackers = attackers_of(values, num_clients)
  if not attackers:
    return None
  spec = registry.format_spec(values.malicious.partition(':')[0], _attack(values))
  return {'clients': len(attackers), 'attack': spec}


def _attack(values):
  return registry.parse_spec('attack', values.malicious, malicious.ATTACKS)


def client_work_of(values: Any, attackers: Sequence[int] = ()) -> client_update.ClientWorkConfig:
  """How clients train, by the flags."""
  local_epochs, most_local_epochs = local_epochs_of(values)
  return client_update.ClientWorkConfig(
    local_epochs=local_epochs,
    most_local_epochs=most_local_epochs,
    batch_size=values.batch_size,
    learning_rate_decay=values.client_learning_rate_decay,
    max_steps=values.max_local_steps,
    proximal_strength=values.proximal_strength,
    seed=values.seed,
    attack=_attack(values),
    attackers=tuple(attackers),
  )


def runtime_of(values: Any) -> runtime_config.RuntimeConfig:
  """Where TFF computations run, by the flags."""
  return runtime_config.RuntimeConfig(
    kind=values.runtime,
    device=values.device,
    num_threads=values.num_threads,
    num_workers=values.num_workers,
    worker_addresses=tuple(values.worker_addresses),
    worker_timeout=values.worker_timeout,
    worker_credentials=values.worker_credentials,
  )


def logs_client_metrics(values: Any) -> bool:
  """Whether exact functions of clients' data are kept, by the flags."""
  if values.client_metrics is not None:
    return values.client_metrics
  return not parse(values.algorithm).withholds_client_metrics


def plan_of(
  values: Any, num_clients: int, model: layers_lib.ModelShape, test_is_of_clients: bool = False
) -> plans.Plan:
  """The plan of a run. It depends only on the flags, the number of clients and the model's shape.

  Args:
    values: The flags of `experiments.flags`, as attributes.
    num_clients: N.
    model: The model's shape.
    test_is_of_clients: Whether the test set holds examples of the clients themselves.

  Raises:
    ValueError: For flags that do not go together.
  """
  method = parse(values.algorithm)
  participation = participation_of(values, num_clients)
  method.check_cohorts(participation, values.rounds)
  setting = base.Setting(
    participation=participation,
    rounds=values.rounds,
    seed=values.seed,
    calibration=values.calibration,
    averaging=registry.parse_spec('averaging', values.averaging, postprocessing.AVERAGINGS),
    mean_epochs=base.mean_epochs_of(values),
    options=dict(
      client_metrics=logs_client_metrics(values),
      test_is_of_clients=test_is_of_clients,
      model=model,
      sparsity=base.sparsity_of(values),
      sparsity_seed=values.seed,
    ),
  )
  return method.plan(method.configure(values, num_clients), setting)


def averaging_of(values: Any, plan: plans.Plan) -> postprocessing.Averaging:
  """The average that a run publishes."""
  if isinstance(plan, plans.CertifiedPlan):
    return plan.averaging
  return registry.parse_spec('averaging', values.averaging, postprocessing.AVERAGINGS)


def post_processing(values: Any, plan: plans.Plan) -> str:
  """What is done to the noised weights before they are published, in sentences."""
  averaging = averaging_of(values, plan)
  text = f'The server optimizer {values.server_optimizer} is applied to the noised sums.'
  if averaging != postprocessing.LastIterate():
    (name,) = (name for name, kind in postprocessing.AVERAGINGS.items() if kind is type(averaging))
    text += f' An average of the weights over the rounds is published: {registry.format_spec(name, averaging)}.'
  if plan.extension is not None:
    text += f' {plan.extension.statement}'
  if parse(values.algorithm).auxiliary_share:
    text += f' {registry.parse_spec("dataset", values.dataset, datasets.DATASETS).auxiliary_source}'
  if plan.sparsity.is_sparse:
    text += f' {plan.sparsity.sentence()}'
  if values.shrinkage != 1:
    text += f' The weights are multiplied by {values.shrinkage:g}.'
  return text
