"""Tests of `quap_tff.mechanisms.parts.layers`."""

import collections

import numpy as np
import pytest
import tensorflow as tf

from quap_tff.mechanisms.parts import layers
from quap_tff.training import models

_CONV = [('conv/kernel:0', [3, 3, 1, 8]), ('conv/bias:0', [8])]
_HIDDEN = [('hidden/kernel:0', [32, 16]), ('hidden/bias:0', [16])]
_LOGITS = [('logits/kernel:0', [16, 4]), ('logits/bias:0', [4])]
_Variable = collections.namedtuple('_Variable', ['name', 'shape'])


def _layers(*named):
  return layers.from_variables([_Variable(name, tf.TensorShape(shape)) for group in named for name, shape in group])


_MODEL = _layers(_CONV, _HIDDEN, _LOGITS)


class TestFromVariables:
  def test_groups_by_layer_in_the_models_order(self):
    assert (
      layers.Layer('conv', (0, 1), False),
      layers.Layer('hidden', (2, 3), True),
      layers.Layer('logits', (4, 5), True),
    ) == _MODEL

  def test_dense_without_bias_and_nested_names(self):
    found = _layers([('block/dense/kernel:0', [2, 3])], [('norm/gamma:0', [3]), ('norm/beta:0', [3])])
    assert found == (layers.Layer('block/dense', (0,), True), layers.Layer('norm', (1, 2), False))

  def test_what_only_looks_like_dense_is_not(self):
    recurrent = [('rnn/kernel:0', [4, 8]), ('rnn/recurrent_kernel:0', [8, 8]), ('rnn/bias:0', [8])]
    embedding = [('embedding/embeddings:0', [10, 4])]
    assert not any(layer.is_dense for layer in _layers(recurrent, embedding, _CONV))

  def test_layers_of_one_name_are_distinguished_by_shape(self):
    found = _layers(_HIDDEN, _HIDDEN)
    assert [layer.indices for layer in found] == [(0, 1), (2, 3)]
    assert layers.critical_indices(found, layers.FINAL_DENSE) == (2, 3)

  def test_variables_without_names_are_grouped_by_shape(self):
    unnamed = [('Variable:0', [3, 5]), ('Variable:0', [5]), ('Variable:0', [5, 2]), ('Variable:0', [2])]
    assert layers.critical_indices(_layers(unnamed), layers.FINAL_DENSE) == (2, 3)

  @pytest.mark.slow
  @pytest.mark.parametrize(
    'name, shape, final_weights',
    [('mnist_cnn', (28, 28, 1), 1290), ('cifar10_cnn', (32, 32, 3), 1290), ('digits_cnn', (8, 8, 1), 330)],
  )
  def test_the_final_layer_of_our_models(self, name, shape, final_weights):
    with tf.Graph().as_default():
      variables = models.build_keras_model(name, shape, 10).trainable_variables
    found = layers.from_variables(variables)
    indices = layers.critical_indices(found, layers.FINAL_DENSE)
    assert sum(int(np.prod(variables[i].shape)) for i in indices) == final_weights
    assert [layer.name for layer in layers.critical_layers(found, layers.FINAL_DENSE)] == ['logits']

  def test_the_only_layer_of_logistic_regression(self):
    with tf.Graph().as_default():
      variables = models.build_keras_model('logistic_regression', (4,), 3).trainable_variables
    assert layers.critical_indices(layers.from_variables(variables), layers.FINAL_DENSE) == (0, 1)


class TestFromShapes:
  def test_biases_join_their_kernels(self):
    assert layers.from_shapes([[3, 3, 1, 8], [8], [32, 16], [16], [16, 4]]) == (
      layers.Layer('layer_0', (0, 1), False),
      layers.Layer('layer_1', (2, 3), True),
      layers.Layer('layer_2', (4,), True),
    )

  def test_a_vector_of_another_size_is_its_own_layer(self):
    assert layers.from_shapes([[4, 3], [5], []]) == (
      layers.Layer('layer_0', (0,), True),
      layers.Layer('layer_1', (1,), False),
      layers.Layer('layer_2', (2,), False),
    )


class TestFromLeaves:
  def test_by_name_where_every_key_is_one(self):
    found = layers.from_leaves([('dense', 'bias'), ('dense', 'kernel')], [[3], [4, 3]])
    assert found == (layers.Layer('dense', (0, 1), True),)

  def test_by_shape_otherwise(self):
    assert layers.from_leaves([(0,), (1,)], [[4, 3], [3]]) == (layers.Layer('layer_0', (0, 1), True),)

  def test_a_bare_kernel_is_not_dense(self):
    # Its bias is a layer of its own and would be left without noise.
    found = layers.from_leaves([('bias',), ('kernel',)], [[3], [4, 3]])
    assert [layer.is_dense for layer in found] == [False, False]


class TestCriticalLayers:
  @pytest.mark.parametrize(
    'selection, expected',
    [
      ('final_dense', (4, 5)),
      ('all_dense', (2, 3, 4, 5)),
      ('all', (0, 1, 2, 3, 4, 5)),
      ('conv', (0, 1)),
      ('logits,conv', (0, 1, 4, 5)),
      ('conv, logits', (0, 1, 4, 5)),
      ('*i*', (2, 3, 4, 5)),
      ('[hl]*', (2, 3, 4, 5)),
      ('conv,conv*', (0, 1)),
    ],
  )
  def test_selects(self, selection, expected):
    assert layers.critical_indices(_MODEL, selection) == expected

  @pytest.mark.parametrize(
    'selection, message',
    [
      ('logit', "Unknown critical layer 'logit'. Did you mean 'logits'"),
      ('conv,logit', "Unknown critical layer 'logit'"),
      ('final_dens', "Did you mean 'final_dense'"),
      ('Conv', "Unknown critical layer 'Conv'. Did you mean 'conv'"),
      ('dense*', 'Valid: .*conv.*hidden.*logits'),
      ('conv,,logits', "Unknown critical layer ''"),
    ],
  )
  def test_a_name_that_matches_nothing(self, selection, message):
    with pytest.raises(ValueError, match=message):
      layers.critical_layers(_MODEL, selection)

  @pytest.mark.parametrize('selection', ['*', 'conv,hidden,logits', '*o*,h*'])
  def test_names_that_match_everything(self, selection):
    with pytest.raises(ValueError, match="matches every layer of the model: conv, hidden, logits.*use 'all'"):
      layers.critical_layers(_MODEL, selection)

  @pytest.mark.parametrize('selection', ['final_dense', 'all_dense'])
  def test_a_model_without_dense_layers(self, selection):
    with pytest.raises(ValueError, match='the model has no Dense layer. Its layers: conv. Name the critical ones'):
      layers.critical_layers(_layers(_CONV), selection)


class TestClipGroups:
  _LAYERS = (layers.Layer('hidden', (0, 1), True), layers.Layer('logits', (2,), True))

  @pytest.mark.parametrize(
    'split, squares', [('equal', [1 / 2, 1 / 2]), ('sqrt_size', [4 / 5, 1 / 5]), ('size', [16 / 17, 1 / 17])]
  )
  def test_squares_of_the_ratios_add_up_to_1(self, split, squares):
    groups = layers.clip_groups(split, [30, 2, 2], self._LAYERS)
    assert [group.indices for group in groups] == [(0, 1), (2,)]
    np.testing.assert_allclose([group.ratio**2 for group in groups], squares, rtol=1e-12)

  def test_joint_needs_no_layers(self):
    assert layers.clip_groups('joint', [3, 4]) == (layers.ClipGroup((0, 1), 1.0),)

  def test_others_do(self):
    with pytest.raises(ValueError, match="clip_split='equal' needs the model's layers"):
      layers.clip_groups('equal', [3, 4])

  @pytest.mark.parametrize('sizes', [[3], [3, 4], [3, 4, 5, 6]])
  def test_layers_must_hold_every_tensor_once(self, sizes):
    with pytest.raises(ValueError, match='must hold each of the . trained tensors once'):
      layers.clip_groups('size', sizes, self._LAYERS)
