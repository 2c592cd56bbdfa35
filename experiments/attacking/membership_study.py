"""Membership inference on released models: every method, at client and example level, by participation group.

Every model of a method is the target once, and the others are its shadow models. All methods are attacked in the same
worlds: model number m of each method has the same members. The attacker knows the method, its flags with their seed
(initial weights, shuffles, the schedule of participation), and the pool that members are drawn from. It does not know
the noise, nor who else is a member.

Runs of `certified` are rehearsals (`certificate=false`): an attacked run is never one that is published.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
import dataclasses
import textwrap
import time
from typing import Callable, Optional

import numpy as np

from experiments.attacking import membership
from experiments.attacking import result as results
from experiments.attacking import roc
from experiments.attacking import shadow_models
from experiments.command import run_choices
from experiments.reporting import naming
from experiments.running import plots
from experiments.running import setup
from quap_tff import methods
from quap_tff import runtime
from quap_tff.common import checks
from quap_tff.common import json_types
from quap_tff.common.numbers import rounding
from quap_tff.common.numbers import tradeoff

ALL = 'all'
METHODS = (
  'fedavg',
  'quap',
  'fixed_dp:clip=0.5',
  'tff_dp_fedavg:clip=0.5',
  'certified:weights=participation,noise=independent,clip=0.5',
  'certified:weights=online,noise=independent,clip=0.5',
)

# The attack whose curves are drawn for every method.
_STRONGEST = 'lira_online'
_WORDS = {
  'loss_threshold': 'the loss threshold',
  'shadow_classifier': 'shadow models and a classifier',
  'lira_online': 'LiRA, online',
  'lira_offline': 'LiRA, offline',
}


@dataclasses.dataclass(frozen=True)
class MembershipSettings(checks.Checked):
  """The attacked setting. The defaults are a short study of the digits.

  They were chosen so that FedAvg leaks measurably: few examples a client, many local epochs, a model with nearly as
  many weights as there are pixels in the training data. Larger data leak less.

  Attributes:
    dataset, data_dir, partition, features, model, participation, cohort_size, rounds, local_epochs, batch_size,
      client_optimizer, delta, gaussian_calibration, seed: As the flags of `experiments.train`.
    num_clients: Clients in the pool. Half of them are members of each model.
    examples_per_client: The most examples that a client has; the others are left out. None keeps all.
    nominal_epsilon: ε_total of the methods whose noise follows the documents' formula.
    real_epsilon: The proven ε at which methods are compared. None: the proven ε of Fixed-DP at the nominal ε. Then one
      noise serves both comparisons.
    methods: Specs of --algorithm. `certificate=false` is added to certified.
    levels: Some of `shadow_models.LEVELS`.
    models: Models of each method and level, at least 8. Each has models - 1 shadow models.
    attacks: Some of `membership.ATTACKS`.
    resamples: Draws of the bootstrap.
  """

  dataset: str = 'digits'
  data_dir: Optional[str] = None
  num_clients: int = checks.integer_field('num_clients', 30, at_least=6)
  examples_per_client: Optional[int] = 10
  partition: str = 'dirichlet:alpha=0.5'
  features: str = 'none'
  model: str = 'digits_cnn'
  participation: str = 'beta:a=2,b=5'
  cohort_size: Optional[int] = 15
  rounds: int = 8
  local_epochs: int = 10
  batch_size: int = 100000
  client_optimizer: str = 'sgd:learning_rate=0.2'
  nominal_epsilon: float = checks.number_field('nominal_epsilon', 12.0, above=0)
  real_epsilon: Optional[float] = checks.number_field('real_epsilon', None, above=0)
  delta: float = 1e-5
  gaussian_calibration: str = 'analytic'
  methods: tuple[str, ...] = METHODS
  levels: tuple[str, ...] = shadow_models.LEVELS
  models: int = checks.integer_field('models', 8, at_least=8)
  attacks: tuple[str, ...] = tuple(membership.ATTACKS)
  resamples: int = checks.integer_field('resamples', 200, at_least=20)
  seed: int = 42

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.examples_per_client is not None:
      checks.integer('examples_per_client', self.examples_per_client, at_least=2)
    for name, known in (('methods', None), ('levels', shadow_models.LEVELS), ('attacks', tuple(membership.ATTACKS))):
      value = getattr(self, name)
      if not value or len(set(value)) != len(value) or (known and not set(value) <= set(known)):
        expected = f'distinct names of {", ".join(known)}' if known else 'distinct specs'
        raise ValueError(f'{name} must be {expected}, at least one, found {value!r}.')
    for spec in self.methods:
      methods.parse(spec)

  @property
  def flags(self) -> json_types.JsonObject:
    """The flags of `experiments.train` that all methods share, by name."""
    shared = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name in run_choices.FLAGS}
    return {**shared, 'client_metrics': False, 'warmup_rounds': 0, 'progress': 'none'}


# The study of MNIST, where it differs from the defaults: `MembershipSettings(**MNIST, data_dir=…)`. The clients are as
# small, so that models overfit, and there are more shadow models.
MNIST = dict(dataset='mnist', client_optimizer='sgd:learning_rate=0.1', models=32)


def run(settings: MembershipSettings, say: Callable[[str], None] = lambda text: None) -> results.StudyResult:
  """Trains the models, attacks them and counts.

  Args:
    settings: See `MembershipSettings`.
    say: Is called with each line about the progress.

  Returns:
    A row for each comparison, method, level, group and attack. `nominal_epsilon` is None for methods without the
    documents' budgets, and `real_epsilon`, `auc_bound` and `tpr_at_1pct_bound` are None where the released model has no
    finite ε.

  Raises:
    ValueError: For settings that no run can have. The message names the flag.
  """
  begin = time.monotonic()
  variant = shadow_models.Variant('fixed_dp', settings.nominal_epsilon, 'documents', ())
  reference = shadow_models.experiment_of(variant, settings.flags)
  clients = reference.federation.clients
  if settings.examples_per_client is not None:
    clients = shadow_models.few_examples(clients, settings.examples_per_client, settings.seed)
  schedule = [reference.cohorts.cohort(round_num) for round_num in range(1, settings.rounds + 1)]
  pool = shadow_models.MemberPool(clients, schedule)
  worlds = [shadow_models.draw_worlds(level, pool, settings.models, settings.seed) for level in settings.levels]
  real_epsilon = settings.real_epsilon
  if real_epsilon is None:
    real_epsilon = shadow_models.planned_epsilon(reference, schedule)
  say(
    f'membership: {len(clients)} clients with {len(pool.owners)} examples, {settings.models - 1} shadow models; '
    f'compared at nominal ε = {settings.nominal_epsilon:g} and at real ε = {rounding.up(real_epsilon)}.'
  )
  rows, curves = [], {}
  with runtime.activate(reference.runtime):
    for variant, experiment in attacked_experiments(settings, real_epsilon):
      process = experiment.build_process().process
      account = shadow_models.account_of(experiment, process, pool)
      for world in worlds:
        outputs = shadow_models.outputs_of(experiment, process, pool, world)
        figures, its_curves = _attacked(settings, pool, world, outputs, account)
        rows += [{'compared_at': at, 'method': variant.spec, **row} for at in variant.compared_at for row in figures]
        curves.update({(variant.spec, world.level, attack): curve for attack, curve in its_curves.items()})
        largest = max(row['auc'] for row in figures if row['group'] == ALL)
        say(
          f'membership: {variant.spec}, {world.level} level: largest AUC {largest:.3f}, '
          f'{time.monotonic() - begin:.0f} s so far.'
        )
  return results.StudyResult('membership', rows, lambda: _pictures(rows, curves))


def attacked_experiments(
  settings: MembershipSettings, real_epsilon: float
) -> Iterator[tuple[shadow_models.Variant, setup.Experiment]]:
  """Each variant that is attacked, and its experiment; they are compared at `real_epsilon`."""
  for spec in settings.methods:
    if methods.parse(spec).gives_certificate:
      audited = spec + (',' if ':' in spec else ':') + 'certificate=false'
      variants = [shadow_models.Variant(audited, real_epsilon, 'documents', (shadow_models.REAL,))]
    else:
      variants = [shadow_models.Variant(spec, settings.nominal_epsilon, 'documents', (shadow_models.NOMINAL,))]
      plan = shadow_models.experiment_of(variants[0], settings.flags).plan
      has_real_epsilon = plan.protection.model_protected
      if has_real_epsilon and settings.real_epsilon is not None:
        variants.append(shadow_models.Variant(spec, real_epsilon, 'exact', (shadow_models.REAL,)))
      elif has_real_epsilon or not plan.has_nominal:
        # Both comparisons have the same noise, or none at all, as for FedAvg, the reference of both.
        variants = [variants[0]._replace(compared_at=(shadow_models.NOMINAL, shadow_models.REAL))]
    for variant in variants:
      yield variant, shadow_models.experiment_of(variant, settings.flags)


def _attacked(
  settings: MembershipSettings,
  pool: shadow_models.MemberPool,
  world: shadow_models.Worlds,
  outputs: shadow_models.Outputs,
  account: shadow_models.MembershipAccount,
) -> tuple[list[json_types.JsonObject], dict[str, roc.Curve]]:
  """The rows of all attacks and groups, and the curves over all clients by attack."""
  rows, curves = [], {}
  labels = pool.y[world.rows]
  of_client = np.broadcast_to(world.clients, world.members.shape)
  of_run = np.broadcast_to(np.arange(len(world.members))[:, np.newaxis], world.members.shape)
  for attack in settings.attacks:
    scores = membership.attack_each(attack, outputs.logits, labels, world.units, world.members)
    curves[attack] = roc.curve(scores.ravel(), world.members.ravel())
    for name in (ALL, *shadow_models.GROUPS):
      clients = np.ones(len(pool.clients), bool) if name == ALL else pool.groups == shadow_models.GROUPS.index(name)
      chosen = clients[of_client]
      summary = roc.summarize(
        scores[chosen],
        world.members[chosen],
        clients=of_client[chosen],
        runs=of_run[chosen],
        resamples=settings.resamples,
        seed=settings.seed,
      )
      rows.append(
        {
          'level': world.level,
          'group': name,
          'attack': attack,
          **_figures(summary),
          **_spent(account, clients, world.level, settings.delta),
          'clients': int(clients[np.unique(world.clients)].sum()),
          'mean_participations': float(pool.counts[clients].mean()),
          'shadow_models': settings.models - 1,
          'test_accuracy': outputs.test_accuracy,
          'diverged': outputs.diverged,
        }
      )
  return rows, curves


def _figures(summary: roc.Summary) -> json_types.JsonObject:
  figures = {'auc': summary.auc, 'auc_low': summary.auc_interval.low, 'auc_high': summary.auc_interval.high}
  for rate, name in zip(roc.FALSE_POSITIVE_RATES, ('1pct', '01pct')):
    tpr, (low, high), fpr_high = summary.operating[rate]
    figures[f'tpr_at_{name}_fpr'], figures[f'tpr_at_{name}_low'], figures[f'tpr_at_{name}_high'] = tpr, low, high
    figures[f'fpr_at_{name}_high'] = fpr_high
  return {**figures, 'members': summary.members, 'non_members': summary.non_members}


def _spent(
  account: shadow_models.MembershipAccount, clients: np.ndarray, level: str, delta: float
) -> dict[str, Optional[float]]:
  """The largest ε of these clients, and the limits that it sets to any attack.

  A client that is not a member adds nothing, so the bounds of a client's membership follow from its μ. An example is
  exchanged inside its client's update, which can then move by twice the clipping norm: there the bounds follow from
  2·μ.
  """
  spent = dict.fromkeys(('nominal_epsilon', 'real_epsilon', 'auc_bound', 'tpr_at_1pct_bound'))
  if account.nominal is not None:
    spent['nominal_epsilon'] = float(account.nominal[clients].max())
  if account.real is not None:
    spent['real_epsilon'] = epsilon = float(account.real[clients].max())
    mu = tradeoff.mu_at_most(epsilon, delta) if epsilon > 0 else 0.0
    if level != 'client':
      mu *= 2
    spent['auc_bound'], tpr_bound = roc.gaussian_bound(mu)
    spent['tpr_at_1pct_bound'] = tpr_bound[0.01]
  return spent


def _pictures(
  rows: Sequence[json_types.JsonView], curves: Mapping[tuple[str, str, str], roc.Curve]
) -> dict[str, bytes]:
  """PNG files by name: `membership_roc_LEVEL.png` for each level, and `membership_groups.png`.

  Args:
    rows: The rows of `run`.
    curves: ROC curves on all clients, by (method, level, attack).
  """
  pictures = {}
  for level in _in_order(level for _, level, _ in curves):
    of_level = {(method, attack): curve for (method, its, attack), curve in curves.items() if its == level}
    pictures[f'membership_roc_{level}.png'] = plots.png(_roc_figure(level, of_level, rows), (11, 5.2))
  pictures['membership_groups.png'] = plots.png(*_groups_figure(rows))
  return pictures


def _roc_figure(
  level: str, curves: Mapping[tuple[str, str], roc.Curve], rows: Sequence[json_types.JsonView]
) -> plots.Draw:
  names, attacks = _names(method for method, _ in curves), _in_order(attack for _, attack in curves)
  first, attack = next(iter(names)), _strongest(attacks)
  trials = next(row for row in rows if row['level'] == level and row['group'] == 'all')
  # One non-member that is called a member, and one member that is found: nothing smaller can be measured.
  lowest = 0.5 / max(trials['members'], trials['non_members'])

  def draw(figure: plots.Figure) -> None:
    left, right = figure.subplots(1, 2)
    for place, (method, name) in enumerate(names.items()):
      _curve(left, curves[method, attack], lowest, place, name)
    left.set_title(f'All methods under {_WORDS[attack]}', loc='left')
    for place, its in enumerate(attacks):
      _curve(right, curves[first, its], lowest, place, _WORDS[its])
    right.set_title(f'All attacks on {names[first]}', loc='left')
    for axes in (left, right):
      axes.plot([lowest, 1], [lowest, 1], color='grey', linewidth=0.9, linestyle='-', label='chance')
      axes.set(xlim=(lowest, 1.1), ylim=(lowest, 1.1), xscale='log', yscale='log')
      axes.set(xlabel='false positive rate', ylabel='true positive rate')
      # Below the line of chance there is nothing but chance.
      axes.legend(loc='lower right', fontsize=8)
    figure.suptitle(
      f'Membership at {level} level: {trials["members"]:,} members and {trials["non_members"]:,} non-members over '
      f'{trials["shadow_models"] + 1} target models'
    )

  return draw


def _curve(axes: plots.Axes, curve: roc.Curve, lowest: float, place: int, label: str) -> None:
  rates = (np.maximum(rate, lowest) for rate in curve)
  axes.plot(*rates, **{**plots.look(place), 'marker': ''}, label=label, drawstyle='steps-post')


def _groups_figure(rows: Sequence[json_types.JsonView]) -> tuple[plots.Draw, tuple[float, float]]:
  """The AUC of each method by participation group, a panel for each level, with intervals and bounds."""
  levels = _in_order(row['level'] for row in rows)
  names = _names(row['method'] for row in rows)
  attack = _strongest(_in_order(row['attack'] for row in rows))
  by_key = {(row['method'], row['level'], row['attack'], row['group']): row for row in reversed(rows)}

  def draw(figure: plots.Figure) -> None:
    for axes, level in zip(figure.subplots(1, len(levels), squeeze=False)[0], levels):
      for place, method in enumerate(names):
        for index, group in enumerate(shadow_models.GROUPS):
          row = by_key[method, level, attack, group]
          label = None if place else group
          _point(axes, row, place + 0.22 * (index - 1), index, label)
      axes.axhline(0.5, color='grey', linewidth=0.9)
      if any(row['auc_bound'] is not None for row in rows):
        axes.plot([], [], color='black', linewidth=1.2, label='a dash: allowed by the account')
      axes.set_xticks(range(len(names)), [textwrap.fill(name, 14) for name in names.values()], fontsize=7.5)
      axes.set(ylabel='AUC', xlim=(-0.5, len(names) - 0.5))
      axes.set_title(f'{level} level, {_WORDS[attack]}', loc='left')
    figure.legend(
      *axes.get_legend_handles_labels(),
      loc='outside lower center',
      ncols=4,
      title='clients by how often they are asked to take part',
    )

  return draw, (max(8, 1.05 * len(names)) * len(levels), 4.6)


def _point(axes: plots.Axes, row: json_types.JsonView, x: float, index: int, label: Optional[str]) -> None:
  area, style = row['auc'], {**plots.look(index), 'linestyle': 'none'}
  reach = [[area - row['auc_low']], [row['auc_high'] - area]]
  axes.errorbar([x], [area], yerr=reach, label=label, markersize=5, linewidth=1.2, capsize=2, **style)
  if row['auc_bound'] is not None:
    axes.plot([x - 0.09, x + 0.09], [row['auc_bound']] * 2, color=style['color'], linewidth=1.2)


def _strongest(attacks: Sequence[str]) -> str:
  return _STRONGEST if _STRONGEST in attacks else attacks[-1]


def _names(specs: Iterable[str]) -> dict[str, str]:
  """The names of methods for people, by their specs, in order."""
  distinct = _in_order(specs)
  return dict(zip(distinct, naming.labels(distinct)))


def _in_order(names: Iterable[str]) -> list[str]:
  return list(dict.fromkeys(names))
