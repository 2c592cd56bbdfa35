"""1,000 clients, 5% a round: `000…` table 5."""

from experiments.reporting import commands
from experiments.reporting import comparison
from experiments.reporting import document
from experiments.reporting import documents
from experiments.reporting import methods
from experiments.reporting import quantities
from experiments.reporting.sections import convergence


def build(study):
  clients, cohort = documents.AT_SCALE_CLIENTS, documents.AT_SCALE_COHORT
  wanted = {
      method: [g for g in study.select(method, num_clients=clients) if g.setting.get('cohort_size') == cohort]
      for method in documents.AT_SCALE
  }
  # Noise beside Vanilla DP-FL's of the same data: that of the first setting, if it varies.
  noise = {
      g.setting.get('dataset'): _noise(g) for g in reversed(wanted['fixed_dp']) if _noise(g) is not None
  }
  measures = [
      ('accuracy', 'accuracy (%)', lambda printed: printed.accuracy, lambda g: g.accuracy()),
      ('rounds', 'rounds to 90% accuracy', lambda printed: quantities.Quantity(printed.rounds, digits=0),
       convergence.rounds_to_target),
      ('noise', 'noise norm over Fixed-DP\'s (%)', lambda printed: printed.noise, lambda g: _relative(g, noise)),
  ]
  blocks = []
  if any(wanted.values()):
    for name, what, printed_of, measure in measures:
      entries = [
          comparison.Entry((methods.of(method).label,), printed_of(printed), wanted[method])
          for method, printed in documents.AT_SCALE.items()
      ]
      blocks.append(comparison.table(
          f'at_scale_{name}', f'1,000 clients, 50 a round: {what} (`000…` table 5)', ('method',), entries, measure, what
      ))
    blocks += comparison.notes([g for groups in wanted.values() for g in groups], 'algorithm')
    blocks.append(
        'The document names neither the data, nor ε, nor what it takes for convergence (90% here), nor what amount of '
        'noise is (here the mean over rounds of the norm of the noise in the mean update).'
    )
  return document.Section(
      'A thousand clients', blocks,
      commands.sweep(algorithm=list(documents.AT_SCALE), num_clients=[clients], cohort_size=[cohort])
  )


def _noise(group):
  return group.measure(lambda run: run.mean_of('noise_norm'))


def _relative(group, noise):
  own, other = _noise(group), noise.get(group.setting.get('dataset'))
  return None if own is None or other is None or not other.mean else quantities.Quantity(
      100 * own.mean / other.mean, digits=1
  )
