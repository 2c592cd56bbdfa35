"""Who shows up: Beta(1,1) and Beta(5,2) beside Beta(2,5), `001…` section 7.5, experiment 2."""

from experiments.reporting import commands
from experiments.reporting import document
from experiments.reporting import one_flag


def build(study):
  return document.Section(
      'Participation models',
      one_flag.blocks(
          one_flag.families(study, 'participation'), 'participation', 'participation',
          'Accuracy by participation (`001…` 7.5)', 'participation model'
      ),
      commands.sweep(algorithm=['fixed_dp', 'quap'], participation=['beta:a=2,b=5', 'beta:a=1,b=1', 'beta:a=5,b=2']),
  )
