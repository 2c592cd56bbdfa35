"""Noise to signal by round: `001…` section 7.3."""

from experiments.reporting import comparison
from experiments.reporting import document
from experiments.reporting import figures
from experiments.reporting import methods
from experiments.reporting.sections import curves

_COLUMN = 'noise_to_signal'


def build(study):
  drawn = curves.by_place(
      study, 'noise_to_signal', _COLUMN,
      'Norm of the noise over the norm of the mean update, both of the noised layers, by round; mean over seeds',
      _draw
  )
  shown = study.places([group for group in study.groups if curves.is_logged(group, _COLUMN)])
  members = [group for family in shown for group in family.groups]
  return document.Section('Noise to signal', [_table(members), *drawn] if members else [], curves.COMMAND)


def _draw(axes, algorithm, rounds, values, **style):
  mean = values.mean(0)
  figures.line(axes, algorithm, rounds[mean > 0], mean[mean > 0], **style)
  axes.set(ylabel='noise norm / signal norm', yscale='log')


def _table(groups):
  rows = [
      (
          group.setting.get('dataset'),
          methods.of(group.algorithm).label,
          label,
          *(
              group.measure(lambda run, name=name: run.mean_of(name), digits)
              for name, digits in ((_COLUMN, 2), ('noise_norm', 4), ('signal_norm', 4))
          ),
          group.seeds_text,
          group.rounds_text,
      )
      for group, label in comparison.labelled(groups)
  ]
  columns = (
      'dataset', 'method', 'setting', 'noise / signal', 'noise norm', 'signal norm', 'seeds', 'rounds run of planned'
  )
  title = 'Means over the rounds that have a finite value'
  return comparison.without_empty(document.Table('noise_to_signal', title, columns, rows), 'setting')
