"""Checks of a run's flags that need neither data nor TensorFlow.

The configurations check themselves when they are made. So here they are made, before anything is loaded.
"""

from collections.abc import Sequence
from typing import Any, Optional

from data.cohorts import dropouts
from experiments.command import parts
from experiments.command import run as run_lib
from quap_tff import methods
from quap_tff.common import checks
from quap_tff.mechanisms.parts import postprocessing
from quap_tff.training import models

# Flags that only one runtime uses.
_OF_RUNTIME = {
  'num_threads': 'in_process',
  'num_workers': 'workers',
  'worker_addresses': 'workers',
  'worker_credentials': 'workers',
  'worker_timeout': 'workers',
}
# Flags about the files in --output_dir.
_OF_FOLDER = ('checkpoint_every', 'keep_checkpoints', 'signing_key')
# How to test on others than the clients themselves.
_OTHERS = {
  'femnist': '--dataset=femnist:test_writers=0.1.',
  'femnist_digits': '--dataset=femnist_digits:test_writers=0.1.',
  'shakespeare': '--dataset=shakespeare:test_roles=0.1.',
  'npz': 'a file without x_test, of whose clients a share only tests, or one whose x_test is of others.',
}


def checked(values: Any, given: Sequence[str] = ()) -> run_lib.Run:
  """The run that flags describe, after everything is checked that can be checked from the flags alone.

  Args:
    values: The flags of `experiments.command.flags`, see `Run.from_flags`.
    given: Names of flags that were given on the command line itself. Those that would have no effect are refused there.

  Raises:
    ValueError: For a flag that is wrong, alone or together with others. The message names it.
  """
  run = run_lib.Run.from_flags(values)
  _check_numbers(run)
  _check_data(run)
  _check_mechanism(run)
  _check_secret_cohorts(run)
  _check_runtime(run)
  num_clients = run.data.num_clients or run.data.dataset.default_num_clients
  if num_clients is not None:  # Otherwise one has to read the data to know it.
    run.method.check_cohorts(run.setting(num_clients, run.participation(num_clients)))
  for name, reason in without_effect(run, given).items():
    raise ValueError(f'--{name}: {reason}')
  return run


def _check_numbers(run):
  rounds, schedule = run.schedule.rounds, run.schedule
  checks.integer('rounds', rounds, at_least=1, at_most=parts.MOST_ROUNDS)
  if schedule.stop_after is not None:
    checks.integer('stop_after', schedule.stop_after, at_least=1, at_most=rounds)
  if schedule.stop_at_accuracy is not None:
    checks.number('stop_at_accuracy', schedule.stop_at_accuracy, above=0, at_most=1)
  checks.integer('seed', schedule.seed, at_least=0, at_most=2**63 - 1)
  counts = dict(
    num_clients=run.data.num_clients, cohort_size=run.cohorts.cohort_size, num_threads=run.runtime.num_threads
  )
  for name, value in counts.items():
    if value is not None:
      checks.integer(name, value, at_least=1)
  checks.number('shrinkage', run.publication.shrinkage, above=0, at_most=1)


def _check_data(run):
  """Refuses flags that do not go together with the dataset."""
  dataset, model, features = run.data.dataset, run.local.model, run.data.features
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


def _check_mechanism(run):
  written, method = run.flags, run.method
  if run.cohorts.participation.learns_from_dropout and run.cohorts.dropout == dropouts.NoDropout():
    raise ValueError(
      f'--participation={written["participation"]} learns from clients that drop out, and with --dropout=none nobody '
      'does. Give a --dropout, such as markov, or choose another --participation.'
    )
  if run.publication.averaging == postprocessing.Planned() and not method.plans_averaging:
    raise ValueError(
      f'--averaging=planned: only certified runs choose the average together with the noise, and '
      f'{written["algorithm"]!r} is not certified. Choose an average yourself: --averaging=tail:start=….'
    )
  uses = method.flag_names()
  if 'epsilon' in uses and method.adds_noise:
    checks.number('epsilon', written['epsilon'], at_least=1e-6)
  # They are decoded for every method, so that a wrong spec is found.
  sparsity, aggregator = (methods.FLAGS[name].value(written[name]) for name in ('sparsity', 'aggregator'))
  if sparsity.is_sparse and 'sparsity' not in uses:
    raise ValueError(
      f'--sparsity={written["sparsity"]}: --algorithm={written["algorithm"]} cannot update a part of the weights only. '
      'Use --sparsity=none, or a method that can: quap and its variants, certified, local_dp.'
    )
  run.client_work()
  method.configure(run.setting(1))  # For any population.
  if aggregator.needs_each_update and 'aggregator' not in uses:
    raise ValueError(
      f'--aggregator={written["aggregator"]}: algorithm {written["algorithm"]!r} adds up the updates, and its account '
      'is about that sum. One client can move a median or a trimmed mean much further than a mean, so no certificate '
      'and no formal figure would hold. Use --aggregator=mean, or another --algorithm (quap, fedavg, fixed_dp).'
    )


def _check_secret_cohorts(run):
  """Refuses secret cohorts where something that is public says who comes, or where the account has no use for them."""
  if not run.cohorts.are_secret:
    return
  written, method, refused = run.flags, run.method, f'--cohort_seed={parts.SECRET}'
  if method.gives_certificate:
    raise ValueError(
      f'{refused}: a certificate rests on public cohorts, and its verification draws them again. Leave this flag out, '
      'or use --algorithm=tff_dp_fedavg.'
    )
  if not (method.divides_by_planned_cohort and method.adds_noise):
    reason = (
      'divides sums by the number of clients that came, which reveals something about who came'
      if method.adds_noise
      else 'adds no noise that could hide who came'
    )
    raise ValueError(f'{refused}: --algorithm={written["algorithm"]} {reason}. Use --algorithm=tff_dp_fedavg.')
  if run.cohorts.dropout != dropouts.NoDropout():
    raise ValueError(
      f'{refused}: who drops out follows from --seed, which is public, and says who did not come. Use --dropout=none, '
      f'found {written["dropout"]}.'
    )
  # The kind of draw is the same for any population.
  if run.participation(run.cohorts.cohort_size or 1).sampling != 'bernoulli':
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


def _check_runtime(run):
  config = run.runtime.config
  setting = run.setting(1)
  if config.kind == 'workers' and not run.method.aggregates_once(setting):
    found = f'--runtime=workers can aggregate only once a round, and --algorithm={run.flags["algorithm"]} aggregates'
    if 'clip' in run.unused() or not run.method.configure(setting).clip.uses_current_norms:
      raise ValueError(f'{found} twice, whatever --clip is. Use --runtime=in_process or --runtime=native.')
    raise ValueError(
      f"{found} twice with --clip={run.flags['clip']}: a round's norms decide on its own clipping norm. Use "
      '--clip=quantile_ema:timing=previous,initial_clip=1, fixed or private_quantile, or --runtime=in_process.'
    )


def without_effect(run: run_lib.Run, given: Sequence[str]) -> dict[str, str]:
  """Those of the named flags that have no effect together with the others, and why, a sentence or two each."""
  reasons = {name: _no_effect(run, name) for name in given}
  return {name: reason for name, reason in reasons.items() if reason is not None}


def _no_effect(run, name) -> Optional[str]:
  """Why a flag that was given has no effect, or None."""
  written, rounds = run.flags, run.schedule.rounds
  if name in run.unused():
    return f'the method {run.name!r} does not use this flag. Leave it out, or choose another --algorithm.'
  if name in _OF_RUNTIME and run.runtime.runtime != _OF_RUNTIME[name]:
    return f'this flag is for --runtime={_OF_RUNTIME[name]} only, and this run uses {run.runtime.runtime!r}.'
  if name in _OF_FOLDER and run.publication.output_dir is None:
    return 'nothing is kept without a folder. Name one with --output_dir, or leave this flag out.'
  if name == 'signing_key' and not run.method.gives_certificate:
    return f'this flag signs a certificate, and {written["algorithm"]!r} gives none. Leave it out.'
  if name == 'ema_weight' and written['participation_rate'] != 'ema':
    return (
      f'it is the weight for --participation_rate=ema, and this run uses {written["participation_rate"]!r}. Leave it '
      'out, or choose that rate.'
    )
  if name == 'partition' and run.data.dataset.has_own_clients:
    return f'the dataset {written["dataset"]!r} has clients of its own and is not shared out. Leave it out.'
  if name == 'cohort_size' and run.cohorts.participation.ignores_cohort_size:
    return f'participation model {written["participation"]!r} sets the size of its cohorts itself. Leave it out.'
  if name == 'warmup_rounds' and written[name] >= rounds:
    return f'must be less than --rounds={rounds}, found {written[name]}. Otherwise budgets never follow participation.'
  if name == 'averaging' and getattr(run.publication.averaging, 'start', 1) > rounds:
    return f'{written[name]} starts after round {rounds}, the last one: nothing would be averaged.'
  return None
