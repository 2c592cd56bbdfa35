"""TFF's aggregators behind our client work: they compute what TFF computes, and a run's account is TFF's own."""

import collections
import dataclasses
import functools
import math
import types

from dp_accounting import pld
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from data import cohorts
import quap_tff
from quap_tff import accounting
from quap_tff.federated.stock import aggregation as stock_aggregation
from quap_tff.federated.stock import stock as stocks
from quap_tff.mechanisms.parts import layers
from quap_tff.mechanisms.parts.budgets import BudgetConfig
from quap_tff.mechanisms.quap.config import NoiseConfig
from quap_tff.plans import scheduled
from tests.quap_tff import noise_checks

pytestmark = pytest.mark.usefixtures('context')

_FACTORY = tff.aggregators.DifferentiallyPrivateFactory
_extract_event = tff.aggregators.differential_privacy.extract_dp_event_from_state
_VALUE = tff.to_type([(np.float32, [2]), (np.float32, [1]), (np.float32, [2])])
_WEIGHT = tff.to_type(collections.OrderedDict(client_id=np.int64))
_LAYERS = (layers.Layer('conv', (0, 1), False), layers.Layer('dense', (2,), False))
_MODEL = layers.ModelShape(_LAYERS, ((2,), (1,), (2,)))
_STOCK = {
  'tff_dp_fedavg': stocks.DpFedAvg(),
  'tff_dp_fedavg_adaptive': stocks.DpFedAvgAdaptive(),
  'tff_layerwise_adaptive': stocks.LayerwiseAdaptive(),
  'tff_dp_ftrl': stocks.DpFtrl(),
}
_SPECS = list(_STOCK)
# One whose rounds are independent, and the tree; the others are thorough.
_SOME = [s if s in ('tff_dp_fedavg', 'tff_dp_ftrl') else pytest.param(s, marks=pytest.mark.thorough) for s in _SPECS]
_FIRST = [_SOME[0], *(pytest.param(spec, marks=pytest.mark.thorough) for spec in _SPECS if spec != _SOME[0])]
# Noise too small to be seen.
_SILENT = 1e-9


def _config(rounds=6, **flags):
  return quap_tff.QuapConfig(8, BudgetConfig(epsilon_total=3.0, num_rounds=rounds), **flags)


def _plan(
  spec, participation='uniform', rounds=6, calibration='documents', client_metrics=True, secret=False, seed=3, **flags
):
  model = cohorts.make(participation, 8, 4, seed)
  return scheduled.stock_plan(
    _STOCK.get(spec, spec),
    _config(rounds, **flags),
    [model.cohort(t) for t in range(1, rounds + 1)],
    model.mean_cohort_size,
    dataclasses.replace(model.sampler, secret=secret),
    calibration=calibration,
    client_metrics=client_metrics,
    model=_MODEL,
  )


def _aggregator(spec, noise_multiplier, clients_per_round=2.0):
  config = _config(noise=NoiseConfig(seed=5))
  stock = _STOCK.get(spec, spec)
  exposure = stocks.Exposure()
  settled = stocks.Stock(
    stock, config, noise_multiplier, clients_per_round, 6, exposure, is_exact=False, is_planned=False
  )
  return settled.aggregator_of(_MODEL)


def _output(**measurements):
  return None, measurements


def _metrics(plan, **measurements):
  return plan.metrics(types.SimpleNamespace(metrics=dict(aggregator=measurements)))


def _process(stock, value_type=_VALUE):
  return stock_aggregation.StockAggregationFactory(stock).create(value_type, _WEIGHT)


def _update(*leaves):
  return [np.float32(leaf) for leaf in leaves]


def _next(process, state, updates):
  return process.next(state, updates, [collections.OrderedDict(client_id=np.int64(i)) for i in range(len(updates))])


@pytest.mark.slow
class TestTypes:
  @pytest.mark.parametrize('spec', _FIRST)
  def test_fits_our_client_work_and_checkpoints(self, spec):
    process = _process(_aggregator(spec, 1.0))
    assert process.is_weighted
    result = process.next.type_signature.result
    tff.test.assert_types_identical(result.result, tff.FederatedType(_VALUE, tff.SERVER))
    measurements = collections.OrderedDict(
      round=np.int32, cohort_size=np.int32, clipping_norms=(np.float32, [2 if 'layerwise' in spec else 1])
    )
    tff.test.assert_types_identical(result.measurements, tff.FederatedType(tff.to_type(measurements), tff.SERVER))
    leaves = tf.nest.flatten(tff.types.type_to_tf_tensor_specs(result.state.member))
    assert all(leaf.shape.is_fully_defined() and leaf.dtype != tf.string for leaf in leaves)
    # Several workers can share a round.
    tff.backends.native.compile_to_mergeable_comp_form(process.next)


# The noise of the sum over z.
_FACTORS = [
  ('tff_dp_fedavg', 1.0),
  # s = 2·z, and a client's data move the count by 1: the sum's part of z is z·√(4/3).
  ('tff_dp_fedavg_adaptive', math.sqrt(4 / 3)),
  # Two layers share it.
  ('tff_layerwise_adaptive', math.sqrt(2) * math.sqrt(4 / 3)),
  # The first difference is the first leaf's noise.
  ('tff_dp_ftrl', 1.0),
]


def _first(factors):
  """The first; the others are thorough."""
  return [factors[0], *(pytest.param(*one, marks=pytest.mark.thorough) for one in factors[1:])]


@pytest.mark.slow
class TestValues:
  def test_fixed_clip_by_hand(self):
    # Norms 5, 0.5, one not finite, and one whose square is too large for TFF's float32: clipped to 1, as it is, nothing
    # of the last two; divided by the constant 2.
    process = _process(_aggregator('tff_dp_fedavg', _SILENT))
    updates = [
      _update([3, 0], [0], [0, 4]),
      _update([0.3, 0], [0], [0, 0.4]),
      _update([1, 1], [math.nan], [1, 1]),
      _update([1e30, 1], [0], [1, 1]),
    ]
    output = _next(process, process.initialize(), updates)
    for found, expected in zip(output.result, [[0.45, 0], [0], [0, 0.6]]):
      np.testing.assert_allclose(found, expected, atol=1e-6)
    assert output.measurements['cohort_size'] == 4 and output.measurements['clipping_norms'].tolist() == [1.0]

  def test_no_sum_is_released_where_float32_norms_bound_nothing(self):
    # Each entry's square is 0 in float32, and so is TFF's norm.
    stock = stocks.DpFedAvgAdaptive(initial_clip=2e-10, learning_rate=2.0, clipped_count_stddev=2 * _SILENT)
    process = _process(_aggregator(stock, _SILENT))
    state, released = process.initialize(), []
    for _ in range(2):
      output = _next(process, state, [_update([8e-20, 0], [0], [0, 8e-20])] * 2)
      state = output.state
      released.append((float(output.measurements['clipping_norms'][0]) >= 1e-10, bool(np.any(output.result[0] != 0))))
    assert released == [(True, True), (False, False)]

  @pytest.mark.parametrize('clip', [1e-11, 1e20])
  @pytest.mark.parametrize(
    'stock',
    [
      lambda clip: stocks.DpFedAvg(clip),
      lambda clip: stocks.DpFedAvgAdaptive(initial_clip=clip),
      lambda clip: stocks.LayerwiseAdaptive(initial_clip=clip),
      lambda clip: stocks.DpFtrl(clip),
    ],
  )
  def test_a_clip_that_float32_norms_do_not_keep_is_refused(self, stock, clip):
    with pytest.raises(ValueError, match="TFF's aggregators must be a finite number at least 1e-10 and at most 1e.19"):
      _plan(stock(clip))

  def test_adaptive_clip_moves_toward_the_quantile(self):
    # All norms are above the clip: it grows by exp(0.2·0.5) in each round; what is measured is the round's own.
    process = _process(_aggregator(stocks.DpFedAvgAdaptive(clipped_count_stddev=2 * _SILENT), _SILENT))
    state, norms = process.initialize(), []
    for _ in range(3):
      output = _next(process, state, [_update([30, 0], [0], [0, 40])] * 2)
      state = output.state
      norms += output.measurements['clipping_norms'].tolist()
      np.testing.assert_allclose(output.result[0], [0.6 * norms[-1], 0], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(norms, np.exp([0, 0.1, 0.2]), rtol=1e-5)

  def test_layer_by_layer(self):
    # The first layer (norm 5, two tensors) is clipped, the second one (norm 0.5) is not, and their clips part.
    process = _process(_aggregator(stocks.LayerwiseAdaptive(clipped_count_stddev=1e-6), _SILENT))
    output = _next(process, process.initialize(), [_update([3, 0], [4], [0.3, 0.4])] * 2)
    for found, expected in zip(output.result, [[0.6, 0], [0.8], [0.3, 0.4]]):
      np.testing.assert_allclose(found, expected, atol=1e-5)
    following = _next(process, output.state, []).measurements['clipping_norms']
    np.testing.assert_allclose(following, np.exp([0.1, -0.1]), rtol=1e-4)

  @pytest.mark.parametrize('spec, factor', _first(_FACTORS))
  def test_noise(self, spec, factor):
    value_type = tff.to_type([(np.float32, [2000]), (np.float32, [1]), (np.float32, [2000])])
    process = _process(_aggregator(spec, 3.0, clients_per_round=4.0), value_type)
    zeros = _update(np.zeros(2000), np.zeros(1), np.zeros(2000))
    first, second = (_next(process, process.initialize(), [zeros]).result for _ in range(2))
    # TFF's noise takes no seed.
    noise_checks.assert_gaussian(np.concatenate(first), factor * 3.0 / 4.0, noise_checks.UNSEEDED)
    noise_checks.assert_uncorrelated(first[0], first[2], noise_checks.UNSEEDED)
    if spec != 'tff_dp_ftrl':
      noise_checks.assert_uncorrelated(first[0], second[0], noise_checks.UNSEEDED)

  @pytest.mark.parametrize('spec', _SOME)
  def test_a_round_that_would_be_another_if_it_were_run_again_is_saved_before_its_release(self, spec):
    process = _process(_aggregator(spec, 1.0))
    state, updates = process.initialize(), [_update([3, 0], [0], [0, 4])]
    first, again = (np.concatenate(_next(process, state, updates).result) for _ in range(2))
    assert _plan(spec).mechanism.facts.is_saved_before_release == bool(np.any(first != again))

  @pytest.mark.parametrize('spec, factor', _first(_FACTORS[:3]))
  def test_a_round_with_nobody_releases_the_same_noise(self, spec, factor):
    value_type = tff.to_type([(np.float32, [2000]), (np.float32, [1]), (np.float32, [2000])])
    process = _process(_aggregator(spec, 3.0, clients_per_round=4.0), value_type)
    empty, zeros = [], [_update(np.zeros(2000), np.zeros(1), np.zeros(2000))]
    nobody, somebody = (_next(process, process.initialize(), updates) for updates in (empty, zeros))
    for output in (nobody, somebody):
      noise_checks.assert_gaussian(np.concatenate(output.result), factor * 3.0 / 4.0, noise_checks.UNSEEDED)
    for leaf in tf.nest.flatten(nobody.state):
      assert np.all(np.isfinite(leaf))

  def test_a_round_with_nobody_is_no_leaf_of_a_tree(self):
    spec = 'tff_dp_ftrl'
    process = stock_aggregation.StockAggregationFactory(_aggregator(spec, 3.0), False).create(_VALUE, _WEIGHT)
    state = _next(process, process.initialize(), [_update([3, 0], [0], [0, 4])]).state
    output = _next(process, state, [])
    assert not any(np.any(u) for u in output.result)
    assert (state['round'], output.state['round']) == (1, 2)
    for before, after in zip(tf.nest.flatten(state['query']), tf.nest.flatten(output.state['query'])):
      np.testing.assert_array_equal(before, after)

  def test_the_tree_is_tffs_own(self):
    specs = tff.types.type_to_tf_tensor_specs(_VALUE)
    stock = _FACTORY.tree_aggregation(2.0, 2.0, 1.0, specs, noise_seed=5).create(_VALUE)
    tree = stock_aggregation.tree(2.0, 2.0, 1.0, rounds=8, seed=5)
    ours = stock_aggregation.StockAggregationFactory(tree, noises_empty_rounds=False).create(_VALUE, _WEIGHT)
    stock_state, state = stock.initialize(), ours.initialize()
    update = _update([0.3, 0], [0], [0, 0.4])
    for round_num in range(1, 10):
      if round_num == 3:
        state = _next(ours, state, []).state  # No leaf of the tree.
        continue
      expected, found = stock.next(stock_state, [update]), _next(ours, state, [update])
      stock_state, state = expected.state, found.state
      for e, f in zip(expected.result, found.result):
        np.testing.assert_array_equal(e, f)


class TestAccount:
  @pytest.mark.slow
  @pytest.mark.parametrize('spec', _SPECS[:1] + [pytest.param(s, marks=pytest.mark.thorough) for s in _SPECS[1:3]])
  def test_is_that_of_tffs_events(self, spec):
    plan = _plan(spec)
    stock = _aggregator(spec, plan.mechanism.noise_multiplier, 4.0)
    record_type = tff.to_type(stock.grouped(_VALUE))
    inner = stock.factory(record_type).create(record_type)
    record = stock.grouped(_update([3, 0], [0], [0, 4]))
    event = _extract_event(inner.next(inner.initialize(), [record]).state)
    accountant = pld.PLDAccountant().compose(event, 6)
    ours = accounting.account(accounting.History.gaussian(plan.mechanism.noise_multiplier, 6), 1e-5, ['pld'])['pld']
    if spec == 'tff_dp_fedavg':
      np.testing.assert_allclose(accountant.get_epsilon(1e-5), ours.epsilon, rtol=1e-3)
    else:
      # TFF's account is for a record that is added or removed, which moves the count by 1/2 only.
      assert ours.epsilon * 0.8 < accountant.get_epsilon(1e-5) < ours.epsilon
    record = plan.recorded(*_output(round=1, cohort_size=4, clipping_norms=np.ones(1)), np.array([1, 2, 5, 7]))
    assert record.noise_multiplier == plan.mechanism.noise_multiplier and record.weights.tolist() == [1.0] * 4
    assert record.budgets.tolist() == [0.5] * 4 and record.count_noise_multiplier == math.inf

  @pytest.mark.parametrize('spec', _SPECS[:3])
  @pytest.mark.parametrize('factor', [1e-3, 1.0, 1e3])
  def test_covers_a_client_without_data_in_place_of_one_with(self, spec, factor):
    """What a client moves of a round's sum and counts, each over its noise, is at most 1/z, and comes to it."""
    z = 3.0
    stock = _aggregator(spec, z, clients_per_round=4.0)
    query = stock.factory(tff.to_type(stock.grouped(_VALUE)))._query
    state = query.initial_global_state()
    specs = tf.nest.map_structure(lambda leaf: tf.TensorSpec(np.shape(leaf), tf.float32), _update([3, 0], [4], [6, 8]))
    template = stock.grouped([tf.zeros(spec.shape) for spec in specs])

    def released(update):
      sample = query.initial_sample_state(template)
      record = query.preprocess_record(query.derive_sample_params(state), stock.grouped(update))
      sample = query.accumulate_preprocessed_record(sample, record)
      return [np.asarray(leaf, np.float64) for leaf in tf.nest.flatten(sample)]

    scaled = [np.float32(factor) * leaf for leaf in _update([3, 0], [4], [6, 8])]
    zeros = [np.zeros_like(leaf) for leaf in scaled]
    moved = [a - b for a, b in zip(released(scaled), released(zeros))]
    sum_stddev = stock.value_noise_multiplier  # Clipping norms are 1.
    # The noise of the counts makes up the rest of z.
    layers = 2 if spec == 'tff_layerwise_adaptive' else 1
    count_stddev = max((z**-2 / layers - sum_stddev**-2), 1e-30) ** -0.5
    mu = math.sqrt(sum(np.sum(np.square(leaf / (count_stddev if leaf.ndim == 0 else sum_stddev))) for leaf in moved))
    assert mu <= 1 / z * (1 + 1e-5)
    if factor > 1:
      assert mu == pytest.approx(1 / z, rel=1e-5)

  @pytest.mark.parametrize('spec', _SPECS)
  @pytest.mark.parametrize('participation', ['uniform', 'beta_bernoulli'])
  def test_exact_lets_the_most_exposed_client_spend_epsilon(self, spec, participation):
    plan = _plan(spec, participation, calibration='exact')
    model = cohorts.make(participation, 8, 4, 3)
    ledger = plan.planned_ledger([model.cohort(t) for t in range(1, 7)])
    epsilon = [
      accounting.ACCOUNTANTS['gaussian_exact'].epsilon(history, 1e-5)
      for history in accounting.histories(ledger).histories
    ]
    assert 3 * (1 - 1e-3) < max(epsilon) <= 3
    assert plan.mechanism.noise_multiplier < _plan(spec, participation).mechanism.noise_multiplier

  def test_the_trees_is_that_of_its_nodes(self):
    # Always there, six rounds: six leaves, three nodes of two rounds, one of four.
    plan = _plan('tff_dp_ftrl', 'full')
    mu = accounting.total_mu(plan.planned_ledger([np.arange(8)] * 6)).whole
    np.testing.assert_allclose(mu, math.sqrt(6 + 3 * 4 + 16) / plan.mechanism.noise_multiplier, rtol=1e-6)

  def test_documents_noise(self):
    formula = math.sqrt(2 * math.log(1.25e5)) / 0.5
    for spec in _SPECS[:3]:
      assert _plan(spec).mechanism.noise_multiplier == pytest.approx(formula, rel=1e-6)
    # Six rounds: a round is a leaf and two nodes above it.
    assert _plan('tff_dp_ftrl').mechanism.noise_multiplier == pytest.approx(math.sqrt(3) * formula, rel=1e-6)

  @pytest.mark.parametrize('spec, is_noised', [('tff_dp_fedavg', True), ('tff_dp_ftrl', False)])
  def test_a_round_with_nobody_costs_nothing(self, spec, is_noised):
    plan = _plan(spec, 'bernoulli:q=0.5')
    row = _metrics(plan, round=2, cohort_size=0, clipping_norms=np.float32([1.0]))
    assert (
      row['epsilon'] == 0 and (row['noise_multiplier'] > 0) == is_noised == plan.mechanism.facts.noises_empty_rounds
    )
    if is_noised:
      record = plan.recorded(*_output(round=2, cohort_size=0, clipping_norms=np.float32([1.0])), np.zeros(0, np.int64))
      assert record.noise_multiplier == plan.mechanism.noise_multiplier and not len(record.budgets)
      assert row['sigma'] == pytest.approx(plan.mechanism.noise_multiplier / 4)

  @pytest.mark.slow
  @pytest.mark.parametrize(
    'spec, participation, calibration, secret, earns',
    [
      ('tff_dp_fedavg', 'bernoulli:q=0.5', 'documents', True, True),
      ('tff_dp_fedavg', 'bernoulli:q=0.5', 'documents', False, False),
      ('tff_dp_fedavg', 'uniform', 'exact', True, False),
      pytest.param('tff_dp_fedavg', 'bernoulli:q=0.5', 'exact', True, True, marks=pytest.mark.thorough),
      pytest.param('tff_dp_fedavg', 'bernoulli:q=0.5', 'exact', False, False, marks=pytest.mark.thorough),
      pytest.param('tff_dp_ftrl', 'bernoulli:q=0.5', 'documents', True, False, marks=pytest.mark.thorough),
      pytest.param('tff_dp_fedavg', 'full', 'documents', True, False, marks=pytest.mark.thorough),
    ],
  )
  def test_what_the_sampler_earns_is_said_by_the_plan(self, spec, participation, calibration, secret, earns):
    plan = _plan(spec, participation, calibration=calibration, client_metrics=False, secret=secret)
    ledger = plan.planned_ledger([np.arange(4)] * 6) if spec != 'tff_dp_ftrl' else plan.new_ledger()
    found = {figure.amplification != 'none' for figure in plan.report(ledger).formal.figures}
    assert found == {earns}
    assert plan.no_amplification is None if earns else plan.no_amplification

  @pytest.mark.thorough
  @pytest.mark.slow
  def test_the_noise_of_secret_cohorts_follows_from_rates_alone(self):
    exact = functools.partial(_plan, 'tff_dp_fedavg', calibration='exact', client_metrics=False, secret=True)
    plan = exact('beta_bernoulli')
    rates = cohorts.make('beta_bernoulli', 8, 4, 3).sampler.rates
    assert plan.mechanism.noise_multiplier == accounting.sampled_noise_multiplier(rates, 6, 3.0, 1e-5)
    report = plan.report(plan.planned_ledger([[0, 1]] * 6)).formal
    assert 3 * (1 - 1e-3) < report.epsilon.max() <= 3 and report.epsilon.argmax() == rates.argmax()
    smallest = min(figure.epsilon_max for figure in report.figures)
    assert smallest == report.epsilon.max() and {figure.accountant for figure in report.figures} == {'rdp', 'pld'}

  @pytest.mark.slow
  @pytest.mark.thorough
  def test_the_noise_of_secret_cohorts_follows_from_no_draw(self):
    exact = functools.partial(_plan, 'tff_dp_fedavg', calibration='exact', client_metrics=False, secret=True)
    assert exact('bernoulli', seed=4).mechanism.noise_multiplier == exact('bernoulli').mechanism.noise_multiplier

  @pytest.mark.slow
  def test_of_secret_cohorts_nothing_is_public_that_follows_from_them(self):
    plan = _plan('tff_dp_fedavg', 'bernoulli', client_metrics=False, secret=True)
    norms = {'clipping_norm', 'clipping_norm_conv', 'clipping_norm_dense'}
    assert plan.public_metrics == {'noise_multiplier', 'sigma', *norms} and not plan.has_nominal
    # A run that ended early: its bound is the plan's, and its reading follows from rates, too.
    schedules = [[0, 1]] * 6, [[], range(8)] * 3
    reports = [plan.report(plan.planned_ledger(cohorts).truncated(2), cohorts) for cohorts in schedules]
    assert reports[0].as_dict() == reports[1].as_dict() and reports[0].nominal_epsilon is None
    formal = reports[0].formal
    assert formal.epsilon.max() == plan.report(plan.planned_ledger(schedules[0])).formal.epsilon.max()
    assert 0 < formal.reading.epsilon.max() < formal.epsilon.max()

  def test_columns(self):
    norms = np.float32([3.0, 4.0])
    row = _metrics(_plan('tff_layerwise_adaptive'), round=2, cohort_size=4, clipping_norms=norms)
    assert row['clipping_norm'] == 5 and row['clipping_norm_conv'] == 3 and row['epsilon'] == 0.5
    assert set(row) <= _plan('tff_layerwise_adaptive').public_metrics and 'sigma' not in row
    fixed = _plan('tff_dp_fedavg')
    row = _metrics(fixed, round=2, cohort_size=3, clipping_norms=np.float32([2.0]))
    # By the mean cohort of four, and not by the number who came.
    assert row['sigma'] == pytest.approx(fixed.mechanism.noise_multiplier * 2 / 4)

  @pytest.mark.parametrize('spec', _SPECS)
  def test_protection(self, spec):
    assert _plan(spec).protection.covers == accounting.COVERS[1]
    protection = _plan(spec, client_metrics=False).protection
    assert protection.covers == accounting.COVERS[0] and protection.model_protected
    assert ('takes no seed' in protection.text) == (spec != 'tff_dp_ftrl')
    note = _plan(spec).mechanism.facts.noise_note
    assert 'ideal' in note and 'float32' in note and ('32 random bits' in note) == (spec != 'tff_dp_ftrl')

  def test_another_calibration_is_another_run_for_the_ledger(self):
    documents, exact = (_plan('tff_dp_fedavg', calibration=c) for c in scheduled.CALIBRATIONS)
    assert documents.fingerprint != exact.fingerprint
    assert documents.fingerprint != _plan(stocks.DpFedAvg(clip=2)).fingerprint
    assert documents.has_nominal and not exact.has_nominal


class TestConfig:
  @pytest.mark.parametrize('spec', _SPECS)
  def test_what_does_not_apply_is_settled(self, spec):
    config = _plan(
      spec, critical_layers='final_dense', max_agg_norm=1.0, update_scale='pseudo_gradient', clip_scope='all_layers'
    ).config
    assert (config.critical_layers, config.budget.round_rule, config.update_scale) == ('all', 'uniform', 'delta')
    assert config.max_agg_norm is None and not config.clip.uses_current_norms

  def test_refusals(self):
    noise = NoiseConfig
    with pytest.raises(ValueError, match='--noise_seed out'):
      _plan('tff_dp_fedavg', noise=noise(seed=1))
    assert _plan('tff_dp_ftrl', noise=noise(seed=1)).config.noise.seed == 1
    with pytest.raises(ValueError, match='--noise=client'):
      _plan('tff_dp_fedavg_adaptive', noise=noise('client'))
    with pytest.raises(ValueError, match='mean size of these cohorts is not known'):
      _plan('tff_dp_fedavg', 'markov')
    with pytest.raises(ValueError, match='clipped_count_stddev must be greater than'):
      _plan(stocks.DpFedAvgAdaptive(clipped_count_stddev=9)).aggregator
    for make in (
      lambda: stocks.DpFedAvg(clip=0),
      lambda: stocks.DpFtrl(clip=-1),
      lambda: stocks.LayerwiseAdaptive(quantile=2),
    ):
      with pytest.raises(ValueError):
        make()
