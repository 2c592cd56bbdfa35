"""Membership attacks: scores that are larger for those whose data a released model was trained on.

All attacks see a model's predictions on the target's data, and nothing else of the run.

| attack              | source                                 | what else it knows                              |
| ------------------- | -------------------------------------- | ----------------------------------------------- |
| `loss_threshold`    | Yeom et al. 2018, arXiv:1709.01604     | nothing                                         |
| `shadow_classifier` | Shokri et al. 2017, arXiv:1610.05820   | shadow models and what they were trained on     |
| `lira_online`       | Carlini et al. 2022, arXiv:2112.03570  | shadow models with and without this very target |
| `lira_offline`      | the same paper                         | shadow models without this target               |

A *unit* is what may be a member: a client or an example. A unit's confidence is the mean over its examples.
"""

from __future__ import annotations

from collections.abc import Sequence
import functools
from typing import Callable

import numpy as np
from scipy import special
from scipy import stats

from quap_tff.common import checks

# From how many shadow models on each side on a unit has variances of its own. With few models, the paper also takes
# one variance for all.
_OWN_VARIANCES_FROM = 32
# Below float32's resolution of a probability near 1; it keeps features of confident models finite.
_LOWEST_LOG_PROBABILITY = -20.0
_SMALLEST_DEVIATION = 1e-6
_NEWTON_STEPS, _RIDGE = 25, 1e-3


def cross_entropy(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
  """The loss -log p_y in nats, float64[..., n].

  Args:
    logits: float[..., n, classes].
    labels: int[n].
  """
  return -_values_of_label(special.log_softmax(np.asarray(logits, np.float64), axis=-1), labels)


def scaled_confidence(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
  """φ = log(p_y / (1 - p_y)), the logit-scaled confidence, float64[..., n] (Carlini et al. 2022).

  It is z_y - log Σ_{c ≠ y} exp(z_c) for logits z, which does not overflow where p_y is 0 or 1 in floating point.
  Membership moves it by about a Gaussian's mean, which is not so for the loss.

  Args:
    logits: float[..., n, classes], at least two classes.
    labels: int[n].
  """
  logits = np.asarray(logits, np.float64)
  others = np.array(logits)
  np.put_along_axis(others, _index(labels, logits.shape), -np.inf, axis=-1)
  return _values_of_label(logits, labels) - special.logsumexp(others, axis=-1)


def unit_means(values: np.ndarray, units: np.ndarray, num_units: int) -> np.ndarray:
  """The mean over each unit's examples, float64[..., num_units].

  Args:
    values: float[..., n], one for each example.
    units: int[n], the unit of each example; each unit has at least one.
    num_units: How many units there are.

  Raises:
    ValueError: If a unit has no example.
  """
  counts = np.bincount(units, minlength=num_units)
  if len(counts) != num_units or not counts.all():
    raise ValueError(f'Each of the {num_units} units needs an example, found the counts {counts.tolist()}.')
  sums = np.zeros((*np.shape(values)[:-1], num_units))
  np.add.at(sums, (..., units), values)  # type: ignore[arg-type]  # NumPy's types know no `...` here.
  return sums / counts


def lira(
  confidences: np.ndarray, shadow_confidences: np.ndarray, shadow_members: np.ndarray, *, online: bool = True
) -> np.ndarray:
  """The likelihood-ratio attack on one target model.

  Online, the score is log N(φ; μ_in, σ_in²) - log N(φ; μ_out, σ_out²), with the means of each unit over the shadow
  models that were trained with and without it. Offline, only models without the unit are known. The score is then
  (φ - μ_out)/σ_out, which grows with the paper's 1 - Pr[N(μ_out, σ_out²) > φ] and does not round to 1.

  With fewer than 32 models on a side, σ is that of the deviations from each unit's own mean over all units together,
  with one degree of freedom taken for each mean.

  Args:
    confidences: float[units], φ of the target model.
    shadow_confidences: float[shadows, units].
    shadow_members: bool[shadows, units].
    online: Which of the two.

  Returns:
    float64[units], larger for members.

  Raises:
    ValueError: If shapes differ, or a unit has no shadow model without it, or online none with it.
  """
  confidences = np.asarray(confidences, np.float64)
  shadows, members = np.asarray(shadow_confidences, np.float64), np.asarray(shadow_members, bool)
  if shadows.shape != members.shape or shadows.shape[1:] != confidences.shape:
    raise ValueError(
      f"Expected confidences [units] and shadow models' confidences and memberships [shadows, units], found "
      f'{confidences.shape}, {shadows.shape} and {members.shape}.'
    )
  out = _gaussians('without', shadows, ~members)
  if not online:
    return (confidences - out[0]) / out[1]
  return stats.norm.logpdf(confidences, *_gaussians('with', shadows, members)) - stats.norm.logpdf(confidences, *out)


def _gaussians(side: str, values: np.ndarray, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """The mean and the standard deviation of each unit over the shadow models on one side."""
  counts = chosen.sum(axis=0)
  if not counts.all():
    raise ValueError(
      f'{int((counts == 0).sum())} of {len(counts)} units have no shadow model that was trained {side} them. Train '
      'more shadow models.'
    )
  mean = np.where(chosen, values, 0).sum(axis=0) / counts
  squares = np.where(chosen, (values - mean) ** 2, 0).sum(axis=0)
  if counts.min() >= _OWN_VARIANCES_FROM:
    variance = squares / (counts - 1)
  else:
    variance = np.full(len(counts), squares.sum() / max((counts - 1).sum(), 1))
  return mean, np.maximum(np.sqrt(variance), _SMALLEST_DEVIATION)


def shadow_scores(
  shadow_logits: np.ndarray, labels: np.ndarray, shadow_members: np.ndarray, logits: np.ndarray
) -> np.ndarray:
  """The log-odds of membership by attack models that were trained on what shadow models say, float64[..., n].

  As in Shokri et al., there is one attack model for each class, and its input is the whole vector of predictions. The
  attack models here are logistic regressions on log-probabilities, where the paper has small neural networks.

  Args:
    shadow_logits: float[shadows, n, classes].
    labels: int[n].
    shadow_members: bool[shadows, n], whether the example was trained on.
    logits: float[..., n, classes] of the target models, on the same examples.
  """

  def features(values: np.ndarray) -> np.ndarray:
    log_probabilities = np.maximum(
      special.log_softmax(np.asarray(values, np.float64), axis=-1), _LOWEST_LOG_PROBABILITY
    )
    return np.concatenate([log_probabilities, np.ones((*log_probabilities.shape[:-1], 1))], axis=-1)

  known, asked = features(shadow_logits), features(logits)
  scores = np.empty(asked.shape[:-1])
  for label in np.unique(labels):
    is_label = labels == label
    coefficients = _logistic_regression(
      known[:, is_label].reshape(-1, known.shape[-1]), shadow_members[:, is_label].reshape(-1)
    )
    scores[..., is_label] = asked[..., is_label, :] @ coefficients
  return scores


def _logistic_regression(features: np.ndarray, is_member: np.ndarray) -> np.ndarray:
  """Coefficients by Newton's method with a small ridge, for the mean log-loss."""
  coefficients = np.zeros(features.shape[-1])
  for _ in range(_NEWTON_STEPS):
    probability = special.expit(features @ coefficients)
    gradient = features.T @ (probability - is_member) / len(features) + _RIDGE * coefficients
    curvature = (features.T * (probability * (1 - probability))) @ features / len(features)
    step = np.linalg.solve(curvature + _RIDGE * np.eye(len(coefficients)), gradient)
    coefficients = coefficients - step
    if np.abs(step).max() < 1e-8:
      break
  return coefficients


def _index(labels: np.ndarray, shape: Sequence[int]) -> np.ndarray:
  return np.broadcast_to(np.asarray(labels, np.int64)[:, np.newaxis], (*shape[:-1], 1))


def _values_of_label(values: np.ndarray, labels: np.ndarray) -> np.ndarray:
  return np.take_along_axis(values, _index(labels, values.shape), axis=-1)[..., 0]


def _by_loss(logits: np.ndarray, labels: np.ndarray, units: np.ndarray, members: np.ndarray) -> np.ndarray:
  return unit_means(-cross_entropy(logits, labels), units, members.shape[1])


def _by_classifier(logits: np.ndarray, labels: np.ndarray, units: np.ndarray, members: np.ndarray) -> np.ndarray:
  scores = np.empty(members.shape)
  is_odd = np.arange(len(members)) % 2 == 1
  for known, asked in ((is_odd, ~is_odd), (~is_odd, is_odd)):
    example_scores = shadow_scores(logits[known], labels, members[known][:, units], logits[asked])
    scores[asked] = unit_means(example_scores, units, members.shape[1])
  return scores


def _by_lira(
  logits: np.ndarray, labels: np.ndarray, units: np.ndarray, members: np.ndarray, online: bool
) -> np.ndarray:
  confidences = unit_means(scaled_confidence(logits, labels), units, members.shape[1])
  scores = np.empty(members.shape)
  for target, others in enumerate(~np.eye(len(members), dtype=bool)):
    scores[target] = lira(confidences[target], confidences[others], members[others], online=online)
  return scores


Attack = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], np.ndarray]

ATTACKS: dict[str, Attack] = {
  'loss_threshold': _by_loss,
  'shadow_classifier': _by_classifier,
  'lira_online': functools.partial(_by_lira, online=True),
  'lira_offline': functools.partial(_by_lira, online=False),
}


def attack_each(
  attack: str, logits: np.ndarray, labels: np.ndarray, units: np.ndarray, members: np.ndarray
) -> np.ndarray:
  """Attacks each model in turn. The other models are the shadow models; the classifier uses every second one of them.

  Args:
    attack: A key of `ATTACKS`.
    logits: float[models, n, classes], each model's outputs on all examples.
    labels: int[n].
    units: int[n], the unit of each example.
    members: bool[models, units], on which units each model was trained. It must be drawn independently for each model:
      otherwise the shadow models' memberships would say something about the target's.

  Returns:
    float64[models, units], larger for members.

  Raises:
    ValueError: For an unknown attack, too few models, or outputs that are not finite.
  """
  if attack not in ATTACKS:
    raise ValueError(f'Unknown attack {attack!r}. Valid: {", ".join(ATTACKS)}.')
  checks.integer('the number of models', len(members), at_least=2)
  if not np.isfinite(logits).all():
    raise ValueError('Outputs of the models must be finite, found NaN or infinity. Use a smaller learning rate.')
  return ATTACKS[attack](np.asarray(logits), np.asarray(labels), np.asarray(units), np.asarray(members, bool))
