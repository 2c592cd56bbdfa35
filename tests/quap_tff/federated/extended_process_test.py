"""Learning processes with an extension, followed by hand: two clients, one or two weights, plain numbers."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import quap_tff
from quap_tff import runtime
from quap_tff.mechanisms import clip_rules
from quap_tff.mechanisms.config import NoiseConfig
from quap_tff.mechanisms.config import QuapConfig
from quap_tff.training import heterogeneity

_sgd = tff.learning.optimizers.build_sgdm
_RATE = 0.1


def _model_fn():
  """y = w·x from w = 0 on examples x = 1: the derivative of the loss is 2·(w - mean y)."""
  layer = tf.keras.layers.Dense(1, use_bias=False, kernel_initializer='zeros', input_shape=(1,), name='logits')
  return tff.learning.models.from_keras_model(
    tf.keras.Sequential([layer]),
    loss=tf.keras.losses.MeanSquaredError(),
    input_spec=collections.OrderedDict(x=tf.TensorSpec([None, 1]), y=tf.TensorSpec([None, 1])),
  )


def _client(client_id, y, n=1, absent=None):
  examples = collections.OrderedDict(x=np.ones([n, 1], np.float32), y=np.full([n, 1], y, np.float32))
  data = collections.OrderedDict(client_id=tf.data.Dataset.from_tensors(np.int64(client_id)))
  if absent is not None:
    data['absent'] = tf.data.Dataset.from_tensor_slices(np.asarray(absent, np.int64))
  data['examples'] = tf.data.Dataset.from_tensors(examples)
  return data


def _process(extension, clip=clip_rules.Unclipped(), noise=NoiseConfig('none'), n=4, **work):
  config = QuapConfig(num_clients=n, clip=clip, noise=noise)
  return quap_tff.build_quap_fed_avg(
    _model_fn, config, _sgd(_RATE), _sgd(1.0), quap_tff.ClientWorkConfig(**{'seed': 1, **work}), extension
  )


def _weight(state):
  return float(np.asarray(state.global_model_weights.trainable[0])[0, 0])


def _run(process, rounds):
  """The weight after each round, and the last state."""
  state, weights = process.initialize(), []
  for clients in rounds:
    state = process.next(state, clients).state
    weights.append(_weight(state))
  return weights, state


def _trained(w, y, correction=0.0, steps=2, pull=0.0, anchor=None):
  """w after local steps."""
  start = w if anchor is None else anchor
  for _ in range(steps):
    w -= _RATE * (2 * (w - y) + correction + pull * (w - start))
  return w


@pytest.fixture(autouse=True, scope='module')
def _context():
  with runtime.activate(runtime.RuntimeConfig(device='cpu')):
    yield


class TestScaffold:
  @pytest.mark.parametrize('option', [1, 2])
  def test_two_rounds_by_hand(self, option):
    # Clients 0 and 1 of four; targets 1 and 3; two steps a round.
    weights, state = _run(
      _process(heterogeneity.Scaffold(option), local_epochs=2), [[_client(0, 1.0), _client(1, 3.0)]] * 2
    )
    x, c, own = 0.0, 0.0, {0: 0.0, 1: 0.0}
    for found in weights:
      ends = {i: _trained(x, y, c - own[i]) for i, y in ((0, 1.0), (1, 3.0))}
      new = {
        i: 2 * (x - y) if option == 1 else own[i] - c + (x - ends[i]) / (2 * _RATE) for i, y in ((0, 1.0), (1, 3.0))
      }
      x, c = sum(ends.values()) / 2, c + sum(new[i] - own[i] for i in own) / 4
      own = new
      assert found == pytest.approx(x, rel=1e-5)
    memory = state.client_work['memory']
    np.testing.assert_allclose(memory['table'][:, 0], [own[0], own[1], 0, 0], rtol=1e-5)
    assert float(memory['control'][0][0, 0]) == pytest.approx(c, rel=1e-5)

  def test_with_noise_the_control_follows_the_noised_mean(self):
    process = _process(heterogeneity.Scaffold(2, 'released'), clip=clip_rules.Fixed(0.05), noise=NoiseConfig(seed=3))
    weights, state = _run(process, [[_client(0, 1.0), _client(1, 3.0)]])
    # x = 0 - ĝ: ĝ is the noised mean.
    control = float(state.client_work['memory']['control'][0][0, 0])
    assert control == pytest.approx(0.5 * -weights[0] / _RATE, rel=1e-5)
    assert abs(-weights[0] - -0.05) > 1e-3


class TestFedNova:
  def test_normalization_comes_before_clipping(self):
    # One example takes one step, three examples in batches of one take three, so τ_eff is 2. Normalized, both updates
    # are longer than the clip, and both count the same. Clipped first, the second would count a third of the first.
    process = _process(heterogeneity.FedNova(), clip=clip_rules.Fixed(0.1), batch_size=1)
    weights, _ = _run(process, [[_client(0, 1.0), _client(1, 3.0, n=3)]])
    assert weights[0] == pytest.approx(2 * 0.1, rel=1e-5)

  def test_by_epochs(self):
    # Each client's epochs follow from the seed; both have one example, so epochs are steps.
    process = _process(heterogeneity.FedNova(mean_epochs=3.0), local_epochs=1, most_local_epochs=5)
    found = []
    for client, y in ((0, 1.0), (1, 3.0), (2, 3.0), (3, 1.0)):
      weights, _ = _run(process, [[_client(client, y)]])
      found.append(min(range(1, 6), key=lambda k: abs(3 * _trained(0, y, steps=k) / k - weights[0])))
      assert weights[0] == pytest.approx(3 * _trained(0, y, steps=found[-1]) / found[-1], rel=1e-5)
    assert len(set(found)) > 1


class TestFedDyn:
  def test_two_rounds_by_hand(self):
    alpha, weights = 0.5, None
    weights, state = _run(
      _process(heterogeneity.FedDyn(alpha), local_epochs=2), [[_client(0, 1.0), _client(1, 3.0)], [_client(1, 3.0)]]
    )
    ends = [_trained(0, y, pull=alpha) for y in (1.0, 3.0)]
    h, own = -alpha / 4 * sum(ends), -alpha * ends[1]
    x = np.mean(ends) - h / alpha
    assert weights[0] == pytest.approx(x, rel=1e-5)
    end = _trained(x, 3.0, -own, pull=alpha)
    h -= alpha / 4 * (end - x)
    assert weights[1] == pytest.approx(end - h / alpha, rel=1e-5)
    assert float(state.client_work['memory']['table'][1, 0]) == pytest.approx(own - alpha * (end - x), rel=1e-5)


class TestFedVarp:
  def test_three_rounds_by_hand(self):
    rounds = [[(0, 1.0), (1, 3.0)], [(2, -1.0)], [(0, 1.0)]]
    weights, state = _run(
      _process(heterogeneity.FedVarp()), [[_client(*client) for client in clients] for clients in rounds] + [[]]
    )
    x, memory = 0.0, np.zeros(4)
    for clients, found in zip(rounds, weights):
      updates = {i: x - _trained(x, y, steps=1) for i, y in clients}
      x -= np.mean([updates[i] - memory[i] for i in updates]) + memory.mean()
      for i in updates:
        memory[i] = updates[i]
      assert found == pytest.approx(x, rel=1e-5)
    assert weights[3] == weights[2]  # Nobody came.
    np.testing.assert_allclose(state.client_work['memory']['table'][:, 0], memory, rtol=1e-5)


class TestFriends:
  def test_the_friend_of_an_absent_client_counts_twice(self):
    # Round 1: clients 0 and 2 go up, client 1 goes down. Round 2: client 2 drops out, and 0 substitutes for it.
    process = _process(heterogeneity.FriendSubstitution())
    rounds = [
      [_client(0, 1.0, absent=[]), _client(1, -2.0, absent=[]), _client(2, 1.5, absent=[])],
      [_client(0, 1.0, absent=[2]), _client(1, -2.0, absent=[2])],
      [],
    ]
    weights, state = _run(process, rounds)
    x = np.mean([_trained(0, y, steps=1) for y in (1.0, -2.0, 1.5)])
    assert weights[0] == pytest.approx(x, rel=1e-5)
    ends = [_trained(x, y, steps=1) for y in (1.0, 1.0, -2.0)]
    assert weights[1] == weights[2] == pytest.approx(np.mean(ends), rel=1e-5)
    np.testing.assert_allclose(state.client_work['memory']['together'][:3, :3], [[2, 2, 1], [2, 2, 1], [1, 1, 1]])
    np.testing.assert_allclose(
      state.client_work['memory']['similarity'][:3, :3], [[2, 0, 1], [0, 2, 0], [1, 0, 1]], atol=1e-6
    )


class TestSafari:
  def test_the_server_trains_where_nobody_came(self):
    examples = collections.OrderedDict(x=np.ones([3, 1], np.float32), y=np.full([3, 1], 4.0, np.float32))
    extension = heterogeneity.Safari(server_steps=5, server_learning_rate=_RATE, server_batch_size=2, examples=examples)
    weights, _ = _run(_process(extension), [[_client(0, 1.0)], []])
    x = _trained(0, 1.0, steps=1)
    assert weights == pytest.approx([x, _trained(x, 4.0, steps=5)], rel=1e-5)
