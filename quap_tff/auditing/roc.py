"""Receiver operating characteristics (ROC) of membership attacks: area, TPR at small FPR, and intervals of both.

FPR is the share of non-members that an attack calls members, TPR the share of members that it calls members. A small
FPR matters most: an attack that is right about a few and never accuses anyone wrongly is a leak, whatever its mean
accuracy is (Carlini et al. 2022, arXiv:2112.03570, section 2).
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple, Optional

import numpy as np
from scipy import special

from quap_tff.common import checks

# The false positive rates at which rows are reported.
FALSE_POSITIVE_RATES = (0.01, 0.001)


class Curve(NamedTuple):
  """A ROC curve as a step function; its first point is (0, 0) and its last (1, 1).

  Attributes:
    fpr: float64[k], not decreasing.
    tpr: float64[k], not decreasing.
  """

  fpr: np.ndarray
  tpr: np.ndarray


class Interval(NamedTuple):
  """A confidence interval."""

  low: float
  high: float


@dataclasses.dataclass(frozen=True)
class Operating:
  """What an attack achieves at a bound on its FPR.

  Attributes:
    fpr: The bound.
    tpr: The largest TPR at which the measured FPR is at most the bound.
    interval: The interval of `tpr`: the hull of the bootstrap's and Clopper and Pearson's.
    fpr_high: The upper end of Clopper and Pearson's interval of the FPR that was really used. With m non-members, fewer
      than 1 / `fpr`, the attack may accuse none of them, and all that is known of its FPR is this value,
      1 - (α/2)^(1/m).
  """

  fpr: float
  tpr: float
  interval: Interval
  fpr_high: float


@dataclasses.dataclass(frozen=True)
class Summary:
  """A measured ROC in a few numbers.

  Attributes:
    auc: The area under the curve, which is the probability that a member's score is above a non-member's; a tie counts
      1/2.
    auc_interval: By the bootstrap.
    operating: By the bounds `FALSE_POSITIVE_RATES`.
    members: Number of trials with a member.
    non_members: Number of trials with a non-member.
    confidence: Of each interval.
  """

  auc: float
  auc_interval: Interval
  operating: dict[float, Operating]
  members: int
  non_members: int
  confidence: float


def curve(scores: np.ndarray, is_member: np.ndarray) -> Curve:
  """The ROC curve of all thresholds. Trials with equal scores are called members together, so a tie is one step.

  Args:
    scores: float[n], larger for members.
    is_member: bool[n].

  Raises:
    ValueError: If a score is NaN, shapes differ, or members or non-members are missing.
  """
  scores, is_member = _checked(scores, is_member)
  steps = _Steps(scores, is_member)
  return steps.curve(np.ones(len(scores)))


def auc(a_curve: Curve) -> float:
  """The area under the curve, by trapezoids: a tie between a member and a non-member counts 1/2."""
  return float(np.trapz(a_curve.tpr, a_curve.fpr))


def tpr_at(a_curve: Curve, fpr: float) -> float:
  """The largest TPR of a threshold whose FPR is at most `fpr`. Nothing is interpolated."""
  return float(a_curve.tpr[_last_within(a_curve, fpr)])


def clopper_pearson(hits: float, trials: float, confidence: float = 0.95) -> Interval:
  """The exact interval of a binomial probability (Clopper and Pearson 1934).

  Args:
    hits: Successes, between 0 and `trials`.
    trials: Independent trials, at least 1.
    confidence: In (0, 1); each side misses with probability (1 - confidence)/2 at most.
  """
  checks.number('trials', trials, at_least=1)
  checks.number('hits', hits, at_least=0, at_most=trials)
  checks.number('confidence', confidence, above=0, below=1)
  tail = (1 - confidence) / 2
  low = float(special.betaincinv(hits, trials - hits + 1, tail)) if hits else 0.0
  high = float(special.betaincinv(hits + 1, trials - hits, 1 - tail)) if hits < trials else 1.0
  return Interval(low, high)


def summarize(
  scores: np.ndarray,
  is_member: np.ndarray,
  *,
  clients: Optional[np.ndarray] = None,
  runs: Optional[np.ndarray] = None,
  resamples: int = 200,
  confidence: float = 0.95,
  seed: int = 0,
) -> Summary:
  """The ROC of all trials together, with intervals.

  The trials of one client, and those of one run, are not independent. So the bootstrap draws clients and runs anew, not
  trials: a trial counts as often as its client times as often as its run was drawn (the pigeonhole bootstrap,
  Owen 2007, doi:10.1214/07-AOAS122, which is mildly conservative). The bootstrap's percentiles
  are the interval of the AUC. For a TPR they have no width where no member is found. Clopper and Pearson's interval has
  width there, but counts the trials as independent. So the interval of a TPR reaches as far as either.

  Args:
    scores: float[n], larger for members.
    is_member: bool[n].
    clients: int[n], whose trial it is; default: each trial is another client's.
    runs: int[n], the trial's target model; default: one for all.
    resamples: Draws of the bootstrap, at least 20.
    confidence: Of each interval, in (0, 1).
    seed: Of the bootstrap.

  Raises:
    ValueError: As `curve`, and for numbers out of range.
  """
  scores, is_member = _checked(scores, is_member)
  checks.integer('resamples', resamples, at_least=20)
  checks.number('confidence', confidence, above=0, below=1)
  steps = _Steps(scores, is_member)
  measured = steps.curve(np.ones(len(scores)))
  client_index, run_index = _indices(clients, len(scores)), _indices(runs, len(scores), shared=True)
  rng = np.random.default_rng(seed)
  drawn_auc, drawn_tpr = [], {fpr: [] for fpr in FALSE_POSITIVE_RATES}
  for _ in range(resamples):
    weights = (_counts(rng, client_index) * _counts(rng, run_index)).astype(np.float64)
    if not weights[is_member].any() or not weights[~is_member].any():
      continue
    resampled = steps.curve(weights)
    drawn_auc.append(auc(resampled))
    for fpr, values in drawn_tpr.items():
      values.append(tpr_at(resampled, fpr))
  members, non_members = int(is_member.sum()), int((~is_member).sum())
  operating = {
    fpr: _operating(measured, fpr, values, members, non_members, confidence) for fpr, values in drawn_tpr.items()
  }
  return Summary(
    auc(measured), _percentiles(drawn_auc, auc(measured), confidence), operating, members, non_members, confidence
  )


def gaussian_bound(mu: float) -> tuple[float, dict[float, float]]:
  """The AUC, and the TPR at each of `FALSE_POSITIVE_RATES`, that no attack on a μ-GDP mechanism exceeds.

  TPR <= Φ(Φ⁻¹(FPR) + μ) and AUC <= Φ(μ/√2) (Dong, Roth and Su 2019, arXiv:1905.02383, section 2). The bounds hold for
  a pool of targets, too, if μ is the largest of theirs, since the curve is concave.
  """
  checks.number('mu', mu, at_least=0)
  tpr = {fpr: float(special.ndtr(special.ndtri(fpr) + mu)) for fpr in FALSE_POSITIVE_RATES}
  return float(special.ndtr(mu / np.sqrt(2))), tpr


class _Steps:
  """Trials in the order of their scores, so that each resample needs only sums."""

  def __init__(self, scores, is_member):
    self._order = np.argsort(-scores, kind='stable')
    ordered = scores[self._order]
    # The last place of each run of equal scores.
    self._ends = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True))
    self._member = is_member[self._order]

  def curve(self, weights: np.ndarray) -> Curve:
    weights = weights[self._order]
    hits = np.cumsum(weights * self._member)
    alarms = np.cumsum(weights * ~self._member)
    start = np.zeros(1)
    return Curve(
      np.concatenate([start, alarms[self._ends] / alarms[-1]]), np.concatenate([start, hits[self._ends] / hits[-1]])
    )


def _last_within(a_curve, fpr):
  # Sums of integers up to 2^53 are exact, their quotient is rounded: 1 of 100 must count as 1%.
  return np.flatnonzero(a_curve.fpr <= fpr * (1 + 1e-12))[-1]


def _operating(measured, fpr, drawn, members, non_members, confidence):
  place = _last_within(measured, fpr)
  tpr, used = float(measured.tpr[place]), float(measured.fpr[place])
  by_bootstrap = _percentiles(drawn, tpr, confidence)
  by_binomial = clopper_pearson(round(tpr * members), members, confidence)
  return Operating(
    fpr=fpr,
    tpr=tpr,
    interval=Interval(min(by_bootstrap.low, by_binomial.low), max(by_bootstrap.high, by_binomial.high)),
    fpr_high=clopper_pearson(round(used * non_members), non_members, confidence).high,
  )


def _percentiles(values, measured, confidence):
  tail = 50 * (1 - confidence)
  low, high = np.percentile(values, [tail, 100 - tail]) if values else (0.0, 1.0)
  return Interval(float(min(low, measured)), float(max(high, measured)))


def _indices(labels, size, shared=False):
  if labels is None:
    return np.zeros(size, np.int64) if shared else np.arange(size)
  labels = np.asarray(labels)
  if labels.shape != (size,):
    raise ValueError(f'Clients and runs must have one entry for each of the {size} scores, found {labels.shape}.')
  return np.unique(labels, return_inverse=True)[1]


def _counts(rng, index):
  """How often each trial's label is drawn. A single label is always drawn once."""
  size = int(index.max()) + 1
  return np.bincount(rng.integers(size, size=size), minlength=size)[index]


def _checked(scores, is_member):
  scores, is_member = np.asarray(scores, np.float64), np.asarray(is_member, bool)
  if scores.ndim != 1 or scores.shape != is_member.shape:
    raise ValueError(f'Expected one score and one membership a trial, found {scores.shape} and {is_member.shape}.')
  if np.isnan(scores).any():
    raise ValueError(f'Scores must be numbers, found NaN in trial {int(np.flatnonzero(np.isnan(scores))[0])}.')
  if not is_member.any() or is_member.all():
    raise ValueError(
      f'A ROC curve needs members and non-members, found {int(is_member.sum())} members among {len(scores)} trials.'
    )
  return scores, is_member
