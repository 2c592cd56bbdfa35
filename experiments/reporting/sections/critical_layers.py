"""One, two and all Dense layers critical: `001…` section 7.5, experiment 4."""

from experiments.reporting import commands
from experiments.reporting import document
from experiments.reporting import errata
from experiments.reporting import methods
from experiments.reporting import one_flag

# From few layers to many; names stand between.
_ORDER = {'final_dense': 0, 'all_dense': 2, 'all': 3}


def build(study):
  # The others noise every layer, whatever the flag says.
  groups = [
      group for group in study.groups
      if group.method in methods.METHODS and (methods.METHODS[group.method].ablation or (False,))[-1]
  ]
  blocks = one_flag.blocks(
      one_flag.families(study, 'critical_layers', groups), 'critical_layers', 'critical_layers',
      'Accuracy by critical layers (`001…` 7.5)', 'critical (clipped and noised) layers',
      order=lambda layers: (_ORDER.get(layers, 1), layers)
  )
  return document.Section(
      'Critical layers', blocks + [errata.ALL_DENSE, errata.LAYERWISE] if blocks else [],
      commands.sweep(algorithm=['quap'], critical_layers=['final_dense', 'dense,dense_1', 'all_dense', 'all'])
  )
