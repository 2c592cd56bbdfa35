"""Every setting that was run: its accuracy beside what it spends."""

from experiments.reporting import comparison
from experiments.reporting import document
from experiments.reporting import errata
from experiments.reporting import methods
from experiments.reporting import privacy

_COLUMNS = (
    'dataset', 'method', 'setting', 'document: accuracy (%)', 'measured: accuracy (%)', 'nominal ε, max over clients',
    'nominal ε, mean over clients', 'nominal δ, max', 'formal figure and what it covers', 'seeds',
    'rounds run of planned'
)


def build(study):
  rows = [
      (
          group.setting.get('dataset'),
          methods.of(group.algorithm).label,
          label,
          comparison.printed_accuracy(group),
          group.accuracy(),
          privacy.nominal(group, 'max'),
          privacy.nominal(group, 'mean'),
          _delta(group),
          privacy.formal_text(group),
          group.seeds_text,
          group.rounds_text,
      )
      for group, label in comparison.labelled(study.groups)
  ]
  table = document.Table('privacy_and_accuracy', 'All settings', _COLUMNS, rows)
  return document.Section('Accuracy beside privacy', [
      'Nominal figures are the documents\' own: basic composition of the rounds that a client took part in, for the '
      'noised layers only, the clipping norms taken as given, at the δ beside them. There is none where the noise is '
      'not that of the documents\' formula (`--calibration=exact`, certified runs). A formal figure is the largest '
      'over clients and seeds, and holds for what its cell says and nothing else.',
      comparison.without_empty(table, 'setting', 'document: accuracy (%)'),
      privacy.relations(study),
      *comparison.unequal_rounds(study.groups),
      errata.BUDGET_NOT_SPENT,
      errata.BASIC_COMPOSITION,
  ])


def _delta(group):
  if privacy.nominal(group, 'max') is None:
    return None
  delta = group.measure(lambda run: run.summary.get('nominal_delta_max'))
  return None if delta is None else f'{delta.mean:.2g}'
