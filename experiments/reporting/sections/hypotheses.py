"""Hypotheses H1 to H3 of `001…` section 7.4, each with what was measured and a verdict."""

from typing import Callable, List, NamedTuple, Optional, Sequence

import numpy as np

from experiments.reporting import commands
from experiments.reporting import comparison
from experiments.reporting import document
from experiments.reporting import documents
from experiments.reporting import errata
from experiments.reporting import methods
from experiments.reporting import quantities
from experiments.reporting import runs as runs_lib
from experiments.reporting import study as study_lib

CONFIRMED, NOT_CONFIRMED, NOT_ENOUGH = 'confirmed', 'not confirmed', 'not enough runs'
_LEVEL = 0.05
_FEWEST_PAIRS = 2
_RULE = (
    f'Pairs are runs of one seed and one setting that differ in the method only. A claim counts as confirmed if the '
    f'mean difference has the claimed sign and Student\'s paired t test over at least {_FEWEST_PAIRS} seeds gives p < '
    f'{_LEVEL} (two-sided), or the difference is the same in every seed.'
)


class Pairs(NamedTuple):
  """Attributes:
    label: The setting.
    left, right: The --algorithm specs compared.
    runs: (left run, right run) of each seed that both have, run equally far.
  """

  label: str
  left: str
  right: str
  runs: Sequence


def build(study):
  return document.Section(
      'Hypotheses H1 to H3',
      [_RULE, *_accuracy(study), *_deviation(study), *_noise_norm(study)],
  )


def verdict(tests: Sequence[quantities.PairedTest], sign: int) -> str:
  """Whether every test shows a difference of this sign."""
  if any(test.difference.count < _FEWEST_PAIRS for test in tests):
    return NOT_ENOUGH
  shown = all(
      test.difference.mean * sign > 0 and (test.p is None or test.p < _LEVEL) for test in tests
  )
  return CONFIRMED if shown else NOT_CONFIRMED


def pairs(
    study: study_lib.Study, left: str, right: str, value: Callable[[runs_lib.Run], Optional[float]]
) -> List[Pairs]:
  """Settings in which both methods have runs of the same seeds and length for which `value` exists."""
  found = []
  members = [group for group in study.groups if group.method in (left, right)]
  for family in study.families(('algorithm',), members, at_least=2):
    for a in (group for group in family.groups if group.method == left):
      for b in (group for group in family.groups if group.method == right):
        others = {run.seed: run for run in b.runs}
        both = [(run, others[run.seed]) for run in a.runs if run.seed in others]
        free = family.setting.get('stop_at_accuracy') is not None
        both = [
            (x, y) for x, y in both if (free or x.rounds == y.rounds) and value(x) is not None and value(y) is not None
        ]
        if both:
          variants = [spec for spec in (a.algorithm, b.algorithm) if ':' in spec]
          label = ', '.join([family.title, *variants])
          found.append(Pairs(label, a.algorithm, b.algorithm, both))
  return found


def _accuracy(study):
  """H1."""
  rows, verdicts = [], []
  for pair in pairs(study, 'quap', 'fixed_dp', lambda run: run.test_accuracy):
    quap, fixed = ([100 * run.test_accuracy for run in side] for side in zip(*pair.runs))
    test = quantities.paired_test(quap, fixed)
    verdicts.append(verdict([test], 1))
    spent = [
        quantities.over([_largest_nominal(run) for run in side], 3) for side in zip(*pair.runs)
    ]
    rows.append((
        pair.label, quantities.over(quap), quantities.over(fixed), test.difference, test.p_text, len(pair.runs),
        pair.runs[0][0].rounds, *spent, verdicts[-1]
    ))
  columns = (
      'setting', 'QuAP-FL (%)', 'Fixed-DP (%)', 'difference (points)', 'p', 'pairs', 'rounds',
      'nominal ε spent, QuAP-FL (max)', 'nominal ε spent, Fixed-DP (max)', 'verdict'
  )
  return _hypothesis(
      'H1: QuAP-FL is more accurate than uniform DP-FedAvg at equal ε_total', 'h1', columns, rows, verdicts,
      commands.sweep(algorithm=['fixed_dp', 'quap']),
      [
          'Equal is ε_total: the nominal one or, in a setting with `calibration=exact`, that of the noised weights by '
          'exact accounting. QuAP-FL noises the critical layers only: no finite ε for the released model. A gain at '
          'equal ε_total is not one at equal protection.',
          errata.BUDGET_NOT_SPENT,
          _printed_gains(),
          errata.EARLY_STOP,
      ]
  )


def _printed_gains():
  """What the documents have for H1."""
  first = documents.ACCURACY_FIRST
  gains = [
      printed.mean - first[dataset, scenario, 'fixed_dp'].mean
      for (dataset, scenario, method), printed in first.items() if method == 'quap'
  ]
  later = ', '.join(
      f'{documents.ACCURACY_2025[dataset, "quap"].mean - documents.ACCURACY_2025[dataset, "fixed_dp"].mean:+.2f} '
      f'({dataset})' for dataset in ('mnist', 'cifar10')
  )
  return (
      f'The documents\' difference, QuAP-FL less Fixed-DP in points: {min(gains):+.1f} to {max(gains):+.1f} at ε = 3 '
      f'(`000…` table 1), {later} at ε = 6 (`002…` table 2).'
  )


def _deviation(study):
  """H2."""
  rows, verdicts = [], []
  for left, right in _counterparts(0):
    for pair in pairs(study, left, right, _spread):
      spreads = [[run.client_epsilon.std() for run in side] for side in zip(*pair.runs)]
      relative = [[run.client_epsilon.std() / run.client_epsilon.mean() for run in side] for side in zip(*pair.runs)]
      tests = [quantities.paired_test(*spreads, digits=4), quantities.paired_test(*relative, digits=4)]
      verdicts.append(verdict(tests, -1))
      rows.append((
          pair.label, f'{methods.of(pair.left).label} and {methods.of(pair.right).label}',
          *(quantities.over(v, 4) for v in spreads), tests[0].difference, tests[0].p_text,
          *(quantities.over(v, 4) for v in relative), tests[1].difference, tests[1].p_text, len(pair.runs),
          pair.runs[0][0].rounds, verdicts[-1]
      ))
  columns = (
      'setting', 'adaptive and uniform budget', 'standard deviation, adaptive', 'standard deviation, uniform',
      'difference', 'p', 'coefficient of variation, adaptive', 'coefficient of variation, uniform',
      'difference of coefficients', 'p of coefficients', 'pairs', 'rounds', 'verdict'
  )
  return _hypothesis(
      'H2: participation-based budgets reduce the deviation of clients\' privacy losses', 'h2', columns, rows, verdicts,
      commands.sweep(algorithm=['layerwise', 'quap']),
      [
          'Over the clients\' cumulative nominal ε; the two methods have the same cohorts. Confirmed takes both, a '
          'smaller standard deviation and a smaller coefficient of variation (deviation over mean): an adaptive budget '
          'gives every round more than ε_base, which alone scales the deviation up and the coefficient not at all.',
      ]
  )


def _noise_norm(study):
  """H3."""
  rows, verdicts = [], []
  for left, right in _counterparts(2):
    for pair in pairs(study, left, right, _noise):
      part, full = ([_noise(run) for run in side] for side in zip(*pair.runs))
      test = quantities.paired_test(part, full, digits=4)
      verdicts.append(verdict([test], -1))
      rows.append((
          pair.label, f'{methods.of(pair.left).label} and {methods.of(pair.right).label}',
          quantities.over(part, 4), quantities.over(full, 4), test.p_text,
          quantities.over(np.divide(full, part), 1),
          quantities.over([_per_dimension(y) / _per_dimension(x) for x, y in pair.runs], 1),
          len(pair.runs), pair.runs[0][0].rounds, verdicts[-1]
      ))
  columns = (
      'setting', 'layer-wise and full noise', 'noise norm, layer-wise', 'noise norm, full', 'p', 'full / layer-wise',
      'of which √(d/d_c)', 'pairs', 'rounds', 'verdict'
  )
  expected = (documents.MODEL_WEIGHTS / documents.FINAL_LAYER_WEIGHTS)**0.5
  return _hypothesis(
      'H3: layer-wise noise has a smaller norm than full noise', 'h3', columns, rows, verdicts,
      commands.sweep(algorithm=['adaptive_budget_clip', 'quap']),
      [
          'Mean over the rounds of the norm of the noise in the mean update. √(d/d_c) is measured as the ratio of '
          f'(noise norm / σ), {expected:.1f} for the MNIST model and its final layer; the rest of the gain is a '
          'smaller σ, since the norm of the final layer\'s part, and so a tracked clip, is smaller.',
          errata.NOISE_GAIN, errata.LAYERWISE,
      ]
  )


def _hypothesis(title, name, columns, rows, verdicts, command, notes):
  if not rows:
    return [f'**{title}.** {NOT_ENOUGH.capitalize()}: no pair. These runs would decide it: `{command}`']
  judged = [v for v in verdicts if v != NOT_ENOUGH]
  if not judged:
    overall = NOT_ENOUGH
  elif len(set(judged)) == 1:
    overall = judged[0]
  else:
    overall = f'{NOT_CONFIRMED} in {judged.count(NOT_CONFIRMED)} of {len(judged)} settings'
  table = document.Table(name, title, columns, rows)
  return [f'**{title}: {overall}.**', comparison.without_empty(table, 'setting'), *notes]


def _counterparts(part):
  """(with, without) of the ablation's methods that differ in this part only, QuAP-FL first."""
  with_it = sorted((parts for parts in methods.BY_PARTS if parts[part]), reverse=True)
  return [
      (methods.BY_PARTS[parts], methods.BY_PARTS[parts[:part] + (False,) + parts[part + 1:]]) for parts in with_it
  ]


def _largest_nominal(run):
  return None if run.client_epsilon is None else float(run.client_epsilon.max())


def _spread(run):
  return None if run.client_epsilon is None or not run.client_epsilon.any() else float(run.client_epsilon.std())


def _noise(run):
  """Mean noise norm of a run that has noise."""
  return run.mean_of('noise_norm') if run.mean_of('sigma') else None


def _per_dimension(run):
  """√d of the noised layers: the noise norm over σ."""
  noise, sigma = run.metrics['noise_norm'], run.metrics['sigma']
  known = np.isfinite(noise) & np.isfinite(sigma) & (sigma > 0)
  return float(np.mean(noise[known] / sigma[known]))
