"""Tests of certified training without a trusted server as a TFF process: what leaves clients, and TFF's own context."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from quap_tff import plans
from quap_tff import runtime
from quap_tff.accounting import certificate
from quap_tff.federated import leaving_clients
from quap_tff.mechanisms import clip_rules
from quap_tff.mechanisms import correlation
from quap_tff.mechanisms.certified_config import CertifiedConfig
from tests.quap_tff import linear_model

pytestmark = pytest.mark.slow

_SCHEDULE = [np.array([0, 2, 3]), np.array([1, 2]), np.array([0, 2, 3])]


def _plan(**options):
  config = CertifiedConfig(
    num_clients=4,
    epsilon=3.0,
    delta=1e-5,
    trust='secure_sum',
    correlation=correlation.Held(0.5),
    clip=clip_rules.Fixed(0.5),
  )
  return plans.CertifiedPlan(config, _SCHEDULE, **options)


@pytest.fixture(scope='module')
def built():
  plan = _plan()
  return plan, plan.build_process(linear_model.Linear)


def _keys(count=4):
  return np.random.default_rng(7).integers(-(2**63), 2**63, [count, 4])


def _data(client, key):
  data = linear_model.client(client, y=1.0 + client)
  examples = data.pop('examples')
  data['noise_key'] = tf.data.Dataset.from_tensor_slices(key)
  data['examples'] = examples
  return data


def _run(plan, process, keys):
  state, ledger, weights = process.initialize(), plan.new_ledger(), []
  for cohort in _SCHEDULE:
    output = process.next(state, [_data(int(client), keys[client]) for client in cohort])
    ledger.append(plan.record(output, cohort))
    state = output.state
    weights.append(linear_model.weight(process, state))
  return weights, ledger


class TestComputation:
  def test_an_update_leaves_its_client_through_the_secure_sum_alone(self, built):
    plan, process = built
    found = leaving_clients.leaving_clients(process.next)
    size = plan.model.sizes[0]
    sums = [member for uri, member in found if uri == 'federated_secure_modular_sum']
    others = [(uri, member) for uri, member in found if uri != 'federated_secure_modular_sum']
    # The weights, and the number of clients.
    assert [tuple(one.shape) for one in tff.structure.flatten(sums[0])] == [(size, 1), ()] and len(sums) == 1
    assert all(one.dtype == np.int64 for one in tff.structure.flatten(sums[0]))
    for uri, member in others:
      assert tff.structure.flatten(member) in ([], [tff.TensorType(np.int64)]), (uri, member)
    assert [str(member) for _, member in others if tff.structure.flatten(member)] == ['<client_id=int64>']

  def test_keys_are_of_the_clients_data_and_not_of_the_state(self, built):
    _, process = built
    state_type, data_type = process.next.type_signature.parameter
    assert data_type.member['noise_key'] == tff.SequenceType(np.int64)
    assert 'key' not in str(state_type) and 'seed' not in str(state_type.member.aggregator)


class TestExecution:
  def test_the_runtime_and_tffs_own_context_agree(self, built):
    plan, process = built
    keys = _keys()
    with runtime.activate(runtime.RuntimeConfig(device='cpu')):
      weights, ledger = _run(plan, process, keys)
    context = tff.backends.test.create_sync_test_cpp_execution_context()
    with tff.framework.get_context_stack().install(context):
      others, _ = _run(plan, process, keys)
    np.testing.assert_allclose(weights, others, rtol=1e-6)
    assert len(set(weights)) == 3
    report = plan.report(ledger, _SCHEDULE)
    assert report.trust == 'secure_sum' and report.formal.epsilon.max() == pytest.approx(3.0, rel=2e-3)
    assert not plan.ledger_problems(ledger)

  def test_other_keys_give_other_noise(self, built):
    plan, process = built
    with runtime.activate(runtime.RuntimeConfig(device='cpu')):
      assert _run(plan, process, _keys())[0] != _run(plan, process, _keys() + 1)[0]

  @pytest.mark.parametrize('key', [[1, 2, 3], [1, 2, 3, 4, 5], []])
  def test_a_key_of_another_size_is_refused(self, built, key):
    _, process = built
    with runtime.activate(runtime.RuntimeConfig(device='cpu')), pytest.raises(Exception, match='(?s)noise_key|shape'):
      process.next(process.initialize(), [_data(0, np.array(key, np.int64))])


class TestPlan:
  def test_clients_that_stay_away_change_the_account(self, built):
    plan, process = built
    with runtime.activate(runtime.RuntimeConfig(device='cpu')):
      state, ledger, keys = process.initialize(), plan.new_ledger(), _keys()
      for cohort in (_SCHEDULE[0][:2], _SCHEDULE[1]):
        output = process.next(state, [_data(int(client), keys[client]) for client in cohort])
        ledger.append(plan.record(output, cohort))
        state = output.state
    assert not plan.ledger_problems(ledger)
    planned = _plan(model=plan.model, attendance=_SCHEDULE)
    assert 'other clients' in planned.ledger_problems(ledger)[0]

  def test_a_stranger_to_the_schedule_is_a_problem(self, built):
    plan, process = built
    with runtime.activate(runtime.RuntimeConfig(device='cpu')):
      output = process.next(process.initialize(), [_data(1, _keys()[1])])
    ledger = plan.new_ledger()
    ledger.append(plan.record(output, [1]))
    assert 'other clients' in plan.ledger_problems(ledger)[0]

  @pytest.mark.parametrize('colluders, words', [((4,), 'at most 3'), ((0,), 'colluders'), ((1.5,), 'colluders')])
  def test_colluders(self, colluders, words):
    with pytest.raises(ValueError, match=words):
      _plan(colluders=colluders)

  def test_an_early_end_does_not_lower_the_figures_against_colluders(self, built):
    plan = _plan(model=built[0].model, attendance=_SCHEDULE, colluders=[1, 2])
    told = dict(algorithm='certified', tuning='By hand.', test_set='None.', tests=0, public_data='', post_processing='')
    facts = plan.facts(**told)
    with runtime.activate(runtime.RuntimeConfig(device='cpu')):
      _, whole = _run(*built, _keys())
    of_all = certificate.issue(whole, facts, {})
    of_one = certificate.issue(whole.truncated(1), facts, {})
    assert of_one['achieved']['is_reading'] and of_one['achieved']['epsilon_max'] < of_all['achieved']['epsilon_max']
    assert of_one['guarantee'] == of_all['guarantee']
    rows = of_all['guarantee']['colluders']
    assert [row['clients'] for row in rows] == [1, 2]
    assert of_all['achieved']['epsilon_max'] < rows[0]['epsilon'] < rows[1]['epsilon']

  def test_colluders_need_rounds_that_are_known(self):
    with pytest.raises(ValueError, match='Give attendance'):
      _plan(colluders=[1])
