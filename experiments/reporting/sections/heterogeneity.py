"""How uneven the clients' labels are, Dirichlet a: `002…` section 5.3.3 and figure 4."""

from experiments.reporting import commands
from experiments.reporting import comparison
from experiments.reporting import document
from experiments.reporting import documents
from experiments.reporting import one_flag
from experiments.reporting import quantities
from experiments.reporting import specs


def build(study):
  groups = [g for g in study.groups if specs.parse(str(g.setting.get('partition')))[0] == 'dirichlet']
  families = one_flag.families(study, 'partition', groups)
  return document.Section(
      'Uneven labels (Dirichlet)',
      one_flag.blocks(
          families, 'partition', 'dirichlet', 'Accuracy by Dirichlet a (`002…` figure 4)',
          'Dirichlet a (small: few labels a client)', _concentration, order=_concentration, log=True
      ) + _gains(families),
      commands.sweep(
          algorithm=['fixed_dp', 'quap'], partition=[f'dirichlet:alpha={a}' for a in (0.1, 0.5, 1, 10)]
      ),
  )


def _concentration(partition):
  return float(specs.parse(partition)[1]['alpha'])


def _gains(families):
  """QuAP-FL's accuracy less Fixed-DP's, by a: what the document claims in words."""
  rows = []
  for family in families:
    for partition in sorted({group.setting['partition'] for group in family.groups}, key=_concentration):
      accuracies = {
          group.method: group.accuracy() for group in family.groups if group.setting['partition'] == partition
      }
      if {'quap', 'fixed_dp'} <= set(accuracies):
        gain = accuracies['quap'].mean - accuracies['fixed_dp'].mean
        a = _concentration(partition)
        rows.append((family.title, f'{a:g}', documents.DIRICHLET_GAIN.get(a), quantities.Quantity(gain)))
  if not rows:
    return []
  columns = ('setting', 'Dirichlet a', 'document', 'measured: QuAP-FL less Fixed-DP (points)')
  return [comparison.without_empty(
      document.Table('dirichlet_gain', 'Gain of QuAP-FL over Fixed-DP (`002…` 5.3.3)', columns, rows), 'setting'
  )]
