"""Receiver operating characteristics (ROC) of membership attacks: area, TPR at small FPR, and intervals of both.

FPR is the share of non-members that an attack calls members, TPR the share of members that it calls members. A small
FPR matters most: an attack that is right about a few and never accuses anyone wrongly is a leak, whatever its mean
accuracy is (Carlini et al. 2022, arXiv:2112.03570, section 2).
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import numpy as np
from scipy import integrate
from scipy import special

from quap_tff.auditing.bounds import lower_bounds
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


class Operating(NamedTuple):
  """The success of an attack at a bound on its FPR.

  Attributes:
    tpr: The largest TPR at which the measured FPR is at most the bound.
    interval: The interval of `tpr`: the hull of the bootstrap's and Clopper and Pearson's.
    fpr_high: The upper end of Clopper and Pearson's interval of the FPR that was really used. With m non-members, fewer
      than 1 / `fpr`, the attack may accuse none of them, and all that is known of its FPR is this value,
      1 - (α/2)^(1/m).
  """

  tpr: float
  interval: Interval
  fpr_high: float


class Summary(NamedTuple):
  """A measured ROC in a few numbers.

  Attributes:
    auc: The area under the curve, which is the probability that a member's score is above a non-member's; a tie counts
      1/2.
    auc_interval: The interval of the area, by the bootstrap.
    operating: The operating points, by the bounds `FALSE_POSITIVE_RATES`.
    members: Number of trials with a member.
    non_members: Number of trials with a non-member.
  """

  auc: float
  auc_interval: Interval
  operating: dict[float, Operating]
  members: int
  non_members: int


def curve(scores: np.ndarray, is_member: np.ndarray) -> Curve:
  """The ROC curve of all thresholds. Trials with equal scores are called members together, so a tie is one step.

  Args:
    scores: float[n], larger for members.
    is_member: bool[n].

  Raises:
    ValueError: If a score is NaN, shapes differ, or members or non-members are missing.
  """
  scores, is_member = _checked_trials(scores, is_member)
  return Curve(*(rates[0] for rates in _curves(scores, is_member, np.ones([1, len(scores)]))))


def auc(a_curve: Curve) -> Any:
  """The area under the curve, by trapezoids: a tie between a member and a non-member counts 1/2."""
  return integrate.trapezoid(a_curve.tpr, a_curve.fpr, axis=-1)


def tpr_at(a_curve: Curve, fpr: float) -> Any:
  """The largest TPR of a threshold whose FPR is at most `fpr`. Nothing is interpolated."""
  return np.where(_within(a_curve, fpr), a_curve.tpr, 0.0).max(axis=-1)


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
  Owen 2007, doi:10.1214/07-AOAS122, which is mildly conservative). The bootstrap's percentiles are the interval of the
  AUC. For a TPR they have no width where no member is found. Clopper and Pearson's interval has width there, but counts
  the trials as independent. So the interval of a TPR reaches as far as either.

  Args:
    scores: float[n], larger for members.
    is_member: bool[n].
    clients: int[n], whose trial it is; default: each trial is another client's.
    runs: int[n], the trial's target model; default: one for all.
    resamples: Draws of the bootstrap, at least 20.
    confidence: The confidence of each interval, in (0, 1).
    seed: The seed of the bootstrap.

  Raises:
    ValueError: As `curve`, and for numbers out of range.
  """
  scores, is_member = _checked_trials(scores, is_member)
  checks.integer('resamples', resamples, at_least=20)
  checks.number('confidence', confidence, above=0, below=1)
  if clients is None:
    clients = np.arange(len(scores))
  if runs is None:
    runs = np.zeros(len(scores))
  client_index, run_index = _indices(clients, len(scores)), _indices(runs, len(scores))
  rng = np.random.default_rng(seed)
  draws = np.array([_counts(rng, client_index) * _counts(rng, run_index) for _ in range(resamples)], np.float64)
  draws = draws[draws[:, is_member].any(axis=1) & draws[:, ~is_member].any(axis=1)]
  measured, drawn = curve(scores, is_member), _curves(scores, is_member, draws)
  members, non_members = int(is_member.sum()), int((~is_member).sum())
  area = float(auc(measured))
  return Summary(
    area,
    _percentiles(auc(drawn), area, confidence),
    {fpr: _operating(measured, drawn, fpr, members, non_members, confidence) for fpr in FALSE_POSITIVE_RATES},
    members,
    non_members,
  )


def gaussian_bound(mu: float) -> tuple[float, dict[float, float]]:
  """The AUC, and the TPR at each of `FALSE_POSITIVE_RATES`, that no attack on a μ-GDP mechanism exceeds.

  TPR <= Φ(Φ⁻¹(FPR) + μ) and AUC <= Φ(μ/√2) (Dong, Roth and Su 2019, arXiv:1905.02383, section 2). The bounds hold for
  a pool of targets as well, if μ is the largest of theirs, since the curve is concave.
  """
  checks.number('mu', mu, at_least=0)
  tpr = {fpr: float(special.ndtr(special.ndtri(fpr) + mu)) for fpr in FALSE_POSITIVE_RATES}
  return float(special.ndtr(mu / np.sqrt(2))), tpr


def _curves(scores: np.ndarray, is_member: np.ndarray, weights: np.ndarray) -> Curve:
  """One curve for each row of weights, float64[R, n]: `Curve` of float64[R, k].

  This is `sklearn.metrics.roc_curve` with weights, for all resamples at once: one by one, they take 25 times as long.
  """
  order = np.argsort(-scores, kind='stable')
  # The last place of each run of equal scores.
  ends = np.flatnonzero(np.append(scores[order][1:] != scores[order][:-1], True))

  def rates(chosen: np.ndarray) -> np.ndarray:
    sums = np.cumsum((weights * chosen)[:, order], axis=1)[:, ends]
    return np.pad(sums / sums[:, -1:], [(0, 0), (1, 0)])

  return Curve(rates(~is_member), rates(is_member))


def _within(a_curve: Curve, fpr: float) -> np.ndarray:
  # Sums of integers up to 2^53 are exact, their quotient is rounded: 1 of 100 must count as 1%.
  return a_curve.fpr <= fpr * (1 + 1e-12)


def _operating(
  measured: Curve, drawn: Curve, fpr: float, members: int, non_members: int, confidence: float
) -> Operating:
  tpr = float(tpr_at(measured, fpr))
  used = float(measured.fpr[_within(measured, fpr)].max())
  low, high = lower_bounds.clopper_pearson(round(tpr * members), members, (1 - confidence) / 2)
  by_bootstrap = _percentiles(tpr_at(drawn, fpr), tpr, confidence)
  return Operating(
    tpr,
    Interval(min(by_bootstrap.low, low), max(by_bootstrap.high, high)),
    lower_bounds.clopper_pearson(round(used * non_members), non_members, (1 - confidence) / 2)[1],
  )


def _percentiles(values: np.ndarray, measured: float, confidence: float) -> Interval:
  tail = 50 * (1 - confidence)
  low, high = np.percentile(values, [tail, 100 - tail]) if len(values) else (0.0, 1.0)
  return Interval(float(min(low, measured)), float(max(high, measured)))


def _indices(labels: np.ndarray, size: int) -> np.ndarray:
  labels = np.asarray(labels)
  if labels.shape != (size,):
    raise ValueError(f'Clients and runs must have one entry for each of the {size} scores, found {labels.shape}.')
  return np.unique(labels, return_inverse=True)[1]


def _counts(rng: np.random.Generator, index: np.ndarray) -> np.ndarray:
  """How often each trial's label is drawn. A single label is always drawn once."""
  size = int(index.max()) + 1
  return np.bincount(rng.integers(size, size=size), minlength=size)[index]


def _checked_trials(scores: np.ndarray, is_member: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
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
