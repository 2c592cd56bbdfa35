"""Tests of the certified mechanism behind `quap_tff.federated.aggregation`: its types, then rounds in a TFF context."""

import collections
import math

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from quap_tff.federated import leaving_clients
from quap_tff.federated.aggregation import CertifiedAggregationFactory
from quap_tff.mechanisms import mechanism as mechanisms
from quap_tff.mechanisms.certified import privacy_filter
from quap_tff.mechanisms.certified import rounds as certified
from quap_tff.mechanisms.certified import weight_rules
from quap_tff.mechanisms.certified.config import CertifiedConfig
from quap_tff.mechanisms.noise.correlation import Blt
from quap_tff.mechanisms.noise.correlation import Independent
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.parts.layers import Layer
from quap_tff.mechanisms.parts.participation import ParticipationConfig
from tests.quap_tff import noise_checks

pytestmark = pytest.mark.slow

_ID = tff.TensorType(np.int64)
_STRUCT_ID = tff.to_type(collections.OrderedDict(client_id=np.int64))
_VALUE = tff.to_type(
  collections.OrderedDict(conv=(np.float32, [2]), dense=collections.OrderedDict(kernel=(np.float32, [1, 2])))
)
_LAYERS = (Layer('conv', (0,), False), Layer('dense', (1,), True))
_MEASUREMENTS = collections.OrderedDict(
  round=np.int32,
  cohort_size=np.int32,
  clipping_norm=np.float32,
  noise_multiplier=np.float32,
  sigma=np.float32,
  exhausted_clients=np.int32,
  weight_mean=np.float32,
  weight_min=np.float32,
  spent_max=np.float32,
  participation_mean=np.float32,
  participation_stddev=np.float32,
  participation_min=np.float32,
  participation_max=np.float32,
  participation_never_seen=np.int32,
)
_QUANTILE = clip_rules.PrivateQuantile(0.5, 1.0, count_stddev=20.0)


_DEFAULTS = dict(
  num_clients=10,
  epsilon=3.0,
  delta=1e-5,
  noise_multiplier=4.0,
  divisor=2.0,
  noise_seed=3,
  weights=weight_rules.Uniform(),
)


def _config(**overrides):
  return CertifiedConfig(**{**_DEFAULTS, **overrides})


def _create(config, value_type=_VALUE, weight_type=_ID, layers=None):
  return CertifiedAggregationFactory(config, layers).create(value_type, weight_type)


def _value(conv, kernel):
  return collections.OrderedDict(
    conv=np.float32(conv), dense=collections.OrderedDict(kernel=np.float32(kernel).reshape([1, -1]))
  )


def _flat(value):
  return np.concatenate([np.ravel(v) for v in tf.nest.flatten(value)])


def _state_type(ema=False, terms=0):
  participation = collections.OrderedDict(counts=(np.int32, [10]))
  if ema:
    participation['rates'] = (np.float32, [10])
  return tff.FederatedType(
    tff.to_type(
      certified.ServerState(
        round=np.int32,
        participation=participation,
        clip=np.float32,
        noise=mechanisms.NoiseState(seed=(np.int64, [4]), counter=np.int64),
        buffers=[(np.int64, [terms, 4])] if terms else [],
        accounts=privacy_filter.Accounts(
          spent=(np.float64, [10]), sums=[(np.float64, [10])] * terms, latest=(np.int64, [10])
        ),
        weights=(np.float32, [10]),
      )
    ),
    tff.SERVER,
  )


class TestCertifiedAggregationComputation:
  @pytest.mark.parametrize('clip', [clip_rules.Fixed(1.0), _QUANTILE])
  @pytest.mark.parametrize('weight_type, ema', [(_ID, False), (_STRUCT_ID, True)])
  @pytest.mark.parametrize('correlation', [Independent(), Blt((0.3, 0.2), (0.9, 0.5))])
  def test_types(self, clip, weight_type, ema, correlation):
    config = _config(
      clip=clip,
      participation=ParticipationConfig('ema' if ema else 'cumulative'),
      correlation=correlation,
      num_rounds=3,
    )
    process = _create(config, weight_type=weight_type)
    assert isinstance(process, tff.templates.AggregationProcess) and process.is_weighted
    state = _state_type(ema, correlation.num_buffers)
    tff.test.assert_types_identical(process.initialize.type_signature, tff.FunctionType(None, state))
    expected = tff.FunctionType(
      collections.OrderedDict(
        state=state, value=tff.FederatedType(_VALUE, tff.CLIENTS), weight=tff.FederatedType(weight_type, tff.CLIENTS)
      ),
      tff.templates.MeasuredProcessOutput(
        state=state,
        result=tff.FederatedType(_VALUE, tff.SERVER),
        measurements=tff.FederatedType(tff.to_type(_MEASUREMENTS), tff.SERVER),
      ),
    )
    tff.test.assert_types_identical(process.next.type_signature, expected)

  @pytest.mark.parametrize(
    'value_type',
    [
      tff.to_type([(np.float32, [3, 2]), (np.float32, [2])]),
      tff.to_type(((np.float64, [3, 2]), (np.float32, [2]))),
      tff.TensorType(np.float32, [3, 2]),
    ],
  )
  def test_the_result_has_the_values_type_and_containers(self, value_type):
    process = _create(_config(), value_type)
    tff.test.assert_types_identical(process.next.type_signature.result.result.member, value_type)

  @pytest.mark.parametrize(
    'value_type, message',
    [
      (tff.TensorType(np.int32, [3]), 'Updates must be float tensors'),
      (tff.TensorType(np.float16, [3]), 'Updates must be float32 or float64'),
    ],
  )
  def test_values_that_are_refused(self, value_type, message):
    with pytest.raises(TypeError, match=message):
      _create(_config(), value_type)

  def test_weights_that_are_no_ids(self):
    with pytest.raises(TypeError, match='(?s)an integer scalar.*with_client_ids'):
      _create(_config(), weight_type=tff.TensorType(np.float32))

  def test_clients_send_their_norms_only_where_they_are_counted(self):
    def sent(clip):
      found = []

      def visit(block):
        if isinstance(block.type_signature, tff.FederatedType) and block.type_signature.placement == tff.CLIENTS:
          found.append(block.type_signature.member.compact_representation())
        for child in block.children():
          visit(child)

      visit(_create(_config(clip=clip)).next.to_building_block())
      return found

    assert not any('norm' in member for member in sent(clip_rules.Fixed(1.0)))
    assert any('norm=float32' in member for member in sent(_QUANTILE))

  @pytest.mark.parametrize('num_clients, report', [(10, 'int32[11]'), (20_000, 'int64')])
  def test_a_client_sends_its_id_and_its_update(self, num_clients, report):
    process = _create(_config(num_clients=num_clients))
    found = [str(member) for _, member in leaving_clients.leaving_clients(process.next)]
    assert found == [f'<client_id={report}>', '<int32[2],int32[1,2]>']


@pytest.mark.usefixtures('context')
class TestCertifiedAggregationExecution:
  @pytest.mark.parametrize('weight_type', [_ID, _STRUCT_ID])
  def test_what_clients_add_is_clipped_by_their_weights_and_divided(self, weight_type):
    # Rates are 1/2 and 1, α = 1, β = ln 4: weights 3/4 and 5/8. Norms 13 and 0.25.
    config = _config(
      weights=weight_rules.Participation(1.0, math.log(4)), participation=ParticipationConfig(warmup_rounds=0)
    )
    process = _create(config, weight_type=weight_type)
    as_id = (lambda i: i) if weight_type is _ID else (lambda i: collections.OrderedDict(client_id=i))
    state = process.next(process.initialize(), [_value([0, 0], [0, 0])], [as_id(9)]).state
    nothing = process.next(state, [_value([0, 0], [0, 0])] * 2, [as_id(3), as_id(9)])
    output = process.next(state, [_value([12, 0], [3, 4]), _value([0, 0], [0.25, 0])], [as_id(3), as_id(9)])
    added = np.array([12, 0, 3, 4]) / 13 * 0.75 + [0, 0, 0.25, 0]
    # The grid has 1024 steps. Half of one is lost by rounding each of two updates, and 2.5 as room for it.
    np.testing.assert_allclose(_flat(output.result) - _flat(nothing.result), added / 2, atol=3.5 / 1024 / 2)
    np.testing.assert_allclose(output.state.weights, [0, 0, 0, 0.75, 0, 0, 0, 0, 0, 0.625])
    tf.nest.map_structure(np.testing.assert_array_equal, output.state, nothing.state)
    tf.nest.map_structure(np.testing.assert_array_equal, output.measurements, nothing.measurements)
    assert list(output.measurements) == list(_MEASUREMENTS)

  @pytest.mark.parametrize('split', ['joint', 'equal', 'size'])
  @pytest.mark.parametrize('clip', [clip_rules.Fixed(0.5), _QUANTILE])
  def test_without_one_clients_data_the_sum_moves_by_at_most_its_weight_times_the_clip(self, split, clip):
    # Three rounds, each with one client's data taken away: the same noise, as cohort, state and seed are the same.
    config = _config(clip=clip, clip_split=split, weights=weight_rules.Participation(), divisor=1.0)
    process = _create(config, layers=_LAYERS)
    rng = np.random.default_rng(5)
    state = process.initialize()
    for cohort in ([1, 2, 3], [3], [3, 1]):
      values = [_value(*np.split(rng.standard_normal(4) * 10.0 ** rng.uniform(-2, 6), 2)) for _ in cohort]
      output = process.next(state, values, cohort)
      for i, client in enumerate(cohort):
        without = process.next(state, values[:i] + [_value([0, 0], [0, 0])] + values[i + 1 :], cohort)
        moved = np.linalg.norm(_flat(output.result).astype(np.float64) - _flat(without.result))
        clipping_norm = float(output.measurements['clipping_norm'])
        # Results are rounded to float32, at most half a unit of 32 for each of four entries.
        assert moved <= float(output.state.weights[client]) * clipping_norm + 4e-6
        # On the grid, entries of less than half of 1/1024 are nothing.
        assert (moved > 0) == (np.abs(_flat(values[i])).max() >= clipping_norm / 2048)
      state = output.state

  def test_noise_is_on_every_weight_and_the_same_after_resuming(self):
    value_type = tff.to_type([(np.float32, [300]), (np.float32, [40, 10])])
    process = _create(_config(noise_seed=None), value_type)
    zeros = [np.zeros([300], np.float32), np.zeros([40, 10], np.float32)]
    state = process.next(process.initialize(), [zeros], [4]).state
    kept = tf.nest.map_structure(np.array, state)
    first, second = (process.next(s, [zeros] * 2, [4, 5]) for s in (state, kept))
    for tensor in first.result:
      noise_checks.assert_gaussian(tensor, 2.0, noise_checks.UNSEEDED)
    np.testing.assert_array_equal(_flat(first.result), _flat(second.result))
    np.testing.assert_array_equal(first.state.accounts.spent, second.state.accounts.spent)
    following = process.next(first.state, [zeros] * 2, [4, 5])
    noise_checks.assert_uncorrelated(_flat(first.result), _flat(following.result), noise_checks.UNSEEDED, equal=3)

  def test_an_exhausted_client_makes_no_difference(self):
    config = _config(noise_multiplier=1.0)
    process = _create(config)
    state = process.next(process.initialize(), [_value([1, 0], [0, 0])], [7]).state
    outputs = [
      process.next(state, [_value([0.5, 0], [0, 0]), value], [1, 7])
      for value in (_value([0, 0], [0, 0]), _value([5, 6], [7, 8]), _value([math.nan, 6], [7, 8]))
    ]
    for output in outputs:
      assert output.measurements['exhausted_clients'] == 1 and output.state.weights[7] == 0.0
      np.testing.assert_array_equal(_flat(output.result), _flat(outputs[0].result))
    assert state.accounts.spent[7] <= config.prices.limit

  def test_the_order_of_the_cohort_does_not_matter(self):
    process = _create(_config())
    values, ids = [_value([0.25, 0], [0, 0]), _value([0, 0], [0.5, 0])], [3, 9]
    state = process.initialize()
    first, second = process.next(state, values, ids), process.next(state, values[::-1], ids[::-1])
    np.testing.assert_array_equal(_flat(first.result), _flat(second.result))

  def test_an_empty_cohort_releases_nothing(self):
    process = _create(_config(clip=_QUANTILE))
    output = process.next(process.initialize(), [], [])
    np.testing.assert_array_equal(_flat(output.result), np.zeros(4))
    assert output.measurements['cohort_size'] == 0 and output.state.round == 1

  def test_counts_are_charged_and_move_the_clip(self):
    process = _create(_config(clip=_QUANTILE))
    output = process.next(process.initialize(), [_value([9, 0], [0, 0])], [2])
    assert output.state.accounts.spent[2] == pytest.approx(1 / 16 + 1 / 1600, rel=1e-12)
    assert output.state.clip != 1.0 and output.measurements['clipping_norm'] == 1.0

  @pytest.mark.parametrize('ids, message', [([0, 10], 'Client ids must lie in'), ([4, 4], 'appears twice')])
  def test_bad_ids(self, ids, message):
    process = _create(_config())
    with pytest.raises(Exception, match=message):
      process.next(process.initialize(), [_value([0, 0], [0, 0])] * 2, ids)
