"""Pictures of the membership study: ROC curves on logarithmic axes, and AUC by participation group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from experiments.attacking import worlds
from experiments.running import plots
from quap_tff.auditing.membership import roc

_COLOURS = ('#000000', '#b2182b', '#4393c3', '#7f7f7f', '#762a83', '#1b7837', '#e08214', '#35978f')
_ATTACK_COLOURS = ('#e08214', '#1b7837', '#b2182b', '#4393c3')
_GROUP_COLOURS = ('#4393c3', '#7f7f7f', '#b2182b')
_DASHES = ('-', (0, (6, 2)), (0, (1, 1.3)), (0, (6, 1.5, 1, 1.5)))
_MARKERS = 'oDs'
# The attack whose curves are drawn for every method.
_STRONGEST = 'lira_online'
_WORDS = {
  'loss_threshold': 'the loss threshold',
  'shadow_classifier': 'shadow models and a classifier',
  'lira_online': 'LiRA, online',
  'lira_offline': 'LiRA, offline',
}


def images(rows: Sequence[Mapping[str, Any]], curves: Mapping[tuple[str, str, str], roc.Curve]) -> dict[str, bytes]:
  """PNG files by name: `membership_roc_LEVEL.png` for each level, and `membership_groups.png`.

  Args:
    rows: Of `membership_study.run`.
    curves: By (method, level, attack).
  """
  found = {}
  for level in _in_order(level for _, level, _ in curves):
    of_level = {(method, attack): curve for (method, its, attack), curve in curves.items() if its == level}
    found[f'membership_roc_{level}.png'] = plots.png(_roc_figure(level, of_level, rows), (11, 5.2))
  found['membership_groups.png'] = plots.png(*_groups_figure(rows))
  return found


def _roc_figure(level, curves, rows):
  methods, attacks = _in_order(method for method, _ in curves), _in_order(attack for _, attack in curves)
  attack = _strongest(attacks)
  trials = next(row for row in rows if row['level'] == level and row['group'] == 'all')
  # One non-member that is called a member, and one member that is found: nothing smaller can be measured.
  lowest = 0.5 / max(trials['members'], trials['non_members'])

  def draw(figure):
    left, right = figure.subplots(1, 2)
    for index, method in enumerate(methods):
      _curve(left, curves[method, attack], lowest, _COLOURS[index % len(_COLOURS)], _DASHES[index % 4], _short(method))
    left.set_title(f'All methods under {_WORDS[attack]}', loc='left')
    for index, its in enumerate(attacks):
      _curve(right, curves[methods[0], its], lowest, _ATTACK_COLOURS[index % 4], _DASHES[index % 4], _WORDS[its])
    right.set_title(f'All attacks on {_short(methods[0])}', loc='left')
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


def _curve(axes, curve, lowest, colour, dash, label):
  rates = (np.maximum(rate, lowest) for rate in curve)
  axes.plot(*rates, color=colour, linestyle=dash, label=label, drawstyle='steps-post')


def _groups_figure(rows):
  """The AUC of each method by participation group, a panel for each level, with intervals and bounds."""
  levels = _in_order(row['level'] for row in rows)
  methods = _in_order(row['method'] for row in rows)
  attack = _strongest(_in_order(row['attack'] for row in rows))
  by_key = {(row['method'], row['level'], row['attack'], row['group']): row for row in reversed(rows)}

  def draw(figure):
    for axes, level in zip(figure.subplots(1, len(levels), squeeze=False)[0], levels):
      for place, method in enumerate(methods):
        for index, group in enumerate(worlds.GROUPS):
          row = by_key[method, level, attack, group]
          _point(axes, row, place + 0.22 * (index - 1), index, label=None if place else group)
      axes.axhline(0.5, color='grey', linewidth=0.9)
      if any(row['auc_bound'] is not None for row in rows):
        axes.plot([], [], color='black', linewidth=1.2, label='a dash: allowed by the account')
      axes.set_xticks(range(len(methods)), [_short(method, lines=True) for method in methods], fontsize=7.5)
      axes.set(ylabel='AUC', xlim=(-0.5, len(methods) - 0.5))
      axes.set_title(f'{level} level, {_WORDS[attack]}', loc='left')
    figure.legend(
      *axes.get_legend_handles_labels(),
      loc='outside lower center',
      ncols=4,
      title='clients by how often they are asked to take part',
    )

  return draw, (max(8, 1.05 * len(methods)) * len(levels), 4.6)


def _point(axes, row, x, index, label):
  colour, area = _GROUP_COLOURS[index], row['auc']
  reach = [[area - row['auc_low']], [row['auc_high'] - area]]
  style = dict(color=colour, marker=_MARKERS[index], linestyle='none', markersize=5, linewidth=1.2, capsize=2)
  axes.errorbar([x], [area], yerr=reach, label=label, **style)
  if row['auc_bound'] is not None:
    axes.plot([x - 0.09, x + 0.09], [row['auc_bound']] * 2, color=colour, linewidth=1.2)


def _strongest(attacks: Sequence[str]) -> str:
  return _STRONGEST if _STRONGEST in attacks else attacks[-1]


def _short(method: str, lines: bool = False) -> str:
  """The spec without the parameters that all of its kind share."""
  name, _, arguments = method.partition(':')
  kept = [a for a in arguments.split(',') if a and not a.startswith(('certificate=', 'clip='))]
  parts = [name, *(argument.partition('=')[2] for argument in kept)]
  return '\n'.join(part.replace('_', '_\n', 1) for part in parts) if lines else ', '.join(parts)


def _in_order(names: Iterable[str]) -> list[str]:
  return list(dict.fromkeys(names))
