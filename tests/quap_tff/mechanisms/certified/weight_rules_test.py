"""Weight rules before training: what a round computes with tensors is what plans compute with arrays."""

import dataclasses

import numpy as np
import pytest

from quap_tff.mechanisms.certified import weight_rules
from quap_tff.mechanisms.noise import correlation as correlations
from tests.quap_tff import examples

pytestmark = pytest.mark.slow


@dataclasses.dataclass(frozen=True)
class _ForArrays(weight_rules.WeightRule):
  """Written for NumPy: it takes a tensor for something that it does not know."""

  fails: bool = False

  def weights(self, view):
    if self.fails:
      return view.rates.astype(np.float64)
    return np.float32(0.5) if isinstance(view.rates, np.ndarray) else np.float32(0.0)


class TestBeforeTraining:
  @pytest.mark.parametrize(
    'rule', [weight_rules.ParticipationWeights(), weight_rules.UniformWeights(), weight_rules.Online()]
  )
  @pytest.mark.parametrize('correlation', [correlations.Independent(), correlations.Ar1(0.9)])
  def test_rules_give_tensors_and_arrays_the_same_weights(self, rule, correlation):
    examples.noised(weights=rule, correlation=correlation, num_rounds=9).check_before_training()

  @pytest.mark.parametrize(
    'rule, words',
    [
      (_ForArrays(), 'gives client 0 the weight 0 in round 1 for tensors, and 0.5 for arrays'),
      (_ForArrays(fails=True), '_ForArrays fails for tensors .AttributeError'),
    ],
  )
  def test_a_rule_for_arrays_alone_is_refused(self, rule, words):
    with pytest.raises(ValueError, match=words) as caught:
      examples.noised(weights=rule, num_rounds=9).check_before_training()
    assert 'quap_tff.common.numbers.arrays' in str(caught.value)
