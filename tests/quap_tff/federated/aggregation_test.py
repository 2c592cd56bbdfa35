"""The types of `quap_tff.federated.aggregation`, and rounds in a TFF context beyond those of tests/contracts."""

import collections
import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from quap_tff.federated import aggregation
from quap_tff.federated import leaving_clients
from quap_tff.mechanisms import mechanism as mechanisms
from quap_tff.mechanisms.certified import privacy_filter
from quap_tff.mechanisms.certified import rounds as certified
from quap_tff.mechanisms.noise import correlation
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.parts import layers
from quap_tff.mechanisms.parts.participation import ParticipationConfig
from quap_tff.mechanisms.quap import rounds as quap
from quap_tff.mechanisms.quap.config import NoiseConfig
from tests.quap_tff import examples
from tests.quap_tff import noise_checks

pytestmark = pytest.mark.slow

_config = examples.quap
_ID = tff.TensorType(np.int64)
_STRUCT_ID = tff.to_type(collections.OrderedDict(client_id=np.int64))
_VALUE = tff.to_type(
  collections.OrderedDict(conv=(np.float32, [2]), dense=collections.OrderedDict(kernel=(np.float32, [1, 2])))
)
_PARTICIPATION_METRICS = dict(
  participation_mean=np.float32,
  participation_stddev=np.float32,
  participation_min=np.float32,
  participation_max=np.float32,
  participation_never_seen=np.int32,
)
_MEASUREMENTS = collections.OrderedDict(
  round=np.int32,
  cohort_size=np.int32,
  epsilon=np.float32,
  clipping_norm=np.float32,
  noise_multiplier=np.float32,
  sigma=np.float32,
  norm_p10=np.float32,
  norm_p50=np.float32,
  norm_p90=np.float32,
  norm_max=np.float32,
  clipped_fraction=np.float32,
  non_finite_updates=np.int32,
  signal_norm=np.float32,
  noise_norm=np.float32,
  noise_to_signal=np.float32,
  **_PARTICIPATION_METRICS,
)
_CERTIFIED_MEASUREMENTS = collections.OrderedDict(
  round=np.int32,
  cohort_size=np.int32,
  clipping_norm=np.float32,
  noise_multiplier=np.float32,
  sigma=np.float32,
  exhausted_clients=np.int32,
  weight_mean=np.float32,
  weight_min=np.float32,
  spent_max=np.float32,
  **_PARTICIPATION_METRICS,
)
_PREVIOUS_RULES = [
  clip_rules.QuantileEma(timing='previous', initial_clip=1.0),
  clip_rules.Fixed(1.0),
  clip_rules.PrivateQuantile(),
]


@functools.lru_cache(maxsize=16)
def _plain(config):
  """The process of a configuration, which tests share: it is a function of its state."""
  return aggregation.AggregationFactory(config).create(_VALUE, _ID)


def _create(config, value_type=_VALUE, weight_type=_ID, **keywords):
  if value_type is _VALUE and weight_type is _ID and not keywords:
    return _plain(config)
  return aggregation.AggregationFactory(config, **keywords).create(value_type, weight_type)


def _value(conv, kernel):
  return collections.OrderedDict(
    conv=np.float32(conv), dense=collections.OrderedDict(kernel=np.float32(kernel).reshape([1, -1]))
  )


def _participation(ema):
  counts = collections.OrderedDict(counts=(np.int32, [10]))
  return collections.OrderedDict(counts, rates=(np.float32, [10])) if ema else counts


def _quap_state(ema):
  noise = mechanisms.NoiseState(seed=(np.int64, [2]), counter=np.int64)
  return quap.QuapState(np.int32, _participation(ema), np.float32, noise, budget=collections.OrderedDict())


def _certified_state(ema, terms):
  return certified.CertifiedState(
    round=np.int32,
    participation=_participation(ema),
    clip=np.float32,
    noise=mechanisms.NoiseState(seed=(np.int64, [4]), counter=np.int64),
    buffers=[(np.int64, [terms, 4])] if terms else [],
    accounts=privacy_filter.Accounts((np.float64, [10]), [(np.float64, [10])] * terms, latest=(np.int64, [10])),
    weights=(np.float32, [10]),
  )


def _assert_types(process, state, weight_type, measurements):
  assert isinstance(process, tff.templates.AggregationProcess) and process.is_weighted
  state = tff.FederatedType(tff.to_type(state), tff.SERVER)
  tff.test.assert_types_identical(process.initialize.type_signature, tff.FunctionType(None, state))
  expected = tff.FunctionType(
    collections.OrderedDict(
      state=state, value=tff.FederatedType(_VALUE, tff.CLIENTS), weight=tff.FederatedType(weight_type, tff.CLIENTS)
    ),
    tff.templates.MeasuredProcessOutput(
      state=state,
      result=tff.FederatedType(_VALUE, tff.SERVER),
      measurements=tff.FederatedType(tff.to_type(measurements), tff.SERVER),
    ),
  )
  tff.test.assert_types_identical(process.next.type_signature, expected)


def _crossed(rows, columns):
  """Each row with one column or more, and thoroughly with every one."""
  for i, row in enumerate(rows):
    for j, column in enumerate(columns):
      marks = () if i % len(columns) == j else pytest.mark.thorough
      yield pytest.param(*(row if isinstance(row, tuple) else (row,)), *column, marks=marks)


class TestComputation:
  @pytest.fixture(autouse=True)
  def undrawn_and_not_kept(self, undrawn):
    """Types do not depend on the noise. Other tests draw it."""
    _plain.cache_clear()
    yield
    _plain.cache_clear()

  @pytest.mark.parametrize(
    'clip, weight_type, ema',
    _crossed(
      [clip_rules.QuantileEma(), *_PREVIOUS_RULES],
      [(_ID, False), (_STRUCT_ID, True), (tff.TensorType(np.int32), False)],
    ),
  )
  def test_types(self, clip, weight_type, ema):
    config = _config(clip=clip, participation=ParticipationConfig('ema' if ema else 'cumulative'), noise=NoiseConfig())
    _assert_types(_create(config, weight_type=weight_type), _quap_state(ema), weight_type, _MEASUREMENTS)

  @pytest.mark.parametrize(
    'clip, correlated, weight_type, ema',
    _crossed(
      [
        (clip_rules.Fixed(1.0), correlation.Blt((0.3, 0.2), (0.9, 0.5))),
        (clip_rules.PrivateQuantile(count_stddev=20.0), correlation.Independent()),
      ],
      [(_ID, False), (_STRUCT_ID, True)],
    ),
  )
  def test_types_of_the_certified_mechanism(self, clip, weight_type, ema, correlated):
    rates = ParticipationConfig('ema' if ema else 'cumulative')
    config = examples.noised(clip=clip, participation=rates, correlation=correlated, num_rounds=3)
    state = _certified_state(ema, correlated.num_buffers)
    _assert_types(_create(config, weight_type=weight_type), state, weight_type, _CERTIFIED_MEASUREMENTS)

  @pytest.mark.parametrize('num_clients, report', [(10, 'int32[11]'), (20_000, 'int64')])
  def test_of_the_certified_mechanism_a_client_sends_its_id_and_its_update(self, num_clients, report):
    process = _create(examples.noised(num_clients=num_clients))
    found = [str(member) for _, member in leaving_clients.leaving_clients(process.next)]
    assert found == [f'<client_id={report}>', '<int32[2],int32[1,2]>']

  @pytest.mark.thorough
  @pytest.mark.parametrize(
    'config',
    [
      pytest.param(_config(noise=NoiseConfig()), marks=pytest.mark.thorough),
      pytest.param(_config(noise=NoiseConfig('client')), marks=pytest.mark.thorough),
      examples.noised(),
    ],
  )
  @pytest.mark.parametrize(
    'value_type',
    [
      tff.to_type([(np.float32, [3, 2]), (np.float32, [2])]),
      tff.to_type(((np.float64, [3, 2]), (np.float32, [2]))),
      tff.to_type(collections.OrderedDict(z=[(np.float32, [3, 2])], a=(np.float64, []))),
      tff.TensorType(np.float32, [3, 2]),
    ],
  )
  def test_the_result_has_the_values_type_and_containers(self, value_type, config):
    process = _create(config, value_type)
    tff.test.assert_types_identical(process.next.type_signature.result.result.member, value_type)

  def test_float16_is_bounded_by_no_certified_mechanism(self):
    value_type = tff.to_type([(np.float32, [3, 2]), (np.float16, [])])
    tff.test.assert_types_identical(_create(_config(), value_type).next.type_signature.result.result.member, value_type)
    with pytest.raises(TypeError, match='Updates must be float32 or float64'):
      _create(examples.noised(), value_type)

  @pytest.mark.parametrize(
    'value_type',
    [
      tff.TensorType(np.int32, [3]),
      tff.to_type([np.float32, np.int32]),
      tff.to_type([np.str_]),
      tff.SequenceType(np.float32),
      tff.to_type([]),
    ],
  )
  def test_values_that_are_no_floats(self, value_type):
    with pytest.raises(TypeError, match='Updates must be float tensors or a struct of them, found'):
      _create(_config(), value_type)

  @pytest.mark.parametrize(
    'weight_type, message',
    [
      (tff.TensorType(np.float32), '(?s)an integer scalar, .* Found the type float32.*with_client_ids'),
      (tff.TensorType(np.int64, [1]), 'an integer scalar'),
      (
        tff.to_type(collections.OrderedDict(weight=np.float32)),
        "(?s)must carry the client's id as `client_id`.*client_ids.with_client_ids",
      ),
      (tff.to_type(collections.OrderedDict(client_id=np.float32)), 'an integer scalar'),
      (tff.SequenceType(np.int64), 'an integer scalar'),
    ],
  )
  def test_weights_that_are_no_ids(self, weight_type, message):
    with pytest.raises(TypeError, match=message):
      _create(_config(), weight_type=weight_type)

  def test_a_config_of_another_kind(self):
    with pytest.raises(
      TypeError, match='config must be a mechanism such as a quap_tff.QuapConfig, or a certified one, found dict'
    ):
      aggregation.AggregationFactory({})

  @pytest.mark.parametrize(
    'config, value_type, given, message',
    [
      (dict(update_scale='pseudo_gradient'), _VALUE, None, 'pass learning_rate_fn'),
      (dict(critical_layers='dens'), _VALUE, None, "Unknown critical layer 'dens'. Did you mean 'dense'"),
      ({}, tff.TensorType(np.float32, [3]), None, 'the model has no Dense layer'),
      (
        {},
        _VALUE,
        [layers.Layer('dense', (0,), True)],
        r"The value has 2 tensors, but the layers given have 1: \['dense'\]",
      ),
    ],
  )
  def test_values_that_do_not_fit_the_config(self, config, value_type, given, message):
    with pytest.raises(ValueError, match=message):
      _create(_config(**config), value_type, layers=given)

  @pytest.mark.thorough
  @pytest.mark.parametrize('clip', [clip_rules.QuantileEma(), clip_rules.Fixed(1.0)])
  def test_what_clients_send_and_get_does_not_grow_with_the_population(self, clip):
    def at_clients(num_clients):
      process = _create(_config(num_clients=num_clients, clip=clip, noise=NoiseConfig()))
      sent = []

      def visit(block):
        if isinstance(block.type_signature, tff.FederatedType) and block.type_signature.placement == tff.CLIENTS:
          sent.append(block.type_signature.compact_representation())

      _visit(process.next.to_building_block(), visit)
      return sent

    small, large = at_clients(10), at_clients(10**6)
    assert len(small) > 3
    assert small == large


def _visit(block, visitor):
  visitor(block)
  for child in block.children():
    _visit(child, visitor)


@pytest.mark.usefixtures('context')
class TestExecution:
  @pytest.mark.parametrize(
    'clip, weight_type',
    [
      (clip_rules.QuantileEma(quantile=0.0, min_clip=1.0), _ID),
      pytest.param(_PREVIOUS_RULES[0], _STRUCT_ID, marks=pytest.mark.thorough),
    ],
  )
  def test_by_hand(self, clip, weight_type):
    # Norms 5 and 1, clipped to 1.
    process = _create(_config(clip=clip), weight_type=weight_type)
    ids = [3, 9] if weight_type is _ID else [collections.OrderedDict(client_id=i) for i in (3, 9)]
    output = process.next(process.initialize(), [_value([1, 2], [3, 4]), _value([3, 4], [0, 1])], ids)
    np.testing.assert_array_equal(output.result['conv'], [2, 3])
    np.testing.assert_allclose(output.result['dense']['kernel'], [[0.3, 0.9]], rtol=1e-6)
    assert list(output.measurements) == list(_MEASUREMENTS)
    assert output.measurements['clipping_norm'] == 1.0
    assert output.measurements['clipped_fraction'] == 0.5
    assert output.measurements['norm_max'] == 5.0
    np.testing.assert_array_equal(output.state.participation['counts'], [0, 0, 0, 1, 0, 0, 0, 0, 0, 1])
    assert output.state.round == 1

  def test_the_final_dense_layer_is_the_last_declared_one_whatever_its_name(self):
    value_type = tff.to_type(
      collections.OrderedDict(
        hidden=collections.OrderedDict(kernel=(np.float32, [1, 2]), bias=(np.float32, [2])),
        classifier=collections.OrderedDict(kernel=(np.float32, [1, 2]), bias=(np.float32, [2])),
      )
    )
    process = _create(_config(noise=NoiseConfig(seed=0)), value_type)
    zeros = collections.OrderedDict(kernel=np.zeros([1, 2], np.float32), bias=np.zeros([2], np.float32))
    value = collections.OrderedDict(hidden=zeros, classifier=zeros)
    result = process.next(process.initialize(), [value], [0]).result
    assert not np.any(result['hidden']['kernel']) and not np.any(result['hidden']['bias'])
    assert np.all(result['classifier']['kernel']) and np.all(result['classifier']['bias'])

  def test_given_layers_decide_what_is_critical(self):
    named = [layers.Layer('first', (0,), True), layers.Layer('second', (1,), False)]
    value_type = tff.to_type([(np.float32, [1, 2]), (np.float32, [1, 2])])
    value = [np.float32([[3, 4]]), np.float32([[3, 4]])]
    for selection, expected in (('final_dense', (1, 5)), ('all', (2**-0.5, 2**-0.5))):
      process = _create(_config(critical_layers=selection), value_type, layers=named)
      result = process.next(process.initialize(), [value], [0]).result
      np.testing.assert_allclose([np.linalg.norm(r) for r in result], expected, rtol=1e-6)

  @pytest.mark.parametrize('placement', ['server', pytest.param('client', marks=pytest.mark.thorough)])
  def test_the_low_bits_of_the_noise_do_not_confirm_a_guess(self, placement):
    """An attacker who knows every other update can subtract a guess of one: the rest must not show that it is right."""
    value_type = tff.to_type([(np.float32, [100, 200])])
    noise = NoiseConfig(placement, seed=5)
    config = _config(noise=noise, clip=clip_rules.Fixed(1.0), critical_layers='all')
    process = _create(config, value_type)
    update = np.random.default_rng(0).normal(0, 1e-3, [100, 200]).astype(np.float32)
    output = process.next(process.initialize(), [[update]], [0])
    left = (output.result[0].astype(np.float64) - update) / float(output.measurements['sigma'])
    # 0.03 for TensorFlow's own float32 normal numbers, 0.25 for numbers that show nothing.
    assert noise_checks.distance_from_the_float32_grid(left) > 0.22

  def test_unseeded_processes_and_initializations_differ(self):
    config = _config(noise=NoiseConfig())
    first, second = (aggregation.AggregationFactory(config).create(_VALUE, _ID) for _ in range(2))
    seeds = {tuple(p.initialize().noise.seed) for p in (first, first, second, second)}
    assert len(seeds) == 4


class _CountingSum(tff.aggregators.UnweightedAggregationFactory):
  """A sum that counts its rounds, to show that it was really used, and that its state is kept."""

  def create(self, value_type):
    count = tff.tensorflow.computation(lambda: np.int32(0))
    add_one = tff.tensorflow.computation(lambda n: n + 1, np.int32)

    @tff.federated_computation
    def init_fn():
      return tff.federated_eval(count, tff.SERVER)

    @tff.federated_computation(init_fn.type_signature.result, tff.FederatedType(value_type, tff.CLIENTS))
    def next_fn(state, value):
      return tff.templates.MeasuredProcessOutput(
        tff.federated_map(add_one, state), tff.federated_sum(value), tff.federated_value((), tff.SERVER)
      )

    return tff.templates.AggregationProcess(init_fn, next_fn)


class TestInnerSum:
  @pytest.mark.parametrize(
    'clip, placement',
    [(clip_rules.QuantileEma(), 'server'), pytest.param(clip_rules.Fixed(1.0), 'client', marks=pytest.mark.thorough)],
  )
  def test_takes_the_place_of_the_sum(self, context, clip, placement):
    config = _config(clip=clip, noise=NoiseConfig(placement, seed=1))
    plain, counting = _create(config), _create(config, inner_sum=_CountingSum())
    values, ids = [_value([1, 2], [3, 4]), _value([1, 0], [0, 4])], [2, 5]
    expected, found = plain.initialize(), counting.initialize()
    for round_num in (1, 2):
      expected, found = (
        plain.next(getattr(expected, 'state', expected), values, ids),
        counting.next(getattr(found, 'state', found), values, ids),
      )
      assert found.state.inner_sum == round_num
      tf.nest.map_structure(np.testing.assert_array_equal, found.state.mechanism, expected.state)
      tf.nest.map_structure(np.testing.assert_array_equal, found.result, expected.result)

  @pytest.mark.thorough
  def test_a_secure_sum(self):
    process = _create(_config(), inner_sum=tff.aggregators.SecureSumFactory(1.0, -1.0))
    values = [_value([0.1, 0.2], [0.3, 0.4]), _value([0.1, 0.2], [3, 4])]
    # Installed for the block only: TFF's worker ends with it.
    with tff.framework.get_context_stack().install(tff.backends.test.create_sync_test_cpp_execution_context()):
      output = process.next(process.initialize(), values, [1, 2])
    np.testing.assert_allclose(output.result['dense']['kernel'], [[0.45, 0.6]], atol=1e-6)
    np.testing.assert_array_equal(np.flatnonzero(output.state.mechanism.participation['counts']), [1, 2])

  def test_what_is_no_sum(self):
    with pytest.raises(TypeError, match='inner_sum must be a tff.aggregators.UnweightedAggregationFactory.*found Mean'):
      aggregation.AggregationFactory(_config(), inner_sum=tff.aggregators.MeanFactory())

    class First(tff.aggregators.UnweightedAggregationFactory):
      def create(self, value_type):
        return tff.aggregators.SumFactory().create(value_type[0])

    with pytest.raises(TypeError, match='inner_sum must return what it sums'):
      _create(_config(), inner_sum=First())
