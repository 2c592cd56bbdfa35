"""Tests of certified training without a trusted server as a TFF process: what leaves clients, and TFF's own context."""

import numpy as np
import pytest
import tensorflow_federated as tff

from quap_tff import plans
from quap_tff.certificates.folders import evidence
from quap_tff.federated import leaving_clients
from quap_tff.mechanisms.held import guarded_clients
from tests.quap_tff import examples
from tests.quap_tff import linear_model

pytestmark = pytest.mark.slow

_SCHEDULE = examples.SCHEDULE


def _plan(**options):
  return plans.Plan.certified(examples.held(), _SCHEDULE, **options)


@pytest.fixture(scope='module')
def built(context):
  found = _plan().build_process(linear_model.Linear)
  return found.plan, found.process


def _run(plan, process, secret=b'of the simulation', came=_SCHEDULE):
  """The weights after each round, and the ledger."""
  guarded, ledger = guarded_clients.GuardedClients(plan, secret), plan.new_ledger()
  state, weights = process.initialize(), []
  for round_num, cohort in enumerate(came, 1):
    answers = guarded.answers(round_num, cohort)
    output = process.next(state, [_data(client, answer) for client, answer in answers.items()])
    ledger.append(plan.record(output, cohort))
    state = output.state
    weights.append(linear_model.weight(process, state))
  return weights, ledger


def _data(client, answer):
  return linear_model.client(client, y=1.0 + client, answer=answer)


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
    reports = [(uri, str(member)) for uri, member in others if tff.structure.flatten(member)]
    report = '<client_id=int32[5],round=int64[5],last_round=int64[5],weight=float32[5]>'  # A place for each client.
    assert reports == [('federated_sum', report)]

  def test_keys_are_of_the_clients_data_and_not_of_the_state(self, built):
    _, process = built
    state_type, data_type = process.next.type_signature.parameter
    answer = data_type.member['answer'].element
    assert (
      answer.compact_representation() == '<plan=int64,round=int64,last_round=int64,weight=float32,noise_key=int64[4]>'
    )
    assert 'key' not in str(state_type) and 'seed' not in str(state_type.member.aggregator)


class TestExecution:
  @pytest.mark.thorough
  def test_the_runtime_and_tffs_own_context_agree(self, built):
    plan, process = built
    weights, ledger = _run(plan, process)
    with tff.framework.get_context_stack().install(tff.backends.test.create_sync_test_cpp_execution_context()):
      others, _ = _run(plan, process)
    np.testing.assert_array_equal(weights, others)
    assert len(set(weights)) == 3
    report = plan.report(ledger, _SCHEDULE)
    assert report.trust == 'secure_sum' and report.formal.epsilon.max() == pytest.approx(3.0, rel=2e-3)
    assert not evidence.ledger_problems(plan, ledger)

  def test_other_keys_give_other_noise(self, built):
    assert _run(*built)[0] != _run(*built, secret=b'another')[0]

  @pytest.mark.parametrize('count', [0, 2])
  def test_a_client_without_one_answer_is_refused(self, built, count):
    plan, process = built
    answer = guarded_clients.GuardedClients(plan, b'secret').answers(1, [0])[0]
    data = _data(0, answer)
    data['answer'] = data['answer'].repeat(count)
    with pytest.raises(Exception, match='one answer of its guard'):
      process.next(process.initialize(), [data])


class TestPlan:
  def test_clients_that_stay_away_change_the_account(self, built):
    plan, process = built
    _, ledger = _run(plan, process, came=[_SCHEDULE[0][:2], _SCHEDULE[1]])
    assert not evidence.ledger_problems(plan, ledger)
    planned = _plan(model=plan.model, attendance=_SCHEDULE)
    assert 'other clients' in evidence.ledger_problems(planned, ledger)[0]

  def test_a_stranger_to_the_schedule_is_a_problem(self, built):
    plan, process = built
    _, ledger = _run(plan, process, came=[[1]])
    assert 'other clients' in evidence.ledger_problems(plan, ledger)[0]

  @pytest.mark.parametrize('colluders, words', [((4,), 'at most 3'), ((0,), 'colluders'), ((1.5,), 'colluders')])
  def test_colluders(self, colluders, words):
    with pytest.raises(ValueError, match=words):
      _plan(colluders=colluders)

  def test_colluders_need_rounds_that_are_known(self):
    with pytest.raises(ValueError, match='Give attendance'):
      _plan(colluders=[1])
