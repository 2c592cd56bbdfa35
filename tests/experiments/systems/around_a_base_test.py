"""The arithmetic of the extensions: two or three clients, one or two weights, without TFF."""

import collections
import dataclasses
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from experiments.systems import feddyn
from experiments.systems import fednova
from experiments.systems import fedvarp
from experiments.systems import fl_fdms
from experiments.systems import safari
from experiments.systems import scaffold
from quap_tff.training import client_update
from quap_tff.training import extension as extensions

_RATE = 0.1
_SHAPES = [tf.TensorShape([2])]


def _local(update, steps, epochs=1, gradient=None):
  gradient = lambda given=gradient: [tf.constant(given)]
  return extensions.LocalKnowledge(
    [tf.constant(update)], tf.constant(steps), tf.constant(epochs), lambda: _RATE, gradient
  )


def _cohort(ids, num_clients=4, **reports):
  """What the server gets; `absent` are the flags of all clients, as each member of the cohort reports them."""
  reports = {name: tf.constant(value, tf.float32) for name, value in reports.items()}
  return extensions.Cohort(num_clients, tf.constant(ids, tf.int64), reports, lambda: _RATE)


_NOBODY = _cohort([])


class _Client(NamedTuple):
  """A client whose loss is (w - y)² with one weight w."""

  y: float
  steps: int = 1
  epochs: int = 1
  absent: tuple = ()


def _trained(w, y, correction=0.0, steps=2, pull=0.0):
  """w after local steps."""
  start = w
  for _ in range(steps):
    w -= _RATE * (2 * (w - y) + correction + pull * (w - start))
  return w


def _play(extension, rounds, num_clients=4, clip=np.inf):
  """A run without TFF, from w = 0: the weight after each round, and the last memory with clients' own vectors.

  Args:
    extension: The method.
    rounds: Clients by their ids, for each round.
    num_clients: N.
    clip: The norm to which updates are clipped.
  """
  pull = extension.client_work(client_update.ClientWorkConfig()).proximal_strength
  memory, x, found = extension.initial_memory(num_clients, [tf.TensorShape([1])]), 0.0, []
  table = np.zeros([num_clients, 1], np.float32)
  for clients in rounds:
    message = extension.message(memory)
    sent, reports = [], []
    for index, (y, steps, epochs, absent) in clients.items():
      own = [tf.constant(table[index])] if extension.has_own_vectors else None
      correction = extension.correction(message, own, tf.constant(steps))
      end = _trained(x, y, float(correction[0]) if correction else 0.0, steps, pull)
      local = _local([x - end], steps, epochs, [2 * (x - y)])
      reports.append(extension.report(message, own, local))
      if extension.has_own_vectors:
        table[index] = extension.kept(message, own, local)
      if extension.takes_absent:
        reports[-1]['absent'] = tf.constant([int(i in absent) for i in range(num_clients)])
      sent.append(float(extension.sent(local)[0]))
    columns = {name: np.array([one[name] for one in reports]) for name in (reports[0] if reports else ())}
    none = {name: np.zeros([0, 1]) for name in ('kept', 'change')}
    cohort = _cohort(list(clients), num_clients, **(columns or dict(none, absent=np.zeros([0, num_clients]))))
    if extension.takes_absent and clients:
      sent = sent * extension.scales(memory, cohort).numpy()
    mean = np.mean(np.clip(sent, -clip, clip)) if clients else 0.0
    direction, memory = extension.server_step(memory, [tf.constant([mean], tf.float32)], cohort)
    x -= float(direction[0])
    found.append(x)
  return found, dict(memory, own=table)


class TestScaffold:
  @pytest.mark.parametrize('option', [1, 2])
  def test_two_rounds_by_hand(self, option):
    # Clients 0 and 1 of four; targets 1 and 3; two steps a round.
    clients = {0: _Client(1.0, 2), 1: _Client(3.0, 2)}
    weights, memory = _play(scaffold.Scaffold(option), [clients] * 2)
    x, c, own = 0.0, 0.0, {0: 0.0, 1: 0.0}
    for found in weights:
      ends = {i: _trained(x, y, c - own[i]) for i, (y, *_) in clients.items()}
      new = {
        i: 2 * (x - y) if option == 1 else own[i] - c + (x - ends[i]) / (2 * _RATE) for i, (y, *_) in clients.items()
      }
      x, c = sum(ends.values()) / 2, c + sum(new[i] - own[i] for i in own) / 4
      own = new
      assert found == pytest.approx(x, rel=1e-5)
    np.testing.assert_allclose(memory['own'][:, 0], [own[0], own[1], 0, 0], rtol=1e-5)
    assert float(memory['control'][0]) == pytest.approx(c, rel=1e-5)

  def test_with_noise_the_control_follows_the_noised_mean(self):
    extension = scaffold.Scaffold(2, 'released')
    memory = extension.initial_memory(4, _SHAPES)
    # Whatever the two clients sent, ĝ is what was released.
    cohort = _cohort([0, 1])
    _, memory = extension.server_step(memory, [tf.constant([0.3, -0.1])], cohort)
    np.testing.assert_allclose(memory['control'][0], 0.5 * np.array([0.3, -0.1]) / _RATE, rtol=1e-5)

  def _controls(self, extension, rounds, steps):
    """Server controls after each round in which clients give these updates."""
    memory, found, table = extension.initial_memory(4, _SHAPES), [], np.zeros([4, 2], np.float32)
    for updates in rounds:
      message, reports = extension.message(memory), []
      for client, update in updates.items():
        own, local = extensions.unflat(tf.constant(table[client]), message['control']), _local(update, steps)
        reports.append(extension.report(message, own, local))
        table[client] = extension.kept(message, own, local)
      columns = {name: np.stack([one[name] for one in reports]) for name in reports[0]}
      mean = [tf.reduce_mean(tf.constant(list(updates.values())), axis=0)]
      direction, memory = extension.server_step(memory, mean, _cohort(list(updates), **columns))
      assert direction is mean
      found.append(memory['control'][0].numpy())
    return np.array(found), table

  def test_released_control_is_the_papers_where_nothing_is_clipped_and_steps_are_equal(self):
    rounds = [{0: [0.1, 0.2], 1: [0.3, -0.2]}, {1: [0.1, 0.1], 2: [0.5, 0.4]}, {0: [-0.2, 0.1]}]
    paper, of_paper = self._controls(scaffold.Scaffold(2, 'sum'), rounds, steps=3)
    released, table = self._controls(scaffold.Scaffold(2, 'released'), rounds, steps=3)
    # Round 1 by hand: c_0 = (0.1, 0.2)/0.3 and c_1 = (0.3, -0.2)/0.3, so c is a quarter of (0.4, 0)/0.3.
    np.testing.assert_allclose(paper[0], [1 / 3, 0], atol=1e-6)
    # The released control is a sum of gradients over the three steps.
    np.testing.assert_allclose(released, 3 * paper, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(table, 3 * of_paper, rtol=1e-5, atol=1e-6)

  def test_noise_stays_in_the_released_control(self):
    # Everyone comes, and all gradients are zero: each update is the correction alone, η·(s - s_i). Noise of 1 on the
    # first mean moves s by 1/η. The paper's control would be the mean of the s_i. This one never comes back to it.
    extension = scaffold.Scaffold(2, 'released')
    memory, table = extension.initial_memory(2, _SHAPES), np.zeros([2, 2], np.float32)
    for noise in (1.0, 0.0, 0.0):
      message = extension.message(memory)
      own = [extensions.unflat(row, message['control']) for row in tf.constant(table)]
      updates = [_RATE * (message['control'][0] - mine[0]) for mine in own]
      table = np.stack([extension.kept(message, mine, _local(u, 1)) for mine, u in zip(own, updates)])
      mean = [tf.add_n(updates) / 2 + noise]
      _, memory = extension.server_step(memory, mean, _cohort([0, 1], 2))
      np.testing.assert_allclose(table, np.zeros([2, 2]), atol=1e-5)
      np.testing.assert_allclose(memory['control'][0], [1 / _RATE] * 2, rtol=1e-5)

  @pytest.mark.parametrize('server_control, unit', [('sum', 1), ('released', 4)])
  def test_option_1_is_the_gradient(self, server_control, unit):
    extension = scaffold.Scaffold(1, server_control)
    message = extension.message(extension.initial_memory(4, _SHAPES))
    local = _local([9.0, 9.0], 4, gradient=[1.0, 2.0])
    found = extension.kept(message, [tf.zeros([2])], local)
    np.testing.assert_allclose(found, [unit * 1.0, unit * 2.0])

  @pytest.mark.parametrize('server_control, divisor', [('sum', 1), ('released', 4)])
  def test_the_correction_is_server_control_minus_own(self, server_control, divisor):
    message = dict(control=[tf.constant([3.0, 1.0])])
    found = scaffold.Scaffold(2, server_control).correction(message, [tf.constant([1.0, 5.0])], tf.constant(4))
    np.testing.assert_allclose(found[0], np.array([2.0, -4.0]) / divisor)

  @pytest.mark.parametrize('local', [_local([0.0, 0.0], 0), _local([np.nan, 1.0], 2)])
  def test_a_client_that_learned_nothing_keeps_its_control(self, local):
    message, own = dict(control=[tf.constant([3.0, 1.0])]), [tf.constant([1.0, 5.0])]
    np.testing.assert_array_equal(scaffold.Scaffold().kept(message, own, local), own[0])
    np.testing.assert_array_equal(scaffold.Scaffold().report(message, own, local)['change'], [0, 0])

  def test_nobody_came(self):
    extension = scaffold.Scaffold(2, 'released')
    memory = dict(extension.initial_memory(4, _SHAPES), control=[tf.constant([3.0, 1.0])])
    np.testing.assert_array_equal(extension.server_step(memory, [tf.zeros([2])], _NOBODY)[1]['control'][0], [3.0, 1.0])

  def test_bad_parameters(self):
    with pytest.raises(ValueError, match='options I and II'):
      scaffold.Scaffold(3)
    with pytest.raises(ValueError, match="Did you mean 'released'"):
      scaffold.Scaffold(2, 'release')

  def test_only_the_paper_s_sum_is_an_exact_release(self):
    assert scaffold.Scaffold(2, 'sum').exact_releases and not scaffold.Scaffold(2, 'released').exact_releases


class TestFedNova:
  @pytest.mark.parametrize(
    'extension, factor',
    [(fednova.FedNova(), 1 / 4), (fednova.FedNova(10.0), 10 / 4), (fednova.FedNova(mean_epochs=3.0), 3 / 2)],
  )
  def test_normalized_update(self, extension, factor):
    np.testing.assert_allclose(extension.sent(_local([1.0, 2.0], 4, epochs=2))[0], factor * np.array([1.0, 2.0]))

  def test_cohort_mean_of_steps(self):
    extension = fednova.FedNova()
    direction, _ = extension.server_step({}, [tf.constant([1.0, 2.0])], _cohort([0, 1], steps=[1.0, 5.0]))
    np.testing.assert_allclose(direction[0], [3.0, 6.0])
    assert extension.exact_releases and not fednova.FedNova(10.0).exact_releases

  def test_normalization_comes_before_clipping(self):
    # One client takes one step, the other three, so τ_eff is 2. Normalized, both updates are longer than the clip, and
    # both count the same. Clipped first, the second would count a third of the first.
    weights, _ = _play(fednova.FedNova(), [{0: _Client(1.0, 1), 1: _Client(3.0, 3)}], clip=0.1)
    assert weights[0] == pytest.approx(2 * 0.1, rel=1e-5)

  def test_both_units_are_refused(self):
    with pytest.raises(ValueError, match='found both'):
      fednova.FedNova(5.0, 3.0)


class TestFedDyn:
  def test_two_rounds_by_hand(self):
    alpha, clients = 0.5, {0: _Client(1.0, 2), 1: _Client(3.0, 2)}
    weights, memory = _play(feddyn.FedDyn(alpha), [clients, {1: clients[1]}, {}])
    ends = [_trained(0, y, pull=alpha) for y in (1.0, 3.0)]
    h, own = -alpha / 4 * sum(ends), -alpha * ends[1]
    x = np.mean(ends) - h / alpha
    assert weights[0] == pytest.approx(x, rel=1e-5)
    end = _trained(x, 3.0, -own, pull=alpha)
    h -= alpha / 4 * (end - x)
    assert weights[1] == weights[2] == pytest.approx(end - h / alpha, rel=1e-5)
    assert float(memory['own'][1, 0]) == pytest.approx(own - alpha * (end - x), rel=1e-5)

  def test_an_update_that_is_not_finite_leaves_the_clients_correction(self):
    own = [tf.constant([3.0, 1.0])]
    found = feddyn.FedDyn().kept({}, own, _local([np.nan, 1.0], 2))
    np.testing.assert_array_equal(found, own[0])


class TestFedVarp:
  def test_three_rounds_by_hand(self):
    rounds = [{0: _Client(1.0), 1: _Client(3.0)}, {2: _Client(-1.0)}, {0: _Client(1.0)}]
    weights, state = _play(fedvarp.FedVarp(), [*rounds, {}])
    x, memory = 0.0, np.zeros(4)
    for clients, found in zip(rounds, weights):
      updates = {i: x - _trained(x, client.y, steps=1) for i, client in clients.items()}
      x -= np.mean([updates[i] - memory[i] for i in updates]) + memory.mean()
      for i, update in updates.items():
        memory[i] = update
      assert found == pytest.approx(x, rel=1e-5)
    assert weights[3] == weights[2]  # Nobody came.
    np.testing.assert_allclose(state['table'][:, 0], memory, rtol=1e-5)

  def test_released_memory_holds_means_alone(self):
    # ĝ = (1, 2) in round 1 with clients 0 and 1 of four, then ĝ = (3, 0) with clients 1 and 2.
    extension = fedvarp.FedVarp('released')
    memory = extension.initial_memory(4, _SHAPES)
    first, memory = extension.server_step(memory, [tf.constant([1.0, 2.0])], _cohort([0, 1]))
    second, memory = extension.server_step(memory, [tf.constant([3.0, 0.0])], _cohort([1, 2]))
    np.testing.assert_allclose(first[0], [1, 2])
    # (3, 0) - (1, 2)/2 + 2·(1, 2)/4.
    np.testing.assert_allclose(second[0], [3, 0])
    third, _ = extension.server_step(memory, [tf.constant([0.0, 0.0])], _cohort([3]))
    np.testing.assert_allclose(third[0], np.array([1 + 3 + 3, 2]) / 4)
    assert not extension.exact_releases and not extension.report(None, None, None)

  def test_clients_memory_is_an_exact_release(self):
    assert fedvarp.FedVarp('clients').exact_releases

  def test_bytes(self):
    assert fedvarp.FedVarp().memory_bytes(100, 1_199_882) == 4 * 100 * 1_199_882


class TestFriends:
  def test_the_friend_of_an_absent_client_counts_twice(self):
    # Round 1: clients 0 and 2 go up, client 1 goes down. Round 2: client 2 drops out, and 0 substitutes for it.
    first = {0: _Client(1.0), 1: _Client(-2.0), 2: _Client(1.5)}
    second = {0: _Client(1.0, absent=(2,)), 1: _Client(-2.0, absent=(2,))}
    weights, memory = _play(fl_fdms.FriendSubstitution(), [first, second, {}])
    x = np.mean([_trained(0, y, steps=1) for y in (1.0, -2.0, 1.5)])
    assert weights[0] == pytest.approx(x, rel=1e-5)
    ends = [_trained(x, y, steps=1) for y in (1.0, 1.0, -2.0)]
    assert weights[1] == weights[2] == pytest.approx(np.mean(ends), rel=1e-5)
    np.testing.assert_allclose(memory['together'][:3, :3], [[2, 2, 1], [2, 2, 1], [1, 1, 1]])
    np.testing.assert_allclose(memory['similarity'][:3, :3], [[2, 0, 1], [0, 2, 0], [1, 0, 1]], atol=1e-6)

  def _memory(self, similarity, together):
    return dict(similarity=tf.constant(similarity, tf.float32), together=tf.constant(together, tf.float32))

  def test_the_most_similar_of_those_who_came_stands_in(self):
    # Client 2 was twice with 0 (Σ 1.0) and once with 1 (Σ 0.9). Client 1 is its friend: 0.9 > 0.5.
    memory = self._memory([[0, 0, 1.0], [0, 0, 0.9], [1.0, 0.9, 0]], [[0, 0, 2], [0, 0, 1], [2, 1, 0]])
    cohort = _cohort([0, 1], absent=[[0, 0, 1]] * 2)
    np.testing.assert_allclose(fl_fdms.FriendSubstitution().scales(memory, cohort), [2 / 3, 4 / 3])

  def test_who_is_a_stranger_or_did_not_drop_out_has_no_substitute(self):
    memory = self._memory(np.zeros([3, 3]), np.zeros([3, 3]))
    for absent in ([0, 0, 1], [0, 0, 0]):
      cohort = _cohort([0, 1], absent=[absent] * 2)
      np.testing.assert_allclose(fl_fdms.FriendSubstitution().scales(memory, cohort), [1, 1])

  def test_similarities_by_hand(self):
    extension = fl_fdms.FriendSubstitution()
    _, memory = extension.server_step(
      extension.initial_memory(3, _SHAPES), [], _cohort([0, 2], kept=[[3.0, 4.0], [4.0, -3.0]])
    )
    np.testing.assert_allclose(memory['similarity'], [[1, 0, 0.5], [0, 0, 0], [0.5, 0, 1]], atol=1e-6)
    np.testing.assert_array_equal(memory['together'], [[1, 0, 1], [0, 0, 0], [1, 0, 1]])
    assert extension.memory_bytes(3, 10**9) == 72


class TestSafari:
  def test_the_server_takes_its_number_of_steps(self):
    extension = safari.Safari(server_steps=5, server_learning_rate=0.2, server_batch_size=2)
    with pytest.raises(ValueError, match='no examples'):
      extension.server_training()
    training = dataclasses.replace(extension, examples=collections.OrderedDict(x=np.ones([3, 1]))).server_training()
    # Two steps pass over three examples.
    assert (training.config.local_epochs, training.config.max_steps, training.config.batch_size) == (3, 5, 2)
    assert training.learning_rate == 0.2 and list(training.examples) == ['x']
