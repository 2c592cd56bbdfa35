"""Tests of bundles whose clients bring their updates, which a program that is not here has computed."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from experiments.systems import fedvarp
import quap_tff
from quap_tff import certificates
from quap_tff import plans
from quap_tff.bundle import bundle_engine
from quap_tff.bundle import simulation
from quap_tff.bundle import structures
from quap_tff.federated import client_work
from quap_tff.mechanisms.held import guarded_clients
from quap_tff.mechanisms.noise import correlation
from quap_tff.mechanisms.parts import clip_rules
from tests.quap_tff import examples

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures('context')]

CLIENTS, FEATURES, CLASSES = 6, 8, 3
SCHEDULE = [np.array(one) for one in ([0, 2, 3], [1, 2, 5], [0, 4])]
_WEIGHTS = {'head.weight': np.full([FEATURES, CLASSES], 0.5, np.float32), 'head.bias': np.zeros(CLASSES, np.float32)}


def _plan(**changes):
  return plans.Plan.certified(_config(**changes), SCHEDULE)


def _config(**changes):
  return examples.guarantee(**{'num_clients': CLIENTS, 'clip': clip_rules.Fixed(0.5), **changes})


def _exported(plan, folder, weights=None):
  quap_tff.export(plan, folder, weights=_WEIGHTS if weights is None else weights)
  return quap_tff.Bundle(folder)


@pytest.fixture(name='bundle', scope='module')
def _bundle(context, tmp_path_factory):
  return _exported(_plan(), tmp_path_factory.mktemp('bundles') / 'bundle')


def _data(client, update):
  return {'client_id': np.int64(client), 'update': update}


def _zero(bundle, client=0):
  return bundle.work(_data(client, []), bundle.prepare(bundle.initialize()))


def _check_same(one, other):
  tf.nest.map_structure(np.testing.assert_array_equal, one, other)


class TestTypes:
  def test_clients_bring_arrays_of_the_shapes_of_the_weights(self, bundle):
    expected = '{client_id: sequence of int64[], update: sequence of {float32[8,3], float32[3]}}'
    assert structures.described(bundle.data_type) == expected and bundle.takes_updates

  def test_weights_of_one_layer_have_one_name(self, bundle):
    (layer,) = bundle.plan.shape.layers
    assert (layer.name, layer.indices) == ('head', (0, 1))
    assert bundle.plan.shape.shapes == ((FEATURES, CLASSES), (CLASSES,))

  def test_the_message_has_the_weights(self, bundle):
    sent = bundle.sent_weights(bundle.prepare(bundle.initialize()))
    _check_same(sent, list(_WEIGHTS.values()))


class TestUpdate:
  def test_is_what_training_took_away(self, bundle):
    message = bundle.prepare(bundle.initialize())
    update = bundle.update_of(message, [np.full([FEATURES, CLASSES], 0.25, np.float32), np.ones(CLASSES, np.float32)])
    _check_same(update, (np.full([FEATURES, CLASSES], 0.25, np.float32), -np.ones(CLASSES, np.float32)))

  @pytest.mark.parametrize(
    'trained, found',
    [
      ([], 'none'),
      ([np.zeros([FEATURES, CLASSES], np.float32)], r'float32\[8, 3\]\.'),
      ([np.zeros([FEATURES, 1], np.float32), np.zeros(CLASSES, np.float32)], r'float32\[8, 1\]'),  # NumPy would spread.
      ([np.zeros([FEATURES, CLASSES]), np.zeros(CLASSES, np.float32)], r'float64\[8, 3\]'),
      ([np.zeros(CLASSES, np.float32), np.zeros([FEATURES, CLASSES], np.float32)], r'float32\[3\], float32\[8, 3\]'),
    ],
  )
  def test_of_other_shapes_or_dtypes_is_refused(self, bundle, trained, found):
    with pytest.raises(ValueError, match=rf'must be float32\[8, 3\], float32\[3\], found {found}'):
      bundle.update_of(bundle.prepare(bundle.initialize()), trained)

  def test_a_list_and_a_tuple_are_the_same(self, bundle):
    message = bundle.prepare(bundle.initialize())
    update = [np.full([FEATURES, CLASSES], 0.01, np.float32), np.ones(CLASSES, np.float32)]
    found = [bundle.work(_data(0, one), message) for one in (update, tuple(update), [tuple(update)])]
    assert np.any(found[0].plain[-1][0])
    for other in found[1:]:
      _check_same(found[0], other)

  @pytest.mark.parametrize(
    'update, said',
    [
      ([np.zeros([FEATURES, CLASSES], np.float32), np.full(CLASSES, np.nan, np.float32)], 'NaN or infinity'),
      ([np.full([FEATURES, CLASSES], np.inf, np.float32), np.zeros(CLASSES, np.float32)], 'NaN or infinity'),
      ([np.zeros([FEATURES, CLASSES]), np.zeros(CLASSES)], 'must be float32'),
      ([np.zeros(CLASSES, np.float32)], 'must be {float32'),
      (None, 'must be {float32'),
    ],
  )
  def test_that_cannot_be_used_is_zero(self, bundle, update, said):
    sums, problem = bundle.attempt(_data(0, update), bundle.prepare(bundle.initialize()))
    assert said in problem
    _check_same(sums, _zero(bundle))

  def test_of_a_client_that_brings_two_is_zero(self, bundle):
    one = tuple(np.ones_like(weight) for weight in _WEIGHTS.values())
    _check_same(bundle.work(_data(0, [one, one]), bundle.prepare(bundle.initialize())), _zero(bundle))


class TestRounds:
  """The same updates as those of clients that train have the same bits in sums, state, metrics and ledger."""

  @pytest.mark.parametrize('held', [False, pytest.param(True, marks=pytest.mark.thorough)])
  def test_are_those_of_clients_that_train(self, held, tmp_path):
    model_fn = quap_tff.models.build_model_fn('linear_features', (FEATURES,), CLASSES)
    changes = dict(correlation=correlation.HeldNoise(0.5)) if held else dict(noise_seed=3)
    plan = plans.Plan.certified(_config(**changes), SCHEDULE, certificate=held)
    config = client_work.ClientWorkConfig(seed=7)
    sgd = tff.learning.optimizers.build_sgdm(0.5)
    quap_tff.export(plan.build_process(model_fn, sgd, client_work=config), tmp_path / 'training')
    training = quap_tff.Bundle(tmp_path / 'training')
    state = training.initialize()
    bundle = _exported(plan, tmp_path / 'updates', training.weights(state).trainable)
    own = bundle.initialize()
    work = client_work.build_client_work(model_fn, sgd, config)
    work_state, ledgers = work.initialize(), [plan.new_ledger(), plan.new_ledger()]
    guarded = guarded_clients.GuardedClients(plan, b'of the test') if held else None
    for number, cohort in enumerate(SCHEDULE, 1):
      answers = guarded.answers(number, cohort) if held else None
      weights = tff.learning.models.ModelWeights(*training.weights(state).values())
      worked = work.next(work_state, [weights] * len(cohort), [_examples(client) for client in cohort.tolist()])
      work_state = worked.state
      totals = []
      for one, brought, at in ((training, _tensors, state), (bundle, _update_in(worked), own)):
        message, total = one.prepare(at), one.zero()
        for place, client in enumerate(cohort.tolist()):
          data = bundle_engine.client_data(one, client, brought(client, place), answers=answers)
          total = one.add(total, one.work(data, message))
        totals.append(total)
      # Those that train also have a place for their metrics, which is empty.
      _check_same(*map(tf.nest.flatten, totals))
      (state, metrics), (own, own_metrics) = training.update(state, totals[0]), bundle.update(own, totals[1])
      _check_same(metrics.aggregator, own_metrics.aggregator)
      _check_same(state.global_model_weights, own.global_model_weights)
      _check_same(state.aggregator, own.aggregator)
      ledgers[0].append(training.record(state, metrics, cohort))
      ledgers[1].append(bundle.record(own, own_metrics, cohort))
    _check_same(*(ledger.state_dict() for ledger in ledgers))
    assert np.any(own.global_model_weights.trainable[0])


def _tensors(client, place=0):
  generator = np.random.default_rng(client)
  x = generator.random([5 + client, FEATURES]).astype(np.float32)
  return {'x': x, 'y': generator.integers(0, CLASSES, len(x)).astype(np.int32)}


def _examples(client):
  parts = collections.OrderedDict(client_id=tf.data.Dataset.from_tensors(np.int64(client)))
  parts['examples'] = tf.data.Dataset.from_tensors(collections.OrderedDict(_tensors(client)))
  return parts


def _update_in(worked):
  return lambda client, place: [np.asarray(one) for one in worked.result[place].update]


class TestCertificate:
  @pytest.fixture(name='run', scope='class')
  def _run(self, bundle, tmp_path_factory):
    """The folder of a run whose clients took steps of their own, in NumPy."""
    server = bundle_engine.new_server(bundle_engine.BundleEngine(bundle))
    for cohort in SCHEDULE:
      message = bundle.prepare(server.state)
      new = [weight - np.float32(0.125) for weight in bundle.sent_weights(message)]
      server.play({client: bundle.update_of(message, new) for client in cohort.tolist()})
    folder = str(tmp_path_factory.mktemp('runs') / 'run')
    assert 'no_certificate' not in simulation.keep(bundle, server, folder)
    return folder

  def test_says_where_updates_came_from_and_what_is_assumed_of_it(self, run):
    verdict = certificates.verify(run)
    assert not verdict.problems
    said = (
      "The clients' updates came from a program of the issuer's own. It is assumed that each of them follows from the "
      'data of its own client and from releases alone.'
    )
    assert said in verdict.statement


class TestRefusals:
  @pytest.mark.parametrize(
    'weights, said',
    [
      ({}, 'There are no weights'),
      ({'a': np.zeros(3)}, 'must be float32, and a is float64.*astype'),
      ({'a': np.array([1, np.nan], np.float32)}, r'must be finite numbers, and a\[2\] has others, or none'),
      ({'a': np.zeros([3, 0], np.float32)}, r'a\[3, 0\] has others, or none'),
    ],
  )
  def test_weights_that_are_none(self, weights, said, tmp_path):
    with pytest.raises(ValueError, match=said):
      _exported(_plan(), tmp_path / 'bundle', weights)
    assert not (tmp_path / 'bundle').exists()

  def test_an_extension(self, tmp_path):
    plan = plans.Plan.certified(_config(), SCHEDULE, extension=fedvarp.FedVarp(memory='released'))
    with pytest.raises(ValueError, match='do not train here, and with this method FedVarp changes local training'):
      _exported(plan, tmp_path / 'bundle')

  def test_clients_that_wait_in_mid_round(self, tmp_path):
    plan = quap_tff.Plan(examples.whole(clip=clip_rules.QuantileEma()))
    with pytest.raises(ValueError, match='clients wait for others in mid-round'):
      _exported(plan, tmp_path / 'bundle')

  def test_weights_of_a_process(self, tmp_path):
    built = _plan().build_update_process(_WEIGHTS)
    with pytest.raises(ValueError, match=r'Weights are for a plan, found BuiltProcess: quap_tff.export\(plan, folder'):
      _exported(built, tmp_path / 'bundle')

  def test_a_simulation_that_would_have_to_train(self, bundle):
    with pytest.raises(ValueError, match='bring their updates, which a program of your own computes.*--train='):
      simulation.check_types(bundle, {0: _tensors(0)})
