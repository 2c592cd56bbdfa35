"""Hypotheses H1 to H3 of the theory document (7.4), each with the measurements and a verdict."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Optional

import pandas as pd

from experiments.reporting import naming
from experiments.reporting import pages
from experiments.reporting import published
from experiments.reporting import quantity
from experiments.reporting import study
from quap_tff.common import json_types

CONFIRMED, NOT_CONFIRMED, NOT_ENOUGH = 'confirmed', 'not confirmed', 'not enough runs'
_RULE = (
  'A pair is two runs with the same seed and setting that differ only in the method. A claim needs pairs for at '
  f"least {quantity.FEWEST_SEEDS} seeds. It is confirmed if Student's 95% interval of the mean difference has the "
  'claimed sign throughout.'
)
# The columns of pairs of the two methods.
_LEFT, _RIGHT = '_left', '_right'


class Hypothesis(NamedTuple):
  """Attributes:
  name: Of its table and its notes.
  claim: In words.
  methods: Pairs of methods. The claim is about the first of a pair against the second.
  sides: The headings of the first and of the second.
  measures: Each has a heading, a column of runs.csv and decimals. All must show the claim.
  sign: 1 if the first method has more, and -1 if it has less.
  extra: More cells, which follow from the pairs.
  """

  name: str
  claim: str
  methods: Sequence[tuple[str, str]]
  sides: tuple[str, str]
  measures: Sequence[tuple[str, str, int]]
  sign: int
  extra: Optional[Callable[[pd.DataFrame], pages.Cells]] = None


def _counterparts(part: int) -> list[tuple[str, str]]:
  """Pairs (with, without) of the ablation's methods that differ only in this part, QuAP-FL first."""
  counterparts = []
  for parts in sorted((parts for parts in published.BY_PARTS if parts[part]), reverse=True):
    budget, clip, noise = (has and index != part for index, has in enumerate(parts))
    counterparts.append((published.BY_PARTS[parts], published.BY_PARTS[budget, clip, noise]))
  return counterparts


def _spent(pairs: pd.DataFrame) -> pages.Cells:
  return {
    'nominal ε spent, QuAP-FL': quantity.over(pairs['nominal' + _LEFT], 3, True),
    'nominal ε spent, Fixed-DP': quantity.over(pairs['nominal' + _RIGHT], 3, True),
  }


def _ratios(pairs: pd.DataFrame) -> pages.Cells:
  headings = {'full / layer-wise': 'noise_norm', 'of which √(d/d_c)': 'root_dimension'}
  return {name: quantity.over(pairs[of + _RIGHT] / pairs[of + _LEFT], 1) for name, of in headings.items()}


HYPOTHESES = (
  Hypothesis(
    'h1',
    'H1: QuAP-FL is more accurate than uniform DP-FedAvg at equal ε_total',
    [('quap', 'fixed_dp')],
    ('QuAP-FL', 'Fixed-DP'),
    [('accuracy (%)', 'accuracy', 2)],
    1,
    _spent,
  ),
  Hypothesis(
    'h2',
    "H2: participation-based budgets reduce the spread of clients' privacy losses",
    _counterparts(0),
    ('adaptive', 'uniform'),
    [('deviation', 'nominal_deviation', 3), ('deviation / mean', 'nominal_spread', 3)],
    -1,
  ),
  Hypothesis(
    'h3',
    'H3: layer-wise noise has a smaller norm than full noise',
    _counterparts(2),
    ('layer-wise', 'full'),
    [('noise norm', 'noise_norm', 3)],
    -1,
    _ratios,
  ),
)


def build(groups: Sequence[study.StudyGroup]) -> list[pages.Block]:
  """All three hypotheses. There are no blocks if no hypothesis has a pair of runs."""
  blocks: list[pages.Block] = []
  for hypothesis in HYPOTHESES:
    blocks += _judge(groups, hypothesis)
  return [_RULE, *blocks] if any(isinstance(block, pages.Table) for block in blocks) else []


def _judge(groups: Sequence[study.StudyGroup], hypothesis: Hypothesis) -> list[pages.Block]:
  """A verdict, and the table of its pairs."""
  rows, verdicts = [], []
  for methods in hypothesis.methods:
    for cells, found in pairs(groups, *methods, hypothesis.measures[0][1]):
      differences = []
      for what, column, digits in hypothesis.measures:
        left, right = found[column + _LEFT], found[column + _RIGHT]
        difference = quantity.over(left - right, digits)
        differences.append(difference)
        means = {side: quantity.over(values, digits) for side, values in zip(hypothesis.sides, (left, right))}
        row = {**cells, 'measured': what, **means} | {'difference': difference}
        if hypothesis.extra is not None:
          row.update(hypothesis.extra(found))
        rows.append(row)
      verdicts.append(_verdict(differences, hypothesis.sign))
      for row in rows[-len(differences) :]:
        row.update(pairs=len(found), rounds=str(found['rounds_run' + _LEFT].iloc[0]), verdict=verdicts[-1])
  judged = [verdict for verdict in verdicts if verdict != NOT_ENOUGH]
  overall = judged[0] if len(set(judged)) == 1 else NOT_ENOUGH
  if len(set(judged)) > 1:
    overall = f'{NOT_CONFIRMED} in {judged.count(NOT_CONFIRMED)} of {len(judged)} settings'
  blocks: list[pages.Block] = [pages.Table(hypothesis.name, 'The pairs', rows)] if rows else []
  blocks = published.notes(hypothesis.name, blocks)
  is_of_layers = hypothesis.name == 'h3'
  if hypothesis.name == 'h1' and not any(g.is_of_documents for g in groups):
    blocks = blocks[:-1]  # The last paragraph is about the documents' figures.
  return [f'**{hypothesis.claim}: {overall}.**', *(published.notes('layerwise', blocks) if is_of_layers else blocks)]


def _verdict(differences: Sequence[Optional[quantity.Quantity]], sign: int) -> str:
  """Whether every interval lies on the side of this sign."""
  bounds = []
  for difference in differences:
    if difference is None or difference.half is None:
      return NOT_ENOUGH
    # A difference no larger than rounding errors counts as none.
    bounds.append(sign * difference.mean - difference.half > 1e-12)
  return CONFIRMED if all(bounds) else NOT_CONFIRMED


def pairs(
  groups: Sequence[study.StudyGroup], left: str, right: str, column: str
) -> list[tuple[json_types.JsonObject, pd.DataFrame]]:
  """The first cells of each setting that both methods have, and the runs of both sides, seed by seed.

  Both runs of a pair have a value in the column, and are equally long unless they stop at an accuracy.
  """
  found = []
  for family in study.families([g for g in groups if g.method in (left, right)], 'algorithm', at_least=2):
    for a in family.groups:
      for b in family.groups:
        if (a.method, b.method) == (left, right):
          both = a.runs.merge(b.runs, on='seed', suffixes=(_LEFT, _RIGHT))
          both = both.dropna(subset=[column + _LEFT, column + _RIGHT])
          if a.setting['stop_at_accuracy'] is None:
            both = both[both['rounds_run' + _LEFT] == both['rounds_run' + _RIGHT]]
          names = ' and '.join(_full_name(g.algorithm) for g in (a, b))
          if len(both):
            found.append(({'runs': family.title, 'methods': names}, both))
  return found


def _full_name(algorithm: str) -> str:
  """The name of the method, with the parameters of its spec that have other values than the defaults."""
  changed = naming.parse_choice('algorithm', algorithm)[2]
  words = ', '.join(naming.value(key, text) for key, text in changed.items())
  return naming.title_of(algorithm) + (f' ({words})' if words else '')
