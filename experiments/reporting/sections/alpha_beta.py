"""The α×β grid: `000…` figure 3."""

import numpy as np

from experiments.reporting import commands
from experiments.reporting import comparison
from experiments.reporting import document
from experiments.reporting import documents
from experiments.reporting import methods


def build(study):
  blocks = []
  adaptive = [
      group for group in study.groups
      if group.method in methods.METHODS and (methods.METHODS[group.method].ablation or (False,))[0]
  ]
  families = study.families(('alpha', 'beta'), adaptive, at_least=2)
  for number, family in enumerate(families, 1):
    is_documents = family.setting.get('dataset') == 'cifar10' and family.groups[0].method == 'quap'
    cells = {(group.setting['alpha'], group.setting['beta']): group for group in family.groups}
    wanted = sorted({*cells, *(documents.ALPHA_BETA if is_documents else ())})
    entries = [
        comparison.Entry(
            key, documents.ALPHA_BETA.get(key) if is_documents else None, [cells[key]] if key in cells else []
        )
        for key in wanted
    ]
    name = f'alpha_beta_{number}' if len(families) > 1 else 'alpha_beta'
    label = f'{methods.of(family.setting["algorithm"]).label}: {family.title}'
    title = f'α and β (`000…` figure 3, which is on CIFAR-10), {label}'
    blocks += [
        comparison.table(name, title, ('α', 'β'), entries, told=('alpha', 'beta', *family.setting)),
        _grid(name, f'Final test accuracy (%) by α and β, {label}.', cells),
        *comparison.notes(family.groups, 'alpha', 'beta'),
    ]
  return document.Section(
      'Sensitivity to α and β', blocks,
      commands.sweep('experiments/presets/cifar10_2025.flags', alpha=[0.3, 0.5, 0.7], beta=[1, 2, 3])
  )


def _grid(name, caption, cells):
  def draw(figure):
    alphas, betas = (sorted({key[i] for key in cells}) for i in (0, 1))
    values = np.full((len(alphas), len(betas)), np.nan)
    for (alpha, beta), group in cells.items():
      values[alphas.index(alpha), betas.index(beta)] = group.accuracy().mean
    axes = figure.subplots()
    image = axes.imshow(values, cmap='Greys', aspect='auto')
    darkest = np.nanmin(values) + 0.6 * np.ptp(values[np.isfinite(values)])
    for (i, j), value in np.ndenumerate(values):
      text = document.NOT_RUN if np.isnan(value) else f'{value:.2f}'
      axes.text(j, i, text, ha='center', va='center', color='white' if value > darkest else 'black')
    axes.set(
        xlabel='β (rate of decay)', ylabel='α (adaptive strength)', xticks=range(len(betas)),
        yticks=range(len(alphas)), xticklabels=[f'{b:g}' for b in betas], yticklabels=[f'{a:g}' for a in alphas]
    )
    axes.grid(False)
    figure.colorbar(image, label='final test accuracy (%)')

  return document.Figure(name, caption, draw, (6, 4))
