"""The arithmetic of the extensions: two or three clients, one or two weights, without TFF."""

import numpy as np
import pytest
import tensorflow as tf

from quap_tff.training import heterogeneity
from quap_tff.training.heterogeneity import extension as extensions

_RATE = 0.1
_SHAPES = [tf.TensorShape([2])]


def _local(update, steps, epochs=1, gradient=None):
  gradient = None if gradient is None else [tf.constant(gradient)]
  return extensions.Local([tf.constant(update)], tf.constant(steps), tf.constant(epochs), tf.constant(_RATE), gradient)


def _cohort(ids, kept=(), steps=(), absent=()):
  return extensions.Cohort(
    tf.constant(ids, tf.int64),
    tf.constant(steps, tf.float32),
    tf.reshape(tf.constant(kept, tf.float32), [len(ids), -1] if ids else [0, 2]),
    tf.constant(absent, tf.bool),
    tf.constant(_RATE),
  )


class TestScaffold:
  def _play(self, extension, rounds, steps):
    """Server controls after each round in which clients give these updates."""
    memory, found = extension.initial_memory(4, _SHAPES), []
    for updates in rounds:
      message, kept = extension.message(memory), {}
      for client, update in updates.items():
        own = extensions.unflat(memory['table'][client], message['control'])
        kept[client] = extensions.flat(extension.kept(message, own, _local(update, steps)))
      mean = [tf.reduce_mean(tf.constant(list(updates.values())), axis=0)]
      direction, memory = extension.server_step(memory, mean, _cohort(list(updates), np.stack(list(kept.values()))))
      assert direction is mean
      found.append(memory['control'][0].numpy())
    return np.array(found), memory['table'].numpy()

  def test_released_control_is_the_papers_where_nothing_is_clipped_and_steps_are_equal(self):
    rounds = [{0: [0.1, 0.2], 1: [0.3, -0.2]}, {1: [0.1, 0.1], 2: [0.5, 0.4]}, {0: [-0.2, 0.1]}]
    paper, of_paper = self._play(heterogeneity.Scaffold(2, 'sum'), rounds, steps=3)
    released, table = self._play(heterogeneity.Scaffold(2, 'released'), rounds, steps=3)
    # Round 1 by hand: c_0 = (0.1, 0.2)/0.3 and c_1 = (0.3, -0.2)/0.3, so c is a quarter of (0.4, 0)/0.3.
    np.testing.assert_allclose(paper[0], [1 / 3, 0], atol=1e-6)
    # The released control is a sum of gradients over the three steps.
    np.testing.assert_allclose(released, 3 * paper, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(table, 3 * of_paper, rtol=1e-5, atol=1e-6)

  def test_noise_stays_in_the_released_control(self):
    # Everyone comes, and all gradients are zero: each update is the correction alone, η·(s - s_i). Noise of 1 on the
    # first mean moves s by 1/η. The paper's control would be the mean of the s_i. This one never comes back to it.
    extension = heterogeneity.Scaffold(2, 'released')
    memory = extension.initial_memory(2, _SHAPES)
    for noise in (1.0, 0.0, 0.0):
      message = extension.message(memory)
      own = [extensions.unflat(row, message['control']) for row in memory['table']]
      updates = [_RATE * (message['control'][0] - mine[0]) for mine in own]
      kept = [extension.kept(message, mine, _local(u, 1))[0] for mine, u in zip(own, updates)]
      mean = [tf.add_n(updates) / 2 + noise]
      _, memory = extension.server_step(memory, mean, _cohort([0, 1], np.stack(kept)))
      np.testing.assert_allclose(memory['table'], np.zeros([2, 2]), atol=1e-5)
      np.testing.assert_allclose(memory['control'][0], [1 / _RATE] * 2, rtol=1e-5)

  @pytest.mark.parametrize('server_control, unit', [('sum', 1), ('released', 4)])
  def test_option_1_is_the_gradient(self, server_control, unit):
    extension = heterogeneity.Scaffold(1, server_control)
    message = extension.message(extension.initial_memory(4, _SHAPES))
    local = _local([9.0, 9.0], 4, gradient=[1.0, 2.0])
    np.testing.assert_allclose(extension.kept(message, [tf.zeros([2])], local)[0], [unit * 1.0, unit * 2.0])

  @pytest.mark.parametrize('server_control, divisor', [('sum', 1), ('released', 4)])
  def test_the_correction_is_server_control_minus_own(self, server_control, divisor):
    message = dict(control=[tf.constant([3.0, 1.0])])
    found = heterogeneity.Scaffold(2, server_control).correction(message, [tf.constant([1.0, 5.0])], tf.constant(4))
    np.testing.assert_allclose(found[0], np.array([2.0, -4.0]) / divisor)

  @pytest.mark.parametrize('local', [_local([0.0, 0.0], 0), _local([np.nan, 1.0], 2)])
  def test_a_client_that_learned_nothing_keeps_its_control(self, local):
    message, own = dict(control=[tf.constant([3.0, 1.0])]), [tf.constant([1.0, 5.0])]
    np.testing.assert_array_equal(heterogeneity.Scaffold().kept(message, own, local)[0], own[0])

  def test_nobody_came(self):
    extension = heterogeneity.Scaffold(2, 'released')
    memory = dict(extension.initial_memory(4, _SHAPES), control=[tf.constant([3.0, 1.0])])
    np.testing.assert_array_equal(
      extension.server_step(memory, [tf.zeros([2])], _cohort([]))[1]['control'][0], [3.0, 1.0]
    )

  def test_bad_parameters(self):
    with pytest.raises(ValueError, match='options I and II'):
      heterogeneity.Scaffold(3)
    with pytest.raises(ValueError, match="Did you mean 'released'"):
      heterogeneity.Scaffold(2, 'release')

  def test_only_the_paper_s_sum_is_an_exact_release(self):
    assert heterogeneity.Scaffold(2, 'sum').exact_releases and not heterogeneity.Scaffold(2, 'released').exact_releases


class TestFedNova:
  @pytest.mark.parametrize(
    'extension, factor',
    [
      (heterogeneity.FedNova(), 1 / 4),
      (heterogeneity.FedNova(10.0), 10 / 4),
      (heterogeneity.FedNova(mean_epochs=3.0), 3 / 2),
    ],
  )
  def test_normalized_update(self, extension, factor):
    np.testing.assert_allclose(extension.sent(_local([1.0, 2.0], 4, epochs=2))[0], factor * np.array([1.0, 2.0]))

  def test_cohort_mean_of_steps(self):
    extension = heterogeneity.FedNova()
    direction, _ = extension.server_step({}, [tf.constant([1.0, 2.0])], _cohort([0, 1], [[], []], [1.0, 5.0]))
    np.testing.assert_allclose(direction[0], [3.0, 6.0])
    assert extension.exact_releases and not heterogeneity.FedNova(10.0).exact_releases

  def test_both_units_are_refused(self):
    with pytest.raises(ValueError, match='found both'):
      heterogeneity.FedNova(5.0, 3.0)


class TestFedVarp:
  def test_released_memory_holds_means_alone(self):
    # ĝ = (1, 2) in round 1 with clients 0 and 1 of four, then ĝ = (3, 0) with clients 1 and 2.
    extension = heterogeneity.FedVarp('released')
    memory = extension.initial_memory(4, _SHAPES)
    first, memory = extension.server_step(memory, [tf.constant([1.0, 2.0])], _cohort([0, 1], [[], []]))
    second, memory = extension.server_step(memory, [tf.constant([3.0, 0.0])], _cohort([1, 2], [[], []]))
    np.testing.assert_allclose(first[0], [1, 2])
    # (3, 0) - (1, 2)/2 + 2·(1, 2)/4.
    np.testing.assert_allclose(second[0], [3, 0])
    third, _ = extension.server_step(memory, [tf.constant([0.0, 0.0])], _cohort([3], [[]]))
    np.testing.assert_allclose(third[0], np.array([1 + 3 + 3, 2]) / 4)
    assert not extension.exact_releases and not extension.reports_vectors

  def test_clients_memory_is_an_exact_release(self):
    assert heterogeneity.FedVarp('clients').exact_releases

  def test_bytes(self):
    assert heterogeneity.FedVarp().memory_bytes(100, 1_199_882) == 4 * 100 * 1_199_882


class TestFriends:
  def _memory(self, similarity, together):
    return dict(similarity=tf.constant(similarity, tf.float32), together=tf.constant(together, tf.float32))

  def test_the_most_similar_of_those_who_came_stands_in(self):
    # Client 2 was twice with 0 (Σ 1.0) and once with 1 (Σ 0.9). Client 1 is its friend: 0.9 > 0.5.
    memory = self._memory([[0, 0, 1.0], [0, 0, 0.9], [1.0, 0.9, 0]], [[0, 0, 2], [0, 0, 1], [2, 1, 0]])
    cohort = _cohort([0, 1], np.zeros([2, 2]), absent=[False, False, True])
    np.testing.assert_allclose(heterogeneity.FriendSubstitution().scales(memory, cohort), [2 / 3, 4 / 3])

  def test_who_is_a_stranger_or_did_not_drop_out_has_no_substitute(self):
    memory = self._memory(np.zeros([3, 3]), np.zeros([3, 3]))
    for absent in ([False, False, True], [False, False, False]):
      cohort = _cohort([0, 1], np.zeros([2, 2]), absent=absent)
      np.testing.assert_allclose(heterogeneity.FriendSubstitution().scales(memory, cohort), [1, 1])

  def test_similarities_by_hand(self):
    extension = heterogeneity.FriendSubstitution()
    _, memory = extension.server_step(
      extension.initial_memory(3, _SHAPES), [], _cohort([0, 2], [[3.0, 4.0], [4.0, -3.0]])
    )
    np.testing.assert_allclose(memory['similarity'], [[1, 0, 0.5], [0, 0, 0], [0.5, 0, 1]], atol=1e-6)
    np.testing.assert_array_equal(memory['together'], [[1, 0, 1], [0, 0, 0], [1, 0, 1]])
    assert extension.memory_bytes(3, 10**9) == 72
