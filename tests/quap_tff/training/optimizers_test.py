"""Optimizers by name: the one that TFF makes, and nothing out of range."""

import pytest

from quap_tff.common import registry
from quap_tff.common.lazy import tf
from quap_tff.training import optimizers


def _built(spec):
  return registry.parse_spec('client optimizer', spec, optimizers.OPTIMIZERS).build()


def _hparams(spec):
  optimizer = _built(spec)
  return optimizer.get_hparams(optimizer.initialize(tf.TensorSpec([], tf.float32)))


class TestParse:
  @pytest.mark.parametrize(
    'spec, expected',
    [
      ('sgd', {'learning_rate': 1.0}),
      ('sgd:learning_rate=0.05', {'learning_rate': 0.05}),
      ('sgd:learning_rate=0.1,momentum=0.9', {'learning_rate': 0.1, 'momentum': 0.9}),
      ('sgd:momentum=none', {'learning_rate': 1.0}),
      ('adam', {'learning_rate': 0.001, 'beta_1': 0.9, 'beta_2': 0.999, 'epsilon': 1e-7}),
      (
        'adam:learning_rate=0.01,beta_1=0.8,beta_2=0.9,epsilon=0.1',
        {'learning_rate': 0.01, 'beta_1': 0.8, 'beta_2': 0.9, 'epsilon': 0.1},
      ),
    ],
  )
  def test_hyperparameters(self, spec, expected):
    assert dict(_hparams(spec)) == pytest.approx(expected)

  def test_sgd_steps_down_the_gradient(self):
    optimizer = _built('sgd:learning_rate=0.5')
    state = optimizer.initialize(tf.TensorSpec([2], tf.float32))
    _, weights = optimizer.next(state, tf.constant([1.0, 2.0]), tf.constant([2.0, -4.0]))
    assert weights.numpy().tolist() == [0.0, 4.0]

  @pytest.mark.parametrize(
    'spec, said',
    [
      ('sdg', "Unknown client optimizer 'sdg'. Did you mean 'sgd'"),
      ('sgd:rate=1', "'rate'"),
      ('sgd:learning_rate=0', 'learning_rate must be a finite number greater than 0'),
      ('sgd:learning_rate=nan', 'learning_rate'),
      ('sgd:learning_rate=inf', 'learning_rate'),
      ('sgd:learning_rate=fast', 'of type float'),
      ('sgd:momentum=1', 'momentum'),
      ('sgd:momentum=-0.1', 'momentum'),
      ('adam:learning_rate=-1', 'learning_rate'),
      ('adam:beta_1=1', 'beta_1'),
      ('adam:beta_2=nan', 'beta_2'),
      ('adam:epsilon=0', 'epsilon'),
    ],
  )
  def test_what_is_wrong_is_named(self, spec, said):
    with pytest.raises(ValueError, match=said):
      _built(spec)
