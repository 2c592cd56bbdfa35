"""The eight combinations of QuAP-FL's parts: `002…` table 3."""

import itertools

from experiments.reporting import commands
from experiments.reporting import comparison
from experiments.reporting import document
from experiments.reporting import documents
from experiments.reporting import errata
from experiments.reporting import methods
from experiments.reporting import privacy

_PARTS = ('adaptive budget', 'adaptive clip', 'layer-wise noise')


def build(study):
  blocks = []
  members = [group for group in study.groups if group.method in methods.BY_PARTS.values()]
  families = study.families(('algorithm',), members, at_least=3)
  for number, family in enumerate(families, 1):
    is_documents = all(family.setting.get(name) == value for name, value in documents.COMMON.items()) and (
        family.groups[0].scenario == 'heterogeneous' and family.setting.get('dataset') == 'mnist'
        and family.setting.get('epsilon') == documents.EPSILON_2025
    )
    entries = []
    for parts in itertools.product((False, True), repeat=3):
      groups = [group for group in family.groups if group.method == methods.BY_PARTS[parts]]
      formal = '; '.join(sorted({privacy.formal_text(group) for group in groups}))
      labels = (*('yes' if part else 'no' for part in parts), methods.METHODS[methods.BY_PARTS[parts]].label, formal)
      entries.append(comparison.Entry(labels, documents.ABLATION.get(parts) if is_documents else None, groups))
    blocks.append(comparison.table(
        f'ablation_{number}' if len(families) > 1 else 'ablation',
        f'Ablation (`002…` table 3): {family.title}',
        (*_PARTS, 'method', 'formal figure and what it covers'), entries, told=family.setting
    ))
    blocks += comparison.notes(family.groups, 'algorithm')
  if blocks:
    blocks += [errata.TABLES_DISAGREE, errata.LAYERWISE, errata.EARLY_STOP]
  return document.Section('Ablation', blocks, commands.sweep(algorithm=list(methods.BY_PARTS.values())))
