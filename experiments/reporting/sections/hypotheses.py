"""Hypotheses H1 to H3 of the theory document (7.4), each with the measurements and a verdict."""

from collections.abc import Mapping, Sequence
import itertools
from typing import Any, Callable, Optional

import numpy as np

from experiments.reporting import naming
from experiments.reporting import pages
from experiments.reporting import published
from experiments.reporting import runs as runs_lib
from experiments.reporting import study
from quap_tff.common import json_types

CONFIRMED, NOT_CONFIRMED, NOT_ENOUGH = 'confirmed', 'not confirmed', 'not enough runs'
_LEVEL, _FEWEST_PAIRS = 0.05, 2
_RULE = (
  'A pair is two runs with the same seed and setting that differ only in the method. A claim needs pairs for at '
  f'least {_FEWEST_PAIRS} seeds. It is confirmed if the mean difference has the claimed sign, and if either '
  f"Student's paired t test gives p < {_LEVEL} (two-sided) or the difference is the same in every seed."
)

Measure = Callable[[runs_lib.RunFolder], Optional[float]]
# The runs of two methods, seed by seed.
Sides = tuple[Sequence[runs_lib.RunFolder], Sequence[runs_lib.RunFolder]]


def build(groups: Sequence[study.StudyGroup]) -> list[pages.Block]:
  """All three hypotheses. There are no blocks if no hypothesis has a pair of runs."""
  blocks = _h1(groups) + _h2(groups) + _h3(groups)
  return [_RULE, *blocks] if any(isinstance(block, pages.Table) for block in blocks) else []


def _h1(groups: Sequence[study.StudyGroup]) -> list[pages.Block]:
  def largest(run: runs_lib.RunFolder) -> Optional[float]:
    return None if run.nominal_epsilon is None else run.nominal_epsilon.max()

  def spent(left: Sequence[runs_lib.RunFolder], right: Sequence[runs_lib.RunFolder]) -> dict[str, pages.Cell]:
    return {
      'nominal ε spent, QuAP-FL': study.over(list(map(largest, left)), 3, True),
      'nominal ε spent, Fixed-DP': study.over(list(map(largest, right)), 3, True),
    }

  # The second paragraph is about the documents' figures.
  num_notes = 2 if any(g.is_of_documents for g in groups) else 1
  return _judge(
    groups,
    'h1',
    'H1: QuAP-FL is more accurate than uniform DP-FedAvg at equal ε_total',
    [('quap', 'fixed_dp')],
    ('QuAP-FL', 'Fixed-DP'),
    {'accuracy (%)': (lambda run: 100 * pages.known(run.test_accuracy), 2)},
    1,
    spent,
    published.NOTES['h1'][:num_notes],
  )


def _h2(groups: Sequence[study.StudyGroup]) -> list[pages.Block]:
  def spread(run: runs_lib.RunFolder) -> Optional[float]:
    epsilon = run.nominal_epsilon
    return None if epsilon is None or not epsilon.any() else float(epsilon.std())

  return _judge(
    groups,
    'h2',
    "H2: participation-based budgets reduce the spread of clients' privacy losses",
    _counterparts(0),
    ('adaptive', 'uniform'),
    {
      'deviation': (spread, 3),
      'deviation / mean': (lambda run: pages.known(spread(run)) / pages.known(run.nominal_epsilon).mean(), 3),
    },
    -1,
    lambda left, right: {},
    published.NOTES['h2'],
  )


def _h3(groups: Sequence[study.StudyGroup]) -> list[pages.Block]:
  def noise(run: runs_lib.RunFolder) -> Optional[float]:
    return run.mean_of('noise_norm') if run.mean_of('sigma') else None

  def root_dimension(run: runs_lib.RunFolder) -> float:
    norm, sigma = run.metrics['noise_norm'], run.metrics['sigma']
    known = np.isfinite(norm) & np.isfinite(sigma) & (sigma > 0)
    return float(np.mean(norm[known] / sigma[known]))

  def ratio(value: Callable[[runs_lib.RunFolder], Any], left: Any, right: Any) -> Optional[pages.Quantity]:
    return study.over([value(y) / value(x) for x, y in zip(left, right)], 1)

  return _judge(
    groups,
    'h3',
    'H3: layer-wise noise has a smaller norm than full noise',
    _counterparts(2),
    ('layer-wise', 'full'),
    {'noise norm': (noise, 3)},
    -1,
    lambda left, right: {
      'full / layer-wise': ratio(noise, left, right),
      'of which √(d/d_c)': ratio(root_dimension, left, right),
    },
    published.NOTES['h3'] + published.NOTES['layerwise'],
  )


def _counterparts(part: int) -> list[tuple[str, str]]:
  """Pairs (with, without) of the ablation's methods that differ only in this part, QuAP-FL first."""
  counterparts = []
  for parts in sorted((parts for parts in published.BY_PARTS if parts[part]), reverse=True):
    budget, clip, noise = (has and index != part for index, has in enumerate(parts))
    counterparts.append((published.BY_PARTS[parts], published.BY_PARTS[budget, clip, noise]))
  return counterparts


def _judge(
  groups: Sequence[study.StudyGroup],
  name: str,
  claim: str,
  methods: Sequence[tuple[str, str]],
  sides: tuple[str, str],
  measures: Mapping[str, tuple[Measure, int]],
  sign: int,
  extra: Callable[..., pages.Cells],
  notes: Sequence[pages.Block],
) -> list[pages.Block]:
  """A verdict and the table of its pairs, with the `extra` columns that follow from the runs of both sides.

  Every measure, which comes with its number of decimals, must show the claim: that the left method has more if `sign`
  is 1, and less if it is -1.
  """
  rows, verdicts = [], []
  for left, right in methods:
    for cells, runs in pairs(groups, left, right, next(iter(measures.values()))[0]):
      tested = []
      for what, (measure, digits) in measures.items():
        values = np.array([list(map(measure, side)) for side in runs], float)
        tested.append((what, values, digits, *study.paired_test(values[0], values[1], digits)))
      verdicts.append(_verdict([test[-2:] for test in tested], sign))
      counts = {'pairs': len(runs[0]), 'rounds': str(runs[0][0].rounds), 'verdict': verdicts[-1]}
      for what, values, digits, difference, p in tested:
        means = {side: study.over(v, digits) for side, v in zip(sides, values)}
        test = {'difference': difference, 'p': 'none' if p is None else f'{p:.2g}'}
        rows.append(cells | {'measured': what} | means | test | dict(extra(*runs)) | counts)
  judged = [verdict for verdict in verdicts if verdict != NOT_ENOUGH]
  overall = judged[0] if len(set(judged)) == 1 else NOT_ENOUGH
  if len(set(judged)) > 1:
    overall = f'{NOT_CONFIRMED} in {judged.count(NOT_CONFIRMED)} of {len(judged)} settings'
  table: list[pages.Block] = [pages.Table(name, 'The pairs', rows), *notes] if rows else []
  return [f'**{claim}: {overall}.**', *table]


def _verdict(tests: Sequence[tuple[pages.Quantity, Optional[float]]], sign: int) -> str:
  """Whether every test shows a difference of this sign."""
  if any((difference.count or 0) < _FEWEST_PAIRS for difference, _ in tests):
    return NOT_ENOUGH
  shown = all(difference.mean * sign > 0 and (p is None or p < _LEVEL) for difference, p in tests)
  return CONFIRMED if shown else NOT_CONFIRMED


def pairs(
  groups: Sequence[study.StudyGroup], left: str, right: str, value: Measure
) -> list[tuple[json_types.JsonObject, Sides]]:
  """The first cells of each setting that both methods have, and the runs of both sides, seed by seed.

  Both runs of a pair have the `value`, and are equally long unless they stop at an accuracy.
  """
  sides: list[tuple[json_types.JsonObject, Sides]] = []
  both_methods = study.families([g for g in groups if g.method in (left, right)], 'algorithm', at_least=2)
  for family in study.titled(both_methods, 'algorithm'):
    of_left = [g for g in family.groups if g.method == left]
    of_right = [g for g in family.groups if g.method == right]
    for a, b in itertools.product(of_left, of_right):
      is_free = a.setting['stop_at_accuracy'] is not None
      others = {run.seed: run for run in b.runs if value(run) is not None}
      both = [
        (run, others[run.seed])
        for run in a.runs
        if run.seed in others and value(run) is not None and (is_free or run.rounds == others[run.seed].rounds)
      ]
      if both:
        names = ' and '.join(naming.full(g.algorithm) for g in (a, b))
        lefts, rights = zip(*both)
        sides.append(({'runs': family.title, 'methods': names}, (lefts, rights)))
  return sides
