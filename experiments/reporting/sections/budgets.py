"""Budget of a round by participation rate: `000…` figure 2. ε_i(t) = ε_base·(1 + α·exp(-β·p_i(t)))."""

import numpy as np

from experiments.reporting import commands
from experiments.reporting import document
from experiments.reporting import documents
from experiments.reporting import errata
from experiments.reporting import figures
from experiments.reporting import methods

_HALF_WIDTH = 0.05


def build(study):
  groups = [
      group for group in study.groups
      if _is_adaptive(group) and any(run.ledger is not None and run.client_epsilon is not None for run in group.runs)
      and all(group.setting.get(name) == documents.COMMON[name] for name in ('alpha', 'beta'))
  ]
  command = commands.sweep(algorithm=['quap'], epsilon=[documents.EPSILON_FIRST])
  if not groups:
    return document.Section('Budget by participation', [], command)
  rates, budgets = map(np.concatenate, zip(*(measured(run) for group in groups for run in group.runs)))
  return document.Section('Budget by participation', [
      _table(rates, budgets),
      _figure(rates, budgets),
      'Measured: each client\'s mean nominal budget over the rounds that it was in, by its participation rate at the '
      f'end; runs with α = 0.5 and β = 2: {sum(len(group.runs) for group in groups)}. It lies off the curve where the '
      'rate was still another when the client was there, and where rounds of warm-up gave ε_base. The noise of a '
      'round follows one budget for the whole cohort (`--round_budget`), not each client\'s own.',
      errata.PRINTED_BUDGETS,
  ])


def formula(rates):
  """ε_i over ε_base."""
  return 1 + documents.COMMON['alpha'] * np.exp(-documents.COMMON['beta'] * np.asarray(rates))


def measured(run):
  """(rates, budgets): a client's participation rate at the end and mean nominal budget of a round over ε_base."""
  if run.ledger is None or run.client_epsilon is None or not run.planned_rounds or not run.ledger.num_rounds:
    return np.empty(0), np.empty(0)
  counts, base = run.ledger.counts, run.identity['epsilon'] / run.planned_rounds
  seen = counts > 0
  return counts[seen] / run.ledger.num_rounds, run.client_epsilon[seen] / counts[seen] / base


def _is_adaptive(group):
  method = methods.METHODS.get(group.method)
  return method is not None and method.ablation is not None and method.ablation[0]


def _table(rates, budgets):
  rows = []
  for rate, printed in documents.BUDGET_BY_RATE.items():
    near = budgets[np.abs(rates - rate) <= _HALF_WIDTH]
    rows.append((
        f'{rate:.1f}', f'{printed / documents.BUDGET_BASE:.3f}', f'{float(formula(rate)):.3f}',
        f'{near.mean():.3f}' if len(near) else 'no such client', len(near)
    ))
  columns = ('participation rate', 'document: as printed', 'document: its formula', 'measured', 'clients within 0.05')
  return document.Table(
      'budget_by_rate', 'Nominal budget of a round over ε_base (`000…` section 5.3 and figure 2)', columns, rows
  )


def _figure(rates, budgets):
  def draw(figure):
    axes = figure.subplots()
    grid = np.linspace(0, 1, 201)
    style = methods.METHODS['quap']
    axes.plot(
        rates, budgets, linestyle='none', marker='.', markersize=4, alpha=0.5, color='#777777',
        label='measured, a client'
    )
    axes.plot(grid, formula(grid), color=style.colour, linestyle=style.dash, label='formula, α = 0.5, β = 2')
    uniform = methods.METHODS['fixed_dp']
    axes.plot(grid, np.ones_like(grid), color=uniform.colour, linestyle=uniform.dash, label='uniform, ε_base')
    printed = documents.BUDGET_BY_RATE
    axes.plot(
        list(printed), [value / documents.BUDGET_BASE for value in printed.values()], linestyle='none', marker='X',
        markersize=9, color='black', label='000…, as printed in 5.3'
    )
    axes.set(xlabel='participation rate', ylabel='nominal budget of a round / ε_base', xlim=(0, 1), ylim=(0.95, None))
    figures.legend(axes)

  return document.Figure('budget_by_rate', 'Nominal budget of a round by participation rate (`000…` figure 2).', draw)
