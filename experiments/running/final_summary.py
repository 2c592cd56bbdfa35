"""The text that `experiments.train` prints at the end: a few lines for people, then one line of JSON for scripts.

Together they fit a terminal of 24 rows and 80 columns. The last lines for people are the accuracy and the guarantee.
All figures are in summary.json, which a run with --output_dir leaves. The line of JSON has the same keys, with shorter
values: `protection` is cut to a sentence, and `formal` keeps `covers`, `delta`, `reading` and the exact one of its
`figures`. TensorFlow is not loaded here.
"""

from collections.abc import Iterable, Sequence
import contextlib
import json
import math
import os
from typing import Optional, TypedDict

import numpy as np

from experiments.command import command_line
from experiments.command import run as run_lib
from experiments.folders import folder as run_folder
from experiments.running import progress
from quap_tff import plans
from quap_tff.accounting import history
from quap_tff.accounting import protection as protections
from quap_tff.common import json_types
from quap_tff.common.numbers import rounding


class StatedFigure(TypedDict):
  """A formal figure, as summary.json has it. An ε that is not finite is None."""

  accountant: str
  neighbours: str
  amplification: str
  epsilon_max: Optional[float]


class StatedReading(TypedDict):
  """The cost of the rounds of a run that ended early, as summary.json has it."""

  rounds: int
  epsilon_max: Optional[float]
  epsilon_mean: Optional[float]
  why: str


class StatedFormal(TypedDict):
  """The formal statement about a run, as summary.json has it."""

  covers: str
  statement: str
  delta: float
  unit: str
  figures: list[StatedFigure]
  notes: list[str]
  noise_note: str
  reading: Optional[StatedReading]


_FORMAL_KEYS = ('covers', 'delta', 'reading')
_FIGURE_KEYS = ('accountant', 'neighbours', 'amplification', 'epsilon_max')
_SHORT_NEIGHBOURS = {
  history.ZERO_OUT: 'zero-out',
  history.REPLACE_ONE: 'replace one',
  history.ADD_OR_REMOVE: 'add or remove',
}
_SHORT_PROTECTION = {
  protections.RELEASED_MODEL: 'Every released number is noised.',
  protections.WEIGHTS_ONLY: 'Every weight is noised, and exact figures are logged alongside them.',
  protections.NOTHING: 'No finite ε for the released model.',
}


# By what share a formal ε may differ from --epsilon without a word.
_CLOSE = 0.05
# How many standard deviations of the accuracy of guessing are taken for chance: 1 in 44 is above that.
_CHANCE = 2.0
# Weights of models that learn something are below 100, and the loss of guessing is the logarithm of the classes.
_LARGEST_SENSIBLE = 1e6
_DIVERGED = (
  'The model has diverged: a weight or the test loss is not finite, or above 1,000,000. A smaller learning rate or '
  'less noise may help.'
)


def has_diverged(weights: Iterable[np.ndarray], test_loss: float) -> bool:
  """True if a weight or the test loss is not finite, or larger than any that makes sense.

  Args:
    weights: Arrays: the published weights. So in a certified run the answer is post-processing.
    test_loss: The loss of these weights.
  """
  # NaN fails the comparisons, too.
  return not (abs(test_loss) <= _LARGEST_SENSIBLE and all(np.all(np.abs(w) <= _LARGEST_SENSIBLE) for w in weights))


def line(summary: json_types.JsonView) -> str:
  """The line of JSON for a summary as summary.json has it."""
  short, formal = dict(summary), summary['formal']
  short['protection'] = _SHORT_PROTECTION[protections.NOTHING if formal is None else formal['covers']]
  if formal is not None:
    figures = [_short_figure(figure) for figure in _headline(formal)]
    short['formal'] = {**{key: formal[key] for key in _FORMAL_KEYS}, 'figures': figures}
  return json.dumps(short, allow_nan=False, separators=(',', ':'))


def _short_figure(figure: StatedFigure) -> json_types.JsonObject:
  whole: json_types.JsonView = figure
  return {**{key: whole[key] for key in _FIGURE_KEYS}, 'neighbours': _relation(figure)}


def text(
  summary: json_types.JsonView,
  covered: Sequence[str] = (),
  rounds_run: Optional[int] = None,
  seconds: Optional[float] = None,
  other_epsilon: str = '',
  left_out: str = '',
  guess: Optional[float] = None,
) -> str:
  """The lines for people.

  Args:
    summary: As summary.json has it.
    covered: Sentences on the coverage of the noise and on exact figures in the logs; none for a run that was finished
      before.
    rounds_run: The rounds of this process; None if there was nothing to run.
    seconds: That these rounds took; None where this is withheld.
    other_epsilon: From `other_epsilon`.
    left_out: From `non_finite`.
    guess: From `guessed`.
  """
  paragraphs = []
  if rounds_run is not None:
    state = 'Interrupted after' if summary['interrupted'] else 'Done:'
    earlier = summary['rounds'] - rounds_run
    before = f', {earlier} of them before' if earlier else ''
    took = f'; {seconds:.1f} s' if seconds is not None else ''
    paragraphs.append(f'{state} {summary["rounds"]} of {summary["planned_rounds"]} planned rounds{before}{took}.')
    paragraphs += covered
    paragraphs += _nominal(summary)
    paragraphs += (summary['formal'] or {}).get('notes', [])
  paragraphs += filter(None, [other_epsilon])
  if summary.get('malicious'):
    paragraphs.append(malicious(summary['malicious']))
  paragraphs += filter(None, [left_out])
  paragraphs += _what_is_kept(summary)
  if summary.get('diverged'):  # Earlier versions do not say it.
    paragraphs.append(_DIVERGED)
  loss = '' if summary['test_loss'] is None else f', loss {progress.short(summary["test_loss"], 4)}'
  alike = '' if guess is None else f': not clearly above one fixed label ({guess:.2%})'
  paragraphs.append(f'Test accuracy {summary["test_accuracy"]:.2%}{loss}{alike}.')
  paragraphs += [guarantee(summary), *_reading(summary)]
  rows = []
  for paragraph in paragraphs:
    # A line that ends with the folder is left whole, so that it can be copied.
    is_path = summary['output_dir'] is not None and paragraph.endswith(summary['output_dir'])
    rows += [paragraph] if is_path else command_line.filled(paragraph)
  return '\n'.join(rows)


def other_epsilon(run: run_lib.Run, plan: plans.Plan, summary: json_types.JsonView) -> str:
  """Says that the formal ε is not --epsilon, and which flag makes them equal; '' if they are close, or there is none.

  Args:
    run: The run.
    plan: Its plan.
    summary: From `make`.
  """
  figures = _headline(summary['formal']) if summary['formal'] is not None else []
  asked, reached = run.flags['epsilon'], figures[0]['epsilon_max'] if figures else None
  if reached is None or abs(reached - asked) <= _CLOSE * asked:
    return ''
  remedy = ''
  if getattr(getattr(run.method, 'base', run.method), 'noise_multiplier', None) is not None:
    remedy = ' Leave noise_multiplier out of --algorithm, to make them equal.'
  elif 'calibration' in run.method.flag_names() and run.flags['calibration'] != 'exact':
    exact = run_lib.Run.from_flags({**run.flags, 'calibration': 'exact'})
    with contextlib.suppress(ValueError):  # Some noise cannot be chosen by a formal ε.
      exact.plan(plan.num_clients, plan.shape, plan.test_is_of_clients)
      remedy = ' --calibration=exact makes them equal.'
  return f'The formal ε is {rounding.up(reached)}, not --epsilon={asked:g}.{remedy}'


def malicious(facts: run_lib.AttackFacts) -> str:
  """How many clients attack, and how, by what summary.json says of it."""
  return f'Malicious: {facts["clients"]} of the clients attack in every round that they are in ({facts["attack"]}).'


def non_finite(updates: int, rounds: int, first_round: int) -> str:
  """Says how many updates of clients had NaN or infinity, in how many rounds; '' if there was none."""
  if not updates:
    return ''
  where = f'round {first_round}' if rounds == 1 else f'{rounds} rounds, the first of them round {first_round}'
  return (
    f"{updates} of the clients' updates had NaN or infinity and counted as zero, in {where}. A smaller learning rate "
    'in --client_optimizer may help.'
  )


def guessed(accuracy: float, labels: np.ndarray) -> Optional[float]:
  """The accuracy of always giving the most frequent label, if the model's is not above it by more than chance.

  Args:
    accuracy: The model's, on the test set.
    labels: int[n], the labels of the test set.
  """
  if not len(labels):
    return None
  share = float(np.bincount(labels).max()) / len(labels)
  return share if accuracy <= share + _CHANCE * math.sqrt(share * (1 - share) / len(labels)) else None


def guarantee(summary: json_types.JsonView) -> str:
  """The proven statement about the release, in plain words."""
  formal = summary['formal']
  figures = _headline(formal) if formal is not None else []
  if formal is not None and not figures:
    return ' '.join(['Guarantee: none.', *formal['notes'][:1]])
  if formal is None or figures[0]['epsilon_max'] is None:
    return 'Guarantee: none. The released model has no finite ε.'
  (exact,) = figures
  is_ideal = bool(formal['noise_note'])
  is_all = formal['covers'] == protections.RELEASED_MODEL
  subject = 'released model is' if is_all else 'weights are'
  rounds = '' if formal.get('reading') is None else f', over all {summary["planned_rounds"]} planned rounds'
  condition = ', if the noise were ideal' if is_ideal else ''
  said = (
    f'Guarantee{condition}: the {subject} differentially private with '
    f'{_bound(exact)} at δ = {rounding.up(formal["delta"])} for each client and all of its data{rounds}.'
  )
  if summary.get('trust') == 'secure_sum':
    said += ' It also holds against the server, if secure sums open as the plan assumes (docs/trust.md).'
  if not is_all:
    said += ' Exact figures in the logs have no finite ε: keep them secret.'
  return said


def _reading(summary: json_types.JsonView) -> list[str]:
  """The cost of the rounds of a run that ended early, or whose cohorts were not planned."""
  reading = (summary['formal'] or {}).get('reading')
  if reading is None:
    return []
  epsilon = 'no finite ε' if reading['epsilon_max'] is None else f'ε ≤ {rounding.up(reading["epsilon_max"])}'
  return [
    f'Reading after {reading["rounds"]} of {summary["planned_rounds"]} rounds: {epsilon} (not a guarantee: '
    f'{reading["why"]}).'
  ]


def _headline(formal: StatedFormal) -> list[StatedFigure]:
  """The exact figure, if there is one; of a run whose cohorts are secret, the smallest one."""
  amplified = [figure for figure in formal['figures'] if _is_amplified(figure)]
  if formal['figures'] and len(amplified) == len(formal['figures']):
    return [min(amplified, key=lambda figure: math.inf if figure['epsilon_max'] is None else figure['epsilon_max'])]
  return [figure for figure in formal['figures'] if figure['accountant'] == 'gaussian_exact']


def _is_amplified(figure: StatedFigure) -> bool:
  return figure['amplification'] != 'none'


def _relation(figure: StatedFigure) -> str:
  return _SHORT_NEIGHBOURS.get(figure['neighbours'], figure['neighbours'])


def _bound(figure: StatedFigure) -> str:
  secret = '; cohorts secret' if _is_amplified(figure) else ''
  epsilon = figure['epsilon_max']
  assert epsilon is not None  # Figures without a bound have words of their own.
  return f'ε ≤ {rounding.up(epsilon)} ({_relation(figure)}{secret})'


def _nominal(summary: json_types.JsonView) -> list[str]:
  if summary['nominal_epsilon_max'] is None:
    return []
  return [
    f'Nominal (no guarantee): ε mean {rounding.up(summary["nominal_epsilon_mean"])}, max '
    f'{rounding.up(summary["nominal_epsilon_max"])}, δ up to {rounding.up(summary["nominal_delta_max"])}, by plain '
    'sums.'
  ]


def _what_is_kept(summary: json_types.JsonView) -> list[str]:
  folder = summary['output_dir']
  if summary['interrupted']:
    return [f'The same command continues it: {folder}' if folder else 'Without --output_dir nothing is kept.']
  if not folder:
    return ['For the model, a plot and all figures, name a folder: --output_dir=FOLDER.']
  # A run of one round has no plot.
  plot = f', {run_folder.PLOT}' if os.path.isfile(os.path.join(folder, run_folder.PLOT)) else ''
  return [f'Model{plot} and all figures ({run_folder.SUMMARY}): {folder}']
