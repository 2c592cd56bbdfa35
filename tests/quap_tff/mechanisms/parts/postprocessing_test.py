"""Tests of `mechanisms.parts.postprocessing`: averages worked out by hand, and that nothing else goes into them."""

import numpy as np
import pytest

from quap_tff.common import registry
from quap_tff.mechanisms.parts import postprocessing

_INITIAL = [np.full([2], 100.0, np.float32), np.float32(100.0)]
_ITERATES = [[np.array([x, -x], np.float32), np.float32(10 * x)] for x in (1.0, 2.0, 4.0, 8.0)]


def _parse(spec):
  return registry.parse_spec('averaging', spec, postprocessing.AVERAGINGS)


def _run(averaging, state, iterates):
  for iterate in iterates:
    state = averaging.update(state, iterate)
  return state


def _average(averaging, iterates):
  return averaging.value(_run(averaging, averaging.initial(_INITIAL), iterates), [_INITIAL, *iterates][-1])


@pytest.mark.parametrize(
  'spec, expected',
  [
    ('none', [1, 2, 4, 8]),
    # θ_s weighs 1/2^(t-s): (1/2 + 2)/(3/2), (1/4 + 2/2 + 4)/(7/4), (1/8 + 2/4 + 4/2 + 8)/(15/8).
    ('exponential:decay=0.5', [1, 5 / 3, 3, 17 / 3]),
    ('exponential:decay=0', [1, 2, 4, 8]),
    ('tail:start=1', [1, 1.5, 7 / 3, 3.75]),
    ('tail:start=3', [1, 2, 4, 6]),
    ('tail:start=9', [1, 2, 4, 8]),
  ],
)
def test_averages_by_hand(spec, expected):
  averaging = _parse(spec)
  for rounds, x in enumerate(expected, 1):
    vector, scalar = _average(averaging, _ITERATES[:rounds])
    np.testing.assert_allclose(vector, [x, -x], rtol=1e-6)
    np.testing.assert_allclose(scalar, 10 * x, rtol=1e-6)
    assert vector.dtype == scalar.dtype == np.float32


@pytest.mark.parametrize('spec', ['none', 'exponential', 'tail', 'tail:start=3'])
def test_before_the_first_release_it_is_the_initial_weights(spec):
  averaging = _parse(spec)
  np.testing.assert_array_equal(_average(averaging, [])[0], _INITIAL[0])


@pytest.mark.parametrize('spec', ['none', 'exponential:decay=0.7', 'tail:start=2'])
def test_a_kept_state_goes_on_as_if_never_interrupted(spec, tmp_path):
  averaging = _parse(spec)
  start = averaging.initial(_INITIAL)
  np.savez(tmp_path / 'kept.npz', **_run(averaging, start, _ITERATES[:2]))
  resumed = postprocessing.restored(start, np.load(tmp_path / 'kept.npz'))
  whole = _average(averaging, _ITERATES)
  for a, b in zip(averaging.value(_run(averaging, resumed, _ITERATES[2:]), _ITERATES[-1]), whole):
    np.testing.assert_array_equal(a, b)


def test_an_update_leaves_the_state_before_it_alone():
  averaging = _parse('exponential')
  state = averaging.initial(_INITIAL)
  averaging.update(state, _ITERATES[0])
  assert state['releases'] == 0
  np.testing.assert_array_equal(averaging.value(state, _ITERATES[0])[0], _INITIAL[0])


def test_none_is_exact_and_keeps_no_weights():
  averaging = _parse('none')
  state = _run(averaging, averaging.initial([np.float32(np.nan)]), [[np.float32(1e30)], [np.float32(1.1)]])
  assert averaging.value(state, [np.float32(1.1)])[0] == np.float32(1.1)
  assert list(state) == ['releases'] and state['releases'] == 2


def test_what_is_not_finite_is_forgotten_where_it_has_no_weight():
  averaging = _parse('tail:start=2')
  state = _run(averaging, averaging.initial([np.float32(np.nan)]), [[np.float32(np.inf)], [np.float32(1.1)]])
  assert averaging.value(state, [np.float32(1.1)])[0] == np.float32(1.1)


def test_another_models_weights_are_refused():
  averaging = _parse('exponential')
  state = averaging.initial(_INITIAL)
  with pytest.raises(ValueError, match='shapes'):
    averaging.update(state, [np.zeros([3]), np.zeros([])])
  with pytest.raises(ValueError, match='another model'):
    postprocessing.restored(state, averaging.initial(_INITIAL[:1]))


@pytest.mark.parametrize('spec', ['exponential:decay=1', 'exponential:decay=-0.1', 'tail:start=0'])
def test_values_out_of_range_are_refused(spec):
  with pytest.raises(ValueError, match=spec.split(':')[1].split('=')[0]):
    _parse(spec)


def test_shrinkage_scales_every_weight():
  vector, scalar = postprocessing.shrunk(_ITERATES[1], 0.5)
  np.testing.assert_array_equal(vector, np.array([1, -1], np.float32))
  assert scalar == 10 and vector.dtype == np.float32
  for factor in (0.0, 1.5, float('nan')):
    with pytest.raises(ValueError, match='shrinkage'):
      postprocessing.shrunk(_ITERATES[1], factor)
