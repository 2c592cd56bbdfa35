"""Certified runs beside others whose ε holds for the released model: who is most accurate at equal ε."""

from experiments.reporting import commands
from experiments.reporting import comparison
from experiments.reporting import document
from experiments.reporting import figures
from experiments.reporting import methods
from experiments.reporting import privacy
from experiments.reporting import specs

_COLUMNS = (
    'dataset', 'participation', 'ε asked for', 'method', 'weights', 'setting', 'ε, max over clients', 'δ',
    'accuracy (%)', 'formal figure and what it covers', 'seeds', 'rounds run of planned'
)
_CERTIFIED = 'certified'


def build(study):
  members = [
      group for group in study.groups if all(privacy.whole_model_epsilon(run) is not None for run in group.runs)
  ]
  blocks = []
  if any(group.method == _CERTIFIED for group in members):
    told = ('participation', 'epsilon')
    rows = [_row(group, label) for group, label in comparison.labelled(members, *told)]
    rows.sort(key=lambda row: (str(row[0]), str(row[1]), float(row[2])))
    table = document.Table('certified', 'Accuracy at a formal ε of the released model', _COLUMNS, rows)
    blocks = [
        comparison.without_empty(table, 'setting', 'weights'),
        *_figures(members),
        privacy.relations(study),
        'Only runs whose formal ε holds for everything that they release. Compare methods where dataset, participation '
        'and ε are equal; a method that spends less than was asked for shows so. Figures of TFF\'s own aggregators are '
        'for ideal noise: what TFF draws is weaker (float32 numbers and, but for DP-FTRL, a seed of 32 bits).',
    ]
  return document.Section('Certified: equal formal ε', blocks, commands.sweep(
      'experiments/presets/mnist_certified.flags',
      algorithm=['certified', 'certified:weights=uniform', 'tff_dp_fedavg', 'tff_dp_fedavg_adaptive', 'tff_dp_ftrl'],
      participation=['uniform', 'beta:a=2,b=5', 'extreme_imbalance'], epsilon=[1, 3, 6, 10]
  ))


def _row(group, label):
  is_certified = group.method == _CERTIFIED
  return (
      group.setting.get('dataset'), group.setting.get('participation'), f'{group.setting["epsilon"]:g}',
      methods.of(group.algorithm).label, specs.parse(group.algorithm)[1].get('weights') if is_certified else None,
      label, group.measure(privacy.whole_model_epsilon, 3), f'{group.setting["delta"]:g}', group.accuracy(),
      privacy.formal_text(group), group.seeds_text, group.rounds_text
  )


def _figures(members):
  places = {}
  for group in members:
    places.setdefault((group.setting.get('dataset'), group.setting.get('participation')), []).append(group)
  shown = {place: groups for place, groups in places.items() if any(g.method == _CERTIFIED for g in groups)}
  return [
      document.Figure(
          f'certified_{number}' if len(shown) > 1 else 'certified',
          f'Accuracy by the formal ε of the most exposed client, {dataset}, {participation}; bars: deviation over seeds.',
          _drawing(groups)
      )
      for number, ((dataset, participation), groups) in enumerate(shown.items(), 1)
  ]


def _drawing(groups):
  def draw(figure):
    axes = figure.subplots()
    fills = methods.fills(sorted({group.algorithm for group in groups}, key=methods.order))
    for algorithm, fill in fills.items():
      found = sorted(
          (group.measure(privacy.whole_model_epsilon).mean, group.accuracy()) for group in groups
          if group.algorithm == algorithm
      )
      figures.points(axes, algorithm, [x for x, _ in found], [y for _, y in found], fill)
    axes.set(xlabel='formal ε of the released model, largest of any client', ylabel='final test accuracy (%)')
    figures.legend(axes)

  return draw
