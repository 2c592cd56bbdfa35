"""Drawings, and synthetic clients: made by id, the same each time, different from one another, and learnable."""

import numpy as np
import pytest

import data
from data import federation
from data.features import leaves
from quap_tff.common.numbers import rng as rng_lib


def load(spec='synthetic', **kwargs):
  return data.load(spec, **kwargs)


class TestDrawings:
  @pytest.mark.parametrize(
    'spec, shape',
    [
      ('glyphs:classes=3,copies=14', (28, 28, 1)),
      ('glyphs:classes=3,copies=14,side=8', (8, 8, 1)),
      ('things:classes=3,looks=2,copies=14', (32, 32, 3)),
    ],
  )
  def test_every_label_has_its_share_of_both_parts(self, spec, shape):
    fed = load(spec, num_clients=2, partition='iid')
    assert (fed.name, fed.num_classes, fed.num_examples) == (spec.partition(':')[0], 3, 36)
    assert fed.input_shape == shape and fed.test.x.min() >= 0 and 0.5 < fed.test.x.max() <= 1
    np.testing.assert_array_equal(np.bincount(np.concatenate([c.y for c in fed.clients])), [12] * 3)
    np.testing.assert_array_equal(np.bincount(fed.test.y), [2] * 3)

  @pytest.mark.parametrize('spec, seed', [('glyphs:copies=7', 'alphabet'), ('things:copies=7', 'kinds')])
  def test_are_the_same_for_every_seed_of_a_run(self, spec, seed):
    first, second, other = (load(s, seed=n, num_clients=2) for s, n in ((spec, 1), (spec, 2), (f'{spec},{seed}=1', 1)))
    np.testing.assert_array_equal(first.test.x, second.test.x)
    assert not np.array_equal(first.test.x, other.test.x)

  def test_one_glyph_s_drawings_differ_and_are_nearer_to_each_other_than_to_others(self):
    fed = load('glyphs:classes=3,copies=14', num_clients=1, partition='iid')
    x, y = fed.clients[0].x, fed.clients[0].y
    means = np.stack([x[y == label].mean(axis=0) for label in range(3)])
    distances = np.square(fed.test.x[:, None] - means).sum(axis=(2, 3, 4))
    assert np.mean(distances.argmin(axis=1) == fed.test.y) > 0.6
    assert len({one.tobytes() for one in x}) == 36
    assert fed.test.x.min() == 0 and fed.test.x.max() > 0.9

  @pytest.mark.slow
  def test_a_label_of_things_has_as_many_looks_as_asked_for(self):
    # Two drawings of one thing are nearer to each other than to the other look of their label.
    def nearest_is_own_label(looks):
      x = load(f'things:classes=2,looks={looks},copies=70', num_clients=1, partition='iid').clients[0]
      flat = x.x[:, 8:24, 8:24].reshape(len(x), -1)
      distance = np.linalg.norm(flat[:, None] - flat, axis=2) + 1e9 * np.eye(len(x))
      return np.mean(x.y[distance.argmin(axis=1)] == x.y)

    assert nearest_is_own_label(1) > nearest_is_own_label(20) + 0.1

  def test_things_are_others_than_features_are_learned_from(self):
    ours, learned_from = (
      leaves.things(10, rng).parts.values[:, 0, leaves._RADIUS]
      for rng in (rng_lib.generator(0, 'things'), np.random.default_rng(0))
    )
    assert not np.isin(ours, learned_from).any()


def test_a_client_follows_from_the_seed_and_its_id_alone():
  few, many, other = load(num_clients=5, seed=3), load(num_clients=10**6, seed=3), load(num_clients=5, seed=4)
  for i in range(5):
    np.testing.assert_array_equal(few.clients[i].x, many.clients[i].x)
    np.testing.assert_array_equal(few.clients[i].x, few.clients[i].x)
    assert (few.clients[i].x != other.clients[i].x).all()
  apart = [many.clients[i].x for i in (0, 1, 100, 1000, 2**16, 999_999)]
  assert len({x.tobytes() for x in apart}) == len(apart)
  np.testing.assert_array_equal(few.test.x, many.test.x)


def test_nothing_is_made_before_it_is_asked_for(monkeypatch):
  made = []
  monkeypatch.setattr(federation.Examples, '__post_init__', lambda self: made.append(len(self)))
  fed = load('synthetic:examples=3', num_clients=10**6)
  # One client for the shape of an example, and the test set.
  assert sorted(made) == [3, 2000]
  assert fed.client_ids[123] == 'client_000123' and fed.num_clients == 10**6 and fed.num_examples is None


def test_shapes_and_norms():
  fed = load('synthetic:features=6,classes=3,examples=7', num_clients=10)
  assert (fed.input_shape, fed.num_classes, fed.clients[0].x.shape) == ((6,), 3, (7, 6))
  np.testing.assert_allclose(np.linalg.norm(fed.test.x, axis=1), 1, rtol=1e-6)


def test_the_norm_scales_examples_and_changes_no_label():
  of_one, of_three = (load(f'synthetic:norm={norm}', num_clients=2) for norm in (1, 3))
  np.testing.assert_allclose(of_three.test.x, 3 * of_one.test.x, rtol=1e-6)
  np.testing.assert_array_equal(of_three.clients[1].y, of_one.clients[1].y)


def test_labels_are_linear_up_to_their_noise():
  clean, noisy = (load(f'synthetic:noise={noise}', num_clients=2, seed=1).test for noise in (0, 0.4))
  fit = lambda test: np.mean(
    np.argmax(test.x @ np.linalg.lstsq(clean.x, np.eye(4)[clean.y], rcond=None)[0], axis=1) == test.y
  )
  # A share of 0.4 is drawn anew, a quarter of it right by chance.
  assert fit(clean) > 0.85 and 0.55 < fit(noisy) < 0.75


@pytest.mark.slow
def test_spread_makes_clients_differ():
  def of_clients(spread):
    fed = load(f'synthetic:spread={spread}', num_clients=400)
    return np.mean([np.linalg.norm(client.x.mean(axis=0)) for client in fed.clients])

  # Means of 8 unit vectors: 1/√8 if clients are alike.
  assert of_clients(0) == pytest.approx(8**-0.5, rel=0.05) and of_clients(2) > 2 * of_clients(0)


def test_other_parameters_have_another_digest():
  digests = {
    load(spec, num_clients=n, seed=s).digest()
    for spec in ('synthetic', 'synthetic:noise=0.1')
    for n in (5, 6)
    for s in (0, 1)
  }
  assert len(digests) == 8


@pytest.mark.parametrize('spec', ['features=0', 'classes=1', 'examples=0', 'spread=-1', 'noise=1.5'])
def test_bad_parameters(spec):
  with pytest.raises(ValueError, match='synthetic ' + spec.partition('=')[0]):
    load(f'synthetic:{spec}')


def test_too_few_copies_of_a_drawing():
  with pytest.raises(ValueError, match='copies must be an integer at least 7'):
    load('things:copies=6')
